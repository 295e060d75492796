//! Requests about names, and what hangs on an inode beside its content.

use sandstack_store::{AccessKind, Attributes, Ino};

use super::Requests;
use crate::error::{Error, Result};
use crate::tree::{Caller, NewMode, NewNode, RenameMode, XattrMode};

/// The answer to a question that may be for the size alone.
pub(crate) enum Sized {
    /// So many bytes there are.
    Size(u32),
    /// These.
    Value(Vec<u8>),
}

impl Requests {
    /// `None`: the name is not there, which may be believed like any answer. By `.` and `..` the
    /// kernel asks for what a file handle is, on its own account.
    pub(crate) fn lookup(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<Attributes>> {
        let tree = self.trees.of(parent);
        match tree.lookup(parent, name) {
            // Without a name it is about to go: the kernel has given it back, or would not ask.
            Ok(found) if matches!(name, b"." | b"..") && found.nlink == 0 => Ok(None),
            Ok(found) if matches!(name, b"." | b"..") => {
                self.told(&found);
                Ok(Some(self.owned(found)))
            }
            Err(Error::NotFound) if matches!(name, b"." | b"..") => Ok(None),
            Ok(found) => {
                self.told(&found);
                self.recorder.named_if_changed(&tree, &found, parent, name);
                self.recorder
                    .entry(caller.pid, parent, name, AccessKind::Lookup, 0);
                Ok(Some(self.owned(found)))
            }
            Err(Error::NotFound) => {
                self.recorder
                    .entry(caller.pid, parent, name, AccessKind::Missing, 0);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn read_link(&self, caller: Caller, ino: Ino) -> Result<Box<[u8]>> {
        let target = self.trees.of(ino).read_link(ino)?;
        self.recorder
            .inode(caller.pid, ino, AccessKind::Read, target.len() as u64);
        Ok(target)
    }

    pub(crate) fn make(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        mode: NewMode,
        node: NewNode,
    ) -> Result<Attributes> {
        let made = self
            .trees
            .of(parent)
            .create(caller, parent, name, mode, node)?;
        self.told(&made);
        self.recorder.named(made.ino, parent, name);
        self.recorder
            .entry(caller.pid, parent, name, AccessKind::Create, 0);
        Ok(self.owned(made))
    }

    /// `mode` has the type, `device` a device's number as FUSE carries it.
    pub(crate) fn make_node(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        (mode, umask): (u32, u32),
        device: u32,
    ) -> Result<Attributes> {
        let node = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NewNode::File,
            libc::S_IFIFO => NewNode::Fifo,
            libc::S_IFSOCK => NewNode::Socket,
            libc::S_IFCHR => NewNode::CharDevice(libc_device(device)),
            libc::S_IFBLK => NewNode::BlockDevice(libc_device(device)),
            _ => return Err(Error::Invalid),
        };
        self.make(caller, parent, name, new_mode(mode, umask), node)
    }

    /// Makes a file and opens it. Returns the flags of the reply, too.
    pub(crate) fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        mode: NewMode,
        flags: i32,
    ) -> Result<(Attributes, u32)> {
        let made = self.make(caller, parent, name, mode, NewNode::File)?;
        self.note_open(caller.pid, made.ino, flags);
        Ok((made, self.open_flags()))
    }

    /// What was made by an earlier server of the connection is opened. Returns the flags of the reply.
    pub(crate) fn created(&self, caller: Caller, made: &Attributes, flags: i32) -> u32 {
        self.note_open(caller.pid, made.ino, flags);
        self.open_flags()
    }

    /// Whether an earlier server of the connection has done `request`, which is about `ino`.
    pub(crate) fn was_done(&self, ino: Ino, request: u64) -> bool {
        self.trees.of(ino).upper().state().was_asked(request)
    }

    pub(crate) fn unlink(&self, caller: Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.trees.of(parent).unlink(parent, name)?;
        self.recorder
            .entry(caller.pid, parent, name, AccessKind::Remove, 0);
        Ok(())
    }

    pub(crate) fn remove_directory(&self, caller: Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.trees.of(parent).remove_directory(parent, name)?;
        self.recorder.directories_moved();
        self.recorder
            .entry(caller.pid, parent, name, AccessKind::Remove, 0);
        Ok(())
    }

    /// `flags` as `renameat2(2)` has them.
    pub(crate) fn rename(
        &self,
        caller: Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => RenameMode::Whiteout,
            _ => return Err(Error::Invalid),
        };
        let tree = self.trees.of(from.0);
        tree.rename(caller, from, to, mode)?;
        self.recorder
            .renamed(&tree, caller.pid, from, to, mode == RenameMode::Exchange);
        Ok(())
    }

    pub(crate) fn link(
        &self,
        caller: Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<Attributes> {
        let found = self.trees.of(parent).link(ino, parent, name)?;
        self.told(&found);
        self.recorder.named(ino, parent, name);
        self.recorder
            .entry(caller.pid, parent, name, AccessKind::Link, 0);
        Ok(self.owned(found))
    }

    /// As [`crate::Tree::list`]. `wanted` says whether it took the entry.
    pub(crate) fn list(
        &self,
        caller: Caller,
        ino: Ino,
        from: u64,
        attributes: bool,
        mut wanted: impl FnMut(&[u8], &Attributes, u64) -> bool,
    ) -> Result<()> {
        if from == 0 {
            self.recorder.inode(caller.pid, ino, AccessKind::List, 0);
        }
        self.trees
            .of(ino)
            .list(ino, from, attributes, |name, found, next| {
                let taken = wanted(name, &self.owned(*found), next);
                // A listing with attributes is a look-up of each entry; but of `.` and `..`.
                if taken && attributes && next > 2 {
                    self.told(found);
                }
                taken
            })
    }

    /// `flags` as `setxattr(2)` has them.
    pub(crate) fn set_xattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Error::Invalid),
        };
        let tree = self.trees.of(ino);
        let loses_setgid =
            tree.set_xattr(ino, name, value, mode)? && !caller.is_member(tree.attributes(ino)?.gid);
        if loses_setgid {
            tree.drop_setgid(ino)?;
        }
        self.recorder
            .inode(caller.pid, ino, AccessKind::Metadata, 0);
        Ok(())
    }

    /// The value of an attribute, into a buffer of `size` bytes; 0 asks how large it must be.
    pub(crate) fn xattr(&self, ino: Ino, name: &[u8], size: u32) -> Result<Sized> {
        sized(self.trees.of(ino).xattr(ino, name)?, size)
    }

    /// The names of all attributes, each ended by a zero byte; `size` as for a value.
    pub(crate) fn xattrs(&self, ino: Ino, size: u32) -> Result<Sized> {
        let names: Vec<u8> = self
            .trees
            .of(ino)
            .xattrs(ino)?
            .keys()
            .flat_map(|name| name.iter().copied().chain([0]))
            .collect();
        sized(names, size)
    }

    pub(crate) fn remove_xattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.trees.of(ino).remove_xattr(ino, name)?;
        self.recorder
            .inode(caller.pid, ino, AccessKind::Metadata, 0);
        Ok(())
    }
}

