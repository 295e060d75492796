//! Spans for an OpenTelemetry collector (OTLP over HTTP, protobuf), where one is configured.
//!
//! A span is sent when it ends, together with those that end shortly after it. A collector that is slow
//! or away holds nobody up: spans wait in a queue of bounded length, and those that find it full, or that
//! could not be sent, are counted (`daemon`, `/metrics`) and told in the log.
//!
//! A request's id names its trace: the trace id is the first half of the id's blake3 digest, so whoever
//! knows the one finds the other. The id itself is the attribute `sandstack.request_id`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use parking_lot::Mutex;
use sandstack_api::observability::SentSpans;
use sandstack_store::Digest;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::failure::{Failure, Result};

/// Spans that wait at most.
const QUEUE: usize = 8192;
/// Spans that are sent at once at most.
const BATCH: usize = 512;
/// How long a span waits for others to be sent with.
const GATHER: Duration = Duration::from_millis(500);
/// How long a collector may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a gateway that stops waits for what is still to be sent.
const LAST_WITHIN: Duration = Duration::from_secs(2);

/// Where spans are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpSettings {
    /// The collector: `http://HOST:PORT`; `/v1/traces` is added where the address has no path. `None`:
    /// spans are sent nowhere.
    pub endpoint: Option<String>,
    /// Headers of each request, for collectors that ask for a key.
    pub headers: HashMap<String, String>,
}

impl OtlpSettings {
    /// Where the spans go.
    fn address(&self) -> Result<Option<String>> {
        let Some(endpoint) = &self.endpoint else {
            return Ok(None);
        };
        let refused = |why: &str| {
            Failure::invalid(format!(
                "otlp.endpoint is {endpoint:?}; {why}, as in \"http://127.0.0.1:4318\""
            ))
        };
        let address: axum::http::Uri = endpoint
            .parse()
            .map_err(|error| refused(&format!("it is no address ({error}): give one")))?;
        if address.scheme_str() != Some("http") || address.host().is_none() {
            return Err(refused(
                "spans are sent over plain HTTP: name a collector on this host or a trusted network",
            ));
        }
        Ok(Some(match address.path() {
            "" | "/" => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
            _ => endpoint.clone(),
        }))
    }
}

/// One span that has ended.
pub(crate) struct Ended<'a> {
    pub(crate) request_id: &'a str,
    /// The number of the request's trace in this gateway.
    pub(crate) trace: u64,
    pub(crate) index: u32,
    pub(crate) parent: Option<u32>,
    pub(crate) name: &'a str,
    /// When the request began, in Unix microseconds.
    pub(crate) begun_unix_us: u64,
    /// In microseconds after that.
    pub(crate) start_us: u64,
    pub(crate) duration_us: u64,
    pub(crate) fields: Map<String, Value>,
    pub(crate) sandbox: Option<&'a str>,
}

enum Message {
    Span(Box<SpanData>),
    /// Send what waits, and say so.
    Flush(oneshot::Sender<()>),
}

/// Sends spans to a collector.
pub(crate) struct Exporter {
    queue: mpsc::Sender<Message>,
    told: Arc<Mutex<SentSpans>>,
}

impl Exporter {
    /// `None`: no collector is configured.
    ///
    /// # Errors
    /// The settings name no collector that could be spoken to.
    pub(crate) fn start(settings: &OtlpSettings, runtime: &Handle) -> Result<Option<Exporter>> {
        let Some(address) = settings.address()? else {
            return Ok(None);
        };
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(HyperClient::with_default_connector(ANSWER_WITHIN, None))
            .with_endpoint(&address)
            .with_timeout(ANSWER_WITHIN)
            .with_headers(settings.headers.clone())
            .build()
            .map_err(|error| Failure::invalid(format!("otlp: {error}")))?;
        let resource = Resource::builder_empty()
            .with_service_name("sandbox-gateway")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
            .build();
        exporter.set_resource(&resource);
        let told = Arc::new(Mutex::new(SentSpans {
            endpoint: address,
            ..SentSpans::default()
        }));
        let (queue, waiting) = mpsc::channel(QUEUE);
        runtime.spawn(send(exporter, waiting, Arc::clone(&told)));
        Ok(Some(Exporter { queue, told }))
    }

    /// Sends a span, soon.
    pub(crate) fn ended(&self, span: &Ended<'_>) {
        if self
            .queue
            .try_send(Message::Span(Box::new(data(span))))
            .is_err()
        {
            self.told.lock().lost += 1;
        }
    }

    /// What has been sent.
    pub(crate) fn told(&self) -> SentSpans {
        self.told.lock().clone()
    }

