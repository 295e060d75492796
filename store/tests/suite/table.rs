//! The table of the publish page, cell by cell, in both orders of publishers.

use sandstack_store::{NewBody, Outcome, PublishReport, Stack};

use crate::fixture::session::{changed, rel};
use crate::fixture::snapshot::Data;
use crate::fixture::{Random, Session, Snapshot, numbered, project};

pub(crate) type Edit = fn(&Session);

/// Two sessions on `files` make `one` and `other`, and publish in both orders. `check` is told the
/// second session's report and looks at the head.
pub(crate) fn both_orders(
    files: &[(&str, &str)],
    one: Edit,
    other: Edit,
    check: impl Fn(&Session, &PublishReport),
) {
    both_orders_on(|| project(files), one, other, check);
}

/// As [`both_orders`], on a stack that `base` makes.
#[track_caller]
pub(crate) fn both_orders_on<Kept>(
    base: impl Fn() -> (Kept, Stack),
    one: Edit,
    other: Edit,
    check: impl Fn(&Session, &PublishReport),
) {
    for (first, second) in [(one, other), (other, one)] {
        let (_kept, stack) = base();
        let sessions = [
            Session::open(&stack, "first"),
            Session::open(&stack, "second"),
        ];
        first(&sessions[0]);
        second(&sessions[1]);
        sessions[0].publish();
        let (view, head) = (sessions[1].view(), Snapshot::of_head(&stack));
        let report = sessions[1].try_publish(&sessions[1].options());
        if report.outcome == Outcome::Conflict {
            use crate::fixture::snapshot::Level::Exact;
            sessions[1].view().assert_same(&view, Exact);
            Snapshot::of_head(&stack).assert_same(&head, Exact);
            let [conflict, ..] = &report.conflicts[..] else {
                panic!("a conflict without conflicts")
            };
            assert!(conflict.head_layer.is_some(), "{conflict:?}");
            assert_eq!(
                conflict.head_owner.as_ref().unwrap().to_string(),
                "workspace_session:first"
            );
        }
        check(&sessions[1], &report);
    }
}

/// Both orders come together, to these files.
#[track_caller]
pub(crate) fn together(files: &[(&str, &str)], one: Edit, other: Edit, expected: &[(&str, &str)]) {
    both_orders(files, one, other, |session, report| {
        // Where the head has all of it already, there is nothing to publish.
        assert!(
            matches!(report.outcome, Outcome::Published(_) | Outcome::NoChange),
            "{report:?}"
        );
        let head = Snapshot::of_head(&session.stack);
        let found: Vec<(String, String)> = head
            .0
            .iter()
            .filter_map(|(path, item)| match &item.data {
                Data::File(bytes) => Some((
                    path.to_string(),
                    String::from_utf8_lossy(bytes).into_owned(),
                )),
                Data::Target(target) => Some((
                    path.to_string(),
                    format!("-> {}", String::from_utf8_lossy(target)),
                )),
                Data::None | Data::Device(_) => None,
            })
            .collect();
        let expected: Vec<(String, String)> = expected
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        assert_eq!(found, expected);
    });
}

/// Both orders conflict, at these paths: `path:Kind`.
#[track_caller]
pub(crate) fn apart(files: &[(&str, &str)], one: Edit, other: Edit, expected: &[&str]) {
    both_orders(files, one, other, |_, report| {
        assert_eq!(conflicts_of(report), expected);
        assert_eq!(report.outcome, Outcome::Conflict);
    });
}

/// Where and why: `path:Kind`.
pub(crate) fn conflicts_of(report: &PublishReport) -> Vec<String> {
    report
        .conflicts
        .iter()
        .map(|conflict| format!("{}:{:?}", conflict.path, conflict.kind))
        .collect()
}

/// The second of two equal changes is none.
#[track_caller]
pub(crate) fn same(files: &[(&str, &str)], change: Edit) {
    both_orders(files, change, change, |_, report| {
        assert_eq!(report.outcome, Outcome::NoChange, "{report:?}");
    });
}

