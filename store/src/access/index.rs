//! The index of the access log: rows by path, by session and by command.
//!
//! Frames are cheap to append and slow to search. When a session has enough of them, and before a
//! question is answered, they are *sealed*: folded, and put where they are found by key. Whatever is
//! asked for, what is looked at for one page is bounded; a page may then have fewer rows than were
//! asked for, and still not be the last.
//!
//! # Keys in the database
//! Paths and commands end with a zero byte. `p`, stack, path, lease, seal: rows of one path;
//! `l`, stack, lease, path, seal, and `k`, stack, lease, command, path, seal: which kinds are among
//! them; `a`, stack, lease, number: an actor; `m`, stack, command, lease: where a command is;
//! `q`, stack, pid, lease, command: where a process is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::frame::Frame;
use super::{
    AccessFilter, AccessKind, AccessLog, AccessRow, Actor, RowMark, RowPage, SessionRecord,
};
use crate::db::{self, DbBatch, key};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::lease::LeaseId;
use crate::name::RelPath;
use crate::stack::StackId;

/// What may be looked at for one page, in steps of one key: some 20 ms.
pub(super) const MAX_STEPS: usize = 20_000;
/// Steps that looking for the rows of one path takes.
const FAR_STEPS: usize = 10;
/// The letter of each part of the index.
pub(super) const PARTS: [&[u8]; 6] = [b"p", b"l", b"k", b"a", b"m", b"q"];

/// The rows of one path in one seal.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Group {
    kinds: u16,
    first_unix_ms: u64,
    last_unix_ms: u64,
    digests: Vec<Digest>,
    rows: Vec<GroupRow>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct GroupRow {
    actor: u32,
    kind: AccessKind,
    /// One more than the number of the digest; 0: none.
    digest: u32,
    count: u64,
    bytes: u64,
    first_unix_ms: u64,
    last_unix_ms: u64,
}

/// Keys that are gone through for a question.
struct Part {
    /// What all keys begin with.
    prefix: Vec<u8>,
    /// Where in the keys the path begins.
    path_at: usize,
    /// The session, if the keys are those of one.
    lease: Option<LeaseId>,
    /// The command, as in a key, if they are those of one.
    command: Option<Vec<u8>>,
}

/// What a group begins with.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Head {
    kinds: u16,
    first_unix_ms: u64,
    last_unix_ms: u64,
}

impl Head {
    /// At any time.
    fn of_kinds(kinds: u16) -> Head {
        Head {
            kinds,
            first_unix_ms: 0,
            last_unix_ms: u64::MAX,
        }
    }
}

/// A path of a session, and what may be found there.
struct Place {
    path: RelPath,
    lease: LeaseId,
    head: Head,
}

fn bit(kind: AccessKind) -> u16 {
    1 << kind as u16
}

impl Group {
    fn add(&mut self, row: GroupRow, digest: Option<Digest>) {
        let digest = digest.map_or(0, |digest| {
            let known = self.digests.iter().position(|known| *known == digest);
            let index = known.unwrap_or_else(|| {
                self.digests.push(digest);
                self.digests.len() - 1
            });
            index as u32 + 1
        });
        if self.rows.is_empty() {
            self.first_unix_ms = row.first_unix_ms;
        }
        self.first_unix_ms = self.first_unix_ms.min(row.first_unix_ms);
        self.last_unix_ms = self.last_unix_ms.max(row.last_unix_ms);
        self.kinds |= bit(row.kind);
        self.rows.push(GroupRow { digest, ..row });
    }
}

