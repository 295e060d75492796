//! Semantics: what survives, and what errors are.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;
use sandstack_fs::Flushed;

use super::{everything, nothing};
use crate::fixture::mapping::{Mapping, PAGE};
use crate::fixture::syscalls::{self, fallocate, open};
use crate::fixture::{
    Disk, Scratch, Snapshot, Watchdog, in_every_mode, lacks, lacks_root, wait_until,
};

fn change_something(disk: &Disk) {
    fs::write(disk.path("new"), vec![9; 100_000]).unwrap();
    fs::write(disk.path("dir/other"), "changed").unwrap();
    fs::rename(disk.path("dir/below"), disk.path("moved")).unwrap();
    fs::remove_file(disk.path("link")).unwrap();
    fs::create_dir(disk.path("made")).unwrap();
    fs::hard_link(disk.path("new"), disk.path("made/new")).unwrap();
    syscalls::set_xattr(&disk.path("made"), "user.a", b"b").unwrap();
    syscalls::chmod(&disk.path("made"), 0o700);
}

/// > A change that was acknowledged survives a killed daemon; after `fsync`, power loss.
#[test]
fn acknowledged_changes_survive_a_kill() {
    in_every_mode("acknowledged_changes_survive_a_kill", everything, |disk| {
        change_something(disk);
        let before = Snapshot::of(&disk.path(""));
        disk.kill();
        Snapshot::of(&disk.path("")).assert_is(&before);
        let file = open(&disk.path("new"), OFlags::RDWR).unwrap();
        file.write_all_at(b"again", 50_000).unwrap();
        drop(file);
        let before = Snapshot::of(&disk.path(""));
        disk.kill();
        disk.kill();
        Snapshot::of(&disk.path("")).assert_is(&before);
    });
}

/// A filesystem of its own whose power can be cut.
struct Machine {
    image: PathBuf,
    point: PathBuf,
}

