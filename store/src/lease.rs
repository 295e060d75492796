//! Leases: what pins a layer for a session, durably.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::layer::LayerId;
use crate::node::Ino;
use crate::stack::StackId;

/// The number of a lease; never reused in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08}", self.0)
    }
}

/// What is kept of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The lease.
    pub id: LeaseId,
    /// The stack whose layer it pins.
    pub stack: StackId,
    /// The layer that a publish compares with.
    pub base: LayerId,
    /// That layer's root.
    pub base_root: Digest,
    /// Who holds it: the session's id.
    pub holder: String,
    /// When it was taken, in Unix milliseconds.
    pub created_unix_ms: u64,
    /// First inode number that the holder may give to a new node.
    pub first_ino: Ino,
    /// Most bytes of the upper; `None` means no limit.
    pub quota: Option<u64>,
}

/// How many inode numbers a lease reserves at once. A session that makes more nodes reserves
/// again; numbers are 64-bit, so none is spared.
pub(crate) const INO_BLOCK: u64 = 1 << 20;

/// A held lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    record: LeaseRecord,
}

impl Lease {
    pub(crate) fn new(record: LeaseRecord) -> Self {
        Lease { record }
    }

    /// The lease's number.
    pub fn id(&self) -> LeaseId {
        self.record.id
    }

    /// What is kept of it.
    pub fn record(&self) -> &LeaseRecord {
        &self.record
    }
}
