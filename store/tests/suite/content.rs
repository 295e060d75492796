//! The data path: bytes of files, against plain vectors.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandstack_store::{BLOCK, Digest, Error, Ino, NewBody, Record, Seek, Store};

use crate::fixture::session::{changed, rel};
use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Session, Snapshot, Watchdog, cases, host, lacks_root, stack_of, verify,
};

const MAX: u64 = 3 << 20;

/// A file and what it should hold.
struct Checked {
    ino: Ino,
    bytes: Vec<u8>,
}

impl Checked {
    fn check(&self, session: &Session, random: &mut Random, what: &str) {
        let size = session.attributes(self.ino).size;
        assert_eq!(size, self.bytes.len() as u64, "the size after {what}");
        let offset = random.below(size + 10);
        let length = 1 + random.below(200_000) as usize;
        let seen = session.upper.read(self.ino, offset, length).unwrap();
        let start = (offset as usize).min(self.bytes.len());
        let end = (start + length).min(self.bytes.len());
        assert!(
            seen == self.bytes[start..end],
            "bytes {start}..{end} after {what}"
        );
    }

    fn check_all(&self, session: &Session, what: &str) {
        let seen = session
            .upper
            .read(self.ino, 0, self.bytes.len() + 1)
            .unwrap();
        if let Some(at) =
            (0..seen.len().max(self.bytes.len())).find(|at| seen.get(*at) != self.bytes.get(*at))
        {
            panic!(
                "byte {at} after {what}: {:?}, not {:?}",
                seen.get(at),
                self.bytes.get(at)
            );
        }
        // What is said to be a hole reads as zeros, and data and holes take turns.
        let mut at = 0;
        while let Some(data) = session.upper.seek(self.ino, at, Seek::Data).unwrap() {
            assert!(
                self.bytes[at as usize..data as usize]
                    .iter()
                    .all(|byte| *byte == 0)
            );
            let hole = session
                .upper
                .seek(self.ino, data, Seek::Hole)
                .unwrap()
                .unwrap();
            assert!(hole > data && hole <= self.bytes.len() as u64);
            at = hole;
        }
        assert!(self.bytes[at as usize..].iter().all(|byte| *byte == 0));
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(bytes);
    }
}

/// Does one random thing to a file.
fn exercise(session: &Session, files: &mut [Checked], random: &mut Random) -> String {
    let index = random.below(files.len() as u64) as usize;
    let file = &mut files[index];
    let near = |random: &mut Random, size: u64| -> u64 {
        // Block boundaries and the end are where things go wrong.
        let at = match random.below(4) {
            0 => size,
            1 => random.below(MAX / BLOCK) * BLOCK,
            _ => random.below(MAX),
        };
        (at + random.below(3))
            .saturating_sub(random.below(3))
            .min(MAX)
    };
    let size = file.bytes.len() as u64;
    let (one, two) = (near(random, size), near(random, size));
    let (start, end) = (one.min(two), one.max(two));
    let upper = &session.upper;
    match random.below(12) {
        0..=3 => {
            let length = match random.below(3) {
                0 => random.below(100),
                1 => random.below(20_000),
                _ => random.below(200_000),
            };
            let bytes = random.bytes(length as usize);
            upper.write(file.ino, start, &bytes, changed).unwrap();
            if !bytes.is_empty() {
                file.write(start, &bytes);
            }
            format!("write {length} bytes at {start}")
        }
        4 => {
            upper.set_size(file.ino, start, changed).unwrap();
            file.bytes.resize(start as usize, 0);
            format!("set size {start}")
        }
        5 | 6 => {
            upper.punch(file.ino, start, end, changed).unwrap();
            let end = end.min(size);
            if start < end {
                file.bytes[start as usize..end as usize].fill(0);
            }
            format!("punch {start}..{end}")
        }
        7 => {
            let (grow, end) = (random.chance(2), start + 1 + random.below(60_000));
            upper.reserve(file.ino, start, end, grow, changed).unwrap();
            if grow && end > size {
                file.bytes.resize(end as usize, 0);
            }
            format!("reserve {start}..{end}, grow {grow}")
        }
        _ => {
            let from = random.below(files.len() as u64) as usize;
            let (mut to_offset, mut from_offset) =
                (start, near(random, files[from].bytes.len() as u64));
            let length = 1 + random.below(400_000);
            if random.chance(2) {
                to_offset = to_offset / BLOCK * BLOCK;
            }
            if random.chance(2) {
                from_offset = from_offset / BLOCK * BLOCK;
            }
            if from == index && from_offset < to_offset + length && to_offset < from_offset + length
            {
                return "nothing".to_owned();
            }
            let source = (files[from].ino, from_offset);
            let copied = upper
                .copy_range(source, (files[index].ino, to_offset), length, changed)
                .unwrap();
            let there = length.min((files[from].bytes.len() as u64).saturating_sub(from_offset));
            assert_eq!(copied, there);
            if copied > 0 {
                let bytes = files[from].bytes[from_offset as usize..][..copied as usize].to_vec();
                files[index].write(to_offset, &bytes);
            }
            format!("copy {length} from {from_offset} of {from} to {to_offset} of {index}")
        }
    }
}

