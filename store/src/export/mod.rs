//! Export: a layer, or what changed between two, as files, as an archive, or as a patch.
//!
//! What is written is exact (mode, owner, times, extended attributes, hard links, holes, any name)
//! and follows from the layers alone, so the same export is the same bytes. It is made beside its
//! destination and renamed there when it is whole and durable.

mod archive;
mod patch;
mod place;
mod sha1;
mod tree;

use std::path::Path;
use std::sync::Arc;

use crate::compare::{PathChange, compare};
use crate::error::Result;
use crate::layer::LayerId;
use crate::lower::{Lower, ROOT_INO};
use crate::name::{Name, RelPath};
use crate::node::{Kind, Node};
use crate::point;
use crate::publish::ChangeKind;
use crate::stack::Stack;

/// What an export is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Files in a directory.
    Directory,
    /// A tar archive (POSIX.1-2001, "pax").
    Tar,
    /// The same, compressed by zstd.
    TarZstd,
    /// A patch that `git apply` takes.
    Patch,
}

/// What an export wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Regular files; each hard link counts.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// FIFOs, sockets and devices.
    pub special_files: u64,
    /// Logical bytes of the files; hard links count once.
    pub bytes: u64,
    /// Paths that are in the older layer and not in the newer one. A patch removes them; a directory
    /// or an archive of changes cannot, so they are named here.
    pub deleted: Vec<RelPath>,
    /// What the format or the user's rights could not keep, and why.
    pub left_out: Vec<LeftOut>,
}

/// Something that an export could not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The path.
    pub path: RelPath,
    /// What was not kept: `owner`, `xattr`, `special_file`, `directory`, `mode`, `git_metadata`.
    pub what: &'static str,
}

impl Exported {
    fn leave_out(&mut self, path: &RelPath, what: &'static str) {
        self.left_out.push(LeftOut {
            path: path.clone(),
            what,
        });
    }

    fn count(&mut self, node: &Node, first_name: bool) {
        match node.kind() {
            Kind::File => {
                self.files += 1;
                self.bytes += if first_name { node.size() } else { 0 };
            }
            Kind::Directory => self.directories += 1,
            Kind::Symlink => self.symlinks += 1,
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                self.special_files += 1;
            }
        }
    }
}

impl Stack {
    /// Writes layer `to` to `dest`, which must not be there yet (for a directory: or be an empty
    /// one). With `from` only what differs from that layer is written; a patch is always of a
    /// difference, by default from the base.
    ///
    /// # Errors
    /// [`crate::Error::NoLayer`]; [`crate::Error::Io`], of kind `AlreadyExists` if `dest` is there;
    /// or as reading an object. Then nothing is at `dest` that was not there before.
    pub fn export(
        &self,
        from: Option<LayerId>,
        to: LayerId,
        format: ExportFormat,
        dest: &Path,
    ) -> Result<Exported> {
        let from = match (from, format) {
            (None, ExportFormat::Patch) => self.layer_at(1)?.map(|base| base.id),
            (from, _) => from,
        };
        let (to, _pin) = self.pinned_lower(to)?;
        let from = from.map(|from| self.pinned_lower(from)).transpose()?;
        let changes = match &from {
            Some((from, _)) => Some(compare(from, &to)?),
            None => None,
        };
        let mut exported = Exported::default();
        if let Some(changes) = &changes {
            exported.deleted = changes
                .iter()
                .filter(|change| change.kind == ChangeKind::Deleted)
                .map(|change| change.path.clone())
                .collect();
        }
        let staged = place::Staged::new(dest, format == ExportFormat::Directory)?;
        match format {
            ExportFormat::Patch => {
                let mut out = staged.writer()?;
                let from = from.as_ref().map(|(lower, _)| lower);
                let changes = changes.unwrap_or_default();
                if let Some(from) = from {
                    patch::write(&mut out, (from, &to), &changes, &mut exported)?;
                }
                out.finish()?;
            }
            ExportFormat::Tar => {
                let mut out = staged.writer()?;
                archive::write(&mut out, &to, &entries(&to, changes)?, &mut exported)?;
                out.finish()?;
            }
            ExportFormat::TarZstd => {
                let mut out = staged.compressed()?;
                archive::write(&mut out, &to, &entries(&to, changes)?, &mut exported)?;
                out.finish()?;
            }
            ExportFormat::Directory => {
                tree::write(
                    staged.directory()?,
                    &to,
                    &entries(&to, changes)?,
                    &mut exported,
                )?;
            }
        }
        exported.left_out.sort_by(|a, b| a.path.cmp(&b.path));
        point::pass("export.staged");
        staged.place()?;
        point::pass("export.placed");
        Ok(exported)
    }

    /// A layer that is kept while the pin is held.
    pub(crate) fn pinned_lower(&self, id: LayerId) -> Result<(Arc<Lower>, crate::pins::RootPin)> {
        let (layer, pin) = {
            let _gate = self.inner().gate.lock();
            self.pin_layer(id)?
        };
        Ok((self.store().lower(&layer.root)?, pin))
    }
}

/// The nodes to write, in path order, so a directory comes before what is in it: all of the layer,
/// or what changed in it, with the directories on the way there.
fn entries(lower: &Lower, changes: Option<Vec<PathChange>>) -> Result<Vec<(RelPath, Node)>> {
    let mut found = std::collections::BTreeMap::new();
    match changes {
        None => {
            let root = lower.node(ROOT_INO)?;
            let mut pending: Vec<(RelPath, Node)> =
                root.map(|root| (RelPath::ROOT, root)).into_iter().collect();
            while let Some((path, node)) = pending.pop() {
                if node.kind() == Kind::Directory
                    && let Some(directory) = lower.directory(node.meta.ino)?
                {
                    for (name, entry) in directory.iter() {
                        let name = Name::new(name)
                            .expect("directory objects are checked when they are read");
                        pending.push((path.join(&name), lower.resolve(entry)?));
                    }
                }
                found.insert(path, node);
            }
        }
        Some(changes) => {
            for change in changes {
                let Some(node) = change.new else { continue };
                let mut above = change.path.split().map(|(parent, _)| parent);
                while let Some(path) = above {
                    if let Some(node) = lower.node_at(&path)? {
                        found.entry(path.clone()).or_insert(node);
                    }
                    above = path.split().map(|(parent, _)| parent);
                }
                found.insert(change.path, node);
            }
        }
    }
    Ok(found.into_iter().collect())
}
