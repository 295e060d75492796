//! Requests that cannot be done: each is refused with a sentence that names what is wrong, and leaves
//! nothing behind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use sandstack_api::catalogue::OPERATIONS;
use sandstack_api::{Authority, OperationName};
use serde_json::{Value, json};

use crate::rig::{Rig, Setup, is_root};

#[test]
fn bodies_that_are_no_request_are_refused_by_field() {
    let rig = Rig::start();
    let token = rig.token(Authority::Management);
    let project = rig.project("project", &[("a", b"a")]);
    for (body, told) in [
        (&b""[..], "workspace_root"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"{\"workspace_root\": \"/x\"} trailing", "JSON"),
        (b"{}", "workspace_root"),
        (b"{\"workspace_root\": 7}", "workspace_root"),
        (
            b"{\"workspace_root\": \"/x\", \"workspace_rot\": 1}",
            "workspace_rot",
        ),
        (b"{\"workspace_root\": \"/x\", \"count\": -1}", "count"),
        (
            b"{\"workspace_root\": \"/x\", \"trace_mode\": \"loud\"}",
            "trace_mode",
        ),
        (b"{\"workspace_root\": \"/x\", \"count\": 0}", "count"),
        (b"{\"workspace_root\": \"/x\", \"count\": 65}", "count"),
        (
            b"{\"workspace_root\": \"/x\", \"provider\": \"docker\"}",
            "image",
        ),
        (b"{\"workspace_root\": \"/x\", \"name\": \"a b\"}", "name"),
        (
            b"{\"workspace_root\": \"/x\", \"env\": {\"A=B\": \"\"}}",
            "A=B",
        ),
    ] {
        let body = String::from_utf8_lossy(body).replace("/x", project.to_str().unwrap());
        let answer = rig.post("create_sandbox", Some(&token), body.as_bytes());
        let message = answer.refused("invalid_request");
        assert!(message.contains(told), "{body}: {message}");
        assert_eq!(answer.status, 400);
    }
    let answer = rig.post("make_sandbox", Some(&token), b"{}");
    assert!(answer.refused("not_found").contains("make_sandbox"));
    rig.http("GET", "/v1/list_sandboxes", "", b"");
    rig.http("GET", "/nowhere", "", b"").refused("not_found");
    let huge = vec![b' '; (64 << 20) + 1];
    rig.post("create_sandbox", Some(&token), &huge)
        .refused("too_large");
    let with_id = format!("Authorization: Bearer {token}\r\nX-Request-Id: a/b\r\n");
    let answer = rig.http("POST", "/v1/list_sandboxes", &with_id, b"{}");
    assert!(answer.refused("invalid_request").contains("X-Request-Id"));
    rig.assert_no_debris();
}

#[test]
fn a_project_that_cannot_be_imported_leaves_nothing() {
    let rig = Rig::start_as(Setup {
        config: "[limits]\nbase_files = 20\n",
        ..Setup::default()
    });
    let project = rig.project("good", &[("a", b"a")]);
    fs::write(rig.dir.join("file"), "no directory").unwrap();
    symlink(rig.dir.join("nowhere"), rig.dir.join("dangling")).unwrap();
    let many: Vec<(String, &[u8])> = (0..30).map(|n| (format!("f{n}"), &b"x"[..])).collect();
    let many: Vec<(&str, &[u8])> = many
        .iter()
        .map(|(name, content)| (&**name, *content))
        .collect();
    let many = rig.project("many", &many);
    let above_the_state = rig.dir.clone();
    for (root, code, told) in [
        (rig.dir.join("missing"), "not_found", "missing"),
        ("good".into(), "invalid_request", "absolute"),
        ("".into(), "invalid_request", "absolute"),
        (rig.dir.join("file"), "invalid_request", "file"),
        (rig.dir.join("dangling"), "not_found", "dangling"),
        ("/proc".into(), "invalid_request", "/proc"),
        (above_the_state, "invalid_request", "state"),
        (rig.state().join("store"), "invalid_request", "store"),
        (many, "too_large", "20"),
    ] {
        let answer = rig.call("create_sandbox", json!({ "workspace_root": root }));
        let message = answer.refused(code);
        assert!(message.contains(told), "{}: {message}", root.display());
        rig.assert_no_debris();
    }
    let sandbox = rig.sandbox(&project);
    rig.call("destroy_sandbox", json!({ "sandbox_id": sandbox }))
        .ok();
    rig.assert_no_debris();
}

