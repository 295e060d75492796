//! Import: what a directory of the host holds is what the base layer holds.

use std::fs;
use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::FileType;
use sandstack_store::{Error, ImportReport, Kind, ROOT_INO, Stack, Store, Timestamp};

use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Session, Snapshot, Watchdog, cases, host, import, lacks_root, now_ms,
    stack_of, verify,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Imports `dir` into a store beside it and compares everything.
#[track_caller]
fn comes_back(scratch: &Scratch, dir: &Path) -> (Stack, Snapshot) {
    let stack = stack_of(&scratch.store(), dir);
    let layer = Snapshot::of_head(&stack);
    Snapshot::of_directory(dir).assert_same(&layer, Level::Exact);
    verify::stack(&stack);
    (stack, layer)
}

#[test]
fn every_kind_of_node_comes_back_as_it_was() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    host::write(&dir.join("file"), b"text\n");
    host::write(&dir.join("empty"), b"");
    host::write(
        &dir.join("sub/deeper/large"),
        &Random::new(1).bytes(700_000),
    );
    fs::create_dir(dir.join("nothing in it")).unwrap();
    symlink("sub/deeper", dir.join("link")).unwrap();
    symlink("nowhere/at all", dir.join("dangling")).unwrap();
    symlink("x".repeat(4095), dir.join("long")).unwrap();
    host::make_fifo(&dir.join("fifo"), 0o640);
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    if !lacks_root() {
        host::make_device(&dir.join("char"), FileType::CharacterDevice, 1, 3);
        host::make_device(&dir.join("block"), FileType::BlockDevice, 259, 70_000);
        std::os::unix::fs::lchown(dir.join("link"), Some(12), Some(70_000)).unwrap();
        std::os::unix::fs::chown(dir.join("sub"), Some(4_000_000_000), Some(0)).unwrap();
    }
    let (_, layer) = comes_back(&scratch, &dir);
    for (path, item) in &layer.0 {
        let name = dir.join(path.to_string());
        let there = name.symlink_metadata().unwrap().ino();
        let expected = if path.is_root() { ROOT_INO } else { there };
        assert_eq!(item.ino, expected, "the number of {path}");
    }
}

#[test]
fn an_empty_project_is_a_project() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let (stack, layer) = comes_back(&scratch, &dir);
    assert_eq!(layer.0.len(), 1);
    assert_eq!(stack.layer(stack.head()).unwrap().changed_paths, 0);
}

#[test]
fn all_twelve_mode_bits_of_files_and_directories() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    // As root every mode can be read; without, only those with the owner's bits.
    let root = rustix::process::geteuid().is_root();
    for mode in 0..0o10000u32 {
        if !root && mode & 0o400 == 0 {
            continue;
        }
        let path = dir.join(format!("{mode:04o}"));
        host::write(&path, b"x");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        if mode % 37 == 0 && (root || mode & 0o500 == 0o500) {
            let path = dir.join(format!("d{mode:04o}"));
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    comes_back(&scratch, &dir);
}

#[test]
fn times_from_long_before_1970_to_long_after_2038() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let times = [
        (0, 0),
        (-1, 999_999_999),
        (-2_147_483_648, 0),
        (1 << 31, 1),
        (4_294_967_296, 123_456_789),
        (15_000_000_000, 5),
    ];
    for (index, (secs, nanos)) in times.into_iter().enumerate() {
        let path = dir.join(index.to_string());
        host::write(&path, b"x");
        host::set_mtime(&path, secs, nanos);
        symlink("x", dir.join(format!("l{index}"))).unwrap();
        host::set_mtime(&dir.join(format!("l{index}")), secs, nanos);
        fs::create_dir(dir.join(format!("d{index}"))).unwrap();
        host::set_mtime(&dir.join(format!("d{index}")), secs, nanos);
    }
    let (_, layer) = comes_back(&scratch, &dir);
    let time = layer.get("5").unwrap().mtime;
    assert_eq!(
        time,
        Timestamp {
            secs: 15_000_000_000,
            nanos: 5
        }
    );
    if lacks_root() {
        return;
    }
    // tmpfs takes any 64-bit time.
    let far = scratch.path("far");
    let Some(_mount) = host::Mount::tmpfs(&far, "size=8m") else {
        return;
    };
    for (index, secs) in [i64::MIN / 4, -5_000_000_000_000, i64::MAX / 4]
        .into_iter()
        .enumerate()
    {
        host::write(&far.join(index.to_string()), b"x");
        host::set_mtime(&far.join(index.to_string()), secs, 7);
    }
    let scratch = Scratch::new();
    comes_back(&scratch, &far);
}

