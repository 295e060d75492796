//! Workspace sessions: opened, listed, ended.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sandstack_api::runtime::{
    ChangedPath, CreateWorkspaceSession, DestroyWorkspaceSession, DestroyedSession,
    InspectWorkspaceSession, InspectedSession, ListWorkspaceSessions, SessionPage, SessionRecord,
    SessionState,
};
use sandstack_api::{ErrorCode, SessionId};
use sandstack_fs::{abort, flush, number_of};
use sandstack_holder::protocol::Request;
use sandstack_store::{Lease, LeaseId};
use serde_json::json;

use crate::clock::{new_id, now_unix_ms};
use crate::event::Subject;
use crate::failure::{Failure, Result, io_failure};
use crate::gateway::{Context, Gate, Gateway, Place, Sandbox, Session};
use crate::page::Page;
use crate::provider::session_dir;
use crate::rows::SessionRow;
use crate::sandbox::{check_env, check_name, page_limit};
use crate::show;
use crate::span::OpenSpan;

/// Changed paths that an inspection lists.
const MAX_CHANGES: usize = 1000;
/// How long a view may take to end after its namespaces have. Then it is aborted.
const VIEW_PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to end when it was aborted.
const VIEW_DEADLINE: Duration = Duration::from_secs(20);
/// How long the flush before a publish may take.
pub(crate) const FLUSH_DEADLINE: Duration = Duration::from_secs(60);
/// Longest life of an idle session, in seconds: a year.
const MAX_TTL_S: u64 = 31_536_000;
/// Longest grace, in seconds.
pub(crate) const MAX_GRACE_S: u64 = 60;

