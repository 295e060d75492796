//! The record of accesses, held to what strace sees of real programs: nothing missed, nothing invented.
//!
//! strace follows the session's init, which starts the commands, from outside. Its calls are interpreted by a
//! simple model of names and processes, and what follows from them is compared with `file_activity`:
//! each path, kind, process, program and command, and in mode `exact` each call with its offset.

mod compare;
mod expected;
mod names;
mod process;
mod strace;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::rig::{Rig, needs_root, until};
use compare::Ran;
use expected::{Expected, Oracle};
use names::Names;
use process::Processes;

/// What the commands do, each in a session of its own of a shell. `$N` is the round.
const WORKLOADS: &[&str] = &[
    // Version control: locks, links, maps, renames, children of children.
    "cd repo && export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b \
     GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
     git init -q . && git add . && git commit -qm one && echo changed >> src/f3 && git status --short && \
     git checkout -qb side-$N && git commit -qam two && git checkout -q - && git log --stat | wc -l && \
     git gc -q && git fsck 2>/dev/null; rm -rf .git",
    // Searching, twice; names that are not there.
    "grep -r needle . | wc -l; grep -r needle repo | wc -l; cat absent-$N nowhere/absent 2>/dev/null; \
     find . -name 'f*' -newer repo/src/f1 | wc -l; ls -lR > /dev/null",
    // Archives, copies of all kinds, owners and times.
    "tar -cf all-$N.tar repo && mkdir out-$N && tar -xpf all-$N.tar -C out-$N && cp -a out-$N copy-$N && \
     cp --sparse=always all-$N.tar again && mv again copy-$N/ && ln copy-$N/again copy-$N/linked && \
     ln -s again copy-$N/soft && cat copy-$N/soft > /dev/null && chmod -R go-w copy-$N && touch -d @1 copy-$N/again && \
     truncate -s 100 copy-$N/again && rm -r out-$N copy-$N all-$N.tar",
    // A database with its journal.
    "sqlite3 db-$N 'create table t(a, b); insert into t values (1, 2), (3, 4); create index i on t(b);' && \
     sqlite3 db-$N 'pragma journal_mode=wal; insert into t select a + 5, b from t; select count(*) from t;' && \
     sqlite3 db-$N 'pragma journal_mode=delete; vacuum; pragma integrity_check;' && rm db-$N",
    // A compiler, its linker, and what they made: run.
    "cc -O1 -Irepo/include -o program-$N repo/main.c && ./program-$N && chmod +x script && ./script && rm program-$N",
    // Threads, maps, offsets, positions that are shared.
    "python3 tool.py $N",
    // Children that outlive their parents, and a shell that becomes another program.
    "( ( sleep 0.05; cat base > late-$N ) & ); while [ ! -s late-$N ]; do sleep 0.02; done; \
     sh -c 'exec 3< base; exec cat <&3' > /dev/null; rm late-$N",
];

const TOOL: &str = r#"
import mmap, os, sys, threading
n = sys.argv[1]
name = "tool-" + n
fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.write(fd, b"x" * 70000)
os.pwrite(fd, b"middle", 30000)
os.writev(fd, [b"one", b"two", b"three"])
os.lseek(fd, 10, os.SEEK_SET)
os.read(fd, 100)
copy = os.dup(fd)
os.read(copy, 50)
os.pread(fd, 5000, 69000)
while os.read(fd, 9000): pass
if os.fork() == 0:
    os.lseek(fd, 0, os.SEEK_SET)
    os.read(fd, 33)
    os._exit(0)
