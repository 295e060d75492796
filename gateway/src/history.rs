//! The history of a sandbox, and what differs between its layers and sessions.

use std::sync::Arc;
use std::time::Duration;

use sandstack_api::runtime::{
    DiffAgainst, DiffEntry, DiffFormat, DiffLayers, DiffWorkspaceSession, HistoryLayer,
    HunksOmitted, LayerDiff, LayerPage, ListLayers, SessionDiff,
};
use sandstack_api::{Blob, ErrorCode, MAX_WINDOW_BYTES};
use sandstack_store::{
    Difference, Error as StoreError, Hunks, LayerId, RelPath, ShownChange, Stack, Version, Window,
};

use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway};
use crate::page;
use crate::sandbox::page_limit;
use crate::show;

/// How long a difference waits for a session whose programs work on.
const FLUSH_PATIENCE: Duration = Duration::from_millis(250);

impl Gateway {
    pub(crate) async fn diff_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: DiffWorkspaceSession,
    ) -> Result<SessionDiff> {
        let session = self.session(context, &request.workspace_session_id)?;
        let mark = Mark::parse(request.page_token.as_deref())?;
        let window = window(&request.paths, request.format, request.limit, &mark)?;
        let _gate = session.enter().await?;
        // What is on its way from the kernel is part of the answer.
        match self.flush_view(&session, FLUSH_PATIENCE).await {
            // Its programs work on: what they store now may be in it or not.
            Err(error) if error.code() == ErrorCode::Busy => {}
            flushed => flushed?,
        }
        let asked = Arc::clone(&session);
        self.blocking(move || {
            let base = asked.base();
            let stack = asked.sandbox.stack()?;
            let (from, found) = match (request.against, &mark) {
                (DiffAgainst::Base, _) => (base, asked.upper().difference(None, &window)),
                (DiffAgainst::Head, mark) => {
                    let wanted = mark.as_ref().map(|mark| mark.from);
                    on_layer(stack, wanted, |layer| {
                        asked.upper().difference(Some(layer), &window)
                    })
                }
            };
            let found = found.map_err(|error| gone_layer(error, stack))?;
            let next = next_mark(&found, from, from);
            Ok(SessionDiff {
                workspace_session_id: asked.id.clone(),
                from: show::layer_id(from),
                changes: found.changes.into_iter().map(entry).collect(),
                next_page_token: next,
                sampled_at_unix_ms: now_unix_ms(),
                errors: Vec::new(),
            })
        })
        .await
    }

    pub(crate) async fn diff_layers(
        self: &Arc<Self>,
        context: &Context,
        request: DiffLayers,
    ) -> Result<LayerDiff> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let mark = Mark::parse(request.page_token.as_deref())?;
        let window = window(&request.paths, request.format, request.limit, &mark)?;
        let from = request.from.as_ref().map(show::parse_layer).transpose()?;
        let to = request.to.as_ref().map(show::parse_layer).transpose()?;
        self.blocking(move || {
            let stack = sandbox.stack()?;
            let from = from.or(mark.as_ref().map(|mark| mark.from));
            let to = to.or(mark.as_ref().map(|mark| mark.to));
            let mut compared = from;
            let (to, found) = on_layer(stack, to, |to| {
                let parent = || -> sandstack_store::Result<_> { Ok(stack.layer(to)?.parent) };
                match from.map_or_else(parent, |from| Ok(Some(from)))? {
                    None => Ok(None),
                    Some(from) => {
                        compared = Some(from);
                        stack.difference(from, to, &window).map(Some)
                    }
                }
            });
            let found = found.map_err(|error| gone_layer(error, stack))?;
            let (Some(from), Some(found)) = (compared, found) else {
                return Err(Failure::invalid(format!(
                    "layer {to} is the base and has no parent; give `from`, or another `to`"
                )));
            };
            let next = next_mark(&found, from, to);
            Ok(LayerDiff {
                sandbox_id: sandbox.id.clone(),
                from: show::layer_id(from),
                to: show::layer_id(to),
                changes: found.changes.into_iter().map(entry).collect(),
                next_page_token: next,
                sampled_at_unix_ms: now_unix_ms(),
                errors: Vec::new(),
            })
        })
        .await
    }

    pub(crate) async fn list_layers(
        self: &Arc<Self>,
        context: &Context,
        request: &ListLayers,
    ) -> Result<LayerPage> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let limit = page_limit(request.limit)?;
        let after: Option<LayerId> = match &request.page_token {
            None => None,
            Some(token) => Some(
                String::from_utf8(page::decode(token)?)
                    .ok()
                    .and_then(|id| id.parse().ok())
                    .ok_or_else(|| page::no_token(token))?,
            ),
        };
        self.blocking(move || {
            let stack = sandbox.stack()?;
            let mut layers = stack.history(after, limit + 1)?;
            let more = layers.len() > limit;
            layers.truncate(limit);
            let last = layers.last().filter(|_| more);
            Ok(LayerPage {
                sandbox_id: sandbox.id.clone(),
                head: show::layer_id(stack.head()),
                layer_count: stack.layer_count(),
                next_page_token: last
                    .map(|(layer, _)| page::encode(layer.id.to_string().as_bytes())),
                layers: layers
                    .iter()
                    .map(|(layer, present)| HistoryLayer {
                        layer: show::layer(layer),
                        present: *present,
                    })
                    .collect(),
                sampled_at_unix_ms: now_unix_ms(),
                errors: Vec::new(),
            })
        })
        .await
    }
}

