//! One program that runs: the tree, the filesystem in memory, and how they are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sandstack_fs::{Caller, NewNode, RenameMode, SetAttributes, SetTime, Tree, XattrMode};
use sandstack_store::{Attributes, Ino, Kind, Lease, ROOT_INO, Seek, Stack, Timestamp, Xattrs};

use super::memory::{Answer, Memory, Moment, Node, errno};
use super::program::Step;

/// Files stay this small, so that comparing all content after each step costs little.
const MOST: usize = 80_000;
const NAMES: [&[u8]; 12] = [
    b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"n\xff", b"o p", b".q", b"none", b"no",
];
const XATTRS: [&[u8]; 5] = [
    b"user.0",
    b"user.1",
    b"trusted.overlay.opaque",
    b"security.capability",
    b"system.other",
];
const TIMES: [Option<SetTime>; 5] = [
    None,
    Some(SetTime::Now),
    Some(SetTime::At(Timestamp { secs: 7, nanos: 8 })),
    Some(SetTime::At(Timestamp {
        secs: -9,
        nanos: 999_999_999,
    })),
    Some(SetTime::At(Timestamp {
        secs: 1 << 33,
        nanos: 0,
    })),
];

/// A listing that is under way.
struct Listing {
    dir: Ino,
    position: u64,
    seen: Vec<Vec<u8>>,
    /// Names that have been there, as the same entry, since it began.
    throughout: BTreeMap<Vec<u8>, Ino>,
}

pub(crate) struct Running {
    tree: Option<Tree>,
    stack: Stack,
    lease: Lease,
    memory: Memory,
    listings: Vec<Listing>,
    faults: Vec<String>,
}

impl Running {
    pub(crate) fn begin(stack: &Stack) -> Running {
        let lease = stack.take_lease(None, "one", None, 0).unwrap();
        let mut running = Running {
            tree: None,
            stack: stack.clone(),
            lease,
            memory: Memory {
                nodes: BTreeMap::new(),
                open: BTreeMap::new(),
                now: Moment::exactly(Timestamp::now()),
            },
            listings: Vec::new(),
            faults: Vec::new(),
        };
        running.open();
        running.adopt(ROOT_INO);
        running
    }

    pub(crate) fn end(mut self) {
        self.tree = None;
        self.stack.store().release(self.lease.id()).unwrap();
    }

    fn open(&mut self) {
        let upper = self.stack.store().open_upper(&self.lease).unwrap();
        self.tree = Some(Tree::new(Arc::new(upper)).unwrap());
    }

    fn tree(&self) -> &Tree {
        self.tree.as_ref().unwrap()
    }

    /// Takes what the layer has into the memory. That it is what was imported is the import's to
    /// show; here it is where everything begins.
    fn adopt(&mut self, ino: Ino) {
        let found = self.tree().attributes(ino).unwrap();
        let content = match found.kind {
            Kind::File => self.tree().read(ino, 0, found.size as usize).unwrap(),
            Kind::Symlink => self.tree().read_link(ino).unwrap().into(),
            _ => Vec::new(),
        };
        let mut entries = BTreeMap::new();
        if found.kind == Kind::Directory {
            self.tree()
                .list(ino, 2, false, |name, found, _| {
                    entries.insert(name.to_vec(), found.ino);
                    true
                })
                .unwrap();
        }
        let below: Vec<Ino> = entries.values().copied().collect();
        let node = Node {
            kind: found.kind,
            mode: found.mode,
            uid: found.uid,
            gid: found.gid,
            nlink: found.nlink,
            rdev: found.rdev,
            atime: Moment::exactly(found.atime),
            mtime: Moment::exactly(found.mtime),
            ctime: Moment::exactly(found.ctime),
            xattrs: self.tree().xattrs(ino).unwrap(),
            content,
            entries,
        };
        self.memory.nodes.insert(ino, node);
        for ino in below {
            if !self.memory.nodes.contains_key(&ino) {
                self.adopt(ino);
            }
        }
    }

    /// Runs one step on both; what differs afterwards.
    pub(crate) fn step(&mut self, step: Step) -> Vec<String> {
        let from = Timestamp::now();
        self.memory.now = Moment { from, to: from };
        self.act(step);
        self.compare();
        std::mem::take(&mut self.faults)
    }

