//! A walk through a view, so that its kernel knows what is there before anybody asks.
//!
//! A first look-up of each path is a message each; a listing with attributes tells of a whole
//! directory in one. So a new session's first `git status` costs little more than its second.
//!
//! The record is to stay true. The walk is no access of anybody's. It stops reading a directory
//! before the end, so that the kernel does not keep the listing: whoever lists it asks, and is noted. If
//! the end is met all the same, something went from there meanwhile, and the kernel is told to let go.
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

use crate::notify::Notifier;
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
        let notifier = Arc::clone(&self.notifier);
        let thread = std::thread::Builder::new()
            .name("fs-walk".to_owned())
            .spawn(move || {
                yield_to_others();
                // Whoever ends the view meanwhile is in the right: what is not walked is asked for.
                if let Err(error) = walk(&trees, &notifier, &mount, &end) {
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

fn walk(trees: &Trees, notifier: &Notifier, mount: &OwnedFd, ended: &AtomicBool) -> io::Result<()> {
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
        let listed = listed
            .map_err(|error| io::Error::from_raw_os_error(error.errno()))
            .and_then(|()| have_listed(mount, path, entries, &mut buffer));
        match listed {
            Ok(Seen::Entries) => {}
            Ok(Seen::End) => {
                notifier.inode(ino)?;
            }
            Err(error) if is_over(&error) => return Err(error),
            // Removed, moved or closed to us since it was listed: whoever can asks.
            Err(error) => tracing::trace!(ino, %error, "a directory is not walked"),
        }
        walked += entries;
    }
    Ok(())
}

/// Whether the view has ended.
fn is_over(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
    )
}

/// What the kernel has seen of a directory.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// As many entries as there were.
    Entries,
    /// Fewer, and then the end.
    End,
}

/// Has the kernel ask for so many entries of a directory, and not for their end.
fn have_listed(
    mount: &OwnedFd,
    path: Vec<u8>,
    entries: usize,
    buffer: &mut [MaybeUninit<u8>],
) -> io::Result<Seen> {
    let path = CString::new(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A program may put a symlink in the way.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(mount, path, flags, Mode::empty(), resolve)?;
    let mut listed = RawDir::new(directory, buffer);
    for _ in 0..entries {
        match listed.next() {
            Some(entry) => entry?,
            None => return Ok(Seen::End),
        };
    }
    Ok(Seen::Entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(mount: &OwnedFd, path: &str, entries: usize) -> io::Result<Seen> {
        let mut buffer = vec![MaybeUninit::uninit(); LISTING];
        have_listed(mount, path.into(), entries, &mut buffer)
    }

    #[test]
    fn a_walk_stays_where_it_is_and_knows_when_it_has_seen_the_end() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let mount: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        assert_eq!(listed(&mount, "./a", 3).unwrap(), Seen::Entries);
        assert_eq!(listed(&mount, "./a", 4).unwrap(), Seen::End);
        for away in ["./link/b", "./link", "./out/etc", "./..", "./none"] {
            assert!(listed(&mount, away, 1).is_err(), "{away}");
        }
    }
}
