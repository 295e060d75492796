//! Recovery: what a restart finds, and what happens when a holder goes.
//!
//! Every sandbox, session and command has a row, written before the thing itself. At start each is
//! taken up again where its row says it was: what was being made is removed, what was being ended is
//! ended, what was there is there again. What belongs to nobody is removed.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstack_api::management::SandboxState;
use sandstack_api::runtime::{CommandStatus, SessionState};
use sandstack_api::{ErrorCode, SandboxId};
use sandstack_holder::Client;
use sandstack_holder::client::Notice;
use sandstack_holder::protocol::{CommandState, Event};
use serde_json::json;

use crate::event::Subject;
use crate::failure::{Failure, Result, io_failure};
use crate::gateway::{Command, Gateway, Sandbox, Session};
use crate::provider::{Spec, Standing, command_dir, socket};
use crate::rows::SessionRow;

/// Why a session is `finalizing` while it is published; everything else that finalizes is an end.
pub(crate) const PUBLISHING: &str = "it is being published";

/// How long a holder that ended may be told to run: Docker takes notice of an end after its container's
/// other processes are gone too.
const NOTICE_WITHIN: Duration = Duration::from_secs(2);

impl Gateway {
    /// Takes everything up again that the last gateway on this state directory left.
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<()> {
        let session_rows = self.session_rows.all()?;
        self.release_unowned_leases(&session_rows)?;
        for row in self.command_rows.all()? {
            let dir = command_dir(
                &self.config.sandboxes_dir().join(row.sandbox.as_ref()),
                &row.id,
            );
            self.commands
                .write()
                .insert(row.id.clone(), Arc::new(Command::new(row, dir)));
        }
        for row in self.sandbox_rows.all()? {
            let sandbox = self.new_sandbox(row)?;
            self.sandboxes
                .write()
                .insert(sandbox.id.clone(), Arc::clone(&sandbox));
            let rows = session_rows
                .iter()
                .filter(|row| row.sandbox == sandbox.id)
                .cloned()
                .collect();
            let state = sandbox.row.lock().record.state;
            let result = match state {
                SandboxState::Ready | SandboxState::Failed => self.take_up(&sandbox, rows).await,
                SandboxState::Creating | SandboxState::Stopping | SandboxState::Stopped => {
                    tracing::info!(sandbox = %sandbox.id, ?state, "removing a sandbox that was not finished");
                    self.take_up_sessions(&sandbox, rows).await;
                    self.tear_down(&sandbox).await
                }
            };
            if let Err(error) = result {
                tracing::error!(sandbox = %sandbox.id, %error, "a sandbox could not be taken up again");
                self.set_sandbox_state(&sandbox, SandboxState::Failed, Some(error.to_string()))?;
            }
        }
        self.remove_unowned_dirs()?;
        let owned: Vec<SandboxId> = self.sandboxes.read().keys().cloned().collect();
        self.docker.remove_unowned(&owned).await;
        Ok(())
    }

    /// Leases of sessions that were never recorded, or of operations that were interrupted.
    fn release_unowned_leases(&self, sessions: &[SessionRow]) -> Result<()> {
        for lease in self.store.leases()? {
            let id = lease.id().0;
            let owned = |row: &SessionRow| row.lease == id || row.content_lease == Some(id);
            if !sessions.iter().any(owned) {
                tracing::info!(lease = %lease.id(), holder = %lease.record().holder, "releasing a lease of nobody");
                self.store.release(lease.id())?;
            }
        }
        Ok(())
    }

