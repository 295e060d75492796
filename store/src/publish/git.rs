//! The route of git's own metadata: what lies in a `.git` directory.
//!
//! Merging those files by lines would ruin a repository, and refusing them would stop the second of
//! two agents that commit. If the head left a `.git` as it was, mine is taken whole. If both sides
//! changed it:
//!
//! - objects and packs are united: their names follow from what they hold. None is removed.
//! - refs are compared one by one, loose and packed alike. One that only mine moved moves; one that
//!   both moved keeps the head's value, and mine is saved as `refs/sandbox/<session>/…`, so that no
//!   commit is lost. A detached `HEAD` of mine and the entries of its stash are saved likewise.
//! - `HEAD`, `index`, `logs/HEAD` and the state of a rebase or merge in progress stay the head's:
//!   they describe a working tree that is not there any more. But the branch that is checked out and
//!   the index belong together: with the one of them another, the next commit would take the other's
//!   changes back. So where only mine moved that branch, mine's index comes along; and if others
//!   staged something meanwhile, the branch stays, and mine's value is saved.
//! - everything else is taken where the head left it alone, and stays the head's where it did not.
//!
//! Lock files are dropped and reported: the process that held them is gone. The repositories of
//! submodules below `.git/modules` are repositories of their own. Nothing in a `.git` conflicts,
//! unless others removed it, or the directory it is in.

use std::collections::{BTreeMap, BTreeSet};

use super::conflict::ConflictKind;
use super::delta::{Change, same};
use super::git_index;
use super::refs::{FoundRefs, ref_path, without};
use super::resolve::{Pass, is_directory};
use super::route::{Route, SavedRef};
use crate::content::{Content, Layout};
use crate::digest::Digest;
use crate::edit::Edit;
use crate::error::Result;
use crate::layer::Owner;
use crate::lower::Lower;
use crate::name::{Name, RelPath};
use crate::node::{Body, Kind, Node, NodeMeta, Timestamp};

/// Largest index and reflog that are read, in bytes: those of a million files.
const MAX_READ: u64 = 128 << 20;
/// How many names are tried for a value that is to be saved.
const SAVE_ATTEMPTS: u32 = 1000;

/// The repository that `path` is in, if it is resolved here; `None` for an ordinary path.
pub(super) fn repository_of(pass: &Pass<'_>, path: &RelPath) -> Result<Option<RelPath>> {
    let mut repository: Option<RelPath> = None;
    let mut at = RelPath::ROOT;
    let mut in_modules = false;
    for part in path.names() {
        let Ok(name) = Name::new(part) else {
            return Ok(None);
        };
        at = at.join(&name);
        match &repository {
            None if part == b".git" => {
                if !is_repository(pass, &at)? {
                    return Ok(None);
                }
                repository = Some(at.clone());
            }
            None => {}
            Some(outer) => {
                let modules = ref_path(outer, b"modules");
                in_modules = in_modules || at == modules;
                // The name of a submodule may have slashes: its repository is where the HEAD is.
                if in_modules && at != modules && has_head(pass, &at)? {
                    repository = Some(at.clone());
                    in_modules = false;
                }
            }
        }
    }
    Ok(repository)
}

/// Whether a `.git` is a directory on all sides that have one. (Of a submodule or a further working
/// tree it is a file, and as such an ordinary one.)
fn is_repository(pass: &Pass<'_>, directory: &RelPath) -> Result<bool> {
    let resolver = pass.resolver;
    let mine = match pass.delta.changes.get(directory) {
        Some(change) => change.mine.as_ref().map(Node::kind),
        None => resolver.base.node_at(directory)?.map(|node| node.kind()),
    };
    let head = resolver.head.node_at(directory)?.map(|node| node.kind());
    Ok(mine == Some(Kind::Directory) && head.is_none_or(|kind| kind == Kind::Directory))
}

fn has_head(pass: &Pass<'_>, directory: &RelPath) -> Result<bool> {
    let head = ref_path(directory, b"HEAD");
    let mine = pass
        .delta
        .changes
        .get(&head)
        .is_some_and(|change| change.mine.is_some());
    Ok(mine || pass.resolver.head.node_at(&head)?.is_some())
}

