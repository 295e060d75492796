//! Semantics: the content of files.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;

use super::nothing;
use crate::fixture::mapping::{Mapping, PAGE};
use crate::fixture::syscalls::{copy_range, fallocate, open, seek};
use crate::fixture::{Disk, Watchdog, in_every_mode, wait_until};

const KIB: u64 = 1024;
const MIB: u64 = KIB * KIB;

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    let file = open(path, OFlags::WRONLY).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// > The first write to a file of the layer copies the blocks that are written, and no others.
///
/// > A block is 4 KiB.
#[test]
fn a_write_copies_the_blocks_that_it_touches() {
    let fill = |base: &Path| {
        let bytes: Vec<u8> = (0..64 * MIB).map(|at| (at / 4096) as u8).collect();
        fs::write(base.join("large"), bytes).unwrap();
    };
    in_every_mode("a_write_copies_the_blocks_that_it_touches", fill, |disk| {
        let path = disk.path("large");
        assert_eq!(disk.content_bytes(), 0);
        write_at(&path, 10 * MIB + 5, b"x");
        assert_eq!(disk.content_bytes(), 4 * KIB);
        write_at(&path, 10 * MIB + 9, b"y");
        assert_eq!(disk.content_bytes(), 4 * KIB);
        write_at(&path, 20 * MIB - 1, b"zz");
        assert_eq!(disk.content_bytes(), 12 * KIB);
        // Neither changing metadata nor reading copies anything.
        crate::fixture::syscalls::chmod(&path, 0o600);
        drop(open(&path, OFlags::RDWR).unwrap());
        let mut expected: Vec<u8> = (0..64 * MIB).map(|at| (at / 4096) as u8).collect();
        expected[10 * MIB as usize + 5] = b'x';
        expected[10 * MIB as usize + 9] = b'y';
        expected[20 * MIB as usize - 1] = b'z';
        expected[20 * MIB as usize] = b'z';
        assert!(fs::read(&path).unwrap() == expected);
        // A store through a mapping is a write of its page.
        {
            let file = open(&path, OFlags::RDWR).unwrap();
            let mapping = Mapping::of(&file, true);
            mapping.store(17, b'm');
            mapping.sync();
        }
        expected[17] = b'm';
        assert_eq!(disk.content_bytes(), 16 * KIB);
        disk.remount();
        assert_eq!(disk.content_bytes(), 16 * KIB);
        assert!(fs::read(&path).unwrap() == expected);
    });
}

/// > What is written is read back, by every process and through every mapping, at once.
#[test]
fn what_is_written_is_seen_at_once() {
    let fill = |base: &Path| fs::write(base.join("file"), vec![b'.'; PAGE]).unwrap();
    in_every_mode("what_is_written_is_seen_at_once", fill, |disk| {
        let path = disk.path("file");
        // Opened and mapped while the file is the layer's.
        let before = open(&path, OFlags::RDONLY).unwrap();
        let mapping = Mapping::of(&before, false);
        let at = |offset: usize| {
            let mut byte = [0];
            before.read_exact_at(&mut byte, offset as u64).unwrap();
            assert_eq!(mapping.load(offset), byte[0]);
            byte[0]
        };
        assert_eq!(at(100), b'.');
        write_at(&path, 100, b"a");
        assert_eq!(at(100), b'a');
        let script = "printf b | dd of=\"$1\" bs=1 seek=200 conv=notrunc status=none";
        let status = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success());
        assert_eq!(at(200), b'b');
        let writer = open(&path, OFlags::RDWR).unwrap();
        let writable = Mapping::of(&writer, true);
        writable.store(300, b'c');
        assert_eq!(mapping.load(300), b'c');
        let output = Command::new("dd")
            .arg(format!("if={}", path.display()))
            .args(["bs=1", "skip=300", "count=1", "status=none"])
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"c");
        assert_eq!(at(300), b'c');
        writer.set_len(250).unwrap();
        writer.set_len(PAGE as u64).unwrap();
        assert_eq!((at(200), at(300)), (b'b', 0));
    });
}

