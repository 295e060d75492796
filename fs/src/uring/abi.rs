//! Numbers and sizes of `linux/fuse.h`, version 7.42 and later. Nothing else knows them.

/// Version of the protocol that is spoken. 7.42 brought io_uring.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 42;

/// Capabilities of a connection that this adapter needs, beside those of the profile.
pub(super) mod capability {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// What is asked.
pub(super) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
}

/// In the number of a request: an earlier server of the connection has read it already
/// (`FUSE_UNIQUE_RESEND`).
pub(super) const RESENT: u64 = 1 << 63;
/// The notification that asks for what was read and not answered (`FUSE_NOTIFY_RESEND`).
pub(super) const NOTIFY_RESEND: i32 = 7;

/// Which attributes a SETATTR sets.
pub(super) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

/// Bytes of the header of a request.
pub(super) const IN_HEADER: usize = 40;
/// Bytes of the header of a reply.
pub(super) const OUT_HEADER: usize = 16;
/// Room for an operation's arguments of fixed size, in bytes (`FUSE_URING_OP_IN_OUT_SZ`).
pub(super) const HEAD: usize = 128;
/// Bytes of the reply to INIT.
pub(super) const INIT_OUT: usize = 64;
/// Bytes that a descriptor of `/dev/fuse` wants for a read, beside the largest write.
pub(super) const READ_OVERHEAD: usize = 4096;

/// Bytes of an operation's arguments of fixed size; names and data follow them. `None`: the
/// operation is not known.
pub(super) fn head_bytes(code: u32) -> Option<usize> {
    Some(match code {
        opcode::LOOKUP
        | opcode::READLINK
        | opcode::SYMLINK
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::STATFS
        | opcode::REMOVEXATTR
        | opcode::DESTROY => 0,
        opcode::FORGET
        | opcode::MKDIR
        | opcode::RENAME
        | opcode::LINK
        | opcode::OPEN
        | opcode::OPENDIR
        | opcode::SETXATTR
        | opcode::GETXATTR
        | opcode::LISTXATTR
        | opcode::INTERRUPT
        | opcode::BATCH_FORGET => 8,
        opcode::GETATTR | opcode::MKNOD | opcode::CREATE | opcode::RENAME2 => 16,
        opcode::FSYNC | opcode::FSYNCDIR => 16,
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::LSEEK => 24,
        opcode::FALLOCATE | opcode::IOCTL => 32,
        opcode::READ | opcode::WRITE | opcode::READDIR | opcode::READDIRPLUS => 40,
        opcode::COPY_FILE_RANGE => 56,
        opcode::SETATTR => 88,
        _ => return None,
    })
}

/// Commands to `/dev/fuse` over io_uring, and the layout of what they work on.
pub(super) mod uring {
    /// Hands an entry to a queue.
    pub(crate) const REGISTER: u32 = 1;
    /// Answers a request and asks for the next.
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
    /// Pieces of memory of an entry: headers, payload.
    pub(crate) const PIECES: u32 = 2;
    /// Bytes of the headers: the request's or reply's, the operation's arguments, the entry's.
    pub(crate) const HEADERS: usize = 288;
    /// Where the operation's arguments are.
    pub(crate) const HEAD_AT: usize = 128;
    /// Where what the entry holds is told: flags, id to answer with, bytes of payload.
    pub(crate) const COMMIT_ID_AT: usize = 264;
    pub(crate) const PAYLOAD_BYTES_AT: usize = 272;
    /// Least payload room that the kernel takes, in bytes (`FUSE_MIN_READ_BUFFER`).
    pub(crate) const MIN_PAYLOAD: usize = 8192;
}
