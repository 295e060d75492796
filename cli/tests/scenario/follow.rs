//! Commands that are followed: as if they ran here.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::rig::Rig;

struct Place<'r> {
    rig: &'r Rig,
    sandbox: String,
}

impl Place<'_> {
    fn command(&self, cmd: &str) -> Command {
        let mut command = self.rig.cli("runtime");
        command
            .args(["--sandbox-id", &self.sandbox, "exec_command", "--follow"])
            .arg(cmd);
        command
    }

    /// Runs a command with this input to its end.
    fn run(&self, cmd: &str, input: &[u8]) -> Output {
        let mut child = self.spawn(cmd);
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            // The command may end before it has read all.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    fn spawn(&self, cmd: &str) -> Child {
        self.command(cmd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

pub(crate) fn run(rig: &Rig) {
    let project = rig.state().join("project");
    std::fs::create_dir(&project).unwrap();
    let created = rig.call("manager", &["create_sandbox", project.to_str().unwrap()]);
    let created = created.ok();
    let sandbox = created["sandboxes"][0]["sandbox_id"].as_str().unwrap();
    let place = Place {
        rig,
        sandbox: sandbox.to_owned(),
    };
    output_and_code_are_the_commands(&place);
    input_reaches_it_while_it_runs(&place);
    signals_reach_it(&place);
    a_terminal_is_a_terminal_for_it_too(&place);
    what_cannot_be_followed_is_told(&place);
    rig.call("manager", &["destroy_sandbox", sandbox]).ok();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output_and_code_are_the_commands(place: &Place<'_>) {
    let ran = place.run("echo out; echo err >&2; exit 7", b"");
    let told = (ran.status.code(), text(&ran.stdout), text(&ran.stderr));
    assert_eq!((told.0, told.1.as_str()), (Some(7), "out\n"), "{told:?}");
    assert!(told.2.starts_with("err\n"), "{told:?}");
    let ran = place.run("kill -9 $$", b"");
    assert_eq!(ran.status.code(), Some(137), "{ran:?}");
    // Every byte, and as many as there are.
    let input: Vec<u8> = (0..1_500_000u32)
        .map(|number| (number * 7 + number / 251) as u8)
        .collect();
    let ran = place.run("cat", &input);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert!(ran.stdout == input, "{} bytes", ran.stdout.len());
    // Nobody waits for the input's end of one that does not read it.
    let mut child = place.spawn("echo done > made");
    assert!(child.wait().unwrap().success());
    let mut said = String::new();
    child.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("published"), "{said}");
    let ran = place.run("cat made", b"");
    assert_eq!(text(&ran.stdout), "done\n");
}

fn input_reaches_it_while_it_runs(place: &Place<'_>) {
    let mut child = place.spawn("while read line; do echo \"got $line\"; done; echo over");
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    };
    for word in ["one", "two"] {
        stdin.write_all(format!("{word}\n").as_bytes()).unwrap();
        assert_eq!(next(), format!("got {word}\n"));
    }
    drop(stdin);
    assert_eq!(next(), "over\n");
    assert!(child.wait().unwrap().success());
}

fn signals_reach_it(place: &Place<'_>) {
    for (signal, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM")] {
        let cmd =
            format!("trap 'echo caught; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = place.spawn(&cmd);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        kill_process(Pid::from_child(&child), signal).unwrap();
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "caught\n");
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

/// A terminal: what looks at it, and what runs on it.
fn terminal() -> (File, OwnedFd) {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let program = rustix::fs::open(&*name, flags, Mode::empty()).unwrap();
    resize(&program, 33, 101);
    (File::from(screen), program)
}

fn resize(terminal: &impl AsFd, rows: u16, columns: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

fn a_terminal_is_a_terminal_for_it_too(place: &Place<'_>) {
    let (mut screen, program) = terminal();
    let share = || Stdio::from(program.try_clone().unwrap());
    let mut command = place.command(
        "trap 'stty size' WINCH; stty size; while read line; do echo \"got $line\"; done; trap 'echo no' INT; echo over; sleep 100",
    );
    command.stdin(share()).stdout(share()).stderr(share());
    // SAFETY: both calls are plain system calls, and nothing of the parent is touched.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(std::io::stdin())?;
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let mut reading = BufReader::new(screen.try_clone().unwrap());
    let mut shown = String::new();
    let mut until = |what: &str| -> String {
        while !shown.contains(what) {
            let mut bytes = [0; 512];
            let count = reading.read(&mut bytes).unwrap();
            assert!(count > 0, "{shown}");
            shown.push_str(&text(&bytes[..count]));
        }
        std::mem::take(&mut shown)
    };
    until("33 101\r\n");
    resize(&program, 40, 90);
    // A shell that waits for a line tells of the change when it has one.
    let mut told = String::new();
    while !told.contains("40 90\r\n") {
        screen.write_all(b"hello\r").unwrap();
        told.push_str(&until("got hello\r\n"));
    }
    let raw = tcgetattr(&program).unwrap().local_modes;
    assert!(!raw.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
    // ^D ends its input and ^C its life: by its terminal's rules, not by this one's.
    screen.write_all(b"\x04").unwrap();
    until("over\r\n");
    screen.write_all(b"\x1c").unwrap();
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(131));
    let restored = tcgetattr(&program).unwrap().local_modes;
    assert!(restored.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
}

fn what_cannot_be_followed_is_told(place: &Place<'_>) {
    let mut command = place.rig.cli("runtime");
    command.args([
        "--sandbox-id",
        "sb-nowhere1",
        "exec_command",
        "--follow",
        "true",
    ]);
    let ran = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(
        (ran.status.code(), text(&ran.stdout).as_str()),
        (Some(125), "")
    );
    assert!(text(&ran.stderr).contains("sb-nowhere1"), "{ran:?}");
}