/// > A hole reads as zeros, takes no room, and is found by `SEEK_HOLE`.
///
/// > Holes of the imported files are kept.
#[test]
fn holes_are_holes() {
    let sparse = |path: &Path| {
        let file = File::create(path).unwrap();
        file.write_all_at(b"start", 0).unwrap();
        file.write_all_at(b"middle", MIB).unwrap();
        file.set_len(4 * MIB).unwrap();
    };
    let fill = |base: &Path| sparse(&base.join("lower"));
    in_every_mode("holes_are_holes", fill, |disk| {
        sparse(&disk.path("upper"));
        // The end of a file is on a block of the copy that was changed, and of the one that was not.
        for name in ["lower", "upper"] {
            let path = disk.path(name);
            for changed in [false, true] {
                let file = open(&path, OFlags::RDWR).unwrap();
                if changed {
                    file.write_all_at(b"S", 0).unwrap();
                }
                let (mib, block) = (MIB as i64, 4096);
                assert_eq!(seek(&file, 0, libc::SEEK_HOLE), Ok(block), "{name}");
                assert_eq!(seek(&file, block, libc::SEEK_HOLE), Ok(block), "{name}");
                assert_eq!(seek(&file, block, libc::SEEK_DATA), Ok(mib), "{name}");
                assert_eq!(seek(&file, mib, libc::SEEK_HOLE), Ok(mib + block), "{name}");
                assert_eq!(
                    seek(&file, mib + block, libc::SEEK_DATA),
                    Err(libc::ENXIO),
                    "{name}"
                );
                assert_eq!(seek(&file, 4 * mib, libc::SEEK_HOLE), Err(libc::ENXIO));
                let content = fs::read(&path).unwrap();
                assert_eq!(content.len() as u64, 4 * MIB);
                assert_eq!(&content[MIB as usize..][..6], b"middle");
                let rest = content[4096..MIB as usize]
                    .iter()
                    .chain(&content[MIB as usize + 6..]);
                assert!(rest.into_iter().all(|byte| *byte == 0));
                assert_eq!(fs::metadata(&path).unwrap().blocks(), 16, "{name}");
            }
        }
        // One block of the copy, two of the new one.
        assert_eq!(disk.content_bytes(), 12 * KIB);
    });
}

/// > Truncation up and down, `fallocate` plain and with `KEEP_SIZE`, `PUNCH_HOLE` and `ZERO_RANGE` work; its other modes are `EOPNOTSUPP`.
#[test]
fn sizes_and_holes_are_changed_as_asked() {
    let content: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8 + 1).collect();
    let lower = content.clone();
    let fill = move |base: &Path| fs::write(base.join("lower"), &lower).unwrap();
    in_every_mode("sizes_and_holes_are_changed_as_asked", fill, |disk| {
        fs::write(disk.path("upper"), &content).unwrap();
        for name in ["lower", "upper"] {
            let path = disk.path(name);
            let file = open(&path, OFlags::RDWR).unwrap();
            let mut model = content.clone();
            let check = |model: &[u8], what: &str| {
                assert!(fs::read(&path).unwrap() == model, "{name}: {what}");
                assert_eq!(fs::metadata(&path).unwrap().len(), model.len() as u64);
            };
            file.set_len(9_999).unwrap();
            model.truncate(9_999);
            check(&model, "shorter");
            file.set_len(15_000).unwrap();
            model.resize(15_000, 0);
            check(&model, "longer");
            let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, punch, 100, 9_000).unwrap();
            model[100..9_100].fill(0);
            check(&model, "punched");
            fallocate(&file, punch, 14_000, 90_000).unwrap();
            model[14_000..].fill(0);
            check(&model, "punched over the end");
            fallocate(&file, 0, 14_000, 6_000).unwrap();
            model.resize(20_000, 0);
            check(&model, "allocated");
            fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 0, 50_000).unwrap();
            check(&model, "allocated, size kept");
            assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 50_000);
            fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 9_500, 12_000).unwrap();
            model[9_500..].fill(0);
            model.resize(21_500, 0);
            check(&model, "zeroed");
            let keep = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, keep, 50, 90_000).unwrap();
            model[50..].fill(0);
            check(&model, "zeroed, size kept");
            let refused = Err(libc::EOPNOTSUPP);
            for mode in [
                libc::FALLOC_FL_COLLAPSE_RANGE,
                libc::FALLOC_FL_INSERT_RANGE,
                libc::FALLOC_FL_UNSHARE_RANGE,
            ] {
                assert_eq!(fallocate(&file, mode, 0, 4096), refused, "{mode}");
            }
            check(&model, "refused");
        }
        let before = fs::read(disk.path("lower")).unwrap();
        disk.remount();
        assert!(fs::read(disk.path("lower")).unwrap() == before);
    });
}

