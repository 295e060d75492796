//! Commands: their input, output and end.

use serde_json::{Value, json};

use crate::rig::{Rig, until};

struct Room {
    rig: Rig,
    sandbox: String,
    session: String,
}

impl Room {
    fn open() -> Room {
        let rig = Rig::start();
        let project = rig.project("project", &[("a", b"one\n")]);
        let sandbox = rig.sandbox(&project);
        let session = rig.session(&sandbox);
        Room {
            rig,
            sandbox,
            session,
        }
    }

    fn exec(&self, mut request: Value) -> Value {
        request["sandbox_id"] = json!(self.sandbox);
        request["workspace_session_id"] = json!(self.session);
        self.rig.call("exec_command", request).ok()
    }

    fn tell(&self, command: &Value, mut request: Value) -> Value {
        request["command_session_id"] = command["command_session_id"].clone();
        self.rig.call("write_command_stdin", request).ok()
    }
}

#[test]
fn a_conversation_over_a_terminal() {
    let room = Room::open();
    let shell = room.exec(
        json!({ "cmd": "stty -echo; read name; echo \"hello $name\"; cat", "yield_time_ms": 0 }),
    );
    assert_eq!(shell["status"], "running");
    let read = || {
        let request = json!({ "command_session_id": shell["command_session_id"] });
        room.rig.call("read_command_lines", request).ok()
    };
    room.tell(&shell, json!({ "stdin": "world\n", "yield_time_ms": 0 }));
    until("the greeting", || {
        read()["lines"].to_string().contains("hello world")
    });
    // ^D of a terminal.
    let ended = room.tell(
        &shell,
        json!({ "stdin": "more\n\u{4}", "yield_time_ms": 30_000 }),
    );
    assert_eq!(
        (&ended["status"], &ended["exit_code"]),
        (&json!("exited"), &json!(0)),
        "{ended:#}"
    );
    let request = json!({ "command_session_id": shell["command_session_id"], "stdin": "late" });
    let late = room.rig.call("write_command_stdin", request);
    assert!(late.refused("conflict").contains("has ended"));
}

#[test]
fn pipes_keep_output_and_errors_apart() {
    let room = Room::open();
    let cmd = "cat; echo wrong >&2; exit 7";
    let done =
        room.exec(json!({ "cmd": cmd, "tty": false, "stdin": "in\nput", "yield_time_ms": 30_000 }));
    assert_eq!(done["output"]["content"], "in\nput");
    assert_eq!(done["stderr"]["content"], "wrong\n");
    assert_eq!(
        (&done["status"], &done["exit_code"]),
        (&json!("exited"), &json!(7))
    );
    let lines = json!({ "command_session_id": done["command_session_id"], "stream": "stderr" });
    assert_eq!(
        room.rig.call("read_command_lines", lines).ok()["lines"][0]["content"],
        "wrong"
    );
    let open = room.exec(json!({ "cmd": "cat; echo end", "tty": false, "keep_stdin_open": true, "yield_time_ms": 0 }));
    room.tell(&open, json!({ "stdin": "part ", "yield_time_ms": 0 }));
    let ended = room.tell(
        &open,
        json!({ "stdin": "whole\n", "eof": true, "yield_time_ms": 30_000 }),
    );
    assert_eq!(ended["status"], "exited");
    let lines = json!({ "command_session_id": open["command_session_id"] });
    let lines = room.rig.call("read_command_lines", lines).ok();
    assert_eq!(lines["lines"][0]["content"], "part whole", "{lines:#}");
}

#[test]
fn ends_of_all_kinds_are_told_apart() {
    let room = Room::open();
    let killed = room.exec(json!({ "cmd": "kill -9 $$", "yield_time_ms": 30_000 }));
    assert_eq!(
        (&killed["status"], &killed["signal"]),
        (&json!("signalled"), &json!(9))
    );
    let cmd = "(trap '' TERM HUP; sleep 1000) & sleep 1000";
    let late = room.exec(json!({ "cmd": cmd, "timeout_ms": 100, "yield_time_ms": 30_000 }));
    assert_eq!(late["status"], "timed_out", "{late:#}");
    let missing = room.exec(json!({ "cmd": "nosuchprogram", "yield_time_ms": 30_000 }));
    assert_eq!(missing["exit_code"], 127);
    let events = room
        .rig
        .call("events", json!({ "name": "command.exited" }))
        .ok();
    assert_eq!(events["events"].as_array().unwrap().len(), 3, "{events:#}");
}

