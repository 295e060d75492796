//! A session that goes on after a publish keeps the numbers by which its processes know files.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sandstack_store::{Ino, Kind, Outcome, RelPath, Stack, Version};

use crate::fixture::snapshot::{Data, Level};
use crate::fixture::{Scratch, Session, Snapshot, cases, project, stack_of, verify};
use crate::meeting::run;
use crate::programs::{Raw, Trace, random_project, raw_steps};

/// The number at each path, and the type.
fn numbers(session: &Session) -> BTreeMap<RelPath, (Ino, Kind)> {
    let view = session.view();
    let found = view.0.keys().map(|path| {
        let state = session.upper.state();
        let found = session.upper.find(&state, path).unwrap();
        (path.clone(), found.expect("it was listed"))
    });
    found.collect()
}

/// Publishes all of a session and goes on; also returns what lost its number. `None`: it conflicts.
fn go_on(stack: &Stack, session: Session) -> Option<(Session, Vec<RelPath>)> {
    let options = session.options();
    let report = session.try_publish(&options);
    if !report.conflicts.is_empty() {
        return None;
    }
    let published = stack.rebase(&session.upper, &options, Some(&report));
    let (rest, rebased) = published.unwrap();
    let Some(rebased) = rebased else {
        // Where it has a socket, which is not published, others may have something else.
        let socket = |version: &Version| version.kind == Kind::Socket;
        let sockets = rest
            .conflicts
            .iter()
            .all(|conflict| conflict.mine.as_ref().is_some_and(socket));
        assert!(sockets, "nothing else is left to conflict: {rest:?}");
        return None;
    };
    let before = numbers(&session);
    let after = Session::resume(stack.store(), &rebased.lease);
    // What is said to be as before is.
    for (path, number) in &before {
        let state = after.upper.state();
        if !rebased.changed.contains(path) {
            let there = after.upper.find(&state, path).unwrap();
            assert_eq!(
                there.as_ref(),
                Some(number),
                "{path} is said to be the same"
            );
        }
    }
    let old = session.lease.id();
    drop(session);
    stack.store().release(old).unwrap();
    Some((after, rebased.lost))
}

fn both_made(one: fn(&Session), other: fn(&Session), kept: &[&str]) {
    let files = [("a", "a\n"), ("b", "b\n"), ("d/x", "x\n")];
    let (_scratch, stack) = project(&files);
    let session = Session::open(&stack, "one");
    one(&session);
    let second = Session::open(&stack, "other");
    other(&second);
    second.publish();
    let before: Vec<Ino> = kept.iter().map(|path| session.ino(path)).collect();
    let (session, lost) = go_on(&stack, session).expect("they do not conflict");
    assert_eq!(lost, []);
    let after: Vec<Ino> = kept.iter().map(|path| session.ino(path)).collect();
    assert_eq!(after, before, "{kept:?}");
    session
        .view()
        .assert_same(&Snapshot::of_head(&stack), Level::Tree);
    assert_eq!(session.upper.changes().unwrap(), []);
    verify::store(stack.store());
    // What is done through a number that was known before arrives.
    for path in kept {
        if session.find(path).unwrap().1 == Kind::File {
            session.append(path, "more\n");
        } else {
            session.write(&format!("{path}/more"), "more\n");
        }
    }
    session.publish();
    let head = Snapshot::of_head(&stack);
    head.assert_same(&session.view(), Level::Tree);
}

#[test]
fn what_the_session_made_keeps_its_number() {
    both_made(
        |s| {
            s.write("new", "n\n");
            s.mkdir_all("made/deep");
            s.write("made/deep/file", "f\n");
            s.append("a", "mine\n");
            s.replace("b", "others\n");
        },
        |s| {
            s.write("others", "o\n");
        },
        &["new", "made", "made/deep", "made/deep/file", "a", "b", "d"],
    );
}

#[test]
fn what_both_made_alike_keeps_the_sessions_number() {
    both_made(
        |s| {
            s.write("same", "s\n");
            s.mkdir_all("build/deep");
            s.write("build/deep/mine", "m\n");
            s.write("build/same", "s\n");
        },
        |s| {
            s.write("same", "s\n");
            s.mkdir_all("build/deep");
            s.write("build/deep/theirs", "t\n");
            s.write("build/same", "s\n");
            s.mkdir_all("build/theirs/deep");
            s.write("build/theirs/deep/file", "f\n");
        },
        &[
            "same",
            "build",
            "build/deep",
            "build/deep/mine",
            "build/same",
        ],
    );
}

#[test]
fn what_was_moved_away_and_made_anew_keeps_its_number() {
    both_made(
        |s| {
            s.rename("a", "moved");
            s.write("a", "a\n");
            s.rename("d", "e");
            s.mkdir("d");
            s.write("d/x", "x\n");
            // An equal file in the place of another is no change.
            s.replace("b", "b\n");
        },
        |s| {
            s.write("others", "o\n");
        },
        &["a", "moved", "d", "d/x", "e", "e/x", "b"],
    );
}

#[test]
fn what_both_edited_keeps_the_number_however_others_edit() {
    both_made(
        |s| s.chmod("a", 0o600),
        |s| s.replace("a", "theirs\n"),
        &["a"],
    );
}

