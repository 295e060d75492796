//! Garbage collection: what nothing reaches is removed.
//!
//! *Mark*: everything that a layer of a history, a lease, the newest import of a stack or a pin
//! reaches. *Sweep*: the database's objects in order, some thousands at a time. Before each part
//! the roots are looked at again, so that what was published meanwhile is marked, and the part is
//! decided on and forgotten under the lock of the pins; so it is safe beside publishes, sessions
//! and readers. Imports and parts of a sweep keep each other waiting.
//!
//! An object is forgotten durably before its bytes go: a crash in between leaves bytes that nothing
//! refers to, which a later collection finds.

mod mark;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use mark::Marks;

use crate::db::Durability;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::objects::Place;
use crate::pack::PackPlace;
use crate::pins::PinState;
use crate::point;
use crate::store::Store;

/// Objects decided on at a time: some milliseconds in which publishes wait.
const PART: usize = 2048;
/// How long a sweep waits for imports to end before it gives up for this time.
const IMPORT_WAIT: Duration = Duration::from_secs(30);

/// What a collection found, and removed unless it was asked only to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects that nothing reaches.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files of blobs that the database does not know, which a crash left.
    pub stray_files: u64,
    /// Their bytes.
    pub stray_bytes: u64,
    /// Objects that stay.
    pub kept_objects: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Whether all was looked at; not, if imports kept it waiting too long or it was stopped.
    pub complete: bool,
}

impl Store {
    /// Removes objects that nothing reaches; with `dry_run` only counts them. `stopped` is asked
    /// between parts.
    ///
    /// # Errors
    /// As reading an object: then what was not yet removed stays. [`Error::Io`],
    /// [`Error::Database`].
    pub fn collect_garbage(
        &self,
        dry_run: bool,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Collected> {
        let _one = self.inner().collecting.lock();
        let mut marks = Marks::default();
        self.mark(&mut marks, &[])?;
        point::pass("collect.marked");
        let mut found = Collected::default();
        let mut after: Option<Vec<u8>> = None;
        let mut complete = true;
        loop {
            let Some(_no_imports) = self.keep_imports_away(stopped) else {
                complete = false;
                break;
            };
            let (next, dead) = self.sweep_part(&mut marks, after.take(), dry_run, &mut found)?;
            self.inner().objects.reclaim(dead);
            point::pass("collect.removed");
            match next {
                None => break,
                Some(_) if stopped() => {
                    complete = false;
                    break;
                }
                next => after = next,
            }
        }
        if complete {
            complete = self.sweep_strays(dry_run, stopped, &mut found)?;
        }
        if complete && !dry_run {
            let known = self.objects().groups();
            known.retain(|digest| marks.has_content(digest))?;
        }
        found.complete = complete;
        tracing::debug!(?found, dry_run, marked = marks.len(), "garbage collected");
        Ok(found)
    }

    fn keep_imports_away(&self, stopped: &mut dyn FnMut() -> bool) -> Option<impl Drop + '_> {
        let start = Instant::now();
        loop {
            if let Some(guard) = self.objects().pinned().sweep() {
                return Some(guard);
            }
            if stopped() || start.elapsed() > IMPORT_WAIT {
                return None;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Marks what every root reaches that was not marked before.
    fn mark(&self, marks: &mut Marks, pinned: &[Digest]) -> Result<()> {
        for root in self.roots()?.iter().chain(pinned) {
            marks.add_layer(self.objects(), root, &mut |_| Ok(()))?;
        }
        Ok(())
    }

    /// Decides on the objects after `after` and forgets the dead ones. Returns the last that was
    /// looked at, if there may be more, and where dead bytes lie in packs.
    fn sweep_part(
        &self,
        marks: &mut Marks,
        after: Option<Vec<u8>>,
        dry_run: bool,
        found: &mut Collected,
    ) -> Result<(Option<Vec<u8>>, Vec<PackPlace>)> {
        let inner = self.inner();
        // Mostly done without the lock; under it only what came in between.
        self.mark(marks, &[])?;
        let pins = inner.objects.pinned().lock();
        self.mark(marks, &pins.roots())?;
        let mut last = None;
        let mut dead = Vec::new();
        let mut packed = Vec::new();
        let mut batch = inner.db.batch();
        let from = match after {
            None => std::ops::Bound::Unbounded,
            Some(key) => std::ops::Bound::Excluded(key),
        };
        let mut count = 0;
        for guard in inner
            .db
            .objects
            .range::<Vec<u8>, _>((from, std::ops::Bound::Unbounded))
            .take(PART)
        {
            let (key, value) = guard.into_inner()?;
            count += 1;
            let digest = object_key(&key)?;
            let place = Place::decode(&value).ok_or_else(|| Error::Corrupt {
                what: format!("the place of object {digest}"),
                detail: "it does not decode".to_owned(),
            })?;
            last = Some(key.to_vec());
            if marks.has(&digest) || pins.has(&digest) {
                found.kept_objects += 1;
                found.kept_bytes += place.length();
                continue;
            }
            found.objects += 1;
            found.bytes += place.length();
            if !dry_run {
                batch.remove(&inner.db.objects, &key);
                dead.push((digest, place));
            }
        }
        if !dead.is_empty() {
            inner.db.commit(batch, Durability::Power)?;
            point::pass("collect.forgotten");
            // Files go before the lock does: who stores the same content again gives the name anew.
            for (digest, place) in dead {
                inner.objects.forget(&digest);
                match place {
                    Place::Pack(place) => packed.push(place),
                    Place::File { .. } => remove_if_there(&inner.objects.blob_path(&digest))?,
                }
            }
        }
        drop(pins);
        Ok((last.filter(|_| count == PART), packed))
    }

    /// Removes blob files that the database does not know.
    fn sweep_strays(
        &self,
        dry_run: bool,
        stopped: &mut dyn FnMut() -> bool,
        found: &mut Collected,
    ) -> Result<bool> {
        let inner = self.inner();
        for shard in inner.objects.shards()? {
            let Some(_no_imports) = self.keep_imports_away(stopped) else {
                return Ok(false);
            };
            for (digest, path, bytes) in inner.objects.blob_files(&shard)? {
                let pins = inner.objects.pinned().lock();
                if is_pinned(&pins, &digest) || inner.db.objects.contains_key(digest.as_bytes())? {
                    continue;
                }
                found.stray_files += 1;
                found.stray_bytes += bytes;
                if !dry_run {
                    remove_if_there(&path)?;
                }
            }
        }
        Ok(true)
    }

    /// The roots of all layers that are to stay, each once.
    pub(crate) fn roots(&self) -> Result<BTreeSet<Digest>> {
        let mut roots = BTreeSet::new();
        for id in self.stack_ids()? {
            match self.stack(id).and_then(|stack| stack.roots()) {
                // It was destroyed in between.
                Err(Error::NoStack(_)) => {}
                found => roots.extend(found?),
            }
        }
        for lease in self.all_leases()? {
            roots.insert(lease.record().base_root);
        }
        Ok(roots)
    }
}

fn is_pinned(pins: &PinState, digest: &Digest) -> bool {
    pins.has(digest) || pins.roots().contains(digest)
}

fn object_key(key: &[u8]) -> Result<Digest> {
    let bytes = <[u8; 32]>::try_from(key).map_err(|_| Error::Corrupt {
        what: "a key of the objects".to_owned(),
        detail: "it is no digest".to_owned(),
    })?;
    Ok(Digest::from_bytes(bytes))
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("removing", path, error))
        }
        _ => Ok(()),
    }
}
