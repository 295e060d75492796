//! What is known of the groups of large files, by the digest of the whole: in memory, and on disk, so
//! that a restart does not cost a hash of all that changed.
//!
//! # On disk
//! `groups/` has a file for each of the larger ones, named by the digest in hexadecimal: `SGR1`, then
//! for content of up to 4 GiB the value of each group, 32 bytes, and for longer content of each group
//! that is not all zeros its number, 64 bits little-endian, and its value. Nothing rests on such a
//! file: what it says is taken only if it makes the digest that it is named by. So none is synced,
//! and one that is damaged, or gone, costs a hash. There are at most 64 MiB of them; of more, those
//! that were not needed for the longest time go. Those of content that no layer has are garbage.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::db::Db;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::groups::{Groups, PLAIN_MAX};

/// Files from this size on are remembered; smaller ones are hashed in a few milliseconds.
const MIN_KEPT: u64 = 4 << 20;
/// Files from this size on are remembered on disk.
pub(crate) const MIN_STORED: u64 = 16 << 20;
/// Bytes of values that are kept in memory: those of 256 GiB of content.
const KEPT_BYTES: u64 = 32 << 20;
/// Bytes of files that are kept on disk.
const STORED_BYTES: u64 = 64 << 20;
/// Largest file: the groups of 64 GiB and more.
const MAX_FILE: u64 = 8 << 20;
/// First bytes of a file; the digit is its version.
const MAGIC: &[u8; 4] = b"SGR1";
/// Bytes of a value, and of one with its number.
const VALUE: usize = 32;
const NUMBERED: usize = 8 + VALUE;

/// Groups of files.
pub(crate) struct KnownGroups {
    memory: Cache<Digest, Groups, Bytes>,
    dir: PathBuf,
    db: Arc<Db>,
    next_temporary: AtomicU64,
    /// Bytes of the files in `dir`, none of which is removed by another thread meanwhile.
    stored: Mutex<u64>,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Digest, Groups> for Bytes {
    fn weight(&self, _: &Digest, groups: &Groups) -> u64 {
        // Those that list nothing take room, too.
        NUMBERED as u64 + length(groups)
    }
}

impl KnownGroups {
    /// Opens those of the store at `root`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn open(db: Arc<Db>, root: &Path) -> Result<Self> {
        let dir = root.join("groups");
        fs::create_dir_all(&dir).map_err(|error| Error::io("making", &dir, error))?;
        let known = KnownGroups {
            memory: Cache::with_weighter(1000, KEPT_BYTES, Bytes),
            dir,
            db,
            next_temporary: AtomicU64::new(0),
            stored: Mutex::new(0),
        };
        let mut bytes = 0;
        for file in known.files()? {
            match file.digest {
                Some(_) => bytes += file.bytes,
                // A killed process was writing it.
                None => remove(&file.path)?,
            }
        }
        *known.stored.lock() = bytes;
        Ok(known)
    }

