//! What a CLI gets from its process: arguments, variables, streams.
//!
//! Plain data, so that a test can be the process.

use std::ffi::OsString;
use std::io::{Read, Write};

/// Everything that a run of a CLI depends on, besides the gateway.
pub struct Environment {
    /// The arguments, the program's name first.
    pub args: Vec<OsString>,
    /// The environment variables that the CLIs know.
    pub variables: Variables,
    /// Whether the effective user is root, whose state directory is the system's.
    pub superuser: bool,
    /// Where a `-` reads from.
    pub stdin: Box<dyn Read + Send>,
    /// Where data goes.
    pub stdout: Output,
    /// Where words for people go.
    pub stderr: Output,
}

/// The environment variables that the CLIs know; `None` for one that is unset or empty.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// `SANDBOX_ID`: the sandbox of requests that do not name one.
    pub sandbox_id: Option<OsString>,
    /// `SANDBOX_GATEWAY_SOCKET`: the gateway's socket.
    pub socket: Option<OsString>,
    /// `SANDBOX_GATEWAY_TOKEN_FILE`: the file that holds the token.
    pub token_file: Option<OsString>,
    /// `SANDSTACK_STATE_DIR`: the gateway's state directory.
    pub state_dir: Option<OsString>,
    /// `XDG_STATE_HOME`: parent of the default state directory of an ordinary user.
    pub xdg_state_home: Option<OsString>,
    /// `HOME`: stands in for a missing `XDG_STATE_HOME`.
    pub home: Option<OsString>,
    /// `NO_COLOR`: set to anything, it turns colours off.
    pub no_color: Option<OsString>,
    /// `TERM`: `dumb` turns colours and progress bars off.
    pub term: Option<OsString>,
}

impl Variables {
    /// Whether the terminal understands control sequences.
    pub(crate) fn capable_terminal(&self) -> bool {
        self.term.as_deref().is_some_and(|term| term != "dumb")
    }
}

/// A stream to write to.
pub struct Output {
    /// The stream.
    pub sink: Box<dyn Write + Send>,
    /// The terminal that it is; `None` for a pipe or file.
    pub terminal: Option<Terminal>,
}

/// A terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Its width in characters.
    pub columns: u16,
}
