//! Writers: which command of a session brought a line in.
//!
//! The access log says who wrote to which file, and nothing of lines. So before a command is started,
//! and before a publish, whoever embeds the store has it looked at what was written since it last
//! did ([`Stack::settle_writers`]): a file to which one command alone wrote in that time has the
//! lines that are new since then from that command. Where two wrote to it, or somebody who is no
//! command, it is not known who brought a line in, and nothing is claimed. Nor is it for a file that
//! is not text, is ignored, or is larger than [`MAX_FILE`]; nor for anything of a session of whose
//! log something is lost.
//!
//! # Keys in the database, beside the access log
//! `P`, stack, lease: [`Progress`]; `W`, stack, lease, path: [`Written`] of a changed file; `X`, stack,
//! lease, path: its text (zstd), of which the next look finds what is new; `N`, stack, lease of the
//! log: somebody looks; the same with the number of a frame: the changes in it, until they are looked
//! at. Values are postcard.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::access::{AccessKind, AccessRow};
use crate::blame::{Runs, moved_from, text_of};
use crate::db::{self, Db, DbBatch, Durability, key};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::lease::LeaseId;
use crate::name::RelPath;
use crate::node::{Ino, Kind, Node};
use crate::publish::{Policy, Route, Router};
use crate::stack::{Stack, StackId};
use crate::text::{is_text, line_count};
use crate::upper::Upper;

/// Bytes of the largest file of which writers of lines are told apart.
const MAX_FILE: u64 = 1 << 20;
/// Bytes of files that one look reads: what is beyond is not known. Some 100 ms.
const MAX_LOOK: u64 = 32 << 20;

/// The letter of each kind of key.
pub(crate) const PARTS: [&[u8]; 4] = [b"P", b"W", b"X", b"N"];

/// How far the log was looked at.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Progress {
    /// The lease under which the session is on record: one that it had before, if it went on over
    /// another layer since.
    log: LeaseId,
    /// Gaps that the log had when the first look was taken.
    gaps: u64,
    /// Something of the log is lost: nothing is claimed any longer.
    lost: bool,
}

/// What is known of the lines of a changed file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Written {
    ino: Ino,
    /// `None`: nothing is known of it.
    lines: Option<Lines>,
}

/// Whose the lines of a text are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lines {
    digest: Digest,
    /// Runs that tile it: 0 for lines of the base or of somebody unknown, otherwise the number of a
    /// command in `commands`, from 1.
    pub(crate) runs: Runs,
    pub(crate) commands: Vec<String>,
}

impl Lines {
    fn unknown(text: &[u8]) -> Lines {
        Lines {
            digest: Digest::of(text),
            runs: Runs::all(line_count(text), 0),
            commands: Vec::new(),
        }
    }

    /// The lines of `new`, made of `old`, whose these are: what is new is `who`'s.
    fn edited(mut self, old: &[u8], new: &[u8], who: Option<&str>) -> Lines {
        let number = match who {
            None => 0,
            Some(who) => match self.commands.iter().position(|known| known == who) {
                Some(index) => index + 1,
                None => {
                    self.commands.push(who.to_owned());
                    self.commands.len()
                }
            },
        };
        self.runs = self.runs.edited(old, new, number as u64);
        self.digest = Digest::of(new);
        self
    }
}

/// A change, as far as whose it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Logged {
    path: RelPath,
    kind: AccessKind,
    command: Option<String>,
}

/// Keeps the changes among the rows of a frame until they are looked at, if the session's are at all.
pub(crate) fn keep(
    db: &Db,
    batch: &mut DbBatch,
    (stack, log): (StackId, LeaseId),
    frame: u64,
    rows: &[AccessRow],
) -> Result<()> {
    let changes: Vec<Logged> = rows
        .iter()
        .filter(|row| {
            matches!(
                row.kind,
                AccessKind::Write
                    | AccessKind::Create
                    | AccessKind::Remove
                    | AccessKind::RenameFrom
                    | AccessKind::RenameTo
                    | AccessKind::Link
            )
        })
        .map(|row| Logged {
            path: row.path.clone(),
            kind: row.kind,
            command: row.actor.command.clone(),
        })
        .collect();
    if !changes.is_empty() && db.access.contains_key(lease_key(b"N", stack, log))? {
        batch.insert(
            &db.access,
            &frame_key(stack, log, frame),
            &db::encode(&changes),
        );
    }
    Ok(())
}

