//! Everything at once: publishes, conflicts, squashes, collections, exports, differences, imports.
//! Nothing of it stops another, what was acknowledged is there, and what is there is whole.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{Rig, Setup};

/// Publishers who do not get into each other's way.
const LANES: u32 = 3;
/// Publishers who all change one line, so that all but one of those who meet are refused.
const CONTENDERS: u32 = 2;
/// Lines of the shared file that each lane changes in turn.
const LINES: u32 = 20;

/// How often each publishes: `SANDSTACK_TEST_CASES`, or few. 200 take some minutes.
fn rounds() -> u32 {
    let rounds = std::env::var("SANDSTACK_TEST_CASES").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(8)
}

/// A publish that was acknowledged.
struct Acknowledged {
    layer: String,
    session: String,
    /// What is in the contended file since then, if it changed that.
    content: Option<String>,
}

#[test]
fn upkeep_and_work_go_on_beside_each_other() {
    let rig = Rig::start_as(Setup {
        longer: Duration::from_secs(10) * rounds(),
        ..Setup::default()
    });
    let lines: String = (0..100).map(|line| format!("{line}\n")).collect();
    let files: &[(&str, &[u8])] = &[
        ("shared", lines.as_bytes()),
        ("gone", b"g\n"),
        ("contended", b"nobody\n"),
    ];
    let project = rig.project("project", files);
    rig.project("neighbour", files);
    let sandbox = rig.sandbox(&project);
    let pinned = rig.session(&sandbox);
    let sum = rig.sh(
        &sandbox,
        &pinned,
        "cat shared gone | sha1sum; head -c 300000 /dev/urandom > own",
    );
    let own = rig.sh(&sandbox, &pinned, "sha1sum < own");
    let done = AtomicBool::new(false);
    let (rig, sandbox, done) = (&rig, sandbox.as_str(), &done);
    let acknowledged = thread::scope(|scope| {
        let upkeep: [fn(&Rig, &str, u32); 6] = [
            squash_and_collect,
            export,
            look,
            verify,
            refresh,
            come_and_go,
        ];
        let upkeep: Vec<_> = upkeep
            .into_iter()
            .map(|work| {
                scope.spawn(move || {
                    for round in 0.. {
                        work(rig, sandbox, round);
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                })
            })
            .collect();
        let mut workers: Vec<_> = (0..LANES)
            .map(|lane| scope.spawn(move || publish_rounds(rig, sandbox, lane)))
            .collect();
        workers.extend(
            (0..CONTENDERS).map(|number| scope.spawn(move || contend(rig, sandbox, number))),
        );
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        for work in upkeep {
            work.join().unwrap();
        }
        ended
            .into_iter()
            .flat_map(|worker| worker.unwrap())
            .collect::<Vec<_>>()
    });
    // The session that was there all the time has what it had.
    let seen = rig.sh(sandbox, &pinned, "cat shared gone | sha1sum; sha1sum < own");
    assert_eq!(seen, format!("{sum}{own}"));
    rig.call(
        "destroy_workspace_session",
        json!({ "workspace_session_id": pinned, "force": true }),
    )
    .ok();
    squash_and_collect(rig, sandbox, 0);
    verify(rig, sandbox, 0);
    check_history(rig, sandbox, &acknowledged);
    check_content(rig, sandbox, &acknowledged);
}

/// Every publish that was acknowledged is in the history, by whoever made it.
fn check_history(rig: &Rig, sandbox: &str, acknowledged: &[Acknowledged]) {
    let mut listed = std::collections::BTreeMap::new();
    let mut request = json!({ "sandbox_id": sandbox, "limit": 100 });
    loop {
        let page = rig.call("list_layers", request.clone()).ok();
        for layer in page["layers"].as_array().unwrap() {
            let id = layer["layer"].as_str().unwrap().to_owned();
            listed.insert(id, layer["owner"].as_str().unwrap().to_owned());
        }
        match &page["next_page_token"] {
            Value::Null => break,
            token => request["page_token"] = token.clone(),
        }
    }
    for publish in acknowledged {
        let owner = listed.get(&publish.layer);
        let owner = owner.unwrap_or_else(|| panic!("{} is lost", publish.layer));
        assert!(owner.ends_with(&publish.session), "{owner}");
    }
}

fn check_content(rig: &Rig, sandbox: &str, acknowledged: &[Acknowledged]) {
    let fresh = rig.session(sandbox);
    let shared = rig.sh(sandbox, &fresh, "cat shared");
    assert_eq!(shared.lines().count(), 100);
    for lane in 0..LANES {
        let log = rig.sh(sandbox, &fresh, &format!("cat lane{lane}/log"));
        let expected: String = (0..rounds()).map(|round| format!("{round}\n")).collect();
        assert_eq!(log, expected);
        for round in rounds().saturating_sub(LINES)..rounds() {
            let line = shared.lines().nth(line_of(lane, round) as usize - 1);
            assert_eq!(line, Some(format!("{lane} in round {round}").as_str()));
        }
    }
    let newest = acknowledged
        .iter()
        .filter(|publish| publish.content.is_some())
        .max_by_key(|publish| publish.layer[1..].parse::<u64>().unwrap());
    let content = newest.unwrap().content.clone().unwrap();
    assert_eq!(rig.sh(sandbox, &fresh, "cat contended"), content);
}

/// The line of the shared file, from 1, that a lane changes in a round. There is an unchanged line
/// between two lanes' at all times.
fn line_of(lane: u32, round: u32) -> u32 {
    lane * 30 + round % LINES + 2
}

fn publish_rounds(rig: &Rig, sandbox: &str, lane: u32) -> Vec<Acknowledged> {
    let mut acknowledged = Vec::new();
    let mut session = rig.session(sandbox);
    for round in 0..rounds() {
        let line = line_of(lane, round);
        let cmd = format!(
            "mkdir -p lane{lane}; echo {round} >> lane{lane}/log; head -c 100000 /dev/urandom > lane{lane}/data; \
             sed -i '{line}s/.*/{lane} in round {round}/' shared"
        );
        rig.sh(sandbox, &session, &cmd);
        // Whole, in parts, and going on, by turns.
        let requests = match round % 3 {
            0 => vec![json!({})],
            1 => vec![json!({ "keep_open": true })],
            _ => vec![
                json!({ "paths": [format!("lane{lane}")] }),
                json!({ "keep_open": true }),
            ],
        };
        for mut request in requests {
            request["workspace_session_id"] = json!(session);
            let answer = rig.call("publish_workspace_session", request).ok();
            assert_eq!(answer["outcome"], "published", "{answer:#}");
            acknowledged.push(Acknowledged {
                layer: answer["layer"].as_str().unwrap().to_owned(),
                session: session.clone(),
                content: None,
            });
            if answer["session_open"] == Value::Bool(false) {
                session = rig.session(sandbox);
            }
        }
    }
    acknowledged
}

/// Changes a line that another changes too. Whoever is refused is told the path and keeps its work.
fn contend(rig: &Rig, sandbox: &str, number: u32) -> Vec<Acknowledged> {
    let mut acknowledged = Vec::new();
    for round in 0..rounds() {
        let session = rig.session(sandbox);
        let content = format!("{number} in round {round}\n");
        let write = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
            "path": "contended", "content": content });
        rig.call("file_write", write).ok();
        let request = json!({ "workspace_session_id": session });
        let answer = rig.call("publish_workspace_session", request).ok();
        if answer["outcome"] == "published" {
            acknowledged.push(Acknowledged {
                layer: answer["layer"].as_str().unwrap().to_owned(),
                session,
                content: Some(content),
            });
            continue;
        }
        assert_eq!(answer["outcome"], "conflict", "{answer:#}");
        assert_eq!(answer["conflicts"][0]["path"], "contended");
        assert_eq!(rig.sh(sandbox, &session, "cat contended"), content);
        let request = json!({ "workspace_session_id": session, "force": true });
        rig.call("destroy_workspace_session", request).ok();
    }
    acknowledged
}

