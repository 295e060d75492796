//! Resolution: what becomes of each changed path against the present head.
//!
//! For each path there are three versions: the base's, the head's and mine. Where the head has
//! what the base had, mine is taken; where it has what mine has, nothing is to be done; otherwise
//! the two changes are merged or conflict. Content and metadata merge apart: one side's `chmod +x`
//! and the other's edit both survive.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::delta::{Change, ChangeKind, Delta, difference, same, same_body};
use super::git::GitRoute;
use super::route::{Route, Router, SavedRef, Skipped};
use super::{PublishOptions, is_directory};
use crate::blame::{Owners, Runs};
use crate::content::{Content, Layout};
use crate::digest::Digest;
use crate::edit::Edit;
use crate::error::Result;
use crate::layer::{LayerId, LayerRecord, Owner};
use crate::lower::Lower;
use crate::merge::{Hunk, MergeOutcome, Origin, merge_text, merge_union, merge_with_markers};
use crate::name::{Name, RelPath};
use crate::node::{Body, Kind, Node, NodeMeta, Timestamp};
use crate::objects::ObjectBatch;
use crate::stack::Stack;
use crate::text::{Interner, MAX_TEXT, changes, is_text, line_count, lines};
use crate::upper::Upper;

/// Largest marked text of one conflict, in bytes.
const MAX_MARKED: usize = 256 << 10;

/// Why a path cannot be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// Both changed the same lines, or the same symlink or device.
    Content,
    /// Both changed a file that is no text, or too large to merge.
    Binary,
    /// Both changed the same mode, owner or extended attribute to different values.
    Metadata,
    /// Both added it, differently.
    AddAdd,
    /// One side deleted what the other changed.
    DeleteModify,
    /// The sides made different types of file of it.
    Type,
    /// The policy refuses it.
    Rejected,
}

/// A path that cannot be published, with what is needed to resolve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The path.
    pub path: RelPath,
    /// Why.
    pub kind: ConflictKind,
    /// At the base; `None` if it was not there.
    pub base: Option<Version>,
    /// At the head.
    pub head: Option<Version>,
    /// In the session.
    pub mine: Option<Version>,
    /// The layer that changed it at the head.
    pub head_layer: Option<LayerId>,
    /// Who published that layer.
    pub head_owner: Option<Owner>,
    /// The places in conflict, for text.
    pub hunks: Vec<Hunk>,
    /// The text with diff3 markers, if it was asked for.
    pub marked: Option<Vec<u8>>,
}

/// A path at one side of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The type.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file or of a symlink's target.
    pub size: u64,
    /// Digest of a file's content.
    pub digest: Option<Digest>,
}

impl From<&Node> for Version {
    fn from(node: &Node) -> Self {
        Version {
            kind: node.kind(),
            mode: node.meta.mode,
            uid: node.meta.uid,
            gid: node.meta.gid,
            size: node.size(),
            digest: node.content().map(|content| content.digest),
        }
    }
}

/// What becomes of a delta.
#[derive(Default)]
pub(super) struct Resolution {
    pub(super) edits: BTreeMap<RelPath, Edit>,
    /// How each edited path differs from the head.
    pub(super) kinds: Vec<(RelPath, ChangeKind)>,
    pub(super) merged: Vec<RelPath>,
    pub(super) conflicts: Vec<Conflict>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) saved_refs: Vec<SavedRef>,
    pub(super) ignored_paths: u64,
    /// How the bytes of all files change against the head.
    pub(super) bytes_delta: i64,
    pub(super) origins: Origins,
}

/// Where the lines of merged files come from.
#[derive(Default)]
pub(super) struct Origins {
    merged: HashMap<RelPath, MergedFile>,
}

struct MergedFile {
    mine: Vec<u8>,
    base: Option<Content>,
    head: Content,
    origins: Vec<Origin>,
}

/// What two changes of one file come to.
enum Merged {
    /// This, merged by lines from the head's and mine's.
    Lines {
        bytes: Vec<u8>,
        origins: Vec<Origin>,
        mine: Vec<u8>,
    },
    /// One side's version as it is.
    Mine,
    Head,
    Conflict {
        kind: ConflictKind,
        hunks: Vec<Hunk>,
        marked: Option<Vec<u8>>,
    },
}

