//! Publishes of sessions in which commands run, and run on.

use std::cell::Cell;

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, until};

/// What a session's command runs: it does what it is told, a line of Python each.
const AGENT: &str = "import sys, os, mmap, subprocess, threading
print('ready', flush=True)
for line in sys.stdin:
    try:
        try: print(repr(eval(line)), flush=True)
        except SyntaxError: exec(line); print('done', flush=True)
    except OSError as error: print('errno', error.errno, flush=True)
";

/// A command that runs.
pub(crate) struct Agent<'r> {
    rig: &'r Rig,
    command: Value,
    lines: Cell<u64>,
}

/// The same, while nothing is asked of the gateway.
pub(crate) struct Detached {
    command: Value,
    lines: u64,
}

impl Detached {
    pub(crate) fn of<'r>(&self, rig: &'r Rig) -> Agent<'r> {
        Agent {
            rig,
            command: self.command.clone(),
            lines: Cell::new(self.lines),
        }
    }
}

impl<'r> Agent<'r> {
    pub(crate) fn detached(self) -> Detached {
        Detached {
            command: self.command,
            lines: self.lines.get(),
        }
    }

    pub(crate) fn start(rig: &'r Rig, sandbox: &str, session: &str) -> Agent<'r> {
        let request = json!({
            "sandbox_id": sandbox, "workspace_session_id": session,
            "cmd": format!("exec python3 -c \"{AGENT}\""), "tty": false,
            "keep_stdin_open": true, "yield_time_ms": 0,
        });
        let command = rig.call("exec_command", request).ok()["command_session_id"].clone();
        let agent = Agent {
            rig,
            command,
            lines: Cell::new(0),
        };
        assert_eq!(agent.line(), "ready", "python3 is needed");
        agent
    }

    /// Tells it a line, and answers what it says.
    #[track_caller]
    pub(crate) fn ask(&self, line: &str) -> String {
        let request = json!({ "command_session_id": self.command,
            "stdin": format!("{line}\n"), "yield_time_ms": 0 });
        self.rig.call("write_command_stdin", request).ok();
        self.line()
    }

    #[track_caller]
    pub(crate) fn does(&self, line: &str) {
        assert_eq!(self.ask(line), "done", "{line}");
    }

    #[track_caller]
    fn line(&self) -> String {
        let mut said = None;
        until("an answer", || {
            let request = json!({ "command_session_id": self.command,
                "start_offset": self.lines.get(), "limit": 1 });
            let lines = self.rig.call("read_command_lines", request).ok();
            let line = &lines["lines"][0];
            let whole = line["partial"] != json!(true);
            said = line["content"]
                .as_str()
                .filter(|_| whole)
                .map(str::to_owned);
            said.is_some()
        });
        self.lines.set(self.lines.get() + 1);
        said.unwrap()
    }
}

fn publish(rig: &Rig, session: &str, more: Value) -> Value {
    let mut request = json!({ "workspace_session_id": session });
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    rig.call("publish_workspace_session", request).ok()
}

fn go_on(rig: &Rig, session: &str) -> Value {
    let answer = publish(rig, session, json!({ "keep_open": true }));
    assert_eq!(answer["outcome"], "published", "{answer:#}");
    assert_eq!(
        answer["base"], answer["layer"],
        "it stays on its base: {answer:#}"
    );
    answer
}

#[test]
fn a_running_command_goes_on_with_what_it_has_open() {
    let rig = Rig::start();
    let text: String = (0..4000).map(|line| format!("{line:04}\n")).collect();
    let files: &[(&str, &[u8])] = &[
        ("text", text.as_bytes()),
        ("gone", b"g\n"),
        ("replaced", b"old\n"),
        ("left/file", b"l\n"),
        ("unchanged", b"u\n"),
    ];
    let sandbox = rig.sandbox(&rig.project("project", files));
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    let agent = Agent::start(&rig, &sandbox, &session);
    agent.does("log = open('log', 'a'); log.write('one\\n'); log.flush()");
    agent.does("os.makedirs('build/mine'); os.chdir('build')");
    agent.does("gone = open('../gone'); replaced = open('../replaced')");
    agent.does("file = open('../text', 'r+b'); mapped = mmap.mmap(file.fileno(), 0); mapped[0:4] = b'zero'");
    agent.does("deleted = open('../deleted', 'w+'); deleted.write('d'); deleted.flush(); os.remove('../deleted')");
    agent.does("left = os.open('../left', os.O_RDONLY)");
    agent.does("before = [os.fstat(f.fileno()).st_ino for f in (log, file, gone, deleted)] + [os.stat('.').st_ino]");
    rig.sh(
        &sandbox,
        &other,
        "rm gone; echo new > r && mv r replaced; rm -r left; mkdir -p build/theirs; echo t > build/theirs/t; \
         sed -i 's/^3999$/last/' text; echo others > others",
    );
    publish(&rig, &other, json!({}));

    let answer = go_on(&rig, &session);
    assert_eq!(answer["merged_paths"], json!(["text"]));
    // It is the same process with the same files.
    agent.does("log.write('two\\n'); log.flush()");
    assert_eq!(agent.ask("os.getcwd()[-6:]"), "'/build'");
    assert_eq!(agent.ask("sorted(os.listdir('.'))"), "['mine', 'theirs']");
    assert_eq!(agent.ask("open('theirs/t').read()"), "'t\\n'");
    assert_eq!(
        agent.ask("sorted(os.listdir('..'))"),
        "['build', 'log', 'others', 'replaced', 'text', 'unchanged']"
    );
    assert_eq!(
        agent.ask("mapped[0:4], mapped[-5:]"),
        "(b'zero', b'last\\n')"
    );
    agent.does("mapped[5:9] = b'fone'");
    // What others removed is there for those who have it open, and has no name.
    assert_eq!(
        agent.ask("gone.read(), os.fstat(gone.fileno()).st_nlink"),
        "('g\\n', 0)"
    );
    assert_eq!(
        agent.ask("replaced.read(), open('../replaced').read()"),
        "('old\\n', 'new\\n')"
    );
    assert_eq!(agent.ask("deleted.seek(0), deleted.read()"), "(0, 'd')");
    assert_eq!(agent.ask("os.listdir(left)"), "[]");
    assert_eq!(
        agent.ask("os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=left)"),
        "errno 2"
    );
    assert_eq!(agent.ask("[os.fstat(f.fileno()).st_ino for f in (log, file, gone, deleted)] + [os.stat('.').st_ino] == before"), "True");
    assert_eq!(agent.ask("os.path.exists('../gone')"), "False");

    // What it does from now on is what it has changed, and is published.
    let answer = go_on(&rig, &session);
    assert_eq!(answer["changed_paths"], 2, "{answer:#}");
    let fresh = rig.session(&sandbox);
    let shown = rig.sh(
        &sandbox,
        &fresh,
        "cat log; head -n 2 text; tail -n 1 text; ls",
    );
    assert_eq!(
        shown,
        "one\ntwo\nzero\nfone\nlast\nbuild\nlog\nothers\nreplaced\ntext\nunchanged\n"
    );
    agent.does("log.write('three\\n'); log.close()");
    assert_eq!(agent.ask("open('../log').read()"), "'one\\ntwo\\nthree\\n'");
    // What was left for open files goes with them.
    let request = json!({ "workspace_session_id": session, "force": true });
    rig.call("destroy_workspace_session", request).ok();
    rig.call(
        "destroy_workspace_session",
        json!({ "workspace_session_id": other, "force": true }),
    );
    rig.call("collect_garbage", json!({})).ok();
    assert_eq!(
        rig.call("verify_store", json!({})).ok()["problems"],
        json!([])
    );
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
    rig.assert_no_debris();
}

/// Writers that never stop: each line that was written is published once, whenever that is.
#[test]
fn nothing_that_is_written_meanwhile_is_lost() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    let session = rig.session(&sandbox);
    let writers = "for w in 1 2 3; do (i=0; while test ! -e stop; do i=$((i+1)); echo $w $i >> log$w; \
        echo $i > new$w; mv new$w last$w; done; echo $i > count$w) & done; wait";
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "cmd": writers, "tty": false, "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok();
    let mut layers = 0;
    for round in 0..12 {
        let other = rig.session(&sandbox);
        rig.sh(&sandbox, &other, &format!("echo {round} > others{round}"));
        publish(&rig, &other, json!({}));
        let answer = publish(&rig, &session, json!({ "keep_open": true }));
        if answer["outcome"] == "published" {
            layers += 1;
            assert_eq!(answer["base"], answer["layer"], "{answer:#}");
        }
    }
    assert!(layers > 3, "{layers}");
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "stop", "content": "" });
    rig.call("file_write", request).ok();
    let request = json!({ "command_session_id": command["command_session_id"], "stdin": "", "yield_time_ms": 30_000 });
    until("the writers' end", || {
        let ended = rig.call("write_command_stdin", request.clone());
        ended.status != 200 || ended.body["status"] == "exited"
    });
    publish(&rig, &session, json!({}));
    let fresh = rig.session(&sandbox);
    let check = "for w in 1 2 3; do n=$(cat count$w); test $n = $(wc -l < log$w) && \
        awk -v w=$w '$1 != w || $2 != NR { exit 1 }' log$w && test $n = $(cat last$w) || exit 1; done; ls others*|wc -l";
    assert_eq!(rig.sh(&sandbox, &fresh, check).trim(), "12");
}

