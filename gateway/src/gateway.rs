//! The gateway: everything that lives while it serves.
//!
//! Owns the store and, for each sandbox, its holder's connection, its sessions with their views,
//! and its commands. Handlers are in the modules beside; this one says what there is and how it is
//! found.
//!
//! Locks, in order: a sandbox's `lifecycle`, a session's `gate`, then any of the maps and rows,
//! which are held for moments only and never over an `await`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use sandstack_api::management::SandboxState;
use sandstack_api::runtime::SessionState;
use sandstack_api::{CommandId, ErrorCode, RequestId, SandboxId, SessionId};
use sandstack_fs::{Commands, FilesystemNumber, SlowPool, View};
use sandstack_holder::Client;
use sandstack_store::{Gap, LayerId, Lease, Stack, StackId, Store, Upper};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::auth::{Principal, Tokens};
use crate::clock::now_unix_ms;
use crate::config::Config;
use crate::daemon::Load;
use crate::event::{EventLog, Subject};
use crate::failure::{Failure, Result};
use crate::forward::MAX_FORWARDS;
use crate::otlp::Exporter;
use crate::provider::{Docker, Local, Provider, Spec, Started};
use crate::resources::Samples;
use crate::rows::{CommandRow, Rows, SandboxRow, SessionRow};
use crate::span::{SpanLog, Trace};
use crate::stream::Streams;

/// Everything that lives while the gateway serves.
pub(crate) struct Gateway {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) tokens: Tokens,
    pub(crate) events: EventLog,
    pub(crate) spans: Arc<SpanLog>,
    pub(crate) samples: Samples,
    pub(crate) load: Load,
    pub(crate) streams: Streams,
    /// Connections into sessions that there may be yet.
    pub(crate) forwards: Arc<Semaphore>,
    pub(crate) slow: Arc<SlowPool>,
    /// Held while a view is attached or detached, so that a place is not taken twice.
    pub(crate) attaching: Mutex<()>,
    pub(crate) local: Arc<Local>,
    pub(crate) docker: Arc<Docker>,
    pub(crate) sandbox_rows: Rows<SandboxRow>,
    pub(crate) session_rows: Rows<SessionRow>,
    pub(crate) command_rows: Rows<CommandRow>,
    pub(crate) sandboxes: RwLock<BTreeMap<SandboxId, Arc<Sandbox>>>,
    pub(crate) commands: RwLock<HashMap<CommandId, Arc<Command>>>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) started_at_unix_ms: u64,
}

/// A sandbox that is not gone.
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) dir: PathBuf,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) row: Mutex<SandboxRow>,
    pub(crate) stack: OnceLock<Stack>,
    pub(crate) holder: Mutex<Option<Arc<Client>>>,
    pub(crate) sessions: RwLock<BTreeMap<SessionId, Arc<Session>>>,
    /// Why its holder answers nobody at the moment: what it runs in was stopped for a while.
    pub(crate) stands_still: Mutex<Option<String>>,
    /// Held while the sandbox is made, recovered or destroyed.
    pub(crate) lifecycle: tokio::sync::Mutex<()>,
}

/// A session that is not gone.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) row: Mutex<SessionRow>,
    /// Where its changes are; another place when it goes on after a publish.
    pub(crate) place: RwLock<Place>,
    /// The view; taken when the session ends.
    pub(crate) view: Mutex<Option<Arc<View>>>,
    /// The filesystem whose mount is given up, until its view has ended.
    pub(crate) unmounted: Mutex<Option<FilesystemNumber>>,
    /// The view's mount, to flush it; taken when the session ends, or it would live on.
    pub(crate) mount: Mutex<Option<std::os::fd::OwnedFd>>,
    /// The walk through the view, if there is one.
    pub(crate) walk: Mutex<Option<sandstack_fs::Walk>>,
    /// Which mount namespace is which command.
    pub(crate) namespaces: Arc<Commands>,
    /// Running commands.
    pub(crate) running: Mutex<BTreeMap<CommandId, Arc<Command>>>,
    /// Held for reading by whoever works in the session, for writing by whoever ends it.
    pub(crate) gate: tokio::sync::RwLock<Gate>,
    /// When it was last used, in Unix milliseconds.
    pub(crate) used_at: AtomicU64,
    /// Held while it is looked at what its commands wrote.
    pub(crate) settling: Mutex<()>,
    /// What was last found to be changed, and at which generation of the upper.
    pub(crate) changes: Mutex<Option<(u64, Arc<ChangedPaths>)>>,
    /// What it had before it went over to newer layers, as far as it is not released.
    pub(crate) retired: Mutex<Vec<crate::rebase::Retired>>,
}

/// Where the changes of a session are.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) lease: Lease,
    pub(crate) upper: Arc<Upper>,
}

