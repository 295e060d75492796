//! The recorder: folds accesses in memory and hands them to the store's access log.
//!
//! A handler notes an access in one step: find the actor, find the path, add to a row. Rows are
//! folded by path, kind and process until a thread of the recorder appends them to the log, several
//! times a second. When more rows wait than the bound allows, whoever notes the next one waits for
//! the log: the record is complete, or says where it is not.
//!
//! Which command a process belongs to follows from its mount namespace: each command has one of its
//! own, which no process of it can leave, and every child inherits it, however it was forked. The
//! embedder says which namespace is which command ([`Commands`]), while the command is being started
//! or soon after; rows of namespaces that are not known wait as long as a command is being started.

mod path;
mod process;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use sandstack_store::{
    AccessCall, AccessKind, AccessRow, Actor, Attributes, Body, Digest, FileBody, Ino, InodeBody,
    Kind, LeaseId, LeaseRecord, Name, Parent, RelPath, Result, Store, Upper,
};

use crate::profile::TraceMode;
use crate::tree::Tree;
use path::Paths;
use process::{Process, Processes};

/// How long rows are folded before they are written.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Rows, and single calls, that may wait to be written. At about 200 bytes each a session holds 13 MB at
/// most.
const MAX_WAITING: usize = 64 << 10;

/// Which mount namespace (by inode number) is which command. Shared by whoever starts commands and
/// the recorder.
#[derive(Debug, Default)]
pub struct Commands {
    known: RwLock<FxHashMap<u64, Arc<str>>>,
    /// How many are being started.
    starting: AtomicUsize,
}

/// A command is being started; ends when it is dropped.
#[derive(Debug)]
pub struct Starting<'a>(&'a Commands);

impl Commands {
    /// Says that a command is being started, before it can do anything.
    pub fn starting(&self) -> Starting<'_> {
        self.starting.fetch_add(1, Ordering::SeqCst);
        Starting(self)
    }

    /// Says that the processes of mount namespace `namespace` are those of `command`. The number
    /// must not be another namespace's before [`Commands::ended`].
    pub fn register(&self, namespace: u64, command: &str) {
        self.known.write().insert(namespace, command.into());
    }

    /// Says that nothing of `command` runs any more and that its accesses have been written
    /// ([`Recorder::flush`]).
    pub fn ended(&self, command: &str) {
        self.known.write().retain(|_, other| **other != *command);
    }

    /// Says that nothing runs any more, and that everything has been written.
    pub fn all_ended(&self) {
        self.known.write().clear();
    }

    /// The mount namespaces that are known, by inode number, and which command each is.
    pub fn known(&self) -> Vec<(u64, Arc<str>)> {
        let known = self.known.read();
        known
            .iter()
            .map(|(namespace, command)| (*namespace, Arc::clone(command)))
            .collect()
    }

    fn command(&self, namespace: u64) -> Option<Arc<str>> {
        self.known.read().get(&namespace).cloned()
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.starting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// With what was opened or read, if the session has not changed it.
type Key = (Arc<RelPath>, AccessKind, Arc<Process>, Option<Digest>);
/// Keys hold names that a session's programs choose, so the hash has a seed; and every access is hashed.
type Rows = HashMap<Key, Counts, foldhash::fast::RandomState>;

/// One read or write.
struct Call {
    path: Arc<RelPath>,
    kind: AccessKind,
    process: Arc<Process>,
    offset: u64,
    length: u64,
    at_unix_ms: u64,
}

#[derive(Default)]
struct Waiting {
    rows: Rows,
    /// In the order in which they were made; only of a mode that records each.
    calls: Vec<Call>,
    /// Set when the recorder ends.
    ended: bool,
    /// Why the log refuses, since when it does.
    failed: Option<String>,
}

#[derive(Clone, Copy)]
struct Counts {
    count: u64,
    bytes: u64,
    first_unix_ms: u64,
    last_unix_ms: u64,
}

/// Notes the accesses of one session.
pub struct Recorder {
    /// What the view shows. The record stays under the lease that it began with.
    upper: RwLock<Arc<Upper>>,
    lease: LeaseRecord,
    store: Store,
    session: Arc<str>,
    mode: TraceMode,
    commands: Arc<Commands>,
    /// Held while rows are written. Taken before `waiting`.
    writing: Mutex<()>,
    waiting: Mutex<Waiting>,
    /// Signalled when rows have been taken to be written, and when the recorder ends.
    changed: Condvar,
    paths: Mutex<Paths>,
    processes: Processes,
    embedder: Arc<Process>,
    own_pid: u32,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("session", &self.session)
            .field("mode", &self.mode)
            .finish()
    }
}

