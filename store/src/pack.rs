//! Pack files: where small objects lie, one after the other.
//!
//! A pack is a file `packs/NNNNNNNN.pack`, numbered from 1, that only grows. It begins with the
//! 8 bytes `SSPACK1\n`; then come records: magic `SOBJ`, the object's length as 32-bit
//! little-endian, its 32-byte digest, its bytes. The database says where an object begins; the
//! record headers let the database be rebuilt from the packs alone. Bytes that no database entry
//! points to (a crash between writing and committing) are garbage.
//!
//! Writers reserve a place under a lock and write outside of it, so imports write in parallel.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use rustix::fs::FallocateFlags;

use crate::digest::Digest;
use crate::error::{Error, Result};

/// First bytes of a pack file.
const FILE_MAGIC: &[u8; 8] = b"SSPACK1\n";
/// First bytes of a record in it.
const RECORD_MAGIC: &[u8; 4] = b"SOBJ";
/// Bytes before a record's content.
const HEADER_BYTES: u64 = 4 + 4 + 32;
/// A pack that has grown to this is left, and another begun.
const ROLL_BYTES: u64 = 256 << 20;
/// Open packs kept for reading.
const OPEN_PACKS: usize = 256;

/// Where an object lies in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackPlace {
    pub(crate) pack: u32,
    /// Of its first byte.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

pub(crate) struct Packs {
    dir: PathBuf,
    active: Mutex<Active>,
    open: Cache<u32, Arc<File>>,
}

struct Active {
    number: u32,
    file: Arc<File>,
    length: u64,
}

impl Packs {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).map_err(|error| Error::io("making", dir, error))?;
        let mut newest = 0;
        for entry in fs::read_dir(dir).map_err(|error| Error::io("listing", dir, error))? {
            let entry = entry.map_err(|error| Error::io("listing", dir, error))?;
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_suffix(".pack"))
                .and_then(|n| n.parse().ok());
            newest = newest.max(number.unwrap_or(0));
        }
        let active = if newest == 0 {
            create(dir, 1)?
        } else {
            reopen(dir, newest)?
        };
        Ok(Packs {
            dir: dir.to_path_buf(),
            active: Mutex::new(active),
            open: Cache::new(OPEN_PACKS),
        })
    }

    /// Appends an object. It is readable at once, and durable after [`Packs::sync`] of its pack.
    pub(crate) fn append(&self, digest: &Digest, bytes: &[u8]) -> Result<PackPlace> {
        let record_bytes = HEADER_BYTES + bytes.len() as u64;
        let (number, file, start) = {
            let mut active = self.active.lock();
            if active.length >= ROLL_BYTES {
                *active = create(&self.dir, active.number + 1)?;
            }
            let start = active.length;
            active.length += record_bytes;
            (active.number, Arc::clone(&active.file), start)
        };
        let mut record = Vec::with_capacity(record_bytes as usize);
        record.extend_from_slice(RECORD_MAGIC);
        record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        record.extend_from_slice(digest.as_bytes());
        record.extend_from_slice(bytes);
        let place = PackPlace {
            pack: number,
            offset: start + HEADER_BYTES,
            length: bytes.len() as u64,
        };
        if let Err(error) = file.write_all_at(&record, start) {
            self.reclaim(vec![place]);
            return Err(Error::io("writing", &self.pack_path(number), error));
        }
        Ok(place)
    }

    /// Gives the room of objects that nothing refers to back to the disk. A disk that cannot do
    /// that keeps it: nothing depends on it.
    pub(crate) fn reclaim(&self, mut places: Vec<PackPlace>) {
        places.sort_unstable_by_key(|place| (place.pack, place.offset));
        // Neighbours together: the disk gives whole blocks back.
        let mut runs: Vec<(u32, u64, u64)> = Vec::new();
        for place in places {
            let (start, end) = (place.offset - HEADER_BYTES, place.offset + place.length);
            match runs.last_mut() {
                Some((pack, _, last)) if *pack == place.pack && *last == start => *last = end,
                _ => runs.push((place.pack, start, end)),
            }
        }
        for (pack, start, end) in runs {
            let path = self.pack_path(pack);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| Ok(rustix::fs::fallocate(&file, flags, start, end - start)?));
            if let Err(error) = punched {
                tracing::debug!(path = %path.display(), %error, "unused space stays allocated");
            }
        }
    }

    /// Makes everything appended to pack `number` so far durable.
    pub(crate) fn sync(&self, number: u32) -> Result<()> {
        let file = self.file(number)?;
        file.sync_data()
            .map_err(|error| Error::io("syncing", &self.pack_path(number), error))
    }

    /// Fills `buffer` from the object at `place`, from byte `offset` of it.
    pub(crate) fn read_at(&self, place: PackPlace, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let file = self.file(place.pack)?;
        file.read_exact_at(buffer, place.offset + offset)
            .map_err(|error| Error::io("reading", &self.pack_path(place.pack), error))
    }

    /// Checks that the header before an object tells its digest and length.
    pub(crate) fn check(&self, digest: &Digest, place: PackPlace) -> Result<()> {
        let damaged = |detail: &str| Error::Corrupt {
            what: format!(
                "{} at byte {}",
                self.pack_path(place.pack).display(),
                place.offset
            ),
            detail: detail.to_owned(),
        };
        let start = place
            .offset
            .checked_sub(HEADER_BYTES)
            .ok_or_else(|| damaged("no header fits before it"))?;
        let mut header = [0; HEADER_BYTES as usize];
        let file = self.file(place.pack)?;
        file.read_exact_at(&mut header, start)
            .map_err(|error| Error::io("reading", &self.pack_path(place.pack), error))?;
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if &header[..4] != RECORD_MAGIC {
            return Err(damaged("there is no record"));
        }
        if u64::from(length) != place.length || &header[8..] != digest.as_bytes() {
            return Err(damaged("the record there is of another object"));
        }
        Ok(())
    }

    /// Bytes on disk, all packs together.
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for entry in
            fs::read_dir(&self.dir).map_err(|error| Error::io("listing", &self.dir, error))?
        {
            let entry = entry.map_err(|error| Error::io("listing", &self.dir, error))?;
            let metadata = entry
                .metadata()
                .map_err(|error| Error::io("examining", &entry.path(), error))?;
            bytes += std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
        }
        Ok(bytes)
    }

    fn file(&self, number: u32) -> Result<Arc<File>> {
        self.open.get_or_insert_with(&number, || {
            let path = self.pack_path(number);
            File::open(&path)
                .map(Arc::new)
                .map_err(|error| Error::io("opening", &path, error))
        })
    }

    fn pack_path(&self, number: u32) -> PathBuf {
        pack_path(&self.dir, number)
    }
}

