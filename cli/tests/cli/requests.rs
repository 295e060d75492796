//! What is typed and what is posted.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use sandstack_api::{Authority, OPERATIONS, Operation, Request};
use serde_json::{Map, Value, json};

use crate::gateway::{Gateway, Reply, TOKEN};
use crate::process::{bare, cli};

fn gateway() -> Gateway {
    Gateway::start(Reply::Json(200, json!({})))
}

/// Runs `line`, cut at spaces (`␣` stands for one), and returns the body that was posted.
fn posted(gateway: &Gateway, authority: Authority, line: &str) -> Value {
    let args: Vec<String> = line.split(' ').map(|word| word.replace('␣', " ")).collect();
    let run = cli(authority, gateway).run(&args);
    assert_eq!(run.code, 0, "{line}: {run:?}");
    let posted = gateway.take_one();
    let operation = args
        .iter()
        .map(|word| word.replace('-', "_"))
        .find(|word| OPERATIONS.iter().any(|row| row.name == word));
    let operation = operation.expect("the line names an operation");
    assert_eq!(posted.line, format!("POST /v1/{operation} HTTP/1.1"));
    posted.json()
}

#[test]
fn what_is_typed_is_what_is_posted() {
    use Authority::{Management as M, Observability as O, Runtime as R};
    let gateway = gateway();
    let cases = [
        (M, "create_sandbox /p", json!({ "workspace_root": "/p" })),
        (
            M,
            "create_sandbox --workspace-root /p --count 3 --name=n --image debian:12 --provider docker --trace-mode exact",
            json!({
                "workspace_root": "/p", "count": 3, "name": "n", "image": "debian:12",
                "provider": "docker", "trace_mode": "exact"
            }),
        ),
        (
            M,
            r#"create_sandbox /p --env A=1 --env=B=x=y --env C= --labels k=v --resources {"cpus":2}"#,
            json!({
                "workspace_root": "/p", "env": { "A": "1", "B": "x=y", "C": "" },
                "labels": { "k": "v" }, "resources": { "cpus": 2 }
            }),
        ),
        (
            M,
            r#"create_sandbox /p --resources {"cpus":2,"pids_max":9} --cpus 1.5 --memory-bytes 4096"#,
            json!({
                "workspace_root": "/p",
                "resources": { "cpus": 1.5, "pids_max": 9, "memory_bytes": 4096 }
            }),
        ),
        (
            M,
            r#"create_sandbox /p --publish-policy {"rules":[{"glob":"*.o","route":"ignored"}]}"#,
            json!({
                "workspace_root": "/p",
                "publish_policy": { "rules": [{ "glob": "*.o", "route": "ignored" }] }
            }),
        ),
        (M, "list_sandboxes", json!({})),
        (
            M,
            "list-sandboxes --limit 5 --page-token t",
            json!({ "limit": 5, "page_token": "t" }),
        ),
        (M, "inspect_sandbox sb-1", json!({ "sandbox_id": "sb-1" })),
        (
            M,
            "inspect_sandbox --sandbox-id=sb-1",
            json!({ "sandbox_id": "sb-1" }),
        ),
        (
            M,
            "--sandbox-id sb-1 destroy-sandbox --force",
            json!({ "sandbox_id": "sb-1", "force": true }),
        ),
        (
            M,
            "destroy_sandbox --force=false sb-1",
            json!({ "sandbox_id": "sb-1", "force": false }),
        ),
        (
            M,
            "refresh_base sb-1 --dry-run --markers",
            json!({ "sandbox_id": "sb-1", "dry_run": true, "markers": true }),
        ),
        (
            M,
            "squash-layerstacks --keep-last 3 --sandbox-id sb-1",
            json!({ "sandbox_id": "sb-1", "keep_last": 3 }),
        ),
        (
            M,
            "--sandbox-id sb-1 export_changes /tmp/p --format tar-zst --from B000001 --to=L000002",
            json!({
                "sandbox_id": "sb-1", "dest": "/tmp/p", "format": "tar-zst", "from": "B000001",
                "to": "L000002"
            }),
        ),
        (M, "collect_garbage --dry-run", json!({ "dry_run": true })),
        (M, "store_usage", json!({})),
        (M, "verify_store", json!({})),
        (M, "doctor", json!({})),
        (
            R,
            "diff_workspace_session ws-1 --against head --paths src --paths a␣b --format unified --limit 5 --page-token ab",
            json!({
                "workspace_session_id": "ws-1", "against": "head", "paths": ["src", "a b"],
                "format": "unified", "limit": 5, "page_token": "ab"
            }),
        ),
        (
            R,
            "list_layers --sandbox-id sb-1 --limit 2",
            json!({ "sandbox_id": "sb-1", "limit": 2 }),
        ),
        (
            R,
            "diff_layers B000001 L000002 --sandbox-id sb-1",
            json!({ "sandbox_id": "sb-1", "from": "B000001", "to": "L000002" }),
        ),
        (
            R,
            "create_workspace_session fix --sandbox-id sb-1 --network-profile isolated --from L000002 --ttl-s 60 --quota-bytes 1 --env A=b",
            json!({
                "sandbox_id": "sb-1", "name": "fix", "network_profile": "isolated",
                "from": "L000002", "ttl_s": 60, "quota_bytes": 1, "env": { "A": "b" }
            }),
        ),
        (
            R,
            "--sandbox-id sb-1 list_workspace_sessions",
            json!({ "sandbox_id": "sb-1" }),
        ),
        (
            R,
            "inspect_workspace_session ws-1 --changes",
            json!({ "workspace_session_id": "ws-1", "changes": true }),
        ),
        (
            R,
            "publish_workspace_session ws-1 --message -␣fix --dry-run --markers --grace-s 5",
            json!({
                "workspace_session_id": "ws-1", "message": "- fix", "dry_run": true,
                "markers": true, "grace_s": 5
            }),
        ),
        (
            R,
            "publish_workspace_session ws-1 --paths src --paths a␣b --keep-open --validate reads --ignored drop",
            json!({
                "workspace_session_id": "ws-1", "paths": ["src", "a b"], "keep_open": true,
                "validate": "reads", "ignored": "drop"
            }),
        ),
        (
            R,
            "destroy_workspace_session --workspace-session-id ws-1 --force --grace-s=0",
            json!({ "workspace_session_id": "ws-1", "force": true, "grace_s": 0 }),
        ),
        (
            R,
            "exec_command cargo␣test --sandbox-id sb-1 --workspace-session-id ws-1 --cwd src --timeout-ms 9 --yield-time-ms 0 --tty=false --stdin in --keep-stdin-open --env A=b",
            json!({
                "sandbox_id": "sb-1", "cmd": "cargo test", "workspace_session_id": "ws-1",
                "cwd": "src", "timeout_ms": 9, "yield_time_ms": 0, "tty": false, "stdin": "in",
                "keep_stdin_open": true, "env": { "A": "b" }
            }),
        ),
        (
            R,
            "exec_command --sandbox-id sb-1 --tty -- printf %s␣%s a␣b --json",
            json!({ "sandbox_id": "sb-1", "cmd": "printf '%s %s' 'a b' --json", "tty": true }),
        ),
        (
            R,
            "write_command_stdin cmd-1 y --eof --yield-time-ms 5 --start-offset 7",
            json!({
                "command_session_id": "cmd-1", "stdin": "y", "eof": true, "yield_time_ms": 5,
                "start_offset": 7
            }),
        ),
        (
            R,
            "write_command_stdin --command-session-id cmd-1 y",
            json!({ "command_session_id": "cmd-1", "stdin": "y" }),
        ),
        (
            R,
            "write_command_stdin y --command-session-id cmd-1",
            json!({ "command_session_id": "cmd-1", "stdin": "y" }),
        ),
        (
            R,
            "read_command_lines cmd-1 --start-offset 3 --limit 1000 --stream stderr",
            json!({ "command_session_id": "cmd-1", "start_offset": 3, "limit": 1000, "stream": "stderr" }),
        ),
        (
            R,
            "file_read --sandbox-id sb-1 src/main.rs --offset 4 --limit 10 --encoding base64",
            json!({
                "sandbox_id": "sb-1", "path": "src/main.rs", "offset": 4, "limit": 10,
                "encoding": "base64"
            }),
        ),
        (
            R,
            "file_write --sandbox-id sb-1 notes.md --workspace-session-id ws-1 hello --mode 420 --expected-digest=",
            json!({
                "sandbox_id": "sb-1", "path": "notes.md", "workspace_session_id": "ws-1",
                "content": "hello", "mode": 420, "expected_digest": ""
            }),
        ),
        (
            R,
            r#"file_edit a.py --sandbox-id sb-1 --edits [{"old_string":"a","new_string":"b"}] --dry-run"#,
            json!({
                "sandbox_id": "sb-1", "path": "a.py", "dry_run": true,
                "edits": [{ "old_string": "a", "new_string": "b" }]
            }),
        ),
        (
            R,
            "file_edit a.py --sandbox-id sb-1 --edit -␣one -␣two --edit x y",
            json!({
                "sandbox_id": "sb-1", "path": "a.py",
                "edits": [
                    { "old_string": "- one", "new_string": "- two" },
                    { "old_string": "x", "new_string": "y" }
                ]
            }),
        ),
        (
            R,
            "file_edit a.py --sandbox-id sb-1 --edit x y --replace-all --expected-digest d",
            json!({
                "sandbox_id": "sb-1", "path": "a.py", "expected_digest": "d",
                "edits": [{ "old_string": "x", "new_string": "y", "replace_all": true }]
            }),
        ),
        (
            R,
            "file_list --sandbox-id sb-1 --glob **/*.rs",
            json!({ "sandbox_id": "sb-1", "glob": "**/*.rs" }),
        ),
        (
            R,
            "file_blame --sandbox-id sb-1 a.py --layer L000002",
            json!({ "sandbox_id": "sb-1", "path": "a.py", "layer": "L000002" }),
        ),
        (O, "snapshot", json!({})),
        (
            O,
            "snapshot --sandbox-id sb-1",
            json!({ "sandbox_id": "sb-1" }),
        ),
        (
            O,
            "trace req-1 --operation exec_command",
            json!({ "trace_id": "req-1", "operation": "exec_command" }),
        ),
        (
            O,
            "events command.* --since-ms 1 --last-n 2",
            json!({ "name": "command.*", "since_ms": 1, "last_n": 2 }),
        ),
        (
            O,
            "layerstack --sandbox-id sb-1",
            json!({ "sandbox_id": "sb-1" }),
        ),
        (
            O,
            "file_activity src --sandbox-id sb-1 --kinds read --kinds=write --pid 7 --glob * --workspace-session-id ws-1 --command-session-id cmd-1 --since-ms 1 --until-ms 2",
            json!({
                "sandbox_id": "sb-1", "path": "src", "kinds": ["read", "write"], "pid": 7,
                "glob": "*", "workspace_session_id": "ws-1", "command_session_id": "cmd-1",
                "since_ms": 1, "until_ms": 2
            }),
        ),
    ];
    for (authority, line, expected) in &cases {
        let body = posted(&gateway, *authority, line);
        assert_eq!(body, *expected, "{line}");
        let name = line
            .split(' ')
            .find_map(|word| sandstack_api::OperationName::find(&word.replace('-', "_")));
        let name = name.expect("the line names an operation");
        Request::parse(name, body.to_string().as_bytes()).expect("the gateway reads it");
    }
}

