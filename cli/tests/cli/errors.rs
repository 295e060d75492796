//! How failures look: one error envelope or one sentence, and an exit code.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use sandstack_api::client::exit_code;
use sandstack_api::{Authority, ErrorCode};
use serde_json::{Value, json};

use crate::answers;
use crate::gateway::{Gateway, Reply, TOKEN};
use crate::process::{InProcess, Run, bare, binary, cli};

fn management(reply: Reply, args: &[&str]) -> Run {
    let gateway = Gateway::start(reply);
    cli(Authority::Management, &gateway).run(args)
}

#[test]
fn every_error_code_has_its_exit_code_and_keeps_its_envelope() {
    for code in ErrorCode::ALL {
        let reply = Reply::error(
            code.http_status(),
            code.as_str(),
            "sb-9 is not what you think",
            json!({ "sandbox_id": "sb-9" }),
        );
        let run = management(reply, &["inspect_sandbox", "sb-9"]);
        assert_eq!(run.code, i32::from(exit_code(code)), "{code}: {run:?}");
        let error = &run.json()["error"];
        assert_eq!(error["code"], code.as_str());
        assert_eq!(error["message"], "sb-9 is not what you think");
        assert_eq!(error["details"], json!({ "sandbox_id": "sb-9" }));
        assert_eq!(error["retryable"], code.retryable());
        assert!(run.stderr.is_empty(), "{run:?}");
    }
}

#[test]
fn errors_as_text_go_to_stderr_with_their_particulars() {
    let reply = Reply::error(
        409,
        "conflict",
        "sb-1 holds unpublished changes; publish them, or destroy with --force\u{1b}[31m",
        json!({ "sessions": [
            { "workspace_session_id": "ws-1", "changed_paths": 3 },
            { "workspace_session_id": "ws-2", "changed_paths": 1 }
        ] }),
    );
    let run = management(reply, &["destroy_sandbox", "sb-1", "--output", "text"]);
    assert_eq!(run.code, 4);
    assert!(run.stdout.is_empty(), "{run:?}");
    assert_eq!(
        run.err(),
        "error: sb-1 holds unpublished changes; publish them, or destroy with --force\\x1b[31m\n\
         \x20 sessions\n\
         \x20   WORKSPACE_SESSION_ID  CHANGED_PATHS\n\
         \x20   ws-1                  3\n\
         \x20   ws-2                  1\n"
    );
}

