//! Leases and uppers served as POSIX trees, over FUSE or without a mount, with every access
//! recorded.
//!
//! [`Tree`] is the filesystem: what may be done, what the errors are, which times move. It knows no
//! FUSE type and runs without a mount; model tests, the embedder's own file operations and the
//! adapter all call the same functions. [`View`] serves a tree to the kernel; the adapter between
//! the two decodes, calls, replies, and decides nothing. [`Recorder`] keeps who did what.
//!
//! It runs no process but `fusermount3`, opens no path inside a view (that would wait for itself), prints
//! nothing and never reads the environment.
//!
//! Invariants:
//! - Inode numbers are the layer's and the stack's: they survive copy-up, forget, remount and
//!   restart, and are never reused while a view lives.
//! - The tree is the only one that changes a view, so the kernel may keep what it was told for
//!   ever; what the embedder changes behind the kernel's back is notified from a thread that serves
//!   no request.
//! - One place turns an error into an errno ([`Error::errno`]), and a panic in a handler is `EIO`
//!   for that request alone.

mod abort;
mod adapter;
mod error;
mod files;
mod flush;
mod meter;
mod mount;
mod notify;
mod placement;
mod profile;
mod rebase;
mod record;
mod requests;
mod server;
mod transport;
mod tree;
mod trees;
mod uring;
mod view;
mod walk;

pub use abort::{FilesystemNumber, abort, number_of};
pub use error::{Error, Result};
pub use files::{DirectoryItem, FileInfo, Files, Written};
pub use flush::{Flushed, flush};
pub use meter::{BOUNDS_US, RequestCount, requests};
pub use mount::{
    MountOptions, Mounted, another, detached, is_mounted_at, mount_at, unmount, unmount_with_users,
    with_fusermount,
};
pub use profile::{Profile, TraceMode};
pub use rebase::Rebase;
pub use record::{Commands, Recorder};
pub use transport::Transport;
pub use tree::{
    Caller, NewMode, NewNode, RenameMode, SetAttributes, SetTime, Space, Tree, XattrMode,
};
pub use view::{Owner, SlowPool, View, ViewOptions};
pub use walk::Walk;
