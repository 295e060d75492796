//! Verify: whether everything in a store is what it should be, and in words what is not.
//!
//! It reads every object and hashes it, follows every reference of every layer, and checks what the
//! records count. It changes nothing, and may run beside publishes and sessions: what comes
//! meanwhile is checked or not.

use std::collections::{BTreeSet, HashMap};

use rustc_hash::FxHashSet;

use crate::collect::Marks;
use crate::content::{Content, Layout, Source, hash_segments};
use crate::digest::Digest;
use crate::directory::DirectoryEntry;
use crate::error::{Error, Result};
use crate::groups::GroupHasher;
use crate::layer::{LayerId, LayerRecord};
use crate::lease::Lease;
use crate::lower::{Lower, ROOT_INO};
use crate::name::{Name, RelPath};
use crate::node::{Body, Ino, Kind, Node};
use crate::objects::Place;
use crate::stack::Stack;
use crate::store::Store;
use crate::text::{is_text, line_count};
use crate::{blame, upper};

/// Bytes hashed at a time.
const HASH_BYTES: usize = 1 << 20;

/// What a verification looked at, and what it found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Objects that were read and hashed.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Layers that were followed.
    pub layers: u64,
    /// Leases whose uppers were read.
    pub leases: u64,
    /// Owner runs that were read.
    pub blamed: u64,
    /// What is wrong, a sentence each; empty if all is well.
    pub problems: Vec<String>,
}

impl Store {
    /// Checks every digest, reference, lease and count.
    ///
    /// # Errors
    /// [`Error::Database`] if the database cannot be read at all. What is wrong with the store is no
    /// error but among the problems.
    pub fn verify(&self) -> Result<Verified> {
        let mut verifier = Verifier {
            store: self,
            found: Verified::default(),
            damaged: FxHashSet::default(),
            layers: BTreeSet::new(),
        };
        verifier.objects()?;
        for id in self.stack_ids()? {
            let before = verifier.found.problems.len();
            if let Err(error) = self.stack(id).and_then(|stack| verifier.stack(&stack)) {
                verifier.problem(format!("stack {id}: {error}"));
            }
            // What was destroyed meanwhile has no problems.
            if !self.stack_ids()?.contains(&id) {
                verifier.found.problems.truncate(before);
            }
        }
        for lease in self.all_leases()? {
            let before = verifier.found.problems.len();
            verifier.lease(&lease);
            // Nor has what was released, or is about to be.
            if let Err(Error::NoLease(_)) = self.lease(lease.id()) {
                verifier.found.problems.truncate(before);
            }
        }
        verifier.blame()?;
        Ok(verifier.found)
    }
}

struct Verifier<'a> {
    store: &'a Store,
    found: Verified,
    /// Objects that are not what their names say: told once.
    damaged: FxHashSet<Digest>,
    /// Roots that were checked whole.
    layers: BTreeSet<Digest>,
}