    /// Takes the time after the tree has acted and before the memory does.
    fn acted(&mut self) {
        self.memory.now.to = Timestamp::now();
    }

    fn agree<T: std::fmt::Debug + PartialEq>(&mut self, tree: &Answer<T>, memory: &Answer<T>) {
        if tree != memory {
            self.faults.push(format!("{tree:?} for {memory:?}"));
        }
    }

    fn directories(&self) -> Vec<Ino> {
        self.of(|node| node.kind == Kind::Directory)
    }

    fn of(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Ino> {
        let found = self.memory.nodes.iter().filter(|(_, node)| wanted(node));
        found.map(|(ino, _)| *ino).collect()
    }

    fn directory(&self, number: u16) -> Ino {
        pick(&self.directories(), number).unwrap()
    }

    fn file(&self, number: u16) -> Option<Ino> {
        pick(&self.of(|node| node.kind == Kind::File), number)
    }

    fn node(&self, number: u16) -> Ino {
        pick(&self.of(|_| true), number).unwrap()
    }

    fn entry(&self, number: u16) -> Option<(Ino, Vec<u8>)> {
        let entries: Vec<(Ino, Vec<u8>)> = self
            .memory
            .nodes
            .iter()
            .flat_map(|(ino, node)| node.entries.keys().map(|name| (*ino, name.clone())))
            .collect();
        pick(&entries, number)
    }

    fn act(&mut self, step: Step) {
        match step {
            Step::Create {
                kind,
                dir,
                name,
                mode,
            } => {
                let dir = self.directory(dir);
                self.create(kind, dir, NAMES[usize::from(name)], mode);
            }
            Step::Link { file, dir, name } => {
                let (ino, dir) = (self.node(file), self.directory(dir));
                let name = NAMES[usize::from(name)];
                let answer = errno(self.tree().link(ino, dir, name));
                self.acted();
                let expected = self.memory.link(ino, dir, name);
                if let (Ok(found), Ok(())) = (&answer, &expected) {
                    self.faults.extend(self.memory.differences(ino, found));
                }
                self.agree(&answer.map(|_| ()), &expected);
            }
            Step::Unlink { entry } => {
                if let Some((dir, name)) = self.entry(entry) {
                    self.remove(dir, &name, false);
                }
            }
            Step::RemoveDirectory { entry } => {
                if let Some((dir, name)) = self.entry(entry) {
                    self.remove(dir, &name, true);
                }
            }
            Step::RemoveName {
                dir,
                name,
                directory,
            } => {
                let dir = self.directory(dir);
                self.remove(dir, NAMES[usize::from(name)], directory);
            }
            Step::Rename {
                entry,
                dir,
                name,
                mode,
            } => {
                let to = self.directory(dir);
                if let Some((dir, from)) = self.entry(entry) {
                    self.rename((dir, &from), (to, NAMES[usize::from(name)]), mode);
                }
            }
            Step::RenameOver { entry, other, mode } => {
                if let (Some((dir, from)), Some((to, name))) =
                    (self.entry(entry), self.entry(other))
                {
                    self.rename((dir, &from), (to, &name), mode);
                }
            }
            Step::Chmod { node, mode } => self.set(
                node,
                SetAttributes {
                    mode: Some(mode),
                    ..SetAttributes::default()
                },
            ),
            Step::Chown { node, uid, gid } => self.set(
                node,
                SetAttributes {
                    uid: (uid > 0).then_some(u32::from(uid)),
                    gid: (gid > 0).then_some(u32::from(gid)),
                    ..SetAttributes::default()
                },
            ),
            Step::SetTimes { node, atime, mtime } => self.set(
                node,
                SetAttributes {
                    atime: TIMES[usize::from(atime)],
                    mtime: TIMES[usize::from(mtime)],
                    ..SetAttributes::default()
                },
            ),
            Step::SetXattr {
                node,
                name,
                length,
                mode,
            } => self.set_xattr(node, XATTRS[usize::from(name)], length, mode),
            Step::RemoveXattr { node, name } => {
                let (ino, name) = (self.node(node), XATTRS[usize::from(name)]);
                let answer = errno(self.tree().remove_xattr(ino, name));
                self.acted();
                let expected = if name.starts_with(b"system.") {
                    Err(libc::EOPNOTSUPP)
                } else if !self.memory.node(ino).xattrs.contains_key(name) {
                    Err(libc::ENODATA)
                } else {
                    self.memory.xattrs(ino).remove(name);
                    Ok(())
                };
                self.agree(&answer, &expected);
            }
            Step::Open { node } => {
                let ino = self.node(node);
                *self.memory.open.entry(ino).or_default() += 1;
            }
            Step::Close { node } => {
                let open: Vec<Ino> = self.memory.open.keys().copied().collect();
                if let Some(ino) = pick(&open, node) {
                    let count = self.memory.open.get_mut(&ino).unwrap();
                    *count -= 1;
                    if *count == 0 {
                        self.memory.open.remove(&ino);
                        self.forget(ino);
                    }
                }
            }
            Step::List { dir } => {
                let dir = self.directory(dir);
                self.listings.push(Listing {
                    dir,
                    position: 0,
                    seen: Vec::new(),
                    throughout: self.memory.node(dir).entries.clone(),
                });
            }
            Step::ListMore { listing, count } => self.list_more(listing, count),
            Step::Sync => self.tree().sync().unwrap(),
            Step::Remount => self.remount(),
            _ => self.act_on_content(step),
        }
    }

    fn act_on_content(&mut self, step: Step) {
        let Some((ino, root)) = (match step {
            Step::Write { file, .. } | Step::SetSize { file, .. } | Step::Allocate { file, .. } => {
                self.file(file)
            }
            Step::Copy { to, .. } => self.file(to),
            _ => None,
        })
        .map(|ino| (ino, caller(0, 0))) else {
            return;
        };
        match step {
            Step::Write {
                at,
                length,
                byte,
                kill,
                ..
            } => {
                let (at, length) = (usize::from(at) % MOST, usize::from(length) % 9000);
                let length = length.min(MOST - at);
                let bytes = vec![byte; length];
                let loser = kill.then_some(root);
                let answer = errno(self.tree().write(ino, at as u64, &bytes, loser));
                self.acted();
                let before = self.memory.node(ino).mode;
                if length > 0 {
                    let content = self.memory.content(ino, kill);
                    let end = at + length;
                    content.resize(content.len().max(end), 0);
                    content[at..end].copy_from_slice(&bytes);
                }
                let expected = Ok(self.memory.node(ino).mode != before);
                self.agree(&answer, &expected);
            }
            Step::SetSize { size, .. } => {
                let size = u64::from(size) % MOST as u64;
                let set = SetAttributes {
                    size: Some(size),
                    ..SetAttributes::default()
                };
                let answer = errno(self.tree().set_attributes(root, ino, set));
                self.acted();
                let expected = self.memory.set_attributes(ino, set);
                self.agree(&answer.map(|_| ()), &expected);
            }
            Step::Allocate {
                at, length, mode, ..
            } => self.allocate(ino, usize::from(at) % MOST, usize::from(length), mode),
            Step::Copy {
                from,
                at,
                to_at,
                length,
                ..
            } => {
                let from = self.file(from).unwrap();
                let (at, to_at) = (usize::from(at) % MOST, usize::from(to_at) % MOST);
                let length = (usize::from(length) % 20_000).min(MOST - to_at);
                let ends = ((from, at as u64), (ino, to_at as u64));
                let answer = errno(self.tree().copy_range(root, ends.0, ends.1, length as u64));
                self.acted();
                let overlaps = from == ino && at < to_at + length && to_at < at + length;
                let expected = if overlaps {
                    Err(libc::EINVAL)
                } else {
                    let source = &self.memory.node(from).content;
                    let bytes = source
                        .get(at..(at + length).min(source.len()))
                        .unwrap_or_default()
                        .to_vec();
                    if !bytes.is_empty() {
                        let content = self.memory.content(ino, false);
                        let end = to_at + bytes.len();
                        content.resize(content.len().max(end), 0);
                        content[to_at..end].copy_from_slice(&bytes);
                    }
                    Ok((bytes.len() as u64, false))
                };
                // Whether copying nothing takes a capability away is not promised.
                if expected == Ok((0, false)) {
                    let xattrs = self.tree().xattrs(ino).unwrap();
                    self.memory.nodes.get_mut(&ino).unwrap().xattrs = xattrs;
                }
                self.agree(&answer, &expected);
            }
            _ => {}
        }
    }

    fn allocate(&mut self, ino: Ino, at: usize, length: usize, mode: u8) {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        let modes = [
            0,
            KEEP,
            libc::FALLOC_FL_PUNCH_HOLE | KEEP,
            libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_ZERO_RANGE | KEEP,
            libc::FALLOC_FL_COLLAPSE_RANGE,
        ];
        let (mode, length) = (modes[usize::from(mode)], (length % 20_000).min(MOST - at));
        let answer = errno(
            self.tree()
                .allocate(caller(0, 0), ino, at as u64, length as u64, mode),
        );
        self.acted();
        let expected = if length == 0 {
            Err(libc::EINVAL)
        } else if mode == libc::FALLOC_FL_COLLAPSE_RANGE {
            Err(libc::EOPNOTSUPP)
        } else {
            let content = self.memory.content(ino, false);
            let (old, end) = (content.len(), at + length);
            if mode & KEEP == 0 {
                content.resize(old.max(end), 0);
            }
            if mode & !KEEP != 0 && at < old {
                let end = end.min(old);
                content[at..end].fill(0);
            }
            Ok(false)
        };
        self.agree(&answer, &expected);
    }

    fn create(&mut self, kind: u8, dir: Ino, name: &[u8], mode: u16) {
        let node = match kind {
            0..=2 => NewNode::File,
            3 | 4 => NewNode::Directory,
            5 => NewNode::Symlink(b"to/where".to_vec()),
            6 => NewNode::Fifo,
            7 => NewNode::Socket,
            _ => NewNode::CharDevice(libc::makedev(4, 300)),
        };
        let owner = (u32::from(mode % 3), u32::from(mode % 5));
        let caller = caller(owner.0, owner.1);
        let answer = errno(self.tree().create(caller, dir, name, mode, node.clone()));
        self.acted();
        let (kind, content, rdev) = match &node {
            NewNode::File => (Kind::File, Vec::new(), 0),
            NewNode::Directory => (Kind::Directory, Vec::new(), 0),
            NewNode::Symlink(target) => (Kind::Symlink, target.clone(), 0),
            NewNode::Fifo => (Kind::Fifo, Vec::new(), 0),
            NewNode::Socket => (Kind::Socket, Vec::new(), 0),
            NewNode::CharDevice(number) => (Kind::CharDevice, Vec::new(), *number),
            NewNode::BlockDevice(number) => (Kind::BlockDevice, Vec::new(), *number),
        };
        let mode = if kind == Kind::Symlink { 0o777 } else { mode };
        let new = blank(kind, mode, content, rdev, self.memory.now);
        let ino = answer.as_ref().ok().map(|found: &Attributes| found.ino);
        let expected = self
            .memory
            .create(dir, name, owner, new, || ino.unwrap_or(u64::MAX));
        if let (Ok(found), Ok(ino)) = (&answer, &expected) {
            self.faults.extend(self.memory.differences(*ino, found));
            // What it answered is what it answers when asked.
            let again = errno(self.tree().attributes(*ino));
            self.agree(&Ok(*found), &again);
        }
        self.agree(&answer.map(|found| found.ino), &expected);
    }

    fn remove(&mut self, dir: Ino, name: &[u8], directory: bool) {
        let answer = if directory {
            errno(self.tree().remove_directory(dir, name))
        } else {
            errno(self.tree().unlink(dir, name))
        };
        self.acted();
        let expected = self.memory.remove(dir, name, directory);
        self.agree(&answer.map(|found| found.ino), &expected);
        if let Ok(ino) = expected {
            self.forget(ino);
        }
    }

    fn rename(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: u8) {
        let mode = match mode {
            0..=3 => RenameMode::Replace,
            4 => RenameMode::NoReplace,
            5 | 6 => RenameMode::Exchange,
            _ => RenameMode::Whiteout,
        };
        let answer = errno(self.tree().rename(caller(0, 0), from, to, mode));
        self.acted();
        let now = self.memory.now;
        let left = self.tree().lookup(from.0, from.1).map(|found| found.ino);
        let expected = self.memory.rename(from, to, mode, || {
            let node = Node {
                nlink: 1,
                ..blank(Kind::CharDevice, 0, Vec::new(), 0, now)
            };
            (left.unwrap_or(u64::MAX), node)
        });
        self.agree(&answer.map(|lost| lost.map(|found| found.ino)), &expected);
        if let Ok(Some(ino)) = expected {
            self.forget(ino);
        }
    }

    fn set(&mut self, node: u16, set: SetAttributes) {
        let ino = self.node(node);
        let answer = errno(self.tree().set_attributes(caller(0, 0), ino, set));
        self.acted();
        let expected = self.memory.set_attributes(ino, set);
        if let Ok(found) = &answer {
            self.faults.extend(self.memory.differences(ino, found));
        }
        self.agree(&answer.map(|_| ()), &expected);
    }

    fn set_xattr(&mut self, node: u16, name: &[u8], length: u8, mode: u8) {
        let ino = self.node(node);
        let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][usize::from(mode)];
        let value = vec![length; usize::from(length)];
        let answer = errno(self.tree().set_xattr(ino, name, &value, mode)).map(|_| ());
        self.acted();
        let there = self.memory.node(ino).xattrs.contains_key(name);
        let expected = match (mode, there) {
            _ if name.starts_with(b"system.") => Err(libc::EOPNOTSUPP),
            (XattrMode::Create, true) => Err(libc::EEXIST),
            (XattrMode::Replace, false) => Err(libc::ENODATA),
            _ => {
                self.memory.xattrs(ino).insert(name.to_vec(), value);
                Ok(())
            }
        };
        self.agree(&answer, &expected);
    }

