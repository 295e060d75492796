//! One JSON-RPC message a line, in and out.
//!
//! rmcp has such a transport, and it drops what it cannot read: a caller that sent a wrong message
//! waits for an answer for ever. This one answers every bad line, with the message's own id where
//! it has one, and goes on. It also reads a last line that has no line end, and ends when nobody
//! reads the output any more.
//!
//! Answers to lines that are no JSON carry no id, and such messages are never answered when they
//! come in: two servers that talk to each other by mistake fall silent.
//!
//! Memory is bounded: by [`MAX_LINE`] for what is read, by a few messages for what is to be written.

use std::io;

use rmcp::RoleServer;
use rmcp::model::{ErrorCode, ErrorData};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use sandstack_api::MAX_BODY_BYTES;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Longest line that is read, in bytes: the largest request the gateway takes, and its envelope.
const MAX_LINE: usize = MAX_BODY_BYTES + (64 << 10);
/// Messages that wait for the output at most.
const WAITING: usize = 16;

/// The transport.
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    /// The line read so far. A read that is dropped half-way goes on with the next.
    line: Vec<u8>,
    /// Whether the line was too long, so that its rest is dropped.
    dropping: bool,
    /// The answer to a bad line, until there is room for it among those that wait.
    refusal: Option<Vec<u8>>,
    /// `None` once closed.
    output: Option<mpsc::Sender<Outgoing>>,
    writer: Option<JoinHandle<()>>,
}

/// A line for the output, and who wants to know when it is written.
struct Outgoing {
    line: Vec<u8>,
    written: Option<oneshot::Sender<io::Result<()>>>,
}

/// What a line is.
enum Incoming {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// Answered with this line.
    Refused(Vec<u8>),
    /// Not answered: it is blank, or a notification, which has no answer.
    Ignored,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Reads messages from `input` and writes them to `output`. Must be called within a runtime.
    pub(crate) fn new<W: AsyncWrite + Send + Unpin + 'static>(input: R, output: W) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Lines {
            input: BufReader::new(input),
            line: Vec::new(),
            dropping: false,
            refusal: None,
            output: Some(sender),
            writer: Some(tokio::spawn(write_lines(output, receiver))),
        }
    }

    /// The next line, without its end; `None` at the end of input, `Some(Err(_))` for one that is
    /// too long. Safe to drop half-way.
    async fn next_line(&mut self) -> Option<Result<Vec<u8>, TooLong>> {
        loop {
            let available = match self.input.fill_buf().await {
                Ok(available) => available,
                // Input that cannot be read has ended.
                Err(_) => &[],
            };
            let ends = available.iter().position(|byte| *byte == b'\n');
            let taken = ends.map_or(available.len(), |end| end + 1);
            let is_end_of_input = available.is_empty();
            if !self.dropping {
                self.line
                    .extend_from_slice(&available[..ends.unwrap_or(taken)]);
                if self.line.len() > MAX_LINE {
                    self.line = Vec::new();
                    self.dropping = true;
                }
            }
            self.input.consume(taken);
            if ends.is_none() && !is_end_of_input {
                continue;
            }
            if std::mem::take(&mut self.dropping) {
                return Some(Err(TooLong));
            }
            let line = std::mem::take(&mut self.line);
            return match is_end_of_input && line.is_empty() {
                true => None,
                false => Some(Ok(line)),
            };
        }
    }

    async fn next_message(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if self.refusal.is_some() {
                let room = self.output.as_ref()?.reserve().await.ok()?;
                if let Some(line) = self.refusal.take() {
                    room.send(Outgoing {
                        line,
                        written: None,
                    });
                }
            }
            let incoming = match self.next_line().await? {
                Ok(line) => read(&line),
                Err(TooLong) => Incoming::Refused(refusal(
                    None,
                    ErrorCode::INVALID_REQUEST,
                    &format!("a message is longer than {MAX_LINE} bytes"),
                )),
            };
            match incoming {
                Incoming::Message(message) => return Some(*message),
                Incoming::Refused(line) => self.refusal = Some(line),
                Incoming::Ignored => {}
            }
        }
    }
}

struct TooLong;

impl<R: AsyncRead + Send + Unpin> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let output = self.output.clone();
        async move {
            let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let (written, done) = oneshot::channel();
            let outgoing = Outgoing {
                line,
                written: Some(written),
            };
            let output = output.ok_or_else(gone)?;
            output.send(outgoing).await.map_err(|_| gone())?;
            done.await.map_err(|_| gone())?
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let output = self.output.clone()?;
        tokio::select! {
            // A client that no longer listens may still hold the input open.
            () = output.closed() => None,
            message = self.next_message() => message,
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output = None;
        match self.writer.take() {
            Some(writer) => writer.await.map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

/// Writes lines until there are no more senders or the output is gone.
async fn write_lines<W: AsyncWrite + Unpin>(mut output: W, mut lines: mpsc::Receiver<Outgoing>) {
    while let Some(Outgoing { line, written }) = lines.recv().await {
        let result = match output.write_all(&line).await {
            Ok(()) => output.flush().await,
            Err(error) => Err(error),
        };
        let failed = result.is_err();
        if let Some(written) = written {
            // Nobody asks any more: the line was for a request that was given up.
            let _ = written.send(result);
        }
        if failed {
            return;
        }
    }
}

fn read(line: &[u8]) -> Incoming {
    // JSON may begin with a byte order mark; some clients on Windows write one.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    if line.trim_ascii().is_empty() {
        return Incoming::Ignored;
    }
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Incoming::Message(Box::new(message)),
        Err(error) => error,
    };
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => {
            let why = format!("this line is no JSON: {error}");
            return Incoming::Refused(refusal(None, ErrorCode::PARSE_ERROR, &why));
        }
    };
    let Value::Object(message) = value else {
        let why = match value.is_array() {
            true => "batches are not served; send one message a line",
            false => "a message is a JSON object",
        };
        return Incoming::Refused(refusal(None, ErrorCode::INVALID_REQUEST, why));
    };
    let is_request = message.contains_key("id");
    if message.contains_key("method") && !is_request {
        return Incoming::Ignored;
    }
    let id = message
        .get("id")
        .filter(|id| id.is_string() || id.is_i64() || id.is_u64());
    let why = format!("this is no JSON-RPC 2.0 message: {error}");
    Incoming::Refused(refusal(id, ErrorCode::INVALID_REQUEST, &why))
}

fn refusal(id: Option<&Value>, code: ErrorCode, why: &str) -> Vec<u8> {
    let error = ErrorData::new(code, why.to_owned(), None);
    let mut line = json!({ "jsonrpc": "2.0", "id": id, "error": error })
        .to_string()
        .into_bytes();
    line.push(b'\n');
    line
}
