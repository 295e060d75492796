//! Making files, directories, symlinks, special files and hard links.

use sandstack_store::{
    Attributes, Attrs, Entry, Ino, Kind, Name, NewBody, Record, Slot, State, Timestamp,
    Transaction, Xattrs,
};

use super::acl::{self, Acl};
use super::{Caller, MAX_LINKS, Tree, new_name};
use crate::error::{Error, Result};

/// Longest target of a symlink, in bytes (the kernel's `PATH_MAX` less its NUL).
const MAX_TARGET: usize = 4095;

/// The permissions that something is to be made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMode {
    /// Permission bits, all twelve.
    pub bits: u16,
    /// Bits that are taken away, unless the directory has a default access control list, which
    /// decides then.
    pub umask: u16,
}

impl From<u16> for NewMode {
    fn from(bits: u16) -> Self {
        NewMode { bits, umask: 0 }
    }
}

/// What is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewNode {
    /// An empty file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A unix-domain socket's name.
    Socket,
    /// A character device with this number.
    CharDevice(u64),
    /// A block device with this number.
    BlockDevice(u64),
}

impl NewNode {
    fn kind(&self) -> Kind {
        match self {
            NewNode::File => Kind::File,
            NewNode::Directory => Kind::Directory,
            NewNode::Symlink(_) => Kind::Symlink,
            NewNode::Fifo => Kind::Fifo,
            NewNode::Socket => Kind::Socket,
            NewNode::CharDevice(_) => Kind::CharDevice,
            NewNode::BlockDevice(_) => Kind::BlockDevice,
        }
    }
}

impl From<NewNode> for NewBody {
    fn from(node: NewNode) -> Self {
        match node {
            NewNode::File => NewBody::Empty,
            NewNode::Directory => NewBody::Directory,
            NewNode::Symlink(target) => NewBody::Symlink(target.into()),
            NewNode::Fifo => NewBody::Fifo,
            NewNode::Socket => NewBody::Socket,
            NewNode::CharDevice(number) => NewBody::CharDevice(number),
            NewNode::BlockDevice(number) => NewBody::BlockDevice(number),
        }
    }
}

impl Tree {
    /// Makes a node called `name` in `parent`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`] if the directory is gone, [`Error::NotDirectory`],
    /// [`Error::NameTooLong`], [`Error::Store`]. An empty symlink target is [`Error::NotFound`], as in
    /// Linux.
    pub fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        mode: impl Into<NewMode>,
        node: NewNode,
    ) -> Result<Attributes> {
        let given = mode.into();
        let name = new_name(name)?;
        if let NewNode::Symlink(target) = &node {
            match target.len() {
                0 => return Err(Error::NotFound),
                length if length > MAX_TARGET => return Err(Error::NameTooLong),
                _ => {}
            }
        }
        let ino = self.upper.new_ino()?;
        let mut change = self.upper.begin();
        let directory = self.directory(change.state(), parent)?;
        if self
            .upper
            .lookup(change.state(), parent, name.as_bytes())?
            .is_some()
        {
            return Err(Error::Exists);
        }
        let now = Timestamp::now();
        let kind = node.kind();
        let is_directory = kind == Kind::Directory;
        let inherits_group = directory.mode & libc::S_ISGID as u16 != 0;
        let (mut mode, xattrs) = if kind == Kind::Symlink {
            (0o777, Xattrs::new())
        } else {
            self.inherited(change.state(), parent, given, is_directory)?
        };
        if inherits_group && is_directory {
            mode |= libc::S_ISGID as u16;
        }
        let attrs = Attrs {
            mode,
            uid: caller.uid,
            gid: if inherits_group {
                directory.gid
            } else {
                caller.gid
            },
            nlink: if is_directory { 2 } else { 1 },
            atime: now,
            mtime: now,
            ctime: now,
        };
        let rdev = match node {
            NewNode::CharDevice(number) | NewNode::BlockDevice(number) => number,
            _ => 0,
        };
        let (size, stored) = match &node {
            NewNode::Symlink(target) => (target.len() as u64, 0),
            NewNode::Directory => (4096, 4096),
            _ => (0, 0),
        };
        change.push(Record::Inode {
            ino,
            attrs,
            in_lower: false,
            body: node.into(),
        });
        if !xattrs.is_empty() {
            change.push(Record::Xattrs { ino, xattrs });
        }
        push_entry(&mut change, parent, name, ino, kind);
        self.push_directory_change(&mut change, &directory, i32::from(is_directory), now)?;
        change.commit()?;
        Ok(Attributes {
            ino,
            kind,
            mode,
            uid: attrs.uid,
            gid: attrs.gid,
            nlink: attrs.nlink,
            size,
            stored,
            rdev,
            atime: now,
            mtime: now,
            ctime: now,
        })
    }

    /// The permission bits and the lists that something new in `parent` begins with.
    fn inherited(
        &self,
        state: &State,
        parent: Ino,
        given: NewMode,
        is_directory: bool,
    ) -> Result<(u16, Xattrs)> {
        let bits = given.bits & 0o7777;
        let mut xattrs = Xattrs::new();
        let Some(default) = self.upper.xattrs(state, parent)?.remove(acl::DEFAULT) else {
            return Ok((bits & !given.umask, xattrs));
        };
        let access = Acl::decode(&default)?.inherited(bits);
        let mode = (bits & 0o7000) | access.bits();
        if !access.is_minimal() {
            xattrs.insert(acl::ACCESS.to_vec(), access.encode());
        }
        if is_directory {
            xattrs.insert(acl::DEFAULT.to_vec(), default);
        }
        Ok((mode, xattrs))
    }

    /// Gives inode `ino` a further name.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] if the inode has no name any more or the directory is
    /// gone; [`Error::NotPermitted`] for a directory; [`Error::TooManyLinks`]; [`Error::Store`].
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let name = new_name(name)?;
        let mut change = self.upper.begin();
        let directory = self.directory(change.state(), parent)?;
        let mut found = self.attributes_in(change.state(), ino)?;
        if found.kind == Kind::Directory {
            return Err(Error::NotPermitted);
        }
        if self
            .upper
            .lookup(change.state(), parent, name.as_bytes())?
            .is_some()
        {
            return Err(Error::Exists);
        }
        if found.nlink == 0 {
            return Err(Error::NotFound);
        }
        if found.nlink >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        let now = Timestamp::now();
        found.nlink += 1;
        found.ctime = now;
        self.push_attrs(&mut change, ino, Attrs::from(&found))?;
        push_entry(&mut change, parent, name, ino, found.kind);
        self.push_directory_change(&mut change, &directory, 0, now)?;
        change.commit()?;
        Ok(found)
    }
}

/// Adds the record that makes an entry, behind all others in the directory.
pub(super) fn push_entry(
    change: &mut Transaction<'_>,
    directory: Ino,
    name: Name,
    ino: Ino,
    kind: Kind,
) {
    let cookie = change.state().next_cookie(directory);
    push_entry_at(change, directory, name, ino, kind, cookie);
}

/// Like [`push_entry`], with a cookie of its own choice, for a change that makes several entries.
pub(super) fn push_entry_at(
    change: &mut Transaction<'_>,
    directory: Ino,
    name: Name,
    ino: Ino,
    kind: Kind,
    cookie: u64,
) {
    change.push(Record::Slot {
        directory,
        name,
        slot: Some(Slot::Entry(Entry { ino, kind, cookie })),
    });
}
