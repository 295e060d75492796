//! What ends commands, and what outlives them: background jobs, timeouts, cancels, signals,
//! commands that fork against it.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::time::{Duration, Instant};

use rig::{Rig, refusal, tagged, until};
use sandstack_holder::Error;
use sandstack_holder::protocol::*;

both!(
    a_background_job_does_not_keep_its_command,
    a_timeout_leaves_nothing_of_the_tree,
    a_cancel_at_any_moment_of_the_start_is_answered,
    a_fork_bomb_is_ended,
    a_fork_bomb_is_ended_by_one_signal,
    signals_reach_the_whole_tree,
);

fn a_background_job_does_not_keep_its_command(rig: Rig) {
    rig.session("s");
    let began = Instant::now();
    let tag = rig.tag("bg");
    for (id, script) in [
        ("a", "sleep 1000 & echo started"),
        ("b", "(sleep 1000 &); echo started"),
        ("c", "nohup sleep 1000 & disown; echo started; exit 0"),
        ("d", "exec > >(tee log.txt) 2>&1; echo started"),
    ] {
        let outcome = rig.run(rig.shell("s", id, script));
        assert_eq!(outcome.code(), 0, "{script}");
        assert!(outcome.text().contains("started"), "{script}: {outcome:?}");
        if id != "d" {
            assert_eq!(
                outcome.exit.survivors.len(),
                1,
                "{script}: {:?}",
                outcome.exit.survivors
            );
            until("the survivor", || {
                rig.survivors(id).iter().any(|s| s.name.0 == b"sleep")
            });
        }
    }
    assert!(began.elapsed() < Duration::from_secs(25));
    // What it writes later is still kept.
    let script = format!(
        "(until [ -e go ]; do sleep 0.01; done; echo later; exec -a {tag} sleep 1000) & echo now"
    );
    let first = rig.run(rig.shell("s", "late", &script));
    assert_eq!(first.text(), "now\n");
    std::fs::write(rig.view("s").join("go"), "").unwrap();
    until("later output", || {
        rig.outcome("late").text() == "now\nlater\n"
    });
    until("the survivor", || {
        !tagged(&format!("{tag}\01000")).is_empty()
    });
    assert_eq!(rig.survivors("late").len(), 1);
    rig.client()
        .done(&Request::Forget {
            command_id: "late".to_owned(),
        })
        .unwrap();
    assert!(!tagged(&tag).is_empty());
    rig.client().destroy_session("s").unwrap();
    assert_eq!(tagged(&tag), [0; 0]);
}

fn a_timeout_leaves_nothing_of_the_tree(rig: Rig) {
    rig.session("s");
    for terminal in [false, true] {
        // A loaded machine may not have started the whole tree in the shortest time.
        let whole = [1_500, 6_000, 24_000].into_iter().any(|timeout| {
            let limit = Duration::from_millis(timeout);
            time_a_tree_out(&rig, terminal, limit)
        });
        assert!(whole, "the tree was never there");
    }
    assert_eq!(rig.sh("s", "echo alive").text(), "alive\n");
}

/// Whether all of the tree was there before the time was up. In any case nothing may be
/// left of it.
fn time_a_tree_out(rig: &Rig, terminal: bool, limit: Duration) -> bool {
    let id = format!("{terminal}-{}", limit.as_millis());
    let tag = rig.tag(&id);
    // A child, a pipeline, a session of its own, and one forked twice from it.
    let script = format!(
        "echo before; (exec -a {tag}-bg sleep 1000) & \
         (while true; do echo child; sleep 0.05; done) | cat & \
         setsid bash -c 'exec -a {tag}-sid sleep 1000' & \
         (setsid bash -c '(exec -a {tag}-twice sleep 1000) & ' &) ; \
         trap '' TERM HUP INT; exec -a {tag}-fg sleep 1000"
    );
    let mut spawn = if terminal {
        rig.terminal("s", &id, &script)
    } else {
        rig.shell("s", &id, &script)
    };
    spawn.timeout_ms = Some(limit.as_millis() as u64);
    let began = Instant::now();
    rig.spawn(spawn);
    // As the command line is when the sleeper has been executed.
    let sleepers = ["bg", "sid", "twice", "fg"].map(|name| format!("{tag}-{name}\01000\0"));
    let mut whole = false;
    until("the whole tree, or the end", || {
        whole = whole || sleepers.iter().all(|sleeper| !tagged(sleeper).is_empty());
        whole || rig.has_exited(&id)
    });
    let outcome = rig.outcome(&id);
    assert_eq!(outcome.exit.status, ExitStatus::TimedOut);
    assert_eq!(outcome.exit.survivors, []);
    assert_eq!(tagged(&format!("{tag}-")), [0; 0]);
    assert!(began.elapsed() >= limit);
    assert!(
        !whole || outcome.text().starts_with("before"),
        "{outcome:?}"
    );
    whole
}

