//! A filesystem in memory, as simple as one can be: what a tree should be.
//!
//! It keeps content as plain bytes and knows nothing of layers, blocks or journals. Times that are
//! set by name, and those of what was imported, it knows exactly; of others it knows between which
//! two moments they were taken.

use std::collections::BTreeMap;

use sandstack_fs::{Error, RenameMode, SetAttributes, SetTime};
use sandstack_store::{Attributes, Ino, Kind, Timestamp, Xattrs};

/// What an operation answers: the errno that stands for why not.
pub(crate) type Answer<T> = Result<T, i32>;

/// When something was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

impl Moment {
    pub(crate) fn exactly(time: Timestamp) -> Moment {
        Moment {
            from: time,
            to: time,
        }
    }

    fn covers(self, time: Timestamp) -> bool {
        (self.from..=self.to).contains(&time)
    }
}

/// A file, directory, symlink or special file.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u64,
    pub(crate) atime: Moment,
    pub(crate) mtime: Moment,
    pub(crate) ctime: Moment,
    pub(crate) xattrs: Xattrs,
    /// Content of a file, target of a symlink.
    pub(crate) content: Vec<u8>,
    pub(crate) entries: BTreeMap<Vec<u8>, Ino>,
}

/// The whole.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) nodes: BTreeMap<Ino, Node>,
    /// Inodes that somebody has open, and how often.
    pub(crate) open: BTreeMap<Ino, usize>,
    /// The moment of the operation that is under way.
    pub(crate) now: Moment,
}

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;

impl Memory {
    pub(crate) fn node(&self, ino: Ino) -> &Node {
        &self.nodes[&ino]
    }

    fn get(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("a node of the model")
    }