    /// What is known of the groups of content of `size` bytes.
    pub(crate) fn get(&self, digest: &Digest, size: u64) -> Option<Groups> {
        if size < MIN_KEPT {
            return None;
        }
        if let Some(groups) = self.memory.get(digest) {
            return Some(groups);
        }
        if size < MIN_STORED {
            return None;
        }
        let path = self.path(digest);
        match read(&path, digest, size) {
            Ok(groups) => {
                let groups = groups?;
                self.memory.insert(*digest, groups.clone());
                Some(groups)
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "what is known of a large file is not taken");
                self.forget(&path);
                None
            }
        }
    }

    /// Keeps the groups of content of `size` bytes, if it is large.
    pub(crate) fn keep(&self, digest: Digest, size: u64, groups: Groups) {
        if size < MIN_KEPT {
            return;
        }
        let file = MAGIC.len() as u64 + length(&groups);
        if size >= MIN_STORED && file <= MAX_FILE {
            let path = self.path(&digest);
            // The content is whole without it.
            if let Err(error) = self.store(&path, file, &groups) {
                tracing::warn!(path = %path.display(), %error, "what is known of a large file is not stored");
            }
        }
        self.memory.insert(digest, groups);
    }

    /// Removes what is stored of content that is not `wanted`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn retain(&self, wanted: impl Fn(&Digest) -> bool) -> Result<()> {
        let mut stored = self.stored.lock();
        for file in self.files()? {
            if file.digest.is_some_and(|digest| !wanted(&digest)) {
                remove(&file.path)?;
                *stored = stored.saturating_sub(file.bytes);
            }
        }
        Ok(())
    }

    /// Bytes on disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        Ok(self.files()?.iter().map(|file| file.blocks * 512).sum())
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.to_string())
    }

    fn store(&self, path: &Path, bytes: u64, groups: &Groups) -> Result<()> {
        let now = SystemTime::now();
        match File::open(path) {
            Ok(file) => {
                return file
                    .set_modified(now)
                    .map_err(|error| Error::io("touching", path, error));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("opening", path, error)),
        }
        self.db.check_room(bytes)?;
        let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.dir.join(format!("tmp-{number}"));
        let written = File::create_new(&temporary)
            .and_then(|mut file| file.write_all(&encode(groups)))
            .map_err(|error| Error::io("writing", &temporary, error));
        let mut stored = self.stored.lock();
        let placed = written.and_then(|()| {
            fs::rename(&temporary, path).map_err(|error| Error::io("placing", path, error))
        });
        if let Err(error) = placed {
            remove(&temporary)?;
            return Err(error);
        }
        *stored += bytes;
        if *stored > STORED_BYTES {
            *stored = self.trim()?;
        }
        Ok(())
    }

    /// Removes the oldest files; returns the bytes of the others.
    fn trim(&self) -> Result<u64> {
        let mut files = self.files()?;
        files.retain(|file| file.digest.is_some());
        files.sort_by_key(|file| std::cmp::Reverse(file.used));
        let mut kept = 0;
        for file in files {
            // A part of them, so that not each new one is a reason to look at all.
            if kept + file.bytes > STORED_BYTES / 4 * 3 {
                remove(&file.path)?;
            } else {
                kept += file.bytes;
            }
        }
        Ok(kept)
    }

    fn forget(&self, path: &Path) {
        let _no_other = self.stored.lock();
        if let Err(error) = remove(path) {
            tracing::warn!(%error, "what is known of a large file cannot be removed");
        }
    }

    fn files(&self) -> Result<Vec<Stored>> {
        let list = |error| Error::io("listing", &self.dir, error);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(list)? {
            let entry = entry.map_err(list)?;
            let path = entry.path();
            let found = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.and_then(|found| Ok((found.modified()?, found))),
            };
            let (used, found) = found.map_err(|error| Error::io("examining", &path, error))?;
            files.push(Stored {
                digest: entry
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse().ok()),
                path,
                used,
                bytes: found.len(),
                blocks: std::os::unix::fs::MetadataExt::blocks(&found),
            });
        }
        Ok(files)
    }
}

/// A file of groups.
struct Stored {
    /// `None` while it is written.
    digest: Option<Digest>,
    path: PathBuf,
    /// When it was written, or needed last.
    used: SystemTime,
    bytes: u64,
    blocks: u64,
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("removing", path, error))
        }
        _ => Ok(()),
    }
}

/// Reads a file of groups; `None` if there is none.
fn read(path: &Path, digest: &Digest, size: u64) -> Result<Option<Groups>> {
    let reading = |error| Error::io("reading", path, error);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(reading)?,
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(&file, MAX_FILE + 1), &mut bytes).map_err(reading)?;
    let groups = decode(&bytes, size)
        .filter(|groups| groups.digest(size).as_ref() == Some(digest))
        .ok_or_else(|| Error::Corrupt {
            what: path.display().to_string(),
            detail: "it does not make the digest that it is named by".to_owned(),
        })?;
    file.set_modified(SystemTime::now())
        .map_err(|error| Error::io("touching", path, error))?;
    Ok(Some(groups))
}

/// Bytes of the values.
fn length(groups: &Groups) -> u64 {
    let bytes = match groups {
        Groups::Nodes(values) => values.len() * VALUE,
        Groups::Pieces(values) => values.len() * NUMBERED,
    };
    bytes as u64
}

fn encode(groups: &Groups) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAGIC.len() + length(groups) as usize);
    bytes.extend_from_slice(MAGIC);
    match groups {
        Groups::Nodes(values) => bytes.extend(values.iter().flatten()),
        Groups::Pieces(values) => {
            for (number, value) in values.iter() {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(value);
            }
        }
    }
    bytes
}

