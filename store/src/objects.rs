//! Content-addressed objects: blobs of file content, directory objects, lists.
//!
//! An object of up to [`PACK_MAX`] bytes lies in a pack; a larger one is a file of its own,
//! `blobs/ab/cdef…`, holding exactly the object's bytes, so that the kernel can share or pass it
//! through. The database says which: 1 byte 0, pack number (32 bits), offset and length (64 bits
//! each), or 1 byte 1 and the length; little-endian.
//!
//! Objects come in through an [`ObjectBatch`]: written at once, durable and findable only after
//! its commit. A batch that is dropped leaves garbage in a pack and no file.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use rustc_hash::FxHashMap;

use crate::db::{Db, DbBatch, Durability};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::groups::{GroupHasher, Groups};
use crate::known_groups::KnownGroups;
use crate::pack::{PackPlace, Packs};
use crate::pins::{Pinned, Pins, RootPin};

/// Largest object in a pack, in bytes; larger ones are files of their own. Of source trees 96 % of
/// the files are below 64 KiB and would cost a create and an unlink each.
pub(crate) const PACK_MAX: u64 = 128 << 10;
/// Places remembered, so that a read needs no look-up in the database.
const CACHED_PLACES: usize = 64 << 10;
/// Open blob files kept for reading.
const OPEN_BLOBS: usize = 512;
/// Bytes that the database takes for the place of an object, generously.
const PLACE_BYTES: u64 = 128;
/// Bytes read or written at a time while content is copied.
const COPY_BYTES: usize = 1 << 20;
/// Bytes that the kernel is asked for at a time: it shares them in one piece.
const SHARED_BYTES: u64 = 256 << 20;

/// Has the kernel put the bytes of `source` from byte `offset` to the beginning of `target`, which on a
/// disk that can shares whole blocks. Returns how many of `length` bytes it did: the rest is for who asked.
fn share(
    source: &File,
    offset: u64,
    target: &File,
    length: u64,
    stopped: &dyn Fn() -> bool,
) -> u64 {
    let mut done = 0;
    while done < length && !stopped() {
        let part = SHARED_BYTES.min(length - done) as usize;
        let (mut from, mut to) = (offset + done, done);
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), part) {
            Ok(count) if count > 0 => done += count as u64,
            Ok(_) | Err(_) => break,
        }
    }
    done
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Pack(PackPlace),
    File { length: u64 },
}

