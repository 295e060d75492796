//! The client that the CLIs and the MCP server share: one connection a call, over the gateway's
//! unix socket.
//!
//! A call is one `POST /v1/{operation}`; with progress it accepts `text/event-stream` and hands
//! each `progress` event to the caller before it returns the `result`.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::{ApiError, Call, ErrorBody, ErrorCode, OperationName, RequestId};

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
        let status = response.status();
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        if is_stream {
            return read_stream(operation, response.into_body(), on_progress).await;
        }
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

    async fn send(
        &self,
        operation: OperationName,
        body: &Value,
        request_id: Option<&RequestId>,
        stream: bool,
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
        let mut request = hyper::Request::post(format!("/v1/{operation}"))
            .header(HOST, "localhost")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, "application/json");
        if let Some(id) = request_id {
            request = request.header("x-request-id", id.as_ref());
        }
        if stream {
            request = request.header(ACCEPT, "text/event-stream");
        }
        let request = request
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| broken(operation, error))?;
        sender
            .send_request(request)
            .await
            .map_err(|error| broken(operation, error))
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
    operation: OperationName,
    mut body: Incoming,
    mut on_progress: Option<&mut (dyn FnMut(Value) + Send)>,
) -> Result<Value, CallError> {
    let mut events = EventReader::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(operation, error))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        for event in events.push(data) {
            let value: Value =
                serde_json::from_slice(&event.data).map_err(|error| broken(operation, error))?;
            match event.name.as_slice() {
                b"progress" => {
                    if let Some(on_progress) = on_progress.as_mut() {
                        on_progress(value);
                    }
                }
                b"result" => return Ok(value),
                b"error" => {
                    let body: ErrorBody =
                        serde_json::from_value(value).map_err(|error| broken(operation, error))?;
                    return Err(CallError::Refused(Box::new(body.error)));
                }
                other => {
                    let name = String::from_utf8_lossy(other);
                    return Err(broken(operation, format!("unknown event {name:?}")));
                }
            }
        }
    }
    Err(broken(operation, "the stream ended without a result"))
}

#[derive(Default)]
struct EventReader {
    line: Vec<u8>,
    event: ServerEvent,
}

#[derive(Default)]
struct ServerEvent {
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
