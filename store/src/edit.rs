//! Edits: a new tree from an old one and a list of changed paths.
//!
//! Only the directories on the way to a changed path are written anew; every other directory
//! object is referred to as it is. So the cost follows the number of changed paths and the size of
//! their directories, whatever the size of the tree.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::directory::{Directory, DirectoryEntry};
use crate::error::{Error, Result};
use crate::layer::LayerRoot;
use crate::links::{LinkTable, LinkedNode};
use crate::lower::Lower;
use crate::name::{Name, RelPath};
use crate::node::{Body, Ino, Kind, Node};
use crate::objects::ObjectBatch;

/// What becomes of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Nothing is there any more.
    Remove,
    /// This node is there. Of a directory only the metadata counts: what is in it follows from the
    /// edits below it, and where a directory was before, from what it held.
    Set(Node),
}

/// Applies `edits` to the layer `base` and returns the root digest of the result.
///
/// A path's directory must exist in `base` or be among the edits, and everything below a directory
/// that goes must be removed by an edit of its own. Nodes of one inode number at several paths
/// become one hard link; a hard link that keeps one name becomes a plain node; a number at several
/// paths must be a hard link in `base` or set at all of them.
pub(crate) fn apply(
    base: &Lower,
    edits: &BTreeMap<RelPath, Edit>,
    batch: &ObjectBatch<'_>,
) -> Result<Digest> {
    Applier { base, edits, batch }.run()
}

struct Applier<'a> {
    base: &'a Lower,
    edits: &'a BTreeMap<RelPath, Edit>,
    batch: &'a ObjectBatch<'a>,
}

/// New entries of one directory by name; `None` removes.
/// A file and the names that the edits give it.
struct Coming<'a> {
    node: &'a Node,
    names: BTreeSet<(Ino, Name)>,
}

type EntryEdits = BTreeMap<Name, Option<DirectoryEntry>>;