impl Place {
    fn encode(self) -> Vec<u8> {
        match self {
            Place::Pack(place) => {
                let mut bytes = vec![0];
                bytes.extend_from_slice(&place.pack.to_le_bytes());
                bytes.extend_from_slice(&place.offset.to_le_bytes());
                bytes.extend_from_slice(&place.length.to_le_bytes());
                bytes
            }
            Place::File { length } => {
                let mut bytes = vec![1];
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Place> {
        let number = |at: usize| -> Option<u64> {
            bytes
                .get(at..at + 8)
                .and_then(|part| part.try_into().ok())
                .map(u64::from_le_bytes)
        };
        match bytes.first()? {
            0 if bytes.len() == 21 => Some(Place::Pack(PackPlace {
                pack: u32::from_le_bytes(bytes[1..5].try_into().ok()?),
                offset: number(5)?,
                length: number(13)?,
            })),
            1 if bytes.len() == 9 => Some(Place::File { length: number(1)? }),
            _ => None,
        }
    }

    pub(crate) fn length(self) -> u64 {
        match self {
            Place::Pack(place) => place.length,
            Place::File { length } => length,
        }
    }
}

/// The objects of a store.
pub struct Objects {
    db: Arc<Db>,
    packs: Packs,
    dir: PathBuf,
    places: Cache<Digest, Place>,
    files: Cache<Digest, Arc<File>>,
    groups: KnownGroups,
    next_temporary: AtomicU64,
    /// Whether the disk can share blocks; found out when it is first of use.
    shares: OnceLock<bool>,
    pinned: Arc<Pinned>,
    /// How often something was forgotten.
    forgotten: AtomicU64,
}

impl Objects {
    pub(crate) fn open(db: Arc<Db>, root: &Path) -> Result<Self> {
        let dir = root.join("blobs");
        let temporary = dir.join("tmp");
        // Whatever a killed process was writing is not referred to.
        match fs::remove_dir_all(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("clearing", &temporary, error));
            }
            _ => {}
        }
        fs::create_dir_all(&temporary).map_err(|error| Error::io("making", &temporary, error))?;
        let groups = KnownGroups::open(Arc::clone(&db), root)?;
        Ok(Objects {
            db,
            packs: Packs::open(&root.join("packs"))?,
            dir,
            places: Cache::new(CACHED_PLACES),
            files: Cache::new(OPEN_BLOBS),
            groups,
            next_temporary: AtomicU64::new(0),
            shares: OnceLock::new(),
            pinned: Arc::default(),
            forgotten: AtomicU64::new(0),
        })
    }

    /// What is known of the groups of large files.
    pub(crate) fn groups(&self) -> &KnownGroups {
        &self.groups
    }

    /// Whether an object is there.
    ///
    /// # Errors
    /// [`Error::Database`] or [`Error::Corrupt`].
    pub fn contains(&self, digest: &Digest) -> Result<bool> {
        Ok(self.find(digest)?.is_some())
    }

    /// The length of an object in bytes.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Database`] or [`Error::Corrupt`].
    pub fn length(&self, digest: &Digest) -> Result<u64> {
        Ok(self.place(digest)?.length())
    }

    /// All bytes of an object.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Database`], [`Error::Corrupt`] or [`Error::Io`].
    pub fn get(&self, digest: &Digest) -> Result<Vec<u8>> {
        let place = self.place(digest)?;
        let mut bytes = vec![0; place.length() as usize];
        self.read_place(digest, place, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` from byte `offset` of an object.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Corrupt`] if the object ends before that; [`Error::Io`].
    pub fn read_at(&self, digest: &Digest, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let place = self.place(digest)?;
        if offset
            .checked_add(buffer.len() as u64)
            .is_none_or(|end| end > place.length())
        {
            return Err(Error::Corrupt {
                what: format!("object {digest}"),
                detail: format!(
                    "it has {} bytes, and {} at {offset} are referred to",
                    place.length(),
                    buffer.len()
                ),
            });
        }
        self.read_place(digest, place, offset, buffer)
    }

    /// Begins a batch of new objects, which nothing collects before it is dropped.
    pub(crate) fn batch(&self) -> ObjectBatch<'_> {
        self.batch_with(&Arc::new(self.pins()))
    }

    /// Begins a batch of new objects, which nothing collects before `pins` are dropped.
    pub(crate) fn batch_with(&self, pins: &Arc<Pins>) -> ObjectBatch<'_> {
        ObjectBatch {
            objects: self,
            pins: Arc::clone(pins),
            pending: Mutex::default(),
            added: AtomicU64::new(0),
        }
    }

    /// Pins for the objects of several batches.
    pub(crate) fn pins(&self) -> Pins {
        Pins::new(&self.pinned)
    }

    /// Keeps a layer with all it reaches until the pin is dropped. It must be one that is referred
    /// to now.
    pub(crate) fn pin_root(&self, root: Digest) -> RootPin {
        RootPin::new(&self.pinned, root)
    }

    pub(crate) fn pinned(&self) -> &Arc<Pinned> {
        &self.pinned
    }

    /// Bytes on disk: packs, blob files, and what is known of large ones.
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        let mut bytes = self.packs.disk_bytes()? + self.groups.disk_bytes()?;
        for shard in self.shards()? {
            let files = self.blob_files(&shard)?;
            bytes += files.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    /// Forgets where an object was, which the database does not know any longer.
    pub(crate) fn forget(&self, digest: &Digest) {
        // Before: whoever looked it up while the database had it sees this, or is seen by the removal.
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.places.remove(digest);
        self.files.remove(digest);
    }

    /// Gives the room of objects in packs back to the disk.
    pub(crate) fn reclaim(&self, places: Vec<PackPlace>) {
        self.packs.reclaim(places);
    }

    /// Whether the database knows an object, whatever is remembered of it.
    pub(crate) fn is_recorded(&self, digest: &Digest) -> Result<bool> {
        Ok(self.db.objects.contains_key(digest.as_bytes())?)
    }

    /// Where an object lies by the database, whatever is remembered of it; `None` if it knows none.
    pub(crate) fn recorded(&self, digest: &Digest) -> Result<Option<Place>> {
        let Some(bytes) = self.db.objects.get(digest.as_bytes())? else {
            return Ok(None);
        };
        let place = Place::decode(&bytes).ok_or_else(|| Error::Corrupt {
            what: format!("the place of object {digest}"),
            detail: "it does not decode".to_owned(),
        })?;
        Ok(Some(place))
    }

    /// Checks that what surrounds an object on disk tells the same of it as the database.
    pub(crate) fn check_place(&self, digest: &Digest, place: Place) -> Result<()> {
        match place {
            Place::Pack(place) => self.packs.check(digest, place),
            Place::File { length } => {
                let path = self.blob_path(digest);
                let found = fs::metadata(&path)
                    .map_err(|error| Error::io("examining", &path, error))?
                    .len();
                if found == length {
                    return Ok(());
                }
                Err(Error::Corrupt {
                    what: path.display().to_string(),
                    detail: format!("it has {found} bytes; the database says {length}"),
                })
            }
        }
    }

    /// Every object that the database knows, in order of digests, and where it lies.
    pub(crate) fn all(&self) -> impl Iterator<Item = Result<(Digest, Place)>> + '_ {
        self.db.objects.iter().map(|guard| {
            let (key, value) = guard.into_inner()?;
            let digest = <[u8; 32]>::try_from(&key[..]).map(Digest::from_bytes);
            let place = Place::decode(&value);
            digest.ok().zip(place).ok_or_else(|| Error::Corrupt {
                what: format!("the place of object {}", key.escape_ascii()),
                detail: "it does not decode".to_owned(),
            })
        })
    }

