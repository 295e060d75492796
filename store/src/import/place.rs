//! Directories of the host that can be opened again.
//!
//! A walk remembers more directories than a process may have open. Each is known by its name in the
//! directory above; a few that were used last stay open, the others are opened anew, from the
//! nearest one above that is open. No path is ever handed to the kernel, so a directory may lie
//! deeper than a path can be long.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::join;
use crate::name::Name;

/// Directories kept open, whatever the depth of the tree: few against the 1024 descriptors that a
/// process usually may have.
const KEPT_OPEN: usize = 64;

/// The directories of a walk that stay open.
pub(super) struct OpenDirectories {
    /// The root's descriptor, open as long as the walk lasts.
    root: Arc<OwnedFd>,
    /// The others, the one used last at the back.
    kept: Mutex<VecDeque<Arc<OwnedFd>>>,
}

/// A directory of the walk.
pub(super) struct Place {
    /// The directory above and the name there; `None` for the root.
    above: Option<(Arc<Place>, Name)>,
    open: Mutex<Weak<OwnedFd>>,
}

impl OpenDirectories {
    pub(super) fn new(root: OwnedFd) -> Self {
        OpenDirectories {
            root: Arc::new(root),
            kept: Mutex::default(),
        }
    }

    /// The root.
    pub(super) fn root(&self) -> Place {
        Place {
            above: None,
            open: Mutex::new(Arc::downgrade(&self.root)),
        }
    }

    fn keep(&self, directory: &Arc<OwnedFd>) {
        let mut kept = self.kept.lock();
        kept.push_back(Arc::clone(directory));
        if kept.len() > KEPT_OPEN {
            kept.pop_front();
        }
    }
}

impl Place {
    /// The directory `name` in `above`.
    pub(super) fn below(above: &Arc<Place>, name: Name) -> Place {
        Place {
            above: Some((Arc::clone(above), name)),
            open: Mutex::default(),
        }
    }

    /// Opens the directory, if it is not open.
    pub(super) fn open(&self, directories: &OpenDirectories) -> Result<Arc<OwnedFd>, Errno> {
        let mut closed = Vec::new();
        let mut at = self;
        let mut directory = loop {
            if let Some(directory) = at.open.lock().upgrade() {
                break directory;
            }
            closed.push(at);
            match &at.above {
                Some((above, _)) => at = above,
                None => break Arc::clone(&directories.root),
            }
        };
        for place in closed.into_iter().rev() {
            if let Some((_, name)) = &place.above {
                directory = Arc::new(open_below(&directory, name)?);
                *place.open.lock() = Arc::downgrade(&directory);
                directories.keep(&directory);
            }
        }
        Ok(directory)
    }

    /// The directory above and the name there; `None` for the root.
    pub(super) fn above(&self) -> Option<&(Arc<Place>, Name)> {
        self.above.as_ref()
    }

    /// The path, for messages.
    pub(super) fn path(&self, root: &Path) -> PathBuf {
        let mut names = Vec::new();
        let mut at = self;
        while let Some((above, name)) = &at.above {
            names.push(name);
            at = above;
        }
        names.iter().rev().fold(root.to_path_buf(), |path, name| {
            join(&path, name.as_bytes())
        })
    }
}

impl Drop for Place {
    /// One after the other: what is nested thousands deep must not be dropped by recursion.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some((place, _)) = above {
            above = Arc::into_inner(place).and_then(|mut place| place.above.take());
        }
    }
}

fn open_below(directory: &OwnedFd, name: &Name) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_bytes(), flags, Mode::empty())
}
