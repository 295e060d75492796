//! The access log: who read and wrote which path, durable in batches.
//!
//! A session's recorder folds accesses of the same path, kind and process and appends the folded
//! rows as a *frame*, several times a second while something happens. Where it records each call, the
//! frame has the calls too, in the order in which they were made. A frame is acknowledged when
//! it survives a killed process. A session whose recorder did not end in order lost what came after
//! its last frame: that is kept as a [`Gap`], never passed over.
//!
//! Records outlive their sessions. When there are more rows of a stack than the bound, the oldest
//! sessions' are removed, and that is a gap too.
//!
//! # Keys in the database
//! `s`, stack, lease: what is known of the session's record; `f`, stack, lease, number: a frame that
//! is not in the index yet; `c`, stack, lease, number: the calls of a frame; `g`, stack, lease,
//! number: a gap. Numbers are 64-bit big-endian. The index has its own, and [`crate::writers`]: see
//! there.

mod filter;
mod frame;
mod index;
mod retain;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use serde::{Deserialize, Serialize};

use crate::db::{self, Db, DbBatch, Durability, key};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::lease::LeaseId;
use crate::name::RelPath;
use crate::stack::StackId;
use crate::writers;
use frame::Frame;

pub use filter::{AccessFilter, PathMatch};

/// Rows of a session that wait in frames before they are put into the index.
const SEAL_ROWS: u64 = 20_000;
/// Rows of a stack that are kept, unless the embedder says otherwise.
const MAX_ROWS: u64 = 20_000_000;
/// Locks of records: neighbours have different ones.
const LOCKS: usize = 16;

/// A kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AccessKind {
    /// Opened for reading.
    Open,
    /// Opened for writing.
    OpenWrite,
    /// Content was read.
    Read,
    /// Content was written or cut.
    Write,
    /// Run as a program.
    Execute,
    /// Made.
    Create,
    /// Removed.
    Remove,
    /// Renamed away from this path.
    RenameFrom,
    /// Renamed to this path.
    RenameTo,
    /// A further hard link was made at this path.
    Link,
    /// A directory was listed.
    List,
    /// Looked up and found.
    Lookup,
    /// Looked up and missing.
    Missing,
    /// Mode, owner, times or extended attributes were changed.
    Metadata,
}

/// Who accessed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Actor {
    /// The command; `None` for a process that is none of a command, and for the embedder itself.
    pub command: Option<String>,
    /// The process, by its pid where the embedder runs; `None` for the embedder itself.
    pub pid: Option<u32>,
    /// The program that the process ran, as far as it could be found out.
    pub program: Option<Vec<u8>>,
    /// What the process was called by: the first word of its command line.
    pub argv0: Option<Vec<u8>>,
    /// Its parent, the parent's parent and so on, as far as they were of the same command and still
    /// there when the process was first seen.
    pub parents: Vec<Parent>,
}

/// An ancestor of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Parent {
    /// The process, by its pid where the embedder runs.
    pub pid: u32,
    /// The program that it ran.
    pub program: Option<Vec<u8>>,
}

/// Accesses of one kind, of one path, by one actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRow {
    /// The session.
    pub session: Arc<str>,
    /// The path.
    pub path: RelPath,
    /// The kind.
    pub kind: AccessKind,
    /// Who.
    pub actor: Arc<Actor>,
    /// What was opened or read, of content that the session had not changed; `None` of all else.
    pub digest: Option<Digest>,
    /// How often.
    pub count: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// The first time, in Unix milliseconds.
    pub first_unix_ms: u64,
    /// The last time, in Unix milliseconds.
    pub last_unix_ms: u64,
}

/// One call that read or wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessCall {
    /// The session.
    pub session: Arc<str>,
    /// The path.
    pub path: RelPath,
    /// [`AccessKind::Read`] or [`AccessKind::Write`].
    pub kind: AccessKind,
    /// Who.
    pub actor: Arc<Actor>,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Bytes that were read or written; 0 for a read at the end.
    pub length: u64,
    /// When, in Unix milliseconds.
    pub at_unix_ms: u64,
}

