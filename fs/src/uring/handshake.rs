//! The first exchange of a connection: what the kernel offers and what is taken of it.

use std::io;
use std::os::fd::OwnedFd;

use super::abi::{self, capability, opcode};
use super::exchange::{Header, reply_header, set_u16, set_u32, u32_at};
use crate::profile::Profile;
use crate::requests::{MAX_BACKGROUND, MAX_TRANSFER};

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Whether requests are to come over io_uring.
    pub(super) uring: bool,
}

/// Waits for the kernel's INIT and answers it.
///
/// # Errors
/// The mount is gone, or the kernel is older than the protocol's version 7.23.
pub(super) fn shake_hands(connection: &OwnedFd, profile: Profile) -> io::Result<Agreed> {
    /// As old as kernels are that send INIT in a form this reads (3.15).
    const OLDEST_MINOR: u32 = 23;
    let mut buffer = vec![0; abi::uring::MIN_PAYLOAD];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(connection, &mut buffer))?;
    let request = buffer.get(..read).unwrap_or(&buffer);
    let (header, body) = request
        .split_first_chunk()
        .ok_or_else(|| io::Error::other("the kernel sent less than a header"))?;
    let header = Header::decode(header);
    let number = |at: usize| {
        if body.len() >= at + 4 {
            u32_at(body, at)
        } else {
            0
        }
    };
    let (major, minor) = (number(0), number(4));
    if header.opcode != opcode::INIT || major != abi::MAJOR || minor < OLDEST_MINOR {
        let refused = reply_header(header.unique, Err(super::exchange::Errno(libc::EPROTO)));
        rustix::io::write(connection, &refused)?;
        return Err(io::Error::other(format!(
            "the kernel begins with operation {} of FUSE {major}.{minor}",
            header.opcode
        )));
    }
    let offered = offered(number(12), number(16));
    let wanted = profile.capabilities()
        | capability::ASYNC_READ
        | capability::BIG_WRITES
        | capability::MAX_PAGES
        | capability::INIT_EXT
        | capability::OVER_IO_URING;
    let taken = wanted & offered;
    if taken != wanted {
        tracing::debug!(
            missing = wanted & !taken,
            "the kernel lacks capabilities of FUSE"
        );
    }
    let mut reply = [0; abi::OUT_HEADER + abi::INIT_OUT];
    let (head, body) = reply.split_at_mut(abi::OUT_HEADER);
    head.copy_from_slice(&reply_header(header.unique, Ok(abi::INIT_OUT)));
    set_u32(body, 0, abi::MAJOR);
    set_u32(body, 4, abi::MINOR);
    set_u32(body, 8, number(8).min(MAX_TRANSFER));
    set_u32(body, 12, taken as u32);
    set_u16(body, 16, MAX_BACKGROUND);
    // Where the kernel begins to hold such requests back: three quarters, as it does itself.
    set_u16(body, 18, MAX_BACKGROUND / 4 * 3);
    set_u32(body, 20, MAX_TRANSFER);
    // Times are kept to the nanosecond.
    set_u32(body, 24, 1);
    set_u16(body, 28, (MAX_TRANSFER / 4096) as u16);
    set_u32(body, 32, (taken >> 32) as u32);
    rustix::io::write(connection, &reply)?;
    Ok(Agreed {
        uring: taken & capability::OVER_IO_URING != 0,
    })
}

/// All capabilities; the second half of them counts only if the first says so.
fn offered(low: u32, high: u32) -> u64 {
    let low = u64::from(low);
    if low & capability::INIT_EXT == 0 {
        low
    } else {
        low | u64::from(high) << 32
    }
}
