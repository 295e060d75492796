//! Rebase: a view goes over to another upper under the processes that work in it.
//!
//! Inodes keep their numbers (the store sees to that), so open files, working directories and
//! mappings stay what they are. What the new tree lacks, because others removed or replaced it, is
//! left to the old one as a file without names, until the kernel gives it back. Then the kernel is
//! told of every name and inode that may be another now.
//!
//! Requests wait for the change of trees and no longer; each sees one tree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use sandstack_store::{Attributes, Attrs, Ino, Kind, ROOT_INO, Record, RelPath, Slot, Upper};

use crate::error::Result;
use crate::notify::Notifier;
use crate::tree::Tree;
use crate::view::View;

/// How long to wait before it is looked again whether no request is under way.
const PAUSE: Duration = Duration::from_micros(200);

/// How a rebase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebase {
    /// The view shows the new upper.
    Done,
    /// The old upper was changed since the expected generation: the view is as it was.
    Changed,
    /// `commit` said no: the view is as it was.
    Refused,
    /// There was a request under way all the time: the view is as it was.
    Busy,
}

/// What a path was and is.
struct Place {
    old: Option<Attributes>,
    new: Option<Attributes>,
    /// The directories that it was and is in.
    parents: [Option<Ino>; 2],
}

impl View {
    /// Has the view show `upper`, which must have everything by the number that the view's tree has
    /// it by, if that was not changed since `generation`. At the paths of `changed` something else
    /// may be seen then. `commit` is called in between, when nothing can change either of them; it says
    /// whether to go on.
    ///
    /// The view's processes should be stopped: what they store in mappings meanwhile would hide what
    /// others have changed in the same page. A request that takes long is waited for, `patience` at
    /// most. Not to be called by a thread that serves the view.
    ///
    /// # Errors
    /// [`crate::Error::Store`].
    pub fn rebase(
        &self,
        upper: Arc<Upper>,
        generation: u64,
        changed: &[RelPath],
        patience: Duration,
        commit: impl FnOnce() -> bool,
    ) -> Result<Rebase> {
        let old = self.tree();
        let tree = Arc::new(Tree::new(upper)?);
        let places = places(&old, &tree, changed)?;
        let begun = Instant::now();
        let mut shown = loop {
            // Not waited for in line: who comes after would wait as well, and a thread that waits for
            // this view may serve others.
            match self.trees.lock().try_write() {
                Some(shown) => break shown,
                None if begun.elapsed() > patience => return Ok(Rebase::Busy),
                None => std::thread::sleep(PAUSE),
            }
        };
        if old.upper().generation() != generation {
            return Ok(Rebase::Changed);
        }
        if !commit() {
            return Ok(Rebase::Refused);
        }
        let touched: Vec<Ino> = old.upper().state().inodes().map(|(ino, _)| ino).collect();
        let left = left(&old, &places, &touched);
        self.recorder().go_over(Arc::clone(tree.upper()), &left);
        if let Err(error) = old.leave(&left) {
            // They show their old names and attributes, until they are given back.
            tracing::warn!(%error, "inodes that others removed keep their names");
        }
        let (before, after) = (old.upper().lower(), tree.upper().lower());
        // What the kernel knows is held in the layer that is shown.
        for ino in before
            .held()
            .into_iter()
            .filter(|ino| self.known.knows(*ino))
        {
            after.hold(ino);
            before.release(ino);
        }
        self.trees.replace(&mut shown, Arc::clone(&tree), left);
        drop(shown);
        tell(&self.notifier, &places, &touched);
        Ok(Rebase::Done)
    }
}

fn places<'p>(
    old: &Tree,
    new: &Tree,
    changed: &'p [RelPath],
) -> Result<BTreeMap<&'p RelPath, Place>> {
    let at = |tree: &Tree, path: &RelPath| -> Result<Option<Attributes>> {
        let upper = tree.upper();
        let state = upper.state();
        let found = upper.find(&state, path)?;
        let attributes = found.map(|(ino, _)| upper.attributes(&state, ino));
        Ok(attributes.transpose()?.flatten())
    };
    let mut places = BTreeMap::new();
    for path in changed {
        let parent = path.split().map(|(parent, _)| parent);
        let ino = |tree: &Tree| -> Result<Option<Ino>> {
            let Some(parent) = &parent else {
                return Ok(None);
            };
            Ok(at(tree, parent)?.map(|found| found.ino))
        };
        let place = Place {
            old: at(old, path)?,
            new: at(new, path)?,
            parents: [ino(old)?, ino(new)?],
        };
        places.insert(path, place);
    }
    Ok(places)
}

/// The inodes that the new tree lacks. A number that is nowhere among the changed paths has not moved.
fn left(old: &Tree, places: &BTreeMap<&RelPath, Place>, touched: &[Ino]) -> Vec<Ino> {
    let there: FxHashSet<Ino> = places
        .values()
        .filter_map(|place| place.new.map(|new| new.ino))
        .collect();
    let mut left: FxHashSet<Ino> = places
        .values()
        .filter_map(|place| place.old.map(|old| old.ino))
        .filter(|ino| !there.contains(ino))
        .collect();
    let state = old.upper().state();
    let nameless = |ino: &Ino| {
        let inode = state.inode(*ino);
        inode.is_some_and(|inode| inode.attrs.nlink == 0)
    };
    left.extend(touched.iter().copied().filter(nameless));
    left.into_iter().collect()
}

/// Tells the kernel what may be another now. What it is not told of it would believe for ever.
fn tell(notifier: &Notifier, places: &BTreeMap<&RelPath, Place>, touched: &[Ino]) {
    let mut failed = None;
    let mut inodes: FxHashSet<Ino> = touched.iter().copied().collect();
    inodes.insert(ROOT_INO);
    for (path, place) in places {
        let number = |side: Option<Attributes>| side.map(|found| found.ino);
        if let Some((_, name)) = path.split()
            && (number(place.old) != number(place.new) || place.parents[0] != place.parents[1])
        {
            for parent in place
                .parents
                .into_iter()
                .flatten()
                .collect::<FxHashSet<_>>()
            {
                failed = failed.or(notifier.entry(parent, name.as_bytes()).err());
                inodes.insert(parent);
            }
        }
        inodes.extend([number(place.old), number(place.new)].into_iter().flatten());
    }
    for ino in inodes {
        failed = failed.or(notifier.inode(ino).err());
    }
    if let Some(error) = failed {
        tracing::error!(%error, "the kernel was not told of all that a session sees anew");
    }
}

impl Tree {
    /// Makes inodes what they are when others have removed them: without names, and directories
    /// without entries.
    fn leave(&self, inodes: &[Ino]) -> Result<()> {
        let upper = self.upper();
        for &ino in inodes {
            let mut change = upper.begin();
            let Some(found) = upper.attributes(change.state(), ino)? else {
                continue;
            };
            if found.kind == Kind::Directory {
                let mut names = Vec::new();
                upper.list(change.state(), ino, 0, |entry| {
                    names.push(entry.to_name());
                    true
                })?;
                for name in names {
                    change.push(Record::Slot {
                        directory: ino,
                        name,
                        slot: Some(Slot::Whiteout),
                    });
                }
            }
            if let Some(record) = upper.copy_up(change.state(), ino)? {
                change.push(record);
            }
            let attrs = Attrs {
                nlink: 0,
                ..Attrs::from(&found)
            };
            change.push(Record::Attrs { ino, attrs });
            change.commit()?;
        }
        Ok(())
    }
}
