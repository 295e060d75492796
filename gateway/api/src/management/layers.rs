//! Layers of a sandbox: refreshed, squashed, exported.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CollectedGarbage;
use crate::runtime::{Conflict, PublishOutcome, SavedRef, SkippedPath};
use crate::{ApiError, Blob, LayerId, SandboxId};

/// Brings edits that were made in the project directory since it was last read in as one layer, owned by `host`.
///
/// The directory is read, never written. What changed in it is published by the rules of a session's publish: lines
/// merge with what sessions published, and one path that cannot be merged rejects the whole refresh and changes nothing.
/// Living sessions keep their base.
///
/// Example: `{"sandbox_id": "sb-k3v9t2"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefreshBase {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Answer what a refresh would do, and change nothing; default false.
    #[serde(default)]
    pub dry_run: bool,
    /// Also return, for each text conflict, the merged text with diff3 markers (at most 256 KiB each); default false.
    #[serde(default)]
    pub markers: bool,
}

/// The answer to a refresh. In conflicts `mine` is what the directory has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Refreshed {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// How it ended.
    pub outcome: PublishOutcome,
    /// The new layer, if one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
    /// The head that the directory was resolved against.
    pub head: LayerId,
    /// Paths in the new layer, or that would be.
    pub changed_paths: u64,
    /// Paths whose content was merged by lines with what sessions published; at most 1000.
    pub merged_paths: Vec<Blob>,
    /// Every conflict, in path order; at most 1000, with the whole count in `conflict_count`.
    pub conflicts: Vec<Conflict>,
    /// How many conflicts there are.
    pub conflict_count: u64,
    /// Changed paths that cannot be published or were routed elsewhere, with the reason; at most 1000.
    pub skipped: Vec<SkippedPath>,
    /// Git refs that both sides moved: where the directory's commit was saved.
    pub saved_refs: Vec<SavedRef>,
    /// Paths published by the `ignored` route.
    pub ignored_paths: u64,
}

/// Replaces the layers between the base and the newest `keep_last` ones by one, and removes what nobody needs any more.
///
/// The files of the head stay as they are, and living sessions go on on the layers they have. Who made the replaced
/// layers, when, with which message, and who wrote each line stays known; no session can begin on them any more.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "keep_last": 10}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SquashLayerstacks {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// How many of the newest layers stay as they are; default 0.
    #[serde(default)]
    pub keep_last: u64,
}

/// What a squash did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SquashedLayers {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The layer that took the place of others; absent if there were fewer than two to replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
    /// The replaced layers, oldest first; at most 1000, with the whole count in `replaced_count`.
    pub replaced: Vec<LayerId>,
    /// How many layers were replaced.
    pub replaced_count: u64,
    /// The newest layer afterwards.
    pub head: LayerId,
    /// Layers in the history afterwards.
    pub layer_count: u64,
    /// Bytes that were removed with what nobody needs any more, of all sandboxes.
    pub reclaimed_bytes: u64,
    /// The collection that removed them; absent if nothing was replaced or it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage: Option<CollectedGarbage>,
    /// What could not be done: the layers are squashed all the same.
    pub errors: Vec<ApiError>,
}

/// Writes a layer, or what changed between two, to a place on the gateway's host.
///
/// The export is exact (mode, owner, times, extended attributes, hard links, holes, any name) and is there whole or
/// not at all. Without `from` a `dir`, `tar` or `tar-zst` holds the whole layer; a `patch` is from the base, and
/// `git apply` takes it.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "dest": "/home/me/fix.patch", "format": "patch"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportChanges {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Absolute path on the gateway's host, of something that is not there yet or, for `dir`, of an empty directory.
    /// Its directory must be there, and no symlink on the way to it.
    pub dest: Blob,
    /// What is written; default `dir`.
    #[serde(default)]
    pub format: ExportFormat,
    /// Write only what differs from this layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<LayerId>,
    /// The layer to write; default the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<LayerId>,
}

/// What an export is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExportFormat {
    /// Files in a directory.
    #[default]
    Dir,
    /// A tar archive.
    Tar,
    /// A tar archive, compressed by zstd.
    TarZst,
    /// A patch in git's format.
    Patch,
}

/// What an export wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedChanges {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Where it is.
    pub dest: Blob,
    /// What it is written as.
    pub format: ExportFormat,
    /// The layer that it is a difference from; absent if it is a whole layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<LayerId>,
    /// The layer.
    pub to: LayerId,
    /// Regular files; each hard link counts.
    pub files: u64,
    /// Directories; those on the way to changed paths count.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// FIFOs, sockets and devices.
    pub special_files: u64,
    /// Logical bytes of the files; hard links count once.
    pub bytes: u64,
    /// Paths that `from` has and `to` has not; at most 1000. A patch removes them, the other formats cannot.
    pub deleted: Vec<Blob>,
    /// How many such paths there are.
    pub deleted_count: u64,
    /// What the format or the gateway's rights could not keep; at most 1000.
    pub left_out: Vec<LeftOut>,
    /// How much was left out.
    pub left_out_count: u64,
}

/// Something that an export could not keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// The path.
    pub path: Blob,
    /// What was not kept: `owner`, `xattr`, `special_file`, `directory`, `mode`, `git_metadata`.
    pub what: String,
}
