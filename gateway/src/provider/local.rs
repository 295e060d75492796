//! The local provider: sessions on the gateway's host, in namespaces of their own.
//!
//! The root is the host's, read-only; home and temporary directories are private. The state
//! directory and the homes of others are hidden. Works as root and as an ordinary user.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rustix::process::Signal;
use sandstack_api::{ErrorCode, SessionId};
use sandstack_holder::Bytes;
use sandstack_holder::protocol::{Bind, RootSpec};

use super::{Provider, Spec, Standing, Started, run_dir, session_dir, socket};
use crate::cgroup;
use crate::config::{Config, Host, LocalSettings};
use crate::failure::{Failure, Result, io_failure};

/// How long a holder may take to make its socket.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// How long it may take to end, first when it is asked and then when it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(20);
/// What only root may read, and no command has a use for: passwords, the host's own keys, other containers,
/// and gateways beside this one. A gateway that runs as root could read it, and so could its sessions.
const SECRETS: [&str; 12] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/kubernetes",
    "/etc/ssl/private",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/sandstack",
    "/var/spool/cron",
];
/// Where the host's own ssh keys are, beside what is no secret.
const SSH: &str = "/etc/ssh";
/// How the holder is chosen when there is no memory, from -1000 (never) to 1000: after everything else.
const HOLDER_OOM_SCORE: &str = "-900";
/// Bytes of a program's name that the kernel keeps (`TASK_COMM_LEN` of Linux, without the last).
const NAME_BYTES: usize = 15;

pub(crate) struct Local {
    program: PathBuf,
    state_dir: PathBuf,
    /// Of the gateway and of Docker: wherever they are, they are not for sessions.
    sockets: Vec<PathBuf>,
    host: Host,
    settings: LocalSettings,
    /// Processes of a sandbox that does not say.
    processes: u64,
}

impl Local {
    pub(crate) fn new(config: &Config) -> Self {
        Local {
            program: config.holder_program.clone(),
            state_dir: config.state_dir.clone(),
            sockets: [&config.socket, &config.settings.docker.socket]
                .into_iter()
                .filter(|path| path.is_absolute())
                .cloned()
                .collect(),
            host: config.host.clone(),
            settings: config.settings.local.clone(),
            processes: config.settings.limits.sandbox_processes,
        }
    }

    fn spawn(&self, spec: &Spec) -> Result<u32> {
        let log = spec.dir.join("holder.log");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log)
            .map_err(io_failure(&format!("opening {}", log.display())))?;
        let stderr = log
            .try_clone()
            .map_err(io_failure("duplicating a descriptor"))?;
        let group = cgroup::for_sandbox(&spec.id, &spec.resources, self.processes)?;
        let processes = spec.resources.pids_max.unwrap_or(self.processes);
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .arg("--socket")
            .arg(socket(spec))
            .arg("--run-dir")
            .arg(run_dir(spec))
            .arg("--sandbox-id")
            .arg(spec.id.as_ref())
            .arg("--processes")
            .arg(processes.to_string())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(stderr)
            .env_clear()
            .current_dir("/")
            // A group of its own: ^C in the gateway's terminal is not for it.
            .process_group(0);
        let child = command.spawn().map_err(io_failure(&format!(
            "starting the holder {}",
            self.program.display()
        )))?;
        let pid = child.id();
        if let Some(group) = group {
            group.enter(pid)?;
        }
        protect(pid);
        // Reaped by a thread of its own, for it may end at any time.
        std::thread::spawn(move || {
            let mut child = child;
            match child.wait() {
                Ok(status) => tracing::info!(pid, %status, "a holder ended"),
                Err(error) => tracing::warn!(pid, %error, "a holder could not be waited for"),
            }
        });
        Ok(pid)
    }

    /// Waits for the end of a holder, up to [`STOP_DEADLINE`]: whether it came.
    async fn ended(&self, pid: u32) -> bool {
        let begun = Instant::now();
        while is_alive(pid, &self.program) {
            if begun.elapsed() > STOP_DEADLINE {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        true
    }
}

impl Provider for Local {
    fn start<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<Started>> {
        Box::pin(async move {
            let pid = self.spawn(spec)?;
            let begun = Instant::now();
            while std::os::unix::net::UnixStream::connect(socket(spec)).is_err() {
                if !is_alive(pid, &self.program) || begun.elapsed() > START_DEADLINE {
                    let log = fs::read_to_string(spec.dir.join("holder.log")).unwrap_or_default();
                    let last = log.lines().next_back().unwrap_or("it said nothing");
                    return Err(Failure::new(
                        ErrorCode::Unavailable,
                        format!("the sandbox's holder did not start: {last}"),
                    ));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(Started {
                holder_pid: Some(pid),
                ..Started::default()
            })
        })
    }

    fn check<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Standing> {
        Box::pin(async move {
            match spec.started.holder_pid {
                Some(pid) if is_alive(pid, &self.program) => Standing::Runs,
                Some(pid) => Standing::Gone(format!("the holder (pid {pid}) is gone")),
                None => Standing::Gone("the holder was not started".to_owned()),
            }
        })
    }

    fn rouse<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if let Some(pid) = spec.started.holder_pid {
                signal(pid, &self.program, Signal::CONT);
            }
            Ok(())
        })
    }

    fn stop<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if let Some(pid) = spec.started.holder_pid {
                signal(pid, &self.program, Signal::TERM);
                if !self.ended(pid).await {
                    // Its sessions end with it, by their control sockets.
                    signal(pid, &self.program, Signal::KILL);
                    if !self.ended(pid).await {
                        return Err(Failure::new(
                            ErrorCode::Unavailable,
                            format!(
                                "the sandbox's holder (pid {pid}) does not end, though it was killed"
                            ),
                        ));
                    }
                }
            }
            // What a killed holder ran ends by itself, a moment after it.
            let begun = Instant::now();
            while !cgroup::remove(&spec.id)? {
                if begun.elapsed() > STOP_DEADLINE {
                    return Err(Failure::new(
                        ErrorCode::Unavailable,
                        format!(
                            "processes of sandbox {} do not end, though they were killed",
                            spec.id
                        ),
                    ));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        })
    }

    fn root(&self, spec: &Spec, session: &SessionId) -> RootSpec {
        let dir = session_dir(&spec.dir, session);
        let bytes = |path: PathBuf| Bytes(path.into_os_string().into_encoded_bytes());
        let mut hide = vec![bytes(self.state_dir.clone())];
        hide.extend(self.sockets.iter().cloned().map(bytes));
        hide.extend(secrets().into_iter().map(bytes));
        hide.extend(self.settings.hide.iter().cloned().map(bytes));
        hide.extend(
            homes_of_others(self.host.home.as_deref())
                .into_iter()
                .map(bytes),
        );
        let home = self.host.home.as_ref();
        RootSpec {
            home: home.map(|home| Bind {
                source: bytes(dir.join("home")),
                target: bytes(home.clone()),
            }),
            tmp: bytes(dir.join("tmp")),
            var_tmp: Some(bytes(dir.join("var-tmp"))),
            hide,
            expose: home
                .into_iter()
                .flat_map(|home| {
                    self.settings
                        .expose_home
                        .iter()
                        .map(move |below| home.join(below))
                })
                .filter(|path| path.exists())
                .map(|path| Bind {
                    source: bytes(path.clone()),
                    target: bytes(path),
                })
                .collect(),
            writable: Vec::new(),
        }
    }

    fn environment(&self, _spec: &Spec) -> Vec<(Vec<u8>, Vec<u8>)> {
        let home = self
            .host
            .home
            .as_ref()
            .map_or(&b"/"[..], |home| home.as_os_str().as_bytes());
        let pairs: [(&str, &[u8]); 5] = [
            ("PATH", &self.host.path),
            ("HOME", home),
            ("USER", self.host.user.as_bytes()),
            ("LOGNAME", self.host.user.as_bytes()),
            ("LANG", b"C.UTF-8"),
        ];
        pairs
            .into_iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.to_vec()))
            .collect()
    }

    fn inside(&self, _spec: &Spec, path: &Path) -> PathBuf {
        path.to_path_buf()
    }
}