/// Base files of sizes around every edge, and new ones.
fn files(scratch: &Scratch, random: &mut Random) -> (Session, Vec<Checked>) {
    let dir = scratch.dir("project");
    const SIZES: [u64; 9] = [0, 1, 4095, 4096, 12_289, 131_072, 131_073, 1_048_581, MAX];
    for size in SIZES {
        host::write(&dir.join(size.to_string()), &random.bytes(size as usize));
    }
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(MAX - 100).unwrap();
    for offset in [5000, 1 << 20, MAX - 4196] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &random.bytes(4096), offset).unwrap();
    }
    let stack = stack_of(&scratch.store(), &dir);
    let session = Session::open(&stack, "s");
    let mut files: Vec<Checked> = SIZES
        .iter()
        .map(u64::to_string)
        .chain(["sparse".to_owned()])
        .map(|name| Checked {
            ino: session.ino(&name),
            bytes: fs::read(dir.join(name)).unwrap(),
        })
        .collect();
    for name in ["new one", "new two"] {
        let ino = session.create(name, 0o644, NewBody::Empty);
        files.push(Checked {
            ino,
            bytes: Vec::new(),
        });
    }
    (session, files)
}

#[test]
fn files_hold_what_was_done_to_them() {
    let _watchdog = Watchdog::start("files_hold_what_was_done_to_them", Duration::from_secs(600));
    for seed in 0..u64::from(cases(2)) {
        let scratch = Scratch::new();
        let mut random = Random::new(100 + seed);
        let (mut session, mut files) = files(&scratch, &mut random);
        for step in 0..600 {
            let what = exercise(&session, &mut files, &mut random);
            let what = format!("step {step} of seed {seed}: {what}");
            let at = random.below(files.len() as u64) as usize;
            files[at].check(&session, &mut random, &what);
            if step % 50 == 49 {
                for file in &files {
                    file.check_all(&session, &what);
                }
            }
            if random.chance(70) {
                session = session.reopen();
            }
            if random.chance(70) {
                session.upper.sync().unwrap();
            }
        }
        session.publish();
        let head = Snapshot::of_head(&session.stack);
        session.view().assert_same(&head, Level::Tree);
        for (index, file) in files.iter().enumerate() {
            file.check_all(&session, &format!("the publish, file {index}"));
        }
        assert!(session.upper.content_bytes() > 0);
        for name in session.list(sandstack_store::ROOT_INO) {
            session.remove(&name);
        }
        assert_eq!(session.upper.content_bytes(), 0, "all is gone");
        assert_eq!(session.stack.budget().used(), 0);
        session.upper.sync().unwrap();
        let arena = session.upper.dir().join("arena");
        let blocks = std::os::unix::fs::MetadataExt::blocks(&arena.metadata().unwrap());
        assert!(
            blocks * 512 < (64 * 64) << 10,
            "{blocks} blocks of the arena are kept"
        );
    }
}

