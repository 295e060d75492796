//! Much at once, and again and again: nothing wedges, nothing is lost, nobody is sent away who could
//! have waited, and nothing is left.
//!
//! The sizes are those that fit into every run of the tests; `SANDSTACK_TEST_LOAD=full` has those that
//! the design promises. How long calls took is printed, not judged.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, size, until};

fn patient() -> Rig {
    Rig::start_as(Setup {
        longer: Duration::from_secs(size(120, 1200) as u64),
        ..Setup::default()
    })
}

/// Does `work` once a number, all at once; how long each took.
fn at_once(count: usize, work: impl Fn(usize) + Sync) -> Vec<Duration> {
    let times = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..count {
            let (work, times) = (&work, &times);
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, move || {
                    let begun = Instant::now();
                    work(number);
                    times.lock().unwrap().push(begun.elapsed());
                })
                .unwrap();
        }
    });
    times.into_inner().unwrap()
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    eprintln!(
        "load: {} {what}: p50 {:?}, p99 {:?}, all within {:?}",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
}

#[test]
fn commands_in_many_sessions_lose_no_output() {
    const COMMANDS: usize = 4;
    const LINES: usize = 2000;
    let rig = patient();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let sessions: Vec<String> = (0..size(20, 50)).map(|_| rig.session(&sandbox)).collect();
    let times = at_once(sessions.len() * COMMANDS, |number| {
        let session = &sessions[number / COMMANDS];
        let cmd = format!(
            "i=0; while [ $i -lt {LINES} ]; do echo {number} $i; i=$((i+1)); done; \
             cat a > copy{number}; echo wrong {number} >&2; exit {}",
            number % 100
        );
        let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "cmd": cmd,
            "tty": false, "yield_time_ms": 600_000 });
        let done = rig.call("exec_command", request).ok();
        assert_eq!(done["exit_code"], number % 100, "{done:#}");
        assert_eq!(done["stderr"]["content"], format!("wrong {number}\n"));
        let mut seen = 0;
        while seen < LINES {
            let request = json!({ "command_session_id": done["command_session_id"],
                "start_offset": seen, "limit": 1000 });
            let page = rig.call("read_command_lines", request).ok();
            assert_eq!(page["total_lines"], LINES, "{number} lost output");
            for line in page["lines"].as_array().unwrap() {
                assert_eq!(line["content"], format!("{number} {seen}"));
                seen += 1;
            }
        }
    });
    tell("commands", times);
    for session in &sessions {
        let request = json!({ "workspace_session_id": session });
        let inspected = rig.call("inspect_workspace_session", request).ok();
        let changed = inspected["session"]["changed_paths"].clone();
        assert_eq!(changed, COMMANDS, "{inspected:#}");
    }
    destroy(&rig, &sandbox);
}

#[test]
fn many_sessions_are_made_at_once() {
    let rig = patient();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let made = Mutex::new(Vec::new());
    let times = at_once(size(60, 200), |_| {
        let session = rig.session(&sandbox);
        made.lock().unwrap().push(session);
    });
    tell("sessions made", times);
    let made = made.into_inner().unwrap();
    let times = at_once(made.len(), |number| {
        let session = &made[number];
        assert_eq!(rig.sh(&sandbox, session, "cat a"), "one\n");
        let request = json!({ "workspace_session_id": session });
        rig.call("destroy_workspace_session", request).ok();
    });
    tell("sessions used and ended", times);
    destroy(&rig, &sandbox);
}

#[test]
fn many_file_operations_go_on_at_once() {
    let rig = patient();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let sessions: Vec<String> = (0..4).map(|_| rig.session(&sandbox)).collect();
    let times = at_once(size(200, 500), |number| {
        let content = format!("content {number}\n").repeat(number % 50 + 1);
        let mut write = json!({ "sandbox_id": sandbox, "path": format!("dir{}/f{number}", number % 7),
            "content": content });
        // Some of them each publish a layer.
        if number % 10 != 0 {
            write["workspace_session_id"] = json!(sessions[number % sessions.len()]);
        }
        rig.call("file_write", write.clone()).ok();
        let mut read = write;
        read.as_object_mut().unwrap().remove("content");
        let read = rig.call("file_read", read).ok();
        assert_eq!(read["content"], content);
    });
    tell("files written and read", times);
    destroy(&rig, &sandbox);
}

/// What a gateway and a holder hold.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    mounts: usize,
    namespaces: usize,
    holder_descriptors: usize,
    holder_children: usize,
    uppers: usize,
    session_dirs: usize,
    leases: usize,
}

fn held(rig: &Rig, sandbox: &str) -> Held {
    let entries = |path: String| fs::read_dir(path).map(Iterator::count).unwrap_or(0);
    let worker = rig.worker().as_raw_nonzero().get();
    let dir = rig.state().join("sandboxes").join(sandbox);
    let holder = holder(&dir.join("holder.sock").to_string_lossy());
    let children = fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).unwrap();
    let stack = rig
        .call("layerstack", json!({ "sandbox_id": sandbox }))
        .ok();
    Held {
        descriptors: entries(format!("/proc/{worker}/fd")),
        threads: entries(format!("/proc/{worker}/task")),
        mounts: fs::read_to_string(format!("/proc/{worker}/mountinfo"))
            .unwrap()
            .lines()
            .filter(|line| line.contains(&*rig.dir.to_string_lossy()))
            .count(),
        namespaces: namespaces(&[worker as u32, holder]),
        holder_descriptors: entries(format!("/proc/{holder}/fd")),
        holder_children: children.split_whitespace().count(),
        uppers: entries(rig.state().join("store/uppers").display().to_string()),
        session_dirs: entries(dir.join("sessions").display().to_string()),
        leases: stack["leases"].as_array().unwrap().len(),
    }
}

