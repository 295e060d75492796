//! The hash of content by groups, so that of a changed file only what changed is hashed again, and of
//! a hole nothing.
//!
//! What the digest of content is, [`Digest`] says. Up to [`PLAIN_MAX`] bytes it is their blake3, a
//! binary tree over chunks of 1 KiB. The value of each full group of 256 chunks is a node of that
//! tree, whatever comes before and after it; so the digest follows from the values of the groups
//! (`blake3::hazmat`). A node's value depends on where in the file it is, of zeros as well; those of
//! zeros are kept once they were needed. Above, the digest is one of a list of groups that has none
//! for zeros, so that they cost nothing however many there are.
//!
//! Of large files the values are kept (`known_groups`).

use std::sync::{Arc, LazyLock, OnceLock};

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use crate::digest::Digest;

/// Bytes of a group: a power of two of chunks.
pub(crate) const GROUP_BYTES: u64 = 256 << 10;
/// Content of more bytes has a digest of its groups. So many zeros are hashed in a second or two,
/// and once in a process.
pub(crate) const PLAIN_MAX: u64 = 4 << 30;
/// What the digests of longer content are told from all others by.
const CONTEXT: &str =
    "sandstack: content above 4 GiB by groups of 256 KiB, those of zeros left out";

static ZEROS: [u8; GROUP_BYTES as usize] = [0; GROUP_BYTES as usize];

/// The values of the groups of one file.
#[derive(Clone, Debug)]
pub(crate) enum Groups {
    /// Of a file of up to [`PLAIN_MAX`] bytes: nodes of blake3's tree, in order. The last may be of
    /// less than a group. None if the file is only one.
    Nodes(Arc<[ChainingValue]>),
    /// Of a longer one: the number and the blake3 of each group that is not all zeros, in order.
    Pieces(Arc<[(u64, ChainingValue)]>),
}

/// What is known of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known {
    /// Its value.
    Value(ChainingValue),
    /// That it has only zeros.
    Zeros,
}

impl Groups {
    /// What is known of the group of this number in a file of `size` bytes that has that group in
    /// common with the one that these are of.
    pub(crate) fn get(&self, number: u64, size: u64) -> Option<Known> {
        match self {
            Groups::Nodes(values) if size <= PLAIN_MAX => {
                values.get(number as usize).copied().map(Known::Value)
            }
            Groups::Pieces(values) if size > PLAIN_MAX => Some(
                match values.binary_search_by_key(&number, |(number, _)| *number) {
                    Ok(at) => Known::Value(values[at].1),
                    Err(_) => Known::Zeros,
                },
            ),
            // The file became long, or short: its values are of the other kind.
            Groups::Nodes(_) | Groups::Pieces(_) => None,
        }
    }

    /// The digest of the content of `size` bytes that has these groups; `None` if none has.
    pub(crate) fn digest(&self, size: u64) -> Option<Digest> {
        let groups = size.div_ceil(GROUP_BYTES);
        match self {
            Groups::Nodes(values) if size <= PLAIN_MAX => {
                (values.len() > 1 && values.len() as u64 == groups).then(|| root(values))
            }
            Groups::Pieces(values) if size > PLAIN_MAX => {
                let in_order = values.is_sorted_by(|one, next| one.0 < next.0);
                let within = values.last().is_none_or(|(number, _)| *number < groups);
                (in_order && within).then(|| of_pieces(size, values))
            }
            Groups::Nodes(_) | Groups::Pieces(_) => None,
        }
    }
}

/// Hashes content of a known size from its beginning to its end, group by group.
pub(crate) struct GroupHasher {
    size: u64,
    /// Bytes before the group that is being filled.
    start: u64,
    /// The group that is being filled.
    group: Hasher,
    filled: u64,
    values: Values,
}

enum Values {
    Nodes(Vec<ChainingValue>),
    Pieces(Vec<(u64, ChainingValue)>),
}

