//! A layer as sessions see it: found by inode number, shared by all of them.
//!
//! Directory objects are read when they are first needed and kept; an index from inode number to
//! entry grows with them. So a session on a layer that another has walked pays nothing, and a
//! session on a layer of a million files pays only for the directories it enters. An inode
//! number that the index does not know (a handle that outlived the process) is found by walking
//! the whole layer, once.
//!
//! A directory that the kernel of some view knows is held. What is indexed of others is kept, too,
//! up to a bound; beyond it, a directory is unloaded when the last kernel has forgotten it.
//!
//! Nothing here changes what it shows: a layer is immutable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::digest::Digest;
use crate::directory::{Directory, DirectoryEntry};
use crate::error::{Error, Result};
use crate::layer::LayerRoot;
use crate::links::LinkTable;
use crate::name::{Name, RelPath};
use crate::node::{Body, Ino, Kind, Node, Xattrs};
use crate::objects::Objects;

/// The inode number of the workspace root, in every view. FUSE fixes it; imports renumber the
/// root to it.
pub const ROOT_INO: Ino = 1;

/// Shards of the index, so that threads seldom meet.
const SHARDS: usize = 16;
/// Entries that stay indexed whoever has forgotten their directories: some 4 MiB.
const KEPT_ENTRIES: usize = 20_000;
/// Room that an index of a shard keeps when nearly all in it is gone.
const KEPT_ROOM: usize = 64;

/// A layer, found by inode number.
pub struct Lower {
    objects: Arc<Objects>,
    root: Digest,
    root_node: Node,
    links: LinkTable,
    shards: [RwLock<Shard>; SHARDS],
    /// Taken while the whole layer is walked, so that it is walked once; and while a directory is
    /// unloaded. Before `loading`.
    walk: Mutex<()>,
    /// Whether everything is indexed. Set, and taken back, only while `walk` is held.
    walked: AtomicBool,
    /// Held for reading while a directory is loaded, and for writing while something is given up.
    loading: RwLock<()>,
    /// Entries of the directories that are loaded.
    loaded: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    /// Where the entry of an inode is.
    places: FxHashMap<Ino, Place>,
    /// The directories that have been read.
    directories: FxHashMap<Ino, Arc<Directory>>,
    /// How many views hold a directory, loaded or not.
    holders: FxHashMap<Ino, u32>,
}

#[derive(Clone)]
struct Place {
    directory: Arc<Directory>,
    parent: Ino,
    index: u32,
}

impl std::fmt::Debug for Lower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lower").field("root", &self.root).finish()
    }
}

impl Lower {
    pub(crate) fn load(objects: Arc<Objects>, root: Digest) -> Result<Lower> {
        let layer = LayerRoot::load(&objects, &root)?;
        let links = LinkTable::load(&objects, layer.links.as_ref())?;
        Ok(Lower {
            objects,
            root,
            root_node: layer.node,
            links,
            shards: Default::default(),
            walk: Mutex::new(()),
            walked: AtomicBool::new(false),
            loading: RwLock::new(()),
            loaded: AtomicUsize::new(0),
        })
    }

    /// The digest of the layer's root object.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// The objects that content is read from.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// The node with inode number `ino`; `None` if the layer has none.
    ///
    /// # Errors
    /// As reading an object.
    pub fn node(&self, ino: Ino) -> Result<Option<Node>> {
        if ino == ROOT_INO {
            return Ok(Some(self.root_node.clone()));
        }
        if let Some(linked) = self.links.0.get(&ino) {
            return Ok(Some(linked.node.clone()));
        }
        self.place(ino)?
            .map(|place| self.resolve(place.directory.entry(place.index as usize)))
            .transpose()
    }

    /// The directory with inode number `ino`; `None` if the layer has no such directory.
    ///
    /// # Errors
    /// As reading an object.
    pub fn directory(&self, ino: Ino) -> Result<Option<Arc<Directory>>> {
        if let Some(directory) = self.shard(ino).read().directories.get(&ino) {
            return Ok(Some(Arc::clone(directory)));
        }
        let Some(node) = self.node(ino)? else {
            return Ok(None);
        };
        let Body::Directory { tree, .. } = node.body else {
            return Ok(None);
        };
        self.load_directory(ino, &tree).map(Some)
    }