/// Types every field of every operation, as its schema describes it, and expects it in the body.
/// It reads schemas in its own way, so that a field which the CLI overlooks is noticed.
#[test]
fn every_field_of_every_operation_can_be_typed() {
    let gateway = gateway();
    for row in OPERATIONS {
        let (args, expected) = everything_of(row);
        let run = cli(row.authority, &gateway).run(&args);
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
        assert_eq!(gateway.take_one().json(), expected, "{args:?}");
    }
}

fn everything_of(row: &Operation) -> (Vec<String>, Value) {
    let schema = (row.request_schema)();
    let schema = schema.as_value();
    let mut args = vec![row.name.to_owned()];
    let mut expected = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let (text, value) = sample(schema, property);
        let flag = format!("--{}", name.replace('_', "-"));
        args.push(format!("{flag}={text}"));
        expected.insert(name.clone(), value);
    }
    (args, expected.into())
}

/// A value of `schema`, as it is typed and as it is posted.
fn sample(root: &Value, schema: &Value) -> (String, Value) {
    let same = |value: Value| (value.to_string(), value);
    if let Some(reference) = schema["$ref"].as_str() {
        let definition = root.pointer(&reference[1..]).expect("it resolves");
        return sample(root, definition);
    }
    let variants = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(variants) = variants {
        if let Some(name) = variants[0]["const"].as_str() {
            return (name.to_owned(), name.into());
        }
        return sample(root, &variants[0]);
    }
    let mut kind = &schema["type"];
    if let Some(kinds) = kind.as_array() {
        kind = &kinds[0];
    }
    match kind.as_str().expect("a type") {
        "boolean" => same(true.into()),
        "integer" => same(schema["minimum"].clone()),
        "number" => same(json!(0.5)),
        "string" => ("x-1".to_owned(), "x-1".into()),
        "array" => {
            let (text, value) = sample(root, &schema["items"]);
            match value.is_object() {
                true => same(json!([value])),
                false => (text, json!([value])),
            }
        }
        "object" => match schema["properties"].as_object() {
            Some(properties) => same(
                properties
                    .iter()
                    .map(|(name, property)| (name.clone(), sample(root, property).1))
                    .collect(),
            ),
            None => {
                let (text, value) = sample(root, &schema["additionalProperties"]);
                (format!("k={text}"), json!({ "k": value }))
            }
        },
        other => panic!("a type that this test does not know: {other}"),
    }
}

