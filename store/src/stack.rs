//! Stacks: the layers of one sandbox, and its head.
//!
//! # Keys in the database
//! `s` and the stack's number: its record; `i` and the number: the next inode number; `l`, the
//! number and a revision: that layer's record; `c`, the number and a revision: the paths that the
//! layer changed. Numbers are 64-bit big-endian, so that a scan is in order.

use std::fmt;

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::db::{self, Db, DbBatch, Durability, key};
use crate::error::{Error, Result};
use crate::import::Imported;
use crate::layer::{LayerId, LayerKind, LayerRecord, Owner};
use crate::lease::{Lease, LeaseId, LeaseRecord};
use crate::name::RelPath;
use crate::publish::ChangeKind;
use crate::store::{Store, ino_key};
use crate::upper::Budget;

/// The number of a stack; never reused in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StackId(pub u64);

impl fmt::Display for StackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StackRecord {
    /// The newest layer.
    pub(crate) head: LayerId,
    /// Layers in the history.
    pub(crate) layers: u64,
}

pub(crate) struct StackInner {
    pub(crate) id: StackId,
    /// The publish gate. Guards the head: whoever moves it holds this from the last comparison to
    /// the commit.
    pub(crate) gate: Mutex<StackRecord>,
    /// What the uppers of all its leases take.
    budget: Arc<Budget>,
}

impl StackInner {
    pub(crate) fn load(db: &Db, id: StackId) -> Result<Self> {
        let bytes = db.stacks.get(stack_key(id))?.ok_or(Error::NoStack(id.0))?;
        let record = db::decode(&format!("stack {id}"), &bytes)?;
        Ok(StackInner {
            id,
            gate: Mutex::new(record),
            budget: Arc::default(),
        })
    }
}

/// The layers of one sandbox. Clones share it.
#[derive(Clone)]
pub struct Stack {
    store: Store,
    inner: Arc<StackInner>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").field("id", &self.inner.id).finish()
    }
}

impl Store {
    /// Makes a stack whose base is what an import found.
    ///
    /// # Errors
    /// [`Error::Database`], or [`Error::Io`] if the disk is full.
    pub fn create_stack(&self, imported: &Imported, now_unix_ms: u64) -> Result<Stack> {
        let id = StackId(self.next_number(b"n/stack")?);
        let base = LayerId {
            revision: 1,
            kind: LayerKind::Base,
        };
        let record = LayerRecord {
            id: base,
            parent: None,
            root: imported.root,
            owner: Owner::Original,
            session_name: None,
            message: None,
            request_id: None,
            time_unix_ms: now_unix_ms,
            changed_paths: imported.report.entries(),
            added_bytes: imported.report.bytes_stored,
            logical_bytes: imported.report.bytes,
        };
        let db = &self.inner().db;
        let mut batch = db.batch();
        batch.insert(&db.stacks, &ino_key(id), &imported.next_ino.to_be_bytes());
        batch.insert(&db.stacks, &layer_key(id, 1), &db::encode(&record));
        batch.insert(
            &db.stacks,
            &stack_key(id),
            &db::encode(&StackRecord {
                head: base,
                layers: 1,
            }),
        );
        db.commit(batch, Durability::Power)?;
        self.stack(id)
    }
}

impl Stack {
    pub(crate) fn new(store: Store, inner: Arc<StackInner>) -> Self {
        Stack { store, inner }
    }

    /// The stack's number.
    pub fn id(&self) -> StackId {
        self.inner.id
    }

    /// The store it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The id of the newest layer.
    pub fn head(&self) -> LayerId {
        self.inner.gate.lock().head
    }