#[test]
fn threads_change_different_files_and_one_file() {
    let _watchdog = Watchdog::start("threads_change_files", Duration::from_secs(120));
    let scratch = Scratch::new();
    let (session, mut files) = files(&scratch, &mut Random::new(200));
    let shared = session.create("shared", 0o644, NewBody::Empty);
    // Two threads write every other piece of one file, in pieces that share blocks.
    const PIECE: u64 = 1000;
    const PIECES: u64 = 600;
    std::thread::scope(|scope| {
        for (thread, files) in files.chunks_mut(6).enumerate() {
            let session = &session;
            scope.spawn(move || {
                let mut random = Random::new(300 + thread as u64);
                for step in 0..200 {
                    let what = exercise(session, files, &mut random);
                    let at = random.below(files.len() as u64) as usize;
                    files[at].check(session, &mut random, &format!("step {step}: {what}"));
                }
            });
            scope.spawn(move || {
                for piece in (thread as u64..PIECES).step_by(2) {
                    let bytes = [1 + (piece % 200) as u8; PIECE as usize];
                    session
                        .upper
                        .write(shared, piece * PIECE, &bytes, changed)
                        .unwrap();
                    let seen = session
                        .upper
                        .read(shared, piece * PIECE, PIECE as usize)
                        .unwrap();
                    assert!(seen == bytes);
                }
            });
        }
    });
    for file in &files {
        file.check_all(&session, "all threads ended");
    }
    let bytes = session
        .upper
        .read(shared, 0, (PIECE * PIECES) as usize + 1)
        .unwrap();
    assert_eq!(bytes.len() as u64, PIECE * PIECES);
    for (piece, bytes) in bytes.chunks(PIECE as usize).enumerate() {
        assert!(
            bytes.iter().all(|byte| *byte == 1 + (piece % 200) as u8),
            "piece {piece}"
        );
    }
    let view = session.view();
    session.reopen().view().assert_same(&view, Level::Exact);
}

#[test]
fn a_reader_never_sees_the_bytes_of_another_file() {
    let _watchdog = Watchdog::start("a_reader_never_sees_another_file", Duration::from_secs(120));
    let scratch = Scratch::new();
    let (session, _) = files(&scratch, &mut Random::new(400));
    let stop = AtomicBool::new(false);
    const SIZE: usize = 256 << 10;
    let newest = std::sync::Mutex::new((0, 0u8));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Files that are written, dropped, and whose space is used again at once.
            for round in 0..u64::from(cases(150)) {
                let byte = (round % 250) as u8;
                let ino = session.create(&format!("n{round}"), 0o600, NewBody::Empty);
                session
                    .upper
                    .write(ino, 0, &vec![byte; SIZE], changed)
                    .unwrap();
                *newest.lock().unwrap() = (ino, byte);
                if round > 0 {
                    session.remove(&format!("n{}", round - 1));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            let (ino, byte) = *newest.lock().unwrap();
            // It may be gone by now; what is read of it is its own.
            if ino != 0
                && let Ok(bytes) = session.upper.read(ino, 0, SIZE)
            {
                assert!(bytes.iter().all(|seen| *seen == byte));
            }
        }
    });
}