fn sized(value: Vec<u8>, size: u32) -> Result<Sized> {
    if size == 0 {
        Ok(Sized::Size(value.len() as u32))
    } else if value.len() > size as usize {
        Err(Error::TooSmall)
    } else {
        Ok(Sized::Value(value))
    }
}

/// What something is made with, from a mode and a umask as FUSE carries them.
pub(crate) fn new_mode(mode: u32, umask: u32) -> NewMode {
    NewMode {
        bits: (mode & 0o7777) as u16,
        umask: (umask & 0o777) as u16,
    }
}

/// A device number as FUSE carries it (the kernel's `new_encode_dev`), from libc's.
pub(crate) fn kernel_device(number: u64) -> u32 {
    let (major, minor) = (libc::major(number), libc::minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn libc_device(number: u32) -> u64 {
    libc::makedev(
        (number & 0xfff00) >> 8,
        (number & 0xff) | ((number >> 12) & 0xfff00),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_go_both_ways() {
        for (major, minor) in [
            (0, 0),
            (1, 3),
            (8, 255),
            (259, 1),
            (4095, 0xfffff),
            (10, 229),
        ] {
            let number = libc::makedev(major, minor);
            assert_eq!(
                libc_device(kernel_device(number)),
                number,
                "{major}:{minor}"
            );
        }
    }
}
