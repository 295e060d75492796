//! What a session sees: its changes over its layer.
//!
//! Everything is found by inode number, so a directory keeps what is in it wherever it is moved.
//! Functions that take a [`State`] work inside a transaction as well as outside.

use std::sync::Arc;

use super::state::{Entry, FileBody, InodeBody, Slot, State};
use super::{Upper, extents::Place};
use crate::content::Content;
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::lower::ROOT_INO;
use crate::name::{Name, RelPath};
use crate::node::{Body, Ino, Kind, Node, Timestamp, Xattrs};

/// The attributes of a node, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `st_ino`.
    pub ino: Ino,
    /// The type.
    pub kind: Kind,
    /// Permission bits, all twelve.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `st_nlink`.
    pub nlink: u32,
    /// Bytes of a file or of a symlink's target.
    pub size: u64,
    /// Bytes that are stored, holes not included.
    pub stored: u64,
    /// Number of a device; 0 for everything else.
    pub rdev: u64,
    /// Access time. Of a node that the session has not changed: its modification time, since a
    /// layer keeps no access times.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
}

/// An entry of a listing.
#[derive(Clone, Debug)]
pub struct ListedEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub ino: Ino,
    /// The type.
    pub kind: Kind,
    /// Where the listing goes on after it.
    pub next: u64,
    /// Where it is in the layer, if it is the layer's.
    below: Option<(&'a Directory, usize)>,
}

/// Where an entry was found.
enum Found {
    /// Among what the session has changed.
    Changed(Entry),
    /// In a directory of the layer, at this place.
    Below(Arc<Directory>, usize),
}

impl ListedEntry<'_> {
    /// The name, to be kept.
    pub fn to_name(&self) -> Name {
        Name::new(self.name).expect("names of layers and of changes are checked")
    }
}

/// Positions from here on are names that the session made; below are those of the layer, by their
/// place in the order of names. 2^62 leaves room for both in a signed 64-bit offset.
const MADE: u64 = 1 << 62;
/// The position of the name with cookie 0, the last of those made: the newest comes first, so that a
/// listing ends, whatever is made meanwhile.
const LAST: u64 = MADE + (1 << 61);

impl Upper {
    /// The attributes of inode `ino`; `None` if the session sees no such inode.
    ///
    /// # Errors
    /// As reading an object.
    pub fn attributes(&self, state: &State, ino: Ino) -> Result<Option<Attributes>> {
        let Some(inode) = state.inode(ino) else {
            return Ok(self.lower().node(ino)?.map(|node| node_attributes(&node)));
        };
        let (size, stored, rdev) = match &inode.body {
            InodeBody::File(FileBody::Lower(content)) => (content.size, content.stored, 0),
            InodeBody::File(FileBody::Own { size, extents }) => (*size, extents.bytes(), 0),
            InodeBody::Symlink(target) => (target.len() as u64, 0, 0),
            InodeBody::Directory => (4096, 4096, 0),
            InodeBody::CharDevice(number) | InodeBody::BlockDevice(number) => (0, 0, *number),
            InodeBody::Fifo | InodeBody::Socket => (0, 0, 0),
        };
        let attrs = inode.attrs;
        Ok(Some(Attributes {
            ino,
            kind: inode.body.kind(),
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            nlink: attrs.nlink,
            size,
            stored,
            rdev,
            atime: attrs.atime,
            mtime: attrs.mtime,
            ctime: attrs.ctime,
        }))
    }

    /// The inode that `name` in `directory` is; `None` if there is no such entry.
    ///
    /// # Errors
    /// As reading an object.
    pub fn lookup(
        &self,
        state: &State,
        directory: Ino,
        name: &[u8],
    ) -> Result<Option<(Ino, Kind)>> {
        let found = self.find_entry(state, directory, name)?;
        Ok(found.map(|found| match found {
            Found::Changed(entry) => (entry.ino, entry.kind),
            Found::Below(below, index) => below.identity(index),
        }))
    }

    /// The attributes of what `name` in `directory` is; `None` if there is no such entry.
    ///
    /// # Errors
    /// As reading an object.
    pub fn attributes_at(
        &self,
        state: &State,
        directory: Ino,
        name: &[u8],
    ) -> Result<Option<Attributes>> {
        match self.find_entry(state, directory, name)? {
            None => Ok(None),
            Some(Found::Changed(entry)) => self.attributes(state, entry.ino),
            // Not by its number, which would have to be found again: of requests, most are this.
            Some(Found::Below(below, index)) => self.attributes_below(state, &below, index),
        }
    }

