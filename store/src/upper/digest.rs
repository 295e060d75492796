//! The digest of a file as a session has it.
//!
//! Of a large file that lies like the base's, but for some blocks, only the groups in which those are
//! are read and hashed; holes are neither.

use super::Upper;
use super::data::own;
use super::extents::{Place, Run};
use crate::content::{self, Content};
use crate::digest::Digest;
use crate::error::Result;
use crate::groups::{GROUP_BYTES, GroupHasher, Groups, PLAIN_MAX};
use crate::node::{Ino, Node};

impl Upper {
    /// The digest of the content of file `ino`: without reading it, if the session has not changed
    /// it.
    ///
    /// # Errors
    /// As [`Upper::read`].
    pub fn digest(&self, ino: Ino) -> Result<Digest> {
        let _content = self.data_lock(ino).read();
        let state = self.state();
        if let Some(content) = self.lower_content(&state, ino)? {
            return Ok(content.digest);
        }
        let (size, extents) = own(&state, ino)?;
        let runs = extents.within(0, size);
        drop(state);
        let base = self.lower().node(ino)?;
        self.hash(size, &runs, base.as_ref().and_then(Node::content))
    }

    /// The digest of content of `size` bytes that lies so. `base` is what it may have most in common
    /// with.
    pub(super) fn hash(&self, size: u64, runs: &[Run], base: Option<&Content>) -> Result<Digest> {
        let known = self.lower().objects().groups();
        let (digest, groups) = match base
            .and_then(|base| Some((base, known.get(&base.digest, base.size)?)))
        {
            Some((base, groups)) if size > GROUP_BYTES => {
                self.hash_changed(size, runs, base, &groups)?
            }
            _ => {
                let places = runs.iter().map(|run| (run.offset, run.length, run.place));
                let read = |place: Place, at, buffer: &mut [u8]| {
                    self.read_place(place.advance(at), buffer)
                };
                content::hash_segments(size, places, &|| false, read)?.expect("it is not stopped")
            }
        };
        known.keep(digest, size, groups);
        Ok(digest)
    }

    fn hash_changed(
        &self,
        size: u64,
        runs: &[Run],
        base: &Content,
        groups: &Groups,
    ) -> Result<(Digest, Groups)> {
        let before = self.lower_runs(base)?;
        let mut hasher = GroupHasher::new(size);
        let mut buffer = vec![0; GROUP_BYTES as usize];
        let mut hash_group = |number: u64| -> Result<()> {
            let start = number * GROUP_BYTES;
            let end = size.min(start + GROUP_BYTES);
            hasher.zeros_to(start);
            let now = within(runs, start, end);
            let same =
                end == base.size.min(start + GROUP_BYTES) && now == within(&before, start, end);
            if same && let Some(known) = groups.get(number, size) {
                hasher.update_known(known);
                return Ok(());
            }
            let part = &mut buffer[..(end - start) as usize];
            part.fill(0);
            for run in now {
                let at = (run.offset - start) as usize;
                self.read_place(run.place, &mut part[at..at + run.length as usize])?;
            }
            hasher.update(part);
            Ok(())
        };
        if size <= PLAIN_MAX {
            // The values of holes are known, too.
            (0..size.div_ceil(GROUP_BYTES)).try_for_each(&mut hash_group)?;
        } else {
            let mut next = 0;
            for run in runs {
                let first = next.max(run.offset / GROUP_BYTES);
                next = run.end().div_ceil(GROUP_BYTES).max(next);
                (first..next).try_for_each(&mut hash_group)?;
            }
        }
        Ok(hasher.finish())
    }
}

/// The parts of runs, which are in order, that lie in `start..end`.
fn within(runs: &[Run], start: u64, end: u64) -> Vec<Run> {
    let first = runs.partition_point(|run| run.end() <= start);
    let mut parts: Vec<Run> = Vec::new();
    for run in runs[first..].iter().take_while(|run| run.offset < end) {
        let from = run.offset.max(start);
        let part = Run {
            offset: from,
            length: run.end().min(end) - from,
            place: run.place.advance(from - run.offset),
        };
        // A run that was cut and is whole again is one.
        match parts.last_mut() {
            Some(last) if last.end() == from && last.place.advance(last.length) == part.place => {
                last.length += part.length;
            }
            _ => parts.push(part),
        }
    }
    parts
}
