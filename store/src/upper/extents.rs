//! How the content of one changed file lies: runs of bytes from the arena or from blobs.
//!
//! Runs do not overlap; what lies between them is a hole. Arena runs begin and end at block
//! boundaries, in the file as in the arena; blob runs begin and end anywhere. What an arena block
//! holds beyond the end of the file is undefined: whoever makes the file longer clears it first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BLOCK;
use crate::content::Source;

/// Where the bytes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// In the session's arena, at this byte.
    Arena(u64),
    /// In an immutable blob.
    Blob(Source),
}

impl Place {
    /// The place `count` bytes further.
    #[must_use]
    pub fn advance(self, count: u64) -> Place {
        match self {
            Place::Arena(offset) => Place::Arena(offset + count),
            Place::Blob(source) => Place::Blob(Source {
                offset: source.offset + count,
                ..source
            }),
        }
    }
}

/// A run of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// Its bytes; not 0.
    pub length: u64,
    /// Where the bytes are.
    pub place: Place,
}

impl Run {
    /// The byte after its last.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// The runs of one file, by offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(BTreeMap<u64, (u64, Place)>);

impl Extents {
    /// All runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = Run> {
        self.0.iter().map(|(&offset, &(length, place))| Run {
            offset,
            length,
            place,
        })
    }

    /// The parts of runs that lie in `start..end`, in order.
    pub fn within(&self, start: u64, end: u64) -> Vec<Run> {
        let first = self
            .0
            .range(..=start)
            .next_back()
            .map_or(start, |(&offset, _)| offset);
        self.0
            .range(first..end.max(first))
            .filter_map(|(&offset, &(length, place))| {
                let from = offset.max(start);
                let to = (offset + length).min(end);
                (from < to).then(|| Run {
                    offset: from,
                    length: to - from,
                    place: place.advance(from - offset),
                })
            })
            .collect()
    }

    /// Puts `run` in, over whatever was there; arena space that is no longer used goes to `freed`.
    pub(super) fn insert(&mut self, run: Run, freed: &mut Vec<(u64, u64)>) {
        self.remove(run.offset, run.end(), freed);
        let Run {
            mut offset,
            mut length,
            mut place,
        } = run;
        if let Some((&before, &(before_length, before_place))) = self.0.range(..offset).next_back()
            && before + before_length == offset
            && before_place.advance(before_length) == place
        {
            self.0.remove(&before);
            (offset, length, place) = (before, before_length + length, before_place);
        }
        if let Some(&(after_length, after_place)) = self.0.get(&(offset + length))
            && place.advance(length) == after_place
        {
            self.0.remove(&(offset + length));
            length += after_length;
        }
        self.0.insert(offset, (length, place));
    }

    /// Makes `start..end` a hole.
    pub(super) fn remove(&mut self, start: u64, end: u64, freed: &mut Vec<(u64, u64)>) {
        if start >= end {
            return;
        }
        for part in self.within(start, end) {
            // The run that the part is of; it may begin before the part.
            let (&offset, &(length, place)) = self
                .0
                .range(..=part.offset)
                .next_back()
                .expect("a part lies in a run");
            self.0.remove(&offset);
            if offset < part.offset {
                self.0.insert(offset, (part.offset - offset, place));
            }
            if part.end() < offset + length {
                self.0.insert(
                    part.end(),
                    (
                        offset + length - part.end(),
                        place.advance(part.end() - offset),
                    ),
                );
            }
            if let Place::Arena(at) = part.place {
                debug_assert!(
                    at % BLOCK == 0 && part.length % BLOCK == 0,
                    "arena space is freed in blocks"
                );
                freed.push((at, part.length));
            }
        }
    }

    /// Cuts everything from byte `size` on. The block of the arena that `size` lies in is kept.
    pub(super) fn cut(&mut self, size: u64, freed: &mut Vec<(u64, u64)>) {
        let kept = size.next_multiple_of(BLOCK);
        self.remove(kept, u64::MAX, freed);
        for part in self.within(size, kept) {
            if let Place::Blob(_) = part.place {
                self.remove(part.offset, part.end(), freed);
            }
        }
    }

