//! How a view ends: in order, under load, with the daemon killed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sandstack_fs::Transport;

use crate::fixture::{
    View, in_threads, is_fuse, is_gone, lacks, over_each_transport, processors, start, wait_until,
};

#[test]
fn a_view_is_served_as_it_was_asked_for() {
    over_each_transport("a_view_is_served_as_it_was_asked_for", |transport| {
        let mut view = View::new(transport);
        fs::write(view.path("file"), "x").unwrap();
        let rings = view
            .threads()
            .iter()
            .filter(|name| name.starts_with("fs-ring"))
            .count();
        let expected = if transport == Transport::Uring {
            processors()
        } else {
            0
        };
        assert_eq!(rings, expected, "{:?}", view.threads());
        view.detach();
        view.daemon.expect_end();
    });
}

/// Sessions do not know how they are served.
#[test]
fn a_session_may_change_its_transport() {
    over_each_transport("a_session_may_change_its_transport", |transport| {
        let mut view = View::new(transport);
        fs::write(view.path("file"), "kept").unwrap();
        view.detach();
        view.daemon.expect_end();
        view.again(Transport::Fuse);
        assert_eq!(fs::read_to_string(view.path("file")).unwrap(), "kept");
        view.detach();
        view.daemon.expect_end();
        view.again(transport);
        assert_eq!(fs::read_to_string(view.path("file")).unwrap(), "kept");
    });
}

#[test]
fn views_come_and_go() {
    over_each_transport("views_come_and_go", |transport| {
        let mut view = View::new(transport);
        for round in 0..25 {
            fs::write(view.path("round"), round.to_string()).unwrap();
            view.detach();
            view.daemon.expect_end();
            view.again(transport);
            assert_eq!(
                fs::read_to_string(view.path("round")).unwrap(),
                round.to_string()
            );
        }
    });
}

#[test]
fn unmounting_under_load_ends_the_daemon() {
    over_each_transport("unmounting_under_load_ends_the_daemon", |transport| {
        const THREADS: usize = 8;
        let mut view = View::new(transport);
        let (busy, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let root = view.root();
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (busy, stop, root) = (&busy, &stop, &root);
                scope.spawn(move || {
                    let path = root.join(format!("file-{number}"));
                    let mut rounds = 0;
                    while !stop.load(Ordering::Relaxed) {
                        // Once the mount is gone these go to the directory below, or fail.
                        if let Ok(mut file) = File::create(&path) {
                            let _ = file.write_all(&[1; 3000]);
                            let _ = file.sync_all();
                        }
                        let _ = fs::read(&path);
                        let _ = fs::remove_file(&path);
                        rounds += 1;
                        if rounds == 3 {
                            busy.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            wait_until("load", || busy.load(Ordering::Relaxed) == THREADS);
            view.detach();
            view.daemon.expect_end();
            stop.store(true, Ordering::Relaxed);
        });
    });
}

/// Whoever waits for a killed daemon gets an error, the mount can be taken away, and what was
/// acknowledged is there when the session is served again.
#[test]
fn a_killed_daemon_hangs_nobody() {
    over_each_transport("a_killed_daemon_hangs_nobody", |transport| {
        const THREADS: usize = 8;
        let mut view = View::new(transport);
        let root = view.root();
        let written: Vec<AtomicUsize> = (0..THREADS).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|scope| {
            for (number, written) in written.iter().enumerate() {
                let root = &root;
                scope.spawn(move || {
                    for round in 0.. {
                        let path = root.join(format!("file-{number}-{round}"));
                        if let Err(error) = fs::write(&path, round.to_string()) {
                            assert!(is_gone(&error), "{error}");
                            return;
                        }
                        written.store(round + 1, Ordering::Relaxed);
                    }
                });
            }
            wait_until("load", || {
                written
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) > 5)
            });
            view.daemon.kill();
        });
        let error = fs::metadata(view.path("file-0-0")).unwrap_err();
        assert!(is_gone(&error), "{error}");
        view.detach();
        wait_until("the mount to be gone", || !is_fuse(&root));
        view.again(transport);
        for (number, written) in written.iter().enumerate() {
            for round in 0..written.load(Ordering::Relaxed) {
                let path = view.path(&format!("file-{number}-{round}"));
                assert_eq!(fs::read_to_string(path).unwrap(), round.to_string());
            }
        }
    });
}

/// With syncs under way, whose answers come from other threads.
#[test]
fn a_daemon_killed_while_it_syncs_hangs_nobody() {
    over_each_transport("a_daemon_killed_while_it_syncs_hangs_nobody", |transport| {
        let mut view = View::new(transport);
        let root = view.root();
        const THREADS: usize = 16;
        let synced: Vec<AtomicUsize> = (0..THREADS).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|scope| {
            let (root, synced) = (&root, &synced);
            scope.spawn(move || {
                in_threads(THREADS, |number| {
                    let Ok(mut file) = File::create(root.join(format!("file-{number}"))) else {
                        return;
                    };
                    while file
                        .write_all(&[1; 100])
                        .and_then(|()| file.sync_all())
                        .is_ok()
                    {
                        synced[number].fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
            wait_until("syncs", || {
                synced.iter().all(|count| count.load(Ordering::Relaxed) > 1)
            });
            view.daemon.kill();
        });
        view.detach();
        view.again(transport);
        for (number, synced) in synced.iter().enumerate() {
            let found = fs::metadata(view.path(&format!("file-{number}"))).unwrap();
            assert!(found.len() >= 100 * synced.load(Ordering::Relaxed) as u64);
        }
    });
}

/// A container's default filter forbids io_uring: then `auto` serves over `/dev/fuse`, and who asks
/// for io_uring is told why there is none.
#[test]
fn auto_goes_on_where_io_uring_is_forbidden() {
    const NAME: &str = "auto_goes_on_where_io_uring_is_forbidden";
    if !rustix::process::geteuid().is_root() {
        return lacks(NAME, "root, which mounts");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("view")).unwrap();
    let forbidden = |transport: &str| {
        let mut command = View::command(dir.path(), transport);
        // SAFETY: the filter is set up by two system calls, which may be made between fork and exec.
        unsafe { command.pre_exec(forbid_io_uring) };
        command
    };
    let said = forbidden("uring").output().unwrap();
    assert!(!said.status.success());
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    match Transport::uring_obstacle() {
        None => assert!(said.contains("may not use io_uring"), "{said}"),
        Some(obstacle) => assert!(said.contains(&obstacle), "{said}"),
    }
    let point = dir.path().join("view");
    assert!(!is_fuse(&point), "a mount that nobody serves is left");
    let mut daemon = start(forbidden("auto"), &point);
    fs::write(point.join("file"), "x").unwrap();
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "x");
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
    daemon.expect_end();
}

/// Makes `io_uring_setup(2)` fail with `EPERM` from here on.
fn forbid_io_uring() -> std::io::Result<()> {
    let step = |code: u32, yes, no, k| libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    };
    let mut steps = [
        // The number of the call, which is the first word there.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live until the call returns; the kernel copies them.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    if set {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
