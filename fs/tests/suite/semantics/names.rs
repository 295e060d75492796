//! Semantics: names, listings, directories.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};

use super::{everything, nothing};
use crate::fixture::{Disk, Watchdog, in_every_mode, syscalls};

fn nlink(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().nlink()
}

/// > A name is 1 to 255 bytes without `/` and NUL; a longer one is `ENAMETOOLONG`.
///
/// > No name is reserved, trimmed or normalised.
#[test]
fn every_name_is_kept_as_it_is() {
    let mut names: Vec<Vec<u8>> = (1..=255u8)
        .filter(|byte| !matches!(byte, b'/' | b'.'))
        .map(|byte| vec![byte])
        .collect();
    names.extend(
        (1..=255u8)
            .filter(|byte| *byte != b'/')
            .map(|b| vec![b; 255]),
    );
    let special: [&[u8]; 15] = [
        b"...",
        b" lead and trail ",
        b"dot.",
        b"CON",
        b".wh.file",
        b".wh..wh..opq",
        b".fuse_hidden0001",
        b".git",
        b"#work",
        b"a\nb",
        b"back\\slash",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        b"\xc3\x28",
        b"FILE",
    ];
    names.extend(special.iter().map(|name| name.to_vec()));
    let expected: BTreeSet<Vec<u8>> = names.iter().cloned().collect();
    in_every_mode("every_name_is_kept_as_it_is", everything, |disk| {
        let dir = disk.path("names");
        fs::create_dir(&dir).unwrap();
        for name in &names {
            fs::write(dir.join(OsStr::from_bytes(name)), name).unwrap();
        }
        disk.remount();
        let listed: BTreeSet<Vec<u8>> = syscalls::list(&dir)
            .into_iter()
            .map(|entry| entry.name)
            .filter(|name| name != b"." && name != b"..")
            .collect();
        assert_eq!(listed, expected);
        for name in &names {
            assert_eq!(&fs::read(dir.join(OsStr::from_bytes(name))).unwrap(), name);
        }
        let long = dir.join("x".repeat(256));
        let short = dir.join("FILE");
        let too_long = Some(libc::ENAMETOOLONG);
        assert_eq!(File::create(&long).unwrap_err().raw_os_error(), too_long);
        assert_eq!(fs::metadata(&long).unwrap_err().raw_os_error(), too_long);
        assert_eq!(fs::create_dir(&long).unwrap_err().raw_os_error(), too_long);
        assert_eq!(
            fs::rename(&short, &long).unwrap_err().raw_os_error(),
            too_long
        );
        assert_eq!(
            fs::hard_link(&short, &long).unwrap_err().raw_os_error(),
            too_long
        );
        let symlink = std::os::unix::fs::symlink("x", &long);
        assert_eq!(symlink.unwrap_err().raw_os_error(), too_long);
        assert_eq!(fs::remove_file(&long).unwrap_err().raw_os_error(), too_long);
    });
}

/// > `.` and `..` are listed first.
#[test]
fn dot_and_dot_dot_come_first() {
    in_every_mode("dot_and_dot_dot_come_first", everything, |disk| {
        fs::write(disk.path("dir/!"), "").unwrap();
        for dir in ["", "dir", "dir/below", "dir/below/deep"] {
            let listed = syscalls::list(&disk.path(dir));
            assert_eq!(listed[0].name, b".", "{dir}");
            assert_eq!(listed[1].name, b"..", "{dir}");
        }
        assert_eq!(syscalls::list(&disk.path("dir/below/deep")).len(), 2);
    });
}