/// Where a page of calls ends: the last call that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallMark {
    /// The session's lease.
    pub lease: LeaseId,
    /// The frame.
    pub frame: u64,
    /// The call in the frame.
    pub call: u32,
}

/// One page of calls.
#[derive(Clone, Debug, Default)]
pub struct CallPage {
    /// The calls, session by session, in the order in which they were made.
    pub calls: Vec<AccessCall>,
    /// Where the next page goes on; `None` on the last.
    pub next: Option<CallMark>,
}

/// A time in which records may have been lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The session.
    pub session: String,
    /// From, in Unix milliseconds.
    pub from_unix_ms: u64,
    /// To, in Unix milliseconds.
    pub to_unix_ms: u64,
    /// Why.
    pub reason: String,
}

/// Where a page of rows ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowMark {
    key: Vec<u8>,
    row: usize,
}

impl RowMark {
    /// As bytes, for whoever hands it out.
    pub fn encode(&self) -> Vec<u8> {
        db::encode(self)
    }

    /// From its bytes; `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<RowMark> {
        db::decode("where a page ends", bytes).ok()
    }
}

/// One page of rows.
#[derive(Clone, Debug, Default)]
pub struct RowPage {
    /// The rows, folded: in order of path, session, kind and time. Of one command, process or time
    /// session by session.
    pub rows: Vec<AccessRow>,
    /// Where the next page goes on; `None` on the last.
    pub next: Option<RowMark>,
}

/// What a query found.
#[derive(Clone, Debug, Default)]
pub struct AccessAnswer {
    /// The rows, folded, in order of path, session, kind and first time.
    pub rows: Vec<AccessRow>,
    /// The trace modes of the sessions that were looked at.
    pub modes: Vec<String>,
    /// Where records of those sessions may have been lost.
    pub gaps: Vec<Gap>,
}

/// The access log of a store.
pub struct AccessLog {
    db: Arc<Db>,
    /// Held while the record of a session is changed, by the number of its lease.
    changing: [Mutex<()>; LOCKS],
    /// Rows of a stack that are kept.
    bound: AtomicU64,
    /// Who is told of gaps.
    told: OnceLock<Told>,
}

/// What is called with each gap.
type Told = Box<dyn Fn(StackId, &Gap) + Send + Sync>;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SessionRecord {
    session: String,
    mode: String,
    /// Whether a recorder is at work: true after a crash.
    open: bool,
    /// When the last frame, or the beginning, was written, in Unix milliseconds.
    last_unix_ms: u64,
    frames: u64,
    gaps: u64,
    /// When it began, in Unix milliseconds.
    first_unix_ms: u64,
    /// Frames that are in the index.
    sealed: u64,
    /// Rows in the other frames.
    waiting: u64,
    /// Rows in the index.
    rows: u64,
    /// How often frames were put into the index.
    seals: u32,
    /// Actors in the index.
    actors: u32,
}

impl AccessLog {
    pub(crate) fn open(db: Arc<Db>) -> Result<Self> {
        Ok(AccessLog {
            db,
            changing: Default::default(),
            bound: AtomicU64::new(MAX_ROWS),
            told: OnceLock::new(),
        })
    }

    /// Has `told` called with each gap from now on, once it is on record. Only the first is called.
    pub fn tell_gaps(&self, told: impl Fn(StackId, &Gap) + Send + Sync + 'static) {
        // A second one has nothing to add: there is one gateway to a store.
        let _ = self.told.set(Box::new(told));
    }

    fn tell(&self, stack: StackId, gap: &Gap) {
        if let Some(told) = self.told.get() {
            told(stack, gap);
        }
    }

