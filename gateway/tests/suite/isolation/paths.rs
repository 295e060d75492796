//! Paths that lead out: file operations are asked for what symlinks, dots and races make of a path.

use std::fs;

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, until};

/// What is asked with each path, and what else the request needs.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("file_read", "path", "{}"),
    ("file_list", "path", "{}"),
    ("file_write", "path", r#"{"content": "written"}"#),
    (
        "file_edit",
        "path",
        r#"{"edits": [{"old_string": "outside", "new_string": "changed"}]}"#,
    ),
    ("file_make_directory", "path", "{}"),
    ("file_move", "path", r#"{"to": "taken"}"#),
    ("file_move", "to", r#"{"path": "a", "replace": true}"#),
    ("file_blame", "path", "{}"),
];

fn ask(
    rig: &Rig,
    operation: &str,
    sandbox: &str,
    session: Option<&str>,
    mut request: Value,
) -> (u16, Value) {
    request["sandbox_id"] = json!(sandbox);
    if let Some(session) = session {
        request["workspace_session_id"] = json!(session);
    }
    let answer = rig.call(operation, request);
    (answer.status, answer.body)
}

#[test]
fn no_path_leads_out_of_the_workspace() {
    let rig = Rig::start_as(Setup {
        outside: true,
        ..Setup::default()
    });
    let outside = rig.project("outside", &[("file", b"outside\n")]);
    let project = rig.project("project", &[("a", b"one\n"), ("dir/b", b"two\n")]);
    let links = [
        ("absolute", outside.join("file")),
        ("directory", outside.clone()),
        ("relative", "../outside/file".into()),
        ("up", "../../../../../../../..".into()),
        ("token", rig.state().join("tokens/management.token")),
        ("process", "/proc/self/root".into()),
        ("chain", "up/proc/1/root".into()),
    ];
    for (name, target) in &links {
        std::os::unix::fs::symlink(target, project.join(name)).unwrap();
    }
    let from_root = outside.strip_prefix("/").unwrap().display();
    let paths = [
        "absolute".to_owned(),
        "relative".to_owned(),
        "directory/file".to_owned(),
        "directory".to_owned(),
        "directory/new".to_owned(),
        format!("up/{from_root}/file"),
        format!("process{}/file", outside.display()),
        format!("chain{}/file", outside.display()),
        "token".to_owned(),
        "../outside/file".to_owned(),
        "dir/../../outside/file".to_owned(),
        format!("{}/file", outside.display()),
        "/etc/passwd".to_owned(),
    ];
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    for session in [Some(session.as_str()), None] {
        for path in &paths {
            for (operation, field, more) in OPERATIONS {
                let mut request: Value = serde_json::from_str(more).unwrap();
                request[*field] = json!(path);
                let (status, body) = ask(&rig, operation, &sandbox, session, request);
                let said = body.to_string();
                assert!(
                    !said.contains("outside\\n") && !said.contains("sst_"),
                    "{operation} {path}: {said}"
                );
                // A link itself may be moved and replaced: it is a file of the workspace.
                let of_the_link = *operation == "file_move" && !path.contains('/');
                assert!(
                    status != 200 && body["error"]["code"] != "internal" || of_the_link,
                    "{operation} {field} {path}: {body:#}"
                );
                if of_the_link && status == 200 {
                    restore(&rig, &sandbox, session, &links);
                }
            }
            assert_eq!(
                fs::read_to_string(outside.join("file")).unwrap(),
                "outside\n"
            );
            let names: Vec<_> = fs::read_dir(&outside)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(names, ["file"]);
        }
        let request = json!({ "pattern": "outside", "sandbox_id": sandbox });
        let found = rig.call("file_search", request).ok();
        assert_eq!(found["matches"], json!([]), "{found:#}");
    }
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
}

/// Makes again what was moved away.
fn restore(
    rig: &Rig,
    sandbox: &str,
    session: Option<&str>,
    links: &[(&str, std::path::PathBuf); 7],
) {
    let mut script = "test -e a || { rm -rf taken; echo one > a; };".to_owned();
    for (name, target) in links {
        script.push_str(&format!("ln -sfn '{}' {name};", target.display()));
    }
    match session {
        Some(session) => drop(rig.sh(sandbox, session, &script)),
        None => {
            let request = json!({ "sandbox_id": sandbox, "cmd": script, "tty": false, "yield_time_ms": 60_000 });
            let done = rig.call("exec_command", request).ok();
            assert_eq!(done["exit_code"], 0, "{done:#}");
        }
    }
}

/// A directory that is by turns a link to one of the host: what is read and written is the workspace's.
#[test]
fn a_path_that_changes_meanwhile_leads_nowhere_else() {
    let rig = Rig::start_as(Setup {
        outside: true,
        ..Setup::default()
    });
    let outside = rig.project("outside", &[("file", b"outside\n")]);
    let project = rig.project("project", &[("real/file", b"inside\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let racer = format!(
        "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.symlink('{}', 'link')
os.rename('real', 'turn')
print('ready', flush=True)
EXCHANGE = 2
while not os.path.exists('stop'):
    if libc.renameat2(-100, b'turn', -100, b'link', EXCHANGE): raise OSError(ctypes.get_errno(), 'exchange')
",
        outside.display()
    );
    super::write(&rig, &sandbox, &session, "racer.py", &racer);
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "cmd": "exec python3 racer.py", "tty": false, "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok();
    until("the racer", || {
        let request = json!({ "command_session_id": command["command_session_id"] });
        rig.call("read_command_lines", request).ok()["total_lines"] == 1
    });
    let mut read = 0;
    for round in 0..400 {
        let request = json!({ "path": "turn/file" });
        let (status, body) = ask(&rig, "file_read", &sandbox, Some(&session), request);
        if status == 200 {
            assert_eq!(body["content"], "inside\n", "{body:#}");
            read += 1;
        }
        let request = json!({ "path": format!("turn/new{round}"), "content": "x" });
        let (_, body) = ask(&rig, "file_write", &sandbox, Some(&session), request);
        assert_ne!(body["error"]["code"], "internal", "{body:#}");
    }
    assert!(read > 0, "the race was never won by the reader");
    super::write(&rig, &sandbox, &session, "stop", "");
    let names: Vec<_> = fs::read_dir(&outside)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["file"]);
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
}
