//! Publishes after which the session goes on, and what a publish says of reads.

use serde_json::{Value, json};

use crate::rig::Rig;

fn publish(rig: &Rig, session: &str, more: Value) -> Value {
    let mut request = json!({ "workspace_session_id": session });
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    rig.call("publish_workspace_session", request).ok()
}

fn changed(rig: &Rig, session: &str) -> Vec<String> {
    let request = json!({ "workspace_session_id": session });
    let answer = rig.call("diff_workspace_session", request).ok();
    let changes = answer["changes"].as_array().unwrap().iter();
    changes
        .map(|change| change["path"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_session_goes_on_with_what_it_did_not_publish() {
    let mut rig = Rig::start();
    let files: &[(&str, &[u8])] = &[("a", b"1\n2\n3\n4\n5\n"), ("b", b"b\n"), ("c", b"c\n")];
    let project = rig.project("project", files);
    let sandbox = rig.sandbox(&project);
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    rig.sh(
        &sandbox,
        &session,
        "sed -i s/2/two/ a; echo mine >> b; rm c; mkdir d; head -c 100000 /dev/urandom > d/big",
    );
    let sum = rig.sh(&sandbox, &session, "sha1sum < d/big");
    rig.sh(&sandbox, &other, "sed -i s/5/five/ a; echo o > other");
    publish(&rig, &other, json!({}));

    // A dry run and a path at which nothing is changed change nothing.
    let dry = publish(&rig, &session, json!({ "paths": ["a"], "dry_run": true }));
    assert_eq!(
        (&dry["outcome"], &dry["changed_paths"]),
        (&json!("dry_run"), &json!(1))
    );
    let request = json!({ "workspace_session_id": session, "paths": ["a", "no/such"] });
    let answer = rig.call("publish_workspace_session", request);
    assert!(answer.refused("not_found").contains("no/such"));
    assert_eq!(changed(&rig, &session), ["a", "b", "c", "d", "d/big"]);

    let part = publish(&rig, &session, json!({ "paths": ["a"] }));
    assert_eq!(part["outcome"], "published", "{part:#}");
    assert_eq!(
        (&part["session_open"], &part["base"], &part["merged_paths"]),
        (&json!(true), &json!("L000003"), &json!(["a"]))
    );
    // It is on the new layer, with the rest as its own.
    assert_eq!(changed(&rig, &session), ["b", "c", "d", "d/big"]);
    let shown = rig.sh(&sandbox, &session, "cat a b other; ls; sha1sum < d/big");
    assert_eq!(
        shown,
        format!("1\ntwo\n3\n4\nfive\nb\nmine\no\na\nb\nd\nother\n{sum}")
    );
    let record = rig
        .call(
            "inspect_workspace_session",
            json!({ "workspace_session_id": session }),
        )
        .ok();
    assert_eq!(
        (
            &record["session"]["base"],
            &record["session"]["layers_behind_head"]
        ),
        (&json!("L000003"), &json!(0))
    );
    assert_eq!(record["session"]["state"], "active");

    // Nothing of it is garbage, and a restart finds all of it.
    rig.call("collect_garbage", json!({})).ok();
    rig.kill_worker();
    assert_eq!(
        rig.sh(&sandbox, &session, "cat b; sha1sum < d/big"),
        format!("b\nmine\n{sum}")
    );
    assert_eq!(
        rig.call("verify_store", json!({})).ok()["problems"],
        json!([])
    );
    rig.sh(&sandbox, &session, "echo more >> b");
    let rest = publish(&rig, &session, json!({ "keep_open": true }));
    assert_eq!(
        (&rest["outcome"], &rest["base"]),
        (&json!("published"), &json!("L000004"))
    );
    assert_eq!(changed(&rig, &session), Vec::<String>::new());
    assert_eq!(
        rig.sh(&sandbox, &session, "cat b; ls"),
        "b\nmine\nmore\na\nb\nd\nother\n"
    );
    let none = publish(&rig, &session, json!({ "keep_open": true }));
    assert_eq!(
        (&none["outcome"], &none["session_open"]),
        (&json!("no_change"), &json!(true))
    );
    let last = publish(&rig, &session, json!({}));
    assert_eq!(
        (&last["outcome"], &last["session_open"]),
        (&json!("no_change"), &json!(false))
    );
    rig.call("destroy_sandbox", json!({ "sandbox_id": sandbox }))
        .ok();
    rig.assert_no_debris();
}

#[test]
fn a_rest_that_conflicts_is_told_and_kept() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"a\n"), ("b", b"1\n")]);
    let sandbox = rig.sandbox(&project);
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    rig.sh(&sandbox, &session, "echo mine >> a; echo mine > b");
    rig.sh(&sandbox, &other, "echo theirs > b");
    publish(&rig, &other, json!({}));
    let conflict = publish(&rig, &session, json!({ "keep_open": true }));
    assert_eq!(
        (&conflict["outcome"], &conflict["session_open"]),
        (&json!("conflict"), &json!(true))
    );
    let part = publish(&rig, &session, json!({ "paths": ["a"] }));
    assert_eq!(
        (&part["outcome"], &part["rest_conflicts"], &part["base"]),
        (&json!("published"), &json!(["b"]), &json!("B000001"))
    );
    assert_eq!(rig.sh(&sandbox, &session, "cat a b"), "a\nmine\nmine\n");
    rig.sh(&sandbox, &session, "echo theirs > b; echo c > c");
    let rest = publish(&rig, &session, json!({}));
    assert_eq!(
        (&rest["outcome"], &rest["changed_paths"]),
        (&json!("published"), &json!(1))
    );
}

