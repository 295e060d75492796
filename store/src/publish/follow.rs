//! Following what was moved: one side's change of a file or directory goes where the other side
//! moved it.
//!
//! Nodes keep their numbers when they are moved, so nothing is guessed from content. A name is
//! followed if its node has one name less and one more on the side that moved it, with nothing in
//! the old place. *Itself* moved is what has another name or lies in another directory; what is in
//! a directory that was moved only comes along.

use std::collections::HashMap;

use super::conflict::ConflictKind;
use super::delta::{Change, equal};
use super::git;
use super::resolve::{Case, Pass};
use super::route::Route;
use super::since::{Move, Names, name};
use crate::edit::Edit;
use crate::error::Result;
use crate::name::RelPath;
use crate::node::{Kind, Node};

/// What mine moved.
#[derive(Default)]
pub(super) struct Moves {
    /// By the place where mine has it.
    by_target: HashMap<RelPath, Move>,
    /// The places where the base has it, with those where mine has it.
    sources: HashMap<RelPath, RelPath>,
    /// Directories among it: where the head has them, and where they will be.
    directories: Vec<(RelPath, RelPath)>,
}

impl Moves {
    /// Where the base has what mine has at `path`, if mine moved it.
    pub(super) fn source(&self, path: &RelPath) -> Option<&RelPath> {
        self.by_target.get(path).map(|moved| &moved.from)
    }
}

