//! Semantics: permissions, owners, set-id bits, times, extended attributes, special files.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FileType, OFlags};

use super::{everything, nothing};
use crate::fixture::syscalls::{
    self, as_member, as_user, chmod, chown, copy_range, errno, fallocate, make_node, mode, open,
    set_xattr, xattr, xattr_names,
};
use crate::fixture::{Disk, Watchdog, in_every_mode, lacks, lacks_root};

/// A user and group that are nobody's.
const USER: u32 = 65_534;
const OTHER_GROUP: u32 = 4_242;

/// `security.capability` with CAP_NET_BIND_SERVICE, effective (version 2 of its format).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// > Permissions are checked by the kernel, as on a disk.
#[test]
fn permissions_are_checked() {
    if lacks_root() {
        return;
    }
    in_every_mode("permissions_are_checked", everything, |disk| {
        let (file, dir) = (disk.path("file"), disk.path("dir"));
        chmod(&file, 0o600);
        chmod(&dir, 0o700);
        fs::create_dir(disk.path("sticky")).unwrap();
        chmod(&disk.path("sticky"), 0o1777);
        fs::write(disk.path("sticky/root"), "").unwrap();
        as_user(USER, USER, || {
            let denied = Some(libc::EACCES);
            assert_eq!(File::open(&file).unwrap_err().raw_os_error(), denied);
            assert_eq!(fs::read_dir(&dir).unwrap_err().raw_os_error(), denied);
            let below = fs::metadata(dir.join("other")).unwrap_err();
            assert_eq!(below.raw_os_error(), denied);
            let created = File::create(disk.path("new")).unwrap_err();
            assert_eq!(created.raw_os_error(), denied);
            let not_permitted = Some(libc::EPERM);
            let removed = fs::remove_file(disk.path("sticky/root")).unwrap_err();
            assert_eq!(removed.raw_os_error(), not_permitted);
            let chowned = std::os::unix::fs::chown(&file, Some(USER), None).unwrap_err();
            assert_eq!(chowned.raw_os_error(), not_permitted);
            fs::write(disk.path("sticky/own"), "own").unwrap();
            assert_eq!(fs::read(disk.path("sticky/own")).unwrap(), b"own");
            fs::remove_file(disk.path("sticky/own")).unwrap();
        });
        chmod(&file, 0o604);
        as_user(USER, USER, || {
            assert_eq!(fs::read(&file).unwrap(), b"a file\n");
        });
    });
}

/// > All twelve mode bits are kept.
#[test]
fn mode_bits_are_kept() {
    in_every_mode("mode_bits_are_kept", everything, |disk| {
        for bits in [0, 0o7777, 0o4711, 0o2755, 0o1777, 0o644, 0o600] {
            for name in ["file", "dir", "dir/other", "fifo"] {
                chmod(&disk.path(name), bits);
                assert_eq!(mode(&disk.path(name)), bits, "{name}");
            }
            if rustix::process::geteuid().is_root() {
                disk.remount();
                assert_eq!(mode(&disk.path("dir/other")), bits);
            }
            chmod(&disk.path("dir"), 0o755);
        }
    });
}

