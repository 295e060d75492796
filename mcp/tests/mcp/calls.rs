//! Calls of tools, with rmcp's client: within the test and as a process, in both eras of the
//! protocol.

use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientConfig, ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, RunningService, ServiceError,
};
use rmcp::transport::TokioChildProcess;
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use sandstack_api::{Authority, ErrorCode, OPERATIONS, OperationName};
use serde_json::{Map, Value, json};
use tokio::io::DuplexStream;

use crate::gateway::{Gateway, Reply, error};
use crate::sample;

/// The client's end of a server within the test.
pub(crate) fn served(gateway: &Gateway, authority: Authority) -> DuplexStream {
    let (client, server) = tokio::io::duplex(64 << 10);
    let (input, output) = tokio::io::split(server);
    let place = gateway.place(authority.as_str());
    tokio::spawn(sandstack_mcp::serve(authority, place, input, output));
    client
}

pub(crate) type Client = RunningService<RoleClient, ()>;

/// A client of a server within the test.
pub(crate) async fn client(gateway: &Gateway, authority: Authority) -> Client {
    ().serve(served(gateway, authority))
        .await
        .expect("a client")
}

/// A call of `name` with `arguments`, an object.
pub(crate) fn request(name: &'static str, arguments: Value) -> CallToolRequestParams {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object");
    };
    CallToolRequestParams::new(name).with_arguments(arguments)
}

/// The JSON in the text of an answer.
pub(crate) fn text_of(result: &CallToolResult) -> Value {
    let text = result.content[0].as_text().expect("text");
    serde_json::from_str(&text.text).expect("the text is JSON")
}

/// The error that a tool answered.
fn error_of(result: &CallToolResult) -> Value {
    assert_eq!(result.is_error, Some(true), "{result:?}");
    // Clients hold structured content to the output schema, errors too.
    assert!(result.structured_content.is_none(), "{result:?}");
    text_of(result)["error"].clone()
}

#[tokio::test]
async fn every_tool_posts_its_arguments_and_answers_by_its_schema() {
    let gateway = Gateway::start(|operation, _| {
        let row = OperationName::find(operation).expect("an operation").row();
        Reply::Json(200, sample::answer(row))
    });
    for authority in Authority::ALL {
        let client = client(&gateway, authority).await;
        let tools = client.list_all_tools().await.expect("the tools");
        for row in OPERATIONS.iter().filter(|row| row.authority == authority) {
            let tool = tools.iter().find(|tool| tool.name == row.name);
            let tool = tool.expect("the row is a tool");
            let arguments = sample::request(row);
            let input = Value::Object((*tool.input_schema).clone());
            let validator = jsonschema::validator_for(&input).expect("a schema");
            let body = Value::Object(arguments.clone());
            assert!(validator.is_valid(&body), "{}: {body}", row.name);

            let result = client
                .call_tool(CallToolRequestParams::new(row.name).with_arguments(arguments))
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert_ne!(result.is_error, Some(true), "{}: {result:?}", row.name);
            let posted = gateway.take();
            assert_eq!(posted.len(), 1, "{posted:?}");
            assert_eq!(
                (posted[0].operation.as_str(), &posted[0].body),
                (row.name, &body)
            );
            assert_eq!(posted[0].token, format!("tok-{authority}"));

            let answer = result
                .structured_content
                .clone()
                .expect("structured content");
            assert_eq!(answer, sample::answer(row), "{}", row.name);
            assert_eq!(text_of(&result), answer, "the text is the same");
            let output = Value::Object((**tool.output_schema.as_ref().expect("one")).clone());
            let validator = jsonschema::validator_for(&output).expect("a schema");
            let errors: Vec<String> = validator
                .iter_errors(&answer)
                .map(|error| error.to_string())
                .collect();
            assert!(errors.is_empty(), "{}: {errors:?}", row.name);
        }
    }
}

