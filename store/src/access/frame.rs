//! Frames of the access log: how what a recorder hands over at a time is packed.
//!
//! Paths and actors are named once; rows and calls refer to them by number. A frame is zstd of postcard.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::{AccessCall, AccessFilter, AccessKind, AccessRow, Actor};
use crate::db;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::name::RelPath;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Frame {
    actors: Vec<Actor>,
    paths: Vec<RelPath>,
    digests: Vec<Digest>,
    rows: Vec<FrameRow>,
    /// In the order in which they were made.
    calls: Vec<FrameCall>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FrameRow {
    path: u32,
    actor: u32,
    pub(super) kind: AccessKind,
    digest: Option<u32>,
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) first_unix_ms: u64,
    pub(super) last_unix_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct FrameCall {
    path: u32,
    actor: u32,
    kind: AccessKind,
    offset: u64,
    length: u64,
    at_unix_ms: u64,
}

/// What is named in a frame, and by which number.
#[derive(Default)]
struct Numbers<'a> {
    paths: HashMap<&'a RelPath, u32, RandomState>,
    actors: HashMap<&'a Actor, u32>,
    /// By address: most rows share theirs, and an actor is long.
    shared: HashMap<*const Actor, u32, RandomState>,
    digests: HashMap<&'a Digest, u32, RandomState>,
}

impl<'a> Numbers<'a> {
    fn path(&mut self, frame: &mut Frame, path: &'a RelPath) -> u32 {
        *self.paths.entry(path).or_insert_with(|| {
            frame.paths.push(path.clone());
            frame.paths.len() as u32 - 1
        })
    }

    fn digest(&mut self, frame: &mut Frame, digest: &'a Digest) -> u32 {
        *self.digests.entry(digest).or_insert_with(|| {
            frame.digests.push(*digest);
            frame.digests.len() as u32 - 1
        })
    }

    fn actor(&mut self, frame: &mut Frame, actor: &'a Arc<Actor>) -> u32 {
        let actors = &mut self.actors;
        *self.shared.entry(Arc::as_ptr(actor)).or_insert_with(|| {
            *actors.entry(actor).or_insert_with(|| {
                frame.actors.push(Actor::clone(actor));
                frame.actors.len() as u32 - 1
            })
        })
    }
}

impl Frame {
    pub(super) fn of(rows: &[AccessRow], calls: &[AccessCall]) -> Frame {
        let mut frame = Frame::default();
        let mut numbers = Numbers::default();
        for row in rows {
            let row = FrameRow {
                path: numbers.path(&mut frame, &row.path),
                actor: numbers.actor(&mut frame, &row.actor),
                kind: row.kind,
                digest: row
                    .digest
                    .as_ref()
                    .map(|digest| numbers.digest(&mut frame, digest)),
                count: row.count,
                bytes: row.bytes,
                first_unix_ms: row.first_unix_ms,
                last_unix_ms: row.last_unix_ms,
            };
            frame.rows.push(row);
        }
        for call in calls {
            let call = FrameCall {
                path: numbers.path(&mut frame, &call.path),
                actor: numbers.actor(&mut frame, &call.actor),
                kind: call.kind,
                offset: call.offset,
                length: call.length,
                at_unix_ms: call.at_unix_ms,
            };
            frame.calls.push(call);
        }
        frame
    }

    pub(super) fn pack(&self) -> Result<Vec<u8>> {
        zstd::bulk::compress(&db::encode(self), 1).map_err(|error| corrupt(error.to_string()))
    }

    pub(super) fn unpack(value: &[u8]) -> Result<Frame> {
        let plain = zstd::decode_all(value).map_err(|error| corrupt(error.to_string()))?;
        let frame: Frame = db::decode("a frame of the access log", &plain)?;
        let rows = frame.rows.iter().map(|row| (row.path, row.actor));
        let calls = frame.calls.iter().map(|call| (call.path, call.actor));
        let mut digests = frame.rows.iter().filter_map(|row| row.digest);
        let whole = rows.chain(calls).all(|(path, actor)| {
            (path as usize) < frame.paths.len() && (actor as usize) < frame.actors.len()
        }) && digests.all(|digest| (digest as usize) < frame.digests.len());
        if whole {
            Ok(frame)
        } else {
            Err(corrupt(
                "a row names a path, an actor or a digest that is not there".to_owned(),
            ))
        }
    }

    /// Who is named in it; rows name them by their place here.
    pub(super) fn actors(&self) -> &[Actor] {
        &self.actors
    }

    /// The rows: the path, the place of the actor, the content, and the rest.
    pub(super) fn rows(
        &self,
    ) -> impl Iterator<Item = (&RelPath, usize, Option<Digest>, &FrameRow)> {
        self.rows.iter().map(|row| {
            let digest = row.digest.map(|digest| self.digests[digest as usize]);
            let path = &self.paths[row.path as usize];
            (path, row.actor as usize, digest, row)
        })
    }

    /// The calls that `filter` wants, each with its number in the frame.
    pub(super) fn calls(
        &self,
        session: &Arc<str>,
        filter: &AccessFilter,
    ) -> Vec<(u32, AccessCall)> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let actors: Vec<Arc<Actor>> = self.actors.iter().cloned().map(Arc::new).collect();
        let wanted = self.calls.iter().zip(0..).filter_map(|(call, index)| {
            let call = AccessCall {
                session: Arc::clone(session),
                path: self.paths[call.path as usize].clone(),
                kind: call.kind,
                actor: Arc::clone(&actors[call.actor as usize]),
                offset: call.offset,
                length: call.length,
                at_unix_ms: call.at_unix_ms,
            };
            filter.wants_call(&call).then_some((index, call))
        });
        wanted.collect()
    }
}

fn corrupt(detail: String) -> Error {
    Error::Corrupt {
        what: "a frame of the access log".to_owned(),
        detail,
    }
}
