//! Import: a directory of the host becomes a base layer.
//!
//! The directory is read, never written, by several threads. Every path that cannot be read is
//! found and named before the import fails; a file that changes while it is read is read again,
//! and the import fails if it never holds still. Files whose identity (device, inode, size,
//! mtime, ctime) an earlier import has seen are not read at all.
//!
//! The result is a root digest and nothing else: nothing refers to it until a stack is made of it,
//! so an import that fails or is killed leaves garbage and no layer.

mod file;
mod host;
mod identity;
mod place;
mod walk;

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::{Mode, OFlags};

use crate::digest::Digest;
use crate::directory::{Directory, DirectoryEntry};
use crate::error::{Error, Result};
use crate::layer::LayerRoot;
use crate::links::{LinkTable, LinkedNode};
use crate::lower::ROOT_INO;
use crate::node::{Body, Ino};
use crate::pins::RootPin;
use crate::point;
use crate::store::Store;
use walk::{Entry, Found, Walk};

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// New nodes of sessions are numbered from here at least, well above the numbers of ext4, so that
/// they are told apart at a glance.
const FIRST_NEW_INO: Ino = 1 << 40;
/// A number of the host from here on is replaced by a new one: filesystems that put a hash or a
/// device into their numbers (network ones, unions) would leave no room for those of sessions.
const LARGEST_KEPT_INO: Ino = 1 << 60;

/// How far an import is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportProgress {
    /// Files found so far.
    pub files_found: u64,
    /// Files done so far.
    pub files_done: u64,
    /// Logical bytes found so far.
    pub bytes_found: u64,
    /// Logical bytes done so far.
    pub bytes_done: u64,
}

/// What an import did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Regular files found.
    pub files: u64,
    /// Directories found, the root among them.
    pub directories: u64,
    /// Symbolic links found.
    pub symlinks: u64,
    /// FIFOs, sockets and device nodes found.
    pub special_files: u64,
    /// Logical bytes of all regular files.
    pub bytes: u64,
    /// Files whose content was read and hashed.
    pub files_hashed: u64,
    /// Files known unchanged from an earlier import, and not read.
    pub files_reused: u64,
    /// Files whose blocks are shared with the source's by reflink.
    pub files_reflinked: u64,
    /// Bytes of content added to the store.
    pub bytes_stored: u64,
}

impl ImportReport {
    /// Paths found, the root not among them.
    pub(crate) fn entries(&self) -> u64 {
        (self.files + self.directories + self.symlinks + self.special_files).saturating_sub(1)
    }
}

/// An imported directory, ready to become the base of a stack.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Digest of the layer's root object.
    pub root: Digest,
    /// What the import did.
    pub report: ImportReport,
    /// The first inode number for new nodes.
    pub(crate) next_ino: Ino,
    /// Until something refers to it.
    _pin: Arc<RootPin>,
}

impl Store {
    /// Imports the directory at `path`. `progress` is called from this thread several times a
    /// second; when it breaks, the import ends with [`Error::Io`] of kind `Interrupted`.
    ///
    /// # Errors
    /// [`Error::NotImportable`], [`Error::StoreInside`], [`Error::Unreadable`],
    /// [`Error::ChangedWhileRead`], [`Error::Io`] (a full disk among them), [`Error::Database`].
    pub fn import(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(ImportProgress) -> ControlFlow<()>,
    ) -> Result<Imported> {
        self.import_numbered(path, FIRST_NEW_INO, progress)
    }

