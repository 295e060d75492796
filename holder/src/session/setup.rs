//! The setup process: from the holder's namespaces into the session's.
//!
//! Owns the order of steps up to the fork of the init, and the init's first steps. Runs
//! in a forked child and ends there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::socket::MsgFlags;
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};

use super::control::{FromInit, ToInit};
use super::{Blueprint, ViewSource, fuse, wipe};
use crate::caps::Caps;
use crate::error::Error;
use crate::frame::{self, Fill, FrameReader, Letter};
use crate::init;
use crate::mounts;
use crate::protocol::{FuseOptions, Namespaces, Network, Refusal, refusal_errno};
use crate::root::{self, RootPlan, ViewMount};
use crate::spawn::Ground;
use crate::syscalls;

/// Runs the setup process; returns its exit code. In the init it returns the init's.
pub(super) fn run(blueprint: Blueprint, control: &OwnedFd) -> i32 {
    match enter(blueprint, control) {
        Ok(code) => code,
        Err(refusal) => match tell(control, &FromInit::Failed(refusal), &[]) {
            Ok(()) => 1,
            // The holder is gone, or has given this session up.
            Err(_) => 2,
        },
    }
}

/// A view, judged while the holder's namespaces are there.
enum Prepared {
    Mount(ViewMount),
    Fuse(FuseOptions),
}

fn tell(control: &OwnedFd, message: &FromInit, fds: &[&OwnedFd]) -> Result<(), Error> {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    frame::send_letter(control.as_fd(), message, &fds)
}

/// What the setup process hands to the init.
struct Handover {
    root: RootPlan,
    view: ViewMount,
    scaffold: PathBuf,
    ground: Ground,
    isolated: bool,
}

