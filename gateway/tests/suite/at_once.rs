//! Everything at once: publishes, squashes, collections, exports, differences. Nothing of it stops
//! another, and what is there afterwards is whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::rig::Rig;

/// Publishers, and how often each publishes.
const LANES: u32 = 3;
const ROUNDS: u32 = 8;

#[test]
fn upkeep_and_work_go_on_beside_each_other() {
    let rig = Rig::start();
    let lines: String = (0..100).map(|line| format!("{line}\n")).collect();
    let project = rig.project("project", &[("shared", lines.as_bytes()), ("gone", b"g\n")]);
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
    thread::scope(|scope| {
        let upkeep: [fn(&Rig, &str, u32); 4] = [squash_and_collect, export, look, refresh];
        for work in upkeep {
            scope.spawn(move || {
                for round in 0.. {
                    work(rig, sandbox, round);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| scope.spawn(move || publish_rounds(rig, sandbox, lane)))
            .collect();
        let ended: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
        done.store(true, Ordering::Relaxed);
        for lane in ended {
            lane.unwrap();
        }
    });
    // The session that was there all the time has what it had.
    let seen = rig.sh(sandbox, &pinned, "cat shared gone | sha1sum; sha1sum < own");
    assert_eq!(seen, format!("{sum}{own}"));
    rig.call(
        "destroy_workspace_session",
        json!({ "workspace_session_id": pinned, "force": true }),
    )
    .ok();
    rig.call("squash_layerstacks", json!({ "sandbox_id": sandbox }))
        .ok();
    let verified = rig.call("verify_store", json!({})).ok();
    assert_eq!(verified["problems"], json!([]), "{verified:#}");
    // Each lane's last edits are there.
    let fresh = rig.session(sandbox);
    let shared = rig.sh(sandbox, &fresh, "cat shared");
    for lane in 0..LANES {
        let line = lane * 30 + ROUNDS;
        let expected = format!("{lane} in round {}", ROUNDS - 1);
        assert_eq!(shared.lines().nth(line as usize), Some(expected.as_str()));
        let mine = rig.sh(sandbox, &fresh, &format!("cat lane{lane}/round"));
        assert_eq!(mine, format!("{}\n", ROUNDS - 1));
    }
    assert_eq!(shared.lines().count(), 100);
}

fn publish_rounds(rig: &Rig, sandbox: &str, lane: u32) {
    let mut session = rig.session(sandbox);
    for round in 0..ROUNDS {
        let line = lane * 30 + round + 2;
        let cmd = format!(
            "mkdir -p lane{lane}; echo {round} > lane{lane}/round; head -c 100000 /dev/urandom > lane{lane}/data; \
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
            if answer["session_open"] == Value::Bool(false) {
                session = rig.session(sandbox);
            }
        }
    }
}

fn squash_and_collect(rig: &Rig, sandbox: &str, round: u32) {
    let request = json!({ "sandbox_id": sandbox, "keep_last": round % 3 });
    let squashed = rig.call("squash_layerstacks", request).ok();
    assert_eq!(squashed["errors"], json!([]), "{squashed:#}");
    rig.call("collect_garbage", json!({})).ok();
}

fn refresh(rig: &Rig, sandbox: &str, round: u32) {
    std::fs::write(rig.dir.join("project/host"), format!("{round}\n")).unwrap();
    let refreshed = rig
        .call("refresh_base", json!({ "sandbox_id": sandbox }))
        .ok();
    assert_eq!(refreshed["outcome"], "published", "{refreshed:#}");
}

fn export(rig: &Rig, sandbox: &str, round: u32) {
    let formats = ["dir", "tar", "tar-zst", "patch"];
    let dest = rig.dir.join(format!("out{round}"));
    let request =
        json!({ "sandbox_id": sandbox, "dest": dest, "format": formats[round as usize % 4] });
    rig.call("export_changes", request).ok();
    assert!(dest.exists());
}

fn look(rig: &Rig, sandbox: &str, _: u32) {
    let listed = rig
        .call("list_layers", json!({ "sandbox_id": sandbox }))
        .ok();
    assert!(!listed["layers"].as_array().unwrap().is_empty());
    let request = json!({ "sandbox_id": sandbox, "from": "B000001", "format": "unified" });
    rig.call("diff_layers", request).ok();
    rig.call("store_usage", json!({})).ok();
}
