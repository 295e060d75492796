//! Sandboxes: made, listed, destroyed.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sandstack_api::management::{
    CreateSandbox, CreatedSandboxes, DestroySandbox, DestroyedSandbox, ImportProgress,
    InspectSandbox, InspectedSandbox, ListSandboxes, Provider as ProviderKind, Resources,
    SandboxPage, SandboxRecord, SandboxState,
};
use sandstack_api::{DEFAULT_PAGE_ROWS, ErrorCode, MAX_PAGE_ROWS, SandboxId};
use sandstack_store::Imported;
use serde_json::json;

use crate::clock::{new_id, now_unix_ms};
use crate::event::Subject;
use crate::failure::{Failure, Result, io_failure};
use crate::gateway::{Context, Gateway, Sandbox};
use crate::page::Page;
use crate::provider::{run_dir, socket};
use crate::rows::SandboxRow;
use crate::show;

/// Most sandboxes of one call.
const MAX_COUNT: u32 = 64;
/// Longest name of a sandbox or session.
pub(crate) const MAX_NAME: usize = 64;
/// Longest path of a unix socket, in bytes, with its NUL (`sun_path` of `unix(7)`).
const MAX_SOCKET_PATH: usize = 108;

/// Where an import tells its progress.
pub(crate) type Progress<'a> = dyn FnMut(sandstack_store::ImportProgress) -> ControlFlow<()> + 'a;

impl Gateway {
    pub(crate) async fn create_sandbox(
        self: &Arc<Self>,
        context: &Context,
        request: CreateSandbox,
    ) -> Result<CreatedSandboxes> {
        let count = request.count.unwrap_or(1);
        let template = self.check_create(&request, count)?;
        let names = self.reserve_names(request.name.as_deref(), count)?;
        let begun = Instant::now();
        let mut sandboxes = Vec::new();
        for name in names {
            let mut row = template.clone();
            row.record.sandbox_id = self.new_sandbox_id()?;
            row.record.name = name;
            self.sandbox_rows
                .put(row.record.sandbox_id.as_ref(), &row)?;
            let sandbox = self.new_sandbox(row)?;
            self.sandboxes
                .write()
                .insert(sandbox.id.clone(), Arc::clone(&sandbox));
            sandboxes.push(sandbox);
        }
        let result = self.make_all(context, &sandboxes, &request, begun).await;
        if let Err(error) = result {
            for sandbox in &sandboxes {
                self.roll_back(sandbox).await;
            }
            return Err(error);
        }
        result
    }

    async fn make_all(
        self: &Arc<Self>,
        context: &Context,
        sandboxes: &[Arc<Sandbox>],
        request: &CreateSandbox,
        begun: Instant,
    ) -> Result<CreatedSandboxes> {
        let imported = {
            let span = context.trace.span("base.import");
            let imported = self
                .import(context, request.workspace_root.as_os_str().as_ref())
                .await?;
            span.field("files", imported.report.files);
            span.field("files_hashed", imported.report.files_hashed);
            imported
        };
        let report = show::import_report(&imported.report, begun.elapsed().as_millis() as u64);
        for sandbox in sandboxes {
            let _lifecycle = sandbox.lifecycle.lock().await;
            let span = context.trace.span("sandbox.start");
            span.field("sandbox_id", sandbox.id.as_ref());
            self.give_base(sandbox, &imported)?;
            self.start_holder(sandbox).await?;
            self.set_sandbox_state(sandbox, SandboxState::Ready, None)?;
            let subject = Subject {
                sandbox: Some(sandbox.id.clone()),
                ..context.subject()
            };
            self.events.record(
                "sandbox.created",
                subject,
                json!({ "files": report.files, "bytes": report.bytes }),
            );
        }
        self.store.persist()?;
        let records = sandboxes
            .iter()
            .map(|sandbox| self.sandbox_record(sandbox))
            .collect();
        Ok(CreatedSandboxes {
            sandboxes: records,
            import: report,
        })
    }

