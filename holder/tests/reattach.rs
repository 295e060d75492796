//! Gateways that go and come back.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rig::{PATIENCE, Rig, Who, tagged, until};
use sandstack_holder::client::Notice;
use sandstack_holder::protocol::*;
use sandstack_holder::{Client, Error, evidence};

both!(
    what_happened_without_a_gateway_is_in_the_next_hello,
    a_newer_gateway_replaces_an_older_one,
    a_killed_holder_takes_its_sessions_along,
    nonsense_on_the_socket_harms_nobody,
    a_gateway_that_does_not_read_holds_nothing_up,
);

fn what_happened_without_a_gateway_is_in_the_next_hello(mut rig: Rig) {
    rig.session("s");
    rig.spawn(rig.shell(
        "s",
        "ends",
        "echo out; until [ -e go ]; do sleep 0.01; done; exit 9",
    ));
    let running = rig.spawn(rig.terminal("s", "runs", "echo ready; read line; echo got:$line"));
    rig.spawn(rig.shell("s", "ended", "exit 4"));
    rig.exit("ended");
    // The gateway goes; one command ends without it.
    rig.reconnect();
    let hello = rig.client().hello().clone();
    assert_eq!(
        (hello.sandbox_id.as_str(), hello.holder_pid),
        ("test", rig.holder.id() as i32)
    );
    assert_eq!(hello.sessions.len(), 1);
    let state = |hello: &HelloReply, id: &str| {
        hello
            .commands
            .iter()
            .find(|c| c.command_id == id)
            .map(|c| c.state.clone())
    };
    assert_eq!(state(&hello, "runs"), Some(CommandState::Running(running)));
    assert!(matches!(
        state(&hello, "ended"),
        Some(CommandState::Exited(ExitRecord {
            status: ExitStatus::Exited { code: 4 },
            ..
        }))
    ));
    rig.disconnect();
    std::fs::write(rig.view("s").join("go"), "").unwrap();
    until("the evidence", || {
        evidence::read(&rig.out("ends")).unwrap().is_some()
    });
    rig.reconnect();
    let hello = rig.client().hello().clone();
    let Some(CommandState::Exited(record)) = state(&hello, "ends") else {
        panic!("{hello:?}");
    };
    assert_eq!(record.status, ExitStatus::Exited { code: 9 });
    assert_eq!(evidence::read(&rig.out("ends")).unwrap(), Some(record));
    // The other goes on with the new gateway.
    rig.client().write_stdin("runs", b"hello\n", false).unwrap();
    assert!(rig.outcome("runs").text().contains("got:hello"));
    for id in ["ends", "runs", "ended"] {
        rig.client()
            .done(&Request::Forget {
                command_id: id.to_owned(),
            })
            .unwrap();
    }
    rig.reconnect();
    assert_eq!(rig.client().hello().commands, []);
}

fn a_newer_gateway_replaces_an_older_one(rig: Rig) {
    rig.session("s");
    let (newer, _notices) = rig.connect();
    assert_eq!(newer.hello().sessions.len(), 1);
    let old = rig.client().request(&Request::ListSessions, &[]);
    assert!(matches!(old, Err(Error::Disconnected)), "{old:?}");
    assert!(newer.request(&Request::ListSessions, &[]).is_ok());
    // A connection that says nothing replaces nobody.
    let silent = UnixStream::connect(rig.socket()).unwrap();
    assert!(newer.request(&Request::ListSessions, &[]).is_ok());
    drop(silent);
}

#[test]
fn requests_that_wait_are_told_when_the_connection_ends() {
    let Some(mut rig) = Rig::start(Who::Nobody, "requests_that_wait_are_told") else {
        return;
    };
    let (client, notices) = rig.connect();
    let sent = client.request(&Request::ListSessions, &[]);
    assert!(sent.is_ok());
    rig.disconnect();
    // SAFETY: a call without pointers, on a child of ours that has not been waited for.
    unsafe { libc::kill(rig.holder.id() as i32, libc::SIGSTOP) };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.request(&Request::ListSessions, &[]));
        // SAFETY: as above.
        unsafe { libc::kill(rig.holder.id() as i32, libc::SIGKILL) };
        assert!(matches!(waiting.join().unwrap(), Err(Error::Disconnected)));
    });
    loop {
        match notices.recv_timeout(PATIENCE).unwrap() {
            Notice::Ended(_) => break,
            Notice::Event(_) => {}
        }
    }
    assert!(matches!(
        client.request(&Request::ListSessions, &[]),
        Err(Error::Disconnected)
    ));
    rig.holder.wait().unwrap();
}

fn a_killed_holder_takes_its_sessions_along(mut rig: Rig) {
    rig.session("s");
    let tag = rig.tag("orphan");
    rig.spawn(rig.shell(
        "s",
        "c",
        &format!(
            "echo kept; setsid bash -c 'exec -a {tag}-x sleep 1000' & exec -a {tag} sleep 1000"
        ),
    ));
    until("both", || tagged(&tag).len() == 2);
    until("its output", || {
        rig.reader("c").totals(Stream::Stdout).unwrap().total_bytes == 5
    });
    rig.holder.kill().unwrap();
    rig.holder.wait().unwrap();
    until("the end of all", || tagged(&tag).is_empty());
    // What it had written is there, and its socket does not stop the next holder.
    assert_eq!(
        rig.reader("c").tail(Stream::Stdout, 100).unwrap().bytes,
        b"kept\n"
    );
    assert_eq!(evidence::read(&rig.out("c")).unwrap(), None);
    rig.holder = rig.command(&rig.socket(), &rig.run_dir()).spawn().unwrap();
    rig.reconnect();
    assert_eq!(rig.client().hello().sessions, []);
    rig.session("s");
    assert_eq!(rig.sh("s", "echo again").text(), "again\n");
}

