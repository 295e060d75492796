//! Reads: what a session depends on without having changed it, and whether others have since.
//!
//! The access record says what was read, listed, found and missed. Against what differs between base
//! and head that gives *stale reads*: content that was read and is another now, a name that was
//! missing and is there, or was there and is gone, a directory that was listed and has other names.
//! A file that was only looked at (`stat`) is no dependency on its content. What is ignored, what is
//! git's own, and what the session itself published since its base are no dependencies.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::resolve::Resolver;
use super::route::{Route, Router};
use super::since::Since;
use super::{ChangeKind, PublishOptions};
use crate::access::{AccessFilter, AccessKind};
use crate::compare::{PathChange, compare};
use crate::error::{Error, Result};
use crate::layer::{LayerId, Owner};
use crate::lease::LeaseId;
use crate::name::RelPath;
use crate::node::Kind;
use crate::stack::Stack;
use crate::upper::Upper;

/// What a publish checks besides conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Validate {
    /// Only what was written: stale reads are told, and do not matter.
    #[default]
    Writes,
    /// What was read, too.
    Reads,
}

/// How a session depends on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dependency {
    /// It read the content, or ran it.
    Content,
    /// It found something there.
    Existence,
    /// It found nothing there.
    Absence,
    /// It listed the directory.
    Listing,
}

/// Something that a session depends on, and that others have changed since its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleRead {
    /// The path.
    pub path: RelPath,
    /// How the session depends on it.
    pub dependency: Dependency,
    /// The layer that changed it.
    pub layer: Option<LayerId>,
    /// Who published that layer.
    pub owner: Option<Owner>,
}

/// What a session depends on, by the access record.
pub(super) struct Reads(BTreeSet<(RelPath, Dependency)>);

impl Reads {
    /// Reads the record of the session.
    pub(super) fn of(stack: &Stack, upper: &Upper, options: &PublishOptions) -> Result<Reads> {
        let mut reads = BTreeSet::new();
        for lease in options.records.iter().chain([&upper.lease().id]) {
            // The present lease need have no record, if one of those before has.
            let recorded = *lease != upper.lease().id || options.records.is_empty();
            reads.extend(Reads::under(stack, *lease, recorded, options.validate)?);
        }
        Ok(Reads(reads))
    }

    /// What is on record under one lease, which must have a record if `recorded` says so.
    fn under(
        stack: &Stack,
        lease: LeaseId,
        recorded: bool,
        validate: Validate,
    ) -> Result<BTreeSet<(RelPath, Dependency)>> {
        let filter = AccessFilter {
            lease: Some(lease),
            kinds: vec![
                AccessKind::Open,
                AccessKind::Read,
                AccessKind::Execute,
                AccessKind::List,
                AccessKind::Lookup,
                AccessKind::Missing,
            ],
            ..AccessFilter::default()
        };
        let answer = stack.store().access_log().query(stack.id(), &filter)?;
        if validate == Validate::Reads {
            let reason = match (
                answer.modes.first().map(String::as_str),
                answer.gaps.first(),
            ) {
                (None, _) if !recorded => None,
                (None | Some("off"), _) => {
                    Some("its trace mode is `off`, which records no reads".to_owned())
                }
                (_, Some(gap)) => Some(format!("its record has a gap: {}", gap.reason)),
                (Some(_), None) => None,
            };
            if let Some(reason) = reason {
                return Err(Error::NoReads { reason });
            }
        }
        // Whoever records each read need not be taken to have read all that it opened.
        let exact = answer.modes.first().is_some_and(|mode| mode == "exact");
        let rows = answer.rows.into_iter().filter_map(|row| {
            let dependency = match row.kind {
                AccessKind::Open if exact => Dependency::Existence,
                AccessKind::Open | AccessKind::Read | AccessKind::Execute => Dependency::Content,
                AccessKind::List => Dependency::Listing,
                AccessKind::Lookup => Dependency::Existence,
                AccessKind::Missing => Dependency::Absence,
                _ => return None,
            };
            Some((row.path, dependency))
        });
        Ok(rows.collect())
    }

    /// Those of them that others have changed between base and head.
    pub(super) fn stale(&self, resolver: &Resolver<'_>, upper: &Upper) -> Result<Vec<StaleRead>> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let changes: BTreeMap<RelPath, PathChange> = compare(resolver.base, resolver.head)?
            .into_iter()
            .map(|change| (change.path.clone(), change))
            .collect();
        let mut relisted = BTreeSet::new();
        for change in changes.values() {
            if matches!(change.kind, ChangeKind::Added | ChangeKind::Deleted)
                && let Some((parent, _)) = change.path.split()
            {
                relisted.insert(parent);
            }
        }
        let since = Since::read(
            resolver.stack,
            resolver.base_revision,
            resolver.head_layer,
            resolver.base,
            resolver.head,
        )?;
        let mut router = Router::new(upper, &resolver.options.policy);
        let mut stale: Vec<StaleRead> = Vec::new();
        for (path, dependency) in &self.0 {
            let change = changes.get(path);
            let kind = change.map(|change| change.kind);
            let is_stale = match dependency {
                Dependency::Content => matches!(
                    kind,
                    Some(ChangeKind::Modified | ChangeKind::TypeChanged | ChangeKind::Deleted)
                ),
                Dependency::Existence => {
                    matches!(kind, Some(ChangeKind::TypeChanged | ChangeKind::Deleted))
                }
                Dependency::Absence => kind == Some(ChangeKind::Added),
                Dependency::Listing => relisted.contains(path),
            };
            if !is_stale || is_git(path) {
                continue;
            }
            let is_directory = change.is_some_and(|change| {
                let node = change.new.as_ref().or(change.old.as_ref());
                node.is_some_and(|node| node.kind() == Kind::Directory)
            });
            let is_directory = is_directory || *dependency == Dependency::Listing;
            if router.route(path, is_directory)? == Route::Ignored {
                continue;
            }
            let layer = match dependency {
                Dependency::Listing => since.relisted_by(path, &changes),
                _ => since.changed_by(path),
            };
            if layer.is_some_and(|layer| layer.owner == resolver.options.owner) {
                continue;
            }
            // The stronger dependency comes first.
            if stale.last().is_some_and(|last| last.path == *path)
                && *dependency == Dependency::Existence
            {
                continue;
            }
            stale.push(StaleRead {
                path: path.clone(),
                dependency: *dependency,
                layer: layer.map(|layer| layer.id),
                owner: layer.map(|layer| layer.owner.clone()),
            });
        }
        Ok(stale)
    }
}

/// Whether a path is a `.git` or in one.
fn is_git(path: &RelPath) -> bool {
    path.names().any(|name| name == b".git")
}
