//! Taking copies of what a session will see, while the holder's root is there.
//!
//! Owns the detached mounts and their attributes, and the list of places. Attaches
//! nothing.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

use super::{Piece, Placement, RUN_SIZE, RootPlan, ViewMount, devices};
use crate::bytes::Bytes;
use crate::protocol::{Refusal, refusal_errno};
use crate::syscalls::{FsContext, attr, clone_tree, set_attributes};

/// What was gathered.
pub(super) struct Gathered {
    /// The copy of the holder's root.
    pub(super) base: OwnedFd,
    /// The view.
    pub(super) view: OwnedFd,
    /// All else.
    pub(super) placements: Vec<Placement>,
    /// Where `/etc/resolv.conf` leads to, if that is under `/run`, and its file.
    pub(super) resolv_conf: Option<(PathBuf, OwnedFd)>,
}

/// Attributes of what a session may write to.
const WRITABLE: u64 = attr::NOSUID | attr::NODEV;

/// Attributes of what it may only see.
const READ_ONLY: u64 = WRITABLE | attr::RDONLY;

/// Parts of `/sys` that tell of the host or of other sessions, or that only root may look
/// at: firmware, kernel debugging, power meters, FUSE connections.
const SYS_COVERS: [&str; 8] = [
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
    "/sys/kernel/security",
    "/sys/fs/bpf",
    "/sys/fs/pstore",
    "/sys/fs/fuse/connections",
    "/sys/devices/virtual/powercap",
];

pub(super) fn gather(plan: &RootPlan, view: ViewMount) -> Result<Gathered, Refusal> {
    let base = clone_tree(Path::new("/")).map_err(Refusal::setup("copy the root"))?;
    set_attributes(base.as_fd(), READ_ONLY, true).map_err(Refusal::setup("protect the root"))?;
    let view = match view {
        ViewMount::Detached(mount) => mount,
        ViewMount::Bind(path) => clone_tree(&path).map_err(|error| Refusal::ViewRefused {
            errno: refusal_errno(&error),
        })?,
    };
    let mut placements = Vec::new();
    let mut place = |rank, target: &Path, piece| {
        placements.push(Placement {
            target: target.to_owned(),
            rank,
            piece,
        });
    };
    let devices = devices::sources().map_err(Refusal::setup("find the devices"))?;
    place(0, Path::new("/dev"), Piece::Devices(devices));
    place(1, Path::new("/proc"), Piece::Proc(fresh_proc()?));
    for path in SYS_COVERS
        .map(Path::new)
        .into_iter()
        .chain(plan.hide.iter().map(PathBuf::as_path))
    {
        place(2, path, Piece::Cover);
    }
    place(3, Path::new("/run"), Piece::Scratch { size: RUN_SIZE });
    // A link to /run, mostly; where it is a directory, sockets are in it as well.
    if fs::symlink_metadata("/var/run").is_ok_and(|metadata| metadata.is_dir()) {
        place(3, Path::new("/var/run"), Piece::Scratch { size: RUN_SIZE });
    }
    place(3, Path::new("/tmp"), tree(&plan.tmp, WRITABLE)?);
    let var_tmp = Path::new("/var/tmp");
    if var_tmp.is_dir() && !var_tmp.starts_with(plan.workspace_root()) {
        place(3, var_tmp, tree(&plan.var_tmp, WRITABLE)?);
    }
    if let Some((source, target)) = &plan.home {
        place(4, target, tree(source, WRITABLE)?);
    }
    for (source, target) in &plan.writable {
        place(5, target, tree(source, WRITABLE)?);
    }
    for (source, target) in &plan.expose {
        place(6, target, tree(source, READ_ONLY)?);
    }
    Ok(Gathered {
        base,
        view,
        placements,
        resolv_conf: resolv_conf()?,
    })
}

/// A copy of the mounts at and under a path.
fn tree(source: &Path, attributes: u64) -> Result<Piece, Refusal> {
    let missing = |error: io::Error| Refusal::SourceMissing {
        path: Bytes::from(source),
        errno: refusal_errno(&error),
    };
    let mount = clone_tree(source).map_err(missing)?;
    set_attributes(mount.as_fd(), attributes, true).map_err(missing)?;
    let is_dir = fs::metadata(source).map_err(missing)?.is_dir();
    Ok(Piece::Tree { mount, is_dir })
}

/// A proc of this pid namespace. The kernel refuses it unless a proc that is already here
/// shows as much, under the same rules about access times.
fn fresh_proc() -> Result<OwnedFd, Refusal> {
    let mount = || {
        let flags = statvfs("/proc")?.flags();
        let times = if flags.contains(FsFlags::ST_NOATIME) {
            attr::NOATIME
        } else if flags.contains(FsFlags::ST_RELATIME) {
            0
        } else {
            attr::STRICTATIME
        };
        let context = FsContext::open(c"proc")?;
        context.set(c"source", c"proc")?;
        context.mount(attr::NOSUID | attr::NODEV | attr::NOEXEC | times)
    };
    mount().map_err(|error| Refusal::ProcRefused {
        errno: refusal_errno(&error),
        fix: "parts of the sandbox's own /proc are masked; start its container with \
              --security-opt systempaths=unconfined (each session masks them again)"
            .to_owned(),
    })
}

/// The name servers' file, if it lies where the session gets an empty tmpfs.
fn resolv_conf() -> Result<Option<(PathBuf, OwnedFd)>, Refusal> {
    let path = match fs::canonicalize("/etc/resolv.conf") {
        Ok(path) if path.starts_with("/run") || path.starts_with("/var/run") => path,
        // Elsewhere it is seen as it is; where it is absent there is nothing to show.
        Ok(_) | Err(_) => return Ok(None),
    };
    match tree(&path, READ_ONLY)? {
        Piece::Tree {
            mount,
            is_dir: false,
        } => Ok(Some((path, mount))),
        _ => Ok(None),
    }
}

/// A filesystem of the session's own, detached.
pub(super) fn fresh(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    let context = FsContext::open(kind)?;
    for (key, value) in options {
        context.set(key, value)?;
    }
    context.mount(attributes)
}
