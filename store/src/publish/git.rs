//! The route of git's own metadata: what lies in a `.git` directory.
//!
//! Merging those files by lines would ruin a repository, and refusing them would stop the second of
//! two agents that commit. If the head left a `.git` as it was, mine is taken whole. If both sides
//! changed it:
//!
//! - objects and packs are united: their names follow from what they hold. None is removed.
//! - refs are compared one by one, loose and packed alike. One that only mine moved moves; one that
//!   both moved keeps the head's value, and mine is saved as `refs/sandbox/<session>/…`, so that no
//!   commit is lost. A detached `HEAD` of mine is saved likewise.
//! - `HEAD`, `index`, `logs/HEAD` and the state of a rebase or merge in progress stay the head's:
//!   they describe a working tree that is not there any more.
//! - everything else is taken where the head left it alone, and stays the head's where it did not.
//!
//! Lock files are dropped and reported: the process that held them is gone. Nothing in a `.git`
//! ever conflicts.

use std::collections::{BTreeMap, BTreeSet};

use super::delta::{Change, Delta, same};
use super::resolve::{Resolution, Resolver};
use super::route::{SavedRef, Skipped};
use crate::content::{Content, Layout};
use crate::edit::Edit;
use crate::error::Result;
use crate::layer::Owner;
use crate::lower::Lower;
use crate::name::{Name, RelPath};
use crate::node::{Body, Kind, Node, NodeMeta, Timestamp};
use crate::upper::Upper;

/// Values of refs by their name, such as `refs/heads/main`.
type Refs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Largest ref file that is read, in bytes.
const MAX_REF: u64 = 4096;

pub(super) struct GitRoute<'a> {
    resolver: &'a Resolver<'a>,
    delta: &'a Delta,
    upper: &'a Upper,
    /// The `.git` directories that mine changed.
    directories: BTreeSet<RelPath>,
}

impl<'a> GitRoute<'a> {
    pub(super) fn new(resolver: &'a Resolver<'a>, delta: &'a Delta, upper: &'a Upper) -> Self {
        GitRoute {
            resolver,
            delta,
            upper,
            directories: BTreeSet::new(),
        }
    }

    /// Whether `path` is in a `.git` directory, and so is resolved here.
    pub(super) fn takes(&mut self, path: &RelPath) -> Result<bool> {
        let Some(directory) = git_directory(path) else {
            return Ok(false);
        };
        if self.directories.contains(&directory) {
            return Ok(true);
        }
        // A `.git` that is a file (of a submodule or a further working tree) is an ordinary file.
        let change = self.delta.changes.get(&directory);
        let mine = match change {
            Some(change) => change.mine.as_ref().map(Node::kind),
            None => self
                .resolver
                .base
                .node_at(&directory)?
                .map(|node| node.kind()),
        };
        let head = self
            .resolver
            .head
            .node_at(&directory)?
            .map(|node| node.kind());
        if mine != Some(Kind::Directory) || head.is_some_and(|kind| kind != Kind::Directory) {
            return Ok(false);
        }
        self.directories.insert(directory);
        Ok(true)
    }

    /// Resolves everything that was taken.
    pub(super) fn resolve(&self, out: &mut Resolution) -> Result<()> {
        for directory in &self.directories {
            let (base, head) = (
                self.resolver.base.node_at(directory)?,
                self.resolver.head.node_at(directory)?,
            );
            let moved = match (
                base.as_ref().map(|node| &node.body),
                head.as_ref().map(|node| &node.body),
            ) {
                (
                    Some(Body::Directory { tree: base, .. }),
                    Some(Body::Directory { tree: head, .. }),
                ) => base != head,
                (None, None) => false,
                _ => true,
            };
            if moved && head.is_some() {
                self.unite(out, directory)?;
            } else {
                self.take_whole(out, directory)?;
            }
        }
        Ok(())
    }

