//! Publishing a session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Blob, LayerId, SessionId};

/// Publishes a session's changes onto the newest layer: all of them as one layer, or none.
///
/// Each changed path is taken, or merged by lines with what others published since. One path that cannot be
/// merged rejects the whole publish, changes nothing, lists every conflict, and leaves the session as it was.
/// After success the session ends, unless `keep_open` or `paths` say that it goes on.
///
/// Example: `{"workspace_session_id": "ws-8fq2m1", "message": "fix login"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishWorkspaceSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// Kept with the layer; at most 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Answer what a publish would do, and change nothing; default false.
    #[serde(default)]
    pub dry_run: bool,
    /// Also return, for each text conflict, the merged text with diff3 markers (at most 256 KiB each); default false.
    #[serde(default)]
    pub markers: bool,
    /// Publish only what is at these paths and below them, relative to the workspace root, with the new directories on
    /// the way; default all. The session goes on with the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Blob>,
    /// Go on with the session, on the new layer. Its commands run on: for the publish they stand still, and what they
    /// have open stays what it is. Default false.
    #[serde(default)]
    pub keep_open: bool,
    /// Whether what the session only read may have changed since its base; default `writes`.
    #[serde(default)]
    pub validate: Validate,
    /// Whether what `.gitignore` ignores is published; default `keep`.
    #[serde(default)]
    pub ignored: IgnoredPaths,
    /// Seconds that running commands get to end after SIGTERM before they are killed, 0 to 60. Without it a
    /// publish is refused while commands run, unless the session goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 60))]
    pub grace_s: Option<u64>,
}

/// Brings a session onto the newest layer, with what it changed as its own changes still.
///
/// Each path that both the session and others changed is merged as by a publish; one that cannot be merged
/// leaves the session as it was, with every conflict listed. Commands run on: they stand still for a moment, and
/// what they have open stays what it is.
///
/// Example: `{"workspace_session_id": "ws-8fq2m1"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RebaseWorkspaceSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// Answer what would happen, and change nothing; default false.
    #[serde(default)]
    pub dry_run: bool,
    /// Also return, for each text conflict, the merged text with diff3 markers (at most 256 KiB each); default false.
    #[serde(default)]
    pub markers: bool,
}

/// How a rebase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebaseOutcome {
    /// The session is on the newest layer.
    Rebased,
    /// It was there before.
    NoChange,
    /// At least one path conflicts; nothing changed.
    Conflict,
    /// Asked by `dry_run`, and nothing conflicts.
    DryRun,
}

/// The answer to a rebase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RebasedSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// How it ended.
    pub outcome: RebaseOutcome,
    /// The layer that the session is based on now.
    pub base: LayerId,
    /// The head that its changes were resolved against.
    pub head: LayerId,
    /// Paths at which the session differs from the head.
    pub changed_paths: u64,
    /// Paths whose content was merged by lines with what others published; at most 1000.
    pub merged_paths: Vec<Blob>,
    /// Every conflict, in path order; at most 1000, with the whole count in `conflict_count`.
    pub conflicts: Vec<Conflict>,
    /// How many conflicts there are.
    pub conflict_count: u64,
    /// Git refs that both sides moved: where the session's commit was saved.
    pub saved_refs: Vec<SavedRef>,
    /// What the session read, and others have changed since the base that it had; at most 1000. Later answers do
    /// not tell it again.
    pub stale_reads: Vec<StaleRead>,
    /// How many stale reads there are.
    pub stale_read_count: u64,
}

/// What a publish checks besides conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Validate {
    /// Only what was written: `stale_reads` are told, and do not matter.
    #[default]
    Writes,
    /// What was read, too: one stale read rejects the publish. Needs a trace mode other than `off`.
    Reads,
}

/// What becomes of paths that are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IgnoredPaths {
    /// Published; the last writer wins.
    #[default]
    Keep,
    /// Not published, and told as skipped.
    Drop,
}

/// How a publish ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PublishOutcome {
    /// One new layer is the head.
    Published,
    /// The session equals its base; no layer was made.
    NoChange,
    /// At least one path conflicts; nothing changed.
    Conflict,
    /// Nothing conflicts, but others have changed what the session read, and `validate` forbids it; nothing changed.
    StaleReads,
    /// Asked by `dry_run`, and it would publish.
    DryRun,
}

