//! Paths of inodes, for the record: remembered, so that a path is put together once.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandstack_store::{Ino, Name, ROOT_INO, RelPath, Upper};

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

    /// The view shows another upper from now on. What is where it was last found stays known: the
    /// layer knows the rest.
    pub(super) fn go_over(&mut self, upper: &Upper) {
        self.directories_moved();
        let state = upper.state();
        self.names.retain(|ino, (parent, name)| {
            let found = upper.lookup(&state, *parent, name.as_bytes());
            matches!(found, Ok(Some((found, _))) if found == *ino)
        });
    }

    pub(super) fn entry(&mut self, upper: &Upper, parent: Ino, name: &Name) -> Arc<RelPath> {
        Arc::new(self.directory(upper, parent).join(name))
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
        self.files.insert(ino, Arc::clone(&path));
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
        self.directories.insert(ino, Arc::clone(&path));
        path
    }
}
