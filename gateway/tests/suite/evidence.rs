//! What is recorded: accesses by command, events, traces.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::rig::Rig;

const LANES: usize = 6;
const ROUNDS: usize = 8;

/// Short commands start and end all the time, so that the numbers of their namespaces are used again:
/// each access is still its own command's.
#[test]
fn every_access_has_its_command_whatever_runs_beside_it() {
    let rig = Rig::start();
    let names: Vec<String> = (0..LANES * ROUNDS).map(|n| format!("in/{n}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"x"[..])).collect();
    let project = rig.project("project", &files);
    let sandbox = rig.sandbox(&project);
    let sessions = [rig.session(&sandbox), rig.session(&sandbox)];
    let mut commands: BTreeMap<usize, String> = BTreeMap::new();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let (rig, sandbox, session) = (&rig, &sandbox, &sessions[lane % 2]);
                scope.spawn(move || {
                    (lane * ROUNDS..(lane + 1) * ROUNDS)
                        .map(|n| {
                            let reply = rig.run(
                                sandbox,
                                session,
                                &format!("cat in/{n} > /dev/null; echo {n} > out-{n}"),
                            );
                            assert_eq!(reply["exit_code"], 0, "{reply:#}");
                            (n, reply["command_session_id"].as_str().unwrap().to_owned())
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        for lane in lanes {
            commands.extend(lane.join().unwrap());
        }
    });
    for (n, command) in &commands {
        for (path, kind) in [(format!("in/{n}"), "open"), (format!("out-{n}"), "create")] {
            let request = json!({ "sandbox_id": sandbox, "path": path, "kinds": [kind] });
            let found = rig.call("file_activity", request).ok();
            let rows = found["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 1, "{path}: {found:#}");
            assert_eq!(
                rows[0]["command_session_id"],
                json!(command),
                "{path}: {found:#}"
            );
        }
    }
    let all = rig
        .call(
            "file_activity",
            json!({ "sandbox_id": sandbox, "limit": 1000 }),
        )
        .ok();
    assert_eq!((&all["dropped"], &all["gaps"]), (&json!(0), &json!([])));
}

#[test]
fn a_trace_shows_where_the_time_went() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo two >> a");
    rig.call(
        "publish_workspace_session",
        json!({ "workspace_session_id": session }),
    )
    .ok();
    let trace = rig
        .call("trace", json!({ "operation": "publish_workspace_session" }))
        .ok();
    let names: Vec<&str> = trace["spans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| span["name"].as_str().unwrap())
        .collect();
    for name in [
        "session.occupy",
        "publish.flush",
        "publish.capture",
        "publish.commit",
        "session.end",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    for span in trace["spans"].as_array().unwrap() {
        assert!(span["duration_us"].is_u64(), "{span:#}");
    }
    rig.call("trace", json!({ "trace_id": "req-nowhere" }))
        .refused("not_found");
}

#[test]
fn events_tell_a_session_from_its_beginning_to_its_end() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo two >> a");
    rig.call(
        "publish_workspace_session",
        json!({ "workspace_session_id": session }),
    )
    .ok();
    let told = rig.call("events", json!({ "sandbox_id": sandbox })).ok();
    let mut names: Vec<&str> = told["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["name"].as_str().unwrap())
        .collect();
    names.reverse();
    let expected = [
        "sandbox.created",
        "workspace_session.created",
        "command.started",
        "command.exited",
        "layer.published",
        "workspace_session.ended",
        "lease.released",
    ];
    assert_eq!(names, expected, "{told:#}");
    let snapshot = rig.call("snapshot", json!({})).ok();
    let of = &snapshot["sandboxes"][0];
    assert_eq!(
        (&of["layer_count"], &of["lease_count"], &of["trace_dropped"]),
        (&json!(2), &json!(0), &json!(0)),
        "{snapshot:#}"
    );
    let left: &Value = &of["commands"];
    assert_eq!(left[0]["status"], "exited", "{snapshot:#}");
}

/// What the walk has told the kernel is found without a message, so who looks it up is not on record;
/// who lists, and who looks for what is not there, is.
#[test]
fn a_background_walk_hides_lookups_and_nothing_else() {
    let rig = Rig::start();
    let names: Vec<String> = (0..500).map(|n| format!("in/{n}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"x"[..])).collect();
    let sandbox = rig.sandbox(&rig.project("project", &files));
    let request = json!({ "sandbox_id": sandbox, "background_walk": true });
    let made = rig.call("create_workspace_session", request).ok();
    let session = made["workspace_session_id"].as_str().unwrap();
    assert_eq!(made["background_walk"], true, "{made:#}");
    let rows = |path: &str, kind: &str| {
        let request = json!({ "sandbox_id": sandbox, "path": path, "kinds": [kind] });
        let found = rig.call("file_activity", request).ok();
        let statement = found["exactness"][0]["statement"].as_str();
        assert!(statement.is_none_or(|said| said.contains("background walk")));
        found["rows"].as_array().unwrap().clone()
    };
    // A file for each try, until the walk is done.
    let hidden = names.iter().find(|name| {
        rig.sh(&sandbox, session, &format!("test -e {name}"));
        rows(name, "lookup").is_empty()
    });
    assert!(hidden.is_some(), "500 commands were faster than the walk");
    let reply = rig.run(
        &sandbox,
        session,
        "ls in > /dev/null; test ! -e in/none; cat in/7",
    );
    assert_eq!(reply["exit_code"], 0, "{reply:#}");
    for (path, kind) in [("in", "list"), ("in/none", "missing"), ("in/7", "open")] {
        let found = rows(path, kind);
        assert_eq!(found.len(), 1, "{kind} of {path}: {found:#?}");
        assert_eq!(
            found[0]["command_session_id"], reply["command_session_id"],
            "{kind} of {path}"
        );
    }
}

#[test]
fn a_killed_gateway_leaves_a_gap_that_is_told() {
    let mut rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "cat a");
    rig.kill_worker();
    let told = rig.call("events", json!({ "name": "trace.gap" })).ok();
    let events = told["events"].as_array().unwrap();
    assert_eq!(events.len(), 1, "{told:#}");
    assert_eq!(events[0]["sandbox_id"], json!(sandbox), "{told:#}");
    assert_eq!(events[0]["workspace_session_id"], json!(session));
    let answer = rig
        .call("file_activity", json!({ "sandbox_id": sandbox }))
        .ok();
    let gaps = answer["gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 1, "{answer:#}");
    for field in ["from_unix_ms", "to_unix_ms", "reason"] {
        assert_eq!(events[0]["details"][field], gaps[0][field], "{told:#}");
    }
}