impl Pass<'_> {
    /// Finds what mine moved.
    pub(super) fn find_moves(&mut self) -> Result<()> {
        let mut names = Names::default();
        for (path, change) in &self.delta.changes {
            let number = |node: &Option<Node>| node.as_ref().map(|node| node.meta.ino);
            let (old, new) = (number(&change.base), number(&change.mine));
            if old == new {
                continue;
            }
            if let Some(old) = old {
                names.gone(old, path);
            }
            if let Some(new) = new {
                names.come(new, path);
            }
        }
        let moves = names
            .moves(|from, to| Ok(name(from) == name(to) && !self.changed_directory(from, to)?))?;
        for moved in moves {
            let delta = self.delta;
            let (from, to) = (&delta.changes[&moved.from], &delta.changes[&moved.to]);
            // Its lines keep their owners, whether or not it can be followed.
            self.out
                .origins
                .moved
                .insert(moved.to.clone(), moved.from.clone());
            let followed = from.mine.is_none()
                && to.base.is_none()
                && !self.resolver.head_is_base()
                && self.is_followed(&moved.from, from)?
                && self.is_followed(&moved.to, to)?;
            if !followed {
                continue;
            }
            self.moves
                .sources
                .insert(moved.from.clone(), moved.to.clone());
            self.moves.by_target.insert(moved.to.clone(), moved);
        }
        Ok(())
    }

    fn is_followed(&mut self, path: &RelPath, change: &Change) -> Result<bool> {
        Ok(git::repository_of(self, path)?.is_none()
            && matches!(
                self.route(path, change)?,
                Route::Source | Route::Ours | Route::Union
            ))
    }

    /// Whether the directory of `from` in the base is another than that of `to` in mine.
    fn changed_directory(&self, from: &RelPath, to: &RelPath) -> Result<bool> {
        let (Some((old, _)), Some((new, _))) = (from.split(), to.split()) else {
            return Ok(true);
        };
        let old = self.resolver.base.node_at(&old)?.map(|node| node.meta.ino);
        Ok(old != self.mine_at(&new)?)
    }

    /// Where what mine has at `path` is to be: there, unless the head moved the directory; and unless
    /// it moved it into one that mine moved.
    pub(super) fn target(&self, path: &RelPath) -> Result<RelPath> {
        self.target_within(path, self.hops())
    }

    /// How often one side's moves can lead to the other's: more often only in a circle, if each side
    /// moved one directory into the other, which is a conflict.
    fn hops(&self) -> usize {
        self.moves.sources.len() + 1
    }

    fn target_within(&self, path: &RelPath, hops: usize) -> Result<RelPath> {
        let Some((parent, name)) = path.split() else {
            return Ok(path.clone());
        };
        if let Some(placed) = self.placed.get(&parent) {
            return Ok(placed.join(&name));
        }
        if self.resolver.head_is_base() || self.result_kind(&parent)?.is_some() {
            return Ok(path.clone());
        }
        Ok(match self.since()?.moved(&parent) {
            Some(moved) => self.relocated_within(&moved.to.join(&name), hops)?,
            None => path.clone(),
        })
    }

    /// Resolves a change of something that was moved, by either side; `false` if nothing was.
    pub(super) fn follow(&mut self, path: &RelPath, change: &Change, route: Route) -> Result<bool> {
        if self.resolver.head_is_base() {
            return Ok(false);
        }
        if let Some(moved) = self.moves.by_target.get(path).cloned() {
            self.follow_mine(path, change, &moved, route)?;
            return Ok(true);
        }
        if self.moves.sources.contains_key(path) {
            // Resolved where mine has it now.
            return Ok(true);
        }
        if change.base.is_none() || self.resolver.head.node_at(path)?.is_some() {
            return Ok(false);
        }
        let Some(moved) = self.since()?.moved(path).cloned() else {
            return Ok(false);
        };
        self.follow_head(path, change, &moved, route)?;
        Ok(true)
    }

    /// Mine moved it: what the head made of it follows.
    fn follow_mine(
        &mut self,
        path: &RelPath,
        change: &Change,
        moved: &Move,
        route: Route,
    ) -> Result<()> {
        let delta = self.delta;
        let base = delta.changes[&moved.from].base.as_ref();
        let (Some(base), Some(mine)) = (base, change.mine.as_ref()) else {
            return Ok(());
        };
        let mut there = moved.from.clone();
        let mut head = self.resolver.head.node_at(&there)?;
        let mut at = self.target(path)?;
        if head.is_none()
            && let Some(other) = self.since()?.moved(&there).cloned()
        {
            head = self.resolver.head.node_at(&other.to)?;
            there = other.to.clone();
            at = match (moved.itself, other.itself) {
                _ if at == there => at,
                (true, false) => at,
                // What mine moved is what it lies in, and the head took it out of there.
                (false, true) => self.relocated(&there)?,
                (false, false) => return Ok(()),
                (true, true) => {
                    let versions = (Some(base), head.as_ref(), Some(mine));
                    return self.conflict(ConflictKind::Rename, path, &there, versions);
                }
            };
        }
        let Some(mut head) = head else {
            // The head removed it. What only came along with its directory goes, if it is as it was.
            if moved.itself || !equal(Some(base), Some(mine)) {
                let versions = (Some(base), None, Some(mine));
                self.conflict(ConflictKind::DeleteModify, path, &there, versions)?;
            }
            return Ok(());
        };
        let known = self.resolver.head.node_at(&at)?;
        if let Some(known) = known.filter(|known| at != there && known.meta.ino == base.meta.ino) {
            // The head gave it this name too: only the old one goes.
            self.out.edits.insert(there, Edit::Remove);
            there = at.clone();
            head = known;
        }
        let versions = (Some(base), Some(&head), Some(mine));
        if head.kind() != mine.kind() {
            return self.conflict(ConflictKind::Type, path, &there, versions);
        }
        // Each side moved one directory into the other.
        let inside = at != there && at.is_within(&there);
        if inside || (at != there && self.is_taken(&at)?) {
            return self.conflict(ConflictKind::Rename, path, &at, versions);
        }
        if mine.kind() == Kind::Directory {
            if at != *path {
                self.placed.insert(path.clone(), at.clone());
            }
            if at != there {
                self.moves.directories.push((there.clone(), at.clone()));
            }
        }
        self.settle(Case {
            path,
            there,
            at,
            base: Some(base),
            head: Some(head),
            mine: Some(mine),
            route,
        })
    }

    /// The head moved it: mine's change follows.
    fn follow_head(
        &mut self,
        path: &RelPath,
        change: &Change,
        moved: &Move,
        route: Route,
    ) -> Result<()> {
        let head = self.resolver.head.node_at(&moved.to)?;
        let (base, mine) = (change.base.as_ref(), change.mine.as_ref());
        let versions = (base, head.as_ref(), mine);
        if mine.is_none() && moved.itself {
            return self.conflict(ConflictKind::DeleteModify, path, &moved.to, versions);
        }
        let kind = |node: Option<&Node>| node.map(Node::kind);
        if mine.is_some() && kind(mine) != kind(base) {
            return self.conflict(ConflictKind::Type, path, &moved.to, versions);
        }
        let at = self.relocated(&moved.to)?;
        let taken = at != moved.to && (at.is_within(&moved.to) || self.is_taken(&at)?);
        if taken || self.delta.changes.contains_key(&moved.to) {
            return self.conflict(ConflictKind::Rename, path, &moved.to, versions);
        }
        if mine.is_some_and(|mine| mine.kind() == Kind::Directory) {
            self.placed.insert(path.clone(), at.clone());
            if at != moved.to {
                self.moves.directories.push((moved.to.clone(), at.clone()));
            }
        }
        self.settle(Case {
            path,
            there: moved.to.clone(),
            at,
            base,
            head,
            mine,
            route,
        })
    }

    /// Whether something that others made stands at `path`.
    fn is_taken(&self, path: &RelPath) -> Result<bool> {
        Ok(self.result_kind(path)?.is_some())
    }

    /// Whether `path`, which mine does not know, lies in a directory that mine moved.
    pub(super) fn goes_along(&self, path: &RelPath) -> bool {
        let mut above = path.split().map(|(parent, _)| parent);
        while let Some(directory) = above {
            if self.delta.changes.contains_key(&directory) {
                return self.moves.sources.contains_key(&directory);
            }
            above = directory.split().map(|(parent, _)| parent);
        }
        false
    }

    /// Where what the head has at `path` is to be: there, unless mine moved the directory.
    fn relocated(&self, path: &RelPath) -> Result<RelPath> {
        self.relocated_within(path, self.hops())
    }

    fn relocated_within(&self, path: &RelPath, hops: usize) -> Result<RelPath> {
        let Some(hops) = hops.checked_sub(1) else {
            return Ok(path.clone());
        };
        let mut above = path.split().map(|(parent, _)| parent);
        while let Some(directory) = above {
            if let Some(to) = self.moves.sources.get(&directory) {
                let rest = &path.as_bytes()[directory.as_bytes().len()..];
                return Ok(join_rest(&self.target_within(to, hops)?, rest));
            }
            above = directory.split().map(|(parent, _)| parent);
        }
        Ok(path.clone())
    }

    /// What others put into directories that mine moved goes with them.
    pub(super) fn follow_added(&mut self) -> Result<()> {
        for (there, at) in std::mem::take(&mut self.moves.directories) {
            let Some(node) = self.resolver.head.node_at(&there)? else {
                continue;
            };
            let Some(entries) = self.resolver.head.directory(node.meta.ino)? else {
                continue;
            };
            for (entry_name, entry) in entries.iter() {
                let entry_name = crate::name::Name::new(entry_name)
                    .expect("directory objects are checked when they are read");
                let from = there.join(&entry_name);
                let known =
                    self.delta.changes.contains_key(&from) || self.out.edits.contains_key(&from);
                if known {
                    continue;
                }
                let to = at.join(&entry_name);
                let node = self.resolver.head.resolve(entry)?;
                if self.is_taken(&to)? {
                    let versions = (None, Some(&node), None);
                    self.conflict(ConflictKind::Rename, &from, &from, versions)?;
                    continue;
                }
                self.move_added(&from, &to, node)?;
            }
        }
        Ok(())
    }

    fn carry(&mut self, from: RelPath, to: RelPath, node: Node) {
        if node.meta.links == 1 {
            self.numbers.settle(node.meta.ino);
        }
        self.out.edits.insert(from.clone(), Edit::Remove);
        self.out.edits.insert(to.clone(), Edit::Set(node));
        self.carried.insert(to, from);
    }

    fn move_added(&mut self, from: &RelPath, to: &RelPath, node: Node) -> Result<()> {
        // What mine changed has its place already, and what is in such a directory goes there.
        let mut below = self.below(from)?;
        below.retain(|(path, _)| {
            let mut at = Some(path.clone());
            while let Some(path) = at.filter(|path| path != from) {
                if self.out.edits.contains_key(&path) {
                    return false;
                }
                at = path.split().map(|(parent, _)| parent);
            }
            true
        });
        for (path, node) in below {
            let target = join_rest(to, &path.as_bytes()[from.as_bytes().len()..]);
            self.carry(path, target, node);
        }
        self.carry(from.clone(), to.clone(), node);
        Ok(())
    }
}

/// The path of which `rest`, with its slash, comes after `directory`.
fn join_rest(directory: &RelPath, rest: &[u8]) -> RelPath {
    RelPath::parse(&[directory.as_bytes(), rest].concat()).expect("names of paths are names")
}