impl Recorder {
    /// Begins the record of a session and starts the thread that writes it. The thread ends with
    /// [`Recorder::end`].
    ///
    /// # Errors
    /// As the access log's.
    pub fn begin(
        upper: Arc<Upper>,
        session: &str,
        mode: TraceMode,
        commands: Arc<Commands>,
    ) -> Result<Arc<Recorder>> {
        let recorder = Arc::new(Recorder {
            session: session.into(),
            mode,
            commands,
            writing: Mutex::default(),
            waiting: Mutex::default(),
            changed: Condvar::new(),
            paths: Mutex::new(Paths::of(&upper)),
            processes: Processes::default(),
            embedder: Arc::new(Process::default()),
            own_pid: std::process::id(),
            lease: upper.lease().clone(),
            store: upper.stack().store().clone(),
            upper: RwLock::new(upper),
        });
        if mode == TraceMode::Off {
            return Ok(recorder);
        }
        let (lease, log) = (&recorder.lease, recorder.store.access_log());
        log.begin(lease.stack, lease.id, session, mode.as_str(), now_unix_ms())?;
        let writer = Arc::clone(&recorder);
        let spawned = std::thread::Builder::new()
            .name("fs-recorder".to_owned())
            .spawn(move || writer.write_loop());
        spawned.map_err(|source| sandstack_store::Error::Io {
            action: "starting",
            path: "the recorder's thread".into(),
            source,
        })?;
        Ok(recorder)
    }

    /// The lease under which it records.
    pub fn lease(&self) -> LeaseId {
        self.lease.id
    }

    /// What is recorded.
    pub fn mode(&self) -> TraceMode {
        self.mode
    }

    /// Rows, and single calls, that wait to be written.
    pub fn waiting(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.rows.len() + waiting.calls.len()
    }

    /// Writes what waits, now; but not what waits for a command to be started. When it returns,
    /// nothing that was noted before is still being written. Returns whether all that was noted
    /// before is in the log: false if something waits for a command, or was lost.
    ///
    /// # Errors
    /// As the access log's; the rows are lost then, and the time since the last frame is a gap.
    pub fn flush(&self) -> Result<bool> {
        let _turn = self.writing.lock();
        let (rows, calls, whole) = {
            let mut waiting = self.waiting.lock();
            let (rows, calls) = self.take(&mut waiting);
            let left = waiting.rows.len() + waiting.calls.len();
            (rows, calls, left == 0 && waiting.failed.is_none())
        };
        self.changed.notify_all();
        self.write(rows, calls)?;
        Ok(whole)
    }

    /// Takes the rows that can be written: not those of an unknown namespace while a command is
    /// being started, which may be its own.
    fn take(&self, waiting: &mut Waiting) -> (Rows, Vec<Call>) {
        // Asked before the namespaces: whoever has started a command has registered it.
        let starting = self.commands.starting.load(Ordering::SeqCst) > 0;
        let mut rows = std::mem::take(&mut waiting.rows);
        let mut calls = std::mem::take(&mut waiting.calls);
        // They wait for milliseconds. Should one that is being started hang, and hold up the others,
        // then those without a command are better than none.
        if starting && !waiting.ended && rows.len() + calls.len() < MAX_WAITING / 2 {
            let known: FxHashSet<u64> = self.commands.known.read().keys().copied().collect();
            let waits =
                |process: &Process| process.namespace != 0 && !known.contains(&process.namespace);
            waiting.rows = rows
                .extract_if(|(_, _, process, _), _| waits(process))
                .collect();
            waiting.calls = calls.extract_if(.., |call| waits(&call.process)).collect();
        }
        (rows, calls)
    }

    /// Ends the record in order.
    ///
    /// # Errors
    /// As [`Recorder::flush`].
    pub fn end(&self) -> Result<()> {
        if self.mode == TraceMode::Off {
            return Ok(());
        }
        let failed = {
            let mut waiting = self.waiting.lock();
            waiting.ended = true;
            waiting.failed.take()
        };
        self.flush()?;
        if failed.is_some() {
            // Rows were lost: left open, the record shows the gap.
            return Ok(());
        }
        let lease = &self.lease;
        self.store
            .access_log()
            .end(lease.stack, lease.id, now_unix_ms())
    }

