//! Import again: a second import reads what changed and nothing else, and shares the rest.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use sandstack_store::{ImportReport, ROOT_INO, Store};

use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Session, Snapshot, Watchdog, cases, host, import, lacks_root, now_ms,
    stack_of, verify,
};

const LIMIT: Duration = Duration::from_secs(60);

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
        // So is what a session wrote and publishes: its end shares no block, being no whole one.
        let session = Session::open(&stack, "session");
        let mut written = Random::new(8).bytes((40 << 20) + 77);
        session.write("written", &written);
        session.write("other", &written[..5 << 20]);
        rustix::fs::sync();
        let before = free();
        session.publish();
        rustix::fs::sync();
        let taken = before.saturating_sub(free());
        assert!(taken < 15 << 20, "{name}: the publish took {taken} bytes");
        session.append("written", b"more");
        assert!(
            Snapshot::of_head(&stack).bytes("written") == written,
            "{name}"
        );
        written.extend_from_slice(b"more");
        assert!(session.read("written") == written, "{name}");
        drop(session);
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
