//! Directory objects: the entries of one directory, sorted by name, named by their digest.
//!
//! # On disk
//! All numbers are little-endian. A directory object is
//! - the magic `SDR1` (the digit is the version),
//! - the number of entries and the number of them that are directories, 32 bits each,
//! - for each entry the position of its record from the object's start, 32 bits,
//! - the records, sorted by name as bytes: the length of the name (8 bits), the name, a node.
//!
//! A node is: kind (8 bits), flags (8 bits: 1 has extended attributes, 2 content is a list of
//! segments, 4 the node is a hard link and lies in the layer's link table), mode (16 bits), inode
//! number (64), owner and group (32 each), mtime and ctime (seconds 64, nanoseconds 32 each),
//! links (32), then by kind: file: size and stored bytes (64 each), digest, digest of the segment
//! list if flag 2; directory: digest, subdirectories and entries (32 each); symlink: length (16)
//! and target; device: number (64). Then the digest of the extended attributes if flag 1. Of a
//! hard link only kind, flags and inode number are written.
//!
//! Entries are found by binary search in the bytes as they are: nothing is decoded but the entry
//! that is wanted, and a directory costs the memory of its bytes.

use std::cmp::Ordering;

use crate::content::{Content, Layout};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::node::{Body, Ino, Kind, Node, NodeMeta, Timestamp};

const MAGIC: &[u8; 4] = b"SDR1";
const HEADER_BYTES: usize = 12;

const FLAG_XATTRS: u8 = 1;
const FLAG_SEGMENTS: u8 = 2;
const FLAG_LINK: u8 = 4;

/// An entry's node, or where to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryEntry {
    /// The node itself.
    Node(Node),
    /// A node with several names, in the layer's link table.
    Link {
        /// Its inode number.
        ino: Ino,
        /// Its type.
        kind: Kind,
    },
}

impl DirectoryEntry {
    /// The inode number.
    pub fn ino(&self) -> Ino {
        match self {
            DirectoryEntry::Node(node) => node.meta.ino,
            DirectoryEntry::Link { ino, .. } => *ino,
        }
    }

    /// The type.
    pub fn kind(&self) -> Kind {
        match self {
            DirectoryEntry::Node(node) => node.kind(),
            DirectoryEntry::Link { kind, .. } => *kind,
        }
    }
}

/// A directory object.
#[derive(Clone, PartialEq, Eq)]
pub struct Directory {
    bytes: Box<[u8]>,
    count: u32,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory")
            .field("entries", &self.count)
            .finish()
    }
}

