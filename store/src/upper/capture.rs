//! Capture: what a session changed, as paths, with what each was at the base.
//!
//! Only what may have changed is visited: directories with changed entries, changed inodes, and
//! the way there. A directory that stands where another stood, or nothing, is compared entry by
//! entry. A file whose bytes, mode, owner and extended attributes equal the base's is no change,
//! however often it was written.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::extents::{Place, Run};
use super::state::{FileBody, InodeBody};
use super::{Attrs, Upper};
use crate::content::{self, Content, Layout, Segment, Source};
use crate::digest::Digest;
use crate::error::Result;
use crate::lower::{ROOT_INO, encode_xattrs};
use crate::name::{Name, RelPath};
use crate::node::{Body, Ino, Kind, Node, NodeMeta};
use crate::objects::{ObjectBatch, PACK_MAX};
use crate::publish::{Change, Delta};

/// A run of own blocks up to this long is stored as one blob of a segment list; longer runs are
/// cut, so that no blob is larger.
const MAX_SEGMENT: u64 = 64 << 20;

impl Upper {
    /// What the session changed against its base. Content that is new is put into `batch`; without
    /// one it is only compared.
    ///
    /// Changes that are made meanwhile may be in it or not; whoever needs a moment's exact state
    /// stops the session's processes first.
    ///
    /// # Errors
    /// [`crate::Error::Io`], or as reading an object.
    pub(crate) fn capture(&self, batch: Option<&ObjectBatch<'_>>) -> Result<Delta> {
        let mut capture = Capture {
            upper: self,
            batch,
            dirty: FxHashMap::default(),
            delta: BTreeMap::new(),
        };
        capture.mark_dirty()?;
        capture.compare_all()?;
        Ok(Delta {
            changes: capture.delta,
        })
    }
}

struct Capture<'a> {
    upper: &'a Upper,
    batch: Option<&'a ObjectBatch<'a>>,
    /// For each directory the names in it that lead to a change.
    dirty: FxHashMap<Ino, BTreeSet<Name>>,
    delta: BTreeMap<RelPath, Change>,
}

/// Directories that are to be compared: the session's and the base's, of which one may be none.
struct Pair {
    path: RelPath,
    mine: Option<Ino>,
    base: Option<Ino>,
}