const TEXT: &[(&str, &str)] = &[("f", "1\n2\n3\n4\n5\n6\n7\n"), ("g", "g\n")];

#[test]
fn modified_text() {
    together(
        TEXT,
        |s| s.edit("f", "2\n", "two\n"),
        |s| s.edit("g", "g", "G"),
        &[("f", "1\ntwo\n3\n4\n5\n6\n7\n"), ("g", "G\n")],
    );
    same(TEXT, |s| s.edit("f", "2\n", "two\n"));
    together(
        TEXT,
        |s| s.edit("f", "2\n", "two\n"),
        |s| s.replace("f", "1\n2\n3\n4\n5\nsix\n7\nend"),
        &[("f", "1\ntwo\n3\n4\n5\nsix\n7\nend"), ("g", "g\n")],
    );
    apart(
        TEXT,
        |s| s.edit("f", "2\n", "two\n"),
        |s| s.edit("f", "2\n", "zwei\n"),
        &["f:Content"],
    );
    // The same edit and one more on one side.
    together(
        TEXT,
        |s| s.edit("f", "2\n", "two\n"),
        |s| {
            s.edit("f", "2\n", "two\n");
            s.edit("f", "6\n", "six\n");
        },
        &[("f", "1\ntwo\n3\n4\n5\nsix\n7\n"), ("g", "g\n")],
    );
}

#[test]
fn all_conflicts_are_told_with_what_resolves_them() {
    let (_scratch, stack) = project(&[("a", &numbered(9)), ("b", "b\n"), ("c", "c\n")]);
    let (first, second) = (
        Session::open(&stack, "first"),
        Session::open(&stack, "second"),
    );
    first.edit("a", "2\n", "two\n");
    first.chmod("b", 0o600);
    first.remove("c");
    first.publish();
    second.edit("a", "2\n", "zwei\nzwei\n");
    second.chmod("b", 0o755);
    second.write("c", "more\n");
    second.write("clean", "not published either\n");
    let mut options = second.options();
    options.markers = true;
    let report = second.try_publish(&options);
    let found: Vec<String> = report
        .conflicts
        .iter()
        .map(|conflict| format!("{}:{:?}", conflict.path, conflict.kind))
        .collect();
    assert_eq!(found, ["a:Content", "b:Metadata", "c:DeleteModify"]);
    let [a, b, c] = &report.conflicts[..] else {
        panic!("{report:?}")
    };
    let hunk = &a.hunks[0];
    assert_eq!((hunk.base.start, hunk.base.count), (1, 1));
    assert_eq!((hunk.head.start, hunk.head.count), (1, 1));
    assert_eq!((hunk.mine.start, hunk.mine.count), (1, 2));
    let marked = String::from_utf8(a.marked.clone().unwrap()).unwrap();
    assert_eq!(
        marked,
        "1\n<<<<<<< L000002\ntwo\n||||||| base\n2\n=======\nzwei\nzwei\n>>>>>>> second\n3\n4\n5\n6\n7\n8\n9\n"
    );
    let modes = |version: &Option<sandstack_store::Version>| version.as_ref().unwrap().mode;
    assert_eq!(
        (modes(&b.base), modes(&b.head), modes(&b.mine)),
        (0o644, 0o600, 0o755)
    );
    assert!(c.head.is_none());
    assert_eq!(c.mine.as_ref().unwrap().size, 5);
    assert_eq!(
        c.mine.as_ref().unwrap().digest,
        Some(sandstack_store::Digest::of(b"more\n"))
    );
    assert!(Snapshot::of_head(&stack).get("clean").is_none());
}

