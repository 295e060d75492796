//! Commands on pipes: how they start and end, what they say and hear, whom they run as.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::time::Instant;

use rig::{Rig, Who, lacking, refusal, resident, until};
use sandstack_holder::evidence;
use sandstack_holder::protocol::*;
use sandstack_holder::transcript::LineEnd;

both!(
    codes_and_signals_are_told_apart,
    what_cannot_be_started_is_refused_by_its_reason,
    programs_are_found_and_scripts_without_a_first_line_run,
    the_environment_is_the_one_given_over_the_sessions,
    input_goes_through_pipes_and_ends,
    bytes_are_carried_as_they_are,
    a_hundred_megabytes_pass_through_little_memory,
    a_hundred_megabytes_pass_through_a_terminal,
    output_is_announced_at_a_pace_and_before_the_end,
    fifty_commands_at_once_all_end_with_their_output,
    nothing_of_the_holder_leaks_into_a_command,
);

fn codes_and_signals_are_told_apart(rig: Rig) {
    rig.session("s");
    for code in [0, 3, 255] {
        assert_eq!(rig.sh("s", &format!("exit {code}")).code(), code);
    }
    for (name, signal) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        let outcome = rig.sh("s", &format!("kill -{name} $$"));
        assert_eq!(outcome.exit.status, ExitStatus::Signalled { signal });
    }
    let outcome = rig.sh("s", "echo out; echo err >&2; exit 7");
    assert_eq!(
        (outcome.code(), &*outcome.text(), &*outcome.errors()),
        (7, "out\n", "err\n")
    );
    let exit = outcome.exit;
    assert_eq!(
        evidence::read(&rig.out(&exit.command_id)).unwrap(),
        Some(exit.clone())
    );
    assert!(exit.started_unix_ms <= exit.ended_unix_ms && exit.max_rss_bytes > 100_000);
    assert_eq!(
        exit.streams,
        rig.reader(&exit.command_id)
            .streams()
            .iter()
            .map(|stream| {
                StreamTotals {
                    stream: *stream,
                    total_bytes: 4,
                    total_lines: 1,
                    lost: None,
                }
            })
            .collect::<Vec<_>>()
    );
}

fn what_cannot_be_started_is_refused_by_its_reason(rig: Rig) {
    rig.session("s");
    let argv = |words: &[&str]| Program::Argv(words.iter().map(|word| (*word).into()).collect());
    let missing = rig.refusal(rig.spawn_request("s", "a", argv(&["no-such-program-xyz"])));
    assert!(
        matches!(missing, Refusal::ProgramNotFound { program } if program.0 == b"no-such-program-xyz")
    );
    let denied = rig.refusal(rig.spawn_request("s", "b", argv(&["/etc/passwd"])));
    assert!(
        matches!(
            denied,
            Refusal::NotExecutable {
                errno: libc::EACCES,
                ..
            }
        ),
        "{denied:?}"
    );
    let mut spawn = rig.shell("s", "c", "true");
    spawn.cwd = "not/there".into();
    assert!(matches!(
        rig.refusal(spawn),
        Refusal::Cwd {
            errno: libc::ENOENT,
            ..
        }
    ));
    let unknown = rig.refusal(rig.shell("nowhere", "d", "true"));
    assert_eq!(
        unknown,
        Refusal::SessionUnknown {
            session_id: "nowhere".to_owned()
        }
    );
    let mut spawn = rig.shell("s", "e", "true");
    spawn.command_id = "../x".to_owned();
    assert!(matches!(rig.refusal(spawn), Refusal::Invalid { .. }));
    let long = "x".repeat(200 << 10);
    let spawn = rig.spawn_request("s", "f", argv(&["true", &long]));
    assert_eq!(rig.refusal(spawn), Refusal::ArgumentsTooLong);
    let mut spawn = rig.shell("s", "g", "true");
    spawn.transcript_limit = 1;
    assert!(matches!(rig.refusal(spawn), Refusal::Transcript { .. }));
    rig.run(rig.shell("s", "h", "true"));
    let twice = rig.refusal(rig.shell("s", "h", "true"));
    assert_eq!(
        twice,
        Refusal::CommandExists {
            command_id: "h".to_owned()
        }
    );
    // A refused command leaves its name free, and nothing alive.
    let mut again = rig.shell("s", "c", "echo fine");
    again.dir = rig.out("c2").into();
    rig.spawn(again);
    rig.exit("c");
    until("the end of what failed", || rig.processes("s").len() == 1);
}

