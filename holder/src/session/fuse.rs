//! A FUSE mount made in the session's user namespace.
//!
//! Owns opening `/dev/fuse` and making a detached mount of it. Never waits for anybody to
//! serve it.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::unistd::{getegid, geteuid};

use crate::protocol::{FuseOptions, Refusal};
use crate::syscalls::{FsContext, attr};

/// A FUSE filesystem that nobody serves yet.
pub(super) struct FuseMount {
    /// Its detached mount.
    pub(super) mount: OwnedFd,
    /// Its `/dev/fuse` descriptor.
    pub(super) device: OwnedFd,
}

/// Makes it. The kernel wants the device opened and the mount made in one user namespace,
/// that of the caller; and it reports pids in the caller's pid namespace.
pub(super) fn mount(options: &FuseOptions) -> Result<FuseMount, Refusal> {
    let device: OwnedFd = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/fuse")
        .map_err(refused("open /dev/fuse"))?
        .into();
    let text = |value: String| {
        CString::new(value).map_err(|_| Refusal::invalid("fs_name must not contain NUL"))
    };
    let context = FsContext::open(c"fuse").map_err(refused("fsopen"))?;
    let name = CString::new(options.fs_name.0.clone())
        .map_err(|_| Refusal::invalid("fs_name must not contain NUL"))?;
    let set = |key, value: &CString| context.set(key, value).map_err(refused("fsconfig"));
    set(c"source", &name)?;
    set(c"fd", &text(device.as_raw_fd().to_string())?)?;
    // S_IFDIR, in octal.
    set(c"rootmode", &text("40000".to_owned())?)?;
    set(c"user_id", &text(geteuid().to_string())?)?;
    set(c"group_id", &text(getegid().to_string())?)?;
    if let Some(max_read) = options.max_read {
        set(c"max_read", &text(max_read.to_string())?)?;
    }
    context
        .flag(c"default_permissions")
        .map_err(refused("fsconfig"))?;
    if options.allow_other {
        context.flag(c"allow_other").map_err(refused("fsconfig"))?;
    }
    let mount = context
        .mount(attr::NOSUID | attr::NODEV)
        .map_err(refused("fsmount"))?;
    Ok(FuseMount { mount, device })
}

fn refused(step: &'static str) -> impl FnOnce(std::io::Error) -> Refusal {
    move |error| Refusal::FuseRefused {
        step: step.to_owned(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        fix: "/dev/fuse must exist and be readable and writable by the holder's user \
              (mode 0666), and the kernel must have fuse"
            .to_owned(),
    }
}