    /// As the kernel does when nobody uses an inode any more.
    fn forget(&mut self, ino: Ino) {
        if self.memory.open.contains_key(&ino) {
            return;
        }
        self.tree().forget(ino).unwrap();
        if self.memory.forget(ino) {
            // What is the layer's stays in the layer, under a number that nobody asks for any more.
            if ino >= self.lease.record().first_ino {
                let answer = errno(self.tree().attributes(ino));
                self.agree(&answer.map(|_| ()), &Err(libc::ENOENT));
            }
            self.listings.retain(|listing| listing.dir != ino);
        }
    }

    fn remount(&mut self) {
        self.tree = None;
        self.open();
        let open: Vec<Ino> = self.memory.open.keys().copied().collect();
        self.memory.open.clear();
        self.listings.clear();
        for ino in open {
            self.memory.forget(ino);
        }
    }

    fn list_more(&mut self, listing: u8, count: u8) {
        if self.listings.is_empty() {
            return;
        }
        let index = usize::from(listing) % self.listings.len();
        let mut listing = self.listings.swap_remove(index);
        // Names that went, or came back as something else, need not be seen; nor be seen once.
        let now = &self.memory.node(listing.dir).entries;
        listing
            .throughout
            .retain(|name, ino| now.get(name) == Some(ino));
        let mut left = count;
        let mut ended = true;
        let (mut position, mut seen) = (listing.position, Vec::new());
        let answer = errno(
            self.tree()
                .list(listing.dir, position, false, |name, _, next| {
                    if left == 0 {
                        ended = false;
                        return false;
                    }
                    left -= 1;
                    position = next;
                    seen.push(name.to_vec());
                    true
                }),
        );
        self.agree(&answer, &Ok(()));
        listing.seen.extend(seen);
        listing.position = position;
        for name in listing.throughout.keys() {
            let times = listing.seen.iter().filter(|seen| *seen == name).count();
            if times > 1 || (ended && times != 1) {
                self.faults
                    .push(format!("{name:?} is listed {times} times"));
            }
        }
        if !ended {
            self.listings.push(listing);
        }
    }