#[test]
fn modified_binary_or_too_large() {
    const BINARY: &[(&str, &str)] = &[("b", "\0one\0"), ("g", "g\n")];
    together(
        BINARY,
        |s| s.append("b", "x"),
        |s| s.append("g", "h\n"),
        &[("b", "\0one\0x"), ("g", "g\nh\n")],
    );
    same(BINARY, |s| s.append("b", "x"));
    apart(
        BINARY,
        |s| s.append("b", "x"),
        |s| s.append("b", "y"),
        &["b:Binary"],
    );
    apart(
        TEXT,
        |s| s.append("f", "x"),
        |s| s.append("f", "\0"),
        &["f:Binary"],
    );
    let large: Edit = |s| {
        let line = format!("{}\n", s.name);
        let text = "a line that is long enough\n".repeat(33 << 20 >> 4);
        s.write("f", line + &text[..(32 << 20) + 1]);
    };
    apart(TEXT, large, |s| s.edit("f", "5\n", "five\n"), &["f:Binary"]);
}

#[test]
fn metadata_field_by_field() {
    // One side's mode, the other's bytes.
    both_orders(
        TEXT,
        |s| s.chmod("f", 0o4755),
        |s| s.edit("f", "2\n", "two\n"),
        |session, report| {
            assert!(
                matches!(report.outcome, Outcome::Published(_)),
                "{report:?}"
            );
            let head = Snapshot::of_head(&session.stack);
            assert_eq!(head.get("f").unwrap().mode, 0o4755);
            assert_eq!(head.text("f"), Some("1\ntwo\n3\n4\n5\n6\n7\n"));
        },
    );
    // Different fields, and different attributes.
    both_orders(
        TEXT,
        |s| {
            s.chmod("f", 0o600);
            s.set_xattr("f", "user.one", b"1");
        },
        |s| {
            s.chown("f", 12, 13);
            s.set_xattr("f", "user.other", b"2");
        },
        |session, report| {
            assert!(
                matches!(report.outcome, Outcome::Published(_)),
                "{report:?}"
            );
            let head = Snapshot::of_head(&session.stack);
            let item = head.get("f").unwrap();
            assert_eq!((item.mode, item.uid, item.gid), (0o600, 12, 13));
            assert_eq!(item.xattrs.len(), 2);
        },
    );
    same(TEXT, |s| s.chmod("f", 0o600));
    same(TEXT, |s| s.set_xattr("f", "user.a", b"v"));
    apart(
        TEXT,
        |s| s.chmod("f", 0o600),
        |s| s.chmod("f", 0o640),
        &["f:Metadata"],
    );
    apart(
        TEXT,
        |s| s.chown("f", 1, 1),
        |s| s.chown("f", 2, 1),
        &["f:Metadata"],
    );
    apart(
        TEXT,
        |s| s.set_xattr("f", "user.a", b"1"),
        |s| s.set_xattr("f", "user.a", b"2"),
        &["f:Metadata"],
    );
    // Of directories too.
    const DIRECTORY: &[(&str, &str)] = &[("d/f", "f\n")];
    apart(
        DIRECTORY,
        |s| s.chmod("d", 0o700),
        |s| s.chmod("d", 0o711),
        &["d:Metadata"],
    );
    both_orders(
        DIRECTORY,
        |s| s.chmod("d", 0o2770),
        |s| {
            s.write("d/new", "n\n");
        },
        |session, report| {
            assert!(
                matches!(report.outcome, Outcome::Published(_)),
                "{report:?}"
            );
            let head = Snapshot::of_head(&session.stack);
            assert_eq!(head.get("d").unwrap().mode, 0o2770);
            assert_eq!(head.text("d/new"), Some("n\n"));
        },
    );
}