    fn changes(&self, directory: &'a RelPath) -> impl Iterator<Item = (&'a RelPath, &'a Change)> {
        self.delta
            .changes
            .range(directory.clone()..)
            .take_while(move |(path, _)| path.is_within(directory))
    }

    fn take_whole(&self, out: &mut Resolution, directory: &'a RelPath) -> Result<()> {
        for (path, change) in self.changes(directory) {
            if is_lock(path, change) {
                out.skipped.push(Skipped {
                    path: path.clone(),
                    reason: "git_lock",
                });
            } else {
                self.resolver
                    .resolve_source(out, path, change, self.delta)?;
            }
        }
        Ok(())
    }

    fn unite(&self, out: &mut Resolution, directory: &'a RelPath) -> Result<()> {
        for (path, change) in self.changes(directory) {
            let inner = &path.as_bytes()[directory.as_bytes().len()..];
            let inner = inner.strip_prefix(b"/").unwrap_or(inner);
            if is_lock(path, change) {
                out.skipped.push(Skipped {
                    path: path.clone(),
                    reason: "git_lock",
                });
                continue;
            }
            let head = self.resolver.head.node_at(path)?;
            match classify(inner) {
                Part::Object => {
                    if let (Some(mine), None) = (&change.mine, &head) {
                        self.set(out, path, mine.clone())?;
                    }
                }
                Part::Ref => {}
                Part::State => {
                    if change.kind().is_some() && mine_kind(change) != Some(Kind::Directory) {
                        out.skipped.push(Skipped {
                            path: path.clone(),
                            reason: "git_head_kept",
                        });
                    }
                }
                Part::Other => {
                    if change.kind().is_none() {
                        continue;
                    }
                    let left_alone = match (&change.base, &head) {
                        (None, None) => true,
                        (Some(base), Some(head)) => same(base, head),
                        _ => false,
                    };
                    match &change.mine {
                        Some(mine) if left_alone => self.set(out, path, mine.clone())?,
                        None if left_alone && mine_kind(change) != Some(Kind::Directory) => {
                            out.edits.insert(path.clone(), Edit::Remove);
                        }
                        mine => {
                            let agrees = matches!((mine, &head), (Some(mine), Some(head)) if same(mine, head));
                            if !agrees && mine_kind(change) != Some(Kind::Directory) {
                                out.skipped.push(Skipped {
                                    path: path.clone(),
                                    reason: "git_head_kept",
                                });
                            }
                        }
                    }
                }
            }
        }
        self.unite_refs(out, directory)
    }

    fn unite_refs(&self, out: &mut Resolution, directory: &RelPath) -> Result<()> {
        let base = lower_refs(self.resolver.base, directory)?;
        let head = lower_refs(self.resolver.head, directory)?;
        let mine = self.mine_refs(directory, &base)?;
        let names: BTreeSet<&Vec<u8>> = base
            .all
            .keys()
            .chain(head.all.keys())
            .chain(mine.all.keys())
            .collect();
        let mut unpacked: BTreeSet<Vec<u8>> = BTreeSet::new();
        for name in names {
            let (was, now, mine) = (base.all.get(name), head.all.get(name), mine.all.get(name));
            if mine == was || mine == now {
                continue;
            }
            if now == was {
                match mine {
                    Some(value) if self.write_ref(out, directory, name, value)? => continue,
                    Some(value) => self.save(out, directory, name, value)?,
                    None => {
                        if head.loose.contains(name) {
                            out.edits.insert(ref_path(directory, name), Edit::Remove);
                        }
                        unpacked.insert(name.clone());
                    }
                }
            } else if let Some(value) = mine {
                self.save(out, directory, name, value)?;
            }
        }
        // A detached HEAD may be all that reaches a commit.
        let detached = |refs: &FoundRefs| {
            refs.head
                .clone()
                .filter(|value| !value.starts_with(b"ref:"))
        };
        if let Some(value) = detached(&mine)
            && detached(&base).as_ref() != Some(&value)
            && detached(&head).as_ref() != Some(&value)
        {
            self.save(out, directory, b"HEAD", &value)?;
        }
        self.rewrite_packed(out, directory, &unpacked)
    }

