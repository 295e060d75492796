//! The memory of one entry of a queue, lent to the kernel and taken back in turn.
//!
//! Invariant: while the kernel has it, nothing here reads or writes it. Who holds an entry knows:
//! the kernel has it from the submission of a command until that command's completion.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use super::abi::{HEAD, IN_HEADER, OUT_HEADER, uring};
use super::exchange::{Exchange, Header, set_u32, u32_at, u64_at};

/// Bytes of a page: headers get one of their own, behind the payload.
const PAGE: usize = 4096;

/// Bytes of payload that an entry keeps in any case; less than any payload has.
const SMALL: usize = 16 << 10;

/// Headers and payload of one entry. Untouched pages of it take no memory.
pub(super) struct Buffers {
    base: NonNull<u8>,
    payload: usize,
    /// Bytes of the payload that may have been touched.
    touched: usize,
    /// The two pieces as the kernel wants them named, at an address that stays.
    pieces: Box<[libc::iovec; 2]>,
}

// SAFETY: the memory belongs to this value alone, whichever thread has it; the pointers in `pieces`
// point into it.
unsafe impl Send for Buffers {}

impl Buffers {
    /// `payload` is in bytes, a multiple of the page size.
    pub(super) fn new(payload: usize) -> io::Result<Buffers> {
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                payload + PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("memory was mapped at address 0"))?;
        // SAFETY: the headers' page follows the payload in the same mapping.
        let headers = unsafe { base.add(payload) };
        let piece = |at: NonNull<u8>, bytes| libc::iovec {
            iov_base: at.as_ptr().cast(),
            iov_len: bytes,
        };
        Ok(Buffers {
            base,
            payload,
            touched: 0,
            pieces: Box::new([piece(headers, uring::HEADERS), piece(base, payload)]),
        })
    }

    /// Address of the pieces' names, for registration.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces.as_ptr() as u64
    }

    fn split(&mut self) -> (&mut [u8], &mut [u8; uring::HEADERS]) {
        // SAFETY: the mapping holds the payload, and behind it the page of the headers; it lives as
        // long as this value, is all zero or written by the kernel, and by the invariant of this file
        // is not the kernel's now. The two parts do not overlap.
        unsafe {
            let payload = std::slice::from_raw_parts_mut(self.base.as_ptr(), self.payload);
            let headers = self.base.add(self.payload).cast::<[u8; uring::HEADERS]>();
            (payload, &mut *headers.as_ptr())
        }
    }

    /// The request that the kernel has left here, and the id to answer it with.
    pub(super) fn request(&mut self) -> (Exchange<'_>, u64) {
        let (_, headers) = self.split();
        let mut header = [0; IN_HEADER];
        header.copy_from_slice(&headers[..IN_HEADER]);
        let mut head = [0; HEAD];
        head.copy_from_slice(&headers[uring::HEAD_AT..uring::HEAD_AT + HEAD]);
        let asked = u32_at(headers, uring::PAYLOAD_BYTES_AT) as usize;
        let id = u64_at(headers, uring::COMMIT_ID_AT);
        self.touched = self.touched.max(asked);
        let (payload, _) = self.split();
        let header = Header::decode(&header);
        (Exchange::new(header, head, payload, asked), id)
    }

    /// Puts the header of a reply, whose `payload` bytes are here already.
    pub(super) fn set_reply(&mut self, header: [u8; OUT_HEADER], payload: usize) {
        let (_, headers) = self.split();
        headers[..OUT_HEADER].copy_from_slice(&header);
        set_u32(headers, uring::PAYLOAD_BYTES_AT, payload as u32);
        self.touched = self.touched.max(payload);
    }

    /// Whether it holds more memory than names and small pieces of files need.
    pub(super) fn is_large(&self) -> bool {
        self.touched > SMALL
    }

    /// Gives the memory of large requests back. What the payload held is lost.
    pub(super) fn trim(&mut self) {
        // SAFETY: the range is whole pages of this value's own mapping; what they held is not needed,
        // and they read as zeros from here on.
        let advised = unsafe {
            rustix::mm::madvise(
                self.base.as_ptr().add(SMALL).cast(),
                self.payload - SMALL,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
        match advised {
            Ok(()) => self.touched = SMALL,
            Err(error) => tracing::error!(%error, "memory of a queue's entry was not given back"),
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and nothing points into it any more:
        // the holder lets go of it only after the kernel has.
        let unmapped =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.payload + PAGE) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "the memory of a queue's entry could not be given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answers_do_not_keep_their_memory() {
        const PAYLOAD: usize = 1 << 20;
        let mut buffers = Buffers::new(PAYLOAD).unwrap();
        assert!(!buffers.is_large());
        let (mut exchange, id) = buffers.request();
        assert_eq!((id, exchange.room()), (0, PAYLOAD));
        exchange.put(&vec![7; PAYLOAD]).unwrap();
        assert!(exchange.put(&[7]).is_err(), "there is no more room");
        assert_eq!(exchange.answered(), PAYLOAD);
        buffers.set_reply([0; OUT_HEADER], PAYLOAD);
        assert!(buffers.is_large());
        buffers.trim();
        assert!(!buffers.is_large());
        let (payload, _) = buffers.split();
        assert!(payload[..SMALL].iter().all(|byte| *byte == 7));
        assert!(payload[SMALL..].iter().all(|byte| *byte == 0));
    }
}