/// Keeps the holder from being what goes first when there is no memory: all of its sessions would go with
/// it. What it runs is not kept. Only root may ask for it.
fn protect(pid: u32) {
    if let Err(error) = fs::write(format!("/proc/{pid}/oom_score_adj"), HOLDER_OOM_SCORE) {
        tracing::debug!(pid, %error, "a holder is not kept from being killed for lack of memory");
    }
}

/// Those of the host's secrets that are there and that this user may read.
fn secrets() -> Vec<PathBuf> {
    let mut secrets: Vec<PathBuf> = SECRETS.iter().map(PathBuf::from).collect();
    if let Ok(entries) = fs::read_dir(SSH) {
        let names = entries.flatten().map(|entry| entry.path());
        secrets.extend(names.filter(|path| {
            let name = path.file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"ssh_host_") && name.ends_with(b"_key")
        }));
    }
    secrets.retain(|path| rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok());
    secrets
}

/// Homes that are not this user's.
fn homes_of_others(own: Option<&Path>) -> Vec<PathBuf> {
    let mut homes = vec![PathBuf::from("/root")];
    if let Ok(entries) = fs::read_dir("/home") {
        homes.extend(entries.flatten().map(|entry| entry.path()));
    }
    homes.retain(|home| own.is_none_or(|own| !own.starts_with(home)) && home.is_dir());
    homes
}

/// Whether process `pid` is there and runs `program`: pids are used again. One that is killed is there
/// until it has let go of everything, its socket among it; it has no program any more before that, but
/// its name.
fn is_alive(pid: u32, program: &Path) -> bool {
    let dir = Path::new("/proc").join(pid.to_string());
    let Ok(stat) = fs::read(dir.join("stat")) else {
        return false;
    };
    // `PID (NAME) STATE …`, and a name may have any byte.
    let bounds = stat
        .iter()
        .position(|byte| *byte == b'(')
        .zip(stat.iter().rposition(|byte| *byte == b')'));
    let Some((open, close)) = bounds else {
        return false;
    };
    if matches!(stat.get(close + 2), Some(b'Z' | b'X') | None) {
        return false;
    }
    let program = program.file_name().unwrap_or_default();
    match fs::read_link(dir.join("exe")) {
        Ok(exe) => {
            // A program that was replaced by an upgrade shows so.
            let name = exe.as_os_str().as_bytes();
            let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
            Path::new(OsStr::from_bytes(name)).file_name() == Some(program)
        }
        Err(_) => {
            let program = program.as_bytes();
            stat[open + 1..close] == program[..program.len().min(NAME_BYTES)]
        }
    }
}

fn signal(pid: u32, program: &Path, signal: Signal) {
    if !is_alive(pid, program) {
        return;
    }
    let Some(pid) = rustix::process::Pid::from_raw(pid as i32) else {
        return;
    };
    if let Err(error) = rustix::process::kill_process(pid, signal) {
        tracing::debug!(?pid, %error, "a holder could not be signalled");
    }
}
