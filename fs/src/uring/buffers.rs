//! The memory of one entry of a queue, lent to the kernel and taken back in turn.
//!
//! Invariant: while the kernel has it, nothing here reads or writes it. Who holds an entry knows:
//! the kernel has it from the submission of a command until that command's completion.

use std::io;

use super::abi::{HEAD, IN_HEADER, OUT_HEADER, uring};
use super::exchange::{Exchange, Header, set_u32, u32_at, u64_at};
use super::memory::{Memory, PAGE};

/// Bytes of payload that an entry keeps in any case; less than any payload has.
const SMALL: usize = 16 << 10;

/// Headers and payload of one entry.
pub(super) struct Buffers {
    /// The payload, and behind it a page for the headers.
    memory: Memory,
    payload: usize,
    /// Bytes of the payload that may have been touched.
    touched: usize,
    /// The two pieces as the kernel wants them named, at an address that stays.
    pieces: Box<[libc::iovec; 2]>,
}

// SAFETY: the pointers in `pieces` point into `memory`, which may go to another thread.
unsafe impl Send for Buffers {}

impl Buffers {
    /// `payload` is in bytes, a multiple of the page size.
    pub(super) fn new(payload: usize) -> io::Result<Buffers> {
        let memory = Memory::new(payload + PAGE)?;
        let base = memory.address().as_ptr();
        let piece = |at: *mut u8, bytes| libc::iovec {
            iov_base: at.cast(),
            iov_len: bytes,
        };
        let headers = base.wrapping_add(payload);
        Ok(Buffers {
            memory,
            payload,
            touched: 0,
            pieces: Box::new([piece(headers, uring::HEADERS), piece(base, payload)]),
        })
    }

    /// Address of the pieces' names, for registration.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces.as_ptr() as u64
    }

    /// Payload and headers.
    fn split(&mut self) -> (&mut [u8], &mut [u8]) {
        self.memory.bytes().split_at_mut(self.payload)
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
        match self.memory.give_back(SMALL..self.payload) {
            Ok(()) => self.touched = SMALL,
            Err(error) => tracing::error!(%error, "memory of a queue's entry was not given back"),
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
