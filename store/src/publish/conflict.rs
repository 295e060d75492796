//! Conflicts: paths that cannot be published, with what is needed to resolve them.

use crate::digest::Digest;
use crate::layer::{LayerId, Owner};
use crate::merge::Hunk;
use crate::name::RelPath;
use crate::node::{Kind, Node};

/// Why a path cannot be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// Both changed the same lines, or the same symlink or device.
    Content,
    /// Both changed a file that is no text, or too large to merge.
    Binary,
    /// Both changed the same mode, owner or extended attribute to different values.
    Metadata,
    /// Both added it, differently.
    AddAdd,
    /// One side deleted what the other changed.
    DeleteModify,
    /// The sides made different types of file of it.
    Type,
    /// Both moved it, to different places, or where it was moved to something else is by now.
    Rename,
    /// The policy refuses it.
    Rejected,
}

/// A path that cannot be published, with what is needed to resolve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The path.
    pub path: RelPath,
    /// Why.
    pub kind: ConflictKind,
    /// At the base; `None` if it was not there.
    pub base: Option<Version>,
    /// At the head.
    pub head: Option<Version>,
    /// In the session.
    pub mine: Option<Version>,
    /// The layer that changed it at the head.
    pub head_layer: Option<LayerId>,
    /// Who published that layer.
    pub head_owner: Option<Owner>,
    /// The places in conflict, for text.
    pub hunks: Vec<Hunk>,
    /// The text with diff3 markers, if it was asked for.
    pub marked: Option<Vec<u8>>,
}

/// A path at one side of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The type.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file or of a symlink's target.
    pub size: u64,
    /// Digest of a file's content.
    pub digest: Option<Digest>,
}

impl From<&Node> for Version {
    fn from(node: &Node) -> Self {
        Version {
            kind: node.kind(),
            mode: node.meta.mode,
            uid: node.meta.uid,
            gid: node.meta.gid,
            size: node.size(),
            digest: node.content().map(|content| content.digest),
        }
    }
}
