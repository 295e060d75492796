//! The trees of a view: the one that it shows, and those that it showed before, of which the kernel
//! still has inodes that the present one lacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;
use sandstack_store::Ino;

use crate::tree::Tree;

/// Which tree has which inode.
pub(crate) struct Trees {
    /// Held for reading while a request is being done, so that none sees two trees.
    current: RwLock<Arc<Tree>>,
    /// Inodes that the current tree lacks: removed or replaced by others while the kernel has them.
    left: Mutex<FxHashMap<Ino, Arc<Tree>>>,
    any_left: AtomicBool,
}

impl Trees {
    pub(crate) fn new(current: Arc<Tree>) -> Self {
        Trees {
            current: RwLock::new(current),
            left: Mutex::default(),
            any_left: AtomicBool::new(false),
        }
    }

    /// A request begins: the current tree stays the same until it is done.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, Arc<Tree>> {
        // One request may enter several times.
        self.current.read_recursive()
    }

    /// The tree that has `ino`.
    pub(crate) fn of(&self, ino: Ino) -> Arc<Tree> {
        if self.any_left.load(Ordering::Acquire)
            && let Some(tree) = self.left.lock().get(&ino)
        {
            return Arc::clone(tree);
        }
        self.current()
    }

    /// The tree that is shown.
    pub(crate) fn current(&self) -> Arc<Tree> {
        Arc::clone(&self.enter())
    }

    /// The kernel has given `ino` back: a tree that was left for it alone goes.
    pub(crate) fn forgotten(&self, ino: Ino) {
        if self.any_left.load(Ordering::Acquire) {
            let mut left = self.left.lock();
            left.remove(&ino);
            self.any_left.store(!left.is_empty(), Ordering::Release);
        }
    }

    /// Shows another tree from now on. `left` are inodes of the one before that it lacks. `shown` is
    /// held so that no request is under way.
    pub(crate) fn replace(
        &self,
        shown: &mut Arc<Tree>,
        tree: Arc<Tree>,
        left: impl IntoIterator<Item = Ino>,
    ) {
        let old = std::mem::replace(shown, tree);
        let mut all = self.left.lock();
        all.extend(left.into_iter().map(|ino| (ino, Arc::clone(&old))));
        self.any_left.store(!all.is_empty(), Ordering::Release);
    }

    /// What is held while trees are replaced.
    pub(crate) fn lock(&self) -> &RwLock<Arc<Tree>> {
        &self.current
    }
}
