//! Commands.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Published;
use crate::observability::CommandSummary;
use crate::{ApiError, Blob, CommandId, SandboxId, SessionId, Text};

/// Runs a shell command in a workspace session.
///
/// Waits up to `yield_time_ms` for it to end; a command that runs longer goes on, and its `command_session_id`
/// reads, feeds and waits for it later. Without `workspace_session_id` a session is made for this command alone
/// and published when its last process ends; on conflict it is kept and named.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "workspace_session_id": "ws-8fq2m1", "cmd": "cargo test"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecCommand {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The command line, for `bash -c` where there is bash, else `sh -c`.
    pub cmd: Blob,
    /// The session to run in; default: one made for this command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Working directory, absolute or relative to the workspace root; default the workspace root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Blob>,
    /// Environment, over the session's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Blob>,
    /// Milliseconds after which every process of the command is killed; default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<u64>,
    /// Milliseconds to wait for the end before answering, 0 to 600,000; default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 600_000))]
    pub yield_time_ms: Option<u64>,
    /// A terminal (default), or pipes with stdout and stderr apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<bool>,
    /// Input to begin with. With `tty=false` the input then ends; without it, it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Blob>,
    /// With `tty=false`: keep the input open for `write_command_stdin`; default false.
    #[serde(default)]
    pub keep_stdin_open: bool,
    /// Rows of characters of the terminal, 1 to 65,535; default 24.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rows: Option<u16>,
    /// Columns of characters of the terminal, 1 to 65,535; default 80.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub cols: Option<u16>,
}

/// Sends bytes to a command's input, as they are.
///
/// On a terminal ^C (`"\u0003"`) interrupts and ^D (`"\u0004"`) ends input, by the terminal's own rules. Empty
/// input with a `yield_time_ms` waits for more output or the end.
///
/// Example: `{"command_session_id": "cmd-x7d0aa", "stdin": "y\n"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteCommandStdin {
    /// The command.
    pub command_session_id: CommandId,
    /// The bytes, at most 1 MiB.
    #[serde(default)]
    pub stdin: Blob,
    /// End the input after the bytes: closes a pipe, sends ^D on a terminal; default false.
    #[serde(default)]
    pub eof: bool,
    /// Milliseconds to wait for the end before answering, 0 to 600,000; default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 600_000))]
    pub yield_time_ms: Option<u64>,
    /// The line to answer from; default: the last 64 KiB of output. `next_offset` of an earlier answer continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_offset: Option<u64>,
}

/// Reads lines of a command's output, running or ended, or with `start_byte` its bytes as they are. Offsets never
/// change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadCommandLines {
    /// The command.
    pub command_session_id: CommandId,
    /// The first line, from 0.
    #[serde(default)]
    pub start_offset: u64,
    /// Most lines: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// Answer up to 256 KiB of output from this byte on, in `chunk`, and no lines; from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_byte: Option<u64>,
    /// Which output of a command without a terminal; default `stdout`. With a terminal there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<OutputStream>,
}

/// Sends a signal to every process of a command.
///
/// Example: `{"command_session_id": "cmd-x7d0aa", "signal": "INT"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalCommand {
    /// The command.
    pub command_session_id: CommandId,
    /// The signal's name, with or without `SIG`, or its number, 1 to 64.
    pub signal: String,
}

/// Sets the size of a command's terminal; its foreground processes get `SIGWINCH`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeCommand {
    /// The command.
    pub command_session_id: CommandId,
    /// Rows of characters, 1 to 65,535.
    #[schemars(range(min = 1))]
    pub rows: u16,
    /// Columns of characters, 1 to 65,535.
    #[schemars(range(min = 1))]
    pub cols: u16,
}

/// Lists commands of a sandbox, running ones first, then the newest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListCommands {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Only those of this session, living or gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Rows in the page: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_page_token` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

