//! Pins: what garbage collection must leave alone although nothing durable refers to it yet.
//!
//! Whoever makes a layer relies on objects before anything names it: on those it has just written,
//! and on those that the store turned out to have, which may be garbage until then. Each is pinned
//! *before* it is looked for, and the sweep decides and removes under the same lock: so an object
//! that was found is not removed, and one that was removed is not found.
//!
//! Of digests only the first eight bytes are kept: an equal beginning only spares an object.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustc_hash::FxHashMap;

use crate::digest::Digest;

/// Everything that is pinned in a store.
#[derive(Default)]
pub(crate) struct Pinned {
    state: Mutex<PinState>,
    /// Held for reading by imports, which would have to pin all that they find; for writing while
    /// a part is swept.
    imports: RwLock<()>,
}

#[derive(Default)]
pub(crate) struct PinState {
    objects: FxHashMap<u64, u32>,
    roots: FxHashMap<Digest, u32>,
}

impl PinState {
    /// Whether an object is pinned by itself.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.objects.contains_key(&short(digest))
    }

    /// The layers that are pinned with all they reach.
    pub(crate) fn roots(&self) -> Vec<Digest> {
        self.roots.keys().copied().collect()
    }
}

impl Pinned {
    /// Locks the pins: nothing is pinned or let go meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PinState> {
        self.state.lock()
    }

    /// Keeps a sweep away while an import runs.
    pub(crate) fn import(&self) -> RwLockReadGuard<'_, ()> {
        self.imports.read_recursive()
    }

    /// Keeps imports away while a part is swept; `None` while one runs.
    pub(crate) fn sweep(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.imports.try_write()
    }
}

/// Objects that one undertaking relies on, until it is dropped.
pub(crate) struct Pins {
    pinned: Arc<Pinned>,
    held: Mutex<Vec<u64>>,
}

impl Pins {
    pub(crate) fn new(pinned: &Arc<Pinned>) -> Self {
        Pins {
            pinned: Arc::clone(pinned),
            held: Mutex::default(),
        }
    }

    /// Pins an object, whether or not it is there.
    pub(crate) fn add(&self, digest: &Digest) {
        let short = short(digest);
        *self.pinned.lock().objects.entry(short).or_insert(0) += 1;
        self.held.lock().push(short);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut state = self.pinned.lock();
        for short in self.held.get_mut() {
            release(&mut state.objects, short);
        }
    }
}

/// A layer that is kept, with all it reaches, until this is dropped.
pub(crate) struct RootPin {
    pinned: Arc<Pinned>,
    root: Digest,
}

impl RootPin {
    pub(crate) fn new(pinned: &Arc<Pinned>, root: Digest) -> Self {
        *pinned.lock().roots.entry(root).or_insert(0) += 1;
        RootPin {
            pinned: Arc::clone(pinned),
            root,
        }
    }
}

impl std::fmt::Debug for RootPin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RootPin").field(&self.root).finish()
    }
}

impl Drop for RootPin {
    fn drop(&mut self) {
        release(&mut self.pinned.lock().roots, &self.root);
    }
}

fn release<K: std::hash::Hash + Eq + Copy>(counts: &mut FxHashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The first bytes of a digest.
pub(crate) fn short(digest: &Digest) -> u64 {
    let bytes = digest.as_bytes();
    u64::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
    ])
}
