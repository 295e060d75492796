//! Capabilities of commands.
//!
//! Owns the set that a command keeps inside its session's user namespace, and dropping
//! the rest for good (the bounding set too, so no program gains them back).
//!
//! Kept is what ordinary work as root needs: ownership, modes and signals across users
//! (package managers, `su`, build daemons), low ports, chroot, device-less mknod and
//! file capabilities (both are powerless outside the session). Dropped beyond Docker's
//! default set: `SETPCAP` and `AUDIT_WRITE` (nothing here needs them), and `NET_RAW`
//! unless the session has its own network. No `SYS_*` but `SYS_CHROOT`: a session's old
//! root is detached, so there is nothing to break out to.

use std::io;

use crate::protocol::Network;
use crate::syscalls::prctl;

/// Numbers from `linux/capability.h`; the same on every architecture.
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const NET_BIND_SERVICE: u32 = 10;
const NET_RAW: u32 = 13;
const SYS_CHROOT: u32 = 18;
const SYS_ADMIN: u32 = 21;
const MKNOD: u32 = 27;
const SETFCAP: u32 = 31;

/// Highest capability number that fits the kernel's 64-bit sets.
const LAST: u32 = 63;

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps(u64);

impl Caps {
    const NONE: Caps = Caps(0);

    const fn of(list: &[u32]) -> Caps {
        let mut set = 0;
        let mut i = 0;
        while i < list.len() {
            set |= 1 << list[i];
            i += 1;
        }
        Caps(set)
    }

    /// What a command keeps if it runs as root of its session.
    pub(crate) fn of_command(network: Network) -> Caps {
        const SHARED: Caps = Caps::of(&[
            CHOWN,
            DAC_OVERRIDE,
            FOWNER,
            FSETID,
            KILL,
            SETGID,
            SETUID,
            NET_BIND_SERVICE,
            SYS_CHROOT,
            MKNOD,
            SETFCAP,
        ]);
        match network {
            Network::Shared => SHARED,
            Network::Isolated => Caps(SHARED.0 | 1 << NET_RAW),
        }
    }

    fn has(self, cap: u32) -> bool {
        self.0 & (1 << cap) != 0
    }

    /// The effective capabilities of this process.
    pub(crate) fn effective() -> io::Result<Caps> {
        let (header, mut data) = (Header::new(), [Data::default(); 2]);
        // SAFETY: header and data are what version 3 of capget takes: one header, two
        // data records; both outlive the call.
        let result =
            unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Caps(
            u64::from(data[0].effective) | u64::from(data[1].effective) << 32,
        ))
    }

    /// Whether mounts of this mount namespace may be changed.
    pub(crate) fn may_mount(self) -> bool {
        self.has(SYS_ADMIN)
    }

    /// Whether a child's user namespace may be given all ids.
    pub(crate) fn may_map_all(self) -> bool {
        self.has(SETUID) && self.has(SETGID) && self.has(SETFCAP)
    }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

impl Header {
    fn new() -> Header {
        Header {
            version: 0x2008_0522,
            pid: 0,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops everything but `keep` from the bounding set. Needs `SETPCAP`, so it comes
/// before [`drop_to`].
pub(crate) fn bound(keep: Caps) -> io::Result<()> {
    for cap in (0..=LAST).filter(|cap| !keep.has(*cap)) {
        match prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(cap)) {
            Ok(_) => {}
            // The kernel's own last capability is passed.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Drops everything but `keep` (if `root`) or everything from the process's own sets,
/// and forbids gaining any by `exec`.
pub(crate) fn drop_to(keep: Caps, root: bool) -> io::Result<()> {
    prctl(
        libc::PR_CAP_AMBIENT,
        libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong,
    )?;
    let set = if root { keep } else { Caps::NONE };
    let half = |shift: u32| (set.0 >> shift) as u32;
    let data = |half| Data {
        effective: half,
        permitted: half,
        inheritable: 0,
    };
    let (header, data) = (Header::new(), [data(half(0)), data(half(32))]);
    // SAFETY: header and data are what version 3 of capset takes: one header, two data
    // records; both outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_keep_nothing_that_reaches_out_of_the_session() {
        for network in [Network::Shared, Network::Isolated] {
            let caps = Caps::of_command(network);
            assert!(!caps.may_mount());
            // DAC_READ_SEARCH (open_by_handle_at), SETPCAP, NET_ADMIN, SYS_MODULE,
            // SYS_RAWIO, SYS_PTRACE, SYS_BOOT, SYS_TIME, SYSLOG, BPF.
            for cap in [2, 8, 12, 16, 17, 19, 22, 25, 34, 39] {
                assert!(!caps.has(cap), "capability {cap}");
            }
            assert_eq!(caps.has(NET_RAW), network == Network::Isolated);
        }
    }
}
