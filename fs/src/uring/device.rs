//! What still comes over `/dev/fuse`: inodes that are forgotten, interrupts, whatever the kernel
//! sends before the rings are ready, and everything if it does not take them.

use std::io;
use std::sync::Arc;

use super::abi::{self, HEAD, IN_HEADER};
use super::answer::{Answered, answer, answer_later};
use super::connection::Connection;
use super::exchange::{Errno, Exchange, Header, count_bytes, reply_header};
use super::memory::Memory;
use crate::placement;
use crate::requests::{MAX_TRANSFER, guarded};

/// Bytes of memory that are kept between requests.
const KEPT: usize = 16 << 10;

/// Has the kernel ask again for what an earlier server has read and not answered.
///
/// # Errors
/// It cannot, or the connection has ended.
pub(super) fn ask_again(connection: &Connection) -> io::Result<()> {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&abi::NOTIFY_RESEND.to_ne_bytes());
    rustix::io::write(connection.device(), &message)?;
    Ok(())
}

/// Serves what comes until the connection ends, where its callers are if `follow` says so.
///
/// # Errors
/// The device failed.
pub(super) fn serve(connection: &Arc<Connection>, follow: bool) -> io::Result<()> {
    let size = MAX_TRANSFER as usize + abi::READ_OVERHEAD;
    let mut buffer = Memory::new(size)?;
    loop {
        match rustix::io::read(connection.device(), buffer.bytes()) {
            Ok(read) => {
                serve_one(connection, buffer.bytes(), read, follow);
                // Thousands of forgets come at once, and then none for long.
                if read > KEPT {
                    buffer.give_back(KEPT..size)?;
                }
            }
            // The last mount is gone, or the connection was aborted.
            Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => return Ok(()),
            // Who asked has given up before it was read.
            Err(rustix::io::Errno::NOENT) => {}
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn serve_one(connection: &Arc<Connection>, buffer: &mut [u8], read: usize, follow: bool) {
    let Some((header, body)) = buffer.split_first_chunk_mut::<IN_HEADER>() else {
        return;
    };
    let header = Header::decode(header);
    if follow {
        placement::follow(header.caller.pid);
    }
    let asked = read.saturating_sub(IN_HEADER);
    let fixed = match abi::head_bytes(header.opcode) {
        Some(bytes) if bytes <= asked => bytes,
        Some(_) => return reply(connection, header, Err(Errno(libc::EINVAL)), &[]),
        None => return reply(connection, header, Err(Errno(libc::ENOSYS)), &[]),
    };
    let (arguments, payload) = body.split_at_mut(fixed);
    let mut head = [0; HEAD];
    head[..fixed].copy_from_slice(arguments);
    let mut exchange = Exchange::new(header, head, payload, asked - fixed);
    let requests = connection.requests();
    match guarded("request", || answer(requests, &mut exchange)) {
        Some(Ok(Answered::Never)) => {}
        Some(Ok(Answered::Now)) => reply(
            connection,
            header,
            Ok(exchange.answered()),
            exchange.answer(),
        ),
        Some(Ok(Answered::Later(slow))) => {
            let connection = Arc::clone(connection);
            answer_later(requests, slow, move |result| {
                let bytes = count_bytes(result.unwrap_or_default().unwrap_or_default());
                let payload: &[u8] = if let Ok(Some(_)) = result {
                    &bytes
                } else {
                    &[]
                };
                let length = result.map(|_| payload.len());
                reply(&connection, header, length, payload);
            });
        }
        Some(Err(errno)) => reply(connection, header, Err(errno), &[]),
        None => reply(connection, header, Err(Errno(libc::EIO)), &[]),
    }
}

fn reply(connection: &Connection, header: Header, result: Result<usize, Errno>, payload: &[u8]) {
    let head = reply_header(header.unique, result);
    let pieces = [io::IoSlice::new(&head), io::IoSlice::new(payload)];
    match rustix::io::writev(connection.device(), &pieces) {
        Ok(_) => {}
        // Who asked has given up, or the connection has ended.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => {}
        Err(error) => {
            tracing::error!(%error, operation = header.opcode, "the kernel did not take a reply");
        }
    }
}
