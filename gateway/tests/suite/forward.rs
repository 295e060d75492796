//! Services in sessions, reached through the gateway.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sandstack_api::Authority;
use serde_json::{Value, json};

use crate::rig::{Answer, Rig, Setup, docker_image, until};

/// Answers HTTP with what it was asked, and WebSockets and anything else with what they say.
const SERVICE: &str = r#"
import base64, hashlib, json, socket, socketserver, struct, sys, threading
name, family, address, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        first = self.rfile.readline()
        if first.startswith(b"RAW"):
            self.wfile.write(b"raw " + first)
            while True:
                data = self.rfile.read1(65536)
                if not data: return
                self.wfile.write(data)
        method, target, _ = first.decode().split()
        headers = {}
        while True:
            line = self.rfile.readline().strip()
            if not line: break
            key, _, value = line.partition(b":")
            headers[key.decode().lower()] = value.strip().decode()
        if headers.get("upgrade") == "websocket": return self.websocket(headers)
        body = b""
        if "content-length" in headers: body = self.rfile.read(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while True:
                size = int(self.rfile.readline(), 16)
                body += self.rfile.read(size); self.rfile.readline()
                if not size: break
        if target.startswith("/big"): answer = b"b" * (32 << 20)
        else: answer = json.dumps({"name": name, "method": method, "target": target, "headers": headers,
            "digest": hashlib.sha256(body).hexdigest(), "size": len(body)}).encode()
        status = b"418 Teapot" if target == "/teapot" else b"200 OK"
        self.wfile.write(b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nX-Service: " + name.encode() +
            b"\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
    def websocket(self, headers):
        key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        while True:
            head = self.rfile.read(2)
            if len(head) < 2: return
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(head[1] & 127)))
            self.wfile.write(bytes([head[0], len(data)]) + data)
class Server(socketserver.ThreadingTCPServer):
    address_family = getattr(socket, family); daemon_threads = True; allow_reuse_address = True
server = Server((address, port), Handler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"#;

/// Starts the service in a session and answers its port.
fn serve(rig: &Rig, sandbox: &str, session: &str, name: &str, at: [&str; 3]) -> u16 {
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session,
        "path": "service.py", "content": SERVICE });
    rig.call("file_write", request).ok();
    let [family, address, port] = at;
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "tty": false,
        "cmd": format!("exec python3 service.py {name} {family} {address} {port}"), "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok();
    let mut port = None;
    until("the service's port", || {
        let request = json!({ "command_session_id": command["command_session_id"] });
        let lines = rig.call("read_command_lines", request).ok();
        let line = lines["lines"][0]["content"].as_str();
        port = line.and_then(|line| line.strip_prefix("port ")?.parse().ok());
        port.is_some()
    });
    port.unwrap()
}

fn open(rig: &Rig, sandbox: &str, network: &str) -> String {
    let request = json!({ "sandbox_id": sandbox, "network_profile": network });
    let made = rig.call("create_workspace_session", request).ok();
    made["workspace_session_id"].as_str().unwrap().to_owned()
}

fn get(rig: &Rig, session: &str, port: u16, below: &str) -> Answer {
    let token = rig.token(Authority::Runtime);
    let headers = format!("Authorization: Bearer {token}\r\nX-Mine: yes\r\n");
    rig.http(
        "GET",
        &format!("/v1/forward/{session}/{port}{below}"),
        &headers,
        b"",
    )
}

