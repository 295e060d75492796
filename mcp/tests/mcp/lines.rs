//! A process that is fed lines, good and bad.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::gateway::Watchdog;

/// A server without a gateway.
fn start(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sandbox-mcp"))
        .env_clear()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server starts")
}

const SET: [&str; 4] = ["--set", "management", "--state-dir", "/nowhere"];

/// Feeds `input` to a server, waits for its end, and returns its answers. Holds that it exits with
/// 0 and that every line of stdout is a JSON-RPC message.
fn answers(input: &[u8]) -> Vec<Value> {
    let _watchdog = Watchdog::start(Duration::from_secs(60));
    let mut server = start(&SET);
    let mut stdin = server.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = server.wait_with_output().expect("the server ends");
    feeder
        .join()
        .expect("no panic")
        .expect("the server reads all");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let message: Value = serde_json::from_slice(line)
                .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(line)));
            assert_eq!(message["jsonrpc"], "2.0", "{message}");
            message
        })
        .collect()
}

fn by_id(answers: Vec<Value>) -> HashMap<String, Value> {
    let ids = answers.into_iter().filter(|answer| !answer["id"].is_null());
    ids.map(|answer| (answer["id"].to_string(), answer))
        .collect()
}

fn message(id: Value, method: &str, params: Value) -> Vec<u8> {
    let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

fn initialize(id: i64) -> Vec<u8> {
    let client = json!({ "name": "test", "version": "1" });
    message(
        id.into(),
        "initialize",
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }),
    )
}

