//! A command's output on disk.
//!
//! Owns the on-disk form, the [`Writer`] (in the holder) and the [`Reader`] (in any
//! process that sees the same files, at the same time). Never interprets the bytes
//! beyond finding newlines.
//!
//! # What a transcript is
//! Per stream, an append-only sequence of bytes. A line ends with a newline; a last one
//! without it counts as a line that may still grow. Bytes and lines are numbered from 0
//! and keep their numbers for ever. Of each stream at most `limit` bytes are kept: the
//! first quarter, and a moving tail of three quarters. What lies between is dropped in
//! whole segments, and a reader is told so ([`Elision`]).
//!
//! # The form on disk, version 1
//! A directory holds:
//!
//! - `transcript.json`, written whole before anything else: format name and version, the
//!   limit, the size of a segment, how many segments head and tail have, the size of a
//!   block, and the streams. Readers refuse a version they do not know.
//! - `STREAM.NNNNNNNN.data`: segment N of a stream, its bytes from `N × segment` on. All
//!   but the last are full. Present are segments 0 to `head − 1` and the last `tail`
//!   ones; those between have been removed.
//! - `STREAM.NNNNNNNN.index`: the segment's line index. 32 bytes of header: the magic
//!   `SSTI`, the version (`u32`), the segment's first byte, the number of newlines before
//!   it, and the first byte of the line that the segment begins in. Then for each whole
//!   block of the segment one number: the newlines from the beginning of the stream to
//!   that block's end. All numbers are `u64`, little-endian, unless said otherwise.
//!
//! A stream without output has no files. So line N is found by reading the headers of
//! at most 17 indexes, then bisecting one, then scanning one block: the cost of a window
//! is that of the window.
//!
//! # Invariants
//! - Files only grow, and an index number is written after the data that it counts. So a
//!   reader sees at most an index that is behind, never one that is wrong, and scans what
//!   is not indexed yet. The same holds after the writer was killed at any instant. An
//!   index that is not consistent with itself (a disk that lost power) is used up to the
//!   last consistent number.
//! - A segment's index file, with its whole header, exists before its data file does, and
//!   is removed after it.
//! - A reader that finds a file gone because the tail has moved takes a new look at the
//!   directory; it never mixes two looks.

mod layout;
mod look;
mod reader;
mod writer;

pub use layout::LEAST_LIMIT;
pub use reader::{Chunk, Elision, Line, LineEnd, Reader, Window};
pub use writer::Writer;
