//! The filesystem of one session: POSIX rules over an upper.
//!
//! Operations take inode numbers and names as the kernel hands them over and a [`Caller`]. Whether
//! the caller may do it is the kernel's to decide (`default_permissions`); what is left to a
//! filesystem is done here: set-id bits, sticky group inheritance, link counts, times, emptiness.
//!
//! Every change is one transaction of the upper: checked and recorded while no other change can
//! come between, and acknowledged when the journal has it.

mod acl;
mod attributes;
mod caller;
mod content;
mod create;
mod remove;
mod rename;
mod room;
mod xattr;

use std::sync::Arc;

use sandstack_store::{
    Attributes, Attrs, Ino, Kind, NAME_MAX, Name, ROOT_INO, Record, State, Timestamp, Transaction,
    Upper,
};

pub use attributes::{SetAttributes, SetTime};
pub use caller::Caller;
pub use create::{NewMode, NewNode};
pub use rename::RenameMode;
pub use xattr::XattrMode;

use crate::error::{Error, Result};
use room::Room;

/// Largest file, in bytes: the kernel's own limit for an offset.
pub(crate) const MAX_FILE: u64 = i64::MAX as u64;
/// Most names of a file. ext4 has 65,000; a 32-bit count holds more than anyone makes.
const MAX_LINKS: u32 = 1 << 20;

/// The filesystem of one session. Shared by all threads that serve it.
pub struct Tree {
    upper: Arc<Upper>,
    room: Room,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("upper", &self.upper).finish()
    }
}

