//! A full disk, in import, in publish and under sessions at work.

use std::fs::File;
use std::path::PathBuf;

use rustix::fs::FallocateFlags;
use serde_json::json;

use crate::rig::{Rig, Setup, needs_root, until};

const SMALL_DISK: Setup<'static> = Setup {
    longer: std::time::Duration::ZERO,
    config: "",
    ordinary: false,
    mounts: "mount -t tmpfs -o size=256m none %",
    outside: false,
};

/// Fills the gateway's disk but for some MiB, until it is dropped.
struct Filler(PathBuf);

impl Filler {
    fn leave(rig: &Rig, free_mib: u64) -> Filler {
        let state = rig.seen(&rig.state());
        let disk = rustix::fs::statvfs(&state).unwrap();
        let free = disk.f_bavail * disk.f_frsize;
        let path = state.join("filler");
        let file = File::create(&path).unwrap();
        let length = free.checked_sub(free_mib << 20).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length).unwrap();
        Filler(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Content that neither compresses nor repeats.
fn noise(bytes: usize, mut seed: u64) -> Vec<u8> {
    let mut content = Vec::with_capacity(bytes);
    while content.len() < bytes {
        // xorshift64 (Marsaglia 2003).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        content.extend_from_slice(&seed.to_le_bytes());
    }
    content
}

#[test]
fn an_import_that_does_not_fit_leaves_room_for_one_that_does() {
    if !needs_root("a small disk of the gateway's own") {
        return;
    }
    let rig = Rig::start_as(SMALL_DISK);
    let files: Vec<(String, Vec<u8>)> = (0..60)
        .map(|n| (format!("dir{}/f{n}", n % 7), noise(1 << 20, n + 1)))
        .collect();
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(path, content)| (&**path, &**content))
        .collect();
    let (large, small) = (
        rig.project("large", &files),
        rig.project("small", &files[..20]),
    );
    for free_mib in [2, 30] {
        let _filler = Filler::leave(&rig, free_mib);
        let answer = rig.call("create_sandbox", json!({ "workspace_root": large }));
        assert!(answer.refused("quota_exceeded").contains("full"));
        rig.assert_no_debris();
    }
    let sandbox = rig.sandbox(&small);
    let session = rig.session(&sandbox);
    let sums = rig.sh(&sandbox, &session, "sha256sum dir*/* | sort | sha256sum");
    let expected = std::process::Command::new("sh")
        .args(["-c", "sha256sum dir*/* | sort | sha256sum"])
        .current_dir(&small)
        .output()
        .unwrap();
    assert_eq!(sums.as_bytes(), expected.stdout);
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
}

#[test]
fn a_publish_that_does_not_fit_changes_nothing_and_keeps_the_work() {
    if !needs_root("a small disk of the gateway's own") {
        return;
    }
    let rig = Rig::start_as(SMALL_DISK);
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let made = rig.run(
        &sandbox,
        &session,
        "head -c 30000000 /dev/urandom > big && echo two >> a && sync",
    );
    assert_eq!(made["exit_code"], 0, "{made:#}");
    let sum = rig.sh(&sandbox, &session, "sha256sum < big");
    let request = json!({ "workspace_session_id": session });
    for free_mib in [1, 20] {
        let _filler = Filler::leave(&rig, free_mib);
        let answer = rig.call("publish_workspace_session", request.clone());
        assert!(answer.refused("quota_exceeded").contains("full"));
        let stack = rig
            .call("layerstack", json!({ "sandbox_id": sandbox }))
            .ok();
        assert_eq!(stack["head"], "B000001", "{stack:#}");
    }
    assert_eq!(
        rig.sh(&sandbox, &session, "sha256sum < big; cat a"),
        format!("{sum}one\ntwo\n")
    );
    let published = rig.call("publish_workspace_session", request).ok();
    assert_eq!(published["outcome"], "published", "{published:#}");
    rig.call("destroy_sandbox", json!({ "sandbox_id": sandbox }))
        .ok();
    rig.assert_no_debris();
}

#[test]
fn on_a_full_disk_the_writer_is_told_and_the_rest_goes_on() {
    if !needs_root("a small disk of the gateway's own") {
        return;
    }
    let rig = Rig::start_as(SMALL_DISK);
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo mine > work && sync");
    // A writer that was there before, and says what it is told.
    let cmd =
        "read line; head -c 60000000 /dev/urandom > big && exit 7; grep -q mine work && exit 9";
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "cmd": cmd,
        "tty": false, "keep_stdin_open": true, "yield_time_ms": 0 });
    let writer = rig.call("exec_command", request).ok();
    {
        let _filler = Filler::leave(&rig, 12);
        let request = json!({ "command_session_id": writer["command_session_id"], "stdin": "\n",
            "eof": true, "yield_time_ms": 60_000 });
        let ended = rig.call("write_command_stdin", request).ok();
        // What it says is written to the same disk, so its code tells.
        assert_eq!(ended["exit_code"], 9, "{ended:#}");
        let read =
            json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "work" });
        assert_eq!(rig.call("file_read", read).ok()["content"], "mine\n");
        let remove =
            json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "big" });
        rig.call("file_delete", remove).ok();
    }
    {
        // Not even room for a command's output.
        let _filler = Filler::leave(&rig, 0);
        let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
            "cmd": "head -c 3000000 /dev/zero | tr '\\0' x", "tty": false, "yield_time_ms": 30_000 });
        let answer = rig.call("exec_command", request);
        if answer.status != 200 {
            answer.refused("quota_exceeded");
        }
        rig.call("list_sandboxes", json!({})).ok();
    }
    assert_eq!(
        rig.sh(&sandbox, &session, "cat work; echo more > b; cat b"),
        "mine\nmore\n"
    );
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}

