//! Publishing sessions.

use std::sync::Arc;

use parking_lot::Mutex;
use sandstack_api::runtime::{PublishWorkspaceSession, Published, SessionState};
use sandstack_api::{ErrorCode, OperationName, RequestId};
use sandstack_store::{Outcome, Owner, PublishOptions, PublishReport, Step};
use serde_json::json;

use crate::clock::now_unix_ms;
use crate::event::Subject;
use crate::failure::{Failure, Result};
use crate::gateway::{Command, Context, Gateway, Session};
use crate::recover::PUBLISHING;
use crate::session::{check_grace, mount_view};
use crate::show;
use crate::span::{OpenSpan, Trace};

/// Longest message, in bytes.
const MAX_MESSAGE: usize = 16 << 10;

impl Gateway {
    pub(crate) async fn publish_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: PublishWorkspaceSession,
    ) -> Result<Published> {
        if request
            .message
            .as_ref()
            .is_some_and(|message| message.len() > MAX_MESSAGE)
        {
            return Err(Failure::new(
                ErrorCode::TooLarge,
                format!("message is longer than {MAX_MESSAGE} bytes"),
            ));
        }
        let session = self.session(context, &request.workspace_session_id)?;
        if let Some(grace) = check_grace(request.grace_s)? {
            self.end_commands(&session, grace).await?;
        }
        let mut gate = {
            let _span = context.trace.span("session.occupy");
            session.occupy().await?
        };
        let running: Vec<String> = session
            .running
            .lock()
            .keys()
            .map(ToString::to_string)
            .collect();
        if !running.is_empty() {
            return Err(Failure::conflict(format!(
                "{} command(s) run in workspace session {}; wait for them, or give `grace_s` to end them",
                running.len(),
                session.id
            ))
            .with("running_commands", running));
        }
        let mut options = self.publish_options(&session, Some(context.request_id.to_string()));
        options.message = request.message;
        options.dry_run = request.dry_run;
        options.markers = request.markers;
        if !request.dry_run {
            self.set_session_state(
                &session,
                SessionState::Finalizing,
                Some(PUBLISHING.to_owned()),
            )?;
        }
        let result = self
            .publish_occupied(&context.trace, &session, options, context.subject())
            .await;
        if !request.dry_run {
            self.set_session_state(&session, SessionState::Active, None)?;
        }
        let report = result?;
        let ends =
            matches!(report.outcome, Outcome::Published(_) | Outcome::NoChange) && !request.dry_run;
        if ends {
            let _span = context.trace.span("session.end");
            if let Err(error) = self.end_occupied(&session, &mut gate).await {
                // What was published is; only the session's remains are left.
                self.note_finalize_failed(&session, &error);
            }
        }
        Ok(show::published(&session.id, &report, !ends))
    }

    pub(crate) fn publish_options(
        &self,
        session: &Session,
        request_id: Option<String>,
    ) -> PublishOptions {
        PublishOptions {
            owner: Owner::Session(session.id.to_string()),
            session_name: session.row.lock().name.clone(),
            message: None,
            request_id,
            now_unix_ms: now_unix_ms(),
            dry_run: false,
            markers: false,
            policy: show::policy(&session.sandbox.row.lock().record.publish_policy),
        }
    }

    /// Publishes a session that nobody works in.
    async fn publish_occupied(
        self: &Arc<Self>,
        trace: &Trace,
        session: &Arc<Session>,
        options: PublishOptions,
        subject: Subject,
    ) -> Result<PublishReport> {
        {
            let _span = trace.span("publish.flush");
            self.flush_view(session).await?;
        }
        let stack = session.sandbox.stack()?.clone();
        let upper = Arc::clone(&session.upper);
        let dry_run = options.dry_run;
        let report = {
            let trace = trace.clone();
            self.blocking(move || {
                let steps = Steps::new(trace);
                let report = stack.publish(&upper, &options, &mut |step| steps.next(step))?;
                Ok(report)
            })
            .await?
        };
        if !dry_run {
            let subject = Subject {
                sandbox: Some(session.sandbox.id.clone()),
                session: Some(session.id.clone()),
                ..subject
            };
            self.note_publish(&report, subject);
        }
        Ok(report)
    }

    /// Records how a publish, or a refresh of the base, ended.
    pub(crate) fn note_publish(&self, report: &PublishReport, subject: Subject) {
        match &report.outcome {
            Outcome::Published(layer) => {
                let details = json!({
                    "layer": layer.id.to_string(),
                    "changed_paths": report.changed_paths,
                    "merged_paths": report.merged.len(),
                });
                self.events.record("layer.published", subject, details);
            }
            Outcome::Conflict => {
                let paths: Vec<String> = report
                    .conflicts
                    .iter()
                    .take(20)
                    .map(|c| c.path.to_string())
                    .collect();
                let details = json!({ "conflicts": report.conflicts.len(), "paths": paths });
                self.events.record("publish.rejected", subject, details);
            }
            Outcome::NoChange | Outcome::DryRun => {}
        }
    }

    /// Publishes the session that was made for a command alone. On conflict it is kept, and is an
    /// ordinary session from then on.
    pub(crate) async fn finish_automatic(
        self: &Arc<Self>,
        session: &Arc<Session>,
        command: &Arc<Command>,
    ) {
        let request = command.row.lock().request.clone();
        // A command that a restart found has no trace that goes on.
        let trace = command.trace.lock().take();
        let trace = trace.unwrap_or_else(|| self.spans.begin(&request, OperationName::ExecCommand));
        match self.try_finish(session, &trace, &request).await {
            Ok(Some(published)) => {
                let row = command.update(|row| row.publish = Some(published));
                if let Err(error) = self.command_rows.put(row.id.as_ref(), &row) {
                    tracing::error!(command = %row.id, %error, "a command's publish could not be recorded");
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(session = %session.id, %error, "an automatic session could not be published");
                let reason = Some(format!("it could not be published: {error}"));
                if let Err(error) = self.keep_automatic(session, reason).await {
                    tracing::error!(session = %session.id, %error, "a session could not be opened again");
                }
                // Whoever waits sees the command's end and the session that was kept.
                command.update(|_| ());
            }
        }
    }

    async fn try_finish(
        self: &Arc<Self>,
        session: &Arc<Session>,
        trace: &Trace,
        request: &RequestId,
    ) -> Result<Option<Published>> {
        // Whoever ends it meanwhile has decided about its work.
        let Ok(mut gate) = session.occupy().await else {
            return Ok(None);
        };
        if !session.running.lock().is_empty() {
            // Another command came; its end publishes.
            return Ok(None);
        }
        // Survivors end before what they write is captured.
        self.drop_view(session).await?;
        let options = self.publish_options(session, Some(request.to_string()));
        let report = self
            .publish_occupied(trace, session, options, Subject::default())
            .await?;
        let kept = matches!(report.outcome, Outcome::Conflict);
        if kept {
            self.keep_automatic(session, None).await?;
        } else {
            self.end_occupied(session, &mut gate).await?;
        }
        Ok(Some(show::published(&session.id, &report, kept)))
    }

    /// Makes an automatic session one that its user ends, with a view again.
    async fn keep_automatic(
        self: &Arc<Self>,
        session: &Arc<Session>,
        reason: Option<String>,
    ) -> Result<()> {
        session.row.lock().automatic = false;
        self.set_session_state(session, SessionState::Active, reason)?;
        self.reopen_view(session).await
    }

    /// Gives a session a view, in namespaces of its own; what is left of earlier ones goes.
    pub(crate) async fn reopen_view(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        self.drop_view(session).await?;
        let (again, slow) = (Arc::clone(session), Arc::clone(&self.slow));
        self.blocking(move || mount_view(&again, &slow)).await?;
        self.place_view(&session.sandbox, session).await
    }
}

/// Spans of a publish's steps, one after the other.
pub(crate) struct Steps {
    trace: Trace,
    open: Mutex<Option<OpenSpan>>,
}

impl Steps {
    pub(crate) fn new(trace: Trace) -> Steps {
        Steps {
            trace,
            open: Mutex::new(None),
        }
    }

    pub(crate) fn next(&self, step: Step) {
        let mut open = self.open.lock();
        // Ended before the next begins.
        drop(open.take());
        *open = Some(self.trace.span(&format!("publish.{}", step.as_str())));
    }
}