fn programs_are_found_and_scripts_without_a_first_line_run(rig: Rig) {
    rig.session("s");
    let view = rig.view("s");
    let script = view.join("script");
    std::fs::write(&script, "echo script $1 in $PWD").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let words = ["./script", "one"].map(Into::into).to_vec();
    let outcome = rig.run(rig.spawn_request("s", "a", Program::Argv(words)));
    assert_eq!(
        outcome.text(),
        format!("script one in {}\n", rig.workspace().display())
    );
    let mut spawn = rig.spawn_request("s", "b", Program::Argv(vec!["script".into(), "two".into()]));
    let workspace = rig.workspace();
    spawn.env = vec![(
        "PATH".into(),
        [
            b"/nowhere:".to_vec(),
            workspace.as_os_str().as_encoded_bytes().to_vec(),
        ]
        .concat()
        .into(),
    )];
    spawn.cwd = "/".into();
    assert_eq!(rig.run(spawn).text(), "script two in /\n");
}

fn the_environment_is_the_one_given_over_the_sessions(rig: Rig) {
    let mut request = rig.session_request("s");
    request.env = vec![
        ("A".into(), "session".into()),
        ("B".into(), "session".into()),
    ];
    rig.create(request).unwrap();
    let mut spawn = rig.spawn_request("s", "e", Program::Argv(vec!["env".into()]));
    spawn.env.push(("B".into(), b"\xff\nx".as_slice().into()));
    let out = rig.run(spawn).stdout;
    assert_eq!(
        out,
        b"A=session\nPATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\nB=\xff\nx\n"
    );
}

fn input_goes_through_pipes_and_ends(rig: Rig) {
    rig.session("s");
    let mut spawn = rig.shell("s", "cat", "cat; echo over");
    spawn.stdin = Some(b"first \xff\0".as_slice().into());
    spawn.close_stdin = false;
    rig.spawn(spawn);
    rig.client().write_stdin("cat", b"second", false).unwrap();
    rig.client().write_stdin("cat", b" third", true).unwrap();
    let closed = refusal(rig.client().write_stdin("cat", b"x", false));
    assert!(matches!(
        closed,
        Refusal::StdinClosed { .. } | Refusal::CommandNotRunning { .. }
    ));
    assert_eq!(rig.outcome("cat").stdout, b"first \xff\0second thirdover\n");
    // A command that does not read is not waited for.
    let mut spawn = rig.shell("s", "deaf", "sleep 1000");
    spawn.close_stdin = false;
    rig.spawn(spawn);
    let chunk = vec![b'x'; 256 << 10];
    let busy = (0..8).find_map(|_| rig.client().write_stdin("deaf", &chunk, false).err());
    assert!(matches!(
        refusal(busy.map_or(Ok(()), Err)),
        Refusal::Busy {
            limit: MAX_STDIN_BYTES,
            ..
        }
    ));
    assert_eq!(rig.client().cancel("deaf").unwrap(), []);
    assert_eq!(rig.exit("deaf").status, ExitStatus::Cancelled);
    let ended = refusal(rig.client().write_stdin("deaf", b"x", false));
    assert_eq!(
        ended,
        Refusal::CommandNotRunning {
            command_id: "deaf".to_owned()
        }
    );
    let unknown = refusal(rig.client().write_stdin("never", b"x", false));
    assert_eq!(
        unknown,
        Refusal::CommandUnknown {
            command_id: "never".to_owned()
        }
    );
}

fn bytes_are_carried_as_they_are(rig: Rig) {
    rig.session("s");
    let outcome = rig.sh(
        "s",
        r#"printf 'ok\xff\xfe\x00\x80mid\xc3'; printf '\xff' >&2; exit 5"#,
    );
    assert_eq!(outcome.code(), 5);
    assert_eq!(outcome.stdout, b"ok\xff\xfe\x00\x80mid\xc3");
    assert_eq!(outcome.stderr, b"\xff");
}

