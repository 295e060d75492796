//! The access log: who read and wrote which path, durable in batches.
//!
//! A session's recorder folds accesses of the same path, kind and process and appends the folded
//! rows as a *frame*, several times a second while something happens. A frame is acknowledged when
//! it survives a killed process. A session whose recorder did not end in order lost what came after
//! its last frame: that is kept as a [`Gap`], never passed over.
//!
//! # Keys in the database
//! `s`, stack, lease: what is known of the session's record; `f`, stack, lease, number: a frame
//! (zstd of postcard); `g`, stack, lease, number: a gap. Numbers are 64-bit big-endian. What
//! [`crate::writers`] makes of it is beside them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::db::{self, Db, Durability, key};
use crate::error::{Error, Result};
use crate::lease::LeaseId;
use crate::name::RelPath;
use crate::stack::StackId;

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
    /// How often.
    pub count: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// The first time, in Unix milliseconds.
    pub first_unix_ms: u64,
    /// The last time, in Unix milliseconds.
    pub last_unix_ms: u64,
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

/// Which rows are wanted. Everything that is `None` or empty matches all.
#[derive(Clone, Debug, Default)]
pub struct AccessFilter {
    /// Only this session's record.
    pub lease: Option<LeaseId>,
    /// Only this path.
    pub path: Option<RelPath>,
    /// Only this command.
    pub command: Option<String>,
    /// Only this process.
    pub pid: Option<u32>,
    /// Only these kinds.
    pub kinds: Vec<AccessKind>,
    /// Only what happened at or after this time, in Unix milliseconds.
    pub since_unix_ms: Option<u64>,
    /// Only what happened before this time, in Unix milliseconds.
    pub until_unix_ms: Option<u64>,
}

/// What a query found.
#[derive(Clone, Debug, Default)]
pub struct AccessAnswer {
    /// The rows, folded, in order of path, kind and first time.
    pub rows: Vec<AccessRow>,
    /// The trace modes of the sessions that were looked at.
    pub modes: Vec<String>,
    /// Where records of those sessions may have been lost.
    pub gaps: Vec<Gap>,
}

