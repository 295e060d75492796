//! Blame: who brought each line in.
//!
//! For each published version of a text file the store keeps *owner runs* that tile its lines: how
//! many lines, and the revision of the layer that brought them in. A file that no publish has
//! changed has no runs: its lines are the base's. Runs are kept by stack, path and content digest,
//! so they outlive the layer they came with, a squash, and a deletion.
//!
//! A binary file has one run of 0 lines, which names the owner of the whole.
//!
//! The key is the stack (64 bits big-endian), the path, a NUL, the 32-byte digest and the revision
//! (64 bits big-endian) of the layer that they came with: content may come back, by another hand.
//! The value is postcard of the runs. The commands of a layer's publisher that are known to have
//! brought lines in are listed beside its record.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::db::{self, DbBatch, key};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layer::{LayerId, LayerKind, LayerRecord, Owner};
use crate::lower::Lower;
use crate::merge::Origin;
use crate::name::RelPath;
use crate::node::{Kind, Node};
use crate::stack::{Stack, StackId};
use crate::text::{Interner, MAX_TEXT, changes, is_text, line_count, lines};
use crate::upper::Upper;
use crate::writers::{Lines, Writers};

/// A run names the layer that brought its lines in by the lower bits of a number, its revision, and
/// the command of that layer by the upper ones: 0 if it is not known, otherwise its place in the
/// layer's list, from 1.
const REVISION_BITS: u32 = 40;
/// Commands of a layer that can be told apart; further ones are not known.
const MAX_COMMANDS: usize = (1 << (u64::BITS - REVISION_BITS)) - 1;
/// Revision that stands for lines of a session that are not published.
const UNPUBLISHED: u64 = (1 << REVISION_BITS) - 1;
/// Revision of the base, whose lines are the original ones.
const BASE: u64 = 1;

/// A run of lines of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlameRun {
    /// The first line, from 1.
    pub start: u64,
    /// How many lines; 0 in a file that is not text.
    pub count: u64,
    /// Who brought them in.
    pub owner: Owner,
    /// The layer that did; `None` for lines that are not published and for an unknown owner.
    pub layer: Option<LayerRecord>,
    /// The owner's command that did, where it is known.
    pub command: Option<String>,
}

/// Who wrote a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBlame {
    /// The content that the runs tile.
    pub digest: Digest,
    /// Whether it is text.
    pub text: bool,
    /// Its lines; 0 if it is not text.
    pub lines: u64,
    /// The runs, in order, without gaps.
    pub runs: Vec<BlameRun>,
}

/// Lines of one owner, as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    count: u64,
    revision: u64,
}

/// Owner runs of a text, or of a whole binary file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runs(Vec<Run>);

impl Runs {
    /// `count` lines of one owner.
    pub(crate) fn all(count: u64, revision: u64) -> Runs {
        let mut runs = Runs::default();
        runs.push(count, revision);
        runs
    }

    /// The one run of a file that is not text.
    pub(crate) fn whole(revision: u64) -> Runs {
        Runs(vec![Run { count: 0, revision }])
    }

    fn push(&mut self, count: u64, revision: u64) {
        match self.0.last_mut() {
            _ if count == 0 => {}
            Some(last) if last.revision == revision => last.count += count,
            _ => self.0.push(Run { count, revision }),
        }
    }

    /// Adds the owners of lines `start..end` of `from`.
    fn copy(&mut self, from: &Runs, start: u64, end: u64) {
        let mut at = 0;
        for run in &from.0 {
            let (first, last) = (at.max(start), (at + run.count).min(end));
            if first < last {
                self.push(last - first, run.revision);
            }
            at += run.count;
        }
    }