#[test]
fn hard_links_stay_links_and_names_outside_do_not_count() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    host::write(&dir.join("a/one"), b"shared");
    fs::create_dir_all(dir.join("b/c")).unwrap();
    fs::hard_link(dir.join("a/one"), dir.join("b/two")).unwrap();
    fs::hard_link(dir.join("a/one"), dir.join("b/c/three")).unwrap();
    host::write(&dir.join("single"), b"has a name outside");
    fs::hard_link(dir.join("single"), scratch.path("outside")).unwrap();
    host::write(&dir.join("empty one"), b"");
    fs::hard_link(dir.join("empty one"), dir.join("empty two")).unwrap();
    symlink("target", dir.join("s1")).unwrap();
    fs::hard_link(dir.join("s1"), dir.join("b/s2")).unwrap();
    host::make_fifo(&dir.join("f1"), 0o600);
    fs::hard_link(dir.join("f1"), dir.join("f2")).unwrap();
    host::write(&dir.join("many/0"), b"many names");
    for name in 1..300 {
        fs::hard_link(dir.join("many/0"), dir.join(format!("many/{name}"))).unwrap();
    }
    let (stack, layer) = comes_back(&scratch, &dir);
    let names = |path: &str| layer.get(path).unwrap().names;
    assert_eq!(
        [
            "a/one",
            "b/c/three",
            "single",
            "empty two",
            "s1",
            "f2",
            "many/7"
        ]
        .map(names),
        [3, 3, 1, 2, 2, 2, 300]
    );
    let session = Session::open(&stack, "s");
    assert_eq!(session.attributes(session.ino("b/two")).nlink, 3);
    assert_eq!(session.attributes(session.ino("single")).nlink, 1);
    session.view().assert_same(&layer, Level::Exact);
}

#[test]
fn extended_attributes_of_every_namespace_and_size() {
    let scratch = Scratch::new();
    let dir = scratch.path("project");
    // ext4 holds 4 KiB of them; tmpfs holds what the kernel allows.
    let root = !lacks_root();
    let _mount = root.then(|| host::Mount::tmpfs(&dir, "size=32m")).flatten();
    fs::create_dir_all(&dir).unwrap();
    host::write(&dir.join("file"), b"x");
    fs::create_dir(dir.join("sub")).unwrap();
    for path in [dir.join("file"), dir.join("sub")] {
        host::set_xattr(&path, "user.empty", b"").unwrap();
        host::set_xattr(&path, "user.\u{fffd} any name", b"\0\xff\n").unwrap();
        for index in 0..60 {
            host::set_xattr(&path, &format!("user.{index:0200}"), &[index; 8]).unwrap();
        }
    }
    if root {
        host::set_xattr(&dir, "trusted.of the root", b"r").unwrap();
        host::set_xattr(&dir.join("sub"), "trusted.overlay.opaque", b"y").unwrap();
        host::set_xattr(
            &dir.join("file"),
            "user.large",
            &Random::new(3).bytes(64 << 10),
        )
        .unwrap();
        let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        host::set_xattr(&dir.join("file"), "security.capability", capability).unwrap();
        symlink("x", dir.join("link")).unwrap();
        host::set_xattr(&dir.join("link"), "trusted.of a link", b"l").unwrap();
        host::make_fifo(&dir.join("fifo"), 0o600);
        host::set_xattr(&dir.join("fifo"), "trusted.of a pipe", b"p").unwrap();
    }
    let (_, layer) = comes_back(&scratch, &dir);
    assert!(layer.get("file").unwrap().xattrs.len() > 61);
}