#[test]
fn a_call_carries_token_type_and_request_id() {
    let gateway = gateway();
    cli(Authority::Management, &gateway).run(["list_sandboxes", "--request-id", "req-7"]);
    let posted = gateway.take_one();
    assert_eq!(posted.headers["authorization"], format!("Bearer {TOKEN}"));
    assert_eq!(posted.headers["content-type"], "application/json");
    assert_eq!(posted.headers["x-request-id"], "req-7");
    cli(Authority::Management, &gateway).run(["list_sandboxes"]);
    assert!(!gateway.take_one().headers.contains_key("x-request-id"));
}

#[test]
fn the_sandbox_comes_from_flag_then_environment() {
    let gateway = gateway();
    let sandbox = |args: &[&str]| {
        let run = cli(Authority::Runtime, &gateway)
            .env("SANDBOX_ID", "sb-env")
            .run(args);
        assert_eq!(run.code, 0, "{run:?}");
        gateway.take_one().json()["sandbox_id"].clone()
    };
    assert_eq!(sandbox(&["list_workspace_sessions"]), "sb-env");
    assert_eq!(
        sandbox(&["list_workspace_sessions", "--sandbox-id", "sb-1"]),
        "sb-1"
    );
    assert_eq!(
        sandbox(&["--sandbox-id", "sb-2", "list_workspace_sessions"]),
        "sb-2"
    );
    // Where a request has no such field, it is not sent.
    assert_eq!(sandbox(&["inspect_workspace_session", "ws-1"]), Value::Null);
    let run = cli(Authority::Management, &gateway)
        .env("SANDBOX_ID", "sb-env")
        .run(["inspect_sandbox"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(gateway.take_one().json(), json!({ "sandbox_id": "sb-env" }));
}

#[test]
fn places_come_from_flags_then_environment_then_defaults() {
    let gateway = gateway();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let token = elsewhere.path().join("t");
    std::fs::write(&token, "tok-5ecret-do-not-print").expect("a token file");
    let (socket, state) = (gateway.socket(), gateway.state_dir());
    let list = |cli: crate::process::Cli, args: &[&OsStr]| {
        let mut line = vec![OsStr::new("list_sandboxes")];
        line.extend_from_slice(args);
        let run = cli.run(line);
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
        gateway.take_one();
    };
    let flag = |name: &str, path: &std::path::Path| {
        let mut flag = OsString::from(format!("--{name}="));
        flag.push(path);
        flag
    };
    let management = || bare(Authority::Management);
    let wrong = || management().env("SANDSTACK_STATE_DIR", elsewhere.path());
    list(wrong(), &[&flag("state-dir", state)]);
    list(
        wrong(),
        &[&flag("socket", &socket), &flag("token-file", &token)],
    );
    list(
        wrong()
            .env("SANDBOX_GATEWAY_SOCKET", &socket)
            .env("SANDBOX_GATEWAY_TOKEN_FILE", &token),
        &[],
    );
    list(
        wrong()
            .env("SANDBOX_GATEWAY_SOCKET", "/nowhere")
            .env("SANDBOX_GATEWAY_TOKEN_FILE", "/nowhere"),
        &[&flag("socket", &socket), &flag("token-file", &token)],
    );
    // A variable that is set to nothing is not set.
    list(
        management()
            .env("SANDSTACK_STATE_DIR", state)
            .env("SANDBOX_GATEWAY_SOCKET", "")
            .env("SANDBOX_ID", ""),
        &[],
    );
}

#[test]
fn bytes_that_are_not_utf8_arrive_as_they_are() {
    let gateway = gateway();
    let odd = OsStr::from_bytes(b"caf\xe9");
    let runtime = || cli(Authority::Runtime, &gateway).env("SANDBOX_ID", "sb-1");
    let read = |run: crate::process::Run| {
        assert_eq!(run.code, 0, "{run:?}");
        gateway.take_one().json()
    };
    let encoded = json!({ "base64": "Y2Fm6Q==" });

    let body = read(runtime().run([OsStr::new("file_read"), odd]));
    assert_eq!(body["path"], encoded);

    let mut pair = OsString::from("--env=A=");
    pair.push(odd);
    let words = [
        OsStr::new("exec_command"),
        &pair,
        OsStr::new("--"),
        OsStr::new("cat"),
        odd,
    ];
    let body = read(runtime().run(words));
    assert_eq!(body["env"]["A"], encoded);
    // `cat 'caf\xe9'`
    assert_eq!(body["cmd"], json!({ "base64": "Y2F0ICdjYWbpJw==" }));

    let body = read(runtime().run([
        OsStr::new("file_edit"),
        OsStr::new("f"),
        OsStr::new("--edit"),
        odd,
        OsStr::new("x"),
    ]));
    assert_eq!(body["edits"][0]["old_string"], encoded);

    // Content says how it is written.
    let body = read(runtime().run([OsStr::new("file_write"), OsStr::new("f"), odd]));
    assert_eq!(
        (&body["content"], &body["encoding"]),
        (&json!("Y2Fm6Q=="), &json!("base64"))
    );

    // Text is UTF-8, and says so.
    let run = runtime().run([OsStr::new("create_workspace_session"), odd]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.message().contains("not UTF-8"), "{run:?}");
}

#[test]
fn a_dash_reads_standard_input() {
    let gateway = gateway();
    let runtime = || cli(Authority::Runtime, &gateway).env("SANDBOX_ID", "sb-1");
    let body = |input: &[u8], args: &[&str]| {
        let run = runtime().stdin(input).run(args);
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
        gateway.take_one().json()
    };
    assert_eq!(body(b"ls\n", &["exec_command", "-"])["cmd"], "ls\n");
    assert_eq!(
        body(b"\0y\n", &["write_command_stdin", "cmd-1", "-"])["stdin"],
        "\0y\n"
    );
    assert_eq!(
        body(b"in", &["exec_command", "cat", "--stdin", "-"])["stdin"],
        "in"
    );
    assert_eq!(
        body(b"text\n", &["file_write", "f", "-"])["content"],
        "text\n"
    );
    let binary = body(b"\xff\0", &["file_write", "f", "-"]);
    assert_eq!(
        (&binary["content"], &binary["encoding"]),
        (&json!("/wA="), &json!("base64"))
    );
    // What is written as base64 already is passed on.
    let encoded = body(b"/wA=", &["file_write", "f", "-", "--encoding", "base64"]);
    assert_eq!(
        (&encoded["content"], &encoded["encoding"]),
        (&json!("/wA="), &json!("base64"))
    );
    // A path is no such field.
    assert_eq!(body(b"x", &["file_read", "-"])["path"], "-");

    let run = runtime().run(["exec_command", "-", "--stdin=-"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.message().contains("only one of them"), "{run:?}");
    assert!(gateway.take().is_empty());
}

#[test]
fn input_beyond_the_bound_is_refused_before_it_is_sent() {
    let gateway = gateway();
    let run = cli(Authority::Runtime, &gateway)
        .stdin(&vec![b'x'; (16 << 20) + 1])
        .run(["file_write", "f", "-", "--sandbox-id", "sb-1"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(run.json()["error"]["code"], "too_large");
    assert!(gateway.take().is_empty());
}
