//! From a request's bytes to the call it means, and its result to bytes.

use std::sync::Arc;

use sandstack_store::{Ino, for_request};

use super::abi::{self, opcode, valid};
use super::exchange::{Errno, Exchange};
use crate::error;
use crate::meter;
use crate::requests::{Requests, Sized, WriteOrigin, new_mode};
use crate::tree::{Caller, NewNode, SetAttributes, SetTime};

/// How a request is answered.
pub(super) enum Answered {
    /// With what has been put.
    Now,
    /// By a thread that may be slow.
    Later(Slow),
    /// Not at all.
    Never,
}

/// What takes long: a thread that serves a queue does not do it.
pub(super) enum Slow {
    /// Waits for the disk.
    Sync,
    /// Copies as many bytes as it takes.
    Copy {
        caller: Caller,
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    },
    /// Waits for room in which the content of `ino` may grow.
    Room {
        operation: &'static str,
        ino: Ino,
        again: Again,
    },
}

/// What is done again: how many bytes the answer counts, if it counts any.
type Again = Box<dyn FnMut(&Requests) -> error::Result<Option<u32>> + Send>;

/// Bytes from which on a copy is slow: what one read or write may have at most, too.
const LONG_COPY: u64 = 1 << 20;

/// Does what a request asks and puts the answer.
///
/// # Errors
/// The errno that is the answer.
pub(super) fn answer(requests: &Requests, exchange: &mut Exchange<'_>) -> Result<Answered, Errno> {
    let operation = meter::name_of(exchange.header.opcode);
    meter::count(operation, || dispatch(requests, exchange))
}

fn dispatch(requests: &Requests, exchange: &mut Exchange<'_>) -> Result<Answered, Errno> {
    let _entered = requests.trees.enter();
    let (ino, caller) = (exchange.header.ino, exchange.header.caller);
    match exchange.header.opcode {
        opcode::LOOKUP => {
            let found = requests.lookup(caller, ino, exchange.name()?)?;
            exchange.put_entry(found.as_ref())?;
        }
        opcode::GETATTR => exchange.put_attributes(&requests.attributes(ino)?)?,
        opcode::SETATTR => {
            let set = set_attributes(exchange);
            exchange.put_attributes(&requests.set_attributes(caller, ino, set)?)?;
        }
        opcode::READLINK => exchange.put(&requests.read_link(caller, ino)?)?,
        opcode::READ => {
            let (offset, size) = (exchange.u64(8), exchange.u32(16));
            exchange.put(&requests.read(caller, ino, offset, size)?)?;
        }
        opcode::WRITE => {
            let origin = WriteOrigin::from_flags(exchange.u32(20));
            let data = exchange.data();
            let count = data.len() as u32;
            let offset = exchange.u64(8);
            match requests.write(caller, ino, offset, data, origin) {
                Err(error) if error.lacks_room() => {
                    let data = data.to_vec();
                    return later("write", ino, move |requests| {
                        requests.write(caller, ino, offset, &data, origin)?;
                        Ok(Some(count))
                    });
                }
                written => written?,
            }
            exchange.put_count(count)?;
        }
        opcode::READDIR => list(requests, exchange, false)?,
        opcode::READDIRPLUS => list(requests, exchange, true)?,
        opcode::OPEN => {
            let flags = exchange.u32(0).cast_signed();
            let flags = requests.open(caller, ino, flags);
            exchange.put_open(flags.ok_or(Errno(libc::ENOSYS))?)?;
        }
        opcode::OPENDIR => {
            let flags = requests.open_directory();
            exchange.put_open(flags.ok_or(Errno(libc::ENOSYS))?)?;
        }
        opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => {}
        // Nothing is kept back until close; the kernel remembers this and asks no more.
        opcode::FLUSH => return Err(Errno(libc::ENOSYS)),
        opcode::FSYNC | opcode::FSYNCDIR => return Ok(Answered::Later(Slow::Sync)),
        code if is_done_once(code) => {
            let unique = exchange.header.unique;
            let (again, request) = (unique & abi::RESENT != 0, unique & !abi::RESENT);
            if again && requests.was_done(ino, request) {
                answer_again(requests, exchange)?;
            } else {
                for_request(request, || change_once(requests, exchange))?;
            }
        }
        opcode::STATFS => exchange.put_space(&requests.space()?)?,
        opcode::GETXATTR => {
            let value = requests.xattr(ino, exchange.name()?, exchange.u32(0))?;
            put_sized(exchange, value)?;
        }
        opcode::LISTXATTR => put_sized(exchange, requests.xattrs(ino, exchange.u32(0))?)?,
        opcode::IOCTL => return Err(Errno(libc::ENOTTY)),
        opcode::FALLOCATE => {
            let (offset, length) = (exchange.u64(8), exchange.u64(16));
            let mode = exchange.u32(24).cast_signed();
            match requests.allocate(caller, ino, offset, length, mode) {
                Err(error) if error.lacks_room() => {
                    return later("fallocate", ino, move |requests| {
                        requests.allocate(caller, ino, offset, length, mode)?;
                        Ok(None)
                    });
                }
                allocated => allocated?,
            }
        }
        opcode::LSEEK => {
            let offset = exchange.u64(8).cast_signed();
            let whence = exchange.u32(16).cast_signed();
            let found = requests.seek(ino, offset, whence)?;
            exchange.put(&found.to_ne_bytes())?;
        }
        opcode::COPY_FILE_RANGE => {
            let from = (ino, exchange.u64(8));
            let to = (exchange.u64(16), exchange.u64(32));
            let length = exchange.u64(40);
            let copy = Slow::Copy {
                caller,
                from,
                to,
                length,
            };
            if length >= LONG_COPY {
                return Ok(Answered::Later(copy));
            }
            match requests.copy_range(caller, from, to, length) {
                Err(error) if error.lacks_room() => return Ok(Answered::Later(copy)),
                copied => exchange.put_count(copied?)?,
            }
        }
        opcode::FORGET => {
            requests.forget(ino, exchange.u64(0));
            return Ok(Answered::Never);
        }
        opcode::BATCH_FORGET => {
            // Inode and count of each.
            for one in exchange.data().chunks_exact(16) {
                let count = super::exchange::u64_at(one, 8);
                requests.forget(super::exchange::u64_at(one, 0), count);
            }
            return Ok(Answered::Never);
        }
        // No handler waits for what could be given up; the one who asked waits for the answer.
        opcode::INTERRUPT => return Ok(Answered::Never),
        _ => return Err(Errno(libc::ENOSYS)),
    }
    Ok(Answered::Now)
}