#[test]
fn an_error_on_a_stream_is_an_error() {
    let envelope = json!({ "error": {
        "code": "quota_exceeded", "message": "the disk is full", "details": {}, "retryable": false
    } });
    let run = management(
        Reply::Stream(vec![("progress", json!({})), ("error", envelope)]),
        &["create_sandbox", "/p"],
    );
    assert_eq!(run.code, 8, "{run:?}");
    assert_eq!(run.json()["error"]["code"], "quota_exceeded");
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_what_was_meant() {
    use Authority::{Management as M, Observability as O, Runtime as R};
    let cases: [(Authority, &[&str], &str); 21] = [
        (R, &[], "no operation is given"),
        (R, &["exec_comand"], "did you mean exec_command?"),
        (M, &["lst_sandboxes"], "did you mean list_sandboxes?"),
        (M, &["quux"], "`sandbox-manager-cli help` lists them"),
        (
            M,
            &["exec_command", "ls"],
            "use `sandbox-runtime-cli exec_command`",
        ),
        (
            R,
            &["create-sandbox", "/p"],
            "use `sandbox-manager-cli create_sandbox`",
        ),
        (R, &["trace"], "use `sandbox-observability-cli trace`"),
        (M, &["list_sandboxes", "--limt", "3"], "'--limit'"),
        (
            M,
            &["list_sandboxes", "--limit", "three"],
            "--limit: \"three\" is no whole number",
        ),
        (
            M,
            &["list_sandboxes", "--limit", "0"],
            "out of range: 1 to 1000",
        ),
        (
            M,
            &["list_sandboxes", "--limit", "-5"],
            "out of range: 1 to 1000",
        ),
        (
            M,
            &["list_sandboxes", "extra"],
            "unexpected argument 'extra'",
        ),
        (
            M,
            &["inspect_sandbox", "a b"],
            "<SANDBOX_ID>: \"a b\" is no valid id",
        ),
        (
            M,
            &["create_sandbox", "/p", "--provider", "dcker"],
            "'docker'",
        ),
        (M, &["create_sandbox", "/p", "--env", "A"], "KEY=VALUE"),
        (
            M,
            &["create_sandbox", "/p", "--resources", "{"],
            "--resources: \"{\" is no valid JSON",
        ),
        (
            M,
            &["create_sandbox"],
            "create_sandbox needs <WORKSPACE_ROOT>",
        ),
        (
            R,
            &["exec_command"],
            "needs <CMD> and --sandbox-id (or $SANDBOX_ID)",
        ),
        (
            R,
            &["file_edit", "f", "--sandbox-id", "sb-1"],
            "needs --edit OLD NEW (or --edits)",
        ),
        (R, &["exec_command", "ls", "--", "ls"], "given twice"),
        (
            O,
            &["events", "--request-id", "a b"],
            "--request-id: \"a b\"",
        ),
    ];
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    for (authority, args, expected) in cases {
        let run = cli(authority, &gateway).run(args);
        assert_eq!(run.code, 2, "{args:?}: {run:?}");
        assert_eq!(run.json()["error"]["code"], "invalid_request");
        assert!(run.message().contains(expected), "{args:?}: {run:?}");
        assert!(run.stderr.is_empty(), "{run:?}");
        let mut text = vec!["--output", "text"];
        text.extend_from_slice(args);
        // Without an operation the wish for text is no wish for an operation.
        if !args.is_empty() {
            let run = cli(authority, &gateway).run(&text);
            assert_eq!(run.code, 2, "{run:?}");
            assert!(run.stdout.is_empty(), "{run:?}");
            assert!(run.err().contains(expected), "{args:?}: {run:?}");
        }
    }
    assert!(gateway.take().is_empty(), "nothing wrong is posted");
}

#[test]
fn one_positional_too_many_is_refused() {
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    let run = cli(Authority::Runtime, &gateway).run([
        "write_command_stdin",
        "cmd-1",
        "text",
        "--stdin",
        "other",
    ]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(
        run.message().contains("unexpected argument text"),
        "{run:?}"
    );
}

#[test]
fn no_gateway_is_exit_code_5_and_says_how_to_start_one() {
    // Neither a socket nor a token: none was ever started here.
    let empty = tempfile::tempdir().expect("a temporary directory");
    let run = bare(Authority::Management)
        .env("SANDSTACK_STATE_DIR", empty.path())
        .run(["list_sandboxes"]);
    assert_eq!(run.code, 5, "{run:?}");
    assert_eq!(run.json()["error"]["code"], "unavailable");
    assert_eq!(run.json()["error"]["retryable"], true);
    assert!(run.message().contains("sandbox-gateway serve"), "{run:?}");

    // A token, and a socket that nobody listens on.
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    let socket = empty.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let run = cli(Authority::Management, &gateway)
        .env("SANDBOX_GATEWAY_SOCKET", &socket)
        .run(["list_sandboxes"]);
    assert_eq!(run.code, 5, "{run:?}");
    assert!(
        run.message().contains(&*socket.to_string_lossy()),
        "{run:?}"
    );
}

#[test]
fn a_token_that_cannot_be_read_is_exit_code_6_and_names_the_file() {
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    let path = gateway.state_dir().join("tokens/management.token");
    let list = || cli(Authority::Management, &gateway).run(["list_sandboxes"]);

    std::fs::write(&path, " \n").expect("an empty token file");
    let run = list();
    assert_eq!(run.code, 6, "{run:?}");
    assert!(run.message().contains("holds no token"), "{run:?}");

    std::fs::write(&path, "a token\nof two lines").expect("a file that is no token");
    assert_eq!(list().code, 6);

    std::fs::remove_file(&path).expect("the token file goes");
    let run = list();
    assert_eq!(run.code, 6, "{run:?}");
    assert_eq!(run.json()["error"]["code"], "unauthorized");
    assert!(run.message().contains(&*path.to_string_lossy()), "{run:?}");
    assert!(run.message().contains("--token-file"), "{run:?}");

    // Named by the caller, a missing file is the caller's even where no gateway is.
    let run = bare(Authority::Management)
        .env("SANDSTACK_STATE_DIR", "/nowhere")
        .run(["list_sandboxes", "--token-file", "/nowhere/token"]);
    assert_eq!(run.code, 6, "{run:?}");
    assert!(gateway.take().is_empty());
}

#[test]
fn without_any_directory_it_says_what_to_set() {
    let process = InProcess {
        args: vec!["list_sandboxes".into()],
        superuser: false,
        ..InProcess::default()
    };
    let run = process.run(Authority::Management);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.message().contains("SANDSTACK_STATE_DIR"), "{run:?}");
}

#[test]
fn a_connection_that_breaks_is_exit_code_1() {
    let broken: [&[u8]; 5] = [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"sandboxes\": [",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops",
    ];
    for bytes in broken {
        let run = management(Reply::Raw(bytes.to_vec()), &["list_sandboxes"]);
        assert_eq!(run.code, 1, "{run:?}");
        assert_eq!(run.json()["error"]["code"], "internal");
        assert!(run.message().contains("list_sandboxes"), "{run:?}");
    }
    let run = management(
        Reply::Stream(vec![("progress", json!({}))]),
        &["create_sandbox", "/p"],
    );
    assert_eq!(run.code, 1, "{run:?}");
}

#[test]
fn a_publish_with_conflicts_is_exit_code_4() {
    let publish = |answer: Value| {
        let gateway = Gateway::start(Reply::Json(200, answer));
        cli(Authority::Runtime, &gateway).run(["publish_workspace_session", "ws-8fq2m1"])
    };
    let run = publish(answers::of("publish_workspace_session"));
    assert_eq!(run.code, 4, "{run:?}");
    assert_eq!(run.json()["outcome"], "conflict");
    let mut published = answers::of("publish_workspace_session");
    published["outcome"] = json!("published");
    assert_eq!(publish(published).code, 0);
}

#[test]
fn a_commands_own_code_passes_only_when_asked() {
    let exec = |answer: Value, args: &[&str]| {
        let gateway = Gateway::start(Reply::Json(200, answer));
        let mut line = vec!["exec_command", "--sandbox-id", "sb-1", "x"];
        line.extend_from_slice(args);
        cli(Authority::Runtime, &gateway).run(line).code
    };
    let with = |change: Value| {
        let mut answer = answers::of("write_command_stdin");
        for (key, value) in change.as_object().expect("an object") {
            answer[key] = value.clone();
        }
        answer
    };
    let exited = with(json!({ "status": "exited", "exit_code": 3 }));
    assert_eq!(exec(exited.clone(), &[]), 0);
    assert_eq!(exec(exited, &["--exit-code"]), 3);
    let killed = with(json!({ "status": "signalled", "signal": 9, "exit_code": null }));
    assert_eq!(exec(killed, &["--exit-code", "--output", "text"]), 137);
    assert_eq!(
        exec(with(json!({ "status": "timed_out" })), &["--exit-code"]),
        124
    );
    assert_eq!(
        exec(with(json!({ "status": "running" })), &["--exit-code"]),
        125
    );
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let gateway = Gateway::start(Reply::Json(200, answers::of("list_sandboxes")));
    for args in [
        vec!["list_sandboxes"],
        vec!["help"],
        vec!["no_such_operation"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut child = Command::new(binary(Authority::Management))
            .env_clear()
            .env("SANDSTACK_STATE_DIR", gateway.state_dir())
            .args(&args)
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the CLI starts");
        let mut stderr = String::new();
        let mut pipe = child.stderr.take().expect("a pipe");
        pipe.read_to_string(&mut stderr).expect("stderr is text");
        let code = child.wait().expect("the CLI ends").code();
        if args[0] == "no_such_operation" {
            // The failure itself is told, since stdout cannot take it.
            assert_eq!(code, Some(2));
            assert!(stderr.contains("no_such_operation"), "{stderr}");
        } else {
            assert_eq!((code, stderr.as_str()), (Some(141), ""), "{args:?}");
        }
    }
}

#[test]
fn a_full_disk_under_stdout_is_told() {
    let gateway = Gateway::start(Reply::Json(200, answers::of("list_sandboxes")));
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let output = Command::new(binary(Authority::Management))
        .env_clear()
        .env("SANDSTACK_STATE_DIR", gateway.state_dir())
        .arg("list_sandboxes")
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .expect("the CLI runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot write the answer"), "{stderr}");
}

#[test]
fn the_token_is_in_no_message() {
    // A gateway that echoes what it got, in ways a message could carry it on.
    let echo = format!("unknown token {TOKEN}");
    let gateway = Gateway::start(Reply::Json(200, json!({})));
    let path = gateway.state_dir().join("tokens/management.token");
    // Not a token for its line break: the complaint must not quote the file.
    std::fs::write(&path, format!("{TOKEN}\n{echo}")).expect("a token file");
    for format in ["text", "json"] {
        let run = cli(Authority::Management, &gateway).run(["list_sandboxes", "--output", format]);
        assert_eq!(run.code, 6, "{run:?}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("chmod");
    let run = cli(Authority::Management, &gateway).run(["list_sandboxes"]);
    assert_eq!(run.code, 6, "{run:?}");
}
