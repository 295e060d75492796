//! The holder itself: one thread, one epoll.
//!
//! Owns the socket, the gateway's connection, the sessions and the commands; passes
//! between gateway, inits, terminals and transcripts. Never blocks on any of them: what
//! can wait, waits in the kernel or in a bounded queue. (Writing transcripts goes to the
//! page cache; a slow disk slows all output down but holds nothing that it waits for.)
//!
//! Never ends because a gateway vanished: only by `SIGTERM`, `SIGINT` or `Shutdown`.

mod commands;
mod connection;
mod ending;
mod input;
mod output;
mod poller;
mod requests;
mod sessions;
mod timers;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::rlim_t;
use nix::sys::epoll::EpollFlags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::stat::{Mode, umask};

use crate::caps::Caps;
use crate::error::Error;
use crate::idmap::IdMap;
use crate::protocol::valid_id;
use crate::seccomp::Filters;
use crate::session::setup::make_scaffold;
use crate::syscalls;
use commands::Command;
use connection::Connection;
use poller::{Poller, Source};
use sessions::{Ask, Session};
use timers::{Timer, Timers};

/// How long the listener rests when the system has no descriptors left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How long a shutdown waits for sessions to be gone; what is left then waits in the
/// kernel, and ends when it may.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes read at once from a terminal or pipe: the size of a pipe.
const READ_BYTES: usize = 64 << 10;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where the socket will be: made with mode 0600; a stale one is replaced. Best in the
    /// run directory, which sessions do not see.
    pub socket: PathBuf,
    /// A directory of the holder's own, made with mode 0700 if it is absent.
    pub run_dir: PathBuf,
    /// The sandbox's name, told to the gateway.
    pub sandbox_id: String,
    /// Processes and threads that each user of a session may have; the kernel holds root of the host
    /// to none. `None`: as many as the holder may.
    pub processes: Option<u64>,
}

/// Serves until told to end.
///
/// # Errors
/// [`Error::AlreadyServing`], [`Error::Threaded`], or why the holder could not start. Once
/// it serves, only a failure of its own epoll ends it with an error.
pub fn serve(options: &ServeOptions) -> Result<(), Error> {
    let mut holder = Holder::start(options)?;
    tracing::info!(socket = %options.socket.display(), "serving");
    let served = holder.run();
    let removed = fs::remove_file(&holder.socket).map_err(Error::path("remove", &holder.socket));
    served.and(removed)
}

/// What new sessions are made with.
struct Settings {
    sandbox_id: String,
    run_dir: PathBuf,
    scaffold: PathBuf,
    may_mount: bool,
    ids: IdMap,
    filters: Filters,
    open_files: (rlim_t, rlim_t),
    processes: Option<rlim_t>,
}

struct Holder {
    settings: Settings,
    socket: PathBuf,
    listener: UnixListener,
    signals: SignalFd,
    poller: Poller,
    timers: Timers,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    /// The connection that has last said hello.
    gateway: Option<u64>,
    sessions: BTreeMap<String, Session>,
    commands: BTreeMap<String, Command>,
    asks: HashMap<u64, Ask>,
    next_ask: u64,
    /// When a shutdown stops waiting; `None`: no shutdown.
    ending: Option<Instant>,
    buffer: Vec<u8>,
}