#[tokio::test]
async fn wrong_arguments_are_tool_errors_that_name_the_field() {
    let gateway = Gateway::start(|_, _| Reply::Json(200, json!({})));
    let client = client(&gateway, Authority::Runtime).await;
    let cases = [
        (
            json!({ "sandbox_id": "sb-1", "cmd": "ls", "comand": 1 }),
            "comand",
        ),
        (json!({ "tty": true }), "needs `sandbox_id` and `cmd`"),
        (json!({ "sandbox_id": "a b", "cmd": "ls" }), "a b"),
        (json!({ "sandbox_id": "sb-1", "cmd": 5 }), "base64"),
        (
            json!({ "sandbox_id": "sb-1", "cmd": "ls", "timeout_ms": "1s" }),
            "timeout_ms: invalid type",
        ),
    ];
    for (arguments, expected) in cases {
        let result = client.call_tool(request("exec_command", arguments)).await;
        let error = error_of(&result.expect("an answer"));
        assert_eq!(error["code"], "invalid_request");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(message.contains("the tool's input schema"), "{message}");
        assert!(!message.contains("GET"), "{message}");
    }
    assert!(gateway.take().is_empty(), "nothing wrong is posted");
}

#[tokio::test]
async fn errors_of_the_gateway_keep_code_message_and_details() {
    for code in ErrorCode::ALL {
        let gateway = Gateway::start(move |_, _| {
            let details = json!({ "sessions": ["ws-1"] });
            Reply::Json(
                code.http_status(),
                error(code.as_str(), "ws-1 is busy", details),
            )
        });
        let client = client(&gateway, Authority::Management).await;
        let result = client.call_tool(request("list_sandboxes", json!({}))).await;
        let error = error_of(&result.expect("an answer"));
        assert_eq!(error["code"], code.as_str());
        assert_eq!(error["message"], "ws-1 is busy");
        assert_eq!(error["details"], json!({ "sessions": ["ws-1"] }));
    }
}

#[tokio::test]
async fn a_gateway_that_is_not_there_is_a_tool_error_that_says_how_to_start_it() {
    let gateway =
        Gateway::start(|_, _| Reply::Json(200, sample::answer(OperationName::ListSandboxes.row())));
    let client = client(&gateway, Authority::Management).await;
    let place = gateway.place("management");
    let list = || async {
        let call = client.call_tool(request("list_sandboxes", json!({})));
        call.await.expect("an answer")
    };
    let message = |result: CallToolResult, code: &str| {
        let error = error_of(&result);
        assert_eq!(error["code"], code, "{error}");
        error["message"].as_str().expect("a message").to_owned()
    };

    // A socket is there, and nobody listens.
    let aside = place.socket.with_extension("aside");
    std::fs::rename(&place.socket, &aside).expect("the socket moves");
    let message_of = message(list().await, "unavailable");
    assert!(message_of.contains("sandbox-gateway serve"), "{message_of}");

    // Neither is there.
    let token = std::fs::read(&place.token_file).expect("the token");
    std::fs::remove_file(&place.token_file).expect("the token goes");
    let message_of = message(list().await, "unavailable");
    assert!(message_of.contains("sandbox-gateway serve"), "{message_of}");

    // A gateway, and no token.
    std::fs::rename(&aside, &place.socket).expect("the socket moves back");
    let message_of = message(list().await, "unauthorized");
    let path = place.token_file.display().to_string();
    assert!(message_of.contains(&path), "{message_of}");

    // It comes back without a restart of the server.
    std::fs::write(&place.token_file, token).expect("the token comes back");
    assert_ne!(list().await.is_error, Some(true));
}

#[tokio::test]
async fn a_connection_that_breaks_is_a_tool_error() {
    let gateway = Gateway::start(|_, _| Reply::Raw(b"HTTP/1.1 200 OK\r\n".to_vec()));
    let client = client(&gateway, Authority::Management).await;
    let result = client.call_tool(request("list_sandboxes", json!({}))).await;
    let error = error_of(&result.expect("an answer"));
    assert_eq!(error["code"], "internal");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("not known"), "{message}");
}

