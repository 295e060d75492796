//! Observability: read-only, and never changes what it observes.

mod daemon;
mod resources;
mod topology;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::management::{SandboxRecord, TraceMode};
use crate::runtime::{CommandStatus, SessionRecord};
use crate::{ApiError, Blob, CommandId, LayerId, RequestId, SandboxId, SessionId};

pub use daemon::{
    Counts, Daemon, DaemonReply, DurationClass, Queues, RequestCounts, SentSpans, ThreadGroup,
};
pub use resources::{
    Cgroup, CgroupRecord, CgroupReply, ResourceSample, Resources, ResourcesReply, SessionDisk,
};
pub use topology::{ProcessRecord, SessionProcesses, Topology, TopologyReply};

/// Shows what lives now: sandboxes, sessions, commands, layers, leases, and whether any record was lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// One sandbox; default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
}

/// Shows where the time of one request went, span by span.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// A request id, or `last` (default) for the newest request. Requests that only observe are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<RequestId>,
    /// Only requests about this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Only requests of this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
}

/// Lists what happened, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// Only events of this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Only events of this name, or of a family: `command.*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only events at or after this time, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Most events: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub last_n: Option<u32>,
}

/// Shows a sandbox's layers, leases and uppers, with their bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Layerstack {
    /// The sandbox.
    pub sandbox_id: SandboxId,
}

/// Lists who read, wrote, made, removed, ran, listed or missed which path.
///
/// Rows are folded: one for each path, kind, command and process, with a count. With `calls` there is instead one for
/// each read and write call, with its offset, of sessions whose trace mode is `exact`. `exactness` says what the
/// session's trace mode can see, and `gaps` where a record was lost.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "src/main.rs"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileActivity {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Only this path, relative to the workspace root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Blob>,
    /// Only paths that match this pattern (`*`, `?`, `[…]`, `{a,b}`, `**`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Only opens and reads of this content: its blake3 in hex, such as `file_read` answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Only this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Only this command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_session_id: Option<CommandId>,
    /// Only this process, by its pid on the gateway's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Only these kinds; default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<AccessKind>,
    /// Only accesses at or after this time, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Only accesses before this time, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Each read and write call by itself, in the order in which they were made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub calls: bool,
    /// Rows in the page: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_page_token` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

/// What lives now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotReply {
    /// One entry a sandbox, newest first.
    pub sandboxes: Vec<SandboxSnapshot>,
    /// The gateway.
    pub gateway: GatewaySnapshot,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// The gateway itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GatewaySnapshot {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started, in Unix milliseconds.
    pub started_at_unix_ms: u64,
    /// Its resident memory, in bytes.
    pub resident_bytes: u64,
    /// Its open descriptors.
    pub open_descriptors: u64,
    /// Its threads.
    pub threads: u64,
}

/// What lives in one sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxSnapshot {
    /// The sandbox.
    pub sandbox: SandboxRecord,
    /// Its sessions, newest first.
    pub sessions: Vec<SessionRecord>,
    /// Its running commands and the newest that ended, at most 200, newest first.
    pub commands: Vec<CommandSummary>,
    /// Layers in its history.
    pub layer_count: u64,
    /// Leases that pin layers.
    pub lease_count: u64,
    /// Access records that were lost; 0, or see `trace.gap` events.
    pub trace_dropped: u64,
}

/// One command in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandSummary {
    /// The command.
    pub command_session_id: CommandId,
    /// Its session.
    pub workspace_session_id: SessionId,
    /// The command line, cut to 200 bytes.
    pub cmd: Blob,
    /// How it stands.
    pub status: CommandStatus,
    /// The exit code, of one that exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it started, in Unix milliseconds.
    pub started_at_unix_ms: u64,
    /// How long it ran, or has run so far, in milliseconds.
    pub duration_ms: u64,
}

/// One request's waterfall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceReply {
    /// The request.
    pub trace_id: RequestId,
    /// The operation.
    pub operation: String,
    /// When it came in, in Unix milliseconds.
    pub started_at_unix_ms: u64,
    /// How long it took, in microseconds; work that went on after the answer included.
    pub duration_us: u64,
    /// The spans, in order of their start; the first is the whole request.
    pub spans: Vec<Span>,
}

