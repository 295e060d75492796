//! Layers of a sandbox: refreshed from the project directory, and squashed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use sandstack_api::management::{RefreshBase, Refreshed, SquashLayerstacks, SquashedLayers};
use sandstack_store::{Owner, PublishOptions};
use serde_json::json;

use crate::clock::now_unix_ms;
use crate::event::Subject;
use crate::failure::Result;
use crate::gateway::{Context, Gateway};
use crate::publish::Steps;
use crate::show;

impl Gateway {
    pub(crate) async fn refresh_base(
        self: &Arc<Self>,
        context: &Context,
        request: &RefreshBase,
    ) -> Result<Refreshed> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        // One refresh at a time, and the sandbox stays meanwhile.
        let _lifecycle = sandbox.lifecycle.lock().await;
        let sandbox = self.ready_sandbox(context, &request.sandbox_id)?;
        let stack = sandbox.stack()?.clone();
        let root = PathBuf::from(OsString::from_vec(sandbox.workspace_root()));
        let options = PublishOptions {
            owner: Owner::Host,
            session_name: None,
            message: None,
            request_id: Some(context.request_id.to_string()),
            now_unix_ms: now_unix_ms(),
            dry_run: request.dry_run,
            markers: request.markers,
            policy: show::policy(&sandbox.row.lock().record.publish_policy),
        };
        let steps = Steps::new(context.trace.clone());
        let span = context.trace.span("base.refresh");
        let asked = root.clone();
        let report = self
            .while_importing(context, &root, move |progress| {
                stack.refresh(&asked, &options, progress, &mut |step| steps.next(step))
            })
            .await?;
        drop(span);
        if !request.dry_run {
            let subject = Subject {
                sandbox: Some(sandbox.id.clone()),
                ..context.subject()
            };
            self.note_publish(&report, subject);
        }
        Ok(show::refreshed(&sandbox.id, &report))
    }

    pub(crate) async fn squash_layerstacks(
        self: &Arc<Self>,
        context: &Context,
        request: &SquashLayerstacks,
    ) -> Result<SquashedLayers> {
        let sandbox = self.ready_sandbox(context, &request.sandbox_id)?;
        let stack = sandbox.stack()?.clone();
        let keep_last = request.keep_last;
        let request_id = Some(context.request_id.to_string());
        let squashed = {
            let _span = context.trace.span("layers.squash");
            let stack = stack.clone();
            self.blocking(move || Ok(stack.squash(keep_last, request_id, now_unix_ms())?))
                .await?
        };
        let mut answer = SquashedLayers {
            sandbox_id: sandbox.id.clone(),
            layer: squashed.layer.map(show::layer_id),
            replaced: squashed
                .replaced
                .iter()
                .take(show::MAX_ROWS)
                .map(|id| show::layer_id(*id))
                .collect(),
            replaced_count: squashed.replaced.len() as u64,
            head: show::layer_id(squashed.head),
            layer_count: stack.layer_count(),
            reclaimed_bytes: 0,
            garbage: None,
            errors: Vec::new(),
        };
        let Some(layer) = &answer.layer else {
            return Ok(answer);
        };
        let subject = Subject {
            sandbox: Some(sandbox.id.clone()),
            ..context.subject()
        };
        let details = json!({ "layer": layer, "replaced": answer.replaced_count });
        self.events.record("layer.squashed", subject, details);
        match self.collect(context, false).await {
            Ok(garbage) => {
                answer.reclaimed_bytes = garbage.bytes + garbage.stray_bytes;
                answer.garbage = Some(garbage);
            }
            Err(error) => answer
                .errors
                .push(error.into_answer(context.request_id.as_ref())),
        }
        Ok(answer)
    }
}
