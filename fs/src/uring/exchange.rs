//! One request and the room for its answer, wherever they lie.
//!
//! Names and data of the request and the answer share one piece of memory: what is to be kept of
//! the request is taken before the first byte of the answer is put.

use sandstack_store::{Attributes, Kind, Timestamp};

use super::abi::{self, HEAD, IN_HEADER};
use crate::error::Error;
use crate::requests::{self, FOREVER, kernel_device};
use crate::tree::{Caller, Space};

/// Why a request was refused, as the kernel is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Errno(requests::errno(&error))
    }
}

/// What every request begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) ino: u64,
    pub(super) caller: Caller,
}

impl Header {
    /// `bytes` are those of the header.
    pub(super) fn decode(bytes: &[u8; IN_HEADER]) -> Header {
        Header {
            opcode: u32_at(bytes, 4),
            unique: u64_at(bytes, 8),
            ino: u64_at(bytes, 16),
            caller: Caller {
                uid: u32_at(bytes, 24),
                gid: u32_at(bytes, 28),
                pid: u32_at(bytes, 32),
            },
        }
    }
}

/// A request, and where its answer goes.
pub(super) struct Exchange<'a> {
    pub(super) header: Header,
    head: [u8; HEAD],
    payload: &'a mut [u8],
    asked: usize,
    answered: usize,
}

impl<'a> Exchange<'a> {
    /// A request with arguments `head`; the first `asked` bytes of `payload` are names and data.
    pub(super) fn new(
        header: Header,
        head: [u8; HEAD],
        payload: &'a mut [u8],
        asked: usize,
    ) -> Exchange<'a> {
        let asked = asked.min(payload.len());
        Exchange {
            header,
            head,
            payload,
            asked,
            answered: 0,
        }
    }

    /// An argument by its offset in the operation's structure.
    pub(super) fn u32(&self, at: usize) -> u32 {
        u32_at(&self.head, at)
    }

    /// An argument by its offset in the operation's structure.
    pub(super) fn u64(&self, at: usize) -> u64 {
        u64_at(&self.head, at)
    }

    /// A time whose seconds and nanoseconds are at these offsets.
    pub(super) fn time(&self, seconds_at: usize, nanos_at: usize) -> Timestamp {
        Timestamp {
            secs: self.u64(seconds_at) as i64,
            nanos: self.u32(nanos_at),
        }
    }

    /// Names and data of the request.
    pub(super) fn data(&self) -> &[u8] {
        &self.payload[..self.asked]
    }

    /// The name that the request has.
    pub(super) fn name(&self) -> Result<&[u8], Errno> {
        Ok(split_name(self.data())?.0)
    }

    /// The name that the request has, and what follows it.
    pub(super) fn name_and_rest(&self) -> Result<(&[u8], &[u8]), Errno> {
        split_name(self.data())
    }

    /// Both names that the request has.
    pub(super) fn two_names(&self) -> Result<(&[u8], &[u8]), Errno> {
        let (first, rest) = split_name(self.data())?;
        Ok((first, split_name(rest)?.0))
    }

    /// Bytes of the answer so far.
    pub(super) fn answered(&self) -> usize {
        self.answered
    }

    /// Bytes that an answer may have.
    pub(super) fn room(&self) -> usize {
        self.payload.len()
    }

    /// The answer so far.
    pub(super) fn answer(&self) -> &[u8] {
        &self.payload[..self.answered]
    }

    /// Adds bytes to the answer.
    ///
    /// # Errors
    /// They do not fit.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let end = self.answered + bytes.len();
        let room = self
            .payload
            .get_mut(self.answered..end)
            .ok_or(Errno(libc::ERANGE))?;
        room.copy_from_slice(bytes);
        self.answered = end;
        Ok(())
    }

    /// Adds an entry: the inode of a name, or that there is none.
    pub(super) fn put_entry(&mut self, found: Option<&Attributes>) -> Result<(), Errno> {
        self.put(&entry(found))
    }

    /// Adds attributes.
    pub(super) fn put_attributes(&mut self, found: &Attributes) -> Result<(), Errno> {
        let mut bytes = [0; 104];
        set_u64(&mut bytes, 0, FOREVER.as_secs());
        bytes[16..].copy_from_slice(&attributes(found));
        self.put(&bytes)
    }

    /// Adds what an open file is: no handle, and these flags.
    pub(super) fn put_open(&mut self, flags: u32) -> Result<(), Errno> {
        let mut bytes = [0; 16];
        set_u32(&mut bytes, 8, flags);
        self.put(&bytes)
    }

    /// Adds a count of 32 bits, and the four bytes that fill it up.
    pub(super) fn put_count(&mut self, count: u32) -> Result<(), Errno> {
        self.put(&count_bytes(count))
    }

    /// Adds how much room there is.
    pub(super) fn put_space(&mut self, space: &Space) -> Result<(), Errno> {
        let mut bytes = [0; 80];
        let counts = [
            space.blocks,
            space.free,
            space.available,
            space.inodes,
            space.free_inodes,
        ];
        for (index, count) in counts.into_iter().enumerate() {
            set_u64(&mut bytes, index * 8, count);
        }
        set_u32(&mut bytes, 40, space.block_bytes);
        set_u32(&mut bytes, 44, sandstack_store::NAME_MAX as u32);
        set_u32(&mut bytes, 48, space.block_bytes);
        self.put(&bytes)
    }

    /// Adds an entry of a directory if it fits into `limit` bytes of answer. With `plus` it has all
    /// attributes.
    pub(super) fn put_listed(
        &mut self,
        name: &[u8],
        found: &Attributes,
        next: u64,
        plus: bool,
        limit: usize,
    ) -> bool {
        const ENTRY: usize = 24;
        let before = if plus { entry(Some(found)).len() } else { 0 };
        let bytes = before + (ENTRY + name.len()).next_multiple_of(8);
        let end = self.answered + bytes;
        if end > limit {
            return false;
        }
        let Some(room) = self.payload.get_mut(self.answered..end) else {
            return false;
        };
        if plus {
            room[..before].copy_from_slice(&entry(Some(found)));
        }
        let room = &mut room[before..];
        set_u64(room, 0, found.ino);
        set_u64(room, 8, next);
        set_u32(room, 16, name.len() as u32);
        set_u32(room, 20, file_type(found.kind) >> 12);
        room[ENTRY..ENTRY + name.len()].copy_from_slice(name);
        room[ENTRY + name.len()..].fill(0);
        self.answered = end;
        true
    }
}