#[test]
fn added() {
    together(
        TEXT,
        |s| {
            s.write("one", "1\n");
        },
        |s| {
            s.write("other", "2\n");
        },
        &[
            ("f", TEXT[0].1),
            ("g", "g\n"),
            ("one", "1\n"),
            ("other", "2\n"),
        ],
    );
    same(TEXT, |s| {
        s.write("n", "same\n");
    });
    together(
        TEXT,
        |s| {
            s.write("n", "a\nb\n");
        },
        |s| {
            s.write("n", "a\nmore\nb\n");
        },
        &[("f", TEXT[0].1), ("g", "g\n"), ("n", "a\nmore\nb\n")],
    );
    let named: Edit = |s| {
        let name = s.name.clone();
        s.write("n", format!("{name}\n"));
    };
    apart(TEXT, named, named, &["n:AddAdd"]);
    let binary: Edit = |s| {
        let name = s.name.clone();
        s.write("n", format!("\0{name}"));
    };
    apart(TEXT, binary, binary, &["n:AddAdd"]);
    apart(
        TEXT,
        |s| {
            s.write("n", "file\n");
        },
        |s| {
            s.mkdir("n");
        },
        &["n:Type"],
    );
    // Directories that both made are one.
    together(
        TEXT,
        |s| {
            s.mkdir("n");
            s.write("n/one", "1\n");
        },
        |s| {
            s.mkdir("n");
            s.write("n/other", "2\n");
        },
        &[
            ("f", TEXT[0].1),
            ("g", "g\n"),
            ("n/one", "1\n"),
            ("n/other", "2\n"),
        ],
    );
}

#[test]
fn deleted() {
    together(
        TEXT,
        |s| s.remove("f"),
        |s| s.append("g", "h\n"),
        &[("g", "g\nh\n")],
    );
    same(TEXT, |s| s.remove("f"));
    apart(
        TEXT,
        |s| s.remove("f"),
        |s| s.edit("f", "2", "two"),
        &["f:DeleteModify"],
    );
    apart(
        TEXT,
        |s| s.remove("f"),
        |s| s.chmod("f", 0o600),
        &["f:DeleteModify"],
    );
    // Written and brought back as it was is no change.
    together(
        TEXT,
        |s| s.remove("f"),
        |s| {
            s.edit("f", "2", "two");
            s.edit("f", "two", "2");
            s.append("g", "h\n");
        },
        &[("g", "g\nh\n")],
    );
}

#[test]
fn type_changed() {
    const TREE: &[(&str, &str)] = &[("d/a", "a\n"), ("d/b", "b\n"), ("f", "f\n")];
    let to_directory: Edit = |s| {
        s.remove("f");
        s.mkdir("f");
        s.write("f/in", "in\n");
    };
    let to_file: Edit = |s| {
        s.remove_all("d");
        s.write("d", "now a file\n");
    };
    let to_link: Edit = |s| {
        s.remove("f");
        s.symlink("f", "d/a");
    };
    together(
        TREE,
        to_directory,
        to_file,
        &[("d", "now a file\n"), ("f/in", "in\n")],
    );
    together(
        TREE,
        to_link,
        |s| s.append("d/a", "b\n"),
        &[("d/a", "a\nb\n"), ("d/b", "b\n"), ("f", "-> d/a")],
    );
    same(TREE, to_directory);
    same(TREE, to_file);
    same(TREE, to_link);
    apart(TREE, to_link, |s| s.append("f", "x\n"), &["f:Type"]);
    both_orders(TREE, to_link, to_directory, |session, report| {
        // What a session has in a directory that cannot be has no place either.
        let expected: &[&str] = match session.view().get("f/in") {
            Some(_) => &["f:Type", "f/in:Type"],
            None => &["f:Type"],
        };
        assert_eq!(conflicts_of(report), expected);
    });
    for (first, second) in [(to_file, true), (to_file, false)] {
        // Below a directory that became a file, something changed.
        let (_scratch, stack) = project(TREE);
        let (one, other) = (Session::open(&stack, "one"), Session::open(&stack, "other"));
        first(&one);
        other.append("d/a", "more\n");
        let (winner, loser) = if second {
            (&one, &other)
        } else {
            (&other, &one)
        };
        winner.publish();
        let report = loser.try_publish(&loser.options());
        assert_eq!(report.outcome, Outcome::Conflict);
        let paths: Vec<String> = report
            .conflicts
            .iter()
            .map(|c| c.path.to_string())
            .collect();
        assert!(
            paths.iter().any(|path| path == "d/a" || path == "d"),
            "{:?}",
            report.conflicts
        );
    }
}