    /// Compares everything that can be seen.
    fn compare(&mut self) {
        for listing in &mut self.listings {
            // An entry that left and came back is another, even within one step.
            let now = &self.memory.node(listing.dir).entries;
            listing
                .throughout
                .retain(|name, ino| now.get(name) == Some(ino));
        }
        let inos: Vec<Ino> = self.memory.nodes.keys().copied().collect();
        let mut faults = Vec::new();
        for ino in inos {
            faults.extend(self.compare_node(ino));
        }
        self.faults.extend(faults);
    }

    fn compare_node(&self, ino: Ino) -> Vec<String> {
        let (tree, node) = (self.tree(), self.memory.node(ino));
        let found = match tree.attributes(ino) {
            Ok(found) => found,
            Err(error) => return vec![format!("{ino} {:?}: {error}", node.kind)],
        };
        let mut faults = self.memory.differences(ino, &found);
        let xattrs: Xattrs = tree.xattrs(ino).unwrap();
        if xattrs != node.xattrs {
            faults.push(format!("xattrs of {ino}: {xattrs:?} for {:?}", node.xattrs));
        }
        match node.kind {
            Kind::File => faults.extend(self.compare_content(ino, &found)),
            Kind::Symlink if *tree.read_link(ino).unwrap() != *node.content => {
                faults.push(format!("target of {ino}"));
            }
            Kind::Directory => faults.extend(self.compare_entries(ino)),
            _ => {}
        }
        faults
    }