#[tokio::test]
async fn tools_that_are_not_of_this_set_are_told_apart() {
    let gateway = Gateway::start(|_, _| Reply::Json(200, json!({})));
    let client = client(&gateway, Authority::Management).await;
    let result = client.call_tool(request("exec_command", json!({}))).await;
    let message = error_of(&result.expect("an answer"))["message"].to_string();
    assert!(message.contains("set `runtime`"), "{message}");
    let result = client.call_tool(request("no_such_tool", json!({}))).await;
    match result {
        Err(ServiceError::McpError(error)) => {
            assert!(error.message.contains("list_sandboxes"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// A client that keeps the progress it is told.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<ProgressNotificationParam>>>);

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::default()
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.0.lock().expect("no panic").push(progress);
    }
}

fn import() -> Reply {
    let at = |done: u64| json!({ "files_found": 10, "files_done": done, "bytes_found": 99, "bytes_done": done });
    let answer = sample::answer(OperationName::CreateSandbox.row());
    Reply::Stream(vec![
        ("progress", at(0)),
        ("progress", at(4)),
        // Not greater than the one before, as the protocol wants it.
        ("progress", at(4)),
        ("progress", at(9)),
        ("result", answer),
    ])
}

#[tokio::test]
async fn progress_is_told_in_order_and_before_the_answer() {
    let gateway = Gateway::start(|_, _| import());
    let listener = Listener::default();
    let client = listener
        .clone()
        .serve(served(&gateway, Authority::Management))
        .await
        .expect("a client");
    // rmcp's client gives every request a progress token.
    let call = client.call_tool(request("create_sandbox", json!({ "workspace_root": "/p" })));
    let result = call.await.expect("an answer");
    assert_ne!(result.is_error, Some(true), "{result:?}");
    assert!(gateway.take()[0].accepts_stream);
    // Notifications are handled beside answers, so the last may still be on its way here.
    let told = || listener.0.lock().expect("no panic").clone();
    while told().len() < 3 {
        tokio::task::yield_now().await;
    }
    let told: Vec<(f64, Option<f64>)> = told().iter().map(|p| (p.progress, p.total)).collect();
    assert_eq!(
        told,
        [(0.0, Some(10.0)), (4.0, Some(10.0)), (9.0, Some(10.0))]
    );
}

#[tokio::test]
async fn a_cancelled_call_is_dropped_at_the_gateway_and_the_next_is_served() {
    let mut gateway = Gateway::start(|operation, _| match operation {
        "create_sandbox" => Reply::Hold,
        _ => Reply::Json(200, sample::answer(OperationName::ListSandboxes.row())),
    });
    let client = client(&gateway, Authority::Management).await;
    let call = client.call_tool(request("create_sandbox", json!({ "workspace_root": "/p" })));
    tokio::select! {
        result = call => panic!("it is not answered: {result:?}"),
        () = posted(&gateway) => {}
    }
    // Dropping the call cancels it.
    assert_eq!(
        gateway.hung_up.recv().await.as_deref(),
        Some("create_sandbox")
    );
    let result = client.call_tool(request("list_sandboxes", json!({}))).await;
    assert_ne!(result.expect("an answer").is_error, Some(true));
}

/// Waits until something is posted.
async fn posted(gateway: &Gateway) {
    while gateway.take().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn calls_do_not_wait_for_each_other() {
    let gateway = Gateway::start(|operation, _| match operation {
        "create_sandbox" => Reply::Hold,
        _ => Reply::Json(200, sample::answer(OperationName::ListSandboxes.row())),
    });
    let client = client(&gateway, Authority::Management).await;
    let held = client.call_tool(request("create_sandbox", json!({ "workspace_root": "/p" })));
    let list = async {
        posted(&gateway).await;
        client.call_tool(request("list_sandboxes", json!({}))).await
    };
    tokio::select! {
        result = held => panic!("it is not answered: {result:?}"),
        result = list => assert_ne!(result.expect("an answer").is_error, Some(true)),
    }
}

#[tokio::test]
async fn a_process_serves_both_eras_of_the_protocol_and_ends_with_its_input() {
    let gateway =
        Gateway::start(|_, _| Reply::Json(200, sample::answer(OperationName::Events.row())));
    let modern = || ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
    };
    for lifecycle in [ClientLifecycleMode::Initialize, modern()] {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_sandbox-mcp"));
        command
            .env_clear()
            .env("SANDSTACK_STATE_DIR", gateway.state_dir())
            .args(["--set", "observability"]);
        let process = TokioChildProcess::new(command).expect("the server starts");
        let client = ().serve_with_lifecycle(process, lifecycle.clone()).await;
        let client = client.unwrap_or_else(|error| panic!("{lifecycle:?}: {error}"));
        let tools = client.list_all_tools().await.expect("the tools");
        assert!(tools.iter().any(|tool| tool.name == "events"));
        let result = client
            .call_tool(request("events", json!({ "last_n": 1 })))
            .await;
        let result = result.expect("an answer");
        assert!(result.structured_content.is_some(), "{result:?}");
        assert_eq!(
            gateway.take()[0].body,
            Value::Object(Map::from_iter([("last_n".into(), 1.into())]))
        );
        client.cancel().await.expect("the client ends");
    }
}