/// The answer to a publish.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Published {
    /// The session.
    pub workspace_session_id: SessionId,
    /// How it ended.
    pub outcome: PublishOutcome,
    /// The new layer, if one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
    /// The head that the session was resolved against.
    pub head: LayerId,
    /// Paths in the new layer, or that would be.
    pub changed_paths: u64,
    /// Paths whose content was merged by lines with what others published; at most 1000.
    pub merged_paths: Vec<Blob>,
    /// Every conflict, in path order; at most 1000, with the whole count in `conflict_count`.
    pub conflicts: Vec<Conflict>,
    /// How many conflicts there are.
    pub conflict_count: u64,
    /// Changed paths that cannot be published or were routed elsewhere, with the reason; at most 1000.
    pub skipped: Vec<SkippedPath>,
    /// Git refs that both sides moved: where the session's commit was saved.
    pub saved_refs: Vec<SavedRef>,
    /// Paths published by the `ignored` route.
    pub ignored_paths: u64,
    /// What the session read, and others have changed since its base; at most 1000.
    #[serde(default)]
    pub stale_reads: Vec<StaleRead>,
    /// How many stale reads there are.
    #[serde(default)]
    pub stale_read_count: u64,
    /// Whether the session is still there.
    pub session_open: bool,
    /// The layer that the session is based on now, if it goes on after it published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<LayerId>,
    /// What the session did not publish and conflicts with the new layer, or could not be shown on it to those who
    /// have it open: because of it the session stays on the base that it had. At most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rest_conflicts: Vec<Blob>,
}

/// How a session depends on a path that it has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dependency {
    /// It read the content, or ran it.
    Content,
    /// It found something there.
    Existence,
    /// It found nothing there.
    Absence,
    /// It listed the directory.
    Listing,
}

/// Something that the session read, and that others have changed since its base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StaleRead {
    /// The path.
    pub path: Blob,
    /// How the session depends on it.
    pub dependency: Dependency,
    /// The layer that changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
    /// Who published that layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// Why a path cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConflictKind {
    /// Both changed the same lines.
    Content,
    /// Both changed a file that is not text, or is too large to merge.
    Binary,
    /// Both changed the same mode, owner or extended attribute to different values.
    Metadata,
    /// Both added the path with different content.
    AddAdd,
    /// One side deleted what the other changed.
    DeleteModify,
    /// The sides made different types of file of it.
    Type,
    /// Both renamed the directory, or its target is taken.
    Rename,
    /// The publish policy refuses changes of this path.
    Rejected,
}

/// One path that cannot be merged, with what is needed to resolve it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conflict {
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// Why.
    pub kind: ConflictKind,
    /// The path at the session's base; absent if it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Version>,
    /// The path at the head; absent if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Version>,
    /// The path in the session; absent if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mine: Option<Version>,
    /// The layer that last changed the path at the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_layer: Option<LayerId>,
    /// Who published that layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_owner: Option<String>,
    /// The line ranges in conflict, for text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hunks: Vec<Hunk>,
    /// The merged text with diff3 markers, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marked: Option<Blob>,
}

/// A file at one side of a conflict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    /// The type: `file`, `directory`, `symlink`, `fifo`, `socket`, `char_device`, `block_device`.
    pub kind: String,
    /// Permission bits, all twelve.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; of a symlink, of its target.
    pub size: u64,
    /// blake3 of the content of a file, in hex; above 4 GiB that of its groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Line ranges of one conflict; lines count from 1, and `count` 0 stands before `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hunk {
    /// In the base.
    pub base: LineRange,
    /// In the head.
    pub head: LineRange,
    /// In the session.
    pub mine: LineRange,
}

/// A run of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LineRange {
    /// The first line, from 1.
    pub start: u64,
    /// How many lines.
    pub count: u64,
}

/// A changed path that was not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedPath {
    /// The path.
    pub path: Blob,
    /// Why: `socket`, `session_private`, `git_lock`, `git_head_kept`, …
    pub reason: String,
}

/// A git ref that both sides moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SavedRef {
    /// The ref, such as `refs/heads/main`.
    pub name: Blob,
    /// Where the session's value is kept, such as `refs/sandbox/ws-8fq2m1/heads/main`.
    pub saved_as: Blob,
}