/// Every line of this is wrong in its own way; with the id of its answer, and the answer's code.
fn bad_lines() -> Vec<(Vec<u8>, Option<Value>, i64)> {
    let line = |text: &str| {
        let mut line = text.as_bytes().to_vec();
        line.push(b'\n');
        line
    };
    vec![
        (line("{this is not json"), None, -32700),
        (line("\u{0}\u{1}"), None, -32700),
        (b"\xff\xfe\n".to_vec(), None, -32700),
        (line(&"[".repeat(100_000)), None, -32700),
        (line("[]"), None, -32600),
        (line("5"), None, -32600),
        (line("null"), None, -32600),
        (line("{}"), None, -32600),
        (
            line(r#"{"jsonrpc":"1.0","id":100,"method":"ping"}"#),
            Some(json!(100)),
            -32600,
        ),
        (
            line(r#"{"id":"a","method":"ping"}"#),
            Some(json!("a")),
            -32600,
        ),
        (
            line(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#),
            None,
            -32600,
        ),
        (
            line(r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#),
            None,
            -32600,
        ),
        (
            line(r#"{"jsonrpc":"2.0","id":101}"#),
            Some(json!(101)),
            -32600,
        ),
        (
            line(r#"{"jsonrpc":"2.0","id":102,"method":7}"#),
            Some(json!(102)),
            -32600,
        ),
        (
            message(103.into(), "no/such/method", json!({})),
            Some(json!(103)),
            -32601,
        ),
        (
            message(104.into(), "echo", json!({ "data": "A".repeat(1 << 20) })),
            Some(json!(104)),
            -32601,
        ),
        (
            message(105.into(), "tools/call", Value::Null),
            Some(json!(105)),
            -32602,
        ),
        (
            message(106.into(), "tools/call", json!({ "arguments": {} })),
            Some(json!(106)),
            -32602,
        ),
        (
            message(107.into(), "tools/call", json!({ "name": 5 })),
            Some(json!(107)),
            -32602,
        ),
        (
            message(
                108.into(),
                "tools/call",
                json!({ "name": "list_sandboxes", "arguments": [1] }),
            ),
            Some(json!(108)),
            -32602,
        ),
        (
            message(109.into(), "tools/call", json!({ "name": "no-such-tool" })),
            Some(json!(109)),
            -32602,
        ),
        (
            message(110.into(), "initialize", json!({ "protocolVersion": 7 })),
            Some(json!(110)),
            -32602,
        ),
        (vec![b'x'; (16 << 20) + (64 << 10) + 1], None, -32600),
    ]
}

#[test]
fn every_bad_line_is_answered_and_the_next_good_one_is_served() {
    for (bad, id, code) in bad_lines() {
        let mut input = initialize(1);
        input.extend_from_slice(&bad);
        if !bad.ends_with(b"\n") {
            input.push(b'\n');
        }
        input.extend(message(2.into(), "tools/list", json!({})));
        let answers = answers(&input);
        let shown = String::from_utf8_lossy(&bad[..bad.len().min(80)]).into_owned();
        assert_eq!(answers.len(), 3, "{shown}: {answers:?}");
        let answer = answers.iter().find(|answer| answer["error"].is_object());
        let answer = answer.unwrap_or_else(|| panic!("{shown}: {answers:?}"));
        assert_eq!(answer["error"]["code"], code, "{shown}: {answer}");
        assert_eq!(answer["id"], id.unwrap_or_default(), "{shown}: {answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .is_some_and(|text| text.len() > 10)
        );
        assert!(by_id(answers)["2"]["result"]["tools"].is_array(), "{shown}");
    }
}

#[test]
fn all_bad_lines_together_before_and_after_the_handshake() {
    let bad: Vec<u8> = bad_lines()
        .into_iter()
        .flat_map(|(line, ..)| [line, b"\n".to_vec()].concat())
        .collect();
    let input = [
        bad.clone(),
        initialize(1),
        bad.clone(),
        message(2.into(), "tools/list", json!({})),
        bad,
        message("last".into(), "ping", json!({})),
    ]
    .concat();
    let answers = by_id(answers(&input));
    assert!(answers["1"]["result"]["serverInfo"].is_object());
    assert!(answers["2"]["result"]["tools"].is_array());
    assert!(answers["\"last\""]["result"].is_object());
}

#[test]
fn what_has_no_answer_gets_none() {
    let input = [
        "\n",
        "   \r\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"no/such/notification\",\"params\":5}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":7}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":9,\"error\":{\"code\":1,\"message\":\"x\"}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"x\"}}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":9}}\n",
        "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n",
    ]
    .concat();
    let answers = answers(input.as_bytes());
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["id"], 1);
}

#[test]
fn the_last_line_needs_no_end_and_half_a_message_is_answered() {
    let whole = message(1.into(), "ping", json!({}));
    let answers_to_whole = answers(whole.trim_ascii_end());
    assert_eq!(answers_to_whole[0]["id"], 1);
    let answers_to_half = answers(&whole[..whole.len() / 2]);
    assert_eq!(answers_to_half[0]["error"]["code"], -32700);
    assert!(answers(b"").is_empty());
}

#[test]
fn it_ends_when_nobody_reads_its_output() {
    let _watchdog = Watchdog::start(Duration::from_secs(60));
    let mut server = start(&SET);
    let mut stdin = server.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(server.stdout.take().expect("a pipe"));
    stdin.write_all(&initialize(1)).expect("it listens");
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it answers");
    drop(stdout);
    // The input stays open; the answer to this finds no reader.
    stdin
        .write_all(&message(2.into(), "ping", json!({})))
        .expect("it listens");
    let status = server.wait().expect("it ends");
    assert!(status.success(), "{status:?}");
    drop(stdin);
}

#[test]
fn wrong_usage_goes_to_stderr_with_exit_code_2() {
    for args in [
        &[][..],
        &["--set"],
        &["--set", "admin"],
        &["--sett", "runtime"],
    ] {
        let output = start(args).wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with("sandbox-mcp: "), "{stderr}");
    }
    for args in [["--help"], ["--version"]] {
        let mut server = start(&args);
        let mut text = String::new();
        let mut stdout = server.stdout.take().expect("a pipe");
        stdout.read_to_string(&mut text).expect("text");
        assert!(server.wait().expect("it ends").success());
        assert!(text.contains("sandbox-mcp"), "{text}");
    }
}
