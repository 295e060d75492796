//! An upper against the model: random programs of changes over a random project; closed, opened,
//! killed and damaged on the way, and on a disk that is full.

use std::fs;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use sandstack_store::{Error, Kind, Lease, LeaseId, RelPath, Store};

use crate::fixture::session::changed;
use crate::fixture::snapshot::{Data, Level};
use crate::fixture::{
    Random, Scratch, Session, Snapshot, Watchdog, cases, child, host, lacks_root, stack_of,
};
use crate::programs::{Model, Raw, Step, Trace, perform, random_project, raw_steps};

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(200), failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_view_is_what_was_done_to_it(seed in any::<u64>(), steps in raw_steps(), short in any::<bool>()) {
        let scratch = Scratch::in_memory();
        random_project(&scratch.path("project"), seed, true);
        let store = if short { scratch.store_with_short_journals() } else { scratch.store() };
        let stack = stack_of(&store, &scratch.path("project"));
        let base = Snapshot::of_head(&stack);
        let mut model = Model::of(&base);
        let mut session = Session::open(&stack, "s");
        let mut trace = Trace(vec![base.paths()]);
        for (index, raw) in steps.iter().enumerate() {
            if let Some(step) = model.step(*raw) {
                trace.0.push(format!("{step:?}").chars().take(120).collect());
                perform(&session, &step);
                model.apply(&step);
            }
            if index % 8 == 7 {
                let view = session.view();
                assert_eq!(view.difference(&model.snapshot(), Level::Tree), "", "after step {}", index);
            }
            if index % 16 == 15 {
                let before = session.view();
                session = session.reopen();
                assert_eq!(session.view().difference(&before, Level::Exact), "", "reopened after step {}", index);
            }
            if index % 11 == 10 {
                session.upper.sync().unwrap();
            }
        }
        session = session.reopen();
        assert_eq!(session.view().difference(&model.snapshot(), Level::Tree), "", "at the end");
        Snapshot::of_head(&stack).assert_same(&base, Level::Exact);

        // What is published is what was seen, sockets aside; and it is seen again.
        let report = session.try_publish(&session.options());
        assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
        let sockets = |snapshot: &Snapshot| -> Vec<RelPath> {
            let sockets = snapshot.0.iter().filter(|(_, item)| item.kind == Kind::Socket);
            sockets.map(|(path, _)| path.clone()).collect()
        };
        let mut expected = model.clone();
        for path in sockets(&model.snapshot()) {
            expected.names.remove(&path);
        }
        let head = Snapshot::of_head(&stack);
        assert_eq!(head.difference(&expected.snapshot(), Level::Tree), "", "the head");
        let next = Session::open(&stack, "next");
        assert_eq!(next.view().difference(&head, Level::Exact), "", "a new session");

        // When all of it is gone nothing is kept.
        for path in model.names.keys().rev().filter(|path| !path.is_root()) {
            session.remove(&path.to_string());
        }
        assert_eq!(session.upper.content_bytes(), 0);
        assert_eq!(stack.budget().used(), 0);
    }
}

/// How far a view may be from a model after a kill: the step under way may be done, or not, or, if
/// it writes over blocks that the session had, in part.
fn after_kill(view: &Snapshot, before: &Model, step: Option<&Step>) -> bool {
    let same = |model: &Model| view.difference(&model.snapshot(), Level::Tree).is_empty();
    if same(before) {
        return true;
    }
    let Some(step) = step else { return false };
    let mut after = before.clone();
    after.apply(step);
    if same(&after) {
        return true;
    }
    let (Step::Write { path, .. } | Step::Punch { path, .. }) = step else {
        return false;
    };
    let mut mixed = before.clone();
    let (old, new) = (
        before.node(path).data.clone(),
        after.node(path).data.clone(),
    );
    let (Data::File(old), Data::File(new)) = (old, new) else {
        return false;
    };
    let seen = view.bytes(path).to_vec();
    let sizes = seen.len() == old.len() || seen.len() == new.len();
    let bytes = seen
        .iter()
        .enumerate()
        .all(|(at, byte)| old.get(at) == Some(byte) || new.get(at) == Some(byte));
    *mixed.bytes_mut(path) = seen;
    sizes && bytes && same(&mixed)
}

/// The child's part: runs a program on a session and says how far it is.
pub(crate) fn run_program(place: &Path, argument: &str) {
    let (seed, lease) = argument.split_once(' ').unwrap();
    let store = open_short(place);
    let lease = store.lease(LeaseId(lease.parse().unwrap())).unwrap();
    let session = Session::resume(&store, &lease);
    let mut model = Model::of(&session.view());
    child::say("begins");
    for raw in program(seed.parse().unwrap()) {
        if let Some(step) = model.step(raw) {
            perform(&session, &step);
            model.apply(&step);
            child::say("step");
        }
    }
    child::say("ends");
}

