//! What an earlier import found at an inode of the host.
//!
//! The record of a file is kept under its device and inode number. It is believed only if size,
//! mtime and ctime are the same: the kernel moves ctime with every change of content, mode, owner
//! or extended attributes, and nobody can set it back. A change in the same tick of the clock as
//! the reading would not move it, so a file that changed just before it was read is not recorded.

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::db::{self, Db, DbBatch, key};
use crate::digest::Digest;
use crate::error::Result;
use crate::node::Timestamp;

/// The coarsest tick of a filesystem with nanosecond times: one jiffy at 100 Hz, twice.
const TICK_NANOS: i128 = 20_000_000;
/// The tick of a filesystem that keeps no nanoseconds: two seconds, as of FAT.
const COARSE_TICK_NANOS: i128 = 2_000_000_000;

#[derive(Serialize, Deserialize)]
pub(super) struct Identity {
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    pub(super) content: Content,
    pub(super) xattrs: Option<Digest>,
}

impl Identity {
    /// Finds what is known of the file that `stat` describes; `None` if nothing is, or it changed.
    pub(super) fn find(db: &Db, stat: &Stat) -> Result<Option<Identity>> {
        let Some(bytes) = db.identities.get(identity_key(stat))? else {
            return Ok(None);
        };
        let identity: Identity = db::decode("the identity of an imported file", &bytes)?;
        let same =
            identity.size == stat.st_size as u64 && (identity.mtime, identity.ctime) == times(stat);
        Ok(same.then_some(identity))
    }

    /// Records what was read of the file that `stat` describes, as it was since before `read_at`.
    pub(super) fn record(
        db: &Db,
        batch: &mut DbBatch,
        stat: &Stat,
        content: Content,
        xattrs: Option<Digest>,
        read_at: Timestamp,
    ) {
        let (mtime, ctime) = times(stat);
        let tick = if mtime.nanos == 0 && ctime.nanos == 0 {
            COARSE_TICK_NANOS
        } else {
            TICK_NANOS
        };
        if nanos(ctime) + tick > nanos(read_at) {
            return;
        }
        let identity = Identity {
            size: stat.st_size as u64,
            mtime,
            ctime,
            content,
            xattrs,
        };
        batch.insert(&db.identities, &identity_key(stat), &db::encode(&identity));
    }
}

fn identity_key(stat: &Stat) -> Vec<u8> {
    key(&[&stat.st_dev.to_be_bytes(), &stat.st_ino.to_be_bytes()])
}

fn times(stat: &Stat) -> (Timestamp, Timestamp) {
    (
        Timestamp {
            secs: stat.st_mtime,
            nanos: stat.st_mtime_nsec as u32,
        },
        Timestamp {
            secs: stat.st_ctime,
            nanos: stat.st_ctime_nsec as u32,
        },
    )
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}
