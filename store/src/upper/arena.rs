//! The arena: one sparse file that holds the blocks of all changed content of a session.
//!
//! Which blocks are used follows from the state alone, so nothing of it is written down: after a
//! crash the free blocks are those that no run names. Freed space is given back to the disk in pieces of
//! 64 KiB and more, each once; smaller holes are filled again.
//!
//! A block that was in use at the last sync may be named by the journal that power loss would
//! leave, even if it has been freed since. It is used again, or given back, only after the next
//! sync, so that what was synced stays what it was. Blocks taken since then are nobody's but the
//! kernel's and are used again at once.
//!
//! What waits for a sync is space that the disk lacks. So a change that finds the disk full makes a
//! sync and tries again, and one that frees much makes a sync itself ([`Arena::deferred_bytes`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::fs::FallocateFlags;

use super::BLOCK;
use crate::error::{Error, Result};

/// Freed runs of at least this many bytes are punched out of the file.
const PUNCH_BYTES: u64 = 64 << 10;

/// A limit that several uppers share.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            limit: AtomicU64::new(u64::MAX),
            used: AtomicU64::new(0),
        }
    }
}

impl Budget {
    /// Sets the limit, in bytes; `None` means no limit. What is used already stays.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.limit
            .store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes used.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<()> {
        let limit = self.limit.load(Ordering::Relaxed);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .map(|_| ())
            .map_err(|_| Error::Quota { limit })
    }

    fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

pub(super) struct Arena {
    file: File,
    path: PathBuf,
    quota: Option<u64>,
    budget: Arc<Budget>,
    space: Mutex<Space>,
    /// Told when a sync ends.
    sync_ended: Condvar,
}

/// Free blocks below `end`; everything from `end` on was never used.
#[derive(Default)]
struct Space {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    end: u64,
    used: u64,
    /// What was taken since the last sync.
    young: Runs,
    /// What is free and has not been given back to the disk.
    kept: Runs,
    /// What was freed since the last sync and in use at it.
    deferred: Vec<(u64, u64)>,
    deferred_bytes: u64,
    /// Syncs under way.
    syncs: u32,
}

/// Freed space that is free again once a sync has succeeded.
#[must_use = "the space is lost until the arena is opened again"]
pub(super) struct Released(Vec<(u64, u64)>);

impl Arena {
    /// Opens the arena at `path`, of which `runs` (offset and length) are used.
    pub(super) fn open(
        path: &Path,
        quota: Option<u64>,
        budget: Arc<Budget>,
        mut runs: Vec<(u64, u64)>,
    ) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| Error::io("opening", path, error))?;
        runs.sort_unstable();
        let mut space = Space::default();
        for (offset, length) in runs {
            if offset < space.end {
                return Err(Error::Corrupt {
                    what: path.display().to_string(),
                    detail: format!("byte {offset} is used twice"),
                });
            }
            if offset > space.end {
                space.add(space.end, offset - space.end);
            }
            space.end = offset + length;
            space.used += length;
        }
        // What is in use counts whether or not it would be granted today.
        budget.used.fetch_add(space.used, Ordering::Relaxed);
        // Blocks that were written and never referred to, before a crash.
        let length = file
            .metadata()
            .map_err(|error| Error::io("examining", path, error))?
            .len();
        if length > space.end {
            file.set_len(space.end)
                .map_err(|error| Error::io("cutting", path, error))?;
        }
        Ok(Arena {
            file,
            path: path.to_path_buf(),
            quota,
            budget,
            space: Mutex::new(space),
            sync_ended: Condvar::new(),
        })
    }

    /// Takes a run of `length` bytes (whole blocks), at `goal` if that is free. Its content is
    /// undefined.
    pub(super) fn take(&self, length: u64, goal: Option<u64>) -> Result<u64> {
        debug_assert!(length > 0 && length.is_multiple_of(BLOCK));
        let mut space = self.space.lock();
        if let Some(limit) = self.quota
            && space.used + length > limit
        {
            return Err(Error::Quota { limit });
        }
        self.budget.take(length)?;
        space.used += length;
        let offset = space.take(length, goal);
        space.young.add(offset, length);
        Ok(offset)
    }

    /// Gives runs back.
    pub(super) fn free(&self, runs: &[(u64, u64)]) {
        if runs.is_empty() {
            return;
        }
        let mut space = self.space.lock();
        for &(offset, length) in runs {
            space.used -= length;
            self.budget.give(length);
            for (offset, length) in space.free(offset, length) {
                self.reuse(&mut space, offset, length);
            }
        }
    }

    /// What a sync that begins now will make free; told to [`Arena::end_sync`] when it has
    /// succeeded.
    pub(super) fn begin_sync(&self) -> Released {
        let mut space = self.space.lock();
        space.young = Runs::default();
        space.syncs += 1;
        space.deferred_bytes = 0;
        Released(std::mem::take(&mut space.deferred))
    }

    /// A sync has ended.
    pub(super) fn end_sync(&self, released: Released, succeeded: bool) {
        let mut space = self.space.lock();
        space.syncs -= 1;
        if succeeded {
            for (offset, length) in released.0 {
                self.reuse(&mut space, offset, length);
            }
        } else {
            for (offset, length) in released.0 {
                space.defer(offset, length);
            }
        }
        self.sync_ended.notify_all();
    }

    /// Bytes that were freed and wait for the next sync.
    pub(super) fn deferred_bytes(&self) -> u64 {
        self.space.lock().deferred_bytes
    }

    /// Waits until a sync that is under way ends; returns at once, with `false`, if there is none.
    pub(super) fn wait_for_a_sync(&self) -> bool {
        let mut space = self.space.lock();
        let under_way = space.syncs > 0;
        if under_way {
            self.sync_ended.wait(&mut space);
        }
        under_way
    }

    /// Makes a run free for use. The lock is held, so nobody has been given it meanwhile.
    fn reuse(&self, space: &mut Space, offset: u64, length: u64) {
        space.give(offset, length);
        let (offset, length) = space.kept.add(offset, length);
        if length >= PUNCH_BYTES {
            space.kept.cut(offset, length);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A disk that cannot punch keeps the space for the session; nothing depends on it.
            if let Err(error) = rustix::fs::fallocate(&self.file, flags, offset, length) {
                tracing::debug!(path = %self.path.display(), %error, "freed space stays allocated");
            }
        }
    }

    /// Makes a run read as zeros, and reserves its space on disk.
    pub(super) fn clear(&self, offset: u64, length: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::ZERO_RANGE, offset, length) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => {
                let zeros = vec![0; 64 << 10];
                let mut done = 0;
                while done < length {
                    let part = (length - done).min(zeros.len() as u64);
                    self.write(offset + done, &zeros[..part as usize])?;
                    done += part;
                }
                Ok(())
            }
            Err(error) => Err(Error::io("reserving space in", &self.path, error)),
        }
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| Error::io("writing", &self.path, error))
    }

    /// Fills `buffer` from byte `offset`. What was never written reads as zeros.
    pub(super) fn read(&self, offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        let mut at = offset;
        while !buffer.is_empty() {
            match self.file.read_at(buffer, at) {
                Ok(0) => {
                    buffer.fill(0);
                    return Ok(());
                }
                Ok(count) => {
                    buffer = &mut buffer[count..];
                    at += count as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("reading", &self.path, error)),
            }
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.file
            .sync_data()
            .map_err(|error| Error::io("syncing", &self.path, error))
    }

    /// The file, in which every block that is in use can be read whole: the last one may have been
    /// written in part.
    pub(super) fn file(&self) -> Result<&File> {
        let space = self.space.lock();
        let sized = self.file.metadata().and_then(|metadata| {
            if metadata.len() < space.end {
                self.file.set_len(space.end)?;
            }
            Ok(&self.file)
        });
        sized.map_err(|error| Error::io("examining", &self.path, error))
    }

    /// Bytes in use.
    pub(super) fn used_bytes(&self) -> u64 {
        self.space.lock().used
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.budget.give(self.space.get_mut().used);
    }
}

impl Space {
    fn take(&mut self, length: u64, goal: Option<u64>) -> u64 {
        if let Some(goal) = goal {
            if goal == self.end {
                self.end += length;
                return goal;
            }
            if let Some(&free) = self.by_start.get(&goal)
                && free >= length
            {
                self.split(goal, free, length);
                return goal;
            }
        }
        // Best fit, so that large runs stay whole.
        if let Some(&(free, start)) = self.by_length.range((length, 0)..).next() {
            self.split(start, free, length);
            return start;
        }
        self.end += length;
        self.end - length
    }