pub(crate) fn program(seed: u64) -> impl Iterator<Item = Raw> {
    let mut random = Random::new(seed);
    (0..4000).map(move |_| {
        let (one, other) = (random.next(), random.next());
        // No copies: one is several changes.
        let what = match (one % 24) as u8 {
            11 | 12 => 3,
            what => what,
        };
        (what, (one >> 8) as u16, (one >> 24) as u16, other as u32)
    })
}

/// Journals of a few kilobytes, so that kills meet replacements of them.
fn open_short(place: &Path) -> Store {
    let options = sandstack_store::StoreOptions {
        checkpoint_bytes: 6000,
    };
    Store::open_with(&place.join("store"), &options).unwrap()
}

#[test]
fn a_killed_session_has_every_acknowledged_change() {
    let _watchdog = Watchdog::start("a_killed_session", Duration::from_secs(240));
    let scratch = Scratch::new();
    random_project(&scratch.path("project"), 11, true);
    let mut random = Random::new(12);
    let lease: Lease = {
        let store = open_short(&scratch.path(""));
        let stack = stack_of(&store, &scratch.path("project"));
        stack.take_lease(None, "s", None, 0).unwrap()
    };
    let mut killed_inside = 0;
    for round in 0..cases(25) {
        let seed = 1000 + u64::from(round);
        let mut model = {
            let store = open_short(&scratch.path(""));
            Model::of(&Session::resume(&store, &lease).view())
        };
        let argument = format!("{seed} {}", lease.id().0);
        let mut running = child::start("program", &scratch.path(""), &argument);
        assert_eq!(running.hear().as_deref(), Some("begins"));
        let mut acknowledged = 0;
        let wanted = random.below(150);
        let mut ended = false;
        while acknowledged < wanted && !ended {
            match running.hear().as_deref() {
                Some("step") => acknowledged += 1,
                Some("ends") => ended = true,
                other => panic!("the child said {other:?}"),
            }
        }
        // Somewhere in the steps that follow.
        for _ in 0..random.below(20_000) {
            std::hint::spin_loop();
        }
        running.kill();
        while let Some(word) = running.hear() {
            acknowledged += u64::from(word == "step");
        }
        let mut steps = program(seed);
        let mut done = 0;
        let mut next = None;
        for raw in steps.by_ref() {
            let Some(step) = model.step(raw) else {
                continue;
            };
            if done == acknowledged {
                next = Some(step);
                break;
            }
            model.apply(&step);
            done += 1;
        }
        let store = open_short(&scratch.path(""));
        let view = Session::resume(&store, &lease).view();
        killed_inside += u32::from(!view.difference(&model.snapshot(), Level::Tree).is_empty());
        assert!(
            after_kill(&view, &model, next.as_ref()),
            "round {round}, after {acknowledged} steps, next {next:?}:\n{}",
            view.difference(&model.snapshot(), Level::Tree)
        );
    }
    eprintln!("{killed_inside} of the kills came between a change and its acknowledgement");
}

/// A session with a journal of a few frames: the store, the lease, the journal's file, and the view
/// after each frame with the journal's length then.
fn journal_of_frames(scratch: &Scratch) -> (Lease, std::path::PathBuf, Vec<(u64, Snapshot)>) {
    random_project(&scratch.path("project"), 5, true);
    let stack = stack_of(&scratch.store(), &scratch.path("project"));
    let session = Session::open(&stack, "s");
    let journal = session.upper.dir().join("journal");
    let length = |journal: &Path| journal.metadata().unwrap().len();
    let mut views = vec![(length(&journal), session.view())];
    let mut model = Model::of(&session.view());
    for raw in program(99) {
        if let Some(step) = model.step(raw)
            && !matches!(step, Step::Remove { .. } | Step::Rename { .. })
        {
            perform(&session, &step);
            model.apply(&step);
            views.push((length(&journal), session.view()));
        }
        if views.len() > 30 {
            break;
        }
    }
    (session.lease.clone(), journal, views)
}

#[test]
fn a_journal_that_ends_in_the_middle_of_a_frame_ends_before_it() {
    let scratch = Scratch::new();
    let (lease, journal, views) = journal_of_frames(&scratch);
    let whole = fs::read(&journal).unwrap();
    let store = scratch.store();
    let (last, before) = (views.last().unwrap(), &views[views.len() - 2]);
    assert_eq!(last.0, whole.len() as u64);
    for cut in before.0..=last.0 {
        fs::write(&journal, &whole[..cut as usize]).unwrap();
        let session = Session::resume(&store, &lease);
        let expected = if cut == last.0 { &last.1 } else { &before.1 };
        session.view().assert_same(expected, Level::Exact);
        // And it goes on from there.
        session.write("goes on", "x");
        let seen = session.view();
        session.reopen().view().assert_same(&seen, Level::Exact);
    }
    // Space that was allocated and never written.
    for zeros in [1, 7, 8, 9, 100, 5000] {
        let mut bytes = whole.clone();
        bytes.resize(whole.len() + zeros, 0);
        fs::write(&journal, bytes).unwrap();
        Session::resume(&store, &lease)
            .view()
            .assert_same(&last.1, Level::Exact);
    }
    // A file that was made and never written to.
    for length in 0..8 {
        fs::write(&journal, &whole[..length]).unwrap();
        assert!(Session::resume(&store, &lease).upper.state().is_empty());
    }
}

