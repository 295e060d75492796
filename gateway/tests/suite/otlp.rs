//! Spans that are sent to a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::{Value, json};

use crate::rig::{Rig, Setup, until};

/// What a collector is sent: the head of the request, and what its body says.
type Posted = (String, ExportTraceServiceRequest);

/// A collector that takes all that comes.
fn collector() -> (String, Receiver<Posted>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, posted) = channel();
    // Ends with the test's process.
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut connection = BufReader::new(connection);
                while let Some(request) = take(&mut connection) {
                    let _ = sender.send(request);
                }
            });
        }
    });
    (address, posted)
}

/// One request, answered; `None` when the caller hangs up.
fn take(connection: &mut BufReader<TcpStream>) -> Option<Posted> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if connection.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        line.to_lowercase()
            .strip_prefix("content-length:")?
            .trim()
            .parse()
            .ok()
    })?;
    let mut body = vec![0u8; length];
    connection.read_exact(&mut body).ok()?;
    let answer =
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
    connection.get_mut().write_all(answer.as_bytes()).ok()?;
    let request = ExportTraceServiceRequest::decode(body.as_slice()).ok()?;
    Some((head, request))
}

fn attribute(span: &Span, key: &str) -> Option<AnyValue> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    pair.value.as_ref()?.value.clone()
}

/// All spans that come until there is one called so for each of these names.
fn spans(posted: &Receiver<Posted>, names: &[&str]) -> Vec<Span> {
    let mut found: Vec<Span> = Vec::new();
    while !names
        .iter()
        .all(|name| found.iter().any(|span| span.name == *name))
    {
        let (_, request) = posted
            .recv_timeout(Duration::from_secs(30))
            .unwrap_or_else(|error| panic!("{error}: {names:?} of {found:#?}"));
        for resource in request.resource_spans {
            for scope in resource.scope_spans {
                found.extend(scope.spans);
            }
        }
    }
    found
}

#[test]
fn a_collector_gets_the_spans_of_every_request() {
    let (address, posted) = collector();
    let config = format!("[otlp]\nendpoint = \"{address}\"\nheaders = {{ x-key = \"secret\" }}\n");
    let mut rig = Rig::start_as(Setup {
        config: &config,
        ..Setup::default()
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox(&project);
    let (head, first) = posted.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(head.starts_with("POST /v1/traces "), "{head}");
    assert!(head.contains("x-key: secret\r\n"), "{head}");
    let service = &first.resource_spans[0]
        .resource
        .as_ref()
        .unwrap()
        .attributes;
    let service = service.iter().find(|pair| pair.key == "service.name");
    let service = service.unwrap().value.as_ref().unwrap().value.clone();
    assert_eq!(
        service,
        Some(AnyValue::StringValue("sandbox-gateway".to_owned()))
    );

    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo two > b");
    let request = json!({ "workspace_session_id": session });
    rig.call("publish_workspace_session", request).ok();
    rig.call(
        "inspect_workspace_session",
        json!({ "workspace_session_id": session }),
    )
    .refused("not_found");
    let found = spans(
        &posted,
        &["publish_workspace_session", "inspect_workspace_session"],
    );
    let publish = found
        .iter()
        .find(|span| span.name == "publish_workspace_session")
        .unwrap();
    assert!(publish.parent_span_id.is_empty());
    assert_eq!(
        attribute(publish, "sandstack.sandbox_id"),
        Some(AnyValue::StringValue(sandbox))
    );
    // The same as `trace` tells of it.
    let asked = json!({ "operation": "publish_workspace_session" });
    let trace = rig.call("trace", asked).ok();
    let id = trace["trace_id"].as_str().unwrap();
    assert_eq!(
        attribute(publish, "sandstack.request_id"),
        Some(AnyValue::StringValue(id.to_owned()))
    );
    let told = trace["spans"].as_array().unwrap();
    let of_trace: Vec<&Span> = found
        .iter()
        .filter(|span| span.trace_id == publish.trace_id)
        .collect();
    assert!(told.len() > 1, "{trace:#}");
    assert_eq!(of_trace.len(), told.len(), "{trace:#} {of_trace:#?}");
    let durations = |name: &str| -> u64 {
        let span = of_trace.iter().find(|span| span.name == name).unwrap();
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1000
    };
    for span in told {
        let name = span["name"].as_str().unwrap();
        assert_eq!(span["duration_us"], durations(name), "{name}");
        let parent = span["parent"]
            .as_u64()
            .map(|parent| &told[parent as usize]["name"]);
        let sent = of_trace.iter().find(|sent| sent.name == name).unwrap();
        let sent_parent = of_trace
            .iter()
            .find(|other| other.span_id == sent.parent_span_id)
            .map(|other| json!(other.name));
        assert_eq!(parent, sent_parent.as_ref(), "{name}");
    }
    let failed = found
        .iter()
        .find(|span| span.name == "inspect_workspace_session")
        .unwrap();
    assert_eq!(failed.status.as_ref().unwrap().code(), StatusCode::Error);
    let daemon = rig.call("daemon", json!({})).ok();
    assert_eq!(daemon["otlp"]["lost"], 0, "{daemon:#}");
    assert!(daemon["otlp"]["sent"].as_u64().unwrap() >= 3, "{daemon:#}");
    // What a gateway was at when it was told to stop is sent before it ends.
    rig.stop();
    spans(&posted, &["daemon"]);
}

#[test]
fn a_collector_that_is_away_holds_nobody_up_and_is_told_of() {
    let config = "[otlp]\nendpoint = \"http://127.0.0.1:9\"\n";
    let rig = Rig::start_as(Setup {
        config,
        ..Setup::default()
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    rig.sandbox(&project);
    let mut told = Value::Null;
    until("spans to be lost", || {
        told = rig.call("daemon", json!({})).ok()["otlp"].clone();
        told["lost"].as_u64().unwrap() > 0
    });
    assert_eq!(told["sent"], 0);
    assert!(told["last_error"].is_string(), "{told:#}");
    assert_eq!(told["endpoint"], "http://127.0.0.1:9/v1/traces");
}
