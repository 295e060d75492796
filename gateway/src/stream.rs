//! Streams to callers, and the one of events as they happen: `GET /v1/stream/events`.
//!
//! A stream goes on after the event that the caller names (`Last-Event-ID`), or begins with the next
//! one. Events that are not kept any more are told of as a gap. A caller that is slow has a slow stream:
//! events are read from the log as they are sent, so none is lost on the way and none waits in memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::sse::Event as ServerEvent;
use futures_util::Stream;
use futures_util::stream::unfold;
use sandstack_api::observability::Event;
use sandstack_api::{ErrorCode, SandboxId};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use crate::auth::Principal;
use crate::event::EventFilter;
use crate::failure::{Failure, Result};
use crate::gateway::Gateway;

/// Streams at once.
const MAX_STREAMS: usize = 256;
/// Events that are read at a time.
const BATCH: usize = 100;

/// Which events a stream has: the query of its address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// Only events of this sandbox.
    sandbox_id: Option<SandboxId>,
    /// Only events of this name, or of a family: `command.*`.
    name: Option<String>,
}

/// The streams that there are, and whether they are to end.
pub(crate) struct Streams {
    open: AtomicUsize,
    ending: watch::Sender<bool>,
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            open: AtomicUsize::new(0),
            ending: watch::channel(false).0,
        }
    }
}

/// A stream that is open, for as long as this is kept.
pub(crate) struct Open(Arc<Gateway>);

impl Open {
    /// # Errors
    /// There are too many streams.
    pub(crate) fn one_more(gateway: &Arc<Gateway>) -> Result<Open> {
        let open = Open(Arc::clone(gateway));
        if gateway.streams.open.fetch_add(1, Ordering::Relaxed) >= MAX_STREAMS {
            let message = format!("{MAX_STREAMS} streams are open already; close some");
            return Err(Failure::new(ErrorCode::Busy, message));
        }
        Ok(open)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.streams.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Streams {
    /// Becomes true when all streams are to end.
    pub(crate) fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// Ends all streams: the gateway is about to stop.
    pub(crate) fn end(&self) {
        self.ending.send_replace(true);
    }
}

struct Reader {
    gateway: Arc<Gateway>,
    principal: Principal,
    filter: EventFilter,
    /// The number of the last event that was looked at.
    last: u64,
    ready: VecDeque<Sent>,
    written: watch::Receiver<u64>,
    ending: watch::Receiver<bool>,
    _open: Open,
}

enum Sent {
    Event(Event),
    /// Events from one number to another are not kept any more.
    Gap(u64, u64),
}

/// What the caller of a stream is sent.
pub(crate) type Sending =
    Pin<Box<dyn Stream<Item = std::result::Result<ServerEvent, Infallible>> + Send>>;

/// The events after number `last`; `None`: those that are still to come.
///
/// # Errors
/// There are too many streams, or the caller may not see the sandbox.
pub(crate) fn events(
    gateway: &Arc<Gateway>,
    principal: Principal,
    wanted: Wanted,
    last: Option<u64>,
) -> Result<Sending> {
    if let Some(sandbox) = &wanted.sandbox_id {
        principal.require_sandbox(sandbox)?;
    }
    let open = Open::one_more(gateway)?;
    let written = gateway.events.written();
    let reader = Reader {
        principal,
        filter: EventFilter {
            sandbox: wanted.sandbox_id,
            name: wanted.name,
            since_unix_ms: None,
            limit: BATCH,
        },
        last: last.unwrap_or_else(|| *written.borrow()),
        ready: VecDeque::new(),
        written,
        ending: gateway.streams.ending(),
        _open: open,
        gateway: Arc::clone(gateway),
    };
    Ok(Box::pin(unfold(reader, |mut reader| async move {
        let sent = reader.next().await?;
        Some((Ok(shown(&sent)), reader))
    })))
}

impl Reader {
    /// `None`: the gateway is about to stop, or the log cannot be read.
    async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some(sent) = self.ready.pop_front() {
                return Some(sent);
            }
            self.written.mark_unchanged();
            let (gateway, filter, last) =
                (Arc::clone(&self.gateway), self.filter.clone(), self.last);
            let read = self
                .gateway
                .blocking(move || gateway.events.after(last, &filter))
                .await;
            let found = match read {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!(error = error.in_full(), "a stream of events ends");
                    return None;
                }
            };
            if found.oldest > self.last + 1 {
                self.ready
                    .push_back(Sent::Gap(self.last + 1, found.oldest - 1));
            }
            let may_see = |event: &Event| {
                let sandbox = event.sandbox_id.as_ref();
                sandbox.is_none_or(|sandbox| self.principal.require_sandbox(sandbox).is_ok())
            };
            self.last = found.last;
            let events = found.events.into_iter().filter(may_see);
            self.ready.extend(events.map(Sent::Event));
            if !self.ready.is_empty() || found.more {
                continue;
            }
            tokio::select! {
                changed = self.written.changed() => changed.ok()?,
                ended = self.ending.wait_for(|ending| *ending) => {
                    let _ = ended;
                    return None;
                }
            }
        }
    }
}

fn shown(sent: &Sent) -> ServerEvent {
    match sent {
        Sent::Event(event) => {
            let data = serde_json::to_string(event).unwrap_or_default();
            ServerEvent::default()
                .id(event.sequence.to_string())
                .event(&event.name)
                .data(data)
        }
        Sent::Gap(from, to) => {
            let data = json!({ "from_sequence": from, "to_sequence": to });
            ServerEvent::default().event("gap").data(data.to_string())
        }
    }
}
