//! The CLIs on a terminal of their own.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sandstack_api::Authority;
use serde_json::json;

use crate::answers;
use crate::gateway::{Gateway, Reply, TOKEN};
use crate::process::binary;

/// A terminal of `columns` characters: what looks at it, and what runs on it.
fn terminal(columns: u16) -> (OwnedFd, OwnedFd) {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&screen).expect("it is ours");
    unlockpt(&screen).expect("it opens");
    let name = ptsname(&screen, Vec::new()).expect("it has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let program = rustix::fs::open(&*name, flags, Mode::empty()).expect("its other side");
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&program, size).expect("it has a size");
    (screen, program)
}

/// Runs a CLI with stdout and stderr, or only stderr, on a terminal. Returns what the screen got,
/// what a pipe got instead, and the exit code.
fn run_on_terminal(
    gateway: &Gateway,
    columns: u16,
    args: &[&str],
    stdout_too: bool,
    variables: &[(&str, &str)],
) -> (String, String, i32) {
    let (screen, program) = terminal(columns);
    let share = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor"));
    let mut child = Command::new(binary(Authority::Management))
        .env_clear()
        .env("SANDSTACK_STATE_DIR", gateway.state_dir())
        .envs(variables.iter().copied())
        .args(args)
        .stdin(Stdio::null())
        .stdout(if stdout_too {
            share(&program)
        } else {
            Stdio::piped()
        })
        .stderr(share(&program))
        .spawn()
        .expect("the CLI starts");
    drop(program);
    let mut piped = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut piped).expect("stdout is text");
    }
    let mut seen = Vec::new();
    let mut screen = File::from(screen.as_fd().try_clone_to_owned().expect("a descriptor"));
    match screen.read_to_end(&mut seen) {
        Ok(_) => {}
        // How Linux says that nobody has the other side open any more.
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {}
        Err(error) => panic!("{error}"),
    }
    let code = child.wait().expect("the CLI ends").code().unwrap_or(-1);
    let seen = String::from_utf8_lossy(&seen).replace("\r\n", "\n");
    assert!(!seen.contains(TOKEN) && !piped.contains(TOKEN));
    (seen, piped, code)
}

const TERM: &[(&str, &str)] = &[("TERM", "xterm-256color")];

#[test]
fn a_terminal_gets_a_table_in_colour_that_fits() {
    let gateway = Gateway::start(Reply::Json(200, answers::of("list_sandboxes")));
    let (seen, _, code) = run_on_terminal(&gateway, 80, &["list_sandboxes"], true, TERM);
    assert_eq!(code, 0, "{seen}");
    assert!(
        seen.contains("SANDBOX") && seen.contains("\u{1b}["),
        "{seen}"
    );
    let (seen, ..) = run_on_terminal(
        &gateway,
        80,
        &["list_sandboxes", "--color", "never"],
        true,
        TERM,
    );
    assert!(!seen.contains('\u{1b}'), "{seen}");
    let widest = seen.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{seen}");
}

#[test]
fn colours_can_be_turned_off() {
    let gateway = Gateway::start(Reply::Json(200, answers::of("list_sandboxes")));
    for variables in [
        &[("TERM", "xterm"), ("NO_COLOR", "1")][..],
        &[("TERM", "dumb")],
        &[],
    ] {
        let (seen, ..) = run_on_terminal(&gateway, 80, &["list_sandboxes"], true, variables);
        assert!(!seen.contains('\u{1b}'), "{variables:?}: {seen:?}");
    }
}

#[test]
fn json_on_a_terminal_is_indented() {
    let gateway = Gateway::start(Reply::Json(200, answers::of("list_sandboxes")));
    let (seen, ..) = run_on_terminal(&gateway, 80, &["list_sandboxes", "--json"], true, TERM);
    let first = seen.lines().next();
    assert_eq!(first, Some("{"), "{seen}");
}

fn import() -> Reply {
    let at = |done: u64| json!({ "files_found": 10, "files_done": done, "bytes_found": 1000, "bytes_done": done * 100 });
    Reply::Stream(vec![
        ("progress", at(0)),
        ("progress", at(5)),
        ("result", answers::of("create_sandbox")),
    ])
}

#[test]
fn an_import_shows_a_bar_that_goes_away() {
    let gateway = Gateway::start(import());
    let (seen, piped, code) = run_on_terminal(&gateway, 80, &["create_sandbox", "/p"], false, TERM);
    assert_eq!(code, 0, "{seen}");
    assert_eq!(gateway.take_one().headers["accept"], "text/event-stream");
    assert!(seen.contains("importing ["), "{seen:?}");
    assert!(seen.contains("0/10 files, 0 B/1000 B"), "{seen:?}");
    assert!(seen.ends_with("\r\u{1b}[2K"), "{seen:?}");
    // The data is as it is without a terminal.
    let piped: serde_json::Value = serde_json::from_str(&piped).expect("one JSON object");
    assert_eq!(piped, answers::of("create_sandbox"));
}

#[test]
fn without_a_capable_terminal_no_progress_is_asked_for() {
    let gateway = Gateway::start(Reply::Json(200, answers::of("create_sandbox")));
    let dumb = &[("TERM", "dumb")];
    let (seen, _, code) = run_on_terminal(&gateway, 80, &["create_sandbox", "/p"], false, dumb);
    assert_eq!((seen.as_str(), code), ("", 0));
    assert!(!gateway.take_one().headers.contains_key("accept"));
}

#[test]
fn someone_who_watches_a_script_sees_why_it_failed() {
    let gateway = Gateway::start(Reply::error(
        404,
        "not_found",
        "there is no sandbox sb-9",
        json!({}),
    ));
    let args = ["inspect_sandbox", "sb-9"];
    let (seen, piped, code) = run_on_terminal(&gateway, 80, &args, false, &[]);
    assert_eq!(code, 3);
    assert_eq!(seen, "error: there is no sandbox sb-9\n");
    assert!(piped.contains("\"not_found\""), "{piped}");
}

#[test]
fn no_operation_on_a_terminal_shows_the_help() {
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    let (seen, _, code) = run_on_terminal(&gateway, 80, &[], true, &[]);
    assert_eq!(code, 2);
    assert!(seen.contains("Usage: sandbox-manager-cli"), "{seen}");
    assert!(seen.contains("create_sandbox"), "{seen}");
}
