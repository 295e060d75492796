//! Any request can be typed, and comes back equal: the spelling of a request and its reading hold
//! each other.

use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::Union;
use sandstack_api::management::{
    CreateSandbox, Provider, PublishPolicy, PublishRule, Resources, Route, TraceMode,
};
use sandstack_api::observability::{AccessKind, FileActivity};
use sandstack_api::runtime::{Edit, ExecCommand, FileEdit, FileWrite, WriteCommandStdin};
use sandstack_api::{
    Blob, Call, CommandId, Encoding, OPERATIONS, OperationName, Request, SandboxId, SessionId,
};
use sandstack_cli::{Spelling, Variables, spell};
use serde_json::{Map, Value, json};

use crate::gateway::{Gateway, Reply, Watchdog};
use crate::process::InProcess;

/// Types `spelling` in this process, against `gateway`, and reads what was posted.
fn typed(gateway: &Gateway, operation: OperationName, spelling: Spelling) -> Request {
    let args = spelling.args.clone();
    let environment = InProcess {
        args: spelling.args,
        stdin: spelling.stdin.unwrap_or_default(),
        variables: Variables {
            state_dir: Some(gateway.state_dir().into()),
            ..Variables::default()
        },
        ..InProcess::default()
    };
    let run = environment.run(operation.row().authority);
    assert_eq!(run.code, 0, "{args:?}: {run:?}");
    let body = gateway.take_one().body;
    Request::parse(operation, &body).expect("the body is a request")
}

fn comes_back<C: Call + Clone>(gateway: &Gateway, request: &C) -> Result<(), TestCaseError> {
    let Ok(Value::Object(json)) = serde_json::to_value(request) else {
        return Err(TestCaseError::fail("a request is an object"));
    };
    let spelling = spell(C::OPERATION, &json);
    let spelling = spelling.ok_or_else(|| TestCaseError::fail(format!("no spelling: {json:?}")))?;
    let back = typed(gateway, C::OPERATION, spelling);
    prop_assert_eq!(back, request.clone().into());
    Ok(())
}

/// Bytes that an argument can hold, with many of those that a command line could stumble over.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let tricky = Union::new(
        [
            &b"-"[..],
            b"--",
            b"--json",
            b"-x",
            b"=",
            b"",
            b"a=b",
            b"{}",
            b"{\"k\":\"v\"}",
            b"-1",
            b"\xff\xfe",
            b"'\"\\",
            b"\n",
            "é\u{202e}".as_bytes(),
        ]
        .map(|bytes| Just(bytes.to_vec())),
    );
    prop_oneof![tricky, vec(1..=255u8, 0..20)]
}

fn blob() -> impl Strategy<Value = Blob> {
    bytes().prop_map(Blob)
}

/// Any bytes at all, for what standard input can carry.
fn input() -> impl Strategy<Value = Blob> {
    prop_oneof![blob(), vec(any::<u8>(), 0..20).prop_map(Blob)]
}