fn nonsense_on_the_socket_harms_nobody(rig: Rig) {
    rig.session("s");
    let frame = |json: &str| [&(json.len() as u32).to_le_bytes()[..], json.as_bytes()].concat();
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        u32::MAX.to_le_bytes().to_vec(),
        frame("{"),
        frame("{\"id\":1,\"fds\":3,\"request\":{\"op\":\"shutdown\"}}"),
        frame("{\"id\":1,\"request\":{\"op\":\"shutdown\"}}"),
        frame("{\"id\":1,\"request\":{\"op\":\"no_such\"}}"),
        frame("{\"id\":1,\"request\":{\"op\":\"hello\",\"protocol_version\":1,\"more\":2}}"),
    ] {
        let mut socket = UnixStream::connect(rig.socket()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        socket.write_all(&bytes).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Cut off, or refused by a sentence and then cut off.
        let _ = socket.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || text.contains("\"Err\""), "{text}");
    }
    // Many that say nothing do not keep others out.
    let strangers: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(rig.socket()).unwrap())
        .collect();
    let mut old = UnixStream::connect(rig.socket()).unwrap();
    old.write_all(&frame(
        "{\"id\":7,\"request\":{\"op\":\"hello\",\"protocol_version\":9999}}",
    ))
    .unwrap();
    let mut answer = vec![0; 4096];
    let length = old.read(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer[4..length]).into_owned();
    assert!(
        text.contains("version_mismatch") && text.contains("9999"),
        "{text}"
    );
    drop(strangers);
    assert_eq!(rig.sh("s", "echo fine").text(), "fine\n");
}

fn a_gateway_that_does_not_read_holds_nothing_up(mut rig: Rig) {
    rig.session("s");
    rig.disconnect();
    // This one says hello and then never reads.
    let mut deaf = UnixStream::connect(rig.socket()).unwrap();
    let hello = format!(
        "{{\"id\":1,\"request\":{{\"op\":\"hello\",\"protocol_version\":{}}}}}",
        PROTOCOL_VERSION
    );
    deaf.write_all(&[&(hello.len() as u32).to_le_bytes()[..], hello.as_bytes()].concat())
        .unwrap();
    let script = Bytes64("for i in $(seq 300); do echo $i; sleep 0.001; done");
    for n in 0..20 {
        let spawn = format!(
            "{{\"id\":{},\"request\":{{\"op\":\"spawn\",\"command_id\":\"c{n}\",\"session_id\":\"s\",\"program\":{{\"shell\":\"{}\"}},\"cwd\":\"\",\"env\":[],\"stdio\":\"pipes\",\"dir\":\"{}\",\"transcript_limit\":1000000}}}}",
            n + 2,
            script.text(),
            Bytes64(rig.out(&format!("c{n}")).to_str().unwrap()).text(),
        );
        deaf.write_all(&[&(spawn.len() as u32).to_le_bytes()[..], spawn.as_bytes()].concat())
            .unwrap();
    }
    until("all ends", || {
        (0..20).all(|n| {
            evidence::read(&rig.out(&format!("c{n}")))
                .unwrap()
                .is_some()
        })
    });
    rig.reconnect();
    let commands = &rig.client().hello().commands;
    assert_eq!(commands.len(), 20);
    assert!(
        commands
            .iter()
            .all(|c| matches!(c.state, CommandState::Exited(_)) && c.streams[0].total_lines == 300)
    );
}

/// Text as a byte string of the protocol.
struct Bytes64<'a>(&'a str);

impl Bytes64<'_> {
    fn text(&self) -> String {
        let json = serde_json::to_string(&sandstack_holder::Bytes::from(self.0)).unwrap();
        json.trim_matches('"').to_owned()
    }
}

#[test]
fn a_mismatch_of_versions_is_told_apart() {
    // A holder of another version, as far as the first reply goes.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let _watchdog = rig::Watchdog::new(
        "a_mismatch_of_versions_is_told_apart",
        Duration::from_secs(60),
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = [0; 1024];
            let length = socket.read(&mut asked).unwrap();
            assert!(length > 4);
            let refusal = Refusal::VersionMismatch {
                ours: 77,
                theirs: PROTOCOL_VERSION,
            };
            let said =
                serde_json::json!({"reply": {"id": 1, "result": {"Err": refusal}}}).to_string();
            socket
                .write_all(&[&(said.len() as u32).to_le_bytes()[..], said.as_bytes()].concat())
                .unwrap();
        });
        let answer = Client::connect(&path, |_| {});
        assert!(
            matches!(
                answer,
                Err(Error::VersionMismatch {
                    ours: PROTOCOL_VERSION,
                    theirs: 77
                })
            ),
            "{answer:?}"
        );
    });
}