    /// The entry `name` of directory `parent`, as a node; `None` if there is none.
    ///
    /// # Errors
    /// As reading an object.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Node>> {
        let Some(directory) = self.directory(parent)? else {
            return Ok(None);
        };
        let Some(index) = directory.find(name) else {
            return Ok(None);
        };
        self.resolve(directory.entry(index)).map(Some)
    }

    /// The node of an entry of one of the layer's directories.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the entry is a hard link that the link table does not have.
    pub fn resolve(&self, entry: DirectoryEntry) -> Result<Node> {
        match entry {
            DirectoryEntry::Node(node) => Ok(node),
            DirectoryEntry::Link { ino, .. } => self
                .links
                .0
                .get(&ino)
                .map(|linked| linked.node.clone())
                .ok_or_else(|| Error::Corrupt {
                    what: format!("layer {}", self.root),
                    detail: format!("hard link {ino} is not in its link table"),
                }),
        }
    }

    /// Directory and name of every name of `ino`; empty if the layer has no such node.
    ///
    /// # Errors
    /// As reading an object.
    pub fn names(&self, ino: Ino) -> Result<Vec<(Ino, Name)>> {
        if let Some(linked) = self.links.0.get(&ino) {
            return Ok(linked.names.iter().cloned().collect());
        }
        let Some(place) = self.place(ino)? else {
            return Ok(Vec::new());
        };
        let name = Name::new(place.directory.name(place.index as usize))
            .expect("directory objects are checked when they are read");
        Ok(vec![(place.parent, name)])
    }

    /// The directory that holds directory `ino`, and its name there; `None` for the root.
    ///
    /// # Errors
    /// As reading an object.
    pub fn parent(&self, ino: Ino) -> Result<Option<(Ino, Name)>> {
        Ok(self.names(ino)?.into_iter().next())
    }

    /// The path of directory `ino`; `None` if the layer has no such directory.
    ///
    /// # Errors
    /// As reading an object.
    pub fn path(&self, ino: Ino) -> Result<Option<RelPath>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT_INO {
            let Some((parent, name)) = self.parent(at)? else {
                return Ok(None);
            };
            names.push(name);
            at = parent;
        }
        Ok(Some(
            names
                .iter()
                .rev()
                .fold(RelPath::ROOT, |path, name| path.join(name)),
        ))
    }

    /// The node at `path`; `None` if there is none. Symlinks are not followed.
    ///
    /// # Errors
    /// As reading an object.
    pub fn node_at(&self, path: &RelPath) -> Result<Option<Node>> {
        let mut node = self.root_node.clone();
        for name in path.names() {
            if node.kind() != Kind::Directory {
                return Ok(None);
            }
            match self.lookup(node.meta.ino, name)? {
                Some(next) => node = next,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// The extended attributes of a node.
    ///
    /// # Errors
    /// As reading an object.
    pub fn xattrs(&self, node: &Node) -> Result<Xattrs> {
        load_xattrs(&self.objects, node.meta.xattrs.as_ref())
    }

    pub(crate) fn links(&self) -> &LinkTable {
        &self.links
    }

    fn shard(&self, ino: Ino) -> &RwLock<Shard> {
        // Inode numbers are dense: the low bits spread well.
        &self.shards[ino as usize % SHARDS]
    }

    fn place(&self, ino: Ino) -> Result<Option<Place>> {
        let known = |lower: &Lower| lower.shard(ino).read().places.get(&ino).cloned();
        if let Some(place) = known(self) {
            return Ok(Some(place));
        }
        // Held to the end: what the walk has found is not unloaded before it is looked at.
        let _one_walk = self.walk.lock();
        if !self.walked.load(Ordering::Relaxed) {
            self.walk_all()?;
            self.walked.store(true, Ordering::Relaxed);
        }
        Ok(known(self))
    }

    /// Says that the kernel of a view has come to know directory `ino`, of the layer or not. Each call
    /// is followed by one of [`Lower::forgotten`] or [`Lower::release`].
    pub fn hold(&self, ino: Ino) {
        *self.shard(ino).write().holders.entry(ino).or_default() += 1;
    }

    /// The directories that are held, by whatever view, in no order.
    pub fn held(&self) -> Vec<Ino> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.read().holders.keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Says that a view that has ended knows inode `ino` no more. What is indexed stays.
    pub fn release(&self, ino: Ino) {
        self.let_go(ino);
    }

    /// Says that the kernel of a view knows inode `ino` no more. If much is indexed, what is of a
    /// directory that no view holds now is given up, but for entries that are `needed`: a session may
    /// have moved them elsewhere. Returns how many were given up. They are read again when they are
    /// wanted.
    pub fn forgotten(&self, ino: Ino, needed: impl Fn(Ino) -> bool) -> usize {
        let unheld = self.let_go(ino);
        let mut given_up = 0;
        if unheld && self.loaded.load(Ordering::Relaxed) > KEPT_ENTRIES {
            given_up += self.unload(ino, &needed);
        }
        // The kernel may forget a directory before what is in it.
        let parent = self
            .shard(ino)
            .read()
            .places
            .get(&ino)
            .map(|place| place.parent);
        if let Some(parent) = parent
            && !self.is_loaded(parent)
        {
            let _no_loading = self.loading.write();
            if !self.is_loaded(parent) && self.give_up(ino, parent, &needed) {
                given_up += 1;
            }
        }
        given_up
    }

    /// Whether a directory was held, and is not now.
    fn let_go(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).write();
        let Some(holders) = shard.holders.get_mut(&ino) else {
            return false;
        };
        *holders -= 1;
        if *holders > 0 {
            return false;
        }
        shard.holders.remove(&ino);
        give_room_back(&mut shard.holders);
        true
    }

    fn is_loaded(&self, directory: Ino) -> bool {
        self.shard(directory)
            .read()
            .directories
            .contains_key(&directory)
    }

    fn unload(&self, ino: Ino, needed: &impl Fn(Ino) -> bool) -> usize {
        // Whoever walks the layer needs it whole; then this one stays.
        let Some(_no_walk) = self.walk.try_lock() else {
            return 0;
        };
        let _no_loading = self.loading.write();
        let directory = {
            let mut shard = self.shard(ino).write();
            let Some(directory) = shard.directories.remove(&ino) else {
                return 0;
            };
            give_room_back(&mut shard.directories);
            directory
        };
        self.loaded.fetch_sub(directory.len(), Ordering::Relaxed);
        self.walked.store(false, Ordering::Relaxed);
        (0..directory.len())
            .filter(|index| self.give_up(directory.identity(*index).0, ino, needed))
            .count()
    }

    /// Gives up where the entry of an inode is, if it is in `parent`. Whether it did.
    fn give_up(&self, ino: Ino, parent: Ino, needed: &impl Fn(Ino) -> bool) -> bool {
        if needed(ino) {
            return false;
        }
        let mut shard = self.shard(ino).write();
        let is_there = shard
            .places
            .get(&ino)
            .is_some_and(|place| place.parent == parent);
        if !is_there || shard.holders.contains_key(&ino) {
            return false;
        }
        shard.places.remove(&ino);
        give_room_back(&mut shard.places);
        true
    }

    fn walk_all(&self) -> Result<()> {
        let Body::Directory { tree, .. } = self.root_node.body else {
            return Ok(());
        };
        let mut pending = vec![(ROOT_INO, tree)];
        while let Some((ino, tree)) = pending.pop() {
            let loaded = self.shard(ino).read().directories.get(&ino).cloned();
            let directory = match loaded {
                Some(directory) => directory,
                None => self.load_directory(ino, &tree)?,
            };
            for (_, entry) in directory.iter() {
                if let DirectoryEntry::Node(node) = entry
                    && let Body::Directory { tree, .. } = node.body
                {
                    pending.push((node.meta.ino, tree));
                }
            }
        }
        Ok(())
    }

    /// Reads the directories that `other`, an earlier layer, has read. Who knew inodes of that one by
    /// number finds them in this one, and not by a walk.
    ///
    /// # Errors
    /// As reading an object.
    pub(crate) fn load_as(&self, other: &Lower) -> Result<()> {
        let Body::Directory { tree, .. } = self.root_node.body else {
            return Ok(());
        };
        let mut pending = vec![(ROOT_INO, tree)];
        while let Some((ino, tree)) = pending.pop() {
            let Some(known) = other.shard(ino).read().directories.get(&ino).cloned() else {
                continue;
            };
            let directory = match other.node(ino)?.map(|node| node.body) {
                Some(Body::Directory { tree: same, .. }) if same == tree => {
                    self.keep_directory(ino, known)
                }
                _ => self.load_directory(ino, &tree)?,
            };
            for (_, entry) in directory.iter() {
                if let DirectoryEntry::Node(node) = entry
                    && let Body::Directory { tree, .. } = node.body
                {
                    pending.push((node.meta.ino, tree));
                }
            }
        }
        Ok(())
    }

    fn load_directory(&self, ino: Ino, tree: &Digest) -> Result<Arc<Directory>> {
        let directory = Arc::new(load_directory(&self.objects, tree)?);
        Ok(self.keep_directory(ino, directory))
    }

    fn keep_directory(&self, ino: Ino, directory: Arc<Directory>) -> Arc<Directory> {
        let _nothing_is_given_up = self.loading.read();
        for index in 0..directory.len() {
            let (child, _) = directory.identity(index);
            let place = Place {
                directory: Arc::clone(&directory),
                parent: ino,
                index: index as u32,
            };
            self.shard(child).write().places.insert(child, place);
        }
        // Last, so that whoever finds the directory finds its entries.
        let mut shard = self.shard(ino).write();
        let kept = shard.directories.entry(ino).or_insert_with(|| {
            self.loaded.fetch_add(directory.len(), Ordering::Relaxed);
            directory
        });
        Arc::clone(kept)
    }
}

fn give_room_back<T>(of: &mut FxHashMap<Ino, T>) {
    if of.capacity() > KEPT_ROOM && of.len() < of.capacity() / 8 {
        of.shrink_to(KEPT_ROOM.max(of.len() * 2));
    }
}

/// Reads the directory object named `tree`.
pub(crate) fn load_directory(objects: &Objects, tree: &Digest) -> Result<Directory> {
    Directory::decode(tree, objects.get(tree)?)
}

/// Reads extended attributes; `None` names the empty set.
pub(crate) fn load_xattrs(objects: &Objects, digest: Option<&Digest>) -> Result<Xattrs> {
    match digest {
        None => Ok(Xattrs::new()),
        Some(digest) => crate::db::decode(
            &format!("extended attributes {digest}"),
            &objects.get(digest)?,
        ),
    }
}

/// Encodes extended attributes as an object: postcard of the sorted map of names to values.
pub(crate) fn encode_xattrs(xattrs: &Xattrs) -> Vec<u8> {
    crate::db::encode(xattrs)
}
