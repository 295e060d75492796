//! Import with something in its way: files that change meanwhile, a full disk, a caller who gives up.

use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandstack_store::{Error, Kind, Store};

use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Snapshot, Watchdog, cases, host, import, lacks_root, now_ms, stack_of, verify,
};
use crate::import::comes_back;

const LIMIT: Duration = Duration::from_secs(60);

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
    let Some(_mount) = host::Mount::tmpfs(&disk, "size=60m") else {
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
    assert!(garbage < 54 << 20, "{garbage} bytes of garbage");
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
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start("an_import_ends_soon_after_progress_breaks", LIMIT);
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    let Some(_mount) = host::Mount::sharing(&disk, &scratch.path("image")) else {
        return;
    };
    let dir = disk.join("project");
    // One file that takes far longer to read than a break may.
    let data = Random::new(8).bytes(1 << 20);
    drop(host::repeated(&dir.join("huge"), &data, 64 << 30));
    let store = Store::open(&disk.join("store")).unwrap();
    let mut calls = 0;
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
    fs::remove_file(dir.join("huge")).unwrap();
    drop(store);
    comes_back(&Scratch::new(), &dir);
}
