//! The history of a sandbox, and what differs between its layers and sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ChangeKind, Version};
use crate::observability::LayerRecord;
use crate::{ApiError, Blob, LayerId, SandboxId, SessionId};

/// Lists what a session changed, path by path, against its base or the newest layer.
///
/// Example: `{"workspace_session_id": "ws-8fq2m1", "format": "unified"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffWorkspaceSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// What it is compared with; default `base`.
    #[serde(default)]
    pub against: DiffAgainst,
    /// Only these paths and what is below them, relative to the workspace root; default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Blob>,
    /// Whether the lines that differ are wanted too; default `summary`.
    #[serde(default)]
    pub format: DiffFormat,
    /// Rows in the page: 1 to 1000, default 200. A page with hunks ends earlier, at 256 KiB of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_page_token` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

/// Lists what differs between two layers, path by path.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "from": "B000001", "format": "unified"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffLayers {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The older layer; default the parent of `to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<LayerId>,
    /// The newer layer; default the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<LayerId>,
    /// Only these paths and what is below them, relative to the workspace root; default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Blob>,
    /// Whether the lines that differ are wanted too; default `summary`.
    #[serde(default)]
    pub format: DiffFormat,
    /// Rows in the page: 1 to 1000, default 200. A page with hunks ends earlier, at 256 KiB of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_page_token` of the page before; it goes on between the same layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

/// Lists everything that ever was the head of a sandbox, newest first: who made it, when, and with which message.
///
/// Layers that a squash replaced are listed too, as not `present`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListLayers {
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

/// What a session is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffAgainst {
    /// The layer it began on.
    #[default]
    Base,
    /// The newest layer: what others published since is in the difference too.
    Head,
}

/// How a difference is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffFormat {
    /// Paths and their versions.
    #[default]
    Summary,
    /// Also the hunks of a unified diff.
    Unified,
}

/// A path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffEntry {
    /// The path, relative to the workspace root; empty for the root itself.
    pub path: Blob,
    /// How it differs.
    pub kind: ChangeKind,
    /// The older version; absent if the path is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Version>,
    /// The newer version; absent if the path is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Version>,
    /// The lines that differ, as hunks of a unified diff with three lines of context, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hunks: Option<Blob>,
    /// Why there are no hunks, though the content differs and they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hunks_omitted: Option<HunksOmitted>,
}

/// Why there are no hunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HunksOmitted {
    /// A version is not text, or larger than 32 MiB.
    Binary,
    /// They are longer than 256 KiB.
    TooLarge,
}

/// One page of what a session changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDiff {
    /// The session.
    pub workspace_session_id: SessionId,
    /// The layer that it is compared with.
    pub from: LayerId,
    /// The paths that differ, in path order: by their names one by one.
    pub changes: Vec<DiffEntry>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// One page of what differs between two layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LayerDiff {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The older layer.
    pub from: LayerId,
    /// The newer layer.
    pub to: LayerId,
    /// The paths that differ, in path order: by their names one by one.
    pub changes: Vec<DiffEntry>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// One page of a sandbox's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LayerPage {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The newest layer.
    pub head: LayerId,
    /// Layers that are present, on all pages.
    pub layer_count: u64,
    /// The layers, newest first.
    pub layers: Vec<HistoryLayer>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// A layer of the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryLayer {
    /// What is known of it.
    #[serde(flatten)]
    pub layer: LayerRecord,
    /// Whether it is part of the history, and sessions can begin on it; not, if a squash replaced it.
    pub present: bool,
}
