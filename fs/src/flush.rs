//! Flushing: what programs stored through shared mappings comes into the view.
//!
//! `syncfs` makes the kernel send every changed page, and does not wait for a FUSE filesystem to have
//! taken them. The kernel tells how many requests of a connection are under way, in its filesystem
//! `fusectl`; once there are none, everything has been taken.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::abort::{control_file, number_of};

/// How long to wait before the count is looked at again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Whether what was stored has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// All of it has.
    Arrived,
    /// It is on its way; whether it has arrived cannot be seen here: `fusectl` is not mounted, and
    /// this process may not mount it.
    Sent,
}

/// Has the kernel send what programs have stored in mappings of the view mounted at `mount`, and
/// waits until the view has taken it, `patience` at most. Not to be called by a thread that serves
/// the view.
///
/// # Errors
/// `TimedOut`: the view was asked for something all the time. Otherwise nobody serves it, or an
/// error of the disk.
pub fn flush(mount: BorrowedFd<'_>, patience: Duration) -> io::Result<Flushed> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(mount, c".", flags, Mode::empty())?;
    rustix::fs::syncfs(&root)?;
    // Closing it is a request, too.
    drop(root);
    let filesystem = number_of(mount)?;
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        // Opened each time: it can be read once.
        let waiting = match control_file(filesystem, "waiting", OFlags::RDONLY) {
            Ok(file) => count(&file)?,
            Err(error) => {
                tracing::debug!(%error, "what was stored in mappings is sent, and not waited for");
                return Ok(Flushed::Sent);
            }
        };
        if waiting == 0 {
            return Ok(Flushed::Arrived);
        }
        if begun.elapsed() > patience {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::park_timeout(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How many requests are under way.
fn count(waiting: &OwnedFd) -> io::Result<u64> {
    let mut text = [0; 32];
    let length = rustix::io::read(waiting, &mut text)?;
    let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
    text.trim().parse().map_err(io::Error::other)
}
