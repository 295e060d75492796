//! Reading and changing the content of files.

use std::cell::Cell;

use sandstack_store::{Attrs, Ino, Kind, Seek, Timestamp};

use super::attributes::without_setid;
use super::{Caller, MAX_FILE, Tree};
use crate::error::{Error, Result};

impl Tree {
    /// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], [`Error::Store`].
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>> {
        Ok(self.upper.read(ino, offset, length)?)
    }

    /// Writes all of `bytes` at `offset`. `loser` is the writer if set-id bits are to go; returns
    /// whether any did.
    ///
    /// # Errors
    /// [`Error::FileTooLarge`], [`Error::Store`].
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
        loser: Option<Caller>,
    ) -> Result<bool> {
        if offset
            .checked_add(bytes.len() as u64)
            .is_none_or(|end| end > MAX_FILE)
        {
            return Err(Error::FileTooLarge);
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        self.drop_capability(ino)?;
        let lost = Cell::new(false);
        self.upper
            .write(ino, offset, bytes, changed(loser, &lost))?;
        Ok(lost.get())
    }

    /// `fallocate(2)`: `mode` holds its flags. Returns whether set-id bits went.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a mode that is none of plain, `KEEP_SIZE`, `PUNCH_HOLE` and
    /// `ZERO_RANGE`; [`Error::Invalid`]; [`Error::FileTooLarge`]; [`Error::Store`].
    pub fn allocate(
        &self,
        caller: Caller,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<bool> {
        const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        if length == 0 {
            return Err(Error::Invalid);
        }
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= MAX_FILE)
            .ok_or(Error::FileTooLarge)?;
        if ![0, KEEP_SIZE, PUNCH, ZERO, ZERO_KEEP].contains(&mode) {
            return Err(Error::Unsupported);
        }
        let found = self.attributes(ino)?;
        if found.kind != Kind::File {
            return Err(Error::NoData);
        }
        // Only now: what is refused changes nothing.
        self.drop_capability(ino)?;
        let lost = Cell::new(false);
        let changed = changed(caller.loses_setid(), &lost);
        match mode {
            PUNCH => self.upper.punch(ino, offset, end, changed)?,
            ZERO | ZERO_KEEP => {
                self.upper.punch(ino, offset, end, changed)?;
                if mode == ZERO && end > found.size {
                    self.upper.set_size(ino, end, |attrs| attrs)?;
                }
            }
            _ => self.upper.reserve(ino, offset, end, mode == 0, changed)?,
        }
        Ok(lost.get())
    }

    /// Where the next data, or hole, begins.
    ///
    /// # Errors
    /// [`Error::NoData`], [`Error::Store`].
    pub fn seek(&self, ino: Ino, offset: u64, seek: Seek) -> Result<u64> {
        self.upper.seek(ino, offset, seek)?.ok_or(Error::NoData)
    }

    /// Copies bytes between files of the view; content that is not the session's own is shared, not
    /// copied. Returns how many bytes there were, and whether set-id bits went.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the ranges overlap in one file, [`Error::FileTooLarge`],
    /// [`Error::Store`].
    pub fn copy_range(
        &self,
        caller: Caller,
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    ) -> Result<(u64, bool)> {
        let end = |start: u64| {
            start
                .checked_add(length)
                .filter(|end| *end <= MAX_FILE)
                .ok_or(Error::FileTooLarge)
        };
        let (from_end, to_end) = (end(from.1)?, end(to.1)?);
        if from.0 == to.0 && from.1 < to_end && to.1 < from_end {
            return Err(Error::Invalid);
        }
        self.drop_capability(to.0)?;
        let lost = Cell::new(false);
        let copied =
            self.upper
                .copy_range(from, to, length, changed(caller.loses_setid(), &lost))?;
        Ok((copied, lost.get()))
    }
}

/// The attributes of a file whose content has just been changed, by `loser` if set-id bits are to
/// go. Tells in `lost` whether any did.
fn changed(loser: Option<Caller>, lost: &Cell<bool>) -> impl FnOnce(Attrs) -> Attrs + '_ {
    let now = Timestamp::now();
    move |attrs| {
        let mode = loser.map_or(attrs.mode, |loser| without_setid(&attrs, loser));
        lost.set(mode != attrs.mode);
        Attrs {
            mode,
            mtime: now,
            ctime: now,
            ..attrs
        }
    }
}
