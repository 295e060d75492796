//! How a gateway starts, and how it refuses to.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Output;

use serde_json::json;

use crate::rig::{Rig, Setup, needs_root};

fn fails(rig: &Rig) -> Output {
    let output = rig.command().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_gateway_on_a_state_directory_names_the_first() {
    let mut rig = Rig::start();
    let worker = rig.worker().as_raw_nonzero().to_string();
    let told = said(&fails(&rig));
    assert!(
        told.contains(&worker) && told.contains(&*rig.state().to_string_lossy()),
        "{told}"
    );
    rig.call("list_sandboxes", json!({})).ok();
    rig.stop();
    // Nothing of the first one keeps others out.
    rig.spawn();
    rig.await_socket();
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let mut rig = Rig::prepare(Setup::default());
    fs::create_dir(rig.state()).unwrap();
    let socket = rig.state().join("gateway.sock");
    drop(UnixListener::bind(&socket).unwrap());
    rig.spawn();
    rig.await_socket();
    rig.call("list_sandboxes", json!({})).ok();
    rig.stop();
    assert!(!socket.exists(), "an orderly end removes the socket");

    let other = UnixListener::bind(&socket).unwrap();
    let told = said(&fails(&rig));
    assert!(
        told.contains("gateway.sock") && told.contains("another process"),
        "{told}"
    );
    assert!(socket.exists());
    drop(other);
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "somebody's file").unwrap();
    let told = said(&fails(&rig));
    assert!(told.contains("gateway.sock is no socket"), "{told}");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "somebody's file");
}

#[test]
fn what_is_wrong_with_the_state_directory_or_the_configuration_is_said() {
    let rig = Rig::prepare(Setup {
        config: "[limits]\nconcurent_requests = 3\n",
        ..Setup::default()
    });
    let told = said(&fails(&rig));
    assert!(
        told.contains("concurent_requests") && told.contains("config.toml"),
        "{told}"
    );

    let rig = Rig::prepare(Setup::default());
    fs::write(rig.state(), "a file").unwrap();
    let told = said(&fails(&rig));
    assert!(told.contains(&*rig.state().to_string_lossy()), "{told}");
}

#[test]
fn a_state_directory_that_cannot_be_written_is_named() {
    if !needs_root("a filesystem that is read-only") {
        return;
    }
    let mounts = "mount -t tmpfs none %; mount -o remount,ro %";
    let rig = Rig::prepare(Setup {
        mounts,
        ..Setup::default()
    });
    let told = said(&fails(&rig));
    let named = told.contains(&*rig.state().to_string_lossy());
    assert!(named && told.contains("Read-only file system"), "{told}");
    // One that has been in use: what is in it stays as it is.
    let mut rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo mine > work");
    rig.stop();
    let script = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec \"$@\"",
        rig.state().display()
    );
    let command = rig.command();
    let output = std::process::Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &script,
            "sh",
        ])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        said(&output).contains("Read-only file system"),
        "{output:?}"
    );
    rig.spawn();
    rig.await_socket();
    assert_eq!(rig.sh(&sandbox, &session, "cat work"), "mine\n");
}

#[test]
fn without_dev_fuse_sessions_are_refused_with_the_fix() {
    if !needs_root("hiding /dev/fuse from a gateway") {
        return;
    }
    for (mounts, ordinary) in [
        ("mount --bind /dev/null /dev/fuse", false),
        ("mount --bind /dev/null /dev/fuse", true),
        (
            "mount -t tmpfs none /dev; touch /dev/null; mount --bind /dev/zero /dev/null 2>/dev/null || true",
            false,
        ),
    ] {
        let rig = Rig::start_as(Setup {
            mounts,
            ordinary,
            ..Setup::default()
        });
        let project = rig.project("project", &[("a", b"a")]);
        let sandbox = rig.sandbox(&project);
        for _ in 0..2 {
            let answer = rig.call("create_workspace_session", json!({ "sandbox_id": sandbox }));
            let message = answer.refused("unsupported");
            assert!(message.contains("/dev/fuse"), "{message}");
        }
        let listed = rig
            .call("list_workspace_sessions", json!({ "sandbox_id": sandbox }))
            .ok();
        assert_eq!(listed["sessions"], json!([]));
        rig.call("destroy_sandbox", json!({ "sandbox_id": sandbox }))
            .ok();
        rig.assert_no_debris();
    }
}
