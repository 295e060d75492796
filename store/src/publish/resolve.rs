//! Resolution: what becomes of each changed path against the present head.
//!
//! For each path there are three versions: the base's, the head's and mine. Where the head has
//! what the base had, mine is taken; where it has what mine has, nothing is to be done; otherwise
//! the two changes are merged ([`super::combine`]) or conflict. Where one side moved something, the
//! other side's change follows it ([`super::follow`]).

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::PublishOptions;
use super::combine::{Combined, NO_NUMBER};
use super::conflict::{Conflict, ConflictKind, Version};
use super::delta::{Change, ChangeKind, Delta, difference, equal};
use super::follow::Moves;
use super::git;
use super::origins::{MergedFile, Origins};
use super::route::{Route, Router, SavedRef, Skipped};
use super::since::Since;
use crate::content::Content;
use crate::edit::Edit;
use crate::error::Result;
use crate::layer::LayerRecord;
use crate::lower::Lower;
use crate::name::{Name, RelPath};
use crate::node::{Ino, Kind, Node};
use crate::objects::ObjectBatch;
use crate::stack::Stack;
use crate::text::{MAX_TEXT, is_text};
use crate::upper::Upper;

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
    /// How the bytes of all files change against the head, modulo 2^64.
    pub(super) bytes_delta: i64,
    pub(super) origins: Origins,
}

/// What a delta is resolved against.
pub(super) struct Resolver<'a> {
    pub(super) stack: &'a Stack,
    pub(super) base: &'a Arc<Lower>,
    pub(super) head: &'a Arc<Lower>,
    pub(super) base_revision: u64,
    pub(super) head_layer: &'a LayerRecord,
    pub(super) options: &'a PublishOptions,
    pub(super) batch: &'a ObjectBatch<'a>,
}

/// One resolution under way.
pub(super) struct Pass<'a> {
    pub(super) resolver: &'a Resolver<'a>,
    pub(super) delta: &'a Delta,
    pub(super) upper: &'a Upper,
    pub(super) out: Resolution,
    pub(super) router: Router<'a>,
    pub(super) moves: Moves,
    /// Directories of mine that will be elsewhere, because the head moved what they are in.
    pub(super) placed: HashMap<RelPath, RelPath>,
    /// What the head has elsewhere: where it will be, and where it is.
    pub(super) carried: HashMap<RelPath, RelPath>,
    /// Where three versions of a node have come together: its number in the base.
    pub(super) merged: HashMap<RelPath, Ino>,
    /// What is to be in a directory that is not there yet, by its place.
    orphans: HashMap<RelPath, Orphan>,
    /// Numbers that this publish has given to nodes.
    pub(super) numbers: super::numbers::Numbers,
    since: OnceCell<Since>,
}

/// The three versions of something that mine changed, and where it is.
pub(super) struct Case<'d> {
    /// Where mine has it, or had it: the path that is reported.
    pub(super) path: &'d RelPath,
    /// Where the head has it, or would have it.
    pub(super) there: RelPath,
    /// Where it is to be.
    pub(super) at: RelPath,
    pub(super) base: Option<&'d Node>,
    pub(super) head: Option<Node>,
    pub(super) mine: Option<&'d Node>,
    pub(super) route: Route,
}

/// Something of mine that is to be in a directory that the result may lack: as a conflict shows it.
#[derive(Clone)]
struct Orphan {
    path: RelPath,
    there: RelPath,
    base: Option<Node>,
    head: Option<Node>,
}

/// Whether a directory and all above it will be there, and whether one of them is an [`Orphan`].
#[derive(Clone, Copy)]
struct Home {
    is_there: bool,
    is_orphan: bool,
}

impl Resolver<'_> {
    /// Resolves `delta`, which has no sockets; `sockets` are where it had them.
    pub(super) fn run(
        &self,
        delta: &Delta,
        sockets: &[RelPath],
        upper: &Upper,
    ) -> Result<Resolution> {
        let mut out = Resolution::default();
        out.skipped
            .extend(sockets.iter().cloned().map(Skipped::socket));
        let mut pass = Pass {
            resolver: self,
            delta,
            upper,
            out,
            router: Router::new(upper, &self.options.policy),
            moves: Moves::default(),
            placed: HashMap::new(),
            carried: HashMap::new(),
            merged: HashMap::new(),
            orphans: HashMap::new(),
            numbers: super::numbers::Numbers::default(),
            since: OnceCell::new(),
        };
        pass.run()?;
        Ok(pass.out)
    }

    /// Whether nobody has published since the base.
    pub(super) fn head_is_base(&self) -> bool {
        self.base.root() == self.head.root()
    }
}

