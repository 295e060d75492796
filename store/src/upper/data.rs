//! Reading and changing the content of files, block by block.
//!
//! The first write to a block of a file of the layer copies that block and no other. A change first
//! takes and fills the new blocks that it needs, which is where room runs out; only then are bytes
//! written over blocks that the session has already, and last the journal says what is where. So a
//! change that fails for want of room has changed nothing, and what a crash leaves in between is
//! free space, or a part of the bytes that were being written over.

use super::extents::{Place, Run};
use super::state::{Attrs, FileBody, InodeBody, Record, State};
use super::{BLOCK, Transaction, Upper};
use crate::content::Content;
use crate::error::{Error, Result};
use crate::node::Ino;

/// Largest file, in bytes: the kernel's own limit for an offset.
const MAX_FILE: u64 = i64::MAX as u64;

/// What is known of a file before its content changes.
pub(super) struct Before {
    pub(super) size: u64,
    /// The parts of its runs that lie in the range asked for.
    pub(super) runs: Vec<Run>,
    /// The record that makes the content the session's own, if it is not yet.
    pub(super) own: Option<Record>,
    /// Where the arena run that ends at the range's start ends, so that the next one can follow it.
    goal: Option<u64>,
}

/// A change of content that is prepared and not committed.
#[derive(Default)]
pub(super) struct Staged<'b> {
    /// Blocks that were taken and filled.
    pub(super) taken: Vec<Run>,
    /// Bytes to be written over blocks that the session has already, and where in the arena.
    in_place: Vec<(u64, &'b [u8])>,
}

/// How the data of `SEEK_DATA` and `SEEK_HOLE` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not.
    Hole,
}

/// Zeros for the ends of a hole, which are never more than a block each.
static ZEROS: [u8; 2 * BLOCK as usize] = [0; 2 * BLOCK as usize];

impl Upper {
    /// Reads up to `length` bytes at `offset` of file `ino`, fewer only at its end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such file; as reading an object; [`Error::Io`].
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>> {
        let _content = self.data_lock(ino).read();
        let (size, runs) = {
            let state = self.state();
            if let Some(content) = self.lower_content(&state, ino)? {
                drop(state);
                let mut buffer = vec![0; length.min(content.size.saturating_sub(offset) as usize)];
                content.read_at(self.lower().objects(), offset, &mut buffer)?;
                return Ok(buffer);
            }
            let (size, extents) = own(&state, ino)?;
            let end = offset.saturating_add(length as u64).min(size);
            (size, extents.within(offset, end))
        };
        let mut buffer = vec![0; length.min(size.saturating_sub(offset) as usize)];
        for run in runs {
            let at = (run.offset - offset) as usize;
            self.read_place(run.place, &mut buffer[at..at + run.length as usize])?;
        }
        Ok(buffer)
    }

    /// Where the bytes of a file of the layer lie.
    pub(super) fn lower_runs(&self, content: &Content) -> Result<Vec<Run>> {
        let segments = content.segments(self.lower().objects())?;
        let runs = segments.into_iter().map(|segment| Run {
            offset: segment.offset,
            length: segment.length,
            place: Place::Blob(segment.source),
        });
        Ok(runs.collect())
    }

