//! What a session only read, and what others have made of it.

use std::sync::Arc;

use sandstack_store::{
    AccessKind, AccessRow, Actor, Error, Outcome, PublishOptions, PublishReport, Validate,
};

use crate::fixture::session::rel;
use crate::fixture::{Session, now_ms, project};

const FILES: &[(&str, &str)] = &[
    (".gitignore", "target/\n"),
    (".git/HEAD", "ref: refs/heads/main\n"),
    ("read", "1\n"),
    ("same", "1\n"),
    ("statted", "1\n"),
    ("gone", "1\n"),
    ("found", "1\n"),
    ("mode", "1\n"),
    ("listed/a", "1\n"),
    ("target/o", "1\n"),
];

/// Records what a session read.
fn record(session: &Session, mode: &str, rows: &[(&str, AccessKind)]) {
    let (stack, lease) = (session.stack.id(), session.lease.id());
    let log = session.stack.store().access_log();
    log.begin(stack, lease, &session.name, mode, now_ms())
        .unwrap();
    let rows: Vec<AccessRow> = rows
        .iter()
        .map(|(path, kind)| AccessRow {
            session: session.name.as_str().into(),
            path: rel(path),
            kind: *kind,
            actor: Arc::new(Actor::default()),
            digest: None,
            count: 1,
            bytes: 1,
            first_unix_ms: now_ms(),
            last_unix_ms: now_ms(),
        })
        .collect();
    log.append(stack, lease, &rows, &[], now_ms()).unwrap();
    log.end(stack, lease, now_ms()).unwrap();
}

fn stale_of(report: &PublishReport) -> Vec<String> {
    let stale = report.stale_reads.iter();
    stale
        .map(|stale| format!("{}:{:?}", stale.path, stale.dependency))
        .collect()
}

fn strictly(session: &Session) -> PublishOptions {
    PublishOptions {
        validate: Validate::Reads,
        ..session.options()
    }
}

const READ: &[(&str, AccessKind)] = &[
    ("read", AccessKind::Lookup),
    ("read", AccessKind::Open),
    ("same", AccessKind::Read),
    ("statted", AccessKind::Lookup),
    ("gone", AccessKind::Execute),
    ("found", AccessKind::Lookup),
    ("mode", AccessKind::Read),
    ("absent", AccessKind::Missing),
    ("listed", AccessKind::List),
    ("target/o", AccessKind::Read),
    (".git/HEAD", AccessKind::Read),
];

#[test]
fn stale_reads_are_told_and_on_request_keep_it_from_being_published() {
    let (_scratch, stack) = project(FILES);
    let reader = Session::open(&stack, "reader");
    record(&reader, "files", READ);
    reader.write("mine", "m\n");
    let other = Session::open(&stack, "other");
    for path in ["read", "statted", "target/o", ".git/HEAD"] {
        other.append(path, "more\n");
    }
    other.remove("gone");
    other.remove("found");
    other.chmod("mode", 0o600);
    other.write("absent", "a\n");
    other.write("listed/b", "b\n");
    other.publish();
    let expected = [
        "absent:Absence",
        "found:Existence",
        "gone:Content",
        "listed:Listing",
        "read:Content",
    ];
    let report = reader.try_publish(&strictly(&reader));
    assert_eq!(report.outcome, Outcome::StaleReads);
    assert_eq!(stale_of(&report), expected);
    for stale in &report.stale_reads {
        assert_eq!(stale.layer, Some(stack.head()), "{stale:?}");
        let owner = stale.owner.as_ref().unwrap().to_string();
        assert_eq!(owner, "workspace_session:other");
    }
    // A conflict is told before, and both are.
    reader.edit("read", "1\n", "mine\n");
    let report = reader.try_publish(&strictly(&reader));
    assert_eq!(report.outcome, Outcome::Conflict);
    assert_eq!(stale_of(&report), expected);
    reader.edit("read", "mine\n", "1\n");
    // By default it is a warning.
    let report = reader.try_publish(&reader.options());
    assert!(matches!(report.outcome, Outcome::Published(_)));
    assert_eq!(stale_of(&report), expected);
}

#[test]
fn nothing_is_stale_that_nobody_else_changed() {
    let (_scratch, stack) = project(FILES);
    let reader = Session::open(&stack, "reader");
    record(&reader, "exact", READ);
    reader.append("read", "mine\n");
    // What it published itself does not count against it.
    let report = reader.try_publish(&strictly(&reader));
    assert!(matches!(report.outcome, Outcome::Published(_)));
    reader.write("more", "m\n");
    let other = Session::open(&stack, "other");
    other.write("elsewhere", "e\n");
    other.publish();
    let report = reader.try_publish(&strictly(&reader));
    assert_eq!(stale_of(&report), Vec::<String>::new());
    assert!(matches!(report.outcome, Outcome::Published(_)));
}

#[test]
fn an_open_alone_is_a_read_unless_reads_are_recorded() {
    for (mode, expected) in [("files", vec!["read:Content"]), ("exact", vec![])] {
        let (_scratch, stack) = project(FILES);
        let reader = Session::open(&stack, "reader");
        record(&reader, mode, &[("read", AccessKind::Open)]);
        reader.write("mine", "m\n");
        let other = Session::open(&stack, "other");
        other.append("read", "more\n");
        other.publish();
        assert_eq!(
            stale_of(&reader.try_publish(&reader.options())),
            expected,
            "{mode}"
        );
    }
}

#[test]
fn what_is_not_on_record_cannot_be_validated() {
    let (_scratch, stack) = project(FILES);
    let publish = |session: &Session| {
        session.write("mine", "m\n");
        session
            .stack
            .publish(&session.upper, &strictly(session), &mut |_| {})
    };
    let unseen = Session::open(&stack, "unseen");
    record(&unseen, "off", &[]);
    let error = publish(&unseen).unwrap_err();
    assert!(
        matches!(&error, Error::NoReads { reason } if reason.contains("off")),
        "{error}"
    );
    let killed = Session::open(&stack, "killed");
    let log = stack.store().access_log();
    for _ in 0..2 {
        log.begin(stack.id(), killed.lease.id(), "killed", "files", now_ms())
            .unwrap();
    }
    let error = publish(&killed).unwrap_err();
    assert!(
        matches!(&error, Error::NoReads { reason } if reason.contains("gap")),
        "{error}"
    );
    assert_eq!(stack.head().revision, 1);
}
