//! Carrying a session over to another layer, under the processes that work in it.
//!
//! The kernel knows files by number, so in the new upper everything keeps the number by which the
//! session knows it. Mostly that is the layer's too. It is not where both sides made the same path,
//! or a path was moved away and made anew as it was: there the new upper has the session's number at
//! the path, over the layer's. What it shows is equal, so it is no change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::compare::differing;
use crate::error::Result;
use crate::lower::Lower;
use crate::name::{Name, RelPath};
use crate::node::{Ino, Kind, Node};
use crate::upper::{Attrs, Entry, NewBody, Record, Slot, Upper};

/// Records committed together.
const RECORDS: usize = 4096;

/// How a session is carried over.
pub(super) struct Carry<'a> {
    pub(super) from: &'a Upper,
    head: &'a Arc<Lower>,
    /// What the session is to see.
    shown: &'a Arc<Lower>,
    /// Paths that have the session's number, and not that of `shown`.
    numbers: BTreeMap<RelPath, Ino>,
    /// Every path at which the session may see something else than before.
    pub(super) changed: BTreeSet<RelPath>,
    /// What the session has, and could not be given its number: whoever has it open would lose it.
    pub(super) lost: Vec<RelPath>,
}

impl<'a> Carry<'a> {
    /// How the session of `from` comes to see `shown`, based on `head`. All numbers in `shown` are
    /// those of its stack.
    pub(super) fn plan(
        from: &'a Upper,
        head: &'a Arc<Lower>,
        shown: &'a Arc<Lower>,
    ) -> Result<Self> {
        let mut carry = Carry {
            from,
            head,
            shown,
            numbers: BTreeMap::new(),
            changed: differing(from.lower(), shown)?.into_iter().collect(),
            lost: Vec::new(),
        };
        carry.follow_moved()?;
        let own = carry.own()?;
        carry.changed.extend(own.keys().cloned());
        carry.choose(&own)?;
        Ok(carry)
    }

    /// Adds what changed in directories that the session moved, where the session has it.
    fn follow_moved(&mut self) -> Result<()> {
        let state = self.from.state();
        let mut more = Vec::new();
        for (directory, name, slot) in state.slots() {
            let Slot::Entry(entry) = slot else { continue };
            let of_base = state.inode(entry.ino).is_none_or(|inode| inode.in_lower);
            if entry.kind != Kind::Directory || !of_base {
                continue;
            }
            let (Some(was), Some(above)) = (
                self.from.lower().path(entry.ino)?,
                self.from.path(&state, directory)?,
            ) else {
                continue;
            };
            let is = above.join(name);
            let below = self
                .changed
                .range(&was..)
                .take_while(|path| path.is_within(&was));
            more.extend(below.map(|path| path.moved(&was, &is)));
        }
        self.changed.extend(more);
        Ok(())
    }

    /// The numbers at the paths at which the session made, moved or changed something.
    fn own(&self) -> Result<BTreeMap<RelPath, (Ino, Kind)>> {
        let state = self.from.state();
        let mut own = BTreeMap::new();
        for (directory, name, slot) in state.slots() {
            // What is in a directory that was removed has no path.
            let Some(path) = self.from.path(&state, directory)? else {
                continue;
            };
            if let Slot::Entry(entry) = slot {
                own.insert(path.join(name), (entry.ino, entry.kind));
            }
        }
        // What came along with a directory that the session moved, or was changed in place.
        for path in &self.changed {
            let base = self.from.lower().node_at(path)?;
            let mine = self.from.find(&state, path)?;
            if let Some((ino, kind)) = mine
                && (base.is_none_or(|base| base.meta.ino != ino) || state.inode(ino).is_some())
            {
                own.insert(path.clone(), (ino, kind));
            }
        }
        Ok(own)
    }

    /// Chooses the paths at which the session's number stays.
    fn choose(&mut self, own: &BTreeMap<RelPath, (Ino, Kind)>) -> Result<()> {
        // Where the result has which number, as far as that may be elsewhere than it was.
        let mut places: BTreeMap<Ino, Vec<&RelPath>> = BTreeMap::new();
        for path in &self.changed {
            if let Some(node) = self.shown.node_at(path)? {
                places.entry(node.meta.ino).or_default().push(path);
            }
        }
        for (path, (ino, kind)) in own {
            let Some(node) = self.shown.node_at(path)? else {
                continue;
            };
            let alone =
                *kind == Kind::Directory || (node.meta.links <= 1 && self.names(*ino)? <= Some(1));
            if node.meta.ino != *ino && node.kind() == *kind && alone {
                self.numbers.insert(path.clone(), *ino);
            }
        }
        // A number stays at one place: where others moved the file, and not where it was.
        loop {
            let numbers = &self.numbers;
            let taken = |path: &RelPath, ino: &Ino| {
                let elsewhere = places.get(ino).into_iter().flatten();
                elsewhere
                    .filter(|other| **other != path)
                    .any(|other| !numbers.contains_key(*other))
            };
            let drop: Vec<RelPath> = numbers
                .iter()
                .filter(|(path, ino)| taken(path, ino))
                .map(|(path, _)| path.clone())
                .collect();
            if drop.is_empty() {
                break;
            }
            for path in drop {
                self.numbers.remove(&path);
            }
        }
        let kept: FxHashSet<Ino> = self.numbers.values().copied().collect();
        for (path, (ino, _)) in own {
            let stays = places.get(ino).into_iter().flatten();
            let stays = stays.copied().any(|at| !self.numbers.contains_key(at));
            if !stays && !kept.contains(ino) {
                self.lost.push(path.clone());
            }
        }
        Ok(())
    }