fn text() -> impl Strategy<Value = String> {
    bytes().prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn id() -> impl Strategy<Value = String> {
    "[A-Za-z0-9._:-]{1,20}"
}

fn sandbox() -> impl Strategy<Value = SandboxId> {
    id().prop_map(|id| SandboxId::new(&id).expect("it is an id"))
}

fn session() -> impl Strategy<Value = SessionId> {
    id().prop_map(|id| SessionId::new(&id).expect("it is an id"))
}

fn command() -> impl Strategy<Value = CommandId> {
    id().prop_map(|id| CommandId::new(&id).expect("it is an id"))
}

fn env() -> impl Strategy<Value = std::collections::BTreeMap<String, Blob>> {
    btree_map(text(), input(), 0..4)
}

prop_compose! {
    fn exec_command()(
        sandbox_id in sandbox(),
        cmd in blob(),
        workspace_session_id in option::of(session()),
        cwd in option::of(blob()),
        env in env(),
        timeout_ms in option::of(1..u64::MAX),
        yield_time_ms in option::of(0..=600_000u64),
        tty in option::of(any::<bool>()),
        stdin in option::of(input()),
        keep_stdin_open in any::<bool>(),
        rows in option::of(1u16..),
        cols in option::of(1u16..),
    ) -> ExecCommand {
        // Standard input can only carry one of the two; `-` needs it.
        let cmd = if cmd.0 == b"-" { Blob::from("true") } else { cmd };
        ExecCommand {
            sandbox_id, cmd, workspace_session_id, cwd, env, timeout_ms, yield_time_ms, tty, stdin,
            keep_stdin_open,
            rows,
            cols,
        }
    }
}

prop_compose! {
    fn write_command_stdin()(
        command_session_id in command(),
        stdin in input(),
        eof in any::<bool>(),
        yield_time_ms in option::of(0..=600_000u64),
        start_offset in option::of(any::<u64>()),
    ) -> WriteCommandStdin {
        WriteCommandStdin { command_session_id, stdin, eof, yield_time_ms, start_offset }
    }
}

prop_compose! {
    fn create_sandbox()(
        workspace_root in blob(),
        image in option::of(text()),
        provider in option::of(prop_oneof![Just(Provider::Local), Just(Provider::Docker)]),
        count in option::of(1..=64u32),
        name in option::of(text()),
        cpus in option::of(any::<f64>().prop_filter("finite", |cpus| cpus.is_finite())),
        memory_bytes in option::of(any::<u64>()),
        has_resources in any::<bool>(),
        rules in option::of(vec(text(), 0..3)),
        trace_mode in option::of(prop_oneof![Just(TraceMode::Off), Just(TraceMode::Exact)]),
        env in env(),
        labels in btree_map(text(), text(), 0..4),
    ) -> CreateSandbox {
        CreateSandbox {
            workspace_root, image, provider, count, name,
            resources: has_resources.then_some(Resources {
                cpus, memory_bytes, pids_max: None, disk_bytes: None,
            }),
            publish_policy: rules.map(|globs| PublishPolicy {
                rules: globs
                    .into_iter()
                    .map(|glob| PublishRule { glob, route: Route::SessionPrivate })
                    .collect(),
            }),
            trace_mode, env, labels,
        }
    }
}

prop_compose! {
    fn file_write()(
        sandbox_id in sandbox(),
        path in blob(),
        workspace_session_id in option::of(session()),
        content in prop_oneof![text(), "[\\x00-\\x7f]{0,10}"],
        encoding in prop_oneof![Just(Encoding::Utf8), Just(Encoding::Base64)],
        expected_digest in option::of(text()),
        mode in option::of(0..=0o7777u32),
    ) -> FileWrite {
        FileWrite {
            sandbox_id, path, workspace_session_id, content, encoding, expected_digest, mode,
        }
    }
}

prop_compose! {
    fn file_edit()(
        sandbox_id in sandbox(),
        path in blob(),
        workspace_session_id in option::of(session()),
        edits in vec((input(), input(), any::<bool>()), 1..4),
        dry_run in any::<bool>(),
        expected_digest in option::of(text()),
    ) -> FileEdit {
        let edits = edits
            .into_iter()
            .map(|(old_string, new_string, replace_all)| Edit { old_string, new_string, replace_all })
            .collect();
        FileEdit { sandbox_id, path, workspace_session_id, edits, dry_run, expected_digest }
    }
}

prop_compose! {
    fn file_activity()(
        sandbox_id in sandbox(),
        path in option::of(blob()),
        glob in option::of(text()),
        workspace_session_id in option::of(session()),
        command_session_id in option::of(command()),
        pid in option::of(any::<u32>()),
        kinds in vec(prop_oneof![Just(AccessKind::Read), Just(AccessKind::RenameTo)], 0..3),
        since_ms in option::of(any::<u64>()),
        limit in option::of(1..=1000u32),
        page_token in option::of(text()),
    ) -> FileActivity {
        FileActivity {
            sandbox_id, path, glob, digest: None, workspace_session_id, command_session_id, pid, kinds, since_ms,
            until_ms: None, limit, page_token,
            calls: true,
        }
    }
}

/// Runs `test` on many requests, with one gateway for all.
fn each<C: Call + Clone + std::fmt::Debug>(strategy: impl Strategy<Value = C>) {
    let _watchdog = Watchdog::start(Duration::from_secs(120));
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&strategy, |request| comes_back(&gateway, &request));
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn exec_command_comes_back() {
    each(exec_command());
}

#[test]
fn write_command_stdin_comes_back() {
    each(write_command_stdin());
}

#[test]
fn create_sandbox_comes_back() {
    each(create_sandbox());
}

#[test]
fn file_write_comes_back() {
    each(file_write());
}

#[test]
fn file_edit_comes_back() {
    each(file_edit());
}

#[test]
fn file_activity_comes_back() {
    each(file_activity());
}

#[test]
fn a_nul_where_only_an_argument_fits_has_no_spelling() {
    let request = Map::from_iter([("path".to_owned(), json!("a\0b"))]);
    assert_eq!(spell(OperationName::FileRead, &request), None);
}

/// The examples of the documentation are command lines that say the same.
#[test]
fn every_example_of_the_catalogue_can_be_typed() {
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    let mut examples = 0;
    for row in OPERATIONS {
        let description = row.description();
        let Some((_, example)) = description.split_once("Example: `") else {
            continue;
        };
        let (example, _) = example.rsplit_once('`').expect("it ends");
        let example: Map<String, Value> = serde_json::from_str(example).expect("it is JSON");
        let spelling = spell(row.operation, &example).expect("it has a spelling");
        let json = Value::Object(example).to_string();
        let request = Request::parse(row.operation, json.as_bytes()).expect("it is a request");
        assert_eq!(typed(&gateway, row.operation, spelling), request);
        examples += 1;
    }
    assert!(examples > 5, "{examples}");
}
