//! The program itself: arguments, socket, end.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

use rig::{Rig, Watchdog, Who, until};
use sandstack_holder::Client;
use sandstack_holder::protocol::Request;

both!(a_shutdown_ends_sessions_and_removes_the_socket,);

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sandbox-holder"))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn bad_arguments_end_with_2_and_a_sentence() {
    let _watchdog = Watchdog::new("bad_arguments", std::time::Duration::from_secs(60));
    for args in [
        &[][..],
        &["serve"],
        &["serve", "--socket", "/x"],
        &["--help-me"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.starts_with("sandbox-holder: ") && text.contains("usage:"),
            "{text}"
        );
    }
    let version = run(&["--version"]);
    assert!(version.status.success());
    let text = String::from_utf8(version.stdout).unwrap();
    assert!(
        text.starts_with(concat!("sandbox-holder ", env!("CARGO_PKG_VERSION"))),
        "{text}"
    );
}

/// A killed holder's socket takes connections for a moment, or as long as some process has it.
#[test]
fn the_socket_of_one_who_is_gone_is_replaced() {
    const OF_ONE_WHO_IS_GONE: &str = "
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
if os.fork():
    os._exit(0)
print('listens', flush=True)
sys.stdin.read()
";
    let name = "the_socket_of_one_who_is_gone_is_replaced";
    let _watchdog = Watchdog::new(name, std::time::Duration::from_secs(60));
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("holder.sock");
    let mut python = Command::new("python3")
        .args(["-c", OF_ONE_WHO_IS_GONE])
        .arg(&socket)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = python.stdin.take();
    let mut said = BufReader::new(python.stdout.take().unwrap());
    assert!(python.wait().unwrap().success());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "listens\n");
    std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let inode = || socket.metadata().map_or(0, |metadata| metadata.ino());
    let old = inode();
    let mut holder = Command::new(env!("CARGO_BIN_EXE_sandbox-holder"))
        .arg("serve")
        .arg("--socket")
        .arg(&socket)
        .arg("--run-dir")
        .arg(dir.path().join("run"))
        .args(["--sandbox-id", "sb-1"])
        .spawn()
        .unwrap();
    until("a socket of the holder", || {
        assert_eq!(holder.try_wait().unwrap(), None);
        ![0, old].contains(&inode())
    });
    until("a holder that answers", || {
        Client::connect(&socket, |_| {}).is_ok()
    });
    holder.kill().unwrap();
    holder.wait().unwrap();
    drop(stdin);
}

#[test]
fn a_live_holder_is_named_and_left_alone() {
    let Some(rig) = Rig::start(Who::Root, "a_live_holder_is_named_and_left_alone") else {
        return;
    };
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&rig.socket()), mode(&rig.run_dir())), (0o600, 0o700));
    let output = rig
        .command(&rig.socket(), &rig.run_dir())
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "a holder (pid {}) already answers on {}",
        rig.holder.id(),
        rig.socket().display()
    );
    assert!(text.contains(&expected), "{text}");
    // Its gateway was not cut off by that.
    rig.client().request(&Request::ListSessions, &[]).unwrap();
    // What is no socket is not replaced.
    let file = rig.base.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let status = rig
        .command(&file, &rig.run_dir())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

fn a_shutdown_ends_sessions_and_removes_the_socket(mut rig: Rig) {
    rig.session("s");
    let tag = rig.tag("shutdown");
    rig.spawn(rig.shell("s", "c", &format!("exec -a {tag} sleep 1000")));
    rig.client().done(&Request::Shutdown).unwrap();
    let mut status = None;
    until("its end", || {
        status = rig.holder.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    assert!(!rig.socket().exists());
    assert_eq!(rig::tagged(&tag), [0; 0]);
    assert!(
        sandstack_holder::evidence::read(&rig.out("c"))
            .unwrap()
            .is_some()
    );
}