/// Folds frames and puts them into `batch`. Returns how many rows that are.
pub(super) fn seal(
    batch: &mut DbBatch,
    access: &fjall::Keyspace,
    (stack, lease): (StackId, LeaseId),
    record: &mut SessionRecord,
    frames: &[Frame],
) -> u64 {
    let (stack_key, lease_key) = (stack.0.to_be_bytes(), lease.0.to_be_bytes());
    let mut actors: HashMap<&Actor, u32> = HashMap::new();
    let mut numbers: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut folded: HashMap<_, GroupRow, RandomState> = HashMap::default();
    let mut commands: HashMap<(u32, &RelPath), u16, RandomState> = HashMap::default();
    for frame in frames {
        // The number of each actor, and of its command.
        let mut known = Vec::with_capacity(frame.actors().len());
        for actor in frame.actors() {
            let number = *actors.entry(actor).or_insert_with(|| {
                let number = record.actors;
                record.actors += 1;
                let place = key(&[b"a", &stack_key, &lease_key, &number.to_be_bytes()]);
                batch.insert(access, &place, &db::encode(actor));
                let command = command_key(actor);
                if actor.command.is_some() {
                    batch.insert(access, &key(&[b"m", &stack_key, &command, &lease_key]), b"");
                }
                if let Some(pid) = actor.pid {
                    let pid = pid.to_be_bytes();
                    let place = key(&[b"q", &stack_key, &pid, &lease_key, &command]);
                    batch.insert(access, &place, b"");
                }
                number
            });
            let count = numbers.len() as u32;
            known.push((number, *numbers.entry(command_key(actor)).or_insert(count)));
        }
        for (path, actor, digest, row) in frame.rows() {
            let (actor, command) = known[actor];
            *commands.entry((command, path)).or_default() |= bit(row.kind);
            let packed = GroupRow {
                actor,
                kind: row.kind,
                digest: 0,
                count: row.count,
                bytes: row.bytes,
                first_unix_ms: row.first_unix_ms,
                last_unix_ms: row.last_unix_ms,
            };
            folded
                .entry((path, actor, row.kind, digest))
                .and_modify(|known| {
                    known.count += row.count;
                    known.bytes += row.bytes;
                    known.first_unix_ms = known.first_unix_ms.min(row.first_unix_ms);
                    known.last_unix_ms = known.last_unix_ms.max(row.last_unix_ms);
                })
                .or_insert(packed);
        }
    }
    let mut names = vec![Vec::new(); numbers.len()];
    for (command, number) in numbers {
        names[number as usize] = command;
    }
    let rows = folded.len() as u64;
    let mut groups: HashMap<&RelPath, Group, RandomState> = HashMap::default();
    for ((path, _, _, digest), row) in folded {
        groups.entry(path).or_default().add(row, digest);
    }
    let seal = record.seals.to_be_bytes();
    // In the order of their keys, as the database keeps them.
    let mut groups: Vec<(&RelPath, Group)> = groups.into_iter().collect();
    groups.sort_unstable_by_key(|(path, _)| path.as_bytes());
    let mut commands: Vec<((&[u8], &RelPath), u16)> = commands
        .into_iter()
        .map(|((command, path), kinds)| ((names[command as usize].as_slice(), path), kinds))
        .collect();
    commands.sort_unstable_by_key(|((command, path), _)| (*command, path.as_bytes()));
    for (path, group) in &groups {
        let path = path.as_bytes();
        let place = key(&[b"p", &stack_key, path, b"\0", &lease_key, &seal]);
        batch.insert(access, &place, &db::encode(group));
    }
    for (path, group) in &groups {
        let path = path.as_bytes();
        let place = key(&[b"l", &stack_key, &lease_key, path, b"\0", &seal]);
        batch.insert(access, &place, &group.kinds.to_be_bytes());
    }
    for ((command, path), kinds) in &commands {
        let place = key(&[
            b"k",
            &stack_key,
            &lease_key,
            command,
            path.as_bytes(),
            b"\0",
            &seal,
        ]);
        batch.insert(access, &place, &kinds.to_be_bytes());
    }
    record.seals += 1;
    rows
}

/// A command in a key; of what is none of a command nothing.
pub(super) fn command_key(actor: &Actor) -> Vec<u8> {
    let mut command = actor.command.clone().unwrap_or_default().into_bytes();
    command.push(0);
    command
}

impl AccessLog {
    /// Finds sealed rows of a stack: at most `limit`, after `after`, looking at no more than so many
    /// `steps`.
    pub(super) fn sealed(
        &self,
        stack: StackId,
        filter: &AccessFilter,
        after: Option<&RowMark>,
        limit: usize,
        steps: usize,
    ) -> Result<RowPage> {
        let records: BTreeMap<LeaseId, SessionRecord> =
            self.records(stack, filter)?.into_iter().collect();
        let mut search = Search {
            log: self,
            stack,
            filter,
            names: records
                .iter()
                .map(|(lease, record)| (*lease, record.session.as_str().into()))
                .collect(),
            actors: HashMap::new(),
            wanted: filter.kinds.iter().fold(0, |mask, kind| mask | bit(*kind)),
        };
        let mut page = RowPage::default();
        let mut left = steps;
        for part in self.parts(stack, filter, &records)? {
            let mark = after.filter(|mark| mark.key >= part.prefix);
            let within = mark.filter(|mark| mark.key.starts_with(&part.prefix));
            if mark.is_some() && within.is_none() {
                continue;
            }
            let begin = within.map_or_else(|| part.prefix.clone(), |mark| mark.key.clone());
            let mut done: Option<Place> = None;
            for guard in self.db.access.range(begin..successor(&part.prefix)) {
                let (found, value) = guard.into_inner()?;
                let place = part.place(&found, &value)?;
                // All seals of a path and session are looked at with the first that is wanted.
                if done.as_ref().is_some_and(|done| done.is_same(&place)) {
                    continue;
                }
                let from = within
                    .filter(|mark| *mark.key == *found)
                    .map_or(0, |mark| mark.row);
                let stop = |row| {
                    Some(RowMark {
                        key: found.to_vec(),
                        row,
                    })
                };
                let wanted = search.is_wanted(&place);
                let cost = if wanted { FAR_STEPS } else { 1 };
                if left < cost || page.rows.len() == limit {
                    page.next = stop(from);
                    return Ok(page);
                }
                left -= cost;
                if wanted {
                    let mut rows = search.rows(&place, part.command.as_deref())?;
                    let until = rows.len().min(from.saturating_add(limit - page.rows.len()));
                    page.rows.extend(rows.drain(from.min(until)..until));
                    if !rows[from.min(until)..].is_empty() {
                        page.next = stop(until);
                        return Ok(page);
                    }
                    done = Some(place);
                }
            }
        }
        Ok(page)
    }