fn enter(blueprint: Blueprint, control: &OwnedFd) -> Result<i32, Refusal> {
    isolate(&blueprint.view, control)?;
    let Blueprint {
        root,
        view,
        network,
        scaffold,
        may_mount,
        all_ids,
        filters,
        open_files,
        processes,
    } = blueprint;
    let isolated = network == Network::Isolated;
    let view = match view {
        ViewSource::Descriptor(fd) => Prepared::Mount(classify(fd)?),
        ViewSource::Fuse(options) => Prepared::Fuse(options),
    };
    root.make_mountpoints()?;
    if may_mount {
        let mut needed: Vec<&Path> = root.sources().collect();
        needed.push(&scaffold);
        if let Prepared::Mount(ViewMount::Bind(path)) = &view {
            needed.push(path);
        }
        drop_hidden_mounts(root.hidden(), &needed)?;
    }
    let mut flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC;
    if isolated {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    unshare(flags).map_err(|errno| Refusal::NamespacesRefused {
        errno: errno as i32,
        fix: namespaces_fix(errno),
    })?;
    wait_for_maps(control)?;
    if isolated {
        raise_loopback().map_err(Refusal::setup("raise the loopback interface"))?;
    }
    let (view, device) = match view {
        Prepared::Mount(view) => (view, None),
        Prepared::Fuse(options) => {
            let made = fuse::mount(&options)?;
            (ViewMount::Detached(made.mount), Some(made.device))
        }
    };
    let caps = Caps::of_command(network);
    let workspace_root = root.workspace_root().to_owned();
    let ground = Ground {
        workspace_root,
        caps,
        filters,
        open_files,
        processes,
        all_ids,
    };
    let handover = Handover {
        root,
        view,
        scaffold,
        ground,
        isolated,
    };
    // SAFETY: this process is single-threaded, so its memory is consistent in the child.
    match unsafe { fork() }.map_err(Refusal::setup("fork the init"))? {
        ForkResult::Parent { child } => {
            let mount = match &handover.view {
                ViewMount::Detached(mount) if device.is_some() => Some(mount),
                _ => None,
            };
            let fds: Vec<&OwnedFd> = device.iter().chain(mount).collect();
            match tell(
                control,
                &FromInit::Forked {
                    pid: child.as_raw(),
                },
                &fds,
            ) {
                Ok(()) => Ok(0),
                Err(_) => Ok(2),
            }
        }
        ForkResult::Child => {
            // Only the gateway serves it; a copy here would keep a dead one waiting.
            drop(device);
            run_init(handover, control)
        }
    }
}

/// The init's first steps, then its life.
fn run_init(handover: Handover, control: &OwnedFd) -> Result<i32, Refusal> {
    let Handover {
        root,
        view,
        scaffold,
        ground,
        isolated,
    } = handover;
    // Not dumpable: its /proc entries belong to root of the initial user namespace, and
    // nothing in the session may trace it or open its memory, root or descriptors.
    syscalls::prctl(libc::PR_SET_DUMPABLE, 0).map_err(Refusal::setup("hide the init"))?;
    syscalls::set_name(c"session-init").map_err(Refusal::setup("name the init"))?;
    root::build(&root, view, &scaffold, ground.all_ids)?;
    let fenced = isolated
        || syscalls::fence_abstract_sockets().map_err(Refusal::setup("fence abstract sockets"))?;
    let namespaces = namespaces().map_err(Refusal::setup("look at the namespaces"))?;
    let ready = FromInit::Ready {
        namespaces,
        abstract_sockets_fenced: fenced,
    };
    if tell(control, &ready, &[]).is_err() {
        return Ok(2);
    }
    Ok(init::run(control, ground))
}

/// Leaves what belongs to the holder: descriptors, session, signals, arguments.
fn isolate(view: &ViewSource, control: &OwnedFd) -> Result<(), Refusal> {
    let step = Refusal::setup::<io::Error>;
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(step("open /dev/null"))?;
    use_as_standard_streams(&null).map_err(step("leave the standard streams"))?;
    let mut keep = vec![control.as_raw_fd()];
    if let ViewSource::Descriptor(fd) = view {
        keep.push(fd.as_raw_fd());
    }
    syscalls::close_all_but(&keep).map_err(step("close descriptors"))?;
    // `null` is closed by that; dropping it would close a descriptor that is not its own.
    std::mem::forget(null);
    setsid().map_err(Refusal::setup("leave the session"))?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)
        .map_err(Refusal::setup("block signals"))?;
    neutral_oom_score().map_err(step("set the OOM score"))?;
    // SAFETY: single-threaded; arguments were parsed long ago, and neither this process
    // nor the init reads its environment.
    unsafe { wipe::wipe_origin() }.map_err(step("wipe the arguments"))
}

fn use_as_standard_streams(file: &File) -> io::Result<()> {
    dup2_stdin(file)?;
    dup2_stdout(file)?;
    dup2_stderr(file)?;
    Ok(())
}

/// A holder may be protected from the OOM killer; what it runs must not be. One that is
/// preferred by it stays so: lowering the score takes a capability.
fn neutral_oom_score() -> io::Result<()> {
    const SCORE: &str = "/proc/self/oom_score_adj";
    if fs::read_to_string(SCORE)?.trim_end().starts_with('-') {
        fs::write(SCORE, "0")?;
    }
    Ok(())
}

/// A detached mount can be moved in place from anywhere. A directory of this mount
/// namespace can only be bound by a process of it with rights over it, which the session's
/// processes are not; but they can find its copy by its path.
fn classify(fd: OwnedFd) -> Result<ViewMount, Refusal> {
    let refuse = |error: io::Error| Refusal::ViewRefused {
        errno: refusal_errno(&error),
    };
    if !mounts::is_attached(fd.as_fd()).map_err(refuse)? {
        return Ok(ViewMount::Detached(fd));
    }
    let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(refuse)?;
    let (named, opened) = (fs::metadata(&path), File::from(fd).metadata());
    let (named, opened) = (named.map_err(refuse)?, opened.map_err(refuse)?);
    if (named.dev(), named.ino()) != (opened.dev(), opened.ino()) {
        return Err(Refusal::ViewRefused {
            errno: libc::ESTALE,
        });
    }
    if !named.is_dir() {
        return Err(Refusal::ViewRefused {
            errno: libc::ENOTDIR,
        });
    }
    Ok(ViewMount::Bind(path))
}

