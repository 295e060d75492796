//! Semantics: renames.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::everything;
use crate::fixture::syscalls::rename;
use crate::fixture::{Snapshot, in_every_mode, lacks_root};

/// > `RENAME_NOREPLACE` and `RENAME_EXCHANGE` work across types.
#[test]
fn flags_of_renames_work_across_types() {
    in_every_mode("flags_of_renames_work_across_types", everything, |disk| {
        let names = ["file", "dir", "link", "fifo"];
        fs::write(disk.path("new"), "new").unwrap();
        for from in names {
            for to in names.into_iter().filter(|to| *to != from) {
                let before = Snapshot::of(&disk.path(""));
                assert_eq!(
                    rename(&disk.path(from), &disk.path(to), libc::RENAME_NOREPLACE),
                    Err(libc::EEXIST),
                    "{from} to {to}"
                );
                Snapshot::of(&disk.path("")).assert_is(&before);
                rename(&disk.path(from), &disk.path(to), libc::RENAME_EXCHANGE).unwrap();
                let after = Snapshot::of(&disk.path(""));
                let ino = |snapshot: &Snapshot, name: &str| snapshot.0[Path::new(name)].ino;
                assert_eq!(ino(&after, from), ino(&before, to));
                assert_eq!(ino(&after, to), ino(&before, from));
            }
            // Out of the directory and back.
            rename(&disk.path(from), &disk.path("away"), libc::RENAME_NOREPLACE).unwrap();
            rename(&disk.path("away"), &disk.path(from), libc::RENAME_NOREPLACE).unwrap();
        }
        assert_eq!(
            rename(
                &disk.path("file"),
                &disk.path("none"),
                libc::RENAME_EXCHANGE
            ),
            Err(libc::ENOENT)
        );
        let before = Snapshot::of(&disk.path(""));
        disk.remount();
        Snapshot::of(&disk.path("")).assert_is(&before);
    });
}

/// > `RENAME_WHITEOUT` leaves a character device 0:0.
#[test]
fn a_whiteout_is_left_behind() {
    if lacks_root() {
        return;
    }
    in_every_mode("a_whiteout_is_left_behind", everything, |disk| {
        rename(
            &disk.path("file"),
            &disk.path("moved"),
            libc::RENAME_WHITEOUT,
        )
        .unwrap();
        rename(
            &disk.path("dir"),
            &disk.path("moved-dir"),
            libc::RENAME_WHITEOUT,
        )
        .unwrap();
        for _ in 0..2 {
            for name in ["file", "dir"] {
                let found = fs::symlink_metadata(disk.path(name)).unwrap();
                assert!(found.file_type().is_char_device(), "{name}");
                assert_eq!(found.rdev(), 0, "{name}");
            }
            assert_eq!(fs::read(disk.path("moved")).unwrap(), b"a file\n");
            assert!(disk.path("moved-dir/below").is_dir());
            disk.remount();
        }
    });
}

/// > A directory cannot be moved below itself: `EINVAL`.
///
/// > A directory with entries is not replaced: `ENOTEMPTY`.
#[test]
fn impossible_renames_are_refused() {
    in_every_mode("impossible_renames_are_refused", everything, |disk| {
        fs::create_dir_all(disk.path("new/below")).unwrap();
        for flags in [0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE] {
            for (dir, below) in [("dir", "dir/below/x"), ("new", "new/below/x")] {
                let (dir, below) = (disk.path(dir), disk.path(below));
                let expected = if flags == libc::RENAME_EXCHANGE {
                    // What is to be exchanged has to be there first.
                    libc::ENOENT
                } else {
                    libc::EINVAL
                };
                assert_eq!(rename(&dir, &below, flags), Err(expected));
                assert_eq!(rename(&dir, below.parent().unwrap(), flags), {
                    if flags == libc::RENAME_NOREPLACE {
                        Err(libc::EEXIST)
                    } else {
                        Err(libc::EINVAL)
                    }
                });
            }
        }
        let (full, empty) = (disk.path("dir"), disk.path("empty"));
        fs::create_dir(&empty).unwrap();
        assert_eq!(rename(&empty, &full, 0), Err(libc::ENOTEMPTY));
        assert_eq!(rename(&disk.path("file"), &empty, 0), Err(libc::EISDIR));
        assert_eq!(rename(&empty, &disk.path("file"), 0), Err(libc::ENOTDIR));
        assert_eq!(rename(&full, &empty, 0), Ok(()));
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 2);
    });
}

/// > Renaming one name of a file over another of the same file does nothing.
#[test]
fn renaming_a_file_over_itself_does_nothing() {
    in_every_mode(
        "renaming_a_file_over_itself_does_nothing",
        everything,
        |disk| {
            fs::write(disk.path("new"), "new").unwrap();
            fs::hard_link(disk.path("new"), disk.path("dir/new")).unwrap();
            let before = Snapshot::of(&disk.path(""));
            for (one, other) in [("dir/other", "dir/below/same"), ("new", "dir/new")] {
                rename(&disk.path(one), &disk.path(other), 0).unwrap();
                Snapshot::of(&disk.path("")).assert_is(&before);
            }
        },
    );
}
