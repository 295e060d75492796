//! From the tree's terms to fuser's and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use sandstack_store::{Attributes, Kind, Timestamp};

use crate::error::Error;
use crate::requests::{self, kernel_device};
use crate::tree::{Caller, SetTime};

pub(super) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

pub(super) fn errno(error: Error) -> Errno {
    Errno::from_i32(requests::errno(&error))
}

/// What the kernel is told of an inode.
pub(super) fn attr(attributes: &Attributes) -> FileAttr {
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
        uid: attributes.uid,
        gid: attributes.gid,
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