/// The access log of a store.
pub struct AccessLog {
    db: Arc<Db>,
}

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
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Frame {
    actors: Vec<Actor>,
    paths: Vec<RelPath>,
    rows: Vec<FrameRow>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FrameRow {
    path: u32,
    actor: u32,
    kind: AccessKind,
    count: u64,
    bytes: u64,
    first_unix_ms: u64,
    last_unix_ms: u64,
}

/// An access, as far as whose it was.
pub(crate) struct Logged {
    pub(crate) path: RelPath,
    pub(crate) kind: AccessKind,
    pub(crate) command: Option<String>,
}

/// What came to the record of a session.
#[derive(Default)]
pub(crate) struct Since {
    pub(crate) rows: Vec<Logged>,
    /// Frames that the record has now.
    pub(crate) frames: u64,
    /// Gaps that it has at all.
    pub(crate) gaps: u64,
}

impl AccessLog {
    pub(crate) fn open(db: Arc<Db>) -> Result<Self> {
        Ok(AccessLog { db })
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
        let mut batch = self.db.batch();
        let mut record = self.record(stack, lease)?.unwrap_or_else(|| SessionRecord {
            session: session.to_owned(),
            mode: mode.to_owned(),
            open: false,
            last_unix_ms: now_unix_ms,
            frames: 0,
            gaps: 0,
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
        batch.insert(
            &self.db.access,
            &session_key(stack, lease),
            &db::encode(&record),
        );
        self.db.commit(batch, Durability::Process)?;
        Ok(gap)
    }

    /// Appends folded rows of one session.
    ///
    /// # Errors
    /// As [`AccessLog::begin`].
    pub fn append(
        &self,
        stack: StackId,
        lease: LeaseId,
        rows: &[AccessRow],
        now_unix_ms: u64,
    ) -> Result<()> {
        let Some(mut record) = self.record(stack, lease)? else {
            return Err(Error::NoLease(lease));
        };
        let mut frame = Frame::default();
        let mut paths: HashMap<&RelPath, u32> = HashMap::new();
        let mut actors: HashMap<&Actor, u32> = HashMap::new();
        for row in rows {
            let path = *paths.entry(&row.path).or_insert_with(|| {
                frame.paths.push(row.path.clone());
                frame.paths.len() as u32 - 1
            });
            let actor = *actors.entry(&row.actor).or_insert_with(|| {
                frame.actors.push(Actor::clone(&row.actor));
                frame.actors.len() as u32 - 1
            });
            frame.rows.push(FrameRow {
                path,
                actor,
                kind: row.kind,
                count: row.count,
                bytes: row.bytes,
                first_unix_ms: row.first_unix_ms,
                last_unix_ms: row.last_unix_ms,
            });
        }
        let packed =
            zstd::bulk::compress(&db::encode(&frame), 1).map_err(|error| Error::Corrupt {
                what: "a frame of the access log".to_owned(),
                detail: error.to_string(),
            })?;
        let mut batch = self.db.batch();
        batch.insert(
            &self.db.access,
            &row_key(b"f", stack, lease, record.frames),
            &packed,
        );
        record.frames += 1;
        record.last_unix_ms = now_unix_ms;
        batch.insert(
            &self.db.access,
            &session_key(stack, lease),
            &db::encode(&record),
        );
        self.db.commit(batch, Durability::Process)
    }

    /// Ends the record of a session in order. The record stays.
    ///
    /// # Errors
    /// As [`AccessLog::begin`].
    pub fn end(&self, stack: StackId, lease: LeaseId, now_unix_ms: u64) -> Result<()> {
        let Some(mut record) = self.record(stack, lease)? else {
            return Ok(());
        };
        record.open = false;
        record.last_unix_ms = now_unix_ms;
        let mut batch = self.db.batch();
        batch.insert(
            &self.db.access,
            &session_key(stack, lease),
            &db::encode(&record),
        );
        self.db.commit(batch, Durability::Process)
    }

    /// Removes everything that is recorded of a stack.
    ///
    /// # Errors
    /// As [`AccessLog::begin`].
    pub fn forget(&self, stack: StackId) -> Result<()> {
        let mut batch = self.db.batch();
        for kind in [b"s", b"f", b"g", b"p", b"w", b"x"] {
            for guard in self.db.access.prefix(key(&[kind, &stack.0.to_be_bytes()])) {
                batch.remove(&self.db.access, &guard.key()?);
            }
        }
        self.db.commit(batch, Durability::Process)
    }

    /// Finds rows of a stack.
    ///
    /// # Errors
    /// [`Error::Database`] or [`Error::Corrupt`].
    pub fn query(&self, stack: StackId, filter: &AccessFilter) -> Result<AccessAnswer> {
        let mut answer = AccessAnswer::default();
        let prefix = |kind: &[u8]| match filter.lease {
            Some(lease) => key(&[kind, &stack.0.to_be_bytes(), &lease.0.to_be_bytes()]),
            None => key(&[kind, &stack.0.to_be_bytes()]),
        };
        let mut folded: BTreeMap<(RelPath, AccessKind, Arc<str>, Arc<Actor>), AccessRow> =
            BTreeMap::new();
        for guard in self.db.access.prefix(prefix(b"s")) {
            let (session_key, value) = guard.into_inner()?;
            let record: SessionRecord = db::decode("the record of a session's accesses", &value)?;
            if !answer.modes.contains(&record.mode) {
                answer.modes.push(record.mode.clone());
            }
            let session: Arc<str> = record.session.as_str().into();
            let tail = &session_key[1..];
            for guard in self.db.access.prefix(key(&[b"f", tail])) {
                let (_, value) = guard.into_inner()?;
                fold_frame(&decode_frame(&value)?, &session, filter, &mut folded);
            }
            for guard in self.db.access.prefix(key(&[b"g", tail])) {
                let (_, value) = guard.into_inner()?;
                answer
                    .gaps
                    .push(db::decode("a gap in the record of accesses", &value)?);
            }
        }
        answer.rows = folded.into_values().collect();
        answer.rows.sort_by(|one, other| {
            (&one.path, one.kind, one.first_unix_ms).cmp(&(
                &other.path,
                other.kind,
                other.first_unix_ms,
            ))
        });
        Ok(answer)
    }

    /// What was written to the record of a session after its first `frames` frames, in order.
    pub(crate) fn since(&self, stack: StackId, lease: LeaseId, frames: u64) -> Result<Since> {
        let Some(record) = self.record(stack, lease)? else {
            return Ok(Since::default());
        };
        let mut rows = Vec::new();
        for number in frames..record.frames {
            let Some(value) = self.db.access.get(row_key(b"f", stack, lease, number))? else {
                continue;
            };
            let frame = decode_frame(&value)?;
            rows.extend(frame.rows.iter().map(|row| Logged {
                path: frame.paths[row.path as usize].clone(),
                kind: row.kind,
                command: frame.actors[row.actor as usize].command.clone(),
            }));
        }
        Ok(Since {
            rows,
            frames: record.frames,
            gaps: record.gaps,
        })
    }

    fn record(&self, stack: StackId, lease: LeaseId) -> Result<Option<SessionRecord>> {
        match self.db.access.get(session_key(stack, lease))? {
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

fn decode_frame(value: &[u8]) -> Result<Frame> {
    let plain = zstd::decode_all(value).map_err(|error| Error::Corrupt {
        what: "a frame of the access log".to_owned(),
        detail: error.to_string(),
    })?;
    let frame: Frame = db::decode("a frame of the access log", &plain)?;
    let whole = frame.rows.iter().all(|row| {
        (row.path as usize) < frame.paths.len() && (row.actor as usize) < frame.actors.len()
    });
    if whole {
        Ok(frame)
    } else {
        Err(Error::Corrupt {
            what: "a frame of the access log".to_owned(),
            detail: "a row names a path or actor that is not there".to_owned(),
        })
    }
}

/// Rows by what they are folded by: path, kind, session, actor.
type Folded = BTreeMap<(RelPath, AccessKind, Arc<str>, Arc<Actor>), AccessRow>;

fn fold_frame(frame: &Frame, session: &Arc<str>, filter: &AccessFilter, folded: &mut Folded) {
    let actors: Vec<Arc<Actor>> = frame.actors.iter().cloned().map(Arc::new).collect();
    for row in &frame.rows {
        let path = &frame.paths[row.path as usize];
        let actor = &actors[row.actor as usize];
        let wanted = filter.path.as_ref().is_none_or(|wanted| wanted == path)
            && filter
                .command
                .as_ref()
                .is_none_or(|wanted| actor.command.as_ref() == Some(wanted))
            && filter.pid.is_none_or(|wanted| actor.pid == Some(wanted))
            && (filter.kinds.is_empty() || filter.kinds.contains(&row.kind))
            && filter
                .since_unix_ms
                .is_none_or(|since| row.last_unix_ms >= since)
            && filter
                .until_unix_ms
                .is_none_or(|until| row.first_unix_ms < until);
        if !wanted {
            continue;
        }
        folded
            .entry((
                path.clone(),
                row.kind,
                Arc::clone(session),
                Arc::clone(actor),
            ))
            .and_modify(|known| {
                known.count += row.count;
                known.bytes += row.bytes;
                known.first_unix_ms = known.first_unix_ms.min(row.first_unix_ms);
                known.last_unix_ms = known.last_unix_ms.max(row.last_unix_ms);
            })
            .or_insert_with(|| AccessRow {
                session: Arc::clone(session),
                path: path.clone(),
                kind: row.kind,
                actor: Arc::clone(actor),
                count: row.count,
                bytes: row.bytes,
                first_unix_ms: row.first_unix_ms,
                last_unix_ms: row.last_unix_ms,
            });
    }
}

fn session_key(stack: StackId, lease: LeaseId) -> Vec<u8> {
    key(&[b"s", &stack.0.to_be_bytes(), &lease.0.to_be_bytes()])
}

fn row_key(kind: &[u8], stack: StackId, lease: LeaseId, number: u64) -> Vec<u8> {
    key(&[
        kind,
        &stack.0.to_be_bytes(),
        &lease.0.to_be_bytes(),
        &number.to_be_bytes(),
    ])
}