/// > `copy_file_range` within a view shares what is not the session's own, and copies the rest.
#[test]
fn copies_share_the_layers_content() {
    let fill = |base: &Path| fs::write(base.join("lower"), vec![5; 8 << 20]).unwrap();
    in_every_mode("copies_share_the_layers_content", fill, |disk| {
        let copy = |from: &str, to: &str, length: u64| {
            let from = open(&disk.path(from), OFlags::RDONLY).unwrap();
            let to = open(&disk.path(to), OFlags::RDWR | OFlags::CREATE).unwrap();
            let mut at = 0;
            while at < length as i64 {
                let copied = copy_range(&from, at, &to, at, (length as i64 - at) as usize);
                assert!(copied.unwrap() > 0);
                at += copied.unwrap();
            }
        };
        copy("lower", "shared", 8 * MIB);
        assert!(fs::read(disk.path("shared")).unwrap() == vec![5; 8 << 20]);
        assert_eq!(disk.content_bytes(), 0);
        fs::write(disk.path("own"), vec![6; 1 << 20]).unwrap();
        assert_eq!(disk.content_bytes(), MIB);
        copy("own", "copied", MIB);
        assert_eq!(disk.content_bytes(), 2 * MIB);
        // Neither is changed by a change of the other.
        write_at(&disk.path("shared"), 0, b"x");
        write_at(&disk.path("own"), 0, b"x");
        assert!(fs::read(disk.path("lower")).unwrap() == vec![5; 8 << 20]);
        assert!(fs::read(disk.path("copied")).unwrap() == vec![6; 1 << 20]);
        // Behind the end there is nothing to copy.
        let own = open(&disk.path("own"), OFlags::RDWR).unwrap();
        let (end, more) = (MIB as i64, 2 * MIB as i64);
        assert_eq!(copy_range(&own, end, &own, more, 10), Ok(0));
        assert_eq!(copy_range(&own, 0, &own, 5, 10), Err(libc::EINVAL));
    });
}

/// > A file is at most 2^63 − 1 bytes.
#[test]
fn a_file_can_be_as_large_as_an_offset() {
    in_every_mode("a_file_can_be_as_large_as_an_offset", nothing, |disk| {
        let path = disk.path("huge");
        let file = open(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
        let most = i64::MAX as u64;
        file.set_len(most).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), most);
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"end", (1 << 40) - 3).unwrap();
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, (1 << 40) - 3).unwrap();
        assert_eq!(&bytes, b"end");
        // Beyond it, the kernel itself refuses.
        assert_eq!(
            file.write_at(b"x", most).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        assert_eq!(disk.content_bytes(), 4 * KIB);
        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok((1 << 40) - 4096));
    });
}