/// The process that serves a holder's socket.
pub(crate) fn holder(socket: &str) -> u32 {
    let mut found = None;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        if words.get(1) == Some(&&b"serve"[..]) && words.contains(&socket.as_bytes()) {
            found = entry.file_name().to_str().and_then(|pid| pid.parse().ok());
        }
    }
    found.unwrap()
}

/// How many namespaces these processes and all that descend from them are in or hold open.
fn namespaces(roots: &[u32]) -> usize {
    let mut pending = roots.to_vec();
    let mut found = BTreeSet::new();
    while let Some(pid) = pending.pop() {
        for dir in ["ns", "fd"] {
            // One that has ended meanwhile is in none.
            let links = fs::read_dir(format!("/proc/{pid}/{dir}"));
            let targets = links.into_iter().flatten().flatten();
            found.extend(
                targets
                    .filter_map(|link| fs::read_link(link.path()).ok())
                    .filter_map(|target| target.into_os_string().into_string().ok())
                    // As `mnt:[4026531840]`; other descriptors are paths or `pipe:`, `socket:`, `anon_inode:`.
                    .filter(|name| {
                        let kind = name.split(":[").next().unwrap_or_default();
                        ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"]
                            .contains(&kind)
                    }),
            );
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            pending.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
    }
    found.len()
}

/// The count of the test above can fail: it sees what a child is in, and what a descriptor alone holds.
#[test]
fn a_namespace_that_is_held_is_counted() {
    let mut child = std::process::Command::new("unshare")
        .args(["--user", "--ipc", "--uts", "sh", "-c", "echo; read line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    // Three of its own, and the others as here. Of this process only the count of a moment is known:
    // other tests have theirs.
    assert_eq!(namespaces(&[child.id()]), 8);
    let mut holding = std::process::Command::new("sh")
        .args([
            "-c",
            &format!("exec 9</proc/{}/ns/ipc; echo; read line", child.id()),
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(holding.stdout.as_mut().unwrap(), &mut ready).unwrap();
    assert_eq!(namespaces(&[holding.id()]), 9);
    drop((child.stdin.take(), holding.stdin.take()));
    child.wait().unwrap();
    holding.wait().unwrap();
}

/// Memory of a process that is its own, in KiB.
fn memory(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("RssAnon:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn cycle(rig: &Rig, sandbox: &str, number: usize) -> Value {
    let request = json!({ "sandbox_id": sandbox,
        "network_profile": if number.is_multiple_of(2) { "shared" } else { "isolated" } });
    let made = rig.call("create_workspace_session", request).ok();
    let session = made["workspace_session_id"].as_str().unwrap();
    rig.sh(sandbox, session, "echo x > new; cat a new; (sleep 1000 &)");
    let request = json!({ "workspace_session_id": session, "force": true });
    rig.call("destroy_workspace_session", request).ok()
}

#[test]
fn coming_and_going_leaves_nothing() {
    let rig = Rig::start_as(Setup {
        longer: Duration::from_secs(size(120, 1200) as u64),
        // So that what is kept of ended commands is at its bound after the first cycles.
        config: "[limits]\nended_commands = 10\n",
        ..Setup::default()
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    for number in 0..20 {
        cycle(&rig, &sandbox, number);
    }
    let socket = rig
        .state()
        .join("sandboxes")
        .join(&sandbox)
        .join("holder.sock");
    let holder = holder(&socket.to_string_lossy());
    let worker = rig.worker().as_raw_nonzero().get() as u32;
    let (before, memory_before) = (held(&rig, &sandbox), (memory(worker), memory(holder)));
    let cycles = size(100, 1000);
    let mut times = Vec::new();
    for number in 0..cycles {
        let begun = Instant::now();
        cycle(&rig, &sandbox, number);
        times.push(begun.elapsed());
        if number.is_multiple_of(20) {
            let other = rig.sandbox(&project);
            cycle(&rig, &other, number);
            destroy(&rig, &other);
        }
    }
    tell("sessions made, used and ended one after another", times);
    // Threads of tokio's that had work end a while after it.
    let mut after = held(&rig, &sandbox);
    until("what was held to be given back", || {
        after = held(&rig, &sandbox);
        after.descriptors <= before.descriptors
            && after.holder_children == before.holder_children
            && after.namespaces <= before.namespaces
    });
    after.threads = after.threads.min(before.threads);
    after.descriptors = after.descriptors.min(before.descriptors);
    assert_eq!(after, before);
    let memory_after = (memory(worker), memory(holder));
    eprintln!(
        "load: memory in KiB of gateway and holder: {memory_before:?}, then {memory_after:?}"
    );
    // What is kept of each is bounded or some hundred bytes; a leak of what a session takes is not.
    let per_cycle = |before: u64, after: u64| after.saturating_sub(before) * 1024 / cycles as u64;
    assert!(
        per_cycle(memory_before.0, memory_after.0) < 64 << 10,
        "{memory_before:?} {memory_after:?}"
    );
    assert!(
        per_cycle(memory_before.1, memory_after.1) < 4 << 10,
        "{memory_before:?} {memory_after:?}"
    );
    destroy(&rig, &sandbox);
    for base in ["", "pids", "memory", "cpu"] {
        let path = format!("/sys/fs/cgroup/{base}/sandstack-{sandbox}");
        assert!(!fs::exists(&path).unwrap(), "{path} is left");
    }
}

fn destroy(rig: &Rig, sandbox: &str) {
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    if rig.call("list_sandboxes", json!({})).ok()["sandboxes"] == json!([]) {
        rig.assert_no_debris();
    }
}
