//! What the store and the holder know, in the catalogue's words.

use crate::gateway::Session;
use sandstack_api::management::{
    ImportReport, PublishPolicy, Refreshed, Route as ApiRoute, TraceMode as ApiTraceMode,
};
use sandstack_api::observability::{
    AccessKind as ApiAccessKind, LayerKind as ApiLayerKind, LayerRecord as ApiLayerRecord,
};
use sandstack_api::runtime::{
    ChangeKind as ApiChangeKind, Conflict as ApiConflict, ConflictKind as ApiConflictKind,
    Dependency as ApiDependency, Hunk as ApiHunk, LineRange, PublishOutcome, Published,
    RebaseOutcome, RebasedSession, SavedRef as ApiSavedRef, SkippedPath, StaleRead as ApiStaleRead,
    Version as ApiVersion,
};
use sandstack_api::{Blob, LayerId as ApiLayerId, RequestId, SandboxId, SessionId};
use sandstack_fs::TraceMode;
use sandstack_store::{
    AccessKind, ChangeKind, Conflict, ConflictKind, Dependency, Hunk, ImportReport as StoreReport,
    LayerId, LayerKind, LayerRecord, LineSpan, Outcome, Policy, PublishReport, RelPath, Route,
    Rule, Version,
};

use crate::failure::{Failure, Result};

/// Rows of lists within an answer; the counts beside them are whole.
pub(crate) const MAX_ROWS: usize = 1000;

pub(crate) fn layer_id(id: LayerId) -> ApiLayerId {
    ApiLayerId::new(&id.to_string()).expect("a layer id is a letter and digits")
}

pub(crate) fn parse_layer(id: &ApiLayerId) -> Result<LayerId> {
    id.as_ref()
        .parse()
        .map_err(|error| Failure::invalid(format!("{error}")))
}

pub(crate) fn path(path: &RelPath) -> Blob {
    Blob(path.as_bytes().to_vec())
}

pub(crate) fn trace_mode(mode: ApiTraceMode) -> TraceMode {
    match mode {
        ApiTraceMode::Off => TraceMode::Off,
        ApiTraceMode::Session => TraceMode::Session,
        ApiTraceMode::Files => TraceMode::Files,
        ApiTraceMode::Exact => TraceMode::Exact,
    }
}

pub(crate) fn api_trace_mode(mode: TraceMode) -> ApiTraceMode {
    match mode {
        TraceMode::Off => ApiTraceMode::Off,
        TraceMode::Session => ApiTraceMode::Session,
        TraceMode::Files => ApiTraceMode::Files,
        TraceMode::Exact => ApiTraceMode::Exact,
    }
}

pub(crate) fn policy(policy: &PublishPolicy) -> Policy {
    let route = |route| match route {
        ApiRoute::Source => Route::Source,
        ApiRoute::Ignored => Route::Ignored,
        ApiRoute::Reject => Route::Reject,
        ApiRoute::SessionPrivate => Route::SessionPrivate,
        ApiRoute::Ours => Route::Ours,
        ApiRoute::Union => Route::Union,
    };
    let rules = policy.rules.iter().map(|rule| Rule {
        glob: rule.glob.clone(),
        route: route(rule.route),
    });
    Policy {
        rules: rules.collect(),
    }
}

pub(crate) fn import_report(report: &StoreReport, duration_ms: u64) -> ImportReport {
    ImportReport {
        files: report.files,
        directories: report.directories,
        symlinks: report.symlinks,
        special_files: report.special_files,
        bytes: report.bytes,
        files_hashed: report.files_hashed,
        files_reused: report.files_reused,
        files_reflinked: report.files_reflinked,
        bytes_stored: report.bytes_stored,
        duration_ms,
    }
}

pub(crate) fn layer(record: &LayerRecord) -> ApiLayerRecord {
    ApiLayerRecord {
        layer: layer_id(record.id),
        kind: match record.id.kind {
            LayerKind::Base => ApiLayerKind::Base,
            LayerKind::Published => ApiLayerKind::Published,
            LayerKind::Squashed => ApiLayerKind::Squashed,
        },
        parent: record.parent.map(layer_id),
        root: record.root.to_string(),
        owner: record.owner.to_string(),
        session_name: record.session_name.clone(),
        message: record.message.clone(),
        request_id: record
            .request_id
            .as_deref()
            .and_then(|id| RequestId::new(id).ok()),
        time_unix_ms: record.time_unix_ms,
        changed_paths: record.changed_paths,
        added_bytes: record.added_bytes,
    }
}

