//! System calls that the crates we use do not wrap.
//!
//! Owns the unsafe edge of: the mount API by descriptor (Linux 5.2, `mount_setattr`
//! 5.12), pidfds, `close_range`, forking a sibling, Landlock's scopes, connecting without waiting. Each wrapper does
//! one call and turns the result into an `io::Result`; none decides anything.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::unistd::Pid;

/// A path as the kernel takes it; `EINVAL` for one with a NUL.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_fd(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the system call has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Begins a connection to a port of this network namespace's loopback, without waiting for it.
pub(crate) fn begin_connection(port: u16, version_6: bool) -> io::Result<OwnedFd> {
    let family = if version_6 {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a call without pointers.
    let socket = check_fd(unsafe { libc::socket(family, kind, 0) }.into())?;
    // SAFETY: all-zero addresses are valid ones.
    let (mut four, mut six): (libc::sockaddr_in, libc::sockaddr_in6) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    four.sin_family = family as libc::sa_family_t;
    four.sin_port = port.to_be();
    four.sin_addr.s_addr = libc::INADDR_LOOPBACK.to_be();
    six.sin6_family = family as libc::sa_family_t;
    six.sin6_port = port.to_be();
    six.sin6_addr.s6_addr = std::net::Ipv6Addr::LOCALHOST.octets();
    let (address, length) = match version_6 {
        false => ((&raw const four).cast(), size_of_val(&four)),
        true => ((&raw const six).cast(), size_of_val(&six)),
    };
    // SAFETY: the address has the length given, is of the socket's family, and outlives the call.
    let begun = unsafe { libc::connect(socket.as_raw_fd(), address, length as libc::socklen_t) };
    match check(begun.into()) {
        Ok(_) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// `MOUNT_ATTR_*` of `mount_setattr` and `fsmount`.
pub(crate) mod attr {
    pub(crate) const RDONLY: u64 = 0x1;
    pub(crate) const NOSUID: u64 = 0x2;
    pub(crate) const NODEV: u64 = 0x4;
    pub(crate) const NOEXEC: u64 = 0x8;
    pub(crate) const NOATIME: u64 = 0x10;
    pub(crate) const STRICTATIME: u64 = 0x20;
}

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A detached copy of the mounts at and under `path`, which must be of this mount
/// namespace. Follows symbolic links.
pub(crate) fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as libc::c_uint;
    // SAFETY: the path is a C string that outlives the call.
    check_fd(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// Attaches a detached mount at `target`, whose last component is not followed.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: both paths are C strings that outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Sets attributes ([`attr`]) on a mount, and with `recursive` on those under it.
pub(crate) fn set_attributes(
    mount: BorrowedFd<'_>,
    attributes: u64,
    recursive: bool,
) -> io::Result<()> {
    let attributes = MountAttr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let recursive = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the attributes are a `struct mount_attr` of the size given, and both it
    // and the path outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// A filesystem being configured.
pub(crate) struct FsContext(OwnedFd);

impl FsContext {
    /// Begins a filesystem of this type.
    pub(crate) fn open(kind: &CStr) -> io::Result<FsContext> {
        // SAFETY: the name is a C string that outlives the call.
        check_fd(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })
            .map(FsContext)
    }

    /// Sets `key` to `value`.
    pub(crate) fn set(&self, key: &CStr, value: &CStr) -> io::Result<()> {
        self.config(FSCONFIG_SET_STRING, Some(key), Some(value))
    }

    /// Sets a flag.
    pub(crate) fn flag(&self, key: &CStr) -> io::Result<()> {
        self.config(FSCONFIG_SET_FLAG, Some(key), None)
    }

    /// Makes the filesystem and a detached mount of it.
    pub(crate) fn mount(self, attributes: u64) -> io::Result<OwnedFd> {
        self.config(FSCONFIG_CMD_CREATE, None, None)?;
        // SAFETY: a call without pointers.
        check_fd(unsafe {
            libc::syscall(
                libc::SYS_fsmount,
                self.0.as_raw_fd(),
                FSMOUNT_CLOEXEC,
                attributes as libc::c_uint,
            )
        })
    }

    fn config(
        &self,
        command: libc::c_uint,
        key: Option<&CStr>,
        value: Option<&CStr>,
    ) -> io::Result<()> {
        let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: key and value are null or C strings that outlive the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                self.0.as_raw_fd(),
                command,
                pointer(key),
                pointer(value),
                0,
            )
        })?;
        Ok(())
    }
}

/// A descriptor that names a process even after its pid is used again.
pub(crate) fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: a call without pointers.
    check_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })
}

/// Sends a signal to the process of a pidfd.
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means "as kill(2)".
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            no_info,
            0,
        )
    })?;
    Ok(())
}

/// Closes every descriptor of `first..=last`.
pub(crate) fn close_range(first: RawFd, last: RawFd) -> io::Result<()> {
    // SAFETY: a call without pointers. Callers own the invariant that nothing in this
    // process uses a descriptor of the range again; they are forked children that never
    // return to the code that opened them.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first as libc::c_uint,
            last as libc::c_uint,
            0,
        )
    })?;
    Ok(())
}

/// Closes every descriptor but those of `keep` and the three standard ones.
pub(crate) fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, RawFd::MAX)
}

/// Forks, but the child becomes a child of this process's parent. `None` in the child.
///
/// # Safety
/// As `fork(2)`: the process must be single-threaded.
pub(crate) unsafe fn fork_sibling() -> io::Result<Option<Pid>> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is a fork; the caller
    // guarantees that no other thread's lock can be left held in the child.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    Ok(if pid == 0 {
        None
    } else {
        Some(Pid::from_raw(pid as i32))
    })
}

/// `prctl` with integer arguments.
pub(crate) fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: only options with integer arguments are used; unused ones are zero.
    let result = unsafe { libc::prctl(option, argument, 0, 0, 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Sets the name that `ps` shows for this thread.
pub(crate) fn set_name(name: &CStr) -> io::Result<()> {
    prctl(libc::PR_SET_NAME, name.as_ptr() as libc::c_ulong).map(drop)
}

#[repr(C)]
struct LandlockRuleset {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// Landlock's rule "no connection to an abstract unix socket made outside the domain".
const LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;

/// The first Landlock version with scopes (Linux 6.12).
const LANDLOCK_SCOPES_ABI: libc::c_long = 6;

/// Puts abstract unix sockets of others out of this process's and its children's reach.
/// `false` where the kernel can't.
pub(crate) fn fence_abstract_sockets() -> io::Result<bool> {
    const VERSION: libc::c_uint = 1;
    let null = std::ptr::null::<LandlockRuleset>();
    // SAFETY: asking for the version takes a null attribute of size zero.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, null, 0usize, VERSION) };
    if abi < LANDLOCK_SCOPES_ABI {
        return Ok(false);
    }
    let rules = LandlockRuleset {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET,
    };
    // SAFETY: the attribute has the size given and outlives the call.
    let ruleset = check_fd(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const rules,
            size_of::<LandlockRuleset>(),
            0,
        )
    })?;
    // SAFETY: a call without pointers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })?;
    Ok(true)
}
