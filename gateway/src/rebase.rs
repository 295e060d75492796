//! Sessions that go on after a publish, on the newest layer and under the commands that run in them.
//!
//! The session's processes stand still from before what they changed is captured until their view
//! shows the new layer: what they store in a mapped file in between would be in neither. Others, who
//! work in the view from outside, are not stopped; what they change meanwhile is published as well.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sandstack_api::ErrorCode;
use sandstack_api::runtime::{Published, SessionState};
use sandstack_fs::Rebase;
use sandstack_store::{Conflict, LeaseId, Outcome, PublishOptions, Rebased, Upper};

use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway, Place, Session};
use crate::publish::parse_paths;
use crate::recover::PUBLISHING;
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
    /// What is not published conflicts with the new layer, or could not be kept under its number.
    Stays(Vec<sandstack_store::RelPath>),
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
        let mut options = self.publish_options(session, None);
        options.dry_run = true;
        options.paths = parse_paths(&paths)?;
        let (stack, asked) = (session.sandbox.stack()?.clone(), Arc::clone(session));
        let resolved = options.clone();
        let report = self
            .blocking(move || Ok(stack.publish(&asked.upper(), &resolved, &mut |_| {})?))
            .await?;
        if report.outcome == Outcome::NoChange {
            let generation = session.upper().generation();
            self.go_over(session, &options, &report, generation).await?;
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
            self.flush_view(session, crate::session::FLUSH_DEADLINE)
                .await?;
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
            match self.go_over(session, options, &report, generation).await {
                Ok(Moved::There) => break,
                Ok(Moved::Again) => {}
                Ok(Moved::Stays(paths)) => {
                    let paths = paths.iter().take(show::MAX_ROWS);
                    answer.rest_conflicts = paths.map(show::path).collect();
                    break;
                }
                Err(error) => {
                    tracing::error!(session = %session.id, %error, "a session stays on its base after a publish");
                    break;
                }
            }
        }
        let mut answer = first.ok_or_else(|| Failure::internal("nothing was published"))?;
        answer.base = Some(show::layer_id(session.base()));
        Ok(answer)
    }

    /// Brings a session whose changes were published onto the head, if nothing has changed in it
    /// since `generation`.
    async fn go_over(
        self: &Arc<Self>,
        session: &Arc<Session>,
        options: &PublishOptions,
        report: &sandstack_store::PublishReport,
        generation: u64,
    ) -> Result<Moved> {
        let stack = session.sandbox.stack()?.clone();
        let (options, report) = (options.clone(), report.clone());
        let (gateway, session) = (Arc::clone(self), Arc::clone(session));
        self.blocking(move || {
            let old = session.upper();
            let rebased = match stack.rebase(&old, &options, &report)? {
                Ok(rebased) => rebased,
                Err(conflicts) => {
                    let path = |found: Conflict| found.path;
                    return Ok(Moved::Stays(conflicts.into_iter().map(path).collect()));
                }
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
            moved
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
            return Ok(Moved::Stays(rebased.lost.clone()));
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