/// Changed paths and how each differs.
pub(crate) type ChangedPaths = Vec<(sandstack_store::RelPath, sandstack_store::ChangeKind)>;

/// Whether a session can be worked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// It is gone, or its end was begun and could not be finished.
    Closed,
}

/// A command, running or ended.
pub(crate) struct Command {
    pub(crate) id: CommandId,
    pub(crate) dir: PathBuf,
    pub(crate) row: Mutex<CommandRow>,
    /// Changes whenever the row does, or the output has grown.
    pub(crate) changed: watch::Sender<u64>,
    /// The trace of the request that started it, for what goes on after the answer.
    pub(crate) trace: Mutex<Option<Trace>>,
    /// Held while it is started, until its namespace is known to be its own.
    pub(crate) registering: Mutex<()>,
    /// Whether there is an event of its start. Its end may be known earlier, and is told after it.
    pub(crate) start_is_told: Mutex<bool>,
}

/// What a handler knows of the request that it works on.
pub(crate) struct Context {
    pub(crate) request_id: RequestId,
    pub(crate) principal: Principal,
    pub(crate) trace: Trace,
    /// Where progress goes, if the caller wants it.
    pub(crate) progress: Option<mpsc::UnboundedSender<Value>>,
    /// Set when nobody waits for the answer any more.
    pub(crate) abandoned: Arc<AtomicBool>,
    /// The right to work, given back while the request only waits.
    pub(crate) permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Context {
    /// Lets others work while this request only waits.
    pub(crate) fn rest(&self) {
        self.permit.lock().take();
    }

    /// What an event of this request is about.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            request: Some(self.request_id.clone()),
            ..Subject::default()
        }
    }
}

impl Gateway {
    pub(crate) fn open(config: Config, runtime: tokio::runtime::Handle) -> Result<Arc<Gateway>> {
        let store = Store::open(&config.store_dir())?;
        let limits = config.settings.limits.clone();
        store.access_log().keep_rows(limits.access_rows);
        let exporter = Exporter::start(&config.settings.otlp, &runtime)?;
        let gateway = Arc::new(Gateway {
            tokens: Tokens::open(&store, &config.state_dir)?,
            events: EventLog::open(&store, limits.events)?,
            spans: SpanLog::open(&store, limits.traces, exporter)?,
            samples: Samples::open(&store, limits.resource_samples)?,
            load: Load::new(limits.concurrent_requests.max(1)),
            streams: Streams::default(),
            forwards: Arc::new(Semaphore::new(MAX_FORWARDS)),
            slow: SlowPool::new(),
            attaching: Mutex::new(()),
            local: Arc::new(Local::new(&config)),
            docker: Arc::new(Docker::new(&config)),
            sandbox_rows: Rows::new(&store, "sandboxes"),
            session_rows: Rows::new(&store, "sessions"),
            command_rows: Rows::new(&store, "commands"),
            sandboxes: RwLock::default(),
            commands: RwLock::default(),
            runtime,
            started_at_unix_ms: now_unix_ms(),
            store,
            config,
        });
        let telling = Arc::downgrade(&gateway);
        gateway.store.access_log().tell_gaps(move |stack, gap| {
            if let Some(gateway) = telling.upgrade() {
                gateway.record_gap(stack, gap);
            }
        });
        Ok(gateway)
    }

    /// Records that accesses of a session may be missing from its record.
    fn record_gap(&self, stack: StackId, gap: &Gap) {
        let of_stack = |sandbox: &&Arc<Sandbox>| {
            let known = sandbox.stack.get();
            known.is_some_and(|known| known.id() == stack)
        };
        let sandboxes = self.sandboxes.read();
        let subject = Subject {
            sandbox: sandboxes
                .values()
                .find(of_stack)
                .map(|sandbox| sandbox.id.clone()),
            session: SessionId::new(&gap.session).ok(),
            ..Subject::default()
        };
        let details = json!({
            "from_unix_ms": gap.from_unix_ms,
            "to_unix_ms": gap.to_unix_ms,
            "reason": gap.reason,
        });
        self.events.record("trace.gap", subject, details);
    }

