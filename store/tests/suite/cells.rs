//! Cells of the publish page's table whose base is no plain file, or that are the same for one more
//! type of node; in both orders of publishers.

use sandstack_store::{NewBody, Outcome, PublishReport};

use crate::fixture::snapshot::Data;
use crate::fixture::{Session, Snapshot, project};
use crate::table::{Edit, apart, both_orders_on, conflicts_of, same, together};

const FILES: &[(&str, &str)] = &[("d/a", "1\n2\n3\n"), ("d/e/b", "b\n"), ("g", "g\n")];

/// What every base here has besides files.
fn make(session: &Session) {
    session.symlink("link", "here");
    session.create("null", 0o666, NewBody::CharDevice(259));
    session.create("fifo", 0o644, NewBody::Fifo);
}

/// Two sessions on a base with specials make `one` and `other`, and publish in both orders.
#[track_caller]
fn over(one: Edit, other: Edit, check: impl Fn(&Snapshot, &PublishReport)) {
    let base = || {
        let (scratch, stack) = project(FILES);
        let maker = Session::open(&stack, "maker");
        make(&maker);
        maker.publish();
        (scratch, stack)
    };
    both_orders_on(base, one, other, |session, report| {
        check(&Snapshot::of_head(&session.stack), report);
    });
}

/// Both orders come together, to a head of which this holds.
#[track_caller]
fn meet(one: Edit, other: Edit, check: impl Fn(&Snapshot)) {
    over(one, other, |head, report| {
        assert!(
            matches!(report.outcome, Outcome::Published(_)),
            "{report:?}"
        );
        check(head);
    });
}

/// Both orders conflict, at these paths.
#[track_caller]
fn part(one: Edit, other: Edit, expected: &[&str]) {
    over(one, other, |_, report| {
        assert_eq!(conflicts_of(report), expected);
        assert_eq!(report.outcome, Outcome::Conflict);
    });
}

/// The second of two equal changes is none.
#[track_caller]
fn agree(change: Edit) {
    over(change, change, |_, report| {
        assert_eq!(report.outcome, Outcome::NoChange, "{report:?}");
    });
}

fn data(head: &Snapshot, path: &str) -> Option<Data> {
    head.get(path).map(|item| item.data.clone())
}

fn relink(session: &Session, target: &str) {
    session.remove("link");
    session.symlink("link", target);
}

fn renumber(session: &Session, number: u64) {
    session.remove("null");
    session.create("null", 0o666, NewBody::CharDevice(number));
}

const ASIDE: Edit = |s| s.append("g", "more\n");

#[test]
fn a_symlink_that_one_or_both_changed() {
    let there: Edit = |s| relink(s, "there");
    meet(there, ASIDE, |head| {
        assert_eq!(data(head, "link"), Some(Data::Target(b"there".into())));
        assert_eq!(head.text("g"), Some("g\nmore\n"));
    });
    agree(there);
    part(there, |s| relink(s, "elsewhere"), &["link:Content"]);
    part(there, |s| s.remove("link"), &["link:DeleteModify"]);
    part(
        there,
        |s| {
            s.remove("link");
            s.write("link", "a file\n");
        },
        &["link:Type"],
    );
    let gone: Edit = |s| s.remove("link");
    meet(gone, ASIDE, |head| assert_eq!(data(head, "link"), None));
    agree(gone);
}

#[test]
fn a_device_that_one_or_both_changed() {
    let other: Edit = |s| renumber(s, 260);
    meet(other, ASIDE, |head| {
        assert_eq!(data(head, "null"), Some(Data::Device(260)));
    });
    agree(other);
    part(other, |s| renumber(s, 261), &["null:Content"]);
    part(other, |s| s.remove("null"), &["null:DeleteModify"]);
    // Content and metadata apart, of whatever type.
    meet(
        other,
        |s| s.chown("null", 5, 6),
        |head| {
            let item = head.get("null").unwrap();
            assert_eq!((item.uid, item.gid), (5, 6));
            assert_eq!(item.data, Data::Device(260));
        },
    );
    let gone: Edit = |s| s.remove("null");
    meet(gone, ASIDE, |head| assert_eq!(data(head, "null"), None));
    agree(gone);
}

#[test]
fn a_fifo_that_one_or_both_changed() {
    let narrow: Edit = |s| s.chmod("fifo", 0o600);
    meet(narrow, ASIDE, |head| {
        assert_eq!(head.get("fifo").unwrap().mode, 0o600);
    });
    agree(narrow);
    part(narrow, |s| s.chmod("fifo", 0o640), &["fifo:Metadata"]);
    part(narrow, |s| s.remove("fifo"), &["fifo:DeleteModify"]);
    let file: Edit = |s| {
        s.remove("fifo");
        s.write("fifo", "a file\n");
    };
    meet(file, ASIDE, |head| {
        assert_eq!(head.text("fifo"), Some("a file\n"));
    });
    agree(file);
    part(narrow, file, &["fifo:Type"]);
}

#[test]
fn a_symlink_or_special_that_both_added() {
    let link: Edit = |s| {
        s.symlink("new", "target");
    };
    same(FILES, link);
    apart(
        FILES,
        link,
        |s| {
            s.symlink("new", "another");
        },
        &["new:AddAdd"],
    );
    let device: Edit = |s| {
        s.create("new", 0o600, NewBody::CharDevice(259));
    };
    same(FILES, device);
    apart(
        FILES,
        device,
        |s| {
            s.create("new", 0o600, NewBody::CharDevice(260));
        },
        &["new:AddAdd"],
    );
    let fifo: Edit = |s| {
        s.create("new", 0o600, NewBody::Fifo);
    };
    same(FILES, fifo);
    for (one, other) in [(link, device), (device, fifo), (fifo, link)] {
        apart(FILES, one, other, &["new:Type"]);
    }
    apart(
        FILES,
        fifo,
        |s| {
            s.write("new", "text\n");
        },
        &["new:Type"],
    );
}

