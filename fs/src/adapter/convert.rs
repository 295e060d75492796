//! From the tree's terms to FUSE's and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use sandstack_store::{Attributes, Kind, Timestamp};

use crate::error::Error;
use crate::tree::{Caller, SetTime};
use crate::view::Owner;

pub(super) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

pub(super) fn errno(error: Error) -> Errno {
    if let Error::Store(cause) = &error
        && error.errno() == libc::EIO
    {
        tracing::error!(error = %cause, "the store failed a filesystem request");
    }
    Errno::from_i32(error.errno())
}

/// What the kernel is told of an inode, as owned by `owner` if there is one.
pub(super) fn attr(attributes: &Attributes, owner: Option<Owner>) -> FileAttr {
    let owner = owner.unwrap_or(Owner {
        uid: attributes.uid,
        gid: attributes.gid,
    });
    FileAttr {
        ino: INodeNo(attributes.ino),
        size: attributes.size,
        // Whole pages, in units of 512 bytes.
        blocks: attributes.stored.div_ceil(4096) * 8,
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.kind),
        perm: attributes.mode,
        nlink: attributes.nlink,
        uid: owner.uid,
        gid: owner.gid,
        rdev: kernel_device(attributes.rdev),
        blksize: 4096,
        flags: 0,
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// A device number as FUSE carries it (the kernel's `new_encode_dev`), from libc's.
fn kernel_device(number: u64) -> u32 {
    let (major, minor) = (libc::major(number), libc::minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub(super) fn libc_device(number: u32) -> u64 {
    libc::makedev(
        (number & 0xfff00) >> 8,
        (number & 0xff) | ((number >> 12) & 0xfff00),
    )
}

fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let seconds = Duration::from_secs(time.secs.unsigned_abs());
    let whole = if time.secs < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    // What a SystemTime cannot hold is beyond what any kernel shows.
    whole
        .and_then(|whole| whole.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp {
                secs: since.as_secs() as i64,
                nanos: since.subsec_nanos(),
            },
            // fuser 0.18 takes the nanoseconds of a time before 1970 away instead of adding them
            // (time.rs, system_time_from_time). Undone here; a test on a mount would notice a fix.
            Err(before) => {
                let before = before.duration();
                Timestamp {
                    secs: -(before.as_secs() as i64),
                    nanos: before.subsec_nanos(),
                }
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_go_both_ways() {
        for (major, minor) in [
            (0, 0),
            (1, 3),
            (8, 255),
            (259, 1),
            (4095, 0xfffff),
            (10, 229),
        ] {
            let number = libc::makedev(major, minor);
            assert_eq!(
                libc_device(kernel_device(number)),
                number,
                "{major}:{minor}"
            );
        }
    }

    #[test]
    fn times_of_all_ages_go_to_the_kernel() {
        for (secs, nanos) in [
            (0, 0),
            (-1, 500_000_000),
            (-2_000_000_000, 1),
            (5_000_000_000, 999_999_999),
        ] {
            let time = system_time(Timestamp { secs, nanos });
            let expected = match time.duration_since(UNIX_EPOCH) {
                Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
                Err(before) => {
                    let before = before.duration();
                    (
                        -(before.as_secs() as i64) - 1,
                        1_000_000_000 - before.subsec_nanos(),
                    )
                }
            };
            assert_eq!(expected, (secs, nanos));
        }
    }
}
