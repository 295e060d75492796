//! Refresh: later edits of the project directory become a layer.
//!
//! The directory is imported again, which reads only what changed, and compared with the newest
//! import before. The difference is published as a session's would be, against the present head and
//! by the same rules: so the host's edits merge with what sessions have published, or conflict.
//! Lines that are new are the host's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::compare::{PathChange, compare};
use crate::db::Durability;
use crate::digest::Digest;
use crate::edit::{self, Edit};
use crate::error::{Error, Result};
use crate::import::ImportProgress;
use crate::layer::Owner;
use crate::lease::{LeaseId, LeaseRecord};
use crate::lower::{Lower, ROOT_INO};
use crate::name::RelPath;
use crate::node::{Ino, Kind, Node};
use crate::pins::RootPin;
use crate::publish::{Outcome, PublishOptions, PublishReport, Step};
use crate::stack::{LastImport, Stack};
use crate::store::Store;
use crate::upper::{Attrs, Entry, NewBody, Record, Slot, Upper};

/// Records committed together.
const RECORDS: usize = 4096;

impl Stack {
    /// Brings the edits that were made in `directory` since its newest import in as one layer. The
    /// owner of `options` is ignored: it is the host.
    ///
    /// # Errors
    /// As [`Store::import`] and [`Stack::publish`]; after an error the head is as before.
    pub fn refresh(
        &self,
        directory: &Path,
        options: &PublishOptions,
        progress: &mut dyn FnMut(ImportProgress) -> ControlFlow<()>,
        on_step: &mut dyn FnMut(Step),
    ) -> Result<PublishReport> {
        let store = self.store();
        let first_new_ino = store.reserve_inos(self.id())?;
        let imported = store.import_numbered(directory, first_new_ino, progress)?;
        // So many numbers may have been given to what could not keep the host's own.
        store.advance_inos(self.id(), imported.next_ino)?;
        let before = self.last_import()?;
        let base = self.layer_at(1)?.ok_or(Error::NoStack(self.id().0))?;
        // A session of the store's own, which lies on the import before.
        let lease = store.record_lease(LeaseRecord {
            id: LeaseId(0),
            stack: self.id(),
            base: base.id,
            base_root: before.numbered,
            holder: "refresh".to_owned(),
            created_unix_ms: options.now_unix_ms,
            first_ino: 0,
            quota: None,
        })?;
        let result = store.open_upper(&lease).and_then(|upper| {
            let old = store.lower(&before.host)?;
            let new = store.lower(&imported.root)?;
            Writer::write(&upper, &old, &new, &compare(&old, &new)?)?;
            let numbered = self.numbered(&upper)?;
            let options = PublishOptions {
                owner: Owner::Host,
                ..options.clone()
            };
            let report = self.publish(&upper, &options, on_step)?;
            if let Outcome::Published(_) | Outcome::NoChange = report.outcome
                && !options.dry_run
            {
                self.set_last_import(&LastImport {
                    host: imported.root,
                    numbered: numbered.0,
                })?;
            }
            Ok(report)
        });
        let released = store.release(lease.id());
        let report = result?;
        released?;
        Ok(report)
    }

    /// The layer that `upper` shows, and a pin on it.
    fn numbered(&self, upper: &Upper) -> Result<(Digest, RootPin)> {
        let objects = self.store().objects();
        let pins = Arc::new(objects.pins());
        let batch = objects.batch_with(&pins);
        let delta = upper.capture(Some(&batch))?;
        let mut edits = BTreeMap::new();
        for (path, change) in &delta.changes {
            let edit = match &change.mine {
                None => Edit::Remove,
                Some(node) => Edit::Set(node.clone()),
            };
            edits.insert(path.clone(), edit);
        }
        // A file that got a further name has its old ones too, which are no changes.
        for change in delta.changes.values() {
            let Some(node) = change.mine.as_ref().filter(|node| node.meta.links > 1) else {
                continue;
            };
            for path in paths_of(upper.lower(), node.meta.ino)? {
                if node.kind() != Kind::Directory {
                    edits.entry(path).or_insert_with(|| Edit::Set(node.clone()));
                }
            }
        }
        let root = edit::apply(upper.lower(), &edits, &batch)?;
        let mut db_batch = self.db().batch();
        batch.finish(&mut db_batch)?;
        self.db().commit(db_batch, Durability::Power)?;
        // Only what is there can be followed by a collection; until here its parts are pinned.
        let pin = objects.pin_root(root);
        Ok((root, pin))
    }
}

/// The paths at which a layer has number `ino`.
fn paths_of(layer: &Lower, ino: Ino) -> Result<Vec<RelPath>> {
    let mut paths = Vec::new();
    for (parent, name) in layer.names(ino)? {
        let parent = match parent {
            ROOT_INO => Some(RelPath::ROOT),
            parent => layer.path(parent)?,
        };
        paths.extend(parent.map(|parent| parent.join(&name)));
    }
    Ok(paths)
}

impl Store {
    /// Makes the next inode numbers of a stack begin at `next` at least.
    fn advance_inos(&self, stack: crate::stack::StackId, next: Ino) -> Result<()> {
        while self.reserve_inos(stack)? < next {}
        Ok(())
    }
}