/// Where a page of a difference ends, and between which layers it is.
#[derive(Clone, Debug, PartialEq)]
struct Mark {
    from: LayerId,
    to: LayerId,
    after: RelPath,
}

impl Mark {
    fn parse(token: Option<&str>) -> Result<Option<Mark>> {
        let Some(token) = token else { return Ok(None) };
        let bytes = page::decode(token)?;
        let mut parts = bytes.splitn(3, |byte| *byte == b' ');
        let mut layer = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let (from, to) = (layer(), layer());
        let after = parts.next().and_then(|path| RelPath::parse(path).ok());
        match (from, to, after) {
            (Some(from), Some(to), Some(after)) => Ok(Some(Mark { from, to, after })),
            _ => Err(page::no_token(token)),
        }
    }

    fn encode(&self) -> String {
        let layers = format!("{} {} ", self.from, self.to);
        page::encode(&[layers.as_bytes(), self.after.as_bytes()].concat())
    }
}

fn next_mark(found: &Difference, from: LayerId, to: LayerId) -> Option<String> {
    let last = found.changes.last().filter(|_| found.more)?;
    let after = last.change.path.clone();
    Some(Mark { from, to, after }.encode())
}

fn window(
    paths: &[Blob],
    format: DiffFormat,
    limit: Option<u32>,
    mark: &Option<Mark>,
) -> Result<Window> {
    let paths = paths.iter().map(|path| {
        RelPath::parse(&path.0).map_err(|error| Failure::invalid(format!("paths: {error}")))
    });
    Ok(Window {
        paths: paths.collect::<Result<_>>()?,
        after: mark.as_ref().map(|mark| mark.after.clone()),
        limit: page_limit(limit)?,
        hunk_bytes: match format {
            DiffFormat::Summary => None,
            DiffFormat::Unified => Some(MAX_WINDOW_BYTES),
        },
    })
}

fn entry(shown: ShownChange) -> DiffEntry {
    let (hunks, hunks_omitted) = match shown.hunks {
        Hunks::None => (None, None),
        Hunks::Text(text) => (Some(Blob(text)), None),
        Hunks::Binary => (None, Some(HunksOmitted::Binary)),
        Hunks::TooLarge => (None, Some(HunksOmitted::TooLarge)),
    };
    let change = &shown.change;
    let version = |node| show::version(&Version::from(node));
    DiffEntry {
        path: show::path(&change.path),
        kind: show::change_kind(change.kind),
        old: change.old.as_ref().map(version),
        new: change.new.as_ref().map(version),
        hunks,
        hunks_omitted,
    }
}

/// Does `work` with the layer that is wanted, by default the head. If a squash took that away in
/// between, again with the new one.
pub(crate) fn on_layer<T>(
    stack: &Stack,
    wanted: Option<LayerId>,
    mut work: impl FnMut(LayerId) -> sandstack_store::Result<T>,
) -> (LayerId, sandstack_store::Result<T>) {
    loop {
        let layer = wanted.unwrap_or_else(|| stack.head());
        match work(layer) {
            Err(StoreError::NoLayer(_)) if wanted.is_none() && stack.head() != layer => {}
            result => return (layer, result),
        }
    }
}

/// Says of a layer that a squash replaced why it is not there.
pub(crate) fn gone_layer(error: StoreError, stack: &Stack) -> Failure {
    let StoreError::NoLayer(id) = error else {
        return error.into();
    };
    match stack.layer_at(id.revision) {
        Ok(Some(layer)) if layer.id == id => Failure::new(
            ErrorCode::NotFound,
            format!(
                "layer {id} was replaced by a squash and its files are gone; list_layers shows which are present"
            ),
        ),
        _ => Failure::from(StoreError::NoLayer(id)),
    }
}