pub(super) struct Resolver<'a> {
    pub(super) stack: &'a Stack,
    pub(super) base: &'a Arc<Lower>,
    pub(super) head: &'a Arc<Lower>,
    pub(super) base_revision: u64,
    pub(super) head_layer: &'a LayerRecord,
    pub(super) options: &'a PublishOptions,
    pub(super) batch: &'a ObjectBatch<'a>,
}

impl Resolver<'_> {
    pub(super) fn run(&self, delta: &Delta, upper: &Upper) -> Result<Resolution> {
        let mut out = Resolution::default();
        let mut router = Router::new(upper, &self.options.policy);
        let mut git = GitRoute::new(self, delta, upper);
        for (path, change) in &delta.changes {
            if git.takes(path)? {
                continue;
            }
            let is_directory = change
                .mine
                .as_ref()
                .or(change.base.as_ref())
                .is_some_and(|n| n.kind() == Kind::Directory);
            match router.route(path, is_directory)? {
                _ if change.kind().is_none() => self.touch(&mut out, path, change)?,
                Route::Reject => {
                    let head = self.head.node_at(path)?;
                    self.conflict(
                        &mut out,
                        path,
                        ConflictKind::Rejected,
                        change,
                        head.as_ref(),
                    )?;
                }
                Route::SessionPrivate => {
                    out.skipped.push(Skipped {
                        path: path.clone(),
                        reason: "session_private",
                    });
                }
                Route::Ignored => self.take_ignored(&mut out, path, change, delta)?,
                route => self.resolve(&mut out, path, change, delta, route)?,
            }
        }
        git.resolve(&mut out)?;
        self.finish(&mut out)?;
        Ok(out)
    }

    /// A directory that only got other times: shown if nobody else changed it, and the newer of
    /// both if somebody did.
    fn touch(&self, out: &mut Resolution, path: &RelPath, change: &Change) -> Result<()> {
        let (Some(mine), Some(mut head)) = (&change.mine, self.head.node_at(path)?) else {
            return Ok(());
        };
        if head.kind() == Kind::Directory {
            head.meta.mtime = head.meta.mtime.max(mine.meta.mtime);
            head.meta.ctime = head.meta.ctime.max(mine.meta.ctime);
            out.edits.insert(path.clone(), Edit::Set(head));
        }
        Ok(())
    }

    /// Resolves a path by the rules of source files.
    pub(super) fn resolve_source(
        &self,
        out: &mut Resolution,
        path: &RelPath,
        change: &Change,
        delta: &Delta,
    ) -> Result<()> {
        if change.kind().is_none() {
            self.touch(out, path, change)
        } else {
            self.resolve(out, path, change, delta, Route::Source)
        }
    }

    fn resolve(
        &self,
        out: &mut Resolution,
        path: &RelPath,
        change: &Change,
        delta: &Delta,
        route: Route,
    ) -> Result<()> {
        let head = self.head.node_at(path)?;
        let (base, mine) = (change.base.as_ref(), change.mine.as_ref());
        if mine.is_some_and(|node| node.kind() == Kind::Socket) {
            out.skipped.push(Skipped {
                path: path.clone(),
                reason: "socket",
            });
            return Ok(());
        }
        if equal(head.as_ref(), mine) {
            return Ok(());
        }
        if let Some(kind) = self.parent_conflict(out, path, mine)? {
            return self.conflict(out, path, kind, change, head.as_ref());
        }
        if equal(head.as_ref(), base) {
            return self.take(out, path, change, delta, head.as_ref());
        }
        let (Some(head_node), Some(mine_node)) = (&head, mine) else {
            if route == Route::Ours {
                return self.take(out, path, change, delta, head.as_ref());
            }
            return self.conflict(out, path, ConflictKind::DeleteModify, change, head.as_ref());
        };
        if head_node.kind() != mine_node.kind()
            || base.is_some_and(|base| base.kind() != mine_node.kind())
        {
            if route == Route::Ours {
                return self.take(out, path, change, delta, head.as_ref());
            }
            return self.conflict(out, path, ConflictKind::Type, change, head.as_ref());
        }
        self.merge_nodes(out, path, change, (base, head_node, mine_node), route)
    }

    /// Both sides changed a node of one type.
    fn merge_nodes(
        &self,
        out: &mut Resolution,
        path: &RelPath,
        change: &Change,
        (base, head, mine): (Option<&Node>, &Node, &Node),
        route: Route,
    ) -> Result<()> {
        let Some(mut meta) = merge_meta(base, head, mine, route == Route::Ours) else {
            return self.conflict(out, path, ConflictKind::Metadata, change, Some(head));
        };
        let mut node = Node {
            meta,
            body: head.body.clone(),
        };
        match self.merge_body(path, base, head, mine, route)? {
            Merged::Head => {}
            Merged::Mine => node.body = mine.body.clone(),
            Merged::Conflict {
                kind,
                hunks,
                marked,
            } => {
                self.conflict(out, path, kind, change, Some(head))?;
                if let Some(conflict) = out.conflicts.last_mut() {
                    conflict.hunks = hunks;
                    conflict.marked = marked;
                }
                return Ok(());
            }
            Merged::Lines {
                bytes,
                origins,
                mine: mine_bytes,
            } => {
                let digest = self.batch.put(&bytes)?;
                let size = bytes.len() as u64;
                let content = Content {
                    size,
                    stored: size,
                    digest,
                    layout: Layout::Whole,
                };
                node.body = Body::File(content);
                // Neither side has this content: a time that either had would hide it from tools.
                let now = Timestamp::now();
                (meta.mtime, meta.ctime) = (now, now);
                node.meta = meta;
                if let Some(head) = head.content() {
                    let merged = MergedFile {
                        mine: mine_bytes,
                        base: base.and_then(Node::content).copied(),
                        head: *head,
                        origins,
                    };
                    out.origins.merged.insert(path.clone(), merged);
                }
                out.merged.push(path.clone());
            }
        }
        if !same(&node, head) {
            out.edits.insert(path.clone(), Edit::Set(node));
        }
        Ok(())
    }

    fn merge_body(
        &self,
        path: &RelPath,
        base: Option<&Node>,
        head: &Node,
        mine: &Node,
        route: Route,
    ) -> Result<Merged> {
        if same_body(head, mine) || base.is_some_and(|base| same_body(base, mine)) {
            return Ok(Merged::Head);
        }
        if base.is_some_and(|base| same_body(base, head)) || route == Route::Ours {
            return Ok(Merged::Mine);
        }
        let conflict = |kind| Merged::Conflict {
            kind,
            hunks: Vec::new(),
            marked: None,
        };
        let (Body::File(head), Body::File(mine)) = (&head.body, &mine.body) else {
            return Ok(conflict(if base.is_some() {
                ConflictKind::Content
            } else {
                ConflictKind::AddAdd
            }));
        };
        let base = base.and_then(Node::content);
        let binary = if base.is_some() {
            ConflictKind::Binary
        } else {
            ConflictKind::AddAdd
        };
        let base_text = match base {
            Some(content) => self.text(content)?,
            None => Some(Vec::new()),
        };
        let (Some(base_text), Some(head), Some(mine)) =
            (base_text, self.text(head)?, self.text(mine)?)
        else {
            return Ok(conflict(binary));
        };
        if base.is_none() && route != Route::Union {
            return Ok(match containing(&head, &mine) {
                Some(Containing::Head) => Merged::Head,
                Some(Containing::Mine(origins)) => Merged::Lines {
                    bytes: mine.clone(),
                    origins,
                    mine,
                },
                None => conflict(ConflictKind::AddAdd),
            });
        }
        if route == Route::Union {
            let merged = merge_union(&base_text, &head, &mine);
            return Ok(Merged::Lines {
                bytes: merged.bytes,
                origins: merged.origins,
                mine,
            });
        }
        Ok(match merge_text(&base_text, &head, &mine) {
            MergeOutcome::Clean(merged) => Merged::Lines {
                bytes: merged.bytes,
                origins: merged.origins,
                mine,
            },
            MergeOutcome::Conflicts(hunks) => {
                let marked = self.options.markers.then(|| {
                    let head_label = self.head_layer.id.to_string();
                    let label = self
                        .options
                        .session_name
                        .clone()
                        .unwrap_or_else(|| self.options.owner.to_string());
                    merge_with_markers((&base_text, "base"), (&head, &head_label), (&mine, &label))
                });
                let marked = marked.filter(|text| text.len() <= MAX_MARKED);
                tracing::debug!(%path, conflicts = hunks.len(), "text conflict");
                Merged::Conflict {
                    kind: ConflictKind::Content,
                    hunks,
                    marked,
                }
            }
        })
    }

    /// Takes mine where the head has what the base had.
    fn take(
        &self,
        out: &mut Resolution,
        path: &RelPath,
        change: &Change,
        delta: &Delta,
        head: Option<&Node>,
    ) -> Result<()> {
        let was_directory = head.is_some_and(|node| node.kind() == Kind::Directory);
        let is_directory = change
            .mine
            .as_ref()
            .is_some_and(|node| node.kind() == Kind::Directory);
        if was_directory && !is_directory && self.added_below(out, path, delta)? {
            return Ok(());
        }
        let edit = match &change.mine {
            None => Edit::Remove,
            Some(mine) => Edit::Set(mine.clone()),
        };
        out.edits.insert(path.clone(), edit);
        Ok(())
    }

    /// Reports what others put into a directory that mine removes; `true` if there is something.
    fn added_below(&self, out: &mut Resolution, path: &RelPath, delta: &Delta) -> Result<bool> {
        let mut found = false;
        let mut pending = vec![path.clone()];
        while let Some(directory) = pending.pop() {
            let Some(node) = self.head.node_at(&directory)? else {
                continue;
            };
            let Some(entries) = self.head.directory(node.meta.ino)? else {
                continue;
            };
            for (name, entry) in entries.iter() {
                let below = directory.join(
                    &Name::new(name).expect("directory objects are checked when they are read"),
                );
                let known = delta.changes.contains_key(&below);
                if entry.kind() == Kind::Directory {
                    pending.push(below.clone());
                }
                if !known {
                    found = true;
                    let change = Change {
                        base: None,
                        mine: None,
                    };
                    let node = self.head.resolve(entry)?;
                    self.conflict(
                        out,
                        &below,
                        ConflictKind::DeleteModify,
                        &change,
                        Some(&node),
                    )?;
                }
            }
        }
        Ok(found)
    }

    /// Whether the head lacks the directory that `path` is to be in.
    fn parent_conflict(
        &self,
        out: &Resolution,
        path: &RelPath,
        mine: Option<&Node>,
    ) -> Result<Option<ConflictKind>> {
        let Some((parent, _)) = path.split() else {
            return Ok(None);
        };
        if mine.is_none() || is_directory(&out.edits, &parent) {
            return Ok(None);
        }
        Ok(match self.head.node_at(&parent)? {
            // Not if an edit makes something else of it.
            Some(node) if node.kind() == Kind::Directory && !out.edits.contains_key(&parent) => {
                None
            }
            Some(_) => Some(ConflictKind::Type),
            None => Some(ConflictKind::DeleteModify),
        })
    }

    /// The last writer wins, whatever stands in the way.
    fn take_ignored(
        &self,
        out: &mut Resolution,
        path: &RelPath,
        change: &Change,
        delta: &Delta,
    ) -> Result<()> {
        let head = self.head.node_at(path)?;
        out.ignored_paths += 1;
        match &change.mine {
            None if head.is_some() => {
                out.edits.insert(path.clone(), Edit::Remove);
            }
            None => {}
            Some(mine) if mine.kind() == Kind::Socket => {
                out.skipped.push(Skipped {
                    path: path.clone(),
                    reason: "socket",
                });
            }
            Some(mine) => {
                self.make_parents(out, path, delta)?;
                if !equal(head.as_ref(), Some(mine)) {
                    out.edits.insert(path.clone(), Edit::Set(mine.clone()));
                }
            }
        }
        Ok(())
    }

    /// Makes the directories above `path` that the head lacks, as they are in the base.
    fn make_parents(&self, out: &mut Resolution, path: &RelPath, delta: &Delta) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = path.split().map(|(parent, _)| parent);
        while let Some(parent) = at {
            let there = match out.edits.get(&parent) {
                Some(Edit::Set(node)) => node.kind() == Kind::Directory,
                Some(Edit::Remove) => false,
                None => self
                    .head
                    .node_at(&parent)?
                    .is_some_and(|node| node.kind() == Kind::Directory),
            };
            if there {
                break;
            }
            at = parent.split().map(|(parent, _)| parent);
            missing.push(parent);
        }
        for parent in missing.into_iter().rev() {
            let node = match delta.changes.get(&parent) {
                Some(change) => change.mine.clone(),
                None => self.base.node_at(&parent)?,
            };
            if let Some(node) = node {
                out.edits.insert(parent, Edit::Set(node));
            }
        }
        Ok(())
    }

    pub(super) fn conflict(
        &self,
        out: &mut Resolution,
        path: &RelPath,
        kind: ConflictKind,
        change: &Change,
        head: Option<&Node>,
    ) -> Result<()> {
        let layer = self.changed_by(path)?;
        out.conflicts.push(Conflict {
            path: path.clone(),
            kind,
            base: change.base.as_ref().map(Version::from),
            head: head.map(Version::from),
            mine: change.mine.as_ref().map(Version::from),
            head_layer: layer.as_ref().map(|layer| layer.id),
            head_owner: layer.map(|layer| layer.owner),
            hunks: Vec::new(),
            marked: None,
        });
        Ok(())
    }

    /// The newest layer after the base that changed `path`, or something above it.
    fn changed_by(&self, path: &RelPath) -> Result<Option<LayerRecord>> {
        let mut revision = self.head_layer.id.revision;
        while revision > self.base_revision {
            let Some(layer) = self.stack.layer_at(revision)? else {
                return Ok(None);
            };
            let changes = self.stack.layer_changes(layer.id)?;
            if changes
                .iter()
                .any(|(changed, _)| path.is_within(changed) && !changed.is_root())
            {
                return Ok(Some(layer));
            }
            revision -= 1;
        }
        Ok(None)
    }

    /// The bytes of a file that is text.
    fn text(&self, content: &Content) -> Result<Option<Vec<u8>>> {
        if content.size > MAX_TEXT {
            return Ok(None);
        }
        let bytes = content.read_all(self.head.objects())?;
        Ok(is_text(&bytes).then_some(bytes))
    }

    /// Counts what the edits change against the head, and drops those that change nothing.
    fn finish(&self, out: &mut Resolution) -> Result<()> {
        out.conflicts
            .sort_by(|one, other| one.path.cmp(&other.path));
        out.conflicts.dedup_by(|one, other| one.path == other.path);
        for (path, edit) in &out.edits {
            let head = self.head.node_at(path)?;
            let node = match edit {
                Edit::Remove => None,
                Edit::Set(node) => Some(node),
            };
            let bytes = |node: Option<&Node>| {
                node.and_then(Node::content)
                    .map_or(0, |content| content.size as i64)
            };
            if let Some(kind) = difference(head.as_ref(), node) {
                out.kinds.push((path.clone(), kind));
                out.bytes_delta += bytes(node) - bytes(head.as_ref());
            }
        }
        if out.kinds.is_empty() {
            // Times of directories alone make no layer.
            out.edits.clear();
        }
        Ok(())
    }
}

