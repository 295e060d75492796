//! The MCP server: lists the tools of one authority and carries out their calls.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, ErrorCode as RpcCode, ErrorData, Implementation, InitializeRequestParams,
    InitializeResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use sandstack_api::client::{CallError, Client};
use sandstack_api::management::ImportProgress;
use sandstack_api::{
    ApiError, Authority, ErrorBody, ErrorCode, OPERATIONS, Operation, OperationName, Request,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::window::{self, Shrinking};
use crate::{MAX_ANSWER_BYTES, Place, tool};

/// What a model can look at after a complaint about its arguments.
const ADVICE: &str = "see the tool's input schema";

/// The server of one authority.
pub(crate) struct Server {
    authority: Authority,
    place: Place,
    tools: Vec<Tool>,
}

impl Server {
    /// A server of `authority`'s operations, whose gateway is at `place`.
    pub(crate) fn new(authority: Authority, place: Place) -> Self {
        Server {
            authority,
            place,
            tools: OPERATIONS
                .iter()
                .filter(|row| row.authority == authority)
                .map(tool::of)
                .collect(),
        }
    }

    /// Finds the row of the tool called `name`.
    fn row(&self, name: &str) -> Result<&'static Operation, Unknown> {
        let Some(row) = OperationName::find(name).map(OperationName::row) else {
            return Err(Unknown::Tool);
        };
        match row.authority == self.authority {
            true => Ok(row),
            false => Err(Unknown::OfOtherSet(row)),
        }
    }

    /// Calls `row` and brings its answer below the bound.
    async fn call(
        &self,
        row: &'static Operation,
        mut arguments: Map<String, Value>,
        progress: Option<mpsc::UnboundedSender<Value>>,
    ) -> Result<Value, ApiError> {
        let body = Value::Object(arguments.clone());
        require(row, &arguments)?;
        Request::parse(row.operation, body.to_string().as_bytes()).map_err(|mut error| {
            error.message = format!("{}; {ADVICE}", error.message);
            error
        })?;
        let client = self.place.client(self.authority)?;
        let mut answer = post(&client, row, &body, progress).await?;
        if window::fits(&answer) {
            return Ok(answer);
        }
        if let Some(mut shrinking) = Shrinking::of(row) {
            while !window::fits(&answer) && shrinking.next(&mut arguments, &answer) {
                let body = Value::Object(arguments.clone());
                answer = post(&client, row, &body, None).await?;
            }
            shrinking.explain(row, &mut answer);
        }
        if !window::fits(&answer) {
            window::cut(row, &mut answer);
        }
        Ok(answer)
    }
}

/// Why there is no such tool here.
enum Unknown {
    Tool,
    OfOtherSet(&'static Operation),
}

/// Names every field that is missing, where parsing would name one.
fn require(row: &Operation, arguments: &Map<String, Value>) -> Result<(), ApiError> {
    let schema = (row.request_schema)();
    let required = schema.as_value()["required"].as_array();
    let missing: Vec<String> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|field| !arguments.contains_key(*field))
        .map(|field| format!("`{field}`"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidRequest,
        format!("{} needs {}; {ADVICE}", row.name, missing.join(" and ")),
    ))
}

async fn post(
    client: &Client,
    row: &Operation,
    body: &Value,
    progress: Option<mpsc::UnboundedSender<Value>>,
) -> Result<Value, ApiError> {
    let called = match progress {
        None => client.call_json(row.operation, body, None, None).await,
        Some(progress) => {
            let mut on_progress = move |value: Value| {
                // Nobody listens any more: the call was cancelled, and ends with this one.
                let _ = progress.send(value);
            };
            let on_progress = Some(&mut on_progress as _);
            client
                .call_json(row.operation, body, None, on_progress)
                .await
        }
    };
    called.map_err(|error| match error {
        CallError::Refused(error) => *error,
        CallError::Unreachable { .. } => ApiError::new(ErrorCode::Unavailable, error.to_string()),
        CallError::Broken { .. } => ApiError::new(
            ErrorCode::Internal,
            format!("{error}; whether it was carried out is not known"),
        ),
    })
}