/// > Writing, truncating, `fallocate`, copying into and changing the owner of a file take set-id bits away, as in Linux, and `security.capability` with them; set-group-id without execution for the group only if the caller is not in it.
#[test]
fn changes_take_set_id_bits_away() {
    if lacks_root() {
        return;
    }
    in_every_mode("changes_take_set_id_bits_away", nothing, |disk| {
        let path = disk.path("file");
        fs::write(disk.path("source"), vec![1; 8192]).unwrap();
        chmod(&disk.path("source"), 0o644);
        type Change<'c> = (&'static str, &'c (dyn Fn(&Path) + Sync));
        let changes: [Change<'_>; 8] = [
            ("write", &|path| {
                let file = open(path, OFlags::WRONLY).unwrap();
                file.write_all_at(b"x", 0).unwrap();
            }),
            ("truncate", &|path| {
                open(path, OFlags::WRONLY).unwrap().set_len(100).unwrap();
            }),
            ("open to truncate", &|path| {
                drop(open(path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
            }),
            ("fallocate", &|path| {
                fallocate(&open(path, OFlags::WRONLY).unwrap(), 0, 0, 9000).unwrap();
            }),
            ("punch", &|path| {
                let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                fallocate(&open(path, OFlags::WRONLY).unwrap(), punch, 0, 4096).unwrap();
            }),
            ("copy into", &|path| {
                let from = open(&disk.path("source"), OFlags::RDONLY).unwrap();
                let to = open(path, OFlags::WRONLY).unwrap();
                assert_eq!(copy_range(&from, 0, &to, 0, 8192), Ok(8192));
            }),
            ("change of owner", &|path| {
                // To what it is already: allowed, and a change nevertheless.
                std::os::unix::fs::chown(path, None, Some(USER)).unwrap();
            }),
            ("change of no owner", &|path| {
                std::os::unix::fs::chown(path, None, None).unwrap();
            }),
        ];
        for (what, change) in changes {
            // The bits before, and those that stay; set-gid without group execution is no set-id.
            for (before, after) in [
                (0o6777, 0o777),
                (0o4777, 0o777),
                (0o2776, 0o776),
                (0o2766, 0o2766),
                (0o1777, 0o1777),
            ] {
                let _ = fs::remove_file(&path);
                fs::write(&path, vec![2; 4096]).unwrap();
                chown(&path, USER, USER);
                chmod(&path, before);
                set_xattr(&path, "security.capability", &CAPABILITY).unwrap();
                set_xattr(&path, "user.kept", b"kept").unwrap();
                as_user(USER, USER, || change(&path));
                assert_eq!(mode(&path), after, "{what} of {before:o}");
                let capability = xattr(&path, "security.capability");
                assert_eq!(capability, Err(libc::ENODATA), "{what} of {before:o}");
                assert_eq!(xattr(&path, "user.kept").as_deref(), Ok(b"kept".as_slice()));
            }
            // Nobody's group, and one that the caller is in without its being the file's first.
            for (groups, after) in [(&[][..], 0o666), (&[OTHER_GROUP], 0o2666)] {
                if what == "change of owner" {
                    continue;
                }
                let _ = fs::remove_file(&path);
                fs::write(&path, vec![2; 4096]).unwrap();
                chown(&path, USER, OTHER_GROUP);
                chmod(&path, 0o6666);
                as_member(USER, USER, groups, || change(&path));
                assert_eq!(mode(&path), after, "{what} by a member of {groups:?}");
            }
        }
        // Root keeps the bits when it writes, not when it gives the file away.
        chown(&path, USER, USER);
        chmod(&path, 0o6777);
        let file = open(&path, OFlags::WRONLY).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(mode(&path), 0o6777);
        chown(&path, 1, 1);
        assert_eq!(mode(&path), 0o777);
    });
}

/// > Whatever is no directory loses set-id bits when its owner is changed.
///
/// > `chown` to no new owner and no new group, by one who does not own a file with set-id bits, changes nothing, and is not refused as on a disk: the kernel neither checks it nor says what it is.
#[test]
fn changes_of_owner_take_set_id_bits_away() {
    if lacks_root() {
        return;
    }
    in_every_mode(
        "changes_of_owner_take_set_id_bits_away",
        everything,
        |disk| {
            make_node(&disk.path("null"), FileType::CharacterDevice, (1, 3)).unwrap();
            make_node(&disk.path("socket"), FileType::Socket, (0, 0)).unwrap();
            let names = ["file", "fifo", "null", "socket", "dir/below", "dir"];
            for name in names {
                let path = disk.path(name);
                let is_dir = path.is_dir();
                for (uid, gid) in [(Some(USER), None), (None, Some(USER)), (None, None)] {
                    chmod(&path, 0o6755);
                    std::os::unix::fs::lchown(&path, uid, gid).unwrap();
                    let after = if is_dir { 0o6755 } else { 0o755 };
                    assert_eq!(mode(&path), after, "{name} to {uid:?} {gid:?}");
                }
                chmod(&path, 0o6755);
                let before = syscalls::times(&path);
                as_user(1, 1, || std::os::unix::fs::lchown(&path, None, None)).unwrap();
                assert_eq!(mode(&path), 0o6755, "{name} by a stranger");
                assert!(is_dir || syscalls::times(&path) == before, "{name}");
            }
        },
    );
}

/// > A directory with the set-group-id bit hands its group down, and the bit to directories.
#[test]
fn groups_are_handed_down() {
    if lacks_root() {
        return;
    }
    let fill = |base: &Path| {
        fs::create_dir(base.join("lower")).unwrap();
        chown(&base.join("lower"), 0, OTHER_GROUP);
        chmod(&base.join("lower"), 0o2777);
    };
    in_every_mode("groups_are_handed_down", fill, |disk| {
        fs::create_dir(disk.path("upper")).unwrap();
        chown(&disk.path("upper"), 0, OTHER_GROUP);
        chmod(&disk.path("upper"), 0o2777);
        for dir in ["lower", "upper"] {
            let dir = disk.path(dir);
            as_user(USER, USER, || {
                fs::write(dir.join("file"), "").unwrap();
                fs::create_dir(dir.join("dir")).unwrap();
                std::os::unix::fs::symlink("x", dir.join("link")).unwrap();
                make_node(&dir.join("fifo"), FileType::Fifo, (0, 0)).unwrap();
            });
            for name in ["file", "dir", "link", "fifo"] {
                let found = fs::symlink_metadata(dir.join(name)).unwrap();
                assert_eq!((found.uid(), found.gid()), (USER, OTHER_GROUP), "{name}");
            }
            assert_eq!(mode(&dir.join("dir")) & 0o7000, 0o2000);
            assert_eq!(mode(&dir.join("file")) & 0o7000, 0);
        }
    });
}

/// > Reading does not move atime; it is kept when set by name.
#[test]
fn reading_does_not_move_atime() {
    in_every_mode("reading_does_not_move_atime", everything, |disk| {
        for name in ["file", "dir", "link"] {
            syscalls::set_times(&disk.path(name), (12_345, 678), (20_000, 0));
        }
        for _ in 0..2 {
            fs::read(disk.path("file")).unwrap();
            syscalls::list(&disk.path("dir"));
            fs::read_link(disk.path("link")).unwrap();
            for name in ["file", "dir", "link"] {
                let (atime, mtime, _) = syscalls::times(&disk.path(name));
                assert_eq!((atime, mtime), ((12_345, 678), (20_000, 0)), "{name}");
            }
            disk.remount();
        }
    });
}

/// > What goes through a FIFO moves none of its times: the kernel tells nobody.
#[test]
fn times_of_fifos_stay() {
    in_every_mode("times_of_fifos_stay", everything, |disk| {
        let path = disk.path("fifo");
        let before = syscalls::times(&path);
        let mut file = open(&path, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        file.write_all(b"through").unwrap();
        let mut bytes = [0; 7];
        file.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"through");
        assert_eq!(syscalls::times(&path), before);
    });
}

/// > Extended attributes of `user.`, `trusted.` and `security.` are kept byte for byte.
///
/// > Other attributes of `system.` are `EOPNOTSUPP`.
#[test]
fn extended_attributes_are_kept() {
    if lacks_root() {
        return;
    }
    in_every_mode("extended_attributes_are_kept", everything, |disk| {
        let every_byte: Vec<u8> = (0..=255).collect();
        let large = vec![0xa5; 64 << 10];
        let values: [(&str, &[u8]); 8] = [
            ("user.bytes", &every_byte),
            ("user.empty", b""),
            ("user.large", &large),
            ("user.\u{fc}", b"name"),
            ("trusted.overlay.opaque", b"y"),
            ("trusted.overlay.redirect", b"/x"),
            ("security.selinux", b"label\0"),
            ("security.other", b"value"),
        ];
        for name in ["file", "dir", "dir/other"] {
            let path = disk.path(name);
            for (name, value) in values {
                set_xattr(&path, name, value).unwrap();
            }
            set_xattr(&path, "user.gone", b"x").unwrap();
            rustix::fs::lremovexattr(&path, c"user.gone").unwrap();
        }
        disk.remount();
        for name in ["file", "dir", "dir/other"] {
            let path = disk.path(name);
            for (name, value) in values {
                assert_eq!(xattr(&path, name).unwrap(), value, "{name}");
            }
            let names = xattr_names(&path);
            assert!(!names.contains(&b"user.gone".to_vec()));
            for (name, _) in values {
                assert!(names.contains(&name.as_bytes().to_vec()), "{name}");
            }
            let unknown = Err(libc::EOPNOTSUPP);
            assert_eq!(set_xattr(&path, "system.other", b"x"), unknown);
            assert_eq!(xattr(&path, "system.other").map(|_| ()), unknown);
            assert_eq!(xattr(&path, "user.none"), Err(libc::ENODATA));
            assert_eq!(set_xattr(&path, "trusted.", b"x"), Err(libc::EINVAL));
            assert_eq!(xattr(&path, "user."), Err(libc::EINVAL));
        }
        // As on a disk, `user.` is for files and directories alone.
        assert_eq!(
            set_xattr(&disk.path("link"), "user.x", b"x"),
            Err(libc::EPERM)
        );
        assert_eq!(set_xattr(&disk.path("link"), "trusted.x", b"x"), Ok(()));
        assert_eq!(xattr(&disk.path("link"), "trusted.x").unwrap(), b"x");
    });
}

/// > Access control lists are kept, imported, handed down and enforced, as on a disk.
#[test]
fn access_control_lists_count() {
    if lacks_root() {
        return;
    }
    let tool = |program: &str, args: &[&str], path: &Path| {
        let output = Command::new(program).args(args).arg(path).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    if !Command::new("setfacl")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
        && lacks("setfacl")
    {
        return;
    }
    let set = |path: &Path, list: &str| tool("setfacl", &["-m", list], path);
    let get = |path: &Path| tool("getfacl", &["-cnEp"], path);
    let user = format!("u:{USER}:rw");
    let fill = |base: &Path| {
        everything(base);
        set(&base.join("file"), &user);
        set(&base.join("dir"), &format!("d:u:{USER}:rwx,d:o::-"));
        chmod(&base.join("dir"), 0o711);
    };
    in_every_mode("access_control_lists_count", fill, |disk| {
        // Imported: getfacl says the same of both.
        for name in ["file", "dir", "dir/other"] {
            assert_eq!(get(&disk.path(name)), get(&disk.base(name)), "{name}");
        }
        let may =
            |name: &str| as_user(USER, USER, || open(&disk.path(name), OFlags::RDWR)).map(|_| ());
        let denied = Err(libc::EACCES);
        assert_eq!(may("file"), Ok(()));
        assert_eq!(may("dir/other"), denied);
        // Given and taken away.
        set(&disk.path("dir/other"), &user);
        assert_eq!(mode(&disk.path("dir/other")), 0o664);
        assert_eq!(may("dir/other"), Ok(()));
        tool("setfacl", &["-b"], &disk.path("dir/other"));
        assert_eq!(may("dir/other"), denied);
        // The mask follows the group's bits, and the other way round.
        chmod(&disk.path("file"), 0o644);
        assert_eq!(may("file"), denied);
        assert!(get(&disk.path("file")).contains("mask::r--"));
        set(&disk.path("file"), "m::rw");
        assert_eq!(mode(&disk.path("file")), 0o664);
        assert_eq!(may("file"), Ok(()));
        // Handed down, whatever the umask; a list that says no more than the bits is none.
        for dir in ["dir", "dir/new"] {
            let dir = disk.path(dir);
            fs::write(dir.join("made"), "").unwrap();
            fs::create_dir(dir.join("new")).unwrap();
            assert_eq!(mode(&dir.join("made")), 0o660);
            assert_eq!(mode(&dir.join("new")), 0o770);
            let list = get(&dir.join("new"));
            assert!(list.contains(&format!("default:user:{USER}:rwx")), "{list}");
        }
        assert_eq!(may("dir/new/made"), Ok(()));
        set(&disk.path("dir/made"), "o::r");
        let lists = |disk: &Disk| {
            ["file", "dir", "dir/made", "dir/new", "dir/new/made"].map(|name| get(&disk.path(name)))
        };
        let before = lists(disk);
        disk.remount();
        assert_eq!(lists(disk), before);
        // Without a default list the umask counts.
        fs::write(disk.path("plain"), "").unwrap();
        assert_eq!(mode(&disk.path("plain")), 0o644);
        // Whoever gives a list and is not in the group loses the bit for it.
        let file = disk.path("file");
        chown(&file, USER, OTHER_GROUP);
        chmod(&file, 0o2775);
        as_user(USER, USER, || set(&file, "u:7:r,m::rwx"));
        assert_eq!(mode(&file), 0o775);
    });
}

/// > Symlinks, FIFOs, sockets and device nodes can be made.
///
/// > Device nodes and set-id bits have no effect unless the mount allows them.
#[test]
fn special_files_work() {
    if lacks_root() {
        return;
    }
    in_every_mode("special_files_work", nothing, |disk| {
        std::os::unix::fs::symlink("over/there", disk.path("link")).unwrap();
        make_node(&disk.path("fifo"), FileType::Fifo, (0, 0)).unwrap();
        make_node(&disk.path("null"), FileType::CharacterDevice, (1, 3)).unwrap();
        make_node(&disk.path("block"), FileType::BlockDevice, (259, 70_000)).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(disk.path("socket")).unwrap();
        // An open socket would keep the mount.
        drop(listener);
        for _ in 0..2 {
            let found = |name: &str| fs::symlink_metadata(disk.path(name)).unwrap();
            assert_eq!(
                fs::read_link(disk.path("link")).unwrap(),
                Path::new("over/there")
            );
            assert_eq!(found("link").len(), 10);
            assert!(found("fifo").file_type().is_fifo());
            assert!(found("socket").file_type().is_socket());
            assert!(found("null").file_type().is_char_device());
            assert_eq!(found("null").rdev(), rustix::fs::makedev(1, 3));
            assert_eq!(found("block").rdev(), rustix::fs::makedev(259, 70_000));
            disk.remount();
        }
        // The mount has `dev` and `suid`.
        let mut bytes = [0; 1];
        assert_eq!(
            File::open(disk.path("null"))
                .unwrap()
                .read(&mut bytes)
                .unwrap(),
            0
        );
    });
    let _watchdog = Watchdog::start("special_files_work", Duration::from_secs(60));
    for (options, allowed) in [("suid,dev", true), ("nosuid,nodev", false)] {
        let disk = Disk::with("files", &["-o", options], |base| {
            fs::copy("/usr/bin/id", base.join("id")).unwrap();
            chmod(&base.join("id"), 0o4755);
        });
        make_node(&disk.path("null"), FileType::CharacterDevice, (1, 3)).unwrap();
        let opened = open(&disk.path("null"), OFlags::RDONLY).map(|_| ());
        let expected = if allowed { Ok(()) } else { Err(libc::EACCES) };
        assert_eq!(opened, expected);
        let program = disk.path("id");
        let said = as_user(USER, USER, || {
            let output = Command::new(&program).arg("-u").output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        });
        let runs_as = if allowed { "0" } else { "65534" };
        assert_eq!(said.trim(), runs_as, "{options}");
    }
}

/// A view that is mounted read-only refuses every change.
#[test]
fn a_read_only_view_refuses_changes() {
    let _watchdog = Watchdog::start("a_read_only_view_refuses_changes", Duration::from_secs(60));
    let disk = Disk::with("files", &["-o", "ro"], everything);
    let refused = Err(libc::EROFS);
    assert_eq!(
        open(&disk.path("file"), OFlags::WRONLY).map(|_| ()),
        refused
    );
    assert_eq!(
        fs::create_dir(disk.path("new")).map_err(errno),
        Err(libc::EROFS)
    );
    assert_eq!(fs::read(disk.path("file")).unwrap(), b"a file\n");
}