    /// Begins, or goes on with, the record of a session. If the one before did not end in order,
    /// the time since its last frame is a gap, which is returned too.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Corrupt`], or [`Error::Io`] if the disk is full.
    pub fn begin(
        &self,
        stack: StackId,
        lease: LeaseId,
        session: &str,
        mode: &str,
        now_unix_ms: u64,
    ) -> Result<Option<Gap>> {
        let turn = self.turn(lease);
        let mut batch = self.db.batch();
        let mut record = self.record(stack, lease)?.unwrap_or_else(|| SessionRecord {
            session: session.to_owned(),
            mode: mode.to_owned(),
            open: false,
            last_unix_ms: now_unix_ms,
            frames: 0,
            gaps: 0,
            first_unix_ms: now_unix_ms,
            sealed: 0,
            waiting: 0,
            rows: 0,
            seals: 0,
            actors: 0,
        });
        let gap = record.open.then(|| Gap {
            session: session.to_owned(),
            from_unix_ms: record.last_unix_ms,
            to_unix_ms: now_unix_ms,
            reason: "the recorder was killed".to_owned(),
        });
        if let Some(gap) = &gap {
            batch.insert(
                &self.db.access,
                &row_key(b"g", stack, lease, record.gaps),
                &db::encode(gap),
            );
            record.gaps += 1;
        }
        record.open = true;
        record.last_unix_ms = now_unix_ms;
        mode.clone_into(&mut record.mode);
        self.put(&mut batch, stack, lease, &record);
        self.db.commit(batch, Durability::Process)?;
        drop(turn);
        if let Some(gap) = &gap {
            self.tell(stack, gap);
        }
        Ok(gap)
    }

    /// Appends folded rows of one session, and the single calls among them that it records.
    ///
    /// # Errors
    /// As [`AccessLog::begin`].
    pub fn append(
        &self,
        stack: StackId,
        lease: LeaseId,
        rows: &[AccessRow],
        calls: &[AccessCall],
        now_unix_ms: u64,
    ) -> Result<()> {
        let turn = self.turn(lease);
        let Some(mut record) = self.record(stack, lease)? else {
            return Err(Error::NoLease(lease));
        };
        let mut batch = self.db.batch();
        let access = &self.db.access;
        let number = record.frames;
        if !rows.is_empty() {
            let place = row_key(b"f", stack, lease, number);
            batch.insert(access, &place, &Frame::of(rows, &[]).pack()?);
        }
        writers::keep(&self.db, &mut batch, (stack, lease), number, rows)?;
        if !calls.is_empty() {
            let place = row_key(b"c", stack, lease, number);
            batch.insert(access, &place, &Frame::of(&[], calls).pack()?);
        }
        record.frames += 1;
        record.waiting += rows.len() as u64;
        record.last_unix_ms = now_unix_ms;
        self.put(&mut batch, stack, lease, &record);
        self.db.commit(batch, Durability::Process)?;
        if record.waiting >= SEAL_ROWS {
            self.seal(stack, lease, &mut record)?;
            drop(turn);
            self.trim(stack, now_unix_ms)?;
        }
        Ok(())
    }

    /// Ends the record of a session in order. The record stays.
    ///
    /// # Errors
    /// As [`AccessLog::begin`].
    pub fn end(&self, stack: StackId, lease: LeaseId, now_unix_ms: u64) -> Result<()> {
        let _turn = self.turn(lease);
        let Some(mut record) = self.record(stack, lease)? else {
            return Ok(());
        };
        record.open = false;
        record.last_unix_ms = now_unix_ms;
        if record.waiting > 0 {
            return self.seal(stack, lease, &mut record);
        }
        let mut batch = self.db.batch();
        self.put(&mut batch, stack, lease, &record);
        self.db.commit(batch, Durability::Process)
    }

    /// Finds all rows of a stack that are wanted.
    ///
    /// # Errors
    /// [`Error::Database`] or [`Error::Corrupt`]; [`Error::Io`] if the disk is full.
    pub fn query(&self, stack: StackId, filter: &AccessFilter) -> Result<AccessAnswer> {
        self.seal_all(stack, filter)?;
        let page = self.sealed(stack, filter, None, usize::MAX, usize::MAX)?;
        Ok(AccessAnswer {
            rows: page.rows,
            ..self.about(stack, filter)?
        })
    }