    fn find_entry(&self, state: &State, directory: Ino, name: &[u8]) -> Result<Option<Found>> {
        match state.slot(directory, name) {
            Some(Slot::Whiteout) => Ok(None),
            Some(Slot::Entry(entry)) => Ok(Some(Found::Changed(entry))),
            None => Ok(self.lower().directory(directory)?.and_then(|below| {
                let index = below.find(name)?;
                Some(Found::Below(below, index))
            })),
        }
    }

    /// The attributes of an entry that is being listed; `None` if the session sees no such inode.
    ///
    /// # Errors
    /// As reading an object.
    pub fn attributes_of(
        &self,
        state: &State,
        listed: &ListedEntry<'_>,
    ) -> Result<Option<Attributes>> {
        match listed.below {
            Some((below, index)) => self.attributes_below(state, below, index),
            None => self.attributes(state, listed.ino),
        }
    }

    /// The attributes of an entry of one of the layer's directories, whose inode the session may
    /// have changed.
    fn attributes_below(
        &self,
        state: &State,
        below: &Directory,
        index: usize,
    ) -> Result<Option<Attributes>> {
        let (ino, _) = below.identity(index);
        if state.inode(ino).is_some() {
            return self.attributes(state, ino);
        }
        let node = self.lower().resolve(below.entry(index))?;
        Ok(Some(node_attributes(&node)))
    }

    /// Whether the layer has an entry `name` in `directory`, seen or not.
    ///
    /// # Errors
    /// As reading an object.
    pub fn is_in_lower(&self, directory: Ino, name: &[u8]) -> Result<bool> {
        Ok(self
            .lower()
            .directory(directory)?
            .is_some_and(|below| below.find(name).is_some()))
    }