    /// Imports; numbers that the host's inodes cannot keep are new ones from `first_new_ino` on.
    pub(crate) fn import_numbered(
        &self,
        path: &Path,
        first_new_ino: Ino,
        progress: &mut dyn FnMut(ImportProgress) -> ControlFlow<()>,
    ) -> Result<Imported> {
        let root = self.open_import_root(path)?;
        // Nothing is collected meanwhile: what has been read is referred to only at the end.
        let _no_sweep = self.objects().pinned().import();
        let walk = Walk::new(self, path, root);
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| walk.work());
            }
            while !walk.wait(PROGRESS_INTERVAL) {
                if progress(walk.progress()).is_break() {
                    walk.abort(Error::io(
                        "importing",
                        path,
                        std::io::ErrorKind::Interrupted,
                    ));
                }
            }
        });
        // A last report, which nothing can break any more, so that a bar ends full.
        let _ = progress(walk.progress());
        let (found, mut report) = walk.finish()?;
        point::pass("import.read");
        let batch = self.objects().batch();
        let (root, next_ino) = build(found, first_new_ino, &batch)?;
        report.bytes_stored += batch.added_bytes();
        batch.commit()?;
        point::pass("import.tree");
        Ok(Imported {
            root,
            report,
            next_ino,
            _pin: Arc::new(self.objects().pin_root(root)),
        })
    }

    fn open_import_root(&self, path: &Path) -> Result<OwnedFd> {
        let refused = |source: std::io::Error| Error::NotImportable {
            path: path.to_path_buf(),
            source,
        };
        if path.is_relative() {
            // Relative to what, whoever asked for it knows better than this process.
            return Err(refused(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "an absolute path is needed",
            )));
        }
        let resolved = path.canonicalize().map_err(refused)?;
        let store = self
            .root()
            .canonicalize()
            .map_err(|error| Error::io("resolving", self.root(), error))?;
        if store.starts_with(&resolved) {
            return Err(Error::StoreInside {
                path: path.to_path_buf(),
                store,
            });
        }
        // As a directory, so that a FIFO is refused and not waited for.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&resolved, flags, Mode::empty())
            .map_err(|error| refused(error.into()))?;
        let pseudo = host::pseudo_filesystem(&root).map_err(|error| refused(error.into()))?;
        if let Some(name) = pseudo {
            return Err(refused(std::io::Error::other(format!(
                "it is on {name}, not on a disk"
            ))));
        }
        tracing::debug!(path = %resolved.display(), "importing");
        Ok(root)
    }
}

/// Turns what the walk found into directory objects, deepest first, and the layer's root object.
/// Also returns the first inode number for new nodes.
fn build(
    found: Found,
    first_new_ino: Ino,
    batch: &crate::objects::ObjectBatch<'_>,
) -> Result<(Digest, Ino)> {
    let mut numbers = Numbers::new(&found, first_new_ino);
    let mut links: FxHashMap<Ino, LinkedNode> = FxHashMap::default();
    let directory_inos: Vec<Ino> = found
        .directories
        .iter()
        .map(|directory| numbers.alone(directory.device, directory.node.meta.ino))
        .collect();
    let shared = found.shared_inodes();
    for (index, directory) in found.directories.iter().enumerate() {
        for (name, entry) in &directory.entries {
            let Entry::Node { device, node } = entry else {
                continue;
            };
            if node.meta.links > 1 && shared.contains(&(*device, node.meta.ino)) {
                let ino = numbers.linked(*device, node.meta.ino);
                let linked = links.entry(ino).or_insert_with(|| {
                    let mut node = node.clone();
                    node.meta.ino = ino;
                    LinkedNode {
                        node,
                        names: Default::default(),
                    }
                });
                linked.names.insert((directory_inos[index], name.clone()));
            }
        }
    }
    for linked in links.values_mut() {
        linked.node.meta.links = linked.names.len() as u32;
    }
    // A directory is found after its parent, so going backwards meets the deepest first.
    let mut built: Vec<Option<crate::node::Node>> = vec![None; found.directories.len()];
    for (index, directory) in found.directories.into_iter().enumerate().rev() {
        let mut entries = Vec::with_capacity(directory.entries.len());
        for (name, entry) in directory.entries {
            let entry = match entry {
                Entry::Directory(child) => {
                    // `None` is a directory that vanished before it was opened.
                    let Some(node) = built[child].take() else {
                        continue;
                    };
                    DirectoryEntry::Node(node)
                }
                Entry::Node { device, mut node } => {
                    if node.meta.links > 1 && shared.contains(&(device, node.meta.ino)) {
                        DirectoryEntry::Link {
                            ino: numbers.linked(device, node.meta.ino),
                            kind: node.kind(),
                        }
                    } else {
                        node.meta.ino = numbers.alone(device, node.meta.ino);
                        node.meta.links = 1;
                        DirectoryEntry::Node(node)
                    }
                }
            };
            entries.push((name, entry));
        }
        if !directory.opened {
            continue;
        }
        let object = Directory::encode(entries);
        let mut node = directory.node;
        node.meta.ino = directory_inos[index];
        node.body = Body::Directory {
            tree: batch.put(object.as_bytes())?,
            subdirectories: object.subdirectories(),
            entries: object.len() as u32,
        };
        built[index] = Some(node);
    }
    let links = LinkTable(links.into_iter().collect()).save(batch)?;
    let node = built[0]
        .take()
        .expect("the root was opened before the walk began");
    Ok((LayerRoot { node, links }.save(batch)?, numbers.next))
}

