//! What is sent as it happens: events, and the output of commands.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sandstack_api::Authority;
use serde_json::{Value, json};

use crate::rig::Rig;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
struct Sent {
    id: String,
    name: String,
    data: Value,
}

/// A stream that is open.
struct Stream(BufReader<UnixStream>);

impl Stream {
    fn open(rig: &Rig, authority: Authority, path: &str, headers: &str) -> Stream {
        let mut stream = rig.connect().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let token = rig.token(authority);
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {token}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        while line.trim_end() != "" {
            line.clear();
            stream.read_line(&mut line).unwrap();
        }
        Stream(stream)
    }

    fn events(rig: &Rig, query: &str, headers: &str) -> Stream {
        let path = format!("/v1/stream/events{query}");
        Stream::open(rig, Authority::Observability, &path, headers)
    }

    fn command(rig: &Rig, command: &str, after: Option<&str>) -> Stream {
        let path = format!("/v1/stream/commands/{command}");
        let headers = after.map(|id| format!("Last-Event-ID: {id}\r\n"));
        Stream::open(rig, Authority::Runtime, &path, &headers.unwrap_or_default())
    }

    #[track_caller]
    fn next(&mut self) -> Sent {
        let (mut id, mut name, mut data) = (None, None, None);
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended");
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.to_owned());
            } else if let Some(text) = line.strip_prefix("event: ") {
                name = Some(text.to_owned());
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = Some(serde_json::from_str(text).unwrap());
            } else if line.is_empty()
                && let (Some(id), Some(name), Some(data)) = (id.take(), name.take(), data.take())
            {
                return Sent { id, name, data };
            }
        }
    }

    #[track_caller]
    fn take(&mut self, count: usize) -> Vec<Sent> {
        (0..count).map(|_| self.next()).collect()
    }

    /// What comes of an output until there is as much of it, or the command has ended.
    #[track_caller]
    fn output(&mut self, stream: &Value, bytes: usize) -> (String, Sent) {
        let mut found = String::new();
        loop {
            let sent = self.next();
            if sent.name == "output" && sent.data["stream"] == *stream {
                found.push_str(sent.data["content"].as_str().unwrap());
            }
            if found.len() >= bytes || sent.name == "ended" {
                return (found, sent);
            }
        }
    }
}

fn names(sent: &[Sent]) -> Vec<&str> {
    sent.iter().map(|sent| sent.name.as_str()).collect()
}

#[test]
fn events_are_streamed_and_a_stream_goes_on_where_it_was() {
    let mut rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let mut all = Stream::events(&rig, "", "");
    let mut some = Stream::events(&rig, &format!("?name=command.*&sandbox_id={sandbox}"), "");
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "true");
    let seen = all.take(3);
    let expected = [
        "workspace_session.created",
        "command.started",
        "command.exited",
    ];
    assert_eq!(names(&seen), expected);
    let commands = some.take(2);
    assert_eq!(commands, seen[1..]);
    drop(all);
    // What happens while nobody listens is there when somebody does again.
    rig.sh(&sandbox, &session, "true");
    let mut again = Stream::events(&rig, "", &format!("Last-Event-ID: {}\r\n", seen[0].id));
    let followed = again.take(4);
    assert_eq!(followed[..2], seen[1..]);
    let numbers: Vec<u64> = followed
        .iter()
        .map(|sent| sent.id.parse().unwrap())
        .collect();
    assert!(
        numbers.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "{numbers:?}"
    );
    let token = format!(
        "Authorization: Bearer {}\r\n",
        rig.token(Authority::Observability)
    );
    let refused = |path: &str, headers: &str| {
        let answer = rig.http("GET", path, &format!("{token}{headers}"), b"");
        answer.refused("invalid_request").to_owned()
    };
    assert!(refused("/v1/stream/events?nmae=x", "").contains("nmae"));
    assert!(refused("/v1/stream/events", "Last-Event-ID: x\r\n").contains("Last-Event-ID"));
    // Streams that are open keep nobody from stopping the gateway.
    rig.call(
        "destroy_sandbox",
        json!({ "sandbox_id": sandbox, "force": true }),
    )
    .ok();
    rig.stop();
}

