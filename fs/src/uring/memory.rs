//! Memory from the kernel itself: whole pages, which take nothing until they are touched and can be
//! given back one by one. The allocator would zero, and so touch, what it uses again.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// A piece of memory of its own, of whole pages that begin as zeros.
pub(super) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, whichever thread has it.
unsafe impl Send for Memory {}

impl Memory {
    /// `bytes` is a multiple of the page size.
    pub(super) fn new(bytes: usize) -> io::Result<Memory> {
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("memory was mapped at address 0"))?;
        Ok(Memory { base, bytes })
    }

    /// Where it is. It stays there.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// All of it. Only while the kernel has no leave to write there.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this size and lives as long as this value; it was zeros or has been
        // written since; the kernel does not write to it now, says the caller.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Gives the memory of `range` back, which is of whole pages; it reads as zeros then.
    pub(super) fn give_back(&mut self, range: std::ops::Range<usize>) -> io::Result<()> {
        debug_assert!(range.start.is_multiple_of(PAGE) && range.end <= self.bytes);
        // SAFETY: the range lies in this value's own mapping, and nothing points into it.
        unsafe {
            let start = self.base.as_ptr().add(range.start).cast();
            rustix::mm::madvise(start, range.len(), Advice::LinuxDontNeed)?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and nothing points into it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "memory could not be given back");
        }
    }
}
