//! Appending to a transcript.
//!
//! Owns the files of one transcript for writing, and the counters of its streams.
//! Never reads back, never syncs: output is evidence of a running system, and the page
//! cache outlives the holder.
//!
//! Invariant: after a failed append a stream is finished; so what is on disk is always
//! the true beginning of the output (or its head and tail), never one with a hole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::layout::{self, BLOCK, HEADER_NAME, Header, IndexHeader};
use crate::error::Error;
use crate::protocol::{Stream, StreamTotals};

/// The writing side of a transcript.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    header: Header,
    streams: Vec<StreamWriter>,
}

#[derive(Debug)]
struct StreamWriter {
    stream: Stream,
    /// The segment being written; `None` before the first byte.
    segment: Option<Segment>,
    /// Its files; `None` while the transcript rests.
    files: Option<Files>,
    bytes: u64,
    newlines: u64,
    /// First byte of the line being written.
    line_start: u64,
    /// Why it takes no more; `None`: it does.
    lost: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u64,
    length: u64,
}

#[derive(Debug)]
struct Files {
    data: File,
    index: File,
}

impl Writer {
    /// Begins a transcript of these streams in `dir`, which must exist and hold none. At
    /// most `limit` bytes of each stream are kept.
    ///
    /// # Errors
    /// [`Error::TranscriptExists`], [`Error::TranscriptLimit`], or [`Error::Path`].
    pub fn create(dir: &Path, streams: &[Stream], limit: u64) -> Result<Writer, Error> {
        let header = Header::new(streams, limit)?;
        let path = dir.join(HEADER_NAME);
        let json = serde_json::to_vec(&header).map_err(|error| Error::Format {
            path: path.clone(),
            detail: error.to_string(),
        })?;
        // Under another name first: a header that is there is whole. Linking, unlike
        // renaming, leaves an existing one alone.
        let draft = dir.join(".transcript.json.new");
        fs::write(&draft, json).map_err(Error::path("write", &draft))?;
        let linked = fs::hard_link(&draft, &path);
        fs::remove_file(&draft).map_err(Error::path("remove", &draft))?;
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::TranscriptExists {
                    dir: dir.to_owned(),
                });
            }
            Err(error) => return Err(Error::path("create", &path)(error)),
        }
        let streams = streams
            .iter()
            .map(|stream| StreamWriter {
                stream: *stream,
                segment: None,
                files: None,
                bytes: 0,
                newlines: 0,
                line_start: 0,
                lost: None,
            })
            .collect();
        Ok(Writer {
            dir: dir.to_owned(),
            header,
            streams,
        })
    }

    /// Appends to a stream. Output that comes after a failure of its stream is dropped.
    ///
    /// # Errors
    /// [`Error::StreamUnknown`]; [`Error::Path`] once, when the stream fails.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), Error> {
        let writer = self
            .streams
            .iter_mut()
            .find(|writer| writer.stream == stream)
            .ok_or(Error::StreamUnknown { stream })?;
        if writer.lost.is_some() {
            return Ok(());
        }
        let appended = writer.append(&self.dir, &self.header, bytes);
        if let Err(error) = &appended {
            writer.lost = Some(cause(error));
        }
        appended
    }

    /// What comes on a stream from now on is lost, and why.
    pub(crate) fn lose(&mut self, stream: Stream, why: String) {
        if let Some(writer) = self
            .streams
            .iter_mut()
            .find(|writer| writer.stream == stream)
        {
            writer.lost.get_or_insert(why);
        }
    }

    /// Closes the files until something is appended again.
    pub fn rest(&mut self) {
        for stream in &mut self.streams {
            stream.files = None;
        }
    }

    /// What each stream has got so far, in the order given at the beginning.
    pub fn totals(&self) -> Vec<StreamTotals> {
        self.streams.iter().map(StreamWriter::totals).collect()
    }

    /// What one stream has got so far; `None` if there is no such stream.
    pub fn stream_totals(&self, stream: Stream) -> Option<StreamTotals> {
        self.streams
            .iter()
            .find(|writer| writer.stream == stream)
            .map(StreamWriter::totals)
    }
}