impl Pass<'_> {
    fn run(&mut self) -> Result<()> {
        self.find_moves()?;
        let mut repositories = BTreeSet::new();
        // Directories first: where they will be decides where what is in them will be, and what was
        // moved may come from anywhere.
        let (directories, others): (Vec<_>, Vec<_>) = self
            .delta
            .changes
            .iter()
            .partition(|(_, change)| is_directory(change.mine.as_ref()));
        for (path, change) in directories.into_iter().chain(others) {
            if let Some(repository) = git::repository_of(self, path)? {
                repositories.insert(repository);
                continue;
            }
            let route = self.route(path, change)?;
            self.resolve(path, change, route)?;
        }
        for repository in &repositories {
            git::resolve(self, repository)?;
        }
        self.follow_added()?;
        self.refuse_homeless()?;
        self.number()?;
        self.finish()
    }

    /// Reports what would be in a directory that the result lacks. Only now it is known which it has:
    /// others' directories come along with those that mine moved.
    fn refuse_homeless(&mut self) -> Result<()> {
        let mut homeless = Vec::new();
        // Paths are in order, so those of one directory mostly come one after the other.
        let mut last: Option<(RelPath, Home)> = None;
        for (path, edit) in &self.out.edits {
            let (Edit::Set(node), Some((parent, _))) = (edit, path.split()) else {
                continue;
            };
            let home = match &last {
                Some((directory, home)) if *directory == parent => *home,
                _ => self.home(&parent)?,
            };
            last = Some((parent, home));
            if !home.is_there {
                // Otherwise each side moved directories so that no tree has both.
                let kind = if home.is_orphan || self.orphans.contains_key(path) {
                    ConflictKind::DeleteModify
                } else {
                    ConflictKind::Rename
                };
                let reported = self.orphans.get(path).cloned().unwrap_or_else(|| Orphan {
                    path: path.clone(),
                    there: path.clone(),
                    base: None,
                    head: None,
                });
                homeless.push((kind, reported, node.clone()));
            }
        }
        for (kind, orphan, mine) in homeless {
            let versions = (orphan.base.as_ref(), orphan.head.as_ref(), Some(&mine));
            self.conflict(kind, &orphan.path, &orphan.there, versions)?;
        }
        Ok(())
    }

    /// What the directory at `path` is in the result, as far as what is in it depends on it.
    fn home(&self, path: &RelPath) -> Result<Home> {
        let mut home = Home {
            is_there: true,
            is_orphan: false,
        };
        let mut at = Some(path.clone());
        while let Some(directory) = at.filter(|directory| !directory.is_root()) {
            home.is_there &= self.result_kind(&directory)? == Some(Kind::Directory);
            home.is_orphan |= self.orphans.contains_key(&directory);
            at = directory.split().map(|(parent, _)| parent);
        }
        Ok(home)
    }

    pub(super) fn route(&mut self, path: &RelPath, change: &Change) -> Result<Route> {
        let node = change.mine.as_ref().or(change.base.as_ref());
        self.router.route(path, is_directory(node))
    }

    /// What others changed since the base.
    pub(super) fn since(&self) -> Result<&Since> {
        if let Some(since) = self.since.get() {
            return Ok(since);
        }
        let resolver = self.resolver;
        let since = Since::read(
            resolver.stack,
            resolver.base_revision,
            resolver.head_layer,
            resolver.base,
            resolver.head,
        )?;
        Ok(self.since.get_or_init(|| since))
    }

    /// Resolves one changed path.
    pub(super) fn resolve(&mut self, path: &RelPath, change: &Change, route: Route) -> Result<()> {
        if change.kind().is_none() {
            return self.touch(path, change);
        }
        let (base, mine) = (change.base.as_ref(), change.mine.as_ref());
        match route {
            Route::Reject => {
                let head = self.resolver.head.node_at(path)?;
                return self.conflict(
                    ConflictKind::Rejected,
                    path,
                    path,
                    (base, head.as_ref(), mine),
                );
            }
            Route::SessionPrivate => {
                self.skip(path, "session_private");
                return Ok(());
            }
            Route::Ignored => return self.take_ignored(path, mine),
            Route::Source | Route::Ours | Route::Union => {}
        }
        if self.follow(path, change, route)? {
            return Ok(());
        }
        let at = self.target(path)?;
        if at != *path && is_directory(mine) {
            self.placed.insert(path.clone(), at.clone());
        }
        let head = self.resolver.head.node_at(&at)?;
        // Both gave the name to one file of the base: that is what both may have changed.
        let number = |node: Option<&Node>| node.map(|node| node.meta.ino);
        let same = match number(mine).filter(|ino| Some(*ino) == number(head.as_ref())) {
            Some(ino) if base.is_none() && self.is_of_base(ino) => self.resolver.base.node(ino)?,
            _ => None,
        };
        self.settle(Case {
            path,
            there: at.clone(),
            at,
            base: base.or(same.as_ref()),
            head,
            mine,
            route,
        })
    }

    /// A directory that only got other times: shown if nobody else changed it, and the newer of
    /// both if somebody did.
    pub(super) fn touch(&mut self, path: &RelPath, change: &Change) -> Result<()> {
        let (Some(mine), Some(mut head)) = (&change.mine, self.resolver.head.node_at(path)?) else {
            return Ok(());
        };
        if head.kind() == Kind::Directory {
            head.meta.mtime = head.meta.mtime.max(mine.meta.mtime);
            head.meta.ctime = head.meta.ctime.max(mine.meta.ctime);
            self.out.edits.insert(path.clone(), Edit::Set(head));
        }
        Ok(())
    }

    /// Resolves three versions by the table of the rules.
    pub(super) fn settle(&mut self, case: Case<'_>) -> Result<()> {
        let (base, head, mine) = (case.base, case.head.as_ref(), case.mine);
        let ours = case.route == Route::Ours;
        let stays = case.there == case.at;
        if stays && equal(head, mine) {
            return Ok(());
        }
        if mine.is_some()
            && let Some(kind) = self.parent_conflict(&case.at)?
        {
            if ours {
                self.make_parents(&case.at)?;
            } else if kind == ConflictKind::DeleteModify && (base.is_none() || head.is_some()) {
                let orphan = Orphan {
                    path: case.path.clone(),
                    there: case.there.clone(),
                    base: base.cloned(),
                    head: head.cloned(),
                };
                self.orphans.insert(case.at.clone(), orphan);
            } else {
                return self.conflict(kind, case.path, &case.there, (base, head, mine));
            }
        }
        if equal(head, base) {
            return self.take(&case);
        }
        let (Some(head), Some(mine)) = (head, mine) else {
            if ours {
                return self.take(&case);
            }
            let kind = ConflictKind::DeleteModify;
            return self.conflict(kind, case.path, &case.there, (base, head, mine));
        };
        if head.kind() != mine.kind() || base.is_some_and(|base| base.kind() != mine.kind()) {
            if ours {
                return self.take(&case);
            }
            let kind = ConflictKind::Type;
            return self.conflict(
                kind,
                case.path,
                &case.there,
                (base, Some(head), mine.into()),
            );
        }
        self.merge(&case, head, mine)
    }

    /// Both sides changed a node of one type.
    fn merge(&mut self, case: &Case<'_>, head: &Node, mine: &Node) -> Result<()> {
        let combined = self.combine(case.path, case.base, head, mine, case.route)?;
        match combined {
            Combined::Node(node) => {
                if case.there != case.at || !equal(Some(head), Some(&node)) {
                    self.set(case, node)?;
                }
            }
            Combined::Lines { node, merge } => {
                if let Some(content) = head.content() {
                    let merged = MergedFile {
                        mine: merge.mine,
                        origins: merge.origins,
                        base: self.source_of_base(case),
                        head: (case.there.clone(), *content),
                    };
                    self.out.origins.merged.insert(case.at.clone(), merged);
                }
                self.out.merged.push(case.at.clone());
                self.set(case, node)?;
            }
            Combined::Conflict(conflict) => {
                let versions = (case.base, Some(head), Some(mine));
                self.conflict(conflict.kind, case.path, &case.there, versions)?;
                if let Some(last) = self.out.conflicts.last_mut() {
                    last.hunks = conflict.hunks;
                    last.marked = conflict.marked;
                }
            }
        }
        Ok(())
    }

    /// Puts `node` where a case is to be, and takes it away from where the head has it.
    fn set(&mut self, case: &Case<'_>, mut node: Node) -> Result<()> {
        if node.meta.ino == NO_NUMBER {
            node.meta.ino = self.numbers.fresh(self.resolver.stack)?;
            node.meta.links = 1;
        }
        if case.there != case.at
            && let Some(head) = &case.head
        {
            self.out.edits.insert(case.there.clone(), Edit::Remove);
            if head.meta.links == 1 {
                self.numbers.settle(head.meta.ino);
            }
            self.carried.insert(case.at.clone(), case.there.clone());
        }
        if let Some(base) = case.base {
            self.merged.insert(case.at.clone(), base.meta.ino);
        }
        self.out.edits.insert(case.at.clone(), Edit::Set(node));
        Ok(())
    }

    /// Takes mine where the head has what the base had, or where mine wins.
    fn take(&mut self, case: &Case<'_>) -> Result<()> {
        if is_directory(case.head.as_ref()) && !is_directory(case.mine) {
            if case.route == Route::Ours {
                self.remove_below(&case.there)?;
            } else if self.added_below(&case.there)? {
                return Ok(());
            }
        }
        match case.mine {
            None if case.head.is_some() => {
                self.out.edits.insert(case.there.clone(), Edit::Remove);
            }
            None => {}
            Some(mine) => self.set(case, mine.clone())?,
        }
        Ok(())
    }

    /// Reports what others put into a directory that mine removes; `true` if there is something.
    /// What is ignored does not count: it goes with the directory.
    fn added_below(&mut self, path: &RelPath) -> Result<bool> {
        let mut found = false;
        for (below, node) in self.below(path)? {
            // Others may have moved it there, and mine knows it under its old name.
            let origin = self.since()?.origin(&below).unwrap_or(&below);
            let known = self.delta.changes.contains_key(origin) || self.goes_along(&below);
            let stays = matches!(self.out.edits.get(&below), Some(Edit::Set(_)));
            if known && !stays {
                continue;
            }
            if self.router.route(&below, node.kind() == Kind::Directory)? == Route::Ignored {
                self.out.edits.insert(below, Edit::Remove);
                continue;
            }
            found = true;
            let kind = ConflictKind::DeleteModify;
            self.conflict(kind, &below, &below, (None, Some(&node), None))?;
        }
        Ok(found)
    }

    /// Removes everything that the head has below `path`.
    fn remove_below(&mut self, path: &RelPath) -> Result<()> {
        for (below, _) in self.below(path)? {
            self.out.edits.insert(below, Edit::Remove);
        }
        Ok(())
    }

    /// Everything that the head has below `path`.
    pub(super) fn below(&self, path: &RelPath) -> Result<Vec<(RelPath, Node)>> {
        let mut all = Vec::new();
        let mut pending = vec![path.clone()];
        while let Some(directory) = pending.pop() {
            let Some(node) = self.resolver.head.node_at(&directory)? else {
                continue;
            };
            let Some(entries) = self.resolver.head.directory(node.meta.ino)? else {
                continue;
            };
            for (name, entry) in entries.iter() {
                let below = directory.join(
                    &Name::new(name).expect("directory objects are checked when they are read"),
                );
                if entry.kind() == Kind::Directory {
                    pending.push(below.clone());
                }
                all.push((below, self.resolver.head.resolve(entry)?));
            }
        }
        Ok(all)
    }

    /// Whether the result lacks the directory that `path` is to be in.
    fn parent_conflict(&self, path: &RelPath) -> Result<Option<ConflictKind>> {
        let Some((parent, _)) = path.split() else {
            return Ok(None);
        };
        Ok(match self.result_kind(&parent)? {
            Some(Kind::Directory) => None,
            Some(_) => Some(ConflictKind::Type),
            None => Some(ConflictKind::DeleteModify),
        })
    }

    /// The type of what will be at `path`, as far as it is decided.
    pub(super) fn result_kind(&self, path: &RelPath) -> Result<Option<Kind>> {
        Ok(match self.out.edits.get(path) {
            Some(Edit::Set(node)) => Some(node.kind()),
            Some(Edit::Remove) => None,
            None => self.resolver.head.node_at(path)?.map(|node| node.kind()),
        })
    }

    /// The last writer wins, whatever stands in the way.
    fn take_ignored(&mut self, path: &RelPath, mine: Option<&Node>) -> Result<()> {
        if self.resolver.options.drop_ignored {
            self.skip(path, "ignored");
            return Ok(());
        }
        let head = self.resolver.head.node_at(path)?;
        if is_directory(head.as_ref()) && !is_directory(mine) {
            self.remove_below(path)?;
        }
        self.out.ignored_paths += 1;
        match mine {
            None if head.is_some() => {
                self.out.edits.insert(path.clone(), Edit::Remove);
            }
            None => {}
            Some(mine) => {
                if !self.make_ignored_parents(path)? {
                    self.skip(path, "directory_gone");
                    return Ok(());
                }
                if !equal(head.as_ref(), Some(mine)) {
                    self.out.edits.insert(path.clone(), Edit::Set(mine.clone()));
                }
            }
        }
        Ok(())
    }

    /// Makes the directories above an ignored path that the head lacks, if those are ignored as
    /// well; `false` if not: what is ignored brings no other directory back.
    fn make_ignored_parents(&mut self, path: &RelPath) -> Result<bool> {
        for parent in self.missing_parents(path)? {
            if self.router.route(&parent, true)? != Route::Ignored {
                return Ok(false);
            }
        }
        self.make_parents(path)?;
        Ok(true)
    }

    /// The directories above `path` that the result lacks, the deepest first.
    fn missing_parents(&self, path: &RelPath) -> Result<Vec<RelPath>> {
        let mut missing = Vec::new();
        let mut at = path.split().map(|(parent, _)| parent);
        while let Some(parent) = at {
            if self.result_kind(&parent)? == Some(Kind::Directory) {
                break;
            }
            at = parent.split().map(|(parent, _)| parent);
            missing.push(parent);
        }
        Ok(missing)
    }

    /// Makes the directories above `path` that the head lacks, as they are in the session.
    pub(super) fn make_parents(&mut self, path: &RelPath) -> Result<()> {
        let missing = self.missing_parents(path)?;
        for parent in missing.into_iter().rev() {
            let node = match self.delta.changes.get(&parent) {
                Some(change) => change.mine.clone(),
                None => self.resolver.base.node_at(&parent)?,
            };
            if let Some(node) = node {
                self.out.edits.insert(parent, Edit::Set(node));
            }
        }
        Ok(())
    }

    pub(super) fn skip(&mut self, path: &RelPath, reason: &'static str) {
        self.out.skipped.push(Skipped {
            path: path.clone(),
            reason,
        });
    }

    /// Notes a conflict at `path`, which the head has at `there`: the versions of base, head and
    /// mine.
    pub(super) fn conflict(
        &mut self,
        kind: ConflictKind,
        path: &RelPath,
        there: &RelPath,
        (base, head, mine): (Option<&Node>, Option<&Node>, Option<&Node>),
    ) -> Result<()> {
        let layer = self.since()?.changed_by(there);
        let (head_layer, head_owner) = layer.map(|layer| (layer.id, layer.owner.clone())).unzip();
        self.out.conflicts.push(Conflict {
            path: path.clone(),
            kind,
            base: base.map(Version::from),
            head: head.map(Version::from),
            mine: mine.map(Version::from),
            head_layer,
            head_owner,
            hunks: Vec::new(),
            marked: None,
        });
        Ok(())
    }

    /// The bytes of a file that is text.
    pub(super) fn text(&self, content: &Content) -> Result<Option<Vec<u8>>> {
        if content.size > MAX_TEXT {
            return Ok(None);
        }
        let bytes = content.read_all(self.resolver.head.objects())?;
        Ok(is_text(&bytes).then_some(bytes))
    }

    /// The number of what mine has at `path`.
    pub(super) fn mine_at(&self, path: &RelPath) -> Result<Option<Ino>> {
        let state = self.upper.state();
        Ok(self.upper.find(&state, path)?.map(|(ino, _)| ino))
    }

    /// Counts what the edits change against the head, and drops them all if they change nothing.
    fn finish(&mut self) -> Result<()> {
        let out = &mut self.out;
        out.conflicts
            .sort_by(|one, other| one.path.cmp(&other.path));
        out.conflicts.dedup_by(|one, other| one.path == other.path);
        out.merged.sort();
        out.skipped.sort_by(|one, other| one.path.cmp(&other.path));
        for (path, edit) in &out.edits {
            let head = self.resolver.head.node_at(path)?;
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
                let delta = bytes(node).wrapping_sub(bytes(head.as_ref()));
                out.bytes_delta = out.bytes_delta.wrapping_add(delta);
            }
        }
        if out.kinds.is_empty() {
            // Times of directories alone make no layer.
            out.edits.clear();
        }
        Ok(())
    }
}

pub(super) fn is_directory(node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.kind() == Kind::Directory)
}
