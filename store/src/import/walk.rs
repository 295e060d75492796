//! The walk: directories are a shared stack of work, files are read by whoever lists them.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::file::FileReader;
use super::host::{descriptor_xattrs, meta, path_xattrs, pseudo_filesystem};
use super::place::{OpenDirectories, Place};
use super::{ImportProgress, ImportReport, join};
use crate::digest::Digest;
use crate::error::{Error, Result, UnreadablePath};
use crate::name::Name;
use crate::node::{Body, Ino, Node, NodeMeta, Timestamp, Xattrs};
use crate::store::Store;

/// Unreadable paths that an error names one by one.
const SHOWN_UNREADABLE: usize = 20;
/// How often a name is looked at again because it was something else the moment before.
const TYPE_ATTEMPTS: u32 = 16;

/// Everything a walk found. Directory 0 is the root; each directory comes after its parent.
pub(super) struct Found {
    pub(super) directories: Vec<FoundDirectory>,
}

pub(super) struct FoundDirectory {
    pub(super) device: u64,
    /// Its node; body and number are filled in later.
    pub(super) node: Node,
    pub(super) entries: Vec<(Name, Entry)>,
    /// False for one that vanished between being found and being opened.
    pub(super) opened: bool,
    /// What stood there when it was to be opened, if that was no directory any more.
    pub(super) instead: Option<Entry>,
}

pub(super) enum Entry {
    /// Index among the directories.
    Directory(usize),
    /// Anything else, with the host's inode number.
    Node { device: u64, node: Node },
}

impl Found {
    /// The inodes that were found under several names.
    pub(super) fn shared_inodes(&self) -> HashSet<(u64, Ino)> {
        let mut once = HashSet::new();
        let mut shared = HashSet::new();
        for (_, entry) in self
            .directories
            .iter()
            .flat_map(|directory| &directory.entries)
        {
            if let Entry::Node { device, node } = entry
                && node.meta.links > 1
                && !once.insert((*device, node.meta.ino))
            {
                shared.insert((*device, node.meta.ino));
            }
        }
        shared
    }

    /// The largest inode number on `device` below `limit`.
    pub(super) fn largest_ino(&self, device: u64, limit: Ino) -> Ino {
        let directories = self
            .directories
            .iter()
            .map(|directory| (directory.device, directory.node.meta.ino));
        let others = self
            .directories
            .iter()
            .flat_map(|directory| &directory.entries)
            .filter_map(|(_, entry)| match entry {
                Entry::Node { device, node } => Some((*device, node.meta.ino)),
                Entry::Directory(_) => None,
            });
        directories
            .chain(others)
            .filter(|(on, ino)| *on == device && *ino < limit)
            .map(|(_, ino)| ino)
            .max()
            .unwrap_or(0)
    }
}

/// A directory that waits to be listed.
struct Job {
    index: usize,
    place: Place,
    /// Device of the directory above; `None` for the root.
    device: Option<u64>,
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    /// Jobs that are waiting or being worked on.
    unfinished: usize,
    directories: Vec<FoundDirectory>,
    unreadable: Vec<UnreadablePath>,
    unreadable_count: u64,
    failure: Option<Error>,
}

/// A walk under way, shared by its threads.
pub(super) struct Walk<'a> {
    store: &'a Store,
    root: &'a Path,
    open: OpenDirectories,
    queue: Mutex<Queue>,
    /// Signalled when a job comes in or the last one ends.
    changed: Condvar,
    pub(super) counts: Counts,
    /// Set when the walk is to end before its time.
    stopped: AtomicBool,
    /// Files with several names that have been read, by device and inode.
    linked: Mutex<FxHashMap<(u64, Ino), Node>>,
}

