//! Making a session.
//!
//! Owns the way from a request to a session's init: two forks, the namespaces, the id
//! maps. What the session then sees is the work of `root`, what it does that of `init`.
//!
//! The holder forks a *setup* process. It leaves the holder's namespaces, has its id maps
//! written by the holder (only the parent may write a full map), mounts FUSE if asked
//! (before the pid namespace is entered, so that FUSE names the holder's pids), forks the
//! *init* and ends. The init, pid 1 of the new pid namespace, is then a child of the
//! holder, which is a subreaper. It is forked, not executed: there is no program of ours
//! to find, open or overwrite from inside.
//!
//! Both talk to the holder over one socket pair ([`control`]); the holder never waits for
//! them, so a mount that hangs does not hang it.
//!
//! Invariants:
//! - Neither process keeps a descriptor of the holder but its end of the socket pair and
//!   the view; neither can be read or traced from inside (not dumpable, and the memory
//!   belongs to the holder's user namespace); the holder's arguments and environment are
//!   wiped from it.
//! - During the making nothing looks into the view: nobody serves it yet.

pub(crate) mod control;
mod fuse;
pub(crate) mod setup;
mod wipe;

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;

use nix::libc::rlim_t;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{ForkResult, Pid, fork};

use crate::protocol::{FuseOptions, Network};
use crate::root::RootPlan;
use crate::seccomp::Filters;

/// All that a session is made from.
pub(crate) struct Blueprint {
    /// What it sees.
    pub(crate) root: RootPlan,
    /// Where its view comes from.
    pub(crate) view: ViewSource,
    /// Its network.
    pub(crate) network: Network,
    /// An empty directory to build its root on.
    pub(crate) scaffold: PathBuf,
    /// Whether this process may change mounts of its own mount namespace.
    pub(crate) may_mount: bool,
    /// Whether the session will have all ids.
    pub(crate) all_ids: bool,
    /// What its commands may not call.
    pub(crate) filters: Filters,
    /// Open files that its commands may have, soft and hard: what the holder was started
    /// with, before it raised its own.
    pub(crate) open_files: (rlim_t, rlim_t),
    /// Processes and threads that each of its users may have; `None`: as many as the holder.
    pub(crate) processes: Option<rlim_t>,
}

/// Where a session's view comes from.
pub(crate) enum ViewSource {
    /// A detached mount, or a directory.
    Descriptor(OwnedFd),
    /// A FUSE mount to be made.
    Fuse(FuseOptions),
}

/// A session being made.
pub(crate) struct Launched {
    /// The holder's end of the socket pair; non-blocking use by flag only.
    pub(crate) control: OwnedFd,
    /// The setup process.
    pub(crate) setup: Pid,
}

/// Begins to make a session.
///
/// The caller must be single-threaded.
pub(crate) fn launch(blueprint: Blueprint) -> io::Result<Launched> {
    let (control, inner) = socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    // SAFETY: the holder is single-threaded (checked when it began to serve), so the
    // child's memory is consistent and it may run any code.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Launched {
            control,
            setup: child,
        }),
        ForkResult::Child => end_after(|| {
            drop(control);
            setup::run(blueprint, &inner)
        }),
    }
}

/// Runs a forked child to its end; it never returns to what its parent was doing.
pub(crate) fn end_after(child: impl FnOnce() -> i32) -> ! {
    let code = panic::catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
    // SAFETY: no clean-up of the parent's state may run here, which is what _exit is for.
    unsafe { libc::_exit(code) }
}
