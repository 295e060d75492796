//! What gateway and holder say to each other.
//!
//! Owns the types of the wire: [`Request`], [`Reply`], [`Refusal`], [`Event`] and what
//! they are made of. Never does input or output; framing is beside it.
//!
//! A connection begins with [`Request::Hello`]; any other first request is refused.
//! Each request carries an id of the client's choice, and its reply repeats it; replies
//! come in any order. Events come unasked. Paths, arguments, environment and terminal
//! data are [`Bytes`]. Descriptors travel beside a frame (`SCM_RIGHTS`).
//!
//! Invariants:
//! - A request has exactly one reply.
//! - [`Event::Exited`] comes exactly once for each command that was spawned, after the
//!   last [`Event::Output`] that it accounts for; what happened while no gateway was
//!   connected is in the reply to the next `Hello`.

mod refusal;
mod session;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
pub use refusal::Refusal;
pub(crate) use refusal::errno as refusal_errno;
pub use session::{
    Bind, CreateSession, FuseOptions, Namespaces, Network, RootSpec, SessionInfo, View,
};

/// The version of this protocol. Both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 3;

/// The largest frame, in bytes: room for the largest argument list that Linux accepts,
/// in base64, with some to spare.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

/// The most bytes of standard input that wait in the holder for one command.
pub const MAX_STDIN_BYTES: usize = 1 << 20;

/// The longest session or command id, in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// The most sessions one holder keeps.
pub const MAX_SESSIONS: usize = 1024;

/// The most commands, running or not yet forgotten, that one holder keeps.
pub const MAX_COMMANDS: usize = 8192;

/// What the gateway asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The handshake. Replied with [`Reply::Hello`].
    Hello {
        /// [`PROTOCOL_VERSION`] of the asking side.
        protocol_version: u32,
    },
    /// Makes a session. A [`View::Descriptor`] comes with the frame. Replied with
    /// [`Reply::Session`], and with copies of the view's connection (`/dev/fuse`) and mount if the
    /// holder keeps them.
    CreateSession(Box<CreateSession>),
    /// Ends a session and everything in it. Replied with [`Reply::Done`] once all of it
    /// is gone; also when there is no such session.
    DestroySession {
        /// The session.
        session_id: String,
    },
    /// Starts a command. Replied with [`Reply::Spawned`] once the program runs.
    Spawn(Box<Spawn>),
    /// Queues input for a command. Replied with [`Reply::Done`] once queued.
    WriteStdin {
        /// The command.
        command_id: String,
        /// The bytes, passed as they are.
        data: Bytes,
        /// Ends the input after `data`. On pipes: closes. On a terminal: sends its
        /// end-of-file character, twice if the line before it is not empty (a first one
        /// then only hands the line over); later input is still possible.
        eof: bool,
    },
    /// Sends a signal to every process of a command. Replied with [`Reply::Signalled`]. After `SIGKILL`
    /// those are killed, too, that it forks meanwhile; the command has ended when there are none.
    Signal {
        /// The command.
        command_id: String,
        /// The signal's number, 1–64.
        signal: i32,
    },
    /// Sets the size of a command's terminal. Replied with [`Reply::Done`].
    Resize {
        /// The command.
        command_id: String,
        /// Rows of characters.
        rows: u16,
        /// Columns of characters.
        cols: u16,
    },
    /// Kills every process of a command. Replied with [`Reply::Survivors`] when none is
    /// left, or with those that could not be ended. A running command becomes
    /// [`ExitStatus::Cancelled`].
    Cancel {
        /// The command.
        command_id: String,
    },
    /// The processes of a command that are alive. Replied with [`Reply::Survivors`].
    Survivors {
        /// The command.
        command_id: String,
    },
    /// Drops an ended command from the holder's memory; its files stay. Replied with
    /// [`Reply::Done`].
    Forget {
        /// The command.
        command_id: String,
    },
    /// All sessions. Replied with [`Reply::Sessions`].
    ListSessions,
    /// The processes of a session. Replied with [`Reply::Processes`].
    Processes {
        /// The session.
        session_id: String,
    },
    /// Stops the processes of a session for a moment. Replied with [`Reply::Frozen`]. If the gateway
    /// goes, they go on.
    Freeze {
        /// The session.
        session_id: String,
    },
    /// Sets going what was stopped. Replied with [`Reply::Done`].
    Thaw {
        /// The session.
        session_id: String,
    },
    /// Copies of what the holder keeps of a session's view, for a gateway that came back and has
    /// neither: its connection (`/dev/fuse`), and its mount. Replied with [`Reply::Done`] and the
    /// two descriptors in this order, or none.
    ViewDescriptors {
        /// The session.
        session_id: String,
    },
    /// Begins a connection to a TCP port of a session's own loopback. Replied with [`Reply::Done`] and
    /// the socket, which does not block and may not be connected yet.
    Connect {
        /// The session.
        session_id: String,
        /// The port.
        port: u16,
        /// Whether to `::1` instead of `127.0.0.1`.
        version_6: bool,
    },
    /// Ends all sessions and then the holder. Replied with [`Reply::Done`].
    Shutdown,
}

