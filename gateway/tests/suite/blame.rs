//! Lines have the command that brought them in, where that can be known.

use serde_json::{Value, json};

use crate::rig::{Rig, until};

/// First line, owner's kind, and command of each range.
fn ranges(blame: &Value) -> Vec<(u64, &str, Option<&str>)> {
    let ranges = blame["ranges"].as_array().unwrap().iter();
    ranges
        .map(|range| {
            let owner = range["owner"].as_str().unwrap();
            (
                range["start"].as_u64().unwrap(),
                owner.split(':').next().unwrap(),
                range["command_session_id"].as_str(),
            )
        })
        .collect()
}

#[test]
fn commands_of_one_session_are_told_apart() {
    let rig = Rig::start();
    let files: &[(&str, &[u8])] = &[("f", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"), ("g", b"g\n")];
    let sandbox = rig.sandbox(&rig.project("project", files));
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    let run = |session: &str, cmd: &str| {
        let reply = rig.run(&sandbox, session, cmd);
        assert_eq!(reply["exit_code"], 0, "{reply:#}");
        reply["command_session_id"].as_str().unwrap().to_owned()
    };
    let live = |path: &str| {
        let request =
            json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": path });
        rig.call("file_blame", request).ok()
    };
    let head = |path: &str| {
        let request = json!({ "sandbox_id": sandbox, "path": path });
        rig.call("file_blame", request).ok()
    };
    // In place, by way of another file, and by appending.
    let a = run(&session, "sed -i '2s/.*/a/' f; echo a > new");
    let b = run(&session, "echo b >> f; (cat new; echo b) > tmp; mv tmp new");
    let c = run(
        &session,
        "mv new moved; echo c >> moved; sed -i 's/^6$/c/' f",
    );
    let whose = "workspace_session";
    let f = [
        (1, "original", None),
        (2, whose, Some(&*a)),
        (3, "original", None),
        (6, whose, Some(&*c)),
        (7, "original", None),
        (10, whose, Some(&*b)),
    ];
    let moved = [
        (1, whose, Some(&*a)),
        (2, whose, Some(&*b)),
        (3, whose, Some(&*c)),
    ];
    assert_eq!(ranges(&live("f")), f);
    assert_eq!(ranges(&live("moved")), moved);

    // Whoever writes without a command is the session, and two at once cannot be told apart.
    let write = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "written",
        "content": "w\n" });
    rig.call("file_write", write).ok();
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "tty": false,
        "keep_stdin_open": true, "yield_time_ms": 0,
        "cmd": "echo one >> both; echo one > own; read x; echo one >> both" });
    let one = rig.call("exec_command", request).ok();
    let read = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "own" });
    until("the first of two", || {
        rig.call("file_read", read.clone()).status == 200
    });
    let two = run(&session, "echo two >> both; echo two > other");
    let one = one["command_session_id"].as_str().unwrap();
    let end = json!({ "command_session_id": one, "stdin": "\n", "yield_time_ms": 60_000 });
    assert_eq!(rig.call("write_command_stdin", end).ok()["exit_code"], 0);
    assert_eq!(ranges(&live("written")), [(1, whose, None)]);
    assert_eq!(ranges(&live("own")), [(1, whose, Some(one))]);
    assert_eq!(ranges(&live("other")), [(1, whose, Some(&*two))]);
    let both = live("both");
    let known: Vec<Option<&str>> = ranges(&both).iter().map(|range| range.2).collect();
    // The first line was there when the second command began.
    assert_eq!(known, [Some(one), None], "{both:#}");

    // A merge keeps them, with those of others; and so does a squash.
    let d = run(&other, "sed -i 's/^4$/d/' f; echo d >> g");
    let publish = |session: &str| {
        let request = json!({ "workspace_session_id": session });
        let answer = rig.call("publish_workspace_session", request).ok();
        assert_eq!(answer["outcome"], "published", "{answer:#}");
    };
    publish(&other);
    publish(&session);
    let merged = [
        (1, "original", None),
        (2, whose, Some(&*a)),
        (3, "original", None),
        (4, whose, Some(&*d)),
        (5, "original", None),
        (6, whose, Some(&*c)),
        (7, "original", None),
        (10, whose, Some(&*b)),
    ];
    let again = rig.session(&sandbox);
    let e = run(&again, "echo e >> moved; mv g h");
    publish(&again);
    rig.call("squash_layerstacks", json!({ "sandbox_id": sandbox }))
        .ok();
    rig.call("collect_garbage", json!({})).ok();
    assert_eq!(ranges(&head("f")), merged);
    let mut expected = moved.to_vec();
    expected.push((4, whose, Some(&*e)));
    assert_eq!(ranges(&head("moved")), expected);
    assert_eq!(
        ranges(&head("h")),
        [(1, "original", None), (2, whose, Some(&*d))]
    );
    assert_eq!(
        rig.call("verify_store", json!({})).ok()["problems"],
        json!([])
    );
}

/// After a crash the log may lack something: then nothing is claimed.
#[test]
fn nothing_is_claimed_of_a_log_with_a_gap() {
    let mut rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("f", b"1\n")]));
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo a >> f");
    rig.kill_worker();
    rig.sh(&sandbox, &session, "echo b >> f");
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "f" });
    let blame = rig.call("file_blame", request).ok();
    assert_eq!(
        ranges(&blame),
        [(1, "original", None), (2, "workspace_session", None)]
    );
}
