//! What others changed since a session's base: which paths, by which layers, and what was moved.
//!
//! It is read from the lists of changes that layers keep, so it costs as much as was changed, and is
//! made only for a publish that needs it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::ChangeKind;
use crate::compare::PathChange;
use crate::error::Result;
use crate::layer::LayerRecord;
use crate::lower::Lower;
use crate::name::RelPath;
use crate::node::{Ino, Node};
use crate::stack::Stack;

pub(super) struct Since {
    /// The layers, oldest first.
    layers: Vec<LayerRecord>,
    /// For each changed path the newest of the layers that changed it.
    paths: BTreeMap<RelPath, usize>,
    /// Where the head has what the base had elsewhere, by the path that it had in the base.
    moves: BTreeMap<RelPath, Move>,
    /// The path that something had in the base, by where the head has it.
    origins: BTreeMap<RelPath, RelPath>,
    /// The changed paths at which the head has something, by its number.
    places: FxHashMap<Ino, Vec<RelPath>>,
}

/// A name of a node that is another now, with nothing in the old place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: RelPath,
    pub(super) to: RelPath,
    /// Whether it was itself moved, and not only what it lies in.
    pub(super) itself: bool,
}

/// The names that nodes lost and got, by number.
#[derive(Default)]
pub(super) struct Names(BTreeMap<Ino, (Vec<RelPath>, Vec<RelPath>)>);

impl Names {
    /// Notes that the base had number `ino` at `path`, and something is not there any more.
    pub(super) fn gone(&mut self, ino: Ino, path: &RelPath) {
        self.0.entry(ino).or_default().0.push(path.clone());
    }

    /// Notes that number `ino` is at `path`, where the base had something else, or nothing.
    pub(super) fn come(&mut self, ino: Ino, path: &RelPath) {
        self.0.entry(ino).or_default().1.push(path.clone());
    }

    /// The names that became others. `stays` tells whether two paths are one name in one
    /// directory, which has been moved. Of a hard link that lost several names it is not known which
    /// became which, except those.
    pub(super) fn moves(
        self,
        mut stays: impl FnMut(&RelPath, &RelPath) -> Result<bool>,
    ) -> Result<Vec<Move>> {
        let mut moves = Vec::new();
        for (gone, come) in self.0.into_values() {
            if let ([from], [to]) = (&gone[..], &come[..]) {
                let itself = !stays(from, to)?;
                moves.push(Move {
                    from: from.clone(),
                    to: to.clone(),
                    itself,
                });
                continue;
            }
            for from in &gone {
                for to in &come {
                    if stays(from, to)? {
                        moves.push(Move {
                            from: from.clone(),
                            to: to.clone(),
                            itself: false,
                        });
                    }
                }
            }
        }
        Ok(moves)
    }
}

impl Since {
    /// Reads the layers after revision `after`, up to the head's.
    pub(super) fn read(
        stack: &Stack,
        after: u64,
        head_layer: &LayerRecord,
        base: &Lower,
        head: &Lower,
    ) -> Result<Since> {
        let mut since = Since {
            layers: Vec::new(),
            paths: BTreeMap::new(),
            moves: BTreeMap::new(),
            origins: BTreeMap::new(),
            places: FxHashMap::default(),
        };
        for revision in after + 1..=head_layer.id.revision {
            // A layer that a squash dropped is told by the one that took its place.
            let Some(layer) = stack.layer_at(revision)? else {
                continue;
            };
            for (path, _) in stack.layer_changes(layer.id)? {
                since.paths.insert(path, since.layers.len());
            }
            since.layers.push(layer);
        }
        let mut names = Names::default();
        for path in since.paths.keys() {
            let (old, new) = (base.node_at(path)?, head.node_at(path)?);
            if let Some(new) = &new {
                since
                    .places
                    .entry(new.meta.ino)
                    .or_default()
                    .push(path.clone());
            }
            let number = |node: &Option<Node>| node.as_ref().map(|node| node.meta.ino);
            let (was, is) = (number(&old), number(&new));
            if was == is {
                continue;
            }
            if let Some(was) = was {
                names.gone(was, path);
            }
            if let Some(is) = is {
                names.come(is, path);
            }
        }
        let directory = |lower: &Lower, path: &RelPath| -> Result<Option<Ino>> {
            let node = path.split().map(|(parent, _)| lower.node_at(&parent));
            Ok(node.transpose()?.flatten().map(|node| node.meta.ino))
        };
        let moves = names.moves(|from, to| {
            Ok(name(from) == name(to) && directory(base, from)? == directory(head, to)?)
        })?;
        for moved in moves {
            // Only with nothing left in the old place, and nothing replaced in the new one.
            if head.node_at(&moved.from)?.is_none() && base.node_at(&moved.to)?.is_none() {
                since.origins.insert(moved.to.clone(), moved.from.clone());
                since.moves.insert(moved.from.clone(), moved);
            }
        }
        Ok(since)
    }

    /// Where the head has what the base has at `path`, if it is elsewhere.
    pub(super) fn moved(&self, path: &RelPath) -> Option<&Move> {
        self.moves.get(path)
    }

    /// Where the base has what the head has at `path`, if it is elsewhere.
    pub(super) fn origin(&self, path: &RelPath) -> Option<&RelPath> {
        self.origins.get(path)
    }

    /// The changed paths at which the head has number `ino`.
    pub(super) fn places(&self, ino: Ino) -> &[RelPath] {
        self.places.get(&ino).map_or(&[], Vec::as_slice)
    }

    /// The newest layer that changed `path`, or, if none did, the nearest directory above.
    pub(super) fn changed_by(&self, path: &RelPath) -> Option<&LayerRecord> {
        let mut at = path.clone();
        loop {
            if let Some(layer) = self.paths.get(&at) {
                return self.layers.get(*layer);
            }
            at = at.split().map(|(parent, _)| parent)?;
        }
    }

    /// The newest layer that gave the directory at `path` a name, or took one from it; `changes` are
    /// the differences between base and head.
    pub(super) fn relisted_by(
        &self,
        path: &RelPath,
        changes: &BTreeMap<RelPath, PathChange>,
    ) -> Option<&LayerRecord> {
        let below = changes
            .range::<RelPath, _>(path..)
            .take_while(|(at, _)| at.is_within(path));
        let named = below.filter(|(at, change)| {
            let directly = at.split().is_some_and(|(parent, _)| parent == *path);
            directly && matches!(change.kind, ChangeKind::Added | ChangeKind::Deleted)
        });
        let newest = named.filter_map(|(at, _)| self.paths.get(at)).max()?;
        self.layers.get(*newest)
    }
}

/// The last name of a path; empty for the root.
pub(super) fn name(path: &RelPath) -> &[u8] {
    path.names().last().unwrap_or_default()
}