impl Capture<'_> {
    /// Marks the way from the root to everything that may have changed.
    fn mark_dirty(&mut self) -> Result<()> {
        let state = self.upper.state();
        let mut directories: Vec<Ino> = Vec::new();
        for (directory, changes) in state.changed_directories() {
            self.dirty
                .entry(directory)
                .or_default()
                .extend(changes.slots.keys().cloned());
            directories.push(directory);
        }
        for (ino, inode) in state.inodes() {
            // A new inode is found through the entry that names it.
            if inode.body.kind() == Kind::Directory {
                directories.push(ino);
            } else if inode.in_lower {
                for (parent, name) in self.upper.lower().names(ino)? {
                    self.dirty.entry(parent).or_default().insert(name);
                    directories.push(parent);
                }
            }
        }
        while let Some(directory) = directories.pop() {
            if let Some((parent, name)) = self.upper.parent(&state, directory)?
                && self.dirty.entry(parent).or_default().insert(name)
            {
                directories.push(parent);
            }
        }
        Ok(())
    }

    fn compare_all(&mut self) -> Result<()> {
        let mut pending = vec![Pair {
            path: RelPath::ROOT,
            mine: Some(ROOT_INO),
            base: Some(ROOT_INO),
        }];
        self.compare_root()?;
        while let Some(pair) = pending.pop() {
            for name in self.names(&pair)? {
                if let Some(next) = self.compare(&pair, &name)? {
                    pending.push(next);
                }
            }
        }
        Ok(())
    }

    fn compare_root(&mut self) -> Result<()> {
        let base = self.upper.lower().node(ROOT_INO)?;
        let mine = self.mine(ROOT_INO, base.as_ref())?;
        self.note(RelPath::ROOT, base, mine);
        Ok(())
    }

    /// The names that may differ between two directories.
    fn names(&self, pair: &Pair) -> Result<BTreeSet<Name>> {
        if pair.mine == pair.base {
            return Ok(pair
                .mine
                .and_then(|ino| self.dirty.get(&ino))
                .cloned()
                .unwrap_or_default());
        }
        let mut names = BTreeSet::new();
        if let Some(ino) = pair.mine {
            let state = self.upper.state();
            self.upper.list(&state, ino, 0, |entry| {
                names.insert(entry.to_name());
                true
            })?;
        }
        if let Some(ino) = pair.base
            && let Some(directory) = self.upper.lower().directory(ino)?
        {
            names.extend(directory.iter().map(|(name, _)| {
                Name::new(name).expect("directory objects are checked when read")
            }));
        }
        Ok(names)
    }

    /// Compares one name; returns the directories below it that are to be compared, if any.
    fn compare(&mut self, pair: &Pair, name: &Name) -> Result<Option<Pair>> {
        let base = match pair.base {
            Some(directory) => self.upper.lower().lookup(directory, name.as_bytes())?,
            None => None,
        };
        let mine = match pair.mine {
            Some(directory) => {
                let state = self.upper.state();
                self.upper.lookup(&state, directory, name.as_bytes())?
            }
            None => None,
        };
        let path = pair.path.join(name);
        let directory = |node: Option<(Ino, Kind)>| {
            node.filter(|(_, kind)| *kind == Kind::Directory)
                .map(|(ino, _)| ino)
        };
        let next = Pair {
            mine: directory(mine),
            base: directory(base.as_ref().map(|node| (node.meta.ino, node.kind()))),
            path: path.clone(),
        };
        let mine = match mine {
            Some((ino, _)) => self.mine(ino, base.as_ref())?,
            None => None,
        };
        self.note(path, base, mine);
        Ok((next.mine.is_some() || next.base.is_some()).then_some(next))
    }

    fn note(&mut self, path: RelPath, base: Option<Node>, mine: Option<Node>) {
        let change = Change { base, mine };
        if change.kind().is_some() || change.only_times() {
            self.delta.insert(path, change);
        }
    }

    /// The node that `ino` is now. `base` is what stands at the same path in the base; where the
    /// session has not changed the inode, its node is the layer's own.
    fn mine(&self, ino: Ino, base: Option<&Node>) -> Result<Option<Node>> {
        // Nothing is written to the file between being hashed and being stored.
        let _content = self.upper.data_lock(ino).read();
        let state = self.upper.state();
        let Some(inode) = state.inode(ino) else {
            return self.upper.lower().node(ino);
        };
        let attrs = inode.attrs;
        let xattrs = match &inode.xattrs {
            None if inode.in_lower => self
                .upper
                .lower()
                .node(ino)?
                .and_then(|node| node.meta.xattrs),
            None => None,
            Some(xattrs) if xattrs.is_empty() => None,
            Some(xattrs) => Some(self.put(&encode_xattrs(xattrs))?),
        };
        let body = match &inode.body {
            InodeBody::File(FileBody::Lower(content)) => Body::File(*content),
            InodeBody::File(FileBody::Own { size, extents }) => {
                let runs: Vec<Run> = extents.within(0, *size);
                let size = *size;
                // Content is read without the state's lock.
                drop(state);
                Body::File(self.content(size, &runs, base.and_then(Node::content))?)
            }
            // What a directory holds is told by the paths below it.
            InodeBody::Directory => Body::Directory {
                tree: Digest::empty(),
                subdirectories: 0,
                entries: 0,
            },
            InodeBody::Symlink(target) => Body::Symlink(target.clone()),
            InodeBody::Fifo => Body::Fifo,
            InodeBody::Socket => Body::Socket,
            InodeBody::CharDevice(number) => Body::CharDevice(*number),
            InodeBody::BlockDevice(number) => Body::BlockDevice(*number),
        };
        Ok(Some(Node {
            meta: node_meta(ino, attrs, body.kind(), xattrs),
            body,
        }))
    }

    fn put(&self, bytes: &[u8]) -> Result<Digest> {
        match self.batch {
            Some(batch) => batch.put(bytes),
            None => Ok(Digest::of(bytes)),
        }
    }

    /// The content of a changed file. Where the base has the same bytes, it is the base's.
    fn content(&self, size: u64, runs: &[Run], base: Option<&Content>) -> Result<Content> {
        if size == 0 {
            return Ok(Content::empty());
        }
        if size <= PACK_MAX && stored(runs) == size {
            let mut bytes = vec![0; size as usize];
            for run in runs {
                self.upper.read_place(
                    run.place,
                    &mut bytes[run.offset as usize..run.end() as usize],
                )?;
            }
            let digest = Digest::of(&bytes);
            if let Some(base) = base.filter(|base| base.digest == digest) {
                return Ok(*base);
            }
            return Ok(Content {
                size,
                stored: size,
                digest: self.put(&bytes)?,
                layout: Layout::Whole,
            });
        }
        let digest = self.upper.hash(size, runs, base)?;
        if let Some(base) = base.filter(|base| base.digest == digest) {
            return Ok(*base);
        }
        self.store_runs(size, digest, runs)
    }

    fn store_runs(&self, size: u64, digest: Digest, runs: &[Run]) -> Result<Content> {
        let stored = stored(runs);
        let segments = match self.batch {
            None => Vec::new(),
            Some(batch) => {
                // One run of own blocks that is the whole file: one blob, of the same digest.
                if let [
                    Run {
                        offset: 0,
                        length,
                        place: Place::Arena(at),
                    },
                ] = runs
                    && *length == size
                    && batch
                        .put_file(self.upper.arena.file()?, *at, size, &never)
                        .map_err(|error| self.arena_error(error))??
                        .digest
                        == digest
                {
                    return Ok(Content {
                        size,
                        stored,
                        digest,
                        layout: Layout::Whole,
                    });
                }
                self.segments(batch, runs)?
            }
        };
        let list = self.put(&content::encode(&segments))?;
        Ok(Content {
            size,
            stored,
            digest,
            layout: Layout::Segments(list),
        })
    }

    fn segments(&self, batch: &ObjectBatch<'_>, runs: &[Run]) -> Result<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::with_capacity(runs.len());
        for run in runs {
            match run.place {
                Place::Blob(source) => segments.push(Segment {
                    offset: run.offset,
                    length: run.length,
                    source,
                }),
                Place::Arena(at) => {
                    let mut done = 0;
                    while done < run.length {
                        let length = (run.length - done).min(MAX_SEGMENT);
                        let copied = batch
                            .put_file(self.upper.arena.file()?, at + done, length, &never)
                            .map_err(|error| self.arena_error(error))??;
                        let source = Source {
                            blob: copied.digest,
                            offset: 0,
                        };
                        segments.push(Segment {
                            offset: run.offset + done,
                            length,
                            source,
                        });
                        done += length;
                    }
                }
            }
        }
        Ok(segments)
    }

    fn arena_error(&self, error: std::io::Error) -> crate::error::Error {
        crate::error::Error::io("reading", &self.upper.dir().join("arena"), error)
    }
}

/// A capture does not stop half-way.
fn never() -> bool {
    false
}

fn stored(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.length).sum()
}

fn node_meta(ino: Ino, attrs: Attrs, kind: Kind, xattrs: Option<Digest>) -> NodeMeta {
    NodeMeta {
        ino,
        mode: attrs.mode,
        uid: attrs.uid,
        gid: attrs.gid,
        mtime: attrs.mtime,
        ctime: attrs.ctime,
        links: if kind == Kind::Directory {
            1
        } else {
            attrs.nlink.max(1)
        },
        xattrs,
    }
}
