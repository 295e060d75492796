//! What is kept of commands that have ended is bounded, whatever their number.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, until};

/// Ended commands that are kept.
const KEPT: usize = 50;

/// Commands that are run: some, or as many as the design names.
fn commands() -> usize {
    match std::env::var("SANDSTACK_TEST_LOAD").as_deref() {
        Ok("full") => 10_000,
        _ => 300,
    }
}

#[test]
fn of_many_commands_the_newest_are_kept() {
    let mut rig = Rig::start_as(Setup {
        config: &format!("[limits]\nended_commands = {KEPT}\n"),
        longer: Duration::from_secs(commands() as u64 / 5),
        ..Setup::default()
    });
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let session = rig.session(&sandbox);
    let exec = |number: usize| -> Value {
        let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
            "cmd": format!("echo {number}"), "tty": number.is_multiple_of(2), "yield_time_ms": 60_000 });
        let done = rig.call("exec_command", request).ok();
        assert_eq!(done["exit_code"], 0, "{done:#}");
        done["command_session_id"].clone()
    };
    let first = exec(0);
    let next = AtomicUsize::new(1);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < commands() {
                    exec(next.load(Ordering::Relaxed));
                }
            });
        }
    });
    let last = exec(7);
    let dir = rig
        .state()
        .join("sandboxes")
        .join(&sandbox)
        .join("commands");
    let kept = || fs::read_dir(&dir).unwrap().count();
    until("old transcripts to go", || kept() <= KEPT + 1);
    let check = |rig: &Rig| {
        let request = json!({ "sandbox_id": sandbox, "limit": 1000 });
        let listed = rig.call("list_commands", request).ok();
        let listed = listed["commands"].as_array().unwrap().len();
        assert!((KEPT..=KEPT + 1).contains(&listed), "{listed} are listed");
        let read = |id: &Value| rig.call("read_command_lines", json!({ "command_session_id": id }));
        read(&first).refused("not_found");
        assert_eq!(read(&last).ok()["lines"][0]["content"], "7");
    };
    check(&rig);
    // The holder has forgotten them as well: a gateway that comes back is told of none.
    rig.kill_worker();
    check(&rig);
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}