pub(crate) fn change_kind(kind: ChangeKind) -> ApiChangeKind {
    match kind {
        ChangeKind::Added => ApiChangeKind::Added,
        ChangeKind::Modified => ApiChangeKind::Modified,
        ChangeKind::Metadata => ApiChangeKind::Metadata,
        ChangeKind::TypeChanged => ApiChangeKind::TypeChanged,
        ChangeKind::Deleted => ApiChangeKind::Deleted,
    }
}

pub(crate) fn access_kind(kind: AccessKind) -> ApiAccessKind {
    match kind {
        AccessKind::Open => ApiAccessKind::Open,
        AccessKind::OpenWrite => ApiAccessKind::OpenWrite,
        AccessKind::Read => ApiAccessKind::Read,
        AccessKind::Write => ApiAccessKind::Write,
        AccessKind::Execute => ApiAccessKind::Execute,
        AccessKind::Create => ApiAccessKind::Create,
        AccessKind::Remove => ApiAccessKind::Remove,
        AccessKind::RenameFrom => ApiAccessKind::RenameFrom,
        AccessKind::RenameTo => ApiAccessKind::RenameTo,
        AccessKind::Link => ApiAccessKind::Link,
        AccessKind::List => ApiAccessKind::List,
        AccessKind::Lookup => ApiAccessKind::Lookup,
        AccessKind::Missing => ApiAccessKind::Missing,
        AccessKind::Metadata => ApiAccessKind::Metadata,
    }
}

pub(crate) fn store_access_kind(kind: ApiAccessKind) -> AccessKind {
    match kind {
        ApiAccessKind::Open => AccessKind::Open,
        ApiAccessKind::OpenWrite => AccessKind::OpenWrite,
        ApiAccessKind::Read => AccessKind::Read,
        ApiAccessKind::Write => AccessKind::Write,
        ApiAccessKind::Execute => AccessKind::Execute,
        ApiAccessKind::Create => AccessKind::Create,
        ApiAccessKind::Remove => AccessKind::Remove,
        ApiAccessKind::RenameFrom => AccessKind::RenameFrom,
        ApiAccessKind::RenameTo => AccessKind::RenameTo,
        ApiAccessKind::Link => AccessKind::Link,
        ApiAccessKind::List => AccessKind::List,
        ApiAccessKind::Lookup => AccessKind::Lookup,
        ApiAccessKind::Missing => AccessKind::Missing,
        ApiAccessKind::Metadata => AccessKind::Metadata,
    }
}

/// The answer to a publish. `session_open` and what becomes of the session is for the caller to say.
pub(crate) fn published(
    session: &SessionId,
    report: &PublishReport,
    session_open: bool,
) -> Published {
    let (outcome, layer) = outcome(&report.outcome);
    Published {
        workspace_session_id: session.clone(),
        outcome,
        layer,
        head: layer_id(report.head),
        changed_paths: report.changed_paths,
        merged_paths: paths(&report.merged),
        conflicts: conflicts(report),
        conflict_count: report.conflicts.len() as u64,
        skipped: skipped(report),
        saved_refs: saved_refs(report),
        ignored_paths: report.ignored_paths,
        stale_reads: stale_reads(report),
        stale_read_count: report.stale_reads.len() as u64,
        session_open,
        base: None,
        rest_conflicts: Vec::new(),
    }
}

/// The answer to a rebase.
pub(crate) fn rebased(
    session: &Session,
    report: &PublishReport,
    outcome: RebaseOutcome,
) -> RebasedSession {
    RebasedSession {
        workspace_session_id: session.id.clone(),
        outcome,
        base: layer_id(session.base()),
        head: layer_id(report.head),
        changed_paths: report.changed_paths,
        merged_paths: paths(&report.merged),
        conflicts: conflicts(report),
        conflict_count: report.conflicts.len() as u64,
        saved_refs: saved_refs(report),
        stale_reads: stale_reads(report),
        stale_read_count: report.stale_reads.len() as u64,
    }
}

