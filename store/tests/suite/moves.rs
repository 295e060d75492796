//! Directories that are moved, by one side or by both.

use sandstack_store::{ConflictKind, Outcome};

use crate::fixture::Snapshot;
use crate::fixture::snapshot::Data;
use crate::table::{Edit, both_orders, same, together};

#[test]
fn directory_renamed() {
    const TREE: &[(&str, &str)] = &[("d/a", "a\n"), ("d/e/b", "1\n2\n3\n"), ("g", "g\n")];
    let moved: Edit = |s| s.rename("d", "moved");
    together(
        TREE,
        moved,
        |s| {
            s.edit("d/e/b", "2\n", "two\n");
            s.write("d/e/new", "n\n");
        },
        &[
            ("g", "g\n"),
            ("moved/a", "a\n"),
            ("moved/e/b", "1\ntwo\n3\n"),
            ("moved/e/new", "n\n"),
        ],
    );
    same(TREE, moved);
    let elsewhere: Edit = |s| {
        let to = format!("to {}", s.name);
        s.rename("d", &to);
    };
    both_orders(TREE, elsewhere, elsewhere, |_, report| {
        assert_eq!(report.outcome, Outcome::Conflict, "{report:?}");
        assert!(
            report
                .conflicts
                .iter()
                .all(|conflict| conflict.kind == ConflictKind::Rename),
            "{:?}",
            report.conflicts
        );
    });
    // A file that was moved, and edited by the other.
    together(
        TREE,
        |s| s.rename("d/e/b", "b"),
        |s| s.edit("d/e/b", "3\n", "three\n"),
        &[("b", "1\n2\nthree\n"), ("d/a", "a\n"), ("g", "g\n")],
    );
}

/// One side moves a directory into one that the other side moves, and what either changed goes along.
#[test]
fn directory_moved_into_one_that_moves() {
    let files = [("c/x", "x\n"), ("d/y", "old\n"), ("d/e/z", "old\n")];
    let inside: Edit = |s| s.rename("d", "c/b");
    let a = ("a/x", "x\n");
    together(
        &files,
        inside,
        |s| s.rename("c", "a"),
        &[("a/b/e/z", "old\n"), ("a/b/y", "old\n"), a],
    );
    let modified: Edit = |s| {
        s.rename("c", "a");
        s.write("d/y", "new\n");
        s.write("d/e/z", "new\n");
    };
    together(
        &files,
        inside,
        modified,
        &[("a/b/e/z", "new\n"), ("a/b/y", "new\n"), a],
    );
    let renamed: Edit = |s| {
        s.rename("c", "a");
        s.write("d/y", "new\n");
        s.rename("d/y", "d/w");
        s.rename("d/e", "d/f");
    };
    together(
        &files,
        inside,
        renamed,
        &[("a/b/f/z", "old\n"), ("a/b/w", "new\n"), a],
    );
    let added: Edit = |s| {
        s.rename("c", "a");
        s.write("d/new", "new\n");
        s.mkdir("d/e/dir");
        s.write("d/e/dir/new", "new\n");
        s.remove("d/y");
    };
    together(
        &files,
        inside,
        added,
        &[
            ("a/b/e/dir/new", "new\n"),
            ("a/b/e/z", "old\n"),
            ("a/b/new", "new\n"),
            a,
        ],
    );
    // What was moved trades places with what it was moved into.
    both_orders(
        &[("c/x", "x\n"), ("u/a/y", "y\n")],
        |s| s.rename("c", "u/a/c"),
        |s| s.exchange("c", "u/a"),
        |session, report| {
            let head = Snapshot::of_head(&session.stack);
            let kept = |text: &str| {
                let data = Data::File(text.into());
                head.0.values().any(|item| item.data == data)
            };
            assert!(kept("x\n") && kept("y\n"), "{report:?}");
        },
    );
    // Each into the other: no tree has both.
    both_orders(
        &files,
        inside,
        |s| s.rename("c", "d/g"),
        |_, report| {
            let kinds: Vec<_> = report.conflicts.iter().map(|one| one.kind).collect();
            assert!(kinds.contains(&ConflictKind::Rename), "{report:?}");
        },
    );
}