/// What a command says while the disk is full is lost, and whoever reads its output is told: while it
/// runs, when another gateway has taken over, and after it has ended.
#[test]
fn lost_output_is_told_of() {
    if !needs_root("a small disk of the gateway's own") {
        return;
    }
    // Over `/dev/fuse` the command goes on when its gateway is killed.
    let mut rig = Rig::start_as(Setup {
        config: "[views]\ntransport = \"fuse\"\n",
        ..SMALL_DISK
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let cmd = "echo first; read line; head -c 3000000 /dev/zero | tr '\\0' x; read line; \
        echo fine >&2; exit 3";
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "cmd": cmd,
        "tty": false, "keep_stdin_open": true, "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok()["command_session_id"].clone();
    let read = |rig: &Rig, more: serde_json::Value| {
        let mut request = json!({ "command_session_id": command });
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        rig.call("read_command_lines", request).ok()
    };
    let told = |rig: &Rig| {
        let why = read(rig, json!({}))["output_error"].clone();
        why.as_str()
            .is_some_and(|why| why.starts_with("No space left on device"))
    };
    until("its first line", || {
        read(&rig, json!({}))["total_lines"] == 1
    });
    assert_eq!(read(&rig, json!({}))["output_error"], json!(null));
    {
        let _filler = Filler::leave(&rig, 0);
        let request = json!({ "command_session_id": command, "stdin": "\n", "yield_time_ms": 0 });
        rig.call("write_command_stdin", request).ok();
        until("it to be told of while the command runs", || told(&rig));
    }
    rig.kill_worker();
    until("another gateway to know of it", || told(&rig));
    let request = json!({ "command_session_id": command, "stdin": "\n", "eof": true,
        "yield_time_ms": 60_000 });
    let ended = rig.call("write_command_stdin", request).ok();
    assert_eq!(ended["exit_code"], 3, "{ended:#}");
    assert!(ended["output"]["output_error"].is_string(), "{ended:#}");
    // What was kept is the beginning, and the other stream has lost nothing.
    assert_eq!(ended["stderr"]["content"], "fine\n", "{ended:#}");
    assert_eq!(ended["stderr"]["output_error"], json!(null), "{ended:#}");
    let kept = read(&rig, json!({ "start_byte": 0 }));
    let said = kept["chunk"]["content"].as_str().unwrap();
    assert!(said.starts_with("first\n") && said[6..].bytes().all(|byte| byte == b'x'));
    assert!(
        kept["total_bytes"].as_u64().unwrap() < 3_000_006,
        "{kept:#}"
    );
    assert!(kept["output_error"].is_string());
    rig.kill_worker();
    assert!(told(&rig), "not on record");
    let errors = read(&rig, json!({ "stream": "stderr" }));
    assert_eq!(errors["output_error"], json!(null), "{errors:#}");
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}
