//! Stacks: the layers of one sandbox, and its head.
//!
//! # Keys in the database
//! `s` and the stack's number: its record; `i` and the number: the next inode number; `l`, the
//! number and a revision: that layer's record; `c`, the number and a revision: the paths that the
//! layer changed; `d`, the number and a revision: the record of a layer that a squash dropped; `q`,
//! the number and a revision: the paths that a squashed layer changed; `r` and the number: the newest
//! import; `w`, the number and a revision: the commands that brought lines in with that layer. Numbers are 64-bit big-endian, so that a scan is in order.

use std::fmt;

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::db::{self, Db, DbBatch, Durability, key};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::import::Imported;
use crate::layer::{LayerId, LayerKind, LayerRecord, Owner};
use crate::lease::{Lease, LeaseId, LeaseRecord};
use crate::name::RelPath;
use crate::pins::RootPin;
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

    /// The record of a layer: of the history, or of those that squashes dropped, as long as their
    /// files are there.
    ///
    /// # Errors
    /// [`Error::NoLayer`], or as reading a record.
    pub fn layer(&self, id: LayerId) -> Result<LayerRecord> {
        if let Some(record) = self.layer_of(layer_key, id.revision)?
            && record.id == id
        {
            return Ok(record);
        }
        match self.layer_of(dropped_key, id.revision)? {
            Some(record) if record.id == id && self.store.objects().contains(&record.root)? => {
                Ok(record)
            }
            _ => Err(Error::NoLayer(id)),
        }
    }

    /// Whether a layer is in the history now.
    pub(crate) fn has_layer(&self, id: LayerId) -> Result<bool> {
        let found = self.layer_of(layer_key, id.revision)?;
        Ok(found.is_some_and(|record| record.id == id))
    }

    /// What made the head of `revision`: a layer of the history, or one that a squash dropped, whose
    /// files may be gone. `None` if there was none.
    ///
    /// # Errors
    /// As reading a record.
    pub fn layer_at(&self, revision: u64) -> Result<Option<LayerRecord>> {
        match self.layer_of(dropped_key, revision)? {
            Some(record) => Ok(Some(record)),
            None => self.layer_of(layer_key, revision),
        }
    }

    fn layer_of(
        &self,
        key: fn(StackId, u64) -> Vec<u8>,
        revision: u64,
    ) -> Result<Option<LayerRecord>> {
        let Some(bytes) = self.db().stacks.get(key(self.inner.id, revision))? else {
            return Ok(None);
        };
        let what = || format!("layer {revision} of stack {}", self.inner.id);
        db::decode(&what(), &bytes).map(Some)
    }

    /// The head's record, and a pin on it.
    pub(crate) fn pin_head(&self) -> Result<(LayerRecord, RootPin)> {
        let gate = self.inner.gate.lock();
        self.pin_layer(gate.head)
    }

    /// A layer's record, and a pin on it. The gate must be held, so that the layer is not dropped
    /// in between.
    pub(crate) fn pin_layer(&self, id: LayerId) -> Result<(LayerRecord, RootPin)> {
        let record = self.layer(id)?;
        let pin = self.store.objects().pin_root(record.root);
        Ok((record, pin))
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

    /// Everything that ever was the head, newest first: the layers of the history, with `true`, and
    /// those that squashes dropped, with `false`. At most `limit` of those after `after`.
    ///
    /// # Errors
    /// As reading a record.
    pub fn history(
        &self,
        after: Option<LayerId>,
        limit: usize,
    ) -> Result<Vec<(LayerRecord, bool)>> {
        let newest = after.map_or(self.head().revision, |after| after.revision);
        let mut found = Vec::new();
        for revision in (1..=newest).rev() {
            let present = self
                .layer_of(layer_key, revision)?
                .map(|layer| (layer, true));
            let dropped = self
                .layer_of(dropped_key, revision)?
                .map(|layer| (layer, false));
            let mut both: Vec<_> = present.into_iter().chain(dropped).collect();
            if let Some(after) = after.filter(|after| after.revision == revision) {
                let position = both.iter().position(|(layer, _)| layer.id == after);
                both.drain(..position.map_or(0, |position| position + 1));
            }
            found.extend(both);
            if found.len() >= limit {
                found.truncate(limit);
                break;
            }
        }
        Ok(found)
    }

    /// The paths that a layer changed against its parent, in path order; empty for a base.
    ///
    /// # Errors
    /// As reading a record.
    pub fn layer_changes(&self, id: LayerId) -> Result<Vec<(RelPath, ChangeKind)>> {
        let key = match id.kind {
            LayerKind::Squashed => squash_changes_key(self.inner.id, id.revision),
            LayerKind::Base | LayerKind::Published => changes_key(self.inner.id, id.revision),
        };
        match self.db().stacks.get(key)? {
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
        let id = layer.unwrap_or(gate.head);
        // One that was dropped may be half collected.
        let layer = self
            .layer_of(layer_key, id.revision)?
            .filter(|record| record.id == id)
            .ok_or(Error::NoLayer(id))?;
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
            (&db.stacks, key(&[b"d", &number])),
            (&db.stacks, key(&[b"q", &number])),
            (&db.stacks, key(&[b"r", &number])),
            (&db.stacks, key(&[b"w", &number])),
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
        let key = changes_key(self.inner.id, layer.id.revision);
        batch.insert(&db.stacks, &key, &pack_changes(layer.id, changes)?);
        self.write_layer(batch, layer);
        self.write_record(batch, record);
        Ok(())
    }

    /// Adds a layer's record to `batch`.
    pub(crate) fn write_layer(&self, batch: &mut DbBatch, layer: &LayerRecord) {
        let key = layer_key(self.inner.id, layer.id.revision);
        batch.insert(&self.db().stacks, &key, &db::encode(layer));
    }

    /// Adds the stack's record to `batch`.
    pub(crate) fn write_record(&self, batch: &mut DbBatch, record: &StackRecord) {
        let key = stack_key(self.inner.id);
        batch.insert(&self.db().stacks, &key, &db::encode(record));
    }

    /// Adds to `batch` that a layer is no more in the history. What made it stays known, unless it
    /// was a squash itself. The record of one that is `replaced` is written over.
    pub(crate) fn write_dropped(&self, batch: &mut DbBatch, layer: &LayerRecord, replaced: bool) {
        let (db, revision) = (self.db(), layer.id.revision);
        let squashed = layer.id.kind == LayerKind::Squashed;
        if !replaced {
            batch.remove(&db.stacks, &layer_key(self.inner.id, revision));
            if squashed {
                batch.remove(&db.stacks, &squash_changes_key(self.inner.id, revision));
            }
        }
        if !squashed {
            let key = dropped_key(self.inner.id, revision);
            batch.insert(&db.stacks, &key, &db::encode(layer));
        }
    }

    /// The commands that are known to have brought lines in with the layer of `revision`.
    pub(crate) fn layer_commands(&self, revision: u64) -> Result<Vec<String>> {
        let found = self
            .db()
            .stacks
            .get(commands_key(self.inner.id, revision))?;
        let what = || {
            format!(
                "the commands of layer {revision} of stack {}",
                self.inner.id
            )
        };
        found.map_or(Ok(Vec::new()), |bytes| db::decode(&what(), &bytes))
    }

    /// Adds the commands that brought lines in with the layer of `revision` to `batch`.
    pub(crate) fn write_commands(&self, batch: &mut DbBatch, revision: u64, commands: &[String]) {
        if !commands.is_empty() {
            let key = commands_key(self.inner.id, revision);
            batch.insert(&self.db().stacks, &key, &db::encode(&commands));
        }
    }

    /// Adds a squashed layer and the paths that it changed to `batch`.
    pub(crate) fn write_squashed(
        &self,
        batch: &mut DbBatch,
        layer: &LayerRecord,
        changes: &[(RelPath, ChangeKind)],
    ) -> Result<()> {
        let key = squash_changes_key(self.inner.id, layer.id.revision);
        batch.insert(&self.db().stacks, &key, &pack_changes(layer.id, changes)?);
        self.write_layer(batch, layer);
        Ok(())
    }

    /// The roots of the history's layers, and of what was imported last.
    pub(crate) fn roots(&self) -> Result<Vec<Digest>> {
        let layers = self.layers(usize::MAX)?;
        let mut roots: Vec<Digest> = layers.into_iter().map(|layer| layer.root).collect();
        let imported = self.last_import()?;
        roots.extend([imported.host, imported.numbered]);
        Ok(roots)
    }

    /// What was imported last: the base, or what a refresh found.
    pub(crate) fn last_import(&self) -> Result<LastImport> {
        let Some(bytes) = self.db().stacks.get(imported_key(self.inner.id))? else {
            let base = self.layer_at(1)?.ok_or(Error::NoStack(self.inner.id.0))?;
            return Ok(LastImport {
                host: base.root,
                numbered: base.root,
            });
        };
        db::decode(
            &format!("the newest import of stack {}", self.inner.id),
            &bytes,
        )
    }

    /// Notes durably what was imported last.
    pub(crate) fn set_last_import(&self, imported: &LastImport) -> Result<()> {
        let db = self.db();
        let mut batch = db.batch();
        let key = imported_key(self.inner.id);
        batch.insert(&db.stacks, &key, &db::encode(imported));
        db.commit(batch, Durability::Power)
    }
}

/// What was imported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastImport {
    /// With the inode numbers that the host had then, by which it is seen what was moved since.
    pub(crate) host: Digest,
    /// The same with the numbers that the stack gave.
    pub(crate) numbered: Digest,
}

fn pack_changes(id: LayerId, changes: &[(RelPath, ChangeKind)]) -> Result<Vec<u8>> {
    zstd::bulk::compress(&db::encode(&changes), 1).map_err(|error| Error::Corrupt {
        what: format!("the changes of layer {id}"),
        detail: error.to_string(),
    })
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

fn dropped_key(id: StackId, revision: u64) -> Vec<u8> {
    key(&[b"d", &id.0.to_be_bytes(), &revision.to_be_bytes()])
}

fn squash_changes_key(id: StackId, revision: u64) -> Vec<u8> {
    key(&[b"q", &id.0.to_be_bytes(), &revision.to_be_bytes()])
}

fn commands_key(id: StackId, revision: u64) -> Vec<u8> {
    key(&[b"w", &id.0.to_be_bytes(), &revision.to_be_bytes()])
}

fn imported_key(id: StackId) -> Vec<u8> {
    key(&[b"r", &id.0.to_be_bytes()])
}