#[test]
fn a_byte_that_turned_in_the_middle_of_a_journal_is_damage() {
    let scratch = Scratch::new();
    let (lease, journal, views) = journal_of_frames(&scratch);
    let whole = fs::read(&journal).unwrap();
    let store = scratch.store();
    let last_frame = views[views.len() - 2].0 as usize;
    for at in (0..last_frame).step_by(1 + last_frame / 400) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&journal, &bytes).unwrap();
        match store.open_upper(&lease) {
            Err(Error::Corrupt { what, detail }) => {
                assert_eq!(what, journal.display().to_string(), "{detail}");
            }
            other => panic!("byte {at} turned: {other:?}"),
        }
        assert_eq!(
            fs::read(&journal).unwrap(),
            bytes,
            "what is damaged is left as it is"
        );
    }
    fs::write(&journal, &whole).unwrap();
    Session::resume(&store, &lease)
        .view()
        .assert_same(&views.last().unwrap().1, Level::Exact);
}

#[test]
fn damage_of_a_frame_of_megabytes_is_no_unfinished_frame() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    host::write(&dir.join("f"), b"x");
    let stack = stack_of(&scratch.store(), &dir);
    let session = Session::open(&stack, "s");
    // One transaction of a megabyte, and a small one after it.
    let mut change = session.upper.begin();
    let ino = session.upper.new_ino().unwrap();
    for name in 0..20 {
        change.push(sandstack_store::Record::Xattrs {
            ino,
            xattrs: [(
                format!("user.{name}").into(),
                Random::new(name).bytes(64 << 10),
            )]
            .into(),
        });
    }
    change.commit().unwrap();
    session.write("after", "x");
    let (lease, journal) = (session.lease.clone(), session.upper.dir().join("journal"));
    drop(session);
    let mut bytes = fs::read(&journal).unwrap();
    assert!(bytes.len() > 1 << 20);
    bytes[700_000] ^= 1;
    fs::write(&journal, bytes).unwrap();
    let store = stack.store();
    assert!(matches!(
        store.open_upper(&lease),
        Err(Error::Corrupt { .. })
    ));
}

/// Fills the disk with files of `bytes` each, synced, until it is full; returns how many fit.
fn fill(session: &Session, prefix: &str, bytes: usize) -> usize {
    let mut random = Random::new(9);
    for count in 0.. {
        let name = format!("{prefix}{count}");
        let ino = session.create(&name, 0o644, sandstack_store::NewBody::Empty);
        match session.upper.write(ino, 0, &random.bytes(bytes), changed) {
            Ok(()) => session.upper.sync().unwrap(),
            Err(error) => {
                assert!(error.is_disk_full(), "{error}");
                session.remove(&name);
                return count;
            }
        }
    }
    unreachable!("the disk is endless")
}

#[test]
fn what_is_freed_on_a_full_disk_is_there_for_the_next_change() {
    if lacks_root() {
        return;
    }
    let _watchdog = Watchdog::start("what_is_freed_on_a_full_disk", Duration::from_secs(120));
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    let Some(_mount) = host::Mount::tmpfs(&disk, "size=48m") else {
        return;
    };
    let dir = scratch.dir("project");
    host::write(&dir.join("f"), b"base");
    let store = Store::open(&disk.join("store")).unwrap();
    let stack = stack_of(&store, &dir);
    let session = Session::open(&stack, "s");
    let count = fill(&session, "fill", 1 << 20);
    assert!(count > 20, "{count} files of a mebibyte on a disk of 48");
    let full = session.view();
    session.reopen().view().assert_same(&full, Level::Exact);
    let session = Session::resume(&store, &store.leases().unwrap()[0]);
    // By deletion, and by cutting; no sync is asked for between that and the next write.
    for round in 0..3u8 {
        for name in (0..count).step_by(2) {
            let path = format!("fill{name}");
            if name % 4 == 0 {
                session.remove(&path);
                session.create(&path, 0o644, sandstack_store::NewBody::Empty);
            } else {
                let ino = session.ino(&path);
                session.upper.set_size(ino, 0, changed).unwrap();
            }
        }
        for name in (0..count).step_by(2) {
            session.write(&format!("fill{name}"), vec![round; 1 << 20]);
        }
        session.upper.sync().unwrap();
    }
    // Space that only the journal needs.
    let rest = fill(&session, "rest", 4096);
    session.remove("fill1");
    for name in 0..20 {
        session.set_xattr("fill0", &format!("user.{name}"), &[7; 2000]);
    }
    let seen = session.view();
    assert_eq!(seen.bytes("fill0"), vec![2; 1 << 20], "{rest}");
    session.reopen().view().assert_same(&seen, Level::Exact);
}
