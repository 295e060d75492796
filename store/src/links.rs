//! The link table of a layer: the nodes that have several names.
//!
//! A hard link is one node in several directories. It lies here once, by inode number, with the
//! directories and names it is found under; the directories hold only its number. So a change to
//! it touches one object, whatever names it has.
//!
//! # On disk
//! The magic `SLK1`, the number of nodes (32 bits), for each the position of its record (32 bits),
//! the records sorted by inode number: a node as in a directory object, the number of names (32
//! bits), for each name the directory's inode number (64 bits), the name's length (8 bits) and the
//! name. Little-endian.

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::directory::{Reader, decode_node, encode_node};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::node::{Ino, Node};
use crate::objects::{ObjectBatch, Objects};

const MAGIC: &[u8; 4] = b"SLK1";

/// A node with several names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkedNode {
    pub(crate) node: Node,
    /// Directory and name of each name.
    pub(crate) names: BTreeSet<(Ino, Name)>,
}

/// The nodes of a layer that have several names, by inode number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkTable(pub(crate) BTreeMap<Ino, LinkedNode>);

impl LinkTable {
    /// Reads the table named `digest`; `None` names the empty one.
    pub(crate) fn load(objects: &Objects, digest: Option<&Digest>) -> Result<LinkTable> {
        let Some(digest) = digest else {
            return Ok(LinkTable::default());
        };
        LinkTable::decode(&objects.get(digest)?).ok_or_else(|| Error::Corrupt {
            what: format!("link table {digest}"),
            detail: "it does not decode".to_owned(),
        })
    }

    /// Stores the table; `None` if it is empty.
    pub(crate) fn save(&self, batch: &ObjectBatch<'_>) -> Result<Option<Digest>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        batch.put(&self.encode()).map(Some)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        let table = bytes.len();
        bytes.resize(table + self.0.len() * 4, 0);
        for (index, linked) in self.0.values().enumerate() {
            let position = bytes.len() as u32;
            bytes[table + index * 4..table + index * 4 + 4]
                .copy_from_slice(&position.to_le_bytes());
            encode_node(&mut bytes, &linked.node);
            bytes.extend_from_slice(&(linked.names.len() as u32).to_le_bytes());
            for (parent, name) in &linked.names {
                bytes.extend_from_slice(&parent.to_le_bytes());
                bytes.push(name.as_bytes().len() as u8);
                bytes.extend_from_slice(name.as_bytes());
            }
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<LinkTable> {
        let mut reader = Reader(bytes);
        if reader.take(4)? != MAGIC {
            return None;
        }
        let count = reader.u32()?;
        reader.take(count as usize * 4)?;
        let mut table = BTreeMap::new();
        for _ in 0..count {
            let (node, rest) = decode_node(reader.0)?;
            reader = Reader(rest);
            let mut names = BTreeSet::new();
            for _ in 0..reader.u32()? {
                let parent = reader.u64()?;
                let length = reader.u8()?;
                names.insert((parent, Name::new(reader.take(usize::from(length))?).ok()?));
            }
            table.insert(node.meta.ino, LinkedNode { node, names });
        }
        reader.0.is_empty().then_some(LinkTable(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;
    use crate::node::{Body, NodeMeta, Timestamp};

    #[test]
    fn tables_decode_back() {
        let node = |ino| Node {
            meta: NodeMeta {
                ino,
                mode: 0o644,
                uid: 1,
                gid: 2,
                mtime: Timestamp { secs: -5, nanos: 7 },
                ctime: Timestamp::default(),
                links: 2,
                xattrs: Some(Digest::of(b"x")),
            },
            body: Body::File(Content::empty()),
        };
        let mut table = LinkTable::default();
        for ino in [9, 3, 700] {
            let names = [
                (1, Name::new(b"a").unwrap()),
                (4, Name::new(b"\xff b").unwrap()),
            ]
            .into();
            table.0.insert(
                ino,
                LinkedNode {
                    node: node(ino),
                    names,
                },
            );
        }
        let bytes = table.encode();
        assert_eq!(LinkTable::decode(&bytes), Some(table));
        for cut in 0..bytes.len() {
            assert_eq!(LinkTable::decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }
}