impl GroupHasher {
    /// Begins with content of exactly `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        let values = if size <= PLAIN_MAX {
            Values::Nodes(Vec::new())
        } else {
            Values::Pieces(Vec::new())
        };
        GroupHasher {
            size,
            start: 0,
            group: Hasher::new(),
            filled: 0,
            values,
        }
    }

    /// Goes on with these bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.check(bytes.len() as u64);
        while !bytes.is_empty() {
            let room = (GROUP_BYTES - self.filled).min(bytes.len() as u64);
            let (part, rest) = bytes.split_at(room as usize);
            self.fill(part);
            bytes = rest;
        }
    }

    /// Goes on with so many zeros, of which those of whole groups need not be hashed.
    pub(crate) fn update_zeros(&mut self, mut count: u64) {
        self.check(count);
        while count > 0 {
            let whole = count / GROUP_BYTES;
            if self.filled > 0 || whole == 0 || self.size == GROUP_BYTES {
                let part = (GROUP_BYTES - self.filled).min(count);
                self.fill(&ZEROS[..part as usize]);
                count -= part;
                continue;
            }
            let first = self.start / GROUP_BYTES;
            if let Values::Nodes(values) = &mut self.values {
                values.extend((first..first + whole).map(node_of_zeros));
            }
            self.start += whole * GROUP_BYTES;
            count -= whole * GROUP_BYTES;
            self.begin_group();
        }
    }

    /// Goes on with zeros to byte `offset`, if it is not there yet.
    pub(crate) fn zeros_to(&mut self, offset: u64) {
        self.update_zeros(offset.saturating_sub(self.start + self.filled));
    }

    /// Goes on with a group of which something is known. Must be called at the border of a group.
    pub(crate) fn update_known(&mut self, known: Known) {
        assert_eq!(self.filled, 0, "not at the border of a group");
        let bytes = GROUP_BYTES.min(self.size - self.start);
        match (&mut self.values, known) {
            (_, Known::Zeros) => return self.update_zeros(bytes),
            (Values::Nodes(values), Known::Value(value)) => values.push(value),
            (Values::Pieces(values), Known::Value(value)) => {
                values.push((self.start / GROUP_BYTES, value));
            }
        }
        self.start += bytes;
        self.begin_group();
    }

    fn check(&self, count: u64) {
        let left = self.size - self.start - self.filled;
        assert!(
            count <= left,
            "{count} bytes more, and only {left} are left"
        );
    }

    /// Goes on with what fits into the group.
    fn fill(&mut self, part: &[u8]) {
        self.group.update(part);
        self.filled += part.len() as u64;
        // The only group of content is its root, and no node.
        if self.filled == GROUP_BYTES && self.size > GROUP_BYTES {
            self.end_group();
        }
    }

    fn end_group(&mut self) {
        match &mut self.values {
            Values::Nodes(values) => values.push(self.group.finalize_non_root()),
            Values::Pieces(values) => {
                let value = *self.group.finalize().as_bytes();
                if value != piece_of_zeros(self.filled) {
                    values.push((self.start / GROUP_BYTES, value));
                }
            }
        }
        self.start += self.filled;
        self.begin_group();
    }

    fn begin_group(&mut self) {
        self.group = Hasher::new();
        if let Values::Nodes(_) = self.values
            && self.start < self.size
        {
            self.group.set_input_offset(self.start);
        }
        self.filled = 0;
    }

    /// The digest of everything, and the values of its groups. What is missing of the announced size
    /// is zeros.
    pub(crate) fn finish(mut self) -> (Digest, Groups) {
        self.zeros_to(self.size);
        if self.filled > 0 && self.size > GROUP_BYTES {
            self.end_group();
        }
        match self.values {
            Values::Nodes(values) if values.is_empty() => {
                (self.group.finalize().into(), Groups::Nodes(values.into()))
            }
            Values::Nodes(values) => (root(&values), Groups::Nodes(values.into())),
            Values::Pieces(values) => {
                (of_pieces(self.size, &values), Groups::Pieces(values.into()))
            }
        }
    }
}

/// The digest of content of more than [`PLAIN_MAX`] bytes.
fn of_pieces(size: u64, values: &[(u64, ChainingValue)]) -> Digest {
    let mut hasher = Hasher::new_derive_key(CONTEXT);
    hasher.update(&size.to_le_bytes());
    for (number, value) in values {
        hasher.update(&number.to_le_bytes());
        hasher.update(value);
    }
    hasher.finalize().into()
}

/// The blake3 of so many zeros, at most a group.
fn piece_of_zeros(bytes: u64) -> ChainingValue {
    static GROUP: LazyLock<ChainingValue> = LazyLock::new(|| *blake3::hash(&ZEROS).as_bytes());
    if bytes == GROUP_BYTES {
        *GROUP
    } else {
        *blake3::hash(&ZEROS[..bytes as usize]).as_bytes()
    }
}