fn pack_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:08}.pack"))
}

fn create(dir: &Path, number: u32) -> Result<Active> {
    let path = pack_path(dir, number);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(|error| Error::io("making", &path, error))?;
    file.write_all_at(FILE_MAGIC, 0)
        .map_err(|error| Error::io("writing", &path, error))?;
    // The directory entry must be durable before an object in the pack can be referred to.
    file.sync_all()
        .map_err(|error| Error::io("syncing", &path, error))?;
    let dir_file = File::open(dir).map_err(|error| Error::io("opening", dir, error))?;
    dir_file
        .sync_all()
        .map_err(|error| Error::io("syncing", dir, error))?;
    Ok(Active {
        number,
        file: Arc::new(file),
        length: FILE_MAGIC.len() as u64,
    })
}

fn reopen(dir: &Path, number: u32) -> Result<Active> {
    let path = pack_path(dir, number);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|error| Error::io("opening", &path, error))?;
    let length = file
        .metadata()
        .map_err(|error| Error::io("examining", &path, error))?
        .len();
    if length < FILE_MAGIC.len() as u64 {
        // Made by a process that died before it wrote the magic: nothing can lie in it yet.
        file.write_all_at(FILE_MAGIC, 0)
            .map_err(|error| Error::io("writing", &path, error))?;
        return Ok(Active {
            number,
            file: Arc::new(file),
            length: FILE_MAGIC.len() as u64,
        });
    }
    let mut magic = [0; FILE_MAGIC.len()];
    file.read_exact_at(&mut magic, 0)
        .map_err(|error| Error::io("reading", &path, error))?;
    if &magic != FILE_MAGIC {
        return Err(Error::Corrupt {
            what: path.display().to_string(),
            detail: "it does not begin with the magic of a pack".to_owned(),
        });
    }
    // What was reserved but never written before a crash stays a hole: garbage like the rest.
    Ok(Active {
        number,
        file: Arc::new(file),
        length,
    })
}
