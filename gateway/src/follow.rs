//! The output of a command as it comes: `GET /v1/stream/commands/{command_session_id}`.
//!
//! A stream begins with the first byte that is kept, or goes on after the event that the caller names
//! (`Last-Event-ID`): an event's id says how far each of the command's streams has been sent. Output is
//! read from the transcript as it is sent, so a slow caller has a slow stream and nothing waits in memory.
//! The last event is the command's end; what it says is settled, an automatic session's publish too.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::Event as ServerEvent;
use futures_util::stream::unfold;
use sandstack_api::runtime::{CommandStatus, OutputChunk, OutputStream};
use sandstack_api::{CommandId, ErrorBody, Text};
use sandstack_holder::Error as HolderError;
use sandstack_holder::protocol::Stream;
use sandstack_holder::transcript::Reader as Transcript;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::auth::Principal;
use crate::failure::{Failure, Result};
use crate::gateway::{Command, Gateway};
use crate::output::without_output;
use crate::stream::{Open, Sending};

/// Most bytes of output in an event.
const EVENT_BYTES: usize = 64 << 10;
/// Between two looks whether a command that has ended is settled.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

/// How many bytes of a command's streams have been sent: of the terminal or of stdout, and of stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place([u64; 2]);

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0[0], self.0[1])
    }
}

impl FromStr for Place {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Place> {
        let numbers = text
            .split_once('-')
            .and_then(|(first, second)| Some([first.parse().ok()?, second.parse().ok()?]));
        numbers.map(Place).ok_or_else(|| {
            Failure::invalid(format!(
                "Last-Event-ID: {text:?} is not the id of an event of a command's stream, as `120-0`"
            ))
        })
    }
}

struct Follower {
    gateway: Arc<Gateway>,
    principal: Principal,
    command: Arc<Command>,
    streams: &'static [(Stream, Option<OutputStream>)],
    sent: Place,
    ready: VecDeque<ServerEvent>,
    changed: watch::Receiver<u64>,
    ending: watch::Receiver<bool>,
    over: bool,
    _open: Open,
}

/// The output of a command after `after`, and its end.
///
/// # Errors
/// There is no such command that the caller may see, or there are too many streams.
pub(crate) fn output(
    gateway: &Arc<Gateway>,
    principal: &Principal,
    command: &str,
    after: Place,
) -> Result<Sending> {
    let id = CommandId::new(command)
        .map_err(|error| Failure::invalid(format!("command_session_id: {error}")))?;
    let command = gateway.command_for(principal, &id)?;
    let open = Open::one_more(gateway)?;
    let streams: &[_] = match command.row.lock().tty {
        true => &[(Stream::Pty, None)],
        false => &[
            (Stream::Stdout, Some(OutputStream::Stdout)),
            (Stream::Stderr, Some(OutputStream::Stderr)),
        ],
    };
    let follower = Follower {
        changed: command.changed.subscribe(),
        ending: gateway.streams.ending(),
        gateway: Arc::clone(gateway),
        principal: principal.clone(),
        command,
        streams,
        sent: after,
        ready: VecDeque::new(),
        over: false,
        _open: open,
    };
    Ok(Box::pin(unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    })))
}

impl Follower {
    /// `None`: the end has been sent, or the gateway is about to stop.
    async fn next(&mut self) -> Option<ServerEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            // Before looking: what comes meanwhile wakes, and what was written before the end is read
            // after the end is known.
            self.changed.mark_unchanged();
            let end = self.settled();
            let ended = self.command.row.lock().status != CommandStatus::Running;
            match self.read().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(command = %self.command.id, error = error.in_full(), "a stream of output ends");
                    let body = ErrorBody {
                        error: error.into_answer(self.command.id.as_ref()),
                    };
                    self.over = true;
                    self.ready.push_back(event("error", &json!(body)));
                    continue;
                }
            }
            if let Some(end) = end {
                self.over = true;
                let event = event("ended", &end).id(self.sent.to_string());
                self.ready.push_back(event);
                continue;
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                // An automatic session that is taken away before it is published tells nobody.
                () = tokio::time::sleep(SETTLES_WITHIN), if ended => {}
                ended = self.ending.wait_for(|ending| *ending) => {
                    let _ = ended;
                    return None;
                }
            }
        }
    }

    /// How the command ended, when all of that is known.
    fn settled(&self) -> Option<Value> {
        let row = self.command.row.lock().clone();
        if row.status == CommandStatus::Running {
            return None;
        }
        let session = self.gateway.session_for(&self.principal, &row.session).ok();
        let automatic = session.is_some_and(|session| session.row.lock().automatic);
        if automatic && row.publish.is_none() {
            return None;
        }
        let lost: Vec<String> = row
            .lost
            .iter()
            .map(|(stream, why)| format!("{stream}: {why}"))
            .collect();
        let mut end = json!(without_output(row));
        if let Some(fields) = end.as_object_mut() {
            fields.remove("output");
            if !lost.is_empty() {
                fields.insert("output_error".to_owned(), lost.join("; ").into());
            }
        }
        Some(end)
    }

    /// Takes what there is of each stream; whether there was something.
    async fn read(&mut self) -> Result<bool> {
        let (dir, sent, streams) = (self.command.dir.clone(), self.sent, self.streams);
        let chunks = self
            .gateway
            .blocking(move || chunks(dir, streams, sent))
            .await?;
        let found = !chunks.is_empty();
        for (number, chunk) in chunks {
            self.sent.0[number] = chunk.next_byte;
            let mut data = json!(chunk);
            data["stream"] = json!(self.streams[number].1);
            let event = event("output", &data).id(self.sent.to_string());
            self.ready.push_back(event);
        }
        Ok(found)
    }
}

fn chunks(
    dir: PathBuf,
    streams: &[(Stream, Option<OutputStream>)],
    sent: Place,
) -> Result<Vec<(usize, OutputChunk)>> {
    let transcript = match Transcript::open(&dir) {
        Ok(transcript) => transcript,
        // Not there yet while the command is being started, or not any more.
        Err(HolderError::Path { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for (number, (stream, _)) in streams.iter().enumerate() {
        let chunk = transcript.bytes_from(*stream, sent.0[number], EVENT_BYTES)?;
        if !chunk.bytes.is_empty() {
            let chunk = OutputChunk {
                start_byte: chunk.byte_offset,
                next_byte: chunk.byte_offset + chunk.bytes.len() as u64,
                text: Text::new(chunk.bytes),
            };
            found.push((number, chunk));
        }
    }
    Ok(found)
}

fn event(name: &str, data: &Value) -> ServerEvent {
    ServerEvent::default().event(name).data(data.to_string())
}
