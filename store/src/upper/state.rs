//! What a session changed, in memory: inodes and directory entries over a layer.
//!
//! [`State::apply`] is the only way to change it, for live changes and when a journal is read
//! again, so that the two cannot differ.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::extents::{Extents, Place, Run};
use crate::content::Content;
use crate::name::Name;
use crate::node::{Body, Ino, Kind, Node, Timestamp, Xattrs};

/// The attributes of a changed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attrs {
    /// Permission bits, all twelve.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `st_nlink`; 0 for one that is open and has no name any more.
    pub nlink: u32,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
}

/// An inode that the session made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its attributes.
    pub attrs: Attrs,
    /// Whether the layer has an inode of this number.
    pub in_lower: bool,
    /// Its extended attributes, if the session changed them; `None` means those of the layer.
    pub xattrs: Option<Xattrs>,
    /// What it is.
    pub body: InodeBody,
}

/// What a changed inode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InodeBody {
    /// A regular file.
    File(FileBody),
    /// A directory; its changed entries lie beside.
    Directory,
    /// A symbolic link to this target.
    Symlink(Box<[u8]>),
    /// A named pipe.
    Fifo,
    /// A unix-domain socket's name.
    Socket,
    /// A character device with this number.
    CharDevice(u64),
    /// A block device with this number.
    BlockDevice(u64),
}

impl InodeBody {
    /// The type.
    pub fn kind(&self) -> Kind {
        match self {
            InodeBody::File(_) => Kind::File,
            InodeBody::Directory => Kind::Directory,
            InodeBody::Symlink(_) => Kind::Symlink,
            InodeBody::Fifo => Kind::Fifo,
            InodeBody::Socket => Kind::Socket,
            InodeBody::CharDevice(_) => Kind::CharDevice,
            InodeBody::BlockDevice(_) => Kind::BlockDevice,
        }
    }
}

/// The content of a changed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileBody {
    /// As in the layer: only attributes changed.
    Lower(Content),
    /// Changed.
    Own {
        /// Bytes in the file.
        size: u64,
        /// How they lie.
        extents: Extents,
    },
}

/// A name that the session changed in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Slot {
    /// The layer's entry is gone.
    Whiteout,
    /// This entry is there.
    Entry(Entry),
}

/// An entry that the session made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// The place of its name among those that the session made in the directory. Another name gets
    /// it only by a rename, so that a listing goes on where it was whatever comes and goes.
    pub cookie: u64,
}

/// The changed entries of one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectoryChanges {
    pub(super) slots: BTreeMap<Name, Slot>,
    pub(super) by_cookie: BTreeMap<u64, Name>,
    pub(super) next_cookie: u64,
}

/// One step of a change, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// An inode is made, or one of the layer is changed for the first time.
    Inode {
        /// Its number.
        ino: Ino,
        /// Its attributes.
        attrs: Attrs,
        /// Whether the layer has it.
        in_lower: bool,
        /// What it is.
        body: NewBody,
    },
    /// Attributes change.
    Attrs {
        /// The inode.
        ino: Ino,
        /// All its attributes.
        attrs: Attrs,
    },
    /// Extended attributes change.
    Xattrs {
        /// The inode.
        ino: Ino,
        /// All of them.
        xattrs: Xattrs,
    },
    /// A name of a directory changes.
    Slot {
        /// The directory.
        directory: Ino,
        /// The name.
        name: Name,
        /// What it is now; `None` means as in the layer.
        slot: Option<Slot>,
    },
    /// A file's content becomes the session's own, lying as it did in the layer.
    Own {
        /// The file.
        ino: Ino,
        /// Bytes in the file.
        size: u64,
        /// How they lie.
        runs: Vec<Run>,
    },
    /// A run of a file's content lies elsewhere now.
    Run {
        /// The file.
        ino: Ino,
        /// The run.
        run: Run,
    },
    /// A range of a file becomes a hole. It begins and ends at block boundaries.
    Hole {
        /// The file.
        ino: Ino,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
    /// A file's size changes; content beyond it is gone.
    Size {
        /// The file.
        ino: Ino,
        /// Bytes in the file.
        size: u64,
    },
    /// An inode without names that nobody has open any more is gone.
    Drop {
        /// The inode.
        ino: Ino,
    },
    /// Numbers that were given out, where nothing else in the journal shows them any more.
    Used {
        /// The largest inode number given out.
        ino: Ino,
    },
    /// Cookies of a directory that were given out, likewise.
    UsedCookies {
        /// The directory.
        directory: Ino,
        /// The next cookie.
        next: u64,
    },
    /// The change was asked for by this request, which is to be done once.
    Asked {
        /// The request's number. 0: there is a new connection, which counts anew.
        request: u64,
    },
}