#[test]
fn holes_stay_holes() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let data = Random::new(4).bytes(200_000);
    let file = |name: &str, size: u64, runs: &[(u64, usize)]| {
        let file = fs::File::create(dir.join(name)).unwrap();
        file.set_len(size).unwrap();
        for &(offset, length) in runs {
            std::os::unix::fs::FileExt::write_all_at(&file, &data[..length], offset).unwrap();
        }
    };
    const M: u64 = 1 << 20;
    file("head", 3 * M + 5, &[(2 * M, 200_000)]);
    file("middle", 3 * M, &[(0, 5000), (2 * M, 4096), (3 * M - 1, 1)]);
    file("tail", 3 * M + 1, &[(0, 200_000)]);
    file("all", 5 * M + 3, &[]);
    file("huge", 1 << 31, &[]);
    file("none", 300_000, &[(0, 200_000), (200_000, 100_000)]);
    file("small", 100, &[]);
    // Space reserved beyond the end makes a file with a hole take more blocks than it has bytes.
    file("reserved", 2 * M, &[(M, 4096)]);
    let reserved = fs::OpenOptions::new()
        .write(true)
        .open(dir.join("reserved"))
        .unwrap();
    let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&reserved, flags, 2 * M, 4 * M).unwrap();
    // Two gigabytes are not compared byte by byte.
    let stack = stack_of(&scratch.store(), &dir);
    let lower = stack
        .store()
        .lower(&stack.layer(stack.head()).unwrap().root)
        .unwrap();
    let huge = lower.lookup(ROOT_INO, b"huge").unwrap().unwrap();
    assert_eq!((huge.size(), huge.content().unwrap().stored), (1 << 31, 0));
    fs::remove_file(dir.join("huge")).unwrap();

    let scratch = Scratch::new();
    let (stack, layer) = comes_back(&scratch, &dir);
    let runs = |path: &str| layer.get(path).unwrap().holes.clone();
    let stored = |path: &str| -> u64 { runs(path).iter().map(|(_, length)| length).sum() };
    assert_eq!(runs("all"), []);
    assert!(
        stored("head") < 300_000 && runs("head")[0].0 == 2 * M,
        "{:?}",
        runs("head")
    );
    assert_eq!(runs("middle").len(), 3);
    assert!(stored("tail") < 300_000 && runs("tail")[0].0 == 0);
    assert_eq!(stored("reserved"), 4096, "{:?}", runs("reserved"));
    assert_eq!(runs("none"), [], "no hole, so no list of segments");
    let session = Session::open(&stack, "s");
    let ino = session.ino("middle");
    let seek = |offset, what| session.upper.seek(ino, offset, what).unwrap();
    use sandstack_store::Seek::{Data, Hole};
    assert_eq!(seek(0, Hole), Some(8192));
    assert_eq!(seek(8192, Data), Some(2 * M));
    assert_eq!(seek(2 * M + 4096, Data), Some(3 * M - 4096));
    assert_eq!(seek(3 * M - 1, Hole), Some(3 * M));
    assert_eq!(seek(3 * M, Data), None);
}

#[test]
fn names_are_any_bytes_up_to_255() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let mut names: Vec<Vec<u8>> = (1..=255u8)
        .filter(|byte| !matches!(byte, b'/' | b'.'))
        .map(|byte| vec![byte])
        .collect();
    names.extend([
        b"trail ".to_vec(),
        b" lead".to_vec(),
        b"a\\b".to_vec(),
        b".wh.x".to_vec(),
        b".wh..wh..opq".to_vec(),
        b"manifest.json".to_vec(),
        b"layers".to_vec(),
        b"...".to_vec(),
        b"\xff\xfe\xfd".to_vec(),
        vec![b'n'; 255],
        vec![0xe9; 255],
        "e\u{301}".into(),
        "\u{e9}".into(),
    ]);
    for name in &names {
        host::write(&dir.join(std::ffi::OsStr::from_bytes(name)), name);
    }
    fs::create_dir(dir.join("d".repeat(255))).unwrap();
    host::write(&dir.join("d".repeat(255)).join("f".repeat(255)), b"x");
    let (_, layer) = comes_back(&scratch, &dir);
    assert_eq!(layer.0.len(), names.len() + 3);
}

#[test]
fn a_directory_of_a_hundred_thousand_entries() {
    let _watchdog = Watchdog::start("a_directory_of_a_hundred_thousand_entries", LIMIT);
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    const COUNT: u64 = 100_000;
    for name in 0..COUNT {
        // Links of a file cost the test less than files; ext4 allows 65,000 of one.
        let first = dir.join((name % 2).to_string());
        if name < 2 {
            host::write(&first, b"");
        } else {
            fs::hard_link(&first, dir.join(name.to_string())).unwrap();
        }
    }
    let store = scratch.store();
    let imported = import(&store, &dir);
    assert_eq!(imported.report.files, COUNT);
    let stack = store.create_stack(&imported, now_ms()).unwrap();
    let lower = store
        .lower(&stack.layer(stack.head()).unwrap().root)
        .unwrap();
    assert_eq!(
        lower.directory(ROOT_INO).unwrap().unwrap().len(),
        COUNT as usize
    );
    let found = lower.lookup(ROOT_INO, b"77777").unwrap().unwrap();
    assert_eq!((found.kind(), found.nlink()), (Kind::File, 50_000));
    // And a session changes one of them.
    let session = Session::open(&stack, "s");
    session.remove("50000");
    session.write("new", "x");
    session.publish();
}