/// Sends the head of a request that upgrades; the connection and the head of its answer.
fn upgrade(
    rig: &Rig,
    session: &str,
    port: u16,
    protocol: &str,
    more: &str,
) -> (UnixStream, String) {
    let mut stream = rig.connect().unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let token = rig.token(Authority::Runtime);
    let head = format!(
        "GET /v1/forward/{session}/{port}/socket HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {token}\r\n\
         Connection: Upgrade\r\nUpgrade: {protocol}\r\n{more}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    (stream, String::from_utf8(answer).unwrap())
}

fn websocket(rig: &Rig, session: &str, port: u16) -> UnixStream {
    let more = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
    let (stream, head) = upgrade(rig, session, port, "websocket", more);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    // The answer to this key that RFC 6455 gives.
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    stream
}

/// Says a text over a WebSocket and hears it again.
fn echo(stream: &mut UnixStream, text: &str) {
    let mask = [1, 2, 3, 4];
    let mut frame = vec![0x81, 0x80 | text.len() as u8];
    frame.extend(mask);
    frame.extend(
        text.bytes()
            .enumerate()
            .map(|(at, byte)| byte ^ mask[at % 4]),
    );
    stream.write_all(&frame).unwrap();
    let mut heard = vec![0; 2 + text.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard[2..], text.as_bytes());
}

fn services_are_reached(rig: &mut Rig, image: Option<&str>) {
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox_in(&project, image, json!({}));
    let sessions = ["isolated", "isolated", "shared"].map(|network| open(rig, &sandbox, network));
    let ports = [
        serve(
            rig,
            &sandbox,
            &sessions[0],
            "first",
            ["AF_INET", "127.0.0.1", "8080"],
        ),
        serve(
            rig,
            &sandbox,
            &sessions[1],
            "second",
            ["AF_INET", "127.0.0.1", "8080"],
        ),
        serve(
            rig,
            &sandbox,
            &sessions[2],
            "third",
            ["AF_INET", "127.0.0.1", "0"],
        ),
    ];
    assert_eq!((ports[0], ports[1]), (8080, 8080));
    for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
        let (session, port) = (&sessions[at], ports[at]);
        let answer = get(rig, session, port, "/a%2Fb/c?d=e&f").ok();
        assert_eq!(
            (&answer["name"], &answer["target"]),
            (&json!(name), &json!("/a%2Fb/c?d=e&f")),
            "{answer:#}"
        );
        let headers = &answer["headers"];
        assert_eq!(headers["host"], format!("localhost:{port}"), "{answer:#}");
        let prefix = format!("/v1/forward/{session}/{port}");
        assert_eq!(headers["x-forwarded-prefix"], prefix);
        assert_eq!(headers["x-mine"], "yes");
        assert_eq!(headers["authorization"], Value::Null, "the token got out");
        let teapot = get(rig, session, port, "/teapot");
        assert_eq!((teapot.status, &teapot.body["name"]), (418, &json!(name)));
        let mut stream = websocket(rig, session, port);
        echo(&mut stream, "hello");
        echo(&mut stream, name);
        let (mut stream, head) = upgrade(rig, session, port, "tcp", "");
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        stream.write_all(b"RAW\n").unwrap();
        let payload: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
        let mut writer = stream.try_clone().unwrap();
        let sent = payload.clone();
        let writing = std::thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        writing.join().unwrap();
        assert_eq!(&heard[..8], b"raw RAW\n");
        assert!(heard[8..] == payload, "{} bytes", heard.len());
    }
    // Much goes both ways.
    let body = vec![7; 8 << 20];
    let token = rig.token(Authority::Runtime);
    let headers = format!("Authorization: Bearer {token}\r\n");
    let path = format!("/v1/forward/{}/8080/", sessions[0]);
    let answer = rig.http("POST", &path, &headers, &body).ok();
    assert_eq!(answer["size"], 8 << 20);
    let big = get(rig, &sessions[0], 8080, "/big").ok();
    assert_eq!(big.as_str().map(str::len), Some(32 << 20));
    // An open connection does not keep the gateway from stopping, nor a session from ending.
    let mut kept = websocket(rig, &sessions[0], 8080);
    let mut ended = websocket(rig, &sessions[1], 8080);
    let request = json!({ "workspace_session_id": sessions[1], "force": true });
    rig.call("destroy_workspace_session", request).ok();
    assert_eq!(ended.read(&mut [0]).unwrap_or(0), 0);
    echo(&mut kept, "still here");
    rig.stop();
    assert_eq!(kept.read(&mut [0]).unwrap_or(0), 0);
    rig.spawn();
    rig.await_socket();
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}

#[test]
fn services_in_local_sessions_are_reached() {
    services_are_reached(&mut Rig::start(), None);
}

#[test]
fn services_in_sessions_of_an_ordinary_user_are_reached() {
    let setup = Setup {
        ordinary: true,
        ..Setup::default()
    };
    services_are_reached(&mut Rig::start_as(setup), None);
}

#[test]
fn services_in_docker_sessions_are_reached() {
    let Some(image) = docker_image() else { return };
    services_are_reached(&mut Rig::start(), Some(image));
}

#[test]
fn a_service_at_localhost_of_ipv6_is_reached() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let session = open(&rig, &sandbox, "isolated");
    let port = serve(&rig, &sandbox, &session, "six", ["AF_INET6", "::1", "0"]);
    assert_eq!(get(&rig, &session, port, "/").ok()["name"], "six");
}

#[test]
fn what_cannot_be_forwarded_is_refused() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let session = open(&rig, &sandbox, "isolated");
    let port = serve(
        &rig,
        &sandbox,
        &session,
        "here",
        ["AF_INET", "127.0.0.1", "0"],
    );
    let path = format!("/v1/forward/{session}/{port}/");
    let unauthorized = rig.http("GET", &path, "", b"");
    assert_eq!(unauthorized.status, 401);
    unauthorized.refused("unauthorized");
    let wrong = "Authorization: Bearer sst_wrong\r\n";
    rig.http("GET", &path, wrong, b"").refused("unauthorized");
    for authority in [Authority::Management, Authority::Observability] {
        let headers = format!("Authorization: Bearer {}\r\n", rig.token(authority));
        rig.http("GET", &path, &headers, b"").refused("forbidden");
    }
    let nobody = get(&rig, &session, 1, "/");
    assert!(nobody.refused("unavailable").contains("port 1"));
    get(&rig, "ws-none", port, "/").refused("not_found");
    let headers = format!(
        "Authorization: Bearer {}\r\n",
        rig.token(Authority::Runtime)
    );
    for bad in ["", "/http", "/0/", "/99999/"] {
        let path = format!("/v1/forward/{session}{bad}");
        rig.http("GET", &path, &headers, b"")
            .refused("invalid_request");
    }
}
