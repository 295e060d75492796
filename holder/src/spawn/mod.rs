//! Starting a command, in the session's init.
//!
//! Owns the forks between the init and a program. Each command gets a mount namespace of
//! its own: its inode number then marks every process of the command, for commands can
//! neither make nor enter another one. Each is a process session of its own.
//!
//! On a terminal there is one process more, the *leader*: it leads the process session
//! and executes nothing. Were the main process the leader, the kernel would send
//! `SIGHUP` to the foreground group when it ends, and a background job would die with the
//! shell that started it. The main process is forked as the leader's sibling, so it is the
//! init that waits for it; the leader keeps the terminal open until the main process has
//! ended (so the holder does not take a moment without users for the end), and the init
//! ends it when the command has no other process.
//!
//! Two channels report: the *birth* pipe tells the init the ids, and the *status* socket
//! tells the holder that the program is about to run, or why it can't; its end without a
//! word after that is the `exec` itself.
//!
//! Invariant: between fork and `exec` nothing of the init is visible inside: the child is
//! not dumpable, and its descriptors are closed before the program runs.

mod exec;

use std::convert::Infallible;
use std::fs;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::rlim_t;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::socket::MsgFlags;
use nix::unistd::{
    ForkResult, Gid, Pid, Uid, dup2_stderr, dup2_stdin, dup2_stdout, fchown, fork, getpid, setpgid,
    setsid, tcsetpgrp,
};

use crate::caps::Caps;
use crate::frame;
use crate::protocol::{Refusal, Stdio, User};
use crate::seccomp::Filters;
use crate::session::control::{Order, Status};
use crate::session::end_after;
use crate::{syscalls, terminal};
use exec::Plan;

/// What all commands of a session have in common.
pub(crate) struct Ground {
    /// Where relative working directories begin.
    pub(crate) workspace_root: std::path::PathBuf,
    /// Capabilities that root keeps.
    pub(crate) caps: Caps,
    /// Calls that are refused.
    pub(crate) filters: Filters,
    /// Open files, soft and hard.
    pub(crate) open_files: (rlim_t, rlim_t),
    /// Processes and threads that each of its users may have; `None`: as many as the holder.
    pub(crate) processes: Option<rlim_t>,
    /// Whether all ids exist here.
    pub(crate) all_ids: bool,
}

/// A command that has been forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Born {
    /// Its main process, a child of the init.
    pub(crate) main: Pid,
    /// Its leader, a child of the init, on a terminal.
    pub(crate) leader: Option<Pid>,
    /// Inode number of its mount namespace.
    pub(crate) mnt_ns: u64,
}

/// Bytes on the birth pipe: main pid and namespace.
const BIRTH: usize = 16;

/// How long a birth may take (it takes a fraction of a millisecond), and how often, in
/// milliseconds, a late one is helped.
const BIRTH_PATIENCE: Duration = Duration::from_secs(3);
const BIRTH_CHECK_MS: u8 = 50;

/// Forks a command. `Ok(None)`: its process failed, and has told the holder why unless it
/// was killed.
pub(crate) fn spawn(
    order: &Order,
    fds: Vec<OwnedFd>,
    ground: &Ground,
) -> Result<Option<Born>, Refusal> {
    let plan = Plan::make(order, ground)?;
    let mut fds = fds.into_iter();
    let status = fds
        .next()
        .ok_or_else(|| Refusal::invalid("no status socket"))?;
    let streams: Vec<OwnedFd> = fds.collect();
    let (mut birth, birth_in) = io::pipe().map_err(Refusal::spawn("make a pipe"))?;
    // SAFETY: the init is single-threaded, so its memory is consistent in the child.
    let child = match unsafe { fork() }.map_err(Refusal::spawn("fork"))? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => end_after(|| {
            drop(birth);
            // Never dropped: most of the descriptors are closed by number on the way.
            let streams = ManuallyDrop::new(streams);
            let child = ManuallyDrop::new(Child {
                plan,
                order,
                ground,
                status,
                birth: birth_in,
            });
            let Err(refusal) = child.run(&streams);
            // Without a holder there is nobody left to tell.
            let _ = child.tell(&Status::Failed(refusal), &[]);
            127
        }),
    };
    drop((status, streams, birth_in));
    let mut bytes = [0; BIRTH];
    await_birth(&order.command_id, &birth, child)?;
    match birth.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(Refusal::spawn("read a pipe")(error)),
    }
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let main = Pid::from_raw(number(0) as i32);
    let leader = (main != child).then_some(child);
    Ok(Some(Born {
        main,
        leader,
        mnt_ns: number(8),
    }))
}

