//! Removing names.

use sandstack_store::{Attributes, Attrs, Ino, Kind, Name, Record, Slot, Timestamp, Transaction};

use super::{Tree, new_name};
use crate::error::{Error, Result};

impl Tree {
    /// Removes the name of something that is no directory. Returns its attributes afterwards; with
    /// no link left it lives on until nobody has it open ([`Tree::forget`]).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::Store`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let name = new_name(name)?;
        let mut change = self.upper.begin();
        let directory = self.directory(change.state(), parent)?;
        let (ino, kind) = self
            .upper
            .lookup(change.state(), parent, name.as_bytes())?
            .ok_or(Error::NotFound)?;
        if kind == Kind::Directory {
            return Err(Error::IsDirectory);
        }
        let now = Timestamp::now();
        let found = self.push_unlink(&mut change, ino, now)?;
        self.push_no_entry(&mut change, parent, name)?;
        self.push_directory_change(&mut change, &directory, 0, now)?;
        change.commit()?;
        Ok(found)
    }

    /// Removes an empty directory. Returns its attributes afterwards.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`], [`Error::Store`].
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let name = new_name(name)?;
        let mut change = self.upper.begin();
        let directory = self.directory(change.state(), parent)?;
        let (ino, kind) = self
            .upper
            .lookup(change.state(), parent, name.as_bytes())?
            .ok_or(Error::NotFound)?;
        if kind != Kind::Directory {
            return Err(Error::NotDirectory);
        }
        if !self.upper.is_empty(change.state(), ino)? {
            return Err(Error::NotEmpty);
        }
        let now = Timestamp::now();
        let found = self.push_unlink(&mut change, ino, now)?;
        self.push_no_entry(&mut change, parent, name)?;
        self.push_directory_change(&mut change, &directory, -1, now)?;
        change.commit()?;
        Ok(found)
    }

    /// Takes one link from an inode; a directory loses both.
    pub(super) fn push_unlink(
        &self,
        change: &mut Transaction<'_>,
        ino: Ino,
        now: Timestamp,
    ) -> Result<Attributes> {
        let mut found = self.attributes_in(change.state(), ino)?;
        found.nlink = if found.kind == Kind::Directory {
            0
        } else {
            found.nlink.saturating_sub(1)
        };
        found.ctime = now;
        self.push_attrs(change, ino, Attrs::from(&found))?;
        Ok(found)
    }

    /// Makes a name not be there: a whiteout where the layer has it, nothing where it does not.
    pub(super) fn push_no_entry(
        &self,
        change: &mut Transaction<'_>,
        directory: Ino,
        name: Name,
    ) -> Result<()> {
        let below = self.upper.is_in_lower(directory, name.as_bytes())?;
        change.push(Record::Slot {
            directory,
            name,
            slot: below.then_some(Slot::Whiteout),
        });
        Ok(())
    }
}