fn a_hundred_megabytes_pass_through_little_memory(rig: Rig) {
    rig.session("s");
    let holder = rig.holder.id();
    rig.sh("s", "true");
    let (before, _) = resident(holder);
    let began = Instant::now();
    let mut spawn = rig.shell(
        "s",
        "big",
        "head -c 100000000 /dev/zero | tr '\\0' x; echo; seq 1 200000 >&2; echo END; exit 4",
    );
    spawn.transcript_limit = 8 << 20;
    let outcome = rig.run(spawn);
    let took = began.elapsed();
    let (after, most) = resident(holder);
    assert_eq!(outcome.code(), 4);
    assert_eq!(outcome.exit.streams[0].total_bytes, 100_000_005);
    assert_eq!(outcome.exit.streams[0].total_lines, 2);
    assert_eq!(outcome.exit.streams[1].total_lines, 200_000);
    println!("100 MB in {took:?}; resident {before} -> {after}, most {most} bytes");
    assert!(
        most < before + (4 << 20),
        "resident {before} -> {after}, most {most}"
    );
    let reader = rig.reader("big");
    let kept: u64 = std::fs::read_dir(rig.out("big"))
        .unwrap()
        .map(|f| f.unwrap().metadata().unwrap().len())
        .sum();
    assert!(kept < (10 << 20), "{kept} bytes kept");
    let window = reader.window(Stream::Stdout, 0, 10, 1000).unwrap();
    assert_eq!(window.lines[0].bytes, vec![b'x'; 1000]);
    assert_eq!(window.lines[0].end, LineEnd::Window);
    let window = reader.window(Stream::Stdout, 1, 10, 1000).unwrap();
    assert_eq!(window.lines[0].bytes, b"END");
    assert!(
        reader
            .tail(Stream::Stdout, 10)
            .unwrap()
            .bytes
            .ends_with(b"x\nEND\n")
    );
}

fn a_hundred_megabytes_pass_through_a_terminal(rig: Rig) {
    rig.session("s");
    let mut spawn = rig.terminal(
        "s",
        "big",
        "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo END",
    );
    spawn.transcript_limit = 8 << 20;
    let outcome = rig.run(spawn);
    assert_eq!(outcome.exit.streams[0].total_bytes, 100_000_000 + 7);
    assert!(
        rig.reader("big")
            .tail(Stream::Pty, 10)
            .unwrap()
            .bytes
            .ends_with(b"x\r\nEND\r\n")
    );
}

fn output_is_announced_at_a_pace_and_before_the_end(rig: Rig) {
    rig.session("s");
    rig.spawn(rig.shell(
        "s",
        "c",
        "for i in $(seq 400); do echo $i; sleep 0.001; done",
    ));
    let announced = rig.announcements("c");
    let total = rig.reader("c").totals(Stream::Stdout).unwrap();
    assert_eq!(announced.last().unwrap().1, total.total_bytes);
    assert_eq!(total.total_lines, 400);
    let span = announced.last().unwrap().0 - announced[0].0;
    // One in 20 ms, one at the beginning, one at the end.
    let most = span.as_millis() as usize / 20 + 3;
    assert!(
        announced.len() <= most,
        "{} announcements in {span:?}",
        announced.len()
    );
}

fn fifty_commands_at_once_all_end_with_their_output(rig: Rig) {
    rig.session("s");
    rig.session("t");
    let began = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..50 {
            let rig = &rig;
            scope.spawn(move || {
                let session = if n % 2 == 0 { "s" } else { "t" };
                let script = format!(
                    "for i in 1 2 3; do echo {n}:$i; sleep 0.02; done; echo e{n} >&2; exit {n}"
                );
                let mut spawn = rig.shell(session, &format!("many-{n}"), &script);
                if n % 5 == 0 {
                    spawn.stdio = Stdio::Pty { rows: 10, cols: 40 };
                }
                rig.spawn(spawn);
            });
        }
    });
    for n in 0..50 {
        let outcome = rig.outcome(&format!("many-{n}"));
        assert_eq!(outcome.code(), n);
        let expected = if n % 5 == 0 {
            format!("{n}:1\r\n{n}:2\r\n{n}:3\r\ne{n}\r\n")
        } else {
            format!("{n}:1\n{n}:2\n{n}:3\n")
        };
        assert_eq!(outcome.text(), expected);
    }
    println!("50 commands at once: {:?}", began.elapsed());
}

