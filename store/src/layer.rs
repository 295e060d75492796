//! Layers: immutable states of a project, each of which is one root digest.
//!
//! A layer's root object is the magic `SRT1`, the root directory's node as in a directory object,
//! then one byte 1 and the digest of the layer's link table, or one byte 0 if it has none.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::directory::{Reader, decode_node, encode_node};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::objects::{ObjectBatch, Objects};

const ROOT_MAGIC: &[u8; 4] = b"SRT1";

/// What made a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LayerKind {
    /// An import of the project directory.
    Base,
    /// A publish.
    Published,
    /// A squash.
    Squashed,
}

/// The id of a layer: what made it, and the revision of the head that it was; `B000001`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerId {
    /// The revision of the head, from 1.
    pub revision: u64,
    /// What made it.
    pub kind: LayerKind,
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            LayerKind::Base => 'B',
            LayerKind::Published => 'L',
            LayerKind::Squashed => 'S',
        };
        write!(f, "{letter}{:06}", self.revision)
    }
}

/// A text that is no layer id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no layer id: B, L or S and a number of at least six digits are needed, as in L000024"
)]
pub struct InvalidLayerId(pub String);

impl FromStr for LayerId {
    type Err = InvalidLayerId;

    fn from_str(text: &str) -> Result<Self, InvalidLayerId> {
        let invalid = || InvalidLayerId(text.to_owned());
        let kind = match text.as_bytes().first() {
            Some(b'B') => LayerKind::Base,
            Some(b'L') => LayerKind::Published,
            Some(b'S') => LayerKind::Squashed,
            _ => return Err(invalid()),
        };
        let digits = &text[1..];
        if digits.len() < 6 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let id = LayerId {
            revision: digits.parse().map_err(|_| invalid())?,
            kind,
        };
        // One spelling for each layer: L0000024 is not L000024.
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(invalid())
        }
    }
}

/// Who made lines, or a layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// The imported project.
    Original,
    /// A workspace session, by its id.
    Session(String),
    /// One operation of its own, by its request id.
    Operation(String),
    /// A later edit in the project directory.
    Host,
    /// Not known; never a guess.
    Unknown,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Original => f.write_str("original"),
            Owner::Session(id) => write!(f, "workspace_session:{id}"),
            Owner::Operation(id) => write!(f, "operation:{id}"),
            Owner::Host => f.write_str("host"),
            Owner::Unknown => f.write_str("unknown"),
        }
    }
}

/// What the history says of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// The id.
    pub id: LayerId,
    /// The layer it was made on; `None` for a base.
    pub parent: Option<LayerId>,
    /// Digest of its root object.
    pub root: Digest,
    /// Who made it.
    pub owner: Owner,
    /// The session's name for people.
    pub session_name: Option<String>,
    /// The publish's message.
    pub message: Option<String>,
    /// The request that made it.
    pub request_id: Option<String>,
    /// When, in Unix milliseconds.
    pub time_unix_ms: u64,
    /// Paths that differ from the parent; of a base, all of them.
    pub changed_paths: u64,
    /// Bytes of content that it added to the store.
    pub added_bytes: u64,
    /// Logical bytes of all regular files; of 2^64 and more, which three files can have, what is over.
    pub logical_bytes: u64,
}

/// The root object of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerRoot {
    /// The workspace root's own node.
    pub(crate) node: Node,
    /// The link table, if any node has several names.
    pub(crate) links: Option<Digest>,
}

impl LayerRoot {
    pub(crate) fn load(objects: &Objects, digest: &Digest) -> Result<LayerRoot> {
        LayerRoot::decode(&objects.get(digest)?).ok_or_else(|| Error::Corrupt {
            what: format!("layer root {digest}"),
            detail: "it does not decode".to_owned(),
        })
    }

    pub(crate) fn save(&self, batch: &ObjectBatch<'_>) -> Result<Digest> {
        batch.put(&self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = ROOT_MAGIC.to_vec();
        encode_node(&mut bytes, &self.node);
        match &self.links {
            None => bytes.push(0),
            Some(links) => {
                bytes.push(1);
                bytes.extend_from_slice(links.as_bytes());
            }
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<LayerRoot> {
        let (node, rest) = decode_node(bytes.strip_prefix(ROOT_MAGIC)?)?;
        let mut reader = Reader(rest);
        let links = match reader.u8()? {
            0 => None,
            1 => Some(reader.digest()?),
            _ => return None,
        };
        reader.0.is_empty().then_some(LayerRoot { node, links })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_ids_have_one_spelling() {
        for text in ["B000001", "L000024", "S1234567"] {
            assert_eq!(text.parse::<LayerId>().unwrap().to_string(), text);
        }
        for text in ["", "L", "L24", "X000001", "L00000x", "L0000024", "é00000"] {
            assert!(text.parse::<LayerId>().is_err(), "{text}");
        }
    }
}
