//! Uppers: the private copy-on-write changes of one session, durable.
//!
//! An upper is a set of changed inodes and directory entries over a layer ([`State`]), kept in
//! memory, in a journal, and, for content, in one sparse *arena* file:
//!
//! - `journal`: every change, in the order it was acknowledged ([`Record`]). It reaches the kernel
//!   before the change is acknowledged, so a killed process loses nothing; [`Upper::sync`] makes it
//!   durable against power loss.
//! - `arena`: the blocks of changed content. One descriptor and no file creation, however many
//!   files a session writes.
//!
//! A change is one [`Transaction`]: it keeps others from changing the state while it collects
//! records, and commits them to the journal and then to the state, or, if the journal refuses, to
//! neither.
//!
//! Locks, in order: an inode's data lock (by stripe, two in stripe order), the state, the journal,
//! the arena's allocator. The state is never locked for writing while content is read or written.
//!
//! It knows no rule of POSIX: what may be done is decided by the filesystem above.

mod arena;
mod capture;
mod copy;
mod data;
mod digest;
mod extents;
mod journal;
mod state;
mod view;

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard};

pub use arena::Budget;
pub use data::Seek;
pub use extents::{Extents, Place, Run};
pub use state::{Attrs, Entry, FileBody, Inode, InodeBody, NewBody, Record, Slot, State};
pub use view::{Attributes, ListedEntry};

use crate::error::{Error, Result};
use crate::lease::{INO_BLOCK, Lease, LeaseId, LeaseRecord};
use crate::lower::Lower;
use crate::node::Ino;
use crate::objects::Objects;
use crate::stack::Stack;
use crate::store::Store;
use arena::Arena;
use journal::Journal;

/// Content is copied up, and arena space given out, in blocks of this many bytes: a page.
pub const BLOCK: u64 = 4096;

/// A change that leaves more freed bytes than this waiting for a sync makes one, so that a disk that
/// sessions share does not fill with what nobody has any more.
const DEFERRED_BYTES: u64 = 64 << 20;
/// How often a change that finds the disk full frees what it can and tries again.
const ROOM_ATTEMPTS: usize = 3;

/// Stripes of the data lock: inodes that share one wait for each other now and then.
const DATA_STRIPES: usize = 64;

/// The private changes of one session.
pub struct Upper {
    stack: Stack,
    lease: LeaseRecord,
    lower: Arc<Lower>,
    dir: PathBuf,
    state: RwLock<State>,
    arena: Arena,
    journal: Mutex<Journal>,
    /// Held for writing around every change of an inode's content, for reading around every read.
    data: [RwLock<()>; DATA_STRIPES],
    inos: Mutex<InoBlock>,
    /// Counts committed changes.
    generation: AtomicU64,
    /// Whether the directory entries of journal and arena are durable.
    placed: AtomicBool,
    /// Last, so that nobody opens the upper anew before all of it is closed.
    _open: OpenUpper,
}

/// Inode numbers that are reserved and not given out.
struct InoBlock {
    next: Ino,
    end: Ino,
}

impl std::fmt::Debug for Upper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upper")
            .field("lease", &self.lease.id)
            .finish()
    }
}

impl Store {
    /// Opens the upper of a lease, making it if it is new.
    ///
    /// # Errors
    /// [`Error::UpperOpen`] if it is open already, [`Error::NoLease`] if the lease was released,
    /// [`Error::Corrupt`] if its journal is damaged, [`Error::Io`], or as reading an object.
    pub fn open_upper(&self, lease: &Lease) -> Result<Upper> {
        let record = self.lease(lease.id())?.record().clone();
        let open = OpenUpper::claim(self, record.id)?;
        let stack = self.stack(record.stack)?;
        let dir = self.upper_dir(record.id);
        fs::create_dir_all(&dir).map_err(|error| Error::io("making", &dir, error))?;
        let (journal, state) = Journal::open(&dir, self.inner().options.checkpoint_bytes)?;
        let arena = Arena::open(
            &dir.join("arena"),
            record.quota,
            Arc::clone(stack.budget()),
            state.arena_runs(),
        )?;
        // Numbers up to the largest that the journal knows may have been given out.
        let next = record.first_ino.max(state.largest_ino() + 1);
        let end = (record.first_ino + INO_BLOCK).max(next);
        Ok(Upper {
            lower: self.lower(&record.base_root)?,
            stack,
            lease: record,
            dir,
            state: RwLock::new(state),
            arena,
            journal: Mutex::new(journal),
            data: [const { RwLock::new(()) }; DATA_STRIPES],
            inos: Mutex::new(InoBlock { next, end }),
            placed: AtomicBool::new(false),
            _open: open,
            generation: AtomicU64::new(0),
        })
    }
}