    /// Bytes in runs.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|(length, _)| length).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digest::Digest;

    /// What each byte of a small file is: nothing, byte n of the arena, or byte n of the blob.
    type Model = Vec<Option<Place>>;
    const BYTES: u64 = 16 * BLOCK;

    #[derive(Clone, Debug)]
    enum Op {
        Arena { block: u64, blocks: u64 },
        Blob { offset: u64, length: u64 },
        Hole { block: u64, blocks: u64 },
        Cut(u64),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (0u64..16, 1u64..5).prop_map(|(block, blocks)| Op::Arena {
                block,
                blocks: blocks.min(16 - block)
            }),
            (0u64..16, 1u64..20_000).prop_map(|(block, length)| Op::Blob {
                offset: block * BLOCK,
                length: length.min(BYTES - block * BLOCK)
            }),
            (0u64..16, 1u64..5).prop_map(|(block, blocks)| Op::Hole {
                block,
                blocks: blocks.min(16 - block)
            }),
            (0..BYTES).prop_map(Op::Cut),
        ];
        proptest::collection::vec(op, 0..25)
    }

    fn blob(offset: u64) -> Place {
        Place::Blob(Source {
            blob: Digest::empty(),
            offset,
        })
    }

    proptest! {
        #[test]
        fn runs_say_where_each_byte_is(ops in ops()) {
            let mut extents = Extents::default();
            let mut model: Model = vec![None; BYTES as usize];
            let mut arena_end = 0;
            let mut live = std::collections::BTreeSet::new();
            for op in ops {
                let mut freed = Vec::new();
                match op {
                    Op::Arena { block, blocks } => {
                        let run = Run { offset: block * BLOCK, length: blocks * BLOCK, place: Place::Arena(arena_end) };
                        extents.insert(run, &mut freed);
                        for byte in 0..run.length {
                            model[(run.offset + byte) as usize] = Some(run.place.advance(byte));
                        }
                        live.extend((0..blocks).map(|index| arena_end + index * BLOCK));
                        arena_end += run.length;
                    }
                    Op::Blob { offset, length } => {
                        // Over an arena block only whole: as the data path does it.
                        let whole = extents.within(offset + length, (offset + length).next_multiple_of(BLOCK))
                            .iter().any(|run| matches!(run.place, Place::Arena(_)));
                        let length = if whole { length / BLOCK * BLOCK } else { length };
                        if length == 0 { continue; }
                        extents.insert(Run { offset, length, place: blob(7 + offset) }, &mut freed);
                        for byte in offset..offset + length {
                            model[byte as usize] = Some(blob(7 + byte));
                        }
                    }
                    Op::Hole { block, blocks } => {
                        extents.remove(block * BLOCK, (block + blocks) * BLOCK, &mut freed);
                        model[(block * BLOCK) as usize..((block + blocks) * BLOCK) as usize].fill(None);
                    }
                    Op::Cut(size) => {
                        extents.cut(size, &mut freed);
                        for byte in size..BYTES {
                            let kept = byte < size.next_multiple_of(BLOCK)
                                && matches!(model[byte as usize], Some(Place::Arena(_)));
                            if !kept {
                                model[byte as usize] = None;
                            }
                        }
                    }
                }
                for (at, length) in freed {
                    for block in (at..at + length).step_by(BLOCK as usize) {
                        prop_assert!(live.remove(&block), "block {} freed twice", block);
                    }
                }
                let mut seen: Model = vec![None; BYTES as usize];
                let mut end = 0;
                for run in extents.iter() {
                    prop_assert!(run.offset >= end && run.length > 0);
                    end = run.end();
                    for byte in 0..run.length {
                        seen[(run.offset + byte) as usize] = Some(run.place.advance(byte));
                    }
                }
                prop_assert!(seen == model);
                let used: std::collections::BTreeSet<u64> = model.iter().flatten().filter_map(|place| match place {
                    Place::Arena(at) => Some(at / BLOCK * BLOCK),
                    Place::Blob(_) => None,
                }).collect();
                prop_assert_eq!(&used, &live, "arena blocks are neither lost nor kept");
            }
        }
    }
}