    /// Where to look for what `filter` wants: the parts are in the order of their keys.
    fn parts(
        &self,
        stack: StackId,
        filter: &AccessFilter,
        records: &BTreeMap<LeaseId, SessionRecord>,
    ) -> Result<Vec<Part>> {
        let stack_key = stack.0.to_be_bytes();
        if let Some(path) = &filter.path {
            let prefix = key(&[b"p", &stack_key, path.as_bytes(), b"\0"]);
            return Ok(vec![Part::by_path(prefix)]);
        }
        if filter.command.is_some() || filter.pid.is_some() {
            let commands = self.commands(stack, filter)?;
            let known = commands
                .into_iter()
                .filter(|(lease, _)| records.contains_key(lease));
            return Ok(known
                .map(|(lease, command)| {
                    let prefix = key(&[b"k", &stack_key, &lease.0.to_be_bytes(), &command]);
                    Part {
                        command: Some(command),
                        ..Part::of_session(prefix, lease)
                    }
                })
                .collect());
        }
        let overlaps =
            |record: &SessionRecord| filter.wants_time(record.first_unix_ms, record.last_unix_ms);
        let some = records.values().any(|record| !overlaps(record));
        if filter.lease.is_some() || filter.session.is_some() || some {
            let leases = records.iter().filter(|(_, record)| overlaps(record));
            return Ok(leases
                .map(|(lease, _)| {
                    let prefix = key(&[b"l", &stack_key, &lease.0.to_be_bytes()]);
                    Part::of_session(prefix, *lease)
                })
                .collect());
        }
        let prefix = key(&[b"p", &stack_key, &filter.path_begin]);
        Ok(vec![Part::by_path(prefix)])
    }

    /// In which sessions a command or a process is, and which command's process it is.
    fn commands(
        &self,
        stack: StackId,
        filter: &AccessFilter,
    ) -> Result<BTreeSet<(LeaseId, Vec<u8>)>> {
        let stack_key = stack.0.to_be_bytes();
        let mut found = BTreeSet::new();
        if let Some(command) = &filter.command {
            let mut command = command.clone().into_bytes();
            command.push(0);
            let prefix = key(&[b"m", &stack_key, &command]);
            for guard in self.db.access.prefix(prefix) {
                found.insert((LeaseId(super::last_number(&guard.key()?)?), command.clone()));
            }
        } else if let Some(pid) = filter.pid {
            let prefix = key(&[b"q", &stack_key, &pid.to_be_bytes()]);
            let at = prefix.len();
            for guard in self.db.access.prefix(prefix) {
                let found_key = guard.key()?;
                let lease = found_key.get(at..at + 8).ok_or_else(short)?;
                let command = found_key[at + 8..].to_vec();
                found.insert((LeaseId(super::last_number(lease)?), command));
            }
        }
        Ok(found)
    }
}

impl Part {
    fn by_path(prefix: Vec<u8>) -> Part {
        Part {
            prefix,
            path_at: 9,
            lease: None,
            command: None,
        }
    }

    fn of_session(prefix: Vec<u8>, lease: LeaseId) -> Part {
        Part {
            path_at: prefix.len(),
            prefix,
            lease: Some(lease),
            command: None,
        }
    }

