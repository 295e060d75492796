//! Answers as text, held to checked-in files; and as JSON and JSON lines.

use sandstack_api::{OPERATIONS, Operation};
use serde_json::{Value, json};

use crate::answers;
use crate::expected::matches_file;
use crate::gateway::{Gateway, Reply};
use crate::process::{Run, cli};

/// Calls `row` with just what it needs, answered with `answer`.
fn call(row: &Operation, answer: Value, more: &[&str]) -> Run {
    let gateway = Gateway::start(Reply::Json(200, answer));
    let mut args = vec![row.name];
    let required: &[&str] = match row.name {
        "create_sandbox" => &["/p"],
        "inspect_sandbox" | "destroy_sandbox" => &["sb-1"],
        "export_changes" => &["/e"],
        "inspect_workspace_session"
        | "publish_workspace_session"
        | "destroy_workspace_session"
        | "diff_workspace_session" => &["ws-1"],
        "exec_command" => &["true"],
        "write_command_stdin" | "read_command_lines" => &["cmd-1"],
        "file_read" | "file_blame" => &["f"],
        "file_write" => &["f", "text"],
        "file_edit" => &["f", "--edit", "a", "b"],
        _ => &[],
    };
    args.extend_from_slice(required);
    args.extend_from_slice(more);
    cli(row.authority, &gateway)
        .env("SANDBOX_ID", "sb-1")
        .run(args)
}

fn rows() -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().filter(|row| answers::known(row.name))
}

/// stdout and stderr, with control characters made visible.
fn visible(run: &Run) -> String {
    let text = format!("{}----- stderr\n{}", run.out(), run.err());
    text.replace('\u{1b}', "␛").replace('\r', "␍")
}

#[test]
fn text_is_as_checked_in() {
    for row in rows() {
        let run = call(row, answers::of(row.name), &["--output", "text"]);
        matches_file(&format!("text/{}.txt", row.name), &visible(&run));
    }
}

#[test]
fn text_in_colour_is_as_checked_in() {
    for row in rows() {
        let more = ["--output", "text", "--color", "always"];
        let run = call(row, answers::of(row.name), &more);
        matches_file(&format!("color/{}.txt", row.name), &visible(&run));
    }
}

/// Whatever a sandbox puts into an answer, no control sequence reaches the terminal, save in the
/// output of a command and the content of a file.
#[test]
fn nothing_from_a_sandbox_controls_the_terminal() {
    for row in rows() {
        let run = call(row, answers::of(row.name), &["--output", "text"]);
        let raw = matches!(row.name, "exec_command" | "file_read");
        if !raw {
            let text = format!("{}{}", run.out(), run.err());
            let harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
            // One answer is a byte of a command that is not UTF-8.
            assert!(!text.contains(harmful), "{}: {text:?}", row.name);
            assert!(!text.contains(['\u{202e}', '\u{200b}']), "{}", row.name);
        }
    }
}

#[test]
fn command_output_and_file_content_are_byte_for_byte() {
    let find = |name: &str| rows().find(|row| row.name == name).expect("it exists");
    let text = ["--output", "text"];
    let run = call(find("exec_command"), answers::of("exec_command"), &text);
    assert_eq!(run.stdout, b"\x1b[32mok\x1b[0m one\ntwo");
    assert!(run.err().starts_with("warning: \x1b[1mx\n["), "{run:?}");
    let run = call(
        find("write_command_stdin"),
        answers::of("write_command_stdin"),
        &text,
    );
    assert_eq!(run.stdout, b"\xff");
    let run = call(
        find("read_command_lines"),
        answers::of("read_command_lines"),
        &text,
    );
    assert_eq!(run.stdout, b"plain\n\xff\nstill gro");
    let run = call(find("file_read"), answers::of("file_read"), &text);
    assert_eq!(run.stdout, b"fn main() {}\n\x1b[31m");
}

#[test]
fn json_is_one_object_and_the_gateways_own() {
    for row in rows() {
        let answer = answers::of(row.name);
        for more in [&[][..], &["--json"], &["--output", "json"]] {
            let run = call(row, answer.clone(), more);
            assert_eq!(run.json(), answer, "{}", row.name);
            assert_eq!(run.out().lines().count(), 1, "{run:?}");
            assert!(run.stderr.is_empty(), "{run:?}");
        }
    }
}