/// Counters of a walk.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) files_found: AtomicU64,
    pub(super) files_done: AtomicU64,
    pub(super) bytes_found: AtomicU64,
    pub(super) bytes_done: AtomicU64,
    pub(super) hashed: AtomicU64,
    pub(super) reused: AtomicU64,
    pub(super) reflinked: AtomicU64,
    pub(super) stored: AtomicU64,
    symlinks: AtomicU64,
    special: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl<'a> Walk<'a> {
    /// A walk of `root`, which is open already.
    pub(super) fn new(store: &'a Store, root: &'a Path, directory: OwnedFd) -> Self {
        let open = OpenDirectories::new(directory);
        let first = Job {
            index: 0,
            place: open.root(),
            device: None,
        };
        Walk {
            store,
            root,
            open,
            queue: Mutex::new(Queue {
                jobs: vec![first],
                unfinished: 1,
                directories: vec![unopened(0)],
                ..Queue::default()
            }),
            changed: Condvar::new(),
            counts: Counts::default(),
            stopped: AtomicBool::new(false),
            linked: Mutex::default(),
        }
    }

    /// Whether the walk is to end before its time.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The path of `name` in `place`, for messages.
    pub(super) fn path(&self, place: &Place, name: &Name) -> PathBuf {
        join(&place.path(self.root), name.as_bytes())
    }

    /// Waits for the end; `false` if `timeout` passed first.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let mut queue = self.queue.lock();
        if queue.unfinished > 0 {
            self.changed.wait_for(&mut queue, timeout);
        }
        queue.unfinished == 0
    }

    /// Makes the walk end with `error`.
    pub(super) fn abort(&self, error: Error) {
        self.stopped.store(true, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.failure.get_or_insert(error);
        queue.unfinished = queue.unfinished.saturating_sub(queue.jobs.len());
        queue.jobs.clear();
        self.changed.notify_all();
    }

    pub(super) fn progress(&self) -> ImportProgress {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ImportProgress {
            files_found: read(&self.counts.files_found),
            files_done: read(&self.counts.files_done),
            bytes_found: read(&self.counts.bytes_found),
            bytes_done: read(&self.counts.bytes_done),
        }
    }

    /// Lists directories until none is left. Run by each thread.
    pub(super) fn work(&self) {
        // A thread that panics must not leave the others waiting for its job: the scope then
        // carries the panic to the caller.
        struct AbortOnPanic<'w, 'a>(&'w Walk<'a>);
        impl Drop for AbortOnPanic<'_, '_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    let mut queue = self.0.queue.lock();
                    queue.jobs.clear();
                    queue.unfinished = 0;
                    self.0.changed.notify_all();
                }
            }
        }
        let _guard = AbortOnPanic(self);
        let mut reader = FileReader::new(self.store, self);
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(job) = queue.jobs.pop() {
                        break job;
                    }
                    if queue.unfinished == 0 {
                        // What an import has read before it failed serves the next one, but for
                        // one that was to give room or time back.
                        let wanted = queue.failure.as_ref().is_none_or(|error| {
                            !error.is_disk_full() && !matches!(error, Error::Io { .. })
                        });
                        drop(queue);
                        if wanted && let Err(error) = reader.commit() {
                            self.abort(error);
                        }
                        return;
                    }
                    self.changed.wait(&mut queue);
                }
            };
            let result = self.list(job, &mut reader);
            let mut queue = self.queue.lock();
            queue.unfinished = queue.unfinished.saturating_sub(1);
            if queue.unfinished == 0 {
                self.changed.notify_all();
            }
            drop(queue);
            if let Err(error) = result {
                self.abort(error);
            }
        }
    }

    /// What was found, once every thread has ended.
    pub(super) fn finish(self) -> Result<(Found, ImportReport)> {
        let mut queue = self.queue.into_inner();
        if let Some(error) = queue.failure {
            return Err(error);
        }
        if queue.unreadable_count > 0 {
            return Err(Error::Unreadable {
                count: queue.unreadable_count,
                shown: queue.unreadable,
            });
        }
        let mut instead: FxHashMap<usize, Entry> = FxHashMap::default();
        for (index, directory) in queue.directories.iter_mut().enumerate() {
            if let Some(entry) = directory.instead.take() {
                instead.insert(index, entry);
            }
        }
        if !instead.is_empty() {
            let entries = queue
                .directories
                .iter_mut()
                .flat_map(|directory| &mut directory.entries);
            for (_, entry) in entries {
                if let Entry::Directory(index) = entry
                    && let Some(other) = instead.remove(index)
                {
                    *entry = other;
                }
            }
        }
        let counts = self.counts;
        let report = ImportReport {
            files: counts.files_done.into_inner(),
            directories: queue
                .directories
                .iter()
                .filter(|directory| directory.opened)
                .count() as u64,
            symlinks: counts.symlinks.into_inner(),
            special_files: counts.special.into_inner(),
            bytes: counts.bytes_done.into_inner(),
            files_hashed: counts.hashed.into_inner(),
            files_reused: counts.reused.into_inner(),
            files_reflinked: counts.reflinked.into_inner(),
            bytes_stored: counts.stored.into_inner(),
        };
        Ok((
            Found {
                directories: queue.directories,
            },
            report,
        ))
    }

    fn list(&self, job: Job, reader: &mut FileReader<'_>) -> Result<()> {
        let directory = match job.place.open(&self.open) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => return self.list_instead(&job, reader),
            Err(error) => return self.unreadable(job.place.path(self.root), error.into()),
        };
        let (stat, xattrs, mut names) = match read_directory(&directory) {
            Ok(read) => read,
            Err(error) => return self.unreadable(job.place.path(self.root), error.into()),
        };
        if job.device.is_some_and(|above| above != stat.st_dev)
            && let Some(name) = pseudo_filesystem(&directory)
                .map_err(|error| Error::io("examining", &job.place.path(self.root), error))?
        {
            let error = io::Error::other(format!("it is on {name}, not on a disk"));
            return self.unreadable(job.place.path(self.root), error);
        }
        // In order, so that equal trees are read in the same order and errors are stable.
        names.sort_unstable();
        names.dedup();
        let place = Arc::new(job.place);
        let mut entries = Vec::with_capacity(names.len());
        let mut jobs = Vec::new();
        for name in names {
            if self.is_stopped() {
                return Ok(());
            }
            match self.entry(&directory, &place, &name, reader) {
                Ok(Some(Seen::Node(entry))) => entries.push((name, entry)),
                Ok(Some(Seen::Directory)) => {
                    let mut queue = self.queue.lock();
                    let index = queue.directories.len();
                    queue.directories.push(unopened(stat.st_dev));
                    entries.push((name.clone(), Entry::Directory(index)));
                    jobs.push(Job {
                        index,
                        place: Place::below(&place, name),
                        device: Some(stat.st_dev),
                    });
                }
                Ok(None) => {}
                Err(NodeError::Unreadable(error)) => {
                    self.unreadable(self.path(&place, &name), error)?;
                }
                Err(NodeError::Changed) => {
                    return Err(Error::ChangedWhileRead {
                        path: self.path(&place, &name),
                        attempts: TYPE_ATTEMPTS,
                    });
                }
                Err(NodeError::Fatal(error)) => return Err(error),
            }
        }
        let xattrs = reader.put_xattrs(&xattrs)?;
        // Body and number are filled in when the children are known.
        let found = FoundDirectory {
            device: stat.st_dev,
            node: Node {
                meta: meta(&stat, xattrs),
                body: no_directory(),
            },
            entries,
            opened: true,
            instead: None,
        };
        let mut queue = self.queue.lock();
        queue.directories[job.index] = found;
        if queue.failure.is_none() {
            queue.unfinished += jobs.len();
            queue.jobs.extend(jobs);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// A directory that was found is something else by now: that is what is taken in.
    fn list_instead(&self, job: &Job, reader: &mut FileReader<'_>) -> Result<()> {
        let Some((above, name)) = job.place.above() else {
            return Ok(());
        };
        let changed = || Error::ChangedWhileRead {
            path: self.path(above, name),
            attempts: TYPE_ATTEMPTS,
        };
        let directory = match above.open(&self.open) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(()),
            // Something above it was replaced as well, by what would have to be followed.
            Err(_) => return Err(changed()),
        };
        match self.entry(&directory, above, name, reader) {
            Ok(Some(Seen::Node(entry))) => {
                self.queue.lock().directories[job.index].instead = Some(entry);
                Ok(())
            }
            Ok(None) => Ok(()),
            Ok(Some(Seen::Directory)) | Err(NodeError::Changed) => Err(changed()),
            Err(NodeError::Unreadable(error)) => self.unreadable(self.path(above, name), error),
            Err(NodeError::Fatal(error)) => Err(error),
        }
    }

    /// Takes in what is called `name`, unless it is a directory; `None` if it is gone.
    fn entry(
        &self,
        directory: &OwnedFd,
        place: &Place,
        name: &Name,
        reader: &mut FileReader<'_>,
    ) -> Result<Option<Seen>, NodeError> {
        let mut counted = false;
        for _ in 0..TYPE_ATTEMPTS {
            let stat =
                match rustix::fs::statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => stat,
                    Err(Errno::NOENT) => return Ok(None),
                    Err(error) => return Err(NodeError::Unreadable(error.into())),
                };
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory {
                return Ok(Some(Seen::Directory));
            }
            if kind == FileType::RegularFile && !counted {
                counted = true;
                add(&self.counts.files_found, 1);
                add(&self.counts.bytes_found, stat.st_size as u64);
            }
            match self.node(directory, place, name, &stat, reader) {
                Err(NodeError::Changed) => {}
                Ok(node) => {
                    return Ok(node.map(|node| {
                        Seen::Node(Entry::Node {
                            device: stat.st_dev,
                            node,
                        })
                    }));
                }
                Err(error) => return Err(error),
            }
        }
        Err(NodeError::Changed)
    }

    fn node(
        &self,
        directory: &OwnedFd,
        place: &Place,
        name: &Name,
        stat: &Stat,
        reader: &mut FileReader<'_>,
    ) -> Result<Option<Node>, NodeError> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::RegularFile {
            let several = (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
            if let Some(node) = several.and_then(|key| self.linked.lock().get(&key).cloned()) {
                // Content that is not what it was when its other name was read would be a second
                // version of one file; all names show the first.
                reader.done(node.size())?;
                return Ok(Some(node));
            }
            let node = reader.read(directory, place, name, stat)?;
            if let (Some(key), Some(node)) = (several, &node) {
                self.linked.lock().insert(key, node.clone());
            }
            return Ok(node);
        }
        let body = match kind {
            FileType::Symlink => {
                match rustix::fs::readlinkat(directory, name.as_bytes(), Vec::new()) {
                    Ok(target) => Body::Symlink(target.into_bytes().into()),
                    Err(Errno::NOENT | Errno::INVAL) => return Err(NodeError::Changed),
                    Err(error) => return Err(NodeError::Unreadable(error.into())),
                }
            }
            FileType::Fifo => Body::Fifo,
            FileType::Socket => Body::Socket,
            FileType::CharacterDevice => Body::CharDevice(stat.st_rdev),
            FileType::BlockDevice => Body::BlockDevice(stat.st_rdev),
            FileType::RegularFile | FileType::Directory | FileType::Unknown => {
                return Err(NodeError::Unreadable(io::Error::other(
                    "it is of an unknown type",
                )));
            }
        };
        let xattrs = match path_xattrs(directory, name) {
            Ok(xattrs) => reader.put_xattrs(&xattrs).map_err(NodeError::Fatal)?,
            Err(Errno::NOENT) => return Err(NodeError::Changed),
            Err(error) => return Err(NodeError::Unreadable(error.into())),
        };
        add(
            if kind == FileType::Symlink {
                &self.counts.symlinks
            } else {
                &self.counts.special
            },
            1,
        );
        Ok(Some(Node {
            meta: meta(stat, xattrs),
            body,
        }))
    }

    /// Notes a path that cannot be read and lets the walk go on, so that the error names them all.
    fn unreadable(&self, path: PathBuf, error: io::Error) -> Result<()> {
        let mut queue = self.queue.lock();
        queue.unreadable_count += 1;
        if queue.unreadable.len() < SHOWN_UNREADABLE {
            queue.unreadable.push(UnreadablePath { path, error });
        }
        Ok(())
    }
}

