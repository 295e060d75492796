//! The HTTP server on the gateway's unix socket.
//!
//! A request is authenticated, admitted (or waits in line), traced, dispatched on a task of its own
//! (so that a caller who goes away does not leave it half done), and answered.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path as UrlPath, Query, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::sse::{Event as ServerEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures_util::Stream;
use futures_util::stream::unfold;
use parking_lot::Mutex;
use sandstack_api::catalogue::Effect;
use sandstack_api::{
    ApiError, Authority, ErrorBody, ErrorCode, MAX_BODY_BYTES, OperationName, Request, RequestId,
};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::auth::Principal;
use crate::clock::new_id;
use crate::daemon;
use crate::failure::{Failure, Result, io_failure};
use crate::follow;
use crate::forward;
use crate::gateway::{Context, Gateway};
use crate::replay::Replays;
use crate::stream;

/// Milliseconds after which a caller that was sent away may try again.
const RETRY_AFTER_MS: u64 = 250;

pub(crate) struct Server {
    gateway: Arc<Gateway>,
    replays: Replays,
    max_waiting: usize,
}

impl Server {
    pub(crate) fn new(gateway: Arc<Gateway>) -> Arc<Server> {
        let limits = &gateway.config.settings.limits;
        Arc::new(Server {
            replays: Replays::open(&gateway.store),
            max_waiting: limits.waiting_requests,
            gateway,
        })
    }

    pub(crate) fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/v1/{operation}", post(call))
            .route("/v1/forward/{*rest}", any(forwarded))
            .route("/v1/catalog", get(catalog))
            .route("/v1/stream/events", get(stream_events))
            .route("/v1/stream/commands/{command}", get(stream_command))
            .route("/metrics", get(metrics))
            .route("/openapi.json", get(openapi))
            .route("/health", get(health))
            .fallback(no_such_path)
            .layer(tower_http::catch_panic::CatchPanicLayer::custom(panicked))
            .with_state(Arc::clone(self))
    }

    /// Waits for the right to work.
    async fn admit(&self) -> Result<OwnedSemaphorePermit> {
        let busy = || {
            Failure::new(
                ErrorCode::Busy,
                "too many requests wait already; try again in a moment",
            )
            .with("retry_after_ms", RETRY_AFTER_MS)
        };
        let load = &self.gateway.load;
        if load.waiting.fetch_add(1, Ordering::Relaxed) >= self.max_waiting {
            load.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(busy());
        }
        let permit = Arc::clone(&load.permits).acquire_owned().await;
        load.waiting.fetch_sub(1, Ordering::Relaxed);
        permit.map_err(|_| busy())
    }

    fn authenticate(&self, headers: &HeaderMap) -> Result<Principal> {
        let value = headers.get(header::AUTHORIZATION).ok_or_else(|| {
            Failure::new(
                ErrorCode::Unauthorized,
                "a token is needed: send `Authorization: Bearer …` with the token of tokens/ in the state directory",
            )
        })?;
        let token = value.as_bytes().strip_prefix(b"Bearer ").ok_or_else(|| {
            Failure::new(
                ErrorCode::Unauthorized,
                "the Authorization header is not of the form `Bearer …`",
            )
        })?;
        self.gateway.tokens.principal(token.trim_ascii())
    }
}