    /// Finds rows of a stack, at most `limit` (1 or more) of them, after `after`. What is looked at for
    /// a page is bounded: one with fewer rows, or none, is the last only if it says so.
    ///
    /// # Errors
    /// As [`AccessLog::query`].
    pub fn page(
        &self,
        stack: StackId,
        filter: &AccessFilter,
        after: Option<&RowMark>,
        limit: usize,
    ) -> Result<RowPage> {
        self.seal_all(stack, filter)?;
        self.sealed(stack, filter, after, limit, index::MAX_STEPS)
    }

    /// What an answer to `filter` is about: the trace modes of the sessions that are looked at, and
    /// their gaps. No rows.
    ///
    /// # Errors
    /// [`Error::Database`] or [`Error::Corrupt`].
    pub fn about(&self, stack: StackId, filter: &AccessFilter) -> Result<AccessAnswer> {
        let mut answer = AccessAnswer::default();
        for (lease, record) in self.records(stack, filter)? {
            if !answer.modes.contains(&record.mode) {
                answer.modes.push(record.mode);
            }
            for guard in self.db.access.prefix(session_key(b"g", stack, lease)) {
                let (_, value) = guard.into_inner()?;
                answer
                    .gaps
                    .push(db::decode("a gap in the record of accesses", &value)?);
            }
        }
        Ok(answer)
    }

    /// How many frames and gaps the record of a session has had; `None` if there is none.
    pub(crate) fn counts(&self, stack: StackId, lease: LeaseId) -> Result<Option<(u64, u64)>> {
        let record = self.record(stack, lease)?;
        Ok(record.map(|record| (record.frames, record.gaps)))
    }

    /// Finds single calls of a stack, at most `limit` of them, after `after`. Only sessions whose mode
    /// records each call have any.
    ///
    /// # Errors
    /// [`Error::Database`] or [`Error::Corrupt`].
    pub fn calls(
        &self,
        stack: StackId,
        filter: &AccessFilter,
        after: Option<CallMark>,
        limit: usize,
    ) -> Result<CallPage> {
        let mut page = CallPage::default();
        let mut last = after;
        for (lease, record) in self.records(stack, filter)? {
            if after.is_some_and(|after| lease < after.lease) {
                continue;
            }
            let session: Arc<str> = record.session.as_str().into();
            let begun = after.filter(|after| after.lease == lease);
            let first = row_key(b"c", stack, lease, begun.map_or(0, |after| after.frame));
            let end = row_key(b"c", stack, lease, u64::MAX);
            for guard in self.db.access.range(first..=end) {
                let (frame_key, value) = guard.into_inner()?;
                let number = last_number(&frame_key)?;
                let frame = Frame::unpack(&value)?;
                for (index, call) in frame.calls(&session, filter) {
                    let mark = CallMark {
                        lease,
                        frame: number,
                        call: index,
                    };
                    if after.is_some_and(|after| mark <= after) {
                        continue;
                    }
                    if page.calls.len() == limit {
                        page.next = last;
                        return Ok(page);
                    }
                    page.calls.push(call);
                    last = Some(mark);
                }
            }
        }
        Ok(page)
    }

    /// Puts what waits in frames into the index.
    fn seal_all(&self, stack: StackId, filter: &AccessFilter) -> Result<()> {
        for (lease, record) in self.records(stack, filter)? {
            if record.waiting == 0 {
                continue;
            }
            let _turn = self.turn(lease);
            if let Some(mut record) = self.record(stack, lease)? {
                self.seal(stack, lease, &mut record)?;
            }
        }
        Ok(())
    }

