//! Ending a FUSE filesystem for good, wherever it is still mounted.
//!
//! A filesystem lives as long as any mount of it, and copies of a mount are in every mount namespace
//! that was made while it was there, by whomever. Its connection can be aborted nevertheless: then
//! whoever still uses the filesystem gets errors, and whoever serves it is told that it has ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Where the control filesystem of FUSE is, if the host mounts it.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// The kernel's number of a FUSE filesystem, as [`abort`] wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemNumber(u32);

/// The number of the filesystem of a mount. Asks nothing of whoever serves it.
///
/// # Errors
/// As `statx(2)`.
pub fn number_of(mount: BorrowedFd<'_>) -> io::Result<FilesystemNumber> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(mount, c"", flags, StatxFlags::empty())?;
    // Filesystems without a disk are under the major number 0.
    Ok(FilesystemNumber(stat.stx_dev_minor))
}

/// Aborts the connection of a filesystem. What was not flushed is lost.
///
/// # Errors
/// `NotFound` if it has ended; otherwise this process may not, being neither root nor the user who
/// mounted it on a host that has [`CONTROL`] mounted.
pub fn abort(filesystem: FilesystemNumber) -> io::Result<()> {
    let file = control_file(filesystem, "abort", OFlags::WRONLY)?;
    rustix::io::write(&file, b"1")?;
    Ok(())
}

/// Opens a file by which the kernel lets a filesystem's connection be looked at or ended.
pub(crate) fn control_file(
    filesystem: FilesystemNumber,
    name: &str,
    access: OFlags,
) -> io::Result<OwnedFd> {
    let control = match rustix::fs::open(
        Path::new(CONTROL),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Ok(place) if has(place.as_fd(), filesystem) => place,
        // Not mounted there: an empty directory of sysfs.
        _ => control_of_ours()?,
    };
    let name = format!("{}/{name}", filesystem.0);
    let flags = access | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        &control,
        name.as_str(),
        flags,
        Mode::empty(),
    )?)
}

fn has(control: BorrowedFd<'_>, filesystem: FilesystemNumber) -> bool {
    let name = filesystem.0.to_string();
    rustix::fs::statat(control, name.as_str(), AtFlags::empty()).is_ok()
}

/// The control filesystem, mounted nowhere.
fn control_of_ours() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(rustix::mount::fsmount(
        &context,
        flags,
        MountAttrFlags::empty(),
    )?)
}