/// The answer to a refresh of the base.
pub(crate) fn refreshed(sandbox: &SandboxId, report: &PublishReport) -> Refreshed {
    let (outcome, layer) = outcome(&report.outcome);
    Refreshed {
        sandbox_id: sandbox.clone(),
        outcome,
        layer,
        head: layer_id(report.head),
        changed_paths: report.changed_paths,
        merged_paths: paths(&report.merged),
        conflicts: conflicts(report),
        conflict_count: report.conflicts.len() as u64,
        skipped: skipped(report),
        saved_refs: saved_refs(report),
        ignored_paths: report.ignored_paths,
    }
}

fn outcome(outcome: &Outcome) -> (PublishOutcome, Option<ApiLayerId>) {
    match outcome {
        Outcome::Published(layer) => (PublishOutcome::Published, Some(layer_id(layer.id))),
        Outcome::NoChange => (PublishOutcome::NoChange, None),
        Outcome::Conflict => (PublishOutcome::Conflict, None),
        Outcome::StaleReads => (PublishOutcome::StaleReads, None),
        Outcome::DryRun => (PublishOutcome::DryRun, None),
    }
}

/// The first of some paths.
pub(crate) fn paths(paths: &[RelPath]) -> Vec<Blob> {
    paths.iter().take(MAX_ROWS).map(path).collect()
}

fn conflicts(report: &PublishReport) -> Vec<ApiConflict> {
    let conflicts = report.conflicts.iter().take(MAX_ROWS);
    conflicts.map(conflict).collect()
}

fn skipped(report: &PublishReport) -> Vec<SkippedPath> {
    let skipped = report.skipped.iter().take(MAX_ROWS);
    let skipped = skipped.map(|skipped| SkippedPath {
        path: path(&skipped.path),
        reason: skipped.reason.to_owned(),
    });
    skipped.collect()
}

fn stale_reads(report: &PublishReport) -> Vec<ApiStaleRead> {
    let stale = report.stale_reads.iter().take(MAX_ROWS);
    let stale = stale.map(|stale| ApiStaleRead {
        path: path(&stale.path),
        dependency: match stale.dependency {
            Dependency::Content => ApiDependency::Content,
            Dependency::Existence => ApiDependency::Existence,
            Dependency::Absence => ApiDependency::Absence,
            Dependency::Listing => ApiDependency::Listing,
        },
        layer: stale.layer.map(layer_id),
        owner: stale.owner.as_ref().map(ToString::to_string),
    });
    stale.collect()
}

fn saved_refs(report: &PublishReport) -> Vec<ApiSavedRef> {
    let saved = report.saved_refs.iter().map(|saved| ApiSavedRef {
        name: Blob(saved.name.clone()),
        saved_as: Blob(saved.saved_as.clone()),
    });
    saved.collect()
}

fn conflict(conflict: &Conflict) -> ApiConflict {
    ApiConflict {
        path: path(&conflict.path),
        kind: match conflict.kind {
            ConflictKind::Content => ApiConflictKind::Content,
            ConflictKind::Binary => ApiConflictKind::Binary,
            ConflictKind::Metadata => ApiConflictKind::Metadata,
            ConflictKind::AddAdd => ApiConflictKind::AddAdd,
            ConflictKind::DeleteModify => ApiConflictKind::DeleteModify,
            ConflictKind::Type => ApiConflictKind::Type,
            ConflictKind::Rename => ApiConflictKind::Rename,
            ConflictKind::Rejected => ApiConflictKind::Rejected,
        },
        base: conflict.base.as_ref().map(version),
        head: conflict.head.as_ref().map(version),
        mine: conflict.mine.as_ref().map(version),
        head_layer: conflict.head_layer.map(layer_id),
        head_owner: conflict.head_owner.as_ref().map(ToString::to_string),
        hunks: conflict.hunks.iter().map(hunk).collect(),
        marked: conflict.marked.clone().map(Blob),
    }
}

pub(crate) fn version(version: &Version) -> ApiVersion {
    ApiVersion {
        kind: version.kind.as_str().to_owned(),
        mode: u32::from(version.mode),
        uid: version.uid,
        gid: version.gid,
        size: version.size,
        digest: version.digest.map(|digest| digest.to_string()),
    }
}

fn hunk(hunk: &Hunk) -> ApiHunk {
    let range = |span: LineSpan| LineRange {
        start: span.start + 1,
        count: span.count,
    };
    ApiHunk {
        base: range(hunk.base),
        head: range(hunk.head),
        mine: range(hunk.mine),
    }
}
