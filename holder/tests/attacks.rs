//! What a hostile program inside a session tries.
//!
//! Everything runs as the session's root where there is one, which is the host's uid 0.
//! System calls that no shell makes are made by this very test program, run inside
//! (`probe`), which prints `name=errno` a line.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rig::{Rig, Who, tagged, until};
use sandstack_holder::protocol::*;

both!(
    stopping_everything_does_not_stop_the_init,
    no_system_call_leads_out,
    files_that_reach_the_host_are_not_writable,
    the_holder_and_the_init_are_out_of_reach,
    the_run_directory_is_hidden_where_the_host_is_seen,
    sockets_of_the_host_are_out_of_reach,
);

/// Runs `probe` inside; what came of each attempt.
fn probe(rig: &Rig, session: &str) -> BTreeMap<String, i32> {
    let words = [
        "/opt/probe",
        "--exact",
        "inside::probe",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    let words = words.map(Into::into).to_vec();
    let spawn = rig.spawn_request(session, &format!("probe-{session}"), Program::Argv(words));
    let outcome = rig.run(spawn);
    let pairs = |line: &str| {
        let (name, errno) = line.strip_prefix("PROBE ")?.split_once('=')?;
        Some((name.to_owned(), errno.parse().ok()?))
    };
    let found: BTreeMap<_, _> = outcome.text().lines().filter_map(pairs).collect();
    assert!(found.contains_key("end"), "{outcome:?}");
    found
}

/// A session that sees this test program at `/opt/probe`, and a stand-in for a daemon's
/// control socket in the host's `/run`.
fn session(rig: &Rig, id: &str, network: Network) -> CreateSession {
    let bin = rig.dir("probe", 0o755);
    let program = bin.join("probe");
    if !program.exists() {
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    }
    let mut request = rig.session_request(id);
    request.network = network;
    request.root.expose = vec![Bind {
        source: bin.into(),
        target: "/opt".into(),
    }];
    request
}

fn no_system_call_leads_out(rig: Rig) {
    for (id, network) in [("shared", Network::Shared), ("isolated", Network::Isolated)] {
        rig.create(session(&rig, id, network)).unwrap();
        let found = probe(&rig, id);
        let denied = [
            "mount",
            "umount2",
            "pivot_root",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "move_mount",
            "open_tree",
            "open_tree_attr",
            "mount_setattr",
            "unshare_user",
            "unshare_mnt",
            "unshare_time",
            "clone_user",
            "clone_mnt",
            "setns",
            "open_by_handle_at",
            "bpf",
            "perf_event_open",
            "userfaultfd",
            "keyctl",
            "add_key",
            "request_key",
            "kexec_load",
            "init_module",
            "finit_module",
            "delete_module",
            "reboot",
            "swapon",
            "swapoff",
            "quotactl",
            "acct",
            "settimeofday",
            "clock_settime",
            "sethostname",
            "syslog",
            "socket_vsock",
            "mknod_block",
            "mknod_char",
            "ptrace_init",
        ];
        for name in denied {
            assert_eq!(found[name], libc::EPERM, "{name} {found:?}");
        }
        for name in ["clone3", "io_uring_setup", "x32"] {
            assert_eq!(found[name], libc::ENOSYS, "{name}");
        }
        for name in ["fork", "unshare_files", "ptrace_child", "socket_inet"] {
            assert_eq!(found[name], 0, "{name}");
        }
        assert_eq!(
            found["packet_socket"] == 0,
            network == Network::Isolated && rig.who == Who::Root
        );
        assert_eq!(
            found["chroot_out"], 0,
            "a chroot leads to the session's own root only"
        );
    }
}

fn files_that_reach_the_host_are_not_writable(rig: Rig) {
    rig.session("s");
    let script = r#"
        w() { ( echo "$2" > "$1" ) 2>/dev/null && echo "WROTE $1"; }
        w /proc/sys/kernel/core_pattern '|/bin/false'
        w /proc/sys/kernel/modprobe /bin/false
        w /proc/sys/vm/drop_caches 1
        w /proc/sysrq-trigger h
        w /proc/irq/default_smp_affinity f
        w /proc/mtrr x
        w /sys/kernel/uevent_helper /bin/false
        w /sys/power/state mem
        for f in /sys/fs/cgroup/*/release_agent /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do w "$f" 1; done
        w /proc/1/oom_score_adj -1000
        w /proc/1/mem x
        w /etc/x x; w /usr/bin/x x; w /root/x x; w /boot/x x
        for f in /proc/kcore /proc/keys /proc/kmsg /proc/kpagecount /proc/slabinfo /proc/timer_list /proc/vmallocinfo /proc/pagetypeinfo; do
            [ -e $f ] && [ "$(head -c 1 $f 2>/dev/null | wc -c)" != 0 ] && echo "READ $f"
        done
        ls -A /sys/firmware /sys/fs/fuse/connections /sys/kernel/debug 2>/dev/null | grep -v '^/\|^$'
        for d in sda vda mem kmem kmsg port fuse kvm net loop0 console tty0 input mapper; do [ -e /dev/$d ] && echo "DEVICE $d"; done
        echo checked
    "#;
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    assert_eq!(rig.sh("s", script).text(), "checked\n");
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(),
        before
    );
    // Ordinary use of /proc and /dev is not harmed.
    let script = "grep -c ^processor /proc/cpuinfo >/dev/null && head -c 4 /dev/urandom | wc -c; echo x > /dev/null; echo 100 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj; readlink /proc/self/exe > /dev/null; cat /proc/sys/kernel/ostype; ls /dev";
    let text = rig.sh("s", script).text();
    assert_eq!(
        text,
        "4\n100\nLinux\nfd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n"
    );
}

fn the_holder_and_the_init_are_out_of_reach(rig: Rig) {
    rig.session("s");
    let script = format!(
        r#"
        leader=$(grep -l session-term /proc/[0-9]*/comm | cut -d/ -f3 | head -n 1)
        [ -n "$leader" ] || echo NO-LEADER
        for p in 1 $leader; do
        cat /proc/$p/cmdline /proc/$p/environ 2>/dev/null | tr '\0' '\n' | grep -a 'HOLDER_SECRET\|sandbox-id\|sock'
        for l in root cwd exe; do readlink /proc/$p/$l && echo "LINK $l"; ls /proc/$p/$l/ 2>/dev/null; done 2>/dev/null
        for l in /proc/$p/fd/* /proc/$p/ns/* /proc/$p/map_files/*; do readlink "$l" && echo "LINK $l"; done 2>/dev/null
        for f in mem maps environ stack syscall auxv smaps pagemap; do head -c 1 /proc/$p/$f 2>/dev/null | grep -q . && echo "READ $p/$f"; done
        nsenter -t $p -m true 2>/dev/null && echo ENTERED
        nsenter -t $p -a true 2>/dev/null && echo ENTERED
        done
        unshare -U true 2>/dev/null && echo UNSHARED
        gdb -p 1 -batch 2>/dev/null | grep -q 'Attaching' && echo TRACED
        ls -A {run} 2>/dev/null
        [ -S {socket} ] && echo SOCKET
        kill -9 1 2>/dev/null; kill -STOP 1 2>/dev/null; kill -USR1 1 2>/dev/null
        echo checked
        "#,
        run = rig.run_dir().display(),
        socket = rig.socket().display(),
    );
    // A command on a terminal has a leader, which is the init's memory too.
    rig.spawn(rig.terminal("s", "terminal", "echo ready; sleep 1000"));
    rig.wait_screen("terminal", "ready");
    let outcome = rig.sh("s", &script);
    assert_eq!(outcome.text(), "checked\n", "{outcome:?}");
    // Killing all one can ends what one has started, not the session.
    let tag = rig.tag("sibling");
    rig.spawn(rig.shell("s", "sibling", &format!("exec -a {tag} sleep 1000")));
    until("the sibling", || !tagged(&tag).is_empty());
    let outcome = rig.run(rig.shell("s", "all", "kill -9 -1; echo alone; exit 3"));
    assert_eq!((outcome.code(), &*outcome.text()), (3, "alone\n"));
    assert_eq!(
        rig.exit("sibling").status,
        ExitStatus::Signalled { signal: 9 }
    );
    assert_eq!(rig.sh("s", "echo fine").text(), "fine\n");
}

fn the_run_directory_is_hidden_where_the_host_is_seen(rig: Rig) {
    // Not under /tmp, so that nothing but the cover hides it.
    let outside = Path::new("/srv").join(rig.base.path().file_name().unwrap());
    fs::create_dir(&outside).unwrap();
    rig.give(&outside);
    let (socket, run_dir) = (outside.join("holder.sock"), outside.join("run"));
    let mut holder = rig.command(&socket, &run_dir).spawn().unwrap();
    let mut status = None;
    until("the socket", || {
        status = holder.try_wait().unwrap();
        status.is_some() || socket.exists()
    });
    assert!(status.is_none(), "{status:?}");
    let client = loop {
        match sandstack_holder::Client::connect(&socket, |_| {}) {
            Ok(client) => break client,
            Err(_) => std::thread::yield_now(),
        }
    };
    let view = rig::o_path(&rig.view("s"));
    use std::os::fd::AsFd;
    client
        .create_session(rig.session_request("s"), &[view.as_fd()])
        .unwrap();
    let script = format!(
        "ls -A {0}/run; touch {0}/run/x 2>/dev/null && echo wrote; [ -S {0}/holder.sock ] && echo SOCKET; ls -A {0}",
        outside.display()
    );
    client.spawn(rig.shell("s", "c", &script)).unwrap();
    until("the end", || {
        sandstack_holder::evidence::read(&rig.out("c"))
            .unwrap()
            .is_some()
    });
    let text = rig
        .reader("c")
        .bytes_from(Stream::Stdout, 0, 10_000)
        .unwrap()
        .bytes;
    assert_eq!(String::from_utf8_lossy(&text), "holder.sock\nrun\n");
    client.done(&Request::Shutdown).unwrap();
    assert!(holder.wait().unwrap().success());
    fs::remove_dir_all(&outside).unwrap();
}

fn sockets_of_the_host_are_out_of_reach(rig: Rig) {
    // Stand-ins for a container daemon's sockets: in /run, and an abstract one.
    let name = rig
        .base
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let path = Path::new("/run").join(format!("{name}.sock"));
    let _daemon = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    for (id, network) in [("shared", Network::Shared), ("isolated", Network::Isolated)] {
        let mut request = session(&rig, id, network);
        request.env = vec![
            ("PROBE_ABSTRACT".into(), name.as_str().into()),
            ("PROBE_PATH".into(), path.clone().into()),
        ];
        let info = rig.create(request).unwrap();
        let found = probe(&rig, id);
        assert_eq!(found["socket_path"], libc::ENOENT);
        assert_eq!(found["own_abstract"], 0, "the session's own still work");
        if info.abstract_sockets_fenced {
            assert!(
                [libc::EPERM, libc::ECONNREFUSED].contains(&found["socket_abstract"]),
                "{found:?}"
            );
        } else {
            rig::lacking("Landlock ABI 6, to fence abstract sockets");
        }
    }
    fs::remove_file(&path).unwrap();
}

fn stopping_everything_does_not_stop_the_init(rig: Rig) {
    rig.session("s");
    // As fast as it can; whatever is born is stopped at once.
    let script = "echo ready; while :; do kill -STOP -1; done";
    let mut spawn = rig.terminal("s", "stopper", script);
    spawn.timeout_ms = Some(60_000);
    rig.spawn(spawn);
    rig.wait_screen("stopper", "ready");
    for n in 0..6 {
        let mut spawn = rig.shell("s", &format!("victim-{n}"), "true");
        spawn.timeout_ms = Some(500);
        // It may be stopped at any point, before or after its program runs.
        match rig.client().spawn(spawn) {
            Ok(_) => {
                let status = rig.exit(&format!("victim-{n}")).status;
                let fine = [ExitStatus::Exited { code: 0 }, ExitStatus::TimedOut];
                assert!(fine.contains(&status), "{status:?}");
            }
            Err(error) => assert!(error.to_string().contains("killed before"), "{error}"),
        }
    }
    assert_eq!(rig.client().cancel("stopper").unwrap(), []);
    assert_eq!(rig.sh("s", "echo fine").text(), "fine\n");
}

/// What runs inside a session; see `probe` above.
mod inside {
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    fn errno(result: libc::c_long) -> i32 {
        if result < 0 {
            std::io::Error::last_os_error().raw_os_error().unwrap()
        } else {
            0
        }
    }

    fn report(name: &str, errno: i32) {
        println!("PROBE {name}={errno}");
    }

    fn call(name: &str, number: libc::c_long, arguments: [libc::c_long; 5]) {
        let [a, b, c, d, e] = arguments;
        // SAFETY: every call is refused before it looks at its arguments, or takes none
        // that are pointers; that is what is being tested.
        report(name, errno(unsafe { libc::syscall(number, a, b, c, d, e) }));
    }

    /// Forks by `clone` with flags; the child ends at once.
    fn clone(name: &str, flags: libc::c_int) {
        // SAFETY: without CLONE_VM this is a fork, and the child only ends.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
        if pid == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        report(name, errno(pid));
    }

    #[test]
    #[ignore = "runs inside a session, started by the other tests"]
    fn probe() {
        println!();
        let none = [0; 5];
        for (name, number) in [
            ("mount", libc::SYS_mount),
            ("umount2", libc::SYS_umount2),
            ("pivot_root", libc::SYS_pivot_root),
            ("fsopen", libc::SYS_fsopen),
            ("fsconfig", libc::SYS_fsconfig),
            ("fsmount", libc::SYS_fsmount),
            ("fspick", libc::SYS_fspick),
            ("move_mount", libc::SYS_move_mount),
            ("open_tree", libc::SYS_open_tree),
            ("open_tree_attr", 467),
            ("mount_setattr", libc::SYS_mount_setattr),
            ("setns", libc::SYS_setns),
            ("open_by_handle_at", libc::SYS_open_by_handle_at),
            ("bpf", libc::SYS_bpf),
            ("perf_event_open", libc::SYS_perf_event_open),
            ("userfaultfd", libc::SYS_userfaultfd),
            ("keyctl", libc::SYS_keyctl),
            ("add_key", libc::SYS_add_key),
            ("request_key", libc::SYS_request_key),
            ("kexec_load", libc::SYS_kexec_load),
            ("init_module", libc::SYS_init_module),
            ("finit_module", libc::SYS_finit_module),
            ("delete_module", libc::SYS_delete_module),
            ("reboot", libc::SYS_reboot),
            ("swapon", libc::SYS_swapon),
            ("swapoff", libc::SYS_swapoff),
            ("quotactl", libc::SYS_quotactl),
            ("acct", libc::SYS_acct),
            ("settimeofday", libc::SYS_settimeofday),
            ("clock_settime", libc::SYS_clock_settime),
            ("sethostname", libc::SYS_sethostname),
            ("syslog", libc::SYS_syslog),
            ("clone3", libc::SYS_clone3),
            ("io_uring_setup", libc::SYS_io_uring_setup),
        ] {
            call(name, number, none);
        }
        let flag = |flag: libc::c_int| [libc::c_long::from(flag), 0, 0, 0, 0];
        call("unshare_user", libc::SYS_unshare, flag(libc::CLONE_NEWUSER));
        call(
            "unshare_mnt",
            libc::SYS_unshare,
            flag(libc::CLONE_NEWNS | libc::CLONE_FS),
        );
        call("unshare_time", libc::SYS_unshare, flag(0x80));
        call("unshare_files", libc::SYS_unshare, flag(libc::CLONE_FILES));
        clone("clone_user", libc::CLONE_NEWUSER);
        clone("clone_mnt", libc::CLONE_NEWNS);
        clone("fork", 0);
        // getpid of x32, which is refused before the kernel asks whether it has x32.
        if cfg!(target_arch = "x86_64") {
            call("x32", 0x4000_0000 + 39, none);
        } else {
            report("x32", libc::ENOSYS);
        }
        socket("socket_vsock", libc::AF_VSOCK, libc::SOCK_STREAM);
        socket("socket_inet", libc::AF_INET, libc::SOCK_STREAM);
        socket("packet_socket", libc::AF_PACKET, libc::SOCK_RAW);
        for (name, kind, device) in [
            ("mknod_block", libc::S_IFBLK, libc::makedev(254, 0)),
            ("mknod_char", libc::S_IFCHR, libc::makedev(1, 1)),
        ] {
            // SAFETY: the path is a C string that outlives the call.
            let made = unsafe { libc::mknod(c"/tmp/device".as_ptr(), kind | 0o666, device) };
            report(name, errno(made.into()));
        }
        ptrace();
        sockets();
        chroot_out();
        report("end", 0);
    }

    fn socket(name: &str, family: libc::c_int, kind: libc::c_int) {
        // SAFETY: a call without pointers.
        report(name, errno(unsafe { libc::socket(family, kind, 0) }.into()));
    }

    fn ptrace() {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: PTRACE_SEIZE takes no memory of ours here.
        report(
            "ptrace_init",
            errno(unsafe { libc::ptrace(libc::PTRACE_SEIZE, 1, none, none) }),
        );
        // SAFETY: the child only waits for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: a call without pointers.
                unsafe { libc::pause() };
            }
        }
        // SAFETY: as above; the child is ours and not yet waited for.
        unsafe {
            report(
                "ptrace_child",
                errno(libc::ptrace(libc::PTRACE_SEIZE, child, none, none)),
            );
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    fn sockets() {
        use std::os::linux::net::SocketAddrExt;
        let code = |result: std::io::Result<UnixStream>| match result {
            Ok(_) => 0,
            Err(error) => error.raw_os_error().unwrap(),
        };
        if let (Ok(path), Ok(name)) = (std::env::var("PROBE_PATH"), std::env::var("PROBE_ABSTRACT"))
        {
            report("socket_path", code(UnixStream::connect(path)));
            let address = SocketAddr::from_abstract_name(name).unwrap();
            report("socket_abstract", code(UnixStream::connect_addr(&address)));
        }
        let own = SocketAddr::from_abstract_name("own").unwrap();
        let _listener = UnixListener::bind_addr(&own).unwrap();
        report("own_abstract", code(UnixStream::connect_addr(&own)));
    }

    /// The old way out of a chroot: 0 if it leads no further than the session's root (or
    /// is not allowed at all), 1 if it leads out.
    fn chroot_out() {
        std::fs::create_dir_all("/tmp/jail").unwrap();
        // SAFETY: paths are C strings; the descriptor is open while it is used.
        unsafe {
            let here = libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
            if libc::chroot(c"/tmp/jail".as_ptr()) < 0 {
                report("chroot_out", 0);
                return;
            }
            libc::fchdir(here);
            for _ in 0..100 {
                libc::chdir(c"..".as_ptr());
            }
            libc::chroot(c".".as_ptr());
        }
        let out = !std::path::Path::new("/opt/probe").exists()
            || std::fs::read_dir("/run").is_ok_and(|dir| dir.count() > 1);
        report("chroot_out", i32::from(out));
    }
}