/// What a name is.
enum Seen {
    Directory,
    /// Taken in.
    Node(Entry),
}

/// Why a node could not be taken in.
pub(super) enum NodeError {
    /// The path cannot be read; others can.
    Unreadable(io::Error),
    /// It is something else than a moment before.
    Changed,
    /// The import cannot go on.
    Fatal(Error),
}

impl From<Error> for NodeError {
    fn from(error: Error) -> Self {
        NodeError::Fatal(error)
    }
}

fn unopened(device: u64) -> FoundDirectory {
    let meta = NodeMeta {
        ino: 0,
        mode: 0,
        uid: 0,
        gid: 0,
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        links: 1,
        xattrs: None,
    };
    FoundDirectory {
        device,
        node: Node {
            meta,
            body: no_directory(),
        },
        entries: Vec::new(),
        opened: false,
        instead: None,
    }
}

pub(super) fn no_directory() -> Body {
    Body::Directory {
        tree: Digest::empty(),
        subdirectories: 0,
        entries: 0,
    }
}

fn read_directory(directory: &OwnedFd) -> Result<(Stat, Xattrs, Vec<Name>), Errno> {
    let stat = rustix::fs::fstat(directory)?;
    let xattrs = descriptor_xattrs(directory)?;
    let mut names = Vec::new();
    let mut listing = rustix::fs::Dir::read_from(directory)?;
    while let Some(entry) = listing.read() {
        let entry = entry?;
        // What a directory lists is a name by the kernel's rules; `.` and `..` are the exceptions.
        if let Ok(name) = Name::new(entry.file_name().to_bytes()) {
            names.push(name);
        }
    }
    Ok((stat, xattrs, names))
}