    /// The same with the commands that brought in what is `revision`'s, as far as `lines`, which are
    /// those of this very text, tell. Commands that are not in `commands` yet are added.
    pub(crate) fn with_commands(
        &self,
        revision: u64,
        lines: &Lines,
        commands: &mut Vec<String>,
    ) -> Runs {
        let mut runs = Runs::default();
        let mut writers = lines.runs.0.iter();
        let (mut writer, mut left) = (0, 0);
        for run in &self.0 {
            let mut count = run.count;
            while count > 0 {
                while left == 0 {
                    match writers.next() {
                        Some(next) => (writer, left) = (next.revision, next.count),
                        // They tile the same text.
                        None => (writer, left) = (0, count),
                    }
                }
                let part = count.min(left);
                let command = (writer as usize)
                    .checked_sub(1)
                    .filter(|_| run.revision == revision)
                    .and_then(|index| lines.commands.get(index));
                runs.push(part, revision_of(run.revision, command, commands));
                (count, left) = (count - part, left - part);
            }
        }
        runs
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|run| run.count).sum()
    }

    /// The owners of `new`, made of `old` (whose owners these are): a line that is in both keeps
    /// its owner, the others are `revision`'s.
    pub(crate) fn edited(&self, old: &[u8], new: &[u8], revision: u64) -> Runs {
        let (old, new) = (lines(old), lines(new));
        let mut interner = Interner::default();
        let (old_numbers, new_numbers) = (interner.intern(&old), interner.intern(&new));
        let mut runs = Runs::default();
        let mut at = 0;
        for change in changes(&old_numbers, &new_numbers) {
            runs.copy(self, at, change.old.start as u64);
            runs.push(change.new.len() as u64, revision);
            at = change.old.end as u64;
        }
        runs.copy(self, at, old.len() as u64);
        runs
    }

    /// The owners of a merged text: of the head's lines these, of mine those that `mine` says.
    pub(crate) fn merged(&self, mine: &Runs, origins: &[Origin]) -> Runs {
        let mut runs = Runs::default();
        for origin in origins {
            match origin {
                Origin::Head(range) => runs.copy(self, range.start as u64, range.end as u64),
                Origin::Mine(range) => runs.copy(mine, range.start as u64, range.end as u64),
            }
        }
        runs
    }
}

/// A revision with a command, which is added to `commands` if it is new there.
fn revision_of(revision: u64, command: Option<&String>, commands: &mut Vec<String>) -> u64 {
    let Some(command) = command else {
        return revision;
    };
    let index = match commands.iter().position(|known| known == command) {
        Some(index) => index,
        None if commands.len() == MAX_COMMANDS => return revision,
        None => {
            commands.push(command.clone());
            commands.len() - 1
        }
    };
    revision | (index as u64 + 1) << REVISION_BITS
}

/// Finds and keeps the owner runs of one stack.
pub(crate) struct Owners<'a> {
    stack: &'a Stack,
}

impl<'a> Owners<'a> {
    pub(crate) fn new(stack: &'a Stack) -> Self {
        Owners { stack }
    }

    /// The runs of the file with this content at `path` of the layer of `revision`. `bytes` is that
    /// content if it is text.
    pub(crate) fn find(
        &self,
        path: &RelPath,
        content: &Content,
        bytes: Option<&[u8]>,
        revision: u64,
    ) -> Result<Runs> {
        let key = |revision| run_key(self.stack.id(), path, &content.digest, revision);
        let lines = bytes.map(line_count);
        let newest = self
            .stack
            .db()
            .blame
            .range(key(0)..=key(revision))
            .next_back();
        let runs = match newest {
            // Nothing has published this version here, so it is the base's.
            None => {
                return Ok(lines.map_or_else(|| Runs::whole(BASE), |lines| Runs::all(lines, BASE)));
            }
            Some(found) => Runs(db::decode(
                &format!("the owners of {path}"),
                &found.value()?,
            )?),
        };
        if lines.is_some_and(|lines| lines != runs.total()) {
            return Err(Error::Corrupt {
                what: format!("the owners of {path}"),
                detail: format!(
                    "they have {} lines, the file {}",
                    runs.total(),
                    lines.unwrap_or(0)
                ),
            });
        }
        Ok(runs)
    }

