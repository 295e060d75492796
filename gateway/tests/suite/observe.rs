//! What is told of the gateway and of what runs in it: metrics, processes, resources.

use std::time::Duration;

use sandstack_api::Authority;
use serde_json::{Value, json};

use crate::rig::{Rig, Setup, needs_root, until};

/// Starts a command that goes on until it is ended, and returns its id.
fn long(rig: &Rig, sandbox: &str, session: &str, cmd: &str) -> String {
    let request = json!({
        "sandbox_id": sandbox, "workspace_session_id": session, "cmd": cmd, "tty": false,
        "yield_time_ms": 0,
    });
    let reply = rig.call("exec_command", request).ok();
    reply["command_session_id"].as_str().unwrap().to_owned()
}

#[test]
fn the_gateway_tells_of_itself() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let before = rig.call("daemon", json!({})).ok();
    rig.sh(&sandbox, &session, "cat a; cat a; echo two > b");
    rig.call("inspect_sandbox", json!({ "sandbox_id": "sb-nowhere1" }))
        .refused("not_found");
    let after = rig.call("daemon", json!({})).ok();
    assert_eq!(after["errors"], json!([]), "{after:#}");
    let of = |answer: &Value, group: &str, operation: &str, field: &str| -> u64 {
        let rows = answer[group].as_array().unwrap();
        let row = rows.iter().find(|row| row["operation"] == operation);
        row.map_or(0, |row| row[field].as_u64().unwrap())
    };
    let more = |group: &str, operation: &str, field: &str| {
        of(&after, group, operation, field) - of(&before, group, operation, field)
    };
    assert!(more("kernel_requests", "open", "count") >= 2, "{after:#}");
    assert!(more("kernel_requests", "create", "count") >= 1, "{after:#}");
    assert!(of(&after, "kernel_requests", "open", "total_us") > 0);
    assert_eq!(more("operations", "exec_command", "count"), 1);
    assert_eq!(more("operations", "exec_command", "failed"), 0);
    assert_eq!(more("operations", "inspect_sandbox", "failed"), 1);
    let counts = json!({
        "sandboxes": 1, "workspace_sessions": 1, "views": 1, "running_commands": 0
    });
    assert_eq!(after["counts"], counts);
    for field in [
        "resident_bytes",
        "open_descriptors",
        "descriptor_limit",
        "pid",
    ] {
        assert!(after[field].as_u64().unwrap() > 0, "{field}: {after:#}");
    }
    // The same for Prometheus.
    let bearer = |authority| format!("Authorization: Bearer {}\r\n", rig.token(authority));
    let answer = rig.http("GET", "/metrics", &bearer(Authority::Observability), b"");
    let text = answer.ok();
    let text = text.as_str().unwrap();
    let opens = text.lines().find_map(|line| {
        line.strip_prefix("sandstack_fuse_request_seconds_count{operation=\"open\"} ")
    });
    assert!(opens.unwrap().parse::<u64>().unwrap() >= 2, "{text}");
    assert!(
        text.contains("\nsandstack_workspace_sessions 1\n"),
        "{text}"
    );
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(
            name.starts_with("sandstack_") && value.parse::<f64>().is_ok(),
            "{line}"
        );
    }
    rig.http("GET", "/metrics", &bearer(Authority::Runtime), b"")
        .refused("forbidden");
    rig.http("GET", "/metrics", "", b"").refused("unauthorized");
}

