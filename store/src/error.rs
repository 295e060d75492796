//! What can go wrong, from the caller's side.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::layer::LayerId;
use crate::lease::LeaseId;
use crate::name::RelPath;

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a store operation did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has the store open.
    #[error("{} is in use by process {pid}", path.display())]
    InUse {
        /// The store's directory.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
    /// The store was written by a newer version.
    #[error("{} has store format {found}; this version knows up to {known}", path.display())]
    NewerFormat {
        /// The store's directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// An object that something refers to is not there.
    #[error("object {0} is missing from the store")]
    Missing(Digest),
    /// Something on disk is not what it should be.
    #[error("{what} is damaged: {detail}")]
    Corrupt {
        /// What.
        what: String,
        /// How.
        detail: String,
    },
    /// No such stack.
    #[error("no stack {0} in the store")]
    NoStack(u64),
    /// No such layer.
    #[error("no layer {0} in the stack")]
    NoLayer(LayerId),
    /// No such lease.
    #[error("no lease {0} in the store")]
    NoLease(LeaseId),
    /// The upper of a lease is open already.
    #[error("the changes of lease {0} are open already")]
    UpperOpen(LeaseId),
    /// The directory to import is not there, or is no directory.
    #[error("{} cannot be imported: {source}", path.display())]
    NotImportable {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory to import holds the store itself.
    #[error("{} cannot be imported: the store lies inside it, at {}", path.display(), store.display())]
    StoreInside {
        /// The directory.
        path: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// Paths below the directory to import could not be read.
    #[error("{count} path(s) could not be read: {}", show_unreadable(shown, *count))]
    Unreadable {
        /// How many.
        count: u64,
        /// The first of them, at most 20.
        shown: Vec<UnreadablePath>,
    },
    /// A file kept changing while it was read.
    #[error("{} changed each of the {attempts} times it was read; stop what writes to it and import again", path.display())]
    ChangedWhileRead {
        /// The file.
        path: PathBuf,
        /// How often it was tried.
        attempts: u32,
    },
    /// A quota is used up.
    #[error("the quota of {limit} bytes is used up")]
    Quota {
        /// The quota, in bytes.
        limit: u64,
    },
    /// A path does not exist in a layer.
    #[error("no {0} in the layer")]
    NoPath(RelPath),
    /// Nothing is changed at a path that is to be published.
    #[error("nothing is changed at {0} in the session")]
    NoChange(RelPath),
    /// Reads are to be validated, and the record of them is not whole.
    #[error("what the session read cannot be validated: {reason}")]
    NoReads {
        /// Why not.
        reason: String,
    },
    /// A file is too large for what was asked.
    #[error("{what} has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// What.
        what: String,
        /// Its bytes.
        size: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The operating system refused.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done, such as "reading".
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The database refused.
    #[error("the store's database: {0}")]
    Database(#[source] Box<fjall::Error>),
    /// An earlier commit failed, so what is on disk is not known; nothing is written until the
    /// store has been opened anew.
    #[error("the store refuses writes since a commit failed ({reason}); restart to recover")]
    Failed {
        /// How the commit failed.
        reason: String,
    },
}

/// A path that an import could not read.
#[derive(Debug)]
pub struct UnreadablePath {
    /// The path.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

fn show_unreadable(shown: &[UnreadablePath], count: u64) -> String {
    let mut text: Vec<String> = shown
        .iter()
        .map(|item| format!("{} ({})", item.path.display(), item.error))
        .collect();
    if count > shown.len() as u64 {
        text.push(format!("and {} more", count - shown.len() as u64));
    }
    text.join(", ")
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Io {
            action,
            path: path.to_path_buf(),
            source: source.into(),
        }
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Error::Io { source, .. } => {
                source.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error())
                    || source.raw_os_error() == Some(rustix::io::Errno::DQUOT.raw_os_error())
            }
            Error::Database(error) => match error.as_ref() {
                fjall::Error::Io(source) => source.kind() == io::ErrorKind::StorageFull,
                _ => false,
            },
            _ => false,
        }
    }
}

impl From<fjall::Error> for Error {
    fn from(error: fjall::Error) -> Self {
        Error::Database(Box::new(error))
    }
}
