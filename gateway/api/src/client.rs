//! The client that the CLIs and the MCP server share: one connection a call, over the gateway's
//! unix socket.
//!
//! A call is one `POST /v1/{operation}`; with progress it accepts `text/event-stream` and hands
//! each `progress` event to the caller before it returns the `result`. The output of a command is
//! followed over a connection of its own.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::{ApiError, Call, CommandId, ErrorBody, ErrorCode, OperationName, RequestId};

/// Where the gateway is and with which token to call it.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    token: String,
}

/// Why a call did not bring an answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The gateway answered with an error.
    #[error("{0}")]
    Refused(#[source] Box<ApiError>),
    /// No gateway answers at the socket.
    #[error("no gateway answers at {}: {source}; start one with `sandbox-gateway serve`", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The connection broke, or what came over it was not the gateway's protocol.
    #[error("the connection to the gateway broke during {operation}: {reason}")]
    Broken {
        /// What was asked.
        operation: OperationName,
        /// Why.
        reason: String,
    },
}

impl Client {
    /// A client for the gateway at `socket`, calling with `token`.
    pub fn new(socket: impl Into<PathBuf>, token: impl Into<String>) -> Self {
        Client {
            socket: socket.into(),
            token: token.into(),
        }
    }

    /// The socket it calls.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Calls one operation. `request_id` names it in traces and makes a repeat replay the first
    /// answer; `None` lets the gateway make one up.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call<C: Call>(
        &self,
        request: &C,
        request_id: Option<&RequestId>,
    ) -> Result<C::Response, CallError> {
        let operation = C::OPERATION;
        let body = serde_json::to_value(request).map_err(|error| broken(operation, error))?;
        let answer = self.call_json(operation, &body, request_id, None).await?;
        serde_json::from_value(answer).map_err(|error| broken(operation, error))
    }

    /// Calls one operation with a request and response in JSON, and hands progress to
    /// `on_progress` if the operation streams it.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_json(
        &self,
        operation: OperationName,
        body: &Value,
        request_id: Option<&RequestId>,
        on_progress: Option<&mut (dyn FnMut(Value) + Send)>,
    ) -> Result<Value, CallError> {
        let response = self
            .send(operation, body, request_id, on_progress.is_some())
            .await?;
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        match is_stream {
            true => {
                let events = EventStream::of(operation, response.into_body());
                read_stream(events, on_progress).await
            }
            false => answer_of(operation, response).await,
        }
    }

    /// Follows the output of a command: from its beginning, or after the event whose id is `after`.
    /// Events are called `output` and, last, `ended`.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn follow_command(
        &self,
        command: &CommandId,
        after: Option<&str>,
    ) -> Result<EventStream, CallError> {
        let operation = OperationName::ReadCommandLines;
        let mut request = self.request("GET", &format!("/v1/stream/commands/{command}"));
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = self.connect(operation, request, Bytes::new()).await?;
        if response.status().is_success() {
            return Ok(EventStream::of(operation, response.into_body()));
        }
        match answer_of(operation, response).await {
            Ok(_) => Err(broken(operation, "an answer that is no stream")),
            Err(error) => Err(error),
        }
    }

    fn request(&self, method: &str, path: &str) -> hyper::http::request::Builder {
        hyper::Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
    }

    async fn send(
        &self,
        operation: OperationName,
        body: &Value,
        request_id: Option<&RequestId>,
        stream: bool,
    ) -> Result<hyper::Response<Incoming>, CallError> {
        let mut request = self
            .request("POST", &format!("/v1/{operation}"))
            .header(CONTENT_TYPE, "application/json");
        if let Some(id) = request_id {
            request = request.header("x-request-id", id.as_ref());
        }
        if stream {
            request = request.header(ACCEPT, "text/event-stream");
        }
        self.connect(operation, request, Bytes::from(body.to_string()))
            .await
    }

    async fn connect(
        &self,
        operation: OperationName,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<hyper::Response<Incoming>, CallError> {
        let connection =
            UnixStream::connect(&self.socket)
                .await
                .map_err(|source| CallError::Unreachable {
                    socket: self.socket.clone(),
                    source,
                })?;
        let (mut sender, driver) = http1::handshake(TokioIo::new(connection))
            .await
            .map_err(|error| broken(operation, error))?;
        // The driver ends when the response has been read or either side hangs up.
        tokio::spawn(driver);
        let request = request
            .body(Full::new(body))
            .map_err(|error| broken(operation, error))?;
        sender
            .send_request(request)
            .await
            .map_err(|error| broken(operation, error))
    }
}

/// The JSON of an answer, or the error that it is.
async fn answer_of(
    operation: OperationName,
    response: hyper::Response<Incoming>,
) -> Result<Value, CallError> {
    let status = response.status();
    let bytes = response
        .into_body()
        .collect()
        .await
        .map_err(|error| broken(operation, error))?
        .to_bytes();
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(|error| broken(operation, error));
    }
    match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(body) => Err(CallError::Refused(Box::new(body.error))),
        Err(_) => Err(broken(
            operation,
            format!(
                "status {status} with a body that is no error: {}",
                String::from_utf8_lossy(&bytes)
            ),
        )),
    }
}