fn nothing_of_the_holder_leaks_into_a_command(rig: Rig) {
    rig.session("s");
    let script = "ls /proc/self/fd | tr '\\n' ' '; ulimit -n; umask; grep -E '^(SigBlk|SigIgn|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t\\n' '  '; cat /proc/self/oom_score_adj; env | sort | tr '\\n' ' '";
    let outcome = rig.run(rig.spawn_request(
        "s",
        "c",
        Program::Argv(["/bin/sh", "-c", script].map(Into::into).to_vec()),
    ));
    let text = outcome.text();
    // 3 is what `ls` itself has open.
    assert!(text.starts_with("0 1 2 3 "), "{text}");
    assert!(
        text.contains("SigBlk: 0000000000000000 SigIgn: 0000000000000000 NoNewPrivs: 1 Seccomp: 2"),
        "{text}"
    );
    assert!(text.contains("0022\n"), "{text}");
    assert!(
        !text.contains("HOLDER_SECRET") && !text.contains("CARGO"),
        "{text}"
    );
    let soft = std::fs::read_to_string(format!("/proc/{}/limits", std::process::id())).unwrap();
    let soft = soft
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let soft = soft.split_whitespace().nth(3).unwrap().to_owned();
    assert!(text.contains(&format!("{soft}\n")), "{soft}: {text}");
}

#[test]
fn commands_run_as_the_user_asked_for() {
    let Some(rig) = Rig::start(Who::Root, "commands_run_as_the_user_asked_for") else {
        return;
    };
    rig.session("s");
    std::os::unix::fs::chown(rig.view("s"), Some(1234), Some(1235)).unwrap();
    for terminal in [false, true] {
        let id = format!("u{terminal}");
        let script = "id -u; id -g; id -G; touch file-$$ && stat -c '%u:%g' file-$$; : > /dev/stdout && echo reopened; grep CapEff /proc/self/status";
        let mut spawn = if terminal {
            rig.terminal("s", &id, script)
        } else {
            rig.shell("s", &id, script)
        };
        spawn.user = Some(User {
            uid: 1234,
            gid: 1235,
            groups: vec![7, 9],
        });
        let text = rig.run(spawn).text().replace('\r', "");
        assert_eq!(
            text,
            "1234\n1235\n1235 7 9\n1234:1235\nreopened\nCapEff:\t0000000000000000\n"
        );
    }
    let text = rig
        .sh(
            "s",
            "id -u; id -G; touch r && chown 42:43 r && stat -c '%u:%g' r",
        )
        .text();
    assert_eq!(text, "0\n0\n42:43\n");
}

#[test]
fn an_ordinary_holder_has_only_its_own_user() {
    let Some(rig) = Rig::start(Who::Nobody, "an_ordinary_holder_has_only_its_own_user") else {
        return;
    };
    let info = rig.session("s");
    assert!(!info.all_ids);
    assert_eq!(rig.sh("s", "id -u; id -g").text(), "65534\n65534\n");
    let mut spawn = rig.shell("s", "own", "id -u");
    spawn.user = Some(User {
        uid: 65534,
        gid: 65534,
        groups: vec![],
    });
    assert_eq!(rig.run(spawn).text(), "65534\n");
    let mut spawn = rig.shell("s", "other", "id -u");
    spawn.user = Some(User {
        uid: 0,
        gid: 65534,
        groups: vec![],
    });
    assert_eq!(rig.refusal(spawn), Refusal::IdNotMapped { id: 0 });
}

#[test]
fn a_full_disk_loses_output_but_not_the_command() {
    let Some(rig) = Rig::start(Who::Root, "a_full_disk_loses_output_but_not_the_command") else {
        return;
    };
    let disk = rig.dir("disk", 0o755);
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=300k", "tmpfs"])
        .arg(&disk)
        .status()
        .unwrap();
    if !mounted.success() {
        return lacking("leave to mount a tmpfs");
    }
    rig.session("s");
    let mut spawn = rig.shell("s", "c", "head -c 3000000 /dev/zero | tr '\\0' 'x'; exit 3");
    spawn.dir = disk.join("c").into();
    rig.spawn(spawn);
    let exit = rig.exit("c");
    assert_eq!(exit.status, ExitStatus::Exited { code: 3 });
    assert!(
        exit.streams[0]
            .lost
            .as_deref()
            .unwrap()
            .starts_with("No space left"),
        "{exit:?}"
    );
    assert_eq!(exit.streams[1].lost, None, "nothing was said there");
    let reader = sandstack_holder::transcript::Reader::open(&disk.join("c")).unwrap();
    let kept = reader
        .bytes_from(Stream::Stdout, 0, usize::MAX)
        .unwrap()
        .bytes;
    assert!(
        kept.len() as u64 == exit.streams[0].total_bytes && kept.iter().all(|byte| *byte == b'x')
    );
    // Nothing of an ended command stays open.
    let unmounted = std::process::Command::new("umount")
        .arg(&disk)
        .status()
        .unwrap();
    assert!(unmounted.success());
}