    /// Notes an access of an entry.
    pub(crate) fn entry(&self, pid: u32, parent: Ino, name: &[u8], kind: AccessKind, bytes: u64) {
        if self.mode == TraceMode::Off {
            return;
        }
        let path = self.paths.lock().entry(&self.upper.read(), parent, name);
        if let Some(path) = path {
            self.note(pid, path, kind, bytes, None, None);
        }
    }

    /// Notes an access of an inode.
    pub(crate) fn inode(&self, pid: u32, ino: Ino, kind: AccessKind, bytes: u64) {
        if self.mode == TraceMode::Off {
            return;
        }
        let path = self.paths.lock().inode(&self.upper.read(), ino);
        let digest = self.unchanged(ino, kind);
        self.note(pid, path, kind, bytes, digest, None);
        if kind == AccessKind::Execute {
            self.processes.runs_another(pid);
        }
    }

    /// Notes that content was read or written: `length` bytes at `offset`.
    pub(crate) fn content(&self, pid: u32, ino: Ino, kind: AccessKind, offset: u64, length: u64) {
        if self.mode == TraceMode::Off {
            return;
        }
        let path = self.paths.lock().inode(&self.upper.read(), ino);
        let each = (self.mode == TraceMode::Exact).then_some(offset);
        let digest = self.unchanged(ino, kind);
        self.note(pid, path, kind, length, digest, each);
    }

    /// The content of a file that is opened or read, if the session has not changed it.
    fn unchanged(&self, ino: Ino, kind: AccessKind) -> Option<Digest> {
        if !matches!(
            kind,
            AccessKind::Open | AccessKind::Read | AccessKind::Execute
        ) {
            return None;
        }
        let upper = Arc::clone(&self.upper.read());
        match upper.state().inode(ino).map(|inode| &inode.body) {
            Some(InodeBody::File(FileBody::Lower(content))) => return Some(content.digest),
            Some(_) => return None,
            None => {}
        }
        // What cannot be read fails the access itself.
        match upper.lower().node(ino).ok()??.body {
            Body::File(content) => Some(content.digest),
            _ => None,
        }
    }

    /// Says that `ino` is found as `name` in `parent`, so that accesses by number find its path.
    pub(crate) fn named(&self, ino: Ino, parent: Ino, name: &[u8]) {
        if self.mode != TraceMode::Off
            && let Ok(name) = Name::new(name)
        {
            self.paths.lock().named(ino, parent, name);
        }
    }

    /// Like [`Recorder::named`], if the session changed where the inode is found.
    pub(crate) fn named_if_changed(
        &self,
        tree: &Tree,
        found: &Attributes,
        parent: Ino,
        name: &[u8],
    ) {
        let changed =
            self.mode != TraceMode::Off && tree.upper().state().slot(parent, name).is_some();
        if changed && found.kind != Kind::Directory {
            self.named(found.ino, parent, name);
        }
    }

    /// Notes a rename that was done.
    pub(crate) fn renamed(
        &self,
        tree: &Tree,
        pid: u32,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        exchanged: bool,
    ) {
        if self.mode == TraceMode::Off {
            return;
        }
        self.entry(pid, parent, name, AccessKind::RenameFrom, 0);
        self.directories_moved();
        self.entry(pid, new_parent, new_name, AccessKind::RenameTo, 0);
        let sides = [(new_parent, new_name), (parent, name)];
        for (parent, name) in sides.into_iter().take(if exchanged { 2 } else { 1 }) {
            if let Ok(found) = tree.lookup(parent, name) {
                self.named_if_changed(tree, &found, parent, name);
            }
        }
    }

    /// Says that a directory was moved or removed: paths below it are others now.
    pub(crate) fn directories_moved(&self) {
        if self.mode != TraceMode::Off {
            self.paths.lock().directories_moved();
        }
    }

    /// Says that the kernel knows an inode no more: its path is put together again when it is needed.
    pub(crate) fn forgotten(&self, ino: Ino) {
        if self.mode != TraceMode::Off {
            self.paths.lock().forgotten(ino);
        }
    }

    /// Says that the view shows another upper from now on. `left` are inodes that it lacks: they keep
    /// the paths that they had.
    pub(crate) fn go_over(&self, upper: Arc<Upper>, left: &[Ino]) {
        let mut paths = self.paths.lock();
        let mut shown = self.upper.write();
        paths.go_over(&shown, &upper, left);
        *shown = upper;
    }

