//! Many and large: what a view is to stand, and what its daemon may take for it. With
//! `SANDSTACK_TEST_SCALE=full` as much as is promised where that takes minutes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit};

use crate::fixture::{
    Disk, Scratch, Watchdog, full_scale, lacks, lacks_root, syscalls, wait_until,
};

/// To end what hangs, however slow the machine.
const LIMIT: Duration = Duration::from_secs(1800);

/// A view over what `fill` makes, in memory, where a sync costs nothing.
fn disk(mode: &'static str, fill: impl FnOnce(&Path)) -> Disk {
    let scratch = Scratch::in_memory();
    let store = scratch.path("store");
    Disk::in_store(scratch, &store, mode, &[], fill)
}

fn names(path: &Path) -> BTreeSet<Vec<u8>> {
    let listed = syscalls::list(path);
    let count = listed.len();
    let names: BTreeSet<Vec<u8>> = listed.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), count, "something is listed twice");
    names
}

/// The expected listing: these numbers, with `.` and `..`.
fn numbered(numbers: impl Iterator<Item = usize>) -> BTreeSet<Vec<u8>> {
    let names = numbers.map(|number| format!("{number:06}").into_bytes());
    names.chain([b".".to_vec(), b"..".to_vec()]).collect()
}

/// > A directory of 200,000 entries, 10,000 open files and 64 threads at once are served like few.
#[test]
fn directories_have_two_hundred_thousand_entries() {
    let _watchdog = Watchdog::start("directories_have_two_hundred_thousand_entries", LIMIT);
    const ENTRIES: usize = 200_000;
    let made = if full_scale() { ENTRIES } else { 20_000 };
    let mut disk = disk("files", |base| {
        fs::create_dir(base.join("lower")).unwrap();
        for number in 0..ENTRIES {
            File::create(base.join(format!("lower/{number:06}"))).unwrap();
        }
    });
    let lower = disk.path("lower");
    assert!(names(&lower) == numbered(0..ENTRIES));
    // Each tenth goes, and others come.
    for number in (0..ENTRIES).step_by(100) {
        fs::remove_file(lower.join(format!("{number:06}"))).unwrap();
        fs::write(lower.join(format!("{:06}", ENTRIES + number)), "new").unwrap();
    }
    let changed = numbered(
        (0..ENTRIES)
            .filter(|number| number % 100 != 0)
            .chain((0..ENTRIES).step_by(100).map(|number| ENTRIES + number)),
    );
    assert!(names(&lower) == changed);
    let upper = disk.path("upper");
    fs::create_dir(&upper).unwrap();
    for number in 0..made {
        File::create(upper.join(format!("{number:06}"))).unwrap();
    }
    assert!(names(&upper) == numbered(0..made));
    disk.remount();
    assert!(names(&lower) == changed);
    assert!(names(&upper) == numbered(0..made));
    fs::rename(&upper, disk.path("moved")).unwrap();
    assert_eq!(fs::metadata(disk.path("moved/000007")).unwrap().len(), 0);
    fs::remove_dir_all(disk.path("moved")).unwrap();
    assert_eq!(names(&disk.path("")).len(), 3);
}

/// A directory below `root`, for each name another, opened.
fn descend(root: &Path, names: &[String], make: bool) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = rustix::fs::open(root, flags, Mode::empty()).unwrap();
    for name in names {
        if make {
            rustix::fs::mkdirat(&dir, name.as_str(), Mode::from_raw_mode(0o755)).unwrap();
        }
        dir = rustix::fs::openat(&dir, name.as_str(), flags, Mode::empty()).unwrap();
    }
    dir
}

fn read_at(dir: &OwnedFd, name: &str) -> Vec<u8> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY, Mode::empty()).unwrap();
    let file = File::from(file);
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn write_at(dir: &OwnedFd, name: &str, bytes: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).unwrap();
    File::from(file).write_all_at(bytes, 0).unwrap();
}

