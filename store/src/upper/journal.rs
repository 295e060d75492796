//! The journal: every change of an upper, in the order it was acknowledged.
//!
//! # On disk
//! The file begins with the 8 bytes `SSJRNL1\n`. Then come frames: the payload's length (32 bits
//! little-endian), its CRC-32 (32 bits), the payload: the records of one transaction, in postcard.
//! A frame that is cut or does not match its checksum ends the journal if nothing valid follows:
//! a process died while it wrote it, so it was never acknowledged, and it is cut off. One in the
//! middle means that the disk lost something, and is an error.
//!
//! Space is allocated ahead of the end, so that on a full disk a removal can still be written down:
//! it is how room is made.
//!
//! A journal that has grown to many times the state is replaced by one that makes the same state
//! from scratch: written beside it, synced, and renamed over it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::state::{Record, Slot, State};
use crate::db;
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"SSJRNL1\n";
const FRAME_HEADER: usize = 8;
/// A journal that has been replaced is replaced again once it is this many times what the state alone takes.
const CHECKPOINT_FACTOR: u64 = 8;
/// Bytes beyond its end that are kept for removals: some hundreds of them, which free more.
const REMOVAL_RESERVE: u64 = 64 << 10;
/// Bytes that are allocated at a time.
const ALLOCATION_STEP: u64 = 128 << 10;
/// Records in one frame of a new journal.
const CHECKPOINT_RECORDS: usize = 1024;

pub(super) struct Journal {
    file: Arc<File>,
    dir: PathBuf,
    length: u64,
    /// To where space is known to be allocated; the largest number if the disk cannot do that.
    allocated: u64,
    /// A journal shorter than this is never replaced.
    checkpoint_bytes: u64,
    /// Length from which on it is replaced.
    due: u64,
    buffer: Vec<u8>,
}

impl Journal {
    /// Opens the journal in `dir` and returns the state that it makes.
    pub(super) fn open(dir: &Path, checkpoint_bytes: u64) -> Result<(Journal, State)> {
        let path = dir.join("journal");
        let open = |error: io::Error| Error::io("opening", &path, error);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(open)?;
        let bytes = fs::read(&path).map_err(open)?;
        let mut state = State::default();
        let length = if bytes.len() < MAGIC.len() {
            file.set_len(0).map_err(open)?;
            file.write_all_at(MAGIC, 0).map_err(open)?;
            MAGIC.len()
        } else {
            replay(&path, &bytes, &mut state)?
        };
        if length < bytes.len() {
            tracing::info!(path = %path.display(), cut = bytes.len() - length, "cutting an unfinished frame off");
            file.set_len(length as u64).map_err(open)?;
        }
        if length > MAGIC.len() {
            // Arena blocks that this state does not name will be used again: it must be the state
            // that power loss leaves too.
            file.sync_data().map_err(open)?;
        }
        let journal = Journal {
            file: Arc::new(file),
            dir: dir.to_path_buf(),
            length: length as u64,
            allocated: 0,
            checkpoint_bytes,
            due: checkpoint_bytes,
            buffer: Vec::new(),
        };
        Ok((journal, state))
    }

