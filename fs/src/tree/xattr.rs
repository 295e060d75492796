//! Extended attributes. Every namespace is kept and none interpreted, but access control lists,
//! which would have to be enforced to be kept.

use sandstack_store::{Attrs, Ino, Record, Timestamp, Xattrs};

use super::Tree;
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
    /// [`Error::NoAttribute`], [`Error::Unsupported`], [`Error::Store`].
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

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoAttribute`], [`Error::TooSmall`] if name or value is too long,
    /// [`Error::Unsupported`], [`Error::Store`].
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_namespace(name)?;
        if name.len() > MAX_NAME || value.len() > MAX_VALUE {
            return Err(Error::TooSmall);
        }
        self.change_xattrs(ino, |xattrs| {
            match (mode, xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(Error::Exists),
                (XattrMode::Replace, false) => return Err(Error::NoAttribute),
                _ => {}
            }
            xattrs.insert(name.to_vec(), value.to_vec());
            Ok(())
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::Unsupported`], [`Error::Store`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_namespace(name)?;
        self.change_xattrs(ino, |xattrs| {
            xattrs.remove(name).map(|_| ()).ok_or(Error::NoAttribute)
        })
    }

    fn change_xattrs(&self, ino: Ino, edit: impl FnOnce(&mut Xattrs) -> Result<()>) -> Result<()> {
        let mut change = self.upper.begin();
        let found = self.attributes_in(change.state(), ino)?;
        let mut xattrs = self.upper.xattrs(change.state(), ino)?;
        edit(&mut xattrs)?;
        let attrs = Attrs {
            ctime: Timestamp::now(),
            ..Attrs::from(&found)
        };
        self.push_attrs(&mut change, ino, attrs)?;
        change.push(Record::Xattrs { ino, xattrs });
        Ok(change.commit()?)
    }
}

fn check_namespace(name: &[u8]) -> Result<()> {
    const KEPT: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if KEPT
        .iter()
        .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
    {
        Ok(())
    } else {
        Err(Error::Unsupported)
    }
}