    fn compare_entries(&self, ino: Ino) -> Vec<String> {
        let (tree, node) = (self.tree(), self.memory.node(ino));
        let mut faults = Vec::new();
        let mut listed = Vec::new();
        let mut dots = Vec::new();
        tree.list(ino, 0, true, |name, found, _| {
            if name == b"." || name == b".." {
                dots.push((name.to_vec(), found.ino));
            } else {
                listed.push((name.to_vec(), found.ino));
                let expected = tree.attributes(found.ino).unwrap();
                if *found != expected {
                    faults.push(format!("listed {name:?} as {found:?} for {expected:?}"));
                }
            }
            true
        })
        .unwrap();
        let names: BTreeSet<Vec<u8>> = listed.iter().map(|(name, _)| name.clone()).collect();
        if names.len() != listed.len() {
            faults.push(format!("{ino} lists something twice: {listed:?}"));
        }
        let listed: BTreeMap<Vec<u8>, Ino> = listed.into_iter().collect();
        if listed != node.entries {
            faults.push(format!("{ino} lists {listed:?} for {:?}", node.entries));
        }
        if dots.first() != Some(&(b".".to_vec(), ino)) || dots.len() != 2 {
            faults.push(format!("{ino} lists {dots:?}"));
        }
        for name in NAMES {
            let found = errno(tree.lookup(ino, name)).map(|found| found.ino);
            let expected = node.entries.get(name).copied().ok_or(libc::ENOENT);
            if found != expected {
                faults.push(format!("{name:?} in {ino} is {found:?} for {expected:?}"));
            }
        }
        faults
    }