/// The changes in the frames of a record that were not looked at, in order.
fn kept(db: &Db, stack: StackId, log: LeaseId) -> Result<Vec<Logged>> {
    let mut all = Vec::new();
    for guard in db.access.prefix(lease_key(b"N", stack, log)) {
        let (_, value) = guard.into_inner()?;
        if !value.is_empty() {
            let changes: Vec<Logged> = db::decode("changes in the access log", &value)?;
            all.extend(changes);
        }
    }
    Ok(all)
}

fn frame_key(stack: StackId, log: LeaseId, frame: u64) -> Vec<u8> {
    key(&[
        b"N",
        &stack.0.to_be_bytes(),
        &log.0.to_be_bytes(),
        &frame.to_be_bytes(),
    ])
}

/// The lines of a session's changed files, by what is in these.
pub(crate) struct Writers(HashMap<Digest, Option<Lines>>);

impl Writers {
    /// Those of a lease.
    pub(crate) fn of(stack: &Stack, lease: LeaseId) -> Result<Writers> {
        let mut found: HashMap<Digest, Option<Lines>> = HashMap::new();
        let db = stack.db();
        for guard in db.access.prefix(lease_key(b"W", stack.id(), lease)) {
            let (_, value) = guard.into_inner()?;
            let written: Written = db::decode("the writers of a file", &value)?;
            if let Some(lines) = written.lines {
                found
                    .entry(lines.digest)
                    // Two files of one content by different hands: either may be meant.
                    .and_modify(|known| *known = None)
                    .or_insert(Some(lines));
            }
        }
        Ok(Writers(found))
    }

    /// Whose the lines of this content are, if that is known.
    pub(crate) fn get(&self, digest: &Digest) -> Option<&Lines> {
        self.0.get(digest)?.as_ref()
    }
}

/// What was written to a path since the last look.
#[derive(Default)]
struct Touched<'a> {
    by: BTreeSet<Option<&'a str>>,
    moved_here: bool,
    linked: bool,
}

impl Stack {
    /// Looks at what was written in the session of `upper` since the last time, so that lines have
    /// their commands. The session is on record under lease `log`. `flush` brings what was done so far into the access log, and says whether all
    /// of it is there; if not, nothing is looked at now.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Io`], or as reading an object.
    pub fn settle_writers(
        &self,
        upper: &Upper,
        log: LeaseId,
        flush: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        match self.progress(upper.lease().id)? {
            Some(progress) if progress.log == log => self.go_on(upper, progress, flush),
            _ => self.begin_writers(upper, log, flush),
        }
    }

    /// The same at the end of a session, when nobody works in it and all is in the log. One that was
    /// never looked at had no commands.
    pub(crate) fn writers(&self, upper: &Upper) -> Result<Writers> {
        let lease = upper.lease().id;
        if let Some(progress) = self.progress(lease)? {
            self.go_on(upper, progress, &mut || true)?;
        }
        Writers::of(self, lease)
    }

    fn progress(&self, lease: LeaseId) -> Result<Option<Progress>> {
        let found = self.db().access.get(lease_key(b"P", self.id(), lease))?;
        found
            .map(|bytes| db::decode("how far writers are known", &bytes))
            .transpose()
    }

    fn go_on(
        &self,
        upper: &Upper,
        progress: Progress,
        flush: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        if progress.lost || !flush() {
            return Ok(());
        }
        let (stack, lease) = (self.id(), upper.lease().id);
        let db = self.db();
        let progress_key = lease_key(b"P", stack, lease);
        let counts = || self.store().access_log().counts(stack, progress.log);
        let mut batch = db.batch();
        if counts()?.is_some_and(|(_, gaps)| gaps > progress.gaps) {
            forget(db, stack, lease, &mut batch)?;
            let lost = Progress {
                lost: true,
                ..progress
            };
            batch.insert(&db.access, &progress_key, &db::encode(&lost));
            return db.commit(batch, Durability::Process);
        }
        let (frames, _) = counts()?.unwrap_or_default();
        let seen = kept(db, stack, progress.log)?;
        if seen.is_empty() {
            return Ok(());
        }
        let files = Files::read(upper, touched(&seen).keys())?;
        // Who wrote while the files were read is in the log by now.
        if !flush() {
            return Ok(());
        }
        let all = kept(db, stack, progress.log)?;
        let touched = touched(&all);
        let sources: Vec<&RelPath> = moved_away(&all).collect();
        let movers: BTreeSet<Option<&str>> = sources
            .iter()
            .filter_map(|path| touched.get(*path))
            .flat_map(|touched| touched.by.iter().copied())
            .collect();
        let look = Look {
            stack: self,
            upper,
            sources: &sources,
        };
        for (path, file) in &files.0 {
            let Some(touched) = touched.get(path) else {
                continue;
            };
            let mut by = touched.by.clone();
            if touched.moved_here {
                by.extend(&movers);
            }
            let who = match by.iter().next() {
                Some(Some(who)) if by.len() == 1 => Some(*who),
                _ => None,
            };
            look.note(&mut batch, path, file, who, touched.linked)?;
        }
        // What came while the files were read is looked at again.
        let (first, end) = (0, frames);
        let range = frame_key(stack, progress.log, first)..frame_key(stack, progress.log, end);
        for guard in db.access.range(range) {
            batch.remove(&db.access, &guard.key()?);
        }
        db.commit(batch, Durability::Process)
    }

