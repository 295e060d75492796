//! Deltas: changed paths, with what each was and what it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::RelPath;
use crate::node::{Body, Kind, Node};

/// What a session changed against its base, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The changes. A directory that only got other times is among them, so that the layer shows
    /// them, but is no change by itself.
    pub changes: BTreeMap<RelPath, Change>,
}

/// A path at the base and now; `None` means that nothing is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// At the base.
    pub base: Option<Node>,
    /// Now.
    pub mine: Option<Node>,
}

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its content, target or device differs.
    Modified,
    /// Only mode, owner, extended attributes, or what it is a hard link of differ.
    Metadata,
    /// It is another type of file.
    TypeChanged,
    /// It is gone.
    Deleted,
}

impl Delta {
    /// The paths that really differ, and how.
    pub fn kinds(&self) -> impl Iterator<Item = (RelPath, ChangeKind)> + '_ {
        self.changes
            .iter()
            .filter_map(|(path, change)| change.kind().map(|kind| (path.clone(), kind)))
    }
}

impl Delta {
    /// Leaves only what is at `paths` and below them, and the new directories on the way there. All
    /// is left if there are none.
    ///
    /// # Errors
    /// [`Error::NoChange`] for a path at which nothing is changed.
    pub(super) fn select(&mut self, paths: &[RelPath]) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        let changed = |wanted: &RelPath| {
            let mut changes = self.changes.iter();
            changes.any(|(path, change)| path.is_within(wanted) && change.kind().is_some())
        };
        if let Some(path) = paths.iter().find(|path| !changed(path)) {
            return Err(Error::NoChange(path.clone()));
        }
        self.changes.retain(|path, change| {
            let is_new = matches!(
                change.kind(),
                Some(ChangeKind::Added | ChangeKind::TypeChanged)
            );
            let is_directory = |node: &Node| node.kind() == Kind::Directory;
            let on_the_way = is_new
                && change.mine.as_ref().is_some_and(is_directory)
                && paths.iter().any(|wanted| wanted.is_within(path));
            on_the_way || paths.iter().any(|wanted| path.is_within(wanted))
        });
        Ok(())
    }

    /// The delta without the sockets that mine has, which cannot be published, and their paths. What
    /// one took the place of is gone.
    pub(super) fn split_sockets(mut self) -> (Delta, Vec<RelPath>) {
        let mut sockets = Vec::new();
        for (path, change) in &mut self.changes {
            let socket = |node: &Option<Node>| {
                node.as_ref()
                    .is_some_and(|node| node.kind() == Kind::Socket)
            };
            if socket(&change.mine) && change.kind().is_some() {
                sockets.push(path.clone());
                // One of the base may have got another mode or owner: it stays as it is.
                change.mine = change
                    .base
                    .clone()
                    .filter(|base| base.kind() == Kind::Socket);
            }
        }
        self.changes
            .retain(|_, change| change.base.is_some() || change.mine.is_some());
        (self, sockets)
    }
}

impl Change {
    /// How the path differs; `None` if it does not, times aside.
    pub fn kind(&self) -> Option<ChangeKind> {
        difference(self.base.as_ref(), self.mine.as_ref())
    }

    /// Whether this is a directory of which only the times differ.
    pub(crate) fn only_times(&self) -> bool {
        match (&self.base, &self.mine) {
            (Some(base), Some(mine)) => {
                mine.kind() == Kind::Directory
                    && same(base, mine)
                    && (base.meta.mtime != mine.meta.mtime || base.meta.ctime != mine.meta.ctime)
            }
            _ => false,
        }
    }
}

/// How two versions of a path differ; `None` if they do not, times and inode numbers aside.
pub(crate) fn difference(old: Option<&Node>, new: Option<&Node>) -> Option<ChangeKind> {
    match (old, new) {
        (None, None) => None,
        (None, Some(_)) => Some(ChangeKind::Added),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (Some(old), Some(new)) if old.kind() != new.kind() => Some(ChangeKind::TypeChanged),
        (Some(old), Some(new)) if !same_body(old, new) => Some(ChangeKind::Modified),
        (Some(old), Some(new)) if !same_metadata(old, new) || relinked(old, new) => {
            Some(ChangeKind::Metadata)
        }
        (Some(_), Some(_)) => None,
    }
}

/// Whether a path was made, or is no longer, a hard link of another file. A plain file that was
/// replaced by an equal one has another number too, but that is no change.
pub(crate) fn relinked(old: &Node, new: &Node) -> bool {
    let several = old.meta.links > 1 || new.meta.links > 1;
    several && old.meta.ino != new.meta.ino && old.kind() != Kind::Directory
}

/// Whether two versions of a path are the same, or nothing is at either.
pub(crate) fn equal(one: Option<&Node>, other: Option<&Node>) -> bool {
    difference(one, other).is_none()
}

/// Whether two nodes are the same, times, inode numbers and hard links aside.
pub(crate) fn same(one: &Node, other: &Node) -> bool {
    one.kind() == other.kind() && same_body(one, other) && same_metadata(one, other)
}

/// Whether two nodes of one type hold the same. What a directory holds is told by the paths below
/// it.
pub(crate) fn same_body(one: &Node, other: &Node) -> bool {
    match (&one.body, &other.body) {
        (Body::File(one), Body::File(other)) => {
            one.digest == other.digest && one.size == other.size
        }
        (Body::Directory { .. }, Body::Directory { .. }) => true,
        (one, other) => one == other,
    }
}

/// Whether mode, owner and extended attributes are the same.
pub(crate) fn same_metadata(one: &Node, other: &Node) -> bool {
    let key = |node: &Node| {
        (
            node.meta.mode,
            node.meta.uid,
            node.meta.gid,
            node.meta.xattrs,
        )
    };
    key(one) == key(other)
}
