//! Commands on a terminal.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use rig::{Rig, refusal, until};
use sandstack_holder::protocol::*;

both!(
    a_command_has_a_terminal_of_its_own,
    a_resize_is_seen_and_signalled,
    interrupt_and_end_of_input_pass_by_the_terminals_rules,
    eof_ends_the_input_even_after_an_unfinished_line,
    a_background_job_outlives_the_shell_on_its_terminal,
    a_leader_goes_when_the_last_job_does,
    an_interactive_shell_has_job_control,
);

fn a_command_has_a_terminal_of_its_own(rig: Rig) {
    rig.session("s");
    let script = "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all; \
                  echo to-tty > /dev/tty; ls -l \"$(tty)\" | cut -c1; ps -o tpgid=,pgid= -p $$ | tr -s ' '";
    let text = rig.run(rig.terminal("s", "c", script)).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        &lines[..5],
        ["/dev/pts/0", "24 80", "all", "to-tty", "c"],
        "{text}"
    );
    let mut groups = lines[5].split_whitespace();
    assert_eq!(groups.next(), groups.next(), "in the foreground: {text}");
    let piped = rig.sh("s", "tty; test -t 1 || echo none; : < /dev/tty");
    assert!(
        piped.text().starts_with("not a tty\nnone\n") && piped.code() != 0,
        "{piped:?}"
    );
}

fn a_resize_is_seen_and_signalled(rig: Rig) {
    rig.session("s");
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.02; done";
    rig.spawn(rig.terminal("s", "c", script));
    rig.wait_screen("c", "ready");
    let resize = |id: &str| Request::Resize {
        command_id: id.to_owned(),
        rows: 51,
        cols: 133,
    };
    rig.client().done(&resize("c")).unwrap();
    assert!(rig.outcome("c").text().contains("51 133"));
    rig.spawn(rig.shell("s", "piped", "sleep 1000"));
    let refused = refusal(rig.client().done(&resize("piped")));
    assert_eq!(
        refused,
        Refusal::NotATerminal {
            command_id: "piped".to_owned()
        }
    );
    rig.client().cancel("piped").unwrap();
}

fn interrupt_and_end_of_input_pass_by_the_terminals_rules(rig: Rig) {
    rig.session("s");
    // ^C ends what runs in the foreground; the shell has its own mind about it.
    let script = "trap 'echo caught' INT; echo ready; sleep 1000; echo after; cat; echo end";
    rig.spawn(rig.terminal("s", "c", script));
    rig.wait_screen("c", "ready");
    // The shell says "ready" before it has forked the sleeper: then only it would be hit.
    until("the sleeper", || {
        rig.processes("s").iter().any(|p| p.name.0 == b"sleep")
    });
    rig.client().write_stdin("c", b"\x03", false).unwrap();
    rig.wait_screen("c", "after");
    rig.client().write_stdin("c", b"line\n", false).unwrap();
    rig.wait_screen("c", "line\r\nline\r\n");
    // ^D as a byte, on an empty line: the end of `cat`.
    rig.client().write_stdin("c", b"\x04", false).unwrap();
    let outcome = rig.outcome("c");
    assert_eq!(outcome.code(), 0);
    assert!(
        outcome.text().contains("caught") && outcome.text().ends_with("end\r\n"),
        "{outcome:?}"
    );
    // Without a trap, ^C ends the command.
    rig.spawn(rig.terminal("s", "d", "echo ready; sleep 1000; echo not here"));
    rig.wait_screen("d", "ready");
    until("the sleeper", || {
        rig.processes("s").iter().any(|p| p.name.0 == b"sleep")
    });
    rig.client().write_stdin("d", b"\x03", false).unwrap();
    let exit = rig.exit("d");
    assert_eq!(
        exit.status,
        ExitStatus::Signalled {
            signal: libc::SIGINT
        },
        "{:?}",
        rig.screen("d")
    );
}