/// Resolves everything that mine changed in a repository.
pub(super) fn resolve(pass: &mut Pass<'_>, repository: &RelPath) -> Result<()> {
    let base = pass.resolver.base.node_at(repository)?;
    let head = pass.resolver.head.node_at(repository)?;
    let tree = |node: &Option<Node>| match node.as_ref().map(|node| &node.body) {
        Some(Body::Directory { tree, .. }) => Some(*tree),
        _ => None,
    };
    let delta = pass.delta;
    let mut changes = Vec::new();
    for (path, change) in delta
        .changes
        .range(repository.clone()..)
        .take_while(|(path, _)| path.is_within(repository))
    {
        // What lies in a submodule's repository is resolved with that.
        if repository_of(pass, path)?.as_ref() != Some(repository) {
            continue;
        }
        if is_lock(path, change) {
            pass.skip(path, "git_lock");
        } else {
            changes.push((path, change));
        }
    }
    if base.is_some() && head.is_none() {
        let change = Change { base, mine: None };
        let mine = delta.changes.get(repository).unwrap_or(&change);
        let versions = (mine.base.as_ref(), None, mine.mine.as_ref());
        return pass.conflict(ConflictKind::DeleteModify, repository, repository, versions);
    }
    if tree(&base) == tree(&head) {
        for (path, change) in changes {
            pass.resolve(path, change, Route::Source)?;
        }
        return Ok(());
    }
    Repository {
        inner: changes
            .iter()
            .map(|(path, change)| (inner_name(repository, path), *change))
            .collect(),
        directory: repository,
        changes,
        base: FoundRefs::of_layer(pass.resolver.base, repository)?,
        head: FoundRefs::of_layer(pass.resolver.head, repository)?,
        pass,
    }
    .unite()
}

/// A repository that both sides changed.
struct Repository<'p, 'a, 'd> {
    pass: &'p mut Pass<'a>,
    directory: &'d RelPath,
    changes: Vec<(&'d RelPath, &'d Change)>,
    /// The same by the name within the repository.
    inner: BTreeMap<&'d [u8], &'d Change>,
    base: FoundRefs,
    head: FoundRefs,
}

fn inner_name<'d>(directory: &RelPath, path: &'d RelPath) -> &'d [u8] {
    let inner = &path.as_bytes()[directory.as_bytes().len()..];
    inner.strip_prefix(b"/").unwrap_or(inner)
}