/// What an inode is when it is first recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewBody {
    /// An empty file.
    Empty,
    /// A file of the layer.
    Lower(Content),
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Box<[u8]>),
    /// A named pipe.
    Fifo,
    /// A unix-domain socket's name.
    Socket,
    /// A character device with this number.
    CharDevice(u64),
    /// A block device with this number.
    BlockDevice(u64),
}

/// How many requests are noted: more than are ever being done at once.
const ASKED: usize = 64;

/// What a session changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    inodes: FxHashMap<Ino, Inode>,
    directories: FxHashMap<Ino, DirectoryChanges>,
    /// Where the session put a directory: one that it made or moved.
    parents: FxHashMap<Ino, (Ino, Name)>,
    /// The largest inode number given out; 0 if none was.
    largest_ino: Ino,
    /// The newest requests whose changes are in, the newest last.
    asked: VecDeque<u64>,
}

impl State {
    /// The changed inode `ino`; `None` if the session has not changed it.
    pub fn inode(&self, ino: Ino) -> Option<&Inode> {
        self.inodes.get(&ino)
    }

    /// What the session made of `name` in `directory`; `None` means as in the layer.
    pub fn slot(&self, directory: Ino, name: &[u8]) -> Option<Slot> {
        self.directories.get(&directory)?.slots.get(name).copied()
    }

    /// The cookie for the next entry made in `directory`.
    pub fn next_cookie(&self, directory: Ino) -> u64 {
        self.directories
            .get(&directory)
            .map_or(1, |changes| changes.next_cookie.max(1))
    }

    /// Whether the change that `request` asked for is in; of the newest [`ASKED`] requests that were
    /// noted ([`super::for_request`]).
    pub fn was_asked(&self, request: u64) -> bool {
        self.asked.contains(&request)
    }