    /// Keeps mine's value of a ref beside the head's.
    fn save(
        &self,
        out: &mut Resolution,
        directory: &RelPath,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let owner = match &self.resolver.options.owner {
            Owner::Session(id) | Owner::Operation(id) => id.clone(),
            owner @ (Owner::Original | Owner::Host | Owner::Unknown) => owner.to_string(),
        };
        let saved_as = [
            b"refs/sandbox/",
            owner.as_bytes(),
            b"/",
            name.strip_prefix(b"refs/").unwrap_or(name),
        ]
        .concat();
        if self.write_ref(out, directory, &saved_as, value)? {
            out.saved_refs.push(SavedRef {
                name: name.to_vec(),
                saved_as,
            });
        } else {
            out.skipped.push(Skipped {
                path: ref_path(directory, name),
                reason: "git_ref_not_saved",
            });
        }
        Ok(())
    }

    /// Writes a loose ref; `false` if a ref of the head is in the way (`a` and `a/b` exclude each
    /// other).
    fn write_ref(
        &self,
        out: &mut Resolution,
        directory: &RelPath,
        name: &[u8],
        value: &[u8],
    ) -> Result<bool> {
        let path = ref_path(directory, name);
        let there = |out: &Resolution, path: &RelPath| -> Result<Option<Kind>> {
            Ok(match out.edits.get(path) {
                Some(Edit::Set(node)) => Some(node.kind()),
                Some(Edit::Remove) => None,
                None => self.resolver.head.node_at(path)?.map(|node| node.kind()),
            })
        };
        if there(out, &path)? == Some(Kind::Directory) {
            return Ok(false);
        }
        let mut above = path.split().map(|(parent, _)| parent);
        while let Some(parent) = above.filter(|parent| parent != directory) {
            if there(out, &parent)?.is_some_and(|kind| kind != Kind::Directory) {
                return Ok(false);
            }
            above = parent.split().map(|(parent, _)| parent);
        }
        let bytes = [value, b"\n"].concat();
        let digest = self.resolver.batch.put(&bytes)?;
        let size = bytes.len() as u64;
        let content = Content {
            size,
            stored: size,
            digest,
            layout: Layout::Whole,
        };
        // The ref's own node if there is one, so that it keeps its number and mode.
        let node = match self.resolver.head.node_at(&path)? {
            Some(node) => Node {
                body: Body::File(content),
                ..node
            },
            None => self.new_node(directory, 0o644, Body::File(content))?,
        };
        self.set(out, &path, node)?;
        Ok(true)
    }

    /// Sets a path, and makes the directories above it that are missing.
    fn set(&self, out: &mut Resolution, path: &RelPath, node: Node) -> Result<()> {
        let mut missing = Vec::new();
        let mut above = path.split().map(|(parent, _)| parent);
        while let Some(parent) = above {
            let there = super::is_directory(&out.edits, &parent)
                || self
                    .resolver
                    .head
                    .node_at(&parent)?
                    .is_some_and(|node| node.kind() == Kind::Directory);
            if there {
                break;
            }
            above = parent.split().map(|(parent, _)| parent);
            missing.push(parent);
        }
        for parent in missing {
            let mine = self
                .delta
                .changes
                .get(&parent)
                .and_then(|change| change.mine.clone());
            let node = match mine.filter(|node| node.kind() == Kind::Directory) {
                Some(node) => node,
                None => {
                    let body = Body::Directory {
                        tree: crate::Digest::empty(),
                        subdirectories: 0,
                        entries: 0,
                    };
                    self.new_node(&parent, 0o755, body)?
                }
            };
            out.edits.insert(parent, Edit::Set(node));
        }
        out.edits.insert(path.clone(), Edit::Set(node));
        Ok(())
    }

