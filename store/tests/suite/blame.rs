//! Lines keep their owners through whatever becomes of their file.

use sandstack_store::{FileBlame, LayerId, Owner, Stack};

use crate::fixture::session::rel;
use crate::fixture::{Session, Snapshot, now_ms, numbered, project, verify};

/// The first line of each run and its owner.
fn shown(blame: &FileBlame) -> Vec<String> {
    let runs = blame.runs.iter();
    runs.map(|run| format!("{}-{}", run.start, run.owner))
        .collect()
}

fn owners(stack: &Stack, layer: LayerId, path: &str) -> Vec<String> {
    shown(&stack.blame(layer, &rel(path)).unwrap())
}

fn live(session: &Session, path: &str) -> Vec<String> {
    let owner = Owner::Session(session.name.clone());
    let bytes = session.read(path);
    let blame = session
        .stack
        .blame_live(&session.upper, &rel(path), &bytes, owner)
        .unwrap();
    shown(&blame)
}

#[test]
fn a_moved_file_keeps_the_owners_of_its_lines() {
    let (_scratch, stack) = project(&[("f", &numbered(9)), ("d/g", &numbered(3)), ("h", "h\n")]);
    let first = Session::open(&stack, "first");
    first.edit("f", "2\n", "two\n");
    first.publish();
    let second = Session::open(&stack, "second");
    second.rename("f", "moved");
    second.edit("moved", "8\n", "eight\n");
    second.rename("d", "e");
    second.edit("e/g", "3\n", "three\n");
    // Another name is no move: the file at it is new, and so are its lines.
    second.link("h", "linked");
    let moved = [
        "1-original",
        "2-workspace_session:first",
        "3-original",
        "8-workspace_session:second",
        "9-original",
    ];
    let below = ["1-original", "3-workspace_session:second"];
    assert_eq!(live(&second, "moved"), moved);
    assert_eq!(live(&second, "e/g"), below);
    assert_eq!(live(&second, "linked"), ["1-workspace_session:second"]);
    let before = stack.head();
    second.publish();
    let head = stack.head();
    assert_eq!(owners(&stack, head, "moved"), moved);
    assert_eq!(owners(&stack, head, "e/g"), below);
    assert_eq!(
        owners(&stack, head, "linked"),
        ["1-workspace_session:second"]
    );
    assert_eq!(owners(&stack, head, "h"), ["1-original"]);
    // Where it was before is still known.
    assert_eq!(owners(&stack, before, "f"), moved[..3]);
    verify::stack(&stack);
    verify::store(stack.store());
}

#[test]
fn what_was_deleted_and_made_again_is_whose_who_made_it() {
    let (_scratch, stack) = project(&[("f", &numbered(4))]);
    let first = Session::open(&stack, "first");
    first.edit("f", "2\n", "two\n");
    first.publish();
    let edited = stack.head();
    let gone = Session::open(&stack, "gone");
    gone.remove("f");
    gone.publish();
    // The very bytes that the base and the first had.
    for (name, text) in [
        ("again", numbered(4)),
        ("other", "1\ntwo\n3\n4\n".to_owned()),
    ] {
        let session = Session::open(&stack, name);
        if session.find("f").is_some() {
            session.remove("f");
            session.publish();
        }
        let session = Session::open(&stack, name);
        session.write("f", &text);
        let whose = [format!("1-workspace_session:{name}")];
        assert_eq!(live(&session, "f"), whose);
        session.publish();
        assert_eq!(owners(&stack, stack.head(), "f"), whose);
    }
    let before = ["1-original", "2-workspace_session:first", "3-original"];
    assert_eq!(owners(&stack, edited, "f"), before);
    stack.squash(0, None, now_ms()).unwrap();
    assert_eq!(
        owners(&stack, stack.head(), "f"),
        ["1-workspace_session:other"]
    );
}

/// Four sessions of one base publish one after the other, so that each merges with what was merged;
/// then two of the result do.
#[test]
fn merges_of_merges_keep_every_owner() {
    let (_scratch, stack) = project(&[("f", &numbered(20))]);
    let names = ["a", "b", "c", "d"];
    let sessions = names.map(|name| Session::open(&stack, name));
    for (number, session) in sessions.iter().enumerate() {
        let line = number * 4 + 2;
        session.edit(
            "f",
            &format!("\n{line}\n"),
            &format!("\n{}\n+\n", session.name),
        );
        session.publish();
    }
    let again = ["x", "y"].map(|name| Session::open(&stack, name));
    // One inside what another brought in, one beside it.
    again[0].edit("f", "b\n+\n", "b\nx\n");
    again[1].edit("f", "\n19\n", "\ny\n");
    let expected = [
        "1-original",
        "2-workspace_session:a",
        "4-original",
        "7-workspace_session:b",
        "8-workspace_session:x",
        "9-original",
        "12-workspace_session:c",
        "14-original",
        "17-workspace_session:d",
        "19-original",
        "23-workspace_session:y",
        "24-original",
    ];
    for session in &again {
        session.publish();
    }
    let text = "1\na\n+\n3\n4\n5\nb\nx\n7\n8\n9\nc\n+\n11\n12\n13\nd\n+\n15\n16\n17\n18\ny\n20\n";
    assert_eq!(Snapshot::of_head(&stack).text("f"), Some(text));
    assert_eq!(owners(&stack, stack.head(), "f"), expected);
    stack.squash(0, None, now_ms()).unwrap();
    assert_eq!(owners(&stack, stack.head(), "f"), expected);
    verify::store(stack.store());
}

#[test]
fn a_file_that_is_no_text_has_one_owner() {
    let (_scratch, stack) = project(&[("b", "a\0\n"), ("t", "1\n2\n")]);
    assert_eq!(owners(&stack, stack.head(), "b"), ["1-original"]);
    let session = Session::open(&stack, "s");
    session.write("b", "a\0\nb\n");
    session.write("t", "1\n\0\n");
    assert_eq!(live(&session, "b"), ["1-workspace_session:s"]);
    session.publish();
    for path in ["b", "t"] {
        let blame = stack.blame(stack.head(), &rel(path)).unwrap();
        assert_eq!((blame.text, blame.lines), (false, 0));
        assert_eq!(shown(&blame), ["1-workspace_session:s"]);
    }
    // Text again: nobody knows of its lines whether they were there.
    let again = Session::open(&stack, "again");
    again.write("t", "1\n2\n");
    again.publish();
    assert_eq!(
        owners(&stack, stack.head(), "t"),
        ["1-workspace_session:again"]
    );
}