impl Origins {
    /// The owners of the lines of a file that the new layer changes.
    pub(super) fn runs(
        &self,
        stack: &Stack,
        path: &RelPath,
        node: &Node,
        (base, head): (&Lower, &Lower),
        revision: u64,
        batch: &ObjectBatch<'_>,
    ) -> Result<Runs> {
        let owners = Owners::new(stack);
        let objects = batch.objects();
        if let Some(merged) = self.merged.get(path) {
            let head_bytes = merged.head.read_all(objects)?;
            let head_runs = owners.find(path, &merged.head, Some(&head_bytes))?;
            let mine_runs = match &merged.base {
                None => Runs::all(line_count(&merged.mine), revision),
                Some(content) => {
                    let bytes = content.read_all(objects)?;
                    owners
                        .find(path, content, Some(&bytes))?
                        .edited(&bytes, &merged.mine, revision)
                }
            };
            return Ok(head_runs.merged(&mine_runs, &merged.origins));
        }
        let Some(content) = node.content().filter(|content| content.size <= MAX_TEXT) else {
            return Ok(Runs::whole(revision));
        };
        // Some of what is new may still be in the batch alone.
        let bytes = match content.layout {
            Layout::Whole if content.size > 0 => batch.get(&content.digest)?,
            Layout::Whole | Layout::Segments(_) => content.read_all(objects)?,
        };
        if !is_text(&bytes) {
            return Ok(Runs::whole(revision));
        }
        // What it was before: at the same path, or, for a file that was moved, where it was.
        let mut before = head.node_at(path)?.map(|node| (path.clone(), node));
        if before
            .as_ref()
            .is_none_or(|(_, node)| node.kind() != Kind::File)
        {
            before = match base.node(node.meta.ino)? {
                Some(old) => path_in(base, &old)?.map(|path| (path, old)),
                None => None,
            };
        }
        let Some((old_path, old)) = before else {
            return Ok(Runs::all(line_count(&bytes), revision));
        };
        let Some(old) = old.content().filter(|old| old.size <= MAX_TEXT) else {
            return Ok(Runs::all(line_count(&bytes), revision));
        };
        let old_bytes = old.read_all(objects)?;
        if !is_text(&old_bytes) {
            return Ok(Runs::all(line_count(&bytes), revision));
        }
        Ok(owners
            .find(&old_path, old, Some(&old_bytes))?
            .edited(&old_bytes, &bytes, revision))
    }
}