    /// The directories that blob files lie in.
    pub(crate) fn shards(&self) -> Result<Vec<PathBuf>> {
        let list = |error| Error::io("listing", &self.dir, error);
        let mut shards = Vec::new();
        for shard in fs::read_dir(&self.dir).map_err(list)? {
            let path = shard.map_err(list)?.path();
            if path.file_name().is_some_and(|name| name.len() == 2) {
                shards.push(path);
            }
        }
        shards.sort();
        Ok(shards)
    }

    /// The blob files in one of those: digest, path, and bytes on disk.
    pub(crate) fn blob_files(&self, shard: &Path) -> Result<Vec<(Digest, PathBuf, u64)>> {
        let list = |error| Error::io("listing", shard, error);
        let mut files = Vec::new();
        for file in fs::read_dir(shard).map_err(list)? {
            let file = file.map_err(list)?;
            let (path, name) = (file.path(), file.file_name());
            let start = shard.file_name().and_then(|name| name.to_str());
            let hex = start.zip(name.to_str()).map(|(a, b)| format!("{a}{b}"));
            let Some(digest) = hex.and_then(|hex| hex.parse::<Digest>().ok()) else {
                continue;
            };
            match file.metadata() {
                Ok(metadata) => files.push((digest, path, metadata.blocks() * 512)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("examining", &path, error)),
            }
        }
        Ok(files)
    }

    fn find(&self, digest: &Digest) -> Result<Option<Place>> {
        if let Some(place) = self.places.get(digest) {
            return Ok(Some(place));
        }
        loop {
            let before = self.forgotten.load(Ordering::SeqCst);
            let Some(place) = self.recorded(digest)? else {
                return Ok(None);
            };
            self.places.insert(*digest, place);
            if self.forgotten.load(Ordering::SeqCst) == before {
                return Ok(Some(place));
            }
            // It may have been this one. A place that is remembered for ever would make whoever stores
            // the same content again believe that it is there.
            self.places.remove(digest);
        }
    }

    fn place(&self, digest: &Digest) -> Result<Place> {
        self.find(digest)?.ok_or(Error::Missing(*digest))
    }

    fn read_place(
        &self,
        digest: &Digest,
        place: Place,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        match place {
            Place::Pack(place) => self.packs.read_at(place, offset, buffer),
            Place::File { .. } => {
                let path = self.blob_path(digest);
                let file = self.files.get_or_insert_with(digest, || {
                    File::open(&path)
                        .map(Arc::new)
                        .map_err(|error| Error::io("opening", &path, error))
                })?;
                file.read_exact_at(buffer, offset)
                    .map_err(|error| Error::io("reading", &path, error))
            }
        }
    }

    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.to_string();
        self.dir.join(&hex[..2]).join(&hex[2..])
    }

    fn temporary(&self) -> Result<Temporary> {
        let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join("tmp").join(number.to_string());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path)
            .map_err(|error| Error::io("making", &path, error))?;
        Ok(Temporary {
            path,
            file,
            placed: false,
        })
    }

    /// Whether the disk can share blocks. Where it cannot, copies by the kernel take longer than our own.
    fn shares(&self) -> bool {
        let tried = || -> Result<bool> {
            let (one, other) = (self.temporary()?, self.temporary()?);
            one.file
                .write_all_at(&[1; 4096], 0)
                .map_err(|error| Error::io("writing", &one.path, error))?;
            Ok(rustix::fs::ioctl_ficlone(other.file.as_fd(), one.file.as_fd()).is_ok())
        };
        *self.shares.get_or_init(|| {
            tried().unwrap_or_else(|error| {
                tracing::debug!(%error, "whether blocks can be shared is not known");
                false
            })
        })
    }

    /// Makes a blob file durable and gives it its name; returns the directory that it is in then.
    fn place_file(&self, digest: &Digest, temporary: &mut Temporary) -> Result<PathBuf> {
        let path = self.blob_path(digest);
        let shard = path.parent().map(Path::to_path_buf).unwrap_or_default();
        temporary
            .file
            .sync_all()
            .map_err(|error| Error::io("syncing", &temporary.path, error))?;
        fs::create_dir_all(&shard).map_err(|error| Error::io("making", &shard, error))?;
        // Over a file of the same name if a crash left one: its bytes are the same.
        fs::rename(&temporary.path, &path).map_err(|error| Error::io("placing", &path, error))?;
        temporary.placed = true;
        Ok(shard)
    }
}

