//! Where the lines of a new layer's files come from, and so whose they are.

use std::collections::HashMap;

use super::Resolution;
use super::resolve::{Case, Pass, Resolver};
use crate::blame::{Owners, Runs};
use crate::content::{Content, Layout};
use crate::digest::Digest;
use crate::edit::Edit;
use crate::error::Result;
use crate::merge::Origin;
use crate::name::RelPath;
use crate::node::Node;
use crate::text::{MAX_TEXT, is_text, line_count};
use crate::writers::Writers;

/// Where the lines of the files of a resolution come from.
#[derive(Default)]
pub(super) struct Origins {
    pub(super) merged: HashMap<RelPath, MergedFile>,
    /// Where a file that mine moved was in the base.
    pub(super) moved: HashMap<RelPath, RelPath>,
}

/// A file that was merged by lines.
#[derive(Clone)]
pub(super) struct MergedFile {
    /// The text of mine.
    pub(super) mine: Vec<u8>,
    pub(super) origins: Vec<Origin>,
    /// What mine was made of; `None` if it was new.
    pub(super) base: Option<(RelPath, Content)>,
    pub(super) head: (RelPath, Content),
}

/// Whose the lines of the files of a new layer are.
pub(super) struct OwnerRuns {
    pub(super) files: Vec<(RelPath, Digest, Runs)>,
    /// The commands that the runs name.
    pub(super) commands: Vec<String>,
}

impl Pass<'_> {
    /// Path and content of what mine was made of.
    pub(super) fn source_of_base(&self, case: &Case<'_>) -> Option<(RelPath, Content)> {
        let content = case.base.and_then(Node::content)?;
        let path = self.moves.source(case.path).unwrap_or(case.path);
        Some((path.clone(), *content))
    }
}

impl Resolver<'_> {
    /// The owners of the lines of every file that the new layer, of number `revision`, changes.
    /// `writers` knows of some which command of the session brought them in.
    pub(super) fn owner_runs(
        &self,
        resolution: &Resolution,
        revision: u64,
        writers: &Writers,
    ) -> Result<OwnerRuns> {
        let mut all = Vec::new();
        let mut commands = Vec::new();
        for (path, edit) in &resolution.edits {
            let Edit::Set(node) = edit else { continue };
            let Some(content) = node.content() else {
                continue;
            };
            let before = self.head.node_at(path)?;
            let same = |old: &Content| old.digest == content.digest;
            if before.as_ref().and_then(Node::content).is_some_and(same) {
                continue;
            }
            let runs = match resolution.origins.merged.get(path) {
                Some(merged) => self.merged_runs(merged, revision, writers, &mut commands)?,
                None => {
                    let runs = self.edited_runs(&resolution.origins, path, content, revision)?;
                    match writers.get(&content.digest) {
                        Some(lines) => runs.with_commands(revision, lines, &mut commands),
                        None => runs,
                    }
                }
            };
            all.push((path.clone(), content.digest, runs));
        }
        Ok(OwnerRuns {
            files: all,
            commands,
        })
    }

    /// The head's lines keep their owners, mine's those that they had at the base.
    fn merged_runs(
        &self,
        merged: &MergedFile,
        revision: u64,
        writers: &Writers,
        commands: &mut Vec<String>,
    ) -> Result<Runs> {
        let owners = Owners::new(self.stack);
        let objects = self.batch.objects();
        let (path, content) = &merged.head;
        let bytes = content.read_all(objects)?;
        let head_revision = self.head_layer.id.revision;
        let head = owners.find(path, content, Some(&bytes), head_revision)?;
        let mine = match &merged.base {
            None => Runs::all(line_count(&merged.mine), revision),
            Some((path, content)) => {
                let bytes = content.read_all(objects)?;
                owners
                    .find(path, content, Some(&bytes), self.base_revision)?
                    .edited(&bytes, &merged.mine, revision)
            }
        };
        let mine = match writers.get(&Digest::of(&merged.mine)) {
            Some(lines) => mine.with_commands(revision, lines, commands),
            None => mine,
        };
        Ok(head.merged(&mine, &merged.origins))
    }

    /// Lines that the file had before keep their owners, the others are new.
    fn edited_runs(
        &self,
        origins: &Origins,
        path: &RelPath,
        content: &Content,
        revision: u64,
    ) -> Result<Runs> {
        if content.size > MAX_TEXT {
            return Ok(Runs::whole(revision));
        }
        // Some of what is new may still be in the batch alone.
        let bytes = match content.layout {
            Layout::Whole if content.size > 0 => self.batch.get(&content.digest)?,
            Layout::Whole | Layout::Segments(_) => content.read_all(self.batch.objects())?,
        };
        if !is_text(&bytes) {
            return Ok(Runs::whole(revision));
        }
        // What it was before: where mine moved it from, or at the same path.
        let (old_path, old, old_revision) = match origins.moved.get(path) {
            Some(from) => (from, self.base.node_at(from)?, self.base_revision),
            None => (path, self.head.node_at(path)?, self.head_layer.id.revision),
        };
        let new = || Ok(Runs::all(line_count(&bytes), revision));
        let Some(old) = old.as_ref().and_then(Node::content) else {
            return new();
        };
        if old.size > MAX_TEXT {
            return new();
        }
        let old_bytes = old.read_all(self.batch.objects())?;
        if !is_text(&old_bytes) {
            return new();
        }
        Ok(Owners::new(self.stack)
            .find(old_path, old, Some(&old_bytes), old_revision)?
            .edited(&old_bytes, &bytes, revision))
    }
}
