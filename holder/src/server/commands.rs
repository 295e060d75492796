//! Commands, from the holder's side: their beginning.
//!
//! Owns the table of commands and the way from a request to a running program. How they
//! end is beside this.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg,
    setsockopt, socketpair, sockopt,
};

use super::Holder;
use super::connection::ReplyTo;
use super::ending::{Linger, Verdict};
use super::input::Input;
use super::output::{Output, Pace};
use super::poller::Source;
use super::set_nonblocking;
use super::timers::Timer;
use crate::bytes::Bytes;
use crate::error::Error;
use crate::protocol::{
    CommandInfo, CommandState, ExitRecord, MAX_COMMANDS, Refusal, Reply, Spawn, Spawned, Stdio,
    Stream, Survivor, refusal_errno, valid_id,
};
use crate::session::control::{MainExit, Order, Status, ToInit};
use crate::transcript::Writer;

/// The longest message on a status socket: a refusal with a path in base64.
const STATUS_BYTES: usize = 64 << 10;

pub(super) struct Command {
    pub(super) session_id: String,
    pub(super) dir: PathBuf,
    pub(super) phase: Phase,
    pub(super) status: Option<OwnedFd>,
    pub(super) spawned: Spawned,
    /// Its mount namespace, held open until the command is forgotten or its session ends, so that
    /// no other can get its number before.
    pub(super) namespace: Option<OwnedFd>,
    pub(super) started_unix_ms: u64,
    pub(super) outputs: Vec<Output>,
    pub(super) pace: Pace,
    pub(super) input: Input,
    pub(super) transcript: Writer,
    /// How its main process ended, once it has.
    pub(super) main_exit: Option<(MainExit, u64)>,
    /// Why the holder kills it, if it does.
    pub(super) verdict: Option<Verdict>,
    /// Whether a kill is under way.
    pub(super) sweeping: bool,
    /// What the last kill could not end; `None`: there was no kill.
    pub(super) left: Option<Vec<Survivor>>,
    pub(super) cancellers: Vec<ReplyTo>,
    pub(super) linger: Option<Linger>,
    /// When its time is up; `None`: never.
    pub(super) deadline: Option<Instant>,
}

pub(super) enum Phase {
    /// Its program does not run yet.
    Starting(ReplyTo),
    /// It could not be started; what there is of it is being ended, and then the refusal is
    /// said. So a name that was refused is free, and nothing of it is alive.
    Failing(ReplyTo, Box<Refusal>),
    Running,
    Ended(Box<ExitRecord>),
    /// Ended and forgotten, but its output has not ended: it still goes to the transcript.
    Forgotten,
}

impl Command {
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting(_))
    }

    /// Takes the terminal's master.
    fn connect(&mut self, master: OwnedFd) -> Result<(), Refusal> {
        let step = Refusal::spawn::<io::Error>;
        set_nonblocking(&master).map_err(step("use the terminal"))?;
        self.input
            .connect(master.try_clone().map_err(step("use the terminal"))?)?;
        if let Some(output) = self.outputs.first_mut() {
            output.fd = Some(master);
        }
        Ok(())
    }

    fn info(&self, command_id: &str) -> Option<CommandInfo> {
        let state = match &self.phase {
            Phase::Starting(_) | Phase::Failing(..) => CommandState::Starting,
            Phase::Running => CommandState::Running(self.spawned),
            Phase::Ended(record) => CommandState::Exited((**record).clone()),
            Phase::Forgotten => return None,
        };
        Some(CommandInfo {
            command_id: command_id.to_owned(),
            session_id: self.session_id.clone(),
            state,
            streams: self.transcript.totals(),
        })
    }
}

impl Holder {
    pub(super) fn command_infos(&self) -> Vec<CommandInfo> {
        self.commands
            .iter()
            .filter_map(|(id, command)| command.info(id))
            .collect()
    }

    /// A command that has not been forgotten.
    pub(super) fn command(&self, command_id: &str) -> Result<&Command, Refusal> {
        self.commands
            .get(command_id)
            .filter(|command| !matches!(command.phase, Phase::Forgotten))
            .ok_or_else(|| Refusal::CommandUnknown {
                command_id: command_id.to_owned(),
            })
    }

    /// A command whose main process runs.
    pub(super) fn running(&mut self, command_id: &str) -> Result<&mut Command, Refusal> {
        self.command(command_id)?;
        self.commands
            .get_mut(command_id)
            .filter(|command| matches!(command.phase, Phase::Running))
            .ok_or_else(|| Refusal::CommandNotRunning {
                command_id: command_id.to_owned(),
            })
    }

