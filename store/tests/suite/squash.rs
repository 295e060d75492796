//! Squash: layers leave the history, and nobody notices.

use sandstack_store::{ChangeKind, Error, LayerId, LayerKind, Owner, Squashed};

use crate::fixture::session::rel;
use crate::fixture::snapshot::Level;
use crate::fixture::{Session, Snapshot, now_ms, numbered, project, verify};

fn ids(layers: &[LayerId]) -> String {
    let ids: Vec<String> = layers.iter().map(LayerId::to_string).collect();
    ids.join(" ")
}

fn history(stack: &sandstack_store::Stack) -> String {
    let mut layers: Vec<LayerId> = stack
        .layers(usize::MAX)
        .unwrap()
        .iter()
        .map(|layer| layer.id)
        .collect();
    layers.reverse();
    ids(&layers)
}

#[test]
fn a_squash_changes_no_file_and_no_owner() {
    let (_scratch, stack) = project(&[("f", &numbered(10)), ("gone", "x\n"), ("d/keep", "k\n")]);
    let old = Session::open(&stack, "old");
    let old_view = old.view();
    for (name, from, to) in [("a", "3\n", "three\n"), ("b", "7\n", "seven\n")] {
        let session = Session::open(&stack, name);
        session.edit("f", from, to);
        session.publish();
    }
    let third = Session::open(&stack, "c");
    third.remove("gone");
    third.write("new", "n\n");
    third.publish();
    let middle = Session::open(&stack, "middle");
    let fourth = Session::open(&stack, "d");
    fourth.edit("f", "9\n", "nine\n");
    fourth.publish();
    assert_eq!(history(&stack), "B000001 L000002 L000003 L000004 L000005");
    let head = Snapshot::of_head(&stack);
    let blame = |layer| -> Vec<_> {
        let runs = stack.blame(layer, &rel("f")).unwrap().runs;
        let shown = runs
            .into_iter()
            .map(|run| (run.start, run.owner, run.layer.unwrap().id));
        shown.collect()
    };
    let before = blame(stack.head());

    let squashed = stack.squash(1, Some("r1".to_owned()), now_ms()).unwrap();
    assert_eq!(ids(&squashed.replaced), "L000002 L000003 L000004");
    assert_eq!(squashed.layer.unwrap().to_string(), "S000004");
    assert_eq!(history(&stack), "B000001 S000004 L000005");
    verify::stack(&stack);
    verify::store(stack.store());
    Snapshot::of_head(&stack).assert_same(&head, Level::Exact);
    assert_eq!(
        blame(stack.head()),
        before,
        "owners, layers and times are as before"
    );
    let record = stack.layer(squashed.layer.unwrap()).unwrap();
    assert_eq!(record.parent.unwrap().to_string(), "B000001");
    assert_eq!(record.owner, Owner::Operation("r1".to_owned()));
    let changes = stack.layer_changes(record.id).unwrap();
    assert_eq!(
        changes,
        [
            (rel("f"), ChangeKind::Modified),
            (rel("gone"), ChangeKind::Deleted),
            (rel("new"), ChangeKind::Added)
        ]
    );
    assert_eq!(record.changed_paths, 3);
    assert_eq!(stack.layer(stack.head()).unwrap().parent, Some(record.id));

    // What the dropped ones were is still known.
    let dropped = stack.layer_at(3).unwrap().unwrap();
    assert_eq!(dropped.owner, Owner::Session("b".to_owned()));
    assert_eq!(dropped.id.kind, LayerKind::Published);

    // Sessions on the base and on a dropped layer go on, and conflicts name who they are with.
    old.view().assert_same(&old_view, Level::Exact);
    old.edit("f", "3\n", "THREE\n");
    let report = old.conflicts(&["f:Content"]);
    assert_eq!(
        report.conflicts[0].head_owner,
        Some(Owner::Session("d".to_owned()))
    );
    old.edit("f", "THREE\n", "3\n");
    old.edit("f", "1\n2\n", "one\n2\n");
    old.publish();
    middle.write("new", "mine\n");
    middle.publish();
    assert_eq!(Snapshot::of_head(&stack).text("new"), Some("mine\n"));
    assert_eq!(
        Snapshot::of_head(&stack).text("f").unwrap(),
        "one\n2\nthree\n4\n5\n6\nseven\n8\nnine\n10\n"
    );

    // Again, and everything: the head itself is squashed.
    let again = stack.squash(0, None, now_ms()).unwrap();
    assert_eq!(ids(&again.replaced), "S000004 L000005 L000006 L000007");
    assert_eq!(history(&stack), "B000001 S000007");
    assert_eq!(stack.head().to_string(), "S000007");
    verify::store(stack.store());
    let owners: Vec<String> = blame(stack.head())
        .iter()
        .map(|(start, owner, _)| format!("{start}-{owner}"))
        .collect();
    let expected = [
        "1-workspace_session:old",
        "2-original",
        "3-workspace_session:a",
        "4-original",
        "7-workspace_session:b",
        "8-original",
        "9-workspace_session:d",
        "10-original",
    ];
    assert_eq!(owners, expected);
    let nothing = stack.squash(0, None, now_ms()).unwrap();
    assert_eq!(
        nothing,
        Squashed {
            replaced: vec![],
            layer: None,
            head: stack.head()
        }
    );
    // And the next publish goes on from there.
    let next = Session::open(&stack, "next");
    next.write("later", "l\n");
    next.publish();
    assert_eq!(history(&stack), "B000001 S000007 L000008");
    verify::stack(&stack);
}

#[test]
fn deletions_stay_deletions_through_squash_and_collection() {
    let (_scratch, stack) =
        project(&[("a", "1\n"), ("d/b", "2\n"), ("d/c", "3\n"), ("e/f", "4\n")]);
    for (name, path) in [("one", "a"), ("two", "d/b"), ("three", "e/f")] {
        let session = Session::open(&stack, name);
        session.remove(path);
        session.publish();
    }
    let session = Session::open(&stack, "four");
    session.remove("e");
    session.publish();
    stack.squash(0, None, now_ms()).unwrap();
    stack.store().collect_garbage(false, &mut || false).unwrap();
    assert_eq!(Snapshot::of_head(&stack).paths(), "d d/c");
    verify::store(stack.store());
}

#[test]
fn a_dropped_layer_is_no_place_for_a_new_session() {
    let (_scratch, stack) = project(&[("a", "1\n")]);
    for name in ["one", "two", "three"] {
        let session = Session::open(&stack, name);
        session.write(name, "x\n");
        session.publish();
        stack.store().release(session.lease.id()).unwrap();
    }
    let dropped = stack.layers(10).unwrap()[1].id;
    assert!(stack.take_lease(Some(dropped), "s", None, now_ms()).is_ok());
    for lease in stack.leases().unwrap() {
        stack.store().release(lease.id()).unwrap();
    }
    stack.squash(1, None, now_ms()).unwrap();
    stack.squash(0, None, now_ms()).unwrap();
    let refused = stack.take_lease(Some(dropped), "s", None, now_ms());
    assert!(matches!(refused, Err(Error::NoLayer(id)) if id == dropped));
}