/// The node of the group of this number if it has only zeros.
fn node_of_zeros(number: u64) -> ChainingValue {
    static NODES: LazyLock<Box<[OnceLock<ChainingValue>]>> = LazyLock::new(|| {
        (0..PLAIN_MAX / GROUP_BYTES)
            .map(|_| OnceLock::new())
            .collect()
    });
    *NODES[number as usize].get_or_init(|| {
        let mut group = Hasher::new();
        group.set_input_offset(number * GROUP_BYTES);
        group.update(&ZEROS).finalize_non_root()
    })
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
                let mut hasher = GroupHasher::new(size);
                bytes.chunks(part).for_each(|part| hasher.update(part));
                let expected = blake3::hash(&bytes).into();
                assert_eq!(hasher.finish().0, expected, "{size} by {part}");
            }
        }
    }

    #[test]
    fn known_groups_need_no_bytes() {
        let mut content = bytes(7 * GROUP_BYTES + 4321);
        let size = content.len() as u64;
        let mut hasher = GroupHasher::new(size);
        hasher.update(&content);
        let (digest, groups) = hasher.finish();
        assert_eq!(digest, Digest::of(&content));
        for changed in 0..8 {
            let at = (changed * GROUP_BYTES) as usize;
            content[at + 7] ^= 1;
            let mut hasher = GroupHasher::new(size);
            for number in 0..8 {
                let start = number * GROUP_BYTES;
                let end = size.min(start + GROUP_BYTES);
                if number == changed {
                    hasher.update(&content[start as usize..end as usize]);
                } else {
                    hasher.update_known(groups.get(number, size).unwrap());
                }
            }
            assert_eq!(hasher.finish().0, Digest::of(&content));
            content[at + 7] ^= 1;
        }
        assert!(groups.get(8, size).is_none());
        assert!(groups.get(0, PLAIN_MAX + 1).is_none(), "of the other kind");
    }

    #[test]
    fn zeros_that_are_told_are_zeros_that_are_read() {
        let group = GROUP_BYTES;
        for (before, zeros, after) in [
            (0, 1, 0),
            (0, group, 0),
            (0, group, 1),
            (0, 2 * group, 0),
            (1, group - 1, 0),
            (1, 3 * group, 5),
            (group, 3 * group, group),
            (2 * group - 7, 5 * group + 3, 100),
            (5, 0, 5),
        ] {
            let size = before + zeros + after;
            let mut content = vec![0; size as usize];
            content[..before as usize].copy_from_slice(&bytes(before));
            content[(before + zeros) as usize..].copy_from_slice(&bytes(after));
            let mut hasher = GroupHasher::new(size);
            hasher.update(&content[..before as usize]);
            hasher.zeros_to(before + zeros);
            hasher.update(&content[(before + zeros) as usize..]);
            let expected = blake3::hash(&content).into();
            assert_eq!(hasher.finish().0, expected, "{before}, {zeros}, {after}");
        }
    }

    /// Content of more than 4 GiB, of which these bytes are at these places.
    fn long(size: u64, parts: &[(u64, &[u8])]) -> (Digest, Groups) {
        let mut hasher = GroupHasher::new(size);
        for (offset, bytes) in parts {
            hasher.zeros_to(*offset);
            hasher.update(bytes);
        }
        hasher.finish()
    }

    #[test]
    fn long_content_is_told_by_its_bytes_however_they_lie() {
        let size = (1 << 40) + 5;
        let data = bytes(3 * GROUP_BYTES);
        let (digest, groups) = long(size, &[(GROUP_BYTES - 9, &data), (size - 3, b"end")]);
        let Groups::Pieces(values) = &groups else {
            panic!("{groups:?}");
        };
        assert_eq!(values.len(), 5);
        // The same with zeros that are read where zeros were told, and in other parts.
        let mut around = vec![0; GROUP_BYTES as usize - 9];
        around.extend(&data);
        around.extend(vec![0; 7 * GROUP_BYTES as usize]);
        let (one, other) = around.split_at(700_001);
        let again = long(size, &[(0, one), (700_001, other), (size - 5, b"\0\0end")]);
        assert_eq!(again.0, digest);
        // By what is known of it.
        let mut hasher = GroupHasher::new(size);
        for number in (0..9).chain([size / GROUP_BYTES]) {
            hasher.zeros_to(number * GROUP_BYTES);
            hasher.update_known(groups.get(number, size).unwrap());
        }
        assert_eq!(hasher.finish().0, digest);
        // And by the definition.
        let mut text = size.to_le_bytes().to_vec();
        around.truncate(4 * GROUP_BYTES as usize);
        for (number, piece) in around.chunks(GROUP_BYTES as usize).enumerate() {
            text.extend((number as u64).to_le_bytes());
            text.extend(blake3::hash(piece).as_bytes());
        }
        text.extend((size / GROUP_BYTES).to_le_bytes());
        text.extend(blake3::hash(b"\0\0end").as_bytes());
        assert_eq!(
            digest,
            Digest::from_bytes(blake3::derive_key(CONTEXT, &text))
        );
    }

    #[test]
    fn long_contents_that_differ_have_other_digests() {
        let size = 1 << 40;
        let mut digests = vec![
            long(size, &[]).0,
            long(size + 1, &[]).0,
            long(size + GROUP_BYTES, &[]).0,
            long(i64::MAX as u64, &[]).0,
            long(size, &[(0, b"x")]).0,
            long(size, &[(GROUP_BYTES, b"x")]).0,
            long(size, &[(size - 1, b"x")]).0,
            long(size, &[(size - 2, b"x")]).0,
            long(size, &[(0, b"x"), (size - 1, b"x")]).0,
        ];
        let count = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), count);
    }
}