    pub(super) fn spawn(&mut self, request: Spawn, reply_to: ReplyTo) {
        let command_id = request.command_id.clone();
        if let Err(refusal) = self.try_spawn(request, reply_to) {
            tracing::debug!(command_id, %refusal, "a command is refused");
            self.refuse(reply_to, refusal);
        }
    }

    fn try_spawn(&mut self, request: Spawn, reply_to: ReplyTo) -> Result<(), Refusal> {
        let command_id = request.command_id.clone();
        if !valid_id(&command_id) {
            return Err(Refusal::invalid("command_id must be 1-128 of A-Za-z0-9._-"));
        }
        let session_env = &self.ready_session(&request.session_id)?.env;
        let env = merged(session_env, &request.env);
        if self.commands.contains_key(&command_id) {
            return Err(Refusal::CommandExists { command_id });
        }
        if self.commands.len() >= MAX_COMMANDS {
            return Err(Refusal::TooMany {
                what: "commands".to_owned(),
                limit: MAX_COMMANDS,
            });
        }
        let dir = request.dir.clone().into_path();
        let transcript = begin_transcript(&dir, request.stdio, request.transcript_limit)?;
        let plumbing = Plumbing::lay(request.stdio).map_err(Refusal::spawn("make pipes"))?;
        let Plumbing {
            status,
            stdin,
            outputs,
            theirs,
        } = plumbing;
        let terminal = matches!(request.stdio, Stdio::Pty { .. });
        let mut input = Input::new(terminal, stdin);
        let initial = request.stdin.unwrap_or_default();
        input.push(&command_id, &initial.0, request.close_stdin)?;
        let watched = self.poller.add(
            &status,
            EpollFlags::EPOLLIN,
            Source::Status(command_id.clone()),
        );
        watched.map_err(|error| {
            tracing::error!(%error, "a command can't be watched");
            Refusal::SpawnStep {
                step: "watch".to_owned(),
                errno: libc::ENOMEM,
            }
        })?;
        let timeout = request.timeout_ms.filter(|timeout| *timeout < FOREVER_MS);
        let deadline = timeout.map(|timeout| Instant::now() + Duration::from_millis(timeout));
        let command = Command {
            session_id: request.session_id.clone(),
            dir,
            phase: Phase::Starting(reply_to),
            status: Some(status),
            spawned: Spawned { pid: 0, mnt_ns: 0 },
            namespace: None,
            started_unix_ms: unix_ms(),
            outputs,
            pace: Pace::default(),
            input,
            transcript,
            main_exit: None,
            verdict: None,
            sweeping: false,
            left: None,
            cancellers: Vec::new(),
            linger: None,
            deadline,
        };
        self.commands.insert(command_id.clone(), command);
        if let Some(deadline) = deadline {
            self.timers.at(deadline, Timer::Timeout(command_id.clone()));
        }
        let order = Order {
            command_id,
            program: request.program,
            cwd: request.cwd,
            env,
            stdio: request.stdio,
            user: request.user,
        };
        self.tell_session(&request.session_id, &ToInit::Spawn(order), theirs);
        Ok(())
    }

    /// Something on the status socket of a command being started.
    pub(super) fn hear_status(&mut self, command_id: &str) {
        // Each message may end the socket, or the command.
        while let Some(status) = self
            .commands
            .get(command_id)
            .and_then(|command| command.status.as_ref())
        {
            let heard = take_status(status);
            tracing::trace!(command_id, ?heard, "a command's process says");
            match heard {
                Ok(None) => return,
                Ok(Some(Heard::Said(Status::Started { mnt_ns }, pid, fds))) => {
                    self.command_started(command_id, Spawned { pid, mnt_ns }, fds);
                }
                Ok(Some(Heard::Said(Status::Failed(refusal), ..))) => {
                    // What fails in a session that is ending fails because of that.
                    let session_id = self.commands.get(command_id).map(|c| c.session_id.clone());
                    let refusal = match session_id {
                        Some(session_id) if self.ready_session(&session_id).is_err() => {
                            Refusal::SessionGone { session_id }
                        }
                        _ => refusal,
                    };
                    self.spawn_failed(command_id, refusal);
                }
                Ok(Some(Heard::End)) => self.command_runs(command_id),
                Err(error) => {
                    self.spawn_failed(command_id, Refusal::spawn("hear of the start")(error));
                }
            }
        }
    }

