//! File operations, on a session and on the head.

use serde_json::{Value, json};

use crate::rig::Rig;

#[test]
fn a_session_and_its_commands_see_one_another_at_once() {
    let rig = Rig::start();
    let project = rig.project("project", &[("dir/a", b"one\ntwo\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let of = |mut request: Value| {
        request["sandbox_id"] = json!(sandbox);
        request["workspace_session_id"] = json!(session);
        request
    };
    // The kernel has it cached when it is written from outside.
    assert_eq!(
        rig.sh(&sandbox, &session, "cat dir/a; ls new 2>/dev/null; true"),
        "one\ntwo\n"
    );
    let edit = json!([{ "old_string": "two", "new_string": "2" }]);
    let edited = rig
        .call("file_edit", of(json!({ "path": "dir/a", "edits": edit })))
        .ok();
    assert_eq!(edited["replacements"], 1);
    assert!(
        edited["diff"].as_str().unwrap().contains("-two\n+2\n"),
        "{edited:#}"
    );
    assert!(edited.get("layer").is_none());
    rig.call(
        "file_write",
        of(json!({ "path": "new/b", "content": "b", "mode": 0o755 })),
    )
    .ok();
    let seen = rig.sh(
        &sandbox,
        &session,
        "cat dir/a new/b; stat -c %a new/b; rm new/b; echo c > dir/c",
    );
    assert_eq!(seen, "one\n2\nb755\n");
    rig.call("file_read", of(json!({ "path": "new/b" })))
        .refused("not_found");
    assert_eq!(
        rig.call("file_read", of(json!({ "path": "dir/c" }))).ok()["content"],
        "c\n"
    );
    let listed = rig.call("file_list", of(json!({ "path": "dir" }))).ok();
    let names: Vec<&Value> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["path"])
        .collect();
    assert_eq!(names, ["dir/a", "dir/c"]);
    // Nothing of it is at the head.
    let head = rig
        .call(
            "file_read",
            json!({ "sandbox_id": sandbox, "path": "dir/a" }),
        )
        .ok();
    assert_eq!(head["content"], "one\ntwo\n");
}

#[test]
fn a_write_without_a_session_is_a_layer() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let write = |path: &str, content: &str| {
        let request = json!({ "sandbox_id": sandbox, "path": path, "content": content });
        rig.call("file_write", request)
    };
    let written = write("deep/er/b", "b\n").ok();
    assert_eq!(
        (&written["created"], &written["layer"]),
        (&json!(true), &json!("L000002"))
    );
    assert!(
        write("deep/er/b", "b\n").ok().get("layer").is_none(),
        "nothing has changed"
    );
    let blame = rig
        .call(
            "file_blame",
            json!({ "sandbox_id": sandbox, "path": "deep/er/b" }),
        )
        .ok();
    let owner = blame["ranges"][0]["owner"].as_str().unwrap();
    assert!(owner.starts_with("operation:"), "{owner}");
    assert_eq!(std::fs::read_to_string(project.join("a")).unwrap(), "one\n");
    assert!(
        !project.join("deep").exists(),
        "the project's own directory is never written to"
    );
}

#[test]
fn bytes_come_back_as_they_are() {
    let rig = Rig::start();
    let project = rig.project(
        "project",
        &[("bin", b"\x00\xff\xfe"), ("text", "é\n".as_bytes())],
    );
    let sandbox = rig.sandbox(&project);
    let read = |mut request: Value| {
        request["sandbox_id"] = json!(sandbox);
        rig.call("file_read", request)
    };
    let binary = read(json!({ "path": "bin" })).ok();
    assert_eq!(
        (&binary["encoding"], &binary["content"]),
        (&json!("base64"), &json!("AP/+"))
    );
    let text = read(json!({ "path": "text" })).ok();
    assert_eq!(
        (&text["encoding"], &text["content"]),
        (&json!("utf-8"), &json!("é\n"))
    );
    // A window that cuts a character in two is not text.
    let cut = read(json!({ "path": "text", "offset": 1, "limit": 1 })).ok();
    assert_eq!(
        (&cut["encoding"], &cut["truncated"], &cut["size"]),
        (&json!("base64"), &json!(true), &json!(3))
    );
    let beyond = read(json!({ "path": "text", "offset": 99 })).ok();
    assert_eq!(
        (&beyond["length"], &beyond["truncated"]),
        (&json!(0), &json!(false))
    );
    let write =
        json!({ "sandbox_id": sandbox, "path": "bin", "content": "AAA=", "encoding": "base64" });
    rig.call("file_write", write).ok();
    assert_eq!(read(json!({ "path": "bin" })).ok()["content"], "\u{0}\u{0}");
    let odd = json!({ "sandbox_id": sandbox, "path": { "base64": "/2Zvbw==" }, "content": "x" });
    rig.call("file_write", odd.clone()).ok();
    assert_eq!(read(json!({ "path": odd["path"] })).ok()["content"], "x");
}