impl Holder {
    fn start(options: &ServeOptions) -> Result<Holder, Error> {
        let threads =
            fs::read_dir("/proc/self/task").map_err(Error::path("list", "/proc/self/task"))?;
        let threads = threads.count();
        if threads != 1 {
            return Err(Error::Threaded { threads });
        }
        if !valid_id(&options.sandbox_id) {
            let detail = format!("the sandbox id {:?} is not valid", options.sandbox_id);
            return Err(Error::Protocol { detail });
        }
        let run_dir = make_run_dir(&options.run_dir)?;
        let listener = listen(&options.socket)?;
        let socket =
            fs::canonicalize(&options.socket).map_err(Error::path("find", &options.socket))?;
        let scaffold = make_scaffold(&run_dir).map_err(Error::path("create", &run_dir))?;
        // Orphans of the sessions' setup processes become ours.
        syscalls::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
            .map_err(Error::system("become a subreaper"))?;
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
            mask.add(signal);
        }
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), None)
            .map_err(Error::system("block signals"))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals =
            SignalFd::with_flags(&mask, flags).map_err(Error::system("wait for signals"))?;
        let caps = Caps::effective().map_err(Error::system("read capabilities"))?;
        let filters = Filters::compile().map_err(|error| Error::Protocol {
            detail: format!("system call filters: {error}"),
        })?;
        let settings = Settings {
            sandbox_id: options.sandbox_id.clone(),
            run_dir,
            scaffold,
            may_mount: caps.may_mount(),
            ids: IdMap::choose(caps).map_err(Error::system("read the id maps"))?,
            filters,
            open_files: raise_open_files()?,
            processes: options.processes,
        };
        let mut poller = Poller::new()?;
        poller.add(&listener, EpollFlags::EPOLLIN, Source::Listener)?;
        poller.add(&signals, EpollFlags::EPOLLIN, Source::Signals)?;
        Ok(Holder {
            settings,
            socket,
            listener,
            signals,
            poller,
            timers: Timers::default(),
            connections: HashMap::new(),
            next_connection: 1,
            gateway: None,
            sessions: BTreeMap::new(),
            commands: BTreeMap::new(),
            asks: HashMap::new(),
            next_ask: 1,
            ending: None,
            buffer: vec![0; READ_BYTES],
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        loop {
            if let Some(patience_ends) = self.ending {
                let told = self.connections.values().all(Connection::is_drained);
                if (self.sessions.is_empty() && told) || Instant::now() >= patience_ends {
                    return Ok(());
                }
            }
            for (source, events) in self.poller.wait(self.timers.next())? {
                self.handle(source, events);
            }
            while let Some(timer) = self.timers.due(Instant::now()) {
                self.ring(timer);
            }
        }
    }

    fn handle(&mut self, source: Source, events: EpollFlags) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.take_signals(),
            Source::Connection(key) => self.serve_connection(key, events),
            Source::Control(session_id) => self.hear_session(&session_id, events),
            Source::Status(command_id) => self.hear_status(&command_id),
            Source::Output(command_id, stream) => self.read_output(&command_id, stream),
            Source::Input(command_id) => self.feed(&command_id),
        }
    }

    fn ring(&mut self, timer: Timer) {
        match timer {
            Timer::Accept => self.watch_listener(),
            Timer::MakeSession(session_id) => self.give_session_up(&session_id),
            Timer::DestroySession(session_id) => self.tell_stuck(&session_id),
            Timer::Timeout(command_id) => self.time_out(&command_id),
            Timer::Announce(command_id) => self.announce(&command_id),
            Timer::Linger(command_id) => self.linger_rings(&command_id),
            Timer::Shutdown => {}
        }
    }

    fn take_signals(&mut self) {
        loop {
            match self.signals.read_signal() {
                Ok(Some(signal)) if signal.ssi_signo == Signal::SIGCHLD as u32 => self.reap(),
                Ok(Some(_)) => self.shut_down(),
                Ok(None) => return,
                Err(errno) => {
                    tracing::error!(%errno, "cannot read signals");
                    return;
                }
            }
        }
    }

    /// Ends all sessions; [`Holder::run`] returns when they are gone.
    fn shut_down(&mut self) {
        if self.ending.is_some() {
            return;
        }
        tracing::info!(sessions = self.sessions.len(), "shutting down");
        let patience_ends = Instant::now() + SHUTDOWN_PATIENCE;
        self.ending = Some(patience_ends);
        self.timers.at(patience_ends, Timer::Shutdown);
        let ids: Vec<String> = self.sessions.keys().cloned().collect();
        for id in ids {
            self.end_session(&id, crate::protocol::EndReason::Shutdown);
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => self.greet(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of descriptors, mostly. The listener stays readable, so asking
                    // again at once would spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    self.poller.remove(&self.listener, &Source::Listener);
                    self.timers.after(ACCEPT_REST, Timer::Accept);
                    return;
                }
            }
        }
    }

    fn watch_listener(&mut self) {
        if let Err(error) = self
            .poller
            .add(&self.listener, EpollFlags::EPOLLIN, Source::Listener)
        {
            tracing::error!(%error, "cannot watch the socket; trying again");
            self.timers.after(ACCEPT_REST, Timer::Accept);
        }
    }
}

/// Makes the run directory; returns its path without links, as the sessions will hide it.
fn make_run_dir(path: &Path) -> Result<PathBuf, Error> {
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::path("create", path)(error)),
    }
    fs::canonicalize(path).map_err(Error::path("find", path))
}

/// Whether the process that made a socket has ended or is about to. Its socket takes connections while
/// it lets go of what it had, or while a process has it that was just forked. A pid of 0 is one of
/// another pid namespace, of which nothing is known.
fn is_gone(pid: i32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    pid > 0 && program.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Binds the socket, in the place of one that nobody listens on.
fn listen(path: &Path) -> Result<UnixListener, Error> {
    match UnixStream::connect(path) {
        Ok(other) => {
            let pid = getsockopt(&other, sockopt::PeerCredentials).map_or(0, |peer| peer.pid());
            if !is_gone(pid) {
                return Err(Error::AlreadyServing {
                    socket: path.to_owned(),
                    pid,
                });
            }
            fs::remove_file(path).map_err(Error::path("remove", path))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let kind = fs::symlink_metadata(path).map_err(Error::path("look at", path))?;
            if !kind.file_type().is_socket() {
                return Err(Error::path("bind", path)(
                    io::ErrorKind::AlreadyExists.into(),
                ));
            }
            fs::remove_file(path).map_err(Error::path("remove", path))?;
        }
        Err(error) => return Err(Error::path("bind", path)(error)),
    }
    // Not a moment with another mode than 0600.
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound.map_err(Error::path("bind", path))?;
    listener
        .set_nonblocking(true)
        .map_err(Error::path("bind", path))?;
    // On filesystems that ignore the umask for sockets.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(Error::path("protect", path))?;
    Ok(listener)
}

/// Each command takes up to five descriptors of the holder. Returns what commands get:
/// the limits that the holder was started with.
fn raise_open_files() -> Result<(rlim_t, rlim_t), Error> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(Error::system("read limits"))?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(Error::system("raise a limit"))?;
    Ok((soft, hard))
}

/// Makes a socket or pipe end non-blocking; it must not be shared with anybody else.
fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