/// Starts a command without a terminal, whose input stays open.
fn start(rig: &Rig, sandbox: &str, session: Option<&str>, cmd: &str) -> String {
    let mut request = json!({
        "sandbox_id": sandbox, "cmd": cmd, "tty": false, "keep_stdin_open": true, "yield_time_ms": 0,
    });
    if let Some(session) = session {
        request["workspace_session_id"] = json!(session);
    }
    let reply = rig.call("exec_command", request).ok();
    reply["command_session_id"].as_str().unwrap().to_owned()
}

fn say(rig: &Rig, command: &str, line: &str) {
    let request = json!({ "command_session_id": command, "stdin": line, "yield_time_ms": 0 });
    rig.call("write_command_stdin", request).ok();
}

#[test]
fn output_is_streamed_as_it_comes_and_goes_on_where_it_was() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let command = start(
        &rig,
        &sandbox,
        Some(&session),
        "printf one; printf oops >&2; read x; printf \"two $x\"; read x; exit 3",
    );
    let (stdout, stderr) = (json!("stdout"), json!("stderr"));
    let mut stream = Stream::command(&rig, &command, None);
    let (text, seen) = stream.output(&stdout, 3);
    assert_eq!(text, "one");
    let mut errors = Stream::command(&rig, &command, None);
    assert_eq!(errors.output(&stderr, 4).0, "oops");
    drop(errors);
    say(&rig, &command, "x\n");
    let (text, later) = stream.output(&stdout, 5);
    assert_eq!(text, "two x");
    // Whoever was away has what came since, and nothing twice.
    let mut again = Stream::command(&rig, &command, Some(&seen.id));
    assert_eq!(again.output(&stdout, 5).0, "two x");
    let mut rest = Stream::command(&rig, &command, Some(&later.id));
    say(&rig, &command, "x\n");
    let (text, end) = rest.output(&stdout, 1);
    assert_eq!((text.as_str(), end.name.as_str()), ("", "ended"));
    assert_eq!(end.data["status"], "exited", "{end:?}");
    assert_eq!(end.data["exit_code"], 3, "{end:?}");
    assert_eq!(end.data["workspace_session_id"], json!(session));
    assert_eq!(stream.output(&stdout, 1).1.data, end.data);
    // Of one that has ended there is all at once.
    let (text, last) = Stream::command(&rig, &command, None).output(&stdout, usize::MAX);
    assert_eq!((text.as_str(), last.data), ("onetwo x", end.data));
}

#[test]
fn much_output_is_streamed_whole_and_an_automatic_session_to_its_publish() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let command = start(&rig, &sandbox, None, "seq 1 300000; echo done > made");
    let mut stream = Stream::command(&rig, &command, None);
    let (text, end) = stream.output(&json!("stdout"), usize::MAX);
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(
        text == expected,
        "{} of {} bytes",
        text.len(),
        expected.len()
    );
    assert_eq!(end.data["publish"]["outcome"], "published", "{end:?}");
}

#[test]
fn a_terminal_is_streamed_too_and_what_is_not_there_is_refused() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let session = rig.session(&sandbox);
    let run = rig.run(&sandbox, &session, "printf '\\377'; echo x");
    let command = run["command_session_id"].as_str().unwrap().to_owned();
    let request =
        json!({ "sandbox_id": sandbox, "workspace_session_id": session, "cmd": "echo x" });
    let reply = rig.call("exec_command", request).ok();
    let terminal = reply["command_session_id"].as_str().unwrap().to_owned();
    let (text, _) = Stream::command(&rig, &terminal, None).output(&Value::Null, usize::MAX);
    assert_eq!(text, "x\r\n");
    let sent = Stream::command(&rig, &command, None).next();
    assert_eq!(sent.data["encoding"], "base64", "{sent:?}");
    let refused = |path: &str, authority: Authority, headers: &str, code: &str| {
        let token = rig.token(authority);
        let headers = format!("Authorization: Bearer {token}\r\n{headers}");
        let answer = rig.http("GET", path, &headers, b"");
        answer.refused(code).to_owned()
    };
    let path = format!("/v1/stream/commands/{command}");
    refused(&path, Authority::Observability, "", "forbidden");
    refused(
        "/v1/stream/commands/cmd-nowhere1",
        Authority::Runtime,
        "",
        "not_found",
    );
    let told = refused(
        &path,
        Authority::Runtime,
        "Last-Event-ID: x\r\n",
        "invalid_request",
    );
    assert!(told.contains("Last-Event-ID"), "{told}");
}