#[test]
fn what_a_session_read_is_validated_on_request() {
    let rig = Rig::start();
    let files: &[(&str, &[u8])] = &[
        ("read", b"r\n"),
        ("statted", b"s\n"),
        ("untouched", b"u\n"),
        ("dir/a", b"a\n"),
    ];
    let sandbox = rig.sandbox(&rig.project("project", files));
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    rig.sh(
        &sandbox,
        &session,
        "cat read; stat statted; ls dir; test -e absent || echo none; echo mine > mine",
    );
    rig.sh(
        &sandbox,
        &other,
        "for f in read statted untouched; do echo more >> $f; done; echo b > dir/b; echo x > absent",
    );
    let layer = publish(&rig, &other, json!({}))["layer"].clone();
    let rejected = publish(&rig, &session, json!({ "validate": "reads" }));
    assert_eq!(rejected["outcome"], "stale_reads", "{rejected:#}");
    assert_eq!(rejected["session_open"], true);
    let stale: Vec<String> = rejected["stale_reads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stale| {
            assert_eq!(stale["layer"], layer);
            let owner = stale["owner"].as_str().unwrap();
            assert!(owner.ends_with(&other), "{owner}");
            format!("{} {}", stale["path"], stale["dependency"])
        })
        .collect();
    let expected = [
        "\"absent\" \"absence\"",
        "\"dir\" \"listing\"",
        "\"read\" \"content\"",
    ];
    assert_eq!(stale, expected);
    let published = publish(&rig, &session, json!({}));
    assert_eq!(
        (&published["outcome"], &published["stale_read_count"]),
        (&json!("published"), &json!(3))
    );
    // A session that records nothing cannot have its reads validated.
    let request = json!({ "sandbox_id": sandbox, "trace_mode": "off" });
    let unseen = rig.call("create_workspace_session", request).ok();
    let unseen = unseen["workspace_session_id"].as_str().unwrap();
    rig.sh(&sandbox, unseen, "echo x > x");
    let request = json!({ "workspace_session_id": unseen, "validate": "reads" });
    let answer = rig.call("publish_workspace_session", request);
    assert!(answer.refused("conflict").contains("off"));
}

/// A survivor that still has files mapped: what it stored is published.
#[test]
fn stores_in_mappings_that_are_still_there_are_published() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    let session = rig.session(&sandbox);
    let script = "import mmap, os, sys, time
maps = []
for number in range(30):
    file = open('m%d' % number, 'w+b')
    file.truncate(1 << 20)
    maps.append(mmap.mmap(file.fileno(), 1 << 20))
if os.fork():
    while not os.path.exists('stored'): time.sleep(0.01)
    os._exit(0)
os.setsid()
for mapped in maps:
    for at in range(7, 1 << 20, 4096): mapped[at] = 120
open('stored', 'w').close()
for fd in (0, 1, 2): os.close(fd)
time.sleep(1000)
";
    rig.project("script", &[("map.py", script.as_bytes())]);
    let script = rig.dir.join("script/map.py");
    let copy = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "map.py",
        "content": std::fs::read_to_string(script).unwrap() });
    rig.call("file_write", copy).ok();
    let reply = rig.run(&sandbox, &session, "python3 map.py");
    assert_eq!(reply["exit_code"], 0, "python3 is needed: {reply:#}");
    assert!(
        !reply["survivors"].as_array().unwrap().is_empty(),
        "{reply:#}"
    );
    let published = publish(&rig, &session, json!({}));
    assert_eq!(published["outcome"], "published", "{published:#}");
    let fresh = rig.session(&sandbox);
    let check = "for i in $(seq 0 29); do tr -d '\\0' < m$i | wc -c; done | sort -u";
    assert_eq!(rig.sh(&sandbox, &fresh, check).trim(), "256");
}