    /// Of what is changed already nobody knows who did it: a session that goes on over a new base
    /// brings it along.
    fn begin_writers(
        &self,
        upper: &Upper,
        log: LeaseId,
        flush: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        if !flush() {
            return Ok(());
        }
        let (stack, lease) = (self.id(), upper.lease().id);
        let db = self.db();
        let counts = self.store().access_log().counts(stack, log)?;
        let (_, gaps) = counts.unwrap_or_default();
        // From here on what is changed is kept.
        let mut marker = db.batch();
        forget(db, stack, lease, &mut marker)?;
        marker.insert(&db.access, &lease_key(b"N", stack, log), b"");
        db.commit(marker, Durability::Process)?;
        let changes = upper.changes()?;
        let files = Files::read(upper, changes.iter().map(|(path, _)| path))?;
        let look = Look {
            stack: self,
            upper,
            sources: &[],
        };
        let mut batch = db.batch();
        for (path, file) in &files.0 {
            // As if it had come by a link.
            look.note(&mut batch, path, file, None, true)?;
        }
        let progress = Progress {
            log,
            gaps,
            lost: false,
        };
        let progress_key = lease_key(b"P", stack, lease);
        batch.insert(&db.access, &progress_key, &db::encode(&progress));
        db.commit(batch, Durability::Process)
    }
}

/// Forgets everything that is known of the writers of a lease.
pub(crate) fn forget(db: &Db, stack: StackId, lease: LeaseId, batch: &mut DbBatch) -> Result<()> {
    let progress = db.access.get(lease_key(b"P", stack, lease))?;
    let progress: Option<Progress> = progress
        .map(|bytes| db::decode("how far writers are known", &bytes))
        .transpose()?;
    let mut kinds: Vec<Vec<u8>> = [b"P", b"W", b"X"]
        .map(|kind| lease_key(kind, stack, lease))
        .to_vec();
    kinds.extend(progress.map(|progress| lease_key(b"N", stack, progress.log)));
    for prefix in kinds {
        for guard in db.access.prefix(prefix) {
            batch.remove(&db.access, &guard.key()?);
        }
    }
    Ok(())
}

fn touched(rows: &[Logged]) -> BTreeMap<RelPath, Touched<'_>> {
    let mut touched: BTreeMap<RelPath, Touched<'_>> = BTreeMap::new();
    for row in rows {
        let path = touched.entry(row.path.clone()).or_default();
        path.moved_here |= row.kind == AccessKind::RenameTo;
        path.linked |= row.kind == AccessKind::Link;
        path.by.insert(row.command.as_deref());
    }
    touched
}

fn moved_away(rows: &[Logged]) -> impl Iterator<Item = &RelPath> {
    rows.iter()
        .filter(|row| row.kind == AccessKind::RenameFrom)
        .map(|row| &row.path)
}

/// Files as they are now.
struct Files(BTreeMap<RelPath, Option<File>>);

struct File {
    ino: Ino,
    /// `None`: it is not text, or too much.
    text: Option<Vec<u8>>,
}

