//! Numbers: no inode number stands for two nodes of a layer, and what is one hard link in the
//! session is one in the layer.
//!
//! A path that a session moved away from and made anew with the same content is unchanged, so the
//! head keeps its node there, and with it the number that the session knows under the new name. Or
//! others gave a node that mine links a further name, or other content. Here each node that is to
//! be set gets its final number, and all names of one number get one node.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::combine::{Combined, LineMerge};
use super::delta::equal;
use super::origins::MergedFile;
use super::resolve::Pass;
use super::route::Route;
use crate::edit::Edit;
use crate::error::Result;
use crate::lease::INO_BLOCK;
use crate::name::RelPath;
use crate::node::{Ino, Kind, Node};
use crate::stack::Stack;

/// Numbers that one publish gives to new nodes.
#[derive(Default)]
pub(super) struct Numbers {
    /// Reserved and not given out.
    block: std::ops::Range<Ino>,
    /// Numbers that are known to stand for one node: given out, or of a node of the head that is
    /// only elsewhere now.
    settled: FxHashSet<Ino>,
}

impl Numbers {
    /// A number that no node of the stack has or had.
    pub(super) fn fresh(&mut self, stack: &Stack) -> Result<Ino> {
        let next = match self.block.next() {
            Some(next) => next,
            None => {
                // Not from the session's own: after a crash it would give them out again.
                let first = stack.store().reserve_inos(stack.id())?;
                self.block = first + 1..first + INO_BLOCK;
                first
            }
        };
        self.settled.insert(next);
        Ok(next)
    }

    /// Notes that a node of the head is moved and keeps its number.
    pub(super) fn settle(&mut self, ino: Ino) {
        self.settled.insert(ino);
    }
}

/// A name of a number: where, and the node that will be there.
struct Named {
    path: RelPath,
    node: Node,
    /// Whether the head has the number there, or elsewhere and it is moved here.
    in_head: bool,
    /// How many names the head's node has.
    links: u32,
    /// Whether an edit sets it.
    edited: bool,
}

