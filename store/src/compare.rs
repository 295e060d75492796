//! The difference of two layers.
//!
//! Directories with one digest are not entered, so it costs as much as differs. Hard links lie in
//! a table of their own, beside the directories: nodes that differ there are compared at each of
//! their names.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::lower::{Lower, ROOT_INO};
use crate::name::{Name, RelPath};
use crate::node::{Body, Ino, Kind, Node};
use crate::publish::{ChangeKind, difference};

/// A path that differs between two trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// The path.
    pub path: RelPath,
    /// How it differs.
    pub kind: ChangeKind,
    /// What the older tree has there.
    pub old: Option<Node>,
    /// What the newer one has.
    pub new: Option<Node>,
}

/// The paths at which `new` differs from `old`, in path order. Times and inode numbers are not
/// compared.
///
/// # Errors
/// As reading an object.
pub fn compare(old: &Lower, new: &Lower) -> Result<Vec<PathChange>> {
    let mut found = BTreeMap::new();
    walk(old, new, &mut |path, one, other| {
        if let Some(kind) = difference(one.as_ref(), other.as_ref()) {
            let change = PathChange {
                path: path.clone(),
                kind,
                old: one,
                new: other,
            };
            found.insert(path, change);
        }
    })?;
    Ok(found.into_values().collect())
}

/// The paths at which `new` differs from `old` in anything, with the directories above them, in path
/// order.
///
/// # Errors
/// As reading an object.
pub(crate) fn differing(old: &Lower, new: &Lower) -> Result<BTreeSet<RelPath>> {
    let mut found = BTreeSet::new();
    if old.root() != new.root() {
        walk(old, new, &mut |path, one, other| {
            if one != other {
                found.insert(path);
            }
        })?;
    }
    Ok(found)
}

/// Has `note` told of every path that may differ: what is there in `old`, and in `new`.
fn walk(
    old: &Lower,
    new: &Lower,
    note: &mut dyn FnMut(RelPath, Option<Node>, Option<Node>),
) -> Result<()> {
    let (old_root, new_root) = (old.node(ROOT_INO)?, new.node(ROOT_INO)?);
    let mut pending = vec![(RelPath::ROOT, old_root.clone(), new_root.clone())];
    note(RelPath::ROOT, old_root, new_root);
    while let Some((path, one, other)) = pending.pop() {
        if tree(&one).is_some() && tree(&one) == tree(&other) {
            continue;
        }
        for name in names(old, &one)?.union(&names(new, &other)?) {
            let below = path.join(name);
            let (one, other) = (entry(old, &one, name)?, entry(new, &other, name)?);
            if tree(&one).is_some() || tree(&other).is_some() {
                pending.push((below.clone(), one.clone(), other.clone()));
            }
            note(below, one, other);
        }
    }
    // Nodes with several names, of which no directory need have changed.
    for (layer, other) in [(old, new), (new, old)] {
        for (ino, linked) in &layer.links().0 {
            if other.links().0.get(ino).map(|linked| &linked.node) == Some(&linked.node) {
                continue;
            }
            for (parent, name) in &linked.names {
                let Some(path) = path_of(layer, *parent)? else {
                    continue;
                };
                let path = path.join(name);
                note(path.clone(), old.node_at(&path)?, new.node_at(&path)?);
            }
        }
    }
    Ok(())
}

fn path_of(layer: &Lower, directory: Ino) -> Result<Option<RelPath>> {
    if directory == ROOT_INO {
        return Ok(Some(RelPath::ROOT));
    }
    layer.path(directory)
}

fn tree(node: &Option<Node>) -> Option<crate::digest::Digest> {
    match node.as_ref().map(|node| &node.body) {
        Some(Body::Directory { tree, .. }) => Some(*tree),
        _ => None,
    }
}

fn names(layer: &Lower, node: &Option<Node>) -> Result<BTreeSet<Name>> {
    let mut names = BTreeSet::new();
    if let Some(node) = node.as_ref().filter(|node| node.kind() == Kind::Directory)
        && let Some(directory) = layer.directory(node.meta.ino)?
    {
        names.extend(directory.iter().map(|(name, _)| {
            Name::new(name).expect("directory objects are checked when they are read")
        }));
    }
    Ok(names)
}

fn entry(layer: &Lower, node: &Option<Node>, name: &Name) -> Result<Option<Node>> {
    match node.as_ref().filter(|node| node.kind() == Kind::Directory) {
        None => Ok(None),
        Some(node) => layer.lookup(node.meta.ino, name.as_bytes()),
    }
}
