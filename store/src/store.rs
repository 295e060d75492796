//! The store: one directory that one process has open.
//!
//! # On disk
//! `FORMAT` holds the number of the store's format, `LOCK` is locked by the process that has the
//! store open and holds its pid, `db/` is the database, `packs/` and `blobs/` hold objects, and
//! `uppers/NNNNNNNN/` the private changes of lease NNNNNNNN.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
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

/// The format that this version writes, and the newest it reads.
const FORMAT: u32 = 1;

/// An open store. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
}

pub(crate) struct StoreInner {
    pub(crate) root: PathBuf,
    pub(crate) db: Arc<Db>,
    pub(crate) objects: Arc<Objects>,
    lowers: Mutex<FxHashMap<Digest, Weak<Lower>>>,
    stacks: Mutex<FxHashMap<StackId, Weak<StackInner>>>,
    access: AccessLog,
    /// Guards the read-modify-write of counters.
    counters: Mutex<()>,
    /// Held for its lock.
    _lock: File,
}

/// What a store takes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of packs and blob files.
    pub object_bytes: u64,
    /// Bytes of the database.
    pub database_bytes: u64,
    /// Bytes of all uppers.
    pub upper_bytes: u64,
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
                db,
                objects,
                lowers: Mutex::default(),
                stacks: Mutex::default(),
                access,
                counters: Mutex::new(()),
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
            Some(bytes) => Ok(Lease::new(db::decode(&format!("lease {id}"), &bytes)?)),
        }
    }

    /// Every lease, in the order they were taken.
    ///
    /// # Errors
    /// As reading a record.
    pub fn leases(&self) -> Result<Vec<Lease>> {
        let mut leases = Vec::new();
        for guard in self.inner.db.stacks.prefix(b"e") {
            let (_, value) = guard.into_inner()?;
            leases.push(Lease::new(db::decode("a lease", &value)?));
        }
        Ok(leases)
    }

    /// Ends a lease: its upper is removed, and its layer no longer pinned. Ending one that is not
    /// there is no error.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Database`].
    pub fn release(&self, id: LeaseId) -> Result<()> {
        let mut batch = self.inner.db.batch();
        batch.remove(&self.inner.db.stacks, &lease_key(id));
        // The record goes first: an upper without a lease is removed when the store is opened.
        self.inner.db.commit(batch, Durability::Process)?;
        remove_upper(&self.upper_dir(id))
    }

    /// What the store takes on disk.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Database`].
    pub fn usage(&self) -> Result<StoreUsage> {
        let mut usage = StoreUsage {
            object_bytes: self.inner.objects.disk_bytes()?,
            database_bytes: self.inner.db.disk_bytes()?,
            upper_bytes: 0,
        };
        for lease in self.leases()? {
            usage.upper_bytes += crate::upper::disk_bytes(&self.upper_dir(lease.id()))?;
        }
        Ok(usage)
    }

    pub(crate) fn inner(&self) -> &StoreInner {
        &self.inner
    }

    pub(crate) fn upper_dir(&self, id: LeaseId) -> PathBuf {
        self.inner.root.join("uppers").join(id.to_string())
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

    /// Uppers whose lease is gone: a release was interrupted.
    fn remove_orphaned_uppers(&self) -> Result<()> {
        let dir = self.inner.root.join("uppers");
        for entry in fs::read_dir(&dir).map_err(|error| Error::io("listing", &dir, error))? {
            let entry = entry.map_err(|error| Error::io("listing", &dir, error))?;
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(number) = number else { continue };
            if self
                .inner
                .db
                .stacks
                .get(lease_key(LeaseId(number)))?
                .is_none()
            {
                remove_upper(&entry.path())?;
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

fn remove_upper(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("removing", dir, error))
        }
        _ => Ok(()),
    }
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
