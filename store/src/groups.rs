//! The hash of a large file by groups, so that of a changed one only what changed is hashed again.
//!
//! blake3 is a binary tree over chunks of 1 KiB. The value of each full group of 256 chunks is a node
//! of that tree, whatever comes before and after it; so the digest of a file follows from the values
//! of its groups (`blake3::hazmat`). They are kept in memory for large files that were hashed lately:
//! 32 bytes for 256 KiB. After a restart a file's first hash is of the whole of it.

use std::sync::Arc;

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::digest::Digest;

/// Bytes of a group: a power of two of chunks.
pub(crate) const GROUP_BYTES: u64 = 256 << 10;
/// Files from this size on have their groups kept; smaller ones are hashed in a few milliseconds.
pub(crate) const MIN_GROUPED: u64 = 4 << 20;
/// Bytes of values that are kept: those of 256 GiB of content.
const KEPT_BYTES: u64 = 32 << 20;

/// The values of the groups of one file, in order; the last may be of less than a group.
pub(crate) type Groups = Arc<[ChainingValue]>;

/// Hashes a file from its beginning to its end, group by group.
#[derive(Default)]
pub(crate) struct GroupHasher {
    values: Vec<ChainingValue>,
    /// The group that is being filled.
    group: Hasher,
    filled: u64,
}

impl GroupHasher {
    pub(crate) fn new() -> Self {
        GroupHasher::default()
    }

    /// Goes on with these bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == GROUP_BYTES {
                self.end_group();
            }
            let room = (GROUP_BYTES - self.filled).min(bytes.len() as u64);
            let (part, rest) = bytes.split_at(room as usize);
            self.group.update(part);
            self.filled += room;
            bytes = rest;
        }
    }

    /// Goes on with a group whose value is known. Must be called at the border of a group, and not
    /// for the only group of a file, whose value is another.
    pub(crate) fn update_known(&mut self, value: ChainingValue) {
        if self.filled > 0 {
            debug_assert_eq!(self.filled, GROUP_BYTES, "not at the border of a group");
            self.end_group();
        }
        self.values.push(value);
        self.begin_group();
    }

    fn end_group(&mut self) {
        self.values.push(self.group.finalize_non_root());
        self.begin_group();
    }

    fn begin_group(&mut self) {
        self.group = Hasher::new();
        self.group
            .set_input_offset(self.values.len() as u64 * GROUP_BYTES);
        self.filled = 0;
    }

    /// The digest of everything, and the values of its groups.
    pub(crate) fn finish(mut self) -> (Digest, Groups) {
        if self.values.is_empty() {
            // The whole is one group: its value is the root's, not a node's.
            return (self.group.finalize().into(), Groups::default());
        }
        if self.filled > 0 {
            self.values.push(self.group.finalize_non_root());
        }
        (root(&self.values), self.values.into())
    }
}

/// The digest of a file of two groups or more.
fn root(values: &[ChainingValue]) -> Digest {
    let (left, right) = halves(values);
    merge_subtrees_root(&node(left), &node(right), Mode::Hash).into()
}

fn node(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [value] => *value,
        values => {
            let (left, right) = halves(values);
            merge_subtrees_non_root(&node(left), &node(right), Mode::Hash)
        }
    }
}

/// The left subtree is the largest full one that leaves something for the right.
fn halves(values: &[ChainingValue]) -> (&[ChainingValue], &[ChainingValue]) {
    values.split_at(values.len().next_power_of_two() / 2)
}

/// Groups of files by the digest of the whole.
pub(crate) struct KnownGroups(Cache<Digest, Groups, Bytes>);

#[derive(Clone)]
struct Bytes;

impl Weighter<Digest, Groups> for Bytes {
    fn weight(&self, _: &Digest, groups: &Groups) -> u64 {
        std::mem::size_of_val(&**groups) as u64
    }
}

impl KnownGroups {
    pub(crate) fn new() -> Self {
        KnownGroups(Cache::with_weighter(1000, KEPT_BYTES, Bytes))
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Groups> {
        self.0.get(digest)
    }

    /// Keeps the groups of a file of `size` bytes, if it is large.
    pub(crate) fn keep(&self, digest: Digest, size: u64, groups: Groups) {
        if size >= MIN_GROUPED {
            self.0.insert(digest, groups);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: u64) -> Vec<u8> {
        (0..count)
            .map(|at| (at % 251 + at / 65_521) as u8)
            .collect()
    }

    #[test]
    fn the_digest_is_blake3s_whatever_the_size() {
        let group = GROUP_BYTES;
        for size in [0, 1, 1024, group - 1, group, group + 1, 2 * group]
            .into_iter()
            .chain((2..12).flat_map(|n| [n * group - 1, n * group, n * group + 1025]))
        {
            let bytes = bytes(size);
            for part in [1000, 64 << 10, 700_001] {
                let mut hasher = GroupHasher::new();
                bytes.chunks(part).for_each(|part| hasher.update(part));
                assert_eq!(hasher.finish().0, Digest::of(&bytes), "{size} by {part}");
            }
        }
    }

    #[test]
    fn known_groups_need_no_bytes() {
        let mut content = bytes(7 * GROUP_BYTES + 4321);
        let mut hasher = GroupHasher::new();
        hasher.update(&content);
        let (digest, groups) = hasher.finish();
        assert_eq!((digest, groups.len()), (Digest::of(&content), 8));
        for changed in 0..8usize {
            let at = changed * GROUP_BYTES as usize;
            content[at + 7] ^= 1;
            let mut hasher = GroupHasher::new();
            for (number, known) in groups.iter().enumerate() {
                let start = number * GROUP_BYTES as usize;
                let end = content.len().min(start + GROUP_BYTES as usize);
                if number == changed {
                    hasher.update(&content[start..end]);
                } else {
                    hasher.update_known(*known);
                }
            }
            assert_eq!(hasher.finish().0, Digest::of(&content));
            content[at + 7] ^= 1;
        }
    }
}
