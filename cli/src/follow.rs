//! `exec_command --follow`: a command as if it ran here. Its output comes as it is written, its input
//! is what is typed or piped in, signals reach it, and its code is the code of this process.
//!
//! On a terminal the command has one too, of the same size, and every key is its own: this side's
//! terminal is raw until the command has ended. A gateway that is restarted meanwhile is waited for, and
//! the output goes on where it was.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use sandstack_api::client::{CallError, Client, EventStream, StreamEvent};
use sandstack_api::runtime::{
    CommandReply, ExecCommand, OutputWindow, ResizeCommand, SignalCommand, WriteCommandStdin,
};
use sandstack_api::{Blob, CommandId, ErrorCode, Operation, RequestId, Text};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::format::Manners;
use crate::text::{self, Style};
use crate::{Environment, verdict};

/// Most bytes of input in a call.
const INPUT_BYTES: usize = 64 << 10;
/// How long a gateway that went may take to come back.
const BACK_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks whether it is back.
const RETRY: Duration = Duration::from_millis(200);

/// Runs `request` of `exec_command`, follows it to its end and returns its code.
///
/// # Errors
/// The call fails, the output cannot be written, or the gateway went and did not come back: the command
/// goes on then, and the failure names it.
pub(crate) fn follow(
    client: &Client,
    row: &Operation,
    mut request: Map<String, Value>,
    request_id: &Option<RequestId>,
    environment: &mut Environment,
    manners: &Manners,
) -> Result<u8, Failure> {
    let typed = isatty(std::io::stdin()) && environment.stdout.terminal.is_some();
    let tty = request.get("tty").and_then(Value::as_bool).unwrap_or(typed);
    let given = request.contains_key("stdin");
    request.insert("tty".to_owned(), tty.into());
    request.insert("yield_time_ms".to_owned(), 0.into());
    if !tty && !given {
        request.insert("keep_stdin_open".to_owned(), true.into());
    }
    if let Some((rows, columns)) = size().filter(|_| tty) {
        request.entry("rows").or_insert_with(|| rows.into());
        request.entry("cols").or_insert_with(|| columns.into());
    }
    let request = ExecCommand::deserialize(Value::Object(request))
        .map_err(|error| Failure::usage(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Start)?;
    let mut end = runtime.block_on(async {
        let reply = client.call(&request, request_id.as_ref()).await?;
        let raw = (tty && typed).then(Raw::begin).transpose()?;
        let followed = Followed {
            client: client.clone(),
            command: reply.command_session_id,
            tty,
        };
        let end = followed.to_its_end(!given, environment).await;
        drop(raw);
        end
    })?;
    // Of what the reader of the input thread still waits for nobody wants anything.
    runtime.shutdown_background();
    if let Some(lost) = end["output_error"].as_str() {
        let note = format!("output was lost: {}\n", text::escaped(lost.as_bytes()));
        let _ = environment.stderr.sink.write_all(note.as_bytes());
    }
    end["output"] = json!(OutputWindow::default());
    if let Ok(reply) = CommandReply::deserialize(&end) {
        let style = Style {
            color: manners.stderr_color,
            columns: None,
        };
        for note in text::afterwards(&reply, &style) {
            // A note that nobody can read is no failure of the command.
            let _ = environment.stderr.sink.write_all(&note);
        }
    }
    Ok(verdict::exit_code(row.operation, &end, true))
}

struct Followed {
    client: Client,
    command: CommandId,
    tty: bool,
}

impl Followed {
    /// Passes everything on until the command has ended, and returns how.
    async fn to_its_end(
        &self,
        with_input: bool,
        environment: &mut Environment,
    ) -> Result<Value, Failure> {
        let mut signals = Signals::listen()?;
        let (failed, mut failure) = mpsc::channel(1);
        if with_input {
            let input = std::mem::replace(&mut environment.stdin, Box::new(std::io::empty()));
            let (client, command) = (self.client.clone(), self.command.clone());
            tokio::spawn(async move {
                if let Err(error) = pass_input(client, command, input).await {
                    let _ = failed.send(error).await;
                }
            });
        }
        let mut after: Option<String> = None;
        let mut events = self.connect(None).await?;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Ok(Some(event)) => {
                        after = event.id.clone().or(after);
                        if event.name == "ended" {
                            return Ok(event.data);
                        }
                        self.show(&event, environment)?;
                    }
                    Err(CallError::Refused(error)) => return Err(CallError::Refused(error).into()),
                    // It stops, or is gone: what runs goes on without it.
                    Ok(None) | Err(_) => events = self.connect(after.as_deref()).await?,
                },
                number = signals.next() => self.signalled(number).await?,
                Some(error) = failure.recv() => return Err(error),
            }
        }
    }

    /// Follows the command, from after an event on; waits for a gateway that is not there.
    async fn connect(&self, after: Option<&str>) -> Result<EventStream, Failure> {
        let begun = Instant::now();
        loop {
            match self.client.follow_command(&self.command, after).await {
                Ok(events) => return Ok(events),
                Err(CallError::Refused(error)) if error.code != ErrorCode::Unavailable => {
                    return Err(CallError::Refused(error).into());
                }
                Err(error) if begun.elapsed() > BACK_WITHIN => {
                    return Err(Failure::Left {
                        command: self.command.clone(),
                        source: error,
                    });
                }
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    fn show(&self, event: &StreamEvent, environment: &mut Environment) -> Result<(), Failure> {
        let text = Text::deserialize(&event.data).map_err(|error| self.broken(error))?;
        let bytes = text.bytes().map_err(|error| self.broken(error))?;
        let output = match event.data["stream"].as_str() {
            Some("stderr") => &mut environment.stderr,
            _ => &mut environment.stdout,
        };
        output
            .sink
            .write_all(&bytes)
            .and_then(|()| output.sink.flush())
            .map_err(Failure::Write)
    }

    fn broken(&self, error: impl std::fmt::Display) -> Failure {
        Failure::Call(CallError::Broken {
            operation: sandstack_api::OperationName::ReadCommandLines,
            reason: error.to_string(),
        })
    }

    async fn signalled(&self, number: SignalKind) -> Result<(), Failure> {
        if number == SignalKind::window_change() {
            return self.resize().await;
        }
        let request = SignalCommand {
            command_session_id: self.command.clone(),
            signal: number.as_raw_value().to_string(),
        };
        unless_over(self.client.call(&request, None).await.map(|_| ()))
    }

    /// Gives the command's terminal the size of this one.
    async fn resize(&self) -> Result<(), Failure> {
        let Some((rows, cols)) = size().filter(|_| self.tty) else {
            return Ok(());
        };
        let request = ResizeCommand {
            command_session_id: self.command.clone(),
            rows,
            cols,
        };
        unless_over(self.client.call(&request, None).await.map(|_| ()))
    }
}

/// Rows and columns of the terminal that stdout is; `None` where it is none, or does not know.
fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// A command that has ended meanwhile takes nothing any more, and tells so itself. A gateway that is
/// away is waited for by whoever follows the output.
fn unless_over(result: Result<(), CallError>) -> Result<(), Failure> {
    match result {
        Ok(()) | Err(CallError::Unreachable { .. } | CallError::Broken { .. }) => Ok(()),
        Err(CallError::Refused(error))
            if matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) =>
        {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Passes input on until it ends or the command does.
async fn pass_input(
    client: Client,
    command: CommandId,
    mut input: Box<dyn Read + Send>,
) -> Result<(), Failure> {
    let (sender, mut read) = mpsc::channel::<std::io::Result<Vec<u8>>>(4);
    // Nothing ends a read of a terminal; the thread goes with the process.
    std::thread::spawn(move || {
        loop {
            let mut bytes = vec![0; INPUT_BYTES];
            let result = match input.read(&mut bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                result => result.map(|count| {
                    bytes.truncate(count);
                    bytes
                }),
            };
            let last = !matches!(&result, Ok(bytes) if !bytes.is_empty());
            if sender.blocking_send(result).is_err() || last {
                return;
            }
        }
    });
    while let Some(bytes) = read.recv().await {
        let bytes = bytes.map_err(Failure::Stdin)?;
        let eof = bytes.is_empty();
        let request = WriteCommandStdin {
            command_session_id: command.clone(),
            stdin: Blob(bytes),
            eof,
            yield_time_ms: Some(0),
            start_offset: None,
        };
        let begun = Instant::now();
        loop {
            match client.call(&request, None).await {
                Ok(_) => break,
                // Not asked yet: nothing of it can have arrived.
                Err(CallError::Unreachable { .. }) if begun.elapsed() < BACK_WITHIN => {
                    tokio::time::sleep(RETRY).await;
                }
                Err(CallError::Refused(error))
                    if matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// The signals that are the command's.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    window: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::Start);
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
            window: listen(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
            _ = self.quit.recv() => SignalKind::quit(),
            _ = self.window.recv() => SignalKind::window_change(),
        }
    }
}

/// This side's terminal while every key is the command's.
struct Raw(Termios);

impl Raw {
    fn begin() -> Result<Raw, Failure> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).map_err(|error| Failure::Start(error.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Drain, &raw)
            .map_err(|error| Failure::Start(error.into()))?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // There is nobody to tell, and `reset` mends it.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.0);
    }
}