impl Machine {
    fn new(scratch: &Scratch) -> Option<Machine> {
        let machine = Machine {
            image: scratch.path("image"),
            point: scratch.dir("machine"),
        };
        let image = fs::File::create(&machine.image).unwrap();
        image.set_len(256 << 20).unwrap();
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F"])
            .arg(&machine.image)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            let _said = lacks("mkfs.ext4");
            return None;
        }
        machine.mount().then_some(machine)
    }

    fn mount(&self) -> bool {
        let output = Command::new("mount")
            .args(["-o", "loop"])
            .arg(&self.image)
            .arg(&self.point)
            .output()
            .unwrap();
        output.status.success()
            || !lacks(&format!(
                "a loop device: {}",
                String::from_utf8_lossy(&output.stderr)
            ))
    }

    /// Nothing that was not synced reaches the disk from now on.
    fn cut_power(&self) {
        // `EXT4_IOC_SHUTDOWN`, and not to write the log out (`EXT4_GOING_FLAGS_NOLOGFLUSH`).
        const SHUTDOWN: libc::c_ulong = 0x8004_587d;
        static NO_LOG_FLUSH: u32 = 2;
        let dir = syscalls::open_dir(&self.point);
        // SAFETY: the request reads one word, which lives over the call.
        let result = unsafe {
            libc::ioctl(
                std::os::fd::AsRawFd::as_raw_fd(&dir),
                SHUTDOWN,
                &raw const NO_LOG_FLUSH,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    fn unmount(&self) {
        let status = Command::new("umount").arg(&self.point).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = sandstack_fs::unmount(&self.point);
    }
}

/// > A change that was acknowledged survives a killed daemon; after `fsync`, power loss.
///
/// > `fsync` of one file makes the whole session durable.
#[test]
fn synced_changes_survive_power_loss() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start(
        "synced_changes_survive_power_loss",
        Duration::from_secs(120),
    );
    let outer = Scratch::new();
    let Some(machine) = Machine::new(&outer) else {
        return;
    };
    let store = machine.point.join("store");
    let mut disk = Disk::in_store(Scratch::new(), &store, "files", &[], everything);
    for round in 0..2 {
        if round == 0 {
            change_something(&disk);
        } else {
            fs::rename(disk.path("made"), disk.path("again")).unwrap();
            fs::write(disk.path("again/more"), vec![8; 50_000]).unwrap();
        }
        // Any file will do.
        let file = open(&disk.path("file"), OFlags::RDONLY).unwrap();
        file.sync_all().unwrap();
        let before = Snapshot::of(&disk.path(""));
        machine.cut_power();
        disk.abandon();
        machine.unmount();
        assert!(machine.mount());
        disk.resume();
        Snapshot::of(&disk.path("")).assert_is(&before);
    }
    disk.stop();
}

/// > What was stored in a shared mapping is acknowledged by `msync`, `fsync`, `munmap` and the process's end; `syncfs` only begins to hand it over, since the kernel neither tells a FUSE filesystem of it nor waits for one.
#[test]
fn stores_in_mappings_are_acknowledged_in_the_end() {
    in_every_mode(
        "stores_in_mappings_are_acknowledged_in_the_end",
        everything,
        |disk| {
            let path = disk.path("dir/other");
            let stored = |disk: &mut Disk, what: &str, byte: u8| {
                disk.kill();
                assert_eq!(fs::read(&path).unwrap()[9], byte, "{what}");
            };
            let map = || {
                let file = open(&path, OFlags::RDWR).unwrap();
                let mapping = Mapping::of(&file, true);
                (file, mapping)
            };
            {
                let (_file, mapping) = map();
                mapping.store(9, b'1');
                mapping.sync();
                stored(disk, "msync", b'1');
            }
            {
                let (file, mapping) = map();
                mapping.store(9, b'2');
                file.sync_data().unwrap();
                stored(disk, "fsync", b'2');
            }
            {
                let (_file, mapping) = map();
                mapping.store(9, b'3');
                drop(mapping);
                stored(disk, "munmap", b'3');
            }
            let script = "import mmap, os, sys\n\
                file = open(sys.argv[1], 'r+b')\n\
                mapped = mmap.mmap(file.fileno(), 4096)\n\
                mapped[9] = ord('4')\n\
                os._exit(0)\n";
            let status = Command::new("python3")
                .args(["-c", script])
                .arg(&path)
                .status();
            if status.is_ok_and(|status| status.success()) {
                stored(disk, "the end", b'4');
            } else {
                assert!(lacks("python3"));
            }
            let (file, mapping) = map();
            let before = disk.journal_bytes();
            mapping.store(9, b'5');
            rustix::fs::syncfs(&file).unwrap();
            wait_until("the kernel to hand it over", || {
                disk.journal_bytes() > before
            });
            drop(mapping);
            stored(disk, "syncfs", b'5');
        },
    );
}

/// > Over the session's quota a writer gets `EDQUOT`, on a full disk `ENOSPC`; the file is as before.
#[test]
fn without_room_a_file_is_as_before() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start("without_room_a_file_is_as_before", Duration::from_secs(120));
    let fill = |base: &Path| fs::write(base.join("lower"), vec![1; 4 << 20]).unwrap();
    let disk = Disk::with("files", &["--quota", "1048576"], fill);
    fill_up(&disk, libc::EDQUOT);
    drop(disk);

    let scratch = Scratch::new();
    let small = scratch.dir("small");
    rustix::mount::mount(
        "tmpfs",
        &small,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        c"size=200m",
    )
    .unwrap();
    let disk = Disk::in_store(Scratch::new(), &small.join("store"), "files", &[], fill);
    fill_up(&disk, libc::ENOSPC);
    drop(disk);
    sandstack_fs::unmount(&small).unwrap();
}

