//! Import: what a directory of the host holds is what the base layer holds.

use std::fs;
use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FileType;
use sandstack_store::{Error, Kind, ROOT_INO, Stack, Store, Timestamp};

use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Session, Snapshot, Watchdog, host, import, lacks_root, now_ms, stack_of,
    verify,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Imports `dir` into a store beside it and compares everything.
#[track_caller]
pub(crate) fn comes_back(scratch: &Scratch, dir: &Path) -> (Stack, Snapshot) {
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
