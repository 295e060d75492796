//! A holder under test: starts the program, talks to it, watches the clock.
//!
//! Owns a temporary directory with the holder's run directory, views, private tmp
//! directories and transcripts. Ends what it started.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

pub mod fuse;
mod guard;

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio as ProcessStdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use sandstack_holder::client::Notice;
use sandstack_holder::protocol::*;
use sandstack_holder::transcript::Reader;
use sandstack_holder::{Client, Error};
use tempfile::TempDir;

pub use guard::{Watchdog, is_root, lacking};

/// An ordinary user that every system has.
pub const NOBODY: u32 = 65534;

/// How long anything that should happen may take, on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Whom the holder runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Root,
    Nobody,
}

/// Makes tests of functions: each runs once with a holder of root and once with one of an
/// ordinary user.
#[macro_export]
macro_rules! both {
    ($($name:ident),* $(,)?) => {
        mod as_root {
            use $crate::rig::{Rig, Who};
            $(
                #[test]
                fn $name() {
                    let name = concat!("as_root::", stringify!($name));
                    if let Some(rig) = Rig::start(Who::Root, name) {
                        super::$name(rig);
                    }
                }
            )*
        }

        mod as_user {
            use $crate::rig::{Rig, Who};
            $(
                #[test]
                fn $name() {
                    let name = concat!("as_user::", stringify!($name));
                    if let Some(rig) = Rig::start(Who::Nobody, name) {
                        super::$name(rig);
                    }
                }
            )*
        }
    };
}

pub struct Rig {
    pub who: Who,
    pub base: TempDir,
    program: PathBuf,
    pub holder: Child,
    client: Option<Client>,
    notices: Mutex<Receiver<Notice>>,
    seen: Mutex<Seen>,
    _watchdog: Watchdog,
}

#[derive(Default)]
struct Seen {
    exits: HashMap<String, ExitRecord>,
    ended: HashMap<String, EndReason>,
    outputs: Vec<(Instant, String, Stream, u64, u64)>,
    over: bool,
}

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    pub exit: ExitRecord,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn code(&self) -> i32 {
        match self.exit.status {
            ExitStatus::Exited { code } => code,
            other => panic!("{other:?}; {}{}", self.text(), self.errors()),
        }
    }
}

