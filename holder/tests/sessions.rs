//! Sessions: what they see, what they do not, how they begin and end.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::fs;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rig::{Rig, Who, lacking, namespace, o_path, refusal, tagged, until};
use sandstack_holder::protocol::*;

both!(
    a_session_has_its_own_of_everything,
    sessions_see_nothing_of_each_other,
    only_what_should_be_is_writable,
    hidden_paths_are_empty,
    what_cannot_be_made_is_refused_by_its_reason,
    destroying_ends_everything_and_leaves_nothing,
    a_session_whose_init_is_killed_is_told_of,
    many_sessions_at_once_are_made_and_ended,
    the_cost_of_a_session_and_of_a_command_is_measured,
    a_detached_mount_becomes_the_view,
);

fn a_session_has_its_own_of_everything(rig: Rig) {
    let info = rig.session("s");
    let own = |name| namespace(std::process::id() as i32, name).unwrap();
    let spaces = info.namespaces;
    for (name, inode) in [
        ("user", spaces.user),
        ("mnt", spaces.mnt),
        ("pid", spaces.pid),
        ("ipc", spaces.ipc),
    ] {
        assert_ne!(inode, own(name), "{name}");
        assert_eq!(namespace(info.init_pid, name), Some(inode), "{name}");
    }
    assert_eq!(spaces.net, own("net"));
    assert_eq!(info.all_ids, rig.who == Who::Root);
    let spawned = rig.spawn(rig.shell("s", "c", "sleep 1000"));
    assert_eq!(namespace(spawned.pid, "mnt"), Some(spawned.mnt_ns));
    assert_ne!(spawned.mnt_ns, spaces.mnt);
    assert_eq!(namespace(spawned.pid, "pid"), Some(spaces.pid));
    let mut request = rig.session_request("isolated");
    request.network = Network::Isolated;
    let isolated = rig.create(request).unwrap();
    assert!(isolated.abstract_sockets_fenced && isolated.namespaces.net != own("net"));
    let script = "cat /sys/class/net/lo/flags; cat /proc/net/dev | tail -n +3 | cut -d: -f1; \
                  (echo > /dev/tcp/127.0.0.1/9) 2>&1 | grep -o 'Connection refused' | head -n 1";
    let text = rig.sh("isolated", script).text();
    assert!(
        text.contains("lo\n") && text.contains("Connection refused"),
        "{text}"
    );
    assert_eq!(text.lines().filter(|line| line.trim() == "lo").count(), 1);
    let Reply::Sessions { sessions } = rig.client().request(&Request::ListSessions, &[]).unwrap().0
    else {
        panic!("no list");
    };
    assert_eq!(sessions, [isolated, info]);
    rig.client().cancel("c").unwrap();
}

fn sessions_see_nothing_of_each_other(rig: Rig) {
    rig.session("a");
    rig.session("b");
    let tag = rig.tag("secret");
    let mut spawn = rig.shell("a", "a", &format!("echo secret > in-view; echo secret > /tmp/in-tmp; echo secret > /dev/shm/in-shm; mkfifo /run/in-run 2>/dev/null; exec -a {tag} sleep 1000"));
    spawn.stdio = Stdio::Pty { rows: 5, cols: 5 };
    rig.spawn(spawn);
    until("the secrets", || !tagged(&tag).is_empty());
    let script = "ls -A . /tmp /dev/shm /run /var/tmp /dev/pts; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ps ax | wc -l; cat /proc/sys/kernel/ns_last_pid 2>/dev/null; ipcs -m 2>/dev/null";
    let text = rig.sh("b", script).text();
    for secret in [
        "in-view",
        "in-tmp",
        "in-shm",
        "in-run",
        "secret",
        "sandbox-holder",
    ] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert_eq!(
        fs::read_to_string(rig.view("a").join("in-view")).unwrap(),
        "secret\n"
    );
    assert_eq!(
        fs::read_to_string(rig.tmp("a").join("in-tmp")).unwrap(),
        "secret\n"
    );
    // The directories of the other session are nowhere, by any path.
    let script = format!(
        "find / -xdev -name in-view -o -name in-tmp 2>/dev/null; find {0} {0}/.. 2>/dev/null",
        rig.base.path().display()
    );
    let text = rig.sh("b", &script).text();
    assert!(
        !text.contains("in-view") && !text.contains("in-tmp") && !text.contains("holder.sock"),
        "{text}"
    );
}

