//! Costs of the access log: how fast it takes rows, what they take on the disk, and how long it takes to
//! find some of very many.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sandstack_store::{
    AccessFilter, AccessKind, AccessLog, AccessRow, Actor, Digest, LeaseId, RelPath, StackId, Store,
};

use super::{Costs, Options, seconds};
use crate::measure::allow;
use crate::{Result, progress};

const STACK: StackId = StackId(1);
/// Commands of a session.
const COMMANDS: u64 = 10;
/// Paths that a command accesses, each in [`KINDS`] ways.
const PATHS: u64 = 2500;
const KINDS: [AccessKind; 4] = [
    AccessKind::Open,
    AccessKind::Read,
    AccessKind::Lookup,
    AccessKind::Missing,
];
/// Paths that there are.
const ALL_PATHS: u64 = 200_000;
/// Paths of which rows are appended together.
const TOGETHER: u64 = 500;
/// Rows of a page.
const PAGE: usize = 200;
/// How long it may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1800);

/// Appends `options.records` rows and asks for some.
pub(super) fn measure(costs: &mut Costs, dir: &Path, options: Options) -> Result<()> {
    let place = dir.join("access-store");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    allow(Some(PATIENCE));
    let store = Store::open(&place)?;
    let log = store.access_log();
    log.keep_rows(u64::MAX);
    let sessions = u64::from(options.records) / (COMMANDS * PATHS * KINDS.len() as u64);
    progress(&format!("{sessions} sessions of the access log"));
    let (taken, ()) = seconds(|| (0..sessions).try_for_each(|session| fill(log, session)))?;
    let rows = sessions * COMMANDS * PATHS * KINDS.len() as u64;
    let about = |what: &str| format!("access log of {rows} rows: {what}");
    costs.note(about("to append a row"), "us", &[taken * 1e6 / rows as f64]);
    costs.note(
        about("on the disk, a row"),
        "bytes",
        &[store.usage()?.database_bytes as f64 / rows as f64],
    );
    for (what, filter) in questions(sessions) {
        let (mut times, mut found) = (Vec::new(), 0);
        for _ in 0..options.times {
            let (taken, page) = seconds(|| Ok(log.page(STACK, &filter, None, PAGE)?))?;
            times.push(taken * 1e3);
            found = page.rows.len();
        }
        costs.note(
            about(&format!("a page {what} ({found} rows)")),
            "ms",
            &times,
        );
    }
    drop(store);
    fs::remove_dir_all(&place)?;
    Ok(())
}

fn path(number: u64) -> Result<RelPath> {
    let number = number % ALL_PATHS;
    let text = format!(
        "src/part{}/module{}/file{number}.rs",
        number % 40,
        number % 900
    );
    Ok(RelPath::parse(text.as_bytes())?)
}

fn fill(log: &AccessLog, session: u64) -> Result<()> {
    let name: Arc<str> = format!("ws-{session:06}").into();
    let lease = LeaseId(session + 1);
    log.begin(STACK, lease, &name, "files", at(session))?;
    for command in 0..COMMANDS {
        let actors: Vec<Arc<Actor>> = (0..20)
            .map(|process| {
                Arc::new(Actor {
                    command: Some(format!("cmd-{session:04}{command:02}")),
                    pid: Some((100_000 + session * 200 + command * 20 + process) as u32),
                    program: Some(b"/usr/bin/git".to_vec()),
                    ..Actor::default()
                })
            })
            .collect();
        for begin in (0..PATHS).step_by(TOGETHER as usize) {
            let mut rows = Vec::with_capacity((TOGETHER as usize) * KINDS.len());
            for number in begin..begin + TOGETHER {
                let path = path(number * 79 + command * 1000 + session * 37)?;
                for kind in KINDS {
                    let digest = (kind != AccessKind::Missing && kind != AccessKind::Lookup)
                        .then(|| Digest::of(path.as_bytes()));
                    rows.push(AccessRow {
                        session: Arc::clone(&name),
                        path: path.clone(),
                        kind,
                        actor: Arc::clone(&actors[(number % 20) as usize]),
                        digest,
                        count: 1,
                        bytes: 4096,
                        first_unix_ms: at(session) + command,
                        last_unix_ms: at(session) + command + 1,
                    });
                }
            }
            log.append(STACK, lease, &rows, &[], at(session) + COMMANDS + 1)?;
        }
    }
    log.end(STACK, lease, at(session) + COMMANDS + 1)?;
    Ok(())
}

/// When a session was.
fn at(session: u64) -> u64 {
    1_700_000_000_000 + session * 60_000
}

fn questions(sessions: u64) -> Vec<(&'static str, AccessFilter)> {
    let middle = sessions / 2;
    let some = path(79 * 7 + middle * 37).unwrap_or_default();
    let any = AccessFilter::default;
    let ends = |end: &'static [u8]| -> Option<sandstack_store::PathMatch> {
        Some(Arc::new(move |path: &RelPath| {
            path.as_bytes().ends_with(end)
        }))
    };
    let command = Some(format!("cmd-{middle:04}03"));
    let reads = vec![AccessKind::Open, AccessKind::Read, AccessKind::Missing];
    vec![
        ("of all", any()),
        (
            "of a path",
            AccessFilter {
                path: Some(some.clone()),
                ..any()
            },
        ),
        (
            "of a path and content",
            AccessFilter {
                digest: Some(Digest::of(some.as_bytes())),
                path: Some(some),
                ..any()
            },
        ),
        (
            "of a glob with a beginning",
            AccessFilter {
                glob: ends(b".rs"),
                path_begin: b"src/part7/module4".to_vec(),
                ..any()
            },
        ),
        (
            "of a glob that matches nothing",
            AccessFilter {
                glob: ends(b".none"),
                ..any()
            },
        ),
        (
            "of a session",
            AccessFilter {
                session: Some(format!("ws-{middle:06}")),
                ..any()
            },
        ),
        (
            "of a command",
            AccessFilter {
                command: command.clone(),
                ..any()
            },
        ),
        (
            "of what a command depends on",
            AccessFilter {
                command,
                kinds: reads,
                ..any()
            },
        ),
        (
            "of a process",
            AccessFilter {
                pid: Some((100_000 + middle * 200) as u32),
                ..any()
            },
        ),
        (
            "of a kind",
            AccessFilter {
                kinds: vec![AccessKind::Missing],
                ..any()
            },
        ),
        (
            "of a kind that there is none of",
            AccessFilter {
                kinds: vec![AccessKind::Link],
                ..any()
            },
        ),
        (
            "of a minute",
            AccessFilter {
                since_unix_ms: Some(at(middle)),
                until_unix_ms: Some(at(middle + 1)),
                ..any()
            },
        ),
    ]
}
