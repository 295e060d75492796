//! Paths of inodes, for the record: remembered, so that a path is put together once.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandstack_store::{Ino, Kind, Name, ROOT_INO, RelPath, Slot, Upper};

/// Room that is kept when nearly all paths are forgotten.
const KEPT: usize = 64;
/// Most paths of a kind that are remembered; with more, all are put together anew.
const MOST: usize = 50_000;

#[derive(Default)]
pub(super) struct Paths {
    directories: FxHashMap<Ino, Arc<RelPath>>,
    files: FxHashMap<Ino, Arc<RelPath>>,
    /// Where an inode that the session made or moved was last found.
    names: FxHashMap<Ino, (Ino, Name)>,
}

impl Paths {
    pub(super) fn named(&mut self, ino: Ino, parent: Ino, name: Name) {
        self.files.remove(&ino);
        self.names.insert(ino, (parent, name));
    }

    pub(super) fn directories_moved(&mut self) {
        self.directories.clear();
        self.files.clear();
    }

    /// Nothing is remembered of `upper` but where the session has put what; the layer knows the rest.
    pub(super) fn of(upper: &Upper) -> Paths {
        let mut paths = Paths::default();
        for (directory, name, slot) in upper.state().slots() {
            if let Slot::Entry(entry) = slot
                && entry.kind != Kind::Directory
            {
                paths.names.insert(entry.ino, (directory, name.clone()));
            }
        }
        paths
    }

    /// Another upper is shown from now on, which lacks the inodes of `left`.
    pub(super) fn go_over(&mut self, old: &Upper, new: &Upper, left: &[Ino]) {
        let before: Vec<_> = left
            .iter()
            .map(|ino| (*ino, self.inode(old, *ino)))
            .collect();
        *self = Paths::of(new);
        self.files.extend(before);
    }

    pub(super) fn forgotten(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.directories.remove(&ino);
        give_room_back(&mut self.files);
        give_room_back(&mut self.directories);
    }

    /// `None` if that is no name.
    pub(super) fn entry(
        &mut self,
        upper: &Upper,
        parent: Ino,
        name: &[u8],
    ) -> Option<Arc<RelPath>> {
        let path = self.directory(upper, parent).child(name).ok()?;
        Some(Arc::new(path))
    }

    pub(super) fn inode(&mut self, upper: &Upper, ino: Ino) -> Arc<RelPath> {
        if let Some(path) = self.files.get(&ino).or_else(|| self.directories.get(&ino)) {
            return Arc::clone(path);
        }
        let place = match self.names.get(&ino) {
            Some(place) => Some(place.clone()),
            None => upper
                .lower()
                .names(ino)
                .ok()
                .and_then(|names| names.into_iter().next()),
        };
        let path = match place {
            None => self.directory(upper, ino),
            Some((parent, name)) => Arc::new(self.directory(upper, parent).join(&name)),
        };
        remember(&mut self.files, ino, &path);
        path
    }

    /// The path of a directory. One that was removed while it was a working directory has none any
    /// more: it shows as the root, where nothing else of it can be found either.
    fn directory(&mut self, upper: &Upper, ino: Ino) -> Arc<RelPath> {
        if ino == ROOT_INO {
            return Arc::new(RelPath::ROOT);
        }
        if let Some(path) = self.directories.get(&ino) {
            return Arc::clone(path);
        }
        let path = upper
            .path(&upper.state(), ino)
            .ok()
            .flatten()
            .unwrap_or_default();
        let path = Arc::new(path);
        remember(&mut self.directories, ino, &path);
        path
    }
}

fn remember(paths: &mut FxHashMap<Ino, Arc<RelPath>>, ino: Ino, path: &Arc<RelPath>) {
    if paths.len() >= MOST {
        paths.clear();
    }
    paths.insert(ino, Arc::clone(path));
}

/// Of a map in which nearly nothing is left.
fn give_room_back(paths: &mut FxHashMap<Ino, Arc<RelPath>>) {
    if paths.capacity() > KEPT && paths.len() < paths.capacity() / 8 {
        paths.shrink_to(KEPT.max(paths.len() * 2));
    }
}
