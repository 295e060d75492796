//! Durable truth: blobs, trees, layers, heads, leases, uppers, blame, the access log, and the one
//! gate through which a session's changes become a layer.
//!
//! A [`Store`] is one directory that one process has open. It holds content once, however many
//! sandboxes use it: *blobs* and *directory objects* named by their blake3 ([`Objects`]), *stacks*
//! of immutable layers each of which is one root digest ([`Stack`]), *leases* that pin a layer for
//! a session ([`Lease`]), and *uppers*, the private copy-on-write changes of a session
//! ([`Upper`]).
//!
//! It never mounts anything, starts a process, prints, or reads the environment, and it is
//! synchronous: callers bring their own threads.
//!
//! Invariants:
//! - A head changes only through [`Stack::publish`] (and the import that makes a base): one atomic
//!   batch, durable before it is acknowledged. After a crash at any instant it is the old layer or
//!   the new one.
//! - An object never changes; what names it is the hash of what it is.
//! - An upper's acknowledged changes survive a killed process at once and power loss at a sync.
//! - After a commit that failed the store refuses further writes ([`Error::Failed`]) rather than
//!   guess what reached the disk.

mod access;
mod blame;
mod collect;
mod compare;
mod content;
mod db;
mod difference;
mod digest;
mod directory;
mod edit;
mod error;
mod export;
mod groups;
mod import;
mod known_groups;
mod layer;
mod lease;
mod links;
mod lower;
mod merge;
mod name;
mod node;
mod objects;
mod pack;
mod pins;
mod point;
mod publish;
mod records;
mod refresh;
mod squash;
mod stack;
mod store;
mod text;
mod upper;
mod usage;
mod verify;
mod writers;

pub use access::{
    AccessAnswer, AccessCall, AccessFilter, AccessKind, AccessLog, AccessRow, Actor, CallMark,
    CallPage, Gap, Parent, PathMatch, RowMark, RowPage,
};
pub use blame::{BlameRun, FileBlame};
pub use collect::Collected;
pub use compare::{PathChange, compare};
pub use content::{Content, Layout, Segment, Source};
pub use difference::{Difference, Hunks, ShownChange, Window};
pub use digest::{Digest, InvalidDigest};
pub use directory::{Directory, DirectoryEntry};
pub use error::{Error, Result, UnreadablePath};
pub use export::{ExportFormat, Exported, LeftOut};
pub use import::{ImportProgress, ImportReport, Imported};
pub use layer::{InvalidLayerId, LayerId, LayerKind, LayerRecord, Owner};
pub use lease::{Lease, LeaseId, LeaseRecord};
pub use lower::{Lower, ROOT_INO};
pub use merge::{Hunk, LineSpan, MergeOutcome, Merged, merge_text};
pub use name::{InvalidName, NAME_MAX, Name, RelPath};
pub use node::{Body, Ino, Kind, Node, NodeMeta, Timestamp, Xattrs};
pub use objects::Objects;
#[doc(hidden)]
pub use point::{CRASH_POINTS, at_crash_points};
pub use publish::{
    Change, ChangeKind, Conflict, ConflictKind, Delta, Dependency, Outcome, Policy, PublishOptions,
    PublishReport, Rebased, Route, Router, Rule, SavedRef, Skipped, StaleRead, Step, Validate,
    Version,
};
pub use records::Table;
pub use squash::Squashed;
pub use stack::{Stack, StackId};
pub use store::{Store, StoreOptions};
pub use text::{is_text, unified_diff};
pub use upper::{
    Attributes, Attrs, BLOCK, Budget, Entry, Extents, FileBody, Inode, InodeBody, ListedEntry,
    NewBody, Place, Record, Run, Seek, Slot, State, Transaction, Upper, for_request,
};
pub use usage::{LeaseUsage, StackUsage, StoreUsage};
pub use verify::Verified;
