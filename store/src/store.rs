//! The store: one directory that one process has open.
//!
//! # On disk
//! `FORMAT` holds the number of the store's format, `LOCK` is locked by the process that has the
//! store open and holds its pid, `db/` is the database, `packs/` and `blobs/` hold objects, `groups/`
//! what is known of large ones, and `uppers/NNNNNNNN/` the private changes of lease NNNNNNNN; with `.released` behind its name they are
//! being removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::FlockOperation;

use crate::access::AccessLog;
use crate::db::{self, Db, Durability, key};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::lease::{INO_BLOCK, Lease, LeaseId, LeaseRecord};
use crate::lower::Lower;
use crate::node::Ino;
use crate::objects::Objects;
use crate::records::Table;
use crate::stack::{Stack, StackId, StackInner};
use crate::writers;

/// The format that this version writes, and the newest it reads.
const FORMAT: u32 = 1;

/// An open store. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// An upper's journal of this many bytes is replaced by one that makes the same state from
    /// scratch. The default, 16 MiB, is read again in about a tenth of a second.
    pub checkpoint_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            checkpoint_bytes: 16 << 20,
        }
    }
}

pub(crate) struct StoreInner {
    pub(crate) root: PathBuf,
    pub(crate) options: StoreOptions,
    pub(crate) db: Arc<Db>,
    pub(crate) objects: Arc<Objects>,
    lowers: Mutex<FxHashMap<Digest, Weak<Lower>>>,
    stacks: Mutex<FxHashMap<StackId, Weak<StackInner>>>,
    access: AccessLog,
    /// The leases whose uppers are open.
    pub(crate) open_uppers: Mutex<FxHashSet<LeaseId>>,
    /// Guards the read-modify-write of counters.
    counters: Mutex<()>,
    /// Held while garbage is collected: one at a time.
    pub(crate) collecting: Mutex<()>,
    /// Held for its lock.
    _lock: File,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("root", &self.inner.root)
            .finish()
    }
}

impl Store {
    /// Opens the store at `root`, making it if it is not there. `root` gets mode 0700.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open, [`Error::NewerFormat`], [`Error::Corrupt`],
    /// [`Error::Io`] or [`Error::Database`].
    pub fn open(root: &Path) -> Result<Store> {
        Store::open_with(root, &StoreOptions::default())
    }

