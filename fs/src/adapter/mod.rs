//! Between fuser and the tree: decodes, calls, replies. No rule of the filesystem is in here.
//!
//! Every handler runs under [`guarded`]: a panic in it drops its reply, which fuser answers with
//! `EIO`, and the mount goes on.

mod convert;
mod requests;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuser::{Errno, FileAttr, FopenFlags, INodeNo, ReplyEmpty, ReplyXattr, Request};
use sandstack_store::{AccessKind, Attributes};

use convert::{attr, caller, errno};

use crate::notify::Notifier;
use crate::placement;
use crate::profile::Profile;
use crate::record::Recorder;
use crate::tree::{NewNode, Tree};
use crate::view::{Owner, SlowPool};

/// The bit by which the kernel marks an open for execution (`__FMODE_EXEC` of `linux/fs.h`).
const OPEN_EXECUTE: i32 = 0x20;

pub(crate) struct Adapter {
    pub(crate) tree: Arc<Tree>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) profile: Profile,
    pub(crate) slow: Arc<SlowPool>,
    /// Whose everything appears to be; `None`: owners as they are.
    pub(crate) owner: Option<Owner>,
}

impl Adapter {
    fn attr(&self, attributes: &Attributes) -> FileAttr {
        attr(attributes, self.owner)
    }

    /// Before a change of content is answered: the kernel is to ask for the mode again if set-id
    /// bits went.
    fn tell_mode(&self, ino: INodeNo, changed: bool) {
        if changed && let Err(error) = self.notifier.attributes(ino.0) {
            tracing::warn!(ino = ino.0, %error, "the kernel was not told that set-id bits went");
        }
    }

    fn open_flags(&self) -> FopenFlags {
        if self.profile.direct_io {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }

    fn note_open(&self, pid: u32, ino: u64, flags: i32) {
        if flags & OPEN_EXECUTE != 0 {
            self.recorder.inode(pid, ino, AccessKind::Execute, 0);
            self.recorder.executed(pid);
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

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        node: NewNode,
    ) -> Result<FileAttr, Errno> {
        let name = name.as_bytes();
        let made = self
            .tree
            .create(
                caller(request),
                parent.0,
                name,
                (mode & 0o7777) as u16,
                node,
            )
            .map_err(errno)?;
        self.recorder.named(made.ino, parent.0, name);
        self.recorder
            .entry(request.pid(), parent.0, name, AccessKind::Create, 0);
        Ok(self.attr(&made))
    }

    /// A sync waits for the disk, so it is done, and answered, by a thread that serves no requests.
    fn sync_later(&self, reply: ReplyEmpty) {
        let tree = Arc::clone(&self.tree);
        self.slow.run(Box::new(move || {
            guarded("fsync", || match tree.sync() {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            });
        }));
    }

    fn note_listing(&self, request: &Request, ino: INodeNo, offset: u64) {
        // With messages for opendir each listing is noted there.
        if offset == 0 && self.profile.open_without_message {
            self.recorder
                .inode(request.pid(), ino.0, AccessKind::List, 0);
        }
    }
}

/// Runs the handler of a request where its caller is; a panic in it is logged and ends with the
/// handler.
fn serve(request: &Request, operation: &'static str, handler: impl FnOnce()) {
    placement::follow(request.pid());
    guarded(operation, handler);
}

/// Runs a handler; a panic in it is logged and ends with the handler.
fn guarded(operation: &'static str, handler: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(handler)).is_err() {
        tracing::error!(
            operation,
            "a filesystem handler panicked; the request failed with EIO"
        );
    }
}

fn answer_sized(value: &[u8], size: u32, reply: ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}
