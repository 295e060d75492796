//! One consistent look at a stream's files.
//!
//! Owns the open files of that look, finding lines in them by the index, and the gap
//! that dropped segments leave. Since the files are open, what a look has seen stays
//! readable though the writer goes on and drops segments.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::layout::{self, BLOCK, Header, INDEX_HEADER, IndexHeader};
use crate::error::Error;
use crate::protocol::Stream;

/// Bytes read at once while scanning.
const READ_BYTES: u64 = 64 << 10;

/// How often a look is taken anew because the writer has dropped a segment meanwhile.
/// Each time it has written a sixteenth of the limit in the microseconds of a look.
const LOOKS: usize = 100;

/// A stream as it was at one instant.
pub(super) struct Look {
    segment_bytes: u64,
    segments: Vec<Segment>,
    /// Bytes of the stream.
    pub(super) total_bytes: u64,
    /// Lines of the stream; a last one without a newline counts.
    pub(super) total_lines: u64,
    /// What has been dropped.
    pub(super) gap: Option<Gap>,
}

/// The dropped middle of a stream.
#[derive(Clone, Debug)]
pub(super) struct Gap {
    /// The bytes that are gone.
    pub(super) bytes: Range<u64>,
    /// The lines of which no byte is left.
    pub(super) lines: Range<u64>,
    /// The line that the first byte after the gap belongs to.
    line_after: u64,
}

struct Segment {
    number: u64,
    length: u64,
    header: IndexHeader,
    data: File,
    index: File,
    /// Newlines from the stream's beginning to the end of each indexed block.
    numbers: OnceCell<Vec<u64>>,
}

impl Look {
    /// Looks at a stream.
    pub(super) fn take(
        dir: &std::path::Path,
        header: &Header,
        stream: Stream,
    ) -> Result<Look, Error> {
        for _ in 0..LOOKS {
            if let Some(look) = Look::attempt(dir, header, stream)? {
                return Ok(look);
            }
        }
        let detail = "it changes faster than it can be read".to_owned();
        Err(Error::Format {
            path: dir.to_owned(),
            detail,
        })
    }

