//! Edits: a new tree from an old one and a list of changed paths.
//!
//! Only the directories on the way to a changed path are written anew; every other directory
//! object is referred to as it is. So the cost follows the number of changed paths and the size of
//! their directories, whatever the size of the tree.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::digest::Digest;
use crate::directory::{Directory, DirectoryEntry};
use crate::error::{Error, Result};
use crate::layer::LayerRoot;
use crate::links::{LinkTable, LinkedNode};
use crate::lower::{Lower, ROOT_INO};
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
/// A path's directory must exist in `base` or be among the edits. Nodes of one inode number at
/// several paths become one hard link; a hard link that keeps one name becomes a plain node.
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
type EntryEdits = BTreeMap<Name, Option<DirectoryEntry>>;

impl Applier<'_> {
    fn run(&self) -> Result<Digest> {
        let (links, inlined) = self.links()?;
        let mut pending: BTreeMap<(Reverse<usize>, RelPath), EntryEdits> = BTreeMap::new();
        let slot = |path: &RelPath| (Reverse(path.names().count()), path.clone());
        let mut root = self.node(&RelPath::ROOT)?;
        pending.insert(slot(&RelPath::ROOT), EntryEdits::new());
        // What lies below a path that goes, or that is no directory any more, goes with it.
        let mut gone: Option<&RelPath> = None;
        let edits = self.edits.iter().filter(|(path, edit)| {
            if gone.is_some_and(|gone| path.is_within(gone)) {
                return false;
            }
            let stays = matches!(edit, Edit::Set(node) if node.kind() == Kind::Directory);
            gone = if stays { None } else { Some(path) };
            true
        });
        let edits: Vec<(&RelPath, Edit)> = edits.map(|(path, edit)| (path, edit.clone())).collect();
        let inlined = inlined
            .iter()
            .map(|(path, node)| (path, Edit::Set(node.clone())));
        for (path, edit) in edits.into_iter().chain(inlined) {
            let Some((parent, name)) = path.split() else {
                continue;
            };
            let entry = match edit {
                Edit::Remove => None,
                Edit::Set(node) if node.kind() == Kind::Directory => {
                    // Its entry is set when it has been written: deeper directories come first.
                    pending.entry(slot(path)).or_default();
                    continue;
                }
                Edit::Set(node) if links.0.contains_key(&node.meta.ino) => {
                    Some(DirectoryEntry::Link {
                        ino: node.meta.ino,
                        kind: node.kind(),
                    })
                }
                Edit::Set(mut node) => {
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
    fn links(&self) -> Result<(LinkTable, Vec<(RelPath, Node)>)> {
        let mut table = self.base.links().clone();
        let mut touched: BTreeSet<Ino> = BTreeSet::new();
        // Every name that goes or is overwritten.
        for path in self.edits.keys() {
            let Some(before) = self.base.node_at(path)? else {
                continue;
            };
            if let Some(linked) = table.0.get_mut(&before.meta.ino) {
                linked.names.remove(&self.place_in_base(path)?);
                touched.insert(before.meta.ino);
            }
        }
        // Every name that comes. One name is enough to begin with: a node becomes a link with its
        // second.
        let mut single: FxHashMap<Ino, (Ino, Name)> = FxHashMap::default();
        for (path, edit) in self.edits {
            let Edit::Set(node) = edit else { continue };
            let Some((parent, name)) = path.split() else {
                continue;
            };
            if node.kind() == Kind::Directory {
                continue;
            }
            let ino = node.meta.ino;
            let place = (self.node(&parent)?.meta.ino, name);
            if let Some(linked) = table.0.get_mut(&ino) {
                linked.node = node.clone();
                linked.names.insert(place);
                touched.insert(ino);
            } else if let Some(first) = single.remove(&ino) {
                table.0.insert(
                    ino,
                    LinkedNode {
                        node: node.clone(),
                        names: [first, place].into(),
                    },
                );
                touched.insert(ino);
            } else if node.meta.links > 1
                && let Some(first) = self.remaining_name(ino)?
                && first != place
            {
                // A plain node of the base that got a further name.
                table.0.insert(
                    ino,
                    LinkedNode {
                        node: node.clone(),
                        names: [first, place].into(),
                    },
                );
                touched.insert(ino);
            } else {
                single.insert(ino, place);
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
                        if let Some(path) = self.path_of(parent, &name)? {
                            inlined.push((path, node.clone()));
                        }
                    }
                }
                count => linked.node.meta.links = count as u32,
            }
        }
        Ok((table, inlined))
    }

    /// The one name that plain node `ino` has in the base, if no edit takes it away.
    fn remaining_name(&self, ino: Ino) -> Result<Option<(Ino, Name)>> {
        let Some((parent, name)) = self.base.names(ino)?.into_iter().next() else {
            return Ok(None);
        };
        let Some(directory) = self.base_path(parent)? else {
            return Ok(None);
        };
        match self.edits.get(&directory.join(&name)) {
            None => Ok(Some((parent, name))),
            Some(Edit::Set(node)) if node.meta.ino == ino => Ok(Some((parent, name))),
            Some(_) => Ok(None),
        }
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
    fn path_of(&self, parent: Ino, name: &Name) -> Result<Option<RelPath>> {
        for (path, edit) in self.edits {
            if let Edit::Set(node) = edit
                && node.meta.ino == parent
            {
                return Ok(Some(path.join(name)));
            }
        }
        Ok(self.base_path(parent)?.map(|path| path.join(name)))
    }

    /// The path that directory `ino` has in the base; `None` if the base has no such directory.
    fn base_path(&self, ino: Ino) -> Result<Option<RelPath>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT_INO {
            let Some((parent, name)) = self.base.parent(at)? else {
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
}