    fn check_create(&self, request: &CreateSandbox, count: u32) -> Result<SandboxRow> {
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(Failure::invalid(format!(
                "count is {count}; it must be 1 to {MAX_COUNT}"
            )));
        }
        let root = Path::new(request.workspace_root.as_os_str());
        check_root(root)?;
        let provider = match (request.provider, &request.image) {
            (Some(ProviderKind::Local), Some(image)) => {
                return Err(Failure::invalid(format!(
                    "image {image:?} needs the docker provider; leave one of them out"
                )));
            }
            (Some(ProviderKind::Docker), None) => {
                return Err(Failure::invalid(
                    "the docker provider needs an image; give a local image's name",
                ));
            }
            (None, Some(_)) => ProviderKind::Docker,
            (None, None) => ProviderKind::Local,
            (Some(provider), _) => provider,
        };
        let policy = request.publish_policy.clone().unwrap_or_default();
        show::policy(&policy)
            .check()
            .map_err(|error| Failure::invalid(format!("publish_policy: {error}")))?;
        let resources = request.resources.unwrap_or_default();
        check_resources(&resources)?;
        check_env(&request.env)?;
        // Canonical but for its last link: where people say that the project is.
        let record = SandboxRecord {
            sandbox_id: SandboxId::new("sb-none").expect("a valid id"),
            name: None,
            state: SandboxState::Creating,
            state_reason: None,
            workspace_root: request.workspace_root.clone(),
            provider,
            image: request.image.clone(),
            container_id: None,
            head: None,
            session_count: 0,
            resources,
            publish_policy: policy,
            trace_mode: request.trace_mode.unwrap_or_default(),
            labels: request.labels.clone(),
            created_at_unix_ms: now_unix_ms(),
        };
        Ok(SandboxRow {
            record,
            stack: None,
            env: request.env.clone(),
            holder_pid: None,
            image_env: Vec::new(),
        })
    }

    /// The names of a batch, none of which is taken.
    fn reserve_names(&self, name: Option<&str>, count: u32) -> Result<Vec<Option<String>>> {
        let Some(name) = name else {
            return Ok(vec![None; count as usize]);
        };
        check_name(name)?;
        let names: Vec<String> = match count {
            1 => vec![name.to_owned()],
            _ => (1..=count)
                .map(|number| format!("{name}-{number}"))
                .collect(),
        };
        let sandboxes = self.sandboxes.read();
        for name in &names {
            if let Some(other) = sandboxes
                .values()
                .find(|other| other.row.lock().record.name.as_ref() == Some(name))
            {
                return Err(Failure::new(
                    ErrorCode::AlreadyExists,
                    format!(
                        "sandbox {} is called {name:?} already; choose another name",
                        other.id
                    ),
                ));
            }
        }
        Ok(names.into_iter().map(Some).collect())
    }

    fn new_sandbox_id(&self) -> Result<SandboxId> {
        loop {
            let id = SandboxId::new(&new_id("sb")).expect("new ids are valid");
            if self.sandbox_rows.get(id.as_ref())?.is_none() {
                return Ok(id);
            }
        }
    }

    async fn import(self: &Arc<Self>, context: &Context, root: &Path) -> Result<Imported> {
        let store = self.store.clone();
        let limit = self.config.settings.limits.base_files;
        let asked = root.to_path_buf();
        let imported = self
            .while_importing(context, root, move |progress| {
                store.import(&asked, progress)
            })
            .await?;
        // A small project may be done before its progress is told.
        match imported.report.files > limit {
            true => Err(too_many_files(root, limit)),
            false => Ok(imported),
        }
    }

    /// Does what imports `root`: its progress is told to the caller, and it is stopped when the
    /// caller goes away or there are too many files.
    pub(crate) async fn while_importing<T: Send + 'static>(
        self: &Arc<Self>,
        context: &Context,
        root: &Path,
        work: impl FnOnce(&mut Progress<'_>) -> sandstack_store::Result<T> + Send + 'static,
    ) -> Result<T> {
        let root: PathBuf = root.to_path_buf();
        let sender = context.progress.clone();
        let abandoned = Arc::clone(&context.abandoned);
        let limit = self.config.settings.limits.base_files;
        self.blocking(move || {
            let too_many = AtomicBool::new(false);
            let result = work(&mut |progress| {
                if let Some(sender) = &sender {
                    let progress = ImportProgress {
                        files_found: progress.files_found,
                        files_done: progress.files_done,
                        bytes_found: progress.bytes_found,
                        bytes_done: progress.bytes_done,
                    };
                    // Nobody listens any more: then nobody needs to be told.
                    let _ = sender.send(json!(progress));
                }
                if progress.files_found > limit {
                    too_many.store(true, Ordering::Relaxed);
                }
                if too_many.load(Ordering::Relaxed) || abandoned.load(Ordering::Relaxed) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            match result {
                Err(_) if too_many.into_inner() => Err(too_many_files(&root, limit)),
                Err(_) if abandoned.load(Ordering::Relaxed) => Err(Failure::new(
                    ErrorCode::Cancelled,
                    "the caller went away during the import",
                )),
                result => Ok(result?),
            }
        })
        .await
    }

    fn give_base(&self, sandbox: &Sandbox, imported: &Imported) -> Result<()> {
        let stack = self.store.create_stack(imported, now_unix_ms())?;
        let mut row = sandbox.row.lock();
        stack.budget().set_limit(row.record.resources.disk_bytes);
        row.stack = Some(stack.id().0);
        self.sandbox_rows.put(sandbox.id.as_ref(), &row)?;
        drop(row);
        let _ = sandbox.stack.set(stack);
        Ok(())
    }

    /// Starts the holder of a sandbox and connects to it.
    pub(crate) async fn start_holder(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        let spec = sandbox.spec();
        let length = socket(&spec).as_os_str().len();
        if length >= MAX_SOCKET_PATH {
            return Err(Failure::new(
                ErrorCode::Unsupported,
                format!(
                    "the path of a holder's socket would have {length} bytes, and the kernel allows {}; use a state \
                     directory with a shorter path",
                    MAX_SOCKET_PATH - 1
                ),
            ));
        }
        for dir in [
            spec.dir.clone(),
            run_dir(&spec),
            spec.dir.join("commands"),
            spec.dir.join("sessions"),
        ] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .map_err(io_failure(&format!("making {}", dir.display())))?;
        }
        let started = sandbox.provider.start(&spec).await?;
        sandbox.note_started(started);
        self.sandbox_rows
            .put(sandbox.id.as_ref(), &sandbox.row.lock())?;
        self.connect_holder(sandbox).await
    }

    async fn roll_back(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        if let Err(error) = self.tear_down(sandbox).await {
            tracing::error!(sandbox = %sandbox.id, %error, "a sandbox that could not be made could not be removed");
            let reason = format!("it could not be made, and not be removed: {error}");
            let _ = self.set_sandbox_state(sandbox, SandboxState::Failed, Some(reason));
        }
    }

    /// Removes everything of a sandbox, step by step; each step may be done again.
    pub(crate) async fn tear_down(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        if sandbox.stands_still.lock().is_some() {
            sandbox.provider.rouse(&sandbox.spec()).await?;
            *sandbox.stands_still.lock() = None;
        }
        for session in sandbox.sessions_newest_first() {
            self.end_session(&session).await?;
        }
        // Dropped before the holder goes, so that its end is no surprise.
        let holder = sandbox.holder.lock().take();
        self.blocking(move || {
            drop(holder);
            Ok(())
        })
        .await?;
        sandbox.provider.stop(&sandbox.spec()).await?;
        self.forget_commands(sandbox)?;
        if let Some(stack) = sandbox.stack.get().cloned() {
            let store = self.store.clone();
            self.blocking(move || {
                store.access_log().forget(stack.id())?;
                Ok(stack.destroy()?)
            })
            .await?;
        }
        let dir = sandbox.dir.clone();
        self.blocking(move || match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_failure(&format!("removing {}", dir.display()))(error))
            }
            _ => Ok(()),
        })
        .await?;
        self.sandbox_rows.remove(sandbox.id.as_ref())?;
        self.sandboxes.write().remove(&sandbox.id);
        Ok(())
    }

    pub(crate) fn set_sandbox_state(
        &self,
        sandbox: &Sandbox,
        state: SandboxState,
        reason: Option<String>,
    ) -> Result<()> {
        let mut row = sandbox.row.lock();
        row.record.state = state;
        row.record.state_reason = reason;
        self.sandbox_rows.put(sandbox.id.as_ref(), &row)
    }

    pub(crate) fn sandbox_record(&self, sandbox: &Sandbox) -> SandboxRecord {
        let mut record = sandbox.row.lock().record.clone();
        record.head = sandbox
            .stack
            .get()
            .map(|stack| show::layer_id(stack.head()));
        record.session_count = sandbox.sessions.read().len() as u64;
        record
    }

    pub(crate) fn list_sandboxes(
        &self,
        context: &Context,
        request: &ListSandboxes,
    ) -> Result<SandboxPage> {
        let mut records: Vec<SandboxRecord> = self
            .sandboxes
            .read()
            .values()
            .filter(|sandbox| context.principal.require_sandbox(&sandbox.id).is_ok())
            .map(|sandbox| self.sandbox_record(sandbox))
            .collect();
        records.sort_by(|one, other| {
            (other.created_at_unix_ms, &other.sandbox_id)
                .cmp(&(one.created_at_unix_ms, &one.sandbox_id))
        });
        let page = Page::cut(
            records,
            page_limit(request.limit)?,
            request.page_token.as_deref(),
            |record| record.sandbox_id.to_string(),
        )?;
        Ok(SandboxPage {
            sandboxes: page.rows,
            next_page_token: page.next,
            sampled_at_unix_ms: now_unix_ms(),
            errors: Vec::new(),
        })
    }

    pub(crate) fn inspect_sandbox(
        &self,
        context: &Context,
        request: &InspectSandbox,
    ) -> Result<InspectedSandbox> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        Ok(InspectedSandbox {
            sandbox: self.sandbox_record(&sandbox),
            sampled_at_unix_ms: now_unix_ms(),
            errors: Vec::new(),
        })
    }

    pub(crate) async fn destroy_sandbox(
        self: &Arc<Self>,
        context: &Context,
        request: &DestroySandbox,
    ) -> Result<DestroyedSandbox> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let _lifecycle = sandbox.lifecycle.lock().await;
        if !self.sandboxes.read().contains_key(&sandbox.id) {
            return Err(Failure::not_found("sandbox", &sandbox.id));
        }
        let mut discarded_bytes = 0;
        let mut unpublished = Vec::new();
        for session in sandbox.sessions_newest_first() {
            let running = session.running.lock().len();
            let changed = {
                let session = Arc::clone(&session);
                self.blocking(move || Ok(session.changed_paths()?.len()))
                    .await?
            };
            discarded_bytes += session.upper().content_bytes();
            if changed > 0 || running > 0 {
                let name = session.row.lock().name.clone();
                unpublished.push(json!({
                    "workspace_session_id": session.id,
                    "name": name,
                    "changed_paths": changed,
                    "running_commands": running,
                }));
            }
        }
        if !unpublished.is_empty() && !request.force {
            return Err(Failure::conflict(format!(
                "sandbox {} has {} session(s) with unpublished changes or running commands; publish or destroy them, \
                 or give `force` to lose that work",
                sandbox.id,
                unpublished.len()
            ))
            .with("workspace_sessions", unpublished));
        }
        self.set_sandbox_state(&sandbox, SandboxState::Stopping, None)?;
        let mut record = self.sandbox_record(&sandbox);
        {
            let _span = context.trace.span("sandbox.tear_down");
            if let Err(error) = self.tear_down(&sandbox).await {
                self.set_sandbox_state(
                    &sandbox,
                    SandboxState::Failed,
                    Some(format!("it could not be removed: {error}")),
                )?;
                return Err(error);
            }
        }
        self.store.persist()?;
        record.state = SandboxState::Stopped;
        record.session_count = 0;
        let subject = Subject {
            sandbox: Some(sandbox.id.clone()),
            ..context.subject()
        };
        self.events.record(
            "sandbox.destroyed",
            subject,
            json!({ "discarded_bytes": discarded_bytes }),
        );
        Ok(DestroyedSandbox {
            sandbox: record,
            discarded_bytes,
        })
    }
}

