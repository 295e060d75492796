//! Publishing sessions.

use std::sync::Arc;

use parking_lot::Mutex;
use sandstack_api::runtime::{
    IgnoredPaths, PublishWorkspaceSession, Published, SessionState, Validate as ApiValidate,
};
use sandstack_api::{Blob, ErrorCode, OperationName, RequestId};
use sandstack_store::{
    LeaseId, Outcome, Owner, PublishOptions, PublishReport, RelPath, Step, Validate,
};
use serde_json::json;

use crate::clock::now_unix_ms;
use crate::event::Subject;
use crate::failure::{Failure, Result};
use crate::gateway::{Command, Context, Gateway, Session};
use crate::recover::PUBLISHING;
use crate::session::{FLUSH_DEADLINE, check_grace};
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
        let goes_on = request.keep_open || !request.paths.is_empty();
        let running: Vec<String> = session
            .running
            .lock()
            .keys()
            .map(ToString::to_string)
            .collect();
        if !running.is_empty() && !goes_on {
            return Err(Failure::conflict(format!(
                "{} command(s) run in workspace session {}; wait for them, give `grace_s` to end them, or `keep_open` to \
                 publish what there is and let them go on",
                running.len(),
                session.id
            ))
            .with("running_commands", running));
        }
        let mut options = self.publish_options(&session, Some(context.request_id.to_string()));
        options.message = request.message;
        options.dry_run = request.dry_run;
        options.markers = request.markers;
        options.drop_ignored = request.ignored == IgnoredPaths::Drop;
        options.paths = parse_paths(&request.paths)?;
        options.validate = match request.validate {
            ApiValidate::Writes => Validate::Writes,
            ApiValidate::Reads => Validate::Reads,
        };
        if goes_on {
            return self.publish_and_go_on(context, &session, options).await;
        }
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
        let row = session.row.lock().clone();
        PublishOptions {
            session_name: row.name,
            request_id,
            policy: show::policy(&session.sandbox.row.lock().record.publish_policy),
            records: row.records.into_iter().map(LeaseId).collect(),
            ..PublishOptions::new(Owner::Session(session.id.to_string()), now_unix_ms())
        }
    }

    /// Publishes a session that nobody works in.
    pub(crate) async fn publish_occupied(
        self: &Arc<Self>,
        trace: &Trace,
        session: &Arc<Session>,
        options: PublishOptions,
        subject: Subject,
    ) -> Result<PublishReport> {
        {
            let _span = trace.span("publish.flush");
            self.flush_view(session, FLUSH_DEADLINE).await?;
        }
        let stack = session.sandbox.stack()?.clone();
        let upper = session.upper();
        let view = session.view.lock().clone();
        let dry_run = options.dry_run;
        let report = {
            let trace = trace.clone();
            self.blocking(move || {
                // What was read is on record before it is asked for.
                if let Some(view) = view {
                    view.recorder().flush()?;
                }
                let steps = Steps::new(trace);
                let report = stack.publish(&upper, &options, &mut |step| steps.next(step))?;
                Ok(report)
            })
            .await?
        };
        if !dry_run {
            self.note_publish(&report, about(session, subject));
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
            Outcome::StaleReads => {
                let paths: Vec<String> = report
                    .stale_reads
                    .iter()
                    .take(20)
                    .map(|stale| stale.path.to_string())
                    .collect();
                let details = json!({ "stale_reads": report.stale_reads.len(), "paths": paths });
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
}

pub(crate) fn about(session: &Session, subject: Subject) -> Subject {
    Subject {
        sandbox: Some(session.sandbox.id.clone()),
        session: Some(session.id.clone()),
        ..subject
    }
}

pub(crate) fn parse_paths(paths: &[Blob]) -> Result<Vec<RelPath>> {
    let paths = paths.iter().map(|path| {
        RelPath::parse(&path.0).map_err(|error| Failure::invalid(format!("paths: {error}")))
    });
    paths.collect()
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
