//! A gateway that a test plays: it listens on a unix socket, records what is posted and answers
//! what the test says.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// The token of every authority, a text that no output may contain.
pub(crate) const TOKEN: &str = "tok-5ecret-do-not-print";

/// One request, as it came over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) line: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Posted {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }
}

/// What to answer.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A status and a JSON body.
    Json(u16, Value),
    /// Server-sent events, by name and data.
    Stream(Vec<(&'static str, Value)>),
    /// These bytes as they are; then the connection ends.
    Raw(Vec<u8>),
}

impl Reply {
    /// An error envelope with its status.
    pub(crate) fn error(status: u16, code: &str, message: &str, details: Value) -> Reply {
        let retryable = matches!(code, "busy" | "timeout" | "unavailable");
        Reply::Json(
            status,
            json!({ "error": {
                "code": code, "message": message, "details": details, "retryable": retryable
            } }),
        )
    }
}

/// The gateway and its state directory.
pub(crate) struct Gateway {
    dir: TempDir,
    posted: Arc<Mutex<Vec<Posted>>>,
    _watchdog: Watchdog,
}

impl Gateway {
    /// A gateway that gives every request `reply`.
    pub(crate) fn start(reply: Reply) -> Gateway {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("tokens")).expect("a directory for tokens");
        for authority in ["management", "runtime", "observability"] {
            let path = dir.path().join(format!("tokens/{authority}.token"));
            std::fs::write(path, format!("{TOKEN}\n")).expect("a token file");
        }
        let listener =
            UnixListener::bind(dir.path().join("gateway.sock")).expect("a socket to listen on");
        let posted = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&posted);
        // The thread ends with the test process; a listener on a removed path bothers nobody.
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(connection) = connection else { return };
                // A caller that hangs up early is a test's own doing.
                let _ = serve(connection, &record, &reply);
            }
        });
        Gateway {
            dir,
            posted,
            _watchdog: Watchdog::start(Duration::from_secs(120)),
        }
    }

    /// The state directory.
    pub(crate) fn state_dir(&self) -> &Path {
        self.dir.path()
    }

    /// The socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("gateway.sock")
    }

    /// What was posted since the last call.
    pub(crate) fn take(&self) -> Vec<Posted> {
        std::mem::take(&mut self.posted.lock().expect("no panic while recording"))
    }

    /// The one request that was posted.
    pub(crate) fn take_one(&self) -> Posted {
        let mut posted = self.take();
        assert_eq!(posted.len(), 1, "{posted:?}");
        posted.remove(0)
    }
}

fn serve(
    connection: UnixStream,
    posted: &Mutex<Vec<Posted>>,
    reply: &Reply,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    posted
        .lock()
        .expect("no panic while recording")
        .push(Posted {
            line: line.trim_end().to_owned(),
            headers,
            body,
        });
    let mut connection = connection;
    match reply {
        Reply::Json(status, body) => {
            let body = body.to_string();
            write!(
                connection,
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        }
        Reply::Stream(events) => {
            write!(
                connection,
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            )?;
            for (name, data) in events {
                write!(connection, "event: {name}\ndata: {data}\n\n")?;
                connection.flush()?;
            }
            Ok(())
        }
        Reply::Raw(bytes) => connection.write_all(bytes),
    }
}

/// Aborts the test process when a test takes longer than it may.
pub(crate) struct Watchdog {
    /// Dropped with the value, which the watching thread notices.
    _done: mpsc::Sender<()>,
}

impl Watchdog {
    /// Allows `limit` from now until the value is dropped.
    #[allow(
        clippy::print_stderr,
        reason = "the process is about to abort, and says why"
    )]
    pub(crate) fn start(limit: Duration) -> Watchdog {
        let (done, watched) = mpsc::channel();
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        std::thread::spawn(move || {
            if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("watchdog: {test} took longer than {limit:?}");
                std::process::abort();
            }
        });
        Watchdog { _done: done }
    }
}
