//! Corners of the publish page's table: cells that meet others, in both orders of publishers.

use sandstack_store::{ConflictKind, NewBody, Outcome, Timestamp};

use crate::fixture::session::rel;
use crate::fixture::{Session, Snapshot, numbered, project};
use crate::table::{Edit, apart, both_orders, conflicts_of, same, together};

const TREE: &[(&str, &str)] = &[("d/a", "1\n2\n3\n"), ("d/e/b", "b\n"), ("g", "g\n")];

#[test]
fn what_only_one_side_changed_is_taken() {
    let changes: [Edit; 8] = [
        |s| s.edit("d/a", "2\n", "two\n"),
        |s| s.chmod("d/a", 0o4711),
        |s| s.chown("d", 7, 8),
        |s| s.set_xattr("d/a", "user.k", b"v"),
        |s| s.remove_all("d"),
        |s| s.rename("d", "moved"),
        |s| {
            s.remove("g");
            s.symlink("g", "d/a");
        },
        |s| {
            s.remove("d/a");
            s.create("d/a", 0o600, NewBody::Fifo);
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        both_orders(
            TREE,
            change,
            |s| {
                s.write("elsewhere", "e\n");
            },
            |session, report| {
                assert!(
                    matches!(report.outcome, Outcome::Published(_)),
                    "{number}: {report:?}"
                );
                // What one side alone would have, and the other's file.
                let alone = Session::open(&session.stack, "alone");
                let head = Snapshot::of_head(&session.stack);
                alone
                    .view()
                    .assert_same(&head, crate::fixture::snapshot::Level::Tree);
                assert_eq!(head.text("elsewhere"), Some("e\n"));
            },
        );
        same(TREE, change);
    }
}

#[test]
fn a_directory_that_goes_and_its_own_metadata() {
    apart(
        TREE,
        |s| s.remove_all("d"),
        |s| s.chmod("d", 0o700),
        &["d:DeleteModify"],
    );
    apart(
        TREE,
        |s| s.remove_all("d"),
        |s| s.set_xattr("d/e", "user.k", b"v"),
        &["d/e:DeleteModify"],
    );
    // What both removed is no conflict, whatever else one of them removed.
    together(
        TREE,
        |s| s.remove_all("d"),
        |s| s.remove("d/a"),
        &[("g", "g\n")],
    );
}

#[test]
fn a_move_whose_place_is_taken() {
    both_orders(
        TREE,
        |s| s.rename("d", "moved"),
        |s| {
            s.write("moved", "a file\n");
        },
        |_, report| assert_eq!(report.outcome, Outcome::Conflict, "{report:?}"),
    );
    // Metadata of what was moved follows it.
    both_orders(
        TREE,
        |s| s.rename("d/a", "d/e/a"),
        |s| {
            s.chmod("d/a", 0o755);
            s.chown("d/a", 3, 4);
        },
        |session, report| {
            assert!(
                matches!(report.outcome, Outcome::Published(_)),
                "{report:?}"
            );
            let head = Snapshot::of_head(&session.stack);
            let item = head.get("d/e/a").unwrap();
            assert_eq!((item.mode, item.uid, item.gid), (0o755, 3, 4));
            assert!(head.get("d/a").is_none());
        },
    );
    // A file that one moved and the other deleted.
    both_orders(
        TREE,
        |s| s.rename("d/a", "elsewhere"),
        |s| s.remove("d/a"),
        |_, report| {
            assert_eq!(report.outcome, Outcome::Conflict, "{report:?}");
            let kinds = report.conflicts.iter().map(|conflict| conflict.kind);
            let expected = [ConflictKind::DeleteModify, ConflictKind::Rename];
            for kind in kinds {
                assert!(expected.contains(&kind), "{:?}", conflicts_of(report));
            }
        },
    );
}

#[test]
fn empty_files() {
    const EMPTY: &[(&str, &str)] = &[("empty", ""), ("f", "1\n2\n")];
    let cut: Edit = |s| {
        s.write("f", "");
    };
    apart(EMPTY, cut, |s| s.edit("f", "2\n", "two\n"), &["f:Content"]);
    same(EMPTY, cut);
    together(
        EMPTY,
        cut,
        |s| s.append("empty", "e\n"),
        &[("empty", "e\n"), ("f", "")],
    );
    // An empty file has all lines of nothing.
    together(
        EMPTY,
        |s| {
            s.write("new", "");
        },
        |s| {
            s.write("new", "n\n");
        },
        &[("empty", ""), ("f", "1\n2\n"), ("new", "n\n")],
    );
    let named: Edit = |s| {
        let name = s.name.clone();
        s.append("empty", format!("{name}\n"));
    };
    apart(EMPTY, named, named, &["empty:Content"]);
}

#[test]
fn attributes_that_go_and_change() {
    let (_scratch, stack) = crate::fixture::project(TREE);
    let maker = Session::open(&stack, "maker");
    maker.set_xattr("g", "user.one", b"1");
    maker.set_xattr("g", "user.two", b"2");
    maker.publish();
    let [one, other, third] = ["one", "other", "third"].map(|name| Session::open(&stack, name));
    one.set_xattr("g", "user.one", b"one");
    one.publish();
    other.remove_xattr("g", "user.two");
    other.publish();
    let head = Snapshot::of_head(&stack);
    assert_eq!(head.get("g").unwrap().xattrs.len(), 1);
    third.remove_xattr("g", "user.one");
    third.conflicts(&["g:Metadata"]);
}

#[test]
fn devices_and_fifos_of_another_type() {
    let to_fifo: Edit = |s| {
        s.remove("g");
        s.create("g", 0o600, NewBody::Fifo);
    };
    let to_device: Edit = |s| {
        s.remove("g");
        s.create("g", 0o600, NewBody::CharDevice(259));
    };
    apart(TREE, to_fifo, to_device, &["g:Type"]);
    apart(TREE, to_fifo, |s| s.append("g", "more\n"), &["g:Type"]);
    apart(TREE, to_device, |s| s.remove("g"), &["g:DeleteModify"]);
    same(TREE, to_device);
}

/// Neither side had its content at any time before.
#[test]
fn a_merged_file_has_the_time_of_its_publish() {
    let (_scratch, stack) = project(&[("merged", &numbered(9)), ("taken", "t\n")]);
    let (first, second) = (
        Session::open(&stack, "first"),
        Session::open(&stack, "second"),
    );
    let (long_ago, later) = (at(1_000_000_000), at(4_000_000_000));
    first.edit("merged", "1\n", "one\n");
    first.touch("merged", later);
    first.publish();
    second.edit("merged", "9\n", "nine\n");
    second.append("taken", "more\n");
    for path in ["merged", "taken"] {
        second.touch(path, long_ago);
    }
    let report = second.publish();
    assert_eq!(report.merged, [rel("merged")]);
    let head = Snapshot::of_head(&stack);
    let merged = head.get("merged").unwrap().mtime;
    assert!(merged != long_ago && merged != later, "{merged:?}");
    assert_eq!(head.get("taken").unwrap().mtime, long_ago);
}

fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}
