//! Reading a transcript.
//!
//! Owns the answers: windows of lines, tails, byte ranges. Works beside the writer, in
//! another process, and after it is gone. Writes nothing, keeps no state between calls.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{HEADER_NAME, Header};
use super::look::{Gap, Look};
use crate::error::Error;
use crate::protocol::{Stream, StreamTotals};

/// The reading side of a transcript.
#[derive(Clone, Debug)]
pub struct Reader {
    dir: PathBuf,
    header: Header,
}

/// Some lines of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The lines, in order.
    pub lines: Vec<Line>,
    /// Where to go on: the `start_line` of the next window.
    pub next_line: u64,
    /// Lines of the stream at the time of reading; a last one without a newline counts.
    pub total_lines: u64,
    /// Bytes of the stream at the time of reading, dropped ones included.
    pub total_bytes: u64,
    /// What was dropped between or in the lines of this window; at most one.
    pub elided: Vec<Elision>,
}

/// One line, or what is left or wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The line's number, from 0; stable.
    pub offset: u64,
    /// Where `bytes` begin in the stream.
    pub byte_offset: u64,
    /// The line's bytes as they are, without its newline.
    pub bytes: Vec<u8>,
    /// Whether this is the whole of a finished line.
    pub complete: bool,
    /// Whether the line's beginning has been dropped, so that `bytes` begin within it.
    pub starts_elided: bool,
    /// Why `bytes` end where they end.
    pub end: LineEnd,
}

/// Why a line's bytes end where they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnd {
    /// The line ends there, by a newline.
    Newline,
    /// The stream ends there, so far.
    Growing,
    /// The window's byte bound was reached; [`Reader::bytes_from`] reads the rest.
    Window,
    /// What follows has been dropped.
    Elided,
}

/// The dropped middle of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elision {
    /// The first line of which nothing is left (if `lines` is 0: the line after the cut).
    pub first_line: u64,
    /// How many lines of which nothing is left. The lines at the two sides of the cut may
    /// have lost their end or beginning and do not count.
    pub lines: u64,
    /// The first dropped byte.
    pub first_byte: u64,
    /// How many bytes were dropped.
    pub bytes: u64,
}

/// Some bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where `bytes` begin in the stream.
    pub byte_offset: u64,
    /// The bytes; fewer than asked for at the end of the stream and before a cut.
    pub bytes: Vec<u8>,
    /// Bytes of the stream at the time of reading.
    pub total_bytes: u64,
    /// The cut that `bytes` begin behind, if the bytes asked for begin in it.
    pub elided: Option<Elision>,
}

impl Reader {
    /// Opens the transcript in `dir`.
    ///
    /// # Errors
    /// [`Error::Path`] if there is none, [`Error::Format`] if it is of another version.
    pub fn open(dir: &Path) -> Result<Reader, Error> {
        let path = dir.join(HEADER_NAME);
        let json = fs::read(&path).map_err(Error::path("read", &path))?;
        Ok(Reader {
            dir: dir.to_owned(),
            header: Header::parse(&path, &json)?,
        })
    }

    /// The streams it has.
    pub fn streams(&self) -> &[Stream] {
        &self.header.streams
    }

    /// How much a stream has.
    ///
    /// # Errors
    /// [`Error::StreamUnknown`], [`Error::Path`], [`Error::Format`].
    pub fn totals(&self, stream: Stream) -> Result<StreamTotals, Error> {
        let look = self.look(stream)?;
        let (total_bytes, total_lines) = (look.total_bytes, look.total_lines);
        Ok(StreamTotals {
            stream,
            total_bytes,
            total_lines,
            lost: None,
        })
    }

    /// Lines from `start_line` on, at most `max_lines` and `max_bytes`. A first line
    /// longer than `max_bytes` is cut ([`LineEnd::Window`]), so a window makes progress
    /// whatever the bounds. Dropped lines are passed over and told of in `elided`.
    ///
    /// # Errors
    /// [`Error::StreamUnknown`], [`Error::Path`], [`Error::Format`].
    pub fn window(
        &self,
        stream: Stream,
        start_line: u64,
        max_lines: usize,
        max_bytes: usize,
    ) -> Result<Window, Error> {
        let look = self.look(stream)?;
        Filling::new(&look, start_line, max_bytes)
            .fill(max_lines)
            .map_err(self.damaged())
    }

    /// The last bytes of a stream, at most `max_bytes`, and none from before a cut.
    ///
    /// # Errors
    /// [`Error::StreamUnknown`], [`Error::Path`], [`Error::Format`].
    pub fn tail(&self, stream: Stream, max_bytes: usize) -> Result<Chunk, Error> {
        let look = self.look(stream)?;
        let least = look.gap.as_ref().map_or(0, |gap| gap.bytes.end);
        let from = look.total_bytes.saturating_sub(max_bytes as u64).max(least);
        self.chunk(&look, from, max_bytes)
    }

    /// The bytes of a stream from `byte_offset` on, at most `max_bytes` and up to a cut.
    ///
    /// # Errors
    /// [`Error::StreamUnknown`], [`Error::Path`], [`Error::Format`].
    pub fn bytes_from(
        &self,
        stream: Stream,
        byte_offset: u64,
        max_bytes: usize,
    ) -> Result<Chunk, Error> {
        let look = self.look(stream)?;
        self.chunk(&look, byte_offset, max_bytes)
    }

