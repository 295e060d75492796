//! A gateway of the test's own, and calls of the command lines against it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No scenario takes this long; one that does hangs.
const WATCHDOG: Duration = Duration::from_secs(240);
/// How long the gateway may take to answer.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// The image that Docker scenarios run in; `make test` makes it.
const IMAGE: &str = "sandstack-test:busybox";

/// A gateway on a state directory that goes with it.
pub(crate) struct Rig {
    gateway: Child,
    bin: PathBuf,
    state: PathBuf,
    done: Arc<AtomicBool>,
}

/// What a call answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) json: Value,
}

impl Answer {
    /// The answer of a call that must have worked.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.code, 0, "{:#}", self.json);
        self.json
    }
}

impl Rig {
    pub(crate) fn start(label: &str) -> Rig {
        let bin = Path::new(env!("CARGO_BIN_EXE_sandbox-manager-cli"))
            .parent()
            .unwrap()
            .to_path_buf();
        let program = bin.join("sandbox-gateway");
        assert!(
            program.exists(),
            "{} is not built; `make test` builds all programs first",
            program.display()
        );
        // A short path: sockets lie below it.
        let state = std::env::temp_dir().join(format!("ss-{label}-{}", std::process::id()));
        fs::create_dir_all(&state).unwrap();
        let log = File::create(state.join("gateway.log")).unwrap();
        let gateway = Command::new(program)
            .args(["serve", "--state-dir"])
            .arg(&state)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let done = Arc::new(AtomicBool::new(false));
        watch(label.to_owned(), gateway.id(), Arc::clone(&done));
        let mut rig = Rig {
            gateway,
            bin,
            state,
            done,
        };
        rig.await_socket();
        rig
    }

    fn await_socket(&mut self) {
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.state.join("gateway.sock")).is_err() {
            let ended = self.gateway.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < START_DEADLINE,
                "the gateway did not start:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.state.join("gateway.log")).unwrap_or_default()
    }

    /// A command line that finds the gateway.
    pub(crate) fn cli(&self, cli: &str) -> Command {
        let mut command = Command::new(self.bin.join(format!("sandbox-{cli}-cli")));
        command.arg("--state-dir").arg(&self.state);
        command
    }

    /// Calls a command line and returns what it printed.
    pub(crate) fn call<A: AsRef<OsStr>>(&self, cli: &str, arguments: &[A]) -> Answer {
        let output = self
            .cli(cli)
            .args(arguments)
            .arg("--json")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let shown: Vec<_> = arguments
            .iter()
            .map(|word| word.as_ref().to_string_lossy())
            .collect();
        let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "{cli} {shown:?}: {error}: {}\n{}",
                String::from_utf8_lossy(&output.stderr),
                self.log()
            )
        });
        Answer {
            code: output.status.code().unwrap_or(-1),
            json,
        }
    }

    /// Runs a command in a session to its end and returns its output.
    #[track_caller]
    pub(crate) fn exec(&self, sandbox: &str, session: &str, cmd: &str) -> String {
        let arguments = [
            "--sandbox-id",
            sandbox,
            "exec_command",
            "--workspace-session-id",
            session,
            "--tty=false",
            "--yield-time-ms",
            "120000",
            cmd,
        ];
        let answer = self.call("runtime", &arguments).ok();
        assert_eq!(answer["status"], "exited", "{cmd}: {answer:#}");
        assert_eq!(answer["exit_code"], 0, "{cmd}: {answer:#}");
        let output = &answer["output"];
        assert_eq!(output["truncated"], false, "{cmd}: {answer:#}");
        output["content"].as_str().unwrap().to_owned()
    }

    /// Ends the gateway in order and checks that nothing is left.
    pub(crate) fn end(mut self) {
        let sandboxes = fs::read_dir(self.state.join("sandboxes"))
            .map(Iterator::count)
            .unwrap_or(0);
        let uppers = fs::read_dir(self.state.join("store/uppers"))
            .unwrap()
            .count();
        let pid = rustix::process::Pid::from_raw(self.gateway.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.gateway.wait().unwrap();
        let needle = self.state.to_string_lossy().into_owned();
        let left = processes_with(&needle);
        let mounts = mounts_with(&needle);
        assert!(
            status.success(),
            "the gateway ended with {status}:\n{}",
            self.log()
        );
        assert_eq!(
            (sandboxes, uppers),
            (0, 0),
            "directories of sandboxes and uppers are left"
        );
        assert_eq!(left, Vec::<String>::new(), "processes are left");
        assert_eq!(mounts, Vec::<String>::new(), "mounts are left");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if self.gateway.try_wait().ok().flatten().is_none() {
            let pid = rustix::process::Pid::from_raw(self.gateway.id() as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = self.gateway.wait();
        }
        if std::thread::panicking() {
            eprintln!("the gateway's log:\n{}", self.log());
        }
        for mount in mounts_with(&self.state.to_string_lossy()) {
            let _ = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir_all(&self.state);
    }
}

/// Ends the whole test run if a scenario hangs.
fn watch(label: String, gateway: u32, done: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let begun = Instant::now();
        while begun.elapsed() < WATCHDOG {
            if done.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        eprintln!("scenario {label} hangs: nothing ended within {WATCHDOG:?}");
        if let Some(pid) = rustix::process::Pid::from_raw(gateway as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        std::process::abort();
    });
}

/// The image for Docker scenarios; `None`, said loudly, where there is no Docker or no image. Under
/// CI that is a failure.
pub(crate) fn docker_image() -> Option<String> {
    let found = Command::new("docker")
        .args(["image", "inspect", IMAGE])
        .output();
    match found {
        Ok(output) if output.status.success() => return Some(IMAGE.to_owned()),
        _ => {}
    }
    let reason = format!("no Docker with image {IMAGE} here; `make test` as root starts one");
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}");
    None
}

fn processes_with(needle: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy() != own)
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(needle))
        .collect()
}

fn mounts_with(needle: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|place| place.contains(needle))
        .map(str::to_owned)
        .collect()
}
