//! A walk through a view, so that its kernel knows what is there before anybody asks.
//!
//! A first look-up of each path is a message each; a listing with attributes tells of a whole
//! directory in one. So a new session's first `git status` costs little more than its second.
//!
//! The record is to stay true. The walk is no access of anybody's. It stops reading a directory
//! before the end, so that the kernel does not keep the listing: whoever lists it asks, and is noted.
//! What is not there, is not known either: whoever looks for it asks. But who looks up what is there
//! is not seen any more.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, openat2};
use sandstack_store::{Ino, Kind, ROOT_INO};

use crate::trees::Trees;
use crate::view::View;

/// Entries after which a walk ends: their inodes and names are some 60 MB of the kernel's memory.
const MOST: usize = 50_000;
/// Bytes of one listing: more than the kernel asks for at once.
const LISTING: usize = 1 << 20;

/// A walk that is under way or done. Dropped, it ends soon.
#[derive(Debug)]
pub struct Walk {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Walk {
    /// Waits until it is done.
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a walk through a view panicked");
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl View {
    /// Walks through the view by `mount`, one of its mounts, in the background. While the walk lasts,
    /// the mount is in use.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn walk(&self, mount: OwnedFd) -> io::Result<Walk> {
        let ended = Arc::new(AtomicBool::new(false));
        let (trees, end) = (Arc::clone(&self.trees), Arc::clone(&ended));
        let thread = std::thread::Builder::new()
            .name("fs-walk".to_owned())
            .spawn(move || {
                yield_to_others();
                // Whoever ends the view or changes a directory meanwhile is in the right: what is not
                // walked is asked for.
                if let Err(error) = walk(&trees, &mount, &end) {
                    tracing::debug!(%error, "a walk through a view has ended early");
                }
            })?;
        Ok(Walk {
            ended,
            thread: Some(thread),
        })
    }
}

/// What a session does comes first.
fn yield_to_others() {
    let thread = rustix::thread::gettid();
    // SAFETY: it takes three numbers.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.as_raw_pid() as u32, 19) };
    if done != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, "a walk through a view has the priority of everything else");
    }
}

fn walk(trees: &Trees, mount: &OwnedFd, ended: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![MaybeUninit::uninit(); LISTING];
    let mut pending: Vec<(Ino, Vec<u8>)> = vec![(ROOT_INO, b".".to_vec())];
    let mut walked = 0;
    while let Some((ino, path)) = pending.pop() {
        if ended.load(Ordering::Relaxed) || walked >= MOST {
            return Ok(());
        }
        let mut entries = 0;
        let listed = trees.of(ino).list(ino, 0, false, |name, found, position| {
            entries += 1;
            // The first two are the directory itself and the one above.
            if position > 2 && found.kind == Kind::Directory {
                let below = [&path[..], b"/", name].concat();
                if below.len() < libc::PATH_MAX as usize {
                    pending.push((found.ino, below));
                }
            }
            true
        });
        listed.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        walked += entries;
        have_listed(mount, path, entries, &mut buffer)?;
    }
    Ok(())
}

/// Has the kernel ask for so many entries of a directory, and not for their end.
fn have_listed(
    mount: &OwnedFd,
    path: Vec<u8>,
    entries: usize,
    buffer: &mut [MaybeUninit<u8>],
) -> io::Result<()> {
    let path = CString::new(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A program may put a symlink in the way.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(mount, path, flags, Mode::empty(), resolve)?;
    let mut listed = RawDir::new(directory, buffer);
    for _ in 0..entries {
        match listed.next() {
            Some(entry) => entry?,
            None => break,
        };
    }
    Ok(())
}
