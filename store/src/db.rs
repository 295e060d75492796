//! The database: small records in fjall, committed in atomic, durable batches.
//!
//! Everything here is reached by key; content never lies here. fjall refuses all further writes
//! after one that failed, so a commit first makes sure that the disk has room for it: a full disk
//! must fail one publish, not the store.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fjall::{Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Most bytes that must be free before a commit is tried: room for the journal and for what the
/// memtables are written out as, which happens later and must not find the disk full.
const MOST_RESERVE_BYTES: u64 = 96 << 20;
/// The same for a disk of any size.
const LEAST_RESERVE_BYTES: u64 = 8 << 20;
/// The reserve is this part of the disk, within these bounds: a disk of 200 MB is to be used too.
const RESERVE_PART: u64 = 16;
/// What only removes must be possible on a disk that is too full for anything else, for it is how
/// room is made: it needs this part of the reserve.
const REMOVAL_PART: u64 = 4;
/// Memtable size at most. fjall's default of 64 MiB per keyspace costs memory and reopening time
/// (1.8 µs a journaled record).
const MEMTABLE_BYTES: u64 = 16 << 20;
/// A memtable is at most this part of the reserve, so that the reserve is enough to write it out.
const MEMTABLE_PART: u64 = 6;

/// The keyspaces of the store. Few, because each has a memtable and pins the journal.
pub(crate) struct Db {
    database: fjall::Database,
    path: PathBuf,
    /// Bytes that must be free before a commit is tried.
    reserve: u64,
    /// Where an object lies, by digest.
    pub(crate) objects: Keyspace,
    /// Stacks, layers, leases and counters.
    pub(crate) stacks: Keyspace,
    /// What an earlier import found at an inode of the host.
    pub(crate) identities: Keyspace,
    /// Owner runs, by stack, path and content.
    pub(crate) blame: Keyspace,
    /// Access-log frames by session.
    pub(crate) access: Keyspace,
    /// Tables of whoever embeds the store.
    pub(crate) records: Keyspace,
    /// Why writes are refused, once a commit has failed.
    failed: Mutex<Option<String>>,
}

/// Changes that are committed together.
pub(crate) struct DbBatch {
    batch: OwnedWriteBatch,
    bytes: u64,
    /// Whether it only removes.
    removes: bool,
}

impl DbBatch {
    /// Sets `key` to `value`.
    pub(crate) fn insert(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) {
        self.bytes += (key.len() + value.len()) as u64;
        self.removes = false;
        self.batch.insert(keyspace, key, value);
    }

    /// Removes `key`.
    pub(crate) fn remove(&mut self, keyspace: &Keyspace, key: &[u8]) {
        self.bytes += key.len() as u64;
        self.batch.remove(keyspace, key);
    }

    /// Whether nothing is to be done.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Bytes of keys and values so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// How durable a commit is when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Against a killed process.
    Process,
    /// Against power loss.
    Power,
}

impl Db {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let parent = path.parent().unwrap_or(path);
        let disk =
            rustix::fs::statvfs(parent).map_err(|error| Error::io("examining", parent, error))?;
        let reserve = (disk.f_blocks.saturating_mul(disk.f_frsize) / RESERVE_PART)
            .clamp(LEAST_RESERVE_BYTES, MOST_RESERVE_BYTES);
        let database = fjall::Database::builder(path)
            .cache_size(32 << 20)
            .worker_threads(1)
            .max_journaling_size(128 << 20)
            .open()?;
        let keyspace = |name: &str| -> Result<Keyspace> {
            Ok(database.keyspace(name, || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(MEMTABLE_BYTES.min(reserve / MEMTABLE_PART))
            })?)
        };
        Ok(Db {
            objects: keyspace("objects")?,
            stacks: keyspace("stacks")?,
            identities: keyspace("identities")?,
            blame: keyspace("blame")?,
            access: keyspace("access")?,
            records: keyspace("records")?,
            path: path.to_path_buf(),
            reserve,
            failed: Mutex::new(None),
            database,
        })
    }

    pub(crate) fn batch(&self) -> DbBatch {
        // Not `OwnedWriteBatch::with_capacity`: that one is not even written to the journal.
        DbBatch {
            batch: self.database.batch(),
            bytes: 0,
            removes: true,
        }
    }

    /// Commits all of `batch` or nothing.
    pub(crate) fn commit(&self, batch: DbBatch, durability: Durability) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let reserve = if batch.removes {
            self.reserve / REMOVAL_PART
        } else {
            self.reserve
        };
        self.check_free(reserve.saturating_add(batch.bytes().saturating_mul(2)))?;
        let result = batch.batch.commit().and_then(|()| match durability {
            Durability::Process => Ok(()),
            Durability::Power => self.database.persist(PersistMode::SyncAll),
        });
        result.map_err(|error| self.fail(error))
    }

    /// Makes everything committed so far durable against power loss.
    pub(crate) fn persist(&self) -> Result<()> {
        self.database
            .persist(PersistMode::SyncAll)
            .map_err(|error| self.fail(error))
    }

    /// Bytes on disk. (fjall tells the lengths of its journals, which are mostly holes.)
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        let mut pending = vec![self.path.clone()];
        while let Some(path) = pending.pop() {
            let metadata = match std::fs::symlink_metadata(&path) {
                // A table that was merged into another meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                metadata => metadata.map_err(|error| Error::io("examining", &path, error))?,
            };
            bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                let list = |error| Error::io("listing", &path, error);
                for entry in std::fs::read_dir(&path).map_err(list)? {
                    pending.push(entry.map_err(list)?.path());
                }
            }
        }
        Ok(bytes)
    }

    /// Fails if a commit of `bytes` would be refused: for want of room on the disk, or because an
    /// earlier one failed.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<()> {
        self.check_free(self.reserve.saturating_add(bytes.saturating_mul(2)))
    }

    fn check_free(&self, needed: u64) -> Result<()> {
        if let Some(reason) = self.failed.lock().as_ref() {
            return Err(Error::Failed {
                reason: reason.clone(),
            });
        }
        let stat = rustix::fs::statvfs(&self.path)
            .map_err(|error| Error::io("examining", &self.path, error))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            return Err(Error::io(
                "committing to",
                &self.path,
                rustix::io::Errno::NOSPC,
            ));
        }
        Ok(())
    }

    fn fail(&self, error: fjall::Error) -> Error {
        let error = Error::from(error);
        self.failed.lock().get_or_insert_with(|| error.to_string());
        error
    }
}

/// A key made of fixed-width numbers and bytes, ordered as they are.
pub(crate) fn key(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// Encodes a record: postcard, whose layout is fixed by the type.
pub(crate) fn encode<T: serde::Serialize>(value: &T) -> Vec<u8> {
    // Writing to a Vec cannot fail, and none of our types has a map or float that postcard refuses.
    postcard::to_stdvec(value).expect("postcard encodes every record type")
}

/// Decodes a record; `what` names it in the error.
pub(crate) fn decode<'a, T: serde::Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| Error::Corrupt {
        what: what.to_owned(),
        detail: error.to_string(),
    })
}