#[test]
fn a_session_comes_onto_the_head_under_its_command() {
    for setup in [
        Setup::default(),
        Setup {
            ordinary: true,
            ..Setup::default()
        },
    ] {
        let rig = Rig::start_as(setup);
        let files: &[(&str, &[u8])] = &[("a", b"1\n2\n3\n4\n5\n"), ("b", b"b\n"), ("c", b"c\n")];
        let sandbox = rig.sandbox(&rig.project("project", files));
        let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
        let agent = Agent::start(&rig, &sandbox, &session);
        let rebase = |more: Value| {
            let mut request = json!({ "workspace_session_id": session });
            for (key, value) in more.as_object().unwrap() {
                request[key] = value.clone();
            }
            rig.call("rebase_workspace_session", request).ok()
        };
        assert_eq!(rebase(json!({}))["outcome"], "no_change");
        agent.does(
            "b = open('b').read(); mine = open('mine', 'w+'); mine.write('m\\n'); mine.flush()",
        );
        agent.does("os.mkfifo('pipe'); import socket; s = socket.socket(socket.AF_UNIX); s.bind('sock'); s.listen()");
        rig.sh(&sandbox, &session, "sed -i s/1/one/ a; echo c >> c");
        rig.sh(
            &sandbox,
            &other,
            "sed -i s/5/five/ a; echo more >> b; echo theirs > theirs",
        );
        publish(&rig, &other, json!({}));

        let dry = rebase(json!({ "dry_run": true }));
        assert_eq!(
            (&dry["outcome"], &dry["base"]),
            (&json!("dry_run"), &json!("B000001"))
        );
        let done = rebase(json!({}));
        assert_eq!(done["outcome"], "rebased", "{done:#}");
        assert_eq!(
            (&done["base"], &done["merged_paths"]),
            (&json!("L000002"), &json!(["a"])),
            "{done:#}"
        );
        let mut stale = done["stale_reads"].as_array().unwrap().iter();
        assert!(
            stale.any(|read| read["path"] == "b" && read["dependency"] == "content"),
            "{done:#}"
        );
        assert_eq!(agent.ask("open('a').read()"), "'one\\n2\\n3\\n4\\nfive\\n'");
        assert_eq!(
            agent.ask("open('theirs').read(), open('b').read() != b"),
            "('theirs\\n', True)"
        );
        agent.does("mine.write('more\\n'); mine.flush()");
        assert_eq!(agent.ask("open('mine').read()"), "'m\\nmore\\n'");
        agent.does("c = socket.socket(socket.AF_UNIX); c.connect('sock')");
        // Its changes are its own still, and no others.
        let request = json!({ "workspace_session_id": session });
        let diff = rig.call("diff_workspace_session", request).ok();
        let paths: Vec<&str> = diff["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|change| change["path"].as_str().unwrap())
            .collect();
        assert_eq!(paths, ["a", "c", "mine", "pipe", "sock"]);
        // A conflict leaves it where it is.
        let third = rig.session(&sandbox);
        rig.sh(&sandbox, &third, "echo theirs > c; echo theirs >> b");
        publish(&rig, &third, json!({}));
        let conflict = rebase(json!({ "markers": true }));
        assert_eq!(
            (
                &conflict["outcome"],
                &conflict["base"],
                &conflict["conflicts"][0]["path"]
            ),
            (&json!("conflict"), &json!("L000002"), &json!("c"))
        );
        assert_eq!(agent.ask("open('c').read()"), "'c\\nc\\n'");
        agent.does("with open('c', 'w') as f: f.write('theirs\\n')");
        assert_eq!(rebase(json!({}))["outcome"], "rebased");
        agent.does("mine.write('last\\n'); mine.close()");
        let answer = publish(&rig, &session, json!({ "grace_s": 1 }));
        assert_eq!(answer["outcome"], "published", "{answer:#}");
        let fresh = rig.session(&sandbox);
        assert_eq!(
            rig.sh(&sandbox, &fresh, "cat a mine; ls"),
            "one\n2\n3\n4\nfive\nm\nmore\nlast\na\nb\nc\nmine\npipe\ntheirs\n"
        );
    }
}

/// Parents that watch their children do not see that they stood still, nor does a command that was
/// stopped before go on.
#[test]
fn standing_still_is_not_seen() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    let session = rig.session(&sandbox);
    let agent = Agent::start(&rig, &sandbox, &session);
    let child = "import sys, time\\nfor line in sys.stdin: print(line.strip(), flush=True)";
    agent.does(&format!(
        "child = subprocess.Popen([sys.executable, '-c', '{child}'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)"
    ));
    agent.does("import signal; stopped = subprocess.Popen(['sleep', '1000']); stopped.send_signal(signal.SIGSTOP)");
    agent.does("seen = []; import time");
    // Waits as a shell with job control does.
    agent.does("watch = threading.Thread(target=lambda: seen.append(os.waitpid(child.pid, os.WUNTRACED)), daemon=True)");
    assert_eq!(agent.ask("watch.start()"), "None");
    assert_eq!(
        agent.ask("os.waitpid(stopped.pid, os.WUNTRACED)[1] & 0xff"),
        "127"
    );
    for round in 0..20 {
        agent.does(&format!("with open('file', 'w') as f: f.write('{round}')"));
        go_on(&rig, &session);
    }
    assert_eq!(agent.ask("seen"), "[]");
    assert_eq!(
        agent.ask("open('/proc/%d/stat' % stopped.pid).read().split()[2]"),
        "'T'"
    );
    agent.does("child.stdin.write(b'hello\\n'); child.stdin.flush()");
    assert_eq!(agent.ask("child.stdout.readline()"), "b'hello\\n'");
    agent.does("stopped.kill(); child.kill()");
}