fn broken(operation: OperationName, reason: impl std::fmt::Display) -> CallError {
    CallError::Broken {
        operation,
        reason: reason.to_string(),
    }
}

/// Reads server-sent events until the one called `result` or `error`.
async fn read_stream(
    mut events: EventStream,
    mut on_progress: Option<&mut (dyn FnMut(Value) + Send)>,
) -> Result<Value, CallError> {
    let operation = events.operation;
    while let Some(event) = events.next().await? {
        match event.name.as_str() {
            "progress" => {
                if let Some(on_progress) = on_progress.as_mut() {
                    on_progress(event.data);
                }
            }
            "result" => return Ok(event.data),
            other => return Err(broken(operation, format!("unknown event {other:?}"))),
        }
    }
    Err(broken(operation, "the stream ended without a result"))
}

/// Events as the gateway sends them.
#[derive(Debug)]
pub struct EventStream {
    operation: OperationName,
    body: Incoming,
    reader: EventReader,
    ready: VecDeque<ServerEvent>,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEvent {
    /// What a later stream can go on after; `None` for an event that has no place.
    pub id: Option<String>,
    /// What kind of event it is.
    pub name: String,
    /// What it says.
    pub data: Value,
}

impl EventStream {
    fn of(operation: OperationName, body: Incoming) -> EventStream {
        EventStream {
            operation,
            body,
            reader: EventReader::default(),
            ready: VecDeque::new(),
        }
    }

    /// The next event; `None` at the stream's end.
    ///
    /// # Errors
    /// [`CallError::Refused`] for an event that is an error, [`CallError::Broken`].
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, CallError> {
        let operation = self.operation;
        let event = loop {
            if let Some(event) = self.ready.pop_front() {
                break event;
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| broken(operation, error))?;
            if let Some(data) = frame.data_ref() {
                self.ready.extend(self.reader.push(data));
            }
        };
        let data: Value =
            serde_json::from_slice(&event.data).map_err(|error| broken(operation, error))?;
        if event.name == b"error" {
            let body: ErrorBody =
                serde_json::from_value(data).map_err(|error| broken(operation, error))?;
            return Err(CallError::Refused(Box::new(body.error)));
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(StreamEvent {
            id: event.id.map(text),
            name: text(event.name),
            data,
        }))
    }
}

#[derive(Debug, Default)]
struct EventReader {
    line: Vec<u8>,
    event: ServerEvent,
}

#[derive(Debug, Default)]
struct ServerEvent {
    id: Option<Vec<u8>>,
    name: Vec<u8>,
    data: Vec<u8>,
}

impl EventReader {
    /// Feeds bytes and returns the events that they complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<ServerEvent> {
        let mut complete = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                // Comments keep the connection alive and carry no data.
                if !event.data.is_empty() {
                    complete.push(event);
                }
            } else if let Some(name) = line.strip_prefix(b"event:") {
                self.event.name = name.trim_ascii().to_vec();
            } else if let Some(id) = line.strip_prefix(b"id:") {
                self.event.id = Some(id.trim_ascii().to_vec());
            } else if let Some(data) = line.strip_prefix(b"data:") {
                if !self.event.data.is_empty() {
                    self.event.data.push(b'\n');
                }
                self.event
                    .data
                    .extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
        }
        complete
    }
}

/// The process exit code that stands for an error code, as every CLI uses it.
pub fn exit_code(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::InvalidRequest => 2,
        ErrorCode::NotFound => 3,
        ErrorCode::AlreadyExists
        | ErrorCode::Conflict
        | ErrorCode::StaleReads
        | ErrorCode::PreconditionFailed
        | ErrorCode::RequestIdConflict => 4,
        ErrorCode::Unavailable => 5,
        ErrorCode::Unauthorized | ErrorCode::Forbidden => 6,
        ErrorCode::Timeout | ErrorCode::Cancelled => 7,
        ErrorCode::QuotaExceeded | ErrorCode::Busy => 8,
        ErrorCode::TooLarge | ErrorCode::Unsupported | ErrorCode::Internal => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_at_blank_lines_however_the_bytes_arrive() {
        let wire = b": keep-alive\n\nevent: progress\ndata: {\"a\":1}\n\nevent: result\ndata: {\ndata: }\n\n";
        for step in 1..wire.len() {
            let mut reader = EventReader::default();
            let events: Vec<ServerEvent> = wire
                .chunks(step)
                .flat_map(|chunk| reader.push(chunk))
                .collect();
            let seen: Vec<(&[u8], &[u8])> = events
                .iter()
                .map(|event| (event.name.as_slice(), event.data.as_slice()))
                .collect();
            assert_eq!(
                seen,
                [(&b"progress"[..], &b"{\"a\":1}"[..]), (b"result", b"{\n}")]
            );
        }
    }
}
