//! Telling the kernel what changed behind its back.
//!
//! The messages are written to a duplicate of the connection's descriptor, because fuser offers
//! neither the flag `EXPIRE_ONLY` nor the error that says that the kernel does not know an inode.
//! A message may wait for a lock that a request holds while it waits for its reply, so messages are
//! sent from threads that serve no request, and, but for one that takes no lock, never by a handler.

use std::io;
use std::os::fd::OwnedFd;

use sandstack_store::Ino;

/// Codes and flags of `linux/fuse.h`.
const NOTIFY_INVAL_INODE: i32 = 2;
const NOTIFY_INVAL_ENTRY: i32 = 3;
const EXPIRE_ONLY: u32 = 1;

/// Sends notifications of one connection.
#[derive(Debug)]
pub(crate) struct Notifier {
    connection: OwnedFd,
}

impl Notifier {
    pub(crate) fn new(connection: OwnedFd) -> Self {
        Notifier { connection }
    }

    pub(crate) fn connection(&self) -> &OwnedFd {
        &self.connection
    }

    /// Says that `name` of `parent` may be another entry now. The kernel asks again when it is next
    /// looked up; working directories and mounts below stay (a plain invalidation would drop them).
    pub(crate) fn entry(&self, parent: Ino, name: &[u8]) -> io::Result<()> {
        let mut body = Vec::with_capacity(17 + name.len());
        body.extend_from_slice(&parent.to_ne_bytes());
        body.extend_from_slice(&(name.len() as u32).to_ne_bytes());
        body.extend_from_slice(&EXPIRE_ONLY.to_ne_bytes());
        body.extend_from_slice(name);
        body.push(0);
        self.send(NOTIFY_INVAL_ENTRY, &body).map(|_| ())
    }

    /// Says that attributes and content of `ino`, or of a directory its listing, are others now.
    /// Returns whether the kernel knows the inode.
    pub(crate) fn inode(&self, ino: Ino) -> io::Result<bool> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.to_ne_bytes());
        // Offset 0 and length 0: all of it.
        self.send(NOTIFY_INVAL_INODE, &body)
    }

    /// Says that attributes of `ino` are others now, of which the kernel would keep the old ones: it
    /// takes the mode to be unchanged by a write. This takes no lock in the kernel that a request
    /// holds, so a handler may send it before it replies.
    pub(crate) fn attributes(&self, ino: Ino) -> io::Result<bool> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.to_ne_bytes());
        // A negative offset: no content.
        body[8..16].copy_from_slice(&(-1i64).to_ne_bytes());
        self.send(NOTIFY_INVAL_INODE, &body)
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<bool> {
        let mut message = Vec::with_capacity(16 + body.len());
        message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
        message.extend_from_slice(&code.to_ne_bytes());
        message.extend_from_slice(&0u64.to_ne_bytes());
        message.extend_from_slice(body);
        match rustix::io::write(&self.connection, &message) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