impl Upper {
    /// The lease that this is the upper of.
    pub fn lease(&self) -> &LeaseRecord {
        &self.lease
    }

    /// The stack that it will be published to.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The layer below.
    pub fn lower(&self) -> &Arc<Lower> {
        &self.lower
    }

    /// The state, for reading. No change is committed while it is held.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// A number that grows with every committed change, for whoever keeps what follows from the
    /// state. It begins at 0 when the upper is opened.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Begins a change. No other change begins until it is committed or dropped.
    pub fn begin(&self) -> Transaction<'_> {
        Transaction {
            upper: self,
            state: self.state.upgradable_read(),
            records: Vec::new(),
        }
    }

    /// A number for a new inode, never given before in the stack.
    ///
    /// # Errors
    /// [`Error::Database`] when a further block of numbers cannot be reserved.
    pub fn new_ino(&self) -> Result<Ino> {
        let mut block = self.inos.lock();
        if block.next == block.end {
            block.next = self.with_room(|| self.stack.store().reserve_inos(self.lease.stack))?;
            block.end = block.next + INO_BLOCK;
        }
        block.next += 1;
        Ok(block.next - 1)
    }

    /// Bytes of content on disk.
    pub fn content_bytes(&self) -> u64 {
        self.arena.used_bytes()
    }

    /// Most bytes of content; `None` means no limit.
    pub fn quota(&self) -> Option<u64> {
        self.lease.quota
    }

    /// The directory it lies in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes everything that was acknowledged durable against power loss.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Database`].
    pub fn sync(&self) -> Result<()> {
        // Content before what refers to it. The lease first of all, or it would be the content of
        // nothing.
        self.stack.store().persist()?;
        self.sync_changes()
    }

    /// Makes the changes durable, but not the lease that they belong to.
    fn sync_changes(&self) -> Result<()> {
        let released = self.arena.begin_sync();
        let result = self.sync_files();
        self.arena.end_sync(released, result.is_ok());
        result
    }

    /// Does what needs room on the disk; if there is none, frees what waits for a sync and tries
    /// again. The journal must not be locked, nor the state for writing.
    fn with_room<T>(&self, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        let mut result = act();
        for _ in 0..ROOM_ATTEMPTS {
            match &result {
                Err(error) if error.is_disk_full() && self.reclaim() => result = act(),
                _ => break,
            }
        }
        result
    }

    /// Gives freed space that waits for a sync back to the disk. Returns whether there was any.
    pub(crate) fn reclaim(&self) -> bool {
        if self.arena.deferred_bytes() == 0 {
            // Another may be about to free it.
            return self.arena.wait_for_a_sync();
        }
        match self.sync_changes() {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "freed space could not be given back");
                false
            }
        }
    }

    fn sync_files(&self) -> Result<()> {
        self.arena.sync()?;
        let journal = self.journal.lock().file();
        journal
            .sync_data()
            .map_err(|error| Error::io("syncing", &self.dir.join("journal"), error))?;
        if !self.placed.load(Ordering::Relaxed) {
            for dir in self.dir.ancestors().take(2) {
                fs::File::open(dir)
                    .and_then(|file| file.sync_all())
                    .map_err(|error| Error::io("syncing", dir, error))?;
            }
            self.placed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn data_lock(&self, ino: Ino) -> &RwLock<()> {
        &self.data[stripe(ino)]
    }
}

fn stripe(ino: Ino) -> usize {
    (ino % DATA_STRIPES as u64) as usize
}

thread_local! {
    /// The request that the thread works on.
    static REQUEST: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Notes with what `act` commits that it is what `request` asked for, a number that is not used again
/// in the session. If the process is killed before the answer is given and the request is made again,
/// [`State::was_asked`] tells that it was done.
pub fn for_request<T>(request: u64, act: impl FnOnce() -> T) -> T {
    struct Before(Option<u64>);
    impl Drop for Before {
        fn drop(&mut self) {
            REQUEST.set(self.0);
        }
    }
    let _before = Before(REQUEST.replace(Some(request)));
    act()
}

/// A change under way: records that are committed together.
pub struct Transaction<'a> {
    upper: &'a Upper,
    state: RwLockUpgradableReadGuard<'a, State>,
    records: Vec<Record>,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("records", &self.records)
            .finish()
    }
}