/// A piece of work within a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Span {
    /// What it is, such as `publish.merge`.
    pub name: String,
    /// Index of the span that it is part of; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Start, in microseconds after the request came in.
    pub start_us: u64,
    /// Duration, in microseconds; absent for one that still runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// Particulars, such as counts and ids.
    #[serde(default)]
    pub fields: Value,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventsReply {
    /// The events, newest first.
    pub events: Vec<Event>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number, growing by one; never reused.
    pub sequence: u64,
    /// Its name, such as `layer.published`.
    pub name: String,
    /// When, in Unix milliseconds.
    pub time_unix_ms: u64,
    /// The sandbox it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// The session it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// The command it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_session_id: Option<CommandId>,
    /// The request that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Particulars.
    #[serde(default)]
    pub details: Value,
}

/// A sandbox's layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LayerstackReply {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The newest layer.
    pub head: LayerId,
    /// The layers, newest first; at most 1000.
    pub layers: Vec<LayerRecord>,
    /// Layers in the history.
    pub layer_count: u64,
    /// What pins which layer.
    pub leases: Vec<LeaseRecord>,
    /// Logical bytes of all files at the head.
    pub logical_bytes: u64,
    /// Bytes of content and trees in the store, all sandboxes together.
    pub stored_bytes: u64,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// What made a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// An import of the project directory.
    Base,
    /// A publish.
    Published,
    /// A squash of several layers.
    Squashed,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LayerRecord {
    /// The id.
    pub layer: LayerId,
    /// What made it.
    pub kind: LayerKind,
    /// The layer it was made on; absent for a base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<LayerId>,
    /// Digest of its whole tree, in hex.
    pub root: String,
    /// Who made it: `original`, `workspace_session:ID`, `operation:ID` or `host`.
    pub owner: String,
    /// The session's name for people, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// The publish's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The request that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// When, in Unix milliseconds.
    pub time_unix_ms: u64,
    /// Paths that differ from the parent.
    pub changed_paths: u64,
    /// Bytes of content that it added to the store.
    pub added_bytes: u64,
}

/// What pins a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseRecord {
    /// The layer.
    pub layer: LayerId,
    /// The session that holds the lease.
    pub workspace_session_id: SessionId,
    /// Bytes of the session's upper on disk.
    pub upper_bytes: u64,
}

/// A kind of access.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum AccessKind {
    /// Opened for reading.
    Open,
    /// Opened for writing.
    OpenWrite,
    /// Content was read.
    Read,
    /// Content was written or cut.
    Write,
    /// Run as a program.
    Execute,
    /// Made.
    Create,
    /// Removed.
    Remove,
    /// Renamed away from this path.
    RenameFrom,
    /// Renamed to this path.
    RenameTo,
    /// A further hard link was made at this path.
    Link,
    /// A directory was listed.
    List,
    /// Looked up and found.
    Lookup,
    /// Looked up and missing.
    Missing,
    /// Mode, owner, times or extended attributes were changed.
    Metadata,
}

/// One page of file activity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FileActivityReply {
    /// The rows, in order of path, session, kind and time; of one command, process or time session by session; with
    /// `calls` session by session in order of time. A page may have fewer than `limit`, or none, and not be the last.
    pub rows: Vec<Activity>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
    /// For each trace mode among the rows' sessions, what it can see.
    pub exactness: Vec<Exactness>,
    /// Records that were lost; 0 means that nothing was.
    pub dropped: u64,
    /// Spans of time in which records may have been lost.
    pub gaps: Vec<Gap>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// Accesses of one kind, by one process, of one path; or one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Activity {
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// The kind.
    pub kind: AccessKind,
    /// The session.
    pub workspace_session_id: SessionId,
    /// The command; absent for a file operation of the gateway or a process that is none of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_session_id: Option<CommandId>,
    /// The process on the gateway's host; absent for a file operation of the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The program that the process ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Blob>,
    /// What the process was called by: the first word of its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv0: Option<Blob>,
    /// Its parent, the parent's parent and so on within the command, as far as they were still there when the process
    /// was first seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<ParentProcess>,
    /// What was opened, read or run: the blake3 of the content in hex. Absent of content that the session had changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Where in the file, in bytes; only of single calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How often.
    pub count: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// The first time, in Unix milliseconds.
    pub first_unix_ms: u64,
    /// The last time, in Unix milliseconds.
    pub last_unix_ms: u64,
}

/// An ancestor of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParentProcess {
    /// The process on the gateway's host.
    pub pid: u32,
    /// The program that it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Blob>,
}

/// What a trace mode can see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exactness {
    /// The mode.
    pub trace_mode: TraceMode,
    /// What its record holds and what it cannot see.
    pub statement: String,
}

/// A span of time in which records may have been lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// The session.
    pub workspace_session_id: SessionId,
    /// From, in Unix milliseconds.
    pub from_unix_ms: u64,
    /// To, in Unix milliseconds.
    pub to_unix_ms: u64,
    /// Why.
    pub reason: String,
}