os.wait()
os.read(copy, 44)
log = os.open("log-" + n, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for line in range(20): os.write(log, b"a line of the log\n" * (line + 1))
def reader(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(777): pass
threads = [threading.Thread(target=reader, args=(path,)) for path in ["base", name, "repo/src/f1", "repo/src/f2"]]
for thread in threads: thread.start()
for thread in threads: thread.join()
with open("mapped", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
    sum(view[::4096])
with open("shared-" + n, "w+b") as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as view:
        view[5000] = 7
        view.flush()
big = os.open("big-" + n, os.O_RDWR | os.O_CREAT)
os.write(big, b"b" * 3000000)
os.lseek(big, 0, os.SEEK_SET)
os.read(big, 3000000)
os.lseek(big, 0, os.SEEK_SET)
out = os.open("sent-" + n, os.O_RDWR | os.O_CREAT)
os.sendfile(out, os.open("mapped", os.O_RDONLY), 1000, 200000)
os.copy_file_range(big, out, 50000, 100, 7)
os.ftruncate(out, 12)
here = os.open("repo", os.O_RDONLY | os.O_DIRECTORY)
os.listdir(here)
os.stat("src/f4", dir_fd=here)
os.setxattr(name, "user.a", b"1")
os.removexattr(name, "user.a")
os.mkdir("made-" + n); os.rename("made-" + n, "moved-" + n); os.rmdir("moved-" + n)
os.mkfifo("fifo-" + n); os.unlink("fifo-" + n)
os.unlink(name)
os.read(fd, 10)
os.pwrite(fd, b"gone", 0)
for name in ["log-", "shared-", "big-", "sent-"]: os.unlink(name + n)
"#;

/// A session's view traced by strace: how many rounds, and what was found.
fn traced(mode: &str, rounds: usize) -> Expected {
    let rig = Rig::start();
    let sources: Vec<(String, String)> = (0..40)
        .map(|index| {
            (
                format!("repo/src/f{index}"),
                format!("line {index}\nneedle\n").repeat(50 * index),
            )
        })
        .collect();
    let mut files: Vec<(&str, &[u8])> = sources
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_bytes()))
        .collect();
    let mapped = vec![b'm'; 300_000];
    files.extend([
        ("base", &b"base\n"[..]),
        ("mapped", &mapped),
        ("script", b"#!/bin/sh\nread a < base\n"),
        ("tool.py", TOOL.as_bytes()),
        ("repo/include/a.h", b"#define VALUE 0\n"),
        (
            "repo/main.c",
            b"#include \"a.h\"\nint main(void) { return VALUE; }\n",
        ),
    ]);
    let project = rig.project("project", &files);
    let sandbox = rig.sandbox(&project);
    let request = json!({ "sandbox_id": sandbox, "trace_mode": mode });
    let session = rig.call("create_workspace_session", request).ok();
    let session = session["workspace_session_id"].as_str().unwrap().to_owned();
    let root = rig.sh(&sandbox, &session, "pwd").trim().to_owned();
    let names = Names::of(&project, &root);
    let init = init_of(&rig);
    let processes = Processes::of(init);
    let mut strace = follow(&rig, init);
    let mut ran = Vec::new();
    for round in 0..rounds {
        for workload in WORKLOADS {
            let from = now();
            let reply = rig.run(&sandbox, &session, &format!("N={round}\n{workload}"));
            assert_eq!(reply["exit_code"], 0, "{workload}: {reply:#}");
            ran.push(Ran {
                command: reply["command_session_id"].as_str().unwrap().to_owned(),
                from,
                to: now(),
            });
        }
    }
    kill_process(Pid::from_child(&strace), Signal::INT).unwrap();
    strace.wait().unwrap();
    let (calls, ends) = strace::read(&rig.dir, "strace");
    let mut oracle = Oracle {
        names,
        processes,
        expected: Expected::default(),
    };
    for call in calls.iter().filter(|call| call.at >= ran[0].from) {
        oracle.take(call);
    }
    let rows = activity(&rig, &sandbox, &ran, json!({}));
    let singles = match mode {
        "exact" => activity(&rig, &sandbox, &ran, json!({ "calls": true })),
        _ => Vec::new(),
    };
    let faults = compare::compare(mode, &oracle, &rows, &singles, &ran, &ends);
    let shown: Vec<&str> = faults.iter().take(60).map(String::as_str).collect();
    assert!(
        faults.is_empty(),
        "{mode}: {} faults in {} calls:\n{}",
        faults.len(),
        oracle.expected.calls,
        shown.join("\n")
    );
    eprintln!(
        "{mode}: {} calls of the workspace by {} commands, {} rows, {} single calls",
        oracle.expected.calls,
        ran.len(),
        rows.len(),
        singles.len()
    );
    oracle.expected
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos()
}

/// All rows of the commands, and those of none.
fn activity(rig: &Rig, sandbox: &str, ran: &[Ran], more: Value) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut token = Value::Null;
    loop {
        let mut request = json!({
            "sandbox_id": sandbox, "limit": 1000, "since_ms": (ran[0].from / 1_000_000) as u64, "page_token": token,
        });
        let (fields, more) = (request.as_object_mut().unwrap(), more.as_object().unwrap());
        fields.extend(more.clone());
        if token.is_null() {
            fields.remove("page_token");
        }
        let mut page = rig.call("file_activity", request).ok();
        assert_eq!((&page["dropped"], &page["gaps"]), (&json!(0), &json!([])));
        rows.append(page["rows"].as_array_mut().unwrap());
        token = page["next_page_token"].take();
        if token.is_null() {
            return rows;
        }
    }
}

/// The init of the only session of a rig: the only child of the worker's only child, its holder.
fn init_of(rig: &Rig) -> u32 {
    let child = |pid: u32| -> u32 {
        let mut children = String::new();
        for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
            children += &fs::read_to_string(task.path().join("children")).unwrap();
        }
        let pids: Vec<u32> = children
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        assert_eq!(pids.len(), 1, "{pid} has {pids:?}");
        pids[0]
    };
    child(child(rig.worker().as_raw_nonzero().get() as u32))
}

/// Starts strace on a process and all that it will start; returns when it follows.
fn follow(rig: &Rig, pid: u32) -> Child {
    let strace = Command::new("strace")
        .args([
            "-ff",
            "-y",
            "-s",
            "0",
            "--absolute-timestamps=unix,ns",
            "-o",
        ])
        .arg(rig.dir.join("strace"))
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let strace = strace.expect("strace is there; `make setup` installs it");
    until("strace to follow the init", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let tracer = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.unwrap().trim() == strace.id().to_string()
    });
    strace
}

/// How often the workloads are run: `SANDSTACK_TEST_ROUNDS`, by default once.
fn rounds() -> usize {
    std::env::var("SANDSTACK_TEST_ROUNDS").map_or(1, |text| text.parse().unwrap())
}

#[test]
fn the_record_is_what_strace_sees() {
    if needs_root("following what an ordinary user may not") {
        traced("files", rounds());
    }
}

#[test]
fn the_exact_record_has_every_call_that_strace_sees() {
    if needs_root("following what an ordinary user may not") {
        let expected = traced("exact", rounds());
        assert!(!expected.transfers.is_empty());
    }
}