impl Pass<'_> {
    /// Gives every node that is set its final number.
    pub(super) fn number(&mut self) -> Result<()> {
        let mut by_number: BTreeMap<Ino, Vec<Named>> = BTreeMap::new();
        for (path, edit) in &self.out.edits {
            let Edit::Set(node) = edit else { continue };
            let mut node = node.clone();
            let there = self.resolver.head.node_at(path)?;
            if let Some(there) = &there
                && there.kind() == Kind::Directory
                && node.kind() == Kind::Directory
            {
                // A directory that stays one keeps its number: hard links in it name it.
                node.meta.ino = there.meta.ino;
            }
            by_number.entry(node.meta.ino).or_default().push(Named {
                in_head: self.carried.contains_key(path)
                    || there
                        .as_ref()
                        .is_some_and(|there| there.meta.ino == node.meta.ino),
                links: there.map_or(0, |there| there.meta.links),
                edited: true,
                path: path.clone(),
                node,
            });
        }
        for (ino, names) in by_number {
            self.number_one(ino, names)?;
        }
        Ok(())
    }

    fn number_one(&mut self, ino: Ino, mut names: Vec<Named>) -> Result<()> {
        // A name that no edit mentions has the new content all the same, and so is a changed path.
        let count = names.len() as u32;
        if names.iter().any(|name| !name.in_head || name.links > count) {
            self.add_remaining(ino, &mut names)?;
        }
        let (held, new): (Vec<Named>, Vec<Named>) =
            names.into_iter().partition(|name| name.in_head);
        if held.is_empty() || new.is_empty() {
            // The number is mine's alone, or the head's, with all its names.
            self.set_all(ino, held.into_iter().chain(new).collect());
        } else if self.belong_together(ino, &held, &new)? {
            self.join(ino, held, new)?;
        } else {
            self.set_all(ino, held);
            let fresh = self.numbers.fresh(self.resolver.stack)?;
            self.set_all(fresh, new);
        }
        Ok(())
    }

    /// Adds the paths at which the head has the number and no edit changes that.
    fn add_remaining(&self, ino: Ino, names: &mut Vec<Named>) -> Result<()> {
        if self.numbers.settled.contains(&ino) {
            return Ok(());
        }
        let resolver = self.resolver;
        let of_base = self.is_of_base(ino);
        let mut candidates = match of_base {
            true => self.base_paths(ino)?,
            false => Vec::new(),
        };
        if !resolver.head_is_base() && (of_base || self.published_before()?) {
            candidates.extend(self.since()?.places(ino).iter().cloned());
        }
        candidates.sort();
        candidates.dedup();
        for path in candidates {
            if self.out.edits.contains_key(&path) {
                continue;
            }
            if let Some(node) = resolver.head.node_at(&path)?
                && node.meta.ino == ino
            {
                names.push(Named {
                    links: node.meta.links,
                    path,
                    node,
                    in_head: true,
                    edited: false,
                });
            }
        }
        Ok(())
    }

    /// Whether a number that mine has is one of the base's. (The layer itself is not asked: it looks
    /// for a number that it does not have everywhere.)
    pub(super) fn is_of_base(&self, ino: Ino) -> bool {
        let state = self.upper.state();
        state.inode(ino).is_none_or(|inode| inode.in_lower)
    }

    /// Whether this session may have published since its base, and the head have its new numbers.
    fn published_before(&self) -> Result<bool> {
        let resolver = self.resolver;
        for revision in resolver.base_revision + 1..=resolver.head_layer.id.revision {
            if let Some(layer) = resolver.stack.layer_at(revision)?
                && layer.owner == resolver.options.owner
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether `new` names of a number are further names of what the head has under `held`.
    fn belong_together(&self, ino: Ino, held: &[Named], new: &[Named]) -> Result<bool> {
        let linked = |names: &[Named]| names.iter().any(|name| name.node.meta.links > 1);
        let further = linked(held) || linked(new);
        for name in held {
            if name.node.kind() == Kind::Directory {
                return Ok(false);
            }
            let there = self.carried.get(&name.path).unwrap_or(&name.path);
            let mine = self.mine_at(there)?;
            // Mine has both; or one side gave the node a further name, and the other moved one.
            let base = self.resolver.base.node_at(there)?;
            let untouched = mine == base.map(|node| node.meta.ino);
            if mine == Some(ino) || (untouched && further) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes names that are new for a number and names that the head has of it those of one node.
    fn join(&mut self, ino: Ino, held: Vec<Named>, new: Vec<Named>) -> Result<()> {
        let merged = |name: &Named| name.edited && self.merged.get(&name.path) == Some(&ino);
        let done = held.iter().any(merged) || new.iter().any(merged);
        let (Some(head), Some(mine)) = (held.first(), new.first()) else {
            return Ok(());
        };
        let (there, head) = (head.path.clone(), head.node.clone());
        let (path, mine) = (mine.path.clone(), mine.node.clone());
        if done || !self.is_of_base(ino) {
            self.set_all(ino, held.into_iter().chain(new).collect());
            return Ok(());
        }
        // Mine changed the node under its new names, the head perhaps under its own.
        let base = self.resolver.base.node(ino)?;
        let node = if equal(base.as_ref(), Some(&mine)) {
            head
        } else if equal(base.as_ref(), Some(&head)) {
            mine
        } else {
            match self.combine(&path, base.as_ref(), &head, &mine, Route::Source)? {
                Combined::Node(node) => node,
                Combined::Lines { node, merge } => {
                    let names = held.iter().chain(&new);
                    self.note_lines(names, (&there, &head), base.as_ref(), merge)?;
                    node
                }
                Combined::Conflict(conflict) => {
                    let versions = (base.as_ref(), Some(&head), Some(&mine));
                    return self.conflict(conflict.kind, &path, &there, versions);
                }
            }
        };
        let names = held.into_iter().chain(new).map(|name| Named {
            node: node.clone(),
            ..name
        });
        self.set_all(ino, names.collect());
        Ok(())
    }

    /// Notes where the lines of a merged file come from that has several names.
    fn note_lines<'n>(
        &mut self,
        names: impl Iterator<Item = &'n Named>,
        (there, head): (&RelPath, &Node),
        base: Option<&Node>,
        merge: LineMerge,
    ) -> Result<()> {
        let Some(content) = head.content() else {
            return Ok(());
        };
        let base = match base.and_then(|base| Some((base.meta.ino, *base.content()?))) {
            Some((ino, content)) => self
                .base_paths(ino)?
                .into_iter()
                .next()
                .map(|path| (path, content)),
            None => None,
        };
        let merged = MergedFile {
            mine: merge.mine,
            origins: merge.origins,
            base,
            head: (there.clone(), *content),
        };
        for name in names {
            let origins = &mut self.out.origins.merged;
            origins.insert(name.path.clone(), merged.clone());
            self.out.merged.push(name.path.clone());
        }
        Ok(())
    }

    /// The paths that a number of the base has there.
    fn base_paths(&self, ino: Ino) -> Result<Vec<RelPath>> {
        let mut paths = Vec::new();
        for (parent, name) in self.resolver.base.names(ino)? {
            if let Some(parent) = self.resolver.base.path(parent)? {
                paths.push(parent.join(&name));
            }
        }
        Ok(paths)
    }

    /// Sets all names of a number to one node: one in which the changes of both sides have come
    /// together, else the head's, else mine.
    fn set_all(&mut self, ino: Ino, names: Vec<Named>) {
        let merged = |name: &&Named| name.edited && self.merged.get(&name.path) == Some(&ino);
        let chosen = names
            .iter()
            .find(merged)
            .or_else(|| names.iter().find(|name| name.edited && name.in_head))
            .or_else(|| names.iter().find(|name| name.in_head))
            .or_else(|| names.first());
        let Some(mut node) = chosen.map(|name| name.node.clone()) else {
            return;
        };
        node.meta.ino = ino;
        for name in names {
            self.out.edits.insert(name.path, Edit::Set(node.clone()));
        }
    }
}
