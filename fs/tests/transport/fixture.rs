//! Views on real mounts, served by `sandbox-fs` as a process of its own, over a transport.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sandstack_fs::Transport;

/// Longest that a test may take: a hang must not look like a slow machine.
const LIMIT: Duration = Duration::from_secs(900);

/// Longest wait for something that is about to be.
const PATIENCE: Duration = Duration::from_secs(240);

/// Mount points that are there, for a watchdog that ends the process.
static MOUNTED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Mount points that are there.
pub(crate) fn mounted() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    MOUNTED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a test over each transport that this machine has, under a watchdog.
pub(crate) fn over_each_transport(name: &'static str, test: impl Fn(Transport)) {
    if !rustix::process::geteuid().is_root() {
        return lacks(name, "root, which mounts");
    }
    test_over(name, Transport::Fuse, &test);
    match Transport::uring_obstacle() {
        None => test_over(name, Transport::Uring, &test),
        Some(obstacle) => lacks(name, &obstacle),
    }
}

/// Says loudly that a test does not run; fails under `CI=true`.
pub(crate) fn lacks(name: &str, what: &str) {
    assert!(
        std::env::var_os("CI").is_none_or(|value| value != "true"),
        "{name}: under CI nothing is skipped, but here: {what}"
    );
    eprintln!("SKIPPED, NOT PASSED: {name}: {what}");
}

fn test_over(name: &'static str, transport: Transport, test: &impl Fn(Transport)) {
    let _watchdog = Watchdog::start(name, transport);
    test(transport);
}

/// Ends the process if a test does not end.
struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    fn start(name: &'static str, transport: Transport) -> Watchdog {
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        thread::spawn(move || {
            let start = Instant::now();
            while !seen.load(Ordering::Relaxed) {
                if start.elapsed() > LIMIT {
                    eprintln!("{name} over {transport} has not ended after {LIMIT:?}");
                    for point in MOUNTED.lock().unwrap().iter() {
                        let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
                    }
                    std::process::abort();
                }
                thread::park_timeout(Duration::from_millis(200));
            }
        });
        Watchdog(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `done` says so.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// `sandbox-fs mount`, to be started.
pub(crate) fn mount_command(store: &Path, transport: &str, point: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox-fs"));
    command
        .arg("mount")
        .arg("--store")
        .arg(store)
        .args(["--session", "s", "--transport", transport])
        .arg(point)
        .stdin(Stdio::null());
    command
}

/// A view at a path.
pub(crate) struct View {
    dir: tempfile::TempDir,
    pub(crate) daemon: Daemon,
}

impl View {
    /// Over an empty base.
    pub(crate) fn new(transport: Transport) -> View {
        View::over(transport, |_| {})
    }

    /// Over what `fill` makes.
    pub(crate) fn over(transport: Transport, fill: impl FnOnce(&Path)) -> View {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("base")).unwrap();
        fs::create_dir(dir.path().join("view")).unwrap();
        fill(&dir.path().join("base"));
        let mut command = View::command(dir.path(), transport.as_str());
        command.arg("--base").arg(dir.path().join("base"));
        View {
            daemon: start(command, &dir.path().join("view")),
            dir,
        }
    }

    /// A mount that has been made by another command.
    pub(crate) fn command(dir: &Path, transport: &str) -> Command {
        mount_command(&dir.join("store"), transport, &dir.join("view"))
    }

    /// Where it is mounted.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("view")
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Takes the mount away, though it may be busy.
    pub(crate) fn detach(&self) {
        rustix::mount::unmount(self.root(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }

    /// Serves the same session again, over a transport.
    pub(crate) fn again(&mut self, transport: Transport) {
        let command = View::command(self.dir.path(), transport.as_str());
        self.daemon = start(command, &self.root());
    }

    /// The names of the daemon's threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = format!("/proc/{}/task", self.daemon.0.id());
        fs::read_dir(tasks)
            .unwrap()
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .map(|name| name.trim().to_owned())
            .collect()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.root(), rustix::mount::UnmountFlags::DETACH);
        MOUNTED
            .lock()
            .unwrap()
            .retain(|point| *point != self.root());
    }
}

/// Starts a mount and waits until it is there.
pub(crate) fn start(mut command: Command, point: &Path) -> Daemon {
    let mut daemon = Daemon(command.spawn().unwrap());
    MOUNTED.lock().unwrap().push(point.to_path_buf());
    wait_until("the view", || {
        let ended = daemon.ended();
        assert!(ended.is_none(), "sandbox-fs ended early: {ended:?}");
        is_fuse(point)
    });
    daemon
}

/// A process that does not outlive its test.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Its end, if it has come.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end, and expects that it ends well.
    pub(crate) fn expect_end(&mut self) {
        let mut status = None;
        wait_until("sandbox-fs to end", || {
            status = self.ended();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether there is a FUSE filesystem at a path.
pub(crate) fn is_fuse(point: &Path) -> bool {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    rustix::fs::statfs(point).is_ok_and(|stat| stat.f_type == FUSE_SUPER_MAGIC)
}

/// Runs `work` in so many threads at once, each told its number.
pub(crate) fn in_threads(count: usize, work: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for number in 0..count {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
}

/// Whether an error says that the filesystem behind a path is gone. Over io_uring a request that was
/// on its way when the daemon died is said to be cancelled.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::EIO)
    )
}

/// How many processors this process may run on.
pub(crate) fn processors() -> usize {
    rustix::thread::sched_getaffinity(None).unwrap().count() as usize
}