    /// Runs what blocks on a thread that may.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.runtime
            .spawn_blocking(work)
            .await
            .unwrap_or_else(|error| {
                Err(Failure::internal("a step of the request panicked").caused_by(error))
            })
    }

    /// The sandbox called `id`, if the caller may use it.
    pub(crate) fn sandbox(&self, context: &Context, id: &SandboxId) -> Result<Arc<Sandbox>> {
        context.principal.require_sandbox(id)?;
        context.trace.about(id);
        self.sandboxes
            .read()
            .get(id)
            .cloned()
            .ok_or_else(|| Failure::not_found("sandbox", id))
    }

    /// The sandbox called `id`, if sessions can be used in it.
    pub(crate) fn ready_sandbox(&self, context: &Context, id: &SandboxId) -> Result<Arc<Sandbox>> {
        let sandbox = self.sandbox(context, id)?;
        sandbox.check_ready()?;
        Ok(sandbox)
    }

    /// The session called `id`, if the caller may use it.
    pub(crate) fn session(&self, context: &Context, id: &SessionId) -> Result<Arc<Session>> {
        let session = self.session_for(&context.principal, id)?;
        context.trace.about(&session.sandbox.id);
        Ok(session)
    }

    /// The session called `id`, if `principal` may use it.
    pub(crate) fn session_for(
        &self,
        principal: &Principal,
        id: &SessionId,
    ) -> Result<Arc<Session>> {
        let sandboxes = self.sandboxes.read();
        let found = sandboxes
            .values()
            .find_map(|sandbox| sandbox.sessions.read().get(id).cloned());
        let session = found.ok_or_else(|| Failure::not_found("workspace session", id))?;
        drop(sandboxes);
        principal.require_sandbox(&session.sandbox.id)?;
        Ok(session)
    }

    /// The session called `id`, which must be of `sandbox`.
    pub(crate) fn session_of(
        &self,
        context: &Context,
        sandbox: &SandboxId,
        id: &SessionId,
    ) -> Result<Arc<Session>> {
        let session = self.session(context, id)?;
        if session.sandbox.id != *sandbox {
            return Err(
                Failure::not_found("workspace session", id).with("sandbox_id", sandbox.as_ref())
            );
        }
        Ok(session)
    }

    /// The command called `id`, running or ended, if the caller may see it.
    pub(crate) fn command(&self, context: &Context, id: &CommandId) -> Result<Arc<Command>> {
        let command = self.command_for(&context.principal, id)?;
        context.trace.about(&command.row.lock().sandbox);
        Ok(command)
    }

    /// A command that a caller may see.
    pub(crate) fn command_for(
        &self,
        principal: &Principal,
        id: &CommandId,
    ) -> Result<Arc<Command>> {
        let known = self.commands.read().get(id).cloned();
        let command = match known {
            Some(command) => command,
            None => self.ended_command(id)?,
        };
        let sandbox = command.row.lock().sandbox.clone();
        principal.require_sandbox(&sandbox)?;
        Ok(command)
    }

    fn ended_command(&self, id: &CommandId) -> Result<Arc<Command>> {
        let row = self
            .command_rows
            .get(id.as_ref())?
            .ok_or_else(|| Failure::not_found("command", id))?;
        let dir = crate::provider::command_dir(
            &self.config.sandboxes_dir().join(row.sandbox.as_ref()),
            id,
        );
        Ok(Arc::new(Command::new(row, dir)))
    }

    pub(crate) fn new_sandbox(&self, row: SandboxRow) -> Result<Arc<Sandbox>> {
        let id = row.record.sandbox_id.clone();
        let provider: Arc<dyn Provider> = match row.record.provider {
            sandstack_api::management::Provider::Local => {
                Arc::clone(&self.local) as Arc<dyn Provider>
            }
            sandstack_api::management::Provider::Docker => {
                Arc::clone(&self.docker) as Arc<dyn Provider>
            }
        };
        let stack = OnceLock::new();
        if let Some(number) = row.stack {
            let found = self.store.stack(StackId(number))?;
            found.budget().set_limit(row.record.resources.disk_bytes);
            let _ = stack.set(found);
        }
        Ok(Arc::new(Sandbox {
            dir: self.config.sandboxes_dir().join(id.as_ref()),
            provider,
            row: Mutex::new(row),
            stack,
            holder: Mutex::new(None),
            sessions: RwLock::default(),
            stands_still: Mutex::new(None),
            lifecycle: tokio::sync::Mutex::new(()),
            id,
        }))
    }
}

impl Sandbox {
    /// What the provider is told.
    pub(crate) fn spec(&self) -> Spec {
        let row = self.row.lock();
        Spec {
            id: self.id.clone(),
            dir: self.dir.clone(),
            image: row.record.image.clone(),
            resources: row.record.resources,
            started: Started {
                holder_pid: row.holder_pid,
                container_id: row.record.container_id.clone(),
                image_env: row
                    .image_env
                    .iter()
                    .map(|(key, value)| (key.0.clone(), value.0.clone()))
                    .collect(),
            },
        }
    }

    /// Takes over what the provider started.
    pub(crate) fn note_started(&self, started: Started) {
        let mut row = self.row.lock();
        row.holder_pid = started.holder_pid;
        row.record.container_id = started.container_id;
        row.image_env = started
            .image_env
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
    }

    pub(crate) fn stack(&self) -> Result<&Stack> {
        self.stack.get().ok_or_else(|| {
            Failure::new(
                ErrorCode::Conflict,
                format!(
                    "sandbox {} has no base yet; wait until it is ready",
                    self.id
                ),
            )
        })
    }