/// A blob file on its way; removed when dropped before it has its place.
struct Temporary {
    path: PathBuf,
    file: File,
    placed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "a temporary blob could not be removed");
        }
    }
}

/// Objects that become findable together.
pub(crate) struct ObjectBatch<'a> {
    objects: &'a Objects,
    pins: Arc<Pins>,
    pending: Mutex<FxHashMap<Digest, Pending>>,
    added: AtomicU64,
}

enum Pending {
    Pack(PackPlace),
    File(Temporary, u64),
}

/// A blob that was written from a file, and how.
pub(crate) struct Copied {
    pub(crate) digest: Digest,
    /// `None` if it is small.
    pub(crate) groups: Option<Groups>,
    /// Whether its blocks are shared with the source's.
    pub(crate) reflinked: bool,
}

impl ObjectBatch<'_> {
    /// Bytes of content that this batch adds to the store.
    pub(crate) fn added_bytes(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    /// The store's objects.
    pub(crate) fn objects(&self) -> &Objects {
        self.objects
    }

    /// Adds an object, unless the store has it.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<Digest> {
        let digest = Digest::of(bytes);
        if self.has(&digest)? {
            return Ok(digest);
        }
        let pending = if bytes.len() as u64 <= PACK_MAX {
            Pending::Pack(self.objects.packs.append(&digest, bytes)?)
        } else {
            let temporary = self.objects.temporary()?;
            temporary
                .file
                .write_all_at(bytes, 0)
                .map_err(|error| Error::io("writing", &temporary.path, error))?;
            Pending::File(temporary, bytes.len() as u64)
        };
        self.keep(digest, pending, bytes.len() as u64);
        Ok(digest)
    }

    /// Reads all bytes of an object that is in the store or in this batch.
    pub(crate) fn get(&self, digest: &Digest) -> Result<Vec<u8>> {
        let length = match self.pending.lock().get(digest) {
            None => None,
            Some(Pending::Pack(place)) => Some(place.length),
            Some(Pending::File(_, length)) => Some(*length),
        };
        let Some(length) = length else {
            return self.objects.get(digest);
        };
        let mut bytes = vec![0; length as usize];
        self.read_at(digest, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` from byte `offset` of an object that is in the store or in this batch.
    pub(crate) fn read_at(&self, digest: &Digest, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let place = match self.pending.lock().get(digest) {
            None => None,
            Some(Pending::Pack(place)) => Some(*place),
            Some(Pending::File(temporary, _)) => {
                return temporary
                    .file
                    .read_exact_at(buffer, offset)
                    .map_err(|error| Error::io("reading", &temporary.path, error));
            }
        };
        match place {
            Some(place) => self.objects.packs.read_at(place, offset, buffer),
            None => self.objects.read_at(digest, offset, buffer),
        }
    }

    /// Adds `length` bytes of `source`, from byte `offset`, as one object.
    ///
    /// Where the disk can reflink, the blocks of a large object are shared and not copied.
    /// The hash is taken of what the store then holds, not of the source, so that the two cannot
    /// differ. [`io::ErrorKind::UnexpectedEof`] if the source is shorter,
    /// [`io::ErrorKind::Interrupted`] once `stopped` says so.
    pub(crate) fn put_file(
        &self,
        source: &File,
        offset: u64,
        length: u64,
        stopped: &dyn Fn() -> bool,
    ) -> io::Result<Result<Copied>> {
        if length <= PACK_MAX {
            let mut bytes = vec![0; length as usize];
            source.read_exact_at(&mut bytes, offset)?;
            return Ok(self.put(&bytes).map(|digest| Copied {
                digest,
                groups: None,
                reflinked: false,
            }));
        }
        let temporary = match self.objects.temporary() {
            Ok(temporary) => temporary,
            Err(error) => return Ok(Err(error)),
        };
        let reflinked = offset == 0
            && source.metadata()?.len() == length
            && rustix::fs::ioctl_ficlone(temporary.file.as_fd(), source.as_fd()).is_ok();
        let there = match reflinked {
            true => length,
            false if self.objects.shares() => {
                share(source, offset, &temporary.file, length, stopped)
            }
            false => 0,
        };
        let mut hasher = GroupHasher::new(length);
        let mut buffer = vec![0; COPY_BYTES];
        let mut done = 0;
        while done < length {
            if stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let end = if done < there { there } else { length };
            let part = &mut buffer[..COPY_BYTES.min((end - done) as usize)];
            if done < there {
                if let Err(error) = temporary.file.read_exact_at(part, done) {
                    return Ok(Err(Error::io("reading", &temporary.path, error)));
                }
            } else {
                source.read_exact_at(part, offset + done)?;
                if let Err(error) = temporary.file.write_all_at(part, done) {
                    return Ok(Err(Error::io("writing", &temporary.path, error)));
                }
            }
            hasher.update(part);
            done += part.len() as u64;
        }
        let (digest, groups) = hasher.finish();
        Ok(self.has(&digest).map(|known| {
            if !known {
                self.keep(
                    digest,
                    Pending::File(temporary, length),
                    if reflinked { 0 } else { length },
                );
            }
            Copied {
                digest,
                groups: Some(groups),
                reflinked,
            }
        }))
    }

    /// Makes the objects durable and adds where they lie to `batch`, which makes them findable
    /// when it commits.
    pub(crate) fn finish(self, batch: &mut DbBatch) -> Result<()> {
        let mut pending = self.pending.lock();
        if pending.is_empty() {
            return Ok(());
        }
        // Before files get their places, from which nothing but garbage collection takes them.
        self.objects
            .db
            .check_room(batch.bytes() + pending.len() as u64 * PLACE_BYTES)?;
        let mut packs = BTreeSet::new();
        let mut shards = BTreeSet::new();
        for (digest, item) in pending.iter_mut() {
            let place = match item {
                Pending::Pack(place) => {
                    packs.insert(place.pack);
                    Place::Pack(*place)
                }
                Pending::File(temporary, length) => {
                    shards.insert(self.objects.place_file(digest, temporary)?);
                    Place::File { length: *length }
                }
            };
            batch.insert(&self.objects.db.objects, digest.as_bytes(), &place.encode());
            // It may have been swept and come back: then it is elsewhere now.
            self.objects.places.remove(digest);
            self.objects.files.remove(digest);
        }
        for pack in packs {
            self.objects.packs.sync(pack)?;
        }
        if !shards.is_empty() {
            shards.insert(self.objects.dir.clone());
        }
        for shard in shards {
            let file = File::open(&shard).map_err(|error| Error::io("opening", &shard, error))?;
            file.sync_all()
                .map_err(|error| Error::io("syncing", &shard, error))?;
        }
        pending.clear();
        Ok(())
    }

    /// Makes the objects durable and findable.
    pub(crate) fn commit(self) -> Result<()> {
        let db = Arc::clone(&self.objects.db);
        let mut batch = db.batch();
        self.finish(&mut batch)?;
        db.commit(batch, Durability::Power)
    }

    fn has(&self, digest: &Digest) -> Result<bool> {
        // Pinned before it is looked for; and looked for in the database, not among the remembered
        // places, of which one may have been swept a moment ago.
        self.pins.add(digest);
        Ok(self.pending.lock().contains_key(digest)
            || self.objects.db.objects.contains_key(digest.as_bytes())?)
    }

    fn keep(&self, digest: Digest, pending: Pending, bytes: u64) {
        let mut map = self.pending.lock();
        // Two threads may have met the same new content: the first one stays.
        map.entry(digest).or_insert_with(|| {
            self.added.fetch_add(bytes, Ordering::Relaxed);
            pending
        });
    }
}

impl Drop for ObjectBatch<'_> {
    /// What was not made durable gives its room in the packs back.
    fn drop(&mut self) {
        let places: Vec<PackPlace> = self
            .pending
            .get_mut()
            .values()
            .filter_map(|item| match item {
                Pending::Pack(place) => Some(*place),
                Pending::File(..) => None,
            })
            .collect();
        self.objects.packs.reclaim(places);
    }
}