    /// How many names the session's file has.
    fn names(&self, ino: Ino) -> Result<Option<u32>> {
        let state = self.from.state();
        let found = self.from.attributes(&state, ino)?;
        Ok(found.map(|found| found.nlink))
    }

    /// Writes what `to`, an upper over the head that nothing was changed in, is to have.
    pub(super) fn write(&self, to: &Upper) -> Result<()> {
        let mut paths: BTreeSet<&RelPath> = self.numbers.keys().collect();
        let rest = differing(self.head, self.shown)?;
        paths.extend(&rest);
        let mut in_head = FxHashSet::default();
        for path in &paths {
            in_head.extend(self.head.node_at(path)?.map(|node| node.meta.ino));
        }
        let mut writer = Writer {
            carry: self,
            in_head,
            to,
            cookies: BTreeMap::new(),
            written: FxHashSet::default(),
            records: Vec::new(),
        };
        // Directories come before what is in them.
        for path in &paths {
            writer.path(path, &paths)?;
            if writer.records.len() >= RECORDS {
                writer.commit()?;
            }
        }
        writer.commit()
    }

    /// The number at `path`, where `node` is shown.
    fn number(&self, path: &RelPath, node: &Node) -> Ino {
        self.numbers.get(path).copied().unwrap_or(node.meta.ino)
    }
}

struct Writer<'a> {
    carry: &'a Carry<'a>,
    to: &'a Upper,
    /// Numbers that the head has, as far as they are written. (The layer is not asked for one that
    /// it may not have: it would look for it everywhere.)
    in_head: FxHashSet<Ino>,
    /// The next cookie of each directory.
    cookies: BTreeMap<Ino, u64>,
    /// Inodes that are recorded: a file may have several paths.
    written: FxHashSet<Ino>,
    records: Vec<Record>,
}

impl Writer<'_> {
    fn commit(&mut self) -> Result<()> {
        let mut transaction = self.to.begin();
        for record in self.records.drain(..) {
            transaction.push(record);
        }
        transaction.commit()
    }

    fn path(&mut self, path: &RelPath, all: &BTreeSet<&RelPath>) -> Result<()> {
        let (head, shown) = (self.carry.head, self.carry.shown);
        let node = shown.node_at(path)?;
        let Some((parent, name)) = path.split() else {
            if let Some(root) = &node {
                self.inode(root.meta.ino, root)?;
            }
            return Ok(());
        };
        let above = shown.node_at(&parent)?;
        let Some(above) = above.filter(|node| node.kind() == Kind::Directory) else {
            // It goes with the directory that it was in.
            return Ok(());
        };
        let directory = self.carry.number(&parent, &above);
        let Some(node) = node else {
            if head.lookup(directory, name.as_bytes())?.is_some() {
                self.slot(directory, name, Slot::Whiteout);
            }
            return Ok(());
        };
        let ino = self.carry.number(path, &node);
        self.inode(ino, &node)?;
        self.entry(directory, name, ino, node.kind());
        if node.kind() == Kind::Directory && ino != node.meta.ino {
            self.children(path, ino, &node, all)?;
        }
        Ok(())
    }

    /// What a directory has that is another in the layer.
    fn children(
        &mut self,
        path: &RelPath,
        ino: Ino,
        node: &Node,
        all: &BTreeSet<&RelPath>,
    ) -> Result<()> {
        let Some(listing) = self.carry.shown.directory(node.meta.ino)? else {
            return Ok(());
        };
        for (index, (name, _)) in listing.iter().enumerate() {
            let name = Name::new(name).expect("directory objects are checked when they are read");
            if !all.contains(&path.join(&name)) {
                let (child, kind) = listing.identity(index);
                self.entry(ino, name, child, kind);
            }
        }
        // The head has the number elsewhere, with what is in that directory.
        if self.in_head.contains(&ino)
            && let Some(others) = self.carry.head.directory(ino)?
        {
            for (name, _) in others.iter() {
                let name =
                    Name::new(name).expect("directory objects are checked when they are read");
                if listing.find(name.as_bytes()).is_none() {
                    self.slot(ino, name, Slot::Whiteout);
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, directory: Ino, name: Name, ino: Ino, kind: Kind) {
        let next = self.cookies.entry(directory).or_insert(1);
        let cookie = *next;
        *next += 1;
        let entry = Entry { ino, kind, cookie };
        self.slot(directory, name, Slot::Entry(entry));
    }

    fn slot(&mut self, directory: Ino, name: Name, slot: Slot) {
        self.records.push(Record::Slot {
            directory,
            name,
            slot: Some(slot),
        });
    }

    /// Adds the records that make an inode what `node` is.
    fn inode(&mut self, ino: Ino, node: &Node) -> Result<()> {
        if !self.written.insert(ino) {
            return Ok(());
        }
        let xattrs = self.carry.shown.xattrs(node)?;
        self.records.push(Record::Inode {
            ino,
            attrs: Attrs::of(node),
            in_lower: self.in_head.contains(&ino),
            body: NewBody::of(node),
        });
        self.records.push(Record::Xattrs { ino, xattrs });
        Ok(())
    }
}