/// A directory 2,000 levels deep, at every level of which something else is, so that a walk that
/// goes down has work left above. Far beyond what a path can name.
pub(crate) fn deep_tree(dir: &Path) {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
    for level in 0..DEPTH {
        rustix::fs::mkdirat(&at, "another", Mode::from_raw_mode(0o755)).unwrap();
        rustix::fs::mkdirat(&at, "next level", Mode::from_raw_mode(0o755)).unwrap();
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&at, "file", create, Mode::from_raw_mode(0o644)).unwrap();
        fs::File::from(file)
            .write_all(format!("level {level}\n").as_bytes())
            .unwrap();
        at = rustix::fs::openat(&at, "next level", flags, Mode::empty()).unwrap();
    }
}

pub(crate) const DEPTH: usize = 2000;

#[test]
fn a_tree_deeper_than_a_path_is_long_with_few_descriptors() {
    let _watchdog = Watchdog::start("a_tree_deeper_than_a_path_is_long", LIMIT);
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    deep_tree(&dir);
    crate::fixture::child::start("import-deep", &scratch.path(""), "").finish();
    // The standard library's removal goes down with a descriptor a level.
    let removed = std::process::Command::new("rm")
        .arg("-rf")
        .arg(&dir)
        .status();
    assert!(removed.unwrap().success());
}

