//! File activity: who touched which path, from the access log.

use std::sync::Arc;

use sandstack_api::observability::{
    Activity, Exactness, FileActivity, FileActivityReply, Gap, ParentProcess,
};
use sandstack_api::{Blob, CommandId, SessionId};
use sandstack_fs::TraceMode;
use sandstack_store::{
    AccessAnswer, AccessCall, AccessFilter, AccessKind, AccessRow, Actor, CallMark, Digest,
    LeaseId, PathMatch, RelPath, RowMark, StackId, Store,
};

use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};
use crate::file::compile_glob;
use crate::gateway::{Context, Gateway};
use crate::page;
use crate::sandbox::page_limit;
use crate::show;

impl Gateway {
    pub(crate) async fn file_activity(
        self: &Arc<Self>,
        context: &Context,
        request: FileActivity,
    ) -> Result<FileActivityReply> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let limit = page_limit(request.limit)?;
        let filter = filter(&request)?;
        let store = self.store.clone();
        self.blocking(move || {
            // What is not written yet is part of the answer.
            for session in sandbox.sessions_newest_first() {
                if let Some(view) = session.view.lock().clone() {
                    view.recorder().flush()?;
                }
            }
            let stack = sandbox.stack()?.id();
            let token = request.page_token.as_deref();
            let (rows, next, about) = if request.calls {
                calls(&store, stack, &filter, token, limit)?
            } else {
                folded(&store, stack, &filter, token, limit)?
            };
            let gaps = about.gaps.into_iter().filter_map(|gap| {
                Some(Gap {
                    workspace_session_id: SessionId::new(&gap.session).ok()?,
                    from_unix_ms: gap.from_unix_ms,
                    to_unix_ms: gap.to_unix_ms,
                    reason: gap.reason,
                })
            });
            Ok(FileActivityReply {
                rows,
                next_page_token: next,
                exactness: about
                    .modes
                    .iter()
                    .filter_map(|mode| exactness(mode))
                    .collect(),
                dropped: 0,
                gaps: gaps.collect(),
                sampled_at_unix_ms: now_unix_ms(),
                errors: Vec::new(),
            })
        })
        .await
    }
}

/// Rows, where the next page begins, and what the answer is about.
type Found = (Vec<Activity>, Option<String>, AccessAnswer);

fn folded(
    store: &Store,
    stack: StackId,
    filter: &AccessFilter,
    token: Option<&str>,
    limit: usize,
) -> Result<Found> {
    let log = store.access_log();
    let after = match token {
        None => None,
        Some(token) => {
            let mark = RowMark::decode(&page::decode(token)?);
            Some(mark.ok_or_else(|| page::no_token(token))?)
        }
    };
    let page = log.page(stack, filter, after.as_ref(), limit)?;
    let rows = page.rows.into_iter().filter_map(activity).collect();
    let next = page.next.map(|mark| page::encode(&mark.encode()));
    Ok((rows, next, log.about(stack, filter)?))
}

fn calls(
    store: &Store,
    stack: StackId,
    filter: &AccessFilter,
    token: Option<&str>,
    limit: usize,
) -> Result<Found> {
    let log = store.access_log();
    let after = token.map(call_mark).transpose()?;
    let page = log.calls(stack, filter, after, limit)?;
    let rows = page.calls.iter().filter_map(call).collect();
    let next = page.next.map(|mark| {
        page::encode(format!("{} {} {}", mark.lease.0, mark.frame, mark.call).as_bytes())
    });
    Ok((rows, next, log.about(stack, filter)?))
}

/// What all paths that a glob matches begin with.
fn literal_begin(glob: &str) -> Vec<u8> {
    let begin = glob.split(['*', '?', '[', '{', '\\', '!']).next();
    begin.unwrap_or_default().as_bytes().to_vec()
}

fn call_mark(token: &str) -> Result<CallMark> {
    let text = String::from_utf8(page::decode(token)?).map_err(|_| page::no_token(token))?;
    let mut words = text.split(' ').map(|word| word.parse::<u64>().ok());
    let mut number = || words.next().flatten().ok_or_else(|| page::no_token(token));
    Ok(CallMark {
        lease: LeaseId(number()?),
        frame: number()?,
        call: number()? as u32,
    })
}

fn filter(request: &FileActivity) -> Result<AccessFilter> {
    let path = request.path.as_ref().map(|path| {
        RelPath::parse(&path.0).map_err(|error| Failure::invalid(format!("path: {error}")))
    });
    let glob = request.glob.as_deref().map(compile_glob).transpose()?;
    let digest = request.digest.as_deref().map(|text| {
        text.parse::<Digest>()
            .map_err(|error| Failure::invalid(format!("digest: {error}")))
    });
    let session = request.workspace_session_id.as_ref();
    let kinds = request.kinds.iter();
    Ok(AccessFilter {
        lease: None,
        session: session.map(ToString::to_string),
        path: path.transpose()?,
        glob: glob.map(|glob| -> PathMatch { Arc::new(move |path| glob.is_match(as_path(path))) }),
        path_begin: request
            .glob
            .as_deref()
            .map(literal_begin)
            .unwrap_or_default(),
        digest: digest.transpose()?,
        command: request.command_session_id.as_ref().map(ToString::to_string),
        pid: request.pid,
        kinds: kinds.map(|kind| show::store_access_kind(*kind)).collect(),
        since_unix_ms: request.since_ms,
        until_unix_ms: request.until_ms,
    })
}

fn as_path(path: &RelPath) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()))
}

fn activity(row: AccessRow) -> Option<Activity> {
    Some(Activity {
        digest: row.digest.map(|digest| digest.to_string()),
        count: row.count,
        bytes: row.bytes,
        first_unix_ms: row.first_unix_ms,
        last_unix_ms: row.last_unix_ms,
        ..one(&row.session, &row.path, row.kind, &row.actor)?
    })
}

fn call(call: &AccessCall) -> Option<Activity> {
    Some(Activity {
        offset: Some(call.offset),
        bytes: call.length,
        first_unix_ms: call.at_unix_ms,
        last_unix_ms: call.at_unix_ms,
        ..one(&call.session, &call.path, call.kind, &call.actor)?
    })
}

/// One access of nothing at no time.
fn one(session: &str, path: &RelPath, kind: AccessKind, actor: &Actor) -> Option<Activity> {
    let command = actor.command.as_deref();
    let parents = actor.parents.iter().map(|parent| ParentProcess {
        pid: parent.pid,
        program: parent.program.clone().map(Blob),
    });
    Some(Activity {
        path: show::path(path),
        kind: show::access_kind(kind),
        workspace_session_id: SessionId::new(session).ok()?,
        command_session_id: command.and_then(|id| CommandId::new(id).ok()),
        pid: actor.pid,
        program: actor.program.clone().map(Blob),
        argv0: actor.argv0.clone().map(Blob),
        parents: parents.collect(),
        digest: None,
        offset: None,
        count: 1,
        bytes: 0,
        first_unix_ms: 0,
        last_unix_ms: 0,
    })
}

fn exactness(mode: &str) -> Option<Exactness> {
    let mode: TraceMode = mode.parse().ok()?;
    Some(Exactness {
        trace_mode: show::api_trace_mode(mode),
        statement: mode.statement().to_owned(),
    })
}