    /// A node that nobody had, owned as the nearest directory that exists.
    fn new_node(&self, near: &RelPath, mode: u16, body: Body) -> Result<Node> {
        let mut at = Some(near.clone());
        let mut owner = (0, 0);
        while let Some(path) = at {
            if let Some(node) = self.resolver.head.node_at(&path)? {
                owner = (node.meta.uid, node.meta.gid);
                break;
            }
            at = path.split().map(|(parent, _)| parent);
        }
        let now = Timestamp::now();
        let meta = NodeMeta {
            ino: self.upper.new_ino()?,
            mode,
            uid: owner.0,
            gid: owner.1,
            mtime: now,
            ctime: now,
            links: 1,
            xattrs: None,
        };
        Ok(Node { meta, body })
    }

    /// The refs as mine has them: the base's with mine's changes.
    fn mine_refs(&self, directory: &RelPath, base: &FoundRefs) -> Result<FoundRefs> {
        let objects = self.resolver.head.objects();
        let text = |node: &Node| -> Result<Option<Vec<u8>>> {
            match node.content() {
                Some(content) => content.read_all(objects).map(Some),
                None => Ok(None),
            }
        };
        let mut refs = FoundRefs {
            packed: base.packed.clone(),
            ..FoundRefs::default()
        };
        let mut loose: Refs = base
            .loose
            .iter()
            .filter_map(|name| {
                base.all
                    .get(name)
                    .map(|value| (name.clone(), value.clone()))
            })
            .collect();
        refs.head.clone_from(&base.head);
        for (path, change) in self.changes_of(directory) {
            let inner = path.as_bytes()[directory.as_bytes().len()..]
                .strip_prefix(b"/")
                .unwrap_or_default();
            match (inner, &change.mine) {
                (b"packed-refs", None) => refs.packed.clear(),
                (b"packed-refs", Some(node)) => {
                    refs.packed = parse_packed(&text(node)?.unwrap_or_default())
                }
                (b"HEAD", Some(node)) => refs.head = text(node)?.map(trimmed),
                (name, mine) if name.starts_with(b"refs/") => match mine {
                    Some(node) if node.kind() == Kind::File && node.size() <= MAX_REF => {
                        if let Some(value) = text(node)? {
                            loose.insert(name.to_vec(), trimmed(value));
                        }
                    }
                    _ => {
                        loose.remove(name);
                    }
                },
                _ => {}
            }
        }
        refs.loose = loose.keys().cloned().collect();
        refs.all = refs.packed.clone();
        refs.all.extend(loose);
        Ok(refs)
    }

    fn changes_of<'b>(
        &'b self,
        directory: &'b RelPath,
    ) -> impl Iterator<Item = (&'b RelPath, &'b Change)> {
        self.delta
            .changes
            .range(directory.clone()..)
            .take_while(move |(path, _)| path.is_within(directory))
            .filter(|(path, change)| !is_lock(path, change))
    }

    /// Takes refs that mine removed out of the head's `packed-refs`.
    fn rewrite_packed(
        &self,
        out: &mut Resolution,
        directory: &RelPath,
        removed: &BTreeSet<Vec<u8>>,
    ) -> Result<()> {
        let path = ref_path(directory, b"packed-refs");
        let Some(node) = self.resolver.head.node_at(&path)? else {
            return Ok(());
        };
        let Some(content) = node.content() else {
            return Ok(());
        };
        if removed.is_empty() {
            return Ok(());
        }
        let text = content.read_all(self.resolver.head.objects())?;
        let mut kept = Vec::with_capacity(text.len());
        let mut dropping = false;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            // A line of `^` peels the tag of the line before.
            if !line.starts_with(b"^") {
                dropping = packed_line(line).is_some_and(|(name, _)| removed.contains(name));
            }
            if !dropping {
                kept.extend_from_slice(line);
            }
        }
        if kept != text {
            let digest = self.resolver.batch.put(&kept)?;
            let size = kept.len() as u64;
            let content = Content {
                size,
                stored: size,
                digest,
                layout: Layout::Whole,
            };
            out.edits.insert(
                path,
                Edit::Set(Node {
                    body: Body::File(content),
                    ..node
                }),
            );
        }
        Ok(())
    }
}