/// > A position in a directory stays valid while entries are made and removed; each entry that is there throughout is listed once.
#[test]
fn positions_stay_valid() {
    let fill = |base: &Path| {
        fs::create_dir(base.join("dir")).unwrap();
        for index in 0..400 {
            fs::write(base.join(format!("dir/lower-{index:03}")), "").unwrap();
        }
    };
    in_every_mode("positions_stay_valid", fill, |disk| {
        let dir = disk.path("dir");
        for index in 0..400 {
            fs::write(dir.join(format!("upper-{index:03}")), "").unwrap();
        }
        let descriptor = syscalls::open_dir(&dir);
        let mut seen = Vec::new();
        let mut round = 0;
        loop {
            let more = syscalls::list_some(&descriptor, 1024);
            if more.is_empty() {
                break;
            }
            // Every tenth stays; of the others some go, and others come, with each step.
            for part in ["lower", "upper"] {
                for index in (round * 7..round * 7 + 7).filter(|index| index % 10 != 0) {
                    let _ = fs::remove_file(dir.join(format!("{part}-{:03}", 399 - index % 400)));
                }
            }
            fs::write(dir.join(format!("later-{round}")), "").unwrap();
            seen.extend(more);
            round += 1;
        }
        assert!(round > 10);
        let count = |name: &str| {
            seen.iter()
                .filter(|entry| entry.name == name.as_bytes())
                .count()
        };
        for index in (0..400).filter(|index| (399 - index) % 10 == 0) {
            for part in ["lower", "upper"] {
                let name = format!("{part}-{index:03}");
                assert_eq!(count(&name), 1, "{name}");
            }
        }
        let all: BTreeSet<&[u8]> = seen.iter().map(|entry| entry.name.as_slice()).collect();
        assert_eq!(all.len(), seen.len(), "nothing is listed twice");

        // Back to each position, from a descriptor of its own.
        let listed = syscalls::list(&dir);
        for pair in listed.windows(2).step_by(17) {
            let again = syscalls::open_dir(&dir);
            rustix::fs::seek(&again, rustix::fs::SeekFrom::Start(pair[0].next as u64)).unwrap();
            assert_eq!(
                syscalls::list_some(&again, 1024).first(),
                Some(&pair[1]),
                "behind {pair:?}"
            );
        }
    });
}