#[test]
fn directory_removed() {
    const TREE: &[(&str, &str)] = &[("d/a", "a\n"), ("d/e/b", "b\n"), ("g", "g\n")];
    together(
        TREE,
        |s| s.remove_all("d"),
        |s| s.append("g", "h\n"),
        &[("g", "g\nh\n")],
    );
    same(TREE, |s| s.remove_all("d"));
    apart(
        TREE,
        |s| s.remove_all("d"),
        |s| s.append("d/e/b", "c\n"),
        &["d/e/b:DeleteModify"],
    );
    apart(
        TREE,
        |s| s.remove_all("d"),
        |s| {
            s.append("d/a", "c\n");
            s.append("d/e/b", "c\n");
        },
        &["d/a:DeleteModify", "d/e/b:DeleteModify"],
    );
    apart(
        TREE,
        |s| s.remove_all("d"),
        |s| {
            s.write("d/e/new", "n\n");
        },
        &["d/e/new:DeleteModify"],
    );
}

#[test]
fn symlinks_and_special_files() {
    let base: &[(&str, &str)] = &[("f", "f\n")];
    for (first, second) in [("a", "b"), ("b", "a")] {
        let (_scratch, stack) = project(base);
        let maker = Session::open(&stack, "maker");
        maker.symlink("link", "here");
        maker.create("null", 0o666, NewBody::CharDevice(259));
        maker.create("fifo", 0o644, NewBody::Fifo);
        maker.publish();
        let [one, other, same] = ["one", "other", "same"].map(|name| Session::open(&stack, name));
        for (session, target) in [(&one, first), (&other, second), (&same, first)] {
            session.remove("link");
            session.symlink("link", target);
            session.remove("null");
            let number = if target == "a" { 260 } else { 261 };
            session.create("null", 0o666, NewBody::CharDevice(number));
        }
        one.publish();
        same.no_change();
        other.conflicts(&["link:Content", "null:Content"]);
        let last = Session::open(&stack, "last");
        last.remove("fifo");
        last.create("fifo", 0o600, NewBody::Fifo);
        last.publish();
        let head = Snapshot::of_head(&stack);
        assert_eq!(head.get("link").unwrap().data, Data::Target(first.into()));
        assert_eq!(head.get("fifo").unwrap().mode, 0o600);
    }
}

#[test]
fn sockets_are_skipped_and_told() {
    let (_scratch, stack) = project(&[("f", "f\n")]);
    let session = Session::open(&stack, "s");
    session.create("socket", 0o755, NewBody::Socket);
    let report = session.try_publish(&session.options());
    assert_eq!(report.outcome, Outcome::NoChange);
    assert_eq!(report.skipped[0].reason, "socket");
    session.write("n", "n\n");
    let report = session.publish();
    assert_eq!(report.skipped[0].path, rel("socket"));
    assert!(Snapshot::of_head(&stack).get("socket").is_none());
}

