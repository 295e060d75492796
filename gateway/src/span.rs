//! Spans: where the time of each request went.
//!
//! A request carries a [`Trace`]; handlers open spans in it, also for work that goes on after the
//! answer (an automatic session's publish). Traces are kept in the store, the newest so many. Never
//! used for single filesystem requests: those are too many and too short.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use sandstack_api::observability::{Span, TraceReply};
use sandstack_api::{Authority, ErrorCode, OperationName, RequestId, SandboxId};
use sandstack_store::{Store, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};
use crate::otlp::{Ended, Exporter};

/// Most spans of one request; more are not opened.
const MAX_SPANS: usize = 1000;
/// Traces beyond the bound that are removed at a time.
const TRIM: u64 = 64;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SpanRow {
    name: String,
    parent: Option<u32>,
    start_us: u64,
    duration_us: Option<u64>,
    /// JSON text of an object.
    fields: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct TraceRow {
    request_id: String,
    operation: String,
    sandbox: Option<String>,
    started_unix_ms: u64,
    spans: Vec<SpanRow>,
}

/// The spans of one request. Clones share it.
#[derive(Clone)]
pub(crate) struct Trace {
    inner: Arc<TraceInner>,
}

struct TraceInner {
    log: Arc<SpanLog>,
    begun: Instant,
    /// `None`: it is not kept.
    number: Option<u64>,
    row: Mutex<TraceRow>,
}

/// An open span; it ends when dropped.
pub(crate) struct OpenSpan {
    trace: Trace,
    index: Option<usize>,
    begun: Instant,
}

pub(crate) struct SpanLog {
    traces: Table,
    by_id: Table,
    bound: u64,
    next: Mutex<u64>,
    /// Where spans are sent too; `None`: nowhere.
    pub(crate) exporter: Option<Exporter>,
}

impl SpanLog {
    /// With the newest `bound` traces kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn open(
        store: &Store,
        bound: u64,
        exporter: Option<Exporter>,
    ) -> Result<Arc<SpanLog>> {
        let traces = store.table("traces");
        let mut next = 1;
        traces.scan_back(b"", |key, _: TraceRow| {
            next = key.try_into().map_or(0, u64::from_be_bytes) + 1;
            false
        })?;
        Ok(Arc::new(SpanLog {
            traces,
            by_id: store.table("trace-numbers"),
            bound,
            next: Mutex::new(next),
            exporter,
        }))
    }

    /// Begins the trace of a request. One that only observes is not kept: who looks often would else
    /// push out what there is to look at.
    pub(crate) fn begin(
        self: &Arc<Self>,
        request_id: &RequestId,
        operation: OperationName,
    ) -> Trace {
        let observes = operation.row().authority == Authority::Observability;
        let number = (!observes).then(|| {
            let mut next = self.next.lock();
            *next += 1;
            *next - 1
        });
        let whole = SpanRow {
            name: operation.to_string(),
            parent: None,
            start_us: 0,
            duration_us: None,
            fields: "{}".to_owned(),
        };
        let row = TraceRow {
            request_id: request_id.to_string(),
            operation: operation.to_string(),
            sandbox: None,
            started_unix_ms: now_unix_ms(),
            spans: vec![whole],
        };
        Trace {
            inner: Arc::new(TraceInner {
                log: Arc::clone(self),
                begun: Instant::now(),
                number,
                row: Mutex::new(row),
            }),
        }
    }

    fn keep(&self, number: Option<u64>, row: &TraceRow) {
        let Some(number) = number else { return };
        let result = self
            .traces
            .put(&number.to_be_bytes(), row)
            .and_then(|()| self.by_id.put(row.request_id.as_bytes(), &number));
        if let Err(error) = result {
            tracing::warn!(%error, "a trace could not be kept");
        }
        if number.is_multiple_of(TRIM) && number > self.bound {
            self.trim(number - self.bound);
        }
    }

    fn trim(&self, below: u64) {
        let mut old = Vec::new();
        let scan = self.traces.scan(b"", |key, row: TraceRow| {
            let number: u64 = key.try_into().map_or(0, u64::from_be_bytes);
            if number < below {
                old.push((key.to_vec(), row.request_id));
            }
            number < below
        });
        let result = scan
            .and_then(|()| {
                self.traces
                    .remove_many(old.iter().map(|(key, _)| key.as_slice()))
            })
            .and_then(|()| {
                self.by_id
                    .remove_many(old.iter().map(|(_, id)| id.as_bytes()))
            });
        if let Err(error) = result {
            tracing::warn!(%error, "old traces could not be removed");
        }
    }

    /// The trace of request `id`, or the newest one that `wanted` takes (operation, sandbox).
    pub(crate) fn find(
        &self,
        id: Option<&RequestId>,
        wanted: impl Fn(&str, Option<&str>) -> bool,
    ) -> Result<TraceReply> {
        let mut found: Option<TraceRow> = None;
        match id {
            Some(id) => {
                if let Some(number) = self.by_id.get::<u64>(id.as_ref().as_bytes())? {
                    found = self.traces.get(&number.to_be_bytes())?;
                }
            }
            None => self.traces.scan_back(b"", |_, row: TraceRow| {
                if wanted(&row.operation, row.sandbox.as_deref()) {
                    found = Some(row);
                }
                found.is_none()
            })?,
        }
        let row = found.ok_or_else(|| match id {
            Some(id) => Failure::not_found("trace of request", id),
            None => Failure::new(
                ErrorCode::NotFound,
                "no request of that kind has been traced yet",
            ),
        })?;
        show(row)
    }
}