    /// Refuses what would wait for a holder that answers nobody.
    pub(crate) fn check_moves(&self) -> Result<()> {
        match &*self.stands_still.lock() {
            Some(reason) => Err(Failure::conflict(format!(
                "sandbox {} stands still: {reason}",
                self.id
            ))),
            None => Ok(()),
        }
    }

    pub(crate) fn holder(&self) -> Result<Arc<Client>> {
        self.check_moves()?;
        self.holder.lock().clone().ok_or_else(|| {
            Failure::new(
                ErrorCode::Unavailable,
                format!("the holder of sandbox {} does not answer", self.id),
            )
        })
    }

    pub(crate) fn check_ready(&self) -> Result<()> {
        let row = self.row.lock();
        match row.record.state {
            SandboxState::Ready => Ok(()),
            state => {
                let state = format!("{state:?}").to_lowercase();
                let reason = row
                    .record
                    .state_reason
                    .as_deref()
                    .map(|reason| format!(" ({reason})"))
                    .unwrap_or_default();
                Err(
                    Failure::conflict(format!("sandbox {} is {state}{reason}, not ready", self.id))
                        .with("state", state),
                )
            }
        }
    }

    /// Where views appear in the sandbox.
    pub(crate) fn workspace_root(&self) -> Vec<u8> {
        self.row.lock().record.workspace_root.0.clone()
    }

    /// The sessions, newest first.
    pub(crate) fn sessions_newest_first(&self) -> Vec<Arc<Session>> {
        let mut sessions: Vec<Arc<Session>> = self.sessions.read().values().cloned().collect();
        sessions.sort_by_key(|session| std::cmp::Reverse(session.row.lock().created_at_unix_ms));
        sessions
    }
}

impl Session {
    /// Waits for the right to work in the session; the guard keeps it from ending.
    pub(crate) async fn enter(&self) -> Result<tokio::sync::RwLockReadGuard<'_, Gate>> {
        let gate = self.gate.read().await;
        if *gate == Gate::Closed {
            return Err(self.closed());
        }
        self.touch();
        Ok(gate)
    }

    /// Waits until nobody works in the session; the guard keeps others out.
    pub(crate) async fn occupy(&self) -> Result<tokio::sync::RwLockWriteGuard<'_, Gate>> {
        let gate = self.gate.write().await;
        if *gate == Gate::Closed && self.row.lock().state != SessionState::FinalizeFailed {
            return Err(self.closed());
        }
        Ok(gate)
    }

    fn closed(&self) -> Failure {
        let row = self.row.lock();
        match (row.state, &row.state_reason) {
            (SessionState::FinalizeFailed, Some(reason)) => Failure::conflict(format!(
                "workspace session {} is ending and could not be finished ({reason}); destroy it again",
                self.id
            )),
            _ => Failure::not_found("workspace session", &self.id),
        }
    }

    /// Notes that it is in use.
    pub(crate) fn touch(&self) {
        self.used_at.store(now_unix_ms(), Ordering::Relaxed);
    }

    pub(crate) fn upper(&self) -> Arc<Upper> {
        Arc::clone(&self.place.read().upper)
    }

    /// The layer it is based on.
    pub(crate) fn base(&self) -> LayerId {
        self.place.read().lease.record().base
    }

    pub(crate) fn view(&self) -> Result<Arc<View>> {
        self.view.lock().clone().ok_or_else(|| self.closed())
    }

    /// The paths that differ from the base. Reads changed files, unless nothing changed since it
    /// was last asked.
    pub(crate) fn changed_paths(&self) -> Result<Arc<ChangedPaths>> {
        let upper = self.upper();
        let generation = upper.generation();
        if let Some((at, known)) = &*self.changes.lock()
            && *at == generation
        {
            return Ok(Arc::clone(known));
        }
        let found = Arc::new(upper.changes()?);
        *self.changes.lock() = Some((generation, Arc::clone(&found)));
        Ok(found)
    }
}

impl Command {
    pub(crate) fn new(row: CommandRow, dir: PathBuf) -> Self {
        Command {
            id: row.id.clone(),
            dir,
            row: Mutex::new(row),
            changed: watch::channel(0).0,
            trace: Mutex::new(None),
            registering: Mutex::new(()),
            start_is_told: Mutex::new(true),
        }
    }

    /// Wakes whoever waits for more output.
    pub(crate) fn has_grown(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// Changes the row and wakes whoever waits for a change.
    pub(crate) fn update(&self, change: impl FnOnce(&mut CommandRow)) -> CommandRow {
        let row = {
            let mut row = self.row.lock();
            change(&mut row);
            row.clone()
        };
        self.changed.send_modify(|version| *version += 1);
        row
    }
}