fn decode(bytes: &[u8], size: u64) -> Option<Groups> {
    let body = bytes.strip_prefix(MAGIC)?;
    if size <= PLAIN_MAX {
        let (values, rest) = body.as_chunks::<VALUE>();
        return rest.is_empty().then(|| Groups::Nodes(values.into()));
    }
    let (items, rest) = body.as_chunks::<NUMBERED>();
    let values = items.iter().map(|item| {
        let (number, value) = item.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*number), value.try_into().ok()?))
    });
    let values: Option<Vec<_>> = values.collect();
    Some(Groups::Pieces(values.filter(|_| rest.is_empty())?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::{GROUP_BYTES, GroupHasher};

    fn content(size: u64, seed: u64) -> (Digest, Groups) {
        let mut hasher = GroupHasher::new(size);
        hasher.zeros_to(5 * GROUP_BYTES);
        hasher.update(&seed.to_le_bytes());
        hasher.zeros_to(size / GROUP_BYTES * GROUP_BYTES);
        hasher.finish()
    }

    fn open(dir: &Path) -> KnownGroups {
        let db = Arc::new(Db::open(&dir.join("db")).unwrap());
        KnownGroups::open(db, dir).unwrap()
    }

    #[test]
    fn what_is_kept_is_found_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = [
            MIN_STORED - 1,
            MIN_STORED,
            (64 << 20) + 7,
            PLAIN_MAX,
            1 << 40,
        ];
        let known = open(dir.path());
        let all: Vec<_> = sizes.map(|size| (size, content(size, size))).into();
        for (size, (digest, groups)) in &all {
            known.keep(*digest, *size, groups.clone());
        }
        drop(known);
        fs::write(dir.path().join("groups/tmp-0"), "half").unwrap();
        let known = open(dir.path());
        assert_eq!(known.files().unwrap().len(), 4);
        for (size, (digest, groups)) in &all {
            let found = known.get(digest, *size);
            assert_eq!(found.is_some(), *size >= MIN_STORED);
            if let Some(found) = found {
                assert_eq!(encode(&found), encode(groups));
            }
        }
    }

    #[test]
    fn what_is_damaged_is_not_taken_and_goes() {
        let size = 64 << 20;
        for long in [false, true] {
            let size = if long { size << 10 } else { size };
            let (digest, groups) = content(size, 1);
            let whole = encode(&groups);
            let mut damaged = vec![whole[..whole.len() - 1].to_vec(), Vec::new()];
            for at in [0, 4, 12, whole.len() - 1] {
                damaged.push(whole.clone());
                damaged.last_mut().unwrap()[at] ^= 1;
            }
            damaged.push([&whole[..], &[0; NUMBERED * VALUE]].concat());
            for bytes in damaged {
                let dir = tempfile::tempdir().unwrap();
                let known = open(dir.path());
                let path = known.path(&digest);
                fs::write(&path, bytes).unwrap();
                assert!(known.get(&digest, size).is_none());
                assert!(!path.exists());
                fs::write(&path, &whole).unwrap();
                assert!(
                    known.get(&digest, size + GROUP_BYTES).is_none(),
                    "of another size"
                );
            }
        }
    }

    #[test]
    fn the_newest_are_kept_on_disk_and_the_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let known = open(dir.path());
        let size = PLAIN_MAX;
        let most = STORED_BYTES / length(&content(size, 0).1) + 5;
        let all: Vec<_> = (0..most).map(|seed| content(size, seed)).collect();
        for (number, (digest, groups)) in all.iter().enumerate() {
            known.keep(*digest, size, groups.clone());
            // Files of one moment have no order.
            let file = File::open(known.path(digest)).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            file.set_modified(at).unwrap();
        }
        let bytes: u64 = known.files().unwrap().iter().map(|file| file.bytes).sum();
        assert!(bytes <= STORED_BYTES, "{bytes}");
        assert_eq!(bytes, *known.stored.lock());
        assert!(!known.path(&all[0].0).exists());
        let last = all[all.len() - 1].0;
        assert!(known.path(&last).exists());
        assert!(known.disk_bytes().unwrap() > STORED_BYTES / 2);
        known.retain(|digest| *digest == last).unwrap();
        assert_eq!(known.files().unwrap().len(), 1);
        assert!(known.path(&last).exists());
    }
}