#[test]
fn a_change_that_exceeds_quota_or_budget_changes_nothing() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let base = Random::new(1).bytes(10 * BLOCK as usize);
    host::write(&dir.join("base"), &base);
    let stack = stack_of(&scratch.store(), &dir);
    for shared in [false, true] {
        let quota = (!shared).then_some(4 * BLOCK);
        let session = Session::with_quota(&stack, "s", quota);
        stack.budget().set_limit(shared.then_some(4 * BLOCK));
        let ino = session.write("own", vec![1; 2 * BLOCK as usize]);
        let lower = session.ino("base");
        session
            .upper
            .write(lower, BLOCK, &[2; 10], changed)
            .unwrap();
        let view = session.view();
        let refused = |result: Result<(), Error>| match result {
            Err(Error::Quota { limit }) => assert_eq!(limit, 4 * BLOCK),
            other => panic!("{other:?}"),
        };
        // Over own blocks first, and then beyond them.
        refused(
            session
                .upper
                .write(ino, 100, &vec![9; 5 * BLOCK as usize], changed),
        );
        // Two edges to be copied up, and room for one.
        refused(
            session
                .upper
                .punch(lower, 3 * BLOCK + 1, 6 * BLOCK + 1, changed),
        );
        refused(
            session
                .upper
                .write(lower, 4 * BLOCK - 1, &[7; 2 * BLOCK as usize], changed),
        );
        refused(session.upper.reserve(ino, 0, 9 * BLOCK, true, changed));
        session.view().assert_same(&view, Level::Exact);
        assert_eq!(session.upper.content_bytes(), 3 * BLOCK);
        // A copy says how far it came.
        let copied = session
            .upper
            .copy_range((ino, 0), (lower, 8 * BLOCK + 1), 2 * BLOCK, changed);
        refused(copied.map(|_| ()));
        session.view().assert_same(&view, Level::Exact);
        // What needs no room goes on, and what gives room back makes some.
        session.upper.write(ino, 100, &[5; 50], changed).unwrap();
        session.upper.set_size(ino, 100, changed).unwrap();
        session
            .upper
            .write(lower, 5 * BLOCK, &vec![6; BLOCK as usize], changed)
            .unwrap();
        assert_eq!(session.upper.content_bytes(), 3 * BLOCK);
        let again = session.reopen();
        assert_eq!(again.upper.content_bytes(), 3 * BLOCK);
        assert_eq!(stack.budget().used(), 3 * BLOCK);
        drop(again);
        assert_eq!(stack.budget().used(), 0);
        stack.budget().set_limit(None);
    }
}

#[test]
fn a_full_disk_leaves_content_as_it_was() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start("a_full_disk_leaves_content", Duration::from_secs(60));
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let mut random = Random::new(2);
    host::write(&dir.join("base"), &random.bytes(1 << 20));
    let disk = scratch.path("disk");
    let Some(_mount) = host::Mount::tmpfs(&disk, "size=200m") else {
        return;
    };
    let store = Store::open(&disk.join("store")).unwrap();
    let stack = stack_of(&store, &dir);
    let session = Session::open(&stack, "s");
    let base = session.ino("base");
    let own = session.write("own", random.bytes(100_000));
    session.write("small", "small");
    let fill = |leave: u64| {
        let free = rustix::fs::statvfs(&disk)
            .map(|stat| stat.f_bfree * stat.f_frsize)
            .unwrap();
        let filler = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(disk.join("filler"))
            .unwrap();
        let size = filler.metadata().unwrap().len() + free.saturating_sub(leave);
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
    };
    for leave in [0, 4096, 5 * 4096, 20 * 4096] {
        fill(leave);
        let view = session.view();
        let full = |result: Result<(), Error>| match result {
            Err(error) => assert!(error.is_disk_full(), "{error}"),
            Ok(()) => panic!("it found room, {leave} bytes left"),
        };
        full(
            session
                .upper
                .write(own, 50_000, &random.bytes(200_000), changed),
        );
        full(
            session
                .upper
                .write(base, 10_001, &random.bytes(200_000), changed),
        );
        full(session.upper.reserve(own, 0, 4 << 20, true, changed));
        session.view().assert_same(&view, Level::Exact);
        // Metadata goes into the journal: as long as its last block has room, and then no more.
        let mut renames = 0;
        let refused = loop {
            let mut change = session.upper.begin();
            let xattrs = [(b"user.x".to_vec(), random.bytes(3000))].into();
            change.push(Record::Xattrs { ino: own, xattrs });
            match change.commit() {
                Ok(()) => renames += 1,
                Err(error) => break error,
            }
            assert!(renames < 100, "a full disk takes everything");
        };
        assert!(refused.is_disk_full(), "{refused}");
        let view = session.view();
        let publish = stack.publish(&session.upper, &session.options(), &mut |_| {});
        assert!(
            publish.as_ref().is_err_and(Error::is_disk_full),
            "{publish:?}"
        );
        session.view().assert_same(&view, Level::Exact);
        fs::remove_file(disk.join("filler")).unwrap();
    }
    // A session can be ended on a full disk: that is how room is made.
    let other = Session::open(&stack, "other");
    other.write("large", random.bytes(40 << 20));
    fill(0);
    let lease = other.lease.clone();
    drop(other);
    store.release(lease.id()).unwrap();
    fs::remove_file(disk.join("filler")).unwrap();
    let view = session.view();
    session.append("small", " and more");
    session.publish();
    let session = session.reopen();
    session.upper.sync().unwrap();
    assert_eq!(session.text("small"), "small and more");
    assert_eq!(view.bytes("own"), session.read("own"));
}

