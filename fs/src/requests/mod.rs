//! What each request of the kernel does: calls the tree, notes the access, and tells the kernel
//! what it would not know.
//!
//! This is what the adapters share, so that a view behaves the same over each of them. It knows no
//! type of fuser and no layout of a message; an adapter decodes, calls, encodes, and catches panics.

mod content;
mod entries;
mod known;
mod memory;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sandstack_store::{AccessKind, Attributes, Ino, Kind};

use crate::error::{Error, Result};
use crate::notify::Notifier;
use crate::profile::Profile;
use crate::record::Recorder;
use crate::tree::{Caller, SetAttributes, Space};
use crate::trees::Trees;
use crate::view::{Owner, SlowPool};

pub(crate) use content::WriteOrigin;
pub(crate) use entries::{Sized, kernel_device, new_mode};
pub(crate) use known::Known;

/// How long the kernel may believe an answer: the tree is the only one that changes the view, so
/// until it is told otherwise. (68 years; the kernel cuts it to what its clock can hold.)
pub(crate) const FOREVER: Duration = Duration::from_secs(i32::MAX as u64);

/// Largest read, write and read-ahead, in bytes: what the kernel allows without a sysctl. A call that
/// goes to the daemon is as many requests, and rows of the record, over each transport.
pub(crate) const MAX_TRANSFER: u32 = 1 << 20;

/// Requests that the kernel may have under way for one view of its own accord, such as read-ahead.
pub(crate) const MAX_BACKGROUND: u16 = 64;

/// Entries of the layer that are given up before freed memory goes back to the kernel: some 5 MiB.
const TRIM_EVERY: usize = 25_000;

/// The bit by which the kernel marks an open for execution (`__FMODE_EXEC` of `linux/fs.h`).
const OPEN_EXECUTE: i32 = 0x20;

/// Flags of a reply to an open (`FOPEN_*` of `linux/fuse.h`).
const FOPEN_DIRECT_IO: u32 = 1 << 0;
const FOPEN_KEEP_CACHE: u32 = 1 << 1;

/// One view, as the kernel may ask about it.
pub(crate) struct Requests {
    pub(crate) trees: Arc<Trees>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) profile: Profile,
    pub(crate) slow: Arc<SlowPool>,
    /// Whose everything appears to be; `None`: owners as they are.
    pub(crate) owner: Option<Owner>,
    pub(crate) known: Arc<Known>,
    /// Entries of the layer that were given up since the view began.
    pub(crate) given_up: AtomicUsize,
}

/// The kernel of a view that has ended knows nothing any more. What is loaded stays: others may come.
impl Drop for Requests {
    fn drop(&mut self) {
        let tree = self.trees.current();
        for ino in self.known.all() {
            tree.upper().lower().release(ino);
        }
    }
}