/// A path of as many bytes as the kernel takes, and trees that are deeper than that, as `cd` leads to.
///
/// > A path may have 4,095 bytes, and a directory may lie deeper than any path leads.
#[test]
fn paths_are_as_long_as_may_be() {
    let _watchdog = Watchdog::start("paths_are_as_long_as_may_be", LIMIT);
    // Without the NUL that ends it.
    const LONGEST: usize = 4095;
    let deep: Vec<String> = (0..60)
        .map(|level| format!("{level:02}{}", "d".repeat(253)))
        .collect();
    let narrow: Vec<String> = (0..1500).map(|_| "n".to_owned()).collect();
    for mode in ["files", "exact"] {
        let mut disk = disk(mode, |base| {
            write_at(&descend(base, &deep, true), "lower", b"lower");
            fs::create_dir(base.join("narrow")).unwrap();
            write_at(
                &descend(&base.join("narrow"), &narrow, true),
                "lower",
                b"lower",
            );
        });
        // To exactly the longest.
        let mut path = disk.path("long");
        fs::create_dir(&path).unwrap();
        while syscalls::bytes_of(&path).len() + 256 < LONGEST {
            path.push("p".repeat(254));
            fs::create_dir(&path).unwrap();
        }
        let left = LONGEST - syscalls::bytes_of(&path).len() - 1;
        let (file, other) = (path.join("f".repeat(left)), path.join("o".repeat(left)));
        fs::write(&file, "long").unwrap();
        fs::rename(&file, &other).unwrap();
        fs::hard_link(&other, &file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
        let more = path.join("f".repeat(left + 1));
        let error = fs::write(&more, "longer").unwrap_err().raw_os_error();
        assert_eq!(error, Some(libc::ENAMETOOLONG));
        // A symlink's target may be as long.
        std::os::unix::fs::symlink(&file, disk.path("link")).unwrap();
        for _ in 0..2 {
            assert_eq!(fs::read_link(disk.path("link")).unwrap(), file);
            assert_eq!(fs::read(disk.path("link")).unwrap(), b"long");
            assert_eq!(fs::read(&other).unwrap(), b"long");
            for (root, names) in [(disk.path(""), &deep), (disk.path("narrow"), &narrow)] {
                let dir = descend(&root, names, false);
                assert_eq!(read_at(&dir, "lower"), b"lower");
                write_at(&dir, "upper", b"upper");
                assert_eq!(read_at(&dir, "upper"), b"upper");
            }
            disk.remount();
        }
        fs::remove_dir_all(disk.path("narrow")).unwrap();
        fs::remove_dir_all(disk.path(&deep[0])).unwrap();
        fs::remove_dir_all(disk.path("long")).unwrap();
        assert_eq!(names(&disk.path("")).len(), 3);
    }
}

/// Names of 255 bytes, each of one value over and over, as the import found them.
#[test]
fn names_of_the_base_are_as_long_as_may_be() {
    let _watchdog = Watchdog::start("names_of_the_base_are_as_long_as_may_be", LIMIT);
    let all = (1..=255u8).filter(|byte| *byte != b'/');
    let all: Vec<Vec<u8>> = all.map(|byte| vec![byte; 255]).collect();
    let mut disk = disk("exact", |base| {
        for name in &all {
            fs::write(base.join(OsStr::from_bytes(name)), name).unwrap();
        }
    });
    for round in 0..2 {
        for name in &all {
            let path = disk.path("").join(OsStr::from_bytes(name));
            assert_eq!(&fs::read(&path).unwrap()[..255], &name[..]);
            assert_eq!(fs::metadata(&path).unwrap().len(), 255 + round);
            File::options()
                .append(true)
                .open(&path)
                .unwrap()
                .write_at(b"!", 0)
                .unwrap();
        }
        assert_eq!(names(&disk.path("")).len(), all.len() + 2);
        disk.remount();
    }
}

/// With a few bytes in them here and there: one that is made, and two of the base, of which the
/// smaller is made longer. They are published, and are the same in the next session.
///
/// > A file may have a tebibyte, of which its holes take no room; an import or publish takes as long as its data.
#[test]
fn sparse_files_have_a_tebibyte() {
    let _watchdog = Watchdog::start("sparse_files_have_a_tebibyte", LIMIT);
    const TIB: u64 = 1 << 40;
    let places = |size: u64| [0, size / 8, size / 2 + 1, size - 3];
    let sparse = |path: PathBuf, size: u64| {
        let file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        file.set_len(size).unwrap();
        for place in places(size) {
            file.write_all_at(b"abc", place).unwrap();
        }
    };
    let mut disk = disk("files", |base| {
        sparse(base.join("lower"), 2 << 30);
        sparse(base.join("large"), TIB);
    });
    sparse(disk.path("upper"), TIB);
    for round in 0..2 {
        for (name, size) in [("lower", 2 << 30), ("large", TIB), ("upper", TIB)] {
            let file = syscalls::open(&disk.path(name), OFlags::RDWR).unwrap();
            let found = file.metadata().unwrap();
            assert_eq!(found.size(), size);
            assert!(
                found.blocks() * 512 < 1 << 20,
                "{name}: {} blocks",
                found.blocks()
            );
            let mut at = 0;
            let mut data = Vec::new();
            while let Ok(start) = syscalls::seek(&file, at, libc::SEEK_DATA) {
                at = syscalls::seek(&file, start, libc::SEEK_HOLE).unwrap();
                data.push((start as u64, at as u64));
            }
            for (place, (start, end)) in places(size).into_iter().zip(&data) {
                let mut bytes = [1; 5];
                let read = file.read_at(&mut bytes, place).unwrap();
                assert_eq!(&bytes[..3], b"abc");
                assert!(bytes[3..read].iter().all(|byte| *byte == 0));
                assert!(
                    *start <= place && place + 3 <= *end && end - start <= 1 << 17,
                    "{data:?}"
                );
            }
            assert_eq!(data.len(), places(size).len(), "{data:?}");
            // Shorter and longer again: what was behind is gone.
            if round == 1 {
                file.set_len(size - 1).unwrap();
                file.set_len(TIB).unwrap();
                let mut bytes = [1; 3];
                file.read_exact_at(&mut bytes, size - 3).unwrap();
                assert_eq!(&bytes, b"ab\0");
                file.write_all_at(b"end", TIB - 3).unwrap();
                file.read_exact_at(&mut bytes, TIB - 3).unwrap();
                assert_eq!(&bytes, b"end");
            }
        }
        disk.remount();
    }
    // A second session keeps the stack while the first is published.
    disk.switch("two", &["--beside", "one"]);
    disk.stop();
    disk.command(&["publish", "--session", "one"]);
    disk.switch("three", &["--beside", "two"]);
    for name in ["lower", "large", "upper"] {
        let file = syscalls::open(&disk.path(name), OFlags::RDONLY).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!(found.size(), TIB);
        assert!(found.blocks() * 512 < 1 << 20, "{name}");
        let mut bytes = [1; 3];
        file.read_exact_at(&mut bytes, TIB - 3).unwrap();
        assert_eq!(&bytes, b"end");
        file.read_exact_at(&mut bytes, TIB / 3).unwrap();
        assert_eq!(bytes, [0; 3]);
    }
}

/// Half of them of the base, and half made; a part without a name any more.
///
/// > A directory of 200,000 entries, 10,000 open files and 64 threads at once are served like few.
#[test]
fn ten_thousand_files_are_open() {
    let _watchdog = Watchdog::start("ten_thousand_files_are_open", LIMIT);
    const HALF: usize = 5_000;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = 2 * HALF as u64 + 500;
    if limit.maximum.is_some_and(|most| most < wanted) && lacks("10,500 descriptors for a process")
    {
        return;
    }
    let most = limit.maximum.map_or(wanted, |most| most.min(2 * wanted));
    let raised = Rlimit {
        current: limit.current.map(|now| now.max(most)),
        ..limit
    };
    rustix::process::setrlimit(Resource::Nofile, raised).unwrap();
    let disk = disk("files", |base| {
        for number in 0..HALF {
            fs::write(base.join(format!("{number}")), number.to_string()).unwrap();
        }
    });
    let open = |number: usize, made: bool| {
        let path = disk.path(&number.to_string());
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(made)
            .open(path)
            .unwrap();
        if made {
            file.write_all_at(number.to_string().as_bytes(), 0).unwrap();
        }
        file
    };
    let files: Vec<File> = (0..2 * HALF)
        .map(|number| open(number, number >= HALF))
        .collect();
    for number in (0..2 * HALF).step_by(3) {
        fs::remove_file(disk.path(&number.to_string())).unwrap();
    }
    for (number, file) in files.iter().enumerate() {
        let expected = number.to_string().into_bytes();
        let mut bytes = vec![0; expected.len()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, expected);
        file.write_all_at(b"more", bytes.len() as u64).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!(
            (found.len(), found.nlink()),
            (bytes.len() as u64 + 4, u64::from(number % 3 != 0))
        );
    }
    drop(files);
    assert_eq!(
        names(&disk.path("")).len(),
        2 + 2 * HALF - (2 * HALF).div_ceil(3)
    );
}

/// All in one directory, so that each sees what others do; what is everybody's is changed by all.
///
/// > A directory of 200,000 entries, 10,000 open files and 64 threads at once are served like few.
#[test]
fn sixty_four_threads_work_at_once() {
    let _watchdog = Watchdog::start("sixty_four_threads_work_at_once", LIMIT);
    const THREADS: usize = 64;
    const ROUNDS: usize = 20;
    for mode in ["files", "exact"] {
        let mut disk = disk(mode, |base| {
            fs::write(base.join("log"), "").unwrap();
            for number in 0..THREADS {
                fs::write(base.join(format!("{number}")), vec![1; 50_000]).unwrap();
            }
        });
        let start = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (disk, start) = (&disk, &start);
                scope.spawn(move || {
                    start.wait();
                    let own = disk.path(&number.to_string());
                    for round in 0..ROUNDS {
                        let file = File::options().read(true).write(true).open(&own).unwrap();
                        let at = (round * 4099) as u64 % 45_000;
                        file.write_all_at(&[number as u8; 100], at).unwrap();
                        let moved = disk.path(&format!("{number}-{round}"));
                        fs::rename(&own, &moved).unwrap();
                        fs::hard_link(&moved, &own).unwrap();
                        assert_eq!(file.metadata().unwrap().nlink(), 2);
                        fs::remove_file(&moved).unwrap();
                        let mut bytes = [0; 100];
                        file.read_exact_at(&mut bytes, at).unwrap();
                        assert_eq!(bytes, [number as u8; 100]);
                        let log = File::options().append(true).open(disk.path("log")).unwrap();
                        std::io::Write::write_all(&mut &log, &[number as u8; 16]).unwrap();
                        assert!(names(&disk.path("")).contains(number.to_string().as_bytes()));
                    }
                });
            }
        });
        for _ in 0..2 {
            let log = fs::read(disk.path("log")).unwrap();
            assert_eq!(log.len(), THREADS * ROUNDS * 16);
            let mut counts = [0; THREADS];
            for entry in log.chunks(16) {
                assert!(entry.iter().all(|byte| *byte == entry[0]), "{entry:?}");
                counts[usize::from(entry[0])] += 1;
            }
            assert_eq!(counts, [ROUNDS; THREADS]);
            assert_eq!(names(&disk.path("")).len(), 2 + 1 + THREADS);
            disk.remount();
        }
    }
}