fn fill_up(disk: &Disk, expected: i32) {
    let mut file = fs::File::create(disk.path("filler")).unwrap();
    let chunk = vec![3; 64 << 10];
    let error = loop {
        if let Err(error) = file.write_all(&chunk) {
            break error;
        }
    };
    assert_eq!(error.raw_os_error(), Some(expected));
    // The store's own bookkeeping may have left some room meanwhile.
    let lower = open(&disk.path("lower"), OFlags::RDWR).unwrap();
    let (part, mut model) = (256 << 10, vec![1; 4 << 20]);
    let mut refused = 0;
    for at in (0..model.len()).step_by(part) {
        let before = fs::metadata(disk.path("lower")).unwrap();
        match lower.write_at(&vec![2; part], at as u64) {
            Ok(written) => model[at..at + written].fill(2),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(expected));
                let after = fs::metadata(disk.path("lower")).unwrap();
                assert_eq!(after.len(), before.len());
                assert_eq!(after.mtime_nsec(), before.mtime_nsec());
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    assert_eq!(fallocate(&lower, 0, 4 << 20, 1 << 30), Err(expected));
    assert!(fs::read(disk.path("lower")).unwrap() == model);
    // Room comes back.
    drop(file);
    fs::remove_file(disk.path("filler")).unwrap();
    lower.write_all_at(b"x", 0).unwrap();
    assert_eq!(fs::read(disk.path("lower")).unwrap()[0], b'x');
}

/// > What is removed makes room for the very next write, unless somebody has it open.
#[test]
fn what_is_removed_makes_room_at_once() {
    const ROUNDS: usize = 40;
    let _watchdog = Watchdog::start(
        "what_is_removed_makes_room_at_once",
        Duration::from_secs(300),
    );
    // Three quarters of the quota.
    let content = vec![7; 6 << 20];
    for (mode, transport) in [
        ("session", "fuse"),
        ("files", "fuse"),
        ("session", "auto"),
        ("files", "auto"),
    ] {
        let options = ["--quota", "8388608", "--transport", transport];
        let disk = Disk::with(mode, &options, nothing);
        for round in 0..ROUNDS {
            let (old, new) = (disk.path("old"), disk.path("new"));
            let wrote = |done: std::io::Result<()>, how: &str| {
                done.unwrap_or_else(|error| {
                    panic!("{mode} over {transport}, round {round}, {how}: {error}")
                });
            };
            wrote(fs::write(&old, &content), "after a removal");
            let full = fs::write(&new, &content).unwrap_err();
            assert_eq!(full.raw_os_error(), Some(libc::EDQUOT));
            fs::remove_file(&new).unwrap();
            fs::remove_file(&old).unwrap();
            // Replaced by a rename.
            wrote(fs::write(&old, &content), "after two removals");
            fs::write(&new, "small").unwrap();
            fs::rename(&new, &old).unwrap();
            wrote(fs::write(&new, &content), "after a rename");
            // Open while it is removed; and room that is asked for, not written.
            let open = fs::File::open(&new).unwrap();
            fs::remove_file(&new).unwrap();
            drop(open);
            let file = fs::File::create(&new).unwrap();
            wrote(
                fallocate(&file, 0, 0, content.len() as i64)
                    .map_err(std::io::Error::from_raw_os_error),
                "after a close",
            );
            drop(file);
            fs::remove_file(&new).unwrap();
        }
        // What somebody has open takes room, and who lacks it is told.
        fs::write(disk.path("kept"), &content).unwrap();
        let kept = fs::File::open(disk.path("kept")).unwrap();
        fs::remove_file(disk.path("kept")).unwrap();
        for _ in 0..3 {
            let full = fs::write(disk.path("new"), &content).unwrap_err();
            assert_eq!(full.raw_os_error(), Some(libc::EDQUOT));
        }
        let mut bytes = vec![0; content.len()];
        kept.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == content);
        drop(kept);
        wait_until("room of what was closed", || {
            fs::write(disk.path("new"), &content).is_ok()
        });
    }
}

