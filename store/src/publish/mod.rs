//! Publish: the one gate through which a session's changes become a layer.
//!
//! Optimistic, per path: the changes are captured against the session's base, each is routed and
//! resolved against the present head ([`resolve`]), and all of them become one layer, or, if one
//! conflicts, none does. Everything that costs time happens without the gate: content and trees are
//! durable before it is taken, and if the head has moved meanwhile the resolution is done again. The
//! commit itself is one durable batch of small records.
//!
//! After a rejected, failed or interrupted publish the head and the session are as before.

mod carry;
mod combine;
mod conflict;
mod delta;
mod follow;
mod git;
mod git_index;
mod numbers;
mod origins;
mod reads;
mod rebase;
mod refs;
mod resolve;
mod route;
mod since;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use conflict::{Conflict, ConflictKind, Version};
pub(crate) use delta::difference;
pub use delta::{Change, ChangeKind, Delta};

pub use reads::{Dependency, StaleRead, Validate};
pub use rebase::Rebased;
pub use route::{Policy, Route, Router, Rule, SavedRef, Skipped};

use crate::blame::Owners;
use crate::db::Durability;
use crate::digest::Digest;
use crate::edit;
use crate::error::{Error, Result};
use crate::layer::{LayerId, LayerKind, LayerRecord, Owner};
use crate::lease::LeaseId;
use crate::name::RelPath;
use crate::point;
use crate::stack::{Stack, StackRecord};
use crate::upper::Upper;
use reads::Reads;
use resolve::{Resolution, Resolver};

/// Resolutions that may be overtaken by other publishes before one is done with the gate held, so
/// that nobody starves.
const OPTIMISTIC_ATTEMPTS: u32 = 3;

/// Who publishes, and how.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// Who owns what is new.
    pub owner: Owner,
    /// The session's name for people.
    pub session_name: Option<String>,
    /// Kept with the layer.
    pub message: Option<String>,
    /// The request.
    pub request_id: Option<String>,
    /// The present time, in Unix milliseconds.
    pub now_unix_ms: u64,
    /// Only say what would happen.
    pub dry_run: bool,
    /// Also make the marked text of conflicts.
    pub markers: bool,
    /// How paths are routed.
    pub policy: Policy,
    /// Only these paths and what is below them, with the new directories on the way; all if there
    /// are none.
    pub paths: Vec<RelPath>,
    /// Whether what the session read may have changed since.
    pub validate: Validate,
    /// Do not publish what the ignored route applies to.
    pub drop_ignored: bool,
    /// Further leases under which what the session read is on record: those that it had before.
    pub records: Vec<LeaseId>,
}

impl PublishOptions {
    /// A publish of everything, at this time, of which nothing more is said.
    pub fn new(owner: Owner, now_unix_ms: u64) -> Self {
        PublishOptions {
            owner,
            session_name: None,
            message: None,
            request_id: None,
            now_unix_ms,
            dry_run: false,
            markers: false,
            policy: Policy::default(),
            paths: Vec::new(),
            validate: Validate::Writes,
            drop_ignored: false,
            records: Vec::new(),
        }
    }
}

/// How a publish ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This layer is the head.
    Published(LayerRecord),
    /// The session equals its base.
    NoChange,
    /// At least one path conflicts.
    Conflict,
    /// Nothing conflicts, but what the session read has changed since, and must not have.
    StaleReads,
    /// It would publish.
    DryRun,
}

/// What a publish did, or would do.
#[derive(Clone, Debug)]
pub struct PublishReport {
    /// How it ended.
    pub outcome: Outcome,
    /// The head that it was resolved against.
    pub head: LayerId,
    /// Paths that the new layer changes.
    pub changed_paths: u64,
    /// Paths whose content was merged by lines.
    pub merged: Vec<RelPath>,
    /// Every conflict, in path order.
    pub conflicts: Vec<Conflict>,
    /// Changed paths that were not published, and why.
    pub skipped: Vec<Skipped>,
    /// Git refs that both sides moved.
    pub saved_refs: Vec<SavedRef>,
    /// Paths published by the ignored route.
    pub ignored_paths: u64,
    /// What the session read and others have changed since its base, in path order.
    pub stale_reads: Vec<StaleRead>,
}

/// A step of a publish, for whoever times it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Finding what changed, and storing new content.
    Capture,
    /// Routing and resolving each path against the head.
    Resolve,
    /// Writing the new tree.
    Apply,
    /// Making content and tree durable.
    Sync,
    /// Waiting for the gate and moving the head.
    Commit,
}

impl Step {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Capture => "capture",
            Step::Resolve => "resolve",
            Step::Apply => "apply",
            Step::Sync => "sync",
            Step::Commit => "commit",
        }
    }
}

impl Upper {
    /// The paths that the session changed against its base, and how.
    ///
    /// # Errors
    /// [`crate::Error::Io`], or as reading an object.
    pub fn changes(&self) -> Result<Vec<(RelPath, ChangeKind)>> {
        Ok(self.capture(None)?.kinds().collect())
    }
}

