//! Files that are nearly all hole: whatever is done with them takes as long as their data.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use sandstack_store::{
    Content, Digest, ExportFormat, Layout, NewBody, Outcome, Seek, Stack, Store,
};

use crate::fixture::session::{changed, rel};
use crate::fixture::{
    Random, Scratch, Session, Watchdog, host, import, lacks_root, stack_of, verify,
};

const TIB: u64 = 1 << 40;
/// To end what would hash a tebibyte.
const LIMIT: Duration = Duration::from_secs(120);

fn sparse(path: &Path, size: u64, parts: &[(u64, &[u8])]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (offset, bytes) in parts {
        file.write_all_at(bytes, *offset).unwrap();
    }
}

fn content(stack: &Stack, path: &str) -> Content {
    let root = stack.layer(stack.head()).unwrap().root;
    let head = stack.store().lower(&root).unwrap();
    let node = head.node_at(&rel(path)).unwrap().unwrap();
    *node.content().unwrap()
}

fn bytes(store: &Store, content: &Content, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![1; length];
    let read = content
        .read_at(store.objects(), offset, &mut buffer)
        .unwrap();
    buffer.truncate(read);
    buffer
}

/// The digest that an import of such a file finds.
fn imported(size: u64, parts: &[(u64, &[u8])]) -> Digest {
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    sparse(&dir.join("file"), size, parts);
    content(&stack_of(&scratch.store(), &dir), "file").digest
}

/// Publishes. What the fixture looks at besides, it reads whole.
#[track_caller]
fn publish(session: &Session) -> Outcome {
    let publish = session
        .stack
        .publish(&session.upper, &session.options(), &mut |_| {});
    publish.unwrap().outcome
}

#[test]
fn a_sparse_file_of_a_tebibyte_costs_what_is_in_it() {
    let _watchdog = Watchdog::start("a_sparse_file_of_a_tebibyte_costs", LIMIT);
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    let data = Random::new(1).bytes(300_000);
    let parts: [(u64, &[u8]); 3] = [(4096, b"first"), (TIB / 2, &data), (TIB - 3, b"end")];
    sparse(&dir.join("large"), TIB, &parts);
    let store = scratch.store();
    let stack = stack_of(&store, &dir);
    let base = content(&stack, "large");
    assert_eq!(base.size, TIB);
    assert!(base.stored < 1 << 20, "{base:?}");
    for (offset, expected) in parts {
        assert_eq!(bytes(&store, &base, offset, expected.len()), expected);
    }
    assert_eq!(bytes(&store, &base, TIB / 4, 10), [0; 10]);

    // A session sees its holes, changes a block of it, and publishes that.
    let session = Session::open(&stack, "s");
    let ino = session.ino("large");
    assert_eq!(session.upper.digest(ino).unwrap(), base.digest);
    let seek = |at, what| session.upper.seek(ino, at, what).unwrap();
    assert_eq!(seek(9000, Seek::Data), Some(TIB / 2));
    assert_eq!(seek(TIB / 4, Seek::Hole), Some(TIB / 4));
    session
        .upper
        .write(ino, TIB / 8, b"changed", changed)
        .unwrap();
    let mut parts = parts.to_vec();
    parts.insert(1, (TIB / 8, b"changed"));
    let expected = imported(TIB, &parts);
    assert_eq!(session.upper.digest(ino).unwrap(), expected);
    assert!(matches!(publish(&session), Outcome::Published(_)));
    let now = content(&stack, "large");
    assert_eq!((now.size, now.digest), (TIB, expected));
    assert!(now.stored < 1 << 20, "{now:?}");
    for (offset, expected) in &parts {
        assert_eq!(bytes(&store, &now, *offset, expected.len()), *expected);
    }

    // Undone: the base's bytes again, whether by a hole or by zeros.
    for hole in [true, false] {
        let session = Session::open(&stack, "undo");
        let at = TIB / 8;
        if hole {
            session.upper.punch(ino, at, at + 4096, changed).unwrap();
        } else {
            session.upper.write(ino, at, &[0; 7], changed).unwrap();
        }
        assert_eq!(session.upper.digest(ino).unwrap(), base.digest);
    }
    // Zeros over a hole are no change.
    let session = Session::open(&stack, "zeros");
    session
        .upper
        .write(ino, TIB / 4, &[0; 9000], changed)
        .unwrap();
    assert_eq!(publish(&session), Outcome::NoChange);

    // The host's edit of the same file comes in, and what differs is found.
    let file = File::options().write(true).open(dir.join("large")).unwrap();
    file.write_all_at(b"changed", TIB / 8).unwrap();
    let again = import(&store, &dir);
    assert_eq!(again.report.files_hashed, 1);
    assert_eq!(
        content(&store.create_stack(&again, 1).unwrap(), "large").digest,
        expected
    );

    verify::store(&store);
    let dest = scratch.path("exported");
    stack
        .export(None, stack.head(), ExportFormat::Directory, &dest)
        .unwrap();
    let exported = fs::metadata(dest.join("large")).unwrap();
    assert_eq!(exported.len(), TIB);
    assert!(exported.blocks() * 512 < 1 << 20);
}

