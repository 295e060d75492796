//! Files: on a live session, or on the head without one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Blob, CommandId, Encoding, LayerId, RequestId, SandboxId, SessionId, Text};

/// Reads a file: exact bytes, never re-encoded.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "src/main.rs", "workspace_session_id": "ws-8fq2m1"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileRead {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The file, relative to the workspace root; symlinks are followed and never lead out of it.
    pub path: Blob,
    /// The session whose view is read; default: the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// The first byte; default 0.
    #[serde(default)]
    pub offset: u64,
    /// Most bytes: 1 to 262,144, default 262,144.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 262_144))]
    pub limit: Option<u64>,
    /// `base64` for base64 always; otherwise text where it is UTF-8 and base64 where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
}

/// Writes a whole file, making missing directories.
///
/// An existing file keeps its mode. Without a session the write is published as one layer of its own.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "notes.md", "content": "hello\n"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileWrite {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The file, relative to the workspace root; symlinks are followed and never lead out of it.
    pub path: Blob,
    /// The session that is written to; default: the head, in a layer of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// The new content, written as `encoding` says.
    pub content: String,
    /// How `content` is written; default `utf-8`.
    #[serde(default)]
    pub encoding: Encoding,
    /// blake3 in hex that the present content must have; an empty string means that the file must not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_digest: Option<String>,
    /// Permission bits for a file that is new (default 0644) or, if given, for one that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 0o7777))]
    pub mode: Option<u32>,
}

/// Replaces exact strings in a text file, in order; all of them or none.
///
/// Each `old_string` must occur exactly once unless `replace_all`. The answer has a unified diff.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "path": "a.py", "edits": [{"old_string": "x = 1", "new_string": "x = 2"}]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileEdit {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The file, relative to the workspace root; symlinks are followed and never lead out of it.
    pub path: Blob,
    /// The session that is written to; default: the head, in a layer of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// The edits, in order; at least one.
    pub edits: Vec<Edit>,
    /// Answer the diff and change nothing; default false.
    #[serde(default)]
    pub dry_run: bool,
    /// blake3 in hex that the present content must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_digest: Option<String>,
}

/// One replacement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The exact text to find; not empty.
    pub old_string: Blob,
    /// What takes its place.
    pub new_string: Blob,
    /// Replace every occurrence; default false.
    #[serde(default)]
    pub replace_all: bool,
}

/// Lists a directory, or the paths below it that match a pattern.
///
/// Example: `{"sandbox_id": "sb-k3v9t2", "glob": "src/**/*.rs"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileList {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The directory, relative to the workspace root; default the root.
    #[serde(default)]
    pub path: Blob,
    /// List what lies below `path` at any depth and matches this pattern (`*`, `?`, `[…]`, `{a,b}`, `**`), instead
    /// of the directory's own entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// The session whose view is read; default: the head.
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

/// Answers who wrote each line of a file: ranges that tile it.
///
/// A line is owned by `original` (the base), `workspace_session:ID`, `operation:ID`, `host`, or `unknown`.
/// Lines that a live session has changed and not published are its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileBlame {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The file, relative to the workspace root.
    pub path: Blob,
    /// Blame the session's view of it; default: the head's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Blame the file as it was at this layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
}

/// Content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileContent {
    /// The path that was read, after symlinks.
    pub path: Blob,
    /// The bytes asked for.
    #[serde(flatten)]
    pub text: Text,
    /// The first byte of this window.
    pub offset: u64,
    /// Bytes in this window.
    pub length: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// Whether the file goes on after this window.
    pub truncated: bool,
    /// blake3 of the whole file, in hex; above 4 GiB that of its groups.
    pub digest: String,
    /// Permission bits, all twelve.
    pub mode: u32,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileWritten {
    /// The path that was written, after symlinks.
    pub path: Blob,
    /// Whether it is new.
    pub created: bool,
    /// Size of the file in bytes.
    pub size: u64,
    /// blake3 of the whole file, in hex; above 4 GiB that of its groups.
    pub digest: String,
    /// Permission bits, all twelve.
    pub mode: u32,
    /// The layer that holds it, when it was written without a session; absent also when nothing changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
}

/// A file that was edited, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEdited {
    /// The path that was edited, after symlinks.
    pub path: Blob,
    /// Replacements made.
    pub replacements: u64,
    /// Unified diff of the whole edit.
    pub diff: Blob,
    /// Size of the file in bytes.
    pub size: u64,
    /// blake3 of the whole file, in hex; above 4 GiB that of its groups.
    pub digest: String,
    /// The layer that holds it, when it was written without a session; absent also when nothing changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
}

/// One page of a listing, in order of the path's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntries {
    /// The entries.
    pub entries: Vec<FileEntry>,
    /// Asks for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// One file, directory, symlink or special file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// The path, relative to the workspace root.
    pub path: Blob,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `char_device` or `block_device`.
    pub kind: String,
    /// Permission bits, all twelve.
    pub mode: u32,
    /// Bytes; of a symlink, of its target.
    pub size: u64,
    /// Modification time, in Unix milliseconds.
    pub mtime_unix_ms: i64,
    /// Target of a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Blob>,
}

/// Who wrote a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Blame {
    /// The path.
    pub path: Blob,
    /// blake3 of the content that the ranges tile, in hex.
    pub digest: String,
    /// Lines of the file; 0 for one that is not text, which has one range of one owner.
    pub total_lines: u64,
    /// Whether it is text.
    pub text: bool,
    /// The ranges, in order, without gaps.
    pub ranges: Vec<BlameRange>,
}

/// A run of lines of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlameRange {
    /// The first line, from 1.
    pub start: u64,
    /// How many lines.
    pub count: u64,
    /// `original`, `workspace_session:ID`, `operation:ID`, `host` or `unknown`.
    pub owner: String,
    /// The session's name for people, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// The layer that brought the lines in; absent for lines that are not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerId>,
    /// The command that wrote them, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_session_id: Option<CommandId>,
    /// The request that published them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// When they were published, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_unix_ms: Option<u64>,
}