    /// Appends one transaction. When it returns the records survive a killed process.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<()> {
        self.buffer.clear();
        frame(&mut self.buffer, records);
        if let Err(error) = self.allocate(self.buffer.len() as u64)
            && !frees(records)
        {
            return Err(Error::io("writing", &self.path(), error));
        }
        if let Err(error) = self.file.write_all_at(&self.buffer, self.length) {
            // What was written of it is not counted. It is cut off so that it is not taken for
            // damage after a crash; if that fails too, the next frame is written over it.
            if let Err(error) = self.file.set_len(self.length) {
                tracing::warn!(dir = %self.dir.display(), %error, "an unfinished frame stays");
            }
            return Err(Error::io("writing", &self.path(), error));
        }
        self.length += self.buffer.len() as u64;
        Ok(())
    }

    /// Makes sure that beyond the next `bytes` there is space for removals.
    fn allocate(&mut self, bytes: u64) -> Result<(), Errno> {
        let needed = self.length + bytes + REMOVAL_RESERVE;
        if needed <= self.allocated {
            return Ok(());
        }
        let mut result = Ok(());
        for end in [needed + ALLOCATION_STEP, needed] {
            let length = end - self.length;
            result =
                rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.length, length);
            match result {
                Ok(()) => {
                    self.allocated = end;
                    return Ok(());
                }
                Err(Errno::OPNOTSUPP) => {
                    self.allocated = u64::MAX;
                    return Ok(());
                }
                Err(_) => {}
            }
        }
        result
    }

    /// Replaces the journal by a shorter one if it has grown long. A failure (a full disk) leaves
    /// the old one, which is as good, only longer.
    pub(super) fn checkpoint_if_due(&mut self, state: &State) {
        if self.length < self.due {
            return;
        }
        if let Err(error) = self.checkpoint(state) {
            tracing::warn!(dir = %self.dir.display(), %error, "the journal could not be shortened");
        }
        self.due = self
            .checkpoint_bytes
            .max(self.length.saturating_mul(CHECKPOINT_FACTOR));
    }

    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    fn path(&self) -> PathBuf {
        self.dir.join("journal")
    }

    fn checkpoint(&mut self, state: &State) -> Result<()> {
        let temporary = self.dir.join("journal.new");
        let write = |error: io::Error| Error::io("writing", &temporary, error);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(write)?;
        file.write_all_at(MAGIC, 0).map_err(write)?;
        let mut length = MAGIC.len() as u64;
        let mut flush = |records: &mut Vec<Record>| -> Result<()> {
            let mut bytes = Vec::new();
            frame(&mut bytes, records);
            records.clear();
            file.write_all_at(&bytes, length).map_err(write)?;
            length += bytes.len() as u64;
            Ok(())
        };
        let mut records = Vec::with_capacity(CHECKPOINT_RECORDS);
        for record in state.records() {
            records.push(record);
            if records.len() == CHECKPOINT_RECORDS {
                flush(&mut records)?;
            }
        }
        if !records.is_empty() {
            flush(&mut records)?;
        }
        file.sync_all().map_err(write)?;
        fs::rename(&temporary, self.path())
            .map_err(|error| Error::io("placing", &self.path(), error))?;
        File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|error| Error::io("syncing", &self.dir, error))?;
        self.file = Arc::new(file);
        self.length = length;
        self.allocated = 0;
        Ok(())
    }
}

/// Whether a transaction makes room: it takes names or bytes away, and adds none.
fn frees(records: &[Record]) -> bool {
    let entry = |slot: &Option<Slot>| matches!(slot, Some(Slot::Entry(_)));
    let removes = |record: &Record| match record {
        Record::Slot { slot, .. } => !entry(slot),
        Record::Drop { .. } | Record::Hole { .. } | Record::Size { .. } => true,
        _ => false,
    };
    let adds = |record: &Record| match record {
        Record::Slot { slot, .. } => entry(slot),
        Record::Run { .. } => true,
        _ => false,
    };
    records.iter().any(removes) && !records.iter().any(adds)
}

/// The state that the journal in `dir` makes, read and not opened; `None` if there is none.
pub(super) fn inspect(dir: &Path) -> Result<Option<State>> {
    let path = dir.join("journal");
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| Error::io("reading", &path, error))?,
    };
    let mut state = State::default();
    if bytes.len() >= MAGIC.len() {
        replay(&path, &bytes, &mut state)?;
    }
    Ok(Some(state))
}

fn frame(buffer: &mut Vec<u8>, records: &[Record]) {
    let payload = db::encode(&records);
    buffer.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    buffer.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
    buffer.extend_from_slice(&payload);
}

/// Applies every valid frame and returns where the last one ends.
fn replay(path: &Path, bytes: &[u8], state: &mut State) -> Result<usize> {
    let damaged = |detail: String| Error::Corrupt {
        what: path.display().to_string(),
        detail,
    };
    if &bytes[..MAGIC.len()] != MAGIC {
        return Err(damaged(
            "it does not begin with the magic of a journal".to_owned(),
        ));
    }
    let mut at = MAGIC.len();
    let mut freed = Vec::new();
    while let Some(payload) = read_frame(&bytes[at..]) {
        let records: Vec<Record> = db::decode(&path.display().to_string(), payload)?;
        for record in records {
            state.apply(record, &mut freed);
        }
        at += FRAME_HEADER + payload.len();
    }
    // An unfinished frame is the last thing in the file. If a valid one follows, this is damage.
    let rest = &bytes[at..];
    if (1..rest.len()).any(|skip| is_frame(&rest[skip..])) {
        return Err(damaged(format!(
            "the frame at byte {at} does not match its checksum"
        )));
    }
    Ok(at)
}

/// Whether a valid frame begins here. Of the positions in a damaged journal, of which there may be
/// millions, nearly all are told by their first bytes: the checksum comes last.
fn is_frame(bytes: &[u8]) -> bool {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return false;
    };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    rest.get(..length).is_some_and(|payload| {
        postcard::take_from_bytes::<Vec<Record>>(payload)
            .is_ok_and(|(records, left)| !records.is_empty() && left.is_empty())
    }) && read_frame(bytes).is_some()
}

fn read_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_first_chunk::<FRAME_HEADER>()?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let checksum = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    let payload = rest.get(..length)?;
    // A run of zeros (space that was allocated and never written) would be a valid empty frame.
    (length > 0 && crc32fast::hash(payload) == checksum).then_some(payload)
}