impl Directory {
    /// Encodes entries; they need not be sorted, and no name may occur twice.
    pub(crate) fn encode(mut entries: Vec<(Name, DirectoryEntry)>) -> Directory {
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        debug_assert!(
            entries.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "a name twice"
        );
        let subdirectories = entries
            .iter()
            .filter(|(_, entry)| entry.kind() == Kind::Directory)
            .count() as u32;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + entries.len() * 140);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&subdirectories.to_le_bytes());
        bytes.resize(HEADER_BYTES + entries.len() * 4, 0);
        for (index, (name, entry)) in entries.iter().enumerate() {
            let at = HEADER_BYTES + index * 4;
            let position = bytes.len() as u32;
            bytes[at..at + 4].copy_from_slice(&position.to_le_bytes());
            bytes.push(name.as_bytes().len() as u8);
            bytes.extend_from_slice(name.as_bytes());
            encode_entry(&mut bytes, entry);
        }
        Directory {
            count: entries.len() as u32,
            bytes: bytes.into(),
        }
    }

    /// Checks and wraps the bytes of the object named `digest`.
    pub(crate) fn decode(digest: &Digest, bytes: Vec<u8>) -> Result<Directory> {
        let damaged = |detail: &str| Error::Corrupt {
            what: format!("directory object {digest}"),
            detail: detail.to_owned(),
        };
        let header = bytes
            .get(..HEADER_BYTES)
            .ok_or_else(|| damaged("it is too short"))?;
        if &header[..4] != MAGIC {
            return Err(damaged("it has another magic"));
        }
        let directory = Directory {
            count: read_u32(header, 4),
            bytes: bytes.into(),
        };
        // Checked once, so that look-ups need not fail: every entry decodes, in order of names.
        let mut previous: Option<&[u8]> = None;
        for index in 0..directory.len() {
            let (name, rest) = directory
                .record(index)
                .ok_or_else(|| damaged("an entry is cut"))?;
            if previous.is_some_and(|previous| previous >= name) || Name::new(name).is_err() {
                return Err(damaged("its names are not in order"));
            }
            decode_entry(rest).ok_or_else(|| damaged("a node does not decode"))?;
            previous = Some(name);
        }
        Ok(directory)
    }

    /// The object's bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many entries are directories.
    pub fn subdirectories(&self) -> u32 {
        read_u32(&self.bytes, 8)
    }

    /// The name of the entry at `index`, in order of names from 0.
    ///
    /// # Panics
    /// If `index` is not below [`Directory::len`].
    pub fn name(&self, index: usize) -> &[u8] {
        self.record(index).expect("decode checked every record").0
    }

    /// The entry at `index`, in order of names from 0.
    ///
    /// # Panics
    /// If `index` is not below [`Directory::len`].
    pub fn entry(&self, index: usize) -> DirectoryEntry {
        let (_, rest) = self.record(index).expect("decode checked every record");
        decode_entry(rest).expect("decode checked every record").0
    }

    /// The inode number and type of the entry at `index`, without decoding the rest.
    ///
    /// # Panics
    /// If `index` is not below [`Directory::len`].
    pub fn identity(&self, index: usize) -> (Ino, Kind) {
        let (_, rest) = self.record(index).expect("decode checked every record");
        let kind = Kind::from_byte(rest[0]).expect("decode checked every record");
        (read_u64(rest, 4), kind)
    }

    /// Where `name` is in the order of names.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.name(middle).cmp(name) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    /// The entry called `name`.
    pub fn get(&self, name: &[u8]) -> Option<DirectoryEntry> {
        self.find(name).map(|index| self.entry(index))
    }

    /// All entries, in order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], DirectoryEntry)> {
        (0..self.len()).map(|index| (self.name(index), self.entry(index)))
    }

    fn record(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let at = HEADER_BYTES + index * 4;
        let position = u32::from_le_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?) as usize;
        let (length, rest) = self.bytes.get(position..)?.split_first()?;
        rest.split_at_checked(*length as usize)
    }
}

pub(crate) fn encode_entry(bytes: &mut Vec<u8>, entry: &DirectoryEntry) {
    match entry {
        DirectoryEntry::Node(node) => encode_node(bytes, node),
        DirectoryEntry::Link { ino, kind } => {
            bytes.extend_from_slice(&[*kind as u8, FLAG_LINK, 0, 0]);
            bytes.extend_from_slice(&ino.to_le_bytes());
        }
    }
}