    /// Keeps the runs of the file with this content at `path` of the layer of `revision`.
    pub(crate) fn keep(
        &self,
        batch: &mut DbBatch,
        path: &RelPath,
        digest: &Digest,
        revision: u64,
        runs: &Runs,
    ) {
        batch.insert(
            &self.stack.db().blame,
            &run_key(self.stack.id(), path, digest, revision),
            &db::encode(&runs.0),
        );
    }
}

fn run_key(stack: StackId, path: &RelPath, digest: &Digest, revision: u64) -> Vec<u8> {
    key(&[
        &stack.0.to_be_bytes(),
        path.as_bytes(),
        &[0],
        digest.as_bytes(),
        &revision.to_be_bytes(),
    ])
}

/// What an entry of the database tells: the path, the content, and how many lines its runs have.
pub(crate) fn decode_entry(key: &[u8], value: &[u8]) -> Result<(RelPath, Digest, u64)> {
    let damaged = |detail: &str| Error::Corrupt {
        what: format!("the owners at {}", key.escape_ascii()),
        detail: detail.to_owned(),
    };
    // Stack, path, NUL, digest, revision.
    let end = key.len().checked_sub(1 + 32 + 8).filter(|end| *end >= 8);
    let end = end.ok_or_else(|| damaged("the key is too short"))?;
    let path = RelPath::parse(&key[8..end]).map_err(|_| damaged("the key has no path"))?;
    let digest = <[u8; 32]>::try_from(&key[end + 1..end + 33]);
    let digest = digest.map_err(|_| damaged("the key has no digest"))?;
    let runs = Runs(db::decode(&format!("the owners of {path}"), value)?);
    Ok((path, Digest::from_bytes(digest), runs.total()))
}

impl Stack {
    /// Who wrote the file at `path` of a layer.
    ///
    /// # Errors
    /// [`Error::NoPath`] if there is no such file, [`Error::NoLayer`], or as reading an object.
    pub fn blame(&self, layer: LayerId, path: &RelPath) -> Result<FileBlame> {
        let record = self.layer(layer)?;
        let lower = self.store().lower(&record.root)?;
        let content = file_at(&lower, path)?;
        let bytes = text_of(&lower, &content)?;
        let runs = Owners::new(self).find(path, &content, bytes.as_deref(), layer.revision)?;
        self.show(content.digest, bytes.is_some(), runs, None)
    }

    /// Who wrote the file at `path` as the session of `upper` has it now: `bytes`. Lines that the
    /// session changed are `owner`'s; if it moved the file, the others keep the owners that they had
    /// where it was.
    ///
    /// # Errors
    /// As [`Stack::blame`].
    pub fn blame_live(
        &self,
        upper: &Upper,
        path: &RelPath,
        bytes: &[u8],
        owner: Owner,
    ) -> Result<FileBlame> {
        let (layer, lower) = (upper.lease().base, upper.lower());
        let digest = Digest::of(bytes);
        let from = moved_from(upper, path)?;
        let path = from.as_ref().unwrap_or(path);
        let base = match lower.node_at(path)? {
            Some(node) if node.kind() == Kind::File => node.content().copied(),
            _ => None,
        };
        let runs = match base {
            Some(content) if content.digest == digest => {
                let text = text_of(lower, &content)?;
                Owners::new(self).find(path, &content, text.as_deref(), layer.revision)?
            }
            Some(content) if is_text(bytes) => match text_of(lower, &content)? {
                Some(old) => Owners::new(self)
                    .find(path, &content, Some(&old), layer.revision)?
                    .edited(&old, bytes, UNPUBLISHED),
                None => Runs::all(line_count(bytes), UNPUBLISHED),
            },
            None if is_text(bytes) => Runs::all(line_count(bytes), UNPUBLISHED),
            Some(_) | None => Runs::whole(UNPUBLISHED),
        };
        let mut commands = Vec::new();
        let writers = Writers::of(self, upper.lease().id)?;
        let runs = match writers.get(&digest) {
            Some(lines) if is_text(bytes) => runs.with_commands(UNPUBLISHED, lines, &mut commands),
            _ => runs,
        };
        self.show(digest, is_text(bytes), runs, Some((owner, commands)))
    }