/// How a command stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandStanding {
    /// The command.
    pub command_session_id: CommandId,
    /// How it stands. A signal may take effect after the answer.
    pub status: CommandStatus,
    /// How many processes got the signal, where one was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

/// One page of commands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandPage {
    /// The commands.
    pub commands: Vec<CommandSummary>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// An output of a command without a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandStatus {
    /// It runs.
    Running,
    /// It ended by itself, with `exit_code`.
    Exited,
    /// A signal ended it, `signal`.
    Signalled,
    /// Its `timeout_ms` ran out and all its processes were killed.
    TimedOut,
    /// It was ended with its session.
    Cancelled,
    /// Its holder died with it, so how it ended is not known.
    Lost,
}

/// How a command stands, with a window of its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandReply {
    /// The command.
    pub command_session_id: CommandId,
    /// Its session.
    pub workspace_session_id: SessionId,
    /// How it stands.
    pub status: CommandStatus,
    /// The exit code, of one that exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal's number, of one that a signal ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Output of the terminal, or standard output.
    pub output: OutputWindow,
    /// Standard error, of a command without a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<OutputWindow>,
    /// Processes of the command that outlived it; they end with the session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<Survivor>,
    /// How the publish of an automatic session ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<Published>,
    /// When it started, in Unix milliseconds.
    pub started_at_unix_ms: u64,
    /// How long it ran, or has run so far, in milliseconds.
    pub duration_ms: u64,
    /// Processor time of the main process and the children it waited for, in microseconds; known once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<u64>,
    /// Largest resident memory of any of those processes, in bytes; known once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rss_bytes: Option<u64>,
}

/// A window of output, in whole lines (the last line may still grow).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputWindow {
    /// The bytes.
    #[serde(flatten)]
    pub text: Text,
    /// The line it starts at, from 0.
    pub start_offset: u64,
    /// The line to continue from.
    pub next_offset: u64,
    /// Lines of output so far.
    pub total_lines: u64,
    /// Bytes of output so far.
    pub total_bytes: u64,
    /// Whether there is output before or after this window.
    pub truncated: bool,
    /// Lines within the window that are no longer kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elided: Option<Elision>,
    /// Why the output ends at `total_bytes` although the command wrote more: it could not be kept, e.g. on a full disk.
    /// Absent if nothing was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
}

/// Output that is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Elision {
    /// The first line that is gone, from 0.
    pub first_line: u64,
    /// How many lines are gone.
    pub lines: u64,
    /// How many bytes are gone.
    pub bytes: u64,
}

/// Lines of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandLines {
    /// The command.
    pub command_session_id: CommandId,
    /// How it stands.
    pub status: CommandStatus,
    /// The lines, each without its line end.
    pub lines: Vec<OutputLine>,
    /// The bytes, if `start_byte` asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<OutputChunk>,
    /// The line to continue from.
    pub next_offset: u64,
    /// Lines of output so far.
    pub total_lines: u64,
    /// Bytes of output so far.
    pub total_bytes: u64,
    /// Lines in the asked range that are no longer kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elided: Option<Elision>,
    /// Why the output ends at `total_bytes` although the command wrote more: it could not be kept, e.g. on a full disk.
    /// Absent if nothing was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
}

/// Bytes of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputChunk {
    /// The bytes; none at the end of what there is so far.
    #[serde(flatten)]
    pub text: Text,
    /// Where they begin. Later than asked for if what was asked for is no longer kept.
    pub start_byte: u64,
    /// The byte to continue from.
    pub next_byte: u64,
}

/// One line of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputLine {
    /// Its offset, from 0.
    pub offset: u64,
    /// Its bytes, without the line end.
    #[serde(flatten)]
    pub text: Text,
    /// False for a last line that may still grow, and for a line cut at 64 KiB.
    pub complete: bool,
}

/// A process that outlived its command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Survivor {
    /// Its pid, as the session sees it.
    pub pid: u32,
    /// Its name.
    pub name: Blob,
}
