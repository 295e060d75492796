//! Processes that are killed: at each point at which it matters, what is there afterwards is the old
//! state or the new one, whole, and work goes on from it.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use sandstack_store::{
    CRASH_POINTS, ExportFormat, Outcome, PublishOptions, Stack, Store, at_crash_points,
};

use crate::fixture::session::rel;
use crate::fixture::{Scratch, Session, Snapshot, Watchdog, child, host, now_ms, stack_of, verify};

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
        "everything" => everything(&place, &argument),
        _ => panic!("no role {role}"),
    }
}

/// Where this process is killed.
static END: OnceLock<String> = OnceLock::new();

/// Does one thing after the other, until it comes to its end.
fn everything(place: &Path, end: &str) {
    END.set(end.to_owned()).unwrap();
    at_crash_points(|point| {
        if END.get().is_some_and(|end| end == point) {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    });
    let store = Store::open(&place.join("store")).unwrap();
    let stack = stack_of(&store, &place.join("project"));
    let live = Session::open(&stack, "live");
    live.write("own", vec![b'o'; 200_000]);
    live.write("rest", "r\n");
    live.upper.sync().unwrap();
    child::say("live");
    for revision in 2..=4u64 {
        let session = Session::open(&stack, &format!("s{revision}"));
        session.write("revision", format!("{revision}\n"));
        session.write("big", vec![revision as u8; 100_000]);
        session.publish();
        store.release(session.lease.id()).unwrap();
        child::say(&format!("published {revision}"));
    }
    stack.squash(1, None, now_ms()).unwrap();
    store.collect_garbage(false, &mut || false).unwrap();
    let dest = place.join("out");
    stack
        .export(None, stack.head(), ExportFormat::Directory, &dest)
        .unwrap();
    // A part is published, which says its revision too, and the session goes on.
    live.write("revision", "5\n");
    let options = PublishOptions {
        paths: vec![rel("own"), rel("revision")],
        ..live.options()
    };
    let report = stack.publish(&live.upper, &options, &mut |_| {}).unwrap();
    assert!(matches!(report.outcome, Outcome::Conflict), "{report:?}");
    let options = PublishOptions {
        paths: vec![rel("own")],
        ..live.options()
    };
    let report = stack.publish(&live.upper, &options, &mut |_| {}).unwrap();
    live.write("revision", "1\n");
    let (_, rebased) = stack.rebase(&live.upper, &options, Some(&report)).unwrap();
    rebased.unwrap();
    child::say("done");
}

#[test]
fn a_crash_at_any_point_leaves_the_old_or_the_new() {
    let _watchdog = Watchdog::start("a_crash_at_any_point", Duration::from_secs(300));
    for point in CRASH_POINTS {
        let scratch = Scratch::in_memory();
        let dir = scratch.dir("project");
        host::write(&dir.join("revision"), b"1\n");
        host::write(&dir.join("big"), &[1; 100_000]);
        let mut child = child::start("everything", dir.parent().unwrap(), point);
        let mut said = Vec::new();
        while let Some(text) = child.hear() {
            said.push(text);
        }
        drop(child);
        assert_ne!(
            said.last().map(String::as_str),
            Some("done"),
            "{point} is never passed"
        );
        after_a_crash(&scratch, &said, point);
    }
}

fn after_a_crash(scratch: &Scratch, said: &[String], point: &str) {
    let store = scratch.store();
    let verified = store.verify().unwrap();
    assert_eq!(verified.problems, Vec::<String>::new(), "{point}");
    let Some(id) = store.stack_ids().unwrap().pop() else {
        assert!(said.is_empty(), "{point}: {said:?}");
        // The import is done again, from where it was.
        stack_of(&store, &scratch.path("project"));
        return;
    };
    let stack = store.stack(id).unwrap();
    verify::stack(&stack);
    // The head is a whole one, and no older than what was acknowledged.
    let (head, files) = (stack.head(), Snapshot::of_head(&stack));
    let revision: u64 = files.text("revision").unwrap().trim().parse().unwrap();
    assert!(
        revision == head.revision || (revision, head.revision) == (4, 5),
        "{point}"
    );
    assert_eq!(files.bytes("big"), vec![revision as u8; 100_000], "{point}");
    let acknowledged = said
        .iter()
        .filter(|text| text.starts_with("published"))
        .count() as u64;
    assert!(
        head.revision > acknowledged,
        "{point}: {head} after {said:?}"
    );
    // A place has all of an export or nothing.
    let out = scratch.path("out");
    if out.exists() {
        Snapshot::of_directory(&out)
            .assert_same(&files_of(&stack, 4), crate::fixture::snapshot::Level::Tree);
    }
    // Done again, it leaves nothing beside it of the one that was killed.
    if !out.exists() {
        stack
            .export(None, stack.head(), ExportFormat::Directory, &out)
            .unwrap();
    }
    let mut beside: Vec<String> = std::fs::read_dir(scratch.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    beside.sort();
    assert_eq!(beside, ["out", "project", "store"], "{point}");
    // What a session had is there, and is published; then nothing is left of it but that.
    let live = stack
        .leases()
        .unwrap()
        .into_iter()
        .find(|lease| lease.record().holder == "live");
    if let Some(lease) = live.filter(|_| said.iter().any(|text| text == "live")) {
        let session = Session::resume(&store, &lease);
        assert_eq!(session.read("own"), vec![b'o'; 200_000], "{point}");
        session.write("revision", "1\n");
        session.write("more", "m\n");
        session.publish();
        assert_eq!(
            Snapshot::of_head(&stack).text("rest"),
            Some("r\n"),
            "{point}"
        );
    }
    for lease in stack.leases().unwrap() {
        store.release(lease.id()).unwrap();
    }
    stack.squash(0, None, now_ms()).unwrap();
    store.collect_garbage(false, &mut || false).unwrap();
    verify::store(&store);
    let found = store.collect_garbage(true, &mut || false).unwrap();
    assert_eq!((found.objects, found.stray_files), (0, 0), "{point}");
}

/// What the layer of `revision` shows.
fn files_of(stack: &Stack, revision: u64) -> Snapshot {
    let layer = stack.layer_at(revision).unwrap().unwrap();
    Snapshot::of_layer(&stack.store().lower(&layer.root).unwrap())
}
