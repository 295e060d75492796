//! The refs of a git repository, loose and packed, as files of a layer or of a session.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::lower::Lower;
use crate::name::{Name, RelPath};
use crate::node::{Kind, Node};
use crate::objects::Objects;

use super::delta::Change;

/// Values of refs by their name, such as `refs/heads/main`.
pub(super) type Refs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Largest file of one ref that is read, in bytes.
const MAX_REF: u64 = 4096;
/// Largest `packed-refs` that is read, in bytes: half a million refs.
const MAX_PACKED: u64 = 32 << 20;

#[derive(Default)]
pub(super) struct FoundRefs {
    /// Names of loose refs.
    pub(super) loose: BTreeSet<Vec<u8>>,
    packed: Refs,
    /// Every ref; a loose one hides a packed one.
    pub(super) all: Refs,
    /// The value of `HEAD`: `ref: ` and a name, or a commit.
    head: Option<Vec<u8>>,
}

impl FoundRefs {
    /// The refs of the repository `directory` of a layer.
    pub(super) fn of_layer(lower: &Lower, directory: &RelPath) -> Result<FoundRefs> {
        let mut refs = FoundRefs::default();
        let objects = lower.objects();
        let read = |name: &[u8], limit: u64| -> Result<Option<Vec<u8>>> {
            text(
                objects,
                lower.node_at(&ref_path(directory, name))?.as_ref(),
                limit,
            )
        };
        refs.head = read(b"HEAD", MAX_REF)?.map(trimmed);
        if let Some(text) = read(b"packed-refs", MAX_PACKED)? {
            refs.packed = parse_packed(&text);
        }
        refs.all = refs.packed.clone();
        let mut pending = vec![(ref_path(directory, b"refs"), b"refs".to_vec())];
        while let Some((path, name)) = pending.pop() {
            let Some(node) = lower.node_at(&path)? else {
                continue;
            };
            let Some(entries) = lower.directory(node.meta.ino)? else {
                continue;
            };
            for (entry_name, entry) in entries.iter() {
                let below = ref_path(&path, entry_name);
                let below_name = [&name[..], b"/", entry_name].concat();
                match entry.kind() {
                    Kind::Directory => pending.push((below, below_name)),
                    Kind::File if !entry_name.ends_with(b".lock") => {
                        let node = lower.resolve(entry)?;
                        if let Some(value) = text(objects, Some(&node), MAX_REF)? {
                            refs.loose.insert(below_name.clone());
                            refs.all.insert(below_name, trimmed(value));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(refs)
    }

    /// These refs, with `changes` of files in the repository: name within it and change.
    pub(super) fn changed<'c>(
        &self,
        objects: &Objects,
        changes: impl Iterator<Item = (&'c [u8], &'c Change)>,
    ) -> Result<FoundRefs> {
        let mut refs = FoundRefs {
            packed: self.packed.clone(),
            head: self.head.clone(),
            ..FoundRefs::default()
        };
        let mut loose: Refs = self
            .loose
            .iter()
            .filter_map(|name| {
                self.all
                    .get(name)
                    .map(|value| (name.clone(), value.clone()))
            })
            .collect();
        for (inner, change) in changes {
            let mine = change.mine.as_ref();
            match inner {
                b"packed-refs" => {
                    let text = text(objects, mine, MAX_PACKED)?.unwrap_or_default();
                    refs.packed = parse_packed(&text);
                }
                b"HEAD" => refs.head = text(objects, mine, MAX_REF)?.map(trimmed),
                name if name.starts_with(b"refs/") => match text(objects, mine, MAX_REF)? {
                    Some(value) => {
                        loose.insert(name.to_vec(), trimmed(value));
                    }
                    None => {
                        loose.remove(name);
                    }
                },
                _ => {}
            }
        }
        refs.loose = loose.keys().cloned().collect();
        refs.all = refs.packed.clone();
        refs.all.extend(loose);
        Ok(refs)
    }

    /// The branch that is checked out; `None` with a detached `HEAD`, or none.
    pub(super) fn branch(&self) -> Option<&[u8]> {
        self.head
            .as_ref()
            .and_then(|value| value.strip_prefix(b"ref:"))
            .map(<[u8]>::trim_ascii)
    }

    /// The commit that `HEAD` is detached at; `None` if it is on a branch.
    pub(super) fn detached(&self) -> Option<&Vec<u8>> {
        self.head
            .as_ref()
            .filter(|value| !value.starts_with(b"ref:") && !value.is_empty())
    }
}

/// The bytes of a file of at most `limit` bytes; `None` if it is none.
fn text(objects: &Objects, node: Option<&Node>, limit: u64) -> Result<Option<Vec<u8>>> {
    node.and_then(Node::content)
        .filter(|content| content.size <= limit)
        .map(|content| content.read_all(objects))
        .transpose()
}

/// `packed` without the refs `removed`.
pub(super) fn without(packed: &[u8], removed: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let mut kept = Vec::with_capacity(packed.len());
    let mut dropping = false;
    for line in packed.split_inclusive(|byte| *byte == b'\n') {
        // A line of `^` peels the tag of the line before.
        if !line.starts_with(b"^") {
            dropping = packed_line(line).is_some_and(|(name, _)| removed.contains(name));
        }
        if !dropping {
            kept.extend_from_slice(line);
        }
    }
    kept
}

fn parse_packed(text: &[u8]) -> Refs {
    text.split(|byte| *byte == b'\n')
        .filter_map(packed_line)
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect()
}

/// Name and value of a line of `packed-refs`; `None` for a comment and a peeled tag.
fn packed_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    if line.starts_with(b"#") || line.starts_with(b"^") {
        return None;
    }
    let space = line.iter().position(|byte| *byte == b' ')?;
    Some((line[space + 1..].trim_ascii_end(), &line[..space]))
}

fn trimmed(text: Vec<u8>) -> Vec<u8> {
    text.trim_ascii().to_vec()
}

/// The path of a ref's file. Names of refs are paths by git's own rules; one that is none here
/// stays where a lookup finds nothing.
pub(super) fn ref_path(directory: &RelPath, name: &[u8]) -> RelPath {
    let mut path = directory.clone();
    for part in name.split(|byte| *byte == b'/') {
        match Name::new(part) {
            Ok(part) => path = path.join(&part),
            Err(_) => return directory.clone(),
        }
    }
    path
}
