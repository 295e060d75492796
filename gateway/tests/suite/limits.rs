//! Limits: a command that takes all it can get takes what its sandbox has, and nothing of others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::holder;
use crate::rig::{Rig, Setup, docker_image, is_root, needs_root, until};

/// Forks as fast as it can, in children that ignore what can be ignored and leave their process session.
const BOMB: &str = r#"
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
limited = False
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError as error:
        if not limited: print("limited", error.errno, flush=True)
        limited = True
        time.sleep(0.01)
"#;

/// As many processes as a sandbox of these tests may have. Thousands of Python's that fork all the time
/// would hold up whoever forks on this host: see docs/security.md.
const PROCESSES: usize = 200;

/// How long a thing may take that all of a bomb must have ended for.
const BOMB_MS: u64 = 60_000;

fn exec(rig: &Rig, sandbox: &str, session: &str, more: Value) -> Value {
    let mut request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "tty": false,
        "yield_time_ms": BOMB_MS });
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    rig.call("exec_command", request).ok()
}

fn says(rig: &Rig, command: &Value, word: &str) -> bool {
    let request = json!({ "command_session_id": command["command_session_id"] });
    let lines = rig.call("read_command_lines", request).ok();
    lines["lines"].to_string().contains(word)
}

/// How processes are limited.
enum By {
    /// For the sandbox as a whole: others in it are held up.
    Sandbox,
    /// For each session.
    Session,
    /// Not by the gateway: the test itself keeps the holder within bounds, as the host would with its
    /// largest number of processes.
    Host(Fence),
}

/// A control group of the test's own.
struct Fence(PathBuf);

impl Fence {
    fn new() -> Fence {
        let root = Path::new("/sys/fs/cgroup");
        let base = match root.join("cgroup.controllers").exists() {
            true => root.to_path_buf(),
            false => root.join("pids"),
        };
        let dir = base.join(format!("sandstack-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("pids.max"), (2 * PROCESSES).to_string()).unwrap();
        Fence(dir)
    }

    /// What the process starts from now on is within, too.
    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // What was in it may take a moment to be gone.
        for _ in 0..500 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} is left", self.0.display());
    }
}

fn a_fork_bomb_is_held(rig: &Rig, image: Option<&str>, resources: &Value, by: &By) {
    let project = rig.project("project", &[("a", b"one\n"), ("bomb.py", BOMB.as_bytes())]);
    let more = json!({ "resources": resources });
    let sandbox = rig.sandbox_in(&project, image, more.clone());
    let other = rig.sandbox_in(&project, image, more);
    if let By::Host(fence) = by {
        let socket = rig.state().join("sandboxes").join(&sandbox);
        fence.take(holder(&socket.join("holder.sock").to_string_lossy()));
    }
    let (session, beside) = (rig.session(&sandbox), rig.session(&sandbox));
    let elsewhere = rig.session(&other);
    rig.sh(&sandbox, &beside, "echo mine > work");
    let bomb = exec(
        rig,
        &sandbox,
        &session,
        json!({ "cmd": "exec python3 bomb.py", "yield_time_ms": 0 }),
    );
    until("the limit to be met", || says(rig, &bomb, "limited 11"));
    // Others go on, and the gateway answers.
    assert_eq!(rig.sh(&other, &elsewhere, "(cat a)"), "one\n");
    let topology = json!({ "sandbox_id": other });
    rig.call("topology", topology).ok();
    match by {
        By::Session => assert_eq!(rig.sh(&sandbox, &beside, "(cat work)"), "mine\n"),
        By::Sandbox | By::Host(_) => {
            let request = json!({ "sandbox_id": sandbox, "workspace_session_id": beside,
                "cmd": "true", "tty": false, "yield_time_ms": 30_000 });
            let answer = rig.call("exec_command", request);
            // It may be lucky.
            if answer.status != 200 {
                let said = answer.refused("quota_exceeded");
                assert!(said.contains("as many processes as it may have"), "{said}");
            }
        }
    }
    // It is ended as anything else is.
    let request = json!({ "command_session_id": bomb["command_session_id"], "signal": "KILL" });
    rig.call("signal_command", request).ok();
    let request = json!({ "command_session_id": bomb["command_session_id"], "stdin": "",
        "yield_time_ms": BOMB_MS });
    let killed = rig.call("write_command_stdin", request).ok();
    assert_eq!(
        (&killed["status"], &killed["signal"]),
        (&json!("signalled"), &json!(9)),
        "{killed:#}"
    );
    assert_eq!(killed["survivors"], json!(null), "{killed:#}");
    assert_eq!(rig.sh(&sandbox, &session, "(cat a)"), "one\n");
    // Or with its session.
    let more = json!({ "cmd": "exec python3 bomb.py", "yield_time_ms": 0 });
    let bomb = exec(rig, &sandbox, &session, more);
    until("the limit to be met again", || {
        says(rig, &bomb, "limited 11")
    });
    let request = json!({ "workspace_session_id": session, "force": true });
    rig.call("destroy_workspace_session", request).ok();
    let timed = json!({ "cmd": "exec python3 bomb.py", "timeout_ms": 1500 });
    assert_eq!(rig.sh(&sandbox, &beside, "(cat work)"), "mine\n");
    let again = rig.session(&sandbox);
    let ended = exec(rig, &sandbox, &again, timed);
    assert_eq!(ended["status"], "timed_out", "{ended:#}");
    until("all of it to have ended", || {
        let request = json!({ "sandbox_id": sandbox, "workspace_session_id": again });
        let shown = rig.call("topology", request).ok();
        !shown.to_string().contains("python3")
    });
    assert_eq!(rig.sh(&sandbox, &again, "(cat a)"), "one\n");
    for sandbox in [sandbox, other] {
        let request = json!({ "sandbox_id": sandbox, "force": true });
        rig.call("destroy_sandbox", request).ok();
    }
    rig.assert_no_debris();
}