fn only_what_should_be_is_writable(rig: Rig) {
    let home = rig.dir("homes/h", 0o755);
    let tools = rig.dir("tools", 0o755);
    fs::write(tools.join("tool"), "#!/bin/sh\necho tool\n").unwrap();
    fs::set_permissions(
        tools.join("tool"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let cache = rig.dir("cache", 0o755);
    let mut request = rig.session_request("s");
    let home_path = rig.base.path().join("home-in-session");
    request.root.home = Some(Bind {
        source: home.clone().into(),
        target: home_path.clone().into(),
    });
    request.root.expose = vec![Bind {
        source: tools.into(),
        target: home_path.join(".tools/bin").into(),
    }];
    request.root.writable = vec![Bind {
        source: cache.clone().into(),
        target: home_path.join(".cache").into(),
    }];
    rig.create(request).unwrap();
    let script = format!(
        "cd {}; echo h > note; echo c > .cache/note; ./.tools/bin/tool; \
         for f in .tools/bin/x /etc/x /usr/x /x /sys/kernel/x /dev/x /proc/sys/x /boot/x; do ( : > $f ) 2>/dev/null && echo \"WROTE $f\"; done; \
         for f in /tmp/x /var/tmp/x /dev/shm/x /run/x $PWD/x; do ( : > $f ) || echo \"NOT $f\"; done",
        home_path.display()
    );
    let outcome = rig.sh("s", &script);
    assert_eq!(outcome.text(), "tool\n", "{outcome:?}");
    assert_eq!(outcome.errors(), "");
    assert_eq!(fs::read_to_string(home.join("note")).unwrap(), "h\n");
    assert_eq!(fs::read_to_string(cache.join("note")).unwrap(), "c\n");
}

fn hidden_paths_are_empty(rig: Rig) {
    let secret = rig.dir("secret", 0o755);
    fs::write(secret.join("key"), "SECRET").unwrap();
    let file = rig.base.path().join("token");
    fs::write(&file, "SECRET").unwrap();
    // Not under /tmp, which is private anyway.
    let mut request = rig.session_request("s");
    let outside = Path::new("/mnt").join(rig.tag("workspace"));
    request.workspace_root = outside.clone().into();
    request.root.hide = ["/etc/hostname", "/usr/share", "/no/such/path"]
        .map(Into::into)
        .to_vec();
    request.root.expose = vec![Bind {
        source: rig.base.path().to_owned().into(),
        target: "/opt".into(),
    }];
    request.root.hide.push("/opt/secret".into());
    request.root.hide.push("/opt/token".into());
    if rig.who == Who::Nobody {
        // It may not make directories in /mnt.
        let missing = refusal(rig.create(request.clone()));
        assert!(
            matches!(
                missing,
                Refusal::MountpointMissing {
                    errno: libc::EACCES,
                    ..
                }
            ),
            "{missing:?}"
        );
        request.workspace_root = rig.workspace().into();
    }
    rig.create(request).unwrap();
    let text = rig.sh("s", "pwd; cat /etc/hostname; ls -A /usr/share; touch /usr/share/x 2>/dev/null && echo wrote").text();
    assert_eq!(text.lines().count(), 1, "{text}");
    // Exposed after it was hidden: what was asked for last and deepest wins.
    let text = rig
        .sh("s", "ls /opt; ls -A /opt/secret; cat /opt/token")
        .text();
    assert!(
        text.contains("secret") && !text.contains("SECRET") && !text.contains("key"),
        "{text}"
    );
    if rig.who == Who::Root {
        rig.client().destroy_session("s").unwrap();
        fs::remove_dir(outside).unwrap();
    }
}

fn what_cannot_be_made_is_refused_by_its_reason(rig: Rig) {
    let mut request = rig.session_request("s");
    request.root.tmp = "/no/such/dir".into();
    assert_eq!(
        refusal(rig.create(request)),
        Refusal::SourceMissing {
            path: "/no/such/dir".into(),
            errno: libc::ENOENT
        }
    );
    let mut request = rig.session_request("s");
    request.workspace_root = "/proc/x".into();
    assert!(matches!(
        refusal(rig.create(request)),
        Refusal::Invalid { .. }
    ));
    // No directory of ours may be made there, not even by root.
    let mut request = rig.session_request("s");
    request.workspace_root = "/etc/passwd/x".into();
    assert!(matches!(
        refusal(rig.create(request)),
        Refusal::MountpointMissing {
            errno: libc::ENOTDIR,
            ..
        }
    ));
    let none = refusal(rig.client().create_session(rig.session_request("s"), &[]));
    assert_eq!(none, Refusal::ViewRefused { errno: libc::EBADF });
    let file = fs::File::open("/etc/passwd").unwrap();
    let refused = refusal(
        rig.client()
            .create_session(rig.session_request("s"), &[file.as_fd()]),
    );
    assert_eq!(
        refused,
        Refusal::ViewRefused {
            errno: libc::ENOTDIR
        }
    );
    let mut request = rig.session_request("s");
    request.session_id = "a/b".to_owned();
    let view = o_path(&rig.view("s"));
    assert!(matches!(
        refusal(rig.client().create_session(request, &[view.as_fd()])),
        Refusal::Invalid { .. }
    ));
    // After all of it the name is free, and no process is left over.
    rig.session("s");
    assert_eq!(
        refusal(rig.create(rig.session_request("s"))),
        Refusal::SessionExists {
            session_id: "s".to_owned()
        }
    );
    until("the end of what was tried", || rig.children() == 1);
}

fn destroying_ends_everything_and_leaves_nothing(rig: Rig) {
    // Others may mount things at the same time; ours would have our paths in them.
    let base = rig.base.path().to_str().unwrap().to_owned();
    let mounts = || {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .matches(&base)
            .count()
    };
    let descriptors = || {
        fs::read_dir(format!("/proc/{}/fd", rig.holder.id()))
            .unwrap()
            .count()
    };
    let open = descriptors();
    let tag = rig.tag("end");
    let info = rig.session("s");
    let script = format!(
        "exec 5>>held; trap '' TERM HUP; setsid bash -c 'cd /tmp; exec -a {tag}-d sleep 1000' & exec -a {tag}-m sleep 1000"
    );
    rig.spawn(rig.shell("s", "c", &script));
    let mut spawn = rig.terminal("s", "t", &format!("exec -a {tag}-t sleep 1000"));
    spawn.timeout_ms = Some(1_000_000);
    rig.spawn(spawn);
    until("all of it", || tagged(&tag).len() == 3);
    rig.client().destroy_session("s").unwrap();
    assert_eq!(tagged(&tag), [0; 0]);
    assert!(!Path::new(&format!("/proc/{}", info.init_pid)).exists());
    for command in ["c", "t"] {
        assert_eq!(
            rig.exit(command).status,
            ExitStatus::Signalled {
                signal: libc::SIGKILL
            }
        );
    }
    assert_eq!(rig.session_end("s"), EndReason::Destroyed);
    assert_eq!(mounts(), 0);
    let inhabited = fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        pid.is_some_and(|pid| namespace(pid, "user") == Some(info.namespaces.user))
    });
    assert!(!inhabited, "somebody lives in the session's namespaces");
    assert_eq!(rig.client().cancel("c").unwrap(), []);
    for command in ["c", "t"] {
        rig.client()
            .done(&Request::Forget {
                command_id: command.to_owned(),
            })
            .unwrap();
    }
    assert_eq!(descriptors(), open);
    // Again, and for one that never was, it is done already.
    rig.client().destroy_session("s").unwrap();
    rig.client().destroy_session("never").unwrap();
    let gone = rig.refusal(rig.shell("s", "late", "true"));
    assert_eq!(
        gone,
        Refusal::SessionUnknown {
            session_id: "s".to_owned()
        }
    );
    // The name can be used again.
    rig.session("s");
    assert_eq!(
        rig.sh("s", "cat held 2>/dev/null; echo again").text(),
        "again\n"
    );
}

