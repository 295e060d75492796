//! Requests about the content of files.

use std::sync::Arc;

use sandstack_store::{AccessKind, Ino, Seek};

use super::Requests;
use crate::error::{Error, Result};
use crate::tree::Caller;

/// Most bytes of one `copy_file_range`: the reply counts in 32 bits, and a handler should not be
/// long. The caller goes on after a short count.
const MAX_COPY: u64 = 256 << 20;

/// Flags of a write (`FUSE_WRITE_*` of `linux/fuse.h`).
const FUSE_WRITE_CACHE: u32 = 1 << 0;
const FUSE_WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Where the bytes of a write come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteOrigin {
    /// The writer may not keep set-id bits.
    pub(crate) kill_setid: bool,
    /// From the page cache, at a time of the kernel's own. Whoever changed the page is not known.
    pub(crate) page_cache: bool,
}

impl WriteOrigin {
    /// From the flags of the request.
    pub(crate) fn from_flags(flags: u32) -> Self {
        WriteOrigin {
            kill_setid: flags & FUSE_WRITE_KILL_SUIDGID != 0,
            page_cache: flags & FUSE_WRITE_CACHE != 0,
        }
    }
}

impl Requests {
    pub(crate) fn read(&self, caller: Caller, ino: Ino, offset: u64, size: u32) -> Result<Vec<u8>> {
        let bytes = self.trees.of(ino).read(ino, offset, size as usize)?;
        self.recorder
            .inode(caller.pid, ino, AccessKind::Read, bytes.len() as u64);
        Ok(bytes)
    }

    /// Writes all of `data`.
    pub(crate) fn write(
        &self,
        caller: Caller,
        ino: Ino,
        offset: u64,
        data: &[u8],
        origin: WriteOrigin,
    ) -> Result<()> {
        let loser = origin.kill_setid.then_some(caller);
        let lost = self.trees.of(ino).write(ino, offset, data, loser)?;
        self.tell_mode(ino, lost);
        // A page written back by the kernel was changed by whoever mapped it, at a time of its own:
        // the request's process is the kernel's.
        let pid = if origin.page_cache { 0 } else { caller.pid };
        self.recorder
            .inode(pid, ino, AccessKind::Write, data.len() as u64);
        Ok(())
    }

    /// `mode` as `fallocate(2)` has it.
    pub(crate) fn allocate(
        &self,
        caller: Caller,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<()> {
        let lost = self
            .trees
            .of(ino)
            .allocate(caller, ino, offset, length, mode)?;
        self.tell_mode(ino, lost);
        self.recorder.inode(caller.pid, ino, AccessKind::Write, 0);
        Ok(())
    }

    /// `whence` as `lseek(2)` has it: only data and holes are asked for.
    pub(crate) fn seek(&self, ino: Ino, offset: i64, whence: i32) -> Result<u64> {
        let seek = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Error::Invalid),
        };
        let offset = u64::try_from(offset).map_err(|_| Error::NoData)?;
        self.trees.of(ino).seek(ino, offset, seek)
    }

    /// Returns how many bytes were copied.
    pub(crate) fn copy_range(
        &self,
        caller: Caller,
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    ) -> Result<u32> {
        let length = length.min(MAX_COPY);
        let _entered = self.trees.enter();
        let tree = self.trees.of(to.0);
        if !Arc::ptr_eq(&tree, &self.trees.of(from.0)) {
            // One of them was removed by others: the caller copies by itself.
            return Err(Error::Unsupported);
        }
        let (copied, lost) = tree.copy_range(caller, from, to, length)?;
        self.tell_mode(to.0, lost);
        self.recorder
            .inode(caller.pid, from.0, AccessKind::Read, copied);
        self.recorder
            .inode(caller.pid, to.0, AccessKind::Write, copied);
        Ok(copied as u32)
    }
}