    /// Like [`Store::open`], with other than the default options.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(root: &Path, options: &StoreOptions) -> Result<Store> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(root)
            .map_err(|error| Error::io("making", root, error))?;
        let lock = take_lock(root)?;
        check_format(root)?;
        let uppers = root.join("uppers");
        fs::create_dir_all(&uppers).map_err(|error| Error::io("making", &uppers, error))?;
        let db = Arc::new(Db::open(&root.join("db"))?);
        let objects = Arc::new(Objects::open(Arc::clone(&db), root)?);
        let access = AccessLog::open(Arc::clone(&db))?;
        let store = Store {
            inner: Arc::new(StoreInner {
                root: root.to_path_buf(),
                options: *options,
                db,
                objects,
                lowers: Mutex::default(),
                stacks: Mutex::default(),
                access,
                open_uppers: Mutex::default(),
                counters: Mutex::new(()),
                collecting: Mutex::new(()),
                _lock: lock,
            }),
        };
        store.remove_orphaned_uppers()?;
        Ok(store)
    }

    /// The store's directory.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// The objects: blobs, directory objects, lists.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.inner.objects
    }

    /// The access log.
    pub fn access_log(&self) -> &AccessLog {
        &self.inner.access
    }

    /// The table called `name` of whoever embeds the store.
    pub fn table(&self, name: &str) -> Table {
        Table::new(Arc::clone(&self.inner.db), name)
    }

    /// Makes everything that was acknowledged durable against power loss.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn persist(&self) -> Result<()> {
        self.inner.db.persist()
    }

    /// The layer with root `root`, shared by all who hold it.
    ///
    /// # Errors
    /// As reading an object.
    pub fn lower(&self, root: &Digest) -> Result<Arc<Lower>> {
        if let Some(lower) = self.inner.lowers.lock().get(root).and_then(Weak::upgrade) {
            return Ok(lower);
        }
        let lower = Arc::new(Lower::load(Arc::clone(&self.inner.objects), *root)?);
        let mut lowers = self.inner.lowers.lock();
        lowers.retain(|_, known| known.strong_count() > 0);
        match lowers.get(root).and_then(Weak::upgrade) {
            Some(first) => Ok(first),
            None => {
                lowers.insert(*root, Arc::downgrade(&lower));
                Ok(lower)
            }
        }
    }

    /// The stack numbered `id`.
    ///
    /// # Errors
    /// [`Error::NoStack`], or as reading a record.
    pub fn stack(&self, id: StackId) -> Result<Stack> {
        let mut stacks = self.inner.stacks.lock();
        if let Some(inner) = stacks.get(&id).and_then(Weak::upgrade) {
            return Ok(Stack::new(self.clone(), inner));
        }
        let inner = Arc::new(StackInner::load(&self.inner.db, id)?);
        stacks.retain(|_, known| known.strong_count() > 0);
        stacks.insert(id, Arc::downgrade(&inner));
        Ok(Stack::new(self.clone(), inner))
    }

    /// The lease numbered `id`.
    ///
    /// # Errors
    /// [`Error::NoLease`], or as reading a record.
    pub fn lease(&self, id: LeaseId) -> Result<Lease> {
        match self.inner.db.stacks.get(lease_key(id))? {
            None => Err(Error::NoLease(id)),
            Some(_) if self.released_dir(id).exists() => Err(Error::NoLease(id)),
            Some(bytes) => Ok(Lease::new(db::decode(&format!("lease {id}"), &bytes)?)),
        }
    }

    /// Every lease, in the order they were taken.
    ///
    /// # Errors
    /// As reading a record.
    pub fn leases(&self) -> Result<Vec<Lease>> {
        let mut leases = self.all_leases()?;
        leases.retain(|lease| !self.released_dir(lease.id()).exists());
        Ok(leases)
    }

    /// Every lease that is recorded, those too whose release is under way.
    pub(crate) fn all_leases(&self) -> Result<Vec<Lease>> {
        let mut leases = Vec::new();
        for guard in self.inner.db.stacks.prefix(b"e") {
            let (_, value) = guard.into_inner()?;
            leases.push(Lease::new(db::decode("a lease", &value)?));
        }
        Ok(leases)
    }

    /// The numbers of all stacks.
    ///
    /// # Errors
    /// As reading a record.
    pub fn stack_ids(&self) -> Result<Vec<StackId>> {
        let mut ids = Vec::new();
        for guard in self.inner.db.stacks.prefix(b"s") {
            let key = guard.key()?;
            let number = key
                .get(1..)
                .and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
            let number = number.ok_or_else(|| Error::Corrupt {
                what: "a key of the stacks".to_owned(),
                detail: "it is no number".to_owned(),
            })?;
            ids.push(StackId(u64::from_be_bytes(number)));
        }
        Ok(ids)
    }

    /// Ends a lease: its upper is removed, and its layer no longer pinned. Ending one that is not
    /// there is no error. It needs no room, so that it makes some on a full disk.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Database`]. If the upper could be removed and the record not, the
    /// lease is gone the next time it is released, or the store opened.
    pub fn release(&self, id: LeaseId) -> Result<()> {
        let (dir, released) = (self.upper_dir(id), self.released_dir(id));
        // From here on there is no way back: a lease whose upper is gone must not look like one
        // that changed nothing.
        match fs::rename(&dir, &released) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("releasing", &dir, error));
            }
            _ => {}
        }
        self.finish_release(id)
    }

    /// Removes what a released upper holds, the lease's record, and last the mark of the release.
    fn finish_release(&self, id: LeaseId) -> Result<()> {
        let released = self.released_dir(id);
        match fs::read_dir(&released) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("listing", &released, error)),
            Ok(entries) => {
                for entry in entries {
                    entry
                        .and_then(|entry| fs::remove_file(entry.path()))
                        .map_err(|error| Error::io("removing", &released, error))?;
                }
            }
        }
        let db = &self.inner.db;
        let mut batch = db.batch();
        if let Some(bytes) = db.stacks.get(lease_key(id))? {
            let record: LeaseRecord = db::decode(&format!("lease {id}"), &bytes)?;
            writers::forget(db, record.stack, id, &mut batch)?;
        }
        batch.remove(&db.stacks, &lease_key(id));
        db.commit(batch, Durability::Process)?;
        match fs::remove_dir(&released) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("removing", &released, error))
            }
            _ => Ok(()),
        }
    }

    /// Bytes on disk of the upper of a lease; 0 if there is none.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn upper_bytes(&self, id: LeaseId) -> Result<u64> {
        crate::upper::disk_bytes(&self.upper_dir(id))
    }

    pub(crate) fn inner(&self) -> &StoreInner {
        &self.inner
    }

    pub(crate) fn upper_dir(&self, id: LeaseId) -> PathBuf {
        self.inner.root.join("uppers").join(id.to_string())
    }

    /// What an upper's directory is called once its lease is being released.
    pub(crate) fn released_dir(&self, id: LeaseId) -> PathBuf {
        self.upper_dir(id).with_extension("released")
    }

    /// Reserves inode numbers of `stack` for a lease and records the lease.
    pub(crate) fn record_lease(&self, mut record: LeaseRecord) -> Result<Lease> {
        let _counters = self.inner.counters.lock();
        let mut batch = self.inner.db.batch();
        let next = read_counter(&self.inner.db, b"n/lease")?.unwrap_or(1);
        record.id = LeaseId(next);
        batch.insert(&self.inner.db.stacks, b"n/lease", &(next + 1).to_be_bytes());
        record.first_ino = reserve_inos(&self.inner.db, &mut batch, record.stack)?;
        batch.insert(
            &self.inner.db.stacks,
            &lease_key(record.id),
            &db::encode(&record),
        );
        // Not against power loss: what the session syncs, syncs the database first, so a lease that
        // power loss takes had nothing durable.
        self.inner.db.commit(batch, Durability::Process)?;
        Ok(Lease::new(record))
    }

    /// Reserves further inode numbers of `stack`; returns the first of [`INO_BLOCK`].
    pub(crate) fn reserve_inos(&self, stack: StackId) -> Result<Ino> {
        let _counters = self.inner.counters.lock();
        let mut batch = self.inner.db.batch();
        let first = reserve_inos(&self.inner.db, &mut batch, stack)?;
        self.inner.db.commit(batch, Durability::Process)?;
        Ok(first)
    }

    /// The next number of the counter called `name`, from 1.
    pub(crate) fn next_number(&self, name: &[u8]) -> Result<u64> {
        let _counters = self.inner.counters.lock();
        let next = read_counter(&self.inner.db, name)?.unwrap_or(1);
        let mut batch = self.inner.db.batch();
        batch.insert(&self.inner.db.stacks, name, &(next + 1).to_be_bytes());
        self.inner.db.commit(batch, Durability::Process)?;
        Ok(next)
    }

    /// Ends what was interrupted: releases under way, and uppers that were made for a lease that
    /// power loss took.
    fn remove_orphaned_uppers(&self) -> Result<()> {
        let dir = self.inner.root.join("uppers");
        for entry in fs::read_dir(&dir).map_err(|error| Error::io("listing", &dir, error))? {
            let entry = entry.map_err(|error| Error::io("listing", &dir, error))?;
            let name = entry.file_name();
            let name = Path::new(&name);
            let number = name.file_stem().and_then(|stem| stem.to_str());
            let Some(number) = number.and_then(|stem| stem.parse().ok()) else {
                continue;
            };
            let id = LeaseId(number);
            if name
                .extension()
                .is_some_and(|extension| extension == "released")
            {
                match self.finish_release(id) {
                    // The lease is gone all the same: it cannot be opened.
                    Err(error) if error.is_disk_full() => {
                        tracing::warn!(lease = %id, %error, "a release is not finished");
                    }
                    result => result?,
                }
            } else if self.inner.db.stacks.get(lease_key(id))?.is_none() {
                fs::remove_dir_all(entry.path())
                    .map_err(|error| Error::io("removing", &entry.path(), error))?;
            }
        }
        Ok(())
    }
}

