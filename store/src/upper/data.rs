//! Reading and writing the content of files, block by block.
//!
//! The first write to a block of a file of the layer copies that block and no other. Blocks are
//! written to the arena before the journal says that they are there; what a crash leaves in
//! between is free space.

use super::extents::{Place, Run};
use super::state::{Attrs, FileBody, InodeBody, Record, State};
use super::{BLOCK, Transaction, Upper, stripe};
use crate::error::{Error, Result};
use crate::node::Ino;

/// What is known of a file before its content changes.
struct Before {
    size: u64,
    /// The parts of its runs that lie in the range asked for.
    runs: Vec<Run>,
    /// The record that makes the content the session's own, if it is not yet.
    own: Option<Record>,
    /// Where the arena run that ends at the range's start ends, so that the next one can follow it.
    goal: Option<u64>,
}

/// How the data of `SEEK_DATA` and `SEEK_HOLE` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not.
    Hole,
}

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

    /// Writes `bytes` at `offset` of file `ino`, making it longer where needed. `attrs` makes the
    /// new attributes of the old ones.
    ///
    /// # Errors
    /// [`Error::Quota`], [`Error::Io`] (a full disk among them): then no byte beyond what lay in
    /// the session's own blocks already has changed. [`Error::Corrupt`] if there is no such file.
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

    fn write_locked(
        &self,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let first = offset / BLOCK * BLOCK;
        let last = end.next_multiple_of(BLOCK);
        let before = self.before(ino, first, last)?;
        if offset > before.size {
            self.clear_tail(ino, before.size, offset)?;
        }
        let mut taken = Vec::new();
        let result = self.write_blocks(offset, bytes, &before, (first, last), &mut taken);
        let result = result.and_then(|()| {
            let mut change = self.begin();
            prepare(self, &mut change, ino, before.own, attrs)?;
            for run in &taken {
                change.push(Record::Run { ino, run: *run });
            }
            if end > before.size {
                change.push(Record::Size { ino, size: end });
            }
            change.commit()
        });
        if result.is_err() {
            self.give_back(&taken);
        }
        result
    }

    /// Writes the bytes in place where the session has blocks, and to new blocks where it has not;
    /// those are added to `taken`.
    fn write_blocks(
        &self,
        offset: u64,
        bytes: &[u8],
        before: &Before,
        (first, last): (u64, u64),
        taken: &mut Vec<Run>,
    ) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let part = |from: u64, to: u64| &bytes[(from - offset) as usize..(to - offset) as usize];
        let mut goal = before.goal;
        let mut at = first;
        while at < last {
            let own = before
                .runs
                .iter()
                .find(|run| run.offset <= at && at < run.end() && is_arena(run));
            if let Some(run) = own {
                let Place::Arena(place) = run.place.advance(at - run.offset) else {
                    unreachable!("an arena run")
                };
                let stop = run.end().min(last);
                let (from, to) = (at.max(offset), stop.min(end));
                self.arena.write(place + (from - at), part(from, to))?;
                goal = Some(place + (stop - at));
                at = stop;
                continue;
            }
            let next = before
                .runs
                .iter()
                .filter(|run| is_arena(run) && run.offset > at)
                .map(|run| run.offset);
            let stop = next.min().unwrap_or(last).min(last);
            let place = self.arena.take(stop - at, goal)?;
            taken.push(Run {
                offset: at,
                length: stop - at,
                place: Place::Arena(place),
            });
            goal = Some(place + (stop - at));
            let (from, to) = (at.max(offset), stop.min(end));
            // What the edge blocks held before, up to the old end of the file: beyond it a block's
            // content is undefined.
            let kept = stop.min(before.size.max(from));
            if from == at && to >= kept {
                self.arena.write(place, part(from, to))?;
            } else {
                let mut block = vec![0; (kept.max(to) - at) as usize];
                for run in before
                    .runs
                    .iter()
                    .filter(|run| run.offset < kept && run.end() > at)
                {
                    let (copy_from, copy_to) = (run.offset.max(at), run.end().min(kept));
                    if copy_from >= from && copy_to <= to {
                        continue;
                    }
                    let target = &mut block[(copy_from - at) as usize..(copy_to - at) as usize];
                    self.read_place(run.place.advance(copy_from - run.offset), target)?;
                }
                block[(from - at) as usize..(to - at) as usize].copy_from_slice(part(from, to));
                self.arena.write(place, &block)?;
            }
            at = stop;
        }
        Ok(())
    }

    /// Makes file `ino` `size` bytes long: cuts it, or adds a hole.
    ///
    /// # Errors
    /// As [`Upper::write`].
    pub fn set_size(&self, ino: Ino, size: u64, attrs: impl FnOnce(Attrs) -> Attrs) -> Result<()> {
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
        let _content = self.data_lock(ino).write();
        let size = self.before(ino, 0, 0)?.size;
        let end = end.min(size.next_multiple_of(BLOCK));
        let keep = |attrs| attrs;
        let (hole_start, hole_end) = (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        // The ends that are no whole blocks, where anything is stored in them.
        let edges = if hole_start >= hole_end {
            [(start, end.min(size)), (0, 0)]
        } else {
            [(start, hole_start.min(size)), (hole_end, end.min(size))]
        };
        for (from, to) in edges {
            if from < to && !self.before(ino, from, to)?.runs.is_empty() {
                self.write_locked(ino, from, &vec![0; (to - from) as usize], keep)?;
            }
        }
        let before = self.before(ino, 0, 0)?;
        let mut change = self.begin();
        prepare(self, &mut change, ino, before.own, attrs)?;
        if hole_start < hole_end {
            change.push(Record::Hole {
                ino,
                start: hole_start,
                end: hole_end,
            });
        }
        change.commit()
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
        let _content = self.data_lock(ino).write();
        let (first, last) = (start / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
        let before = self.before(ino, first, last)?;
        if end > before.size && grow {
            self.clear_tail(ino, before.size, end)?;
        }
        let mut taken = Vec::new();
        let result = self
            .reserve_holes(&before, (first, last), &mut taken)
            .and_then(|()| {
                let mut change = self.begin();
                prepare(self, &mut change, ino, before.own, attrs)?;
                for run in &taken {
                    change.push(Record::Run { ino, run: *run });
                }
                if grow && end > before.size {
                    change.push(Record::Size { ino, size: end });
                }
                change.commit()
            });
        if result.is_err() {
            self.give_back(&taken);
        }
        result
    }

    fn reserve_holes(
        &self,
        before: &Before,
        (first, last): (u64, u64),
        taken: &mut Vec<Run>,
    ) -> Result<()> {
        let mut at = first;
        for (start, end) in before
            .runs
            .iter()
            .map(|run| (run.offset, run.end()))
            .chain([(last, last)])
        {
            // A blob run may end inside a block, which is not all hole then.
            if start / BLOCK * BLOCK > at {
                let length = start / BLOCK * BLOCK - at;
                let place = self.arena.take(length, None)?;
                taken.push(Run {
                    offset: at,
                    length,
                    place: Place::Arena(place),
                });
                self.arena.clear(place, length)?;
            }
            at = at.max(end.next_multiple_of(BLOCK));
        }
        Ok(())
    }

    /// Copies `length` bytes between files, or within one where the ranges do not overlap; content
    /// of blobs is referred to, not copied, where the blocks line up. Returns how many bytes there
    /// were to copy.
    ///
    /// # Errors
    /// As [`Upper::write`].
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
        let source = self.before(from, 0, 0)?;
        let length = length.min(source.size.saturating_sub(from_offset));
        if length == 0 {
            return Ok(0);
        }
        let aligned = from_offset.is_multiple_of(BLOCK) && to_offset.is_multiple_of(BLOCK);
        let source = self.before(from, from_offset, from_offset + length)?;
        let target_size = self.before(to, 0, 0)?.size;
        if to_offset > target_size {
            self.clear_tail(to, target_size, to_offset)?;
        }
        let mut shared = Vec::new();
        let keep = |attrs| attrs;
        for (index, run) in source.runs.iter().enumerate() {
            let offset = run.offset - from_offset + to_offset;
            // A blob's run may take the place of a block only if nothing else is to be in it.
            let end = offset + run.length;
            let next = source
                .runs
                .get(index + 1)
                .map(|next| next.offset - from_offset + to_offset);
            let alone =
                end >= target_size && next.is_none_or(|next| next >= end.next_multiple_of(BLOCK));
            let whole = if alone {
                run.length
            } else {
                run.length / BLOCK * BLOCK
            };
            let whole =
                if aligned && matches!(run.place, Place::Blob(_)) && offset.is_multiple_of(BLOCK) {
                    whole
                } else {
                    0
                };
            if whole > 0 {
                shared.push(Run {
                    offset,
                    length: whole,
                    place: run.place,
                });
            }
            let mut done = whole;
            while done < run.length {
                let part = (run.length - done).min(COPY_BYTES);
                let mut buffer = vec![0; part as usize];
                self.read_place(run.place.advance(done), &mut buffer)?;
                self.write_locked(to, offset + done, &buffer, keep)?;
                done += part;
            }
        }
        self.finish_copy(
            to,
            to_offset,
            length,
            &source.runs,
            from_offset,
            shared,
            attrs,
        )?;
        Ok(length)
    }

    /// Puts the shared runs in, clears what is a hole in the source, and sets size and attributes.
    #[allow(
        clippy::too_many_arguments,
        reason = "one step of copy_range, split off for its length"
    )]
    fn finish_copy(
        &self,
        to: Ino,
        to_offset: u64,
        length: u64,
        runs: &[Run],
        from_offset: u64,
        shared: Vec<Run>,
        attrs: impl FnOnce(Attrs) -> Attrs,
    ) -> Result<()> {
        let size = self.before(to, 0, 0)?.size;
        let keep = |attrs| attrs;
        let mut at = from_offset;
        let end = from_offset + length;
        for (start, stop) in runs
            .iter()
            .map(|run| (run.offset, run.end()))
            .chain([(end, end)])
        {
            // A hole of the source over data of the target becomes zeros there.
            let (hole_start, hole_end) = (
                at - from_offset + to_offset,
                start - from_offset + to_offset,
            );
            let hole_end = hole_end.min(size);
            if hole_start < hole_end && !self.before(to, hole_start, hole_end)?.runs.is_empty() {
                for from in (hole_start..hole_end).step_by(COPY_BYTES as usize) {
                    let part = (hole_end - from).min(COPY_BYTES);
                    self.write_locked(to, from, &vec![0; part as usize], keep)?;
                }
            }
            at = stop;
        }
        let before = self.before(to, 0, 0)?;
        let new_size = to_offset + length;
        let mut change = self.begin();
        prepare(self, &mut change, to, before.own, attrs)?;
        for run in shared {
            // An arena block at the end of the target goes as a whole.
            let stop = run.end().next_multiple_of(BLOCK);
            change.push(Record::Hole {
                ino: to,
                start: run.offset,
                end: stop,
            });
            change.push(Record::Run { ino: to, run });
        }
        if new_size > before.size {
            change.push(Record::Size {
                ino: to,
                size: new_size,
            });
        }
        change.commit()
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
    fn clear_tail(&self, ino: Ino, size: u64, until: u64) -> Result<()> {
        let end = size.next_multiple_of(BLOCK).min(until);
        for run in self.before(ino, size, end)?.runs {
            if let Place::Arena(place) = run.place {
                self.arena.write(place, &vec![0; run.length as usize])?;
            }
        }
        Ok(())
    }

    fn before(&self, ino: Ino, start: u64, end: u64) -> Result<Before> {
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
        let runs: Vec<Run> = content
            .segments(self.lower().objects())?
            .into_iter()
            .map(|segment| Run {
                offset: segment.offset,
                length: segment.length,
                place: Place::Blob(segment.source),
            })
            .collect();
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

/// Bytes copied at a time where content cannot be shared.
const COPY_BYTES: u64 = 1 << 20;

fn is_arena(run: &Run) -> bool {
    matches!(run.place, Place::Arena(_))
}

/// Adds the records that every change of content begins with.
fn prepare(
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

fn own(state: &State, ino: Ino) -> Result<(u64, &super::Extents)> {
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