    fn chunk(&self, look: &Look, from: u64, max_bytes: usize) -> Result<Chunk, Error> {
        let cut = look.gap.as_ref().filter(|gap| gap.bytes.contains(&from));
        let byte_offset = cut.map_or(from, |gap| gap.bytes.end);
        let there = look.contiguous_end(byte_offset).saturating_sub(byte_offset);
        let bytes = look
            .read(byte_offset, there.min(max_bytes as u64))
            .map_err(self.damaged())?;
        let (total_bytes, elided) = (look.total_bytes, cut.map(Gap::elision));
        Ok(Chunk {
            byte_offset,
            bytes,
            total_bytes,
            elided,
        })
    }

    fn look(&self, stream: Stream) -> Result<Look, Error> {
        if !self.header.streams.contains(&stream) {
            return Err(Error::StreamUnknown { stream });
        }
        Look::take(&self.dir, &self.header, stream)
    }

    fn damaged(&self) -> impl FnOnce(io::Error) -> Error {
        Error::path("read", &self.dir)
    }
}

impl Gap {
    fn elision(&self) -> Elision {
        Elision {
            first_line: self.lines.start,
            lines: self.lines.end - self.lines.start,
            first_byte: self.bytes.start,
            bytes: self.bytes.end - self.bytes.start,
        }
    }
}

/// A window being filled.
struct Filling<'a> {
    look: &'a Look,
    window: Window,
    room: usize,
    /// Bytes read ahead, and where they begin.
    ahead: Vec<u8>,
    ahead_at: u64,
}

/// Bytes read ahead at once.
const AHEAD: u64 = 64 << 10;

impl<'a> Filling<'a> {
    fn new(look: &'a Look, start_line: u64, max_bytes: usize) -> Filling<'a> {
        let window = Window {
            lines: Vec::new(),
            next_line: start_line,
            total_lines: look.total_lines,
            total_bytes: look.total_bytes,
            elided: Vec::new(),
        };
        Filling {
            look,
            window,
            room: max_bytes.max(1),
            ahead: Vec::new(),
            ahead_at: 0,
        }
    }

    fn fill(mut self, max_lines: usize) -> io::Result<Window> {
        // Where the next line begins, if that is known without searching.
        let mut known = None;
        while self.window.lines.len() < max_lines && self.window.next_line < self.look.total_lines {
            let line = self.window.next_line;
            let gap = self.look.gap.as_ref();
            if let Some(gap) = gap.filter(|gap| gap.lines.contains(&line)) {
                self.elide();
                self.window.next_line = gap.lines.end;
                known = None;
                continue;
            }
            let (start, starts_elided) = match known {
                Some(start) => (start, false),
                None => self.look.line_start(line)?,
            };
            let (bytes, end) = self.line(start)?;
            let first = self.window.lines.is_empty();
            if end == LineEnd::Window && !first {
                break;
            }
            if starts_elided {
                self.elide();
            }
            self.room -= bytes.len();
            let next = start + bytes.len() as u64 + 1;
            known = (end == LineEnd::Newline)
                .then_some(next)
                .filter(|next| gap.is_none_or(|gap| !gap.bytes.contains(next)));
            self.window.lines.push(Line {
                offset: line,
                byte_offset: start,
                bytes,
                complete: end == LineEnd::Newline && !starts_elided,
                starts_elided,
                end,
            });
            self.window.next_line = line + 1;
            if end == LineEnd::Elided {
                self.elide();
            }
            if self.room == 0 {
                break;
            }
        }
        Ok(self.window)
    }

    fn elide(&mut self) {
        if self.window.elided.is_empty() {
            self.window
                .elided
                .extend(self.look.gap.as_ref().map(Gap::elision));
        }
    }

    /// The bytes of a line from `start` on, as far as there is room.
    fn line(&mut self, start: u64) -> io::Result<(Vec<u8>, LineEnd)> {
        let kept_end = self.look.contiguous_end(start);
        let mut bytes = Vec::new();
        loop {
            let at = start + bytes.len() as u64;
            if at == kept_end {
                let cut = kept_end != self.look.total_bytes;
                return Ok((
                    bytes,
                    if cut {
                        LineEnd::Elided
                    } else {
                        LineEnd::Growing
                    },
                ));
            }
            let room = self.room - bytes.len();
            let piece = self.ahead(at, kept_end)?;
            // One byte more than there is room for: the newline itself takes none.
            let piece = &piece[..piece.len().min(room + 1)];
            if let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
                bytes.extend_from_slice(&piece[..end]);
                return Ok((bytes, LineEnd::Newline));
            }
            if piece.len() > room {
                bytes.extend_from_slice(&piece[..room]);
                return Ok((bytes, LineEnd::Window));
            }
            bytes.extend_from_slice(piece);
        }
    }

    /// At least one byte from `at` on, up to `end`.
    fn ahead(&mut self, at: u64, end: u64) -> io::Result<&[u8]> {
        let there = self.ahead_at..self.ahead_at + self.ahead.len() as u64;
        if !there.contains(&at) {
            self.ahead = self.look.read(at, AHEAD.min(end - at))?;
            self.ahead_at = at;
        }
        let from = (at - self.ahead_at) as usize;
        Ok(&self.ahead[from..])
    }
}