fn reserve_inos(db: &Db, batch: &mut db::DbBatch, stack: StackId) -> Result<Ino> {
    let counter = ino_key(stack);
    let first = read_counter(db, &counter)?.ok_or(Error::NoStack(stack.0))?;
    batch.insert(&db.stacks, &counter, &(first + INO_BLOCK).to_be_bytes());
    Ok(first)
}

fn read_counter(db: &Db, name: &[u8]) -> Result<Option<u64>> {
    let Some(bytes) = db.stacks.get(name)? else {
        return Ok(None);
    };
    let number = <[u8; 8]>::try_from(&bytes[..]).map_err(|_| Error::Corrupt {
        what: format!("counter {}", name.escape_ascii()),
        detail: "it has not 8 bytes".to_owned(),
    })?;
    Ok(Some(u64::from_be_bytes(number)))
}

/// The counter of `stack`'s inode numbers.
pub(crate) fn ino_key(stack: StackId) -> Vec<u8> {
    key(&[b"i", &stack.0.to_be_bytes()])
}

fn lease_key(id: LeaseId) -> Vec<u8> {
    key(&[b"e", &id.0.to_be_bytes()])
}

fn take_lock(root: &Path) -> Result<File> {
    let path = root.join("LOCK");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| Error::io("opening", &path, error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            file.read_to_string(&mut text)
                .map_err(|error| Error::io("reading", &path, error))?;
            // 0 when the owner has not written its pid yet.
            let pid = text.trim().parse().unwrap_or(0);
            return Err(Error::InUse {
                path: root.to_path_buf(),
                pid,
            });
        }
        Err(error) => return Err(Error::io("locking", &path, error)),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(|error| Error::io("writing", &path, error))?;
    Ok(file)
}

fn check_format(root: &Path) -> Result<()> {
    let path = root.join("FORMAT");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim().parse().map_err(|_| Error::Corrupt {
                what: path.display().to_string(),
                detail: format!("{:?} is no format number", text.trim()),
            })?;
            if found > FORMAT {
                return Err(Error::NewerFormat {
                    path: root.to_path_buf(),
                    found,
                    known: FORMAT,
                });
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let temporary = root.join("FORMAT.tmp");
            fs::write(&temporary, format!("{FORMAT}\n"))
                .and_then(|()| File::open(&temporary)?.sync_all())
                .and_then(|()| fs::rename(&temporary, &path))
                .map_err(|error| Error::io("writing", &path, error))
        }
        Err(error) => Err(Error::io("reading", &path, error)),
    }
}