fn a_session_whose_init_is_killed_is_told_of(rig: Rig) {
    let info = rig.session("s");
    rig.session("other");
    rig.spawn(rig.shell("s", "c", "sleep 1000"));
    // SAFETY: a call without pointers, on a process of ours.
    assert_eq!(unsafe { libc::kill(info.init_pid, libc::SIGKILL) }, 0);
    assert_eq!(
        rig.session_end("s"),
        EndReason::InitDied {
            code: 128 + libc::SIGKILL
        }
    );
    assert_eq!(
        rig.exit("c").status,
        ExitStatus::Signalled {
            signal: libc::SIGKILL
        }
    );
    assert_eq!(rig.sh("other", "echo fine").text(), "fine\n");
}

fn many_sessions_at_once_are_made_and_ended(rig: Rig) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..50 {
            let rig = &rig;
            scope.spawn(move || {
                let id = format!("s{n}");
                rig.session(&id);
                for c in 0..4 {
                    let script = format!("echo {n} > f{c}; cat f{c}");
                    rig.spawn(rig.shell(&id, &format!("c{n}-{c}"), &script));
                }
            });
        }
    });
    for (n, c) in (0..50).flat_map(|n| (0..4).map(move |c| (n, c))) {
        assert_eq!(rig.outcome(&format!("c{n}-{c}")).text(), format!("{n}\n"));
    }
    println!("50 sessions with 200 commands: {:?}", began.elapsed());
    std::thread::scope(|scope| {
        for n in 0..50 {
            let rig = &rig;
            scope.spawn(move || rig.client().destroy_session(&format!("s{n}")).unwrap());
        }
    });
    until("an empty holder", || rig.children() == 0);
}