    /// Its process is about to execute the program.
    fn command_started(&mut self, command_id: &str, spawned: Spawned, fds: Vec<OwnedFd>) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        let mut fds = fds.into_iter();
        command.namespace = fds.next();
        let master = fds.next();
        command.spawned = spawned;
        command.started_unix_ms = unix_ms();
        let mut ready = match master {
            Some(master) => command.connect(master),
            None => Ok(()),
        };
        for output in &command.outputs {
            let source = Source::Output(command_id.to_owned(), output.stream);
            if let Some(fd) = &output.fd
                && let Err(error) = self.poller.add(fd, EpollFlags::EPOLLIN, source)
            {
                tracing::error!(%error, command_id, "output can't be watched");
                ready = Err(Refusal::SpawnStep {
                    step: "watch".to_owned(),
                    errno: libc::ENOMEM,
                });
            }
        }
        match ready {
            Ok(()) => self.feed(command_id),
            Err(refusal) => self.spawn_failed(command_id, refusal),
        }
    }

    /// Its status socket has closed without a refusal: the program runs (or the process
    /// was killed on the way, which its exit will tell).
    fn command_runs(&mut self, command_id: &str) {
        self.drop_status(command_id);
        let Some(command) = self.commands.get(command_id) else {
            return;
        };
        let session_lives = self.ready_session(&command.session_id).is_ok();
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        if let Phase::Starting(reply_to) = command.phase {
            if !session_lives {
                // It dies with its session, which will be told.
                return;
            }
            if command.spawned.pid == 0 {
                // It has not got as far as telling so; the init will tell why, or has.
                if command.main_exit.is_some() {
                    let command_id = command_id.to_owned();
                    self.spawn_failed(&command_id.clone(), Refusal::KilledEarly { command_id });
                }
                return;
            }
            command.phase = Phase::Running;
            let spawned = command.spawned;
            self.reply(reply_to, Reply::Spawned(spawned), Vec::new());
        }
        self.settle(command_id);
    }

    /// The init could not start it.
    pub(super) fn not_born(&mut self, command_id: &str, refusal: Refusal) {
        // What its process may have said is nearer to the cause.
        self.hear_status(command_id);
        self.spawn_failed(command_id, refusal);
        if self
            .running(command_id)
            .is_ok_and(|command| command.main_exit.is_none())
        {
            // It was killed between telling the holder and telling the init.
            self.main_exited(command_id, MainExit::killed());
        }
    }

    /// It could not be started; nothing of it stays but an empty transcript.
    pub(super) fn spawn_failed(&mut self, command_id: &str, refusal: Refusal) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        let Phase::Starting(reply_to) = command.phase else {
            return;
        };
        command.phase = Phase::Failing(reply_to, Box::new(refusal));
        let born = command.spawned.pid != 0;
        self.drop_status(command_id);
        self.close_input(command_id);
        self.close_outputs(command_id);
        if born {
            // Its process ends by itself, mostly; the end of the kill tells that it has.
            self.kill(command_id);
        }
        self.fail_if_swept(command_id);
    }

    /// Says the refusal of a command that could not be started, unless a kill of it is
    /// still under way.
    pub(super) fn fail_if_swept(&mut self, command_id: &str) {
        let failed = |command: &Command| match &command.phase {
            Phase::Failing(reply_to, refusal) if !command.sweeping => {
                Some((*reply_to, (**refusal).clone()))
            }
            _ => None,
        };
        if let Some((reply_to, refusal)) = self.commands.get(command_id).and_then(failed) {
            self.remove_command(command_id);
            self.refuse(reply_to, refusal);
        }
    }

    pub(super) fn drop_status(&mut self, command_id: &str) {
        let status = self
            .commands
            .get_mut(command_id)
            .and_then(|command| command.status.take());
        if let Some(status) = status {
            self.poller
                .remove(&status, &Source::Status(command_id.to_owned()));
        }
    }

    /// Drops a command from the table and from its init's; its files stay.
    pub(super) fn remove_command(&mut self, command_id: &str) {
        self.drop_status(command_id);
        self.close_input(command_id);
        self.close_outputs(command_id);
        if let Some(command) = self.commands.remove(command_id) {
            let command_id = command_id.to_owned();
            let message = ToInit::Forget { command_id };
            self.tell_session(&command.session_id, &message, Vec::new());
        }
    }
}

