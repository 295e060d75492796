//! The routes that a policy and `.gitignore` files give.

use sandstack_store::{Outcome, Policy, Route, Rule};

use crate::fixture::{Session, Snapshot, project};

#[test]
fn routes_of_the_policy() {
    let rule = |glob: &str, route| Rule {
        glob: glob.to_owned(),
        route,
    };
    let policy = Policy {
        rules: vec![
            rule("*.lock", Route::Ours),
            rule("CHANGES", Route::Union),
            rule("secret/", Route::Reject),
            rule("local/", Route::SessionPrivate),
            rule("build/", Route::Ignored),
            rule("build/kept", Route::Source),
        ],
    };
    let files = &[
        ("a.lock", "1\n"),
        ("CHANGES", "base\n"),
        ("secret/key", "k\n"),
        ("local/conf", "c\n"),
        ("build/out", "o\n"),
        ("build/kept", "k\n"),
    ];
    let (_scratch, stack) = project(files);
    let (first, second) = (
        Session::open(&stack, "first"),
        Session::open(&stack, "second"),
    );
    for session in [&first, &second] {
        let line = format!("{}\n", session.name);
        session.write("a.lock", &line);
        session.append("CHANGES", &line);
        session.write("local/conf", &line);
        session.write("build/out", &line);
    }
    let mut options = first.options();
    options.policy = policy.clone();
    let report = first.try_publish(&options);
    assert!(
        matches!(report.outcome, Outcome::Published(_)),
        "{report:?}"
    );
    options.owner = second.options().owner;
    let report = second.try_publish(&options);
    assert!(
        matches!(report.outcome, Outcome::Published(_)),
        "{report:?}"
    );
    assert_eq!(report.ignored_paths, 1);
    assert_eq!(report.skipped[0].reason, "session_private");
    let head = Snapshot::of_head(&stack);
    assert_eq!(head.text("a.lock"), Some("second\n"));
    assert_eq!(head.text("CHANGES"), Some("base\nfirst\nsecond\n"));
    assert_eq!(head.text("local/conf"), Some("c\n"));
    assert_eq!(head.text("build/out"), Some("second\n"));
    let third = Session::open(&stack, "third");
    third.append("secret/key", "x\n");
    let report = third.try_publish(&options);
    assert_eq!(
        report.conflicts[0].kind,
        sandstack_store::ConflictKind::Rejected
    );
}

#[test]
fn what_is_ignored_is_the_last_writers() {
    let (_scratch, stack) = project(&[
        (".gitignore", "*.o\n/target/\n!keep.o\n"),
        ("a.o", "1"),
        ("keep.o", "1\n"),
        ("sub/.gitignore", "*.tmp\n"),
        ("sub/x.tmp", "1"),
        ("x.tmp", "1\n"),
        (".git/info/exclude", "*.local\n"),
        ("x.local", "1"),
    ]);
    let (first, second) = (
        Session::open(&stack, "first"),
        Session::open(&stack, "second"),
    );
    for session in [&first, &second] {
        let name = session.name.clone();
        session.write("a.o", &name);
        session.write("sub/x.tmp", &name);
        session.write("x.local", &name);
        session.mkdir_all("target/debug");
        session.write("target/debug/bin", &name);
    }
    first.publish();
    let report = second.publish();
    // Four files, and the two directories of one of them.
    assert_eq!(report.ignored_paths, 6);
    let head = Snapshot::of_head(&stack);
    for path in ["a.o", "sub/x.tmp", "x.local", "target/debug/bin"] {
        assert_eq!(head.text(path), Some("second"), "{path}");
    }
    let (first, second) = (
        Session::open(&stack, "first"),
        Session::open(&stack, "second"),
    );
    for (session, text) in [(&first, "2\n"), (&second, "3\n")] {
        session.write("keep.o", text);
        session.write("x.tmp", text);
    }
    first.publish();
    second.conflicts(&["keep.o:Content", "x.tmp:Content"]);
}
