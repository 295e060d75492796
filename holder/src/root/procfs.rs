//! Masking a session's `/proc`.
//!
//! A session's root user may be the host's uid 0, and much of `/proc` asks for no more
//! than that: `core_pattern` names a program that the host's kernel runs as root,
//! `sysrq-trigger` reboots. So the rule is one for all kernels, not a list of names:
//! at the top of `/proc`, whatever is not of a process is read-only, and what only root
//! may read is covered; beside that go the names that container runtimes cover because
//! they tell of the host or leak addresses.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{TINY_SIZE, tmpfs};
use crate::syscalls::{attach, attr, clone_tree, set_attributes};

/// Covered though everyone may read them.
const COVERED: [&str; 10] = [
    "acpi",
    "asound",
    "kcore",
    "key-users",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
];

const MASK: u64 = attr::RDONLY | attr::NOSUID | attr::NODEV | attr::NOEXEC;

/// Masks the proc at `proc`, which must be a session's own; `/dev/null` must be in place.
pub(super) fn mask(proc: &Path) -> io::Result<()> {
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        // Processes, and the links to one's own: self, thread-self, net, mounts.
        if name.as_bytes()[0].is_ascii_digit() || kind.is_symlink() {
            continue;
        }
        let path = entry.path();
        let mode = entry.metadata()?.permissions().mode();
        let covered = COVERED.iter().any(|covered| name == **covered);
        let secret = kind.is_file() && mode & 0o004 == 0;
        let writable = kind.is_dir() || mode & 0o222 != 0;
        if (covered || secret) && kind.is_dir() {
            let empty = tmpfs(c"0555", TINY_SIZE)?;
            attach(empty.as_fd(), &path)?;
            set_attributes(empty.as_fd(), MASK, false)?;
        } else if covered || secret {
            let null = clone_tree(Path::new("/dev/null"))?;
            set_attributes(null.as_fd(), attr::NOSUID | attr::NOEXEC, false)?;
            attach(null.as_fd(), &path)?;
        } else if writable {
            let own = clone_tree(&path)?;
            set_attributes(own.as_fd(), MASK, true)?;
            attach(own.as_fd(), &path)?;
        }
    }
    Ok(())
}