/// The header of a reply.
pub(super) fn reply_header(unique: u64, result: Result<usize, Errno>) -> [u8; abi::OUT_HEADER] {
    let (payload, error) = match result {
        Ok(payload) => (payload, 0),
        Err(Errno(errno)) => (0, -errno),
    };
    let mut bytes = [0; abi::OUT_HEADER];
    set_u32(&mut bytes, 0, (abi::OUT_HEADER + payload) as u32);
    set_u32(&mut bytes, 4, error.cast_unsigned());
    set_u64(&mut bytes, 8, unique);
    bytes
}

fn split_name(data: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = data
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(Errno(libc::EINVAL))?;
    Ok((&data[..end], &data[end + 1..]))
}

fn entry(found: Option<&Attributes>) -> [u8; 128] {
    let mut bytes = [0; 128];
    set_u64(&mut bytes, 16, FOREVER.as_secs());
    set_u64(&mut bytes, 24, FOREVER.as_secs());
    // Without an inode: the name is not there, and that may be believed like any answer.
    if let Some(found) = found {
        set_u64(&mut bytes, 0, found.ino);
        bytes[40..].copy_from_slice(&attributes(found));
    }
    bytes
}

fn attributes(found: &Attributes) -> [u8; 88] {
    let mut bytes = [0; 88];
    set_u64(&mut bytes, 0, found.ino);
    set_u64(&mut bytes, 8, found.size);
    // Whole pages, in units of 512 bytes.
    set_u64(&mut bytes, 16, found.stored.div_ceil(4096) * 8);
    for (index, time) in [found.atime, found.mtime, found.ctime]
        .into_iter()
        .enumerate()
    {
        set_u64(&mut bytes, 24 + index * 8, time.secs.cast_unsigned());
        set_u32(&mut bytes, 48 + index * 4, time.nanos);
    }
    let mode = file_type(found.kind) | u32::from(found.mode);
    let numbers = [
        mode,
        found.nlink,
        found.uid,
        found.gid,
        kernel_device(found.rdev),
        4096,
    ];
    for (index, number) in numbers.into_iter().enumerate() {
        set_u32(&mut bytes, 60 + index * 4, number);
    }
    bytes
}

fn file_type(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}

/// A count of 32 bits, and the four bytes that fill it up.
pub(super) fn count_bytes(count: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    set_u32(&mut bytes, 0, count);
    bytes
}

/// A number of a message, in the byte order of this machine. The offset is one of a structure of
/// the protocol, and the bytes are at least as many.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(number)
}

/// As [`u32_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

/// As [`u32_at`].
pub(super) fn set_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
}

/// As [`u32_at`].
pub(super) fn set_u64(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_ne_bytes());
}

/// As [`u32_at`].
pub(super) fn set_u16(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_ne_bytes());
}