    /// What the uppers of all its leases take on disk, and the limit of that.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.inner.budget
    }

    /// How many layers the history has.
    pub fn layer_count(&self) -> u64 {
        self.inner.gate.lock().layers
    }

    /// The record of a layer.
    ///
    /// # Errors
    /// [`Error::NoLayer`], or as reading a record.
    pub fn layer(&self, id: LayerId) -> Result<LayerRecord> {
        let record = self.layer_at(id.revision)?.ok_or(Error::NoLayer(id))?;
        if record.id == id {
            Ok(record)
        } else {
            Err(Error::NoLayer(id))
        }
    }

    /// The layer that the head was at `revision`; `None` if there is none.
    ///
    /// # Errors
    /// As reading a record.
    pub fn layer_at(&self, revision: u64) -> Result<Option<LayerRecord>> {
        match self.db().stacks.get(layer_key(self.inner.id, revision))? {
            None => Ok(None),
            Some(bytes) => db::decode(
                &format!("layer {revision} of stack {}", self.inner.id),
                &bytes,
            )
            .map(Some),
        }
    }

    /// The newest layers, newest first, at most `limit`.
    ///
    /// # Errors
    /// As reading a record.
    pub fn layers(&self, limit: usize) -> Result<Vec<LayerRecord>> {
        let mut layers = Vec::new();
        let prefix = key(&[b"l", &self.inner.id.0.to_be_bytes()]);
        for guard in self.db().stacks.prefix(prefix).rev().take(limit) {
            let (_, value) = guard.into_inner()?;
            layers.push(db::decode("a layer", &value)?);
        }
        Ok(layers)
    }

    /// The paths that a layer changed against its parent, in path order; empty for a base.
    ///
    /// # Errors
    /// As reading a record.
    pub fn layer_changes(&self, id: LayerId) -> Result<Vec<(RelPath, ChangeKind)>> {
        match self
            .db()
            .stacks
            .get(changes_key(self.inner.id, id.revision))?
        {
            None => Ok(Vec::new()),
            Some(bytes) => {
                let plain = zstd::decode_all(&bytes[..]).map_err(|error| Error::Corrupt {
                    what: format!("the changes of layer {id}"),
                    detail: error.to_string(),
                })?;
                db::decode(&format!("the changes of layer {id}"), &plain)
            }
        }
    }

    /// Takes a lease on a layer (`None`: the head) for `holder`, with an upper of at most `quota`
    /// bytes.
    ///
    /// # Errors
    /// [`Error::NoLayer`], [`Error::Database`], or [`Error::Io`] if the disk is full.
    pub fn take_lease(
        &self,
        layer: Option<LayerId>,
        holder: &str,
        quota: Option<u64>,
        now_unix_ms: u64,
    ) -> Result<Lease> {
        // The gate is held so that nothing collects the layer before the lease is recorded.
        let gate = self.inner.gate.lock();
        let layer = self.layer(layer.unwrap_or(gate.head))?;
        self.store.record_lease(LeaseRecord {
            id: LeaseId(0),
            stack: self.inner.id,
            base: layer.id,
            base_root: layer.root,
            holder: holder.to_owned(),
            created_unix_ms: now_unix_ms,
            first_ino: 0,
            quota,
        })
    }

    /// The leases on this stack, in the order they were taken.
    ///
    /// # Errors
    /// As reading a record.
    pub fn leases(&self) -> Result<Vec<Lease>> {
        let mut leases = self.store.leases()?;
        leases.retain(|lease| lease.record().stack == self.inner.id);
        Ok(leases)
    }

    /// Removes the stack: its leases, uppers, layers and blame. What it alone used of the store's
    /// objects is left to garbage collection.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Database`].
    pub fn destroy(self) -> Result<()> {
        for lease in self.leases()? {
            self.store.release(lease.id())?;
        }
        let db = self.db();
        let number = self.inner.id.0.to_be_bytes();
        let mut batch = db.batch();
        for (keyspace, prefix) in [
            (&db.stacks, key(&[b"l", &number])),
            (&db.stacks, key(&[b"c", &number])),
            (&db.blame, number.to_vec()),
        ] {
            for guard in keyspace.prefix(prefix) {
                batch.remove(keyspace, &guard.key()?);
            }
        }
        batch.remove(&db.stacks, &ino_key(self.inner.id));
        batch.remove(&db.stacks, &stack_key(self.inner.id));
        db.commit(batch, Durability::Power)
    }

    pub(crate) fn db(&self) -> &Db {
        &self.store.inner().db
    }

    pub(crate) fn inner(&self) -> &StackInner {
        &self.inner
    }

    /// Adds a new head to `batch`.
    pub(crate) fn write_head(
        &self,
        batch: &mut DbBatch,
        layer: &LayerRecord,
        changes: &[(RelPath, ChangeKind)],
        record: &StackRecord,
    ) -> Result<()> {
        let db = self.db();
        let plain = db::encode(&changes);
        let packed = zstd::bulk::compress(&plain, 1).map_err(|error| Error::Corrupt {
            what: format!("the changes of layer {}", layer.id),
            detail: error.to_string(),
        })?;
        batch.insert(
            &db.stacks,
            &layer_key(self.inner.id, layer.id.revision),
            &db::encode(layer),
        );
        batch.insert(
            &db.stacks,
            &changes_key(self.inner.id, layer.id.revision),
            &packed,
        );
        batch.insert(&db.stacks, &stack_key(self.inner.id), &db::encode(record));
        Ok(())
    }
}

fn stack_key(id: StackId) -> Vec<u8> {
    key(&[b"s", &id.0.to_be_bytes()])
}

fn layer_key(id: StackId, revision: u64) -> Vec<u8> {
    key(&[b"l", &id.0.to_be_bytes(), &revision.to_be_bytes()])
}

fn changes_key(id: StackId, revision: u64) -> Vec<u8> {
    key(&[b"c", &id.0.to_be_bytes(), &revision.to_be_bytes()])
}
