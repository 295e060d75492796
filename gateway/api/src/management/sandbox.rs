//! Sandboxes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApiError, Blob, LayerId, SandboxId};

/// Imports a project directory once as an immutable base layer and makes one or more sandboxes on it.
///
/// The directory is read, never written; later edits in it do not reach the sandbox. Files that an
/// earlier import has seen unchanged are neither read nor copied again. With `count` above 1 all
/// sandboxes share one base, and one failure removes them all.
///
/// Example: `{"workspace_root": "/home/me/project", "image": "debian:12"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// Absolute path of the project directory on the gateway's host.
    pub workspace_root: Blob,
    /// A local Docker image, by name or id. Without it the sandbox's root is the host's, read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Where sessions run; default `docker` if an image is given, else `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// How many sandboxes to make on the one base: 1 to 64, default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub count: Option<u32>,
    /// A name for people, 1 to 64 of `A-Za-z0-9._-`, unique among living sandboxes; with `count` a
    /// number is appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Limits of the whole sandbox; what is left out is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How paths are routed at publish; paths that no rule matches are `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_policy: Option<PublishPolicy>,
    /// What is recorded of file accesses in sessions that do not say; default `files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_mode: Option<TraceMode>,
    /// Environment of every command, below the session's and the call's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Blob>,
    /// Labels for people and scripts; kept and returned, never interpreted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Lists sandboxes, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSandboxes {
    /// Rows in the page: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_page_token` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

/// Shows one sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InspectSandbox {
    /// The sandbox.
    pub sandbox_id: SandboxId,
}

/// Ends a sandbox: its commands, sessions, container, layers and records.
///
/// Refused while sessions hold unpublished changes, which it lists; `force` gives that work up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestroySandbox {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Give up unpublished changes and running commands; default false.
    #[serde(default)]
    pub force: bool,
}

/// Where the sessions of a sandbox run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// On the gateway's host, in namespaces of their own; the root is the host's, read-only.
    Local,
    /// In one unprivileged container of a local Docker image.
    Docker,
}

/// What is recorded of file accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceMode {
    /// Counters only.
    Off,
    /// Exact for the session as a whole: first reads, look-ups, listings, and every change.
    Session,
    /// Exact for each command: also every path it opened for reading, writing or executing.
    #[default]
    Files,
    /// Every read and write call, with offset and length.
    Exact,
}

/// Limits. `null` or absent means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Processors, in cores (0.5 is half of one).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_max: Option<u64>,
    /// Unpublished content of all sessions together, in bytes; a writer over it gets `EDQUOT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

/// Rules that route paths at publish; the last rule that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishPolicy {
    /// The rules, in order.
    pub rules: Vec<PublishRule>,
}

/// One rule of a publish policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishRule {
    /// A pattern in gitignore's syntax, relative to the workspace root.
    pub glob: String,
    /// What happens to a path that it matches.
    pub route: Route,
}

/// What happens to a changed path at publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// Merged or rejected by the publish rules.
    Source,
    /// The last writer wins, without conflicts.
    Ignored,
    /// The publish is refused when such a path changed.
    Reject,
    /// The change stays in the session and is not published.
    SessionPrivate,
    /// On conflict the session's version wins.
    Ours,
    /// Text: the lines of both sides are kept.
    Union,
}

/// Sandboxes that `create_sandbox` made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreatedSandboxes {
    /// One record a sandbox, in order.
    pub sandboxes: Vec<SandboxRecord>,
    /// What the import of the base did.
    pub import: ImportReport,
}

/// What an import of a project directory did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportReport {
    /// Regular files found.
    pub files: u64,
    /// Directories found, the root among them.
    pub directories: u64,
    /// Symbolic links found.
    pub symlinks: u64,
    /// FIFOs, sockets and device nodes found.
    pub special_files: u64,
    /// Logical bytes of all regular files.
    pub bytes: u64,
    /// Files whose content was read and hashed.
    pub files_hashed: u64,
    /// Files known unchanged from an earlier import, and neither read nor copied.
    pub files_reused: u64,
    /// Files whose blocks are shared with the project's own by reflink.
    pub files_reflinked: u64,
    /// Bytes of content added to the store.
    pub bytes_stored: u64,
    /// Wall time, in milliseconds.
    pub duration_ms: u64,
}

/// One page of sandboxes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxPage {
    /// The records, newest first.
    pub sandboxes: Vec<SandboxRecord>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// One sandbox, at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectedSandbox {
    /// The record.
    pub sandbox: SandboxRecord,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// A sandbox that is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DestroyedSandbox {
    /// The last record, in state `stopped`.
    pub sandbox: SandboxRecord,
    /// Bytes of unpublished content that went with it.
    pub discarded_bytes: u64,
}

/// The life of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// The base is being imported or the provider is starting.
    Creating,
    /// Sessions can be made.
    Ready,
    /// It is being destroyed.
    Stopping,
    /// It is gone.
    Stopped,
    /// It could not be made or kept; `state_reason` says why, and `destroy_sandbox` clears it away.
    Failed,
}

/// What is known of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxRecord {
    /// The id.
    pub sandbox_id: SandboxId,
    /// The name for people, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it is in that state, where that needs saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// The project directory it was made from; also where views appear inside.
    pub workspace_root: Blob,
    /// Where its sessions run.
    pub provider: Provider,
    /// The Docker image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The Docker container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// The newest layer; absent until the base is imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<LayerId>,
    /// Living workspace sessions.
    pub session_count: u64,
    /// Its limits.
    #[serde(default)]
    pub resources: Resources,
    /// The publish policy.
    #[serde(default)]
    pub publish_policy: PublishPolicy,
    /// The trace mode of sessions that do not say.
    pub trace_mode: TraceMode,
    /// Labels, as given.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When it was made, in Unix milliseconds.
    pub created_at_unix_ms: u64,
}

/// Progress of a `create_sandbox`, streamed to callers that accept `text/event-stream`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportProgress {
    /// Files found so far.
    pub files_found: u64,
    /// Files done so far.
    pub files_done: u64,
    /// Logical bytes found so far.
    pub bytes_found: u64,
    /// Logical bytes done so far.
    pub bytes_done: u64,
}
