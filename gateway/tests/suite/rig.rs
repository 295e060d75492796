//! A gateway of the test's own, and calls over its socket.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandstack_api::{Authority, OperationName};
use serde_json::{Value, json};

/// No test takes this long; one that does hangs.
const WATCHDOG: Duration = Duration::from_secs(120);
/// How long something that must happen may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// An ordinary user; the number has no account, which is enough.
pub(crate) const ORDINARY: u32 = 54321;

static RIGS: AtomicU32 = AtomicU32::new(0);

/// How a gateway is started.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setup<'a> {
    /// How much longer than other tests the test may take.
    pub(crate) longer: Duration,
    /// The text of a configuration file.
    pub(crate) config: &'a str,
    /// Started as [`ORDINARY`], if the test runs as root.
    pub(crate) ordinary: bool,
    /// What root does in the gateway's own mount namespace first: `%` is the state directory.
    pub(crate) mounts: &'a str,
    /// Not below `/tmp`, if the test runs as root: every session has a `/tmp` of its own, which would hide
    /// all of it whatever else does.
    pub(crate) outside: bool,
}

/// A gateway on a directory that goes with it.
pub(crate) struct Rig {
    pub(crate) dir: PathBuf,
    /// What the gateway finds in its environment beside the test's own.
    pub(crate) environment: Vec<(String, std::ffi::OsString)>,
    config: Option<PathBuf>,
    ordinary: bool,
    mounts: String,
    keeper: Option<Child>,
    done: Arc<AtomicBool>,
}

/// An answer of the gateway.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// The body of a call that must have worked.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{:#}", self.body);
        self.body
    }

    /// The message of a call that must have been refused with `code`.
    #[track_caller]
    pub(crate) fn refused(&self, code: &str) -> &str {
        assert_eq!(self.body["error"]["code"], code, "{:#}", self.body);
        assert_ne!(self.status, 200);
        self.body["error"]["message"].as_str().unwrap()
    }
}

impl Rig {
    pub(crate) fn start() -> Rig {
        Rig::start_as(Setup::default())
    }

    pub(crate) fn start_as(setup: Setup<'_>) -> Rig {
        let mut rig = Rig::prepare(setup);
        rig.spawn();
        rig.await_socket();
        rig
    }

