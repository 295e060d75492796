//! A gateway that is killed while commands run: they wait, and go on with the next one.

use serde_json::{Value, json};

use crate::live::Agent;
use crate::rig::{Rig, Setup, until};

/// Over io_uring views cannot be taken up again.
const CONFIG: &str = "[views]\ntransport = \"fuse\"\n";

fn rigs() -> impl Iterator<Item = Rig> {
    [false, true].into_iter().map(|ordinary| {
        Rig::start_as(Setup {
            config: CONFIG,
            ordinary,
            ..Setup::default()
        })
    })
}

#[test]
fn a_command_goes_on_over_a_killed_gateway() {
    for mut rig in rigs() {
        let files: &[(&str, &[u8])] = &[("a", b"a\n"), ("dir/b", b"b\n")];
        let sandbox = rig.sandbox(&rig.project("project", files));
        let session = rig.session(&sandbox);
        let mut agent = Agent::start(&rig, &sandbox, &session).detached();
        for round in 0..3 {
            let told = agent.of(&rig);
            told.does("log = open('log', 'a+'); log.write('x\\n'); log.flush()");
            told.does("os.makedirs('d', exist_ok=True); os.chdir('d')");
            told.does(
                "gone = open('gone', 'w+'); gone.write('g'); gone.flush(); os.remove('gone')",
            );
            told.does("file = open('../dir/b', 'r+b'); mapped = mmap.mmap(file.fileno(), 0)");
            told.does("before = [os.fstat(f.fileno()).st_ino for f in (log, gone, file)]");
            agent = told.detached();
            rig.kill_worker();
            let told = agent.of(&rig);
            assert_eq!(told.ask("os.getcwd()[-2:]"), "'/d'", "round {round}");
            told.does("log.write('y\\n'); log.flush()");
            assert_eq!(told.ask("gone.seek(0), gone.read()"), "(0, 'g')");
            told.does("mapped[0:1] = b'm'; mapped.flush()");
            assert_eq!(
                told.ask("[os.fstat(f.fileno()).st_ino for f in (log, gone, file)] == before"),
                "True"
            );
            told.does("log.close(); gone.close(); mapped.close(); file.close(); os.chdir('..')");
            agent = told.detached();
        }
        assert_eq!(
            rig.sh(&sandbox, &session, "cat log dir/b; ls"),
            "x\ny\nx\ny\nx\ny\nm\na\nd\ndir\nlog\n"
        );
        // What it did is its own, before and after.
        let request = json!({ "sandbox_id": sandbox, "path": "log" });
        let seen = rig.call("file_activity", request).ok();
        assert!(
            seen["rows"]
                .as_array()
                .unwrap()
                .iter()
                .any(|row| row["command_session_id"].is_string()),
            "{seen:#}"
        );
        let request = json!({ "workspace_session_id": session, "keep_open": true });
        let published = rig.call("publish_workspace_session", request).ok();
        assert_eq!(published["outcome"], "published", "{published:#}");
        let agent = agent.of(&rig);
        agent.does("with open('after', 'w') as f: f.write('a')");
        let request = json!({ "workspace_session_id": session, "grace_s": 1 });
        let published = rig.call("publish_workspace_session", request).ok();
        assert_eq!(
            (&published["outcome"], &published["changed_paths"]),
            (&json!("published"), &json!(1))
        );
        rig.call("destroy_sandbox", json!({ "sandbox_id": sandbox }))
            .ok();
        rig.assert_no_debris();
    }
}

/// Each step is done once, at whatever instant the gateway is killed.
#[test]
fn no_request_is_lost_or_done_twice() {
    let mut rig = Rig::start_as(Setup {
        config: CONFIG,
        ..Setup::default()
    });
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    let session = rig.session(&sandbox);
    let script = "import os, sys
def worker(name):
    os.mkdir(name); os.chdir(name)
    log = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    i = 0
    while not os.path.exists('../stop'):
        os.write(log, b'%d\\n' % i)
        f = os.open('lock', os.O_CREAT | os.O_EXCL); os.close(f)
        os.mkdir('dir'); os.symlink('x', 'dir/s'); os.link('lock', 'dir/l')
        os.rename('dir', 'moved')
        os.setxattr('moved', 'user.a', b'%d' % i, os.XATTR_CREATE)
        os.removexattr('moved', 'user.a')
        os.remove('moved/s'); os.remove('moved/l'); os.rmdir('moved'); os.remove('lock')
        i += 1
    open('count', 'w').write(str(i))
for n in ('one', 'two'):
    if os.fork() == 0:
        worker(n); os._exit(0)
codes = [os.wait()[1] for _ in range(2)]
sys.exit(max(codes) >> 8)
";
    rig.call(
        "file_write",
        json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "path": "script.py", "content": script }),
    )
    .ok();
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "cmd": "python3 script.py", "tty": false, "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok();
    let lines = |rig: &Rig| -> usize {
        let request =
            json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "one/log" });
        let read = rig.call("file_read", request);
        read.body["content"]
            .as_str()
            .unwrap_or_default()
            .lines()
            .count()
    };
    for round in 0..8 {
        let at = lines(&rig);
        until("the command to go on", || lines(&rig) > at + 3);
        std::thread::sleep(std::time::Duration::from_millis(3 + 7 * round));
        rig.kill_worker();
    }
    rig.call(
        "file_write",
        json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "path": "stop", "content": "" }),
    )
    .ok();
    let mut ended = Value::Null;
    until("the command's end", || {
        let request = json!({ "command_session_id": command["command_session_id"] });
        ended = rig.call("read_command_lines", request).ok();
        ended["status"] != "running"
    });
    assert_eq!(ended["status"], "exited", "{ended:#}");
    let check = "for w in one two; do test $(cat $w/count) = $(wc -l < $w/log) && \
        awk '$1 != NR - 1 { exit 1 }' $w/log && test $(ls $w | wc -l) = 2 || exit 1; done; echo right";
    assert_eq!(
        rig.sh(&sandbox, &session, check).trim(),
        "right",
        "{ended:#}"
    );
}
