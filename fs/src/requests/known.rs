//! What the kernel knows: how often it was told of each inode, and has not given back.
//!
//! A message that gives an inode back waits in a queue of its own, and may come after the kernel has
//! looked the inode up again, opened it and removed its name. Without a count the inode would go
//! while it is open.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use sandstack_store::Ino;

/// Inodes that share a lock: neighbours have different ones.
const SHARDS: usize = 16;
/// Room that a shard keeps when nearly all in it has been given back.
const KEPT: usize = 64;

/// Counts by inode.
#[derive(Debug, Default)]
pub(crate) struct Known([Mutex<FxHashMap<Ino, u64>>; SHARDS]);

impl Known {
    /// The kernel is being told of `ino`. Before the reply is sent. Returns whether it did not know it.
    pub(crate) fn told(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let count = shard.entry(ino).or_default();
        *count += 1;
        *count == 1
    }

    /// Whether the kernel knows `ino`.
    pub(crate) fn knows(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Every inode that the kernel knows, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Ino> {
        self.0
            .iter()
            .flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>())
    }

    /// The kernel gives back `count` times that it was told. Returns whether it knows the inode no
    /// more.
    pub(crate) fn forgotten(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        match shard.get_mut(&ino) {
            Some(told) if *told > count => {
                *told -= count;
                false
            }
            _ => {
                shard.remove(&ino);
                if shard.capacity() > KEPT && shard.len() < shard.capacity() / 8 {
                    let room = KEPT.max(shard.len() * 2);
                    shard.shrink_to(room);
                }
                true
            }
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<FxHashMap<Ino, u64>> {
        &self.0[(ino % SHARDS as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_forget_leaves_what_was_found_again() {
        let known = Known::default();
        assert!(known.told(7) && !known.told(7));
        // The kernel has let go of the first two, and found it again before it could say so.
        assert!(!known.told(7));
        assert!(!known.forgotten(7, 2));
        assert!(known.knows(7) && known.all().eq([7]));
        assert!(known.forgotten(7, 1));
        assert!(!known.knows(7));
        // What was never told, as the root, is not known.
        assert!(known.forgotten(1, 1));
    }

    #[test]
    fn room_is_given_back() {
        let known = Known::default();
        for ino in 0..100_000 {
            known.told(ino);
        }
        for ino in 0..100_000 {
            assert!(known.forgotten(ino, 1));
        }
        for shard in &known.0 {
            assert!(shard.lock().capacity() <= 4 * KEPT);
        }
    }
}