/// A timeout of this or more is none: a year.
const FOREVER_MS: u64 = 365 * 24 * 3600 * 1000;

/// Milliseconds since 1970.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since.as_millis() as u64
}

/// A command's environment, and the session's variables that it does not name.
fn merged(session: &[(Bytes, Bytes)], command: &[(Bytes, Bytes)]) -> Vec<(Bytes, Bytes)> {
    let named = |name: &Bytes| command.iter().any(|(other, _)| other == name);
    let inherited = session.iter().filter(|(name, _)| !named(name));
    inherited.chain(command).cloned().collect()
}

fn begin_transcript(dir: &Path, stdio: Stdio, limit: u64) -> Result<Writer, Refusal> {
    let refuse = |detail: String, errno| Refusal::Transcript { detail, errno };
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            let detail = format!("cannot create {}: {error}", dir.display());
            return Err(refuse(detail, refusal_errno(&error)));
        }
    }
    let streams: &[Stream] = match stdio {
        Stdio::Pty { .. } => &[Stream::Pty],
        Stdio::Pipes => &[Stream::Stdout, Stream::Stderr],
    };
    Writer::create(dir, streams, limit).map_err(|error| match &error {
        Error::Path { source, .. } | Error::System { source, .. } => {
            refuse(format!("{error}: {source}"), refusal_errno(source))
        }
        _ => refuse(error.to_string(), 0),
    })
}

/// The descriptors between holder and command.
struct Plumbing {
    status: OwnedFd,
    stdin: Option<OwnedFd>,
    outputs: Vec<Output>,
    /// The command's ends, in the order that the init expects.
    theirs: Vec<OwnedFd>,
}

impl Plumbing {
    fn lay(stdio: Stdio) -> io::Result<Plumbing> {
        let (status, their_status) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )?;
        // The kernel then adds the sender's pid, in our pid namespace.
        setsockopt(&status, sockopt::PassCred, &true)?;
        let mut theirs = vec![their_status];
        let (stdin, outputs) = match stdio {
            Stdio::Pty { .. } => (None, vec![Output::new(Stream::Pty, None)]),
            Stdio::Pipes => {
                let (their_stdin, stdin) = io::pipe()?;
                let (stdout, their_stdout) = io::pipe()?;
                let (stderr, their_stderr) = io::pipe()?;
                let (stdin, stdout, stderr): (OwnedFd, OwnedFd, OwnedFd) =
                    (stdin.into(), stdout.into(), stderr.into());
                for ours in [&stdin, &stdout, &stderr] {
                    set_nonblocking(ours)?;
                }
                theirs.extend([their_stdin.into(), their_stdout.into(), their_stderr.into()]);
                let outputs = vec![
                    Output::new(Stream::Stdout, Some(stdout)),
                    Output::new(Stream::Stderr, Some(stderr)),
                ];
                (Some(stdin), outputs)
            }
        };
        Ok(Plumbing {
            status,
            stdin,
            outputs,
            theirs,
        })
    }
}

#[derive(Debug)]
enum Heard {
    /// A message, its sender's pid, and the terminal's master.
    Said(Status, i32, Vec<OwnedFd>),
    End,
}

/// Takes one message from a status socket; `None`: there is none now.
fn take_status(socket: &OwnedFd) -> io::Result<Option<Heard>> {
    let mut bytes = vec![0; STATUS_BYTES];
    let mut space = nix::cmsg_space!([RawFd; 2], libc::ucred);
    let mut parts = [io::IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let raw = socket.as_fd().as_raw_fd();
    let message = match recvmsg::<UnixAddr>(raw, &mut parts, Some(&mut space), flags) {
        Ok(message) => message,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(Errno::ECONNRESET) => return Ok(Some(Heard::End)),
        Err(errno) => return Err(errno.into()),
    };
    let (mut pid, mut received) = (0, Vec::new());
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::ScmRights(fds) => {
                for fd in fds {
                    // SAFETY: the kernel has just made this descriptor for us, and
                    // nothing else knows of it.
                    received.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            ControlMessageOwned::ScmCredentials(sender) => pid = sender.pid(),
            _ => {}
        }
    }
    let length = message.bytes;
    if length == 0 {
        return Ok(Some(Heard::End));
    }
    let status = serde_json::from_slice(&bytes[..length]).map_err(io::Error::from)?;
    Ok(Some(Heard::Said(status, pid, received)))
}
