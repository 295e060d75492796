//! Processes that are killed: at each of the store's crash points in turn.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use sandstack_store::{
    CRASH_POINTS, ExportFormat, Lease, LeaseId, Outcome, Stack, at_crash_points,
};

use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Session, Snapshot, Watchdog, child, host, import, now_ms, numbered, stack_of,
    verify,
};

/// Not a test: the children of other tests begin here.
#[test]
#[ignore = "other tests run it in processes of their own"]
fn child() {
    let Some((role, place, argument)) = child::role() else {
        return;
    };
    match role.as_str() {
        "import-deep" => crate::import::import_deep(&place),
        "program" => crate::upper::run_program(&place, &argument),
        "life" => live(&place, &argument),
        _ => panic!("no role {role}"),
    }
}

/// A project with a history: layers to squash, garbage to collect, and a session with work.
struct Ground {
    scratch: Scratch,
    lease: Lease,
    /// What the head has.
    old: Snapshot,
    /// What it has when the session's work is published.
    new: Snapshot,
}

fn ground() -> Ground {
    let scratch = Scratch::in_memory();
    let mut random = Random::new(17);
    for project in ["project", "second"] {
        let dir = scratch.dir(project);
        host::write(&dir.join("text"), numbered(50).as_bytes());
        host::write(&dir.join("large"), &random.bytes(900_000));
        host::write(&dir.join("d/e/small"), b"small\n");
        host::write(&dir.join("gone"), b"gone\n");
    }
    let store = scratch.store();
    let stack = stack_of(&store, &scratch.path("project"));
    for (name, bytes) in [("one", 800_000), ("two", 700_000), ("three", 600_000)] {
        let session = Session::open(&stack, name);
        session.write("large", random.bytes(bytes));
        session.edit("text", "7\n", &format!("seven of {name}\n"));
        session.publish();
        store.release(session.lease.id()).unwrap();
        // As the next one finds it.
        let session = Session::open(&stack, name);
        session.edit("text", &format!("seven of {name}\n"), "7\n");
        session.publish();
        store.release(session.lease.id()).unwrap();
    }
    let session = Session::open(&stack, "mine");
    session.edit("text", "30\n", "thirty\n");
    session.write("large", random.bytes(1_000_000));
    session.write("d/new", "new\n");
    session.rename("d/e", "moved");
    session.remove("gone");
    let (old, new) = (Snapshot::of_head(&stack), session.view());
    Ground {
        lease: session.lease.clone(),
        scratch,
        old,
        new,
    }
}

/// The point at which this process ends.
static FATAL: OnceLock<String> = OnceLock::new();

/// The child's part: everything that a store does, up to the point that is named.
fn live(place: &Path, argument: &str) {
    let (point, lease) = argument.split_once(' ').unwrap();
    FATAL.set(point.to_owned()).unwrap();
    at_crash_points(|passed| {
        if FATAL.get().is_some_and(|fatal| fatal == passed) {
            child::say(passed);
            std::io::stdout().flush().unwrap();
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
            std::thread::park();
        }
    });
    let store = sandstack_store::Store::open(&place.join("store")).unwrap();
    let lease = store.lease(LeaseId(lease.parse().unwrap())).unwrap();
    act(&Session::resume(&store, &lease), place);
    child::say("ends");
}

/// Import, publish, squash, collection, export. What was done already is not done again.
fn act(session: &Session, place: &Path) -> Stack {
    let (stack, store) = (&session.stack, session.stack.store());
    let second = store
        .create_stack(&import(store, &place.join("second")), now_ms())
        .unwrap();
    let report = stack
        .publish(&session.upper, &session.options(), &mut |_| {})
        .unwrap();
    assert!(
        matches!(report.outcome, Outcome::Published(_) | Outcome::NoChange),
        "{report:?}"
    );
    stack.squash(1, None, now_ms()).unwrap();
    assert!(
        store
            .collect_garbage(false, &mut || false)
            .unwrap()
            .complete
    );
    let dest = place.join("exported");
    if !dest.exists() {
        stack
            .export(None, stack.head(), ExportFormat::Directory, &dest)
            .unwrap();
    }
    second
}

/// After a kill at any point the head is the old layer or the new one, the session has its work,
/// nothing is damaged, and everything can be done again.
#[test]
fn a_store_that_is_killed_is_whole_whatever_it_did() {
    let _watchdog = Watchdog::start("a_store_that_is_killed", Duration::from_secs(240));
    for point in CRASH_POINTS {
        let Ground {
            scratch,
            lease,
            old,
            new,
        } = ground();
        let argument = format!("{point} {}", lease.id().0);
        let mut running = child::start("life", &scratch.path(""), &argument);
        assert_eq!(
            running.hear().as_deref(),
            Some(*point),
            "it was not reached"
        );
        assert_eq!(running.hear(), None, "it went on after {point}");

        let store = scratch.store();
        assert_eq!(
            store.verify().unwrap().problems,
            Vec::<String>::new(),
            "{point}"
        );
        let session = Session::resume(&store, &lease);
        verify::stack(&session.stack);
        let head = Snapshot::of_head(&session.stack);
        let is = |other: &Snapshot| head.difference(other, Level::Copy).is_empty();
        let published = CRASH_POINTS
            .iter()
            .position(|name| *name == "publish.committed")
            .unwrap();
        let reached = CRASH_POINTS.iter().position(|name| name == point).unwrap();
        assert!(
            if reached < published {
                is(&old)
            } else {
                is(&new)
            },
            "{point}: {}",
            head.difference(&new, Level::Copy)
        );
        session.view().assert_same(&new, Level::Exact);
        let exported = scratch.path("exported");
        if exported.exists() {
            Snapshot::of_directory(&exported).assert_same(&new, Level::Copy);
        }

        act(&session, &scratch.path(""));
        verify::store(&store);
        verify::stack(&session.stack);
        Snapshot::of_head(&session.stack).assert_same(&new, Level::Copy);
        Snapshot::of_directory(&exported).assert_same(&new, Level::Copy);
        // A project whose import was killed came in the second time, and nothing is left of both.
        let mut left: Vec<String> = std::fs::read_dir(scratch.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["exported", "project", "second", "store"], "{point}");
    }
}
