//! Building a session's root.
//!
//! Owns what a session sees, in three steps that all run in the session's init:
//! 1. *gather*: while the holder's root is still there, take a detached, recursive copy of
//!    it (read-only, without device nodes and set-id), of each path to be shown, of the
//!    devices; and mount a fresh proc, which the kernel allows only while an old one is
//!    fully visible;
//! 2. *pivot* into the copy, and detach the old root;
//! 3. *furnish*: put everything in its place, by paths that now mean the new root, parents
//!    first, the view last.
//!
//! Never looks into the view. Invariants, for whatever the session's root user tries (it
//! may be the host's uid 0, without capabilities):
//! - nothing is writable but the view, `/tmp`, `/var/tmp`, `/dev/shm`, `/run`, the private
//!   home and what was asked for; no `/proc/sys`, no `/sys`;
//! - no device node works but the six harmless ones in `/dev` and the session's terminals;
//! - no socket of the host under `/run`, no file of the holder's run directory is there;
//! - `/proc` shows this session's processes only.
//!
//! What this does not do: a unix socket or named pipe elsewhere in the holder's root, and
//! files that the holder's user may read, are there unless they are hidden by name.

mod devices;
mod gather;
mod plan;
mod procfs;

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, pivot_root};

use crate::bytes::Bytes;
use crate::protocol::{Refusal, refusal_errno};
use crate::syscalls::{FsContext, attach, attr, set_attributes};
pub(crate) use plan::RootPlan;

/// The view, before it is in place.
pub(crate) enum ViewMount {
    /// A detached mount.
    Detached(OwnedFd),
    /// A directory of the holder's root.
    Bind(PathBuf),
}

/// Size of the tmpfs on `/dev/shm`: more than browsers and databases ask for, less than
/// hurts a small host.
const SHM_SIZE: &CStr = c"1g";

/// Size of the tmpfs on `/run`: pid files and sockets.
const RUN_SIZE: &CStr = c"64m";

/// Size of the tmpfs on `/dev`, and of covers: directories and mount points only.
const TINY_SIZE: &CStr = c"64k";

/// Builds the root and makes it this process's. `scaffold` is an empty directory of the
/// old root; `all_ids` tells whether the session has them.
pub(crate) fn build(
    plan: &RootPlan,
    view: ViewMount,
    scaffold: &Path,
    all_ids: bool,
) -> Result<(), Refusal> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(Refusal::setup("make mounts private"))?;
    let gathered = gather::gather(plan, view)?;
    pivot(&gathered.base, scaffold).map_err(Refusal::setup("change the root"))?;
    furnish(plan, gathered, all_ids)
}

fn pivot(base: &OwnedFd, scaffold: &Path) -> io::Result<()> {
    attach(base.as_fd(), scaffold)?;
    chdir(scaffold)?;
    // The old root ends up on top of the new one, at the place that "." means; so no
    // directory for it is needed, and detaching "." uncovers the new one.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    Ok(())
}