    /// Everything but the gateway itself.
    pub(crate) fn prepare(setup: Setup<'_>) -> Rig {
        let number = RIGS.fetch_add(1, Ordering::Relaxed);
        let place = match setup.outside && is_root() {
            true => PathBuf::from("/srv"),
            false => std::env::temp_dir(),
        };
        let dir = place.join(format!("gw-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        if !setup.mounts.is_empty() {
            fs::create_dir(dir.join("state")).unwrap();
        }
        let config = (!setup.config.is_empty()).then(|| dir.join("config.toml"));
        if let Some(path) = &config {
            fs::write(path, setup.config).unwrap();
        }
        if setup.ordinary && is_root() {
            for path in [dir.clone(), dir.join("state")]
                .iter()
                .filter(|path| path.exists())
            {
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
                std::os::unix::fs::chown(path, Some(ORDINARY), Some(ORDINARY)).unwrap();
            }
        }
        let done = Arc::new(AtomicBool::new(false));
        watch(Arc::clone(&done), WATCHDOG + setup.longer);
        Rig {
            dir,
            environment: Vec::new(),
            config,
            ordinary: setup.ordinary,
            mounts: setup.mounts.to_owned(),
            keeper: None,
            done,
        }
    }

    /// The gateway's command line, not yet run.
    pub(crate) fn command(&self) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_sandbox-gateway"));
        let holder = program.with_file_name("sandbox-holder");
        assert!(
            holder.exists(),
            "{} is not built; `make test` builds all programs first",
            holder.display()
        );
        let mut command = if self.mounts.is_empty() {
            Command::new(program)
        } else {
            let mut command = Command::new("unshare");
            let script = self.mounts.replace('%', &self.state().to_string_lossy());
            let user = if self.ordinary {
                format!("setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups --")
            } else {
                String::new()
            };
            let script = format!("set -e; {script}; exec {user} \"$@\"");
            command.args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                &script,
                "sh",
            ]);
            command.arg(program);
            command
        };
        command.arg("serve").arg("--state-dir").arg(self.state());
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.stdin(Stdio::null());
        command.envs(self.environment.iter().cloned());
        if self.ordinary && is_root() {
            if self.mounts.is_empty() {
                command.uid(ORDINARY).gid(ORDINARY);
            }
            command.env("HOME", &self.dir);
        }
        command
    }

    pub(crate) fn spawn(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))
            .unwrap();
        let mut command = self.command();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.keeper = Some(command.spawn().unwrap());
    }

    pub(crate) fn await_socket(&mut self) {
        let begun = Instant::now();
        while self.connect().is_err() {
            let ended = self.keeper.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "the gateway did not start:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        // By way of the gateway's own view of the file system, if that is another.
        let root = match (&self.keeper, self.mounts.is_empty()) {
            (Some(keeper), false) => PathBuf::from(format!("/proc/{}/root", keeper.id())),
            _ => PathBuf::from("/"),
        };
        UnixStream::connect(
            root.join(self.state().strip_prefix("/").unwrap())
                .join("gateway.sock"),
        )
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// What the gateway sees of a path.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        let keeper = self.keeper.as_ref().unwrap().id();
        Path::new("/proc")
            .join(keeper.to_string())
            .join("root")
            .join(path.strip_prefix("/").unwrap())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// A directory with files, given by path and content, to import.
    pub(crate) fn project(&self, name: &str, files: &[(&str, &[u8])]) -> PathBuf {
        let project = self.dir.join(name);
        fs::create_dir_all(&project).unwrap();
        for (path, content) in files {
            let path = project.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        if self.ordinary && is_root() {
            let chown = Command::new("chown")
                .args(["-R", &format!("{ORDINARY}:{ORDINARY}")])
                .arg(&project)
                .status();
            assert!(chown.unwrap().success());
        }
        project
    }

    pub(crate) fn token(&self, authority: Authority) -> String {
        let path = self
            .seen(&self.state())
            .join(format!("tokens/{authority}.token"));
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// Calls an operation with the token that it needs.
    pub(crate) fn call(&self, operation: &str, request: Value) -> Answer {
        let authority = OperationName::find(operation).unwrap().row().authority;
        let token = self.token(authority);
        self.post(operation, Some(&token), request.to_string().as_bytes())
    }

    /// Calls an operation, whatever comes of it.
    pub(crate) fn post(&self, operation: &str, token: Option<&str>, body: &[u8]) -> Answer {
        let header = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        self.http(
            "POST",
            &format!("/v1/{operation}"),
            &header.unwrap_or_default(),
            body,
        )
    }

    /// One HTTP request with further header lines.
    pub(crate) fn http(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect().unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // It may refuse the request before it has read all of it.
        let sent = stream.write_all(body);
        let mut answer = Vec::new();
        let received = stream.read_to_end(&mut answer);
        let split = answer.windows(4).position(|window| window == b"\r\n\r\n");
        let split =
            split.unwrap_or_else(|| panic!("no answer ({sent:?}, {received:?}):\n{}", self.log()));
        let status = std::str::from_utf8(&answer[9..12])
            .unwrap()
            .parse()
            .unwrap();
        let body = &answer[split + 4..];
        let body = serde_json::from_slice(body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()));
        Answer { status, body }
    }

    /// Makes a local sandbox of a project and returns its id.
    #[track_caller]
    pub(crate) fn sandbox(&self, project: &Path) -> String {
        let made = self
            .call("create_sandbox", json!({ "workspace_root": project }))
            .ok();
        made["sandboxes"][0]["sandbox_id"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Makes a sandbox of a project in a Docker image, or a local one, and returns its id.
    #[track_caller]
    pub(crate) fn sandbox_in(&self, project: &Path, image: Option<&str>, more: Value) -> String {
        let mut request = json!({ "workspace_root": project });
        if let Some(image) = image {
            request["image"] = json!(image);
        }
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        let made = self.call("create_sandbox", request).ok();
        made["sandboxes"][0]["sandbox_id"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Opens a session and returns its id.
    #[track_caller]
    pub(crate) fn session(&self, sandbox: &str) -> String {
        let made = self
            .call("create_workspace_session", json!({ "sandbox_id": sandbox }))
            .ok();
        made["workspace_session_id"].as_str().unwrap().to_owned()
    }

    /// Runs a shell command in a session to its end, on pipes; returns the reply.
    #[track_caller]
    pub(crate) fn run(&self, sandbox: &str, session: &str, cmd: &str) -> Value {
        let request = json!({
            "sandbox_id": sandbox,
            "workspace_session_id": session,
            "cmd": cmd,
            "tty": false,
            "yield_time_ms": 60_000,
        });
        let reply = self.call("exec_command", request).ok();
        assert_ne!(reply["status"], "running", "{reply:#}");
        reply
    }

    /// Runs a shell command that must exit with 0; returns its standard output.
    #[track_caller]
    pub(crate) fn sh(&self, sandbox: &str, session: &str, cmd: &str) -> String {
        let reply = self.run(sandbox, session, cmd);
        assert_eq!(reply["exit_code"], 0, "{cmd}: {reply:#}");
        reply["output"]["content"].as_str().unwrap().to_owned()
    }

    /// The worker process: the keeper's only child.
    pub(crate) fn worker(&self) -> Pid {
        let keeper = self.keeper.as_ref().unwrap().id();
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        let children = fs::read_to_string(path).unwrap();
        Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap()).unwrap()
    }

    /// Kills the worker with no warning and waits until another answers.
    pub(crate) fn kill_worker(&mut self) {
        let worker = self.worker();
        kill_process(worker, Signal::KILL).unwrap();
        until("the worker's end", || {
            kill_process(worker, Signal::CONT).is_err()
        });
        self.await_socket();
    }

    /// Stops the gateway in order.
    pub(crate) fn stop(&mut self) {
        let mut keeper = self.keeper.take().unwrap();
        kill_process(Pid::from_child(&keeper), Signal::TERM).unwrap();
        let status = keeper.wait().unwrap();
        assert!(
            status.success(),
            "the gateway ended with {status}:\n{}",
            self.log()
        );
    }

    /// Nothing is there of sandboxes, as far as the gateway and the disk know.
    #[track_caller]
    pub(crate) fn assert_no_debris(&self) {
        let listed = self.call("list_sandboxes", json!({})).ok();
        assert_eq!(listed["sandboxes"], json!([]));
        let state = self.seen(&self.state());
        for dir in ["sandboxes", "store/uppers"] {
            let left: Vec<_> = fs::read_dir(state.join(dir))
                .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect())
                .unwrap_or_default();
            assert!(left.is_empty(), "{dir} has {left:?}");
        }
        let left = processes_with(&self.state().join("sandboxes").to_string_lossy());
        assert_eq!(left, Vec::<String>::new(), "processes are left");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the gateway's log:\n{}", self.log());
        }
        if let Some(keeper) = &mut self.keeper
            && keeper.try_wait().is_ok_and(|ended| ended.is_none())
        {
            // So that its holders end too, whatever the test left.
            for sandbox in self.sandboxes_left() {
                let request = json!({ "sandbox_id": sandbox, "force": true }).to_string();
                if let Ok(token) = fs::read_to_string(self.seen_token()) {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        self.post("destroy_sandbox", Some(token.trim()), request.as_bytes())
                    }));
                }
            }
        }
        if let Some(mut keeper) = self.keeper.take() {
            let _ = kill_process(Pid::from_child(&keeper), Signal::TERM);
            let _ = keeper.wait();
        }
        self.done.store(true, Ordering::Relaxed);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    fn seen_token(&self) -> PathBuf {
        self.seen(&self.state()).join("tokens/management.token")
    }

    fn sandboxes_left(&self) -> Vec<String> {
        let dir = self.seen(&self.state()).join("sandboxes");
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says loudly that a test needs root; under CI that is a failure.
pub(crate) fn needs_root(what: &str) -> bool {
    if is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{what} needs root");
    eprintln!("SKIPPED: {what} needs root");
    false
}

/// The image that Docker tests run in; `make test` makes it. `None`, said loudly, where there is no Docker
/// or no image; under CI that is a failure.
pub(crate) fn docker_image() -> Option<&'static str> {
    const IMAGE: &str = "sandstack-test:debian";
    let found = Command::new("docker")
        .args(["image", "inspect", IMAGE])
        .output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(IMAGE);
    }
    let reason = format!("no Docker with image {IMAGE} here; `make test` as root starts one");
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}");
    None
}

/// A size of every day, or the full one, of which [`crate::load`] tells.
pub(crate) fn size(usual: usize, full: usize) -> usize {
    match std::env::var("SANDSTACK_TEST_LOAD").as_deref() {
        Ok("full") => full,
        _ => usual,
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    let patience = PATIENCE * size(1, 10) as u32;
    while !so() {
        assert!(begun.elapsed() < patience, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Command lines of processes that name `needle`.
pub(crate) fn processes_with(needle: &str) -> Vec<String> {
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

/// Ends the whole test run if a test hangs.
fn watch(done: Arc<AtomicBool>, limit: Duration) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::spawn(move || {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if done.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{name} hangs: not done within {limit:?}");
        std::process::abort();
    });
}