impl Transaction<'_> {
    /// The state before the change.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Commits the records; all or none.
    ///
    /// # Errors
    /// [`Error::Io`], a full disk among them: then nothing has changed.
    pub fn commit(mut self) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        if let Some(request) = REQUEST.get() {
            self.records.push(Record::Asked { request });
        }
        // Nobody else can change the state or append meanwhile; readers go on.
        self.upper
            .with_room(|| self.upper.journal.lock().append(&self.records))?;
        let mut state = RwLockUpgradableReadGuard::upgrade(self.state);
        self.upper.generation.fetch_add(1, Ordering::Release);
        let mut freed = Vec::new();
        let mut dropped = Vec::new();
        for record in self.records {
            if let Record::Drop { ino } = &record {
                dropped.push(*ino);
            }
            state.apply(record, &mut freed);
        }
        self.upper.journal.lock().checkpoint_if_due(&state);
        drop(state);
        for ino in dropped {
            // Whoever is reading the file knows where its bytes were: nobody may be given that
            // space before they are done. Changes of content hold this lock themselves.
            drop(self.upper.data_lock(ino).write());
        }
        self.upper.arena.free(&freed);
        if self.upper.arena.deferred_bytes() > DEFERRED_BYTES {
            self.upper.reclaim();
        }
        Ok(())
    }
}

/// The claim to the one open upper of a lease.
struct OpenUpper {
    store: Store,
    lease: LeaseId,
}

impl OpenUpper {
    fn claim(store: &Store, lease: LeaseId) -> Result<Self> {
        if !store.inner().open_uppers.lock().insert(lease) {
            return Err(Error::UpperOpen(lease));
        }
        Ok(OpenUpper {
            store: store.clone(),
            lease,
        })
    }
}

impl Drop for OpenUpper {
    fn drop(&mut self) {
        self.store.inner().open_uppers.lock().remove(&self.lease);
    }
}

/// Bytes on disk of the upper in `dir`, open or not; 0 if it is not there.
pub(crate) fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for name in ["arena", "journal"] {
        match fs::metadata(dir.join(name)) {
            Ok(metadata) => bytes += metadata.blocks() * 512,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("examining", &dir.join(name), error)),
        }
    }
    Ok(bytes)
}

/// Reads the upper in `dir` without opening it, and tells what is wrong with it, a sentence each. An
/// upper that was never written to is not there.
pub(crate) fn inspect(dir: &Path, objects: &Objects) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let Some(state) = journal::inspect(dir)? else {
        return Ok(problems);
    };
    let mut runs = state.arena_runs();
    runs.sort_unstable();
    for pair in runs.windows(2) {
        if pair[0].0 + pair[0].1 > pair[1].0 {
            problems.push(format!("byte {} of its arena is used twice", pair[1].0));
        }
    }
    for blob in state.blobs() {
        if !objects.is_recorded(&blob)? {
            problems.push(format!("object {blob}, which it refers to, is missing"));
        }
    }
    Ok(problems)
}