fn show(row: TraceRow) -> Result<TraceReply> {
    let spans: Vec<Span> = row
        .spans
        .into_iter()
        .map(|span| Span {
            name: span.name,
            parent: span.parent,
            start_us: span.start_us,
            duration_us: span.duration_us,
            fields: serde_json::from_str(&span.fields).unwrap_or(Value::Null),
        })
        .collect();
    let duration_us = spans
        .iter()
        .filter_map(|span| Some(span.start_us + span.duration_us?))
        .max()
        .unwrap_or(0);
    let trace_id = RequestId::new(&row.request_id)
        .map_err(|error| Failure::internal("a trace has no valid request id").caused_by(error))?;
    Ok(TraceReply {
        trace_id,
        operation: row.operation,
        started_at_unix_ms: row.started_unix_ms,
        duration_us,
        spans,
    })
}

impl Trace {
    /// Opens a span within the whole request.
    pub(crate) fn span(&self, name: &str) -> OpenSpan {
        self.open(name, Some(0))
    }

    /// Says which sandbox the request is about.
    pub(crate) fn about(&self, sandbox: &SandboxId) {
        self.inner.row.lock().sandbox = Some(sandbox.to_string());
    }

    /// Ends the whole request and keeps the trace. What goes on afterwards keeps it again. `error`: it
    /// was answered with this one.
    pub(crate) fn answered(&self, error: Option<ErrorCode>) {
        let elapsed = self.inner.begun.elapsed().as_micros() as u64;
        let mut row = self.inner.row.lock();
        row.spans[0].duration_us = Some(elapsed);
        if let Some(error) = error {
            row.spans[0].fields = json!({ "error": error }).to_string();
        }
        self.inner.log.keep(self.inner.number, &row);
        self.send(&row, 0);
    }

    /// Sends a span that has ended to where spans are sent.
    fn send(&self, row: &TraceRow, index: usize) {
        let span = &row.spans[index];
        let (Some(exporter), Some(duration_us)) = (&self.inner.log.exporter, span.duration_us)
        else {
            return;
        };
        exporter.ended(&Ended {
            request_id: &row.request_id,
            trace: self.inner.number.unwrap_or_default(),
            index: index as u32,
            parent: span.parent,
            name: &span.name,
            begun_unix_us: row.started_unix_ms * 1000,
            start_us: span.start_us,
            duration_us,
            fields: serde_json::from_str(&span.fields).unwrap_or_default(),
            sandbox: row.sandbox.as_deref(),
        });
    }

    fn open(&self, name: &str, parent: Option<u32>) -> OpenSpan {
        let start_us = self.inner.begun.elapsed().as_micros() as u64;
        let mut row = self.inner.row.lock();
        let index = (row.spans.len() < MAX_SPANS).then(|| {
            row.spans.push(SpanRow {
                name: name.to_owned(),
                parent,
                start_us,
                duration_us: None,
                fields: "{}".to_owned(),
            });
            row.spans.len() - 1
        });
        OpenSpan {
            trace: self.clone(),
            index,
            begun: Instant::now(),
        }
    }
}

impl OpenSpan {
    /// Opens a span within this one.
    pub(crate) fn span(&self, name: &str) -> OpenSpan {
        self.trace.open(name, self.index.map(|index| index as u32))
    }

    /// Adds a particular.
    pub(crate) fn field(&self, key: &str, value: impl Into<Value>) {
        let Some(index) = self.index else { return };
        let mut row = self.trace.inner.row.lock();
        let span = &mut row.spans[index];
        let mut fields: Map<String, Value> = serde_json::from_str(&span.fields).unwrap_or_default();
        fields.insert(key.to_owned(), value.into());
        span.fields = Value::Object(fields).to_string();
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let Some(index) = self.index else { return };
        let elapsed = self.begun.elapsed().as_micros() as u64;
        let mut row = self.trace.inner.row.lock();
        row.spans[index].duration_us = Some(elapsed);
        self.trace.send(&row, index);
        // After the answer nobody else will keep it.
        if row.spans[0].duration_us.is_some() {
            self.trace.inner.log.keep(self.trace.inner.number, &row);
        }
    }
}