fn the_cost_of_a_session_and_of_a_command_is_measured(rig: Rig) {
    let median = |mut times: Vec<std::time::Duration>| {
        times.sort();
        (times[0], times[times.len() / 2])
    };
    for network in [Network::Shared, Network::Isolated] {
        let (mut made, mut ended) = (Vec::new(), Vec::new());
        for n in 0..20 {
            let mut request = rig.session_request(&format!("cost-{n}"));
            request.network = network;
            let view = o_path(&rig.view(&request.session_id));
            let began = Instant::now();
            let (info, _) = rig
                .client()
                .create_session(request, &[view.as_fd()])
                .unwrap();
            made.push(began.elapsed());
            let began = Instant::now();
            rig.client().destroy_session(&info.session_id).unwrap();
            ended.push(began.elapsed());
        }
        println!(
            "{:?} {network:?}: session made {:?}, ended {:?} (least, median)",
            rig.who,
            median(made),
            median(ended)
        );
    }
    rig.session("s");
    for terminal in [false, true] {
        let (mut started, mut ended) = (Vec::new(), Vec::new());
        for n in 0..40 {
            let id = format!("cost-{terminal}-{n}");
            let mut spawn = rig.spawn_request("s", &id, Program::Argv(vec!["true".into()]));
            if terminal {
                spawn.stdio = Stdio::Pty { rows: 24, cols: 80 };
            }
            let began = Instant::now();
            rig.spawn(spawn);
            started.push(began.elapsed());
            rig.exit(&id);
            ended.push(began.elapsed());
        }
        println!(
            "{:?} terminal={terminal}: `true` started {:?}, ended {:?} (least, median)",
            rig.who,
            median(started),
            median(ended)
        );
    }
}

/// A detached copy of a directory's mount, as a gateway hands it over.
fn detached(path: &Path) -> OwnedFd {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path is a C string that outlives the call; 1 is OPEN_TREE_CLONE.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            path.as_ptr(),
            1 | libc::O_CLOEXEC,
        )
    };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: made by the call above.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn a_detached_mount_becomes_the_view(rig: Rig) {
    let view = rig.view("s");
    fs::write(view.join("f"), "from the mount\n").unwrap();
    let mount = detached(&view);
    rig.client()
        .create_session(rig.session_request("s"), &[mount.as_fd()])
        .unwrap();
    drop(mount);
    let text = rig
        .sh(
            "s",
            "cat f; echo x > g; grep -c ' ro,' /proc/self/mountinfo > /dev/null && echo ok",
        )
        .text();
    assert_eq!(text, "from the mount\nok\n");
    assert_eq!(fs::read_to_string(view.join("g")).unwrap(), "x\n");
    assert_eq!(
        rig.client().cancel("none").map_err(|e| e.to_string()),
        Err("no command none".to_owned())
    );
}

#[test]
fn mounts_under_hidden_paths_are_not_in_the_session_at_all() {
    let Some(rig) = Rig::start(Who::Root, "mounts_under_hidden_paths") else {
        return;
    };
    let point = Path::new("/mnt/sandstack-holder-hidden");
    fs::create_dir_all(point.join("inner")).unwrap();
    let mount = |path: &Path| {
        std::process::Command::new("mount")
            .args(["-t", "tmpfs", "secretfs"])
            .arg(path)
            .status()
            .unwrap()
            .success()
    };
    if !mount(&point.join("inner")) {
        return lacking("leave to mount a tmpfs");
    }
    // One that a session's own directory lies on must stay.
    let needed = point.join("needed");
    fs::create_dir(&needed).unwrap();
    assert!(mount(&needed));
    fs::create_dir(needed.join("tmp")).unwrap();
    let mut request = rig.session_request("s");
    request.root.hide = vec![point.into()];
    request.root.tmp = needed.join("tmp").into();
    rig.create(request).unwrap();
    assert_eq!(rig.sh("s", "echo x > /tmp/x; cat /tmp/x").text(), "x\n");
    assert_eq!(fs::read_to_string(needed.join("tmp/x")).unwrap(), "x\n");
    let text = rig
        .sh(
            "s",
            "grep -c 'hidden/inner' /proc/self/mountinfo; ls -A /mnt/sandstack-holder-hidden",
        )
        .text();
    let here = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        std::process::Command::new("umount")
            .arg(point.join("inner"))
            .status()
            .unwrap()
            .success()
    );
    assert!(
        std::process::Command::new("umount")
            .arg(&needed)
            .status()
            .unwrap()
            .success()
    );
    fs::remove_dir_all(point).unwrap();
    assert_eq!(text, "0\n");
    assert!(
        here.contains("secretfs"),
        "the holder's own mounts are untouched"
    );
}
