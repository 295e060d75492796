//! Semantics: inode numbers, link counts, times of what was imported.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FileType;

use super::{everything, nothing};
use crate::fixture::{Disk, Snapshot, Watchdog, in_every_mode, lacks_root, syscalls};

fn ino(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// > `st_ino` of what the import found is the imported directory's own, but for the root (1) and what lies on other filesystems below it.
#[test]
fn numbers_are_those_of_the_import() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start("numbers_are_those_of_the_import", Duration::from_secs(60));
    let disk = Disk::over("files", |base| {
        everything(base);
        fs::create_dir(base.join("other")).unwrap();
        rustix::mount::mount(
            "tmpfs",
            base.join("other"),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            None,
        )
        .unwrap();
        fs::write(base.join("other/file"), "elsewhere").unwrap();
    });
    let base = Snapshot::of(&disk.base(""));
    sandstack_fs::unmount(&disk.base("other")).unwrap();
    let view = Snapshot::of(&disk.path(""));
    let mut numbers = BTreeSet::new();
    for (path, item) in &view.0 {
        let imported = &base.0[path];
        if path.as_os_str().is_empty() {
            assert_eq!(item.ino, 1);
        } else if !path.starts_with("other") {
            assert_eq!(item.ino, imported.ino, "{}", path.display());
        }
        // Whatever lies on another filesystem has a number that nothing else has.
        if item.nlink == 1 || item.mode & libc::S_IFMT == libc::S_IFDIR {
            assert!(numbers.insert(item.ino), "{}", path.display());
        }
    }
    assert_eq!(fs::read(disk.path("other/file")).unwrap(), b"elsewhere");
}

/// > `st_ino` of a file is the same in every session, after copy-up, after a rename, after a remount, after a publish.
#[test]
fn numbers_stay() {
    in_every_mode("numbers_stay", everything, |disk| {
        let old = ino(&disk.base("dir/other"));
        let file = disk.path("dir/other");
        assert_eq!(ino(&file), old);
        fs::write(&file, "copied up").unwrap();
        assert_eq!(ino(&file), old);
        fs::write(disk.path("new"), "new").unwrap();
        let new = ino(&disk.path("new"));
        let moved = disk.path("dir/moved");
        fs::rename(&file, &moved).unwrap();
        fs::rename(disk.path("new"), disk.path("dir/new")).unwrap();
        let both = |disk: &Disk| (ino(&disk.path("dir/moved")), ino(&disk.path("dir/new")));
        assert_eq!(both(disk), (old, new));
        disk.remount();
        assert_eq!(both(disk), (old, new));
        disk.kill();
        assert_eq!(both(disk), (old, new));
        disk.stop();
        disk.command(&["publish", "--session", "one"]);
    });
    let _watchdog = Watchdog::start("numbers_stay", Duration::from_secs(60));
    let mut disk = Disk::over("files", everything);
    disk.switch("two", &["--beside", "one"]);
    fs::rename(disk.path("file"), disk.path("dir/file")).unwrap();
    fs::write(disk.path("dir/file"), "changed").unwrap();
    fs::write(disk.path("new"), "new").unwrap();
    let new = ino(&disk.path("new"));
    // A third session keeps the stack while the second is published.
    disk.stop();
    disk.command(&["publish", "--session", "two"]);
    disk.switch("three", &["--beside", "one"]);
    assert_eq!(ino(&disk.path("dir/file")), ino(&disk.base("file")));
    assert_eq!(ino(&disk.path("new")), new);
    assert_eq!(ino(&disk.path("dir/other")), ino(&disk.base("dir/other")));
}

