//! Views that are FUSE mounts made by the holder.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::os::unix::fs::OpenOptionsExt;

use rig::{NOBODY, Rig, Who, fuse, lacking, refusal, until};
use sandstack_holder::protocol::*;

both!(
    a_fuse_view_is_made_before_anybody_serves_it,
    a_gateway_that_comes_back_gets_the_device_again,
    a_timeout_ends_a_command_that_waits_for_its_directory,
    a_session_nobody_serves_can_be_destroyed,
);

/// Whether the holder's user may open `/dev/fuse`.
fn usable(rig: &Rig) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(device) = std::fs::metadata("/dev/fuse") else {
        lacking("/dev/fuse");
        return false;
    };
    let open = device.mode() & 0o006 == 0o006 || rig.who == Who::Root;
    if !open {
        lacking("/dev/fuse with mode 0666, for FUSE mounts of an ordinary user");
    }
    open
}

fn request(rig: &Rig) -> CreateSession {
    let options = FuseOptions {
        fs_name: "testfs".into(),
        max_read: Some(65536),
        allow_other: true,
    };
    CreateSession {
        view: View::MountFuse(options),
        ..rig.session_request("s")
    }
}

fn a_fuse_view_is_made_before_anybody_serves_it(rig: Rig) {
    if !usable(&rig) {
        return;
    }
    // Made and ready although every look into it would wait.
    let (_, view) = rig.client().create_session(request(&rig), &[]).unwrap();
    let served = fuse::serve(view.unwrap().connection);
    let spawned = rig.spawn(rig.shell("s", "c", "exec cat hello"));
    let outcome = rig.outcome("c");
    assert_eq!(
        (outcome.code(), &*outcome.text()),
        (0, "inside"),
        "{outcome:?}"
    );
    let text = rig.sh("s", "ls; grep testfs /proc/self/mountinfo").text();
    assert!(
        text.starts_with("hello\n")
            && text.contains("fuse testfs")
            && text.contains("nosuid,nodev"),
        "{text}"
    );
    rig.client().destroy_session("s").unwrap();
    // The pids in requests are those of the holder's pid namespace.
    assert!(served.join().unwrap().contains(&(spawned.pid as u32)));
}

fn a_gateway_that_comes_back_gets_the_device_again(rig: Rig) {
    if !usable(&rig) {
        return;
    }
    let (_, view) = rig.client().create_session(request(&rig), &[]).unwrap();
    drop(view);
    // Nobody serves: the command waits for its working directory.
    let mut spawn = rig.shell("s", "c", "exec cat hello");
    spawn.timeout_ms = Some(60_000);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.client().spawn(spawn));
        until("a waiting process", || rig.processes("s").len() == 2);
        let view = rig.client().view_descriptors("s").unwrap().unwrap();
        let served = fuse::serve(view.connection);
        waiting.join().unwrap().unwrap();
        assert_eq!(rig.outcome("c").text(), "inside");
        served
    });
    rig.client().destroy_session("s").unwrap();
    waiting.join().unwrap();
}

fn a_timeout_ends_a_command_that_waits_for_its_directory(rig: Rig) {
    if !usable(&rig) {
        return;
    }
    let (_, view) = rig.client().create_session(request(&rig), &[]).unwrap();
    let mut spawn = rig.shell("s", "c", "cat hello");
    spawn.timeout_ms = Some(300);
    rig.spawn(spawn);
    assert_eq!(rig.exit("c").status, ExitStatus::TimedOut);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.client().spawn(rig.shell("s", "d", "cat hello")));
        until("a waiting process", || rig.processes("s").len() == 2);
        assert_eq!(rig.client().cancel("d").unwrap(), []);
        // It may have been hit before it had told that it was about to run.
        match waiting.join().unwrap() {
            Ok(_) => assert_eq!(rig.exit("d").status, ExitStatus::Cancelled),
            refused => assert!(matches!(refusal(refused), Refusal::KilledEarly { .. })),
        }
    });
    drop(view);
}

fn a_session_nobody_serves_can_be_destroyed(rig: Rig) {
    if !usable(&rig) {
        return;
    }
    let (_, view) = rig.client().create_session(request(&rig), &[]).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.client().spawn(rig.shell("s", "c", "cat hello")));
        until("a waiting process", || rig.processes("s").len() == 2);
        drop(view);
        rig.client().destroy_session("s").unwrap();
        let gone = refusal(waiting.join().unwrap());
        assert_eq!(
            gone,
            Refusal::SessionGone {
                session_id: "s".to_owned()
            }
        );
    });
}

#[test]
fn without_the_device_the_fix_is_named() {
    let Some(rig) = Rig::start(Who::Nobody, "without_the_device_the_fix_is_named") else {
        return;
    };
    let open = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/fuse");
    let mode = open
        .and_then(|file| file.metadata())
        .map(|m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()));
    if mode.is_ok_and(|mode| mode & 0o006 == 0o006) {
        // Then it can be used, which the other tests show.
        return;
    }
    let refused = refusal(rig.client().create_session(request(&rig), &[]));
    match refused {
        Refusal::FuseRefused { errno, fix, .. } => {
            assert!([libc::EACCES, libc::ENOENT].contains(&errno) && fix.contains("/dev/fuse"));
        }
        other => panic!("{other:?} for user {NOBODY}"),
    }
}
