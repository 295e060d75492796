//! What is done with files and directories as a whole: on a live session, or on the head without one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Blob, LayerId, SandboxId, SessionId};

/// Answers what is at a path; a symlink is answered itself.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "src/main.rs"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileStat {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// The session whose view is looked at; default: the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileStatus {
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `char_device` or `block_device`.
    pub kind: String,
    /// Permission bits, all twelve.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Inode number.
    pub inode: u64,
    /// Bytes; of a symlink, of its target.
    pub size: u64,
    /// Modification time, in Unix milliseconds.
    pub mtime_unix_ms: i64,
    /// Target of a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Blob>,
    /// blake3 of a file's content, in hex; above 4 GiB that of its groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Finds lines by a regular expression in the files below a directory.
///
/// What `.gitignore` files ignore, `.git`, and files that are not text or larger than 32 MiB are left out. The syntax
/// is that of ripgrep (Rust's `regex`).
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "pattern": "fn +main", "glob": "**/*.rs"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSearch {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// What to find in a line.
    pub pattern: String,
    /// The directory, relative to the workspace root; default the root.
    #[serde(default)]
    pub path: Blob,
    /// Only files whose path below `path` matches this (`*`, `?`, `[…]`, `{a,b}`, `**`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// The session whose view is searched; default: the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Take `pattern` as text; default false.
    #[serde(default)]
    pub literal: bool,
    /// Take upper and lower case as the same; default false.
    #[serde(default)]
    pub ignore_case: bool,
    /// Search what is ignored, too; default false.
    #[serde(default)]
    pub include_ignored: bool,
    /// Lines in the page: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_page_token` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

/// The lines that were found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SearchMatches {
    /// The lines, in order of path and line.
    pub matches: Vec<SearchMatch>,
    /// Files that were searched for this page.
    pub files_searched: u64,
    /// Where the next page goes on; none on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// A line in which something was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SearchMatch {
    /// The file, relative to the workspace root.
    pub path: Blob,
    /// The line, from 1.
    pub line: u64,
    /// Where in the line the first match begins, in bytes, from 1.
    pub column: u64,
    /// The line, without its end; at most 1 KiB of it.
    pub text: Blob,
    /// Whether the line goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// Removes a file, a symlink itself, or a directory.
///
/// Without a session the removal is published as one layer of its own.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "old", "recursive": true}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDelete {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// The session that is changed; default: the head, in a layer of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Remove a directory with what is in it; default false.
    #[serde(default)]
    pub recursive: bool,
    /// blake3 in hex that the present content of the file must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_digest: Option<String>,
}

/// The answer to a removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileDeleted {
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// Entries that are gone, with those below it.
    pub removed: u64,
    /// The layer that was published, without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
}

/// Moves a file, a symlink itself, or a directory, making missing directories.
///
/// Without a session the move is published as one layer of its own.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "a.py", "to": "src/a.py"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileMove {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// What is moved, relative to the workspace root.
    pub path: Blob,
    /// Its new path, relative to the workspace root.
    pub to: Blob,
    /// The session that is changed; default: the head, in a layer of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Replace a file, or an empty directory, that is there; default false.
    #[serde(default)]
    pub replace: bool,
}

/// The answer to a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileMoved {
    /// Where it was.
    pub path: Blob,
    /// Where it is.
    pub to: Blob,
    /// The layer that was published, without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
}

/// Makes a directory, and missing ones above it.
///
/// Without a session it is published as one layer of its own.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "docs/images"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileMakeDirectory {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The directory, relative to the workspace root.
    pub path: Blob,
    /// The session that is changed; default: the head, in a layer of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Permission bits; default 0755.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 0o7777))]
    pub mode: Option<u32>,
}

/// The answer to the making of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DirectoryMade {
    /// The directory, relative to the workspace root.
    pub path: Blob,
    /// Whether it is new.
    pub created: bool,
    /// The layer that was published, without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
}
