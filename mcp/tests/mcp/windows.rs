//! Answers that are too large for a model, end to end.

use sandstack_api::Authority;
use sandstack_mcp::MAX_ANSWER_BYTES;
use serde_json::{Value, json};

use crate::calls::{client, request};
use crate::gateway::{Gateway, Reply};

#[tokio::test]
async fn a_list_is_asked_again_with_a_smaller_limit() {
    let gateway = Gateway::start(|_, body| {
        let limit = body["limit"].as_u64().unwrap_or(200);
        let entries: Vec<Value> = (0..limit)
            .map(|row| {
                let path = format!("{row}/{}", "x".repeat(800));
                json!({ "path": path, "kind": "file", "mode": 420, "size": 1, "mtime_unix_ms": 1 })
            })
            .collect();
        Reply::Json(
            200,
            json!({ "entries": entries, "next_page_token": format!("after-{limit}") }),
        )
    });
    let client = client(&gateway, Authority::Runtime).await;
    let call = request("file_list", json!({ "sandbox_id": "sb-1", "path": "src" }));
    let result = client.call_tool(call).await.expect("an answer");
    let answer = result.structured_content.expect("structured content");
    assert!(answer.to_string().len() <= MAX_ANSWER_BYTES);
    let rows = answer["entries"].as_array().expect("rows").len();
    assert!(rows > 20, "{rows}");
    // Whole pages: the token continues where the rows end.
    assert_eq!(answer["next_page_token"], format!("after-{rows}"));
    let note = answer["window_note"].as_str().expect("a note");
    assert!(
        note.contains(&format!("`limit` was lowered to {rows}")),
        "{note}"
    );
    assert!(note.contains("`page_token`"), "{note}");
    let posted = gateway.take();
    assert_eq!(posted.len(), 2, "{posted:?}");
    assert_eq!(
        posted[1].body,
        json!({ "sandbox_id": "sb-1", "path": "src", "limit": rows })
    );
}

#[tokio::test]
async fn a_file_is_read_in_windows() {
    let gateway = Gateway::start(|_, body| {
        let length = body["limit"].as_u64().unwrap_or(262_144);
        Reply::Json(
            200,
            json!({
                "path": "f", "content": "\n".repeat(length as usize), "encoding": "utf-8",
                "offset": 0, "length": length, "size": 1_000_000, "truncated": true,
                "digest": "d", "mode": 420
            }),
        )
    });
    let client = client(&gateway, Authority::Runtime).await;
    let call = request("file_read", json!({ "sandbox_id": "sb-1", "path": "f" }));
    let result = client.call_tool(call).await.expect("an answer");
    let answer = result.structured_content.expect("structured content");
    assert!(answer.to_string().len() <= MAX_ANSWER_BYTES);
    let length = answer["length"].as_u64().expect("a length");
    // A line end takes two bytes in JSON.
    assert!(length > 15_000, "{length}");
    assert_eq!(
        answer["content"].as_str().map(str::len),
        Some(length as usize)
    );
    assert!(
        answer["window_note"]
            .as_str()
            .expect("a note")
            .contains("`offset`")
    );
}

#[tokio::test]
async fn a_command_is_run_once_however_much_it_says() {
    let gateway = Gateway::start(|_, _| {
        let content: String = (0..6000).map(|line| format!("line {line}\n")).collect();
        Reply::Json(
            200,
            json!({
                "command_session_id": "cmd-1", "workspace_session_id": "ws-1", "status": "exited",
                "exit_code": 0, "output": {
                    "content": content, "encoding": "utf-8", "start_offset": 0,
                    "next_offset": 6000, "total_lines": 6000, "total_bytes": 1, "truncated": false
                },
                "started_at_unix_ms": 0, "duration_ms": 0
            }),
        )
    });
    let client = client(&gateway, Authority::Runtime).await;
    let call = request(
        "exec_command",
        json!({ "sandbox_id": "sb-1", "cmd": "seq" }),
    );
    let result = client.call_tool(call).await.expect("an answer");
    let answer = result.structured_content.expect("structured content");
    assert!(answer.to_string().len() <= MAX_ANSWER_BYTES);
    assert_eq!(gateway.take().len(), 1);
    let start = answer["output"]["start_offset"]
        .as_u64()
        .expect("an offset");
    let content = answer["output"]["content"].as_str().expect("content");
    assert!(content.starts_with(&format!("line {start}\n")), "{start}");
    assert!(content.ends_with("line 5999\n"));
    let note = answer["window_note"].as_str().expect("a note");
    assert!(note.contains("read_command_lines"), "{note}");
}

#[tokio::test]
async fn an_answer_that_fits_has_no_note() {
    let gateway = Gateway::start(|_, _| {
        Reply::Json(
            200,
            json!({ "sandboxes": [], "sampled_at_unix_ms": 0, "errors": [] }),
        )
    });
    let client = client(&gateway, Authority::Management).await;
    let result = client.call_tool(request("list_sandboxes", json!({}))).await;
    let answer = result.expect("an answer").structured_content;
    assert!(
        answer
            .expect("structured content")
            .get("window_note")
            .is_none()
    );
}