/// Binds the gateway's socket: one that nobody answers on any more is replaced.
pub(crate) fn bind(path: &Path) -> Result<UnixListener> {
    let doing = format!("binding {}", path.display());
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => {
            return Err(Failure::new(
                ErrorCode::Unavailable,
                format!(
                    "another process already answers on {}; stop it or choose another --socket",
                    path.display()
                ),
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Connecting to what is no socket is refused too.
            let metadata = fs::symlink_metadata(path).map_err(io_failure(&doing))?;
            if !metadata.file_type().is_socket() {
                return Err(Failure::invalid(format!(
                    "{} is no socket; remove it or choose another --socket",
                    path.display()
                )));
            }
            fs::remove_file(path).map_err(io_failure(&doing))?;
        }
        // Not there, or out of reach: binding says what is wrong.
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(io_failure(&doing))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(io_failure(&doing))?;
    Ok(listener)
}

async fn call(
    State(server): State<Arc<Server>>,
    UrlPath(operation): UrlPath<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let (request_id, named) = match request_id(&headers) {
        Ok(id) => id,
        Err(error) => return refuse(error, "none"),
    };
    let id = request_id.to_string();
    match serve_call(server, &operation, &headers, body, request_id, named).await {
        Ok(response) => response,
        Err(error) => refuse(error, &id),
    }
}

async fn serve_call(
    server: Arc<Server>,
    operation: &str,
    headers: &HeaderMap,
    body: Body,
    request_id: RequestId,
    named: bool,
) -> Result<Response> {
    let principal = server.authenticate(headers)?;
    let operation = OperationName::find(operation).ok_or_else(|| {
        Failure::new(
            ErrorCode::NotFound,
            format!("there is no operation {operation:?}; GET /v1/catalog lists them"),
        )
    })?;
    principal.require(operation.row().authority)?;
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES)
        .await
        .map_err(|_| {
            Failure::new(
                ErrorCode::TooLarge,
                format!("the request's body is larger than {MAX_BODY_BYTES} bytes"),
            )
        })?;
    let request = Request::parse(operation, &body).map_err(Failure::from)?;
    let streams = operation.row().streams_progress
        && headers
            .get(header::ACCEPT)
            .is_some_and(|accept| accept.as_bytes() == b"text/event-stream");
    let changes = operation.row().effect != Effect::ReadOnly;
    let turn = if named && changes {
        match server.replays.begin(&request_id, operation, &body).await? {
            Ok(turn) => Some(turn),
            Err(Ok(answer)) => return Ok(answered(&answer, &request_id)),
            Err(Err(error)) => return Err(error.into()),
        }
    } else {
        None
    };
    let begun = Instant::now();
    let permit = server.admit().await?;
    let (sender, receiver) = mpsc::unbounded_channel();
    let abandoned = Arc::new(AtomicBool::new(false));
    let context = Context {
        trace: server.gateway.spans.begin(&request_id, operation),
        request_id: request_id.clone(),
        principal,
        progress: streams.then_some(sender),
        abandoned: Arc::clone(&abandoned),
        permit: Mutex::new(Some(permit)),
    };
    let (serving, id) = (Arc::clone(&server), request_id.clone());
    let task = tokio::spawn(async move {
        let result = serving.gateway.dispatch(&context, request).await;
        context
            .trace
            .answered(result.as_ref().err().map(Failure::code));
        let load = &serving.gateway.load;
        load.note(operation, result.is_err(), begun.elapsed());
        let answer = result.map_err(|error| error.into_answer(id.as_ref()));
        if let Some(turn) = turn {
            tokio::task::block_in_place(|| serving.replays.end(turn, &answer));
        }
        answer
    });
    let waiting = Waiting {
        task: Some(task),
        abandoned,
    };
    if streams {
        return Ok(stream_answer(waiting, receiver, &request_id));
    }
    match waiting.answer().await {
        Ok(answer) => Ok(answered(&answer, &request_id)),
        Err(error) => Err(error.into()),
    }
}

/// A request that is being worked on. Dropped when the caller goes away.
struct Waiting {
    task: Option<tokio::task::JoinHandle<std::result::Result<Value, ApiError>>>,
    abandoned: Arc<AtomicBool>,
}

impl Waiting {
    async fn answer(mut self) -> std::result::Result<Value, ApiError> {
        let Some(task) = self.task.as_mut() else {
            return Err(lost());
        };
        let result = task.await;
        self.task = None;
        result.unwrap_or_else(|error| {
            tracing::error!(%error, "a request's task failed");
            Err(lost())
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

fn lost() -> ApiError {
    ApiError::new(
        ErrorCode::Internal,
        "the request failed; the log has the cause",
    )
}

/// Progress as it comes, then the answer.
fn stream_answer(
    waiting: Waiting,
    progress: mpsc::UnboundedReceiver<Value>,
    id: &RequestId,
) -> Response {
    let stream: std::pin::Pin<
        Box<dyn Stream<Item = std::result::Result<ServerEvent, Infallible>> + Send>,
    > = Box::pin(unfold(Some((waiting, progress)), |state| async move {
        let (waiting, mut progress) = state?;
        // The sender goes with the request's context, so the channel ends before the answer.
        if let Some(value) = progress.recv().await {
            let event = ServerEvent::default()
                .event("progress")
                .data(value.to_string());
            return Some((Ok(event), Some((waiting, progress))));
        }
        let event = match waiting.answer().await {
            Ok(answer) => ServerEvent::default()
                .event("result")
                .data(answer.to_string()),
            Err(error) => {
                let body = serde_json::to_string(&ErrorBody { error }).unwrap_or_default();
                ServerEvent::default().event("error").data(body)
            }
        };
        Some((Ok(event), None))
    }));
    with_id(
        Sse::new(stream)
            .keep_alive(KeepAlive::default())
            .into_response(),
        id,
    )
}

fn request_id(headers: &HeaderMap) -> Result<(RequestId, bool)> {
    match headers.get("x-request-id") {
        None => Ok((
            RequestId::new(&new_id("req")).expect("new ids are valid"),
            false,
        )),
        Some(value) => {
            let text = String::from_utf8_lossy(value.as_bytes());
            let id = RequestId::new(&text)
                .map_err(|error| Failure::invalid(format!("X-Request-Id: {error}")))?;
            Ok((id, true))
        }
    }
}

fn answered(answer: &Value, id: &RequestId) -> Response {
    with_id(Json(answer).into_response(), id)
}

fn with_id(mut response: Response, id: &RequestId) -> Response {
    if let Ok(value) = HeaderValue::from_str(id.as_ref()) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

fn refuse(error: Failure, id: &str) -> Response {
    let error = error.into_answer(id);
    let status =
        StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(ErrorBody { error })).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let mut failure = Failure::new(error.code, error.message);
        if let Value::Object(details) = error.details {
            for (key, value) in details {
                failure = failure.with(&key, value);
            }
        }
        failure
    }
}

async fn catalog(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    match server.authenticate(&headers) {
        Ok(_) => Json(sandstack_api::catalogue::to_json()).into_response(),
        Err(error) => refuse(error, "catalog"),
    }
}

async fn openapi(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    match server.authenticate(&headers) {
        Ok(_) => Json(sandstack_api::render::openapi(env!("CARGO_PKG_VERSION"))).into_response(),
        Err(error) => refuse(error, "openapi"),
    }
}

async fn metrics(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    let allowed = server.authenticate(&headers).and_then(|principal| {
        principal.require(Authority::Observability)?;
        principal.require_every_sandbox()
    });
    if let Err(error) = allowed {
        return refuse(error, "metrics");
    }
    let gateway = Arc::clone(&server.gateway);
    let text = server
        .gateway
        .blocking(move || Ok(daemon::metrics(&gateway.daemon())));
    match text.await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => refuse(error, "metrics"),
    }
}

async fn stream_events(
    State(server): State<Arc<Server>>,
    address: Uri,
    headers: HeaderMap,
) -> Response {
    match open_stream(&server, &address, &headers) {
        Ok(stream) => Sse::new(stream)
            .keep_alive(KeepAlive::default())
            .into_response(),
        Err(error) => refuse(error, "stream"),
    }
}

fn open_stream(server: &Server, address: &Uri, headers: &HeaderMap) -> Result<stream::Sending> {
    let principal = server.authenticate(headers)?;
    principal.require(Authority::Observability)?;
    let wanted = Query::try_from_uri(address).map_err(|error| {
        Failure::invalid(format!("the query of the address: {}", error.body_text()))
    })?;
    let last = headers.get("last-event-id").map(|value| {
        let number = value.to_str().ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| {
            Failure::invalid("Last-Event-ID is no number; give the id of an event".to_owned())
        })
    });
    stream::events(&server.gateway, principal, wanted.0, last.transpose()?)
}

async fn stream_command(
    State(server): State<Arc<Server>>,
    UrlPath(command): UrlPath<String>,
    headers: HeaderMap,
) -> Response {
    let opened = server.authenticate(&headers).and_then(|principal| {
        principal.require(Authority::Runtime)?;
        let after = match headers.get("last-event-id") {
            None => follow::Place::default(),
            Some(value) => value.to_str().unwrap_or_default().parse()?,
        };
        follow::output(&server.gateway, &principal, &command, after)
    });
    match opened {
        Ok(stream) => Sse::new(stream)
            .keep_alive(KeepAlive::default())
            .into_response(),
        Err(error) => refuse(error, "stream"),
    }
}

async fn forwarded(State(server): State<Arc<Server>>, request: HttpRequest) -> Response {
    match serve_forward(&server, request).await {
        Ok(response) => response,
        Err(error) => refuse(error, "forward"),
    }
}

async fn serve_forward(server: &Server, request: HttpRequest) -> Result<Response> {
    let principal = server.authenticate(request.headers())?;
    principal.require(Authority::Runtime)?;
    forward::forward(&server.gateway, &principal, request).await
}

async fn health() -> Response {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") })).into_response()
}

async fn no_such_path() -> Response {
    let message = "there is nothing here; operations are at POST /v1/{operation}, the catalogue at GET /v1/catalog";
    refuse(Failure::new(ErrorCode::NotFound, message), "none")
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    refuse(
        Failure::internal("the request failed; the log has the cause"),
        "none",
    )
}
