//! Why the holder did not do what it was asked.
//!
//! Owns the closed list of refusals. Each says what was wrong in the asker's words and,
//! where there is one, the fix.

use std::io;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// A typed refusal. `errno` fields hold the system's error number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Refusal {
    /// The first request was not `Hello`, or another gateway has taken this one's place.
    #[error("this connection has not said hello, or a newer one has replaced it")]
    NotGreeted,
    /// The gateway speaks another version.
    #[error("the holder speaks protocol {ours}, the gateway {theirs}")]
    VersionMismatch {
        /// The holder's version.
        ours: u32,
        /// The gateway's version.
        theirs: u32,
    },
    /// A field is out of its range.
    #[error("invalid request: {detail}")]
    Invalid {
        /// Which field, and what it must be.
        detail: String,
    },
    /// There is no such session, or it is ending.
    #[error("no session {session_id}")]
    SessionUnknown {
        /// The session asked for.
        session_id: String,
    },
    /// There is such a session already.
    #[error("session {session_id} exists already")]
    SessionExists {
        /// The session asked for.
        session_id: String,
    },
    /// The session ended before the request was done.
    #[error("session {session_id} ended before this was done")]
    SessionGone {
        /// The session.
        session_id: String,
    },
    /// There is no such command.
    #[error("no command {command_id}")]
    CommandUnknown {
        /// The command asked for.
        command_id: String,
    },
    /// There is such a command already.
    #[error("command {command_id} exists already")]
    CommandExists {
        /// The command asked for.
        command_id: String,
    },
    /// The command still runs, so it can't be forgotten.
    #[error("command {command_id} has not ended")]
    CommandRunning {
        /// The command.
        command_id: String,
    },
    /// The command has not started yet or has ended.
    #[error("command {command_id} does not run")]
    CommandNotRunning {
        /// The command.
        command_id: String,
    },
    /// The command's input has been closed, by `eof` or by the command itself.
    #[error("the input of command {command_id} is closed")]
    StdinClosed {
        /// The command.
        command_id: String,
    },
    /// The command has pipes, not a terminal.
    #[error("command {command_id} has no terminal")]
    NotATerminal {
        /// The command.
        command_id: String,
    },
    /// The command does not read its input; nothing was queued. Try again later.
    #[error("{queued} bytes of input wait already; at most {limit} may")]
    Busy {
        /// Bytes that wait.
        queued: usize,
        /// The most that may wait.
        limit: usize,
    },
    /// A bound of the holder is reached.
    #[error("too many {what}: at most {limit}")]
    TooMany {
        /// Sessions or commands.
        what: String,
        /// The bound.
        limit: usize,
    },
    /// The working directory can't be entered.
    #[error("cannot enter {}: {}", path.0.escape_ascii(), text(*errno))]
    Cwd {
        /// The directory, as asked for.
        path: Bytes,
        /// `ENOENT`, `ENOTDIR`, `EACCES`, …
        errno: i32,
    },
    /// There is no such program: not at its path, or nowhere in `PATH`.
    #[error("no program {}", program.0.escape_ascii())]
    ProgramNotFound {
        /// The program, as asked for.
        program: Bytes,
    },
    /// The program exists and can't be run.
    #[error("cannot run {}: {}", program.0.escape_ascii(), text(*errno))]
    NotExecutable {
        /// The program, as asked for.
        program: Bytes,
        /// `EACCES`, `ENOEXEC`, …
        errno: i32,
    },
    /// Arguments and environment exceed what the kernel takes.
    #[error("arguments and environment are too long for the kernel")]
    ArgumentsTooLong,
    /// The user or a group does not exist in the session's id map.
    #[error("id {id} does not exist in this session")]
    IdNotMapped {
        /// The user or group id.
        id: u32,
    },
    /// The command's process was killed before its program ran: by a cancel, a timeout, or
    /// from inside its session.
    #[error("command {command_id} was killed before its program ran")]
    KilledEarly {
        /// The command.
        command_id: String,
    },
    /// A step of starting the command failed otherwise.
    #[error("cannot start the command ({step}): {}", text(*errno))]
    SpawnStep {
        /// The step.
        step: String,
        /// The system's error number.
        errno: i32,
    },
    /// The transcript could not be made.
    #[error("cannot make the transcript: {detail}")]
    Transcript {
        /// Why, with the path.
        detail: String,
        /// The system's error number; 0 if it was not the system that refused.
        errno: i32,
    },
    /// A path to mount on is absent and can't be made.
    #[error("{} does not exist and can't be made: {}", path.0.escape_ascii(), text(*errno))]
    MountpointMissing {
        /// The path in the session.
        path: Bytes,
        /// The system's error number.
        errno: i32,
    },
    /// A path to show can't be opened.
    #[error("cannot show {}: {}", path.0.escape_ascii(), text(*errno))]
    SourceMissing {
        /// The path in the holder's root.
        path: Bytes,
        /// The system's error number.
        errno: i32,
    },
    /// The kernel or a policy refuses new namespaces.
    #[error("cannot make namespaces: {}; {fix}", text(*errno))]
    NamespacesRefused {
        /// The system's error number.
        errno: i32,
        /// What to change.
        fix: String,
    },
    /// The kernel refuses a fresh `/proc`.
    #[error("cannot mount a fresh /proc: {}; {fix}", text(*errno))]
    ProcRefused {
        /// The system's error number.
        errno: i32,
        /// What to change.
        fix: String,
    },
    /// FUSE can't be used.
    #[error("cannot mount FUSE ({step}): {}; {fix}", text(*errno))]
    FuseRefused {
        /// The step.
        step: String,
        /// The system's error number.
        errno: i32,
        /// What to change.
        fix: String,
    },
    /// The descriptor is missing, or neither a detached mount nor a directory that can
    /// be bound.
    #[error("cannot use the view's descriptor: {}", text(*errno))]
    ViewRefused {
        /// The system's error number.
        errno: i32,
    },
    /// A step of making the session failed otherwise.
    #[error("cannot make the session ({step}): {}", text(*errno))]
    SetupStep {
        /// The step.
        step: String,
        /// The system's error number.
        errno: i32,
    },
    /// A connection to a port of a session can't be begun.
    #[error("cannot connect to port {port} in the session: {}", text(*errno))]
    ConnectRefused {
        /// The port.
        port: u16,
        /// The system's error number.
        errno: i32,
    },
    /// Processes could not be ended in time: they wait in the kernel.
    #[error("session {session_id} still has processes that can't be ended")]
    StillAlive {
        /// The session.
        session_id: String,
    },
    /// The holder is ending.
    #[error("the holder is shutting down")]
    ShuttingDown,
}

fn text(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Refusal {
    /// A refusal for a field out of its range.
    pub(crate) fn invalid(detail: impl Into<String>) -> Refusal {
        Refusal::Invalid {
            detail: detail.into(),
        }
    }

    /// Makes a [`Refusal::SetupStep`]; for `map_err`.
    pub(crate) fn setup<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Refusal {
        move |error| Refusal::SetupStep {
            step: step.to_owned(),
            errno: errno(&error.into()),
        }
    }

    /// Makes a [`Refusal::SpawnStep`]; for `map_err`.
    pub(crate) fn spawn<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Refusal {
        move |error| Refusal::SpawnStep {
            step: step.to_owned(),
            errno: errno(&error.into()),
        }
    }
}

/// The error number of a system error; `EIO` for one that has none (none of ours).
pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
