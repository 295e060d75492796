//! What lives on while names come and go, and over mounts: open directories, working directories,
//! mappings, positions, and what counts against the quota.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, SeekFrom};

use super::everything;
use crate::fixture::mapping::{Mapping, PAGE};
use crate::fixture::syscalls::{self, Dirent, open};
use crate::fixture::{Disk, in_every_mode};

/// A position that was told before a view was unmounted, or its daemon killed, means the same after.
#[test]
fn positions_outlive_the_mount() {
    let fill = |base: &Path| {
        fs::create_dir(base.join("dir")).unwrap();
        for index in 0..150 {
            fs::write(base.join(format!("dir/lower-{index:03}")), "").unwrap();
        }
    };
    in_every_mode("positions_outlive_the_mount", fill, |disk| {
        let dir = disk.path("dir");
        for index in 0..150 {
            fs::write(dir.join(format!("upper-{index:03}")), "").unwrap();
            if index % 3 == 0 {
                fs::remove_file(dir.join(format!("lower-{index:03}"))).unwrap();
            }
        }
        fs::rename(dir.join("lower-001"), dir.join("moved")).unwrap();
        let before = syscalls::list(&dir);
        let check = || {
            assert_eq!(syscalls::list(&dir), before);
            for at in (0..before.len() - 1).step_by(7) {
                let again = syscalls::open_dir(&dir);
                rustix::fs::seek(&again, SeekFrom::Start(before[at].next as u64)).unwrap();
                let rest: Vec<Dirent> = syscalls::list_some(&again, 64 << 10);
                assert_eq!(rest, before[at + 1..], "behind {:?}", before[at]);
            }
        };
        check();
        disk.remount();
        check();
        disk.kill();
        check();
    });
}

/// A directory that is open or worked in stays the same one wherever it and those above it are moved,
/// and whatever takes its name.
#[test]
fn directories_in_use_may_be_moved() {
    in_every_mode("directories_in_use_may_be_moved", everything, |disk| {
        let held = syscalls::open_dir(&disk.path("dir/below"));
        let mut shell = Command::new("sh")
            .args([
                "-c",
                "read go; readlink /proc/self/cwd; ls; cat same | wc -c; echo made > by-shell; read go",
            ])
            .current_dir(disk.path("dir/below"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let number = rustix::fs::fstat(held.as_fd()).unwrap().st_ino;
        fs::create_dir(disk.path("new")).unwrap();
        fs::rename(disk.path("dir"), disk.path("new/moved")).unwrap();
        fs::rename(disk.path("new/moved/below"), disk.path("under")).unwrap();
        fs::create_dir_all(disk.path("dir/below")).unwrap();
        fs::write(disk.path("dir/below/another"), "").unwrap();
        assert_eq!(rustix::fs::fstat(held.as_fd()).unwrap().st_ino, number);
        assert_eq!(fs::metadata(disk.path("under")).unwrap().ino(), number);
        assert_ne!(fs::metadata(disk.path("dir/below")).unwrap().ino(), number);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = rustix::fs::openat(&held, "by-descriptor", flags, Mode::from_raw_mode(0o644));
        File::from(file.unwrap()).write_all_at(b"made", 0).unwrap();
        assert_eq!(fs::read(disk.path("under/by-descriptor")).unwrap(), b"made");
        let up = rustix::fs::openat(&held, "..", OFlags::RDONLY, Mode::empty()).unwrap();
        let root = fs::metadata(disk.path("")).unwrap().ino();
        assert_eq!(rustix::fs::fstat(&up).unwrap().st_ino, root);
        let mut names: Vec<Vec<u8>> = syscalls::list_some(&held, 4096)
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        names.sort();
        let expected = [".", "..", "by-descriptor", "deep", "empty", "same"];
        assert_eq!(names, expected.map(|name| name.as_bytes().to_vec()));
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), b"go\ngo\n").unwrap();
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success());
        let expected = format!(
            "{}\nby-descriptor\ndeep\nempty\nsame\n20000\n",
            disk.path("under").canonicalize().unwrap().display()
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        assert_eq!(fs::read(disk.path("under/by-shell")).unwrap(), b"made\n");
    });
}

