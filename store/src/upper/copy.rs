//! Copying between files without copying, where that can be.
//!
//! What lies in immutable blobs is referred to by the copy as well. What lies in the session's own
//! blocks is copied, for each of them belongs to one file.

use super::data::{Staged, checked_end};
use super::extents::{Place, Run};
use super::state::{Attrs, Record};
use super::{BLOCK, Upper, stripe};
use crate::error::Result;
use crate::node::Ino;

/// Bytes copied at a time where content cannot be shared.
const COPY_BYTES: u64 = 1 << 20;

/// A part of what is copied.
enum Piece {
    /// Nothing is stored there: it reads as zeros.
    Hole,
    /// These bytes.
    Bytes(Place),
    /// Bytes of a blob, to take the place of whole blocks of the target.
    Shared(Place),
}

impl Upper {
    /// Copies `length` bytes between files, or within one where the ranges do not overlap; content
    /// of blobs is referred to, not copied, where it is to be in whole blocks. Returns how many
    /// bytes were copied: fewer than `length` where the source ends, or where room ran out on the
    /// way.
    ///
    /// # Errors
    /// As [`Upper::write`], if nothing could be copied.
    pub fn copy_range(
        &self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        length: u64,
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<u64> {
        let (low, high) = (stripe(from).min(stripe(to)), stripe(from).max(stripe(to)));
        let _first = self.data[low].write();
        let _second = (low != high).then(|| self.data[high].write());
        let size = self.before(from, 0, 0)?.size;
        let length = length.min(size.saturating_sub(from_offset));
        if length == 0 {
            return Ok(0);
        }
        checked_end(to_offset, length)?;
        let source = self.before(from, from_offset, from_offset + length)?;
        let mut attrs = Some(attrs);
        // Taken by the first piece that is committed.
        let mut attrs = |old| match attrs.take() {
            Some(attrs) => attrs(old),
            None => old,
        };
        let mut done = 0;
        let mut runs = source.runs.iter().peekable();
        while done < length {
            let at = from_offset + done;
            while runs.next_if(|run| run.end() <= at).is_some() {}
            let (bytes, piece) = match runs.peek() {
                None => (length - done, Piece::Hole),
                Some(run) if run.offset > at => (run.offset - at, Piece::Hole),
                Some(run) => {
                    let place = run.place.advance(at - run.offset);
                    self.next_piece(to, to_offset + done, run.end() - at, length - done, place)?
                }
            };
            let copied = self.copy_piece(to, to_offset + done, bytes, piece, &mut attrs);
            match copied {
                Ok(()) => done += bytes,
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, done, length, "a copy stopped on the way");
                    return Ok(done);
                }
            }
        }
        Ok(length)
    }

    /// How the next of `run` bytes at `place` go to `at`, and how many of them; `rest` are still to
    /// be copied in all.
    fn next_piece(
        &self,
        to: Ino,
        at: u64,
        run: u64,
        rest: u64,
        place: Place,
    ) -> Result<(u64, Piece)> {
        if !matches!(place, Place::Blob(_)) {
            return Ok((run.min(COPY_BYTES), Piece::Bytes(place)));
        }
        let to_block = at.next_multiple_of(BLOCK) - at;
        if to_block > 0 {
            return Ok((run.min(to_block), Piece::Bytes(place)));
        }
        // The last block may be a part of one if nothing else is to be in it.
        let last = run == rest && at + run >= self.before(to, 0, 0)?.size;
        let whole = if last { run } else { run / BLOCK * BLOCK };
        Ok(if whole > 0 {
            (whole, Piece::Shared(place))
        } else {
            (run, Piece::Bytes(place))
        })
    }

    fn copy_piece(
        &self,
        to: Ino,
        at: u64,
        bytes: u64,
        piece: Piece,
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        let end = at + bytes;
        match piece {
            Piece::Hole => self.punch_locked(to, at, end, Some(end), attrs),
            Piece::Bytes(place) => {
                let mut buffer = vec![0; bytes as usize];
                self.read_place(place, &mut buffer)?;
                self.write_locked(to, at, &buffer, attrs)
            }
            Piece::Shared(place) => {
                let before = self.before(to, 0, 0)?;
                if at > before.size {
                    self.clear_tail(to, before.size, at)?;
                }
                // An arena block at the end of the target goes as a whole.
                let hole = Record::Hole {
                    ino: to,
                    start: at,
                    end: end.next_multiple_of(BLOCK),
                };
                let run = Run {
                    offset: at,
                    length: bytes,
                    place,
                };
                let run = Record::Run { ino: to, run };
                let size = (end > before.size).then_some(Record::Size { ino: to, size: end });
                let records = [hole, run].into_iter().chain(size);
                self.commit(Ok(()), &Staged::default(), to, before.own, records, attrs)
            }
        }
    }
}