    /// Waits a little until all that ended before has been sent.
    pub(crate) async fn flush(&self) {
        let (sender, sent) = oneshot::channel();
        let flushed = async {
            if self.queue.send(Message::Flush(sender)).await.is_ok() {
                let _ = sent.await;
            }
        };
        if tokio::time::timeout(LAST_WITHIN, flushed).await.is_err() {
            tracing::warn!("the collector of spans did not take the last ones");
        }
    }
}

/// Sends what comes, until nobody can send any more.
async fn send(
    exporter: opentelemetry_otlp::SpanExporter,
    mut waiting: mpsc::Receiver<Message>,
    told: Arc<Mutex<SentSpans>>,
) {
    let mut answers = true;
    while let Some(first) = waiting.recv().await {
        let mut batch = Vec::new();
        let mut flushed = Vec::new();
        let until = tokio::time::sleep(GATHER);
        tokio::pin!(until);
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Span(span) => batch.push(*span),
                Message::Flush(sender) => flushed.push(sender),
            }
            if batch.len() == BATCH || !flushed.is_empty() {
                break;
            }
            next = tokio::select! {
                message = waiting.recv() => message,
                () = &mut until => None,
            };
        }
        let count = batch.len() as u64;
        if count > 0 {
            let sent = exporter.export(batch).await;
            let mut told = told.lock();
            match sent {
                Ok(()) => {
                    told.sent += count;
                    told.last_error = None;
                    answers = true;
                }
                Err(error) => {
                    if std::mem::take(&mut answers) {
                        tracing::warn!(endpoint = told.endpoint, %error, "spans could not be sent");
                    }
                    told.lost += count;
                    told.last_error = Some(error.to_string());
                }
            }
        }
        for sender in flushed {
            let _ = sender.send(());
        }
    }
}

fn data(span: &Ended<'_>) -> SpanData {
    let start = span.begun_unix_us + span.start_us;
    let at = |unix_us: u64| -> SystemTime { UNIX_EPOCH + Duration::from_micros(unix_us) };
    let mut attributes: Vec<KeyValue> = span
        .fields
        .iter()
        .map(|(key, value)| attribute(key, value))
        .collect();
    attributes.push(KeyValue::new(
        "sandstack.request_id",
        span.request_id.to_owned(),
    ));
    if let Some(sandbox) = span.sandbox {
        attributes.push(KeyValue::new("sandstack.sandbox_id", sandbox.to_owned()));
    }
    let status = match span.fields.get("error") {
        Some(error) => Status::error(text(error)),
        None => Status::Unset,
    };
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(half(Digest::of(span.request_id.as_bytes()))),
            span_id(span, span.index),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: span
            .parent
            .map_or(SpanId::INVALID, |parent| span_id(span, parent)),
        parent_span_is_remote: false,
        span_kind: match span.parent {
            None => SpanKind::Server,
            Some(_) => SpanKind::Internal,
        },
        name: span.name.to_owned().into(),
        start_time: at(start),
        end_time: at(start + span.duration_us),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status,
        instrumentation_scope: InstrumentationScope::builder("sandstack")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn attribute(key: &str, value: &Value) -> KeyValue {
    let key = key.to_owned();
    match value {
        Value::Bool(value) => KeyValue::new(key, *value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => KeyValue::new(key, whole),
            (None, Some(real)) => KeyValue::new(key, real),
            (None, None) => KeyValue::new(key, number.to_string()),
        },
        other => KeyValue::new(key, text(other)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Two requests of one id are one trace, and have spans of their own in it.
fn span_id(span: &Ended<'_>, index: u32) -> SpanId {
    let mut name = span.request_id.as_bytes().to_vec();
    name.extend(span.trace.to_be_bytes());
    name.extend(index.to_be_bytes());
    let bytes: [u8; 16] = half(Digest::of(&name));
    let mut id = [0; 8];
    id.copy_from_slice(&bytes[..8]);
    SpanId::from_bytes(id)
}

fn half(digest: Digest) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest.as_bytes()[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_completed_or_refused() {
        let address = |endpoint: &str| {
            let settings = OtlpSettings {
                endpoint: Some(endpoint.to_owned()),
                ..OtlpSettings::default()
            };
            settings.address()
        };
        let taken = |endpoint: &str| address(endpoint).unwrap().unwrap();
        assert_eq!(
            taken("http://localhost:4318"),
            "http://localhost:4318/v1/traces"
        );
        assert_eq!(taken("http://[::1]:1/"), "http://[::1]:1/v1/traces");
        assert_eq!(taken("http://host/otlp/traces"), "http://host/otlp/traces");
        for wrong in ["https://host:4318", "localhost:4318", "", "http://"] {
            let refusal = address(wrong).unwrap_err().to_string();
            assert!(refusal.contains("otlp.endpoint"), "{refusal}");
        }
        assert!(OtlpSettings::default().address().unwrap().is_none());
    }
}