impl Applier<'_> {
    fn run(&self) -> Result<Digest> {
        let edits = self.effective();
        let (links, inlined) = self.links(&edits)?;
        let mut pending: BTreeMap<(Reverse<usize>, RelPath), EntryEdits> = BTreeMap::new();
        let slot = |path: &RelPath| (Reverse(path.names().count()), path.clone());
        let mut root = self.node(&RelPath::ROOT)?;
        pending.insert(slot(&RelPath::ROOT), EntryEdits::new());
        let inlined = inlined.iter().map(|(path, node)| (path, Some(node)));
        for (path, node) in edits.into_iter().chain(inlined) {
            let Some((parent, name)) = path.split() else {
                continue;
            };
            let entry = match node {
                None => None,
                Some(node) if node.kind() == Kind::Directory => {
                    // Its entry is set when it has been written: deeper directories come first.
                    pending.entry(slot(path)).or_default();
                    continue;
                }
                Some(node) if links.0.contains_key(&node.meta.ino) => Some(DirectoryEntry::Link {
                    ino: node.meta.ino,
                    kind: node.kind(),
                }),
                Some(node) => {
                    let mut node = node.clone();
                    node.meta.links = 1;
                    Some(DirectoryEntry::Node(node))
                }
            };
            pending
                .entry(slot(&parent))
                .or_default()
                .insert(name, entry);
        }
        while let Some(((_, path), entries)) = pending.pop_first() {
            let mut node = self.node(&path)?;
            self.write_directory(&path, &mut node, entries)?;
            match path.split() {
                None => root = node,
                Some((parent, name)) => {
                    let entry = Some(DirectoryEntry::Node(node));
                    pending
                        .entry(slot(&parent))
                        .or_default()
                        .insert(name, entry);
                }
            }
        }
        LayerRoot {
            node: root,
            links: links.save(self.batch)?,
        }
        .save(self.batch)
    }

    /// The edits that have an effect: what lies below a path that goes, or that is no directory any
    /// more, goes with it. `None` removes.
    fn effective(&self) -> Vec<(&RelPath, Option<&Node>)> {
        let mut gone: Option<&RelPath> = None;
        let mut effective = Vec::with_capacity(self.edits.len());
        for (path, edit) in self.edits {
            let node = match edit {
                Edit::Remove => None,
                Edit::Set(node) => Some(node),
            };
            if gone.is_some_and(|gone| path.is_within(gone)) {
                debug_assert!(node.is_none(), "nothing is set below a path that goes");
                continue;
            }
            let stays = node.is_some_and(|node| node.kind() == Kind::Directory);
            gone = if stays { None } else { Some(path) };
            effective.push((path, node));
        }
        effective
    }

    /// The metadata that the directory at `path` will have.
    fn node(&self, path: &RelPath) -> Result<Node> {
        match self.edits.get(path) {
            Some(Edit::Set(node)) => Ok(node.clone()),
            Some(Edit::Remove) => Err(Error::NoPath(path.clone())),
            None => self
                .base
                .node_at(path)?
                .ok_or_else(|| Error::NoPath(path.clone())),
        }
    }

    fn write_directory(&self, path: &RelPath, node: &mut Node, edits: EntryEdits) -> Result<()> {
        if node.kind() != Kind::Directory {
            return Err(Error::NoPath(path.clone()));
        }
        let mut entries: BTreeMap<Name, DirectoryEntry> = BTreeMap::new();
        if let Some(before) = self.base.node_at(path)?
            && let Some(directory) = self.base.directory(before.meta.ino)?
        {
            for (name, entry) in directory.iter() {
                let name =
                    Name::new(name).expect("directory objects are checked when they are read");
                entries.insert(name, entry);
            }
        }
        for (name, edit) in edits {
            match edit {
                Some(entry) => entries.insert(name, entry),
                None => entries.remove(&name),
            };
        }
        let object = Directory::encode(entries.into_iter().collect());
        node.body = Body::Directory {
            tree: self.batch.put(object.as_bytes())?,
            subdirectories: object.subdirectories(),
            entries: object.len() as u32,
        };
        Ok(())
    }

    /// The link table of the result, and the nodes that lost all names but one, which is at a path
    /// that no edit may mention.
    fn links(
        &self,
        edits: &[(&RelPath, Option<&Node>)],
    ) -> Result<(LinkTable, Vec<(RelPath, Node)>)> {
        let mut table = self.base.links().clone();
        let mut touched: BTreeSet<Ino> = BTreeSet::new();
        // Every name that goes or is overwritten.
        if !table.0.is_empty() {
            for path in self.edits.keys() {
                let Some(before) = self.base.node_at(path)? else {
                    continue;
                };
                if let Some(linked) = table.0.get_mut(&before.meta.ino) {
                    linked.names.remove(&self.place_in_base(path)?);
                    touched.insert(before.meta.ino);
                }
            }
        }
        // Every name that comes.
        let mut coming: BTreeMap<Ino, Coming<'_>> = BTreeMap::new();
        for (path, node) in edits {
            let Some(node) = node.filter(|node| node.kind() != Kind::Directory) else {
                continue;
            };
            let Some((parent, name)) = path.split() else {
                continue;
            };
            let place = (self.node(&parent)?.meta.ino, name);
            let linked = coming.entry(node.meta.ino).or_insert(Coming {
                node,
                names: BTreeSet::new(),
            });
            linked.node = node;
            linked.names.insert(place);
        }
        for (ino, Coming { node, names }) in coming {
            if let Some(linked) = table.0.get_mut(&ino) {
                linked.node = node.clone();
                linked.names.extend(names);
                touched.insert(ino);
            } else if names.len() > 1 {
                let node = node.clone();
                table.0.insert(ino, LinkedNode { node, names });
                touched.insert(ino);
            }
        }
        let mut inlined = Vec::new();
        for ino in touched {
            let Some(linked) = table.0.get_mut(&ino) else {
                continue;
            };
            match linked.names.len() {
                0 => {
                    table.0.remove(&ino);
                }
                1 => {
                    let linked = table.0.remove(&ino).expect("looked up above");
                    let mut node = linked.node;
                    node.meta.links = 1;
                    for (parent, name) in linked.names {
                        if let Some(path) = self.path_of(edits, parent, &name)? {
                            inlined.push((path, node.clone()));
                        }
                    }
                }
                count => linked.node.meta.links = count as u32,
            }
        }
        Ok((table, inlined))
    }

    /// Directory number and name that `path` has in the base.
    fn place_in_base(&self, path: &RelPath) -> Result<(Ino, Name)> {
        let (parent, name) = path.split().expect("the root has no hard links");
        let parent = self
            .base
            .node_at(&parent)?
            .ok_or_else(|| Error::NoPath(path.clone()))?;
        Ok((parent.meta.ino, name))
    }

    /// The path in the result of `name` in directory `parent`; `None` if the directory is gone.
    fn path_of(
        &self,
        edits: &[(&RelPath, Option<&Node>)],
        parent: Ino,
        name: &Name,
    ) -> Result<Option<RelPath>> {
        let set = edits
            .iter()
            .find(|(_, node)| node.is_some_and(|node| node.meta.ino == parent));
        if let Some((path, _)) = set {
            return Ok(Some(path.join(name)));
        }
        Ok(self.base.path(parent)?.map(|path| path.join(name)))
    }
}
