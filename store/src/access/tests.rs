//! The index finds what a plain search of all rows finds; what goes is told of and leaves nothing.

use std::sync::Arc;

use super::*;
use crate::Store;

const STACK: StackId = StackId(7);

struct Rig {
    _dir: tempfile::TempDir,
    store: Store,
    /// Everything that was appended.
    rows: Vec<(LeaseId, AccessRow)>,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        Rig {
            store: Store::open(dir.path()).unwrap(),
            _dir: dir,
            rows: Vec::new(),
        }
    }

    fn log(&self) -> &AccessLog {
        self.store.access_log()
    }

    fn begin(&self, lease: u64) -> Option<Gap> {
        let session = format!("session {lease}");
        let begun = self
            .log()
            .begin(STACK, LeaseId(lease), &session, "files", 1000);
        begun.unwrap()
    }

    fn append(&mut self, lease: u64, rows: Vec<AccessRow>, at: u64) {
        let lease = LeaseId(lease);
        self.log().append(STACK, lease, &rows, &[], at).unwrap();
        self.rows.extend(rows.into_iter().map(|row| (lease, row)));
    }

    /// What a plain search finds.
    fn plain(&self, filter: &AccessFilter) -> Vec<AccessRow> {
        let mut folded = Folded::new();
        for (lease, row) in &self.rows {
            let of_session = filter
                .session
                .as_ref()
                .is_none_or(|name| **name == *row.session)
                && filter.lease.is_none_or(|wanted| wanted == *lease);
            if of_session && filter.wants_but_for_time(row) {
                fold(&mut folded, row.clone());
            }
        }
        let mut rows: Vec<AccessRow> = folded.into_values().collect();
        rows.retain(|row| filter.wants_time(row.first_unix_ms, row.last_unix_ms));
        rows
    }

    /// What all pages of `limit` rows have together, and how many pages that were.
    fn pages(&self, filter: &AccessFilter, limit: usize) -> (Vec<AccessRow>, usize) {
        let (mut rows, mut pages, mut after) = (Vec::new(), 0, None);
        loop {
            let page = self
                .log()
                .page(STACK, filter, after.as_ref(), limit)
                .unwrap();
            assert!(page.rows.len() <= limit);
            rows.extend(page.rows);
            pages += 1;
            after = page.next;
            if after.is_none() {
                return (rows, pages);
            }
        }
    }

    /// How many keys there are of the index and the frames.
    fn keys(&self) -> usize {
        let parts: [&[u8]; 2] = [b"f", b"c"];
        let prefixes = parts.into_iter().chain(index::PARTS);
        let access = &self.log().db.access;
        prefixes.map(|part| access.prefix(part).count()).sum()
    }
}

fn row(lease: u64, number: u64) -> AccessRow {
    let actor = Actor {
        command: (!number.is_multiple_of(5))
            .then(|| format!("command {}", lease * 10 + number % 3)),
        pid: Some((100 * lease + number % 4) as u32),
        ..Actor::default()
    };
    let kind = [AccessKind::Open, AccessKind::Read, AccessKind::Missing][number as usize % 3];
    let paths = ["", "a", "a.b", "a/b", "a/b/c", "é", "z"];
    AccessRow {
        session: format!("session {lease}").into(),
        path: RelPath::parse(paths[number as usize % paths.len()].as_bytes()).unwrap(),
        kind,
        actor: Arc::new(actor),
        digest: (kind == AccessKind::Read).then(|| Digest::of(&[number as u8 % 2])),
        count: 1 + number % 2,
        bytes: number,
        first_unix_ms: 1000 * lease + number,
        last_unix_ms: 1000 * lease + number + 5,
    }
}

fn sorted(mut rows: Vec<AccessRow>) -> Vec<String> {
    rows.sort_by_key(|row| {
        (
            row.path.clone(),
            row.session.clone(),
            row.kind,
            row.actor.clone(),
        )
    });
    let mut shown: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
    shown.sort();
    shown
}