impl Rig {
    pub fn start(who: Who, name: &str) -> Option<Rig> {
        let watchdog = Watchdog::new(name, Duration::from_secs(180));
        if !is_root() {
            lacking("root, to run holders of root and of another user");
            return None;
        }
        let base = tempfile::Builder::new()
            .prefix("holder-test-")
            .tempdir()
            .unwrap();
        for dir in ["", "bin", "out", "views", "tmps", "homes"] {
            let path = base.path().join(dir);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // Where cargo builds, an ordinary user may not be able to look.
        let program = base.path().join("bin/sandbox-holder");
        if fs::hard_link(env!("CARGO_BIN_EXE_sandbox-holder"), &program).is_err() {
            fs::copy(env!("CARGO_BIN_EXE_sandbox-holder"), &program).unwrap();
        }
        let mut rig = Rig {
            who,
            holder: Command::new("true").spawn().unwrap(),
            program,
            base,
            client: None,
            notices: Mutex::new(mpsc::channel().1),
            seen: Mutex::default(),
            _watchdog: watchdog,
        };
        rig.holder.wait().unwrap();
        for dir in ["", "out", "views", "tmps", "homes"] {
            rig.give(&rig.base.path().join(dir));
        }
        rig.holder = rig.command(&rig.socket(), &rig.run_dir()).spawn().unwrap();
        rig.reconnect();
        Some(rig)
    }

    /// The holder's command line, as the user it runs as.
    pub fn command(&self, socket: &Path, run_dir: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .arg("--socket")
            .arg(socket)
            .arg("--run-dir")
            .arg(run_dir);
        command
            .args(["--sandbox-id", "test"])
            .env("HOLDER_SECRET", "in-the-environment")
            .env(
                "SANDSTACK_LOG",
                std::env::var("SANDSTACK_LOG").as_deref().unwrap_or("warn"),
            );
        command
            .stdin(ProcessStdio::null())
            .stdout(ProcessStdio::null());
        if self.who == Who::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.process_group(0);
        command
    }

    /// A word that is in no other test's processes.
    pub fn tag(&self, name: &str) -> String {
        format!(
            "{}-{name}",
            self.base.path().file_name().unwrap().to_str().unwrap()
        )
    }

    pub fn socket(&self) -> PathBuf {
        self.base.path().join("holder.sock")
    }

    pub fn run_dir(&self) -> PathBuf {
        self.base.path().join("run")
    }

    /// Gives a path to the holder's user.
    pub fn give(&self, path: &Path) {
        if self.who == Who::Nobody {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    /// A directory that the holder's user owns.
    pub fn dir(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.base.path().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        self.give(&path);
        path
    }

    /// A new connection to the holder, as soon as it answers.
    pub fn connect(&self) -> (Client, Receiver<Notice>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (sender, notices) = mpsc::channel();
            match Client::connect(&self.socket(), move |notice| drop(sender.send(notice))) {
                Ok(client) => return (client, notices),
                Err(Error::Path { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("cannot connect: {error:?}"),
            }
        }
    }

    /// Ends the connection to the holder.
    pub fn disconnect(&mut self) {
        self.client = None;
    }

    pub fn reconnect(&mut self) {
        self.client = None;
        let (client, notices) = self.connect();
        (self.client, self.notices) = (Some(client), Mutex::new(notices));
        *self.seen.lock().unwrap() = Seen::default();
    }

    pub fn client(&self) -> &Client {
        self.client.as_ref().unwrap()
    }

    pub fn view(&self, session: &str) -> PathBuf {
        self.dir(&format!("views/{session}"), 0o755)
    }

    pub fn tmp(&self, session: &str) -> PathBuf {
        self.dir(&format!("tmps/{session}"), 0o1777)
    }

    pub fn workspace(&self) -> PathBuf {
        self.base.path().join("workspace")
    }

    /// A request for a session with a directory for its view.
    pub fn session_request(&self, session: &str) -> CreateSession {
        CreateSession {
            session_id: session.to_owned(),
            view: View::Descriptor,
            workspace_root: self.workspace().into(),
            root: RootSpec {
                tmp: self.tmp(session).into(),
                ..RootSpec::default()
            },
            network: Network::Shared,
            env: Vec::new(),
        }
    }

    /// A session whose view is a directory.
    pub fn create(&self, request: CreateSession) -> Result<SessionInfo, Error> {
        let view = o_path(&self.view(&request.session_id));
        self.client()
            .create_session(request, &[view.as_fd()])
            .map(|(info, _)| info)
    }

    pub fn session(&self, session: &str) -> SessionInfo {
        self.create(self.session_request(session)).unwrap()
    }

    pub fn spawn_request(&self, session: &str, command: &str, program: Program) -> Spawn {
        Spawn {
            command_id: command.to_owned(),
            session_id: session.to_owned(),
            program,
            cwd: "".into(),
            env: vec![(
                "PATH".into(),
                "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".into(),
            )],
            stdio: Stdio::Pipes,
            stdin: None,
            close_stdin: true,
            timeout_ms: None,
            user: None,
            dir: self.out(command).into(),
            transcript_limit: 64 << 20,
        }
    }

    pub fn shell(&self, session: &str, command: &str, script: &str) -> Spawn {
        self.spawn_request(session, command, Program::Shell(script.into()))
    }

    pub fn terminal(&self, session: &str, command: &str, script: &str) -> Spawn {
        let mut spawn = self.shell(session, command, script);
        spawn.stdio = Stdio::Pty { rows: 24, cols: 80 };
        spawn.close_stdin = false;
        spawn
    }

    pub fn spawn(&self, spawn: Spawn) -> Spawned {
        self.client().spawn(spawn).unwrap()
    }

    /// Runs a command to its end.
    pub fn run(&self, spawn: Spawn) -> Outcome {
        let command = spawn.command_id.clone();
        self.spawn(spawn);
        self.outcome(&command)
    }

    /// Runs a script to its end, under a name made from its text.
    pub fn sh(&self, session: &str, script: &str) -> Outcome {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.run(self.shell(session, &format!("sh-{number}"), script))
    }

    pub fn out(&self, command: &str) -> PathBuf {
        self.base.path().join("out").join(command)
    }

    pub fn outcome(&self, command: &str) -> Outcome {
        let exit = self.exit(command);
        let reader = self.reader(command);
        let pty = reader.streams() == [Stream::Pty];
        let stdout = if pty { Stream::Pty } else { Stream::Stdout };
        let all = |stream| reader.bytes_from(stream, 0, usize::MAX).unwrap().bytes;
        let stderr = if pty { Vec::new() } else { all(Stream::Stderr) };
        Outcome {
            exit,
            stdout: all(stdout),
            stderr,
        }
    }

    pub fn reader(&self, command: &str) -> Reader {
        Reader::open(&self.out(command)).unwrap()
    }

    /// What a terminal's command has written so far.
    pub fn screen(&self, command: &str) -> String {
        let bytes = self
            .reader(command)
            .bytes_from(Stream::Pty, 0, usize::MAX)
            .unwrap()
            .bytes;
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until a terminal's command has written `text`.
    pub fn wait_screen(&self, command: &str, text: &str) {
        until(&format!("{text:?} from {command}"), || {
            self.screen(command).contains(text)
        });
    }

    fn notice(&self, seen: &mut Seen, wait: Duration) {
        match self.notices.lock().unwrap().recv_timeout(wait) {
            Ok(Notice::Event(Event::Exited(record))) => {
                let before = seen.exits.insert(record.command_id.clone(), record);
                assert!(before.is_none(), "two ends: {before:?}");
            }
            Ok(Notice::Event(Event::SessionEnded { session_id, reason })) => {
                seen.ended.insert(session_id, reason);
            }
            Ok(Notice::Event(Event::Output {
                command_id,
                stream,
                total_bytes,
                total_lines,
                lost: _,
            })) => {
                assert!(!seen.exits.contains_key(&command_id) || total_bytes > 0);
                seen.outputs
                    .push((Instant::now(), command_id, stream, total_bytes, total_lines));
            }
            Ok(Notice::Ended(_)) | Err(RecvTimeoutError::Disconnected) => seen.over = true,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }

    fn wait_for<T>(&self, what: &str, mut found: impl FnMut(&mut Seen) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = self.seen.lock().unwrap();
        loop {
            if let Some(found) = found(&mut seen) {
                return found;
            }
            assert!(!seen.over, "the connection ended; waiting for {what}");
            assert!(Instant::now() < deadline, "waited too long for {what}");
            self.notice(&mut seen, Duration::from_millis(100));
        }
    }

    pub fn exit(&self, command: &str) -> ExitRecord {
        self.wait_for(command, |seen| seen.exits.get(command).cloned())
    }

    pub fn has_exited(&self, command: &str) -> bool {
        let mut seen = self.seen.lock().unwrap();
        self.notice(&mut seen, Duration::ZERO);
        seen.exits.contains_key(command)
    }

    pub fn session_end(&self, session: &str) -> EndReason {
        self.wait_for(session, |seen| seen.ended.get(session).cloned())
    }

    /// The announcements of a command's output up to its end: when, and bytes.
    pub fn announcements(&self, command: &str) -> Vec<(Instant, u64)> {
        self.exit(command);
        let seen = self.seen.lock().unwrap();
        let of_command = seen.outputs.iter().filter(|(_, id, ..)| id == command);
        of_command
            .map(|(when, _, _, bytes, _)| (*when, *bytes))
            .collect()
    }

    pub fn survivors(&self, command: &str) -> Vec<Survivor> {
        let request = Request::Survivors {
            command_id: command.to_owned(),
        };
        match self.client().request(&request, &[]).unwrap().0 {
            Reply::Survivors { survivors } => survivors,
            other => panic!("{other:?}"),
        }
    }

    pub fn processes(&self, session: &str) -> Vec<ProcessInfo> {
        let request = Request::Processes {
            session_id: session.to_owned(),
        };
        match self.client().request(&request, &[]).unwrap().0 {
            Reply::Processes { processes } => processes,
            other => panic!("{other:?}"),
        }
    }

    /// How many children the holder has: one for each session.
    pub fn children(&self) -> usize {
        let path = format!("/proc/{0}/task/{0}/children", self.holder.id());
        fs::read_to_string(path).unwrap().split_whitespace().count()
    }

    pub fn refusal(&self, spawn: Spawn) -> Refusal {
        refusal(self.client().spawn(spawn))
    }

    /// Ends the holder, by request and wait.
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        // SAFETY: a call without pointers, on our own child that has not been waited for.
        unsafe { libc::kill(self.holder.id() as i32, libc::SIGTERM) };
        let mut status = None;
        until("the holder's end", || {
            status = self.holder.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.client = None;
        if self.holder.try_wait().unwrap().is_none() {
            let status = self.terminate();
            if !std::thread::panicking() {
                assert!(status.success(), "the holder ended with {status}");
                assert!(!self.socket().exists(), "the socket is still there");
            }
        }
    }
}

/// The refusal in an answer that must be one.
pub fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> Refusal {
    match answer {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// Opens a directory as `O_PATH`.
pub fn o_path(path: &Path) -> OwnedFd {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .unwrap()
        .into()
}

/// Waits for a condition, with a deadline.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The pids of processes with `tag` in their command line, as this process sees them.
pub fn tagged(tag: &str) -> Vec<i32> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let here = pid == std::process::id() as i32;
        if !here && line.windows(tag.len()).any(|part| part == tag.as_bytes()) {
            pids.push(pid);
        }
    }
    pids
}

/// Inode of a process's namespace.
pub fn namespace(pid: i32, name: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/{name}"))
        .ok()
        .map(|metadata| metadata.ino())
}

/// Resident memory of a process and its largest so far, in bytes.
pub fn resident(pid: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}