    /// Takes a run that nothing refers to any more: returns the parts of it that may be used again
    /// at once, and defers the others.
    fn free(&mut self, start: u64, length: u64) -> Vec<(u64, u64)> {
        let free = self.young.cut(start, length);
        let mut at = start;
        for &(from, young) in &free {
            if at < from {
                self.defer(at, from - at);
            }
            at = from + young;
        }
        if at < start + length {
            self.defer(at, start + length - at);
        }
        free
    }

    fn defer(&mut self, start: u64, length: u64) {
        self.deferred.push((start, length));
        self.deferred_bytes += length;
    }

    fn split(&mut self, start: u64, free: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(free, start));
        self.kept.cut(start, length);
        if free > length {
            self.add(start + length, free - length);
        }
    }

    fn add(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    /// Adds a free run, joined with its neighbours.
    fn give(&mut self, mut start: u64, mut length: u64) {
        if let Some((&before, &before_length)) = self.by_start.range(..start).next_back()
            && before + before_length == start
        {
            self.by_start.remove(&before);
            self.by_length.remove(&(before_length, before));
            (start, length) = (before, before_length + length);
        }
        if let Some(&after_length) = self.by_start.get(&(start + length)) {
            self.by_start.remove(&(start + length));
            self.by_length.remove(&(after_length, start + length));
            length += after_length;
        }
        self.add(start, length);
    }
}