impl Stack {
    /// Publishes what `upper` changed. `on_step` is told when each step begins.
    ///
    /// The session's processes must not change anything meanwhile.
    ///
    /// # Errors
    /// [`Error::NoLease`] if the upper is not of this stack, [`Error::NoChange`] if nothing is changed
    /// at one of the asked paths, [`Error::NoReads`] if reads are to be validated and were not
    /// recorded, [`Error::Io`] (a full disk among
    /// them), [`Error::Database`], [`Error::Failed`], or as reading an object. After an error the
    /// head and the session are as before.
    pub fn publish(
        &self,
        upper: &Upper,
        options: &PublishOptions,
        on_step: &mut dyn FnMut(Step),
    ) -> Result<PublishReport> {
        if upper.lease().stack != self.id() {
            return Err(Error::NoLease(upper.lease().id));
        }
        on_step(Step::Capture);
        let pins = Arc::new(self.store().objects().pins());
        let batch = self.store().objects().batch_with(&pins);
        let (mut delta, sockets) = upper.capture(Some(&batch))?.split_sockets();
        delta.select(&options.paths)?;
        let mut added_bytes = batch.added_bytes();
        if delta.kinds().next().is_none() {
            let mut report = PublishReport::empty(Outcome::NoChange, self.head());
            report.skipped = sockets.into_iter().map(Skipped::socket).collect();
            return Ok(report);
        }
        point::pass("publish.captured");
        // New content is durable before anything refers to it.
        let mut db_batch = self.db().batch();
        batch.finish(&mut db_batch)?;
        self.db().commit(db_batch, Durability::Process)?;
        point::pass("publish.content");

        let writers = self.writers(upper)?;
        let mut reads = match options.validate {
            Validate::Reads => Some(Reads::of(self, upper, options)?),
            Validate::Writes => None,
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let held = (attempt > OPTIMISTIC_ATTEMPTS).then(|| self.inner().gate.lock());
            on_step(Step::Resolve);
            let (head_layer, _pin) = match &held {
                Some(gate) => self.pin_layer(gate.head)?,
                None => self.pin_head()?,
            };
            let head_id = head_layer.id;
            let head = self.store().lower(&head_layer.root)?;
            let batch = self.store().objects().batch_with(&pins);
            let resolver = Resolver {
                stack: self,
                base: upper.lower(),
                head: &head,
                base_revision: upper.lease().base.revision,
                head_layer: &head_layer,
                options,
                batch: &batch,
            };
            let resolution = resolver.run(&delta, &sockets, upper)?;
            let mut report = resolution.report(head_id);
            if !resolver.head_is_base() {
                let reads = match &mut reads {
                    Some(reads) => reads,
                    none => none.insert(Reads::of(self, upper, options)?),
                };
                report.stale_reads = reads.stale(&resolver, upper)?;
            }
            if !resolution.conflicts.is_empty() {
                report.outcome = Outcome::Conflict;
                return Ok(report);
            }
            if options.validate == Validate::Reads && !report.stale_reads.is_empty() {
                report.outcome = Outcome::StaleReads;
                return Ok(report);
            }
            if resolution.edits.is_empty() {
                // Others published the same, or all of it was skipped.
                report.outcome = Outcome::NoChange;
                return Ok(report);
            }
            if options.dry_run {
                return Ok(report);
            }
            on_step(Step::Apply);
            let root = edit::apply(&head, &resolution.edits, &batch)?;
            let layer = self.next_layer(&head_layer, root, &resolution, options);
            let runs = resolver.owner_runs(&resolution, layer.id.revision, &writers)?;
            on_step(Step::Sync);
            added_bytes += batch.added_bytes();
            let mut db_batch = self.db().batch();
            batch.finish(&mut db_batch)?;
            point::pass("publish.tree");
            on_step(Step::Commit);
            let mut gate = match held {
                Some(gate) => gate,
                None => self.inner().gate.lock(),
            };
            if gate.head != head_id {
                // Overtaken. What was stored stays: content of the next attempt is mostly the same.
                drop(gate);
                self.db().commit(db_batch, Durability::Process)?;
                continue;
            }
            let record = StackRecord {
                head: layer.id,
                layers: gate.layers + 1,
            };
            let layer = LayerRecord {
                added_bytes,
                ..layer
            };
            let owners = Owners::new(self);
            for (path, digest, runs) in &runs.files {
                owners.keep(&mut db_batch, path, digest, layer.id.revision, runs);
            }
            self.write_commands(&mut db_batch, layer.id.revision, &runs.commands);
            self.write_head(&mut db_batch, &layer, &resolution.kinds, &record)?;
            self.db().commit(db_batch, Durability::Power)?;
            *gate = record;
            drop(gate);
            point::pass("publish.committed");
            report.outcome = Outcome::Published(layer);
            return Ok(report);
        }
    }

    fn next_layer(
        &self,
        head: &LayerRecord,
        root: Digest,
        resolution: &Resolution,
        options: &PublishOptions,
    ) -> LayerRecord {
        LayerRecord {
            id: LayerId {
                revision: head.id.revision + 1,
                kind: LayerKind::Published,
            },
            parent: Some(head.id),
            root,
            owner: options.owner.clone(),
            session_name: options.session_name.clone(),
            message: options.message.clone(),
            request_id: options.request_id.clone(),
            time_unix_ms: options.now_unix_ms,
            changed_paths: resolution.kinds.len() as u64,
            added_bytes: 0,
            logical_bytes: head
                .logical_bytes
                .wrapping_add_signed(resolution.bytes_delta),
        }
    }
}

impl PublishReport {
    /// That of a publish which had nothing to do.
    pub fn empty(outcome: Outcome, head: LayerId) -> Self {
        PublishReport {
            outcome,
            head,
            changed_paths: 0,
            merged: Vec::new(),
            conflicts: Vec::new(),
            skipped: Vec::new(),
            saved_refs: Vec::new(),
            ignored_paths: 0,
            stale_reads: Vec::new(),
        }
    }
}

impl Resolution {
    fn report(&self, head: LayerId) -> PublishReport {
        PublishReport {
            changed_paths: self.kinds.len() as u64,
            merged: self.merged.clone(),
            conflicts: self.conflicts.clone(),
            skipped: self.skipped.clone(),
            saved_refs: self.saved_refs.clone(),
            ignored_paths: self.ignored_paths,
            ..PublishReport::empty(Outcome::DryRun, head)
        }
    }
}