impl Verifier<'_> {
    fn problem(&mut self, text: String) {
        self.found.problems.push(text);
    }

    fn objects(&mut self) -> Result<()> {
        let objects = self.store.objects();
        let mut buffer = vec![0; HASH_BYTES];
        for item in objects.all() {
            let (digest, place) = match item {
                Ok(found) => found,
                Err(error @ Error::Corrupt { .. }) => {
                    self.found.problems.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(place) = self.object(&digest, place, &mut buffer)? else {
                continue;
            };
            self.found.objects += 1;
            self.found.bytes += place.length();
        }
        Ok(())
    }

    /// Checks an object that was found to lie at `place`. Returns where it lies, if it is as it should
    /// be: one that is collected meanwhile is no problem, and may be stored again elsewhere.
    fn object(
        &mut self,
        digest: &Digest,
        mut place: Place,
        buffer: &mut [u8],
    ) -> Result<Option<Place>> {
        let mut again = false;
        loop {
            let Err(detail) = check_object(self.store, digest, place, buffer) else {
                return Ok(Some(place));
            };
            match self.store.objects().recorded(digest)? {
                None => return Ok(None),
                // A blob file that came back is in the same place.
                Some(now) if now != place || !again => {
                    again = now == place;
                    place = now;
                }
                Some(_) => {
                    self.damaged.insert(*digest);
                    self.problem(format!("object {digest}: {detail}"));
                    return Ok(None);
                }
            }
        }
    }

    fn stack(&mut self, stack: &Stack) -> Result<()> {
        // The layers of this moment stay while they are looked at, whatever is squashed meanwhile.
        let (head, count, mut layers, _pins) = {
            let gate = stack.inner().gate.lock();
            let layers = stack.layers(usize::MAX)?;
            let pins: Vec<_> = layers
                .iter()
                .map(|layer| self.store.objects().pin_root(layer.root))
                .collect();
            (gate.head, gate.layers, layers, pins)
        };
        let id = stack.id();
        layers.reverse();
        if layers.last().map(|layer| layer.id) != Some(head) {
            let newest = layers.last().map(|layer| layer.id.to_string());
            self.problem(format!(
                "stack {id}: its head is {head}, and its newest layer is {}",
                newest.as_deref().unwrap_or("none")
            ));
        }
        if layers.len() as u64 != count {
            self.problem(format!(
                "stack {id}: it counts {count} layers and has {}",
                layers.len()
            ));
        }
        let mut before: Option<LayerId> = None;
        for layer in &layers {
            if layer.parent != before {
                let show = |id: Option<LayerId>| id.map_or("none".to_owned(), |id| id.to_string());
                self.problem(format!(
                    "layer {} of stack {id}: its parent is {}, and before it comes {}",
                    layer.id,
                    show(layer.parent),
                    show(before)
                ));
            }
            before = Some(layer.id);
            self.changes(stack, layer)?;
        }
        self.reachable(stack, &layers);
        if let Some(layer) = layers.last() {
            self.layer(
                &format!("layer {} of stack {id}", layer.id),
                layer.root,
                Some(layer),
            );
        }
        self.newest_import(stack)
    }

    fn newest_import(&mut self, stack: &Stack) -> Result<()> {
        loop {
            let imported = stack.last_import()?;
            let roots = [imported.host, imported.numbered];
            let _pins = roots.map(|root| self.store.objects().pin_root(root));
            // Pinned while it was still the newest, and so while it was kept anyway.
            if stack.last_import()? == imported {
                let name = format!("the newest import of stack {}", stack.id());
                for root in roots {
                    self.layer(&name, root, None);
                }
                return Ok(());
            }
        }
    }

    fn changes(&mut self, stack: &Stack, layer: &LayerRecord) -> Result<()> {
        let (id, number) = (layer.id, stack.id());
        let problem = match stack.layer_changes(id) {
            Err(error) => format!("layer {id} of stack {number}: {error}"),
            // A base has no list.
            Ok(changes)
                if layer.parent.is_some() && changes.len() as u64 != layer.changed_paths =>
            {
                format!(
                    "layer {id} of stack {number}: it counts {} changed paths and lists {}",
                    layer.changed_paths,
                    changes.len()
                )
            }
            Ok(_) => return Ok(()),
        };
        // The list goes with a layer that another squash replaces meanwhile.
        if stack.has_layer(id)? {
            self.problem(problem);
        }
        Ok(())
    }

    /// That every layer reaches only what is there. They are pinned.
    fn reachable(&mut self, stack: &Stack, layers: &[LayerRecord]) {
        let mut marks = Marks::default();
        let objects = self.store.objects();
        for layer in layers {
            let name = format!("layer {} of stack {}", layer.id, stack.id());
            let result = marks.add_layer(objects, &layer.root, &mut |digest| {
                if !objects.is_recorded(digest)? {
                    self.found.problems.push(format!(
                        "{name}: object {digest}, which it reaches, is missing"
                    ));
                }
                Ok(())
            });
            match result {
                Ok(()) => self.found.layers += 1,
                Err(error) => self.problem(format!("{name}: {error}")),
            }
        }
    }

    /// Checks one layer whole: counts, numbers, links, the hash of every file.
    fn layer(&mut self, name: &str, root: Digest, record: Option<&LayerRecord>) {
        if !self.layers.insert(root) {
            return;
        }
        let result = Lower::load(std::sync::Arc::clone(self.store.objects()), root)
            .and_then(|lower| self.tree(name, &lower));
        match result {
            Err(error) => self.problem(format!("{name}: {error}")),
            Ok(bytes) => {
                if let Some(record) = record
                    && record.logical_bytes != bytes
                {
                    self.problem(format!(
                        "{name}: it counts {} bytes and has {bytes}",
                        record.logical_bytes
                    ));
                }
            }
        }
    }

    /// Returns the bytes of all files.
    fn tree(&mut self, layer: &str, lower: &Lower) -> Result<u64> {
        let mut bytes = 0;
        let mut numbers: FxHashSet<Ino> = FxHashSet::from_iter([ROOT_INO]);
        let mut names: HashMap<Ino, u64> = HashMap::new();
        let mut pending: Vec<(RelPath, Node)> = lower
            .node(ROOT_INO)?
            .map(|root| (RelPath::ROOT, root))
            .into_iter()
            .collect();
        while let Some((path, node)) = pending.pop() {
            if let Err(error) = lower.xattrs(&node) {
                self.problem(format!("{layer}, {path}: {error}"));
            }
            if let Body::File(content) = &node.body {
                bytes = content.size.wrapping_add(bytes);
                if let Err(detail) = self.content(content) {
                    self.problem(format!("{layer}, {path}: {detail}"));
                }
            }
            let Body::Directory {
                subdirectories,
                entries,
                ..
            } = node.body
            else {
                continue;
            };
            let Some(directory) = lower.directory(node.meta.ino)? else {
                self.problem(format!(
                    "{layer}, {path}: the directory is not found by its number"
                ));
                continue;
            };
            let found = directory
                .iter()
                .filter(|(_, entry)| entry.kind() == Kind::Directory)
                .count();
            if (directory.len(), found) != (entries as usize, subdirectories as usize) {
                self.problem(format!(
                    "{layer}, {path}: it counts {entries} entries, {subdirectories} of them \
                     directories, and has {} and {found}",
                    directory.len()
                ));
            }
            for (name, entry) in directory.iter() {
                let name = Name::new(name).expect("directory objects are checked when read");
                let below = path.join(&name);
                match &entry {
                    DirectoryEntry::Link { ino, .. } => *names.entry(*ino).or_insert(0) += 1,
                    DirectoryEntry::Node(child) if !numbers.insert(child.meta.ino) => {
                        self.problem(format!(
                            "{layer}, {below}: its number {} is that of another node too",
                            child.meta.ino
                        ));
                    }
                    DirectoryEntry::Node(_) => {}
                }
                match lower.resolve(entry) {
                    Ok(child) => pending.push((below, child)),
                    Err(error) => self.problem(format!("{layer}, {below}: {error}")),
                }
            }
        }
        for (ino, linked) in &lower.links().0 {
            let count = names.get(ino).copied().unwrap_or(0);
            let told = (linked.names.len() as u64, u64::from(linked.node.meta.links));
            if told != (count, count) {
                self.problem(format!(
                    "{layer}: hard link {ino} has {count} names, its table lists {} and counts {}",
                    told.0, told.1
                ));
            }
        }
        Ok(bytes)
    }

    /// That the pieces of a file make the content it is named by. A whole blob was hashed already.
    fn content(&self, content: &Content) -> Result<(), String> {
        let objects = self.store.objects();
        let show = |error: Error| error.to_string();
        match content.layout {
            Layout::Whole if content.size == 0 => Ok(()),
            Layout::Whole => {
                let length = objects.length(&content.digest).map_err(show)?;
                if length != content.size {
                    return Err(format!(
                        "it has {} bytes, and its blob {length}",
                        content.size
                    ));
                }
                Ok(())
            }
            Layout::Segments(_) => {
                let segments = content.segments(objects).map_err(show)?;
                let sources = segments
                    .iter()
                    .map(|segment| (segment.offset, segment.length, segment.source));
                let read = |source: Source, at, buffer: &mut [u8]| {
                    objects.read_at(&source.blob, source.offset + at, buffer)
                };
                let (digest, _) = hash_segments(content.size, sources, &|| false, read)
                    .map_err(show)?
                    .expect("it is not stopped");
                if digest != content.digest {
                    return Err(format!(
                        "its pieces make content {digest}, and it is named {}",
                        content.digest
                    ));
                }
                Ok(())
            }
        }
    }

    fn lease(&mut self, lease: &Lease) {
        let record = lease.record();
        let name = format!("lease {} of {}", record.id, record.holder);
        if let Err(error) = self.store.stack(record.stack) {
            return self.problem(format!("{name}: {error}"));
        }
        self.layer(&format!("the layer of {name}"), record.base_root, None);
        match upper::inspect(&self.store.upper_dir(record.id), self.store.objects()) {
            Err(error) => self.problem(format!("{name}: {error}")),
            Ok(problems) => {
                self.found.leases += 1;
                for problem in problems {
                    self.problem(format!("{name}: {problem}"));
                }
            }
        }
    }

    /// That owner runs tile the texts that are still there.
    fn blame(&mut self) -> Result<()> {
        let objects = self.store.objects();
        for item in self.store.inner().db.blame.iter() {
            let (key, value) = item.into_inner()?;
            match blame::decode_entry(&key, &value) {
                Err(error) => self.found.problems.push(error.to_string()),
                Ok((path, digest, lines)) => {
                    self.found.blamed += 1;
                    if self.damaged.contains(&digest) || !objects.is_recorded(&digest)? {
                        continue;
                    }
                    let Ok(bytes) = objects.get(&digest) else {
                        continue;
                    };
                    let expected = if is_text(&bytes) {
                        line_count(&bytes)
                    } else {
                        0
                    };
                    if lines != expected {
                        self.found.problems.push(format!(
                            "the owners of {path} as {digest}: they have {lines} lines, the file \
                             {expected}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

fn check_object(
    store: &Store,
    digest: &Digest,
    place: Place,
    buffer: &mut [u8],
) -> Result<(), String> {
    let objects = store.objects();
    let show = |error: Error| error.to_string();
    objects.check_place(digest, place).map_err(show)?;
    let mut hasher = GroupHasher::new(place.length());
    let mut at = 0;
    while at < place.length() {
        let count = (buffer.len() as u64).min(place.length() - at) as usize;
        let part = &mut buffer[..count];
        objects.read_at(digest, at, part).map_err(show)?;
        hasher.update(part);
        at += count as u64;
    }
    let (found, _) = hasher.finish();
    if found != *digest {
        return Err(format!("its bytes are those of {found}"));
    }
    Ok(())
}
