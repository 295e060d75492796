//! What a session or a layer changed, shown to people: by path, with unified diffs.

use crate::compare::{PathChange, compare};
use crate::error::Result;
use crate::layer::LayerId;
use crate::lower::Lower;
use crate::name::RelPath;
use crate::node::{Kind, Node};
use crate::publish::difference;
use crate::stack::Stack;
use crate::text::{MAX_TEXT, hunks, is_text};
use crate::upper::Upper;

/// A difference of one path, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownChange {
    /// The path and its versions.
    pub change: PathChange,
    /// The hunks of a unified diff, if that was asked for, both versions are text or nothing, and
    /// they differ.
    pub hunks: Option<Vec<u8>>,
}

impl Stack {
    /// How layer `to` differs from layer `from`, in path order; with the hunks of text if `hunks`.
    ///
    /// # Errors
    /// [`crate::Error::NoLayer`], or as reading an object.
    pub fn difference(
        &self,
        from: LayerId,
        to: LayerId,
        paths: &[RelPath],
        hunks: bool,
    ) -> Result<Vec<ShownChange>> {
        let (from, _from_pin) = self.pinned_lower(from)?;
        let (to, _to_pin) = self.pinned_lower(to)?;
        let mut shown = Vec::new();
        for change in compare(&from, &to)? {
            if !is_wanted(paths, &change.path) {
                continue;
            }
            let hunks = if hunks {
                let old = layer_text(&from, change.old.as_ref())?;
                show(old, layer_text(&to, change.new.as_ref())?)
            } else {
                None
            };
            shown.push(ShownChange { change, hunks });
        }
        Ok(shown)
    }
}

impl Upper {
    /// How the session differs from its base, or, with `head`, from the head of its stack, in path
    /// order; with the hunks of text if `hunks`. What it has not changed is compared as its base
    /// has it.
    ///
    /// # Errors
    /// As reading an object, or [`crate::Error::Io`].
    pub fn difference(
        &self,
        head: bool,
        paths: &[RelPath],
        hunks: bool,
    ) -> Result<Vec<ShownChange>> {
        let delta = self.capture(None)?;
        let mine = |path: &RelPath| -> Result<Option<Node>> {
            match delta.changes.get(path) {
                Some(change) => Ok(change.mine.clone()),
                None => self.lower().node_at(path),
            }
        };
        let (_pin, against) = if head {
            let (layer, pin) = self.stack().pin_head()?;
            (Some(pin), self.stack().store().lower(&layer.root)?)
        } else {
            (None, std::sync::Arc::clone(self.lower()))
        };
        let mut changed: std::collections::BTreeSet<RelPath> =
            delta.changes.keys().cloned().collect();
        if head {
            let others = compare(self.lower(), &against)?;
            changed.extend(others.into_iter().map(|change| change.path));
        }
        let mut shown = Vec::new();
        for path in changed {
            if !is_wanted(paths, &path) {
                continue;
            }
            let (old, new) = (against.node_at(&path)?, mine(&path)?);
            let Some(kind) = difference(old.as_ref(), new.as_ref()) else {
                continue;
            };
            let hunks = if hunks {
                let new_text = match new.is_some() {
                    true => self.text_at(&path)?,
                    false => Some(Vec::new()),
                };
                show(layer_text(&against, old.as_ref())?, new_text)
            } else {
                None
            };
            let change = PathChange {
                path,
                kind,
                old,
                new,
            };
            shown.push(ShownChange { change, hunks });
        }
        Ok(shown)
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

/// Whether a path is one of `paths` or below one; all are if there are none.
fn is_wanted(paths: &[RelPath], path: &RelPath) -> bool {
    paths.is_empty() || paths.iter().any(|wanted| path.is_within(wanted))
}

fn show(old: Option<Vec<u8>>, new: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let text = hunks(&old?, &new?);
    (!text.is_empty()).then_some(text)
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
