//! Semantics: the view as a whole.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::{everything, nothing};
use crate::fixture::{Disk, Scratch, Snapshot, Watchdog, in_every_mode, syscalls, wait_until};

/// > A view shows its layer and the session's own changes, and nothing else.
///
/// > A session's changes do not touch the imported directory.
#[test]
fn a_view_is_its_layer_and_its_own_changes() {
    in_every_mode(
        "a_view_is_its_layer_and_its_own_changes",
        everything,
        |disk| {
            let base = Snapshot::of(&disk.base("")).imported();
            Snapshot::of(&disk.path("")).imported().assert_is(&base);

            fs::write(disk.path("new"), "mine").unwrap();
            fs::write(disk.path("file"), "changed").unwrap();
            fs::remove_file(disk.path("link")).unwrap();
            fs::rename(disk.path("dir"), disk.path("moved")).unwrap();
            syscalls::chmod(&disk.path("fifo"), 0o600);
            let names: Vec<String> = Snapshot::of(&disk.path(""))
                .0
                .into_keys()
                .map(|path| path.to_str().unwrap().to_owned())
                .collect();
            assert_eq!(
                names,
                [
                    "",
                    "fifo",
                    "file",
                    "moved",
                    "moved/below",
                    "moved/below/deep",
                    "moved/below/empty",
                    "moved/below/same",
                    "moved/other",
                    "new"
                ]
            );
            assert_eq!(fs::read(disk.path("file")).unwrap(), b"changed");
            Snapshot::of(&disk.base("")).imported().assert_is(&base);
        },
    );
}

/// > Nothing that other sessions or the host do to a project changes a view.
#[test]
fn nobody_else_changes_a_view() {
    let _watchdog = Watchdog::start("nobody_else_changes_a_view", Duration::from_secs(60));
    let mut disk = Disk::over("files", everything);
    let before = Snapshot::of(&disk.path(""));

    fs::write(disk.base("file"), "the host was here").unwrap();
    fs::write(disk.base("new"), "the host was here").unwrap();
    fs::remove_dir_all(disk.base("dir")).unwrap();
    Snapshot::of(&disk.path("")).assert_is(&before);

    disk.switch("two", &["--beside", "one"]);
    Snapshot::of(&disk.path("")).assert_is(&before);
    fs::write(disk.path("file"), "the other was here").unwrap();
    fs::remove_dir_all(disk.path("dir")).unwrap();
    fs::write(disk.path("new"), "the other was here").unwrap();
    disk.switch("one", &[]);
    Snapshot::of(&disk.path("")).assert_is(&before);

    disk.stop();
    disk.command(&["publish", "--session", "two"]);
    disk.remount();
    Snapshot::of(&disk.path("")).assert_is(&before);
}

/// > A view that is unmounted and mounted again is the same: content, metadata, inode numbers.
#[test]
fn a_view_outlives_its_mount() {
    in_every_mode("a_view_outlives_its_mount", everything, |disk| {
        fs::write(disk.path("new"), vec![3; 10_000]).unwrap();
        fs::hard_link(disk.path("new"), disk.path("dir/new")).unwrap();
        syscalls::set_xattr(&disk.path("new"), "user.a", b"b").unwrap();
        syscalls::set_times(&disk.path("new"), (-7, 5), (5_000_000_000, 6));
        syscalls::chmod(&disk.path("dir"), 0o1777);
        fs::rename(disk.path("dir/below"), disk.path("below")).unwrap();
        fs::remove_file(disk.path("file")).unwrap();
        let before = Snapshot::of(&disk.path(""));
        disk.remount();
        Snapshot::of(&disk.path("")).assert_is(&before);
        disk.kill();
        Snapshot::of(&disk.path("")).assert_is(&before);
    });
}

/// > `statfs` shows the room on the store's disk, or what is left of the session's quota if that is less.
#[test]
fn statfs_shows_disk_or_quota() {
    let _watchdog = Watchdog::start("statfs_shows_disk_or_quota", Duration::from_secs(60));
    let disk = Disk::with("files", &[], nothing);
    let (view, host) = (
        rustix::fs::statvfs(disk.path("")).unwrap(),
        rustix::fs::statvfs(disk.store()).unwrap(),
    );
    let bytes = |found: &rustix::fs::StatVfs| found.f_blocks * found.f_frsize;
    assert_eq!(bytes(&view), bytes(&host));
    // Others write to the disk meanwhile.
    let near = |one: u64, other: u64| one.abs_diff(other) < bytes(&host) / 10;
    assert!(near(
        view.f_bfree * view.f_frsize,
        host.f_bfree * host.f_frsize
    ));
    assert!(near(
        view.f_bavail * view.f_frsize,
        host.f_bavail * host.f_frsize
    ));
    assert_eq!((view.f_files, view.f_namemax), (host.f_files, 255));
    drop(disk);

    let disk = Disk::with("files", &["--quota", "1048576"], nothing);
    let left = || {
        let found = rustix::fs::statvfs(disk.path("")).unwrap();
        assert_eq!(bytes(&found), 1 << 20);
        found.f_bavail * found.f_frsize
    };
    assert_eq!(left(), 1 << 20);
    fs::write(disk.path("file"), vec![1; 256 << 10]).unwrap();
    assert_eq!(left(), 768 << 10);
}

/// A view in the background keeps nothing of whoever started it: a caller that reads what the program
/// says to its end goes on when the view is there.
#[test]
fn a_view_in_the_background_lets_its_starter_go() {
    let _watchdog = Watchdog::start(
        "a_view_in_the_background_lets_its_starter_go",
        Duration::from_secs(60),
    );
    let scratch = Scratch::new();
    let point = scratch.dir("view");
    let output = Command::new(env!("CARGO_BIN_EXE_sandbox-fs"))
        .args(["mount", "--session", "one", "--background", "--store"])
        .arg(scratch.path("store"))
        .arg(&point)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(syscalls::is_fuse(&point));
    sandstack_fs::unmount(&point).unwrap();
    // The daemon ends when its mount is gone; then the store is free.
    wait_until("the daemon to end", || {
        Command::new(env!("CARGO_BIN_EXE_sandbox-fs"))
            .args(["sessions", "--store"])
            .arg(scratch.path("store"))
            .output()
            .unwrap()
            .status
            .success()
    });
}