pub(crate) fn encode_node(bytes: &mut Vec<u8>, node: &Node) {
    let meta = &node.meta;
    let mut flags = 0;
    if meta.xattrs.is_some() {
        flags |= FLAG_XATTRS;
    }
    if node
        .content()
        .is_some_and(|content| matches!(content.layout, Layout::Segments(_)))
    {
        flags |= FLAG_SEGMENTS;
    }
    bytes.extend_from_slice(&[node.kind() as u8, flags]);
    bytes.extend_from_slice(&meta.mode.to_le_bytes());
    bytes.extend_from_slice(&meta.ino.to_le_bytes());
    bytes.extend_from_slice(&meta.uid.to_le_bytes());
    bytes.extend_from_slice(&meta.gid.to_le_bytes());
    for time in [meta.mtime, meta.ctime] {
        bytes.extend_from_slice(&time.secs.to_le_bytes());
        bytes.extend_from_slice(&time.nanos.to_le_bytes());
    }
    bytes.extend_from_slice(&meta.links.to_le_bytes());
    match &node.body {
        Body::File(content) => {
            bytes.extend_from_slice(&content.size.to_le_bytes());
            bytes.extend_from_slice(&content.stored.to_le_bytes());
            bytes.extend_from_slice(content.digest.as_bytes());
            if let Layout::Segments(list) = content.layout {
                bytes.extend_from_slice(list.as_bytes());
            }
        }
        Body::Directory {
            tree,
            subdirectories,
            entries,
        } => {
            bytes.extend_from_slice(tree.as_bytes());
            bytes.extend_from_slice(&subdirectories.to_le_bytes());
            bytes.extend_from_slice(&entries.to_le_bytes());
        }
        Body::Symlink(target) => {
            // The kernel's limit for a target is 4095 bytes.
            bytes.extend_from_slice(&(target.len() as u16).to_le_bytes());
            bytes.extend_from_slice(target);
        }
        Body::CharDevice(number) | Body::BlockDevice(number) => {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        Body::Fifo | Body::Socket => {}
    }
    if let Some(xattrs) = &meta.xattrs {
        bytes.extend_from_slice(xattrs.as_bytes());
    }
}

/// Reads an entry from the front of `bytes`; also returns what follows it. `None` if it is cut or
/// not an entry.
pub(crate) fn decode_entry(bytes: &[u8]) -> Option<(DirectoryEntry, &[u8])> {
    if bytes.get(1)? & FLAG_LINK == 0 {
        let (node, rest) = decode_node(bytes)?;
        return Some((DirectoryEntry::Node(node), rest));
    }
    let kind = Kind::from_byte(bytes[0])?;
    let mut reader = Reader(bytes.get(4..)?);
    Some((
        DirectoryEntry::Link {
            ino: reader.u64()?,
            kind,
        },
        reader.0,
    ))
}

/// Reads a node from the front of `bytes`; also returns what follows it.
pub(crate) fn decode_node(bytes: &[u8]) -> Option<(Node, &[u8])> {
    let mut reader = Reader(bytes);
    let kind = Kind::from_byte(reader.u8()?)?;
    let flags = reader.u8()?;
    let mode = reader.u16()?;
    let ino = reader.u64()?;
    let uid = reader.u32()?;
    let gid = reader.u32()?;
    let mtime = Timestamp {
        secs: reader.u64()? as i64,
        nanos: reader.u32()?,
    };
    let ctime = Timestamp {
        secs: reader.u64()? as i64,
        nanos: reader.u32()?,
    };
    let links = reader.u32()?;
    let body = match kind {
        Kind::File => {
            let size = reader.u64()?;
            let stored = reader.u64()?;
            let digest = reader.digest()?;
            let layout = if flags & FLAG_SEGMENTS == 0 {
                Layout::Whole
            } else {
                Layout::Segments(reader.digest()?)
            };
            Body::File(Content {
                size,
                stored,
                digest,
                layout,
            })
        }
        Kind::Directory => Body::Directory {
            tree: reader.digest()?,
            subdirectories: reader.u32()?,
            entries: reader.u32()?,
        },
        Kind::Symlink => {
            let length = reader.u16()?;
            Body::Symlink(reader.take(usize::from(length))?.into())
        }
        Kind::Fifo => Body::Fifo,
        Kind::Socket => Body::Socket,
        Kind::CharDevice => Body::CharDevice(reader.u64()?),
        Kind::BlockDevice => Body::BlockDevice(reader.u64()?),
    };
    let xattrs = if flags & FLAG_XATTRS == 0 {
        None
    } else {
        Some(reader.digest()?)
    };
    let meta = NodeMeta {
        ino,
        mode,
        uid,
        gid,
        mtime,
        ctime,
        links,
        xattrs,
    };
    Some((Node { meta, body }, reader.0))
}

/// Takes fixed-width values from the front of bytes; `None` when they run out.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn digest(&mut self) -> Option<Digest> {
        self.array().map(Digest::from_bytes)
    }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_body() -> impl Strategy<Value = Body> {
        let digest = any::<[u8; 32]>().prop_map(Digest::from_bytes);
        prop_oneof![
            (
                any::<u64>(),
                any::<u64>(),
                digest.clone(),
                proptest::option::of(digest.clone())
            )
                .prop_map(|(size, stored, digest, list)| Body::File(Content {
                    size,
                    stored,
                    digest,
                    layout: list.map_or(Layout::Whole, Layout::Segments),
                })),
            (digest, any::<u32>(), any::<u32>()).prop_map(|(tree, subdirectories, entries)| {
                Body::Directory {
                    tree,
                    subdirectories,
                    entries,
                }
            }),
            proptest::collection::vec(any::<u8>(), 0..300)
                .prop_map(|target| Body::Symlink(target.into())),
            Just(Body::Fifo),
            Just(Body::Socket),
            any::<u64>().prop_map(Body::CharDevice),
            any::<u64>().prop_map(Body::BlockDevice),
        ]
    }

    fn any_time() -> impl Strategy<Value = Timestamp> {
        (any::<i64>(), 0u32..1_000_000_000).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
    }

    fn any_entry() -> impl Strategy<Value = DirectoryEntry> {
        let meta = (
            any::<u64>(),
            0u16..0o10000,
            any::<(u32, u32, u32)>(),
            (any_time(), any_time()),
            proptest::option::of(any::<[u8; 32]>().prop_map(Digest::from_bytes)),
        );
        let node = (meta, any_body()).prop_map(
            |((ino, mode, (uid, gid, links), (mtime, ctime), xattrs), body)| {
                DirectoryEntry::Node(Node {
                    meta: NodeMeta {
                        ino,
                        mode,
                        uid,
                        gid,
                        mtime,
                        ctime,
                        links,
                        xattrs,
                    },
                    body,
                })
            },
        );
        prop_oneof![
            9 => node,
            1 => any::<u64>().prop_map(|ino| DirectoryEntry::Link { ino, kind: Kind::File }),
        ]
    }

    fn any_name() -> impl Strategy<Value = Name> {
        proptest::collection::vec(any::<u8>(), 1..20)
            .prop_filter_map("no name", |bytes| Name::new(&bytes).ok())
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_found_again(
            entries in proptest::collection::btree_map(any_name(), any_entry(), 0..40),
            other in any_name(),
        ) {
            let directory = Directory::encode(entries.clone().into_iter().collect());
            let digest = Digest::of(directory.as_bytes());
            let directory = Directory::decode(&digest, directory.as_bytes().to_vec()).unwrap();
            prop_assert_eq!(directory.len(), entries.len());
            for (index, (name, entry)) in entries.iter().enumerate() {
                prop_assert_eq!(directory.find(name.as_bytes()), Some(index));
                prop_assert_eq!(&directory.entry(index), entry);
                prop_assert_eq!(directory.identity(index), (entry.ino(), entry.kind()));
            }
            prop_assert_eq!(directory.find(other.as_bytes()).is_some(), entries.contains_key(&other));
        }

        #[test]
        fn damage_is_an_error_and_never_a_panic(
            entries in proptest::collection::btree_map(any_name(), any_entry(), 0..5),
            cut in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let bytes = Directory::encode(entries.into_iter().collect()).as_bytes().to_vec();
            let digest = Digest::of(&bytes);
            let cut_bytes = bytes[..cut.index(bytes.len())].to_vec();
            prop_assert!(Directory::decode(&digest, cut_bytes).is_err());
            let mut flipped = bytes.clone();
            flipped[flip.index(bytes.len())] ^= 1 << bit;
            if let Ok(directory) = Directory::decode(&digest, flipped) {
                directory.iter().for_each(drop);
            }
        }
    }
}
