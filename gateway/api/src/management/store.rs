//! The store that all sandboxes share: what it takes, what of it is garbage, whether it is whole.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApiError, SandboxId, SessionId};

/// Removes content that no layer, session or import needs any more, beside whatever else goes on.
///
/// Example: `{"dry_run": true}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CollectGarbage {
    /// Answer what would go, and remove nothing; default false.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a collection removed, or would remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CollectedGarbage {
    /// Whether it was only asked what would go.
    pub dry_run: bool,
    /// Objects (contents, directories, lists) that nothing needs.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files of content that a crash left and no record knows.
    pub stray_files: u64,
    /// Their bytes.
    pub stray_bytes: u64,
    /// Objects that stay.
    pub kept_objects: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Whether all was looked at; not, if imports kept it waiting for too long.
    pub complete: bool,
}

/// Shows what the store takes on disk, and for whom.
///
/// It follows every layer, so it takes as long as they are large.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreUsage {}

/// What the store takes. `object_bytes`, `database_bytes` and `upper_bytes` add up to what the disk says of it, but for
/// some small files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoreUsageReply {
    /// Bytes on disk of content and directories.
    pub object_bytes: u64,
    /// Bytes on disk of the database.
    pub database_bytes: u64,
    /// Bytes on disk of the unpublished changes of all sessions.
    pub upper_bytes: u64,
    /// Objects (contents, directories, lists).
    pub objects: u64,
    /// Bytes of those objects, each counted once.
    pub stored_bytes: u64,
    /// Of those the bytes that several sandboxes need.
    pub shared_bytes: u64,
    /// Of those the bytes that nobody needs: what `collect_garbage` would remove.
    pub garbage_bytes: u64,
    /// Logical bytes of all files at the heads of all sandboxes.
    pub logical_bytes: u64,
    /// By sandbox; at most 1000, the largest first.
    pub sandboxes: Vec<SandboxUsage>,
    /// How many sandboxes there are.
    pub sandbox_count: u64,
    /// By session; at most 1000, the largest first.
    pub sessions: Vec<SessionUsage>,
    /// How many sessions there are.
    pub session_count: u64,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// What a sandbox takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxUsage {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Its name for people, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Layers in its history.
    pub layers: u64,
    /// Logical bytes of the files at its head.
    pub logical_bytes: u64,
    /// Bytes of the objects that its layers and sessions need, each counted once.
    pub stored_bytes: u64,
    /// Of those the bytes that no other sandbox needs.
    pub unique_bytes: u64,
    /// Bytes on disk of its sessions' unpublished changes.
    pub upper_bytes: u64,
}

/// What the unpublished changes of a session take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionUsage {
    /// The session.
    pub workspace_session_id: SessionId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// Bytes on disk.
    pub upper_bytes: u64,
}

/// Checks every digest, reference, lease and count of the store, and says in words what is wrong.
///
/// It reads everything that is stored and changes nothing. The answer is an answer also if something is wrong: look at
/// `problems`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyStore {}

/// What a verification looked at, and what it found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedStore {
    /// What is wrong, a sentence each; at most 1000, empty if all is well.
    pub problems: Vec<String>,
    /// How many problems there are.
    pub problem_count: u64,
    /// Objects (contents, directories, lists) that were read and are what their digests say.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Layers that were followed.
    pub layers: u64,
    /// Sessions and operations whose unpublished changes were read.
    pub leases: u64,
    /// Versions of files whose lines' owners were read.
    pub blamed: u64,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}