impl Tree {
    /// The filesystem over `upper`. Inodes that had no name when the last server of the upper ended
    /// are dropped: nobody can have them open any more.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn new(upper: Arc<Upper>) -> Result<Self> {
        let tree = Tree::resumed(upper);
        tree.drop_nameless()?;
        let mut change = tree.upper.begin();
        if change.state().was_anything_asked() {
            change.push(Record::Asked { request: 0 });
        }
        change.commit()?;
        Ok(tree)
    }

    /// The filesystem over `upper` for a kernel that has known it all the time, and asks again for
    /// what the last server has not answered.
    pub fn resumed(upper: Arc<Upper>) -> Self {
        Tree {
            upper,
            room: Room::default(),
        }
    }

    /// What is served.
    pub fn upper(&self) -> &Arc<Upper> {
        &self.upper
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        self.attributes_in(&self.upper.state(), ino)
    }

    /// The inode that a name of a directory is.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameTooLong`], [`Error::Store`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let state = self.upper.state();
        match name {
            b"." => return self.attributes_in(&state, parent),
            b".." => {
                let above = self
                    .upper
                    .parent(&state, parent)?
                    .map_or(ROOT_INO, |(above, _)| above);
                return self.attributes_in(&state, above);
            }
            _ => {}
        }
        let found = self.upper.attributes_at(&state, parent, name)?;
        found.ok_or(Error::NotFound)
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none, [`Error::Store`].
    pub fn read_link(&self, ino: Ino) -> Result<Box<[u8]>> {
        self.upper
            .target(&self.upper.state(), ino)?
            .ok_or(Error::Invalid)
    }

    /// Lists a directory from position `from` (0 is the start) as long as `wanted` takes more: name,
    /// attributes, and the position after it. `.` and `..` come first. With `attributes` false only
    /// inode number and type are right.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], [`Error::Store`].
    pub fn list(
        &self,
        ino: Ino,
        from: u64,
        attributes: bool,
        mut wanted: impl FnMut(&[u8], &Attributes, u64) -> bool,
    ) -> Result<()> {
        let state = self.upper.state();
        let own = self.attributes_in(&state, ino)?;
        if own.kind != Kind::Directory {
            return Err(Error::NotDirectory);
        }
        if from < 1 && !wanted(b".", &own, 1) {
            return Ok(());
        }
        if from < 2 {
            let above = self
                .upper
                .parent(&state, ino)?
                .map_or(ino, |(above, _)| above);
            let above = self.attributes_in(&state, above)?;
            if !wanted(b"..", &above, 2) {
                return Ok(());
            }
        }
        let mut failed = None;
        self.upper
            .list(&state, ino, from.saturating_sub(2), |entry| {
                let found = if attributes {
                    let found = self.upper.attributes_of(&state, &entry);
                    found
                        .map_err(Error::from)
                        .and_then(|found| found.ok_or(Error::NotFound))
                } else {
                    Ok(Attributes {
                        ino: entry.ino,
                        kind: entry.kind,
                        ..own
                    })
                };
                match found {
                    Ok(found) => wanted(entry.name, &found, entry.next + 2),
                    Err(error) => {
                        failed = Some(error);
                        false
                    }
                }
            })?;
        failed.map_or(Ok(()), Err)
    }

    /// The kernel has no reference to `ino` any more: if it has no name either, it is gone.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn forget(&self, ino: Ino) -> Result<()> {
        // Most inodes that are forgotten have a name: that needs no transaction.
        if self
            .upper
            .state()
            .inode(ino)
            .is_none_or(|inode| inode.attrs.nlink > 0)
        {
            return Ok(());
        }
        let mut change = self.upper.begin();
        if change
            .state()
            .inode(ino)
            .is_some_and(|inode| inode.attrs.nlink == 0)
        {
            change.push(Record::Drop { ino });
        }
        change.commit()?;
        self.room_is_back(ino);
        Ok(())
    }

    /// Drops every inode without a name. Only when no kernel has references.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn drop_nameless(&self) -> Result<()> {
        let mut change = self.upper.begin();
        let nameless: Vec<Ino> = change
            .state()
            .inodes()
            .filter(|(_, inode)| inode.attrs.nlink == 0)
            .map(|(ino, _)| ino)
            .collect();
        for ino in nameless {
            change.push(Record::Drop { ino });
        }
        Ok(change.commit()?)
    }

    /// Makes everything acknowledged durable against power loss.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn sync(&self) -> Result<()> {
        Ok(self.upper.sync()?)
    }

    fn attributes_in(&self, state: &State, ino: Ino) -> Result<Attributes> {
        self.upper.attributes(state, ino)?.ok_or(Error::NotFound)
    }

    /// The attributes of `ino`, which must be a directory that is still there.
    fn directory(&self, state: &State, ino: Ino) -> Result<Attributes> {
        let found = self.attributes_in(state, ino)?;
        match found.kind {
            // Removed while someone had it as working directory.
            Kind::Directory if found.nlink == 0 => Err(Error::NotFound),
            Kind::Directory => Ok(found),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Adds the records that set the attributes of an inode, whether the session has changed it
    /// before or not.
    fn push_attrs(&self, change: &mut Transaction<'_>, ino: Ino, attrs: Attrs) -> Result<()> {
        if let Some(record) = self.upper.copy_up(change.state(), ino)? {
            change.push(record);
        }
        change.push(Record::Attrs { ino, attrs });
        Ok(())
    }

    /// Moves mtime and ctime of a directory, and its link count by `links`.
    fn push_directory_change(
        &self,
        change: &mut Transaction<'_>,
        directory: &Attributes,
        links: i32,
        now: Timestamp,
    ) -> Result<()> {
        let mut attrs = Attrs::from(directory);
        attrs.mtime = now;
        attrs.ctime = now;
        attrs.nlink = attrs.nlink.saturating_add_signed(links);
        self.push_attrs(change, directory.ino, attrs)
    }
}

/// Checks a name for a new entry.
fn new_name(name: &[u8]) -> Result<Name> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    Name::new(name).map_err(|_| Error::Invalid)
}

/// How much room there is, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free ones.
    pub free: u64,
    /// Free ones that an ordinary user may take.
    pub available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Free ones.
    pub free_inodes: u64,
}

impl Tree {
    /// How much room there is: on the store's disk, or of the session's quota if that is less.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn space(&self) -> Result<Space> {
        const BLOCK: u64 = sandstack_store::BLOCK;
        let dir = self.upper.dir();
        let stat = rustix::fs::statvfs(dir).map_err(|error| {
            Error::Store(sandstack_store::Error::Io {
                action: "examining",
                path: dir.to_path_buf(),
                source: error.into(),
            })
        })?;
        let blocks = |count: u64| count.saturating_mul(stat.f_frsize) / BLOCK;
        let mut space = Space {
            block_bytes: BLOCK as u32,
            blocks: blocks(stat.f_blocks),
            free: blocks(stat.f_bfree),
            available: blocks(stat.f_bavail),
            inodes: stat.f_files,
            free_inodes: stat.f_ffree,
        };
        if let Some(quota) = self.upper.quota() {
            let left = quota.saturating_sub(self.upper.content_bytes()) / BLOCK;
            space.blocks = space.blocks.min(quota / BLOCK);
            space.free = space.free.min(left);
            space.available = space.available.min(left);
        }
        Ok(space)
    }
}
