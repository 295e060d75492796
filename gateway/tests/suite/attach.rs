//! Views at directories of the host.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::rig::{Rig, needs_root, until};

fn attach(rig: &Rig, session: &str, path: &Path) -> crate::rig::Answer {
    let request = json!({ "workspace_session_id": session, "path": path });
    rig.call("attach_workspace_session", request)
}

fn mounts_at(path: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = path.to_str().unwrap();
    table
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some(path))
        .count()
}

fn attached(answer: &Value) -> Vec<&str> {
    let paths = answer["attachments"].as_array();
    paths
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn a_view_on_the_host_is_the_commands_view() {
    if !needs_root("attaching a view") {
        return;
    }
    let mut rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let place = rig.project("place", &[]);
    let answer = attach(&rig, &session, &place).ok();
    assert_eq!(attached(&answer), [place.to_str().unwrap()]);
    // Again is no error, and no second mount.
    attach(&rig, &session, &place).ok();
    assert_eq!(mounts_at(&place), 1);

    fs::write(place.join("of host"), "host\n").unwrap();
    let seen = rig.sh(&sandbox, &session, "cat 'of host'; echo two >> a");
    assert_eq!(seen, "host\n");
    assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "one\ntwo\n");

    // A killed gateway brings it back, once.
    for _ in 0..2 {
        rig.kill_worker();
        until("the view", || {
            fs::read_to_string(place.join("of host")).is_ok_and(|text| text == "host\n")
        });
        assert_eq!(mounts_at(&place), 1);
    }
    // So does a stopped one, which leaves nothing mounted.
    rig.stop();
    assert_eq!(mounts_at(&place), 0);
    rig.spawn();
    rig.await_socket();
    assert_eq!(fs::read_to_string(place.join("of host")).unwrap(), "host\n");

    let request = json!({ "workspace_session_id": session, "path": place });
    for _ in 0..2 {
        let answer = rig.call("detach_workspace_session", request.clone()).ok();
        assert!(attached(&answer).is_empty(), "{answer}");
    }
    assert_eq!(mounts_at(&place), 0);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);

    // It goes with its session, also from under those who are in it.
    attach(&rig, &session, &place).ok();
    let inside = fs::File::open(place.join("a")).unwrap();
    let request = json!({ "workspace_session_id": session });
    let published = rig.call("publish_workspace_session", request).ok();
    assert_eq!(published["outcome"], "published", "{published}");
    assert_eq!(mounts_at(&place), 0);
    drop(inside);
    rig.call("destroy_sandbox", json!({ "sandbox_id": sandbox }))
        .ok();
    rig.assert_no_debris();
}

/// A view that is attached when another session begins is no part of that one, and ends when it should.
#[test]
fn sessions_have_nothing_of_an_attached_view() {
    if !needs_root("attaching a view") {
        return;
    }
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let place = rig.project("place", &[]);
    attach(&rig, &session, &place).ok();
    fs::write(place.join("a"), "two\n").unwrap();
    let other = rig.session(&sandbox);
    let views = rig.sh(
        &sandbox,
        &other,
        "grep -c ' fuse sandstack-session ' /proc/self/mountinfo",
    );
    assert_eq!(views, "1\n");
    // One whom nobody can keep from copying it.
    let mut copier = Command::new("unshare")
        .args(["--mount", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, stdout) = (copier.stdin.take().unwrap(), copier.stdout.take().unwrap());
    stdin.write_all(b"there\n").unwrap();
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    assert_eq!(said, "there\n");

    let request = json!({ "workspace_session_id": session });
    let published = rig.call("publish_workspace_session", request.clone()).ok();
    assert_eq!(published["outcome"], "published", "{published}");
    rig.call("inspect_workspace_session", request)
        .refused("not_found");
    assert_eq!(mounts_at(&place), 0);
    drop(stdin);
    copier.wait().unwrap();
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
    rig.assert_no_debris();
}

#[test]
fn places_that_will_not_do_are_refused() {
    if !needs_root("attaching a view") {
        return;
    }
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let (session, other) = (rig.session(&sandbox), rig.session(&sandbox));
    let place = rig.project("place", &[]);
    attach(&rig, &session, &place).ok();
    attach(&rig, &other, &place).refused("already_exists");
    for (path, told) in [
        (Path::new("relative"), "not absolute"),
        (Path::new("/"), "below /"),
        (Path::new("/tmp/.."), "`..`"),
        (Path::new("/nonexistent/place"), "does not exist"),
        (&project.join("a"), "no directory"),
        (&project, "not empty"),
        (&rig.state().join("sandboxes"), "own directory"),
    ] {
        let answer = attach(&rig, &session, path);
        let message = answer.refused("invalid_request");
        assert!(message.contains(told), "{}: {message}", path.display());
    }
    attach(&rig, "ws-0000000000", &place).refused("not_found");
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    assert_eq!(mounts_at(&place), 0);
    rig.assert_no_debris();
}
