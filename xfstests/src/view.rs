//! A view for a suite to work on, mounted by `sandbox-fs`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long is waited for an unmounted view's daemon to end: on a disk that is busy its last sync is slow.
const PATIENCE: Duration = Duration::from_secs(300);

/// How views are served.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The program `sandbox-fs`.
    pub program: PathBuf,
    /// `auto`, `fuse` or `uring`.
    pub transport: String,
    /// `off`, `session`, `files` or `exact`.
    pub trace: String,
    /// Most bytes that a session may change.
    pub quota: u64,
}

/// A mounted view; unmounted when dropped.
#[derive(Debug)]
pub struct View {
    serving: Serving,
    place: PathBuf,
    mounted: bool,
}

impl View {
    /// Makes a session in `place`, a directory that is to be made, over what `fill` puts into its
    /// base, and mounts its view.
    ///
    /// # Errors
    /// What went wrong, with what `sandbox-fs` said.
    pub fn new(
        serving: &Serving,
        place: &Path,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<View> {
        for part in ["base", "view"] {
            fs::create_dir_all(place.join(part))?;
        }
        fill(&place.join("base"))?;
        let mut view = View {
            serving: serving.clone(),
            place: place.to_path_buf(),
            mounted: false,
        };
        let base = place.join("base");
        view.mount(&[Path::new("--base"), &base])?;
        Ok(view)
    }

    /// Where the view is.
    pub fn path(&self) -> PathBuf {
        self.place.join("view")
    }

    /// Unmounts the view and mounts it again, served by a new process.
    ///
    /// # Errors
    /// As for [`View::new`]; the view is in use.
    pub fn remount(&mut self) -> io::Result<()> {
        self.unmount()?;
        self.mount(&[])
    }

    fn mount(&mut self, more: &[&Path]) -> io::Result<()> {
        let start = Instant::now();
        loop {
            let output = Command::new(&self.serving.program)
                .arg("mount")
                .arg("--store")
                .arg(self.place.join("store"))
                .args(["--session", "one", "--background", "-o", "dev,suid"])
                .args(["--trace", &self.serving.trace])
                .args(["--transport", &self.serving.transport])
                .args(["--quota", &self.serving.quota.to_string()])
                .args(more)
                .arg(self.path())
                .stdin(Stdio::null())
                .output()?;
            if output.status.success() {
                self.mounted = true;
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr);
            // The daemon of the last mount is about to end.
            if !said.contains("is in use by process") || start.elapsed() > PATIENCE {
                return Err(io::Error::other(said.trim().to_owned()));
            }
            thread::park_timeout(Duration::from_millis(50));
        }
    }

    fn unmount(&mut self) -> io::Result<()> {
        let output = Command::new("umount").arg(self.path()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(said.trim().to_owned()));
        }
        self.mounted = false;
        Ok(())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.mounted && self.unmount().is_err() {
            // Something in it is still open. There is nobody to tell if this fails, too.
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
    }
}