fn eof_ends_the_input_even_after_an_unfinished_line(rig: Rig) {
    rig.session("s");
    for (id, data) in [
        ("empty", &b""[..]),
        ("whole", b"one\n"),
        ("part", b"one\ntwo"),
    ] {
        rig.spawn(rig.terminal("s", id, "echo ready; cat > got; cat got; echo; echo end"));
        rig.wait_screen(id, "ready");
        rig.client().write_stdin(id, data, true).unwrap();
        let text = rig.outcome(id).text();
        let expected = String::from_utf8_lossy(data).replace('\n', "\r\n");
        assert!(
            text.ends_with(&format!("{expected}\r\nend\r\n")),
            "{id}: {text:?}"
        );
    }
    // Input that was there from the start, and its end.
    let mut spawn = rig.terminal("s", "initial", "cat > got; cat got; echo; echo end");
    spawn.stdin = Some("early".into());
    spawn.close_stdin = true;
    assert!(rig.run(spawn).text().ends_with("early\r\nend\r\n"));
}

fn a_background_job_outlives_the_shell_on_its_terminal(rig: Rig) {
    rig.session("s");
    let script = "(until [ -e go ]; do sleep 0.01; done; echo later; sleep 1000) & echo started";
    let outcome = rig.run(rig.terminal("s", "c", script));
    assert_eq!((outcome.code(), &*outcome.text()), (0, "started\r\n"));
    assert!(!outcome.exit.survivors.is_empty());
    std::fs::write(rig.view("s").join("go"), "").unwrap();
    rig.wait_screen("c", "later\r\n");
    assert_eq!(rig.client().cancel("c").unwrap(), []);
    assert_eq!(rig.survivors("c"), []);
    // Its leader goes with the last process; nothing but the init is left.
    until("an empty session", || rig.processes("s").len() == 1);
}

fn a_leader_goes_when_the_last_job_does(rig: Rig) {
    rig.session("s");
    let outcome = rig.run(rig.terminal(
        "s",
        "c",
        "(until [ -e go ]; do sleep 0.01; done) & echo started",
    ));
    assert_eq!(outcome.text(), "started\r\n");
    std::fs::write(rig.view("s").join("go"), "").unwrap();
    until("an empty session", || rig.processes("s").len() == 1);
    // Nor does one stay when there never was a job.
    rig.run(rig.terminal("s", "d", "true"));
    until("an empty session", || rig.processes("s").len() == 1);
    // Killing it from inside ends the command's terminal, not the session.
    rig.spawn(rig.terminal("s", "e", "echo ready; sleep 1000"));
    rig.wait_screen("e", "ready");
    let leader = rig
        .processes("s")
        .into_iter()
        .find(|p| p.name.0 == b"session-term")
        .unwrap();
    assert_eq!(rig.sh("s", &format!("kill -9 {}", leader.pid)).code(), 0);
    assert_eq!(
        rig.exit("e").status,
        ExitStatus::Signalled {
            signal: libc::SIGHUP
        }
    );
    assert_eq!(rig.sh("s", "echo fine").text(), "fine\n");
}

fn an_interactive_shell_has_job_control(rig: Rig) {
    rig.session("s");
    let words = ["bash", "--noprofile", "--norc", "-i"]
        .map(Into::into)
        .to_vec();
    let mut spawn = rig.spawn_request("s", "c", Program::Argv(words));
    spawn.stdio = Stdio::Pty { rows: 24, cols: 80 };
    spawn.close_stdin = false;
    spawn.env.push(("PS1".into(), "READY> ".into()));
    rig.spawn(spawn);
    rig.wait_screen("c", "READY> ");
    assert!(
        !rig.screen("c").contains("no job control"),
        "{}",
        rig.screen("c")
    );
    rig.client()
        .write_stdin("c", b"sleep 1000\n", false)
        .unwrap();
    until("the sleeper", || {
        rig.processes("s").iter().any(|p| p.name.0 == b"sleep")
    });
    rig.client().write_stdin("c", b"\x1a", false).unwrap();
    rig.wait_screen("c", "Stopped");
    rig.client()
        .write_stdin("c", b"kill %1; wait; exit 5\n", false)
        .unwrap();
    until("the end", || {
        // An interactive shell may want to be told twice that a job was stopped.
        let _ = rig.client().write_stdin("c", b"exit 5\n", false);
        rig.has_exited("c")
    });
    assert_eq!(rig.outcome("c").code(), 5);
}
