//! Sessions that go on after a publish, on the newest layer and under the commands that run in them.
//!
//! The session's processes stand still from before what they changed is captured until their view
//! shows the new layer: what they store in a mapped file in between would be in neither. Others, who
//! work in the view from outside, are not stopped; what they change meanwhile is published as well.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sandstack_api::runtime::{
    Published, RebaseOutcome, RebaseWorkspaceSession, RebasedSession, SessionState,
};
use sandstack_api::{Blob, ErrorCode};
use sandstack_fs::Rebase;
use sandstack_store::{LeaseId, Outcome, PublishOptions, PublishReport, Rebased, RelPath, Upper};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway, Place, Session};
use crate::publish::{about, parse_paths};
use crate::recover::PUBLISHING;
use crate::session::FLUSH_DEADLINE;
use crate::show;

/// How often it is published again what others changed while it was being published.
const ATTEMPTS: usize = 3;
/// How long a request of the view may take before a session stays on its base.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a session had before it went over to another layer. Its view may still have use for it: for
/// files that others removed and the session's processes have open.
pub(crate) struct Retired {
    upper: Weak<Upper>,
    leases: Vec<LeaseId>,
}

/// Where a session is after a publish.
enum Moved {
    /// On the new layer.
    There,
    /// What goes along conflicts with the new layer.
    Conflict,
    /// These could not keep their numbers.
    Lost(Vec<RelPath>),
    /// Somebody changed something meanwhile.
    Again,
}

impl Gateway {
    /// Publishes, and goes on with the session on the new layer.
    pub(crate) async fn publish_and_go_on(
        self: &Arc<Self>,
        context: &Context,
        session: &Arc<Session>,
        options: PublishOptions,
    ) -> Result<Published> {
        if !options.dry_run {
            session.row.lock().going_on = Some(options.paths.iter().map(show::path).collect());
            self.set_session_state(
                session,
                SessionState::Finalizing,
                Some(PUBLISHING.to_owned()),
            )?;
        }
        let frozen = {
            let _span = context.trace.span("session.freeze");
            self.freeze(session).await
        };
        let result = match frozen {
            Ok(()) => self.publish_and_move(context, session, &options).await,
            Err(error) => Err(error),
        };
        let thawed = self.thaw(session).await;
        if !options.dry_run {
            session.row.lock().going_on = None;
            self.set_session_state(session, SessionState::Active, None)?;
        }
        let answer = result?;
        thawed?;
        Ok(answer)
    }

    /// Brings a session onto the head whose gateway ended between the publish and that, if it did.
    /// What the session changes next would conflict with what it has published.
    pub(crate) async fn finish_going_on(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let Some(paths) = session.row.lock().going_on.take() else {
            return Ok(());
        };
        if session.view.lock().is_none() {
            return self.finish_still(session, &paths).await;
        }
        // Its processes have gone on since.
        let finished = match self.freeze(session).await {
            Ok(()) => self.finish_still(session, &paths).await,
            Err(error) => Err(error),
        };
        self.thaw(session).await?;
        finished
    }

    async fn finish_still(self: &Arc<Self>, session: &Arc<Session>, paths: &[Blob]) -> Result<()> {
        self.flush_view(session, FLUSH_DEADLINE).await?;
        let mut options = self.publish_options(session, None);
        options.dry_run = true;
        options.paths = parse_paths(paths)?;
        let (stack, asked) = (session.sandbox.stack()?.clone(), Arc::clone(session));
        let resolved = options.clone();
        let generation = session.upper().generation();
        let report = self
            .blocking(move || Ok(stack.publish(&asked.upper(), &resolved, &mut |_| {})?))
            .await?;
        if report.outcome == Outcome::NoChange {
            options.dry_run = false;
            self.go_over(session, &options, Some(&report), generation)
                .await?;
        }
        Ok(())
    }