#[test]
fn holes_and_hard_links_stay() {
    let (_scratch, stack) = project(&[("f", "f\n"), ("g", "g\n")]);
    let session = Session::open(&stack, "s");
    let ino = session.write("sparse", "start");
    session.upper.set_size(ino, 64 << 20, changed).unwrap();
    session
        .upper
        .write(ino, 32 << 20, b"middle", changed)
        .unwrap();
    session.link("f", "linked");
    session.publish();
    let head = Snapshot::of_head(&stack);
    let stored: u64 = head
        .get("sparse")
        .unwrap()
        .holes
        .iter()
        .map(|(_, length)| length)
        .sum();
    assert!(stored <= 3 * 4096, "{stored} bytes are stored");
    assert_eq!(head.get("linked").unwrap().names, 2);
    // One name's edit is the other's; and a name that goes leaves a plain file.
    let (one, other) = (Session::open(&stack, "one"), Session::open(&stack, "other"));
    one.append("linked", "more\n");
    one.publish();
    other.append("g", "h\n");
    other.link("f", "third");
    other.publish();
    let head = Snapshot::of_head(&stack);
    for name in ["f", "linked", "third"] {
        assert_eq!(head.text(name), Some("f\nmore\n"), "{name}");
        assert_eq!(head.get(name).unwrap().names, 3, "{name}");
    }
}

#[test]
fn no_name_is_reserved() {
    let names = [
        "manifest.json",
        "layers",
        ".wh.x",
        ".wh..wh..opq",
        "trail ",
        " lead",
        "a\\b",
        "tab\tnew\nline",
        "LOCK",
        "FORMAT",
        "-rf",
        "~",
        "CON",
        "x:y",
        "a*?[b]",
        "\u{feff}bom",
        "…",
    ];
    let (_scratch, stack) = project(&[("f", "f\n")]);
    let session = Session::open(&stack, "s");
    for name in names {
        session.write(name, name);
    }
    session.publish();
    let editor = Session::open(&stack, "editor");
    for name in names {
        editor.append(name, "!");
    }
    editor.publish();
    let remover = Session::open(&stack, "remover");
    for name in &names[1..] {
        remover.remove(name);
    }
    remover.publish();
    let head = Snapshot::of_head(&stack);
    assert_eq!(head.paths(), "f manifest.json");
    assert_eq!(head.text("manifest.json"), Some("manifest.json!"));
}

#[test]
fn bytes_are_never_changed() {
    let mut random = Random::new(11);
    let cases: Vec<[Vec<u8>; 4]> = vec![
        [
            b"a\r\nb\r\nc\r\nd\r\n".to_vec(),
            b"A\r\nb\r\nc\r\nd\r\n".to_vec(),
            b"a\r\nb\r\nc\r\nD\r\n".to_vec(),
            b"A\r\nb\r\nc\r\nD\r\n".to_vec(),
        ],
        [
            b"\xef\xbb\xbfa\nb\nc".to_vec(),
            b"\xef\xbb\xbfA\nb\nc".to_vec(),
            b"\xef\xbb\xbfa\nb\nC".to_vec(),
            b"\xef\xbb\xbfA\nb\nC".to_vec(),
        ],
        [
            b"\xff\xfe1\nb\n\x80\n\xc3\n".to_vec(),
            b"\xff\xfe2\nb\n\x80\n\xc3\n".to_vec(),
            b"\xff\xfe1\nb\n\x80\n\xc3\n\xe2\x82".to_vec(),
            b"\xff\xfe2\nb\n\x80\n\xc3\n\xe2\x82".to_vec(),
        ],
        [
            b"x\r\ny\nz\rw\n1\n2\n".to_vec(),
            b"x\r\ny\r\nz\rw\n1\n2\n".to_vec(),
            b"x\r\ny\nz\rw\n1\n2".to_vec(),
            b"x\r\ny\r\nz\rw\n1\n2".to_vec(),
        ],
    ];
    for [base, one, other, expected] in cases {
        let (_scratch, stack) = project(&[("g", "g\n")]);
        let maker = Session::open(&stack, "maker");
        maker.write("f", &base);
        maker.publish();
        let sessions = [Session::open(&stack, "one"), Session::open(&stack, "other")];
        sessions[0].write("f", &one);
        sessions[1].write("f", &other);
        let first = random.below(2) as usize;
        sessions[first].publish();
        sessions[1 - first].publish();
        assert_eq!(Snapshot::of_head(&stack).bytes("f"), expected);
    }
}