#[test]
fn paths_never_lead_out_and_wrong_ones_are_named() {
    let rig = Rig::start();
    let project = rig.project("project", &[("dir/a", b"one\none\n"), ("bin", b"a\x00b")]);
    std::os::unix::fs::symlink("/etc/passwd", project.join("out")).unwrap();
    std::os::unix::fs::symlink("../../../etc", project.join("up")).unwrap();
    std::os::unix::fs::symlink("loop", project.join("loop")).unwrap();
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    for scope in [json!({}), json!({ "workspace_session_id": session })] {
        let call = |operation: &str, mut request: Value| {
            request["sandbox_id"] = json!(sandbox);
            request
                .as_object_mut()
                .unwrap()
                .extend(scope.as_object().unwrap().clone());
            rig.call(operation, request)
        };
        for (path, code) in [
            ("missing", "not_found"),
            ("dir/a/b", "invalid_request"),
            ("dir", "invalid_request"),
            ("", "invalid_request"),
            ("../x", "invalid_request"),
            ("dir/../../x", "invalid_request"),
            ("/etc/passwd", "invalid_request"),
            ("out", "invalid_request"),
            ("up/passwd", "invalid_request"),
            ("loop", "invalid_request"),
            ("a\0b", "invalid_request"),
        ] {
            let answer = call("file_read", json!({ "path": path }));
            let message = answer.refused(code);
            let name = path.trim_end_matches('b').escape_default().to_string();
            assert!(
                message.contains(&name) || path.contains('\0'),
                "{path:?}: {message}"
            );
        }
        for path in ["../x", "/etc/x", "out", "up/x"] {
            call("file_write", json!({ "path": path, "content": "x" })).refused("invalid_request");
        }
        let edit = |edits: Value| call("file_edit", json!({ "path": "dir/a", "edits": edits }));
        let message = edit(json!([{ "old_string": "three", "new_string": "x" }]));
        assert!(message.refused("invalid_request").contains("edits[0]"));
        let message = edit(json!([{ "old_string": "one", "new_string": "x" }]));
        assert!(
            message.refused("invalid_request").contains('2'),
            "how often it was found"
        );
        edit(json!([])).refused("invalid_request");
        edit(json!([{ "old_string": "", "new_string": "x" }])).refused("invalid_request");
        let write = json!({ "path": "dir/a", "content": "x", "expected_digest": "" });
        call("file_write", write).refused("precondition_failed");
        let write = json!({ "path": "dir/a", "content": "x", "expected_digest": "0".repeat(64) });
        call("file_write", write).refused("precondition_failed");
        let write = json!({ "path": "dir/a", "content": "!", "encoding": "base64" });
        assert!(
            call("file_write", write)
                .refused("invalid_request")
                .contains("base64")
        );
        assert_eq!(
            call("file_read", json!({ "path": "dir/a" })).ok()["content"],
            "one\none\n"
        );
    }
}

#[test]
fn a_listing_goes_on_page_by_page() {
    let rig = Rig::start();
    let names: Vec<String> = (0..25).map(|n| format!("src/f{n:02}.rs")).collect();
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"x"[..])).collect();
    files.push(("src/deep/er/z.rs", b"z"));
    files.push(("other.txt", b"o"));
    let project = rig.project("project", &files);
    let sandbox = rig.sandbox(&project);
    let all = |mut request: Value| {
        let mut found = Vec::new();
        request["sandbox_id"] = json!(sandbox);
        loop {
            let page = rig.call("file_list", request.clone()).ok();
            let entries = page["entries"].as_array().unwrap();
            assert!(entries.len() <= 10);
            found.extend(
                entries
                    .iter()
                    .map(|entry| entry["path"].as_str().unwrap().to_owned()),
            );
            match page.get("next_page_token") {
                Some(token) => request["page_token"] = token.clone(),
                None => return found,
            }
        }
    };
    let mut expected = names.clone();
    expected.insert(0, "src/deep".to_owned());
    assert_eq!(all(json!({ "path": "src", "limit": 10 })), expected);
    expected[0] = "src/deep/er/z.rs".to_owned();
    assert_eq!(all(json!({ "glob": "src/**/*.rs", "limit": 10 })), expected);
    let token = json!({ "sandbox_id": sandbox, "page_token": "nonsense" });
    assert!(
        rig.call("file_list", token)
            .refused("invalid_request")
            .contains("page_token")
    );
    let glob = json!({ "sandbox_id": sandbox, "glob": "src/[" });
    assert!(
        rig.call("file_list", glob)
            .refused("invalid_request")
            .contains("glob")
    );
}