/// Gives every inode of the host its number in the stack: its own, unless it is taken. Numbers are
/// unique on a device only, and below a project other devices may be mounted; and what is removed
/// while the walk goes on leaves its number to what is made next.
struct Numbers {
    root: (u64, Ino),
    /// Numbers that are given.
    given: FxHashSet<Ino>,
    /// The numbers of files with several names.
    linked: FxHashMap<(u64, Ino), Ino>,
    next: Ino,
}

impl Numbers {
    fn new(found: &Found, first_new_ino: Ino) -> Self {
        let root = &found.directories[0];
        let root = (root.device, root.node.meta.ino);
        let largest = found.largest_ino(root.0, LARGEST_KEPT_INO);
        Numbers {
            root,
            given: FxHashSet::default(),
            linked: FxHashMap::default(),
            next: first_new_ino.max(largest + 1),
        }
    }

    /// The number of a node that was found once.
    fn alone(&mut self, device: u64, ino: Ino) -> Ino {
        let number = if (device, ino) == self.root {
            ROOT_INO
        } else {
            ino
        };
        let kept = (device == self.root.0 && (ROOT_INO + 1..LARGEST_KEPT_INO).contains(&number))
            || (number == ROOT_INO && self.given.is_empty());
        if kept && self.given.insert(number) {
            return number;
        }
        self.next += 1;
        self.given.insert(self.next - 1);
        self.next - 1
    }

    /// The number of a file that was found under several names: the same each time.
    fn linked(&mut self, device: u64, ino: Ino) -> Ino {
        if let Some(number) = self.linked.get(&(device, ino)) {
            return *number;
        }
        let number = self.alone(device, ino);
        self.linked.insert((device, ino), number);
        number
    }
}

/// The path of `name` in `directory`, for messages.
fn join(directory: &Path, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    directory.join(std::ffi::OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::walk::{FoundDirectory, no_directory};
    use super::*;
    use crate::name::{Name, RelPath};
    use crate::node::{Node, NodeMeta, Timestamp};

    fn node(ino: Ino, body: Body, links: u32) -> Node {
        let meta = NodeMeta {
            ino,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            links,
            xattrs: None,
        };
        Node { meta, body }
    }

    #[test]
    fn a_number_that_the_host_gave_twice_meanwhile_is_given_once() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let directory = |ino, entries| FoundDirectory {
            device: 1,
            node: node(ino, no_directory(), 2),
            entries,
            opened: true,
            instead: None,
        };
        let fifo = |name: &str, ino, links| {
            let node = node(ino, Body::Fifo, links);
            (
                Name::new(name.as_bytes()).unwrap(),
                Entry::Node { device: 1, node },
            )
        };
        let below = |name: &str| (Name::new(name.as_bytes()).unwrap(), Entry::Directory(1));
        let found = Found {
            directories: vec![
                directory(
                    500,
                    vec![
                        fifo("a", 7, 1),
                        fifo("b", 7, 1),
                        below("d"),
                        fifo("e", 9, 1),
                        fifo("l", 9, 2),
                        fifo("m", 9, 2),
                        fifo("root's", 500, 1),
                        fifo("one", 1, 1),
                    ],
                ),
                directory(7, vec![]),
            ],
        };
        let batch = store.objects().batch();
        let (root, next) = build(found, FIRST_NEW_INO, &batch).unwrap();
        batch.commit().unwrap();
        let lower = store.lower(&root).unwrap();
        let number = |name: &str| {
            let path = RelPath::parse(name.as_bytes()).unwrap();
            lower.node_at(&path).unwrap().unwrap().meta.ino
        };
        assert_eq!(number("l"), number("m"), "a hard link stays one");
        let mut numbers: Vec<Ino> = ["a", "b", "d", "e", "l", "root's", "one"]
            .map(number)
            .to_vec();
        numbers.push(ROOT_INO);
        assert!(numbers.iter().all(|number| *number < next));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 8, "{numbers:?}");
    }
}