#[test]
fn processes_are_shown_with_their_command_and_namespaces() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    let command = long(&rig, &sandbox, &session, "sleep 1000 & sleep 1001");
    let shown = || -> Vec<Value> {
        let answer = rig.call("topology", json!({ "sandbox_id": sandbox })).ok();
        assert_eq!(answer["errors"], json!([]));
        let sessions = answer["sessions"].as_array().unwrap().clone();
        let ids: Vec<&Value> = sessions
            .iter()
            .map(|one| &one["workspace_session_id"])
            .collect();
        assert!(ids.contains(&&json!(session)) && ids.contains(&&json!(other)));
        let idle = sessions
            .iter()
            .find(|one| one["workspace_session_id"] == json!(other));
        assert_eq!(idle.unwrap()["process_count"], 0);
        let own = sessions
            .iter()
            .find(|one| one["workspace_session_id"] == json!(session));
        own.unwrap()["processes"].as_array().unwrap().clone()
    };
    let sleeps = |processes: &[Value]| -> Vec<Value> {
        let sleeps = processes
            .iter()
            .filter(|one| one["cmd"].as_str().unwrap().starts_with("sleep 100"));
        sleeps.cloned().collect()
    };
    until("both to sleep", || sleeps(&shown()).len() == 2);
    let processes = shown();
    let sleeps = sleeps(&processes);
    for process in &sleeps {
        assert_eq!(process["command_session_id"], json!(command), "{process:#}");
        assert_ne!(process["pid"], process["session_pid"], "{process:#}");
        assert!(
            process["program"].as_str().unwrap().ends_with("/sleep"),
            "{process:#}"
        );
        assert_eq!(process["namespaces"], sleeps[0]["namespaces"]);
        let parent = processes
            .iter()
            .find(|one| one["pid"] == process["parent_pid"]);
        assert_eq!(parent.unwrap()["command_session_id"], json!(command));
        let pid = process["pid"].as_u64().unwrap();
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
        let expected = format!("pid:[{}]", process["namespaces"]["pid"]);
        assert_eq!(namespace.to_str().unwrap(), expected);
    }
    let signal = json!({ "command_session_id": command, "signal": "KILL" });
    rig.call("signal_command", signal).ok();
    until("their end", || shown().is_empty());
}

#[test]
fn what_commands_use_is_kept_after_they_ended() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let busy = "head -c 1000000 /dev/urandom > big; while :; do :; done";
    let command = long(&rig, &sandbox, &session, busy);
    let samples = || -> Vec<Value> {
        let request = json!({ "sandbox_id": sandbox, "command_session_id": command });
        let answer = rig.call("resources", request).ok();
        assert_eq!(answer["errors"], json!([]), "{answer:#}");
        answer["samples"].as_array().unwrap().clone()
    };
    until("a sample of the command at work", || {
        samples()
            .first()
            .is_some_and(|sample| sample["cpu_ms"].as_u64().unwrap() > 0)
    });
    let now = &samples()[0];
    assert_eq!(now["workspace_session_id"], json!(session), "{now:#}");
    assert!(now["resident_bytes"].as_u64().unwrap() > 0, "{now:#}");
    until("what is written to be on disk", || {
        let answer = rig.call("resources", json!({ "sandbox_id": sandbox })).ok();
        let disk = answer["disk"].as_array().unwrap();
        assert_eq!(disk.len(), 1, "{answer:#}");
        assert_eq!(disk[0]["workspace_session_id"], json!(session));
        let (all, of_sample) = (
            &disk[0]["upper_bytes"],
            &answer["samples"][0]["upper_bytes"],
        );
        all.as_u64().unwrap() >= 1_000_000 && of_sample.as_u64().unwrap() >= 1_000_000
    });
    // One beside that which is taken for the answer.
    until("a sample that is kept", || samples().len() > 1);
    let signal = json!({ "command_session_id": command, "signal": "KILL" });
    rig.call("signal_command", signal).ok();
    until("the end", || {
        let topology = rig.call("topology", json!({ "sandbox_id": sandbox })).ok();
        topology["sessions"][0]["process_count"] == 0
    });
    let kept = samples();
    assert!(!kept.is_empty());
    let times: Vec<u64> = kept
        .iter()
        .map(|one| one["time_unix_ms"].as_u64().unwrap())
        .collect();
    assert!(times.is_sorted_by(|one, other| one >= other), "{times:?}");
    let other = json!({ "sandbox_id": sandbox, "command_session_id": "cmd-other" });
    assert_eq!(rig.call("resources", other).ok()["samples"], json!([]));
}

/// One of each kind of observation.
fn observe(rig: &Rig, sandbox: &str) {
    let of_sandbox = json!({ "sandbox_id": sandbox });
    for operation in [
        "snapshot",
        "topology",
        "resources",
        "cgroup",
        "layerstack",
        "file_activity",
        "events",
        "trace",
    ] {
        rig.call(operation, of_sandbox.clone()).ok();
    }
    rig.call("daemon", json!({})).ok();
    rig.http("GET", "/metrics", &authorization(rig), b"");
}