/// Takes away mounts at and under hidden paths, and views of sessions wherever they are attached: a
/// copy would show another session's files, and keep its view from ending. In a copy of the mount
/// namespace that this process still has rights over; in the session's they are locked together. One
/// that holds a path that is `needed` stays, and will be covered only.
fn drop_hidden_mounts(hidden: &[PathBuf], needed: &[&Path]) -> Result<(), Refusal> {
    // First, so that nothing is mounted behind the look at the table.
    unshare(CloneFlags::CLONE_NEWNS).map_err(Refusal::setup("copy the mount namespace"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(Refusal::setup("make mounts private"))?;
    let table = mounts::table().map_err(Refusal::setup("read the mount table"))?;
    let views = table.iter().filter(|mount| mount.is_view);
    let doomed: Vec<&Path> = mounts::at_or_under(&table, hidden)
        .into_iter()
        .chain(views.map(|mount| mount.point.as_path()))
        .filter(|point| !needed.iter().any(|path| path.starts_with(point)))
        .collect();
    for point in doomed {
        // Detaching takes what is mounted under it along, so later ones may be gone.
        match umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
            Err(errno) => return Err(Refusal::setup("take hidden mounts away")(errno)),
        }
    }
    Ok(())
}

fn namespaces_fix(errno: nix::Error) -> String {
    match errno {
        nix::Error::ENOSPC => "raise the sysctls user.max_*_namespaces",
        _ => {
            "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0), or in a container use a seccomp \
             profile that allows unshare, mount, move_mount, open_tree, fsopen, fsconfig, \
             fsmount, mount_setattr, umount2 and pivot_root, and no AppArmor profile that \
             denies mounts"
        }
    }
    .to_owned()
}

fn wait_for_maps(control: &OwnedFd) -> Result<(), Refusal> {
    let gone = |_: Error| Refusal::SetupStep {
        step: "ask for id maps".to_owned(),
        errno: libc::EPIPE,
    };
    tell(control, &FromInit::NeedMaps, &[]).map_err(gone)?;
    let mut reader = FrameReader::default();
    loop {
        if let Some(body) = reader.next_frame().map_err(gone)? {
            let letter: Letter<ToInit> = frame::decode(&body).map_err(gone)?;
            return match letter.body {
                ToInit::MapsWritten => Ok(()),
                _ => Err(Refusal::SetupStep {
                    step: "wait for id maps".to_owned(),
                    errno: libc::EPROTO,
                }),
            };
        }
        if reader
            .fill(control.as_fd(), MsgFlags::empty())
            .map_err(gone)?
            != Fill::Data
        {
            return Err(Refusal::SetupStep {
                step: "wait for id maps".to_owned(),
                errno: libc::EPIPE,
            });
        }
    }
}

fn raise_loopback() -> io::Result<()> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which outlives the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn namespaces() -> io::Result<Namespaces> {
    let inode = |name: &str| {
        let path = PathBuf::from("/proc/self/ns").join(name);
        fs::metadata(path).map(|metadata| metadata.ino())
    };
    Ok(Namespaces {
        user: inode("user")?,
        mnt: inode("mnt")?,
        pid: inode("pid")?,
        ipc: inode("ipc")?,
        net: inode("net")?,
    })
}

/// Makes the scaffold: the empty directory that roots are built on.
pub(crate) fn make_scaffold(run_dir: &Path) -> io::Result<PathBuf> {
    let scaffold = run_dir.join("root");
    match fs::create_dir(&scaffold) {
        Ok(()) => fs::set_permissions(&scaffold, fs::Permissions::from_mode(0o700))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    Ok(scaffold)
}
