//! Peers: what a view is compared with, and views themselves; each made anew for each measurement.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};
use sandstack_fs::{TraceMode, Transport};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::daemon::{Daemon, Order};
use crate::input::run;

/// How long a server may take until its mount is there, or until it has ended.
const SERVER_DEADLINE: Duration = Duration::from_secs(20);

/// A way to have a private, changeable copy of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// The directory itself, or a real copy where the work changes it.
    Plain,
    /// Kernel overlayfs as it is mounted by default.
    Overlay,
    /// Kernel overlayfs that never waits for the disk.
    Volatile,
    /// fuse-overlayfs with its own defaults.
    FuseOverlayfs,
    /// A view that records nothing.
    Off,
    /// A view that records first accesses and every change.
    Session,
    /// A view that also records every open.
    Files,
    /// A view that records every read and write.
    Exact,
    /// As `session`, over io_uring.
    SessionUring,
    /// As `files`, over io_uring.
    FilesUring,
    /// The same, after a walk in the background has told the kernel what is there.
    FilesWalked,
}

impl Peer {
    /// All of them, in the order of tables.
    pub const ALL: [Peer; 11] = [
        Peer::Plain,
        Peer::Overlay,
        Peer::Volatile,
        Peer::FuseOverlayfs,
        Peer::Off,
        Peer::Session,
        Peer::Files,
        Peer::Exact,
        Peer::SessionUring,
        Peer::FilesUring,
        Peer::FilesWalked,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Peer::Plain => "plain",
            Peer::Overlay => "overlay",
            Peer::Volatile => "volatile",
            Peer::FuseOverlayfs => "fuse-overlayfs",
            Peer::Off => "off",
            Peer::Session => "session",
            Peer::Files => "files",
            Peer::Exact => "exact",
            Peer::SessionUring => "session-uring",
            Peer::FilesUring => "files-uring",
            Peer::FilesWalked => "files-walked",
        }
    }

    /// The trace mode and the transport of a view of ours; `None` if it is none.
    pub fn view(self) -> Option<(TraceMode, Transport)> {
        Some(match self {
            Peer::Off => (TraceMode::Off, Transport::Fuse),
            Peer::Session => (TraceMode::Session, Transport::Fuse),
            Peer::Files => (TraceMode::Files, Transport::Fuse),
            Peer::Exact => (TraceMode::Exact, Transport::Fuse),
            Peer::SessionUring => (TraceMode::Session, Transport::Uring),
            Peer::FilesUring | Peer::FilesWalked => (TraceMode::Files, Transport::Uring),
            Peer::Plain | Peer::Overlay | Peer::Volatile | Peer::FuseOverlayfs => return None,
        })
    }

    /// Whether it is a view of ours.
    pub fn is_view(self) -> bool {
        self.view().is_some()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Peer::ALL
            .into_iter()
            .find(|peer| peer.as_str() == text)
            .ok_or_else(|| {
                let known: Vec<&str> = Peer::ALL.iter().map(|peer| peer.as_str()).collect();
                format!("no peer is called {text:?}; there are {}", known.join(", "))
            })
    }
}

/// What work does to what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touches {
    /// It only reads.
    Nothing,
    /// It makes new things and needs nothing of the base.
    New,
    /// It changes the base.
    Base,
}

/// Where work is done once; taken away by [`Ground::close`].
#[derive(Debug)]
pub struct Place {
    /// The directory that it is done in.
    pub root: PathBuf,
    /// Processes whose time counts as that of the work.
    pub servers: Vec<u32>,
    /// What is to be removed afterwards.
    scratch: Option<PathBuf>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Directory,
    Mount,
    Server(Child),
    View,
}

/// Makes places.
#[derive(Debug)]
pub struct Ground {
    /// Everything is below it, on one disk.
    dir: PathBuf,
    daemon: Daemon,
    number: u64,
}

impl Ground {
    /// A ground in `dir` with a store of its own.
    ///
    /// # Errors
    /// The directory cannot be cleared, or the daemon not started.
    pub fn new(dir: &Path) -> Result<Ground> {
        clear(dir);
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        fs::create_dir_all(dir)?;
        Ok(Ground {
            dir: dir.to_path_buf(),
            daemon: Daemon::start(&dir.join("store"))?,
            number: 0,
        })
    }