#[test]
fn what_cannot_be_read_is_named() {
    let rig = Rig::start_as(Setup {
        ordinary: true,
        ..Setup::default()
    });
    let project = rig.project(
        "project",
        &[("readable", b"a"), ("dir/secret", b"b"), ("shut/x", b"c")],
    );
    let set = |path: &str, mode| {
        fs::set_permissions(project.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, shut, open) in [("dir/secret", 0o000, 0o644), ("shut", 0o000, 0o755)] {
        set(path, shut);
        let answer = rig.call("create_sandbox", json!({ "workspace_root": project }));
        let message = answer.refused("invalid_request");
        assert!(message.contains(path), "{message}");
        rig.assert_no_debris();
        set(path, open);
    }
    if is_root() {
        fs::set_permissions(&project, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&project, Some(0), Some(0)).unwrap();
        let answer = rig.call("create_sandbox", json!({ "workspace_root": project }));
        assert!(answer.refused("invalid_request").contains("project"));
    }
    rig.assert_no_debris();
}

#[test]
fn unknown_ids_are_not_found_whichever_operation_gets_them() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"a")]);
    let sandbox = rig.sandbox(&project);
    let filled = |operation: OperationName, with: &dyn Fn(&str) -> Value| -> Option<Value> {
        let schema = serde_json::to_value((operation.row().request_schema)()).unwrap();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut request = serde_json::Map::new();
        for field in required.iter().filter_map(Value::as_str) {
            let value = match field {
                "path" => json!("a"),
                "dest" => json!("/nowhere/x"),
                "cmd" | "content" | "stdin" | "pattern" | "to" => json!("x"),
                "edits" => json!([{ "old_string": "a", "new_string": "b" }]),
                "signal" => json!("TERM"),
                "rows" | "cols" => json!(24),
                "workspace_root" => return None,
                id => with(id),
            };
            request.insert(field.to_owned(), value);
        }
        required
            .iter()
            .any(|field| field.as_str().unwrap().ends_with("_id"))
            .then(|| request.into())
    };
    let mut asked = 0;
    for operation in OPERATIONS.iter().map(|row| row.operation) {
        let unknown = |field: &str| match field {
            "sandbox_id" => json!("sb-nowhere1"),
            "workspace_session_id" => json!("ws-nowhere1"),
            "command_session_id" => json!("cmd-nowhere1"),
            other => panic!("{}: what is {other}?", operation.as_str()),
        };
        if let Some(request) = filled(operation, &unknown) {
            let answer = rig.call(operation.as_str(), request.clone());
            let message = answer.refused("not_found");
            assert!(
                message.contains("nowhere1"),
                "{operation:?} {request}: {message}"
            );
            asked += 1;
        }
        let malformed = |_: &str| json!("no id!");
        if let Some(request) = filled(operation, &malformed) {
            let answer = rig.call(operation.as_str(), request);
            assert!(
                answer.refused("invalid_request").contains("_id"),
                "{operation:?}"
            );
        }
    }
    assert!(asked >= 12, "only {asked} operations take an id");
    // A session of no sandbox, and of another one.
    let other = rig.sandbox(&project);
    let session = rig.session(&other);
    for id in ["ws-nowhere1", &session] {
        let request = json!({ "sandbox_id": sandbox, "workspace_session_id": id, "cmd": "true" });
        assert!(
            rig.call("exec_command", request)
                .refused("not_found")
                .contains(id)
        );
    }
}

#[test]
fn names_are_taken_once() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"a")]);
    let named = json!({ "workspace_root": project, "name": "mine" });
    let made = rig.call("create_sandbox", named.clone()).ok();
    assert!(
        rig.call("create_sandbox", named)
            .refused("already_exists")
            .contains("mine")
    );
    let sandbox = made["sandboxes"][0]["sandbox_id"].clone();
    let session = json!({ "sandbox_id": sandbox, "name": "lane" });
    rig.call("create_workspace_session", session.clone()).ok();
    assert!(
        rig.call("create_workspace_session", session)
            .refused("already_exists")
            .contains("lane")
    );
    let listed = rig
        .call("list_workspace_sessions", json!({ "sandbox_id": sandbox }))
        .ok();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
}
