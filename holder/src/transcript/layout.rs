//! Names, sizes and headers of a transcript's files.
//!
//! Owns the arithmetic that writer and reader share. Does no input or output.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::protocol::Stream;

/// The least limit of a transcript, in bytes: sixteen segments of one block each.
pub const LEAST_LIMIT: u64 = SEGMENTS * BLOCK;

/// Bytes between two numbers of the index: what a reader scans at most to find a line.
pub(super) const BLOCK: u64 = 4096;

/// Segments that a full transcript keeps: a sixteenth of the limit is what goes at once.
const SEGMENTS: u64 = 16;

/// Of those, the ones that are never dropped: a quarter.
const HEAD_SEGMENTS: u64 = 4;

const FORMAT: &str = "sandstack-transcript";
const VERSION: u32 = 1;
const INDEX_MAGIC: [u8; 4] = *b"SSTI";

/// Bytes of an index's header.
pub(super) const INDEX_HEADER: usize = 32;

/// Name of the header file.
pub(super) const HEADER_NAME: &str = "transcript.json";

/// The content of `transcript.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    format: String,
    version: u32,
    limit_bytes: u64,
    pub(super) segment_bytes: u64,
    pub(super) head_segments: u64,
    pub(super) tail_segments: u64,
    block_bytes: u64,
    pub(super) streams: Vec<Stream>,
}

impl Header {
    /// The header of a new transcript that keeps at most `limit` bytes of each stream.
    pub(super) fn new(streams: &[Stream], limit: u64) -> Result<Header, Error> {
        if limit < LEAST_LIMIT {
            return Err(Error::TranscriptLimit {
                limit,
                least: LEAST_LIMIT,
            });
        }
        Ok(Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            limit_bytes: limit,
            segment_bytes: limit / SEGMENTS / BLOCK * BLOCK,
            head_segments: HEAD_SEGMENTS,
            tail_segments: SEGMENTS - HEAD_SEGMENTS,
            block_bytes: BLOCK,
            streams: streams.to_vec(),
        })
    }

    /// Parses and judges a header file's content.
    pub(super) fn parse(path: &Path, json: &[u8]) -> Result<Header, Error> {
        let refuse = |detail: String| Error::Format {
            path: path.to_owned(),
            detail,
        };
        let header: Header =
            serde_json::from_slice(json).map_err(|error| refuse(error.to_string()))?;
        if header.format != FORMAT || header.version != VERSION {
            return Err(refuse(format!(
                "{} version {}",
                header.format, header.version
            )));
        }
        if header.block_bytes != BLOCK
            || header.segment_bytes == 0
            || !header.segment_bytes.is_multiple_of(BLOCK)
            || header.head_segments == 0
            || header.tail_segments < 2
        {
            return Err(refuse("its sizes do not fit together".to_owned()));
        }
        Ok(header)
    }
}

/// The data file of segment `number`.
pub(super) fn data_path(dir: &Path, stream: Stream, number: u64) -> PathBuf {
    dir.join(format!("{stream}.{number:08}.data"))
}

/// The index file of segment `number`.
pub(super) fn index_path(dir: &Path, stream: Stream, number: u64) -> PathBuf {
    dir.join(format!("{stream}.{number:08}.index"))
}

/// The segment whose data file is called `name`, if it is one of `stream`.
pub(super) fn segment_of(name: &str, stream: Stream) -> Option<u64> {
    name.strip_prefix(stream.name())?
        .strip_prefix('.')?
        .strip_suffix(".data")?
        .parse()
        .ok()
}

/// The header of a segment's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexHeader {
    /// The segment's first byte.
    pub(super) first_byte: u64,
    /// Newlines before it.
    pub(super) newlines: u64,
    /// First byte of the line that the segment begins in; `first_byte` if it begins one.
    pub(super) line_start: u64,
}

impl IndexHeader {
    pub(super) fn encode(self) -> [u8; INDEX_HEADER] {
        let mut bytes = [0; INDEX_HEADER];
        bytes[..4].copy_from_slice(&INDEX_MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        for (at, number) in [
            (8, self.first_byte),
            (16, self.newlines),
            (24, self.line_start),
        ] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None` if these bytes are no header of this version.
    pub(super) fn decode(bytes: &[u8; INDEX_HEADER]) -> Option<IndexHeader> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        if *magic != INDEX_MAGIC || u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let mut numbers = decode_numbers(rest);
        Some(IndexHeader {
            first_byte: numbers.next()?,
            newlines: numbers.next()?,
            line_start: numbers.next()?,
        })
    }
}

/// The whole little-endian numbers at the beginning of `bytes`.
pub(super) fn decode_numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|number| u64::from_le_bytes(*number))
}

/// How many newlines `bytes` has.
pub(super) fn newlines(bytes: &[u8]) -> u64 {
    // Counted in runs that fit a byte, so that the compiler makes vector code of it: this
    // runs over all output.
    bytes
        .chunks(255)
        .map(|run| u64::from(run.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>()))
        .sum()
}