impl Requests {
    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        Ok(self.owned(self.trees.of(ino).attributes(ino)?))
    }

    pub(crate) fn set_attributes(
        &self,
        caller: Caller,
        ino: Ino,
        set: SetAttributes,
    ) -> Result<Attributes> {
        let kind = if set.size.is_some() {
            AccessKind::Write
        } else {
            AccessKind::Metadata
        };
        let found = self.trees.of(ino).set_attributes(caller, ino, set)?;
        self.recorder.inode(caller.pid, ino, kind, 0);
        Ok(self.owned(found))
    }

    /// The kernel is being told of an inode.
    fn told(&self, found: &Attributes) {
        if self.known.told(found.ino) && found.kind == Kind::Directory {
            self.trees.current().upper().lower().hold(found.ino);
        }
    }

    /// The kernel gives back `count` of the times that it was told of an inode. If it was told again
    /// meanwhile, it has it still.
    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        if !self.known.forgotten(ino, count) {
            return;
        }
        self.recorder.forgotten(ino);
        self.let_lower_forget(ino);
        if let Err(error) = self.trees.of(ino).forget(ino) {
            tracing::error!(ino, %error, "an inode without a name could not be dropped");
        }
        self.trees.forgotten(ino);
    }

    fn let_lower_forget(&self, ino: Ino) {
        let tree = self.trees.current();
        let upper = tree.upper();
        let given_up = {
            // What the session has moved or changed may be found at another place than in its layer.
            let state = upper.state();
            let needed = |ino| self.known.knows(ino) || state.inode(ino).is_some();
            upper.lower().forgotten(ino, needed)
        };
        let before = self.given_up.fetch_add(given_up, Ordering::Relaxed);
        if before % TRIM_EVERY + given_up >= TRIM_EVERY {
            memory::trim();
        }
    }

    pub(crate) fn space(&self) -> Result<Space> {
        self.trees.current().space()
    }

    /// The flags of the reply to an open. `None`: the kernel is to open this and everything else
    /// without asking.
    pub(crate) fn open(&self, caller: Caller, ino: Ino, flags: i32) -> Option<u32> {
        if self.profile.open_without_message {
            return None;
        }
        self.note_open(caller.pid, ino, flags);
        Some(self.open_flags())
    }

    /// The same of a directory.
    pub(crate) fn open_directory(&self) -> Option<u32> {
        if self.profile.list_without_message {
            return None;
        }
        // Not kept by the kernel, so that each listing comes here; one that is only opened is not listed.
        Some(0)
    }

    /// A sync waits for the disk, so it is done, and answered, by a thread that serves no requests.
    /// `answer` is called once, with `None` if there was a panic.
    pub(crate) fn sync_later(&self, answer: impl FnOnce(Option<Result<()>>) + Send + 'static) {
        let tree = self.trees.current();
        self.slow.run(Box::new(move || {
            let synced = guarded("fsync", || tree.sync());
            guarded("fsync", || answer(synced));
        }));
    }

    /// Does again what was refused for want of room for the content of `ino`: it may be about to come
    /// ([`Tree::with_room`](crate::tree::Tree::with_room)). Waits, so it is done, and answered, by a
    /// thread that serves no requests. `answer` is called once, with `None` if there was a panic.
    pub(crate) fn again_with_room<T>(
        self: &Arc<Self>,
        operation: &'static str,
        ino: Ino,
        mut act: impl FnMut(&Requests) -> Result<T> + Send + 'static,
        answer: impl FnOnce(Option<Result<T>>) + Send + 'static,
    ) {
        let requests = Arc::clone(self);
        self.slow.run(Box::new(move || {
            let done = guarded(operation, || {
                let tree = requests.trees.of(ino);
                tree.with_room(ino, || {
                    let _entered = requests.trees.enter();
                    act(&requests)
                })
            });
            guarded(operation, || answer(done));
        }));
    }

    /// As the kernel is told of an inode: by its owner, or by the one whose everything appears to be.
    fn owned(&self, mut attributes: Attributes) -> Attributes {
        if let Some(owner) = self.owner {
            attributes.uid = owner.uid;
            attributes.gid = owner.gid;
        }
        attributes
    }

    /// Before a change of content is answered: the kernel is to ask for the mode again if set-id
    /// bits went.
    fn tell_mode(&self, ino: Ino, changed: bool) {
        if changed && let Err(error) = self.notifier.attributes(ino) {
            tracing::warn!(ino, %error, "the kernel was not told that set-id bits went");
        }
    }

    fn open_flags(&self) -> u32 {
        if self.profile.direct_io {
            FOPEN_DIRECT_IO
        } else {
            FOPEN_KEEP_CACHE
        }
    }

    fn note_open(&self, pid: u32, ino: Ino, flags: i32) {
        if flags & OPEN_EXECUTE != 0 {
            self.recorder.inode(pid, ino, AccessKind::Execute, 0);
            return;
        }
        let mode = flags & libc::O_ACCMODE;
        if mode != libc::O_WRONLY {
            self.recorder.inode(pid, ino, AccessKind::Open, 0);
        }
        if mode != libc::O_RDONLY {
            self.recorder.inode(pid, ino, AccessKind::OpenWrite, 0);
        }
    }
}

/// Runs a handler. A panic in it is logged and ends with the handler: `None`.
pub(crate) fn guarded<T>(operation: &'static str, handler: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(value) => Some(value),
        Err(_) => {
            tracing::error!(
                operation,
                "a filesystem handler panicked; the request failed with EIO"
            );
            None
        }
    }
}

/// The errno of an error, which is logged if the store is to blame.
pub(crate) fn errno(error: &Error) -> i32 {
    let errno = error.errno();
    if let Error::Store(cause) = error
        && errno == libc::EIO
    {
        tracing::error!(error = %cause, "the store failed a filesystem request");
    }
    errno
}