fn later(
    operation: &'static str,
    ino: Ino,
    again: impl FnMut(&Requests) -> error::Result<Option<u32>> + Send + 'static,
) -> Result<Answered, Errno> {
    let again = Box::new(again);
    Ok(Answered::Later(Slow::Room {
        operation,
        ino,
        again,
    }))
}

/// Has slow work done by a thread for it, which then tells `done` what the answer is: the bytes, or
/// why there are none.
pub(super) fn answer_later(
    requests: &Arc<Requests>,
    slow: Slow,
    done: impl FnOnce(Result<Option<u32>, Errno>) + Send + 'static,
) {
    let failed = Err(Errno(libc::EIO));
    match slow {
        Slow::Sync => requests.sync_later(move |synced| {
            let synced = synced.map(|synced| synced.map(|()| None).map_err(Errno::from));
            done(synced.unwrap_or(failed));
        }),
        Slow::Copy {
            caller,
            from,
            to,
            length,
        } => {
            let again = move |requests: &Requests| {
                let copied = requests.copy_range(caller, from, to, length)?;
                Ok(Some(copied))
            };
            requests.again_with_room("copy_file_range", to.0, again, move |copied| {
                done(copied.map_or(failed, |copied| copied.map_err(Errno::from)));
            });
        }
        Slow::Room {
            operation,
            ino,
            again,
        } => requests.again_with_room(operation, ino, again, move |answer| {
            done(answer.map_or(failed, |answer| answer.map_err(Errno::from)));
        }),
    }
}

/// Whether a request must not be done a second time: its answer would be another.
fn is_done_once(code: u32) -> bool {
    matches!(
        code,
        opcode::MKNOD
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::CREATE
            | opcode::LINK
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
    )
}

/// Answers a request that an earlier server of the connection has done and not answered.
fn answer_again(requests: &Requests, exchange: &mut Exchange<'_>) -> Result<(), Errno> {
    let (ino, caller) = (exchange.header.ino, exchange.header.caller);
    let name = match exchange.header.opcode {
        opcode::SYMLINK => exchange.two_names()?.0,
        opcode::MKNOD | opcode::MKDIR | opcode::LINK | opcode::CREATE => exchange.name()?,
        _ => return Ok(()),
    };
    // Others may have removed it since.
    let found = requests.lookup(caller, ino, name)?;
    let made = found.ok_or(Errno(libc::ENOENT))?;
    let open = (exchange.header.opcode == opcode::CREATE)
        .then(|| requests.created(caller, &made, exchange.u32(0).cast_signed()));
    exchange.put_entry(Some(&made))?;
    open.map_or(Ok(()), |open| exchange.put_open(open))
}