const LONGER: Duration = Duration::from_secs(120);

#[test]
fn a_fork_bomb_is_held_to_what_its_sandbox_may_have() {
    if !needs_root("a control group") {
        return;
    }
    let rig = Rig::start_as(Setup {
        longer: LONGER,
        ..Setup::default()
    });
    let resources = json!({ "pids_max": PROCESSES });
    a_fork_bomb_is_held(&rig, None, &resources, &By::Sandbox);
}

#[test]
fn a_fork_bomb_is_held_where_nobody_asked_for_a_limit() {
    let config = format!("[limits]\nsandbox_processes = {PROCESSES}\n");
    for ordinary in [false, true] {
        let rig = Rig::start_as(Setup {
            longer: LONGER,
            config: &config,
            ordinary,
            ..Setup::default()
        });
        let by = match is_root() && !ordinary {
            true => By::Sandbox,
            false => By::Session,
        };
        a_fork_bomb_is_held(&rig, None, &json!({}), &by);
    }
}

/// Root's bomb where no control group can be made meets no limit but the host's. So that the host of this
/// test goes on, the holder is put into a group that the gateway knows nothing of.
#[test]
fn a_fork_bomb_of_root_without_a_group_is_ended() {
    if !needs_root("root's own bomb") {
        return;
    }
    let rig = Rig::start_as(Setup {
        longer: LONGER,
        mounts: "mount -t tmpfs -o ro none /sys/fs/cgroup",
        ..Setup::default()
    });
    a_fork_bomb_is_held(&rig, None, &json!({}), &By::Host(Fence::new()));
}

#[test]
fn a_fork_bomb_is_held_in_a_container() {
    let Some(image) = docker_image() else { return };
    let config = format!("[limits]\nsandbox_processes = {PROCESSES}\n");
    let rig = Rig::start_as(Setup {
        longer: LONGER,
        config: &config,
        ..Setup::default()
    });
    a_fork_bomb_is_held(&rig, Some(image), &json!({}), &By::Sandbox);
}

