//! A session's `/dev`.
//!
//! Owns its whole content: six harmless devices, terminals of its own, shared memory, the
//! usual links. Nothing else of the host's `/dev` is there, and nothing can be added: the
//! directory is read-only (its devices are written to all the same).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;

use super::gather::fresh;
use super::{SHM_SIZE, TINY_SIZE, tmpfs};
use crate::syscalls::{attach, attr, clone_tree, set_attributes};

/// Devices that do nothing to anybody.
const HARMLESS: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// The devices, as mounts of single files.
pub(super) struct Sources(Vec<(&'static str, OwnedFd)>);

/// Takes them from the holder's `/dev`.
pub(super) fn sources() -> io::Result<Sources> {
    let mut sources = Vec::new();
    for name in HARMLESS {
        let mount = clone_tree(&Path::new("/dev").join(name))?;
        set_attributes(mount.as_fd(), attr::NOSUID | attr::NOEXEC, false)?;
        sources.push((name, mount));
    }
    Ok(Sources(sources))
}

/// Makes `/dev`; returns its mount, which is still writable.
pub(super) fn furnish(dev: &Path, sources: Sources, all_ids: bool) -> io::Result<OwnedFd> {
    let root = tmpfs(c"0755", TINY_SIZE)?;
    attach(root.as_fd(), dev)?;
    for (name, device) in sources.0 {
        let place = dev.join(name);
        File::create_new(&place)?;
        attach(device.as_fd(), &place)?;
    }
    for (name, to) in LINKS {
        symlink(to, dev.join(name))?;
    }
    let mut options = vec![
        (c"source", c"devpts"),
        (c"ptmxmode", c"0666"),
        (c"mode", c"0620"),
    ];
    if all_ids {
        // Group tty, by the same number everywhere; lets `write` and `mesg` work.
        options.push((c"gid", c"5"));
    }
    for (name, mount) in [
        (
            "pts",
            fresh(c"devpts", &options, attr::NOSUID | attr::NOEXEC)?,
        ),
        ("shm", tmpfs(c"1777", SHM_SIZE)?),
    ] {
        let place = dev.join(name);
        fs::create_dir(&place)?;
        attach(mount.as_fd(), &place)?;
    }
    Ok(root)
}
