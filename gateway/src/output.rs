//! Output of commands, from their transcripts to answers.
//!
//! Reads what a holder keeps on disk, while it is written and after. Starts and ends nothing.

use std::sync::Arc;

use sandstack_api::runtime::{
    CommandLines, CommandReply, Elision, OutputChunk, OutputLine, OutputStream, OutputWindow,
    ReadCommandLines,
};
use sandstack_api::{MAX_PAGE_ROWS, MAX_WINDOW_BYTES, Text};
use sandstack_holder::protocol::Stream;
use sandstack_holder::transcript::{self, LineEnd, Reader};

use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};
use crate::gateway::{Command, Context, Gateway};
use crate::rows::CommandRow;

/// Bytes of output in an answer.
const OUTPUT_BYTES: usize = 64 << 10;
/// Bytes of one line in a list of lines; a longer line is cut.
const LINE_BYTES: usize = 64 << 10;
/// Bytes of all lines in a list of lines.
const LINES_BYTES: usize = 256 << 10;
/// Lines in a list when the caller does not say.
const DEFAULT_LINES: u32 = 200;

impl Gateway {
    pub(crate) async fn read_command_lines(
        self: &Arc<Self>,
        context: &Context,
        request: &ReadCommandLines,
    ) -> Result<CommandLines> {
        let limit = request.limit.unwrap_or(DEFAULT_LINES);
        if !(1..=MAX_PAGE_ROWS).contains(&limit) {
            return Err(Failure::invalid(format!(
                "limit is {limit}; it must be 1 to {MAX_PAGE_ROWS}"
            )));
        }
        let command = self.command(context, &request.command_session_id)?;
        let row = command.row.lock().clone();
        let stream = match (row.tty, request.stream) {
            (true, None) => Stream::Pty,
            (true, Some(_)) => {
                return Err(Failure::invalid(format!(
                    "command {} has a terminal, which has one output; leave `stream` out",
                    command.id
                )));
            }
            (false, Some(OutputStream::Stderr)) => Stream::Stderr,
            (false, Some(OutputStream::Stdout) | None) => Stream::Stdout,
        };
        let (dir, start) = (command.dir.clone(), request.start_offset);
        if let Some(start_byte) = request.start_byte {
            if start != 0 || request.limit.is_some() {
                return Err(Failure::invalid(
                    "start_byte asks for bytes; leave start_offset and limit out, which count lines",
                ));
            }
            return self.read_chunk(&command, &row, stream, start_byte).await;
        }
        let window = self
            .blocking(move || {
                Ok(Reader::open(&dir)?.window(stream, start, limit as usize, LINES_BYTES)?)
            })
            .await?;
        Ok(CommandLines {
            output_error: row.lost.get(&stream).cloned(),
            chunk: None,
            command_session_id: command.id.clone(),
            status: row.status,
            next_offset: window.next_line,
            total_lines: window.total_lines,
            total_bytes: window.total_bytes,
            elided: window.elided.first().map(elision),
            lines: window
                .lines
                .into_iter()
                .map(|mut line| {
                    let whole = line.complete && line.bytes.len() <= LINE_BYTES;
                    line.bytes.truncate(LINE_BYTES);
                    OutputLine {
                        offset: line.offset,
                        text: Text::new(line.bytes),
                        complete: whole,
                    }
                })
                .collect(),
        })
    }

    async fn read_chunk(
        self: &Arc<Self>,
        command: &Command,
        row: &CommandRow,
        stream: Stream,
        start_byte: u64,
    ) -> Result<CommandLines> {
        let dir = command.dir.clone();
        let (chunk, totals) = self
            .blocking(move || {
                let reader = Reader::open(&dir)?;
                let chunk = reader.bytes_from(stream, start_byte, MAX_WINDOW_BYTES)?;
                Ok((chunk, reader.totals(stream)?))
            })
            .await?;
        Ok(CommandLines {
            command_session_id: command.id.clone(),
            status: row.status,
            output_error: row.lost.get(&stream).cloned(),
            lines: Vec::new(),
            next_offset: 0,
            total_lines: totals.total_lines,
            total_bytes: totals.total_bytes,
            elided: chunk.elided.as_ref().map(elision),
            chunk: Some(OutputChunk {
                start_byte: chunk.byte_offset,
                next_byte: chunk.byte_offset + chunk.bytes.len() as u64,
                text: Text::new(chunk.bytes),
            }),
        })
    }