impl Repository<'_, '_, '_> {
    fn unite(mut self) -> Result<()> {
        for (path, change) in self.changes.clone() {
            let inner = inner_name(self.directory, path);
            let head = self.pass.resolver.head.node_at(path)?;
            match classify(inner) {
                Part::Object => {
                    if let (Some(mine), None) = (&change.mine, &head) {
                        self.set(path, mine.clone())?;
                    }
                }
                Part::Ref => {}
                Part::State => self.keep_head(path, change, head.as_ref()),
                Part::Other => self.take_other(path, change, head)?,
            }
        }
        self.unite_refs()
    }

    /// Reports that mine's version of a file is not published.
    fn keep_head(&mut self, path: &RelPath, change: &Change, head: Option<&Node>) {
        let agrees = matches!((&change.mine, head), (Some(mine), Some(head)) if same(mine, head));
        let directory = change.mine.as_ref().or(change.base.as_ref());
        let directory = directory.is_some_and(|node| node.kind() == Kind::Directory);
        if change.kind().is_some() && !agrees && !directory {
            self.pass.skip(path, "git_head_kept");
        }
    }

    fn take_other(&mut self, path: &RelPath, change: &Change, head: Option<Node>) -> Result<()> {
        if change.kind().is_none() {
            return Ok(());
        }
        let left_alone = match (&change.base, &head) {
            (None, None) => true,
            (Some(base), Some(head)) => same(base, head),
            _ => false,
        };
        match &change.mine {
            Some(mine) if left_alone => self.set(path, mine.clone()),
            // A directory may hold what the head put there; empty ones disturb nobody.
            None if left_alone && !is_directory(change.base.as_ref()) => {
                self.pass.out.edits.insert(path.clone(), Edit::Remove);
                Ok(())
            }
            mine => {
                // The HEAD of a further working tree may be all that reaches a commit.
                let inner = inner_name(self.directory, path);
                if inner.starts_with(b"worktrees/")
                    && let Some(value) = self.read(mine.as_ref(), 4096)?
                    && is_commit(value.trim_ascii())
                {
                    self.save(inner, value.trim_ascii())?;
                }
                self.keep_head(path, change, head.as_ref());
                Ok(())
            }
        }
    }

    fn unite_refs(&mut self) -> Result<()> {
        let objects = self.pass.resolver.head.objects();
        let changes = self.inner.iter().map(|(inner, change)| (*inner, *change));
        let mine = self.base.changed(objects, changes)?;
        let names: BTreeSet<&Vec<u8>> = [&self.base, &self.head, &mine]
            .iter()
            .flat_map(|refs| refs.all.keys())
            .collect();
        let names: Vec<Vec<u8>> = names.into_iter().cloned().collect();
        let moves = |this: &Self, name: &Vec<u8>| {
            let (was, now) = (this.base.all.get(name), this.head.all.get(name));
            mine.all.get(name) != was && now == was
        };
        // Removals first: a name may be that of a directory of names that go.
        let mut removed: BTreeSet<Vec<u8>> = BTreeSet::new();
        for name in &names {
            if moves(self, name) && !mine.all.contains_key(name) {
                if self.head.loose.contains(name) {
                    let path = ref_path(self.directory, name);
                    self.pass.out.edits.insert(path, Edit::Remove);
                }
                removed.insert(name.clone());
            }
        }
        for name in &removed {
            self.head.all.remove(name);
        }
        let checked_out = self.head.branch().map(<[u8]>::to_vec);
        for name in &names {
            let (now, value) = (self.head.all.get(name), mine.all.get(name));
            let Some(value) = value.filter(|value| Some(*value) != now) else {
                continue;
            };
            if self.base.all.get(name) == Some(value) {
                continue;
            }
            let only_mine = moves(self, name);
            let moved = match (&checked_out, only_mine) {
                (_, false) => false,
                (Some(branch), true) if branch == name => {
                    self.take_index(&mine)? && self.write_ref(name, value)?
                }
                (_, true) => self.write_ref(name, value)?,
            };
            if !moved {
                self.save(name, value)?;
                if name == b"refs/stash" {
                    self.save_stash()?;
                }
            }
        }
        // A detached HEAD may be all that reaches a commit.
        if let Some(value) = mine.detached()
            && self.base.detached() != Some(value)
            && self.head.detached() != Some(value)
        {
            let value = value.clone();
            self.save(b"HEAD", &value)?;
        }
        self.rewrite_packed(&removed)
    }

    /// Makes mine's index that of the result, because the branch that is checked out becomes
    /// mine's; `false` if it cannot be: others staged something, or mine has another branch checked
    /// out.
    fn take_index(&mut self, mine: &FoundRefs) -> Result<bool> {
        if mine.branch() != self.head.branch() || self.base.branch() != self.head.branch() {
            return Ok(false);
        }
        let path = ref_path(self.directory, b"index");
        let head = self.pass.resolver.head.node_at(&path)?;
        let base = self.pass.resolver.base.node_at(&path)?;
        let (old, new) = (
            self.read(base.as_ref(), MAX_READ)?,
            self.read(head.as_ref(), MAX_READ)?,
        );
        // A `git status` writes what it learned of files into the index: that stages nothing.
        if old != new && !git_index::stage_the_same(old.as_deref(), new.as_deref()) {
            return Ok(false);
        }
        let Some(change) = self.inner.get(&b"index"[..]) else {
            return Ok(true);
        };
        match &change.mine {
            Some(index) => self.set(&path, index.clone())?,
            None => {
                self.pass.out.edits.insert(path.clone(), Edit::Remove);
            }
        }
        // It is published after all.
        self.pass.out.skipped.retain(|skipped| skipped.path != path);
        Ok(true)
    }

    /// Saves the entries of mine's stash, of which only the newest is a ref.
    fn save_stash(&mut self) -> Result<()> {
        let Some(change) = self.inner.get(&b"logs/refs/stash"[..]).copied() else {
            return Ok(());
        };
        let old = self
            .read(change.base.as_ref(), MAX_READ)?
            .unwrap_or_default();
        let new = self
            .read(change.mine.as_ref(), MAX_READ)?
            .unwrap_or_default();
        let known: BTreeSet<&[u8]> = old.split(|byte| *byte == b'\n').collect();
        let entries = new.split(|byte| *byte == b'\n');
        for (index, line) in entries.filter(|line| !known.contains(line)).enumerate() {
            // Each line: the value before, the value after, who, and why.
            if let Some(value) = line
                .split(|byte| *byte == b' ')
                .nth(1)
                .filter(|value| is_commit(value))
            {
                self.save(format!("refs/stash-{index}").as_bytes(), value)?;
            }
        }
        Ok(())
    }

    /// Keeps mine's value of a ref beside the head's.
    fn save(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        let owner = match &self.pass.resolver.options.owner {
            Owner::Session(id) | Owner::Operation(id) => id.clone(),
            owner @ (Owner::Original | Owner::Host | Owner::Unknown) => owner.to_string(),
        };
        let owner = ref_component(&owner);
        let name_in = name.strip_prefix(b"refs/").unwrap_or(name);
        for attempt in 1..=SAVE_ATTEMPTS {
            // What an earlier publish saved stays: the name of the session is numbered then.
            let number = if attempt == 1 {
                String::new()
            } else {
                format!(".{attempt}")
            };
            let start = format!("refs/sandbox/{owner}{number}/");
            let saved_as = [start.as_bytes(), name_in].concat();
            let known = self.head.all.get(&saved_as).map(Vec::as_slice);
            if known == Some(value) {
                return Ok(());
            }
            if known.is_none() && self.write_ref(&saved_as, value)? {
                self.pass.out.saved_refs.push(SavedRef {
                    name: name.to_vec(),
                    saved_as,
                });
                return Ok(());
            }
        }
        self.pass
            .skip(&ref_path(self.directory, name), "git_ref_not_saved");
        Ok(())
    }

    /// Writes a loose ref; `false` if a ref of the head is in the way (`a` and `a/b` exclude each
    /// other).
    fn write_ref(&mut self, name: &[u8], value: &[u8]) -> Result<bool> {
        let below = [name, b"/"].concat();
        let in_the_way = self.head.all.keys().any(|other| {
            other.starts_with(&below)
                || name
                    .strip_prefix(other.as_slice())
                    .is_some_and(|rest| rest.starts_with(b"/"))
        });
        if in_the_way {
            return Ok(false);
        }
        let path = ref_path(self.directory, name);
        let bytes = [value, b"\n"].concat();
        let content = Content {
            size: bytes.len() as u64,
            stored: bytes.len() as u64,
            digest: self.pass.resolver.batch.put(&bytes)?,
            layout: Layout::Whole,
        };
        let body = Body::File(content);
        let node = match self.pass.resolver.head.node_at(&path)? {
            // The ref's own node if there is one, so that it keeps its number and mode.
            Some(node) if node.kind() == Kind::File => Node { body, ..node },
            there => {
                if there.is_some() {
                    // Directories of refs that are gone.
                    for (below, _) in self.pass.below(&path)? {
                        self.pass.out.edits.insert(below, Edit::Remove);
                    }
                }
                self.new_node(&path, 0o644, body)?
            }
        };
        self.set(&path, node)?;
        self.head.all.insert(name.to_vec(), value.to_vec());
        Ok(true)
    }

    /// Takes refs that mine removed out of the head's `packed-refs`.
    fn rewrite_packed(&mut self, removed: &BTreeSet<Vec<u8>>) -> Result<()> {
        let path = ref_path(self.directory, b"packed-refs");
        let Some(node) = self.pass.resolver.head.node_at(&path)? else {
            return Ok(());
        };
        let Some(packed) = self.read(Some(&node), MAX_READ)? else {
            return Ok(());
        };
        let kept = without(&packed, removed);
        if kept != packed {
            let content = Content {
                size: kept.len() as u64,
                stored: kept.len() as u64,
                digest: self.pass.resolver.batch.put(&kept)?,
                layout: Layout::Whole,
            };
            let body = Body::File(content);
            self.pass
                .out
                .edits
                .insert(path, Edit::Set(Node { body, ..node }));
        }
        Ok(())
    }

    /// The bytes of a file of at most `limit` bytes; `None` if it is none.
    fn read(&self, node: Option<&Node>, limit: u64) -> Result<Option<Vec<u8>>> {
        let objects = self.pass.resolver.head.objects();
        node.and_then(Node::content)
            .filter(|content| content.size <= limit)
            .map(|content| content.read_all(objects))
            .transpose()
    }

    /// Sets a path, and makes the directories above it that are missing.
    fn set(&mut self, path: &RelPath, node: Node) -> Result<()> {
        let mut missing = Vec::new();
        let mut above = path.split().map(|(parent, _)| parent);
        while let Some(parent) = above {
            if self.pass.result_kind(&parent)? == Some(Kind::Directory) {
                break;
            }
            above = parent.split().map(|(parent, _)| parent);
            missing.push(parent);
        }
        for parent in missing.into_iter().rev() {
            let mine = self.pass.delta.changes.get(&parent);
            let mine = mine.and_then(|change| change.mine.clone());
            let node = match mine.filter(|node| node.kind() == Kind::Directory) {
                Some(node) => node,
                None => {
                    let body = Body::Directory {
                        tree: Digest::empty(),
                        subdirectories: 0,
                        entries: 0,
                    };
                    self.new_node(&parent, 0o755, body)?
                }
            };
            self.pass.out.edits.insert(parent, Edit::Set(node));
        }
        self.pass.out.edits.insert(path.clone(), Edit::Set(node));
        Ok(())
    }

    /// A node that nobody had, owned as the nearest directory that exists.
    fn new_node(&mut self, near: &RelPath, mode: u16, body: Body) -> Result<Node> {
        let (uid, gid) = owner_of(self.pass.resolver.head, near)?;
        let now = Timestamp::now();
        let meta = NodeMeta {
            ino: self.pass.numbers.fresh(self.pass.resolver.stack)?,
            mode,
            uid,
            gid,
            mtime: now,
            ctime: now,
            links: 1,
            xattrs: None,
        };
        Ok(Node { meta, body })
    }
}