/// > A name that is there throughout is listed once, also while other files are renamed over it or exchanged with it.
///
/// > A listing ends, whatever is made and renamed meanwhile.
#[test]
fn listings_stand_renames() {
    const FILES: usize = 120;
    let fill = |base: &Path| {
        for dir in ["move", "over", "swap", "make"] {
            fs::create_dir(base.join(dir)).unwrap();
            for index in 0..FILES {
                fs::write(base.join(dir).join(format!("lower-{index}")), "").unwrap();
            }
        }
    };
    /// What is done to each entry as it is listed.
    type Act<'a> = &'a dyn Fn(&Path, &Path);
    let acts: [(&str, Act<'_>); 4] = [
        ("move", &|dir, name| {
            fs::rename(name, dir.join("TEMP")).unwrap();
            fs::rename(dir.join("TEMP"), name).unwrap();
        }),
        ("over", &|dir, name| {
            fs::write(dir.join("TEMP"), "").unwrap();
            fs::rename(dir.join("TEMP"), name).unwrap();
        }),
        ("swap", &|dir, name| {
            for other in ["lower-7", "upper-7"].map(|other| dir.join(other)) {
                syscalls::rename(name, &other, libc::RENAME_EXCHANGE).unwrap();
            }
        }),
        ("make", &|_, name| {
            let longer = format!("{}x", name.display());
            // Names only get so long.
            let _ = fs::File::create(longer);
        }),
    ];
    in_every_mode("listings_stand_renames", fill, |disk| {
        for (dir, act) in acts {
            let path = disk.path(dir);
            for index in 0..FILES {
                fs::write(path.join(format!("upper-{index}")), "").unwrap();
            }
            let mut names = Vec::new();
            let descriptor = syscalls::open_dir(&path);
            loop {
                // A few at a time, so that most is listed after most has been renamed.
                let some = syscalls::list_some(&descriptor, 256);
                if some.is_empty() {
                    break;
                }
                for entry in some.iter().filter(|entry| !entry.name.starts_with(b".")) {
                    act(&path, &path.join(OsStr::from_bytes(&entry.name)));
                    names.push(String::from_utf8(entry.name.clone()).unwrap());
                }
                assert!(names.len() < 10 * FILES, "the listing of {dir} has no end");
            }
            for part in ["lower", "upper"] {
                for index in 0..FILES {
                    let name = format!("{part}-{index}");
                    let listed = names.iter().filter(|listed| **listed == name).count();
                    assert_eq!(listed, 1, "{dir}/{name}");
                }
            }
        }
    });
}

/// Removing while listing, as `rm -r` does it, reaches everything.
#[test]
fn a_directory_is_emptied_while_it_is_listed() {
    let fill = |base: &Path| {
        fs::create_dir(base.join("dir")).unwrap();
        for index in 0..3000 {
            fs::write(base.join(format!("dir/file-{index}")), "").unwrap();
        }
    };
    in_every_mode("a_directory_is_emptied_while_it_is_listed", fill, |disk| {
        for index in 0..3000 {
            fs::write(disk.path(&format!("dir/new-{index}")), "").unwrap();
        }
        let dir = syscalls::open_dir(&disk.path("dir"));
        loop {
            let more = syscalls::list_some(&dir, 4096);
            if more.is_empty() {
                break;
            }
            for entry in more.iter().filter(|entry| !entry.name.starts_with(b".")) {
                rustix::fs::unlinkat(&dir, entry.name.as_slice(), AtFlags::empty()).unwrap();
            }
        }
        fs::remove_dir(disk.path("dir")).unwrap();
    });
}

/// > A directory's link count is 2 and one for each directory in it.
#[test]
fn link_counts_of_directories() {
    in_every_mode("link_counts_of_directories", everything, |disk| {
        let dir = disk.path("dir");
        assert_eq!((nlink(&disk.path("")), nlink(&dir)), (3, 3));
        fs::create_dir(dir.join("new")).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        assert_eq!(nlink(&dir), 4);
        fs::rename(dir.join("new"), disk.path("new")).unwrap();
        assert_eq!((nlink(&disk.path("")), nlink(&dir)), (4, 3));
        fs::remove_dir(disk.path("new")).unwrap();
        assert_eq!(nlink(&disk.path("")), 3);
        // A directory for a file.
        syscalls::rename(
            &dir.join("below"),
            &disk.path("file"),
            libc::RENAME_EXCHANGE,
        )
        .unwrap();
        assert_eq!((nlink(&disk.path("")), nlink(&dir)), (4, 2));
        disk.remount();
        assert_eq!((nlink(&disk.path("")), nlink(&dir)), (4, 2));
        assert_eq!(nlink(&disk.path("file")), 3);
    });
}

/// > Making, removing or renaming an entry moves mtime and ctime of its directory.
#[test]
fn changes_of_entries_move_the_times_of_directories() {
    in_every_mode(
        "changes_of_entries_move_the_times_of_directories",
        everything,
        |disk| {
            let (dir, other) = (disk.path("dir"), disk.path("dir/below"));
            let check = |what: &str, moved: &[&Path], act: &dyn Fn()| {
                let before: Vec<_> = moved.iter().map(|path| syscalls::times(path)).collect();
                act();
                for (path, before) in moved.iter().zip(before) {
                    let after = syscalls::times(path);
                    let at = path.display();
                    assert!(after.1 > before.1, "{what}: mtime of {at}");
                    assert!(after.2 > before.2, "{what}: ctime of {at}");
                    assert_eq!(after.0, before.0, "{what}: atime of {at}");
                }
            };
            let (a, b, c) = (dir.join("a"), dir.join("b"), other.join("c"));
            check("create", &[&dir], &|| fs::write(&a, "").unwrap());
            check("mkdir", &[&dir], &|| fs::create_dir(dir.join("d")).unwrap());
            check("symlink", &[&dir], &|| {
                std::os::unix::fs::symlink("x", dir.join("s")).unwrap();
            });
            check("link", &[&dir], &|| fs::hard_link(&a, &b).unwrap());
            check("rename within", &[&dir], &|| {
                fs::rename(&b, dir.join("e")).unwrap();
            });
            check("rename across", &[&dir, &other], &|| {
                fs::rename(&a, &c).unwrap();
            });
            check("exchange", &[&dir, &other], &|| {
                syscalls::rename(&c, &dir.join("d"), libc::RENAME_EXCHANGE).unwrap();
            });
            check("unlink", &[&dir], &|| {
                fs::remove_file(dir.join("d")).unwrap()
            });
            check("rmdir", &[&other], &|| fs::remove_dir(&c).unwrap());
        },
    );
}

/// > Renaming a directory costs one entry, whatever is below it, and is never `EXDEV` within a view.
#[test]
fn renaming_a_directory_costs_one_entry() {
    let _watchdog = Watchdog::start(
        "renaming_a_directory_costs_one_entry",
        Duration::from_secs(60),
    );
    let fill = |base: &Path| {
        for dir in ["small", "large/a/b"] {
            fs::create_dir_all(base.join(dir)).unwrap();
        }
        for index in 0..2000 {
            fs::write(base.join(format!("large/a/b/{index}")), "x").unwrap();
        }
    };
    let mut disk = Disk::over("files", fill);
    fs::create_dir(disk.path("target")).unwrap();
    let cost = |from: &str, to: &str| {
        let before = disk.journal_bytes();
        fs::rename(disk.path(from), disk.path(to)).unwrap();
        disk.journal_bytes() - before
    };
    let small = cost("small", "target/small");
    // The same but for the lengths of numbers.
    assert!(cost("large", "target/large").abs_diff(small) < 32);
    assert!(cost("target/large", "again").abs_diff(small) < 64);
    assert_eq!(disk.content_bytes(), 0);
    for _ in 0..2 {
        assert_eq!(syscalls::list(&disk.path("again/a/b")).len(), 2002);
        assert_eq!(fs::read(disk.path("again/a/b/77")).unwrap(), b"x");
        disk.remount();
    }
}

/// > A removed directory that is a working directory stays one; nothing can be made in it.
#[test]
fn a_removed_directory_stays_a_working_directory() {
    in_every_mode(
        "a_removed_directory_stays_a_working_directory",
        everything,
        |disk| {
            for (dir, made) in [("dir/below/deep", false), ("new", true)] {
                let dir = disk.path(dir);
                if made {
                    fs::create_dir(&dir).unwrap();
                }
                // What the kernel holds for a working directory is what it holds for this.
                let held = syscalls::open_dir(&dir);
                let held = held.as_fd();
                fs::remove_dir(&dir).unwrap();
                let found = rustix::fs::fstat(held).unwrap();
                assert_eq!(found.st_nlink, 0);
                assert_eq!(syscalls::try_list_some(held, 1024), Err(libc::ENOENT));
                let gone = Err(rustix::io::Errno::NOENT);
                let mode = Mode::from_raw_mode(0o644);
                let create = OFlags::CREATE | OFlags::WRONLY;
                assert_eq!(
                    rustix::fs::openat(held, "file", create, mode).map(|_| ()),
                    gone
                );
                assert_eq!(rustix::fs::mkdirat(held, "dir", mode), gone);
                assert_eq!(rustix::fs::symlinkat("x", held, "link"), gone);
                let file = disk.path("file");
                let linked =
                    rustix::fs::linkat(rustix::fs::CWD, &file, held, "x", AtFlags::empty());
                assert_eq!(linked, gone);
                let moved = rustix::fs::renameat(rustix::fs::CWD, &file, held, "x");
                assert_eq!(moved, gone);
            }
            let output = std::process::Command::new("sh")
                .args([
                    "-c",
                    "mkdir here && cd here && rmdir ../here && test -d . && ! touch x && test -d . && cd .. && pwd",
                ])
                .current_dir(disk.path(""))
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
        },
    );
}

/// An empty name, and a path that ends in one, are what they are on a disk.
#[test]
fn paths_that_end_in_a_slash_are_directories() {
    in_every_mode(
        "paths_that_end_in_a_slash_are_directories",
        nothing,
        |disk| {
            fs::create_dir(disk.path("dir")).unwrap();
            fs::write(disk.path("file"), "").unwrap();
            assert!(fs::metadata(disk.path("dir/")).unwrap().is_dir());
            let found = fs::metadata(disk.path("file/")).unwrap_err();
            assert_eq!(found.raw_os_error(), Some(libc::ENOTDIR));
        },
    );
}