    /// How a command stands. Output from the beginning, or from a line that was asked for (`None`
    /// within: its end).
    pub(crate) async fn command_reply(
        self: &Arc<Self>,
        command: &Arc<Command>,
        from: Option<Option<u64>>,
    ) -> Result<CommandReply> {
        let row = command.row.lock().clone();
        let dir = command.dir.clone();
        let streams: &[Stream] = if row.tty {
            &[Stream::Pty]
        } else {
            &[Stream::Stdout, Stream::Stderr]
        };
        let lost = row.lost.clone();
        let mut windows = self
            .blocking(move || {
                let reader = Reader::open(&dir)?;
                streams
                    .iter()
                    .map(|stream| {
                        Ok(OutputWindow {
                            output_error: lost.get(stream).cloned(),
                            ..output_window(&reader, *stream, from)?
                        })
                    })
                    .collect::<Result<Vec<_>>>()
            })
            .await?
            .into_iter();
        Ok(CommandReply {
            output: windows.next().unwrap_or_default(),
            stderr: windows.next(),
            ..without_output(row)
        })
    }
}

/// How a command stands, and nothing of what it wrote.
pub(crate) fn without_output(row: CommandRow) -> CommandReply {
    let until = row.ended_at_unix_ms.unwrap_or_else(now_unix_ms);
    CommandReply {
        command_session_id: row.id,
        workspace_session_id: row.session,
        status: row.status,
        exit_code: row.exit_code,
        signal: row.signal,
        output: OutputWindow::default(),
        stderr: None,
        survivors: row.survivors,
        publish: row.publish,
        started_at_unix_ms: row.started_at_unix_ms,
        duration_ms: until.saturating_sub(row.started_at_unix_ms),
        cpu_us: row.cpu_us,
        max_rss_bytes: row.max_rss_bytes,
    }
}

fn output_window(
    reader: &Reader,
    stream: Stream,
    from: Option<Option<u64>>,
) -> Result<OutputWindow> {
    let start = match from {
        None => 0,
        Some(Some(line)) => line,
        Some(None) => last_lines(reader, stream)?,
    };
    let window = reader.window(stream, start, usize::MAX, OUTPUT_BYTES)?;
    let mut bytes = Vec::new();
    for line in &window.lines {
        bytes.extend_from_slice(&line.bytes);
        if line.end == LineEnd::Newline {
            bytes.push(b'\n');
        }
    }
    let first = window.lines.first().map_or(start, |line| line.offset);
    Ok(OutputWindow {
        text: Text::new(bytes),
        start_offset: first,
        next_offset: window.next_line,
        total_lines: window.total_lines,
        total_bytes: window.total_bytes,
        truncated: first > 0 || window.next_line < window.total_lines || !window.elided.is_empty(),
        elided: window.elided.first().map(elision),
        output_error: None,
    })
}

/// The first line of those that end a stream and fit into an answer.
fn last_lines(reader: &Reader, stream: Stream) -> Result<u64> {
    let totals = reader.totals(stream)?;
    let tail = reader.tail(stream, OUTPUT_BYTES)?;
    let ends = tail.bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    let unended = u64::from(tail.bytes.last().is_some_and(|byte| *byte != b'\n'));
    // A first line that is cut is left out, unless it is all there is.
    let whole = if tail.byte_offset == 0 {
        ends + unended
    } else {
        (ends + unended).saturating_sub(1).max(1)
    };
    Ok(totals.total_lines.saturating_sub(whole))
}

fn elision(gap: &transcript::Elision) -> Elision {
    Elision {
        first_line: gap.first_line,
        lines: gap.lines,
        bytes: gap.bytes,
    }
}