/// Waits until a child has told of its birth, or can't any more.
///
/// It does so before anything that could wait. But a hostile command may stop it
/// (`kill -STOP -1`), and the init must not hang by that: so it is set going again, and
/// ended if that does not help.
fn await_birth(command_id: &str, birth: &io::PipeReader, child: Pid) -> Result<(), Refusal> {
    let deadline = Instant::now() + BIRTH_PATIENCE;
    loop {
        let mut fds = [PollFd::new(birth.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, BIRTH_CHECK_MS) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(Refusal::spawn("wait for a process")(errno)),
        }
        // It is our child and not yet reaped, so the pid is its own.
        if Instant::now() >= deadline {
            kill(child, Signal::SIGKILL).map_err(Refusal::spawn("end a process"))?;
            return Err(Refusal::KilledEarly {
                command_id: command_id.to_owned(),
            });
        }
        kill(child, Signal::SIGCONT).map_err(Refusal::spawn("set a process going"))?;
    }
}

/// A command's process before it executes its program.
struct Child<'a> {
    plan: Plan,
    order: &'a Order,
    ground: &'a Ground,
    status: OwnedFd,
    birth: io::PipeWriter,
}

impl Child<'_> {
    fn run(&self, streams: &[OwnedFd]) -> Result<Infallible, Refusal> {
        setsid().map_err(Refusal::spawn("begin a process session"))?;
        unshare(CloneFlags::CLONE_NEWNS).map_err(Refusal::spawn("make a mount namespace"))?;
        // Never dropped: it is closed by number on the way.
        let namespace = ManuallyDrop::new(
            fs::File::open("/proc/self/ns/mnt")
                .map_err(Refusal::spawn("open the mount namespace"))?,
        );
        match self.order.stdio {
            Stdio::Pipes => self.on_pipes(streams, &namespace)?,
            Stdio::Pty { rows, cols } => self.on_terminal(rows, cols, &namespace)?,
        }
        self.execute()
    }

    fn on_pipes(&self, streams: &[OwnedFd], namespace: &fs::File) -> Result<(), Refusal> {
        let [stdin, stdout, stderr] = streams else {
            return Err(Refusal::invalid("three streams are needed"));
        };
        for stream in streams {
            // So that /dev/stdout and its like can be opened by name.
            self.give_to_user(stream.as_fd())?;
        }
        use_as_streams(stdin, stdout, stderr)?;
        let mnt_ns = number_of(namespace)?;
        self.tell_birth(getpid(), mnt_ns)?;
        self.tell(&Status::Started { mnt_ns }, &[namespace.as_fd()])
    }

    /// Returns in the main process only.
    fn on_terminal(&self, rows: u16, cols: u16, namespace: &fs::File) -> Result<(), Refusal> {
        let mnt_ns = number_of(namespace)?;
        let terminal::Pair { master, slave } =
            terminal::open(rows, cols).map_err(Refusal::spawn("open a terminal"))?;
        self.give_to_user(slave.as_fd())?;
        terminal::take_control(slave.as_fd()).map_err(Refusal::spawn("take a terminal"))?;
        let (mut known, mut known_in) = io::pipe().map_err(Refusal::spawn("make a pipe"))?;
        // SAFETY: this process is single-threaded, as its parent was.
        let main = unsafe { syscalls::fork_sibling() }.map_err(Refusal::spawn("fork"))?;
        if let Some(main) = main {
            drop((master, known));
            self.tell_birth(main, mnt_ns)?;
            match known_in.write_all(&[1]) {
                Ok(()) => {}
                // It has been killed already; the init will see that.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(Refusal::spawn("tell the main process")(error)),
            }
            drop(known_in);
            lead(slave);
        }
        // The init must know this process before it does anything; a leader that was killed
        // has not told it.
        drop(known_in);
        if known
            .read(&mut [0])
            .map_err(Refusal::spawn("hear from the leader"))?
            == 0
        {
            let command_id = self.order.command_id.clone();
            return Err(Refusal::KilledEarly { command_id });
        }
        let fds = [namespace.as_fd(), master.as_fd()];
        self.tell(&Status::Started { mnt_ns }, &fds)?;
        use_as_streams(&slave, &slave, &slave)?;
        let own = getpid();
        setpgid(own, own).map_err(Refusal::spawn("make a process group"))?;
        // From the background this would stop the process, were signals not blocked.
        tcsetpgrp(&slave, own).map_err(Refusal::spawn("take the foreground"))
    }

    fn give_to_user(&self, stream: BorrowedFd<'_>) -> Result<(), Refusal> {
        let Some(User { uid, gid, .. }) = &self.order.user else {
            return Ok(());
        };
        if !self.ground.all_ids {
            return Ok(());
        }
        let group = match self.order.stdio {
            Stdio::Pipes => Some(Gid::from_raw(*gid)),
            // Stays that of terminals.
            Stdio::Pty { .. } => None,
        };
        fchown(stream, Some(Uid::from_raw(*uid)), group)
            .map_err(Refusal::spawn("give the streams to the user"))
    }

    fn tell_birth(&self, main: Pid, mnt_ns: u64) -> Result<(), Refusal> {
        let mut bytes = [0; BIRTH];
        bytes[..8].copy_from_slice(&(main.as_raw() as u64).to_le_bytes());
        bytes[8..].copy_from_slice(&mnt_ns.to_le_bytes());
        (&self.birth)
            .write_all(&bytes)
            .map_err(Refusal::spawn("tell the init"))
    }

    fn tell(&self, status: &Status, fds: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
        let message = serde_json::to_vec(status)
            .map_err(|error| Refusal::spawn("tell the holder")(io::Error::from(error)))?;
        let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        frame::send_some(self.status.as_fd(), &message, &fds, MsgFlags::empty())
            .map(drop)
            .map_err(Refusal::spawn("tell the holder"))
    }

    fn execute(&self) -> Result<Infallible, Refusal> {
        self.plan.enter(
            self.ground,
            self.order.user.as_ref(),
            self.status.as_raw_fd(),
        )
    }
}

fn number_of(namespace: &fs::File) -> Result<u64, Refusal> {
    let metadata = namespace.metadata();
    Ok(metadata
        .map_err(Refusal::spawn("look at the mount namespace"))?
        .ino())
}

fn use_as_streams(stdin: &OwnedFd, stdout: &OwnedFd, stderr: &OwnedFd) -> Result<(), Refusal> {
    dup2_stdin(stdin)
        .and_then(|()| dup2_stdout(stdout))
        .and_then(|()| dup2_stderr(stderr))
        .map_err(Refusal::spawn("take the streams"))
}

/// The signal by which the init tells a leader to let go of the terminal.
pub(crate) const LET_GO: Signal = Signal::SIGUSR1;

/// The life of a leader. All signals are blocked, so only `SIGKILL` ends it.
fn lead(slave: OwnedFd) -> ! {
    end_after(|| {
        let wait = || {
            let mut signals = SigSet::empty();
            signals.add(LET_GO);
            signals.wait()
        };
        let ready = syscalls::set_name(c"session-term")
            .and_then(|()| syscalls::close_all_but(&[slave.as_raw_fd()]));
        if ready.is_err() || wait().is_err() {
            return 1;
        }
        drop(slave);
        while wait().is_ok() {}
        1
    })
}