    fn whose(&self, revision: u64) -> Result<Whose> {
        let (owner, layer) = match self.layer_at(revision)? {
            Some(layer) if layer.id.kind == LayerKind::Base => (Owner::Original, Some(layer)),
            Some(layer) => (layer.owner.clone(), Some(layer)),
            None => (Owner::Unknown, None),
        };
        Ok(Whose {
            owner,
            layer,
            commands: self.layer_commands(revision)?,
        })
    }

    fn show(
        &self,
        digest: Digest,
        text: bool,
        runs: Runs,
        live: Option<(Owner, Vec<String>)>,
    ) -> Result<FileBlame> {
        let mut shown = Vec::with_capacity(runs.0.len());
        // A layer's lines are mostly in several runs.
        let mut known: FxHashMap<u64, Whose> = FxHashMap::default();
        if let Some((owner, commands)) = live {
            let whose = Whose {
                owner,
                layer: None,
                commands,
            };
            known.insert(UNPUBLISHED, whose);
        }
        let mut start = 1;
        for run in &runs.0 {
            let revision = run.revision & UNPUBLISHED;
            let whose = match known.entry(revision) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(place) => place.insert(self.whose(revision)?),
            };
            let command = (run.revision >> REVISION_BITS).checked_sub(1);
            shown.push(BlameRun {
                start,
                count: run.count,
                owner: whose.owner.clone(),
                layer: whose.layer.clone(),
                command: command.and_then(|index| whose.commands.get(index as usize).cloned()),
            });
            start += run.count;
        }
        Ok(FileBlame {
            digest,
            text,
            lines: runs.total(),
            runs: shown,
        })
    }
}

/// Whose lines are that came with one layer.
struct Whose {
    owner: Owner,
    layer: Option<LayerRecord>,
    /// The commands that are known to have brought lines in.
    commands: Vec<String>,
}

/// Where the base has the file that a session has at `path`, if the session moved it: then the base
/// has it under another name, and the session no longer.
pub(crate) fn moved_from(upper: &Upper, path: &RelPath) -> Result<Option<RelPath>> {
    let state = upper.state();
    let Some((number, _)) = upper.find(&state, path)? else {
        return Ok(None);
    };
    let base = upper.lower();
    if base
        .node_at(path)?
        .is_some_and(|node| node.meta.ino == number)
    {
        return Ok(None);
    }
    let Some(from) = base.path(number)? else {
        return Ok(None);
    };
    let there = upper.find(&state, &from)?;
    Ok(Some(from).filter(|_| there.is_none_or(|(found, _)| found != number)))
}

fn file_at(lower: &Lower, path: &RelPath) -> Result<Content> {
    let node: Option<Node> = lower.node_at(path)?;
    node.as_ref()
        .and_then(Node::content)
        .copied()
        .ok_or_else(|| Error::NoPath(path.clone()))
}

/// The bytes of a file if it is text.
pub(crate) fn text_of(lower: &Lower, content: &Content) -> Result<Option<Vec<u8>>> {
    if content.size > MAX_TEXT {
        return Ok(None);
    }
    let bytes = content.read_all(lower.objects())?;
    Ok(is_text(&bytes).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_that_stay_keep_their_owner() {
        let old = b"a\nb\nc\n";
        let mut owners = Runs::all(1, 1);
        owners.push(2, 5);
        let new = owners.edited(old, b"a\nnew\nc\nmore\n", 9);
        let seen: Vec<(u64, u64)> = new.0.iter().map(|run| (run.count, run.revision)).collect();
        assert_eq!(seen, [(1, 1), (1, 9), (1, 5), (1, 9)]);
    }

    proptest! {
        #[test]
        fn runs_tile_every_edit(old in "[ab\n]{0,30}", new in "[ab\n]{0,30}") {
            let owners = Runs::all(line_count(old.as_bytes()), 3);
            let edited = owners.edited(old.as_bytes(), new.as_bytes(), 4);
            prop_assert_eq!(edited.total(), line_count(new.as_bytes()));
        }
    }
}
