//! Nodes: files, directories, symlinks and special files, without their names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::digest::Digest;

/// An inode number, as `st_ino` shows it. Unique in a stack; 0 is never one.
pub type Ino = u64;

/// Extended attributes by name, values as set.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A time as the kernel keeps it: before 1970 and after 2038 alike.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// Nanoseconds after `secs`, 0 to 999,999,999.
    pub nanos: u32,
}

impl Timestamp {
    /// The present time, to the nanosecond.
    pub fn now() -> Self {
        // A clock before 1970 is shown as it is: the subtraction below is exact either way.
        let (secs, nanos) = match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)
        {
            Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => (-(before.as_secs() as i64), 0),
                    nanos => (-(before.as_secs() as i64) - 1, 1_000_000_000 - nanos),
                }
            }
        };
        Timestamp { secs, nanos }
    }

    /// Milliseconds since 1970, negative before.
    pub fn unix_ms(self) -> i64 {
        self.secs
            .saturating_mul(1000)
            .saturating_add(i64::from(self.nanos / 1_000_000))
    }
}

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// A regular file.
    File = 0,
    /// A directory.
    Directory = 1,
    /// A symbolic link.
    Symlink = 2,
    /// A named pipe.
    Fifo = 3,
    /// A unix-domain socket's name.
    Socket = 4,
    /// A character device.
    CharDevice = 5,
    /// A block device.
    BlockDevice = 6,
}

impl Kind {
    /// The kind whose number is `byte`, as the on-disk formats write it.
    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            0 => Kind::File,
            1 => Kind::Directory,
            2 => Kind::Symlink,
            3 => Kind::Fifo,
            4 => Kind::Socket,
            5 => Kind::CharDevice,
            6 => Kind::BlockDevice,
            _ => return None,
        })
    }

    /// The word for it, as operations show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symlink",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
            Kind::CharDevice => "char_device",
            Kind::BlockDevice => "block_device",
        }
    }
}

/// What every node has besides its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeMeta {
    /// Inode number.
    pub ino: Ino,
    /// Permission bits, all twelve.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time, as it was where the node came from, so that tools which compare it (git)
    /// find their caches clean.
    pub ctime: Timestamp,
    /// Hard links, 1 or more; always 1 for a directory, whose link count follows from its
    /// subdirectories.
    pub links: u32,
    /// Digest of the extended attributes; `None` means that there are none.
    pub xattrs: Option<Digest>,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory.
    Directory {
        /// Digest of its directory object.
        tree: Digest,
        /// How many of its entries are directories.
        subdirectories: u32,
        /// How many entries it has.
        entries: u32,
    },
    /// A symbolic link to this target.
    Symlink(Box<[u8]>),
    /// A named pipe.
    Fifo,
    /// A unix-domain socket's name.
    Socket,
    /// A character device with this number.
    CharDevice(u64),
    /// A block device with this number.
    BlockDevice(u64),
}

impl Body {
    /// The type.
    pub fn kind(&self) -> Kind {
        match self {
            Body::File(_) => Kind::File,
            Body::Directory { .. } => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
            Body::Fifo => Kind::Fifo,
            Body::Socket => Kind::Socket,
            Body::CharDevice(_) => Kind::CharDevice,
            Body::BlockDevice(_) => Kind::BlockDevice,
        }
    }
}

/// A node of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// What every node has.
    pub meta: NodeMeta,
    /// What this one is.
    pub body: Body,
}

impl Node {
    /// The type.
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// `st_nlink`: of a directory two and one for each subdirectory.
    pub fn nlink(&self) -> u32 {
        match self.body {
            Body::Directory { subdirectories, .. } => subdirectories.saturating_add(2),
            _ => self.meta.links,
        }
    }

    /// `st_size`: bytes of a file, or of a symlink's target; of a directory the size of its block.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size,
            Body::Symlink(target) => target.len() as u64,
            Body::Directory { .. } => 4096,
            Body::Fifo | Body::Socket | Body::CharDevice(_) | Body::BlockDevice(_) => 0,
        }
    }

    /// The content of a file; `None` for everything else.
    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_parse_back() {
        for byte in 0..=u8::MAX {
            if let Some(kind) = Kind::from_byte(byte) {
                assert_eq!(kind as u8, byte);
            }
        }
    }

    #[test]
    fn milliseconds_go_below_zero() {
        assert_eq!(
            Timestamp {
                secs: -1,
                nanos: 500_000_000
            }
            .unix_ms(),
            -500
        );
    }
}
