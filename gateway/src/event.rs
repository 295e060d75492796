//! Events: what happened, durable, numbered without gaps.

use parking_lot::Mutex;
use sandstack_api::observability::Event;
use sandstack_api::{CommandId, RequestId, SandboxId, SessionId};
use sandstack_store::{Store, Table};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::clock::now_unix_ms;
use crate::failure::Result;

/// Events beyond the bound that are removed at a time.
const TRIM: u64 = 256;
/// Events that are looked at for one batch of those that follow.
const LOOKED_AT: usize = 1000;

/// What an event is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    pub(crate) sandbox: Option<SandboxId>,
    pub(crate) session: Option<SessionId>,
    pub(crate) command: Option<CommandId>,
    pub(crate) request: Option<RequestId>,
}

/// An event as it is kept: ids as text, details as JSON text.
#[derive(Debug, Serialize, Deserialize)]
struct EventRow {
    name: String,
    time_unix_ms: u64,
    sandbox: Option<String>,
    session: Option<String>,
    command: Option<String>,
    request: Option<String>,
    details: String,
}

/// Which events are wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventFilter {
    pub(crate) sandbox: Option<SandboxId>,
    /// A name, or a family: `command.*`.
    pub(crate) name: Option<String>,
    pub(crate) since_unix_ms: Option<u64>,
    pub(crate) limit: usize,
}

impl EventFilter {
    /// Whether an event is wanted, whenever it was.
    fn wants(&self, row: &EventRow) -> bool {
        let sandbox = self.sandbox.as_ref();
        let name = self.name.as_deref();
        sandbox.is_none_or(|id| row.sandbox.as_deref() == Some(id.as_ref()))
            && name.is_none_or(|pattern| matches(pattern, &row.name))
    }
}

/// Events in the order in which they happened.
#[derive(Debug, Default)]
pub(crate) struct Following {
    pub(crate) events: Vec<Event>,
    /// The number of the last that was looked at, wanted or not.
    pub(crate) last: u64,
    /// Whether there may be more.
    pub(crate) more: bool,
    /// The oldest that is kept.
    pub(crate) oldest: u64,
}

pub(crate) struct EventLog {
    table: Table,
    bound: u64,
    /// The next number, and the oldest that is kept.
    numbers: Mutex<(u64, u64)>,
    /// The number of the last event that was written.
    written: watch::Sender<u64>,
}

impl EventLog {
    pub(crate) fn open(store: &Store, bound: u64) -> Result<EventLog> {
        let table = store.table("events");
        let mut next = 1;
        table.scan_back(b"", |key, _: EventRow| {
            next = number(key) + 1;
            false
        })?;
        let mut oldest = next;
        table.scan(b"", |key, _: EventRow| {
            oldest = number(key);
            false
        })?;
        Ok(EventLog {
            table,
            bound,
            numbers: Mutex::new((next, oldest)),
            written: watch::channel(next - 1).0,
        })
    }

    /// Records an event. One that cannot be written (a full disk) is told to the log and lost; what
    /// it tells of has happened all the same.
    pub(crate) fn record(&self, name: &str, subject: Subject, details: Value) {
        let row = EventRow {
            name: name.to_owned(),
            time_unix_ms: now_unix_ms(),
            sandbox: subject.sandbox.map(|id| id.to_string()),
            session: subject.session.map(|id| id.to_string()),
            command: subject.command.map(|id| id.to_string()),
            request: subject.request.map(|id| id.to_string()),
            details: details.to_string(),
        };
        let mut numbers = self.numbers.lock();
        if let Err(error) = self.table.put(&numbers.0.to_be_bytes(), &row) {
            tracing::error!(name, %error, "an event could not be recorded");
            return;
        }
        self.written.send_replace(numbers.0);
        numbers.0 += 1;
        if numbers.0 - numbers.1 > self.bound + TRIM {
            let old: Vec<[u8; 8]> = (numbers.1..numbers.1 + TRIM)
                .map(u64::to_be_bytes)
                .collect();
            match self.table.remove_many(old.iter().map(<[u8; 8]>::as_slice)) {
                Ok(()) => numbers.1 += TRIM,
                Err(error) => tracing::warn!(%error, "old events could not be removed"),
            }
        }
    }