    fn remove_unowned_dirs(&self) -> Result<()> {
        let dir = self.config.sandboxes_dir();
        let Ok(entries) = fs::read_dir(&dir) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            let owned = entry
                .file_name()
                .to_str()
                .and_then(|name| SandboxId::new(name).ok())
                .is_some_and(|id| self.sandboxes.read().contains_key(&id));
            if !owned {
                let doing = format!("removing {}", entry.path().display());
                fs::remove_dir_all(entry.path()).map_err(io_failure(&doing))?;
            }
        }
        Ok(())
    }

    async fn take_up(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        rows: Vec<SessionRow>,
    ) -> Result<()> {
        let _lifecycle = sandbox.lifecycle.lock().await;
        self.take_up_sessions(sandbox, rows).await;
        self.restore(sandbox).await
    }

    /// Opens the uppers of a sandbox's sessions, so that nothing of them is lost whatever follows.
    async fn take_up_sessions(self: &Arc<Self>, sandbox: &Arc<Sandbox>, rows: Vec<SessionRow>) {
        for row in rows {
            let lease = match self.lease_of(&row) {
                Ok(lease) => lease,
                Err(error) => {
                    // Its end had got as far as the lease: the row is all that is left.
                    tracing::info!(session = %row.id, %error, "a session without a lease is gone");
                    if let Err(error) = self.session_rows.remove(row.id.as_ref()) {
                        tracing::error!(session = %row.id, %error, "a session's record could not be removed");
                    }
                    continue;
                }
            };
            match self.open_upper(sandbox, &row, &lease).await {
                Ok(session) => {
                    sandbox
                        .sessions
                        .write()
                        .insert(session.id.clone(), Arc::clone(&session));
                    if let Some(ttl) = row.ttl_s {
                        self.watch_ttl(&session, ttl);
                    }
                }
                Err(error) => {
                    tracing::error!(session = %row.id, %error, "a session could not be opened again")
                }
            }
        }
    }

    /// Brings a sandbox's holder and views back, whatever is left of them.
    pub(crate) async fn restore(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        let spec = sandbox.spec();
        let mut lost = None;
        let alive = match self.reach_holder(sandbox, &spec).await {
            Ok(()) => true,
            Err(Standing::Runs) => {
                let reason = "the holder runs and does not answer".to_owned();
                tracing::info!(sandbox = %sandbox.id, reason, "starting another holder");
                lost = Some(reason);
                false
            }
            Err(Standing::StandsStill(reason)) => {
                *sandbox.stands_still.lock() = Some(reason.clone());
                return Err(Failure::conflict(reason));
            }
            // Whoever started it may be away, and it be there.
            Err(Standing::Unknown(reason)) => match self.connect_holder(sandbox).await {
                Ok(()) => true,
                Err(_) => return Err(Failure::new(ErrorCode::Unavailable, reason)),
            },
            Err(Standing::Gone(reason)) => {
                tracing::info!(sandbox = %sandbox.id, reason, "the holder is gone; starting another");
                lost = Some(reason);
                false
            }
        };
        *sandbox.stands_still.lock() = None;
        if !alive {
            sandbox.provider.stop(&spec).await?;
            self.start_holder(sandbox).await?;
        }
        for session in sandbox.sessions_newest_first() {
            if let Err(error) = self.restore_session(&session).await {
                self.note_finalize_failed(&session, &error);
            }
        }
        self.lose_commands(sandbox);
        self.set_sandbox_state(sandbox, SandboxState::Ready, None)?;
        let subject = Subject {
            sandbox: Some(sandbox.id.clone()),
            ..Subject::default()
        };
        self.events.record(
            "sandbox.recovered",
            subject,
            json!({ "holder_restarted": !alive, "reason": lost }),
        );
        Ok(())
    }

    /// Connects to a holder that runs. If that cannot be, how it stands with it.
    async fn reach_holder(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        spec: &Spec,
    ) -> std::result::Result<(), Standing> {
        let begun = Instant::now();
        loop {
            let standing = sandbox.provider.check(spec).await;
            if standing != Standing::Runs {
                return Err(standing);
            }
            if self.connect_holder(sandbox).await.is_ok() {
                return Ok(());
            }
            if begun.elapsed() > NOTICE_WITHIN {
                return Err(standing);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn restore_session(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let (state, reason) = {
            let row = session.row.lock();
            (row.state, row.state_reason.clone())
        };
        if state != SessionState::Active && reason.as_deref() != Some(PUBLISHING) {
            return self.end_session(session).await;
        }
        let resumed = self.resume_view(session).await.unwrap_or_else(|error| {
            tracing::warn!(session = %session.id, %error, "a view could not be taken up again; it is made anew");
            false
        });
        if let Err(error) = self.finish_going_on(session).await {
            tracing::error!(session = %session.id, %error, "a session stays on its base after a publish");
        }
        self.set_session_state(session, SessionState::Active, None)?;
        if resumed {
            return Ok(());
        }
        // What was left of its namespaces shows a view that nobody serves any more.
        self.reopen_view(session).await
    }

    /// Commands that a sandbox's rows say are running, and that its holder does not know.
    fn lose_commands(self: &Arc<Self>, sandbox: &Sandbox) {
        let known: Vec<String> = match sandbox.holder.lock().as_ref() {
            Some(holder) => holder
                .hello()
                .commands
                .iter()
                .map(|command| command.command_id.clone())
                .collect(),
            None => Vec::new(),
        };
        let lost: Vec<Arc<Command>> = self
            .commands
            .read()
            .values()
            .filter(|command| {
                let row = command.row.lock();
                row.sandbox == sandbox.id
                    && row.status == CommandStatus::Running
                    && !known.iter().any(|id| id == row.id.as_ref())
            })
            .cloned()
            .collect();
        lost.iter().for_each(|command| self.command_lost(command));
    }

    /// Connects to the holder of a sandbox and takes in what it knows.
    pub(crate) async fn connect_holder(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        let path = socket(&sandbox.spec());
        let (gateway, id) = (Arc::downgrade(self), sandbox.id.clone());
        let client = self
            .blocking(move || {
                let client = Client::connect(&path, move |notice| {
                    if let Some(gateway) = gateway.upgrade() {
                        gateway.heard(&id, notice);
                    }
                })?;
                Ok(Arc::new(client))
            })
            .await?;
        *sandbox.holder.lock() = Some(Arc::clone(&client));
        for command in &client.hello().commands {
            match &command.state {
                CommandState::Exited(record) => self.command_ended(record),
                CommandState::Running(spawned) => {
                    self.command_found(sandbox, &command.command_id, spawned.mnt_ns);
                    for totals in &command.streams {
                        if let Some(lost) = &totals.lost {
                            self.output_grew(
                                &command.command_id,
                                totals.stream,
                                Some(lost.clone()),
                            );
                        }
                    }
                }
                CommandState::Starting => {}
            }
        }
        Ok(())
    }

    /// A command that still runs: it is its session's again.
    fn command_found(&self, sandbox: &Sandbox, id: &str, namespace: u64) {
        let Ok(id) = sandstack_api::CommandId::new(id) else {
            return;
        };
        let Some(command) = self.commands.read().get(&id).cloned() else {
            return;
        };
        let session = command.row.lock().session.clone();
        if let Some(session) = sandbox.sessions.read().get(&session) {
            session.namespaces.register(namespace, id.as_ref());
            session.running.lock().insert(id, command);
        }
    }

    /// What a holder says. Runs on the thread that listens to it, and asks it nothing.
    fn heard(self: &Arc<Self>, sandbox: &SandboxId, notice: Notice) {
        match notice {
            Notice::Event(Event::Exited(record)) => self.command_ended(&record),
            Notice::Event(Event::Output {
                command_id,
                stream,
                lost,
                ..
            }) => self.output_grew(&command_id, stream, lost),
            Notice::Event(Event::SessionEnded { session_id, reason }) => {
                tracing::info!(%sandbox, session = session_id, ?reason, "a session's namespaces ended");
            }
            Notice::Ended(error) => {
                let sandbox = self.sandboxes.read().get(sandbox).cloned();
                let Some(sandbox) = sandbox else { return };
                let gateway = Arc::clone(self);
                tracing::info!(sandbox = %sandbox.id, %error, "the connection to a holder ended");
                self.runtime
                    .spawn(async move { gateway.holder_gone(&sandbox).await });
            }
        }
    }

    /// Brings a sandbox back whose holder went while it was in use.
    async fn holder_gone(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let _lifecycle = sandbox.lifecycle.lock().await;
        // Taken away by whoever ends the sandbox: then its end is no surprise. Or there is a new one
        // already: each connection that was tried and failed tells of its end too.
        let Some(holder) = sandbox.holder.lock().take_if(|holder| holder.has_ended()) else {
            return;
        };
        let dropped = self
            .blocking(move || {
                drop(holder);
                Ok(())
            })
            .await;
        if let Err(error) = dropped {
            tracing::warn!(%error, "a connection could not be dropped");
        }
        if sandbox.row.lock().record.state != SandboxState::Ready {
            return;
        }
        let subject = Subject {
            sandbox: Some(sandbox.id.clone()),
            ..Subject::default()
        };
        self.events
            .record("sandbox.holder_lost", subject, json!({}));
        if let Err(error) = self.restore(sandbox).await {
            tracing::error!(sandbox = %sandbox.id, %error, "a sandbox could not be brought back");
            let reason = Failure::to_string(&error);
            if let Err(error) = self.set_sandbox_state(sandbox, SandboxState::Failed, Some(reason))
            {
                tracing::error!(sandbox = %sandbox.id, %error, "the state of a sandbox could not be recorded");
            }
        }
    }
}
