//! Whose an access was: which rows wait for a command that is being started, and for how long.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use sandstack_store::{AccessFilter, AccessKind, RelPath, Store};

use super::{Commands, MAX_WAITING, Process, Recorder};
use crate::profile::TraceMode;

/// A recorder over an empty layer, in a store of its own.
struct Rig {
    _scratch: tempfile::TempDir,
    commands: Arc<Commands>,
    recorder: Arc<Recorder>,
}

impl Rig {
    fn new() -> Rig {
        let scratch = tempfile::tempdir().unwrap();
        let base = scratch.path().join("base");
        std::fs::create_dir(&base).unwrap();
        let store = Store::open(&scratch.path().join("store")).unwrap();
        let imported = store
            .import(&base, &mut |_| ControlFlow::Continue(()))
            .unwrap();
        let stack = store.create_stack(&imported, 0).unwrap();
        let lease = stack.take_lease(None, "one", None, 0).unwrap();
        let upper = Arc::new(store.open_upper(&lease).unwrap());
        let commands = Arc::new(Commands::default());
        let recorder =
            Recorder::begin(upper, "one", TraceMode::Files, Arc::clone(&commands)).unwrap();
        Rig {
            _scratch: scratch,
            commands,
            recorder,
        }
    }

    /// Notes that a process of `namespace` opened `path`.
    fn opened(&self, namespace: u64, path: &str) {
        let process = Process {
            pid: if namespace == 0 { 0 } else { 77 },
            namespace,
            program: None,
        };
        let path = RelPath::parse(path.as_bytes()).unwrap();
        self.recorder
            .note_of(Arc::new(process), Arc::new(path), AccessKind::Open, 0);
    }

    /// What has been written: paths, and whose they were.
    fn written(&self) -> Vec<(String, Option<String>)> {
        self.recorder.flush().unwrap();
        let lease = &self.recorder.lease;
        let store = self.recorder.store.clone();
        let answer = store
            .access_log()
            .query(lease.stack, &AccessFilter::default())
            .unwrap();
        answer
            .rows
            .into_iter()
            .map(|row| (row.path.to_string(), row.actor.command.clone()))
            .collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.recorder.end().unwrap();
    }
}

fn row(path: &str, command: Option<&str>) -> (String, Option<String>) {
    (path.to_owned(), command.map(str::to_owned))
}

#[test]
fn a_namespace_is_its_command_until_that_has_ended() {
    let rig = Rig::new();
    rig.commands.register(5, "first");
    rig.commands.register(6, "second");
    rig.opened(5, "a");
    rig.opened(6, "b");
    rig.opened(9, "c");
    let mut expected = vec![
        row("a", Some("first")),
        row("b", Some("second")),
        row("c", None),
    ];
    assert_eq!(rig.written(), expected);
    // The kernel may give the number to another namespace then.
    rig.commands.ended("first");
    rig.opened(5, "d");
    rig.opened(6, "e");
    expected.extend([row("d", None), row("e", Some("second"))]);
    assert_eq!(rig.written(), expected);
    rig.commands.all_ended();
    rig.opened(6, "f");
    expected.push(row("f", None));
    assert_eq!(rig.written(), expected);
}

#[test]
fn one_command_can_have_several_namespaces() {
    let rig = Rig::new();
    rig.commands.register(5, "first");
    rig.commands.register(6, "first");
    rig.opened(5, "a");
    rig.opened(6, "b");
    assert_eq!(
        rig.written(),
        [row("a", Some("first")), row("b", Some("first"))]
    );
    rig.commands.ended("first");
    assert_eq!(rig.commands.command(5), None);
    assert_eq!(rig.commands.command(6), None);
}

#[test]
fn accesses_before_the_registration_are_the_commands() {
    let rig = Rig::new();
    let starting = rig.commands.starting();
    rig.opened(5, "early");
    assert_eq!(rig.written(), []);
    rig.commands.register(5, "first");
    assert_eq!(rig.written(), [row("early", Some("first"))]);
    drop(starting);
    assert_eq!(rig.written().len(), 1, "written once");
}

#[test]
fn a_start_holds_up_nobody_else() {
    let rig = Rig::new();
    rig.commands.register(5, "running");
    let _starting = rig.commands.starting();
    rig.opened(5, "a");
    rig.opened(0, "b");
    rig.opened(6, "c");
    assert_eq!(rig.written(), [row("a", Some("running")), row("b", None)]);
}

#[test]
fn what_no_command_claims_is_nobodys_when_all_have_started() {
    let rig = Rig::new();
    let (one, other) = (rig.commands.starting(), rig.commands.starting());
    rig.opened(6, "a");
    assert_eq!(rig.written(), []);
    drop(one);
    assert_eq!(rig.written(), []);
    drop(other);
    assert_eq!(rig.written(), [row("a", None)]);
}

#[test]
fn a_start_that_hangs_loses_no_row() {
    let rig = Rig::new();
    let _starting = rig.commands.starting();
    for index in 0..MAX_WAITING / 2 {
        rig.opened(6, &format!("{index}"));
    }
    // More rows than may wait: without a command is better than never.
    assert_eq!(rig.written().len(), MAX_WAITING / 2);
}

#[test]
fn the_end_waits_for_no_start() {
    let rig = Rig::new();
    let _starting = rig.commands.starting();
    rig.opened(6, "a");
    rig.recorder.end().unwrap();
    assert_eq!(rig.written(), [row("a", None)]);
}

#[test]
fn rows_are_written_without_being_asked_for() {
    let rig = Rig::new();
    rig.opened(6, "a");
    let log = || {
        let lease = &rig.recorder.lease;
        let store = &rig.recorder.store;
        let filter = AccessFilter::default();
        store
            .access_log()
            .query(lease.stack, &filter)
            .unwrap()
            .rows
            .len()
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while log() == 0 {
        assert!(std::time::Instant::now() < deadline, "ten seconds");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