/// Checks a page's size.
pub(crate) fn page_limit(limit: Option<u32>) -> Result<usize> {
    let limit = limit.unwrap_or(DEFAULT_PAGE_ROWS);
    if !(1..=MAX_PAGE_ROWS).contains(&limit) {
        return Err(Failure::invalid(format!(
            "limit is {limit}; it must be 1 to {MAX_PAGE_ROWS}"
        )));
    }
    Ok(limit as usize)
}

/// Checks a name for people.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let fits = (1..=MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if fits {
        Ok(())
    } else {
        Err(Failure::invalid(format!(
            "name {name:?} is not 1 to {MAX_NAME} of A-Z a-z 0-9 . _ -"
        )))
    }
}

/// Checks names of environment variables.
pub(crate) fn check_env(
    env: &std::collections::BTreeMap<String, sandstack_api::Blob>,
) -> Result<()> {
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.0.contains(&0) {
            return Err(Failure::invalid(format!(
                "environment variable {key:?} has an empty name, an equals sign in it, or a NUL byte"
            )));
        }
    }
    Ok(())
}

fn check_resources(resources: &Resources) -> Result<()> {
    if let Some(cpus) = resources.cpus
        && !(0.01..=1024.0).contains(&cpus)
    {
        return Err(Failure::invalid(format!(
            "resources.cpus is {cpus}; it must be 0.01 to 1024"
        )));
    }
    for (name, value) in [
        ("memory_bytes", resources.memory_bytes),
        ("pids_max", resources.pids_max),
    ] {
        if value == Some(0) {
            return Err(Failure::invalid(format!(
                "resources.{name} is 0; leave it out for no limit"
            )));
        }
    }
    Ok(())
}