fn a_cancel_at_any_moment_of_the_start_is_answered(rig: Rig) {
    rig.session("s");
    for n in 0..60 {
        let id = format!("c{n}");
        let script = "sleep 1000";
        let spawn = if n % 2 == 0 {
            rig.shell("s", &id, script)
        } else {
            rig.terminal("s", &id, script)
        };
        let started = std::thread::scope(|scope| {
            let starting = scope.spawn(|| rig.client().spawn(spawn));
            // Until the command is known; then it is anywhere on its way.
            let cancelled = loop {
                let finished = starting.is_finished();
                match rig.client().cancel(&id) {
                    Err(Error::Refused(Refusal::CommandUnknown { .. })) if !finished => {}
                    other => break other,
                }
            };
            assert_eq!(cancelled.unwrap_or_default(), []);
            starting.join().unwrap()
        });
        match started {
            Ok(_) => assert_eq!(rig.exit(&id).status, ExitStatus::Cancelled),
            Err(error) => {
                let refused = refusal::<()>(Err(error));
                assert!(
                    matches!(refused, Refusal::KilledEarly { .. }),
                    "{refused:?}"
                );
            }
        }
    }
    until("an empty session", || rig.processes("s").len() == 1);
}

fn a_fork_bomb_is_ended(rig: Rig) {
    rig.session("s");
    let other = rig.shell(
        "s",
        "bystander",
        "trap 'echo got-cont' CONT; while :; do sleep 0.05; done",
    );
    rig.spawn(other);
    // Each of four loops, twice as many as a small machine has processors, forks sleepers that outlive their
    // parents, for ever. The limit holds ordinary users; for root a sandbox has a control group.
    let mut spawn = rig.shell("s", "bomb", "ulimit -u 3000; for i in $(seq 4); do (while :; do (sleep 0.3 &) ; (sleep 0.3 &); done) & done; wait");
    spawn.timeout_ms = Some(700);
    rig.spawn(spawn);
    let began = Instant::now();
    let exit = rig.exit("bomb");
    println!("a fork bomb of 0.7 s was ended after {:?}", began.elapsed());
    assert_eq!(exit.status, ExitStatus::TimedOut);
    assert_eq!(exit.survivors, []);
    assert_eq!(rig.survivors("bomb"), []);
    // The other command lives, whether or not it was stopped for a moment.
    assert!(!rig.has_exited("bystander"));
    let bystander = rig
        .processes("s")
        .into_iter()
        .filter(|p| p.command_id.as_deref() == Some("bystander"));
    assert!(bystander.clone().count() >= 1);
    assert!(
        bystander.clone().all(|p| p.state != 'T'),
        "{:?}",
        bystander.collect::<Vec<_>>()
    );
    rig.client().cancel("bystander").unwrap();
}

fn a_fork_bomb_is_ended_by_one_signal(rig: Rig) {
    rig.session("s");
    let bomb = "ulimit -u 3000; for i in $(seq 4); do (while :; do (sleep 0.3 &) ; (sleep 0.3 &); done) & done; wait";
    rig.spawn(rig.shell("s", "bomb", bomb));
    until("the bomb", || rig.processes("s").len() > 20);
    let request = Request::Signal {
        command_id: "bomb".to_owned(),
        signal: libc::SIGKILL,
    };
    let (reply, _) = rig.client().request(&request, &[]).unwrap();
    assert!(
        matches!(reply, Reply::Signalled { processes } if processes > 0),
        "{reply:?}"
    );
    let exit = rig.exit("bomb");
    assert_eq!(
        exit.status,
        ExitStatus::Signalled {
            signal: libc::SIGKILL
        }
    );
    assert_eq!(exit.survivors, []);
    assert_eq!(rig.survivors("bomb"), []);
    assert_eq!(rig.sh("s", "echo alive").text(), "alive\n");
}

fn signals_reach_the_whole_tree(rig: Rig) {
    rig.session("s");
    let script = "trap 'echo parent; wait; exit 9' USR1; (trap 'echo child; exit 0' USR1; echo ready; while :; do sleep 0.02; done) & while :; do sleep 0.02; done";
    rig.spawn(rig.shell("s", "c", script));
    until("ready", || {
        rig.reader("c").totals(Stream::Stdout).unwrap().total_bytes >= 6
    });
    let request = Request::Signal {
        command_id: "c".to_owned(),
        signal: libc::SIGUSR1,
    };
    let (reply, _) = rig.client().request(&request, &[]).unwrap();
    assert!(
        matches!(reply, Reply::Signalled { processes } if processes >= 2),
        "{reply:?}"
    );
    let outcome = rig.outcome("c");
    assert!(
        outcome.text().contains("parent") && outcome.text().contains("child"),
        "{outcome:?}"
    );
    assert_eq!(outcome.code(), 9);
    let bad = Request::Signal {
        command_id: "c".to_owned(),
        signal: 0,
    };
    assert!(matches!(
        refusal(rig.client().request(&bad, &[])),
        Refusal::Invalid { .. }
    ));
}
