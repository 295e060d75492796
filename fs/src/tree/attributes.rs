//! Changing attributes.

use sandstack_store::{Attributes, Attrs, Ino, Kind, Record, Timestamp, Transaction};

use super::acl::{self, Acl};
use super::{Caller, MAX_FILE, Tree};
use crate::error::{Error, Result};

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present one.
    Now,
    /// This one.
    At(Timestamp),
}

/// Attributes to be set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, all twelve.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of a file.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

impl Tree {
    /// Sets attributes.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::IsDirectory`] or [`Error::Invalid`] for the size of something
    /// that is no file; [`Error::FileTooLarge`]; [`Error::Store`].
    pub fn set_attributes(
        &self,
        caller: Caller,
        ino: Ino,
        set: SetAttributes,
    ) -> Result<Attributes> {
        if let Some(size) = set.size {
            self.set_size(caller, ino, size)?;
        }
        let rest = SetAttributes { size: None, ..set };
        let only_size = set.size.is_some() && rest == SetAttributes::default();
        if !only_size {
            self.set_rest(caller, ino, rest)?;
        }
        self.attributes(ino)
    }

    fn set_size(&self, caller: Caller, ino: Ino, size: u64) -> Result<()> {
        match self.attributes(ino)?.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        }
        if size > MAX_FILE {
            return Err(Error::FileTooLarge);
        }
        self.drop_capability(ino)?;
        let now = Timestamp::now();
        let loser = caller.loses_setid();
        self.upper.set_size(ino, size, |attrs| Attrs {
            mode: loser.map_or(attrs.mode, |loser| without_setid(&attrs, loser)),
            mtime: now,
            ctime: now,
            ..attrs
        })?;
        Ok(())
    }

    fn set_rest(&self, caller: Caller, ino: Ino, set: SetAttributes) -> Result<()> {
        // With nothing to set it is a change of owner to what it is already, or the kernel's wish,
        // before a change of content, that set-id bits go.
        let sets_nothing = set == SetAttributes::default();
        if sets_nothing && self.keeps_setid_from(caller, ino)? {
            return Ok(());
        }
        let chowns = set.uid.is_some() || set.gid.is_some() || sets_nothing;
        if chowns {
            self.drop_capability(ino)?;
        }
        let mut change = self.upper.begin();
        let old = self.attributes_in(change.state(), ino)?;
        let mut attrs = Attrs::from(&old);
        let now = Timestamp::now();
        if let Some(mode) = set.mode {
            attrs.mode = mode & 0o7777;
        } else if chowns && old.kind != Kind::Directory {
            attrs.mode = without_setid(&attrs, caller);
        }
        attrs.uid = set.uid.unwrap_or(attrs.uid);
        attrs.gid = set.gid.unwrap_or(attrs.gid);
        let time = |set: Option<SetTime>, old: Timestamp| match set {
            None => old,
            Some(SetTime::Now) => now,
            Some(SetTime::At(time)) => time,
        };
        attrs.atime = time(set.atime, attrs.atime);
        attrs.mtime = time(set.mtime, attrs.mtime);
        attrs.ctime = now;
        self.push_attrs(&mut change, ino, attrs)?;
        if set.mode.is_some() {
            self.push_acl_mode(&mut change, ino, attrs.mode)?;
        }
        Ok(change.commit()?)
    }

    /// Whether `ino` has set-id bits that are not the caller's to take away. On a disk that is
    /// [`Error::NotPermitted`] for a change of owner, and right before a change of content. The two
    /// look the same here, and the change of content takes the bits itself.
    fn keeps_setid_from(&self, caller: Caller, ino: Ino) -> Result<bool> {
        let found = self.attributes(ino)?;
        let owns = caller.uid == 0 || caller.uid == found.uid;
        let attrs = Attrs::from(&found);
        Ok(!owns && found.kind != Kind::Directory && without_setid(&attrs, caller) != attrs.mode)
    }

    /// Makes the access control list say what new permission bits say, if there is one.
    fn push_acl_mode(&self, change: &mut Transaction<'_>, ino: Ino, mode: u16) -> Result<()> {
        let mut xattrs = self.upper.xattrs(change.state(), ino)?;
        if let Some(list) = xattrs.get_mut(acl::ACCESS) {
            let mut acl = Acl::decode(list)?;
            acl.set_bits(mode);
            *list = acl.encode();
            change.push(Record::Xattrs { ino, xattrs });
        }
        Ok(())
    }

    /// Removes `security.capability`, as every change of content or owner does.
    pub(super) fn drop_capability(&self, ino: Ino) -> Result<()> {
        const CAPABILITY: &[u8] = b"security.capability";
        // Files with any extended attribute are few: this is a look at a digest in memory.
        let xattrs = self.upper.xattrs(&self.upper.state(), ino)?;
        if !xattrs.contains_key(CAPABILITY) {
            return Ok(());
        }
        let mut change = self.upper.begin();
        let mut xattrs = self.upper.xattrs(change.state(), ino)?;
        xattrs.remove(CAPABILITY);
        if let Some(record) = self.upper.copy_up(change.state(), ino)? {
            change.push(record);
        }
        change.push(Record::Xattrs { ino, xattrs });
        Ok(change.commit()?)
    }
}

impl Caller {
    /// The caller, if set-id bits go when it changes the content of a file. The kernel asks for that
    /// where the caller lacks `CAP_FSETID`; not every request says so, and who has it is root.
    pub(super) fn loses_setid(self) -> Option<Caller> {
        (self.uid != 0).then_some(self)
    }
}

/// The mode without set-uid, and without set-gid where the group may execute or the caller is not in
/// it. (Otherwise the bit once meant mandatory locking, and stays.)
pub(super) fn without_setid(attrs: &Attrs, caller: Caller) -> u16 {
    const SETUID: u16 = libc::S_ISUID as u16;
    const SETGID: u16 = libc::S_ISGID as u16;
    const GROUP_EXECUTE: u16 = libc::S_IXGRP as u16;
    let mode = attrs.mode & !SETUID;
    let stays = mode & GROUP_EXECUTE == 0 && (mode & SETGID == 0 || caller.is_member(attrs.gid));
    if stays { mode } else { mode & !SETGID }
}