/// > A fault of the daemon in one request is `EIO` for that request; the view goes on.
#[test]
fn a_fault_is_an_error_of_one_request() {
    in_every_mode(
        "a_fault_is_an_error_of_one_request",
        |base| {
            everything(base);
            fs::write(base.join("large"), vec![1; 3 << 20]).unwrap();
        },
        |disk| {
            // Content that the store has lost.
            let mut lost = 0;
            let mut pending = vec![disk.store().to_path_buf()];
            while let Some(dir) = pending.pop() {
                for entry in fs::read_dir(dir).unwrap() {
                    let entry = entry.unwrap();
                    let found = entry.metadata().unwrap();
                    if found.is_dir() {
                        pending.push(entry.path());
                    } else if found.len() == 3 << 20 {
                        fs::remove_file(entry.path()).unwrap();
                        lost += 1;
                    }
                }
            }
            assert_eq!(lost, 1, "the large file's blob was found");
            let error = fs::read(disk.path("large")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            assert_eq!(fs::read(disk.path("file")).unwrap(), b"a file\n");
            fs::write(disk.path("new"), "new").unwrap();
            assert_eq!(fs::read(disk.path("new")).unwrap(), b"new");
            let error = fs::read(disk.path("large")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        },
    );
}

/// Whoever makes much and syncs it now and then loses nothing of it, killed at any moment.
#[test]
fn a_kill_in_the_middle_loses_nothing_acknowledged() {
    let _watchdog = Watchdog::start(
        "a_kill_in_the_middle_loses_nothing_acknowledged",
        Duration::from_secs(120),
    );
    let mut disk = Disk::over("files", nothing);
    let mut made = 0;
    for round in 0..5 {
        let dir = disk.path(&format!("round{round}"));
        fs::create_dir(&dir).unwrap();
        let pid = disk.daemon_pid();
        let killer = std::thread::spawn(move || {
            std::thread::park_timeout(Duration::from_millis(5 + 20 * round));
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        });
        let mut acknowledged = Vec::new();
        for index in 0.. {
            let path = dir.join(format!("file{index}"));
            if fs::write(&path, format!("content {index}")).is_err() {
                break;
            }
            acknowledged.push((path, index));
        }
        killer.join().unwrap();
        disk.kill();
        made += acknowledged.len();
        for (path, index) in acknowledged {
            assert_eq!(
                fs::read(&path).unwrap(),
                format!("content {index}").as_bytes()
            );
        }
    }
    assert!(made > 0);
}

/// > Before a publish the gateway waits until the view has everything that was stored in mappings, whoever has it mapped still.
#[test]
fn a_flush_brings_in_what_is_still_mapped() {
    const FILES: usize = 40;
    const LENGTH: usize = 1 << 20;
    if lacks_root() {
        return;
    }
    in_every_mode(
        "a_flush_brings_in_what_is_still_mapped",
        |base| {
            for number in 0..FILES {
                fs::write(base.join(number.to_string()), vec![b'.'; LENGTH]).unwrap();
            }
        },
        |disk| {
            let mut mapped = Vec::new();
            for number in 0..FILES {
                let file = open(&disk.path(&number.to_string()), OFlags::RDWR).unwrap();
                let mapping = Mapping::first(LENGTH, &file, true);
                mapped.push((file, mapping));
            }
            for (_, mapping) in &mapped {
                for page in 0..LENGTH / PAGE {
                    mapping.store(page * PAGE + 7, b'x');
                }
            }
            let root = open(&disk.path(""), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            let flushed = sandstack_fs::flush(root.as_fd(), Duration::from_secs(60)).unwrap();
            // What has not arrived now never will.
            disk.abandon();
            drop((root, mapped));
            disk.resume();
            assert_eq!(flushed, Flushed::Arrived);
            for number in 0..FILES {
                let bytes = fs::read(disk.path(&number.to_string())).unwrap();
                let lost = (0..LENGTH / PAGE).find(|page| bytes[page * PAGE + 7] != b'x');
                assert_eq!(lost, None, "a page of file {number}");
            }
        },
    );
}
