//! A part of a session is published, and the session goes on.

use sandstack_store::{
    Conflict, Error, Outcome, Policy, PublishOptions, PublishReport, Route, Rule,
};

use crate::fixture::session::rel;
use crate::fixture::snapshot::Level;
use crate::fixture::{Session, Snapshot, numbered, project, verify};

/// Publishes with these options, and goes over to the session on the new head.
fn go_on(
    session: Session,
    options: &PublishOptions,
) -> (PublishReport, Result<Session, (Session, Vec<Conflict>)>) {
    let report = session.try_publish(options);
    let (rest, rebased) = session
        .stack
        .rebase(&session.upper, options, Some(&report))
        .unwrap();
    let Some(rebased) = rebased else {
        return (report, Err((session, rest.conflicts)));
    };
    let store = session.stack.store().clone();
    let old = session.lease.id();
    drop(session);
    store.release(old).unwrap();
    // What is left is all that it needs.
    store.collect_garbage(false, &mut || false).unwrap();
    verify::store(&store);
    (report, Ok(Session::resume(&store, &rebased.lease)))
}

fn only(session: &Session, paths: &[&str]) -> PublishOptions {
    PublishOptions {
        paths: paths.iter().map(|path| rel(path)).collect(),
        ..session.options()
    }
}

#[test]
fn a_part_is_published_and_the_rest_stays() {
    let base = numbered(9);
    let (_scratch, stack) = project(&[("a", &base), ("b", &base), ("gone", "g\n"), ("d/x", "x\n")]);
    let session = Session::open(&stack, "s");
    session.edit("a", "2\n", "two\n");
    session.edit("b", "8\n", "eight\n");
    session.remove("gone");
    session.mkdir("new");
    session.mkdir("new/deep");
    session.write("new/deep/taken", "t\n");
    session.write("new/rest", "r\n");
    session.rename("d/x", "d/moved");
    session.symlink("link", "a");
    session.link("new/rest", "linked");
    session.chmod("d", 0o700);
    let other = Session::open(&stack, "other");
    other.edit("b", "1\n", "one\n");
    other.write("others", "o\n");
    other.publish();
    let options = only(&session, &["a", "new/deep"]);
    let (report, session) = go_on(session, &options);
    assert!(matches!(report.outcome, Outcome::Published(_)));
    let head = Snapshot::of_head(&stack);
    assert_eq!(
        head.paths(),
        "a b d d/x gone new new/deep new/deep/taken others"
    );
    assert!(head.text("a").unwrap().contains("two"));
    assert!(!head.text("b").unwrap().contains("eight"));
    let Ok(session) = session else {
        panic!("the rest does not conflict")
    };
    let view = session.view();
    let shown = "a b d d/moved link linked new new/deep new/deep/taken new/rest others";
    assert_eq!(view.paths(), shown);
    assert_eq!(view.text("b").unwrap(), "one\n2\n3\n4\n5\n6\n7\neight\n9\n");
    assert_eq!(view.get("d").unwrap().mode, 0o700);
    assert_eq!(view.get("linked").unwrap().names, 2);
    let changed: Vec<String> = session
        .upper
        .changes()
        .unwrap()
        .iter()
        .map(|(path, kind)| format!("{path}:{kind:?}"))
        .collect();
    let rest = [
        "b:Modified",
        "d:Metadata",
        "d/moved:Added",
        "d/x:Deleted",
        "gone:Deleted",
        "link:Added",
        "linked:Added",
        "new/rest:Added",
    ];
    assert_eq!(changed, rest);
    // It works on, survives a restart, and publishes the rest.
    session.append("a", "more\n");
    let session = session.reopen();
    let view = session.view();
    session.publish();
    Snapshot::of_head(&stack).assert_same(&view, Level::Tree);
}