#[test]
fn pages_have_what_a_plain_search_finds() {
    let mut rig = Rig::new();
    for lease in 1..=3 {
        rig.begin(lease);
        for frame in 0..6 {
            let rows = (0..40)
                .map(|number| row(lease, frame * 17 + number * 3))
                .collect();
            rig.append(lease, rows, 1000 * lease + 300);
            if frame == 2 {
                // Some of it is in the index already, in seals of its own.
                rig.log().query(STACK, &AccessFilter::default()).unwrap();
            }
        }
    }
    let any = AccessFilter::default;
    let rel = |path: &str| RelPath::parse(path.as_bytes()).unwrap();
    let below = |path: &RelPath| path.as_bytes().starts_with(b"a/");
    let filters = [
        any(),
        AccessFilter {
            path: Some(rel("a")),
            ..any()
        },
        AccessFilter {
            path: Some(rel("")),
            kinds: vec![AccessKind::Open],
            ..any()
        },
        AccessFilter {
            path: Some(rel("nowhere")),
            ..any()
        },
        AccessFilter {
            glob: Some(Arc::new(below)),
            path_begin: b"a/".to_vec(),
            ..any()
        },
        AccessFilter {
            glob: Some(Arc::new(below)),
            ..any()
        },
        AccessFilter {
            command: Some("command 21".to_owned()),
            ..any()
        },
        AccessFilter {
            command: Some("command 2".to_owned()),
            ..any()
        },
        AccessFilter {
            pid: Some(302),
            ..any()
        },
        AccessFilter {
            pid: Some(302),
            command: Some("command 31".to_owned()),
            ..any()
        },
        AccessFilter {
            session: Some("session 2".to_owned()),
            ..any()
        },
        AccessFilter {
            lease: Some(LeaseId(3)),
            kinds: vec![AccessKind::Read, AccessKind::Missing],
            ..any()
        },
        AccessFilter {
            since_unix_ms: Some(2040),
            ..any()
        },
        AccessFilter {
            until_unix_ms: Some(1050),
            ..any()
        },
        AccessFilter {
            since_unix_ms: Some(2020),
            until_unix_ms: Some(3010),
            ..any()
        },
        AccessFilter {
            digest: Some(Digest::of(&[1])),
            ..any()
        },
        AccessFilter {
            session: Some("session 1".to_owned()),
            pid: Some(101),
            path: Some(rel("z")),
            ..any()
        },
    ];
    for (number, filter) in filters.iter().enumerate() {
        let plain = sorted(rig.plain(filter));
        assert_eq!(
            plain.is_empty(),
            number == 3 || number == 7,
            "filter {number}"
        );
        let found = |rows, how: &str| {
            let found = sorted(rows);
            let differ = found.iter().zip(&plain).find(|(one, other)| one != other);
            let counts = (found.len(), plain.len());
            assert!(
                found == plain,
                "filter {number} {how}: {counts:?} rows, {differ:#?}"
            );
        };
        for limit in [1, 7, 1000] {
            found(rig.pages(filter, limit).0, &format!("by {limit}"));
        }
        found(rig.log().query(STACK, filter).unwrap().rows, "at once");
    }
    // In order of path, by its bytes.
    let (rows, _) = rig.pages(&any(), 7);
    assert!(rows.is_sorted_by_key(|row| row.path.as_bytes().to_vec()));
}

#[test]
fn what_is_looked_at_for_a_page_is_bounded() {
    let mut rig = Rig::new();
    rig.begin(1);
    let rows = (0..2 * index::MAX_STEPS as u64 + 5).map(|number| AccessRow {
        path: RelPath::parse(format!("{number:08}").as_bytes()).unwrap(),
        ..row(1, 1)
    });
    rig.append(1, rows.collect(), 2000);
    let nothing = AccessFilter {
        glob: Some(Arc::new(|_| false)),
        ..AccessFilter::default()
    };
    assert_eq!(rig.pages(&nothing, 1000), (Vec::new(), 3));
    let last = AccessFilter {
        glob: Some(Arc::new(|path| path.as_bytes() == b"00040004")),
        ..AccessFilter::default()
    };
    assert_eq!(rig.pages(&last, 1000).0.len(), 1);
}

#[test]
fn a_recorder_that_was_killed_leaves_a_gap_and_all_that_it_wrote() {
    let mut rig = Rig::new();
    assert_eq!(rig.begin(1), None);
    rig.append(1, vec![row(1, 1)], 1500);
    let log = rig.log();
    let gap = log
        .begin(STACK, LeaseId(1), "session 1", "files", 9000)
        .unwrap()
        .unwrap();
    assert_eq!((gap.from_unix_ms, gap.to_unix_ms), (1500, 9000));
    let answer = log.query(STACK, &AccessFilter::default()).unwrap();
    assert_eq!((answer.rows.len(), &answer.gaps), (1, &vec![gap]));
    log.end(STACK, LeaseId(1), 9500).unwrap();
    assert_eq!(rig.begin(1), None, "it ended in order");
}

#[test]
fn what_is_kept_is_bounded_and_what_went_is_told_of() {
    let mut rig = Rig::new();
    rig.log().keep_rows(SEAL_ROWS + 100);
    for lease in 1..=3 {
        rig.begin(lease);
        let rows = (0..SEAL_ROWS).map(|number| AccessRow {
            path: RelPath::parse(format!("{number}").as_bytes()).unwrap(),
            ..row(lease, number)
        });
        rig.append(lease, rows.collect(), 5000);
        rig.log().end(STACK, LeaseId(lease), 5000).unwrap();
    }
    let answer = rig.log().query(STACK, &AccessFilter::default()).unwrap();
    assert!(answer.rows.iter().all(|row| *row.session == *"session 3"));
    assert_eq!(answer.rows.len() as u64, SEAL_ROWS);
    let gone: Vec<&str> = answer.gaps.iter().map(|gap| gap.session.as_str()).collect();
    assert_eq!(gone, ["session 1", "session 2"]);
    // Nothing else is left of those than that they were.
    let kept = rig.keys();
    let mut alone = Rig::new();
    alone.begin(3);
    let rows = rig.rows.iter().filter(|(lease, _)| lease.0 == 3);
    alone.append(3, rows.map(|(_, row)| row.clone()).collect(), 5000);
    assert_eq!(kept, alone.keys());
    rig.log().forget(STACK).unwrap();
    assert_eq!(rig.keys(), 0);
}