    /// Tells of the number of each event that is written.
    pub(crate) fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// The events that are wanted after number `last`, oldest first. What is looked at is bounded.
    pub(crate) fn after(&self, last: u64, filter: &EventFilter) -> Result<Following> {
        let mut following = Following {
            last,
            oldest: self.numbers.lock().1,
            ..Following::default()
        };
        let mut looked_at = 0;
        self.table
            .scan_from(&(last + 1).to_be_bytes(), |key, row: EventRow| {
                if looked_at == LOOKED_AT || following.events.len() >= filter.limit {
                    following.more = true;
                    return false;
                }
                looked_at += 1;
                following.last = number(key);
                if filter.wants(&row) {
                    following.events.push(show(number(key), row));
                }
                true
            })?;
        Ok(following)
    }

    /// The newest events that are wanted, newest first.
    pub(crate) fn find(&self, filter: &EventFilter) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.table.scan_back(b"", |key, row: EventRow| {
            if filter
                .since_unix_ms
                .is_some_and(|since| row.time_unix_ms < since)
            {
                // Times go back only when the clock was set: what is older than that is passed too.
                return false;
            }
            if filter.wants(&row) {
                events.push(show(number(key), row));
            }
            events.len() < filter.limit
        })?;
        Ok(events)
    }
}

fn number(key: &[u8]) -> u64 {
    key.try_into().map_or(0, u64::from_be_bytes)
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(family) => name.starts_with(family),
        None => name == pattern,
    }
}

fn show(sequence: u64, row: EventRow) -> Event {
    Event {
        sequence,
        name: row.name,
        time_unix_ms: row.time_unix_ms,
        sandbox_id: row.sandbox.and_then(|id| SandboxId::new(&id).ok()),
        workspace_session_id: row.session.and_then(|id| SessionId::new(&id).ok()),
        command_session_id: row.command.and_then(|id| CommandId::new(&id).ok()),
        request_id: row.request.and_then(|id| RequestId::new(&id).ok()),
        details: serde_json::from_str(&row.details).unwrap_or(Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_comes_in_order_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let log = EventLog::open(&store, 100_000).unwrap();
        for index in 0..2500 {
            let name = if index % 500 == 0 {
                "gc.collected"
            } else {
                "lease.taken"
            };
            log.record(name, Subject::default(), Value::Null);
        }
        let filter = EventFilter {
            name: Some("gc.*".to_owned()),
            limit: 2,
            ..EventFilter::default()
        };
        let (mut last, mut seen, mut reads) = (0, Vec::new(), 0);
        loop {
            let following = log.after(last, &filter).unwrap();
            seen.extend(following.events.iter().map(|event| event.sequence));
            last = following.last;
            reads += 1;
            if !following.more {
                break;
            }
        }
        assert_eq!(seen, [1, 501, 1001, 1501, 2001]);
        assert_eq!(last, 2500);
        assert!(reads > 2, "what is looked at at a time is bounded");
        assert_eq!(*log.written().borrow(), 2500);
    }

    #[test]
    fn the_newest_come_first_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let log = EventLog::open(&store, 100).unwrap();
        for index in 0..1000 {
            let name = if index % 2 == 0 {
                "command.started"
            } else {
                "lease.taken"
            };
            log.record(
                name,
                Subject::default(),
                serde_json::json!({ "index": index }),
            );
        }
        let all = log
            .find(&EventFilter {
                limit: 10_000,
                ..EventFilter::default()
            })
            .unwrap();
        assert!(all.len() as u64 <= 100 + TRIM, "{}", all.len());
        assert_eq!(all[0].sequence, 1000);
        assert!(
            all.windows(2)
                .all(|pair| pair[0].sequence == pair[1].sequence + 1)
        );
        let filter = EventFilter {
            name: Some("command.*".to_owned()),
            limit: 3,
            ..EventFilter::default()
        };
        let some: Vec<u64> = log
            .find(&filter)
            .unwrap()
            .iter()
            .map(|event| event.sequence)
            .collect();
        assert_eq!(some, [999, 997, 995]);
        drop(log);
        let log = EventLog::open(&store, 100).unwrap();
        log.record("again", Subject::default(), Value::Null);
        let newest = log
            .find(&EventFilter {
                limit: 1,
                ..EventFilter::default()
            })
            .unwrap();
        assert_eq!(newest[0].sequence, 1001);
    }
}
