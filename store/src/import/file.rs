//! Reading one file of the host into the store.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::host::{data_runs, descriptor_xattrs, meta};
use super::identity::Identity;
use super::place::Place;
use super::walk::{NodeError, Walk, add};
use crate::content::{self, Content, Layout, Segment, Source};
use crate::db::{Db, DbBatch, Durability};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::lower::encode_xattrs;
use crate::name::Name;
use crate::node::{Body, Node, Timestamp, Xattrs};
use crate::objects::ObjectBatch;
use crate::store::Store;

/// Pauses before a file that changed is read again.
const RETRY_PAUSES: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(320),
];
/// Files after which a thread commits what it has, to bound memory.
const COMMIT_FILES: usize = 16 << 10;

/// Reads files for one thread of an import and keeps what they hold in a batch.
pub(super) struct FileReader<'a> {
    store: &'a Store,
    db: Arc<Db>,
    walk: &'a Walk<'a>,
    objects: ObjectBatch<'a>,
    identities: DbBatch,
    pending: usize,
}

impl<'a> FileReader<'a> {
    pub(super) fn new(store: &'a Store, walk: &'a Walk<'a>) -> Self {
        let db = Arc::clone(&store.inner().db);
        FileReader {
            store,
            walk,
            objects: store.objects().batch(),
            identities: db.batch(),
            db,
            pending: 0,
        }
    }

    /// Makes what was read so far durable.
    pub(super) fn commit(&mut self) -> Result<()> {
        let objects = std::mem::replace(&mut self.objects, self.store.objects().batch());
        let mut batch = std::mem::replace(&mut self.identities, self.db.batch());
        add(&self.walk.counts.stored, objects.added_bytes());
        self.pending = 0;
        objects.finish(&mut batch)?;
        self.db.commit(batch, Durability::Power)
    }

    /// Adds extended attributes; `None` if there are none.
    pub(super) fn put_xattrs(&self, xattrs: &Xattrs) -> Result<Option<Digest>> {
        (!xattrs.is_empty())
            .then(|| self.objects.put(&encode_xattrs(xattrs)))
            .transpose()
    }

    /// Takes in the file that `stat` describes; `None` if it is gone.
    pub(super) fn read(
        &mut self,
        directory: &OwnedFd,
        place: &Place,
        name: &Name,
        stat: &Stat,
    ) -> Result<Option<Node>, NodeError> {
        if let Some(identity) = Identity::find(&self.db, stat)?
            && self.is_stored(&identity)?
        {
            add(&self.walk.counts.reused, 1);
            self.done(stat.st_size as u64)?;
            return Ok(Some(Node {
                meta: meta(stat, identity.xattrs),
                body: Body::File(identity.content),
            }));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(directory, name.as_bytes(), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            // A symlink, or a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Err(NodeError::Changed),
            Err(error) => return Err(NodeError::Unreadable(error.into())),
        };
        let mut pauses = RETRY_PAUSES.iter();
        loop {
            match self.try_read(&file)? {
                Some(node) => return Ok(Some(node)),
                None => match pauses.next() {
                    Some(pause) => std::thread::sleep(*pause),
                    None => {
                        return Err(NodeError::Fatal(Error::ChangedWhileRead {
                            path: self.walk.path(place, name),
                            attempts: RETRY_PAUSES.len() as u32 + 1,
                        }));
                    }
                },
            }
        }
    }

    /// Reads the file once; `None` if it changed meanwhile.
    fn try_read(&mut self, file: &File) -> Result<Option<Node>, NodeError> {
        let unreadable = |error: Errno| NodeError::Unreadable(error.into());
        let read_at = Timestamp::now();
        let before = rustix::fs::fstat(file).map_err(unreadable)?;
        if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
            return Err(NodeError::Changed);
        }
        let content = match self.content(file, &before) {
            Ok(content) => content?,
            // Cut while it was read: the comparison below would say so too.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(NodeError::Unreadable(error)),
        };
        let xattrs = descriptor_xattrs(file.as_fd()).map_err(unreadable)?;
        let after = rustix::fs::fstat(file).map_err(unreadable)?;
        if changed(&before, &after) {
            return Ok(None);
        }
        let xattrs = self.put_xattrs(&xattrs)?;
        Identity::record(
            &self.db,
            &mut self.identities,
            &after,
            content,
            xattrs,
            read_at,
        );
        add(&self.walk.counts.hashed, 1);
        self.done(content.size)?;
        Ok(Some(Node {
            meta: meta(&after, xattrs),
            body: Body::File(content),
        }))
    }