#[test]
fn what_others_moved_is_where_they_moved_it() {
    let (_scratch, stack) = project(&[("a", "1\n2\n3\n"), ("d/x", "x\n")]);
    let session = Session::open(&stack, "one");
    session.edit("a", "2\n", "two\n");
    session.write("d/new", "n\n");
    let numbers = [session.ino("a"), session.ino("d/new"), session.ino("d")];
    let other = Session::open(&stack, "other");
    other.rename("a", "b");
    other.rename("d", "e");
    other.publish();
    let (session, lost) = go_on(&stack, session).expect("they do not conflict");
    assert_eq!(lost, []);
    assert_eq!(session.text("b"), "1\ntwo\n3\n");
    let after = [session.ino("b"), session.ino("e/new"), session.ino("e")];
    assert_eq!(after, numbers);
}

/// A number that the head has for another directory shows nothing of that.
#[test]
fn directories_that_trade_places_keep_their_numbers() {
    both_made(
        |s| {
            s.mkdir("empty");
            s.write("d/y", "y\n");
            s.exchange("d", "empty");
        },
        |s| {
            s.write("d/theirs", "t\n");
        },
        &["d", "empty", "empty/x", "empty/y"],
    );
    let (_scratch, stack) = project(&[("one/x", "x\n"), ("other/y", "y\n")]);
    let session = Session::open(&stack, "one");
    session.exchange("one", "other");
    let before = numbers(&session);
    let (session, lost) = go_on(&stack, session).expect("nobody else was there");
    assert_eq!((lost, numbers(&session)), (Vec::new(), before));
    session
        .view()
        .assert_same(&Snapshot::of_head(&stack), Level::Tree);
}

#[test]
fn links_that_trade_places_with_directories_stay_links() {
    let (_scratch, stack) = project(&[("d/a", "a\n")]);
    let first = Session::open(&stack, "first");
    first.link("d/a", "f");
    first.publish();
    let session = Session::open(&stack, "one");
    session.exchange("d", "f");
    let before = numbers(&session);
    let (session, lost) = go_on(&stack, session).expect("nobody else was there");
    assert_eq!(lost, []);
    session
        .view()
        .assert_same(&Snapshot::of_head(&stack), Level::Tree);
    assert_eq!(numbers(&session), before);
}

/// A hard link is one file in the session; where the head has two, the number names one of them.
#[test]
fn a_link_that_came_apart_keeps_its_number_at_one_name() {
    let (_scratch, stack) = project(&[("a", "a\n")]);
    let session = Session::open(&stack, "one");
    let number = session.write("x", "x\n");
    session.link("x", "y");
    let other = Session::open(&stack, "other");
    other.write("x", "x\n");
    other.publish();
    let (session, lost) = go_on(&stack, session).expect("they do not conflict");
    assert_eq!(lost, []);
    assert!([session.ino("x"), session.ino("y")].contains(&number));
    session
        .view()
        .assert_same(&Snapshot::of_head(&stack), Level::Tree);
}

fn without_sockets(session: &Session) -> Snapshot {
    let mut view = session.view();
    view.0.retain(|_, item| item.kind != Kind::Socket);
    view
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(120), failure_persistence: None, max_shrink_iters: 3000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_both_did_the_session_goes_on(
        seed in any::<u64>(),
        mine in raw_steps(),
        others in raw_steps(),
        again in any::<bool>(),
        more in raw_steps(),
    ) {
        check(seed, &mine, &others, again, &more);
    }
}

fn check(seed: u64, mine: &[Raw], others: &[Raw], again: bool, more: &[Raw]) {
    let mut trace = Trace::default();
    let scratch = Scratch::in_memory();
    random_project(&scratch.path("project"), seed, again);
    let stack = stack_of(&scratch.store(), &scratch.path("project"));
    trace
        .0
        .push(format!("base: {}", Snapshot::of_head(&stack).paths()));
    let session = Session::open(&stack, "mine");
    let other = Session::open(&stack, "other");
    run(&session, mine, again, &mut trace);
    run(&other, others, again, &mut trace);
    other.try_publish(&other.options());
    let before = numbers(&session);
    let first_own = session.lease.record().first_ino;
    let view = session.view();
    let Some((session, lost)) = go_on(&stack, session) else {
        return;
    };
    trace.0.push(format!("lost: {lost:?}"));
    without_sockets(&session).assert_same(&Snapshot::of_head(&stack), Level::Tree);
    let changes = session.upper.changes().unwrap();
    let sockets = |path: &RelPath| session.view().0[path].kind == Kind::Socket;
    assert!(changes.iter().all(|(path, _)| sockets(path)), "{changes:?}");
    let after = numbers(&session);
    let mut kinds: BTreeMap<Ino, Kind> = BTreeMap::new();
    for (ino, kind) in after.values() {
        assert_eq!(*kinds.entry(*ino).or_insert(*kind), *kind, "{ino}");
    }
    for (path, (ino, kind)) in &before {
        let own = *ino >= first_own;
        if own && !lost.contains(path) {
            assert_eq!(
                kinds.get(ino),
                Some(kind),
                "{path}, made by the session, is gone"
            );
            let content = |data: &Data| matches!(data, Data::Target(_) | Data::Device(_));
            let is = &view.0[path].data;
            let there = after.iter().find(|(_, (number, _))| number == ino);
            let (at, _) = there.expect("it was found");
            if content(is) {
                assert_eq!(session.view().0[at].data, *is, "{path} is another now");
            }
        }
    }
    run(&session, &more[..more.len().min(10)], true, &mut trace);
    let outcome = session.try_publish(&session.options()).outcome;
    assert!(
        matches!(outcome, Outcome::Published(_) | Outcome::NoChange),
        "{outcome:?}"
    );
    verify::store(stack.store());
}
