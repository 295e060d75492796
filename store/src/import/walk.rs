//! The walk: directories are a shared stack of work, files are read by whoever lists them.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::file::FileReader;
use super::{ImportProgress, ImportReport, join};
use crate::digest::Digest;
use crate::error::{Error, Result, UnreadablePath};
use crate::lower::encode_xattrs;
use crate::name::Name;
use crate::node::{Body, Ino, Node, NodeMeta, Timestamp, Xattrs};
use crate::store::Store;

/// Unreadable paths that an error names one by one.
const SHOWN_UNREADABLE: usize = 20;

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

    /// The largest inode number on `device`.
    pub(super) fn largest_ino(&self, device: u64) -> Ino {
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
            .filter(|(on, _)| *on == device)
            .map(|(_, ino)| ino)
            .max()
            .unwrap_or(0)
    }
}

/// A directory that waits to be listed.
struct Job {
    index: usize,
    /// The directory it is in and its name there; `None` for the root, which is open already.
    place: Option<(Arc<OwnedFd>, Name)>,
    root: Option<File>,
    path: PathBuf,
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
    queue: Mutex<Queue>,
    /// Signalled when a job comes in or the last one ends.
    changed: Condvar,
    counts: Counts,
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
    pub(super) fn new(store: &'a Store, root: &'a Path) -> Self {
        Walk {
            store,
            root,
            queue: Mutex::default(),
            changed: Condvar::new(),
            counts: Counts::default(),
        }
    }

