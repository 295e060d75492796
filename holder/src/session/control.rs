//! What the holder and a session's init say to each other.
//!
//! Owns the messages of that socket pair. Both ends are the same program, forked, so
//! there is no version; the holder trusts the init as itself, since nothing inside the
//! session can reach either end.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::protocol::{Namespaces, ProcessInfo, Program, Refusal, Stdio, Survivor, User};

/// From the holder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToInit {
    /// The id maps are there; go on.
    MapsWritten,
    /// Start a command. Beside it come the status socket and, for pipes, the three
    /// standard streams.
    Spawn(Order),
    /// Send a signal to a command's processes; answered by `Signalled`.
    Signal {
        token: u64,
        command_id: String,
        signal: i32,
    },
    /// Kill a command's processes until none is left; answered by `Swept`.
    Kill { command_id: String },
    /// List a command's processes; answered by `Survivors`.
    Survivors { token: u64, command_id: String },
    /// List all processes; answered by `Processes`.
    Processes { token: u64 },
    /// Stop all processes; answered by `Frozen`.
    Freeze { token: u64 },
    /// Set going again what was stopped; answered by `Thawed`.
    Thaw { token: u64 },
    /// Begin a connection to a port of the session's loopback; answered by `Connecting`.
    Connect {
        token: u64,
        port: u16,
        version_6: bool,
    },
    /// The command will not be asked about again.
    Forget { command_id: String },
}

/// To the holder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromInit {
    /// The setup process waits for its id maps.
    NeedMaps,
    /// The init has been forked; the setup process ends. Beside it come the
    /// connection and the mount of a view that was made here, if one was.
    Forked { pid: i32 },
    /// The session is made.
    Ready {
        namespaces: Namespaces,
        abstract_sockets_fenced: bool,
    },
    /// The session can't be made.
    Failed(Refusal),
    /// A command could not even be forked; nothing else comes of it.
    SpawnFailed {
        command_id: String,
        refusal: Refusal,
    },
    /// A command's main process has ended.
    MainExited { command_id: String, exit: MainExit },
    /// A kill has ended; `survivors` could not be ended.
    Swept {
        command_id: String,
        survivors: Vec<Survivor>,
    },
    /// Answer to `Signal`.
    Signalled { token: u64, processes: usize },
    /// Answer to `Survivors`.
    Survivors {
        token: u64,
        survivors: Vec<Survivor>,
    },
    /// Answer to `Processes`.
    Processes {
        token: u64,
        processes: Vec<ProcessInfo>,
    },
    /// Answer to `Freeze`: whether all of them stand still. If not, all go on.
    Frozen { token: u64, still: bool },
    /// Answer to `Thaw`.
    Thawed { token: u64 },
    /// Answer to `Connect`: beside it comes the socket, unless it was refused.
    Connecting {
        token: u64,
        refusal: Option<Refusal>,
    },
}

/// A command to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) command_id: String,
    pub(crate) program: Program,
    pub(crate) cwd: Bytes,
    pub(crate) env: Vec<(Bytes, Bytes)>,
    pub(crate) stdio: Stdio,
    pub(crate) user: Option<User>,
}

/// How a main process ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MainExit {
    /// The code it returned, unless a signal ended it.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    pub(crate) user_cpu_us: u64,
    pub(crate) system_cpu_us: u64,
    pub(crate) max_rss_bytes: u64,
    /// The command's other processes, at that time.
    pub(crate) survivors: Vec<Survivor>,
}

impl MainExit {
    /// An end that nobody has seen, of a process that was killed.
    pub(crate) fn killed() -> MainExit {
        MainExit {
            code: None,
            signal: Some(libc::SIGKILL),
            user_cpu_us: 0,
            system_cpu_us: 0,
            max_rss_bytes: 0,
            survivors: Vec::new(),
        }
    }
}

/// From a command's process, on its status socket, until it executes its program. The
/// kernel adds its pid.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Status {
    /// It is about to execute; beside it comes the terminal's master, if there is one.
    Started { mnt_ns: u64 },
    /// It could not.
    Failed(Refusal),
}
