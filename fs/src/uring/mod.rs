//! FUSE over io_uring: a view's requests without `/dev/fuse`, answered on the processor that asks.
//!
//! The kernel has a queue for each processor and puts a request into the queue of the processor on
//! which it is made. The thread of that queue is pinned there, so that question and answer cost two
//! switches on one processor and wake no other. fuser has no such transport, and takes the first
//! exchange of a connection for itself; so this adapter speaks the protocol on its own, by the same
//! [`Requests`] as fuser's.
//!
//! `/dev/fuse` stays open: forgets and interrupts come over it, notifications go over it, and if the
//! kernel does not take the rings, everything does.
//!
//! What it never does: wait in a thread that serves a queue for anything but the tree.

mod abi;
mod answer;
mod buffers;
mod connection;
mod device;
mod exchange;
mod handshake;
mod memory;
mod rings;
mod worker;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use buffers::Buffers;
use connection::Connection;
use rings::Rings;

use crate::requests::{MAX_TRANSFER, Requests};

/// Where the kernel says whether it may be used.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Why views cannot be served over io_uring here. `None`: they can.
pub(crate) fn obstacle() -> Option<String> {
    match std::fs::read_to_string(PARAMETER) {
        Err(_) => Some("this kernel has no FUSE over io_uring, which came with Linux 6.14".into()),
        Ok(value) if value.trim() == "Y" => None,
        Ok(_) => Some(format!(
            "FUSE over io_uring is off; `echo Y > {PARAMETER}` as root allows it"
        )),
    }
}

/// What one view needs: the rings, and the memory of its entries.
pub(crate) struct Ready {
    rings: Arc<Rings>,
    entries: Vec<Vec<Buffers>>,
}

/// Makes what a view needs, before it is agreed on with the kernel: afterwards the kernel would wait
/// for rings that do not come.
///
/// # Errors
/// io_uring is forbidden here, or there is no memory.
pub(crate) fn prepare() -> io::Result<Ready> {
    let rings = Rings::shared()?;
    let entries = rings.entries(MAX_TRANSFER as usize)?;
    Ok(Ready { rings, entries })
}

/// Serves a connection that an earlier process has served over `/dev/fuse` and left, for as long as
/// there are mounts. What that has read and not answered is asked for again.
///
/// # Errors
/// The kernel cannot ask again (before Linux 6.9), or a thread cannot be started.
pub(crate) fn resume(
    requests: Requests,
    device: OwnedFd,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let connection = Arc::new(Connection::new(device, Arc::new(requests)));
    device::ask_again(&connection)?;
    // Two, as a view over `/dev/fuse` has: one request may overtake another that waits for the disk.
    let other = {
        let connection = Arc::clone(&connection);
        std::thread::Builder::new()
            .name("fs-view".to_owned())
            .spawn(move || device::serve(&connection, true))?
    };
    std::thread::Builder::new()
        .name("fs-view".to_owned())
        .spawn(move || {
            let served = device::serve(&connection, true);
            let others = other
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a view's thread panicked")));
            served.and(others)
        })
}

/// Serves a connection. Returns when the kernel and the view have agreed on how they speak; the
/// thread ends when the connection does and no ring has anything of it any more.
///
/// # Errors
/// They do not agree, or a thread cannot be started.
pub(crate) fn serve(
    Ready { rings, entries }: Ready,
    requests: Requests,
    device: OwnedFd,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let agreed = handshake::shake_hands(&device, requests.profile)?;
    let connection = Arc::new(Connection::new(device, Arc::new(requests)));
    if agreed.uring {
        rings.serve(&connection, entries);
    } else {
        tracing::warn!("the kernel does not offer FUSE over io_uring; /dev/fuse is used");
    }
    std::thread::Builder::new()
        .name("fs-view".to_owned())
        .spawn(move || {
            let served = device::serve(&connection, false);
            connection.wait_until_left();
            drop(rings);
            served
        })
}
