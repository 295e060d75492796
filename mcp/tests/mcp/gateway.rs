//! A gateway that a test plays, and the time a test may take.

use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandstack_mcp::Place;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

/// What to answer.
pub(crate) enum Reply {
    /// A status and a JSON body.
    Json(u16, Value),
    /// Server-sent events, by name and data.
    Stream(Vec<(&'static str, Value)>),
    /// Nothing, until the caller hangs up.
    Hold,
    /// These bytes as they are; then the connection ends.
    Raw(Vec<u8>),
}

/// One request: the operation, the body, and whether a stream is accepted.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) operation: String,
    pub(crate) body: Value,
    pub(crate) accepts_stream: bool,
    pub(crate) token: String,
}

/// The gateway and its state directory.
pub(crate) struct Gateway {
    dir: TempDir,
    posted: Arc<Mutex<Vec<Posted>>>,
    /// Operations whose caller hung up before an answer.
    pub(crate) hung_up: mpsc::UnboundedReceiver<String>,
    _watchdog: Watchdog,
}

type Answer = dyn Fn(&str, &Value) -> Reply + Send + Sync;

impl Gateway {
    /// A gateway that answers as `answer` says. Must be called within a runtime.
    pub(crate) fn start(answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Gateway {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("tokens")).expect("a directory for tokens");
        for authority in ["management", "runtime", "observability"] {
            let path = dir.path().join(format!("tokens/{authority}.token"));
            std::fs::write(path, format!("tok-{authority}\n")).expect("a token file");
        }
        let listener =
            UnixListener::bind(dir.path().join("gateway.sock")).expect("a socket to listen on");
        let posted = Arc::new(Mutex::new(Vec::new()));
        let (hang_up, hung_up) = mpsc::unbounded_channel();
        let answer: Arc<Answer> = Arc::new(answer);
        let record = Arc::clone(&posted);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (record, answer) = (Arc::clone(&record), Arc::clone(&answer));
                let hang_up = hang_up.clone();
                tokio::spawn(async move {
                    // A caller that hangs up early is a test's own doing.
                    let _ = serve(connection, &record, &*answer, &hang_up).await;
                });
            }
        });
        Gateway {
            dir,
            posted,
            hung_up,
            _watchdog: Watchdog::start(Duration::from_secs(60)),
        }
    }

    pub(crate) fn state_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where a server finds it.
    pub(crate) fn place(&self, authority: &str) -> Place {
        Place {
            socket: self.dir.path().join("gateway.sock"),
            token_file: self.dir.path().join(format!("tokens/{authority}.token")),
        }
    }

    /// What was posted since the last call.
    pub(crate) fn take(&self) -> Vec<Posted> {
        std::mem::take(&mut self.posted.lock().expect("no panic while recording"))
    }
}

async fn serve(
    connection: UnixStream,
    record: &Mutex<Vec<Posted>>,
    answer: &Answer,
    hang_up: &mpsc::UnboundedSender<String>,
) -> std::io::Result<()> {
    let mut connection = BufReader::new(connection);
    let mut line = String::new();
    connection.read_line(&mut line).await?;
    let operation = line
        .split(' ')
        .nth(1)
        .and_then(|path| path.strip_prefix("/v1/"))
        .unwrap_or_default()
        .to_owned();
    let (mut length, mut accepts_stream, mut token) = (0, false, String::new());
    loop {
        let mut header = String::new();
        connection.read_line(&mut header).await?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "accept" => accepts_stream = value == "text/event-stream",
            "authorization" => token = value.replace("Bearer ", ""),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reply = answer(&operation, &body);
    let posted = Posted {
        operation: operation.clone(),
        body,
        accepts_stream,
        token,
    };
    record
        .lock()
        .expect("no panic while recording")
        .push(posted);
    match reply {
        Reply::Json(status, body) => {
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            connection.write_all(head.as_bytes()).await?;
            connection.write_all(body.as_bytes()).await
        }
        Reply::Stream(events) => {
            let head =
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            connection.write_all(head).await?;
            for (name, data) in events {
                let event = format!("event: {name}\ndata: {data}\n\n");
                connection.write_all(event.as_bytes()).await?;
            }
            Ok(())
        }
        Reply::Hold => {
            let mut rest = Vec::new();
            // Ends when the caller hangs up.
            connection.read_to_end(&mut rest).await?;
            hang_up.send(operation).map_err(std::io::Error::other)
        }
        Reply::Raw(bytes) => connection.write_all(&bytes).await,
    }
}

/// An error envelope.
pub(crate) fn error(code: &str, message: &str, details: Value) -> Value {
    json!({ "error": {
        "code": code, "message": message, "details": details, "retryable": false
    } })
}

/// Aborts the test process when a test takes longer than it may.
pub(crate) struct Watchdog {
    /// Dropped with the value, which the watching thread notices.
    _done: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    /// Allows `limit` from now until the value is dropped.
    #[allow(
        clippy::print_stderr,
        reason = "the process is about to abort, and says why"
    )]
    pub(crate) fn start(limit: Duration) -> Watchdog {
        let (done, watched) = std::sync::mpsc::channel();
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
