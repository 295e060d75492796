//! The store that all sandboxes share: collected, measured, checked.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandstack_api::management::{
    CollectGarbage, CollectedGarbage, SandboxUsage, SessionUsage, StoreUsageReply, VerifiedStore,
};
use sandstack_api::{ErrorCode, SessionId};
use serde_json::json;

use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway, Sandbox};
use crate::show;

impl Gateway {
    pub(crate) async fn collect_garbage(
        self: &Arc<Self>,
        context: &Context,
        request: &CollectGarbage,
    ) -> Result<CollectedGarbage> {
        context.principal.require_every_sandbox()?;
        self.collect(context, request.dry_run).await
    }

    /// Removes what nothing needs.
    pub(crate) async fn collect(
        self: &Arc<Self>,
        context: &Context,
        dry_run: bool,
    ) -> Result<CollectedGarbage> {
        let _span = context.trace.span("garbage.collect");
        let store = self.store.clone();
        let abandoned = Arc::clone(&context.abandoned);
        let found = self
            .blocking(move || {
                Ok(store.collect_garbage(dry_run, &mut || abandoned.load(Ordering::Relaxed))?)
            })
            .await?;
        let collected = CollectedGarbage {
            dry_run,
            objects: found.objects,
            bytes: found.bytes,
            stray_files: found.stray_files,
            stray_bytes: found.stray_bytes,
            kept_objects: found.kept_objects,
            kept_bytes: found.kept_bytes,
            complete: found.complete,
        };
        if !dry_run {
            self.events
                .record("gc.collected", context.subject(), json!(collected));
        }
        Ok(collected)
    }

    pub(crate) async fn store_usage(
        self: &Arc<Self>,
        context: &Context,
    ) -> Result<StoreUsageReply> {
        context.principal.require_every_sandbox()?;
        let store = self.store.clone();
        let usage = self.blocking(move || Ok(store.usage()?)).await?;
        let sandboxes: Vec<Arc<Sandbox>> = self.sandboxes.read().values().cloned().collect();
        let owner = |stack| {
            sandboxes
                .iter()
                .find(|sandbox| sandbox.stack.get().is_some_and(|found| found.id() == stack))
        };
        let mut errors = Vec::new();
        let mut rows = Vec::new();
        for stack in &usage.stacks {
            let Some(sandbox) = owner(stack.stack) else {
                let message = format!(
                    "{} bytes are stored for a stack that no sandbox has, or whose sandbox is just being made or \
                     destroyed",
                    stack.stored_bytes
                );
                let gap = Failure::new(ErrorCode::NotFound, message);
                errors.push(gap.into_answer(context.request_id.as_ref()));
                continue;
            };
            rows.push(SandboxUsage {
                sandbox_id: sandbox.id.clone(),
                name: sandbox.row.lock().record.name.clone(),
                layers: stack.layers,
                logical_bytes: stack.logical_bytes,
                stored_bytes: stack.stored_bytes,
                unique_bytes: stack.unique_bytes,
                upper_bytes: stack.upper_bytes,
            });
        }
        let mut sessions = Vec::new();
        for lease in &usage.leases {
            // An operation on the head holds one for a moment.
            if let (Some(sandbox), Ok(session)) =
                (owner(lease.stack), SessionId::new(&lease.holder))
            {
                sessions.push(SessionUsage {
                    workspace_session_id: session,
                    sandbox_id: sandbox.id.clone(),
                    upper_bytes: lease.upper_bytes,
                });
            }
        }
        let (sandbox_count, session_count) = (rows.len() as u64, sessions.len() as u64);
        rows.sort_by_key(|row| Reverse(row.stored_bytes + row.upper_bytes));
        rows.truncate(show::MAX_ROWS);
        sessions.sort_by_key(|row| Reverse(row.upper_bytes));
        sessions.truncate(show::MAX_ROWS);
        Ok(StoreUsageReply {
            object_bytes: usage.object_bytes,
            database_bytes: usage.database_bytes,
            upper_bytes: usage.upper_bytes,
            objects: usage.objects,
            stored_bytes: usage.stored_bytes,
            shared_bytes: usage.shared_bytes,
            garbage_bytes: usage.garbage_bytes,
            logical_bytes: usage
                .stacks
                .iter()
                .fold(0, |sum, stack| stack.logical_bytes.saturating_add(sum)),
            sandboxes: rows,
            sandbox_count,
            sessions,
            session_count,
            sampled_at_unix_ms: now_unix_ms(),
            errors,
        })
    }

    pub(crate) async fn verify_store(self: &Arc<Self>, context: &Context) -> Result<VerifiedStore> {
        context.principal.require_every_sandbox()?;
        let _span = context.trace.span("store.verify");
        let store = self.store.clone();
        let found = self.blocking(move || Ok(store.verify()?)).await?;
        let problem_count = found.problems.len() as u64;
        if problem_count > 0 {
            tracing::error!(problem_count, first = %found.problems[0], "the store is damaged");
        }
        Ok(VerifiedStore {
            problems: found.problems.into_iter().take(show::MAX_ROWS).collect(),
            problem_count,
            objects: found.objects,
            bytes: found.bytes,
            layers: found.layers,
            leases: found.leases,
            blamed: found.blamed,
            sampled_at_unix_ms: now_unix_ms(),
            errors: Vec::new(),
        })
    }
}