/// A mapping goes with its file, not with a name: when that is moved, given to another file or taken
/// away, and when the file is made shorter and longer.
#[test]
fn mappings_go_with_their_file() {
    let fill = |base: &Path| fs::write(base.join("lower"), vec![b'l'; 3 * PAGE]).unwrap();
    in_every_mode("mappings_go_with_their_file", fill, |disk| {
        fs::write(disk.path("upper"), vec![b'u'; 3 * PAGE]).unwrap();
        for (name, byte) in [("lower", b'l'), ("upper", b'u')] {
            let file = open(&disk.path(name), OFlags::RDWR).unwrap();
            let mapping = Mapping::first(2 * PAGE, &file, true);
            mapping.store(0, b'0');
            fs::rename(disk.path(name), disk.path("moved")).unwrap();
            mapping.store(1, b'1');
            fs::write(disk.path(name), "of another").unwrap();
            assert_eq!(
                fs::read(disk.path("moved")).unwrap()[..3],
                [b'0', b'1', byte]
            );
            let writer = open(&disk.path("moved"), OFlags::RDWR).unwrap();
            writer.write_all_at(b"written", PAGE as u64).unwrap();
            assert_eq!((mapping.load(PAGE), mapping.load(2)), (b'w', byte));
            // What is cut off reads as zeros when there is a page again.
            writer.set_len(10).unwrap();
            assert_eq!((mapping.load(9), mapping.load(10)), (byte, 0));
            writer.set_len(2 * PAGE as u64).unwrap();
            assert_eq!((mapping.load(10), mapping.load(PAGE)), (0, 0));
            mapping.store(PAGE, b'!');
            fs::remove_file(disk.path("moved")).unwrap();
            mapping.store(PAGE + 1, b'?');
            mapping.sync();
            let mut bytes = [0; 3];
            file.read_exact_at(&mut bytes, PAGE as u64).unwrap();
            assert_eq!(&bytes, b"!?\0");
            assert_eq!(fs::read(disk.path(name)).unwrap(), b"of another");
        }
    });
}

/// What counts against the quota, and how many names a file and a directory have, is the same after a
/// mount and after a kill.
#[test]
fn room_and_links_outlive_the_mount() {
    in_every_mode("room_and_links_outlive_the_mount", everything, |disk| {
        fs::write(disk.path("new"), vec![1; 300_000]).unwrap();
        fs::hard_link(disk.path("new"), disk.path("dir/new")).unwrap();
        fs::hard_link(disk.path("dir/other"), disk.path("other")).unwrap();
        fs::remove_file(disk.path("dir/below/same")).unwrap();
        fs::create_dir(disk.path("dir/made")).unwrap();
        let file = open(&disk.path("file"), OFlags::RDWR).unwrap();
        file.write_all_at(b"far", 1 << 30).unwrap();
        syscalls::fallocate(&file, 0, 0, 100_000).unwrap();
        drop(file);
        let seen = |disk: &Disk| {
            let names = ["new", "dir/other", "file", "dir", "dir/made", ""];
            let of = names.map(|name| {
                let found = fs::metadata(disk.path(name)).unwrap();
                (name, found.nlink(), found.size(), found.blocks())
            });
            (of, disk.used_bytes())
        };
        let before = seen(disk);
        assert!(before.1 >= 300_000, "{before:?}");
        disk.remount();
        assert_eq!(seen(disk), before);
        disk.kill();
        assert_eq!(seen(disk), before);
        fs::remove_file(disk.path("new")).unwrap();
        assert_eq!(disk.used_bytes(), before.1);
        disk.remount();
        fs::remove_file(disk.path("dir/new")).unwrap();
        disk.remount();
        assert!(
            disk.used_bytes() + 300_000 <= before.1,
            "{} of {}",
            disk.used_bytes(),
            before.1
        );
    });
}