    fn content(&self, file: &File, stat: &Stat) -> io::Result<Result<Content>> {
        let size = stat.st_size as u64;
        if size == 0 {
            return Ok(Ok(Content::empty()));
        }
        // The number of blocks would not tell: space may be reserved beyond the end, and
        // filesystems compress.
        let runs = data_runs(file, size)?;
        if runs != [(0, size)] {
            return self.sparse(file, size, &runs);
        }
        let stopped = || self.walk.is_stopped();
        Ok(self
            .objects
            .put_file(file, 0, size, &stopped)?
            .map(|copied| {
                if copied.reflinked {
                    add(&self.walk.counts.reflinked, 1);
                }
                if let Some(groups) = copied.groups {
                    let known = self.store.objects().groups();
                    known.keep(copied.digest, size, groups);
                }
                Content {
                    size,
                    stored: size,
                    digest: copied.digest,
                    layout: Layout::Whole,
                }
            }))
    }

    /// A file with holes: one blob a run of data, and the digest of it all with the holes as zeros.
    fn sparse(&self, file: &File, size: u64, runs: &[(u64, u64)]) -> io::Result<Result<Content>> {
        let mut segments = Vec::with_capacity(runs.len());
        let mut stored = 0;
        let stopped = || self.walk.is_stopped();
        for &(offset, length) in runs {
            if stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match self.objects.put_file(file, offset, length, &stopped)? {
                Ok(copied) => {
                    segments.push(Segment {
                        offset,
                        length,
                        source: Source {
                            blob: copied.digest,
                            offset: 0,
                        },
                    });
                    stored += length;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        let sources = segments
            .iter()
            .map(|run| (run.offset, run.length, run.source.blob));
        let read = |blob, at, buffer: &mut [u8]| self.objects.read_at(&blob, at, buffer);
        let digest = match content::hash_segments(size, sources, &stopped, read) {
            Ok(Some((digest, groups))) => {
                self.objects.objects().groups().keep(digest, size, groups);
                digest
            }
            Ok(None) => return Err(io::ErrorKind::Interrupted.into()),
            Err(error) => return Ok(Err(error)),
        };
        let list = match self.objects.put(&content::encode(&segments)) {
            Ok(list) => list,
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(Content {
            size,
            stored,
            digest,
            layout: Layout::Segments(list),
        }))
    }

    /// Whether the content of an identity is still in the store.
    fn is_stored(&self, identity: &Identity) -> Result<bool> {
        let objects = self.store.objects();
        if let Some(xattrs) = &identity.xattrs
            && !objects.contains(xattrs)?
        {
            return Ok(false);
        }
        match identity.content.layout {
            Layout::Whole => {
                Ok(identity.content.size == 0 || objects.contains(&identity.content.digest)?)
            }
            Layout::Segments(list) => {
                if !objects.contains(&list)? {
                    return Ok(false);
                }
                for segment in identity.content.segments(objects)? {
                    if !objects.contains(&segment.source.blob)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Counts a file as done.
    pub(super) fn done(&mut self, bytes: u64) -> Result<()> {
        add(&self.walk.counts.files_done, 1);
        add(&self.walk.counts.bytes_done, bytes);
        self.pending += 1;
        if self.pending >= COMMIT_FILES {
            self.commit()
        } else {
            Ok(())
        }
    }
}

fn changed(before: &Stat, after: &Stat) -> bool {
    let key = |stat: &Stat| {
        (
            stat.st_size,
            stat.st_mtime,
            stat.st_mtime_nsec,
            stat.st_ctime,
            stat.st_ctime_nsec,
        )
    };
    key(before) != key(after)
}
