//! Signals, sizes and lists of commands.

use serde_json::{Value, json};

use crate::rig::{Rig, until};

fn listed(rig: &Rig, request: &Value) -> Vec<(String, String)> {
    let answer = rig.call("list_commands", request.clone()).ok();
    let commands = answer["commands"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    commands
        .iter()
        .map(|command| (text(&command["cmd"]), text(&command["status"])))
        .collect()
}

#[test]
fn a_signal_reaches_every_process_of_a_command() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    rig.run(&sandbox, &other, "true");
    let request = json!({
        "sandbox_id": sandbox,
        "workspace_session_id": session,
        "cmd": "trap 'echo hung up; exit 5' HUP; echo ready; sleep 1000 & wait",
        "tty": false,
        "yield_time_ms": 0,
    });
    let command = rig.call("exec_command", request).ok();
    let id = &command["command_session_id"];
    until("the trap", || {
        let request = json!({ "command_session_id": id });
        let lines = rig.call("read_command_lines", request).ok();
        lines["total_lines"] == 1
    });
    let all = json!({ "sandbox_id": sandbox });
    let running = listed(&rig, &all);
    assert_eq!(running[0].1, "running", "{running:?}");
    assert_eq!(running[1].0, "true", "{running:?}");
    let of_session = json!({ "sandbox_id": sandbox, "workspace_session_id": session });
    assert_eq!(listed(&rig, &of_session).len(), 1);

    let signal = |signal: &str| {
        let request = json!({ "command_session_id": id, "signal": signal });
        rig.call("signal_command", request)
    };
    signal("NOPE").refused("invalid_request");
    let answer = signal("hup").ok();
    assert!(answer["processes"].as_u64() >= Some(2), "{answer}");
    let request = json!({ "command_session_id": id, "yield_time_ms": 30_000 });
    let ended = rig.call("write_command_stdin", request).ok();
    assert_eq!(ended["exit_code"], 5, "{ended:#}");
    assert_eq!(ended["output"]["content"], "ready\nhung up\n");
    assert!(signal("HUP").refused("conflict").contains("has ended"));
    assert_eq!(listed(&rig, &of_session)[0].1, "exited");
}

#[test]
fn a_terminal_has_the_size_it_is_given() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let exec = |cmd: &str, tty: bool| {
        let request = json!({
            "sandbox_id": sandbox,
            "workspace_session_id": session,
            "cmd": cmd,
            "tty": tty,
            "keep_stdin_open": !tty,
            "yield_time_ms": 0,
        });
        rig.call("exec_command", request).ok()["command_session_id"].clone()
    };
    let id = exec("stty -echo; stty size; read line; stty size", true);
    let lines = || {
        let request = json!({ "command_session_id": id });
        let answer = rig.call("read_command_lines", request).ok();
        let lines = answer["lines"].as_array().unwrap();
        lines
            .iter()
            .map(|line| line["content"].as_str().unwrap().trim_end().to_owned())
            .collect::<Vec<_>>()
    };
    until("the first size", || lines() == ["24 80"]);
    let resize = |id: &Value, rows: u32, cols: u32| {
        let request = json!({ "command_session_id": id, "rows": rows, "cols": cols });
        rig.call("resize_command", request)
    };
    resize(&id, 0, 80).refused("invalid_request");
    resize(&id, 70_000, 80).refused("invalid_request");
    resize(&id, 50, 132).ok();
    let request = json!({ "command_session_id": id, "stdin": "\n", "yield_time_ms": 30_000 });
    rig.call("write_command_stdin", request).ok();
    assert_eq!(lines(), ["24 80", "50 132"]);
    let pipes = exec("cat", false);
    assert!(
        resize(&pipes, 50, 132)
            .refused("conflict")
            .contains("no terminal")
    );
}

#[test]
fn output_is_read_byte_for_byte_whatever_its_lines() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let request = json!({
        "sandbox_id": sandbox,
        "workspace_session_id": session,
        "cmd": "head -c 700000 /dev/zero | tr '\\0' x; printf '\\nend\\377'",
        "tty": false,
        "yield_time_ms": 60_000,
    });
    let command = rig.call("exec_command", request).ok();
    let read = |start: u64| {
        let request =
            json!({ "command_session_id": command["command_session_id"], "start_byte": start });
        rig.call("read_command_lines", request).ok()
    };
    let (mut at, mut said) = (0, Vec::new());
    loop {
        let answer = read(at);
        let chunk: sandstack_api::runtime::OutputChunk =
            serde_json::from_value(answer["chunk"].clone()).unwrap();
        assert_eq!(chunk.start_byte, at);
        let bytes = chunk.text.bytes().unwrap();
        if bytes.is_empty() {
            break;
        }
        said.extend(bytes);
        at = chunk.next_byte;
    }
    let mut expected = vec![b'x'; 700_000];
    expected.extend(b"\nend\xff");
    assert!(said == expected, "{} bytes", said.len());
    let request =
        json!({ "command_session_id": command["command_session_id"], "start_byte": 0, "limit": 3 });
    rig.call("read_command_lines", request)
        .refused("invalid_request");
}