#[test]
fn json_lines_are_the_rows() {
    let lists = [
        ("list_sandboxes", "sandboxes"),
        ("list_workspace_sessions", "sessions"),
        ("store_usage", "sandboxes"),
        ("diff_workspace_session", "changes"),
        ("list_layers", "layers"),
        ("diff_layers", "changes"),
        ("read_command_lines", "lines"),
        ("file_list", "entries"),
        ("file_blame", "ranges"),
        ("snapshot", "sandboxes"),
        ("trace", "spans"),
        ("events", "events"),
        ("resources", "samples"),
        ("topology", "sessions"),
        ("layerstack", "layers"),
        ("file_activity", "rows"),
    ];
    for (name, field) in lists {
        let row = rows().find(|row| row.name == name).expect("it exists");
        let answer = answers::of(name);
        let run = call(row, answer.clone(), &["--jsonl"]);
        let lines: Vec<Value> = run
            .out()
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect();
        assert_eq!(Value::Array(lines), answer[field], "{name}");
        // What is not in the rows is not lost.
        if answer.get("next_page_token").is_some() {
            assert!(run.err().contains("next_page_token: "), "{run:?}");
        }
        if name == "file_activity" {
            assert!(run.err().contains("dropped: 2\n"), "{run:?}");
            assert!(run.err().contains("gaps: "), "{run:?}");
        }
    }
    let row = rows()
        .find(|row| row.name == "file_write")
        .expect("it exists");
    let run = call(row, answers::of("file_write"), &["--jsonl"]);
    assert_eq!(run.json(), answers::of("file_write"));
}

#[test]
fn all_pages_of_a_list_are_asked_for() {
    let row = rows()
        .find(|row| row.name == "file_activity")
        .expect("it exists");
    let mut answer = answers::of(row.name);
    let rows_of_a_page = answer["rows"].as_array().expect("rows").len();
    let run = |answer: &Value, more: &[&str]| {
        let gateway = Gateway::start(Reply::Json(200, answer.clone()));
        let mut args = vec![row.name, "src", "--sandbox-id=sb-1", "--pid=7"];
        args.extend_from_slice(more);
        let run = cli(row.authority, &gateway).run(&args);
        (run, gateway)
    };
    // This gateway answers the same page for ever, which is told.
    let (ran, gateway) = run(&answer, &["--jsonl", "--all-pages"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let posted = gateway.take();
    let first = json!({ "sandbox_id": "sb-1", "path": "src", "pid": 7 });
    let mut second = first.clone();
    second["page_token"] = answer["next_page_token"].clone();
    let bodies: Vec<Value> = posted.iter().map(|posted| posted.json()).collect();
    assert_eq!(bodies, [first, second]);
    answer
        .as_object_mut()
        .expect("an object")
        .remove("next_page_token");
    let (ran, _) = run(&answer, &["--all-pages", "--output=jsonl"]);
    assert_eq!(
        (ran.code, ran.out().lines().count()),
        (0, rows_of_a_page),
        "{ran:?}"
    );
    let (ran, gateway) = run(&answer, &["--all-pages", "--json"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(gateway.take().is_empty());
}

#[test]
fn empty_lists_say_so_on_stderr() {
    let empty = json!({ "sandboxes": [], "sampled_at_unix_ms": 0, "errors": [] });
    let row = rows()
        .find(|row| row.name == "list_sandboxes")
        .expect("it exists");
    let run = call(row, empty.clone(), &["--output", "text"]);
    assert_eq!(
        (run.out(), run.err()),
        (String::new(), "there are no sandboxes\n".to_owned())
    );
    let run = call(row, empty, &["--jsonl"]);
    assert_eq!((run.out(), run.err()), (String::new(), String::new()));
}

#[test]
fn an_answer_of_a_newer_gateway_is_still_readable() {
    let row = rows()
        .find(|row| row.name == "list_sandboxes")
        .expect("it exists");
    let run = call(
        row,
        json!({ "herds": [{ "name": "a\u{1b}", "made_at_unix_ms": 0 }], "size": 2048 }),
        &["--output", "text"],
    );
    assert_eq!(run.code, 0);
    assert_eq!(
        run.out(),
        "size  2.0 KiB\nherds\n  NAME   MADE_AT_UNIX_MS\n  a\\x1b  1970-01-01 00:00:00Z\n"
    );
}