#[test]
fn what_was_synced_survives_power_loss() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    host::write(&dir.join("base"), b"x");
    let stack = stack_of(&scratch.store(), &dir);
    let session = Session::open(&stack, "s");
    let mut random = Random::new(3);
    let (one, other) = (random.bytes(300_000), random.bytes(50_000));
    session.write("one", &one);
    session.write("other", &other);
    session.upper.sync().unwrap();
    let dir = session.upper.dir().to_path_buf();
    let durable = fs::read(dir.join("journal")).unwrap();
    // None of this is synced, and all of it uses space.
    session.remove("one");
    session
        .upper
        .set_size(session.ino("other"), 1, changed)
        .unwrap();
    for name in 0..20 {
        session.write(&format!("n{name}"), vec![0xee; 60_000]);
    }
    for name in 0..20 {
        session.remove(&format!("n{name}"));
    }
    session.write("last", vec![0xdd; 900_000]);
    // The power fails: of the journal what was synced is left, of the arena whatever was written.
    let lease = session.lease.clone();
    drop(session);
    fs::write(dir.join("journal"), durable).unwrap();
    let session = Session::resume(stack.store(), &lease);
    assert!(session.read("one") == one, "a file that was synced");
    assert!(
        session.read("other") == other,
        "a file that was synced and cut"
    );
    session.upper.sync().unwrap();
    // Without a sync in between space is used again at once.
    let used = |session: &Session| {
        let arena = session.upper.dir().join("arena").metadata().unwrap();
        std::os::unix::fs::MetadataExt::blocks(&arena) * 512
    };
    let before = used(&session);
    for round in 0..50 {
        session.write("t", vec![round; 1 << 20]);
        session.remove("t");
    }
    assert!(
        used(&session) < before + (3 << 20),
        "{} bytes after {before}",
        used(&session)
    );
}

/// Of a large file only what changed is hashed again; its digest is that of all of it nevertheless.
#[test]
fn a_large_file_that_changed_in_places_has_its_own_digest() {
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    let mut random = Random::new(5);
    let mut bytes = random.bytes(6_000_000);
    host::write(&dir.join("large"), &bytes);
    let store = scratch.store();
    let stack = stack_of(&store, &dir);
    for round in 0..12 {
        let session = Session::open(&stack, &format!("s{round}"));
        let ino = session.ino("large");
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64 + 300_000);
            let most = if random.chance(3) { 600_000 } else { 5000 };
            let length = 1 + random.below(most);
            let part = random.bytes(length as usize);
            session.upper.write(ino, at, &part, changed).unwrap();
            let end = at as usize + part.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[at as usize..end].copy_from_slice(&part);
        }
        if random.chance(3) {
            let size = 4_500_000 + random.below(2_500_000);
            session.upper.set_size(ino, size, changed).unwrap();
            bytes.resize(size as usize, 0);
        }
        session.publish();
        store.release(session.lease.id()).unwrap();
        let head = store
            .lower(&stack.layer(stack.head()).unwrap().root)
            .unwrap();
        let node = head.node_at(&rel("large")).unwrap().unwrap();
        assert_eq!(
            node.content().unwrap().digest,
            Digest::of(&bytes),
            "{round}"
        );
        assert_eq!(Snapshot::of_head(&stack).bytes("large"), bytes, "{round}");
    }
    verify::store(&store);
    verify::stack(&stack);
}