/// > Inode numbers are not used again while a view lives.
#[test]
fn numbers_are_not_used_again() {
    in_every_mode("numbers_are_not_used_again", everything, |disk| {
        let mut seen: BTreeSet<u64> = Snapshot::of(&disk.path(""))
            .0
            .values()
            .map(|item| item.ino)
            .collect();
        for round in 0..300 {
            let path = disk.path("again");
            match round % 3 {
                0 => drop(File::create(&path).unwrap()),
                1 => std::os::unix::fs::symlink("x", &path).unwrap(),
                _ => fs::create_dir(&path).unwrap(),
            }
            assert!(seen.insert(ino(&path)), "round {round}");
            if round % 3 == 2 {
                fs::remove_dir(&path).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
            if round % 100 == 50 {
                disk.remount();
            }
        }
    });
}

/// > `d_ino` equals `st_ino`; `d_type` is always told.
#[test]
fn listings_tell_numbers_and_types() {
    in_every_mode("listings_tell_numbers_and_types", everything, |disk| {
        fs::write(disk.path("dir/new"), "").unwrap();
        std::os::unix::fs::symlink("x", disk.path("dir/symlink")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(disk.path("dir/socket")).unwrap();
        syscalls::make_node(&disk.path("dir/fifo"), FileType::Fifo, (0, 0)).unwrap();
        fs::rename(disk.path("dir/below"), disk.path("below")).unwrap();
        let mut kinds = BTreeSet::new();
        for dir in ["", "dir", "below"] {
            let dir = disk.path(dir);
            for entry in syscalls::list(&dir) {
                let name = std::str::from_utf8(&entry.name).unwrap();
                // Above the root of a mount is another filesystem.
                if name == ".." && dir == disk.path("") {
                    continue;
                }
                let found = fs::symlink_metadata(dir.join(name)).unwrap();
                assert_eq!(entry.ino, found.ino(), "{name}");
                assert_eq!(entry.kind, FileType::from_raw_mode(found.mode()), "{name}");
                kinds.insert(format!("{:?}", entry.kind));
            }
        }
        assert_eq!(kinds.len(), 5, "{kinds:?}");
    });
}

/// > All names of a hard link are one inode, also after a change through one of them.
#[test]
fn names_of_a_file_are_one_inode() {
    in_every_mode("names_of_a_file_are_one_inode", everything, |disk| {
        let (one, two) = (disk.path("dir/other"), disk.path("dir/below/same"));
        let both = |links: u64| {
            let (one, two) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
            assert_eq!(one.ino(), two.ino());
            assert_eq!((one.nlink(), two.nlink()), (links, links));
            assert_eq!((one.mode(), one.size()), (two.mode(), two.size()));
            assert_eq!(
                (one.ctime(), one.ctime_nsec()),
                (two.ctime(), two.ctime_nsec())
            );
        };
        both(2);
        fs::write(&one, "through one").unwrap();
        assert_eq!(fs::read(&two).unwrap(), b"through one");
        both(2);
        syscalls::chmod(&two, 0o600);
        assert_eq!(syscalls::mode(&one), 0o600);
        both(2);
        fs::hard_link(&two, disk.path("third")).unwrap();
        both(3);
        disk.remount();
        both(3);
        fs::remove_file(disk.path("third")).unwrap();
        both(2);
        assert_eq!(fs::read(&two).unwrap(), b"through one");
    });
}

/// > mtime and ctime of what the import found are the imported directory's, to the nanosecond, before 1970 and after 2038.
#[test]
fn times_are_those_of_the_import() {
    let _watchdog = Watchdog::start("times_are_those_of_the_import", Duration::from_secs(60));
    let ages = [
        (0, 0),
        (-1, 999_999_999),
        (-1, 1),
        (-1_000_000_000, 500_000_000),
        (2_500_000_000, 123_456_789),
        (10_000_000_000, 1),
    ];
    let mut disk = Disk::over("files", |base| {
        for (index, age) in ages.iter().enumerate() {
            let path = base.join(format!("file{index}"));
            fs::write(&path, "").unwrap();
            syscalls::set_times(&path, (9, 9), *age);
        }
        fs::create_dir(base.join("dir")).unwrap();
        std::os::unix::fs::symlink("x", base.join("link")).unwrap();
        syscalls::set_times(&base.join("dir"), (9, 9), (-3, 3));
        syscalls::set_times(&base.join("link"), (9, 9), (-4, 4));
    });
    for _ in 0..2 {
        for entry in fs::read_dir(disk.base("")).unwrap() {
            let name = entry.unwrap().file_name();
            let name = name.to_str().unwrap();
            let (_, mtime, ctime) = syscalls::times(&disk.base(name));
            let (_, mtime_seen, ctime_seen) = syscalls::times(&disk.path(name));
            assert_eq!((mtime_seen, ctime_seen), (mtime, ctime), "{name}");
        }
        disk.remount();
    }
    for (index, age) in ages.iter().enumerate() {
        assert_eq!(
            syscalls::times(&disk.path(&format!("file{index}"))).1,
            *age,
            "the base's filesystem keeps such times"
        );
    }
}

/// Times that a session sets itself are kept like those of the import.
#[test]
fn times_of_all_ages_are_kept() {
    in_every_mode("times_of_all_ages_are_kept", nothing, |disk| {
        let ages = [
            (0, 0),
            (-1, 0),
            (-1, 999_999_999),
            (-1, 1),
            (-2, 500_000_000),
            (-1_000_000_000, 250_000_000),
            (5_000_000_000, 999_999_999),
        ];
        let path = disk.path("file");
        fs::write(&path, "").unwrap();
        for age in ages {
            for other in ages {
                syscalls::set_times(&path, age, other);
                let (atime, mtime, _) = syscalls::times(&path);
                assert_eq!((atime, mtime), (age, other));
            }
            let before = syscalls::times(&path);
            disk.remount();
            assert_eq!(syscalls::times(&path), before);
        }
    });
}

/// A file handle, as `name_to_handle_at` fills it.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 120],
}

impl Handle {
    fn of(path: &Path) -> Handle {
        let path = CString::new(syscalls::bytes_of(path)).unwrap();
        let mut handle = Handle {
            bytes: 120,
            kind: 0,
            data: [0; 120],
        };
        let mut mount = 0i32;
        // SAFETY: the path, the handle with as much room as it says, and the number live over the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                path.as_ptr(),
                &raw mut handle,
                &raw mut mount,
                0,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        handle
    }

    /// Opens what the handle is of, on the filesystem that `root` is on.
    fn open(&self, root: &File) -> Result<File, i32> {
        // SAFETY: the handle lives over the call, and the descriptor is open.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                root.as_raw_fd(),
                std::ptr::from_ref(self),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        if descriptor < 0 {
            return Err(syscalls::errno(std::io::Error::last_os_error()));
        }
        // SAFETY: the call has just given it to us.
        Ok(unsafe { File::from_raw_fd(descriptor as i32) })
    }
}

/// > A file handle (`name_to_handle_at`) opens the same inode while it lives, also when the kernel has dropped it, and under another name; of one that is gone it is `ESTALE`.
#[test]
fn handles_are_of_inodes() {
    if lacks_root() {
        return;
    }
    in_every_mode("handles_are_of_inodes", everything, |disk| {
        fs::create_dir(disk.path("new")).unwrap();
        fs::write(disk.path("new/file"), "new").unwrap();
        fs::write(disk.path("gone"), "gone").unwrap();
        let names = ["file", "dir/other", "dir/below", "new/file", "new"];
        let handles = names.map(|name| (name, Handle::of(&disk.path(name)), ino(&disk.path(name))));
        let gone = Handle::of(&disk.path("gone"));
        fs::remove_file(disk.path("gone")).unwrap();
        // The kernel drops what nobody uses.
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        let check = |disk: &Disk| {
            let root = File::open(disk.path("")).unwrap();
            for (name, handle, ino) in &handles {
                let found = handle
                    .open(&root)
                    .map(|file| file.metadata().unwrap().ino());
                assert_eq!(found, Ok(*ino), "{name}");
                // The generation of an inode is part of it.
                let path = match *name {
                    "new" if disk.path("dir/moved").exists() => "dir/moved",
                    "new/file" if disk.path("dir/moved").exists() => "dir/moved/file",
                    name => name,
                };
                let again = Handle::of(&disk.path(path));
                assert_eq!(
                    (again.kind, again.data),
                    (handle.kind, handle.data),
                    "{name}"
                );
            }
            assert_eq!(gone.open(&root).map(|_| ()), Err(libc::ESTALE));
        };
        check(disk);
        fs::rename(disk.path("new"), disk.path("dir/moved")).unwrap();
        check(disk);
        disk.remount();
        check(disk);
        disk.kill();
        check(disk);
    });
}
