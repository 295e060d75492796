//! Extended attributes. Every namespace is kept and none interpreted, but access control lists, which
//! the permission bits follow.

use sandstack_store::{Attrs, Ino, Kind, Record, Timestamp, Xattrs};

use super::Tree;
use super::acl::{self, Acl};
use crate::error::{Error, Result};

/// What happens to an attribute that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// It is made or replaced.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Longest name (`XATTR_NAME_MAX`) and value (`XATTR_SIZE_MAX`) of the kernel, in bytes.
const MAX_NAME: usize = 255;
const MAX_VALUE: usize = 64 << 10;

impl Tree {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::Unsupported`] or [`Error::Invalid`] for a name that none can
    /// have; [`Error::Store`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_namespace(name)?;
        let mut xattrs = self.xattrs(ino)?;
        xattrs.remove(name).ok_or(Error::NoAttribute)
    }

    /// All extended attributes.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub fn xattrs(&self, ino: Ino) -> Result<Xattrs> {
        let state = self.upper.state();
        self.attributes_in(&state, ino)?;
        Ok(self.upper.xattrs(&state, ino)?)
    }

    /// Sets an extended attribute. Returns whether it is an access control list of something with
    /// the set-group-id bit, which goes then unless the caller may act for the group
    /// ([`Tree::drop_setgid`]).
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoAttribute`], [`Error::TooSmall`] if name or value is too long,
    /// [`Error::Unsupported`] or [`Error::Invalid`] for a name that none can have, [`Error::Store`].
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<bool> {
        check_namespace(name)?;
        if name.len() > MAX_NAME || value.len() > MAX_VALUE {
            return Err(Error::TooSmall);
        }
        let mut has_setgid = false;
        self.change_xattrs(ino, |attrs, kind, xattrs| {
            match (mode, xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(Error::Exists),
                (XattrMode::Replace, false) => return Err(Error::NoAttribute),
                _ => {}
            }
            if !is_list(name) {
                xattrs.insert(name.to_vec(), value.to_vec());
                return Ok(());
            }
            let list = Acl::decode(value)?;
            if name == acl::DEFAULT && kind != Kind::Directory && !list.is_empty() {
                return Err(Error::NotPermitted);
            }
            let mut says_more = !list.is_empty();
            if name == acl::ACCESS && says_more {
                attrs.mode = (attrs.mode & 0o7000) | list.bits();
                has_setgid = attrs.mode & libc::S_ISGID as u16 != 0;
                says_more = !list.is_minimal();
            }
            if says_more {
                xattrs.insert(name.to_vec(), value.to_vec());
            } else {
                xattrs.remove(name);
            }
            Ok(())
        })?;
        Ok(has_setgid)
    }

    /// Takes the set-group-id bit away.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub fn drop_setgid(&self, ino: Ino) -> Result<()> {
        self.change_xattrs(ino, |attrs, _, _| {
            attrs.mode &= !(libc::S_ISGID as u16);
            Ok(())
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::Unsupported`] or [`Error::Invalid`] for a name that none can
    /// have; [`Error::Store`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_namespace(name)?;
        self.change_xattrs(ino, |_, _, xattrs| {
            xattrs.remove(name).map(|_| ()).ok_or(Error::NoAttribute)
        })
    }

    fn change_xattrs(
        &self,
        ino: Ino,
        edit: impl FnOnce(&mut Attrs, Kind, &mut Xattrs) -> Result<()>,
    ) -> Result<()> {
        let mut change = self.upper.begin();
        let found = self.attributes_in(change.state(), ino)?;
        let mut xattrs = self.upper.xattrs(change.state(), ino)?;
        let mut attrs = Attrs {
            ctime: Timestamp::now(),
            ..Attrs::from(&found)
        };
        edit(&mut attrs, found.kind, &mut xattrs)?;
        self.push_attrs(&mut change, ino, attrs)?;
        change.push(Record::Xattrs { ino, xattrs });
        Ok(change.commit()?)
    }
}

fn check_namespace(name: &[u8]) -> Result<()> {
    const KEPT: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if KEPT.contains(&name) {
        Err(Error::Invalid)
    } else if KEPT.iter().any(|prefix| name.starts_with(prefix)) || is_list(name) {
        Ok(())
    } else {
        Err(Error::Unsupported)
    }
}

fn is_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}
