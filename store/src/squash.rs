//! Squash: intermediate layers leave the history.
//!
//! A layer is a root, so nothing is rewritten: the layers between the base and the newest one that
//! is dropped are replaced by one *squashed* layer with that one's root and revision. Who made the
//! dropped ones, when and with which message stays known: blame and conflicts name them as before.
//! Sessions on a dropped layer go on: their lease keeps it.

use crate::compare::compare;
use crate::db::Durability;
use crate::error::Result;
use crate::layer::{LayerId, LayerKind, LayerRecord, Owner};
use crate::name::RelPath;
use crate::point;
use crate::publish::ChangeKind;
use crate::stack::{Stack, StackRecord};

/// What a squash did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Squashed {
    /// The layers that left the history, oldest first; empty if there was nothing to do.
    pub replaced: Vec<LayerId>,
    /// The layer that took their place.
    pub layer: Option<LayerId>,
    /// The head afterwards.
    pub head: LayerId,
}

impl Stack {
    /// Replaces all layers between the base and the newest `keep_last` ones by one. Does nothing if
    /// there are fewer than two of them.
    ///
    /// # Errors
    /// [`crate::Error::Database`], [`crate::Error::Io`] if the disk is full, or as reading an
    /// object. Then nothing has changed.
    pub fn squash(
        &self,
        keep_last: u64,
        request_id: Option<String>,
        now_unix_ms: u64,
    ) -> Result<Squashed> {
        // What takes time is found out without the gate; whoever publishes meanwhile only adds.
        let (plan, _pin) = {
            let gate = self.inner().gate.lock();
            let mut layers = self.layers(usize::MAX)?;
            layers.reverse();
            let pin = layers
                .first()
                .map(|base| self.store().objects().pin_root(base.root));
            (Plan::new(layers, keep_last, gate.head), pin)
        };
        let Some(plan) = plan else {
            return Ok(Squashed {
                replaced: Vec::new(),
                layer: None,
                head: self.head(),
            });
        };
        let _newest = self.store().objects().pin_root(plan.newest.root);
        let changes: Vec<(RelPath, ChangeKind)> = compare(
            &*self.store().lower(&plan.base.root)?,
            &*self.store().lower(&plan.newest.root)?,
        )?
        .into_iter()
        .map(|change| (change.path, change.kind))
        .collect();
        let layer = plan.layer(changes.len() as u64, request_id, now_unix_ms);
        point::pass("squash.prepared");
        let mut gate = self.inner().gate.lock();
        let db = self.db();
        let mut batch = db.batch();
        for dropped in &plan.dropped {
            if self.layer(dropped.id).ok().as_ref() != Some(dropped) {
                // Another squash was here first.
                return Ok(Squashed {
                    replaced: Vec::new(),
                    layer: None,
                    head: gate.head,
                });
            }
            self.write_dropped(&mut batch, dropped, dropped.id == plan.newest.id);
        }
        self.write_squashed(&mut batch, &layer, &changes)?;
        let mut record = StackRecord {
            head: gate.head,
            layers: gate.layers + 1 - plan.dropped.len() as u64,
        };
        if gate.head == plan.newest.id {
            record.head = layer.id;
        } else if let Some(mut next) = self.next_after(plan.newest.id)? {
            next.parent = Some(layer.id);
            self.write_layer(&mut batch, &next);
        }
        self.write_record(&mut batch, &record);
        db.commit(batch, Durability::Power)?;
        *gate = record;
        point::pass("squash.committed");
        Ok(Squashed {
            replaced: plan.dropped.iter().map(|layer| layer.id).collect(),
            layer: Some(layer.id),
            head: gate.head,
        })
    }

    /// The layer whose parent is `id`.
    fn next_after(&self, id: LayerId) -> Result<Option<LayerRecord>> {
        let next = self.layer_at(id.revision + 1)?;
        Ok(next.filter(|layer| layer.parent == Some(id)))
    }
}

/// What is to be dropped.
struct Plan {
    base: LayerRecord,
    dropped: Vec<LayerRecord>,
    /// The newest of those.
    newest: LayerRecord,
}

impl Plan {
    /// `layers` are the history, oldest first.
    fn new(layers: Vec<LayerRecord>, keep_last: u64, head: LayerId) -> Option<Plan> {
        debug_assert!(layers.last().is_none_or(|layer| layer.id == head));
        let kept = usize::try_from(keep_last).unwrap_or(usize::MAX);
        let end = layers.len().saturating_sub(kept);
        let dropped = layers.get(1..end)?.to_vec();
        if dropped.len() < 2 {
            return None;
        }
        Some(Plan {
            base: layers.first()?.clone(),
            newest: dropped.last()?.clone(),
            dropped,
        })
    }

    fn layer(
        &self,
        changed_paths: u64,
        request_id: Option<String>,
        now_unix_ms: u64,
    ) -> LayerRecord {
        let owner = request_id
            .as_ref()
            .map_or(Owner::Unknown, |id| Owner::Operation(id.clone()));
        LayerRecord {
            id: LayerId {
                revision: self.newest.id.revision,
                kind: LayerKind::Squashed,
            },
            parent: Some(self.base.id),
            root: self.newest.root,
            owner,
            session_name: None,
            message: None,
            request_id,
            time_unix_ms: now_unix_ms,
            changed_paths,
            added_bytes: self.dropped.iter().map(|layer| layer.added_bytes).sum(),
            logical_bytes: self.newest.logical_bytes,
        }
    }
}