/// Owner and group of the nearest node at or above `path`.
fn owner_of(lower: &Lower, path: &RelPath) -> Result<(u32, u32)> {
    let mut at = Some(path.clone());
    while let Some(path) = at {
        if let Some(node) = lower.node_at(&path)? {
            return Ok((node.meta.uid, node.meta.gid));
        }
        at = path.split().map(|(parent, _)| parent);
    }
    Ok((0, 0))
}

/// What a path in a repository is.
enum Part {
    /// An object, a pack, or a directory of them.
    Object,
    /// A ref, or the file of packed ones.
    Ref,
    /// What describes the working tree and the work in progress.
    State,
    /// Configuration, hooks, logs of refs and whatever else tools keep there.
    Other,
}

fn classify(inner: &[u8]) -> Part {
    let first = inner.split(|byte| *byte == b'/').next().unwrap_or_default();
    match first {
        // Caches over the packs of one side: the head's stay valid, for no pack of it goes.
        b"objects"
            if matches!(
                inner,
                b"objects/info/commit-graph"
                    | b"objects/pack/multi-pack-index"
                    | b"objects/info/packs"
            ) =>
        {
            Part::State
        }
        b"objects" => Part::Object,
        b"refs" | b"packed-refs" => Part::Ref,
        b"HEAD" | b"index" | b"COMMIT_EDITMSG" | b"gc.log" | b"gc.pid" => Part::State,
        b"logs" if inner == b"logs/HEAD" => Part::State,
        b"rebase-merge" | b"rebase-apply" | b"sequencer" => Part::State,
        // ORIG_HEAD, MERGE_MSG, BISECT_LOG, …
        name if name
            .iter()
            .all(|byte| byte.is_ascii_uppercase() || *byte == b'_')
            && !name.is_empty() =>
        {
            Part::State
        }
        _ => Part::Other,
    }
}

/// The name of a session as one component of a ref, by `git check-ref-format`.
fn ref_component(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|letter| match letter {
            'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' => letter,
            _ => '-',
        })
        .collect();
    if plain.is_empty() {
        "-".to_owned()
    } else {
        plain
    }
}

/// Whether a value is the name of an object: SHA-1 or SHA-256 in hexadecimal.
fn is_commit(value: &[u8]) -> bool {
    matches!(value.len(), 40 | 64) && value.iter().all(u8::is_ascii_hexdigit)
}

fn is_lock(path: &RelPath, change: &Change) -> bool {
    let file = change.mine.as_ref().map(Node::kind) == Some(Kind::File);
    file && path.as_bytes().ends_with(b".lock")
}