/// The child's part of the test above: as a process that may open 200 files.
pub(crate) fn import_deep(place: &Path) {
    let limit = rustix::process::Rlimit {
        current: Some(200),
        maximum: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let store = Store::open(&place.join("store")).unwrap();
    let imported = import(&store, &place.join("project"));
    assert_eq!(
        (imported.report.files, imported.report.directories),
        (DEPTH as u64, 2 * DEPTH as u64 + 1)
    );
    let stack = store.create_stack(&imported, now_ms()).unwrap();
    let lower = store.lower(&imported.root).unwrap();
    let mut at = ROOT_INO;
    for _ in 0..DEPTH - 1 {
        at = lower.lookup(at, b"next level").unwrap().unwrap().meta.ino;
    }
    let file = lower.lookup(at, b"file").unwrap().unwrap();
    let bytes = file.content().unwrap().read_all(store.objects()).unwrap();
    assert_eq!(bytes, format!("level {}\n", DEPTH - 1).as_bytes());
    drop(stack);
}

#[test]
fn a_filesystem_mounted_inside_comes_along_with_numbers_of_its_own() {
    if lacks_root() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.path("project");
    // Two filesystems of one kind number their files alike.
    let Some(_outer) = host::Mount::tmpfs(&dir, "size=8m") else {
        return;
    };
    let Some(_inner) = host::Mount::tmpfs(&dir.join("inner"), "size=8m") else {
        return;
    };
    for place in ["", "inner/"] {
        for name in 0..20 {
            host::write(
                &dir.join(format!("{place}{name}")),
                format!("{place}{name}").as_bytes(),
            );
        }
        fs::create_dir(dir.join(format!("{place}sub"))).unwrap();
        fs::hard_link(
            dir.join(format!("{place}3")),
            dir.join(format!("{place}sub/3")),
        )
        .unwrap();
    }
    let ino = |path: &str| dir.join(path).metadata().unwrap().ino();
    assert!(
        (0..20).any(|name| ino(&format!("inner/{name}")) == ino("7")),
        "the numbers collide, or this tests nothing"
    );
    let (stack, _) = comes_back(&scratch, &dir);
    let session = Session::open(&stack, "s");
    session.append("inner/3", "more");
    assert_eq!(session.text("inner/sub/3"), "inner/3more");
    session.publish();
}

#[test]
fn a_pseudo_filesystem_inside_is_named_and_refused() {
    if lacks_root() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    host::write(&dir.join("file"), b"x");
    let Some(_mount) = host::Mount::proc(&dir.join("sub/proc")) else {
        return;
    };
    let store = scratch.store();
    let error = store
        .import(&dir, &mut |_| ControlFlow::Continue(()))
        .unwrap_err();
    let Error::Unreadable { count: 1, shown } = &error else {
        panic!("{error}")
    };
    assert_eq!(shown[0].path, dir.join("sub/proc"));
    assert!(
        error.to_string().contains("it is on proc, not on a disk"),
        "{error}"
    );
    let error = store.import(Path::new("/proc/self"), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(error, Err(Error::NotImportable { .. })));
}

#[test]
fn every_path_that_an_ordinary_user_cannot_read_is_named() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let open = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(dir.parent().unwrap());
    open(&dir);
    for index in 0..30 {
        let path = dir.join(format!("sub/secret {index}"));
        host::write(&path, b"x");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    }
    open(&dir.join("sub"));
    // A directory without search permission cannot even be listed: the listing begins with a look-up.
    for (name, mode) in [
        ("closed", 0o000),
        ("no listing", 0o311),
        ("no search", 0o644),
    ] {
        host::write(&dir.join(name).join("below"), b"x");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    host::write(&dir.join("readable"), b"x");
    fs::set_permissions(dir.join("readable"), fs::Permissions::from_mode(0o644)).unwrap();
    let place = scratch.dir("user");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();

    host::as_nobody(|| {
        let store = Store::open(&place.join("store")).unwrap();
        let error = store
            .import(&dir, &mut |_| ControlFlow::Continue(()))
            .unwrap_err();
        let Error::Unreadable { count, shown } = &error else {
            panic!("{error}")
        };
        assert_eq!((*count, shown.len()), (33, 20), "{error}");
        assert!(error.to_string().contains("and 13 more"), "{error}");
        assert!(
            shown
                .iter()
                .all(|item| item.error.kind() == ErrorKind::PermissionDenied)
        );
    });
    for index in 0..30 {
        fs::remove_file(dir.join(format!("sub/secret {index}"))).unwrap();
    }
    host::as_nobody(|| {
        let store = Store::open(&place.join("store")).unwrap();
        let error = store
            .import(&dir, &mut |_| ControlFlow::Continue(()))
            .unwrap_err();
        let Error::Unreadable { shown, .. } = &error else {
            panic!("{error}")
        };
        let mut paths: Vec<_> = shown
            .iter()
            .map(|item| item.path.strip_prefix(&dir).unwrap().display().to_string())
            .collect();
        paths.sort();
        assert_eq!(paths, ["closed", "no listing", "no search"]);
    });
    for name in ["closed", "no listing", "no search"] {
        open(&dir.join(name));
        fs::remove_dir_all(dir.join(name)).unwrap();
    }
    host::as_nobody(|| {
        let store = Store::open(&place.join("store")).unwrap();
        let stack = stack_of(&store, &dir);
        assert_eq!(Snapshot::of_head(&stack).paths(), "readable sub");
    });
}

/// Runs `writer` over and over beside `body`.
fn beside<T>(writer: impl Fn() + Sync, body: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                writer();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn a_file_that_changes_while_it_is_read_is_whole_or_refused() {
    let _watchdog = Watchdog::start("a_file_that_changes_while_it_is_read", LIMIT);
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let path = dir.join("file");
    const SIZE: usize = 3 << 20;
    fs::write(&path, vec![0; SIZE]).unwrap();
    let store = scratch.store();
    let (round, mut refused, mut whole) = (AtomicBool::new(false), 0, 0);
    for _ in 0..cases(6) {
        let result = beside(
            || {
                // Written from the front: a mixture would show it.
                let byte = u8::from(round.fetch_xor(true, Ordering::Relaxed));
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                for at in (0..SIZE).step_by(64 << 10) {
                    let part = vec![byte; 64 << 10];
                    std::os::unix::fs::FileExt::write_all_at(&file, &part, at as u64).unwrap();
                }
            },
            || store.import(&dir, &mut |_| ControlFlow::Continue(())),
        );
        match result {
            Err(Error::ChangedWhileRead {
                path: named,
                attempts,
            }) => {
                assert_eq!((named, attempts), (path.clone(), 5));
                refused += 1;
            }
            Err(error) => panic!("{error}"),
            Ok(imported) => {
                // Between two rounds it may have held still; then it is one round's bytes.
                let stack = store.create_stack(&imported, now_ms()).unwrap();
                let layer = Snapshot::of_head(&stack);
                let bytes = layer.bytes("file");
                let changes = bytes.windows(2).filter(|pair| pair[0] != pair[1]).count();
                assert!(changes <= 1, "a mixture of {changes} writes");
                whole += 1;
            }
        }
    }
    assert_eq!(refused + whole, cases(6));
    // When it holds still again it is imported.
    comes_back(&Scratch::new(), &dir);
    assert!(
        store
            .import(&dir, &mut |_| ControlFlow::Continue(()))
            .is_ok()
    );
}

#[test]
fn files_that_come_go_and_change_type_meanwhile_disturb_nothing_else() {
    let _watchdog = Watchdog::start("files_that_come_and_go_meanwhile", LIMIT);
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    for name in 0..100 {
        host::write(&dir.join(format!("stays {name}")), b"stays");
    }
    let store = scratch.store();
    let round = std::sync::atomic::AtomicU64::new(0);
    for _ in 0..cases(20) {
        let imported = beside(
            || {
                let round = round.fetch_add(1, Ordering::Relaxed);
                let path = dir.join(format!("comes and goes {}", round % 7));
                let temporary = scratch.path("temporary");
                match round % 5 {
                    0 => host::write(&temporary, b"a file"),
                    1 => symlink("a link", &temporary).unwrap(),
                    2 => host::make_fifo(&temporary, 0o600),
                    3 => fs::create_dir(&temporary).unwrap(),
                    _ => {
                        let _ = fs::remove_dir_all(&path);
                        let _ = fs::remove_file(&path);
                        return;
                    }
                }
                if fs::rename(&temporary, &path).is_err() {
                    // Over another type: first away with that.
                    let _ = fs::remove_dir_all(&path);
                    let _ = fs::remove_file(&path);
                    fs::rename(&temporary, &path).unwrap();
                }
            },
            || import(&store, &dir),
        );
        let stack = store.create_stack(&imported, now_ms()).unwrap();
        let layer = Snapshot::of_head(&stack);
        for name in 0..100 {
            assert_eq!(layer.bytes(&format!("stays {name}")), b"stays");
        }
        for (path, item) in &layer.0 {
            if path.as_bytes().starts_with(b"comes") {
                let right = match item.kind {
                    Kind::File => layer.bytes(&path.to_string()) == b"a file",
                    Kind::Symlink | Kind::Fifo | Kind::Directory => true,
                    _ => false,
                };
                assert!(right, "{path} is {item:?}");
            }
        }
        verify::layer(&store, &imported.root);
    }
}

#[test]
fn what_cannot_be_imported_is_said_before_anything_is_read() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let attempt = |path: &Path| {
        store
            .import(path, &mut |_| ControlFlow::Continue(()))
            .unwrap_err()
    };
    let kind = |path: &Path| match attempt(path) {
        Error::NotImportable {
            source,
            path: named,
        } => {
            assert_eq!(named, path);
            source.kind()
        }
        error => panic!("{error}"),
    };
    assert_eq!(kind(&scratch.path("missing")), ErrorKind::NotFound);
    host::write(&scratch.path("file"), b"x");
    assert_eq!(kind(&scratch.path("file")), ErrorKind::NotADirectory);
    host::make_fifo(&scratch.path("fifo"), 0o600);
    assert_eq!(kind(&scratch.path("fifo")), ErrorKind::NotADirectory);
    // What a relative path means depends on who reads it.
    assert_eq!(kind(Path::new("src")), ErrorKind::InvalidInput);
    symlink(scratch.path(""), scratch.path("way around")).unwrap();
    for path in [
        scratch.path(""),
        scratch.path("way around"),
        scratch.path("store"),
    ] {
        match attempt(&path) {
            Error::StoreInside {
                path: named,
                store: at,
            } => {
                assert_eq!(named, path);
                assert!(at.ends_with("store"));
            }
            error => panic!("{error}"),
        }
    }
    // A store of another project beside it is a directory as any other.
    let other = scratch.dir("other");
    Store::open(&other.join("nested")).unwrap();
    import(&store, &other);
}

#[test]
fn a_full_disk_fails_the_import_and_not_the_store() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start("a_full_disk_fails_the_import", LIMIT);
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let mut random = Random::new(5);
    for name in 0..800 {
        host::write(&dir.join(format!("small/{name}")), &random.bytes(30_000));
    }
    for name in 0..40 {
        host::write(&dir.join(format!("large/{name}")), &random.bytes(1 << 20));
    }
    let disk = scratch.path("disk");
    let Some(_mount) = host::Mount::tmpfs(&disk, "size=140m") else {
        return;
    };
    let store = Store::open(&disk.join("store")).unwrap();
    let small = scratch.dir("small project");
    host::write(&small.join("f"), b"before");
    let before = stack_of(&store, &small);
    let used = || {
        rustix::fs::statvfs(&disk)
            .map(|stat| stat.f_blocks - stat.f_bfree)
            .unwrap()
    };
    let empty = used();
    for _ in 0..2 {
        let error = store
            .import(&dir, &mut |_| ControlFlow::Continue(()))
            .unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert!(
            error.to_string().contains("No space left on device"),
            "{error}"
        );
    }
    // What the failed imports wrote is garbage, and no more of it than one import's is kept.
    let garbage = (used() - empty) * 4096;
    assert!(garbage < 45 << 20, "{garbage} bytes of garbage");
    verify::stack(&before);
    let remounted = std::process::Command::new("mount")
        .args(["-o", "remount,size=400m"])
        .arg(&disk)
        .status();
    assert!(remounted.unwrap().success());
    let stack = stack_of(&store, &dir);
    Snapshot::of_directory(&dir).assert_same(&Snapshot::of_head(&stack), Level::Exact);
    drop((before, stack, store));
    let store = Store::open(&disk.join("store")).unwrap();
    assert!(store.leases().unwrap().is_empty());
}