fn squash_and_collect(rig: &Rig, sandbox: &str, round: u32) {
    let request = json!({ "sandbox_id": sandbox, "keep_last": round % 3 });
    let squashed = rig.call("squash_layerstacks", request).ok();
    assert_eq!(squashed["errors"], json!([]), "{squashed:#}");
    rig.call("collect_garbage", json!({})).ok();
}

fn refresh(rig: &Rig, sandbox: &str, round: u32) {
    fs::write(rig.dir.join("project/host"), format!("{round}\n")).unwrap();
    let refreshed = rig
        .call("refresh_base", json!({ "sandbox_id": sandbox }))
        .ok();
    assert_eq!(refreshed["outcome"], "published", "{refreshed:#}");
}

/// Another sandbox with the same content comes, publishes, and goes.
fn come_and_go(rig: &Rig, _: &str, round: u32) {
    let sandbox = rig.sandbox(&rig.dir.join("neighbour"));
    let write = json!({ "sandbox_id": sandbox, "path": "contended",
        "content": format!("{} in round {round}\n", round % 2) });
    rig.call("file_write", write).ok();
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
}

fn export(rig: &Rig, sandbox: &str, round: u32) {
    let formats = ["dir", "tar", "tar-zst", "patch"];
    let dest = rig.dir.join(format!("out{round}"));
    let mut request =
        json!({ "sandbox_id": sandbox, "dest": dest, "format": formats[round as usize % 4] });
    // By turns all of the head, and what differs from the base.
    if round / 4 % 2 == 1 {
        request["from"] = json!("B000001");
    }
    rig.call("export_changes", request).ok();
    assert!(dest.exists());
    remove(&dest);
}

fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
}

fn look(rig: &Rig, sandbox: &str, _: u32) {
    let listed = rig
        .call("list_layers", json!({ "sandbox_id": sandbox }))
        .ok();
    assert!(!listed["layers"].as_array().unwrap().is_empty());
    let request = json!({ "sandbox_id": sandbox, "from": "B000001", "format": "unified" });
    rig.call("diff_layers", request).ok();
    let request = json!({ "sandbox_id": sandbox, "path": "shared" });
    let blame = rig.call("file_blame", request).ok();
    assert_eq!(blame["total_lines"], 100, "{blame:#}");
    rig.call("store_usage", json!({})).ok();
}

fn verify(rig: &Rig, _: &str, _: u32) {
    let verified = rig.call("verify_store", json!({})).ok();
    assert_eq!(verified["problems"], json!([]), "{verified:#}");
}