#[test]
fn what_both_added_with_other_metadata() {
    let plain: Edit = |s| {
        s.write("new", "n\n");
    };
    let private: Edit = |s| {
        s.write("new", "n\n");
        s.chmod("new", 0o600);
    };
    apart(FILES, plain, private, &["new:Metadata"]);
    same(FILES, private);
    let directory: Edit = |s| {
        s.mkdir("dir");
    };
    let closed: Edit = |s| {
        s.mkdir("dir");
        s.chmod("dir", 0o700);
    };
    same(FILES, directory);
    apart(FILES, directory, closed, &["dir:Metadata"]);
}

/// Larger than what is merged by lines.
fn large(session: &Session, last: &str) {
    large_at(session, "g", last);
}

fn large_at(session: &Session, path: &str, last: &str) {
    let line = "a line that is long enough\n";
    let mut text = line.repeat((32 << 20) / line.len() + 1);
    text.push_str(last);
    session.write(path, text);
}

#[test]
fn a_text_that_is_too_large() {
    let one: Edit = |s| large(s, "one\n");
    crate::table::both_orders(
        FILES,
        one,
        |s| s.append("d/e/b", "more\n"),
        |session, report| {
            assert!(
                matches!(report.outcome, Outcome::Published(_)),
                "{report:?}"
            );
            let head = Snapshot::of_head(&session.stack);
            assert!(head.bytes("g").ends_with(b"one\n"));
            assert_eq!(head.text("d/e/b"), Some("b\nmore\n"));
        },
    );
    same(FILES, one);
    apart(FILES, one, |s| large(s, "other\n"), &["g:Binary"]);
    apart(FILES, one, |s| s.remove("g"), &["g:DeleteModify"]);
    apart(
        FILES,
        |s| large_at(s, "new", "one\n"),
        |s| {
            s.write("new", "short\n");
        },
        &["new:AddAdd"],
    );
}

#[test]
fn owner_and_group_are_fields_of_their_own() {
    same(FILES, |s| s.chown("g", 7, 8));
    apart(
        FILES,
        |s| s.chown("g", 7, 1),
        |s| s.chown("g", 7, 2),
        &["g:Metadata"],
    );
    let gone: Edit = |s| s.remove_xattr("g", "user.k");
    let cases: [(Edit, bool); 2] = [(gone, true), (|s| s.set_xattr("g", "user.k", b"2"), false)];
    for (other, together) in cases {
        for flip in [false, true] {
            let (_scratch, stack) = project(FILES);
            let maker = Session::open(&stack, "maker");
            maker.set_xattr("g", "user.k", b"1");
            maker.publish();
            let sessions = [Session::open(&stack, "one"), Session::open(&stack, "other")];
            let edits = if flip { [other, gone] } else { [gone, other] };
            edits[0](&sessions[0]);
            edits[1](&sessions[1]);
            sessions[0].publish();
            if together {
                sessions[1].no_change();
            } else {
                sessions[1].conflicts(&["g:Metadata"]);
            }
        }
    }
}

/// Something is moved out of a directory that the other side removes, or makes a file of.
#[test]
fn a_directory_that_goes_and_what_was_moved_out() {
    let out: Edit = |s| s.rename("d/a", "out");
    let removed: Edit = |s| s.remove_all("d");
    let file: Edit = |s| {
        s.remove_all("d");
        s.write("d", "a file\n");
    };
    for gone in [removed, file] {
        crate::table::both_orders(FILES, out, gone, |_, report| {
            assert_eq!(report.outcome, Outcome::Conflict, "{report:?}");
            let told = conflicts_of(report);
            let about = |path: &str| told.iter().any(|conflict| conflict.starts_with(path));
            assert!(about("d/a:") || about("out:"), "{told:?}");
        });
    }
    // What is left behind goes as it would.
    together(
        FILES,
        |s| s.rename("d/a", "out"),
        |s| s.remove_all("d/e"),
        &[("g", "g\n"), ("out", "1\n2\n3\n")],
    );
}

#[test]
fn a_directory_that_one_moved_and_the_other_removed_or_replaced() {
    let moved: Edit = |s| s.rename("d", "moved");
    let replaced: Edit = |s| {
        s.remove_all("d");
        s.symlink("d", "g");
    };
    for other in [(|s| s.remove_all("d")) as Edit, replaced] {
        crate::table::both_orders(FILES, moved, other, |_, report| {
            assert_eq!(report.outcome, Outcome::Conflict, "{report:?}");
        });
    }
    together(
        FILES,
        moved,
        |s| s.remove("d/a"),
        &[("g", "g\n"), ("moved/e/b", "b\n")],
    );
    crate::table::both_orders(
        FILES,
        moved,
        |s| s.chmod("d", 0o711),
        |session, report| {
            assert!(
                matches!(report.outcome, Outcome::Published(_)),
                "{report:?}"
            );
            let head = Snapshot::of_head(&session.stack);
            assert_eq!(head.get("moved").unwrap().mode, 0o711);
            assert!(head.get("d").is_none());
        },
    );
}