/// The requests that make, move and remove names and attributes.
fn change_once(requests: &Requests, exchange: &mut Exchange<'_>) -> Result<(), Errno> {
    let (ino, caller) = (exchange.header.ino, exchange.header.caller);
    let made = match exchange.header.opcode {
        opcode::MKNOD => {
            let (mode, device) = ((exchange.u32(0), exchange.u32(8)), exchange.u32(4));
            requests.make_node(caller, ino, exchange.name()?, mode, device)?
        }
        opcode::MKDIR => {
            let mode = new_mode(exchange.u32(0), exchange.u32(4));
            requests.make(caller, ino, exchange.name()?, mode, NewNode::Directory)?
        }
        opcode::SYMLINK => {
            let (name, target) = exchange.two_names()?;
            let node = NewNode::Symlink(target.to_vec());
            requests.make(caller, ino, name, new_mode(0o777, 0), node)?
        }
        opcode::LINK => requests.link(caller, exchange.u64(0), ino, exchange.name()?)?,
        opcode::CREATE => {
            let (flags, mode) = (exchange.u32(0).cast_signed(), exchange.u32(4));
            let mode = new_mode(mode, exchange.u32(8));
            let (made, open) = requests.create(caller, ino, exchange.name()?, mode, flags)?;
            exchange.put_entry(Some(&made))?;
            return exchange.put_open(open);
        }
        opcode::SETXATTR => {
            let (name, rest) = exchange.name_and_rest()?;
            let size = exchange.u32(0) as usize;
            let value = rest.get(..size).ok_or(Errno(libc::EINVAL))?;
            let flags = exchange.u32(4).cast_signed();
            return Ok(requests.set_xattr(caller, ino, name, value, flags)?);
        }
        opcode::REMOVEXATTR => return Ok(requests.remove_xattr(caller, ino, exchange.name()?)?),
        opcode::UNLINK => return Ok(requests.unlink(caller, ino, exchange.name()?)?),
        opcode::RMDIR => return Ok(requests.remove_directory(caller, ino, exchange.name()?)?),
        code => {
            let flags = if code == opcode::RENAME2 {
                exchange.u32(8)
            } else {
                0
            };
            let (from, to) = exchange.two_names()?;
            let to = (exchange.u64(0), to);
            return Ok(requests.rename(caller, (ino, from), to, flags)?);
        }
    };
    exchange.put_entry(Some(&made))
}

fn set_attributes(exchange: &Exchange<'_>) -> SetAttributes {
    let has = |bit| exchange.u32(0) & bit != 0;
    let time = |set, now, seconds_at, nanos_at| {
        if !has(set) {
            None
        } else if has(now) {
            Some(SetTime::Now)
        } else {
            Some(SetTime::At(exchange.time(seconds_at, nanos_at)))
        }
    };
    SetAttributes {
        mode: has(valid::MODE).then(|| (exchange.u32(68) & 0o7777) as u16),
        uid: has(valid::UID).then(|| exchange.u32(76)),
        gid: has(valid::GID).then(|| exchange.u32(80)),
        size: has(valid::SIZE).then(|| exchange.u64(16)),
        atime: time(valid::ATIME, valid::ATIME_NOW, 32, 56),
        mtime: time(valid::MTIME, valid::MTIME_NOW, 40, 60),
    }
}

fn list(requests: &Requests, exchange: &mut Exchange<'_>, plus: bool) -> Result<(), Errno> {
    let (ino, caller) = (exchange.header.ino, exchange.header.caller);
    let from = exchange.u64(8);
    let limit = (exchange.u32(16) as usize).min(exchange.room());
    let listed = requests.list(caller, ino, from, plus, |name, found, next| {
        exchange.put_listed(name, found, next, plus, limit)
    });
    Ok(listed?)
}

fn put_sized(exchange: &mut Exchange<'_>, answer: Sized) -> Result<(), Errno> {
    match answer {
        Sized::Size(size) => exchange.put_count(size),
        Sized::Value(value) => exchange.put(&value),
    }
}