    /// `offset` if the call is to be recorded by itself, too.
    fn note(
        &self,
        pid: u32,
        path: Arc<RelPath>,
        kind: AccessKind,
        bytes: u64,
        digest: Option<Digest>,
        offset: Option<u64>,
    ) {
        let process = if pid == 0 {
            Arc::clone(&self.embedder)
        } else {
            self.processes.find(pid)
        };
        if process.pid == self.own_pid {
            // What is done through the mount to flush it is no access of anybody's.
            return;
        }
        self.note_of((path, kind, process, digest), bytes, offset);
    }

    fn note_of(&self, key: Key, bytes: u64, offset: Option<u64>) {
        let now = now_unix_ms();
        let mut waiting = self.waiting.lock();
        // Back-pressure: nothing is dropped while the log can take it.
        while waiting.rows.len() + waiting.calls.len() >= MAX_WAITING
            && !waiting.ended
            && waiting.failed.is_none()
        {
            self.changed.wait(&mut waiting);
        }
        if let Some(offset) = offset {
            waiting.calls.push(Call {
                path: Arc::clone(&key.0),
                kind: key.1,
                process: Arc::clone(&key.2),
                offset,
                length: bytes,
                at_unix_ms: now,
            });
        }
        waiting
            .rows
            .entry(key)
            .and_modify(|counts| {
                counts.count += 1;
                counts.bytes += bytes;
                counts.last_unix_ms = now;
            })
            .or_insert(Counts {
                count: 1,
                bytes,
                first_unix_ms: now,
                last_unix_ms: now,
            });
    }

    fn write_loop(&self) {
        loop {
            {
                let mut waiting = self.waiting.lock();
                // Folds for a while; when nothing happens it sleeps until something does.
                self.changed.wait_for(&mut waiting, FLUSH_INTERVAL);
                while waiting.rows.is_empty() && !waiting.ended {
                    self.changed.wait_for(&mut waiting, FLUSH_INTERVAL * 10);
                }
                if waiting.ended {
                    return;
                }
            }
            if let Err(error) = self.flush() {
                let mut waiting = self.waiting.lock();
                // A full disk stays full for many tries. That there is a gap is on record.
                if waiting.failed.is_none() {
                    tracing::error!(session = %self.session, %error, "access records were lost");
                    waiting.failed = Some(error.to_string());
                }
            }
        }
    }

    fn write(&self, rows: Rows, calls: Vec<Call>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut actors: HashMap<Arc<Process>, Arc<Actor>> = HashMap::new();
        let mut actor = |process: Arc<Process>| {
            let known = actors.entry(process);
            Arc::clone(known.or_insert_with_key(|process| Arc::new(self.actor(process))))
        };
        let rows: Vec<AccessRow> = rows
            .into_iter()
            .map(|((path, kind, process, digest), counts)| AccessRow {
                session: Arc::clone(&self.session),
                path: RelPath::clone(&path),
                kind,
                actor: actor(process),
                digest,
                count: counts.count,
                bytes: counts.bytes,
                first_unix_ms: counts.first_unix_ms,
                last_unix_ms: counts.last_unix_ms,
            })
            .collect();
        let calls: Vec<AccessCall> = calls
            .into_iter()
            .map(|call| AccessCall {
                session: Arc::clone(&self.session),
                path: RelPath::clone(&call.path),
                kind: call.kind,
                actor: actor(call.process),
                offset: call.offset,
                length: call.length,
                at_unix_ms: call.at_unix_ms,
            })
            .collect();
        let lease = &self.lease;
        let log = self.store.access_log();
        log.append(lease.stack, lease.id, &rows, &calls, now_unix_ms())
    }

    fn actor(&self, process: &Process) -> Actor {
        let parents = process.parents.iter().map(|parent| Parent {
            pid: parent.pid,
            program: parent.program.as_ref().map(|program| program.to_vec()),
        });
        Actor {
            command: self
                .commands
                .command(process.namespace)
                .map(|command| command.to_string()),
            pid: (process.pid != 0).then_some(process.pid),
            program: process.program.as_ref().map(|program| program.to_vec()),
            argv0: process.argv0.as_ref().map(|argv0| argv0.to_vec()),
            parents: parents.collect(),
        }
    }
}

fn now_unix_ms() -> u64 {
    // A clock before 1970 shows as 1970.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