    /// Puts the frames of a session into the index. With its lock held.
    fn seal(&self, stack: StackId, lease: LeaseId, record: &mut SessionRecord) -> Result<()> {
        let mut batch = self.db.batch();
        let mut frames = Vec::new();
        let first = row_key(b"f", stack, lease, record.sealed);
        let end = row_key(b"f", stack, lease, u64::MAX);
        for guard in self.db.access.range(first..=end) {
            let (place, value) = guard.into_inner()?;
            frames.push(Frame::unpack(&value)?);
            batch.remove(&self.db.access, &place);
        }
        let access = &self.db.access;
        let rows = index::seal(&mut batch, access, (stack, lease), record, &frames);
        record.rows += rows;
        record.waiting = 0;
        record.sealed = record.frames;
        self.put(&mut batch, stack, lease, record);
        self.db.commit(batch, Durability::Process)
    }

    fn turn(&self, lease: LeaseId) -> parking_lot::MutexGuard<'_, ()> {
        self.changing[(lease.0 % LOCKS as u64) as usize].lock()
    }

    fn put(&self, batch: &mut DbBatch, stack: StackId, lease: LeaseId, record: &SessionRecord) {
        let place = session_key(b"s", stack, lease);
        batch.insert(&self.db.access, &place, &db::encode(record));
    }

    /// The records that `filter` is about, in the order of their leases.
    fn records(
        &self,
        stack: StackId,
        filter: &AccessFilter,
    ) -> Result<Vec<(LeaseId, SessionRecord)>> {
        let prefix = match filter.lease {
            Some(lease) => session_key(b"s", stack, lease),
            None => key(&[b"s", &stack.0.to_be_bytes()]),
        };
        let mut records = Vec::new();
        for guard in self.db.access.prefix(prefix) {
            let (key, value) = guard.into_inner()?;
            let record: SessionRecord = db::decode("the record of a session's accesses", &value)?;
            let wanted = filter.session.as_ref();
            if wanted.is_none_or(|wanted| *wanted == record.session) {
                records.push((LeaseId(last_number(&key)?), record));
            }
        }
        Ok(records)
    }

    fn record(&self, stack: StackId, lease: LeaseId) -> Result<Option<SessionRecord>> {
        match self.db.access.get(session_key(b"s", stack, lease))? {
            None => Ok(None),
            Some(value) => db::decode("the record of a session's accesses", &value).map(Some),
        }
    }
}

impl std::fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessLog").finish_non_exhaustive()
    }
}

/// Rows by what they are folded by: path, kind, session, actor, content.
type Folded = BTreeMap<(RelPath, AccessKind, Arc<str>, Arc<Actor>, Option<Digest>), AccessRow>;

fn fold(folded: &mut Folded, row: AccessRow) {
    let key = (
        row.path.clone(),
        row.kind,
        Arc::clone(&row.session),
        Arc::clone(&row.actor),
        row.digest,
    );
    match folded.entry(key) {
        std::collections::btree_map::Entry::Vacant(entry) => {
            entry.insert(row);
        }
        std::collections::btree_map::Entry::Occupied(mut entry) => {
            let known = entry.get_mut();
            known.count += row.count;
            known.bytes += row.bytes;
            known.first_unix_ms = known.first_unix_ms.min(row.first_unix_ms);
            known.last_unix_ms = known.last_unix_ms.max(row.last_unix_ms);
        }
    }
}

fn session_key(kind: &[u8], stack: StackId, lease: LeaseId) -> Vec<u8> {
    key(&[kind, &stack.0.to_be_bytes(), &lease.0.to_be_bytes()])
}

fn row_key(kind: &[u8], stack: StackId, lease: LeaseId, number: u64) -> Vec<u8> {
    key(&[
        kind,
        &stack.0.to_be_bytes(),
        &lease.0.to_be_bytes(),
        &number.to_be_bytes(),
    ])
}

/// The number that a key ends with: a lease's, or a frame's.
fn last_number(key: &[u8]) -> Result<u64> {
    key.last_chunk()
        .map(|bytes| u64::from_be_bytes(*bytes))
        .ok_or_else(|| Error::Corrupt {
            what: "a key of the access log".to_owned(),
            detail: "it is too short".to_owned(),
        })
}