/// A path at which `node` is in a layer.
fn path_in(lower: &Lower, node: &Node) -> Result<Option<RelPath>> {
    let Some((mut parent, name)) = lower.names(node.meta.ino)?.into_iter().next() else {
        return Ok(None);
    };
    let mut names = vec![name];
    while parent != crate::lower::ROOT_INO {
        let Some((above, name)) = lower.parent(parent)? else {
            return Ok(None);
        };
        names.push(name);
        parent = above;
    }
    Ok(Some(
        names
            .iter()
            .rev()
            .fold(RelPath::ROOT, |path, name| path.join(name)),
    ))
}

fn equal(one: Option<&Node>, other: Option<&Node>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => same(one, other),
        _ => false,
    }
}

/// Merges mode, owner and extended attributes field by field; `None` if both sides changed one to
/// different values. Times are the newer side's, the rest the head's.
fn merge_meta(base: Option<&Node>, head: &Node, mine: &Node, mine_wins: bool) -> Option<NodeMeta> {
    fn field<T: PartialEq + Copy>(base: Option<T>, head: T, mine: T, mine_wins: bool) -> Option<T> {
        if head == mine || base == Some(mine) {
            Some(head)
        } else if base == Some(head) || mine_wins {
            Some(mine)
        } else {
            None
        }
    }
    let base = base.map(|base| &base.meta);
    let (head, mine) = (&head.meta, &mine.meta);
    Some(NodeMeta {
        mode: field(base.map(|meta| meta.mode), head.mode, mine.mode, mine_wins)?,
        uid: field(base.map(|meta| meta.uid), head.uid, mine.uid, mine_wins)?,
        gid: field(base.map(|meta| meta.gid), head.gid, mine.gid, mine_wins)?,
        xattrs: field(
            base.map(|meta| meta.xattrs),
            head.xattrs,
            mine.xattrs,
            mine_wins,
        )?,
        mtime: head.mtime.max(mine.mtime),
        ctime: head.ctime.max(mine.ctime),
        ..*head
    })
}

/// Of two texts that were both added, the one that has all lines of the other, in order.
enum Containing {
    Head,
    Mine(Vec<Origin>),
}

fn containing(head: &[u8], mine: &[u8]) -> Option<Containing> {
    let (head_lines, mine_lines) = (lines(head), lines(mine));
    let mut interner = Interner::default();
    let (head_numbers, mine_numbers) = (interner.intern(&head_lines), interner.intern(&mine_lines));
    let changes = changes(&head_numbers, &mine_numbers);
    if changes.iter().all(|change| change.new.is_empty()) {
        return Some(Containing::Head);
    }
    if !changes.iter().all(|change| change.old.is_empty()) {
        return None;
    }
    let mut origins = Vec::new();
    let mut at = 0;
    for change in changes {
        if at < change.old.start {
            origins.push(Origin::Head(at..change.old.start));
        }
        at = change.old.end;
        origins.push(Origin::Mine(change.new));
    }
    if at < head_lines.len() {
        origins.push(Origin::Head(at..head_lines.len()));
    }
    Some(Containing::Mine(origins))
}