/// What the holder answers when it does what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To `Hello`.
    Hello(HelloReply),
    /// To `CreateSession`.
    Session(SessionInfo),
    /// To `Spawn`.
    Spawned(Spawned),
    /// To `Signal`.
    Signalled {
        /// How many processes got the signal.
        processes: usize,
    },
    /// To `Cancel` and `Survivors`.
    Survivors {
        /// The processes still alive.
        survivors: Vec<Survivor>,
    },
    /// To `ListSessions`.
    Sessions {
        /// Every session that is ready or ending.
        sessions: Vec<SessionInfo>,
    },
    /// To `Processes`.
    Processes {
        /// Every process of the session.
        processes: Vec<ProcessInfo>,
    },
    /// To `Freeze`.
    Frozen {
        /// Whether all of them stand still; if not, none was stopped.
        still: bool,
    },
    /// Done, with nothing to say.
    Done,
}

/// What the holder says unasked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A command's output has grown. At most one per command and stream in 20 ms while
    /// output flows.
    Output {
        /// The command.
        command_id: String,
        /// The stream that grew.
        stream: Stream,
        /// Bytes of the stream so far.
        total_bytes: u64,
        /// Lines of the stream so far; a last one without a newline counts.
        total_lines: u64,
        /// As [`StreamTotals::lost`].
        #[serde(default)]
        lost: Option<String>,
    },
    /// A command has ended.
    Exited(ExitRecord),
    /// A session is gone, with all its processes and mounts.
    SessionEnded {
        /// The session.
        session_id: String,
        /// Why.
        reason: EndReason,
    },
}

/// The reply to `Hello`: all that a gateway needs to take up again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The holder's [`PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// The sandbox, as named at the holder's start.
    pub sandbox_id: String,
    /// The holder's pid in its own pid namespace.
    pub holder_pid: i32,
    /// Every session.
    pub sessions: Vec<SessionInfo>,
    /// Every command that runs or has not been forgotten.
    pub commands: Vec<CommandInfo>,
}

/// A command as `Hello` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandInfo {
    /// The command.
    pub command_id: String,
    /// Its session.
    pub session_id: String,
    /// Where it stands.
    pub state: CommandState,
    /// Its output so far.
    pub streams: Vec<StreamTotals>,
}

/// Where a command stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum CommandState {
    /// Being started.
    Starting,
    /// Its main process runs.
    Running(Spawned),
    /// Its main process has ended.
    Exited(ExitRecord),
}

/// A request for a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    /// The new command's id: 1–128 of `A-Za-z0-9._-`, not beginning with a dot.
    pub command_id: String,
    /// The session it runs in.
    pub session_id: String,
    /// What to run.
    pub program: Program,
    /// The working directory; relative to the workspace root unless absolute. Empty
    /// means the workspace root.
    pub cwd: Bytes,
    /// The environment. Variables of the session that are not named here are added.
    pub env: Vec<(Bytes, Bytes)>,
    /// What its standard streams are.
    pub stdio: Stdio,
    /// Input that waits for it from the start.
    #[serde(default)]
    pub stdin: Option<Bytes>,
    /// Ends the input after `stdin`, as `eof` of [`Request::WriteStdin`] does.
    #[serde(default)]
    pub close_stdin: bool,
    /// Milliseconds after which every process of the command is killed; `None`: never.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Whom it runs as, in the session's ids; `None`: as the session's init does (root
    /// under a full id map, else the holder's own user).
    #[serde(default)]
    pub user: Option<User>,
    /// Directory for its transcript and exit record, as the holder sees it. Made if it
    /// is absent; its parent must exist.
    pub dir: Bytes,
    /// Bytes kept of each stream, at least [`crate::transcript::LEAST_LIMIT`].
    pub transcript_limit: u64,
}

