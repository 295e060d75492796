//! Which rows are asked for.

use std::sync::Arc;

use super::{AccessCall, AccessKind, AccessRow, Actor};
use crate::digest::Digest;
use crate::lease::LeaseId;
use crate::name::RelPath;

/// Says of a path whether it is wanted.
pub type PathMatch = Arc<dyn Fn(&RelPath) -> bool + Send + Sync>;

/// Which rows are wanted. Everything that is `None` or empty matches all.
#[derive(Clone, Default)]
pub struct AccessFilter {
    /// Only the record under this lease.
    pub lease: Option<LeaseId>,
    /// Only the records of the session of this name.
    pub session: Option<String>,
    /// Only this path.
    pub path: Option<RelPath>,
    /// Only paths that it matches.
    pub glob: Option<PathMatch>,
    /// What all paths that `glob` matches begin with: it is looked no further than there.
    pub path_begin: Vec<u8>,
    /// Only of this content.
    pub digest: Option<Digest>,
    /// Only this command.
    pub command: Option<String>,
    /// Only this process.
    pub pid: Option<u32>,
    /// Only these kinds.
    pub kinds: Vec<AccessKind>,
    /// Only what happened at or after this time, in Unix milliseconds.
    pub since_unix_ms: Option<u64>,
    /// Only what happened before this time, in Unix milliseconds.
    pub until_unix_ms: Option<u64>,
}

impl AccessFilter {
    /// Whether a row is wanted, whenever it was.
    pub(super) fn wants_but_for_time(&self, row: &AccessRow) -> bool {
        self.wants_path(&row.path)
            && self.wants_actor(&row.actor)
            && (self.kinds.is_empty() || self.kinds.contains(&row.kind))
            && (self.digest.is_none() || self.digest == row.digest)
    }

    pub(super) fn wants_call(&self, call: &AccessCall) -> bool {
        self.wants_path(&call.path)
            && self.wants_actor(&call.actor)
            && (self.kinds.is_empty() || self.kinds.contains(&call.kind))
            && self.digest.is_none()
            && self.wants_time(call.at_unix_ms, call.at_unix_ms)
    }

    pub(super) fn wants_path(&self, path: &RelPath) -> bool {
        self.path.as_ref().is_none_or(|wanted| wanted == path)
            && self.glob.as_ref().is_none_or(|matches| matches(path))
    }

    pub(super) fn wants_actor(&self, actor: &Actor) -> bool {
        let command = self.command.as_ref();
        command.is_none_or(|wanted| actor.command.as_ref() == Some(wanted))
            && self.pid.is_none_or(|wanted| actor.pid == Some(wanted))
    }

    /// Whether something between these times is wanted.
    pub(super) fn wants_time(&self, first_unix_ms: u64, last_unix_ms: u64) -> bool {
        self.since_unix_ms.is_none_or(|since| last_unix_ms >= since)
            && self.until_unix_ms.is_none_or(|until| first_unix_ms < until)
    }
}
