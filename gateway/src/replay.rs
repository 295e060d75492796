//! Replays: a request that comes again under its id gets its first answer.
//!
//! A caller that lost the connection may send a change again without doing it twice. Only requests
//! that change something and that the caller named are kept, for a day.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sandstack_api::{ApiError, ErrorCode, OperationName, RequestId};
use sandstack_store::{Digest, Store, Table};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};

/// How long an answer is kept, in milliseconds: a day.
const KEPT_MS: u64 = 24 * 3600 * 1000;
/// Answers after which old ones are looked for.
const SWEEP: u64 = 512;

#[derive(Serialize, Deserialize)]
struct ReplayRow {
    body: Digest,
    time_unix_ms: u64,
    /// JSON text of the answer, or of the error.
    answer: String,
    failed: bool,
}

pub(crate) struct Replays {
    table: Table,
    /// Requests that are being worked on; a second one of the same id waits for the first.
    current: Mutex<HashMap<RequestId, Arc<tokio::sync::Mutex<()>>>>,
    kept: Mutex<u64>,
}

/// The right to work on a request of some id.
pub(crate) struct Turn {
    id: RequestId,
    body: Digest,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

impl Replays {
    pub(crate) fn open(store: &Store) -> Self {
        Replays {
            table: store.table("replays"),
            current: Mutex::default(),
            kept: Mutex::new(0),
        }
    }

    /// Waits for the turn of a request. If it was answered before, that answer is returned instead.
    pub(crate) async fn begin(
        &self,
        id: &RequestId,
        operation: OperationName,
        body: &[u8],
    ) -> Result<std::result::Result<Turn, std::result::Result<Value, ApiError>>> {
        let lock = Arc::clone(self.current.lock().entry(id.clone()).or_default());
        let guard = lock.lock_owned().await;
        let body = Digest::of(&[operation.as_str().as_bytes(), b"\0", body].concat());
        let known: Option<ReplayRow> =
            tokio::task::block_in_place(|| self.table.get(id.as_ref().as_bytes()))?;
        let Some(row) = known.filter(|row| row.time_unix_ms + KEPT_MS > now_unix_ms()) else {
            return Ok(Ok(Turn {
                id: id.clone(),
                body,
                _guard: guard,
            }));
        };
        if row.body != body {
            return Err(Failure::new(
                ErrorCode::RequestIdConflict,
                format!(
                    "request id {id} was used for another request within the last day; choose a new one"
                ),
            ));
        }
        let unreadable = |error| Failure::internal("a kept answer cannot be read").caused_by(error);
        if row.failed {
            let error: ApiError = serde_json::from_str(&row.answer).map_err(unreadable)?;
            return Ok(Err(Err(error)));
        }
        Ok(Err(Ok(
            serde_json::from_str(&row.answer).map_err(unreadable)?
        )))
    }

    /// Keeps the answer of a request. One that may go otherwise at another time is not kept.
    pub(crate) fn end(&self, turn: Turn, answer: &std::result::Result<Value, ApiError>) {
        let kept = match answer {
            Ok(value) => Some((value.to_string(), false)),
            Err(error) if error.retryable || error.code == ErrorCode::Internal => None,
            Err(error) => serde_json::to_string(error).ok().map(|text| (text, true)),
        };
        if let Some((answer, failed)) = kept {
            let row = ReplayRow {
                body: turn.body,
                time_unix_ms: now_unix_ms(),
                answer,
                failed,
            };
            if let Err(error) = self.table.put(turn.id.as_ref().as_bytes(), &row) {
                tracing::warn!(request_id = %turn.id, %error, "an answer could not be kept for a replay");
            }
            self.sweep();
        }
        let mut current = self.current.lock();
        let id = turn.id.clone();
        drop(turn);
        // Nobody else waits for the turn: two references are the map's and ours.
        if current
            .get(&id)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            current.remove(&id);
        }
    }

    fn sweep(&self) {
        let mut kept = self.kept.lock();
        *kept += 1;
        if !kept.is_multiple_of(SWEEP) {
            return;
        }
        let limit = now_unix_ms().saturating_sub(KEPT_MS);
        let mut old = Vec::new();
        let scan = self.table.scan(b"", |key, row: ReplayRow| {
            if row.time_unix_ms < limit {
                old.push(key.to_vec());
            }
            true
        });
        let result = scan.and_then(|()| self.table.remove_many(old.iter().map(Vec::as_slice)));
        if let Err(error) = result {
            tracing::warn!(%error, "old answers could not be removed");
        }
    }
}