    /// What a key and its value tell of.
    fn place(&self, found: &[u8], value: &[u8]) -> Result<Place> {
        // The lease, if it is not before the path, and the seal.
        let tail = if self.lease.is_some() { 4 } else { 12 };
        let path = found
            .len()
            .checked_sub(tail + 1)
            .and_then(|end| found.get(self.path_at..end))
            .ok_or_else(short)?;
        let path = RelPath::parse(path).map_err(|error| corrupt(error.to_string()))?;
        let (lease, head) = match self.lease {
            Some(lease) => {
                let kinds = value.first_chunk().ok_or_else(short)?;
                (lease, Head::of_kinds(u16::from_be_bytes(*kinds)))
            }
            None => {
                let lease = &found[found.len() - tail..found.len() - 4];
                let head: Head = db::decode("rows of the access log", value)?;
                (LeaseId(super::last_number(lease)?), head)
            }
        };
        Ok(Place { path, lease, head })
    }
}

impl Place {
    fn is_same(&self, other: &Place) -> bool {
        self.path == other.path && self.lease == other.lease
    }
}

/// A question that is being answered.
struct Search<'a> {
    log: &'a AccessLog,
    stack: StackId,
    filter: &'a AccessFilter,
    /// The sessions that are looked at.
    names: HashMap<LeaseId, Arc<str>>,
    actors: HashMap<(LeaseId, u32), Arc<Actor>>,
    /// Kinds that are wanted; 0: all.
    wanted: u16,
}

impl Search<'_> {
    /// Whether there may be rows that are wanted.
    fn is_wanted(&self, place: &Place) -> bool {
        (self.wanted == 0 || self.wanted & place.head.kinds != 0)
            && self.names.contains_key(&place.lease)
            && self
                .filter
                .wants_time(place.head.first_unix_ms, place.head.last_unix_ms)
            && self.filter.wants_path(&place.path)
    }

    /// The rows of a path of a session, in order of kind and time; `command` if only those of one.
    fn rows(&mut self, place: &Place, command: Option<&[u8]>) -> Result<Vec<AccessRow>> {
        let (stack, lease) = (self.stack.0.to_be_bytes(), place.lease.0.to_be_bytes());
        let path = place.path.as_bytes();
        let prefix = key(&[b"p", &stack, path, b"\0", &lease]);
        let session = Arc::clone(&self.names[&place.lease]);
        let mut folded = super::Folded::new();
        for guard in self.log.db.access.prefix(prefix) {
            let (_, value) = guard.into_inner()?;
            let group: Group = db::decode("rows of the access log", &value)?;
            for row in &group.rows {
                if self.wanted != 0 && self.wanted & bit(row.kind) == 0 {
                    continue;
                }
                let digest = match row.digest {
                    0 => None,
                    number => {
                        let digest = group.digests.get(number as usize - 1);
                        Some(*digest.ok_or_else(|| corrupt("a row has no digest".to_owned()))?)
                    }
                };
                let row = AccessRow {
                    session: Arc::clone(&session),
                    path: place.path.clone(),
                    kind: row.kind,
                    actor: self.actor(place.lease, row.actor)?,
                    digest,
                    count: row.count,
                    bytes: row.bytes,
                    first_unix_ms: row.first_unix_ms,
                    last_unix_ms: row.last_unix_ms,
                };
                let of_command = command.is_none_or(|command| command_key(&row.actor) == command);
                if of_command && self.filter.wants_but_for_time(&row) {
                    super::fold(&mut folded, row);
                }
            }
        }
        // Only whole rows have their times.
        let mut rows: Vec<AccessRow> = folded.into_values().collect();
        rows.retain(|row| self.filter.wants_time(row.first_unix_ms, row.last_unix_ms));
        rows.sort_by_key(|row| (row.kind, row.first_unix_ms));
        Ok(rows)
    }

    fn actor(&mut self, lease: LeaseId, number: u32) -> Result<Arc<Actor>> {
        if let Some(actor) = self.actors.get(&(lease, number)) {
            return Ok(Arc::clone(actor));
        }
        let (stack_key, lease_key) = (self.stack.0.to_be_bytes(), lease.0.to_be_bytes());
        let place = key(&[b"a", &stack_key, &lease_key, &number.to_be_bytes()]);
        let value = self.log.db.access.get(place)?;
        let value =
            value.ok_or_else(|| corrupt("a row names an actor that is not there".to_owned()))?;
        let actor: Arc<Actor> = Arc::new(db::decode("an actor of the access log", &value)?);
        self.actors.insert((lease, number), Arc::clone(&actor));
        Ok(actor)
    }
}

/// The first key after all that begin with `prefix`, which begins with a letter.
fn successor(prefix: &[u8]) -> Vec<u8> {
    let mut next = prefix.to_vec();
    while let Some(last) = next.pop() {
        if last < u8::MAX {
            next.push(last + 1);
            break;
        }
    }
    next
}

fn short() -> Error {
    corrupt("a key is too short".to_owned())
}

fn corrupt(detail: String) -> Error {
    Error::Corrupt {
        what: "the index of the access log".to_owned(),
        detail,
    }
}