    /// The daemon that serves views.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// A directory that was not there before.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn scratch(&mut self) -> Result<PathBuf> {
        self.number += 1;
        let path = self.dir.join(format!("place-{}", self.number));
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// A place with what is in `base`, as `peer` offers it. `overlay_options` are further options
    /// of kernel overlayfs.
    ///
    /// # Errors
    /// The peer cannot be had here.
    pub fn open(
        &mut self,
        peer: Peer,
        base: &Path,
        touches: Touches,
        overlay_options: &str,
    ) -> Result<Place> {
        let scratch = self.scratch()?;
        let root = scratch.join("root");
        fs::create_dir_all(&root)?;
        let mut place = Place {
            root,
            servers: Vec::new(),
            scratch: Some(scratch.clone()),
            kind: Kind::Directory,
        };
        let (upper, work) = (scratch.join("upper"), scratch.join("work"));
        match peer {
            Peer::Plain if touches == Touches::Nothing => place.root = base.to_path_buf(),
            Peer::Plain if touches == Touches::New => {}
            Peer::Plain => {
                run(Command::new("cp")
                    .args(["-a", "--reflink=never", "--"])
                    .arg(base.join("."))
                    .arg(&place.root))?;
                if base.join(".git").exists() {
                    // A copy has other inode numbers than the index knows.
                    run(Command::new("git").arg("-C").arg(&place.root).args([
                        "update-index",
                        "-q",
                        "--refresh",
                    ]))?;
                }
            }
            Peer::Overlay | Peer::Volatile => {
                fs::create_dir(&upper)?;
                fs::create_dir(&work)?;
                let mut options = format!(
                    "lowerdir={},upperdir={},workdir={}{overlay_options}",
                    base.display(),
                    upper.display(),
                    work.display()
                );
                if peer == Peer::Volatile {
                    options.push_str(",volatile");
                }
                let options = std::ffi::CString::new(options)?;
                rustix::mount::mount(
                    "overlay",
                    &place.root,
                    "overlay",
                    MountFlags::empty(),
                    Some(options.as_c_str()),
                )?;
                place.kind = Kind::Mount;
            }
            Peer::FuseOverlayfs => {
                fs::create_dir(&upper)?;
                fs::create_dir(&work)?;
                let device = fs::metadata(&place.root)?.dev();
                let mut server = Command::new("fuse-overlayfs")
                    .arg("-f")
                    .arg("-o")
                    .arg(format!(
                        "lowerdir={},upperdir={},workdir={},allow_other",
                        base.display(),
                        upper.display(),
                        work.display()
                    ))
                    .arg(&place.root)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?;
                await_that(&mut || {
                    if let Some(status) = server.try_wait()? {
                        return Err(format!("fuse-overlayfs ended: {status}").into());
                    }
                    Ok(fs::metadata(&place.root)?.dev() != device)
                })?;
                place.servers.push(server.id());
                place.kind = Kind::Server(server);
            }
            Peer::Off
            | Peer::Session
            | Peer::Files
            | Peer::Exact
            | Peer::SessionUring
            | Peer::FilesUring
            | Peer::FilesWalked => {
                let (mode, transport) = peer.view().ok_or("it is no view")?;
                self.daemon.order(&Order::Open {
                    base: base.to_path_buf(),
                    mode: mode.to_string(),
                    transport: transport.to_string(),
                    walk: peer == Peer::FilesWalked,
                    at: place.root.clone(),
                })?;
                place.servers.push(self.daemon.pid());
                place.kind = Kind::View;
            }
        }
        Ok(place)
    }

    /// Takes a place away.
    ///
    /// # Errors
    /// It cannot be unmounted or removed.
    pub fn close(&mut self, place: Place) -> Result<()> {
        match place.kind {
            Kind::Directory => {}
            Kind::Mount => rustix::mount::unmount(&place.root, UnmountFlags::DETACH)?,
            Kind::Server(mut server) => {
                rustix::mount::unmount(&place.root, UnmountFlags::DETACH)?;
                await_that(&mut || Ok(server.try_wait()?.is_some()))?;
            }
            Kind::View => {
                self.daemon.order(&Order::Close {
                    at: place.root.clone(),
                })?;
            }
        }
        if let Some(scratch) = place.scratch {
            fs::remove_dir_all(scratch)?;
        }
        Ok(())
    }
}

/// Waits until `done` says so.
fn await_that(done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !done()? {
        if begun.elapsed() > SERVER_DEADLINE {
            return Err("a server does not answer".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Takes away every mount below `dir` that an earlier or broken run left.
pub fn clear(dir: &Path) {
    let Ok(table) = fs::read_to_string("/proc/self/mounts") else {
        return;
    };
    let mut mounted: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|at| Path::new(at).starts_with(dir))
        .collect();
    mounted.sort_by_key(|at| std::cmp::Reverse(at.len()));
    for at in mounted {
        if let Err(error) = rustix::mount::unmount(at, UnmountFlags::DETACH) {
            crate::tell(&format!("bench: {at} cannot be unmounted: {error}"));
        }
    }
}
