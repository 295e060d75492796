//! Observability: snapshots, traces, events, layers. Reads, and changes nothing.

use std::fs;
use std::sync::Arc;

use sandstack_api::observability::{
    CommandSummary, Events, EventsReply, GatewaySnapshot, Layerstack, LayerstackReply, LeaseRecord,
    SandboxSnapshot, Snapshot, SnapshotReply, Trace, TraceReply,
};
use sandstack_api::runtime::CommandStatus;
use sandstack_api::{ApiError, ErrorCode, OperationName, SessionId};

use crate::clock::now_unix_ms;
use crate::command::cut;
use crate::event::EventFilter;
use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway, Sandbox};
use crate::sandbox::page_limit;
use crate::show;

/// Commands of one sandbox in a snapshot.
const MAX_COMMANDS: usize = 200;
/// Layers in an answer.
const MAX_LAYERS: usize = 1000;
/// Bytes of a command line in a summary.
const CMD_BYTES: usize = 200;

impl Gateway {
    pub(crate) async fn snapshot(
        self: &Arc<Self>,
        context: &Context,
        request: &Snapshot,
    ) -> Result<SnapshotReply> {
        let mut sandboxes: Vec<Arc<Sandbox>> = match &request.sandbox_id {
            Some(id) => vec![self.sandbox(context, id)?],
            None => self
                .sandboxes
                .read()
                .values()
                .filter(|sandbox| context.principal.require_sandbox(&sandbox.id).is_ok())
                .cloned()
                .collect(),
        };
        sandboxes
            .sort_by_key(|sandbox| std::cmp::Reverse(sandbox.row.lock().record.created_at_unix_ms));
        let mut errors = Vec::new();
        let mut shown = Vec::with_capacity(sandboxes.len());
        for sandbox in &sandboxes {
            shown.push(self.sandbox_snapshot(context, sandbox, &mut errors).await);
        }
        Ok(SnapshotReply {
            sandboxes: shown,
            gateway: self.gateway_snapshot(&mut errors),
            sampled_at_unix_ms: now_unix_ms(),
            errors,
        })
    }

    async fn sandbox_snapshot(
        self: &Arc<Self>,
        context: &Context,
        sandbox: &Arc<Sandbox>,
        errors: &mut Vec<ApiError>,
    ) -> SandboxSnapshot {
        let mut note = |error: Failure| errors.push(error.into_answer(context.request_id.as_ref()));
        let mut sessions = Vec::new();
        for session in sandbox.sessions_newest_first() {
            match self.session_record(&session).await {
                Ok(record) => sessions.push(record),
                Err(error) => note(error),
            }
        }
        let leases = sandbox
            .stack()
            .and_then(|stack| Ok(stack.leases()?.len() as u64));
        let lease_count = leases.unwrap_or_else(|error| {
            note(error);
            0
        });
        let mut commands = self.command_summaries(sandbox);
        commands.truncate(MAX_COMMANDS);
        SandboxSnapshot {
            sandbox: self.sandbox_record(sandbox),
            sessions,
            commands,
            layer_count: sandbox.stack.get().map_or(0, |stack| stack.layer_count()),
            lease_count,
            trace_dropped: 0,
        }
    }

    /// The commands of a sandbox, running ones first, then the newest.
    pub(crate) fn command_summaries(&self, sandbox: &Sandbox) -> Vec<CommandSummary> {
        let mut commands: Vec<CommandSummary> = self
            .commands
            .read()
            .values()
            .filter_map(|command| {
                let row = command.row.lock();
                let until = row.ended_at_unix_ms.unwrap_or_else(now_unix_ms);
                (row.sandbox == sandbox.id).then(|| CommandSummary {
                    command_session_id: row.id.clone(),
                    workspace_session_id: row.session.clone(),
                    cmd: cut(&row.cmd, CMD_BYTES),
                    status: row.status,
                    exit_code: row.exit_code,
                    started_at_unix_ms: row.started_at_unix_ms,
                    duration_ms: until.saturating_sub(row.started_at_unix_ms),
                })
            })
            .collect();
        commands.sort_by_key(|command| {
            (
                command.status != CommandStatus::Running,
                std::cmp::Reverse(command.started_at_unix_ms),
            )
        });
        commands
    }

