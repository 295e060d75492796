//! Flushing: what programs stored through shared mappings comes into the view.
//!
//! `syncfs` makes the kernel send every changed page, and does not wait for a FUSE filesystem to have
//! taken them. The kernel tells how many requests of a connection are under way, in its filesystem
//! `fusectl`; once there are none, everything has been taken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Where `fusectl` usually is.
const USUAL_PLACE: &str = "/sys/fs/fuse/connections";
/// What `statfs(2)` calls it (`FUSE_CTL_SUPER_MAGIC` of `fs/fuse/control.c`).
const MAGIC: u64 = 0x6573_5543;
/// How long to wait before the count is looked at again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Whether what was stored has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// All of it has.
    Arrived,
    /// It is on its way; whether it has arrived cannot be seen here, where neither `fusectl` is
    /// mounted nor this process may mount it.
    Sent,
}

/// Has the kernel send what programs have stored in mappings of the view mounted at `mount`, and
/// waits until the view has taken it, `patience` at most. Not to be called by a thread that serves
/// the view.
///
/// # Errors
/// `TimedOut`: the view was asked for something all the time. Otherwise the mount is not served, or
/// an error of the disk.
pub fn flush(mount: BorrowedFd<'_>, patience: Duration) -> io::Result<Flushed> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(mount, ".", flags, Mode::empty())?;
    rustix::fs::syncfs(&root)?;
    // The kernel names a connection by the minor number of its filesystem.
    let connection = rustix::fs::minor(rustix::fs::fstat(&root)?.st_dev);
    // Closing it is a request, too.
    drop(root);
    let Some(control) = control() else {
        return Ok(Flushed::Sent);
    };
    let path = format!("{connection}/waiting");
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match waiting(control, &path)? {
            None => return Ok(Flushed::Sent),
            Some(0) => return Ok(Flushed::Arrived),
            Some(_) if begun.elapsed() > patience => return Err(io::ErrorKind::TimedOut.into()),
            Some(_) => thread::park_timeout(pause),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How many requests of a connection are under way; `None` if this process may not know.
fn waiting(control: BorrowedFd<'_>, path: &str) -> io::Result<Option<u64>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(control, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::ACCESS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = [0; 32];
    let length = rustix::io::read(&file, &mut text)?;
    let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
    text.trim().parse().map(Some).map_err(io::Error::other)
}

/// The directory of `fusectl`; `None` if it is not to be had.
fn control() -> Option<BorrowedFd<'static>> {
    static CONTROL: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let found = CONTROL.get_or_init(|| match mounted().or_else(detached) {
        Some(control) => Some(control),
        None => {
            tracing::warn!(
                "{USUAL_PLACE} is not mounted, so a publish may miss what a running program has just stored in a \
                 shared mapping; mount it with `mount -t fusectl fusectl {USUAL_PLACE}`"
            );
            None
        }
    });
    found.as_ref().map(AsFd::as_fd)
}

fn mounted() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(USUAL_PLACE, flags, Mode::empty()).ok()?;
    let is_it = rustix::fs::fstatfs(&directory).is_ok_and(|found| found.f_type as u64 == MAGIC);
    is_it.then_some(directory)
}

/// A mount that is nowhere, for who may mount.
fn detached() -> Option<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    rustix::mount::fsconfig_create(&context).ok()?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).ok()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&mount, ".", flags, Mode::empty()).ok()
}