    /// One attempt; `None` if the writer dropped or added segments meanwhile.
    fn attempt(
        dir: &std::path::Path,
        header: &Header,
        stream: Stream,
    ) -> Result<Option<Look>, Error> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(dir).map_err(Error::path("list", dir))? {
            let name = entry.map_err(Error::path("list", dir))?.file_name();
            numbers.extend(
                name.to_str()
                    .and_then(|name| layout::segment_of(name, stream)),
            );
        }
        numbers.sort_unstable();
        let mut segments = Vec::with_capacity(numbers.len());
        for number in numbers {
            match Segment::open(dir, stream, number)? {
                Some(segment) => segments.push(segment),
                None => return Ok(None),
            }
        }
        // The writer may have made a segment and not yet written to it.
        segments.pop_if(|last| last.length == 0);
        if !whole(&segments, header) {
            return Ok(None);
        }
        let mut look = Look {
            segment_bytes: header.segment_bytes,
            segments,
            total_bytes: 0,
            total_lines: 0,
            gap: None,
        };
        if let Some(last) = look.segments.last() {
            let damaged = |source| Error::path("read", dir)(source);
            look.total_bytes = last.number * look.segment_bytes + last.length;
            let open = u64::from(last.last_byte().map_err(damaged)? != b'\n');
            look.total_lines = last.newlines_to(last.length).map_err(damaged)? + open;
            look.gap = look.find_gap().map_err(damaged)?;
        }
        Ok(Some(look))
    }

    fn find_gap(&self) -> io::Result<Option<Gap>> {
        let mut pairs = self.segments.iter().zip(self.segments.iter().skip(1));
        let Some((before, after)) = pairs.find(|(a, b)| a.number + 1 != b.number) else {
            return Ok(None);
        };
        let bytes = (before.number + 1) * self.segment_bytes..after.number * self.segment_bytes;
        // The line that the first dropped byte belongs to, and whether all of it is gone.
        let cut_line = before.newlines_to(before.length)?;
        let cut_begins_line = before.last_byte()? == b'\n';
        let line_after = after.header.newlines;
        let first = if cut_begins_line {
            cut_line
        } else {
            cut_line + 1
        };
        let first = first.min(line_after);
        Ok(Some(Gap {
            bytes,
            lines: first..line_after,
            line_after,
        }))
    }

    /// Where the kept part of a line begins, and whether bytes before it are dropped. The
    /// line must exist and not be one of the gap's.
    pub(super) fn line_start(&self, line: u64) -> io::Result<(u64, bool)> {
        let start = self.after_newline(line)?;
        match (&self.gap, start) {
            (Some(gap), Some(start)) if !gap.bytes.contains(&start) => Ok((start, false)),
            (None, Some(start)) => Ok((start, false)),
            (Some(gap), _) if line == gap.line_after => {
                let whole = self.segments.iter().any(|s| {
                    s.header.first_byte == gap.bytes.end && s.header.line_start == gap.bytes.end
                });
                Ok((gap.bytes.end, !whole))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The byte after the stream's `count`-th newline; `None` if that newline is dropped.
    fn after_newline(&self, count: u64) -> io::Result<Option<u64>> {
        if count == 0 {
            return Ok(Some(0));
        }
        // The last segment that begins before the newline; it has the newline, or what
        // follows it does.
        let at = self
            .segments
            .partition_point(|segment| segment.header.newlines < count);
        let Some(segment) = at.checked_sub(1).map(|at| &self.segments[at]) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(segment
            .after_newline(count)?
            .map(|offset| segment.header.first_byte + offset))
    }

    /// The end of the kept bytes that follow `byte` without a gap.
    pub(super) fn contiguous_end(&self, byte: u64) -> u64 {
        match &self.gap {
            Some(gap) if byte < gap.bytes.start => gap.bytes.start,
            _ => self.total_bytes,
        }
    }

    /// Reads kept bytes from `byte` on, which must all be kept.
    pub(super) fn read(&self, byte: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        let mut done = 0;
        while done < bytes.len() {
            let at = byte + done as u64;
            let number = at / self.segment_bytes;
            let found = self
                .segments
                .binary_search_by_key(&number, |segment| segment.number);
            let segment = found.map(|index| &self.segments[index]);
            let segment = segment.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            let offset = at - segment.header.first_byte;
            let room = (segment.length.saturating_sub(offset) as usize).min(bytes.len() - done);
            if room == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            segment
                .data
                .read_exact_at(&mut bytes[done..done + room], offset)?;
            done += room;
        }
        Ok(bytes)
    }
}

/// Whether the segments are what a transcript has at one instant: all full but the last,
/// and without holes but the one gap after the head.
fn whole(segments: &[Segment], header: &Header) -> bool {
    let Some((last, full)) = segments.split_last() else {
        return true;
    };
    let follows =
        |a: &Segment, b: &Segment| a.number + 1 == b.number || a.number + 1 == header.head_segments;
    segments[0].number == 0
        && segments.windows(2).all(|pair| follows(&pair[0], &pair[1]))
        && full
            .iter()
            .all(|segment| segment.length == header.segment_bytes)
        && last.length <= header.segment_bytes
}

impl Segment {
    /// Opens a segment; `None` if it is gone.
    fn open(dir: &std::path::Path, stream: Stream, number: u64) -> Result<Option<Segment>, Error> {
        let open = |path: std::path::PathBuf| match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::path("open", path)(error)),
        };
        let path = layout::index_path(dir, stream, number);
        let (data, index) = (
            open(layout::data_path(dir, stream, number))?,
            open(path.clone())?,
        );
        let (Some(data), Some(index)) = (data, index) else {
            return Ok(None);
        };
        let mut bytes = [0; INDEX_HEADER];
        index
            .read_exact_at(&mut bytes, 0)
            .map_err(Error::path("read", &path))?;
        let header = IndexHeader::decode(&bytes).ok_or_else(|| Error::Format {
            path,
            detail: "it is no index of version 1".to_owned(),
        })?;
        let length = data.metadata().map_err(Error::path("open", dir))?.len();
        Ok(Some(Segment {
            number,
            length,
            header,
            data,
            index,
            numbers: OnceCell::new(),
        }))
    }

    fn last_byte(&self) -> io::Result<u8> {
        let mut byte = [0];
        self.data.read_exact_at(&mut byte, self.length - 1)?;
        Ok(byte[0])
    }

    /// The consistent numbers of the index.
    fn numbers(&self) -> io::Result<&[u64]> {
        if let Some(numbers) = self.numbers.get() {
            return Ok(numbers);
        }
        let most = (self.length / BLOCK) as usize;
        let mut bytes = vec![0; most * size_of::<u64>()];
        let mut filled = 0;
        while filled < bytes.len() {
            match self
                .index
                .read_at(&mut bytes[filled..], (INDEX_HEADER + filled) as u64)
            {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut last = self.header.newlines;
        let consistent = |number: &u64| {
            let fits = (last..=last + BLOCK).contains(number);
            last = *number;
            fits
        };
        let numbers = layout::decode_numbers(&bytes[..filled])
            .take_while(consistent)
            .collect();
        Ok(self.numbers.get_or_init(|| numbers))
    }

    /// Newlines from the stream's beginning to `offset` in this segment.
    fn newlines_to(&self, offset: u64) -> io::Result<u64> {
        let numbers = self.numbers()?;
        let blocks = ((offset / BLOCK) as usize).min(numbers.len());
        let mut count = match blocks.checked_sub(1) {
            Some(last) => numbers[last],
            None => self.header.newlines,
        };
        self.scan(blocks as u64 * BLOCK, offset, |bytes| {
            count += layout::newlines(bytes);
            None
        })?;
        Ok(count)
    }

    /// The offset after the stream's `wanted`-th newline, if this segment has it.
    fn after_newline(&self, wanted: u64) -> io::Result<Option<u64>> {
        let numbers = self.numbers()?;
        let block = numbers.partition_point(|number| *number < wanted);
        let mut count = match block.checked_sub(1) {
            Some(last) => numbers[last],
            None => self.header.newlines,
        };
        self.scan(block as u64 * BLOCK, self.length, |bytes| {
            let in_piece = layout::newlines(bytes);
            if count + in_piece < wanted {
                count += in_piece;
                return None;
            }
            let mut ends = (0..).zip(bytes).filter(|(_, byte)| **byte == b'\n');
            ends.nth((wanted - count - 1) as usize)
                .map(|(at, _)| at + 1)
        })
    }

    /// Gives the bytes of a range to `visit`, piece by piece, until it finds something:
    /// an offset in its piece, which is returned as one in the segment.
    fn scan(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(&[u8]) -> Option<u64>,
    ) -> io::Result<Option<u64>> {
        let mut buffer = vec![0; READ_BYTES.min(to.saturating_sub(from)) as usize];
        let mut at = from;
        while at < to {
            // The first piece is one block: mostly that is where the newline is.
            let most = if at == from { BLOCK } else { READ_BYTES };
            let piece = &mut buffer[..most.min(to - at) as usize];
            self.data.read_exact_at(piece, at)?;
            if let Some(found) = visit(piece) {
                return Ok(Some(at + found));
            }
            at += piece.len() as u64;
        }
        Ok(None)
    }
}