impl Gateway {
    pub(crate) async fn create_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: CreateWorkspaceSession,
    ) -> Result<SessionRecord> {
        let sandbox = self.ready_sandbox(context, &request.sandbox_id)?;
        let session = self.open_session(context, &sandbox, request, false).await?;
        self.session_record(&session).await
    }

    /// Opens a session, for a caller or for one command alone.
    pub(crate) async fn open_session(
        self: &Arc<Self>,
        context: &Context,
        sandbox: &Arc<Sandbox>,
        request: CreateWorkspaceSession,
        automatic: bool,
    ) -> Result<Arc<Session>> {
        if let Some(name) = &request.name {
            check_name(name)?;
        }
        check_env(&request.env)?;
        if let Some(ttl) = request.ttl_s
            && !(1..=MAX_TTL_S).contains(&ttl)
        {
            return Err(Failure::invalid(format!(
                "ttl_s is {ttl}; it must be 1 to {MAX_TTL_S}"
            )));
        }
        let from = request.from.as_ref().map(show::parse_layer).transpose()?;
        let id = SessionId::new(&new_id("ws")).expect("new ids are valid");
        let span = context.trace.span("session.open");
        span.field("workspace_session_id", id.as_ref());
        let lease = {
            let _span = span.span("lease.take");
            let stack = sandbox.stack()?.clone();
            let holder = id.to_string();
            let quota = request.quota_bytes;
            self.blocking(move || Ok(stack.take_lease(from, &holder, quota, now_unix_ms())?))
                .await?
        };
        let now = now_unix_ms();
        let row = SessionRow {
            id,
            sandbox: sandbox.id.clone(),
            name: request.name,
            automatic,
            lease: lease.id().0,
            content_lease: None,
            records: Vec::new(),
            going_on: None,
            resumable: false,
            state: SessionState::Active,
            state_reason: None,
            network_profile: request.network_profile.unwrap_or_default(),
            trace_mode: request
                .trace_mode
                .unwrap_or(sandbox.row.lock().record.trace_mode),
            background_walk: request
                .background_walk
                .unwrap_or(self.config.settings.views.background_walk),
            quota_bytes: request.quota_bytes,
            ttl_s: request.ttl_s,
            env: request.env,
            attachments: Vec::new(),
            created_at_unix_ms: now,
            used_at_unix_ms: now,
        };
        let session = match self.try_open(sandbox, &row, &lease, &span).await {
            Ok(session) => session,
            Err(error) => {
                // Nothing was written yet, so nothing is lost with the lease.
                let store = self.store.clone();
                let dir = session_dir(&sandbox.dir, &row.id);
                self.blocking(move || {
                    let _ = fs::remove_dir_all(dir);
                    Ok(store.release(lease.id())?)
                })
                .await?;
                return Err(error);
            }
        };
        let subject = Subject {
            sandbox: Some(sandbox.id.clone()),
            session: Some(session.id.clone()),
            ..context.subject()
        };
        let base = session.base().to_string();
        self.events.record(
            "workspace_session.created",
            subject,
            json!({ "base": base, "automatic": automatic }),
        );
        if let Some(ttl) = row.ttl_s {
            self.watch_ttl(&session, ttl);
        }
        Ok(session)
    }

    async fn try_open(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        row: &SessionRow,
        lease: &Lease,
        span: &OpenSpan,
    ) -> Result<Arc<Session>> {
        let session = {
            let _span = span.span("view.serve");
            let session = self.open_upper(sandbox, row, lease).await?;
            let (gateway, served) = (Arc::clone(self), Arc::clone(&session));
            self.blocking(move || gateway.mount_view(&served)).await?;
            session
        };
        // Checked and inserted under one lock, so that two sessions cannot take one name.
        let taken = {
            let mut sessions = sandbox.sessions.write();
            let taken = row.name.is_some()
                && sessions
                    .values()
                    .any(|other| other.row.lock().name == row.name);
            if !taken {
                sessions.insert(session.id.clone(), Arc::clone(&session));
            }
            taken
        };
        let result = if taken {
            let name = row.name.as_deref().unwrap_or_default();
            let message = format!(
                "sandbox {} has a session called {name:?} already; choose another name",
                sandbox.id
            );
            Err(Failure::new(ErrorCode::AlreadyExists, message))
        } else {
            let _span = span.span("namespaces.make");
            match self.place_view(sandbox, &session).await {
                Ok(()) => {
                    let row = session.row.lock().clone();
                    self.session_rows.put(row.id.as_ref(), &row)
                }
                Err(error) => Err(error),
            }
        };
        if let Err(error) = result {
            if !taken {
                sandbox.sessions.write().remove(&session.id);
            }
            self.drop_view(&session).await?;
            return Err(error);
        }
        Ok(session)
    }

    /// Opens the upper of a session.
    pub(crate) async fn open_upper(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        row: &SessionRow,
        lease: &Lease,
    ) -> Result<Arc<Session>> {
        let store = self.store.clone();
        let (sandbox, row, lease) = (Arc::clone(sandbox), row.clone(), lease.clone());
        self.blocking(move || {
            make_private_dirs(&session_dir(&sandbox.dir, &row.id))?;
            let upper = Arc::new(store.open_upper(&lease)?);
            Ok(Arc::new(Session {
                id: row.id.clone(),
                sandbox,
                used_at: AtomicU64::new(row.used_at_unix_ms),
                place: RwLock::new(Place { lease, upper }),
                view: Mutex::new(None),
                unmounted: Mutex::new(None),
                mount: Mutex::new(None),
                walk: Mutex::new(None),
                namespaces: Arc::default(),
                running: Mutex::default(),
                gate: tokio::sync::RwLock::new(Gate::Open),
                settling: Mutex::new(()),
                changes: Mutex::new(None),
                retired: Mutex::default(),
                row: Mutex::new(row),
            }))
        })
        .await
    }

    /// Ends the namespaces and the view of a session. Its upper stays.
    pub(crate) async fn drop_view(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        session.sandbox.check_moves()?;
        let holder = session.sandbox.holder.lock().clone();
        let (gateway, ended) = (Arc::clone(self), Arc::clone(session));
        let number = self
            .blocking(move || {
                if let Some(holder) = holder {
                    match holder.destroy_session(ended.id.as_ref()) {
                        Ok(()) => gateway.release_survived(&ended.id, &holder),
                        // Gone with its holder: its namespaces are too.
                        Err(sandstack_holder::Error::Disconnected) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                gateway.end_attachments(&ended)?;
                // It uses the mount.
                ended.walk.lock().take();
                // The last reference to the mount, or the view would live on.
                if let Some(mount) = ended.mount.lock().take() {
                    if let Err(error) = flush(mount.as_fd(), VIEW_PATIENCE) {
                        tracing::warn!(session = %ended.id, %error, "a view could not be flushed");
                    }
                    let number =
                        number_of(mount.as_fd()).map_err(io_failure("examining a view's mount"))?;
                    *ended.unmounted.lock() = Some(number);
                }
                // Of an earlier try, if that was not enough.
                Ok(*ended.unmounted.lock())
            })
            .await?;
        let Some(view) = session.view.lock().take() else {
            return Ok(());
        };
        let joined = Arc::clone(&view);
        let mut join = std::pin::pin!(
            self.blocking(move || joined.join().map_err(io_failure("ending a view")))
        );
        let mut ended = tokio::time::timeout(VIEW_PATIENCE, &mut join).await;
        // Somebody's mount namespace has a copy of it.
        if ended.is_err()
            && let Some(number) = number
        {
            match self.blocking(move || Ok(abort(number))).await? {
                Ok(()) => {
                    tracing::info!(session = %session.id, "a view was aborted: it was still mounted somewhere")
                }
                Err(error) => {
                    tracing::warn!(session = %session.id, %error, "a view could not be aborted")
                }
            }
            ended = tokio::time::timeout(VIEW_DEADLINE, &mut join).await;
        }
        match ended {
            Ok(result) => {
                *session.unmounted.lock() = None;
                session.namespaces.all_ended();
                result
            }
            Err(_) => {
                *session.view.lock() = Some(view);
                Err(Failure::conflict(format!(
                    "the view of workspace session {} is still mounted somewhere; unmount it and destroy the session again",
                    session.id
                )))
            }
        }
    }

    /// Ends a session and everything of it, step by step; each step may be done again.
    pub(crate) async fn end_session(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let mut gate = session.occupy().await?;
        let result = self.end_occupied(session, &mut gate).await;
        if let Err(error) = &result {
            self.note_finalize_failed(session, error);
        }
        result
    }

    /// Like [`Gateway::end_session`], for one who has occupied the session.
    pub(crate) async fn end_occupied(
        self: &Arc<Self>,
        session: &Arc<Session>,
        gate: &mut Gate,
    ) -> Result<()> {
        *gate = Gate::Closed;
        self.set_session_state(session, SessionState::Finalizing, None)?;
        self.drop_view(session).await?;
        let store = self.store.clone();
        let lease = session.place.read().lease.id();
        let content = session.row.lock().content_lease.map(LeaseId);
        let dir = session_dir(&session.sandbox.dir, &session.id);
        self.blocking(move || {
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io_failure(&format!("removing {}", dir.display()))(error));
                }
                _ => {}
            }
            store.release(lease)?;
            if let Some(content) = content {
                store.release(content)?;
            }
            Ok(())
        })
        .await?;
        self.release_retired(session);
        self.session_rows.remove(session.id.as_ref())?;
        session.sandbox.sessions.write().remove(&session.id);
        let subject = Subject {
            sandbox: Some(session.sandbox.id.clone()),
            session: Some(session.id.clone()),
            ..Subject::default()
        };
        self.events
            .record("workspace_session.ended", subject.clone(), json!({}));
        self.events.record(
            "lease.released",
            subject,
            json!({ "layer": session.base().to_string() }),
        );
        Ok(())
    }

    pub(crate) fn note_finalize_failed(&self, session: &Session, error: &Failure) {
        tracing::error!(session = %session.id, %error, "a session could not be ended");
        if let Err(error) = self.set_session_state(
            session,
            SessionState::FinalizeFailed,
            Some(error.to_string()),
        ) {
            tracing::error!(session = %session.id, %error, "the state of a session could not be recorded");
        }
    }

    pub(crate) fn set_session_state(
        &self,
        session: &Session,
        state: SessionState,
        reason: Option<String>,
    ) -> Result<()> {
        let mut row = session.row.lock();
        row.state = state;
        row.state_reason = reason;
        self.session_rows.put(session.id.as_ref(), &row)
    }

    /// Ends a session that was idle for its time, if that loses nothing.
    pub(crate) fn watch_ttl(self: &Arc<Self>, session: &Arc<Session>, ttl_s: u64) {
        let gateway = Arc::clone(self);
        let session = Arc::downgrade(session);
        self.runtime.spawn(async move {
            loop {
                let Some(session) = session.upgrade() else {
                    return;
                };
                let due = session.used_at.load(Ordering::Relaxed) + ttl_s * 1000;
                let now = now_unix_ms();
                if now < due || !session.running.lock().is_empty() {
                    let wait = Duration::from_millis(due.saturating_sub(now).max(1000));
                    drop(session);
                    tokio::time::sleep(wait).await;
                    continue;
                }
                gateway.expire(&session).await;
                return;
            }
        });
    }

    async fn expire(self: &Arc<Self>, session: &Arc<Session>) {
        let asked = Arc::clone(session);
        let subject = Subject {
            sandbox: Some(session.sandbox.id.clone()),
            session: Some(session.id.clone()),
            ..Subject::default()
        };
        match self
            .blocking(move || Ok(asked.changed_paths()?.len()))
            .await
        {
            Ok(0) => {
                self.events.record(
                    "workspace_session.expired",
                    subject,
                    json!({ "kept": false }),
                );
                if let Err(error) = self.end_session(session).await {
                    tracing::warn!(session = %session.id, %error, "an expired session could not be ended");
                }
            }
            Ok(changed) => {
                self.events.record(
                    "workspace_session.expired",
                    subject,
                    json!({ "kept": true, "changed_paths": changed }),
                );
            }
            Err(error) => {
                tracing::warn!(session = %session.id, %error, "an expired session could not be examined")
            }
        }
    }

    pub(crate) async fn session_record(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<SessionRecord> {
        let session = Arc::clone(session);
        self.blocking(move || {
            let changed_paths = session.changed_paths()?.len() as u64;
            let row = session.row.lock().clone();
            let base = session.base();
            let head = session.sandbox.stack()?.head();
            let used = session.used_at.load(Ordering::Relaxed);
            let running_commands = session.running.lock().keys().cloned().collect();
            Ok(SessionRecord {
                workspace_session_id: row.id,
                sandbox_id: row.sandbox,
                name: row.name,
                state: row.state,
                state_reason: row.state_reason,
                automatic: row.automatic,
                base: show::layer_id(base),
                layers_behind_head: head.revision.saturating_sub(base.revision),
                changed_paths,
                bytes: session.upper().content_bytes(),
                running_commands,
                network_profile: row.network_profile,
                trace_mode: row.trace_mode,
                background_walk: row.background_walk,
                quota_bytes: row.quota_bytes,
                workspace_root: session.sandbox.workspace_root().into(),
                attachments: row.attachments.clone(),
                created_at_unix_ms: row.created_at_unix_ms,
                expires_at_unix_ms: row.ttl_s.map(|ttl| used + ttl * 1000),
            })
        })
        .await
    }

    pub(crate) async fn list_workspace_sessions(
        self: &Arc<Self>,
        context: &Context,
        request: &ListWorkspaceSessions,
    ) -> Result<SessionPage> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let limit = page_limit(request.limit)?;
        let sessions = sandbox.sessions_newest_first();
        let page = Page::cut(sessions, limit, request.page_token.as_deref(), |session| {
            session.id.to_string()
        })?;
        let mut records = Vec::with_capacity(page.rows.len());
        let mut errors = Vec::new();
        for session in &page.rows {
            match self.session_record(session).await {
                Ok(record) => records.push(record),
                Err(error) => errors.push(error.into_answer(context.request_id.as_ref())),
            }
        }
        Ok(SessionPage {
            sessions: records,
            next_page_token: page.next,
            sampled_at_unix_ms: now_unix_ms(),
            errors,
        })
    }

    pub(crate) async fn inspect_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: &InspectWorkspaceSession,
    ) -> Result<InspectedSession> {
        let session = self.session(context, &request.workspace_session_id)?;
        let record = self.session_record(&session).await?;
        let (mut changes, mut truncated) = (None, false);
        if request.changes {
            let asked = Arc::clone(&session);
            let found = self.blocking(move || asked.changed_paths()).await?;
            truncated = found.len() > MAX_CHANGES;
            let shown = found
                .iter()
                .take(MAX_CHANGES)
                .map(|(path, kind)| ChangedPath {
                    path: show::path(path),
                    kind: show::change_kind(*kind),
                });
            changes = Some(shown.collect());
        }
        Ok(InspectedSession {
            session: record,
            changes,
            changes_truncated: truncated,
            sampled_at_unix_ms: now_unix_ms(),
            errors: Vec::new(),
        })
    }

    pub(crate) async fn destroy_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: &DestroyWorkspaceSession,
    ) -> Result<DestroyedSession> {
        let session = self.session(context, &request.workspace_session_id)?;
        let grace = check_grace(request.grace_s)?;
        if request.force {
            self.end_commands(&session, grace.unwrap_or_default())
                .await?;
        }
        let mut gate = session.occupy().await?;
        let running: Vec<String> = session
            .running
            .lock()
            .keys()
            .map(ToString::to_string)
            .collect();
        if !running.is_empty() && !request.force {
            return Err(Failure::conflict(format!(
                "{} command(s) run in workspace session {}; wait for them, or give `force` to kill them",
                running.len(),
                session.id
            ))
            .with("running_commands", running));
        }
        let changed = {
            let session = Arc::clone(&session);
            self.blocking(move || Ok(session.changed_paths()?.len() as u64))
                .await?
        };
        if changed > 0 && !request.force {
            return Err(Failure::conflict(format!(
                "workspace session {} has {changed} unpublished change(s); publish it, or give `force` to lose them",
                session.id
            ))
            .with("changed_paths", changed));
        }
        let freed_bytes = session.upper().content_bytes();
        let span = context.trace.span("session.end");
        let result = self.end_occupied(&session, &mut gate).await;
        drop(span);
        if let Err(error) = result {
            self.note_finalize_failed(&session, &error);
            return Err(error);
        }
        Ok(DestroyedSession {
            workspace_session_id: session.id.clone(),
            discarded_paths: changed,
            freed_bytes,
        })
    }

    /// Brings what programs stored through shared mappings into the upper. While nobody stops the
    /// session's programs, what is asked of its view has no end: then it is waited for `patience`
    /// at most, and `busy` is answered.
    pub(crate) async fn flush_view(
        self: &Arc<Self>,
        session: &Arc<Session>,
        patience: Duration,
    ) -> Result<()> {
        let session = Arc::clone(session);
        self.blocking(move || {
            // Not held meanwhile: a flush may take its time.
            let mount = session.mount.lock().as_ref().map(OwnedFd::try_clone);
            let Some(mount) = mount.transpose().map_err(io_failure("duplicating a descriptor"))? else {
                return Ok(());
            };
            match flush(mount.as_fd(), patience) {
                Ok(_) => Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(Failure::new(
                    ErrorCode::Busy,
                    format!(
                        "processes in workspace session {} never leave its files alone, so what they store in mapped \
                         files cannot be waited for; end them and try again",
                        session.id
                    ),
                )),
                Err(error) => Err(io_failure("flushing a view")(error)),
            }
        })
        .await
    }

    /// The lease of a session that a restart finds.
    pub(crate) fn lease_of(&self, row: &SessionRow) -> Result<Lease> {
        Ok(self.store.lease(LeaseId(row.lease))?)
    }

    /// Asks the holder for something on a thread that may block.
    pub(crate) async fn ask_holder(
        self: &Arc<Self>,
        sandbox: &Sandbox,
        request: Request,
    ) -> Result<()> {
        let holder = sandbox.holder()?;
        self.blocking(move || Ok(holder.done(&request)?)).await
    }
}

fn make_private_dirs(dir: &std::path::Path) -> Result<()> {
    for (name, mode) in [("home", 0o700), ("tmp", 0o1777), ("var-tmp", 0o1777)] {
        let path = dir.join(name);
        let doing = format!("making {}", path.display());
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(io_failure(&doing))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(io_failure(&doing))?;
    }
    Ok(())
}

/// Checks a grace; `None` if none was given.
pub(crate) fn check_grace(grace_s: Option<u64>) -> Result<Option<Duration>> {
    match grace_s {
        Some(grace) if grace > MAX_GRACE_S => Err(Failure::invalid(format!(
            "grace_s is {grace}; it must be 0 to {MAX_GRACE_S}"
        ))),
        grace => Ok(grace.map(Duration::from_secs)),
    }
}
