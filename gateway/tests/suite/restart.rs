//! A gateway that is killed, and what its sandboxes are after that.

use serde_json::{Value, json};

use crate::rig::{Rig, until};

#[test]
fn work_survives_a_killed_gateway() {
    let mut rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n"), ("dir/b", b"b\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(
        &sandbox,
        &session,
        "echo two >> a; mkdir new; echo n > new/file; rm dir/b; ln -s a link",
    );
    let before = rig.sh(&sandbox, &session, "stat -c '%n %i %s %a' a new new/file");
    for _ in 0..2 {
        rig.kill_worker();
        until("the sandbox", || {
            let inspected = rig
                .call("inspect_sandbox", json!({ "sandbox_id": sandbox }))
                .ok();
            inspected["sandbox"]["state"] == "ready"
        });
        let after = rig.sh(&sandbox, &session, "stat -c '%n %i %s %a' a new new/file");
        assert_eq!(after, before, "inode numbers and sizes are the same");
    }
    let seen = rig.sh(&sandbox, &session, "cat a new/file; readlink link; ls dir");
    assert_eq!(seen, "one\ntwo\nn\na\n");
    let published = rig
        .call(
            "publish_workspace_session",
            json!({ "workspace_session_id": session }),
        )
        .ok();
    assert_eq!(published["outcome"], "published");
    rig.call("destroy_sandbox", json!({ "sandbox_id": sandbox }))
        .ok();
    rig.assert_no_debris();
}

#[test]
fn a_stopped_gateway_takes_its_sandboxes_up_again() {
    let mut rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let done = rig.run(&sandbox, &session, "echo kept >> a; echo said");
    rig.stop();
    rig.spawn();
    rig.await_socket();
    assert_eq!(rig.sh(&sandbox, &session, "cat a"), "one\nkept\n");
    let id = &done["command_session_id"];
    let lines = rig
        .call("read_command_lines", json!({ "command_session_id": id }))
        .ok();
    assert_eq!(lines["status"], "exited", "{lines:#}");
    assert_eq!(lines["lines"][0]["content"], "said", "{lines:#}");
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
    rig.assert_no_debris();
}

#[test]
fn a_repeated_request_is_answered_once_even_after_a_restart() {
    let mut rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let token = rig.token(sandstack_api::Authority::Runtime);
    let headers = format!("Authorization: Bearer {token}\r\nX-Request-Id: once-1\r\n");
    let body =
        json!({ "sandbox_id": sandbox, "path": "new", "content": "x", "expected_digest": "" });
    let call = |rig: &Rig, body: &Value| {
        rig.http(
            "POST",
            "/v1/file_write",
            &headers,
            body.to_string().as_bytes(),
        )
    };
    let first = call(&rig, &body).ok();
    assert_eq!(call(&rig, &body).ok(), first);
    rig.kill_worker();
    assert_eq!(call(&rig, &body).ok(), first);
    let other = json!({ "sandbox_id": sandbox, "path": "new", "content": "y" });
    call(&rig, &other).refused("request_id_conflict");
}

#[test]
fn a_killed_holder_loses_its_commands_and_no_work() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo two >> a");
    let request = json!({
        "sandbox_id": sandbox, "workspace_session_id": session, "cmd": "echo three >> a; sleep 1000",
        "yield_time_ms": 0,
    });
    let command = rig.call("exec_command", request).ok()["command_session_id"].clone();
    until("the command's work", || {
        let read = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "a" });
        rig.call("file_read", read).ok()["content"] == "one\ntwo\nthree\n"
    });
    let holder = holder_of(&rig, &sandbox);
    rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
    let status = || {
        let request = json!({ "command_session_id": command, "yield_time_ms": 0, "stdin": "" });
        rig.call("write_command_stdin", request).ok()["status"].clone()
    };
    until("the command's end", || status() != "running");
    assert_eq!(status(), "lost");
    until("the sandbox", || {
        let request =
            json!({ "sandbox_id": sandbox, "workspace_session_id": session, "cmd": "true" });
        rig.call("exec_command", request).status == 200
    });
    assert_eq!(rig.sh(&sandbox, &session, "cat a"), "one\ntwo\nthree\n");
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
    rig.assert_no_debris();
}

fn holder_of(rig: &Rig, sandbox: &str) -> rustix::process::Pid {
    let needle = rig
        .state()
        .join("sandboxes")
        .join(sandbox)
        .join("holder.sock");
    let needle = needle.to_string_lossy().into_owned();
    let mut found: Vec<i32> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&needle)
        })
        .collect();
    found.sort_unstable();
    rustix::process::Pid::from_raw(*found.first().unwrap()).unwrap()
}