    /// Whether [`State::was_asked`] is true of any request.
    pub fn was_anything_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.directories.is_empty()
    }

    /// The changed inodes, in no order.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, inode))
    }

    pub(super) fn changes(&self, directory: Ino) -> Option<&DirectoryChanges> {
        self.directories.get(&directory)
    }

    pub(super) fn changed_directories(&self) -> impl Iterator<Item = (Ino, &DirectoryChanges)> {
        self.directories
            .iter()
            .map(|(ino, changes)| (*ino, changes))
    }

    /// The changed names: directory, name, and what is there now.
    pub fn slots(&self) -> impl Iterator<Item = (Ino, &Name, Slot)> {
        self.directories.iter().flat_map(|(&directory, changes)| {
            let slots = changes.slots.iter();
            slots.map(move |(name, slot)| (directory, name, *slot))
        })
    }

    pub(super) fn moved_to(&self, directory: Ino) -> Option<&(Ino, Name)> {
        self.parents.get(&directory)
    }

    /// The largest inode number given out; 0 if none was.
    pub(super) fn largest_ino(&self) -> Ino {
        self.largest_ino
    }

    /// The runs of the arena that are used: offset and length.
    pub(super) fn arena_runs(&self) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        for inode in self.inodes.values() {
            if let InodeBody::File(FileBody::Own { extents, .. }) = &inode.body {
                runs.extend(extents.iter().filter_map(|run| match run.place {
                    Place::Arena(at) => Some((at, run.length)),
                    Place::Blob(_) => None,
                }));
            }
        }
        runs
    }

    /// The blobs that files with content of the session's own lie in, some of them several times.
    pub(super) fn blobs(&self) -> Vec<crate::digest::Digest> {
        let mut blobs = Vec::new();
        for inode in self.inodes.values() {
            if let InodeBody::File(FileBody::Own { extents, .. }) = &inode.body {
                blobs.extend(extents.iter().filter_map(|run| match run.place {
                    Place::Arena(_) => None,
                    Place::Blob(source) => Some(source.blob),
                }));
            }
        }
        blobs
    }

    /// Applies one record. Arena space that is no longer used goes to `freed`.
    pub(super) fn apply(&mut self, record: Record, freed: &mut Vec<(u64, u64)>) {
        match record {
            Record::Inode {
                ino,
                attrs,
                in_lower,
                body,
            } => {
                if !in_lower {
                    self.largest_ino = self.largest_ino.max(ino);
                }
                let inode = Inode {
                    attrs,
                    in_lower,
                    xattrs: None,
                    body: body.into(),
                };
                self.inodes.insert(ino, inode);
            }
            Record::Attrs { ino, attrs } => {
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    inode.attrs = attrs;
                }
            }
            Record::Xattrs { ino, xattrs } => {
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    inode.xattrs = Some(xattrs);
                }
            }
            Record::Slot {
                directory,
                name,
                slot,
            } => self.apply_slot(directory, name, slot),
            Record::Own { ino, size, runs } => {
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    let mut extents = Extents::default();
                    runs.into_iter().for_each(|run| extents.insert(run, freed));
                    inode.body = InodeBody::File(FileBody::Own { size, extents });
                }
            }
            Record::Run { ino, run } => {
                if let Some((_, extents)) = self.own_mut(ino) {
                    extents.insert(run, freed);
                }
            }
            Record::Hole { ino, start, end } => {
                if let Some((_, extents)) = self.own_mut(ino) {
                    extents.remove(start, end, freed);
                }
            }
            Record::Size { ino, size } => {
                if let Some((old, extents)) = self.own_mut(ino) {
                    if size < *old {
                        extents.cut(size, freed);
                    }
                    *old = size;
                }
            }
            Record::Drop { ino } => {
                if let Some((_, extents)) = self.own_mut(ino) {
                    extents.cut(0, freed);
                }
                self.inodes.remove(&ino);
                self.directories.remove(&ino);
                self.parents.remove(&ino);
            }
            Record::Asked { request: 0 } => self.asked.clear(),
            Record::Asked { request } => {
                if self.asked.len() == ASKED {
                    self.asked.pop_front();
                }
                self.asked.push_back(request);
            }
            Record::Used { ino } => self.largest_ino = self.largest_ino.max(ino),
            Record::UsedCookies { directory, next } => {
                let changes = self.directories.entry(directory).or_default();
                changes.next_cookie = changes.next_cookie.max(next);
            }
        }
    }

    fn apply_slot(&mut self, directory: Ino, name: Name, slot: Option<Slot>) {
        let changes = self.directories.entry(directory).or_default();
        if let Some(Slot::Entry(old)) = changes.slots.remove(&name) {
            changes.by_cookie.remove(&old.cookie);
            if self
                .parents
                .get(&old.ino)
                .is_some_and(|(parent, known)| *parent == directory && *known == name)
            {
                self.parents.remove(&old.ino);
            }
        }
        let Some(slot) = slot else { return };
        if let Slot::Entry(entry) = slot {
            changes.next_cookie = changes.next_cookie.max(entry.cookie + 1);
            changes.by_cookie.insert(entry.cookie, name.clone());
            if entry.kind == Kind::Directory {
                self.parents.insert(entry.ino, (directory, name.clone()));
            }
        }
        changes.slots.insert(name, slot);
    }

    fn own_mut(&mut self, ino: Ino) -> Option<(&mut u64, &mut Extents)> {
        match &mut self.inodes.get_mut(&ino)?.body {
            InodeBody::File(FileBody::Own { size, extents }) => Some((size, extents)),
            _ => None,
        }
    }

    /// Records that make this state from an empty one.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let inodes = self.inodes.iter().flat_map(|(&ino, inode)| {
            let mut records = vec![Record::Inode {
                ino,
                attrs: inode.attrs,
                in_lower: inode.in_lower,
                body: NewBody::from(&inode.body),
            }];
            if let InodeBody::File(FileBody::Own { size, extents }) = &inode.body {
                records.push(Record::Own {
                    ino,
                    size: *size,
                    runs: extents.iter().collect(),
                });
            }
            if let Some(xattrs) = &inode.xattrs {
                records.push(Record::Xattrs {
                    ino,
                    xattrs: xattrs.clone(),
                });
            }
            records
        });
        let slots = self.directories.iter().flat_map(|(&directory, changes)| {
            let slots = changes.slots.iter().map(move |(name, slot)| Record::Slot {
                directory,
                name: name.clone(),
                slot: Some(*slot),
            });
            slots.chain([Record::UsedCookies {
                directory,
                next: changes.next_cookie,
            }])
        });
        let asked = self.asked.iter();
        let asked = asked.map(|&request| Record::Asked { request });
        inodes.chain(slots).chain(asked).chain([Record::Used {
            ino: self.largest_ino,
        }])
    }
}