#[test]
fn a_job_left_behind_is_shown_and_ends_with_its_session() {
    let room = Room::open();
    let number = std::process::id();
    let cmd = format!(
        "setsid sh -c 'while sleep 0.{number}; do echo x >> beat; done' >/dev/null 2>&1 & while [ ! -e beat ]; do :; done; echo started"
    );
    let done = room.exec(json!({ "cmd": cmd, "yield_time_ms": 30_000 }));
    assert_eq!(done["status"], "exited", "{done:#}");
    let names = done["survivors"].to_string();
    assert!(names.contains("\"sh\""), "{done:#}");
    let beats = || {
        let request = json!({ "sandbox_id": room.sandbox, "workspace_session_id": room.session, "path": "beat" });
        room.rig.call("file_read", request).body["size"]
            .as_u64()
            .unwrap_or(0)
    };
    let now = beats();
    until("another beat", || beats() > now);
    // What it does is still its command's.
    let request = json!({ "sandbox_id": room.sandbox, "path": "beat", "kinds": ["write"] });
    for row in room.rig.call("file_activity", request).ok()["rows"]
        .as_array()
        .unwrap()
    {
        assert_eq!(
            row["command_session_id"], done["command_session_id"],
            "{row:#}"
        );
    }
    let request = json!({ "workspace_session_id": room.session, "force": true });
    room.rig.call("destroy_workspace_session", request).ok();
    let left = crate::rig::processes_with(&format!("sleep 0.{number}"));
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_command_has_its_environment_and_directory() {
    let room = Room::open();
    let env = json!({ "GREETING": "hi there", "HOME": "/tmp" });
    let request = json!({ "cmd": "echo $GREETING; echo $HOME; pwd", "env": env, "cwd": "/", "tty": false, "yield_time_ms": 30_000 });
    assert_eq!(
        room.exec(request)["output"]["content"],
        "hi there\n/tmp\n/\n"
    );
    let wrong = json!({ "sandbox_id": room.sandbox, "workspace_session_id": room.session, "cmd": "true", "cwd": "nowhere" });
    assert!(
        room.rig
            .call("exec_command", wrong)
            .refused("invalid_request")
            .contains("nowhere")
    );
    for (field, value) in [
        ("cmd", json!("")),
        ("cmd", json!("a\0b")),
        ("yield_time_ms", json!(600_001)),
        ("timeout_ms", json!(0)),
        ("env", json!({ "": "x" })),
    ] {
        let mut request = json!({ "sandbox_id": room.sandbox, "cmd": "true" });
        request[field] = value.clone();
        room.rig
            .call("exec_command", request)
            .refused("invalid_request");
    }
    let sessions = room
        .rig
        .call(
            "list_workspace_sessions",
            json!({ "sandbox_id": room.sandbox }),
        )
        .ok();
    assert_eq!(
        sessions["sessions"].as_array().unwrap().len(),
        1,
        "no session of a refused command is left"
    );
}

#[test]
fn long_output_is_read_line_by_line() {
    let room = Room::open();
    let done = room.exec(json!({ "cmd": "seq 1 50000", "tty": false, "yield_time_ms": 60_000 }));
    let output = &done["output"];
    assert_eq!(
        (&output["total_lines"], &output["truncated"]),
        (&json!(50_000), &json!(true)),
        "{output:#}"
    );
    let mut next = 0;
    let mut seen = 0;
    while next < 50_000 {
        let request = json!({ "command_session_id": done["command_session_id"], "start_offset": next, "limit": 1000 });
        let page = room.rig.call("read_command_lines", request).ok();
        for line in page["lines"].as_array().unwrap() {
            seen += 1;
            assert_eq!(line["content"], seen.to_string());
        }
        next = page["next_offset"].as_u64().unwrap();
    }
    assert_eq!(seen, 50_000);
}

#[test]
fn a_command_of_no_session_publishes_what_it_did() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let exec = |cmd: &str| {
        let request =
            json!({ "sandbox_id": sandbox, "cmd": cmd, "tty": false, "yield_time_ms": 60_000 });
        rig.call("exec_command", request).ok()
    };
    let done = exec("echo two >> a; cat a");
    assert_eq!(done["output"]["content"], "one\ntwo\n");
    assert_eq!(done["publish"]["outcome"], "published", "{done:#}");
    assert_eq!(done["publish"]["session_open"], false);
    assert_eq!(exec("cat a")["publish"]["outcome"], "no_change");
    // What the head has meanwhile is in its way: it is kept.
    let request = json!({ "sandbox_id": sandbox, "cmd": "echo mine > a; read x; exit 3", "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok();
    let session = command["workspace_session_id"].clone();
    let in_session = json!({ "sandbox_id": sandbox, "path": "a", "workspace_session_id": session });
    until("its change", || {
        rig.call("file_read", in_session.clone()).ok()["content"] == "mine\n"
    });
    rig.call(
        "file_write",
        json!({ "sandbox_id": sandbox, "path": "a", "content": "head\n" }),
    )
    .ok();
    let request = json!({ "command_session_id": command["command_session_id"], "stdin": "\n", "yield_time_ms": 60_000 });
    let ended = rig.call("write_command_stdin", request).ok();
    assert_eq!(
        (&ended["publish"]["outcome"], &ended["exit_code"]),
        (&json!("conflict"), &json!(3)),
        "{ended:#}"
    );
    assert_eq!(rig.call("file_read", in_session).ok()["content"], "mine\n");
    let conflict = &ended["publish"]["conflicts"][0];
    assert_eq!(
        (&conflict["path"], &conflict["kind"]),
        (&json!("a"), &json!("content"))
    );
    assert_eq!(
        (
            &ended["workspace_session_id"],
            &ended["publish"]["session_open"]
        ),
        (&session, &json!(true))
    );
    let session = session.as_str().unwrap();
    assert_eq!(rig.sh(&sandbox, session, "cat a"), "mine\n");
    // An ordinary session from now on: it takes what the head has, goes on there, and publishes.
    let record = rig
        .call(
            "inspect_workspace_session",
            json!({ "workspace_session_id": session }),
        )
        .ok();
    assert_eq!(record["session"]["automatic"], false, "{record:#}");
    rig.sh(&sandbox, session, "echo head > a");
    let request = json!({ "workspace_session_id": session, "keep_open": true });
    let taken = rig.call("publish_workspace_session", request).ok();
    assert_eq!(
        (&taken["outcome"], &taken["base"]),
        (&json!("no_change"), &json!("L000003")),
        "{taken:#}"
    );
    rig.sh(&sandbox, session, "echo mine >> a");
    let request = json!({ "workspace_session_id": session });
    let resolved = rig.call("publish_workspace_session", request).ok();
    assert_eq!(resolved["outcome"], "published", "{resolved:#}");
    assert_eq!(exec("cat a")["output"]["content"], "head\nmine\n");
}
