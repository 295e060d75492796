//! Garbage collection and what the store takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandstack_store::Store;

use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Session, Snapshot, Watchdog, cases, host, now_ms, project, stack_of, verify,
};

fn collect(store: &Store) -> sandstack_store::Collected {
    let found = store.collect_garbage(false, &mut || false).unwrap();
    assert!(found.complete);
    verify::store(store);
    found
}

#[test]
fn what_nothing_reaches_goes_and_what_is_leased_stays() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let mut random = Random::new(3);
    host::write(&dir.join("small"), &random.bytes(1000));
    host::write(&dir.join("large"), &random.bytes(900_000));
    let store = scratch.store();
    let stack = stack_of(&store, &dir);
    assert_eq!(collect(&store).objects, 0, "nothing is garbage yet");
    let session = Session::open(&stack, "one");
    session.write("large", random.bytes(800_000));
    session.write("other", random.bytes(70_000));
    session.publish();
    let pinned = Session::open(&stack, "pinned");
    let seen = pinned.view();
    let second = Session::open(&stack, "two");
    second.write("large", random.bytes(700_000));
    second.remove("other");
    second.publish();
    stack.squash(0, None, now_ms()).unwrap();
    let lone = Snapshot::of_head(&stack);
    assert_eq!(collect(&store).objects, 0, "the lease keeps its layer");
    pinned.view().assert_same(&seen, Level::Exact);

    let blobs = |store: &Store| store.object_bytes().unwrap();
    let before = blobs(&store);
    let Session { lease, upper, .. } = pinned;
    drop(upper);
    store.release(lease.id()).unwrap();
    store.release(session.lease.id()).unwrap();
    store.release(second.lease.id()).unwrap();
    let dry = store.collect_garbage(true, &mut || false).unwrap();
    assert_eq!(blobs(&store), before, "a dry run removes nothing");
    let found = collect(&store);
    assert_eq!((dry.objects, dry.bytes), (found.objects, found.bytes));
    // Two blobs, a root and a directory.
    assert_eq!(found.objects, 4);
    assert!(found.bytes > 870_000, "{found:?}");
    assert!(before - blobs(&store) > 800_000, "the disk has it back");
    Snapshot::of_head(&stack).assert_same(&lone, Level::Exact);

    // A stack that is gone leaves nothing of its own.
    drop((second, session));
    stack.destroy().unwrap();
    collect(&store);
    let usage = store.usage().unwrap();
    assert_eq!((usage.objects, usage.stored_bytes), (0, 0));
    // And the store goes on, with content that it has had before.
    let again = stack_of(&store, &dir);
    Snapshot::of_head(&again).assert_same(&Snapshot::of_directory(&dir), Level::Exact);
    verify::stack(&again);
}

#[test]
fn usage_adds_up() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let mut random = Random::new(4);
    host::write(&dir.join("shared"), &random.bytes(300_000));
    let store = scratch.store();
    let one = stack_of(&store, &dir);
    let other = stack_of(&store, &dir);
    let session = Session::open(&other, "s");
    session.write("own", random.bytes(200_000));
    session.publish();
    let usage = store.usage().unwrap();
    assert_eq!(usage.garbage_bytes, 0);
    let [first, second] = &usage.stacks[..] else {
        panic!("{usage:?}")
    };
    assert_eq!((first.stack, second.stack), (one.id(), other.id()));
    assert_eq!(
        (first.logical_bytes, second.logical_bytes),
        (300_000, 500_000)
    );
    assert_eq!(first.unique_bytes, 0, "all of it is the other's too");
    assert!(
        (200_000..210_000).contains(&second.unique_bytes),
        "{usage:?}"
    );
    assert_eq!(
        usage.shared_bytes + second.unique_bytes,
        usage.stored_bytes,
        "every byte is somebody's"
    );
    assert_eq!(first.stored_bytes, usage.shared_bytes);
    assert_eq!(usage.leases.len(), 1);
    assert_eq!(usage.upper_bytes, usage.leases[0].upper_bytes);
    let du = std::process::Command::new("du")
        .args(["-s", "--block-size=1"])
        .arg(store.root())
        .output()
        .unwrap();
    let text = String::from_utf8(du.stdout).unwrap();
    let disk: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
    let told = usage.object_bytes + usage.database_bytes + usage.upper_bytes;
    assert!(
        told.abs_diff(disk) < 256 << 10,
        "told {told}, on disk {disk}"
    );
}

#[test]
fn collection_disturbs_no_publish_and_no_reader() {
    let _watchdog = Watchdog::start("collection_disturbs_no_publish", Duration::from_secs(180));
    let (_scratch, stack) = project(&[("f", "f\n"), ("d/g", "g\n")]);
    let store = stack.store().clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                stack.squash(1, None, now_ms()).unwrap();
                let found = store.collect_garbage(false, &mut || false).unwrap();
                assert!(found.complete);
            }
        });
        let workers: Vec<_> = (0..3u64)
            .map(|worker| {
                let stack = stack.clone();
                scope.spawn(move || {
                    let mut random = Random::new(worker);
                    for round in 0..cases(25) {
                        let session = Session::open(&stack, &format!("w{worker}-{round}"));
                        // Content that comes, goes, and comes back: what was garbage is wanted again.
                        let same = vec![b'a' + (round % 3) as u8; 200_000];
                        session.write(&format!("big{worker}"), same);
                        session.write(&format!("small{worker}"), format!("{}\n", round % 2));
                        session.write(&format!("own{worker}"), random.bytes(3000));
                        let report = stack
                            .publish(&session.upper, &session.options(), &mut |_| {})
                            .unwrap();
                        assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
                        Snapshot::of_upper(&session.upper);
                        stack.store().release(session.lease.id()).unwrap();
                    }
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|result| result.unwrap());
    });
    verify::stack(&stack);
    verify::store(&store);
    collect(&store);
}

#[test]
fn an_import_keeps_what_it_has_read() {
    let _watchdog = Watchdog::start("an_import_keeps_what_it_has_read", Duration::from_secs(120));
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    for name in 0..3000 {
        host::write(
            &dir.join(format!("{}/{name}", name % 40)),
            format!("{name}\n").as_bytes(),
        );
    }
    let store = scratch.store();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.collect_garbage(false, &mut || true).unwrap();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..cases(5) {
                let stack = stack_of(&store, &dir);
                verify::stack(&stack);
                stack.destroy().unwrap();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        result.unwrap();
    });
    collect(&store);
}