/// Runs of bytes that do not touch each other: the end of each by its start.
#[derive(Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    /// Adds a run, of which nothing is in yet, joined with its neighbours; returns what it became.
    fn add(&mut self, mut start: u64, length: u64) -> (u64, u64) {
        let mut end = start + length;
        if let Some((&before, &touching)) = self.0.range(..start).next_back()
            && touching == start
        {
            start = before;
        }
        if let Some(after) = self.0.remove(&end) {
            end = after;
        }
        self.0.insert(start, end);
        (start, end - start)
    }

    /// Removes what is in of a run; returns those parts, in order.
    fn cut(&mut self, start: u64, length: u64) -> Vec<(u64, u64)> {
        let end = start + length;
        let first = self
            .0
            .range(..=start)
            .next_back()
            .map_or(start, |(&first, _)| first);
        let touched: Vec<(u64, u64)> = self
            .0
            .range(first..end)
            .map(|(&first, &last)| (first, last))
            .filter(|(_, last)| *last > start)
            .collect();
        let mut parts = Vec::with_capacity(touched.len());
        for (first, last) in touched {
            let (from, to) = (first.max(start), last.min(end));
            parts.push((from, to - from));
            self.0.remove(&first);
            if first < from {
                self.0.insert(first, from);
            }
            if to < last {
                self.0.insert(to, last);
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn space_is_given_out_once_and_taken_back_whole(
            steps in proptest::collection::vec((any::<bool>(), 1u64..9, any::<prop::sample::Index>()), 1..80)
        ) {
            let mut space = Space::default();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, blocks, pick) in steps {
                if take || taken.is_empty() {
                    let goal = taken.last().map(|(start, length)| start + length);
                    let length = blocks * BLOCK;
                    let start = space.take(length, goal);
                    for &(other, other_length) in &taken {
                        prop_assert!(start + length <= other || other + other_length <= start, "overlap");
                    }
                    taken.push((start, length));
                } else {
                    let (start, length) = taken.swap_remove(pick.index(taken.len()));
                    space.give(start, length);
                    space.kept.add(start, length);
                }
                let free: u64 = space.by_start.values().sum();
                let used: u64 = taken.iter().map(|(_, length)| length).sum();
                prop_assert_eq!(free + used, space.end);
                prop_assert_eq!(space.by_start.len(), space.by_length.len());
                for (start, end) in &space.kept.0 {
                    let free = space.by_start.range(..=start).next_back();
                    prop_assert!(free.is_some_and(|(first, length)| first + length >= *end), "kept and not free");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_synced_is_used_again_only_after_the_next_sync(
            steps in proptest::collection::vec((0u8..5, 1u64..9, any::<prop::sample::Index>()), 1..80)
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("arena");
            let arena = Arena::open(&path, None, Arc::default(), vec![]).unwrap();
            let mut live: BTreeSet<u64> = BTreeSet::new();
            let mut synced: BTreeSet<u64> = BTreeSet::new();
            for (what, blocks, pick) in steps {
                match what {
                    0 => {
                        let released = arena.begin_sync();
                        arena.end_sync(released, true);
                        synced = live.clone();
                    }
                    1 | 2 if !live.is_empty() => {
                        // Any run of blocks that lie side by side.
                        let first = *live.iter().nth(pick.index(live.len())).unwrap();
                        let run: Vec<u64> = (first..first + blocks).take_while(|block| live.contains(block)).collect();
                        run.iter().for_each(|block| { live.remove(block); });
                        arena.free(&[(first * BLOCK, run.len() as u64 * BLOCK)]);
                    }
                    _ => {
                        let start = arena.take(blocks * BLOCK, None).unwrap() / BLOCK;
                        for block in start..start + blocks {
                            prop_assert!(!synced.contains(&block), "block {} is named by what was synced", block);
                            prop_assert!(live.insert(block), "block {} is in use", block);
                        }
                    }
                }
                prop_assert_eq!(arena.used_bytes(), live.len() as u64 * BLOCK);
            }
            // In the end every block is used or free, and none is lost.
            arena.free(&live.iter().map(|block| (block * BLOCK, BLOCK)).collect::<Vec<_>>());
            let released = arena.begin_sync();
            arena.end_sync(released, true);
            let space = arena.space.lock();
            prop_assert_eq!(space.by_start.values().sum::<u64>(), space.end);
        }
    }

    /// All that was freed is given back but for less than a piece, and never what is used again.
    #[test]
    fn freed_space_is_given_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("arena");
        let arena = Arena::open(&path, None, Arc::default(), vec![]).unwrap();
        let blocks = 3 * PUNCH_BYTES / BLOCK;
        let at = arena.take(blocks * BLOCK, None).unwrap();
        arena
            .write(at, &vec![1; (blocks * BLOCK) as usize])
            .unwrap();
        arena.sync().unwrap();
        let allocated = || std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
        let whole = allocated();
        for block in 0..blocks {
            arena.free(&[(at + block * BLOCK, BLOCK)]);
            let kept = arena
                .space
                .lock()
                .kept
                .0
                .iter()
                .map(|(start, end)| end - start)
                .sum::<u64>();
            assert!(
                kept < PUNCH_BYTES,
                "{kept} bytes are kept after {block} blocks"
            );
            assert_eq!(whole - allocated(), (block + 1) * BLOCK - kept);
        }
        // What is taken again is not given back under its user, by its neighbours.
        let again = arena.take(BLOCK, None).unwrap();
        arena.write(again, &[2; BLOCK as usize]).unwrap();
        let beside = arena.take(2 * PUNCH_BYTES, Some(again + BLOCK)).unwrap();
        arena.free(&[(beside, 2 * PUNCH_BYTES)]);
        let mut found = [0; BLOCK as usize];
        arena.read(again, &mut found).unwrap();
        assert_eq!(found, [2; BLOCK as usize]);
    }

    #[test]
    fn a_quota_and_a_shared_budget_both_hold() {
        let dir = tempfile::tempdir().unwrap();
        let budget = Arc::new(Budget::default());
        budget.set_limit(Some(3 * BLOCK));
        let one = Arena::open(
            &dir.path().join("one"),
            Some(2 * BLOCK),
            Arc::clone(&budget),
            vec![],
        )
        .unwrap();
        let two = Arena::open(&dir.path().join("two"), None, Arc::clone(&budget), vec![]).unwrap();
        let first = one.take(2 * BLOCK, None).unwrap();
        assert!(matches!(one.take(BLOCK, None), Err(Error::Quota { limit }) if limit == 2 * BLOCK));
        two.take(BLOCK, None).unwrap();
        assert!(matches!(two.take(BLOCK, None), Err(Error::Quota { limit }) if limit == 3 * BLOCK));
        one.free(&[(first, 2 * BLOCK)]);
        two.take(2 * BLOCK, None).unwrap();
        drop(two);
        assert_eq!(budget.used(), 0);
    }
}
