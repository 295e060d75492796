//! Publishing: what lands, what conflicts, what is kept.

use serde_json::{Value, json};

use crate::rig::Rig;

#[test]
fn a_conflict_rejects_all_and_tells_all() {
    let rig = Rig::start();
    let project = rig.project(
        "project",
        &[("text", b"1\n2\n3\n"), ("gone", b"g\n"), ("bin", b"\0a")],
    );
    let sandbox = rig.sandbox(&project);
    let (first, second) = (rig.session(&sandbox), rig.session(&sandbox));
    rig.sh(
        &sandbox,
        &first,
        "sed -i s/2/first/ text; echo more >> gone; printf '\\0b' > bin; echo f > new; mkdir kind",
    );
    rig.sh(&sandbox, &second, "sed -i s/2/second/ text; rm gone; printf '\\0c' > bin; echo s > new; echo x > kind; echo ok > fine");
    let publish = |request: Value| rig.call("publish_workspace_session", request).ok();
    let head = publish(json!({ "workspace_session_id": first }))["layer"].clone();
    for request in [
        json!({ "workspace_session_id": second, "dry_run": true }),
        json!({ "workspace_session_id": second, "markers": true }),
    ] {
        let rejected = publish(request);
        assert_eq!(rejected["outcome"], "conflict", "{rejected:#}");
        assert_eq!(
            (&rejected["head"], &rejected["session_open"]),
            (&head, &json!(true))
        );
        let found: Vec<(&str, &str)> = rejected["conflicts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|conflict| {
                (
                    conflict["path"].as_str().unwrap(),
                    conflict["kind"].as_str().unwrap(),
                )
            })
            .collect();
        let expected = [
            ("bin", "binary"),
            ("gone", "delete_modify"),
            ("kind", "type"),
            ("new", "add_add"),
            ("text", "content"),
        ];
        assert_eq!(found, expected);
        let text = &rejected["conflicts"][4];
        assert_eq!(text["hunks"][0]["mine"], json!({ "start": 2, "count": 1 }));
        if let Some(marked) = text["marked"].as_str() {
            assert!(
                marked.contains("<<<<<<<")
                    && marked.contains("first\n")
                    && marked.contains("second\n")
            );
        }
    }
    let stack = rig
        .call("layerstack", json!({ "sandbox_id": sandbox }))
        .ok();
    assert_eq!(stack["head"], head);
    // What is resolved in the session is published from it.
    rig.sh(&sandbox, &second, "cp fine keep; printf '1\\nfirst\\n3\\n' > text; printf 'g\\nmore\\n' > gone; printf '\\0b' > bin; echo f > new; rm kind; mkdir kind");
    let published = publish(json!({ "workspace_session_id": second }));
    assert_eq!(published["outcome"], "published", "{published:#}");
    let reader = rig.session(&sandbox);
    assert_eq!(
        rig.sh(&sandbox, &reader, "cat text fine keep; ls"),
        "1\nfirst\n3\nok\nok\nbin\nfine\ngone\nkeep\nkind\nnew\ntext\n"
    );
}

#[test]
fn running_commands_hold_a_publish_up_unless_it_ends_them() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "cmd": "echo two >> a; sleep 1000", "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok()["command_session_id"].clone();
    crate::rig::until("the change", || {
        let read = json!({ "sandbox_id": sandbox, "path": "a", "workspace_session_id": session });
        rig.call("file_read", read).ok()["content"] == "one\ntwo\n"
    });
    let answer = rig.call(
        "publish_workspace_session",
        json!({ "workspace_session_id": session }),
    );
    assert_eq!(
        answer.body["error"]["details"]["running_commands"],
        json!([command])
    );
    answer.refused("conflict");
    let published = rig
        .call(
            "publish_workspace_session",
            json!({ "workspace_session_id": session, "grace_s": 0 }),
        )
        .ok();
    assert_eq!(published["outcome"], "published");
}

#[test]
fn the_policy_routes_paths() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let rules = json!([{ "glob": "target/**", "route": "ignored" }, { "glob": "*.lock", "route": "reject" }]);
    let request = json!({ "workspace_root": project, "publish_policy": { "rules": rules } });
    let made = rig.call("create_sandbox", request).ok();
    let sandbox = made["sandboxes"][0]["sandbox_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let session = rig.session(&sandbox);
    rig.sh(
        &sandbox,
        &session,
        "mkdir target; echo o > target/o; echo two >> a; echo l > x.lock",
    );
    let rejected = rig
        .call(
            "publish_workspace_session",
            json!({ "workspace_session_id": session }),
        )
        .ok();
    assert_eq!(
        (
            &rejected["conflicts"][0]["path"],
            &rejected["conflicts"][0]["kind"]
        ),
        (&json!("x.lock"), &json!("rejected"))
    );
    rig.sh(&sandbox, &session, "rm x.lock");
    rig.call(
        "publish_workspace_session",
        json!({ "workspace_session_id": session }),
    )
    .ok();
    let wrong = json!({ "workspace_root": project, "publish_policy": { "rules": [{ "glob": "{a", "route": "ignored" }] } });
    assert!(
        rig.call("create_sandbox", wrong)
            .refused("invalid_request")
            .contains("publish_policy")
    );
}

#[test]
fn a_destroyed_session_says_what_it_gives_up() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo two >> a; echo b > b");
    let destroy = |force: bool| {
        rig.call(
            "destroy_workspace_session",
            json!({ "workspace_session_id": session, "force": force }),
        )
    };
    assert!(destroy(false).refused("conflict").contains("2 unpublished"));
    assert_eq!(rig.sh(&sandbox, &session, "cat b"), "b\n");
    assert_eq!(destroy(true).ok()["discarded_paths"], 2);
    destroy(true).refused("not_found");
}
