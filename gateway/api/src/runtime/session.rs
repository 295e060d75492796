//! Workspace sessions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::management::TraceMode;
use crate::{ApiError, Blob, CommandId, LayerId, SandboxId, SessionId};

/// Opens a workspace session: a lease on a layer plus a private copy-on-write upper, as a filesystem view.
///
/// Nothing of the project is copied. The session sees its layer and its own changes, and nothing of other sessions.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "name": "fix-login"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWorkspaceSession {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// A name for people, 1 to 64 of `A-Za-z0-9._-`, unique among the sandbox's living sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What network its commands see; default `shared`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_profile: Option<NetworkProfile>,
    /// The layer to start from; default the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<LayerId>,
    /// What is recorded of file accesses; default the sandbox's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_mode: Option<TraceMode>,
    /// Whether its view is walked through in the background, so that the first look at everything (`git
    /// status`, say) is nearly as fast as the second. Look-ups of what is there are not recorded then.
    /// Default as the gateway's configuration has it, which is no unless it says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_walk: Option<bool>,
    /// Seconds without a running command or a call after which the session ends if it has no unpublished
    /// changes, 1 to 31,536,000; a session with changes is kept. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub ttl_s: Option<u64>,
    /// Most bytes of unpublished content; a writer over it gets `EDQUOT`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Environment of its commands, over the sandbox's and below the call's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Blob>,
}

/// Lists the living workspace sessions of a sandbox, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWorkspaceSessions {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Rows in the page: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_page_token` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

/// Shows one workspace session, with what it changed in numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InspectWorkspaceSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// Also list up to 1000 changed paths; default false.
    #[serde(default)]
    pub changes: bool,
}

/// Ends a workspace session and gives up its unpublished changes.
///
/// Refused while commands run or changes are unpublished, which it names, unless `force`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestroyWorkspaceSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// Kill running commands and give up unpublished changes; default false.
    #[serde(default)]
    pub force: bool,
    /// Seconds that running commands get to end after SIGTERM before they are killed, 0 to 60;
    /// only with `force`. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 60))]
    pub grace_s: Option<u64>,
}

/// What network a session's commands see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetworkProfile {
    /// The sandbox's network.
    #[default]
    Shared,
    /// A network of its own with a loopback interface and no way out.
    Isolated,
}

/// The life of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Commands and file operations work.
    Active,
    /// It is being published or destroyed.
    Finalizing,
    /// Its end was begun and could not be finished; `state_reason` says what is left to do.
    FinalizeFailed,
}

/// What is known of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionRecord {
    /// The id.
    pub workspace_session_id: SessionId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// The name for people, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it is in its life.
    pub state: SessionState,
    /// Why it is in that state, where that needs saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// True for a session that an `exec_command` made for itself.
    pub automatic: bool,
    /// The layer it is based on.
    pub base: LayerId,
    /// Publishes that the head is ahead of `base`.
    pub layers_behind_head: u64,
    /// Paths that differ from the base.
    pub changed_paths: u64,
    /// Bytes that its changes take on disk.
    pub bytes: u64,
    /// Commands that are running now.
    pub running_commands: Vec<CommandId>,
    /// What network its commands see.
    pub network_profile: NetworkProfile,
    /// What is recorded of file accesses.
    pub trace_mode: TraceMode,
    /// Whether its view is walked through in the background: look-ups of what is there are not recorded.
    pub background_walk: bool,
    /// Most bytes of unpublished content; absent means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Where the view is, as its commands see it.
    pub workspace_root: Blob,
    /// Directories of the host where the view is attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Blob>,
    /// When it was made, in Unix milliseconds.
    pub created_at_unix_ms: u64,
    /// When it ends if it stays idle, in Unix milliseconds; absent means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix_ms: Option<u64>,
}

/// One page of sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionPage {
    /// The records, newest first.
    pub sessions: Vec<SessionRecord>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// One session, at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InspectedSession {
    /// The record.
    pub session: SessionRecord,
    /// The changed paths, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<ChangedPath>>,
    /// Whether there are more changed paths than are listed.
    #[serde(default)]
    pub changes_truncated: bool,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// A path that differs from the base, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedPath {
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// How it differs.
    pub kind: ChangeKind,
}

/// How a path differs from the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its content differs.
    Modified,
    /// Only its mode, owner or extended attributes differ.
    Metadata,
    /// It is another type of file now.
    TypeChanged,
    /// It is gone.
    Deleted,
}

/// A session that is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DestroyedSession {
    /// The id.
    pub workspace_session_id: SessionId,
    /// Changed paths that went with it.
    pub discarded_paths: u64,
    /// Bytes on disk that were freed.
    pub freed_bytes: u64,
}