    fn gateway_snapshot(&self, errors: &mut Vec<ApiError>) -> GatewaySnapshot {
        let mut number = |what: &str, found: Option<u64>| {
            found.unwrap_or_else(|| {
                errors.push(ApiError::new(
                    ErrorCode::Unavailable,
                    format!("{what} could not be read from /proc"),
                ));
                0
            })
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':')
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        };
        let descriptors = fs::read_dir("/proc/self/fd")
            .ok()
            .map(|entries| entries.count() as u64);
        GatewaySnapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at_unix_ms: self.started_at_unix_ms,
            resident_bytes: number("resident memory", field("VmRSS")) * 1024,
            open_descriptors: number("open descriptors", descriptors),
            threads: number("threads", field("Threads")),
        }
    }

    pub(crate) fn trace(&self, context: &Context, request: &Trace) -> Result<TraceReply> {
        if let Some(sandbox) = &request.sandbox_id {
            context.principal.require_sandbox(sandbox)?;
        }
        if let Some(name) = &request.operation
            && OperationName::find(name).is_none()
        {
            return Err(Failure::invalid(format!(
                "there is no operation {name:?}; GET /v1/catalog lists them"
            )));
        }
        let id = request.trace_id.as_ref().filter(|id| id.as_ref() != "last");
        self.spans.find(id, |operation, sandbox| {
            request
                .operation
                .as_deref()
                .is_none_or(|wanted| wanted == operation)
                && request
                    .sandbox_id
                    .as_ref()
                    .is_none_or(|wanted| sandbox == Some(wanted.as_ref()))
        })
    }

    pub(crate) fn list_events(&self, context: &Context, request: &Events) -> Result<EventsReply> {
        if let Some(sandbox) = &request.sandbox_id {
            context.principal.require_sandbox(sandbox)?;
        }
        let filter = EventFilter {
            sandbox: request.sandbox_id.clone(),
            name: request.name.clone(),
            since_unix_ms: request.since_ms,
            limit: page_limit(request.last_n)?,
        };
        let mut events = self.events.find(&filter)?;
        events.retain(|event| {
            event
                .sandbox_id
                .as_ref()
                .is_none_or(|sandbox| context.principal.require_sandbox(sandbox).is_ok())
        });
        Ok(EventsReply {
            events,
            sampled_at_unix_ms: now_unix_ms(),
            errors: Vec::new(),
        })
    }

    pub(crate) async fn layerstack(
        self: &Arc<Self>,
        context: &Context,
        request: &Layerstack,
    ) -> Result<LayerstackReply> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let gateway = Arc::clone(self);
        self.blocking(move || {
            let stack = sandbox.stack()?;
            let layers = stack.layers(MAX_LAYERS)?;
            let head = stack.head();
            let logical_bytes = layers.first().map_or(0, |layer| layer.logical_bytes);
            let mut leases = Vec::new();
            for lease in stack.leases()? {
                // An operation on the head holds one for a moment.
                let Ok(session) = SessionId::new(&lease.record().holder) else {
                    continue;
                };
                leases.push(LeaseRecord {
                    layer: show::layer_id(lease.record().base),
                    workspace_session_id: session,
                    upper_bytes: gateway.store.upper_bytes(lease.id())?,
                });
            }
            Ok(LayerstackReply {
                sandbox_id: sandbox.id.clone(),
                head: show::layer_id(head),
                layer_count: stack.layer_count(),
                layers: layers.iter().map(show::layer).collect(),
                leases,
                logical_bytes,
                stored_bytes: gateway.store.object_bytes()?,
                sampled_at_unix_ms: now_unix_ms(),
                errors: Vec::new(),
            })
        })
        .await
    }
}