/// Makes an upper that shows what `old` holds, in numbers of the stack, show what `new` holds.
///
/// The host's inode numbers tell what was moved, but it gives a number that became free to what is
/// made next. So a file keeps its number only if that number names nothing else in the result;
/// a directory keeps the one that its path had, and a new one gets a new one.
struct Writer<'a> {
    upper: &'a Upper,
    old: &'a Lower,
    new: &'a Lower,
    changed: BTreeSet<&'a RelPath>,
    /// The numbers of inodes of the new layer in the upper.
    numbers: HashMap<Ino, Ino>,
    /// The numbers of directories that are new.
    directories: HashMap<RelPath, Ino>,
    /// The next cookie of each directory.
    cookies: HashMap<Ino, u64>,
    records: Vec<Record>,
}

impl<'a> Writer<'a> {
    fn write(
        upper: &'a Upper,
        old: &'a Lower,
        new: &'a Lower,
        changes: &'a [PathChange],
    ) -> Result<()> {
        let mut writer = Writer {
            upper,
            old,
            new,
            changed: changes.iter().map(|change| &change.path).collect(),
            numbers: HashMap::new(),
            directories: HashMap::new(),
            cookies: HashMap::new(),
            records: Vec::new(),
        };
        // Directories come before what is in them.
        for change in changes {
            writer.change(change)?;
        }
        let mut records = writer.records.into_iter().peekable();
        while records.peek().is_some() {
            let mut transaction = upper.begin();
            records
                .by_ref()
                .take(RECORDS)
                .for_each(|record| transaction.push(record));
            transaction.commit()?;
        }
        Ok(())
    }

    fn change(&mut self, change: &PathChange) -> Result<()> {
        let Some((parent, name)) = change.path.split() else {
            if let Some(root) = &change.new {
                self.inode(ROOT_INO, true, root)?;
            }
            return Ok(());
        };
        let Some(directory) = self.directory(&parent)? else {
            // It goes with the directory that it was in.
            return Ok(());
        };
        let slot = match &change.new {
            None => Slot::Whiteout,
            Some(node) => {
                let ino = match node.kind() {
                    Kind::Directory => self.make_directory(&change.path, node)?,
                    _ => self.make_other(node)?,
                };
                let cookie = self.cookies.entry(directory).or_insert(1);
                *cookie += 1;
                Slot::Entry(Entry {
                    ino,
                    kind: node.kind(),
                    cookie: *cookie - 1,
                })
            }
        };
        self.records.push(Record::Slot {
            directory,
            name,
            slot: Some(slot),
        });
        Ok(())
    }

    /// The number in the upper of a directory of the new layer.
    fn directory(&self, path: &RelPath) -> Result<Option<Ino>> {
        let is = |layer: &Lower| -> Result<Option<Ino>> {
            let node = layer.node_at(path)?;
            Ok(node
                .filter(|node| node.kind() == Kind::Directory)
                .map(|node| node.meta.ino))
        };
        if is(self.new)?.is_none() {
            return Ok(None);
        }
        match self.directories.get(path) {
            Some(ino) => Ok(Some(*ino)),
            None => is(self.upper.lower()),
        }
    }

    fn make_directory(&mut self, path: &RelPath, node: &Node) -> Result<Ino> {
        if let Some(ino) = self.directory(path)? {
            self.inode(ino, true, node)?;
            return Ok(ino);
        }
        let ino = self.upper.new_ino()?;
        self.directories.insert(path.clone(), ino);
        self.inode(ino, false, node)?;
        Ok(ino)
    }

    fn make_other(&mut self, node: &Node) -> Result<Ino> {
        if let Some(ino) = self.numbers.get(&node.meta.ino) {
            return Ok(*ino);
        }
        let known = self.known_number(node)?;
        let ino = match known {
            Some(ino) => ino,
            None => self.upper.new_ino()?,
        };
        self.numbers.insert(node.meta.ino, ino);
        self.inode(ino, known.is_some(), node)?;
        Ok(ino)
    }

    /// The number in the upper of a node that the old import had too; `None` if it is new.
    fn known_number(&self, node: &Node) -> Result<Option<Ino>> {
        let ino = node.meta.ino;
        if self.old.node(ino)?.map(|old| old.kind()) != Some(node.kind()) {
            return Ok(None);
        }
        let mut number = None;
        for path in paths_of(self.old, ino)? {
            // A name that stays as it is in the upper, while the number is another's by now.
            if !self.changed.contains(&path)
                && self.new.node_at(&path)?.map(|node| node.meta.ino) != Some(ino)
            {
                return Ok(None);
            }
            let there = self.upper.lower().node_at(&path)?;
            number = there.map(|node| node.meta.ino);
        }
        Ok(number)
    }

    /// Adds the records that make an inode what `node` is.
    fn inode(&mut self, ino: Ino, in_lower: bool, node: &Node) -> Result<()> {
        self.records.push(Record::Inode {
            ino,
            attrs: Attrs::of(node),
            in_lower,
            body: NewBody::of(node),
        });
        self.records.push(Record::Xattrs {
            ino,
            xattrs: self.new.xattrs(node)?,
        });
        Ok(())
    }
}