/// A conflict changes nothing for those who work on, and a killed gateway leaves nobody stopped.
#[test]
fn a_rejected_publish_and_a_killed_gateway_let_all_go_on() {
    let mut rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "cmd": "i=0; while :; do i=$((i+1)); echo $i > ticks; sleep 0.01; done", "tty": false, "yield_time_ms": 0 });
    rig.call("exec_command", request).ok();
    let ticks = |rig: &Rig| {
        let request =
            json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "ticks" });
        let read = rig.call("file_read", request);
        let text = read.body["content"]
            .as_str()
            .unwrap_or_default()
            .trim()
            .to_owned();
        text.parse::<u64>().unwrap_or_default()
    };
    let goes_on = |rig: &Rig| {
        let at = ticks(rig);
        until("the command to go on", || ticks(rig) > at);
    };
    rig.sh(&sandbox, &session, "echo mine > a");
    rig.sh(&sandbox, &other, "echo theirs > a");
    publish(&rig, &other, json!({}));
    let answer = publish(&rig, &session, json!({ "keep_open": true }));
    assert_eq!(answer["outcome"], "conflict", "{answer:#}");
    goes_on(&rig);
    // Resolved by hand; the dry run tells what comes of it.
    rig.sh(&sandbox, &session, "echo theirs > a");
    let dry = publish(
        &rig,
        &session,
        json!({ "keep_open": true, "dry_run": true }),
    );
    assert_eq!(dry["outcome"], "dry_run", "{dry:#}");
    goes_on(&rig);
    go_on(&rig, &session);
    goes_on(&rig);
    // Killed in the middle of publishes, at whatever point.
    for _ in 0..5 {
        let socket = rig.connect().unwrap();
        let body = json!({ "workspace_session_id": session, "keep_open": true }).to_string();
        let token = rig.token(sandstack_api::Authority::Runtime);
        use std::io::Write;
        write!(&socket, "POST /v1/publish_workspace_session HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
            Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(15));
        rig.kill_worker();
        // A killed gateway takes the views along, and what ran in them; the work is there.
        rig.sh(&sandbox, &session, "cat ticks; echo again > ticks");
    }
    rig.sh(&sandbox, &session, "echo last > ticks");
    go_on(&rig, &session);
    assert_eq!(
        rig.call("verify_store", json!({})).ok()["problems"],
        json!([])
    );
}