    async fn publish_and_move(
        self: &Arc<Self>,
        context: &Context,
        session: &Arc<Session>,
        options: &PublishOptions,
    ) -> Result<Published> {
        let mut first: Option<Published> = None;
        for _ in 0..ATTEMPTS {
            // What is changed from here on may be missed by what follows.
            let upper = session.upper();
            self.flush_view(session, FLUSH_DEADLINE).await?;
            let generation = upper.generation();
            let report = self
                .publish_occupied(&context.trace, session, options.clone(), context.subject())
                .await;
            let report = match (report, &first) {
                (Ok(report), _) => report,
                // What was published is, whatever becomes of the session.
                (Err(error), Some(_)) => {
                    tracing::error!(session = %session.id, %error, "a session stays on its base after a publish");
                    break;
                }
                (Err(error), None) => return Err(error),
            };
            if options.dry_run || matches!(report.outcome, Outcome::Conflict | Outcome::StaleReads)
            {
                if first.is_none() {
                    return Ok(show::published(&session.id, &report, true));
                }
                break;
            }
            let answer = show::published(&session.id, &report, true);
            let answer = match first.take() {
                // The layer of the first attempt has most of it.
                Some(earlier) if answer.layer.is_none() => earlier,
                _ => answer,
            };
            let answer = first.insert(answer);
            let _span = context.trace.span("session.rebase");
            let (rest, moved) = match self
                .go_over(session, options, Some(&report), generation)
                .await
            {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!(session = %session.id, %error, "a session stays on its base after a publish");
                    break;
                }
            };
            match moved {
                Moved::There => break,
                Moved::Again => {}
                Moved::Conflict => {
                    let conflicts = rest.conflicts.iter().take(show::MAX_ROWS);
                    answer.rest_conflicts =
                        conflicts.map(|found| show::path(&found.path)).collect();
                    break;
                }
                Moved::Lost(paths) => {
                    let paths = paths.iter().take(show::MAX_ROWS);
                    answer.rest_conflicts = paths.map(show::path).collect();
                    break;
                }
            }
        }
        let mut answer = first.ok_or_else(|| Failure::internal("nothing was published"))?;
        answer.base = Some(show::layer_id(session.base()));
        Ok(answer)
    }

    /// Brings a live session onto the head, its changes still its own.
    pub(crate) async fn rebase_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: &RebaseWorkspaceSession,
    ) -> Result<RebasedSession> {
        let session = self.session(context, &request.workspace_session_id)?;
        let _gate = {
            let _span = context.trace.span("session.occupy");
            session.occupy().await?
        };
        let before = session.base();
        let mut options = self.publish_options(&session, Some(context.request_id.to_string()));
        options.dry_run = request.dry_run;
        options.markers = request.markers;
        if before == session.sandbox.stack()?.head() {
            let report = PublishReport::empty(Outcome::NoChange, before);
            return Ok(show::rebased(&session, &report, RebaseOutcome::NoChange));
        }
        let frozen = {
            let _span = context.trace.span("session.freeze");
            self.freeze(&session).await
        };
        let result = match frozen {
            Ok(()) => self.rebase_frozen(context, &session, &options).await,
            Err(error) => Err(error),
        };
        let thawed = self.thaw(&session).await;
        let (report, moved) = result?;
        thawed?;
        let outcome = match moved {
            Moved::There => RebaseOutcome::Rebased,
            Moved::Conflict => RebaseOutcome::Conflict,
            Moved::Again if request.dry_run => RebaseOutcome::DryRun,
            Moved::Again => {
                return Err(Failure::new(
                    ErrorCode::Busy,
                    format!(
                        "somebody who works in workspace session {} from outside changes it all the time; try again",
                        session.id
                    ),
                ));
            }
            Moved::Lost(paths) => {
                let paths: Vec<String> = paths.iter().take(20).map(ToString::to_string).collect();
                return Err(Failure::conflict(format!(
                    "on the newest layer {} would be another file for those who have it open in workspace session {}; \
                     end its commands, publish, and make a new session",
                    paths.join(", "),
                    session.id
                ))
                .with("paths", paths));
            }
        };
        if outcome == RebaseOutcome::Rebased {
            let details = json!({ "from": before.to_string(), "to": session.base().to_string() });
            let subject = about(&session, context.subject());
            self.events
                .record("workspace_session.rebased", subject, details);
        }
        Ok(show::rebased(&session, &report, outcome))
    }

    async fn rebase_frozen(
        self: &Arc<Self>,
        context: &Context,
        session: &Arc<Session>,
        options: &PublishOptions,
    ) -> Result<(PublishReport, Moved)> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.flush_view(session, FLUSH_DEADLINE).await?;
            let view = session.view.lock().clone();
            self.blocking(move || {
                // What was read is on record before it is asked for.
                Ok(view.map_or(Ok(()), |view| view.recorder().flush().map(drop))?)
            })
            .await?;
            let generation = session.upper().generation();
            let _span = context.trace.span("session.rebase");
            let found = self.go_over(session, options, None, generation).await?;
            if !matches!(found.1, Moved::Again) || options.dry_run || attempt >= ATTEMPTS {
                return Ok(found);
            }
        }
    }

    /// Brings a session onto the head, with what a publish did not take, if nothing has changed in it
    /// since `generation`. A dry run ends with `Moved::Again`.
    async fn go_over(
        self: &Arc<Self>,
        session: &Arc<Session>,
        options: &PublishOptions,
        published: Option<&PublishReport>,
        generation: u64,
    ) -> Result<(PublishReport, Moved)> {
        let stack = session.sandbox.stack()?.clone();
        let (options, published) = (options.clone(), published.cloned());
        let (gateway, session) = (Arc::clone(self), Arc::clone(session));
        self.blocking(move || {
            let old = session.upper();
            let (report, rebased) = stack.rebase(&old, &options, published.as_ref())?;
            let Some(rebased) = rebased else {
                let moved = match report.outcome {
                    Outcome::Conflict => Moved::Conflict,
                    _ => Moved::Again,
                };
                return Ok((report, moved));
            };
            let view = session.view.lock().clone();
            let moved = gateway.show_rebased(&session, view.as_deref(), &rebased, generation);
            match moved {
                Ok(Moved::There) => {}
                ref other => {
                    if let Err(error) = other {
                        tracing::error!(session = %session.id, %error, "a view stays as it was");
                    }
                    gateway.release_leases(leases_of(&rebased));
                }
            }
            drop(old);
            gateway.release_retired(&session);
            Ok((report, moved?))
        })
        .await
    }

    fn show_rebased(
        &self,
        session: &Session,
        view: Option<&sandstack_fs::View>,
        rebased: &Rebased,
        generation: u64,
    ) -> Result<Moved> {
        if view.is_some() && !rebased.lost.is_empty() {
            return Ok(Moved::Lost(rebased.lost.clone()));
        }
        let upper = Arc::new(self.store.open_upper(&rebased.lease)?);
        let mut refused = None;
        let mut commit = || {
            let done = self.take_place(session, view, rebased, &upper);
            refused = done.err();
            refused.is_none()
        };
        let shown = match view {
            None => {
                commit();
                Rebase::Done
            }
            Some(view) => {
                let shown = Arc::clone(&upper);
                view.rebase(shown, generation, &rebased.changed, PATIENCE, commit)
                    .map_err(|error| Failure::internal(format!("showing a layer: {error}")))?
            }
        };
        if let Some(error) = refused {
            return Err(error);
        }
        match shown {
            Rebase::Done | Rebase::Refused => Ok(Moved::There),
            Rebase::Changed => Ok(Moved::Again),
            Rebase::Busy => Err(Failure::new(
                ErrorCode::Busy,
                "a request of the view takes too long",
            )),
        }
    }

    /// Makes what a rebase made the place of a session's changes, durably.
    fn take_place(
        &self,
        session: &Session,
        view: Option<&sandstack_fs::View>,
        rebased: &Rebased,
        upper: &Arc<Upper>,
    ) -> Result<()> {
        let mut row = session.row.lock();
        let mut new = row.clone();
        new.lease = rebased.lease.id().0;
        new.content_lease = rebased.content.as_ref().map(|content| content.id().0);
        if let Some(view) = view {
            // The view's record goes on where it began.
            let record = view.recorder().lease().0;
            if !new.records.contains(&record) {
                new.records.push(record);
            }
        }
        self.session_rows.put(session.id.as_ref(), &new)?;
        let old = std::mem::replace(&mut *row, new);
        let place = Place {
            lease: rebased.lease.clone(),
            upper: Arc::clone(upper),
        };
        let before = std::mem::replace(&mut *session.place.write(), place);
        *session.changes.lock() = None;
        session.retired.lock().push(Retired {
            upper: Arc::downgrade(&before.upper),
            leases: [Some(old.lease), old.content_lease]
                .into_iter()
                .flatten()
                .map(LeaseId)
                .collect(),
        });
        Ok(())
    }

    /// Releases what the session had before, as far as its view has no use for it any more.
    pub(crate) fn release_retired(&self, session: &Session) {
        let gone: Vec<Retired> = {
            let mut retired = session.retired.lock();
            retired
                .extract_if(.., |retired| retired.upper.strong_count() == 0)
                .collect()
        };
        self.release_leases(gone.into_iter().flat_map(|retired| retired.leases));
    }

    fn release_leases(&self, leases: impl IntoIterator<Item = LeaseId>) {
        for lease in leases {
            if let Err(error) = self.store.release(lease) {
                tracing::error!(%lease, %error, "what a session had before is released at the next start");
            }
        }
    }

    /// Stops the processes of a session for a moment.
    async fn freeze(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let holder = session.sandbox.holder()?;
        let id = session.id.to_string();
        let still = self.blocking(move || Ok(holder.freeze(&id)?)).await?;
        if still {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::Busy,
            format!(
                "processes of workspace session {} do not stand still, so what they change cannot be captured; try \
                 again, or end them with `grace_s`",
                session.id
            ),
        ))
    }

    async fn thaw(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let holder = session.sandbox.holder()?;
        let id = session.id.to_string();
        self.blocking(move || Ok(holder.thaw(&id)?)).await
    }
}

fn leases_of(rebased: &Rebased) -> Vec<LeaseId> {
    let content = rebased.content.as_ref().map(|content| content.id());
    [Some(rebased.lease.id()), content]
        .into_iter()
        .flatten()
        .collect()
}