/// What a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A shell script: `/bin/bash --noprofile --norc -c SCRIPT` if the session's root
    /// has bash, else `/bin/sh -c SCRIPT`.
    Shell(Bytes),
    /// A program and its arguments. Without a slash in it the program is searched in
    /// the command's `PATH`.
    Argv(Vec<Bytes>),
}

/// What a command's standard streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdio {
    /// A terminal of this size; output is the one stream `pty`.
    Pty {
        /// Rows of characters.
        rows: u16,
        /// Columns of characters.
        cols: u16,
    },
    /// Three pipes; output is the streams `stdout` and `stderr`.
    Pipes,
}

/// Whom a command runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// User id inside the session.
    pub uid: u32,
    /// Group id inside the session.
    pub gid: u32,
    /// Supplementary groups.
    #[serde(default)]
    pub groups: Vec<u32>,
}

/// A command that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// Its main process, in the holder's pid namespace.
    pub pid: i32,
    /// Inode number of its mount namespace: that of every process of the command, and of no
    /// other's until the command is forgotten or its session ends.
    pub mnt_ns: u64,
}

/// One stream of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// What was written to the terminal.
    Pty,
    /// What was written to the standard output pipe.
    Stdout,
    /// What was written to the standard error pipe.
    Stderr,
}

impl Stream {
    /// The stream's name, as in the names of a transcript's files.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Pty => "pty",
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much one stream has produced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTotals {
    /// The stream.
    pub stream: Stream,
    /// Bytes, whether kept or dropped; not those that were lost.
    pub total_bytes: u64,
    /// Lines; a last one without a newline counts.
    pub total_lines: u64,
    /// Why what came after these bytes could not be kept, e.g. a full disk; `None` if nothing was
    /// lost. Only the holder knows: a reader of the transcript says `None`.
    #[serde(default)]
    pub lost: Option<String>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ExitStatus {
    /// Its main process returned this code.
    Exited {
        /// 0–255.
        code: i32,
    },
    /// Its main process was ended by this signal.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// Its time ran out, and the holder killed all of it.
    TimedOut,
    /// It was cancelled by request.
    Cancelled,
}

/// The evidence of a command's end; also the content of its `exit.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The command.
    pub command_id: String,
    /// Its session.
    pub session_id: String,
    /// How it ended.
    #[serde(flatten)]
    pub status: ExitStatus,
    /// Its main process's start, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Its main process's end, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Microseconds of CPU in user mode, of the main process and the children it has
    /// waited for; 0 if the session ended first.
    pub user_cpu_us: u64,
    /// Microseconds of CPU in the kernel, as `user_cpu_us`.
    pub system_cpu_us: u64,
    /// The largest resident set of any one of them, in bytes.
    pub max_rss_bytes: u64,
    /// Its processes that were alive when the main one had ended.
    pub survivors: Vec<Survivor>,
    /// Its output up to then, and whether some was lost.
    pub streams: Vec<StreamTotals>,
}

/// A process of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// Its pid inside the session.
    pub pid: i32,
    /// Its name, as the kernel keeps it: at most 15 bytes.
    pub name: Bytes,
}

/// A process of a session. All pids are those inside the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its pid.
    pub pid: i32,
    /// Its parent's pid; 0 for the session's init.
    pub ppid: i32,
    /// Its name, as the kernel keeps it.
    pub name: Bytes,
    /// The kernel's state letter: `R` running, `S` sleeping, `D` waiting on a device,
    /// `T` stopped, `Z` ended.
    pub state: char,
    /// The command it belongs to; `None` for the session's init.
    pub command_id: Option<String>,
}

/// Why a session is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum EndReason {
    /// It was destroyed by request.
    Destroyed,
    /// Its init ended by itself or was killed.
    InitDied {
        /// The code it returned, or 128 + the signal that ended it.
        code: i32,
    },
    /// The holder shuts down.
    Shutdown,
}

/// Whether `id` may name a session or command: 1–[`MAX_ID_BYTES`] of `A-Za-z0-9._-`,
/// not beginning with a dot. Such an id is safe in a path and in a shell.
pub fn valid_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= MAX_ID_BYTES
        && !id.starts_with('.')
        && id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}