#[test]
fn an_import_ends_soon_after_progress_breaks() {
    let _watchdog = Watchdog::start("an_import_ends_soon_after_progress_breaks", LIMIT);
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    // One file that takes far longer to read than a break may.
    let file = fs::File::create(dir.join("huge")).unwrap();
    file.set_len(1 << 42).unwrap();
    let store = scratch.store();
    let mut calls = 0;
    let start = std::time::Instant::now();
    let error = store
        .import(&dir, &mut |progress| {
            calls += 1;
            assert!(progress.files_done <= progress.files_found);
            assert!(progress.bytes_done <= progress.bytes_found);
            if calls > 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap_err();
    assert!(
        matches!(&error, Error::Io { source, .. } if source.kind() == ErrorKind::Interrupted),
        "{error}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        start.elapsed()
    );
    fs::remove_file(dir.join("huge")).unwrap();
    comes_back(&Scratch::new(), &dir);
}

/// The report's counts of files: hashed, reused.
fn counts(report: &ImportReport) -> (u64, u64) {
    (report.files_hashed, report.files_reused)
}

/// Waits until a change made now has another time than one made before.
fn next_tick(dir: &Path) {
    let path = dir.join("tick~");
    let time = || {
        fs::write(&path, b"").unwrap();
        let metadata = path.metadata().unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let first = time();
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(60) {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert_ne!(time(), first);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_second_import_reads_exactly_what_changed() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    for name in 0..50 {
        host::write(
            &dir.join(format!("d/{name}")),
            format!("file {name}").as_bytes(),
        );
    }
    fs::File::create(dir.join("sparse"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    host::set_xattr(&dir.join("d/7"), "user.x", b"y").unwrap();
    next_tick(&scratch.path(""));
    let store = scratch.store();
    let first = import(&store, &dir);
    assert_eq!(counts(&first.report), (51, 0));
    let again = import(&store, &dir);
    assert_eq!(counts(&again.report), (0, 51));
    assert_eq!(again.report.bytes_stored, 0);
    assert_eq!(
        again.root, first.root,
        "nothing changed, so it is the same layer"
    );

    // Each change re-reads its own file, and no other.
    let change = |what: &str, change: &dyn Fn(), expected: u64| {
        change();
        next_tick(&scratch.path(""));
        let imported = import(&store, &dir);
        assert_eq!(imported.report.files_hashed, expected, "{what}");
        let stack = store.create_stack(&imported, now_ms()).unwrap();
        Snapshot::of_directory(&dir).assert_same(&Snapshot::of_head(&stack), Level::Exact);
    };
    let (one, other) = (dir.join("d/1"), dir.join("d/2"));
    change("an edit", &|| fs::write(&one, "edited").unwrap(), 1);
    change(
        "an edit of one size",
        &|| fs::write(&one, "editeD").unwrap(),
        1,
    );
    change("new times", &|| host::set_mtime(&one, 1_000_000, 5), 1);
    change(
        "another mode",
        &|| {
            fs::set_permissions(&one, fs::Permissions::from_mode(0o700)).unwrap();
        },
        1,
    );
    change(
        "an extended attribute",
        &|| host::set_xattr(&one, "user.n", b"").unwrap(),
        1,
    );
    // A rename moves ctime, so the file is read once more under its new name.
    change(
        "a rename",
        &|| fs::rename(&one, dir.join("moved")).unwrap(),
        1,
    );
    change(
        "a directory's rename",
        &|| fs::rename(dir.join("d"), dir.join("e")).unwrap(),
        0,
    );
    change(
        "a removal",
        &|| fs::remove_file(dir.join("e/2")).unwrap(),
        0,
    );
    change(
        "a file where one was",
        &|| {
            let metadata = dir.join("e/3").metadata().unwrap();
            host::write(&other.with_file_name("new"), b"FILE 3");
            host::set_mtime(&dir.join("d/new"), metadata.mtime(), metadata.mtime_nsec());
            fs::rename(dir.join("d/new"), dir.join("e/3")).unwrap();
            fs::remove_dir(dir.join("d")).unwrap();
        },
        1,
    );
    change(
        "a hard link",
        &|| {
            fs::hard_link(dir.join("e/4"), dir.join("e/four")).unwrap();
        },
        1,
    );
    change("nothing", &|| (), 0);
}

#[test]
fn a_change_in_the_same_tick_is_never_missed() {
    let _watchdog = Watchdog::start("a_change_in_the_same_tick_is_never_missed", LIMIT);
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let path = dir.join("file");
    let store = scratch.store();
    for round in 0..cases(120) {
        for (index, text) in ["one", "two"].into_iter().enumerate() {
            let text = format!("{text} {round:06}");
            fs::write(&path, &text).unwrap();
            // The times of the file before, as far as anyone can set them.
            host::set_mtime(&path, 1_000_000_000, 0);
            let imported = import(&store, &dir);
            let lower = store.lower(&imported.root).unwrap();
            let file = lower.lookup(ROOT_INO, b"file").unwrap().unwrap();
            let bytes = file.content().unwrap().read_all(store.objects()).unwrap();
            assert_eq!(bytes, text.as_bytes(), "round {round}, write {index}");
        }
    }
}

#[test]
fn blocks_are_shared_where_the_disk_can() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start("blocks_are_shared_where_the_disk_can", LIMIT);
    for (name, mkfs) in [
        ("xfs", &["mkfs.xfs", "-q", "-m", "reflink=1"][..]),
        ("btrfs", &["mkfs.btrfs", "-q"][..]),
    ] {
        let scratch = Scratch::new();
        let disk = scratch.path("disk");
        let mounted = host::Mount::image(&disk, &scratch.path("image"), 512 << 20, mkfs);
        let Some(_mount) = mounted else { continue };
        let dir = disk.join("project");
        let bytes = Random::new(6).bytes(60 << 20);
        host::write(&dir.join("large"), &bytes);
        host::write(&dir.join("small"), &bytes[..1000]);
        host::write(&dir.join("odd"), &bytes[..(1 << 20) + 17]);
        fs::File::create(dir.join("sparse"))
            .unwrap()
            .set_len(9 << 20)
            .unwrap();
        fs::File::open(&dir).and_then(|dir| dir.sync_all()).unwrap();
        let free = || {
            rustix::fs::statvfs(&disk)
                .map(|stat| stat.f_bfree * stat.f_frsize)
                .unwrap()
        };
        let store = Store::open(&disk.join("store")).unwrap();
        rustix::fs::sync();
        let before = free();
        let imported = import(&store, &dir);
        assert_eq!(imported.report.files_reflinked, 2, "{name}");
        assert!(
            imported.report.bytes_stored < 1 << 20,
            "{name}: {:?}",
            imported.report
        );
        rustix::fs::sync();
        let taken = before.saturating_sub(free());
        assert!(taken < 20 << 20, "{name}: the import took {taken} bytes");
        let stack = store.create_stack(&imported, now_ms()).unwrap();
        // What is shared is not what is changed later.
        fs::write(dir.join("large"), b"changed").unwrap();
        assert!(Snapshot::of_head(&stack).bytes("large") == bytes, "{name}");
        verify::stack(&stack);
        drop((stack, store));
    }
}

#[test]
fn two_imports_at_once_share_what_they_have_in_common() {
    let _watchdog = Watchdog::start("two_imports_at_once", LIMIT);
    let scratch = Scratch::new();
    let dirs = [scratch.dir("one"), scratch.dir("other")];
    let mut random = Random::new(7);
    for name in 0..400 {
        let bytes = random.bytes(500 + 700 * (name % 400));
        for dir in &dirs {
            host::write(&dir.join(format!("{}/{name}", name % 9)), &bytes);
        }
    }
    let store = scratch.store();
    let stacks = std::thread::scope(|scope| {
        let work: Vec<_> = (0..4)
            .map(|index| {
                scope.spawn({
                    let dir = &dirs[index % 2];
                    let store = &store;
                    move || stack_of(store, dir)
                })
            })
            .collect();
        work.into_iter()
            .map(|work| work.join().unwrap())
            .collect::<Vec<_>>()
    });
    for (index, stack) in stacks.iter().enumerate() {
        let expected = Snapshot::of_directory(&dirs[index % 2]);
        expected.assert_same(&Snapshot::of_head(stack), Level::Exact);
        verify::stack(stack);
    }
    assert_eq!(
        stacks[0].layer(stacks[0].head()).unwrap().root,
        stacks[2].layer(stacks[2].head()).unwrap().root
    );
    let last = import(&store, &dirs[0]);
    assert_eq!(last.report.bytes_stored, 0);
}
