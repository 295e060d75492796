//! What a session or a layer changed, shown to people: by path, with unified diffs.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::compare::{PathChange, compare};
use crate::error::Result;
use crate::layer::LayerId;
use crate::lower::Lower;
use crate::name::RelPath;
use crate::node::{Kind, Node};
use crate::publish::{ChangeKind, difference};
use crate::stack::Stack;
use crate::text::{MAX_TEXT, hunks, is_text};
use crate::upper::Upper;

/// A difference of one path, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownChange {
    /// The path and its versions.
    pub change: PathChange,
    /// The lines that differ.
    pub hunks: Hunks,
}

/// The hunks of a unified diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hunks {
    /// They were not asked for, or no line differs.
    None,
    /// Each begins with `@@`; there are no lines with file names.
    Text(Vec<u8>),
    /// One of the versions is no text.
    Binary,
    /// They alone are longer than what was asked for.
    TooLarge,
}

/// Which part of a difference is asked for.
#[derive(Clone, Debug)]
pub struct Window {
    /// Only these paths and what is below them; all if there are none.
    pub paths: Vec<RelPath>,
    /// Only what comes after this path.
    pub after: Option<RelPath>,
    /// Most changes.
    pub limit: usize,
    /// With hunks, and the most bytes of them all together: the part ends before a change that would
    /// exceed it. `None` means without hunks.
    pub hunk_bytes: Option<usize>,
}

/// A part of a difference, in path order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The changes of the part.
    pub changes: Vec<ShownChange>,
    /// Whether there are more after it.
    pub more: bool,
}

impl Window {
    fn has(&self, path: &RelPath) -> bool {
        let wanted =
            self.paths.is_empty() || self.paths.iter().any(|wanted| path.is_within(wanted));
        wanted && self.after.as_ref().is_none_or(|after| path > after)
    }

    /// Cuts the part out of `changes`, which are all those that it [has](Window::has).
    fn cut(
        &self,
        changes: impl Iterator<Item = Result<PathChange>>,
        mut hunks: impl FnMut(&PathChange) -> Result<Hunks>,
    ) -> Result<Difference> {
        let mut found = Difference {
            changes: Vec::new(),
            more: false,
        };
        let mut bytes = 0;
        for change in changes {
            let change = change?;
            if found.changes.len() == self.limit {
                found.more = true;
                break;
            }
            let mut shown = Hunks::None;
            if let Some(most) = self.hunk_bytes {
                shown = hunks(&change)?;
                if matches!(&shown, Hunks::Text(text) if text.len() > most) {
                    shown = Hunks::TooLarge;
                }
                if let Hunks::Text(text) = &shown {
                    bytes += text.len();
                }
                if bytes > most {
                    found.more = true;
                    break;
                }
            }
            found.changes.push(ShownChange {
                change,
                hunks: shown,
            });
        }
        Ok(found)
    }
}

impl Stack {
    /// How layer `to` differs from layer `from`.
    ///
    /// # Errors
    /// [`crate::Error::NoLayer`], or as reading an object.
    pub fn difference(&self, from: LayerId, to: LayerId, window: &Window) -> Result<Difference> {
        let (from, _from_pin) = self.pinned_lower(from)?;
        let (to, _to_pin) = self.pinned_lower(to)?;
        let mut changes = compare(&from, &to)?;
        changes.retain(|change| window.has(&change.path));
        window.cut(changes.into_iter().map(Ok), |change| {
            let old = layer_text(&from, change.old.as_ref())?;
            let new = layer_text(&to, change.new.as_ref())?;
            Ok(hunks_of(change, old, new))
        })
    }
}

impl Upper {
    /// How the session differs from layer `against` of its stack; from its base if that is `None`.
    /// What it has not changed is compared as its base has it.
    ///
    /// # Errors
    /// [`crate::Error::NoLayer`], [`crate::Error::Io`], or as reading an object.
    pub fn difference(&self, against: Option<LayerId>, window: &Window) -> Result<Difference> {
        let delta = self.capture(None)?;
        let mine = |path: &RelPath| -> Result<Option<Node>> {
            match delta.changes.get(path) {
                Some(change) => Ok(change.mine.clone()),
                None => self.lower().node_at(path),
            }
        };
        let mut changed: BTreeSet<RelPath> = delta.changes.keys().cloned().collect();
        let (_pin, against) = match against {
            None => (None, Arc::clone(self.lower())),
            Some(layer) => {
                let (lower, pin) = self.stack().pinned_lower(layer)?;
                let others = compare(self.lower(), &lower)?;
                changed.extend(others.into_iter().map(|change| change.path));
                (Some(pin), lower)
            }
        };
        let changes = changed.into_iter().filter(|path| window.has(path));
        let changes = changes.filter_map(|path| {
            let versions = || Ok((against.node_at(&path)?, mine(&path)?));
            let (old, new) = match versions() {
                Ok(versions) => versions,
                Err(error) => return Some(Err(error)),
            };
            difference(old.as_ref(), new.as_ref()).map(|kind| {
                Ok(PathChange {
                    path,
                    kind,
                    old,
                    new,
                })
            })
        });
        window.cut(changes, |change| {
            let old = layer_text(&against, change.old.as_ref())?;
            let new = match change.new.is_some() {
                true => self.text_at(&change.path)?,
                false => Some(Vec::new()),
            };
            Ok(hunks_of(change, old, new))
        })
    }

    /// The text of a file as the session has it; `None` if it is none.
    fn text_at(&self, path: &RelPath) -> Result<Option<Vec<u8>>> {
        let (ino, size) = {
            let state = self.state();
            let Some((ino, Kind::File)) = self.find(&state, path)? else {
                return Ok(None);
            };
            (
                ino,
                self.attributes(&state, ino)?.map_or(0, |found| found.size),
            )
        };
        if size > MAX_TEXT {
            return Ok(None);
        }
        let bytes = self.read(ino, 0, size as usize)?;
        Ok(is_text(&bytes).then_some(bytes))
    }
}

fn hunks_of(change: &PathChange, old: Option<Vec<u8>>, new: Option<Vec<u8>>) -> Hunks {
    let is_file = |node: &Option<Node>| node.as_ref().is_none_or(|node| node.kind() == Kind::File);
    if !is_file(&change.old) || !is_file(&change.new) || change.kind == ChangeKind::Metadata {
        return Hunks::None;
    }
    let (Some(old), Some(new)) = (old, new) else {
        return Hunks::Binary;
    };
    let text = hunks(&old, &new);
    match text.is_empty() {
        true => Hunks::None,
        false => Hunks::Text(text),
    }
}

/// The text of a file of a layer, which nothing there has none of; `None` if it is no text.
fn layer_text(lower: &Lower, node: Option<&Node>) -> Result<Option<Vec<u8>>> {
    match node {
        None => Ok(Some(Vec::new())),
        Some(node) => match node.content() {
            Some(content) => crate::blame::text_of(lower, content),
            None => Ok(None),
        },
    }
}