fn authorization(rig: &Rig) -> String {
    format!(
        "Authorization: Bearer {}\r\n",
        rig.token(Authority::Observability)
    )
}

#[test]
fn memory_stays_what_it_is_over_ten_thousand_observations() {
    let rig = Rig::start_as(Setup {
        longer: Duration::from_secs(240),
        // As many as there are of all that is kept, before memory is looked at the first time.
        config: "[limits]\ntraces = 500\nevents = 500\n",
        ..Setup::default()
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "cat a; echo two > b");
    let resident = || {
        let daemon = rig.call("daemon", json!({})).ok();
        daemon["resident_bytes"].as_u64().unwrap()
    };
    let events = || {
        let request = json!({ "sandbox_id": sandbox, "last_n": 1000 });
        let told = rig.call("events", request).ok();
        told["events"].as_array().unwrap().len()
    };
    (0..300).for_each(|_| observe(&rig, &sandbox));
    let (before, happened) = (resident(), events());
    (0..1000).for_each(|_| observe(&rig, &sandbox));
    let after = resident();
    assert!(
        after < before + (16 << 20),
        "{before} bytes before, {after} bytes after"
    );
    // Who looks makes nothing happen.
    assert_eq!(events(), happened);
}

#[test]
fn control_groups_are_told_as_the_kernel_has_them() {
    if !needs_root("a control group") {
        return;
    }
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let free = rig.sandbox(&project);
    let answer = rig.call("cgroup", json!({ "sandbox_id": free })).ok();
    let groups = answer["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1, "{answer:#}");
    assert_eq!(groups[0]["values"]["pids.max"], 8192, "{answer:#}");
    let request = json!({ "workspace_root": project, "resources": { "pids_max": 77 } });
    let made = rig.call("create_sandbox", request).ok();
    let limited = made["sandboxes"][0]["sandbox_id"].as_str().unwrap();
    let answer = rig.call("cgroup", json!({ "sandbox_id": limited })).ok();
    assert_eq!(answer["errors"], json!([]), "{answer:#}");
    let groups = answer["groups"].as_array().unwrap();
    let values = groups
        .iter()
        .find(|group| group["values"]["pids.max"] == 77);
    let values = &values.unwrap_or_else(|| panic!("{answer:#}"))["values"];
    assert!(values["pids.current"].as_u64().unwrap() >= 1, "{answer:#}");
}

#[test]
fn who_read_a_version_of_a_file_is_found_by_its_content() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n"), ("b", b"other\n")]);
    let sandbox = rig.sandbox(&project);
    let (first, second) = (rig.session(&sandbox), rig.session(&sandbox));
    let digest = rig
        .call("file_read", json!({ "sandbox_id": sandbox, "path": "a" }))
        .ok();
    let digest = digest["digest"].as_str().unwrap().to_owned();
    let reader = rig.run(&sandbox, &first, "cat a b")["command_session_id"].clone();
    // Of what the session itself has changed, the content has no name yet.
    rig.sh(&sandbox, &second, "echo two > a; cat a");
    let request = json!({ "sandbox_id": sandbox, "digest": digest, "kinds": ["open"] });
    let found = rig.call("file_activity", request).ok();
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{found:#}");
    let row = &rows[0];
    assert_eq!(
        (&row["path"], &row["command_session_id"]),
        (&json!("a"), &reader)
    );
    assert_eq!(
        (&row["digest"], &row["argv0"]),
        (&json!(digest), &json!("cat"))
    );
    let depends = json!({
        "sandbox_id": sandbox, "command_session_id": reader, "kinds": ["open", "missing"]
    });
    let found = rig.call("file_activity", depends).ok();
    let paths: Vec<&Value> = found["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["path"])
        .collect();
    assert_eq!(paths, [&json!("a"), &json!("b")]);
    rig.call(
        "file_activity",
        json!({ "sandbox_id": sandbox, "digest": "12" }),
    )
    .refused("invalid_request");
}