impl Files {
    fn read<'a>(upper: &Upper, paths: impl Iterator<Item = &'a RelPath>) -> Result<Files> {
        let policy = Policy::default();
        let mut router = Router::new(upper, &policy);
        let mut left = MAX_LOOK;
        let mut files = BTreeMap::new();
        for path in paths {
            let found = {
                let state = upper.state();
                match upper.find(&state, path)? {
                    Some((ino, Kind::File)) => upper
                        .attributes(&state, ino)?
                        .map(|attributes| (ino, attributes.size)),
                    _ => None,
                }
            };
            let Some((ino, size)) = found else {
                files.insert(path.clone(), None);
                continue;
            };
            let wanted = size <= MAX_FILE.min(left)
                && !path.names().any(|name| name == b".git")
                && router.route(path, false)? == Route::Source;
            let text = if wanted {
                left -= size;
                let bytes = upper.read(ino, 0, size as usize)?;
                Some(bytes).filter(|bytes| is_text(bytes))
            } else {
                None
            };
            files.insert(path.clone(), Some(File { ino, text }));
        }
        Ok(Files(files))
    }
}

/// What a file was when it was last looked at.
enum Before {
    Text(Vec<u8>, Lines),
    /// It was not there, or no text: all its lines are new.
    New,
    Unknown,
}

struct Look<'a> {
    stack: &'a Stack,
    upper: &'a Upper,
    /// Where files were moved away from.
    sources: &'a [&'a RelPath],
}

impl Look<'_> {
    fn note(
        &self,
        batch: &mut DbBatch,
        path: &RelPath,
        file: &Option<File>,
        who: Option<&str>,
        linked: bool,
    ) -> Result<()> {
        let access = &self.stack.db().access;
        let (lines_key, text_key) = (self.path_key(b"W", path), self.path_key(b"X", path));
        let Some(File { ino, text }) = file else {
            batch.remove(access, &lines_key);
            batch.remove(access, &text_key);
            return Ok(());
        };
        let lines = match text {
            None => None,
            // It has the content that another name had.
            Some(text) if linked => Some(Lines::unknown(text)),
            Some(text) => Some(match self.before(path, *ino)? {
                Before::Unknown => Lines::unknown(text),
                Before::New => Lines::unknown(b"").edited(b"", text, who),
                Before::Text(old, lines) => lines.edited(&old, text, who),
            }),
        };
        let written = Written { ino: *ino, lines };
        batch.insert(access, &lines_key, &db::encode(&written));
        match text {
            None => batch.remove(access, &text_key),
            Some(text) => {
                let packed = zstd::bulk::compress(text, 1).map_err(|error| Error::Corrupt {
                    what: format!("the text of {path}"),
                    detail: error.to_string(),
                })?;
                batch.insert(access, &text_key, &packed);
            }
        }
        Ok(())
    }

    fn before(&self, path: &RelPath, ino: Ino) -> Result<Before> {
        for source in self.sources {
            if let Some(known) = self.known(source)?
                && known.ino == ino
            {
                return self.text_before(source, known);
            }
        }
        if let Some(known) = self.known(path)? {
            return self.text_before(path, known);
        }
        let base = self.upper.lower();
        let from = moved_from(self.upper, path)?;
        let node = base.node_at(from.as_ref().unwrap_or(path))?;
        match node.as_ref().and_then(Node::content) {
            None => Ok(Before::New),
            Some(content) if content.size > MAX_FILE => Ok(Before::Unknown),
            Some(content) => Ok(match text_of(base, content)? {
                None => Before::New,
                Some(text) => {
                    let lines = Lines::unknown(&text);
                    Before::Text(text, lines)
                }
            }),
        }
    }

    fn known(&self, path: &RelPath) -> Result<Option<Written>> {
        let found = self.stack.db().access.get(self.path_key(b"W", path))?;
        found
            .map(|bytes| db::decode("the writers of a file", &bytes))
            .transpose()
    }

    fn text_before(&self, path: &RelPath, known: Written) -> Result<Before> {
        let packed = self.stack.db().access.get(self.path_key(b"X", path))?;
        let (Some(lines), Some(packed)) = (known.lines, packed) else {
            return Ok(Before::Unknown);
        };
        let text = zstd::decode_all(&packed[..]).map_err(|error| Error::Corrupt {
            what: format!("the text of {path}"),
            detail: error.to_string(),
        })?;
        Ok(Before::Text(text, lines))
    }

    fn path_key(&self, kind: &[u8], path: &RelPath) -> Vec<u8> {
        let mut key = lease_key(kind, self.stack.id(), self.upper.lease().id);
        key.extend_from_slice(path.as_bytes());
        key
    }
}

fn lease_key(kind: &[u8], stack: StackId, lease: LeaseId) -> Vec<u8> {
    key(&[kind, &stack.0.to_be_bytes(), &lease.0.to_be_bytes()])
}