fn too_many_files(root: &Path, limit: u64) -> Failure {
    Failure::new(
        ErrorCode::TooLarge,
        format!(
            "{} has more than {limit} files; is it the right directory? `limits.base_files` in the configuration \
             raises the bound",
            root.display()
        ),
    )
}

fn check_root(root: &Path) -> Result<()> {
    let shown = root.display();
    if root.as_os_str().is_empty() {
        return Err(Failure::invalid(
            "workspace_root is empty; give the absolute path of the project directory",
        ));
    }
    if !root.is_absolute() {
        return Err(Failure::invalid(format!(
            "workspace_root {shown} is relative; give an absolute path, for the gateway does not know the caller's \
             directory"
        )));
    }
    if root.as_os_str().as_bytes().contains(&0) {
        return Err(Failure::invalid("workspace_root contains a NUL byte"));
    }
    let plain = root
        .components()
        .all(|part| !matches!(part, std::path::Component::ParentDir));
    if !plain || root.parent().is_none() {
        return Err(Failure::invalid(format!(
            "workspace_root {shown} must name a directory below / and have no `..` in it"
        )));
    }
    match fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Failure::invalid(format!(
            "workspace_root {shown} is no directory"
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::new(
            ErrorCode::NotFound,
            format!("workspace_root {shown} does not exist on the gateway's host"),
        )),
        Err(error) => Err(Failure::invalid(format!(
            "workspace_root {shown} cannot be used: {error}"
        ))),
    }
}
