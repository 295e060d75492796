//! Rebase: a session that goes on after a publish, on the newest layer, with what it has not
//! published.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::carry::Carry;
use super::delta::Delta;
use super::reads::Reads;
use super::resolve::Resolver;
use super::route::Policy;
use super::{Outcome, PublishOptions, PublishReport};
use crate::db::Durability;
use crate::edit;
use crate::error::Result;
use crate::lease::{Lease, LeaseId, LeaseRecord};
use crate::name::RelPath;
use crate::node::{Kind, Node};
use crate::point;
use crate::stack::Stack;
use crate::upper::Upper;

/// The leases of a session that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebased {
    /// The session's, with an upper that holds what is not published. Nobody has it open.
    pub lease: Lease,
    /// What keeps the content of that; to be released with the session. `None` if there is none.
    pub content: Option<Lease>,
    /// Every path at which the session may see something else than before, directories before what is
    /// in them.
    pub changed: Vec<RelPath>,
    /// What could not keep the number by which the session knows it: a process that has it open
    /// would no longer have what is at the path.
    pub lost: Vec<RelPath>,
}

impl Stack {
    /// Makes a session on the head that has what `upper` changed and the publish with `options`, which
    /// answered `published`, did not take; or all of it, if there was none. Everything keeps the number by which the session knows
    /// it, so that processes can work on. The session of `upper` stays as it is: whoever goes over to
    /// the new one releases its lease.
    ///
    /// The report is of what goes along; without a publish it has the session's stale reads, too. If
    /// something conflicts, or by `dry_run`, nothing is made.
    ///
    /// # Errors
    /// As [`Stack::publish`].
    pub fn rebase(
        &self,
        upper: &Upper,
        options: &PublishOptions,
        published: Option<&PublishReport>,
    ) -> Result<(PublishReport, Option<Rebased>)> {
        let store = self.store();
        let pins = Arc::new(store.objects().pins());
        let batch = store.objects().batch_with(&pins);
        let mut rest = upper.capture(Some(&batch))?;
        if let Some(published) = published {
            rest = left(rest, options, published)?;
        }
        let mut db_batch = self.db().batch();
        batch.finish(&mut db_batch)?;
        self.db().commit(db_batch, Durability::Process)?;

        let (head_layer, _head_pin) = self.pin_head()?;
        let head = store.lower(&head_layer.root)?;
        let lease_on = |root, holder: String, quota| {
            store.record_lease(LeaseRecord {
                id: LeaseId(0),
                stack: self.id(),
                base: head_layer.id,
                base_root: root,
                holder,
                created_unix_ms: options.now_unix_ms,
                first_ino: 0,
                quota,
            })
        };
        let old = upper.lease();
        if rest.kinds().next().is_none() && published.is_some() {
            let carry = Carry::plan(upper, &head, &head)?;
            let lease = lease_on(head_layer.root, old.holder.clone(), old.quota)?;
            let report = PublishReport::empty(Outcome::NoChange, head_layer.id);
            return Ok((report, Some(self.write_carried(carry, lease, None)?)));
        }
        let batch = store.objects().batch_with(&pins);
        let private = PublishOptions {
            policy: Policy::default(),
            paths: Vec::new(),
            drop_ignored: false,
            ..options.clone()
        };
        let resolver = Resolver {
            stack: self,
            base: upper.lower(),
            head: &head,
            base_revision: old.base.revision,
            head_layer: &head_layer,
            options: &private,
            batch: &batch,
        };
        let resolution = resolver.run(&rest, &[], upper)?;
        let mut report = resolution.report(head_layer.id);
        if published.is_none() && !resolver.head_is_base() {
            report.stale_reads = Reads::of(self, upper, &private)?.stale(&resolver, upper)?;
        }
        if !report.conflicts.is_empty() {
            report.outcome = Outcome::Conflict;
            return Ok((report, None));
        }
        if options.dry_run {
            return Ok((report, None));
        }
        let root = edit::apply(&head, &resolution.edits, &batch)?;
        let mut db_batch = self.db().batch();
        batch.finish(&mut db_batch)?;
        self.db().commit(db_batch, Durability::Power)?;
        // Only what is there can be followed by a collection; until here its parts are pinned.
        let _root_pin = store.objects().pin_root(root);
        point::pass("rebase.pinned");
        let shown = store.lower(&root)?;
        let carry = Carry::plan(upper, &head, &shown)?;
        let content = lease_on(root, format!("content of {}", old.holder), None)?;
        let lease = lease_on(head_layer.root, old.holder.clone(), old.quota)?;
        point::pass("rebase.leased");
        let rebased = self.write_carried(carry, lease, Some(content))?;
        Ok((report, Some(rebased)))
    }

    /// Writes the upper of a new lease. If that fails, the leases are released.
    fn write_carried(
        &self,
        carry: Carry<'_>,
        lease: Lease,
        content: Option<Lease>,
    ) -> Result<Rebased> {
        let store = self.store();
        let written = store.open_upper(&lease).and_then(|upper| {
            carry.write(&upper)?;
            upper.lower().load_as(carry.from.lower())?;
            upper.sync()
        });
        if let Err(error) = written {
            for lease in [Some(&lease), content.as_ref()].into_iter().flatten() {
                store.release(lease.id())?;
            }
            return Err(error);
        }
        point::pass("rebase.written");
        Ok(Rebased {
            lease,
            content,
            changed: carry.changed.into_iter().collect(),
            lost: carry.lost,
        })
    }
}

/// What of a delta a publish did not take.
fn left(delta: Delta, options: &PublishOptions, report: &PublishReport) -> Result<Delta> {
    let mut taken = delta.clone();
    taken.select(&options.paths)?;
    let skipped: BTreeSet<&RelPath> = report.skipped.iter().map(|skipped| &skipped.path).collect();
    let mut rest = delta;
    rest.changes
        .retain(|path, _| !taken.changes.contains_key(path) || skipped.contains(path));
    let kind = |node: &Option<Node>| node.as_ref().map(Node::kind);
    for (path, change) in &mut rest.changes {
        // What a socket took the place of was published as gone.
        if taken.changes.contains_key(path)
            && kind(&change.mine) == Some(Kind::Socket)
            && kind(&change.base) != Some(Kind::Socket)
        {
            change.base = None;
        }
    }
    Ok(rest)
}