/// Takes memory until it has none, in a command; another command and its work stay.
fn memory_is_held(rig: &Rig, image: Option<&str>) {
    let project = rig.project("project", &[("a", b"one\n")]);
    let more = json!({ "resources": { "memory_bytes": 128 << 20 } });
    let sandbox = rig.sandbox_in(&project, image, more);
    let (session, beside) = (rig.session(&sandbox), rig.session(&sandbox));
    let worker = exec(
        rig,
        &sandbox,
        &beside,
        json!({ "cmd": "echo mine > work; echo ready; read line; cat work",
            "keep_stdin_open": true, "yield_time_ms": 0 }),
    );
    until("the worker", || says(rig, &worker, "ready"));
    let cmd = "python3 -c 'x = []
while True: x.append(b\"x\" * (8 << 20))'";
    for _ in 0..3 {
        let ended = exec(rig, &sandbox, &session, json!({ "cmd": cmd }));
        let killed = ended["signal"] == 9 || ended["exit_code"] == 137 || ended["exit_code"] == 1;
        assert!(killed, "{ended:#}");
    }
    let request = json!({ "command_session_id": worker["command_session_id"], "stdin": "\n",
        "eof": true, "yield_time_ms": 30_000 });
    let ended = rig.call("write_command_stdin", request).ok();
    assert_eq!(ended["exit_code"], 0, "{ended:#}");
    let request = json!({ "workspace_session_id": session, "force": true });
    rig.call("destroy_workspace_session", request).ok();
    assert_eq!(rig.sh(&sandbox, &beside, "cat work"), "mine\n");
    let events = rig
        .call("events", json!({ "name": "sandbox.holder_lost" }))
        .ok();
    assert_eq!(events["events"], json!([]), "the holder was chosen");
    // Files in memory are memory that no process gives back by its end: the holder may go, and what is
    // kept is the work.
    let cmd = "head -c 500000000 /dev/zero > /dev/shm/big";
    let full = json!({ "sandbox_id": sandbox, "workspace_session_id": beside, "cmd": cmd,
        "tty": false, "yield_time_ms": 30_000 });
    rig.call("exec_command", full);
    until("the sandbox to work again", || {
        let request = json!({ "sandbox_id": sandbox, "workspace_session_id": beside,
            "cmd": "rm -f /dev/shm/big; cat work", "tty": false, "yield_time_ms": 30_000 });
        rig.call("exec_command", request).body["output"]["content"] == "mine\n"
    });
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}

#[test]
fn memory_is_held_to_what_a_sandbox_may_have() {
    if !needs_root("a control group") {
        return;
    }
    memory_is_held(&Rig::start(), None);
}

#[test]
fn memory_is_held_in_a_container() {
    let Some(image) = docker_image() else { return };
    memory_is_held(&Rig::start(), Some(image));
}

/// A limit that cannot be kept is refused, not forgotten.
#[test]
fn an_ordinary_user_is_told_which_limits_there_cannot_be() {
    if !needs_root("to be an ordinary user as well") {
        return;
    }
    let rig = Rig::start_as(Setup {
        ordinary: true,
        ..Setup::default()
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    let request = json!({ "workspace_root": project, "resources": { "memory_bytes": 128 << 20 } });
    let answer = rig.call("create_sandbox", request);
    assert!(answer.refused("unsupported").contains("control group"));
    rig.assert_no_debris();
}

fn disk_is_held(rig: &Rig, image: Option<&str>) {
    let project = rig.project("project", &[("a", b"one\n")]);
    let more = json!({ "resources": { "disk_bytes": 8 << 20 } });
    let sandbox = rig.sandbox_in(&project, image, more);
    let (session, beside) = (rig.session(&sandbox), rig.session(&sandbox));
    rig.sh(&sandbox, &beside, "echo mine > work");
    let cmd = "head -c 64000000 /dev/urandom > big";
    let ended = exec(rig, &sandbox, &session, json!({ "cmd": cmd }));
    assert_ne!(ended["exit_code"], 0, "{ended:#}");
    let said = ended["stderr"]["content"].as_str().unwrap();
    assert!(said.to_lowercase().contains("quota exceeded"), "{ended:#}");
    assert_eq!(rig.sh(&sandbox, &beside, "cat work a"), "mine\none\n");
    rig.sh(&sandbox, &session, "rm big");
    let fits = json!({ "cmd": "head -c 7000000 /dev/urandom > small" });
    let ended = exec(rig, &sandbox, &session, fits);
    assert_eq!(ended["exit_code"], 0, "room was not given back: {ended:#}");
    rig.sh(&sandbox, &session, "rm small");
    rig.sh(&sandbox, &beside, "echo more >> work");
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}

#[test]
fn a_writer_over_its_sandboxes_disk_is_told() {
    for ordinary in [false, true] {
        let rig = Rig::start_as(Setup {
            ordinary,
            ..Setup::default()
        });
        disk_is_held(&rig, None);
    }
    if let Some(image) = docker_image() {
        disk_is_held(&Rig::start(), Some(image));
    }
}
