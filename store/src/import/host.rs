//! What the host's kernel says of a node: metadata, extended attributes, filesystem, holes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, SeekFrom, Stat};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::name::Name;
use crate::node::{NodeMeta, Timestamp, Xattrs};

/// The metadata of the node that `stat` describes, with the host's inode number.
pub(super) fn meta(stat: &Stat, xattrs: Option<Digest>) -> NodeMeta {
    NodeMeta {
        ino: stat.st_ino,
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Timestamp {
            secs: stat.st_mtime,
            nanos: stat.st_mtime_nsec as u32,
        },
        ctime: Timestamp {
            secs: stat.st_ctime,
            nanos: stat.st_ctime_nsec as u32,
        },
        // Filesystems differ in what they count for a directory.
        links: match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => 1,
            _ => stat.st_nlink as u32,
        },
        xattrs,
    }
}

/// The extended attributes of an open file or directory.
pub(super) fn descriptor_xattrs(file: impl AsFd + Copy) -> Result<Xattrs, Errno> {
    collect_xattrs(
        |buffer| rustix::fs::flistxattr(file, buffer),
        |name, buffer| rustix::fs::fgetxattr(file, name, buffer),
    )
}

/// The extended attributes of something that cannot be opened (a symlink, a FIFO).
pub(super) fn path_xattrs(directory: &OwnedFd, name: &Name) -> Result<Xattrs, Errno> {
    use std::os::fd::AsRawFd;
    // There is no llistxattrat before Linux 6.13; the descriptor's link in /proc is the way there.
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    collect_xattrs(
        |buffer| rustix::fs::llistxattr(path.as_slice(), buffer),
        |name, buffer| rustix::fs::lgetxattr(path.as_slice(), name, buffer),
    )
}

fn collect_xattrs(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> Result<Xattrs, Errno> {
    let mut xattrs = Xattrs::new();
    let names = match read_growing(list) {
        Ok(names) => names,
        // The filesystem has none at all.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(xattrs),
        Err(error) => return Err(error),
    };
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        match read_growing(|buffer| get(name, buffer)) {
            Ok(value) => {
                xattrs.insert(name.to_vec(), value);
            }
            // Removed since it was listed, or (trusted.*) not ours to see.
            Err(Errno::NODATA | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(xattrs)
}

/// Calls with a buffer, and again with a larger one while the kernel says that it is too small.
fn read_growing(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            // 64 KiB is the kernel's limit for both lists and values.
            Err(Errno::RANGE) if buffer.len() < 64 << 10 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

/// The name of the pseudo filesystem that `file` is on; `None` on a disk.
pub(super) fn pseudo_filesystem(file: impl AsFd) -> Result<Option<&'static str>, Errno> {
    // The magics of linux/magic.h.
    Ok(match rustix::fs::fstatfs(file)?.f_type as u32 {
        0x9fa0 => Some("proc"),
        0x6265_6572 => Some("sysfs"),
        0x0027_e0eb | 0x6367_7270 => Some("cgroup"),
        0x6462_6720 => Some("debugfs"),
        0x7472_6163 => Some("tracefs"),
        0x1cd1 => Some("devpts"),
        0x7363_6673 => Some("securityfs"),
        0xcafe_4a11 => Some("bpf"),
        _ => None,
    })
}

/// The runs of data in a file of `size` bytes: offset and length.
pub(super) fn data_runs(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // A hole up to the end.
            Err(Errno::NXIO) => break,
            // The filesystem cannot say: all of it is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![(0, size)]),
            Err(error) => return Err(error.into()),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            // Cut meanwhile: the reader notices.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        if start < end {
            runs.push((start, end - start));
        }
        at = end.max(at + 1);
    }
    Ok(runs)
}