    /// Lists `directory` from position `from` (0 is the start), as long as `wanted` says so.
    /// Positions stay valid whatever comes and goes. A name of the layer has one place, whoever's
    /// inode it is by now.
    ///
    /// # Errors
    /// As reading an object.
    pub fn list(
        &self,
        state: &State,
        directory: Ino,
        from: u64,
        mut wanted: impl FnMut(ListedEntry<'_>) -> bool,
    ) -> Result<()> {
        let changes = state.changes(directory);
        let below = self.lower().directory(directory)?;
        if from < MADE
            && let Some(below) = &below
        {
            for index in from as usize..below.len() {
                let name = below.name(index);
                let changed = changes.and_then(|changes| changes.slots.get(name));
                let (ino, kind) = match changed {
                    Some(Slot::Whiteout) => continue,
                    Some(Slot::Entry(entry)) => (entry.ino, entry.kind),
                    None => below.identity(index),
                };
                if !wanted(ListedEntry {
                    name,
                    ino,
                    kind,
                    next: index as u64 + 1,
                    below: changed.is_none().then_some((below, index)),
                }) {
                    return Ok(());
                }
            }
        }
        let Some(changes) = changes else {
            return Ok(());
        };
        // Those before `from` have this cookie or a greater one.
        let listed = LAST.saturating_sub(from.max(MADE));
        for (&cookie, name) in changes.by_cookie.range(..listed).rev() {
            let is_below = |below: &Directory| below.find(name.as_bytes()).is_some();
            if below.as_deref().is_some_and(is_below) {
                continue;
            }
            if let Some(Slot::Entry(entry)) = changes.slots.get(name) {
                let listed = ListedEntry {
                    name: name.as_bytes(),
                    ino: entry.ino,
                    kind: entry.kind,
                    next: LAST - cookie,
                    below: None,
                };
                if !wanted(listed) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether `directory` has no entries.
    ///
    /// # Errors
    /// As reading an object.
    pub fn is_empty(&self, state: &State, directory: Ino) -> Result<bool> {
        let mut empty = true;
        self.list(state, directory, 0, |_| {
            empty = false;
            false
        })?;
        Ok(empty)
    }

    /// The directory that holds directory `ino`, and its name there; `None` for the root and for
    /// one that was removed.
    ///
    /// # Errors
    /// As reading an object.
    pub fn parent(&self, state: &State, ino: Ino) -> Result<Option<(Ino, Name)>> {
        if ino == ROOT_INO {
            return Ok(None);
        }
        let place = match state.moved_to(ino) {
            Some(place) => Some(place.clone()),
            None => self.lower().parent(ino)?,
        };
        let Some((parent, name)) = place else {
            return Ok(None);
        };
        let there = self.lookup(state, parent, name.as_bytes())?;
        Ok(there
            .filter(|(found, _)| *found == ino)
            .map(|_| (parent, name)))
    }

    /// The path of directory `ino`; `None` for one that was removed.
    ///
    /// # Errors
    /// As reading an object.
    pub fn path(&self, state: &State, ino: Ino) -> Result<Option<RelPath>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT_INO {
            let Some((parent, name)) = self.parent(state, at)? else {
                return Ok(None);
            };
            names.push(name);
            at = parent;
        }
        Ok(Some(
            names
                .iter()
                .rev()
                .fold(RelPath::ROOT, |path, name| path.join(name)),
        ))
    }

    /// The target of symlink `ino`; `None` if it is none.
    ///
    /// # Errors
    /// As reading an object.
    pub fn target(&self, state: &State, ino: Ino) -> Result<Option<Box<[u8]>>> {
        match state.inode(ino) {
            Some(inode) => Ok(match &inode.body {
                InodeBody::Symlink(target) => Some(target.clone()),
                _ => None,
            }),
            None => Ok(self.lower().node(ino)?.and_then(|node| match node.body {
                Body::Symlink(target) => Some(target),
                _ => None,
            })),
        }
    }

    /// The extended attributes of `ino`; empty if there are none.
    ///
    /// # Errors
    /// As reading an object.
    pub fn xattrs(&self, state: &State, ino: Ino) -> Result<Xattrs> {
        if let Some(inode) = state.inode(ino) {
            if let Some(xattrs) = &inode.xattrs {
                return Ok(xattrs.clone());
            }
            if !inode.in_lower {
                return Ok(Xattrs::new());
            }
        }
        match self.lower().node(ino)? {
            None => Ok(Xattrs::new()),
            Some(node) => self.lower().xattrs(&node),
        }
    }

    /// The content of a file that the session has not changed; `None` if it has, or it is none.
    ///
    /// # Errors
    /// As reading an object.
    pub(super) fn lower_content(&self, state: &State, ino: Ino) -> Result<Option<Content>> {
        match state.inode(ino) {
            Some(inode) => Ok(match &inode.body {
                InodeBody::File(FileBody::Lower(content)) => Some(*content),
                _ => None,
            }),
            None => Ok(self
                .lower()
                .node(ino)?
                .and_then(|node| node.content().copied())),
        }
    }

    /// Fills `buffer` from a place.
    pub(super) fn read_place(&self, place: Place, buffer: &mut [u8]) -> Result<()> {
        match place {
            Place::Arena(offset) => self.arena.read(offset, buffer),
            Place::Blob(source) => {
                self.lower()
                    .objects()
                    .read_at(&source.blob, source.offset, buffer)
            }
        }
    }

    /// The node at `path`, followed through no symlink; `None` if there is none.
    ///
    /// # Errors
    /// As reading an object.
    pub fn find(&self, state: &State, path: &RelPath) -> Result<Option<(Ino, Kind)>> {
        let mut at = (ROOT_INO, Kind::Directory);
        for name in path.names() {
            if at.1 != Kind::Directory {
                return Ok(None);
            }
            match self.lookup(state, at.0, name)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }
}

/// The attributes of a node of a layer.
fn node_attributes(node: &Node) -> Attributes {
    let meta = &node.meta;
    let (stored, rdev) = match &node.body {
        Body::File(content) => (content.stored, 0),
        Body::Directory { .. } => (4096, 0),
        Body::CharDevice(number) | Body::BlockDevice(number) => (0, *number),
        Body::Symlink(_) | Body::Fifo | Body::Socket => (0, 0),
    };
    Attributes {
        ino: meta.ino,
        kind: node.kind(),
        mode: meta.mode,
        uid: meta.uid,
        gid: meta.gid,
        nlink: node.nlink(),
        size: node.size(),
        stored,
        rdev,
        atime: meta.mtime,
        mtime: meta.mtime,
        ctime: meta.ctime,
    }
}

/// The attributes that a first record of an inode of the layer carries.
impl From<&Attributes> for super::Attrs {
    fn from(attributes: &Attributes) -> Self {
        super::Attrs {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            nlink: attributes.nlink,
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
        }
    }
}

impl Upper {
    /// The record that takes inode `ino` of the layer into the state, unchanged; `None` if it is
    /// there already.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such inode, or as reading an object.
    pub fn copy_up(&self, state: &State, ino: Ino) -> Result<Option<super::Record>> {
        if state.inode(ino).is_some() {
            return Ok(None);
        }
        let node = self.lower().node(ino)?.ok_or_else(|| Error::Corrupt {
            what: format!("layer {}", self.lower().root()),
            detail: format!("it has no inode {ino}"),
        })?;
        Ok(Some(super::Record::Inode {
            ino,
            attrs: super::Attrs::of(&node),
            in_lower: true,
            body: super::NewBody::of(&node),
        }))
    }
}