    /// The directory, unless it is gone.
    fn directory(&self, ino: Ino) -> Answer<&Node> {
        let node = self.node(ino);
        match node.kind {
            Kind::Directory if node.nlink == 0 => Err(libc::ENOENT),
            Kind::Directory => Ok(node),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn entry(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        Ok(self.directory(parent)?.entries.get(name).copied())
    }

    fn changed(&mut self, ino: Ino) {
        let now = self.now;
        let node = self.get(ino);
        (node.mtime, node.ctime) = (now, now);
    }

    /// A new node, which has the number `ino`.
    pub(crate) fn create(
        &mut self,
        parent: Ino,
        name: &[u8],
        (uid, gid): (u32, u32),
        node: Node,
        ino: impl FnOnce() -> Ino,
    ) -> Answer<Ino> {
        if self.entry(parent, name)?.is_some() {
            return Err(libc::EEXIST);
        }
        let above = self.node(parent);
        let inherits = above.mode & SETGID != 0;
        let is_directory = node.kind == Kind::Directory;
        let node = Node {
            mode: if inherits && is_directory {
                node.mode | SETGID
            } else {
                node.mode
            },
            uid,
            gid: if inherits { above.gid } else { gid },
            nlink: if is_directory { 2 } else { 1 },
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            ..node
        };
        let ino = ino();
        assert!(
            self.nodes.insert(ino, node).is_none(),
            "number {ino} was used before"
        );
        self.get(parent).entries.insert(name.to_vec(), ino);
        self.get(parent).nlink += u32::from(is_directory);
        self.changed(parent);
        Ok(ino)
    }

    pub(crate) fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Answer<()> {
        self.directory(parent)?;
        if self.node(ino).kind == Kind::Directory {
            return Err(libc::EPERM);
        }
        if self.entry(parent, name)?.is_some() {
            return Err(libc::EEXIST);
        }
        if self.node(ino).nlink == 0 {
            return Err(libc::ENOENT);
        }
        let now = self.now;
        let node = self.get(ino);
        node.nlink += 1;
        node.ctime = now;
        self.get(parent).entries.insert(name.to_vec(), ino);
        self.changed(parent);
        Ok(())
    }

    /// Takes a name away; returns the inode that it was of.
    pub(crate) fn remove(&mut self, parent: Ino, name: &[u8], directory: bool) -> Answer<Ino> {
        let ino = self.entry(parent, name)?.ok_or(libc::ENOENT)?;
        let node = self.node(ino);
        match (node.kind == Kind::Directory, directory) {
            (true, false) => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            (true, true) if !node.entries.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.get(parent).entries.remove(name);
        self.get(parent).nlink -= u32::from(directory);
        self.changed(parent);
        self.lose_name(ino);
        Ok(ino)
    }

    fn lose_name(&mut self, ino: Ino) {
        let now = self.now;
        let node = self.get(ino);
        node.nlink = if node.kind == Kind::Directory {
            0
        } else {
            node.nlink - 1
        };
        node.ctime = now;
    }

    fn is_within(&self, ino: Ino, above: Ino) -> bool {
        ino == above
            || self.node(above).entries.values().any(|below| {
                self.node(*below).kind == Kind::Directory && self.is_within(ino, *below)
            })
    }

    /// Returns the inode that lost a name.
    pub(crate) fn rename(
        &mut self,
        (parent, name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        mode: RenameMode,
        whiteout: impl FnOnce() -> (Ino, Node),
    ) -> Answer<Option<Ino>> {
        self.directory(parent)?;
        self.directory(to_parent)?;
        let source = self.entry(parent, name)?.ok_or(libc::ENOENT)?;
        let target = self.entry(to_parent, to_name)?;
        let is_directory = |memory: &Memory, ino: Ino| memory.node(ino).kind == Kind::Directory;
        if is_directory(self, source) && self.is_within(to_parent, source) {
            return Err(libc::EINVAL);
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(libc::EEXIST),
            (RenameMode::Exchange, None) => return Err(libc::ENOENT),
            (RenameMode::Exchange, Some(target))
                if is_directory(self, target) && self.is_within(parent, target) =>
            {
                return Err(libc::EINVAL);
            }
            (RenameMode::Exchange, Some(_)) => {}
            (_, Some(target)) if target != source => {
                match (is_directory(self, source), is_directory(self, target)) {
                    (true, false) => return Err(libc::ENOTDIR),
                    (false, true) => return Err(libc::EISDIR),
                    (true, true) if !self.node(target).entries.is_empty() => {
                        return Err(libc::ENOTEMPTY);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        if target == Some(source) {
            return Ok(None);
        }
        let now = self.now;
        self.get(parent).entries.remove(name);
        self.get(to_parent).entries.insert(to_name.to_vec(), source);
        self.get(source).ctime = now;
        if is_directory(self, source) {
            self.get(parent).nlink -= 1;
            self.get(to_parent).nlink += 1;
        }
        let mut lost = None;
        if let Some(target) = target {
            if is_directory(self, target) {
                self.get(to_parent).nlink -= 1;
            }
            if mode == RenameMode::Exchange {
                self.get(parent).entries.insert(name.to_vec(), target);
                self.get(target).ctime = now;
                if is_directory(self, target) {
                    self.get(parent).nlink += 1;
                }
            } else {
                self.lose_name(target);
                lost = Some(target);
            }
        }
        if mode == RenameMode::Whiteout {
            let (ino, node) = whiteout();
            self.nodes.insert(ino, node);
            self.get(parent).entries.insert(name.to_vec(), ino);
        }
        self.changed(parent);
        self.changed(to_parent);
        Ok(lost)
    }

    /// The content of a file, about to be changed by `uid`.
    pub(crate) fn content(&mut self, ino: Ino, kill_setid: bool) -> &mut Vec<u8> {
        self.changed(ino);
        let node = self.get(ino);
        if kill_setid {
            node.mode = without_setid(node.mode);
        }
        node.xattrs.remove(b"security.capability".as_slice());
        &mut node.content
    }

    pub(crate) fn set_attributes(&mut self, ino: Ino, set: SetAttributes) -> Answer<()> {
        if let Some(size) = set.size {
            match self.node(ino).kind {
                Kind::File => {}
                Kind::Directory => return Err(libc::EISDIR),
                _ => return Err(libc::EINVAL),
            }
            self.content(ino, false).resize(size as usize, 0);
        }
        // Setting nothing at all is a change too, as `chown` with two times -1 is.
        let rest = SetAttributes { size: None, ..set };
        if set.size.is_some() && rest == SetAttributes::default() {
            return Ok(());
        }
        let now = self.now;
        let node = self.get(ino);
        if set.uid.is_some() || set.gid.is_some() || set == SetAttributes::default() {
            node.xattrs.remove(b"security.capability".as_slice());
            if set.mode.is_none() && node.kind != Kind::Directory {
                node.mode = without_setid(node.mode);
            }
        }
        node.mode = set.mode.unwrap_or(node.mode);
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        let moment = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => Moment::exactly(time),
        };
        node.atime = set.atime.map_or(node.atime, moment);
        node.mtime = set.mtime.map_or(node.mtime, moment);
        node.ctime = now;
        Ok(())
    }

    pub(crate) fn xattrs(&mut self, ino: Ino) -> &mut Xattrs {
        let now = self.now;
        let node = self.get(ino);
        node.ctime = now;
        &mut node.xattrs
    }

    /// Whether nothing refers to an inode any more; then it is gone.
    pub(crate) fn forget(&mut self, ino: Ino) -> bool {
        let gone = self.node(ino).nlink == 0 && !self.open.contains_key(&ino);
        if gone {
            self.nodes.remove(&ino);
        }
        gone
    }

    /// What differs between a node and what the tree says of it.
    pub(crate) fn differences(&self, ino: Ino, found: &Attributes) -> Vec<String> {
        let node = self.node(ino);
        let size = match node.kind {
            Kind::File | Kind::Symlink => node.content.len() as u64,
            Kind::Directory => 4096,
            _ => 0,
        };
        let mut faults = Vec::new();
        let mut check = |what: &str, right: bool, detail: String| {
            if !right {
                faults.push(format!("{what} of {ino}: {detail}"));
            }
        };
        let plain = (
            (found.ino, found.kind, found.mode, found.uid),
            (found.gid, found.nlink, found.size, found.rdev),
        );
        let expected = (
            (ino, node.kind, node.mode, node.uid),
            (node.gid, node.nlink, size, node.rdev),
        );
        check(
            "attributes",
            plain == expected,
            format!("{plain:?} for {expected:?}"),
        );
        for (what, time, moment) in [
            ("atime", found.atime, node.atime),
            ("mtime", found.mtime, node.mtime),
            ("ctime", found.ctime, node.ctime),
        ] {
            check(
                what,
                moment.covers(time),
                format!("{time:?} for {moment:?}"),
            );
        }
        faults
    }
}

fn without_setid(mode: u16) -> u16 {
    let group_executes = mode & 0o010 != 0;
    mode & !SETUID & if group_executes { !SETGID } else { u16::MAX }
}

/// The errno of a tree's answer.
pub(crate) fn errno<T>(answer: Result<T, Error>) -> Answer<T> {
    answer.map_err(|error| error.errno())
}