/// What a path in a `.git` directory is.
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

/// The outermost `.git` that `path` is or lies in.
fn git_directory(path: &RelPath) -> Option<RelPath> {
    let mut at = RelPath::ROOT;
    for name in path.names() {
        at = at.join(&Name::new(name).ok()?);
        if name == b".git" {
            return Some(at);
        }
    }
    None
}

fn is_lock(path: &RelPath, change: &Change) -> bool {
    path.as_bytes().ends_with(b".lock")
        && change
            .mine
            .as_ref()
            .is_some_and(|node| node.kind() == Kind::File)
}

fn mine_kind(change: &Change) -> Option<Kind> {
    change
        .mine
        .as_ref()
        .or(change.base.as_ref())
        .map(Node::kind)
}

#[derive(Default)]
struct FoundRefs {
    /// Names of loose refs.
    loose: BTreeSet<Vec<u8>>,
    packed: Refs,
    /// Every ref; a loose one hides a packed one.
    all: Refs,
    /// The text of `HEAD`.
    head: Option<Vec<u8>>,
}

fn lower_refs(lower: &Lower, directory: &RelPath) -> Result<FoundRefs> {
    let mut refs = FoundRefs::default();
    let read = |path: &RelPath| -> Result<Option<Vec<u8>>> {
        match lower.node_at(path)?.as_ref().and_then(Node::content) {
            Some(content) => content.read_all(lower.objects()).map(Some),
            None => Ok(None),
        }
    };
    refs.head = read(&ref_path(directory, b"HEAD"))?.map(trimmed);
    if let Some(text) = read(&ref_path(directory, b"packed-refs"))? {
        refs.packed = parse_packed(&text);
    }
    refs.all = refs.packed.clone();
    let mut pending = vec![(ref_path(directory, b"refs"), b"refs".to_vec())];
    while let Some((path, name)) = pending.pop() {
        let Some(node) = lower.node_at(&path)? else {
            continue;
        };
        let Some(entries) = lower.directory(node.meta.ino)? else {
            continue;
        };
        for (entry_name, entry) in entries.iter() {
            let below = ref_path(&path, entry_name);
            let below_name = [&name[..], b"/", entry_name].concat();
            match entry.kind() {
                Kind::Directory => pending.push((below, below_name)),
                Kind::File => {
                    let node = lower.resolve(entry)?;
                    if let Some(content) = node.content().filter(|content| content.size <= MAX_REF)
                    {
                        refs.loose.insert(below_name.clone());
                        refs.all
                            .insert(below_name, trimmed(content.read_all(lower.objects())?));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(refs)
}

fn parse_packed(text: &[u8]) -> Refs {
    text.split(|byte| *byte == b'\n')
        .filter_map(packed_line)
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect()
}

/// Name and value of a line of `packed-refs`; `None` for a comment and a peeled tag.
fn packed_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    if line.starts_with(b"#") || line.starts_with(b"^") {
        return None;
    }
    let space = line.iter().position(|byte| *byte == b' ')?;
    Some((line[space + 1..].trim_ascii_end(), &line[..space]))
}

fn trimmed(text: Vec<u8>) -> Vec<u8> {
    text.trim_ascii().to_vec()
}

/// The path of a ref's file. Names of refs are paths by git's own rules; one that is none here
/// stays where a lookup finds nothing.
fn ref_path(directory: &RelPath, name: &[u8]) -> RelPath {
    let mut path = directory.clone();
    for part in name.split(|byte| *byte == b'/') {
        match Name::new(part) {
            Ok(part) => path = path.join(&part),
            Err(_) => return directory.clone(),
        }
    }
    path
}