#[test]
fn files_that_sessions_make_as_long_as_may_be_are_published() {
    let _watchdog = Watchdog::start("files_as_long_as_may_be_are_published", LIMIT);
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    host::write(&dir.join("x"), b"x");
    let store = scratch.store();
    let stack = stack_of(&store, &dir);
    const LONGEST: u64 = i64::MAX as u64;
    let session = Session::open(&stack, "s");
    for (name, size) in [
        ("longest", LONGEST),
        ("exabyte", 1 << 60),
        ("tebibyte", TIB),
    ] {
        let ino = session.create(name, 0o644, NewBody::Empty);
        session.upper.set_size(ino, size, changed).unwrap();
        session.upper.write(ino, size - 3, b"end", changed).unwrap();
    }
    assert!(matches!(publish(&session), Outcome::Published(_)));
    for (name, size) in [
        ("longest", LONGEST),
        ("exabyte", 1 << 60),
        ("tebibyte", TIB),
    ] {
        let now = content(&stack, name);
        assert_eq!((now.size, now.stored <= 4096), (size, true));
        assert_eq!(bytes(&store, &now, size - 4, 9), b"\0end");
    }
    assert_eq!(
        content(&stack, "tebibyte").digest,
        imported(TIB, &[(TIB - 3, b"end")])
    );
    // Cut to what is hashed otherwise, and made long again.
    let session = Session::open(&stack, "cut");
    let ino = session.ino("longest");
    session.upper.set_size(ino, 5_000_000, changed).unwrap();
    assert!(matches!(publish(&session), Outcome::Published(_)));
    assert_eq!(
        content(&stack, "longest").digest,
        Digest::of(&vec![0; 5_000_000])
    );
    let session = Session::open(&stack, "long");
    session.upper.set_size(ino, TIB, changed).unwrap();
    session.upper.write(ino, TIB - 3, b"end", changed).unwrap();
    assert!(matches!(publish(&session), Outcome::Published(_)));
    assert_eq!(
        content(&stack, "longest").digest,
        content(&stack, "tebibyte").digest
    );
    verify::store(&store);
}

/// On both sides of the length from which on a digest is one of groups.
#[test]
fn content_is_named_alike_however_it_came_in() {
    let _watchdog = Watchdog::start("content_is_named_alike", LIMIT);
    const BORDER: u64 = 4 << 30;
    let part = Random::new(2).bytes(600_000);
    for size in [BORDER - 1, BORDER, BORDER + 1] {
        let scratch = Scratch::in_memory();
        let dir = scratch.dir("project");
        let parts: [(u64, &[u8]); 2] = [(1_000_000, &part), (BORDER - 7, b"border")];
        sparse(&dir.join("file"), size, &parts);
        sparse(&dir.join("other"), size, &[(5, b"other")]);
        let store = scratch.store();
        let stack = stack_of(&store, &dir);
        let expected = content(&stack, "file");
        assert!(matches!(expected.layout, Layout::Segments(_)));
        let session = Session::open(&stack, "s");
        let new = session.create("new", 0o644, NewBody::Empty);
        session.upper.set_size(new, size, changed).unwrap();
        let other = session.ino("other");
        session.upper.write(other, 5, &[0; 5], changed).unwrap();
        for ino in [new, other] {
            for (offset, bytes) in parts {
                session.upper.write(ino, offset, bytes, changed).unwrap();
            }
            assert_eq!(
                session.upper.digest(ino).unwrap(),
                expected.digest,
                "{size}"
            );
        }
        assert!(matches!(publish(&session), Outcome::Published(_)));
        for name in ["new", "other"] {
            assert_eq!(content(&stack, name).digest, expected.digest, "{size}");
        }
        verify::store(&store);
    }
    // The plain hash, up to the border.
    let mut hasher = blake3::Hasher::new();
    let zeros = vec![0; 1 << 20];
    for _ in 0..BORDER >> 20 {
        hasher.update(&zeros);
    }
    assert_eq!(imported(BORDER, &[]), Digest::from(hasher.finalize()));
}

/// What has more than 4 GiB and no hole is one blob nevertheless, of the same name. On a disk where
/// one mebibyte can be all of it.
#[test]
fn a_long_file_without_holes_is_one_blob() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start(
        "a_long_file_without_holes_is_one_blob",
        Duration::from_secs(600),
    );
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    let Some(_mount) = host::Mount::sharing(&disk, &scratch.path("image")) else {
        return;
    };
    let data = Random::new(3).bytes(1 << 20);
    let size = (4 << 30) + 5;
    let file = host::repeated(&disk.join("project/file"), &data, 4 << 30);
    file.write_all_at(b"\0\0end", 4 << 30).unwrap();
    let store = Store::open(&disk.join("store")).unwrap();
    let stack = stack_of(&store, &disk.join("project"));
    let now = content(&stack, "file");
    assert_eq!(
        (now.size, now.stored, now.layout),
        (size, size, Layout::Whole)
    );
    let session = Session::open(&stack, "s");
    assert_eq!(
        session
            .upper
            .read(session.ino("file"), size - 6, 9)
            .unwrap(),
        [&data[data.len() - 1..], b"\0\0end"].concat()
    );
    // As it would be named if it lay otherwise.
    let ino = session.ino("file");
    session.upper.set_size(ino, size - 5, changed).unwrap();
    session.upper.write(ino, size - 3, b"end", changed).unwrap();
    assert_eq!(session.upper.digest(ino).unwrap(), now.digest);
    assert_eq!(publish(&session), Outcome::NoChange);
    verify::store(&store);
}
