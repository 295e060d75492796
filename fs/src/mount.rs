//! Mounting: a FUSE connection with a mount that has no place yet, or one at a path.
//!
//! A *detached* mount exists nowhere: whoever gets its descriptor can put it in place in a mount
//! namespace of its own. Making one needs the right to mount (root, or root of a user namespace).
//! [`mount_at`] mounts at a path, with `fusermount3` where the right is missing.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

/// What a mount is called and allows.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Shown as the source in the mount table. Must not contain a comma or backslash.
    pub source: String,
    /// Whether other users than the one who mounts may use it. Without it even root may not.
    pub allow_other: bool,
    /// Whether set-id bits in it count.
    pub suid: bool,
    /// Whether device nodes in it work.
    pub dev: bool,
    /// Whether it can be written.
    pub read_only: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "sandstack".to_owned(),
            allow_other: true,
            suid: false,
            dev: false,
            read_only: false,
        }
    }
}

/// A new connection and its mount.
#[derive(Debug)]
pub struct Mounted {
    /// The connection, to be served.
    pub connection: OwnedFd,
    /// The mount. While this or a clone of it in some namespace lives, so does the filesystem.
    pub mount: OwnedFd,
}

/// Makes a connection with a mount that is nowhere yet.
///
/// # Errors
/// `/dev/fuse` is missing or not permitted, or mounting is; the message says which.
pub fn detached(options: &MountOptions) -> io::Result<Mounted> {
    let connection = open_device()?;
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|error| named("opening a FUSE filesystem", error))?;
    let set = |key: &str, value: &str| {
        rustix::mount::fsconfig_set_string(&context, key, value).map_err(|error| named(key, error))
    };
    let flag = |key: &str| {
        rustix::mount::fsconfig_set_flag(&context, key).map_err(|error| named(key, error))
    };
    set("source", &options.source)?;
    set("fd", &connection.as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::getuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getgid().as_raw().to_string())?;
    flag("default_permissions")?;
    if options.allow_other {
        flag("allow_other")?;
    }
    rustix::mount::fsconfig_create(&context)
        .map_err(|error| named("making a FUSE filesystem", error))?;
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|error| named("mounting a FUSE filesystem", error))?;
    Ok(Mounted { connection, mount })
}

/// Another mount of the same filesystem that is nowhere yet.
///
/// # Errors
/// As `open_tree(2)`: `EINVAL` if `mount` is in another mount namespace, or, before Linux 6.15, in
/// none.
pub fn another(mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(mount, CString::default(), flags)?)
}

/// Puts a detached mount in place at `path`.
///
/// # Errors
/// As `move_mount(2)`.
pub fn mount_at(mount: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let empty = CString::default();
    let path = CString::new(path.as_os_str().as_bytes())?;
    rustix::mount::move_mount(
        mount,
        empty.as_c_str(),
        rustix::fs::CWD,
        path.as_c_str(),
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(io::Error::from)
}

/// Whether what is mounted at `path` is a FUSE filesystem from `source`; also if nobody serves it
/// any more, when any look at `path` itself fails.
///
/// # Errors
/// The mount table cannot be read.
pub fn is_mounted_at(path: &Path, source: &str) -> io::Result<bool> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    // As the kernel writes a path there.
    let mut point = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => point.extend(format!("\\{byte:03o}").bytes()),
            byte => point.push(*byte),
        }
    }
    // `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS … - TYPE SOURCE …`, the uppermost mount last.
    let last = table
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b' '))
        .rfind(|fields| fields.clone().nth(4) == Some(&point));
    Ok(last.is_some_and(|fields| {
        let mut kind = fields.skip_while(|field| *field != b"-").skip(1);
        kind.next() == Some(b"fuse") && kind.next() == Some(source.as_bytes())
    }))
}

fn open_device() -> io::Result<OwnedFd> {
    const DEVICE: &str = "/dev/fuse";
    /// `FUSE_MINOR` of `linux/miscdevice.h`, under the major number of all miscellaneous devices.
    const NUMBERS: (u32, u32) = (10, 229);
    let open = || {
        let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        let number = device.metadata()?.rdev();
        if (libc::major(number), libc::minor(number)) != NUMBERS {
            return Err(io::Error::other("it is not FUSE's device"));
        }
        Ok(device.into())
    };
    open().map_err(|error: io::Error| {
        let fix = match error.kind() {
            io::ErrorKind::NotFound => "load the module with `modprobe fuse`",
            io::ErrorKind::PermissionDenied => "let this user open it (`chmod 0666 /dev/fuse`)",
            _ => "it should be `c 10 229`, as the kernel makes it",
        };
        io::Error::new(
            error.kind(),
            format!("{DEVICE} cannot be opened: {error}; {fix}"),
        )
    })
}

fn named(what: &str, error: rustix::io::Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Mounts at `path` through `fusermount3`, for users who may not mount. Returns the connection.
///
/// # Errors
/// There is no `fusermount3`, or it refuses; the message has what it said.
pub fn with_fusermount(options: &MountOptions, path: &Path) -> io::Result<OwnedFd> {
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags,
        SocketType,
    };

    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The helper finds its end by number, so that end must stay open over exec.
    let theirs = rustix::io::dup(&theirs)?;
    let mut list = vec![
        format!("fsname={}", options.source),
        "default_permissions".to_owned(),
    ];
    list.extend(options.allow_other.then(|| "allow_other".to_owned()));
    list.extend(options.read_only.then(|| "ro".to_owned()));
    let output = std::process::Command::new("fusermount3")
        .arg("-o")
        .arg(list.join(","))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output()
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("fusermount3 cannot be run: {error}; install fuse3"),
            )
        })?;
    drop(theirs);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!(
            "fusermount3 failed: {}",
            said.trim()
        )));
    }
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(
        &ours,
        &mut [io::IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.ok_or_else(|| io::Error::other("fusermount3 sent no descriptor"))
}

/// Takes the mount at `path` away and, if it is in use, ends its filesystem: whoever is still in it
/// gets errors. What was written through mappings is flushed before.
///
/// # Errors
/// As `umount2(2)`.
pub fn unmount_with_users(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()) {
        Err(rustix::io::Errno::BUSY) => {}
        result => return Ok(result?),
    }
    match rustix::fs::open(path, rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()) {
        Ok(root) => rustix::fs::syncfs(&root)?,
        // Nobody serves it, so nothing can be flushed.
        Err(rustix::io::Errno::NOTCONN) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    Ok(rustix::mount::unmount(path, flags)?)
}

/// Takes the mount at `path` away. A busy one goes when its last user does.
///
/// # Errors
/// As `umount2(2)`, or what `fusermount3` said.
pub fn unmount(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH) {
        Err(rustix::io::Errno::PERM) => {}
        result => return Ok(result?),
    }
    let output = std::process::Command::new("fusermount3")
        .arg("-uz")
        .arg("--")
        .arg(path)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "fusermount3 failed: {}",
        said.trim()
    )))
}