    /// Puts the opened root on the queue.
    pub(super) fn begin(&self, root: File) {
        let mut queue = self.queue.lock();
        queue.directories.push(unopened(0));
        queue.unfinished = 1;
        queue.jobs.push(Job {
            index: 0,
            place: None,
            root: Some(root),
            path: self.root.to_path_buf(),
        });
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
        let mut reader = FileReader::new(self.store, &self.counts);
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(job) = queue.jobs.pop() {
                        break job;
                    }
                    if queue.unfinished == 0 {
                        drop(queue);
                        if let Err(error) = reader.commit() {
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
        let queue = self.queue.into_inner();
        if let Some(error) = queue.failure {
            return Err(error);
        }
        if queue.unreadable_count > 0 {
            return Err(Error::Unreadable {
                count: queue.unreadable_count,
                shown: queue.unreadable,
            });
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
        let directory = match (job.root, &job.place) {
            (Some(root), _) => OwnedFd::from(root),
            (None, Some((parent, name))) => match open_directory(parent, name) {
                Ok(directory) => directory,
                // It was there a moment ago: the project changed, and what is read later is right.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                Err(error) => return self.unreadable(job.path, error.into()),
            },
            (None, None) => return Ok(()),
        };
        let (stat, xattrs, mut names) = match read_directory(&directory) {
            Ok(read) => read,
            Err(error) => return self.unreadable(job.path, error.into()),
        };
        if let Some(name) = pseudo_filesystem(&directory)
            .map_err(|error| Error::io("examining", &job.path, error))?
        {
            let error = io::Error::other(format!("it is on {name}, not on a disk"));
            return self.unreadable(job.path, error);
        }
        // In order, so that equal trees are read in the same order and errors are stable.
        names.sort_unstable();
        let directory = Arc::new(directory);
        let mut entries = Vec::with_capacity(names.len());
        let mut jobs = Vec::new();
        for name in names {
            let stat =
                match rustix::fs::statat(&*directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => stat,
                    Err(Errno::NOENT) => continue,
                    Err(error) => {
                        self.unreadable(join(&job.path, name.as_bytes()), error.into())?;
                        continue;
                    }
                };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let mut queue = self.queue.lock();
                let index = queue.directories.len();
                queue.directories.push(unopened(stat.st_dev));
                entries.push((name.clone(), Entry::Directory(index)));
                jobs.push(Job {
                    index,
                    path: join(&job.path, name.as_bytes()),
                    place: Some((Arc::clone(&directory), name)),
                    root: None,
                });
                continue;
            }
            match self.node(&directory, &job.path, &name, &stat, reader) {
                Ok(Some(node)) => entries.push((
                    name,
                    Entry::Node {
                        device: stat.st_dev,
                        node,
                    },
                )),
                Ok(None) => {}
                Err(NodeError::Unreadable(error)) => {
                    self.unreadable(join(&job.path, name.as_bytes()), error)?;
                }
                Err(NodeError::Fatal(error)) => return Err(error),
            }
        }
        let xattrs = reader.put_xattrs(&xattrs)?;
        // Body and number are filled in when the children are known.
        let body = Body::Directory {
            tree: Digest::empty(),
            subdirectories: 0,
            entries: 0,
        };
        let found = FoundDirectory {
            device: stat.st_dev,
            node: Node {
                meta: meta(&stat, xattrs),
                body,
            },
            entries,
            opened: true,
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

    fn node(
        &self,
        directory: &OwnedFd,
        path: &Path,
        name: &Name,
        stat: &Stat,
        reader: &mut FileReader<'_>,
    ) -> Result<Option<Node>, NodeError> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::RegularFile {
            add(&self.counts.files_found, 1);
            add(&self.counts.bytes_found, stat.st_size as u64);
            return reader.read(directory, path, name, stat);
        }
        let body = match kind {
            FileType::Symlink => {
                match rustix::fs::readlinkat(directory, name.as_bytes(), Vec::new()) {
                    Ok(target) => Body::Symlink(target.into_bytes().into()),
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
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
            Err(Errno::NOENT) => return Ok(None),
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

/// Why a node could not be taken in.
pub(super) enum NodeError {
    /// The path cannot be read; others can.
    Unreadable(io::Error),
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
    let body = Body::Directory {
        tree: Digest::empty(),
        subdirectories: 0,
        entries: 0,
    };
    FoundDirectory {
        device,
        node: Node { meta, body },
        entries: Vec::new(),
        opened: false,
    }
}

fn open_directory(parent: &OwnedFd, name: &Name) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name.as_bytes(), flags, Mode::empty())
}

fn read_directory(directory: &OwnedFd) -> Result<(Stat, Xattrs, Vec<Name>), Errno> {
    let stat = rustix::fs::fstat(directory)?;
    let xattrs = descriptor_xattrs(directory)?;
    let mut names = BTreeSet::new();
    let mut listing = rustix::fs::Dir::read_from(directory)?;
    while let Some(entry) = listing.read() {
        let entry = entry?;
        // What a directory lists is a name by the kernel's rules; `.` and `..` are the exceptions.
        if let Ok(name) = Name::new(entry.file_name().to_bytes()) {
            names.insert(name);
        }
    }
    Ok((stat, xattrs, names.into_iter().collect()))
}

pub(super) fn meta(stat: &Stat, xattrs: Option<Digest>) -> NodeMeta {
    NodeMeta {
        ino: stat.st_ino,
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Timestamp {
            secs: stat.st_mtime,
            nanos: stat.st_mtime_nsec as u32,
        },
        ctime: Timestamp {
            secs: stat.st_ctime,
            nanos: stat.st_ctime_nsec as u32,
        },
        links: stat.st_nlink as u32,
        xattrs,
    }
}

/// The extended attributes of an open file or directory.
pub(super) fn descriptor_xattrs(file: impl AsFd + Copy) -> Result<Xattrs, Errno> {
    collect_xattrs(
        |buffer| rustix::fs::flistxattr(file, buffer),
        |name, buffer| rustix::fs::fgetxattr(file, name, buffer),
    )
}

/// The extended attributes of something that cannot be opened (a symlink, a FIFO).
fn path_xattrs(directory: &OwnedFd, name: &Name) -> Result<Xattrs, Errno> {
    use std::os::fd::AsRawFd;
    // There is no llistxattrat before Linux 6.13; the descriptor's link in /proc is the way there.
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    collect_xattrs(
        |buffer| rustix::fs::llistxattr(path.as_slice(), buffer),
        |name, buffer| rustix::fs::lgetxattr(path.as_slice(), name, buffer),
    )
}

fn collect_xattrs(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> Result<Xattrs, Errno> {
    let mut xattrs = Xattrs::new();
    let names = match read_growing(list) {
        Ok(names) => names,
        // The filesystem has none at all.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(xattrs),
        Err(error) => return Err(error),
    };
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        match read_growing(|buffer| get(name, buffer)) {
            Ok(value) => {
                xattrs.insert(name.to_vec(), value);
            }
            // Removed since it was listed, or (trusted.*) not ours to see.
            Err(Errno::NODATA | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(xattrs)
}

/// Calls with a buffer, and again with a larger one while the kernel says that it is too small.
fn read_growing(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            // 64 KiB is the kernel's limit for both lists and values.
            Err(Errno::RANGE) if buffer.len() < 64 << 10 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

/// Encodes extended attributes; `None` if there are none.
pub(super) fn xattrs_object(xattrs: &Xattrs) -> Option<Vec<u8>> {
    (!xattrs.is_empty()).then(|| encode_xattrs(xattrs))
}

/// The name of the pseudo filesystem that `file` is on; `None` on a disk.
pub(super) fn pseudo_filesystem(file: impl AsFd) -> io::Result<Option<&'static str>> {
    // The magics of linux/magic.h.
    Ok(match rustix::fs::fstatfs(file)?.f_type as u32 {
        0x9fa0 => Some("proc"),
        0x6265_6572 => Some("sysfs"),
        0x0027_e0eb | 0x6367_7270 => Some("cgroup"),
        0x6462_6720 => Some("debugfs"),
        0x7472_6163 => Some("tracefs"),
        0x1cd1 => Some("devpts"),
        0x7363_6673 => Some("securityfs"),
        0xcafe_4a11 => Some("bpf"),
        _ => None,
    })
}
