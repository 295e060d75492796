//! How long records are kept: until their stack goes, or there are too many.

use std::sync::atomic::Ordering;

use super::{AccessFilter, AccessLog, Actor, Gap, index, row_key};
use crate::db::{self, Durability, key};
use crate::error::Result;
use crate::lease::LeaseId;
use crate::stack::StackId;
use crate::writers;

/// Keys that are removed at a time.
const REMOVED_AT_ONCE: usize = 10_000;

impl AccessLog {
    /// Keeps so many rows of each stack; what is older goes, session by session.
    pub fn keep_rows(&self, bound: u64) {
        self.bound.store(bound, Ordering::Relaxed);
    }

    /// Removes everything that is recorded of a stack.
    ///
    /// # Errors
    /// As [`AccessLog::begin`].
    pub fn forget(&self, stack: StackId) -> Result<()> {
        let parts: [&[u8]; 4] = [b"s", b"f", b"c", b"g"];
        let parts = parts.into_iter().chain(index::PARTS);
        for part in parts.chain(writers::PARTS) {
            let prefix = key(&[part, &stack.0.to_be_bytes()]);
            self.remove(prefix, |_, _| Ok(Vec::new()))?;
        }
        Ok(())
    }

    /// Removes the records of the oldest sessions if there are more rows than the bound. That they were
    /// removed is a gap.
    pub(super) fn trim(&self, stack: StackId, now_unix_ms: u64) -> Result<()> {
        let bound = self.bound.load(Ordering::Relaxed);
        let records = self.records(stack, &AccessFilter::default())?;
        let mut rows: u64 = records.iter().map(|(_, record)| record.rows).sum();
        for (lease, _) in records {
            if rows <= bound {
                break;
            }
            let turn = self.turn(lease);
            let Some(mut record) = self.record(stack, lease)? else {
                continue;
            };
            if record.rows == 0 {
                continue;
            }
            rows -= record.rows.min(rows);
            let gap = Gap {
                session: record.session.clone(),
                from_unix_ms: record.first_unix_ms,
                to_unix_ms: now_unix_ms,
                reason: format!(
                    "the oldest records were removed, since no more than {bound} rows are kept"
                ),
            };
            // The gap first: what is half removed is told of.
            let mut batch = self.db.batch();
            let place = row_key(b"g", stack, lease, record.gaps);
            batch.insert(&self.db.access, &place, &db::encode(&gap));
            record.gaps += 1;
            record.rows = 0;
            record.first_unix_ms = now_unix_ms;
            self.put(&mut batch, stack, lease, &record);
            self.db.commit(batch, Durability::Process)?;
            self.remove_rows(stack, lease)?;
            drop(turn);
            self.tell(stack, &gap);
        }
        Ok(())
    }

    /// Removes the rows in the index, and the calls, of a session.
    fn remove_rows(&self, stack: StackId, lease: LeaseId) -> Result<()> {
        let (stack_key, lease_key) = (stack.0.to_be_bytes(), lease.0.to_be_bytes());
        let of_session = |part: &[u8]| key(&[part, &stack_key, &lease_key]);
        // What lies elsewhere is found by what lies here, so it goes first.
        self.remove(of_session(b"l"), |place, _| {
            let (path, seal) = place[17..].split_at(place.len() - 17 - 4);
            Ok(vec![key(&[b"p", &stack_key, path, &lease_key, seal])])
        })?;
        self.remove(of_session(b"a"), |_, value| {
            let actor: Actor = db::decode("an actor of the access log", value)?;
            let mut others = Vec::new();
            let command = index::command_key(&actor);
            others.push(key(&[b"m", &stack_key, &command, &lease_key]));
            if let Some(pid) = actor.pid {
                let pid = pid.to_be_bytes();
                others.push(key(&[b"q", &stack_key, &pid, &lease_key, &command]));
            }
            Ok(others)
        })?;
        for part in [b"c", b"k"] {
            self.remove(of_session(part), |_, _| Ok(Vec::new()))?;
        }
        Ok(())
    }

    /// Removes the keys with a prefix, each with those that `others` says.
    fn remove(
        &self,
        prefix: Vec<u8>,
        others: impl Fn(&[u8], &[u8]) -> Result<Vec<Vec<u8>>>,
    ) -> Result<()> {
        let mut batch = self.db.batch();
        let mut removed = 0;
        for guard in self.db.access.prefix(prefix) {
            let (place, value) = guard.into_inner()?;
            batch.remove(&self.db.access, &place);
            for other in others(&place, &value)? {
                batch.remove(&self.db.access, &other);
            }
            removed += 1;
            if removed % REMOVED_AT_ONCE == 0 {
                let full = std::mem::replace(&mut batch, self.db.batch());
                self.db.commit(full, Durability::Process)?;
            }
        }
        self.db.commit(batch, Durability::Process)
    }
}