/// > An open file without a name keeps its content until the last descriptor and mapping is gone.
#[test]
fn a_file_without_a_name_lives_while_it_is_used() {
    let fill = |base: &Path| fs::write(base.join("lower"), vec![b'l'; PAGE]).unwrap();
    in_every_mode(
        "a_file_without_a_name_lives_while_it_is_used",
        fill,
        |disk| {
            fs::write(disk.path("upper"), vec![b'u'; PAGE]).unwrap();
            for (name, byte) in [("lower", b'l'), ("upper", b'u')] {
                let file = open(&disk.path(name), OFlags::RDWR).unwrap();
                let mapping = Mapping::of(&file, true);
                fs::remove_file(disk.path(name)).unwrap();
                assert_eq!(file.metadata().unwrap().nlink(), 0);
                file.write_all_at(b"more", PAGE as u64).unwrap();
                mapping.store(1, b'!');
                mapping.sync();
                let mut content = vec![0; PAGE + 4];
                file.read_exact_at(&mut content, 0).unwrap();
                assert_eq!((content[0], content[1], content[2]), (byte, b'!', byte));
                assert_eq!(&content[PAGE..], b"more");
                file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640))
                    .unwrap();
                assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
                // The mapping alone holds it, too.
                drop(file);
                assert_eq!((mapping.load(0), mapping.load(1)), (byte, b'!'));
                assert!(disk.used_bytes() >= 4 * KIB);
            }
            // The kernel lets go of an inode when it likes; nobody waits for it but this.
            wait_until("the room to be free", || disk.used_bytes() == 0);
        },
    );
}

/// > A rename over an open file leaves its readers the old content.
#[test]
fn readers_keep_what_a_rename_replaces() {
    let fill = |base: &Path| {
        fs::write(base.join("lower"), "old").unwrap();
        fs::write(base.join("other"), "new from below").unwrap();
    };
    in_every_mode("readers_keep_what_a_rename_replaces", fill, |disk| {
        fs::write(disk.path("upper"), "old").unwrap();
        for (name, from) in [("lower", "other"), ("upper", "fresh")] {
            fs::write(disk.path("fresh"), "new").unwrap();
            let reader = open(&disk.path(name), OFlags::RDONLY).unwrap();
            let mapping = Mapping::of(&reader, false);
            let new = fs::read(disk.path(from)).unwrap();
            fs::rename(disk.path(from), disk.path(name)).unwrap();
            let mut bytes = [0; 3];
            reader.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((&bytes, mapping.load(0)), (b"old", b'o'));
            assert_eq!(fs::read(disk.path(name)).unwrap(), new);
        }
    });
}

/// > `O_TMPFILE` is `EOPNOTSUPP`: the FUSE library does not carry the request.
///
/// > Creation times are not told: the library does not carry the request (`statx`), and a store keeps none.
#[test]
fn what_is_not_carried_is_refused() {
    let fill = |base: &Path| fs::write(base.join("lower"), "").unwrap();
    in_every_mode("what_is_not_carried_is_refused", fill, |disk| {
        let flags = OFlags::WRONLY | OFlags::TMPFILE;
        let answer = open(&disk.path(""), flags).map(|_| ());
        assert_eq!(answer, Err(libc::EOPNOTSUPP));
        fs::write(disk.path("upper"), "").unwrap();
        for name in ["lower", "upper"] {
            let found = fs::metadata(disk.path(name)).unwrap();
            assert!(found.created().is_err(), "{name}");
        }
    });
}

/// A disk that is unmounted with files open without a name is clean afterwards.
#[test]
fn nameless_files_end_with_the_mount() {
    let _watchdog = Watchdog::start("nameless_files_end_with_the_mount", Duration::from_secs(60));
    let mut disk = Disk::over("files", nothing);
    fs::write(disk.path("file"), vec![1; 1 << 20]).unwrap();
    let file = open(&disk.path("file"), OFlags::RDWR).unwrap();
    fs::remove_file(disk.path("file")).unwrap();
    assert_eq!(disk.used_bytes(), MIB);
    disk.kill();
    drop(file);
    assert_eq!(disk.used_bytes(), 0);
}