#[test]
fn a_session_that_goes_on_sees_what_all_published() {
    let (_scratch, stack) = project(&[("a", &numbered(9)), ("keep.env", "k\n")]);
    let session = Session::open(&stack, "s");
    session.edit("a", "2\n", "two\n");
    session.write("new", "n\n");
    let other = Session::open(&stack, "other");
    other.edit("a", "8\n", "eight\n");
    other.publish();
    let options = session.options();
    let (report, session) = go_on(session, &options);
    assert_eq!(report.merged, [rel("a")]);
    let Ok(session) = session else {
        panic!("nothing is left to conflict")
    };
    session
        .view()
        .assert_same(&Snapshot::of_head(&stack), Level::Exact);
    assert_eq!(session.upper.changes().unwrap(), []);
    assert_eq!(session.upper.content_bytes(), 0);
    // The same lines again, by the same session: no conflict with itself.
    session.edit("a", "two\n", "zwei\n");
    session.publish();
    assert_eq!(
        Snapshot::of_head(&stack).text("a").unwrap(),
        "1\nzwei\n3\n4\n5\n6\n7\neight\n9\n"
    );
}

#[test]
fn what_is_private_stays_with_the_session() {
    let (_scratch, stack) = project(&[("a", "a\n"), ("keep.env", "k\n")]);
    let session = Session::open(&stack, "s");
    session.append("a", "more\n");
    session.append("keep.env", "secret\n");
    session.write("other.env", "secret\n");
    session.write("build.log", "l\n");
    let private = |glob: &str, route| Rule {
        glob: glob.to_owned(),
        route,
    };
    let options = PublishOptions {
        policy: Policy {
            rules: vec![
                private("*.env", Route::SessionPrivate),
                private("*.log", Route::Ignored),
            ],
        },
        drop_ignored: true,
        ..session.options()
    };
    let (report, session) = go_on(session, &options);
    let skipped: Vec<String> = report
        .skipped
        .iter()
        .map(|skipped| format!("{}:{}", skipped.path, skipped.reason))
        .collect();
    let expected = [
        "build.log:ignored",
        "keep.env:session_private",
        "other.env:session_private",
    ];
    assert_eq!(skipped, expected);
    let head = Snapshot::of_head(&stack);
    assert_eq!(
        (head.text("keep.env"), head.paths().as_str()),
        (Some("k\n"), "a keep.env")
    );
    let Ok(session) = session else {
        panic!("nothing conflicts")
    };
    let view = session.view();
    assert_eq!(view.text("keep.env"), Some("k\nsecret\n"));
    assert_eq!(view.paths(), "a build.log keep.env other.env");
}

#[test]
fn a_rest_that_conflicts_keeps_the_session_where_it_is() {
    let (_scratch, stack) = project(&[("a", "a\n"), ("b", "1\n")]);
    let session = Session::open(&stack, "s");
    session.append("a", "mine\n");
    session.edit("b", "1", "mine");
    let other = Session::open(&stack, "other");
    other.edit("b", "1", "theirs");
    other.publish();
    let options = only(&session, &["a"]);
    let leases = stack.leases().unwrap();
    let view = session.view();
    let (report, rest) = go_on(session, &options);
    assert!(matches!(report.outcome, Outcome::Published(_)));
    let Err((session, conflicts)) = rest else {
        panic!("the rest conflicts")
    };
    assert_eq!(conflicts[0].path, rel("b"));
    assert_eq!(stack.leases().unwrap(), leases, "nothing is left behind");
    session.view().assert_same(&view, Level::Exact);
    // Resolved, the rest is published from where it is.
    session.edit("b", "mine", "theirs");
    session.write("c", "c\n");
    session.publish();
    assert_eq!(Snapshot::of_head(&stack).text("b"), Some("theirs\n"));
    assert_eq!(Snapshot::of_head(&stack).text("a"), Some("a\nmine\n"));
}

#[test]
fn a_path_at_which_nothing_is_changed_is_named() {
    let (_scratch, stack) = project(&[("a", "a\n"), ("b", "b\n")]);
    let session = Session::open(&stack, "s");
    session.append("a", "mine\n");
    let options = only(&session, &["a", "b"]);
    let error = session
        .stack
        .publish(&session.upper, &options, &mut |_| {})
        .unwrap_err();
    assert!(
        matches!(&error, Error::NoChange(path) if *path == rel("b")),
        "{error}"
    );
    assert_eq!(stack.head().revision, 1);
}