/// An error as a tool's answer: the envelope that HTTP callers get, as text.
///
/// It is no structured content, since a tool's output schema is that of its success, and clients
/// hold errors to it too.
fn refused(error: ApiError) -> CallToolResult {
    let text = match serde_json::to_string(&ErrorBody { error }) {
        Ok(text) => text,
        Err(error) => error.to_string(),
    };
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// Tells `peer` of the progress that comes in, until there is no more.
async fn forward(
    peer: Peer<RoleServer>,
    token: rmcp::model::ProgressToken,
    mut progress: mpsc::UnboundedReceiver<Value>,
) {
    // The protocol wants every number to be greater than the one before.
    let mut last = -1.0;
    while let Some(value) = progress.recv().await {
        let Ok(progress) = ImportProgress::deserialize(&value) else {
            continue;
        };
        let done = progress.files_done as f64;
        if done <= last {
            continue;
        }
        last = done;
        let message = format!(
            "{} of {} files, {} of {} bytes",
            progress.files_done, progress.files_found, progress.bytes_done, progress.bytes_found
        );
        let notification = ProgressNotificationParam::new(token.clone(), done)
            .with_total(progress.files_found as f64)
            .with_message(message);
        if peer.notify_progress(notification).await.is_err() {
            // The client is gone, and with it whoever the progress is for.
            return;
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let about = match self.authority {
            Authority::Management => "Makes and ends Sandstack sandboxes.",
            Authority::Runtime => {
                "Works inside Sandstack sandboxes: opens workspace sessions, runs commands in them, reads and writes files, publishes what changed."
            }
            Authority::Observability => {
                "Shows what happens in Sandstack sandboxes and changes nothing."
            }
        };
        let instructions = format!(
            "{about} Answers stay under {MAX_ANSWER_BYTES} bytes; one that was cut says so in `{}`. An error is {{\"error\": {{\"code\", \"message\", \"details\", \"retryable\"}}}}, and its message says what to do.",
            window::NOTE
        );
        let name = format!("sandbox-mcp-{}", self.authority);
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(
                Implementation::new(name, env!("CARGO_PKG_VERSION"))
                    .with_title(format!("Sandstack {}", self.authority)),
            )
            .with_instructions(instructions)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let answer = self.negotiate_initialize(&request)?;
        // What follows is in the version that was agreed on, not in the one that was asked for.
        let mut client = request;
        client.protocol_version = answer.protocol_version.clone();
        context.peer.set_peer_info(client);
        Ok(answer)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let row = match self.row(&request.name) {
            Ok(row) => row,
            Err(Unknown::OfOtherSet(row)) => {
                return Ok(refused(ApiError::new(
                    ErrorCode::Forbidden,
                    format!(
                        "{} is a tool of the set `{}`; this server has the set `{}`",
                        row.name, row.authority, self.authority
                    ),
                ))
                .into());
            }
            Err(Unknown::Tool) => {
                let names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_ref()).collect();
                return Err(ErrorData::invalid_params(
                    format!(
                        "there is no tool {:?}; there are {}",
                        request.name,
                        names.join(", ")
                    ),
                    None,
                ));
            }
        };
        let token = context
            .meta
            .get_progress_token()
            .filter(|_| row.streams_progress);
        let (sender, forwarding) = match token {
            Some(token) => {
                let (sender, receiver) = mpsc::unbounded_channel();
                (
                    Some(sender),
                    Some(forward(context.peer.clone(), token, receiver)),
                )
            }
            None => (None, None),
        };
        let arguments = request.arguments.unwrap_or_default();
        let call = async {
            // Progress ends with the call that reports it, and is told before its answer.
            let forwarding = async {
                if let Some(forwarding) = forwarding {
                    forwarding.await;
                }
            };
            tokio::join!(self.call(row, arguments, sender), forwarding).0
        };
        let answer = tokio::select! {
            answer = call => answer,
            // The call is dropped, and with it the connection, by which the gateway knows.
            () = context.ct.cancelled() => Err(ApiError::new(
                ErrorCode::Cancelled,
                format!("the call of {} was cancelled", row.name),
            )),
        };
        Ok(match answer {
            Ok(answer) => CallToolResult::structured(answer),
            Err(error) => refused(error),
        }
        .into())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // What rmcp does not recognise comes here, known methods with wrong parameters too.
        let known = ["initialize", "tools/call", "tools/list", "server/discover"];
        Err(match known.contains(&request.method.as_str()) {
            true => ErrorData::invalid_params(
                format!(
                    "the parameters of {} are not as the protocol has them",
                    request.method
                ),
                None,
            ),
            false => ErrorData::new(
                RpcCode::METHOD_NOT_FOUND,
                format!("there is no method {:?}", request.method),
                None,
            ),
        })
    }
}