impl StreamWriter {
    fn totals(&self) -> StreamTotals {
        let last_is_open = u64::from(self.line_start < self.bytes);
        StreamTotals {
            stream: self.stream,
            total_bytes: self.bytes,
            total_lines: self.newlines + last_is_open,
            lost: self.lost.clone(),
        }
    }

    fn append(&mut self, dir: &Path, header: &Header, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let segment = match self.segment {
                Some(segment) if segment.length < header.segment_bytes => segment,
                full => {
                    let number = full.map_or(0, |full| full.number + 1);
                    self.begin_segment(dir, header, number)?
                }
            };
            let mut files = match self.files.take() {
                Some(files) => files,
                None => Files::open(dir, self.stream, segment.number, false)?,
            };
            let room = (header.segment_bytes - segment.length).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(room as usize);
            let written = self.write(segment, &mut files, now);
            self.files = Some(files);
            let path = || layout::data_path(dir, self.stream, segment.number);
            written.map_err(|error| Error::path("write", path())(error))?;
            bytes = later;
        }
        Ok(())
    }

    /// Begins a segment, and drops the one that falls out of the tail by it.
    fn begin_segment(
        &mut self,
        dir: &Path,
        header: &Header,
        number: u64,
    ) -> Result<Segment, Error> {
        self.files = None;
        if let Some(dropped) = number.checked_sub(header.tail_segments)
            && dropped >= header.head_segments
        {
            for path in [
                layout::data_path(dir, self.stream, dropped),
                layout::index_path(dir, self.stream, dropped),
            ] {
                fs::remove_file(&path).map_err(Error::path("remove", path))?;
            }
        }
        let index_path = layout::index_path(dir, self.stream, number);
        let first_byte = number * header.segment_bytes;
        let index_header = IndexHeader {
            first_byte,
            newlines: self.newlines,
            line_start: self.line_start,
        };
        let begun = File::create_new(&index_path)
            .and_then(|mut index| index.write_all(&index_header.encode()));
        begun.map_err(Error::path("create", index_path))?;
        self.files = Some(Files::open(dir, self.stream, number, true)?);
        let segment = Segment { number, length: 0 };
        self.segment = Some(segment);
        Ok(segment)
    }

    /// Writes bytes that fit the segment; counts exactly what was written.
    fn write(&mut self, segment: Segment, files: &mut Files, mut bytes: &[u8]) -> io::Result<()> {
        let mut length = segment.length;
        let mut numbers = Vec::new();
        let written = loop {
            if bytes.is_empty() {
                break Ok(());
            }
            match files.data.write(bytes) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.count(&mut length, &bytes[..count], &mut numbers);
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.segment = Some(Segment { length, ..segment });
        // After the data that they count; also when not all of it could be written.
        files.index.write_all(&numbers)?;
        written
    }

    /// Counts bytes just written to the segment's end; adds the index numbers of the
    /// blocks that they fill.
    fn count(&mut self, length: &mut u64, mut bytes: &[u8], numbers: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let to_block_end = BLOCK - *length % BLOCK;
            let (now, later) = bytes.split_at((to_block_end as usize).min(bytes.len()));
            self.newlines += layout::newlines(now);
            if let Some(last) = now.iter().rposition(|byte| *byte == b'\n') {
                self.line_start = self.bytes + last as u64 + 1;
            }
            self.bytes += now.len() as u64;
            *length += now.len() as u64;
            if length.is_multiple_of(BLOCK) {
                numbers.extend_from_slice(&self.newlines.to_le_bytes());
            }
            bytes = later;
        }
    }
}

impl Files {
    /// Opens a segment's files; the data file of a `new` segment is made.
    fn open(dir: &Path, stream: Stream, number: u64, new: bool) -> Result<Files, Error> {
        let open = |path: PathBuf, new| {
            let file = OpenOptions::new().append(true).create_new(new).open(&path);
            file.map_err(Error::path("open", path))
        };
        Ok(Files {
            index: open(layout::index_path(dir, stream, number), false)?,
            data: open(layout::data_path(dir, stream, number), new)?,
        })
    }
}

/// What is at the root of an error: the path of a transcript means nothing to whoever reads its end.
fn cause(error: &Error) -> String {
    let mut at: &dyn std::error::Error = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}