    /// Writes `bytes` at `offset` of file `ino`, making it longer where needed. `attrs` makes the
    /// new attributes of the old ones. Writing no bytes does nothing.
    ///
    /// # Errors
    /// [`Error::Quota`], [`Error::Io`] for a full disk, [`Error::TooLarge`] beyond 2^63 - 1 bytes:
    /// then nothing has changed. Another [`Error::Io`]: then some of the bytes may be written.
    /// [`Error::Corrupt`] if there is no such file.
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        let _content = self.data_lock(ino).write();
        self.write_locked(ino, offset, bytes, attrs)
    }

    pub(super) fn write_locked(
        &self,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = checked_end(offset, bytes.len() as u64)?;
        let before = self.before_blocks(ino, offset, end)?;
        if offset > before.size {
            self.clear_tail(ino, before.size, offset)?;
        }
        let mut staged = Staged::default();
        let result = self.stage(&mut staged, &before, offset, bytes);
        let size = (end > before.size).then_some(Record::Size { ino, size: end });
        self.commit(result, &staged, ino, before.own, size, attrs)
    }

    /// Prepares writing `bytes` at `offset`; `before` holds the runs of the blocks there.
    pub(super) fn stage<'b>(
        &self,
        staged: &mut Staged<'b>,
        before: &Before,
        offset: u64,
        bytes: &'b [u8],
    ) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let part = |from: u64, to: u64| &bytes[(from - offset) as usize..(to - offset) as usize];
        let last = end.next_multiple_of(BLOCK);
        let mut goal = before.goal;
        let mut at = offset / BLOCK * BLOCK;
        for run in before.runs.iter().filter(|run| is_arena(run)) {
            let (start, stop) = (run.offset.max(at), run.end().min(last));
            if start >= stop {
                continue;
            }
            if at < start {
                self.stage_new(staged, before, (at, start), (offset, bytes), &mut goal)?;
            }
            let Place::Arena(place) = run.place.advance(start - run.offset) else {
                continue;
            };
            let (from, to) = (start.max(offset), stop.min(end));
            staged
                .in_place
                .push((place + (from - start), part(from, to)));
            goal = Some(place + (stop - start));
            at = stop;
        }
        if at < last {
            self.stage_new(staged, before, (at, last), (offset, bytes), &mut goal)?;
        }
        Ok(())
    }

    /// Takes blocks for `at..stop` and fills them: with the bytes, and around them with what the
    /// file held there. Beyond the end of the file a block's content is undefined.
    fn stage_new(
        &self,
        staged: &mut Staged<'_>,
        before: &Before,
        (at, stop): (u64, u64),
        (offset, bytes): (u64, &[u8]),
        goal: &mut Option<u64>,
    ) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let place = self.arena.take(stop - at, *goal)?;
        staged.taken.push(Run {
            offset: at,
            length: stop - at,
            place: Place::Arena(place),
        });
        *goal = Some(place + (stop - at));
        let (from, to) = (at.max(offset), stop.min(end));
        let part = &bytes[(from - offset) as usize..(to - offset) as usize];
        let kept = stop.min(before.size.max(from));
        if from == at && to >= kept {
            return self.fill(place, part);
        }
        let mut blocks = vec![0; (kept.max(to) - at) as usize];
        for run in &before.runs {
            let (copy_from, copy_to) = (run.offset.max(at), run.end().min(kept));
            let covered = copy_from >= from && copy_to <= to;
            if copy_from < copy_to && !covered {
                let target = &mut blocks[(copy_from - at) as usize..(copy_to - at) as usize];
                self.read_place(run.place.advance(copy_from - run.offset), target)?;
            }
        }
        blocks[(from - at) as usize..(to - at) as usize].copy_from_slice(part);
        self.fill(place, &blocks)
    }

    /// Writes to the arena. The disk may be full, even under blocks that were written before: it
    /// may copy on write.
    fn fill(&self, place: u64, bytes: &[u8]) -> Result<()> {
        self.with_room(|| self.arena.write(place, bytes))
    }

    /// Writes what was staged over the session's own blocks and commits it with `records`; if that,
    /// or the staging (whose result is `staging`), failed, gives the blocks back.
    pub(super) fn commit(
        &self,
        staging: Result<()>,
        staged: &Staged<'_>,
        ino: Ino,
        own: Option<Record>,
        records: impl IntoIterator<Item = Record>,
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        let result = staging.and_then(|()| {
            for (place, bytes) in &staged.in_place {
                self.fill(*place, bytes)?;
            }
            let mut change = self.begin();
            prepare(self, &mut change, ino, own, attrs)?;
            for run in &staged.taken {
                change.push(Record::Run { ino, run: *run });
            }
            for record in records {
                change.push(record);
            }
            change.commit()
        });
        if result.is_err() {
            self.give_back(&staged.taken);
        }
        result
    }

    /// Makes file `ino` `size` bytes long: cuts it, or adds a hole.
    ///
    /// # Errors
    /// As [`Upper::write`].
    pub fn set_size(&self, ino: Ino, size: u64, attrs: impl FnOnce(Attrs) -> Attrs) -> Result<()> {
        checked_end(size, 0)?;
        let _content = self.data_lock(ino).write();
        let before = self.before(ino, 0, 0)?;
        if size > before.size {
            self.clear_tail(ino, before.size, size)?;
        }
        let mut change = self.begin();
        prepare(self, &mut change, ino, before.own, attrs)?;
        if size != before.size {
            change.push(Record::Size { ino, size });
        }
        change.commit()
    }

    /// Makes `start..end` of file `ino` read as zeros, without making it longer: whole blocks
    /// become holes.
    ///
    /// # Errors
    /// As [`Upper::write`].
    pub fn punch(
        &self,
        ino: Ino,
        start: u64,
        end: u64,
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        checked_end(end, 0)?;
        let _content = self.data_lock(ino).write();
        self.punch_locked(ino, start, end, None, attrs)
    }

    /// Punches, and makes the file `size` bytes long in the same step if that is longer.
    pub(super) fn punch_locked(
        &self,
        ino: Ino,
        start: u64,
        end: u64,
        size: Option<u64>,
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        let before = self.before(ino, 0, 0)?;
        let size = size.filter(|size| *size > before.size);
        if let Some(size) = size {
            self.clear_tail(ino, before.size, size)?;
        }
        let end = end.min(before.size.next_multiple_of(BLOCK));
        let (hole_start, hole_end) = (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        let punched = hole_start < hole_end;
        // The ends that are no whole blocks, where anything is stored in them.
        let edges = if punched {
            [
                (start, hole_start.min(before.size)),
                (hole_end, end.min(before.size)),
            ]
        } else {
            [(start, end.min(before.size)), (0, 0)]
        };
        let mut staged = Staged::default();
        let mut result = Ok(());
        for (from, to) in edges {
            if result.is_err() || from >= to || self.before(ino, from, to)?.runs.is_empty() {
                continue;
            }
            let zeros = &ZEROS[..(to - from) as usize];
            result = self.before_blocks(ino, from, to).and_then(|mut around| {
                // A new block is cleared as far as the file will reach.
                around.size = size.unwrap_or(around.size);
                self.stage(&mut staged, &around, from, zeros)
            });
        }
        let hole = punched.then_some(Record::Hole {
            ino,
            start: hole_start,
            end: hole_end,
        });
        let grown = size.map(|size| Record::Size { ino, size });
        let records = hole.into_iter().chain(grown);
        self.commit(result, &staged, ino, before.own, records, attrs)
    }

    /// Reserves disk space for the holes in `start..end` of file `ino`, which read as zeros as
    /// before; makes the file longer if `grow`.
    ///
    /// # Errors
    /// As [`Upper::write`].
    pub fn reserve(
        &self,
        ino: Ino,
        start: u64,
        end: u64,
        grow: bool,
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        checked_end(end, 0)?;
        let _content = self.data_lock(ino).write();
        let before = self.before_blocks(ino, start, end)?;
        if end > before.size && grow {
            self.clear_tail(ino, before.size, end)?;
        }
        let mut staged = Staged::default();
        let result = self.reserve_holes(&mut staged, &before, start, end);
        let size = (grow && end > before.size).then_some(Record::Size { ino, size: end });
        self.commit(result, &staged, ino, before.own, size, attrs)
    }

    fn reserve_holes(
        &self,
        staged: &mut Staged<'_>,
        before: &Before,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let (mut at, last) = (start / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
        for (start, end) in before
            .runs
            .iter()
            .map(|run| (run.offset, run.end()))
            .chain([(last, last)])
        {
            // A blob run may end inside a block, which is not all hole then.
            let start = start / BLOCK * BLOCK;
            if start > at {
                let length = start - at;
                let place = self.arena.take(length, None)?;
                staged.taken.push(Run {
                    offset: at,
                    length,
                    place: Place::Arena(place),
                });
                self.with_room(|| self.arena.clear(place, length))?;
            }
            at = at.max(end.next_multiple_of(BLOCK));
        }
        Ok(())
    }

    /// Where the next data or hole of file `ino` begins at or after `offset`; `None` if `offset` is
    /// not before the end of the file, or no data follows.
    ///
    /// # Errors
    /// As reading an object.
    pub fn seek(&self, ino: Ino, offset: u64, seek: Seek) -> Result<Option<u64>> {
        let before = self.before(ino, offset, u64::MAX)?;
        if offset >= before.size {
            return Ok(None);
        }
        let mut at = offset;
        for run in &before.runs {
            match seek {
                Seek::Data if run.offset < before.size => return Ok(Some(run.offset.max(offset))),
                Seek::Data => return Ok(None),
                Seek::Hole if run.offset > at => break,
                Seek::Hole => at = run.end(),
            }
        }
        Ok(match seek {
            Seek::Data => None,
            Seek::Hole => Some(at.min(before.size)),
        })
    }

    /// Clears what the last block of a file of `size` bytes holds beyond its end, up to `until`, so
    /// that the file can be made longer.
    pub(super) fn clear_tail(&self, ino: Ino, size: u64, until: u64) -> Result<()> {
        let end = size.next_multiple_of(BLOCK).min(until);
        for run in self.before(ino, size, end)?.runs {
            if let Place::Arena(place) = run.place {
                self.fill(place, &ZEROS[..run.length as usize])?;
            }
        }
        Ok(())
    }

    /// What is known of the blocks in which `start..end` lies.
    fn before_blocks(&self, ino: Ino, start: u64, end: u64) -> Result<Before> {
        self.before(ino, start / BLOCK * BLOCK, end.next_multiple_of(BLOCK))
    }

    pub(super) fn before(&self, ino: Ino, start: u64, end: u64) -> Result<Before> {
        let state = self.state();
        let Some(content) = self.lower_content(&state, ino)? else {
            let (size, extents) = own(&state, ino)?;
            let goal = match start
                .checked_sub(1)
                .map(|last| extents.within(last, start))
                .as_deref()
            {
                Some(
                    [
                        Run {
                            place: Place::Arena(at),
                            ..
                        },
                    ],
                ) => Some(at + 1),
                _ => None,
            };
            return Ok(Before {
                size,
                runs: extents.within(start, end),
                own: None,
                goal,
            });
        };
        drop(state);
        let runs = self.lower_runs(&content)?;
        let mut extents = super::Extents::default();
        let mut freed = Vec::new();
        runs.iter().for_each(|run| extents.insert(*run, &mut freed));
        let own = Some(Record::Own {
            ino,
            size: content.size,
            runs,
        });
        Ok(Before {
            size: content.size,
            runs: extents.within(start, end),
            own,
            goal: None,
        })
    }

    fn give_back(&self, taken: &[Run]) {
        let runs: Vec<(u64, u64)> = taken
            .iter()
            .filter_map(|run| match run.place {
                Place::Arena(at) => Some((at, run.length)),
                Place::Blob(_) => None,
            })
            .collect();
        self.arena.free(&runs);
    }
}

fn is_arena(run: &Run) -> bool {
    matches!(run.place, Place::Arena(_))
}

/// The end of `length` bytes from `offset`, if a file can be that long.
pub(super) fn checked_end(offset: u64, length: u64) -> Result<u64> {
    offset
        .checked_add(length)
        .filter(|end| *end <= MAX_FILE)
        .ok_or_else(|| Error::TooLarge {
            what: "the file".to_owned(),
            size: offset.saturating_add(length),
            limit: MAX_FILE,
        })
}

/// Adds the records that every change of content begins with.
pub(super) fn prepare(
    upper: &Upper,
    change: &mut Transaction<'_>,
    ino: Ino,
    own: Option<Record>,
    attrs: impl FnOnce(Attrs) -> Attrs,
) -> Result<()> {
    let old = upper
        .attributes(change.state(), ino)?
        .ok_or_else(|| no_file(ino))?;
    if let Some(record) = upper.copy_up(change.state(), ino)? {
        change.push(record);
    }
    if let Some(own) = own {
        change.push(own);
    }
    let old = Attrs::from(&old);
    let new = attrs(old);
    if new != old {
        change.push(Record::Attrs { ino, attrs: new });
    }
    Ok(())
}

pub(super) fn own(state: &State, ino: Ino) -> Result<(u64, &super::Extents)> {
    match state.inode(ino).map(|inode| &inode.body) {
        Some(InodeBody::File(FileBody::Own { size, extents })) => Ok((*size, extents)),
        _ => Err(no_file(ino)),
    }
}

fn no_file(ino: Ino) -> Error {
    Error::Corrupt {
        what: "a session's changes".to_owned(),
        detail: format!("there is no file {ino}"),
    }
}