impl Attrs {
    /// Those of a node of a layer, which keeps no access times.
    pub(crate) fn of(node: &Node) -> Self {
        let meta = &node.meta;
        Attrs {
            mode: meta.mode,
            uid: meta.uid,
            gid: meta.gid,
            nlink: node.nlink(),
            atime: meta.mtime,
            mtime: meta.mtime,
            ctime: meta.ctime,
        }
    }
}

impl NewBody {
    /// What a node of a layer is.
    pub(crate) fn of(node: &Node) -> Self {
        match &node.body {
            Body::File(content) => NewBody::Lower(*content),
            Body::Directory { .. } => NewBody::Directory,
            Body::Symlink(target) => NewBody::Symlink(target.clone()),
            Body::Fifo => NewBody::Fifo,
            Body::Socket => NewBody::Socket,
            Body::CharDevice(number) => NewBody::CharDevice(*number),
            Body::BlockDevice(number) => NewBody::BlockDevice(*number),
        }
    }
}

impl From<NewBody> for InodeBody {
    fn from(body: NewBody) -> Self {
        match body {
            NewBody::Empty => InodeBody::File(FileBody::Own {
                size: 0,
                extents: Extents::default(),
            }),
            NewBody::Lower(content) => InodeBody::File(FileBody::Lower(content)),
            NewBody::Directory => InodeBody::Directory,
            NewBody::Symlink(target) => InodeBody::Symlink(target),
            NewBody::Fifo => InodeBody::Fifo,
            NewBody::Socket => InodeBody::Socket,
            NewBody::CharDevice(number) => InodeBody::CharDevice(number),
            NewBody::BlockDevice(number) => InodeBody::BlockDevice(number),
        }
    }
}

impl From<&InodeBody> for NewBody {
    /// What a first record of the inode says; content of its own follows in another.
    fn from(body: &InodeBody) -> Self {
        match body {
            InodeBody::File(FileBody::Own { .. }) => NewBody::Empty,
            InodeBody::File(FileBody::Lower(content)) => NewBody::Lower(*content),
            InodeBody::Directory => NewBody::Directory,
            InodeBody::Symlink(target) => NewBody::Symlink(target.clone()),
            InodeBody::Fifo => NewBody::Fifo,
            InodeBody::Socket => NewBody::Socket,
            InodeBody::CharDevice(number) => NewBody::CharDevice(*number),
            InodeBody::BlockDevice(number) => NewBody::BlockDevice(*number),
        }
    }
}