/// Bytes of memory that a process takes.
fn resident(disk: &Disk) -> u64 {
    let pid = disk.daemon_pid().as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .next()
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

/// Looks at everything below a directory; how many there are.
fn walk(dir: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        count += 1;
        if entry.metadata().unwrap().is_dir() {
            count += walk(&entry.path());
        }
    }
    count
}

/// What the daemon remembers of a file that the kernel knows of is little, and goes when the kernel
/// forgets the file.
///
/// > A daemon takes less than 300 MB to serve a walk of a million files, and gives most of it back when the kernel forgets them.
#[test]
fn a_walk_takes_little_memory_and_gives_it_back() {
    let _watchdog = Watchdog::start("a_walk_takes_little_memory_and_gives_it_back", 4 * LIMIT);
    if lacks_root() {
        return;
    }
    const DIRECTORIES: usize = 1_000;
    let (each, most) = if full_scale() {
        (1_000, 300 << 20)
    } else {
        (100, 60 << 20)
    };
    let mut disk = disk("files", |base| {
        for dir in 0..DIRECTORIES {
            let dir = base.join(format!("directory-{dir}"));
            fs::create_dir(&dir).unwrap();
            for file in 0..each {
                fs::write(dir.join(format!("file-{file}")), file.to_string()).unwrap();
            }
        }
    });
    // Whatever the import took is gone with its process.
    disk.remount();
    let before = resident(&disk);
    assert_eq!(walk(&disk.path("")), DIRECTORIES * (each + 1));
    let walked = resident(&disk);
    eprintln!(
        "{before} bytes before the walk of {} files, {walked} after",
        DIRECTORIES * each
    );
    assert!(
        walked < most,
        "{walked} bytes after the walk, {before} before"
    );
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    let mut now = walked;
    wait_until("memory to be given back", || {
        now = resident(&disk);
        now < before + (walked - before) * 3 / 4
    });
    eprintln!("{now} bytes when the kernel has forgotten");
}