/// Something to put in a place.
enum Piece {
    /// A detached tree, with its attributes; a place for it is made if it is missing.
    Tree { mount: OwnedFd, is_dir: bool },
    /// Nothing to see, if there is anything: an empty read-only directory, or `/dev/null`.
    Cover,
    /// An empty writable tmpfs, if there is such a directory.
    Scratch { size: &'static CStr },
    /// The fresh proc.
    Proc(OwnedFd),
    /// A minimal `/dev`.
    Devices(devices::Sources),
}

/// A piece and its place.
struct Placement {
    target: PathBuf,
    /// Order among places of one depth: what is asked for by name goes over what always is.
    rank: u8,
    piece: Piece,
}

fn furnish(plan: &RootPlan, gathered: gather::Gathered, all_ids: bool) -> Result<(), Refusal> {
    let gather::Gathered {
        base: _,
        view,
        mut placements,
        resolv_conf,
    } = gathered;
    placements.sort_by_key(|place| (place.target.components().count(), place.rank));
    // Covers are made read-only last: places may have to be made in them.
    let mut covers = Vec::new();
    for Placement { target, piece, .. } in placements {
        let step = |step| Refusal::setup::<io::Error>(step);
        match piece {
            Piece::Tree { mount, is_dir } => {
                let place = mountpoint(&target, is_dir)?;
                attach(mount.as_fd(), &place).map_err(step("attach a bind"))?;
            }
            Piece::Cover => {
                covers.extend(cover(&target, plan.workspace_root()).map_err(step("cover a path"))?)
            }
            Piece::Scratch { size } => {
                if target.is_dir() {
                    let fresh = tmpfs(c"0755", size).map_err(step("make a tmpfs"))?;
                    attach(fresh.as_fd(), &target).map_err(step("attach a tmpfs"))?;
                }
            }
            Piece::Proc(proc) => {
                attach(proc.as_fd(), &target).map_err(step("attach proc"))?;
                // The masks take /dev/null; /dev comes first by its rank.
                procfs::mask(&target).map_err(step("mask proc"))?;
            }
            Piece::Devices(sources) => {
                let made = devices::furnish(&target, sources, all_ids);
                covers.push(made.map_err(step("make /dev"))?);
            }
        }
    }
    if let Some((path, file)) = resolv_conf {
        let place = mountpoint(&path, false)?;
        attach(file.as_fd(), &place).map_err(Refusal::setup("attach resolv.conf"))?;
    }
    let place = mountpoint(plan.workspace_root(), true)?;
    let refuse = |error: io::Error| Refusal::ViewRefused {
        errno: refusal_errno(&error),
    };
    attach(view.as_fd(), &place).map_err(refuse)?;
    set_attributes(view.as_fd(), attr::NOSUID | attr::NODEV, true).map_err(refuse)?;
    for cover in covers {
        set_attributes(cover.as_fd(), attr::RDONLY, false)
            .map_err(Refusal::setup("seal covers"))?;
    }
    Ok(())
}

/// A tmpfs, detached.
fn tmpfs(mode: &CStr, size: &CStr) -> io::Result<OwnedFd> {
    let context = FsContext::open(c"tmpfs")?;
    context.set(c"source", c"tmpfs")?;
    context.set(c"mode", mode)?;
    context.set(c"size", size)?;
    context.mount(attr::NOSUID | attr::NODEV)
}

/// Covers a path, if it is there; returns a directory's cover, which is still writable.
fn cover(path: &Path, workspace_root: &Path) -> io::Result<Option<OwnedFd>> {
    let place = match fs::canonicalize(path) {
        Ok(place) => place,
        // Nothing is there, or nothing that this user could reach from inside either.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // The view will cover it.
    if place.starts_with(workspace_root) {
        return Ok(None);
    }
    if place.is_dir() {
        let fresh = tmpfs(c"0555", TINY_SIZE)?;
        attach(fresh.as_fd(), &place)?;
        Ok(Some(fresh))
    } else {
        let null = crate::syscalls::clone_tree(Path::new("/dev/null"))?;
        attach(null.as_fd(), &place)?;
        Ok(None)
    }
}

/// The place to mount on, with links resolved; made if it is missing.
fn mountpoint(target: &Path, is_dir: bool) -> Result<PathBuf, Refusal> {
    make_place(target, is_dir).map_err(|error| Refusal::MountpointMissing {
        path: Bytes::from(target),
        errno: refusal_errno(&error),
    })
}

/// Makes a directory or an empty file, and what leads to it, unless it is there.
fn make_place(target: &Path, is_dir: bool) -> io::Result<PathBuf> {
    match fs::canonicalize(target) {
        Ok(place) => return Ok(place),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let make_dir = |path: &Path| {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
    };
    if is_dir {
        make_dir(target)?;
    } else {
        target.parent().map_or(Ok(()), make_dir)?;
        let file = File::options().write(true).create_new(true).open(target)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
    }
    fs::canonicalize(target)
}