    fn compare_content(&self, ino: Ino, found: &Attributes) -> Vec<String> {
        let (tree, content) = (self.tree(), &self.memory.node(ino).content);
        let mut faults = Vec::new();
        let read = tree.read(ino, 0, MOST + 1).unwrap();
        if read != *content {
            let at = read.iter().zip(content).position(|(one, two)| one != two);
            faults.push(format!(
                "content of {ino} from {at:?}: {} bytes for {}",
                read.len(),
                content.len()
            ));
        }
        // What is not data is zeros, and data and holes follow one another to the end.
        let (mut at, mut stored) = (0, 0);
        while at < found.size {
            let data = tree.seek(ino, at, Seek::Data).unwrap_or(found.size);
            let hole = if data < found.size {
                tree.seek(ino, data, Seek::Hole).unwrap()
            } else {
                data
            };
            let zeros = &content[at as usize..data as usize];
            if data < at
                || (hole <= data && data < found.size)
                || zeros.iter().any(|byte| *byte != 0)
            {
                faults.push(format!(
                    "holes of {ino} from {at}: data {data}, hole {hole}"
                ));
                break;
            }
            stored += hole - data;
            at = hole;
        }
        if stored > found.stored.next_multiple_of(4096) {
            faults.push(format!(
                "{ino} shows {stored} bytes of data and stores {}",
                found.stored
            ));
        }
        faults
    }
}

fn blank(kind: Kind, mode: u16, content: Vec<u8>, rdev: u64, now: Moment) -> Node {
    Node {
        kind,
        mode,
        uid: 0,
        gid: 0,
        nlink: 0,
        rdev,
        atime: now,
        mtime: now,
        ctime: now,
        xattrs: Xattrs::new(),
        content,
        entries: BTreeMap::new(),
    }
}

fn caller(uid: u32, gid: u32) -> Caller {
    Caller { uid, gid, pid: 0 }
}

fn pick<T: Clone>(from: &[T], number: u16) -> Option<T> {
    (!from.is_empty()).then(|| from[usize::from(number) % from.len()].clone())
}
