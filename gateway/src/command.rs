//! Commands: started, fed, read, ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstack_api::runtime::{
    CommandReply, CommandStatus, CreateWorkspaceSession, ExecCommand, Survivor, WriteCommandStdin,
};
use sandstack_api::{Blob, CommandId, ErrorCode, SessionId};
use sandstack_holder::protocol::{
    ExitRecord, ExitStatus, Program, Request, Spawn, Stdio, Stream, StreamTotals,
    Survivor as HolderSurvivor,
};
use sandstack_holder::{Bytes, Client, evidence};
use serde_json::json;

use crate::clock::{new_id, now_unix_ms};
use crate::event::Subject;
use crate::failure::{Failure, Result};
use crate::gateway::{Command, Context, Gateway, Sandbox, Session};
use crate::provider::command_dir;
use crate::rows::CommandRow;
use crate::sandbox::check_env;

/// Longest wait for a command, in milliseconds.
const MAX_YIELD_MS: u64 = 600_000;
/// Wait when the caller does not say, in milliseconds.
const DEFAULT_YIELD_MS: u64 = 1000;
/// Largest input of one call.
const MAX_STDIN: usize = 1 << 20;
/// Rows and columns of a terminal when the caller does not say.
const TERMINAL: (u16, u16) = (24, 80);

impl Gateway {
    pub(crate) async fn exec_command(
        self: &Arc<Self>,
        context: &Context,
        request: ExecCommand,
    ) -> Result<CommandReply> {
        let wait = check_yield(request.yield_time_ms)?;
        check_env(&request.env)?;
        if request.cmd.0.is_empty() || request.cmd.0.contains(&0) {
            return Err(Failure::invalid("cmd is empty or contains a NUL byte"));
        }
        if request.timeout_ms == Some(0) {
            return Err(Failure::invalid(
                "timeout_ms is 0; leave it out for no limit",
            ));
        }
        if request
            .stdin
            .as_ref()
            .is_some_and(|stdin| stdin.0.len() > MAX_STDIN)
        {
            return Err(Failure::new(
                ErrorCode::TooLarge,
                format!("stdin is larger than {MAX_STDIN} bytes"),
            ));
        }
        check_size(&request)?;
        let sandbox = self.ready_sandbox(context, &request.sandbox_id)?;
        let session = match &request.workspace_session_id {
            Some(id) => self.session_of(context, &sandbox.id, id)?,
            None => {
                let request = CreateWorkspaceSession {
                    sandbox_id: sandbox.id.clone(),
                    name: None,
                    network_profile: None,
                    from: None,
                    trace_mode: None,
                    background_walk: None,
                    ttl_s: None,
                    quota_bytes: None,
                    env: BTreeMap::new(),
                };
                self.open_session(context, &sandbox, request, true).await?
            }
        };
        let command = match self
            .start_command(context, &sandbox, &session, &request)
            .await
        {
            Ok(command) => command,
            Err(error) => {
                if session.row.lock().automatic {
                    self.end_session(&session).await?;
                }
                return Err(error);
            }
        };
        let span = context.trace.span("command.run");
        span.field("command_session_id", command.id.as_ref());
        self.wait_for_end(context, &command, &session, wait).await;
        drop(span);
        self.command_reply(&command, None).await
    }

    async fn start_command(
        self: &Arc<Self>,
        context: &Context,
        sandbox: &Arc<Sandbox>,
        session: &Arc<Session>,
        request: &ExecCommand,
    ) -> Result<Arc<Command>> {
        let admission = context.trace.span("session.enter");
        let _gate = session.enter().await?;
        drop(admission);
        let id = CommandId::new(&new_id("cmd")).expect("new ids are valid");
        let tty = request.tty.unwrap_or(true);
        let row = CommandRow {
            id: id.clone(),
            session: session.id.clone(),
            sandbox: sandbox.id.clone(),
            request: context.request_id.clone(),
            cmd: request.cmd.clone(),
            tty,
            status: CommandStatus::Running,
            exit_code: None,
            signal: None,
            started_at_unix_ms: now_unix_ms(),
            ended_at_unix_ms: None,
            cpu_us: None,
            max_rss_bytes: None,
            survivors: Vec::new(),
            lost: BTreeMap::new(),
            publish: None,
        };
        let dir = command_dir(&sandbox.dir, &id);
        let spec = sandbox.spec();
        let spawn = Spawn {
            command_id: id.to_string(),
            session_id: session.id.to_string(),
            program: Program::Shell(Bytes(request.cmd.0.clone())),
            cwd: Bytes(request.cwd.clone().unwrap_or_default().0),
            env: self.environment(sandbox, session, request, tty),
            stdio: match tty {
                true => Stdio::Pty {
                    rows: request.rows.unwrap_or(TERMINAL.0),
                    cols: request.cols.unwrap_or(TERMINAL.1),
                },
                false => Stdio::Pipes,
            },
            stdin: request.stdin.clone().map(|stdin| Bytes(stdin.0)),
            close_stdin: !tty && !request.keep_stdin_open,
            timeout_ms: request.timeout_ms,
            user: None,
            dir: Bytes(
                sandbox
                    .provider
                    .inside(&spec, &dir)
                    .into_os_string()
                    .into_encoded_bytes(),
            ),
            transcript_limit: self.config.settings.limits.transcript_bytes,
        };
        self.settle_writers(session).await;
        let span = context.trace.span("command.spawn");
        self.command_rows.put(id.as_ref(), &row)?;
        let command = Arc::new(Command::new(row, dir));
        *command.trace.lock() = Some(context.trace.clone());
        *command.start_is_told.lock() = false;
        // Known before it runs: its end may be told before its start is.
        self.commands
            .write()
            .insert(id.clone(), Arc::clone(&command));
        session
            .running
            .lock()
            .insert(id.clone(), Arc::clone(&command));
        let spawned = {
            let (holder, namespaces) = (sandbox.holder()?, Arc::clone(&session.namespaces));
            let started = Arc::clone(&command);
            self.blocking(move || {
                // It may end before its start is told of; its end waits for this.
                let _registering = started.registering.lock();
                let _starting = namespaces.starting();
                let spawned = holder.spawn(spawn)?;
                namespaces.register(spawned.mnt_ns, started.id.as_ref());
                Ok(spawned)
            })
            .await
        };
        match spawned {
            Ok(spawned) => {
                span.field("pid", spawned.pid);
                self.tell_start(&command);
                Ok(command)
            }
            Err(error) => {
                session.running.lock().remove(&id);
                self.commands.write().remove(&id);
                self.command_rows.remove(id.as_ref())?;
                let _ = std::fs::remove_dir_all(&command.dir);
                Err(error)
            }
        }
    }

    /// Records that a command was started, if that is not on record yet.
    fn tell_start(&self, command: &Command) {
        let mut told = command.start_is_told.lock();
        if !*told {
            let details = json!({ "cmd": cut(&command.row.lock().cmd, 200) });
            self.events
                .record("command.started", self.command_subject(command), details);
            *told = true;
        }
    }

    fn environment(
        &self,
        sandbox: &Sandbox,
        session: &Session,
        request: &ExecCommand,
        tty: bool,
    ) -> Vec<(Bytes, Bytes)> {
        let mut env: BTreeMap<Vec<u8>, Vec<u8>> = sandbox
            .provider
            .environment(&sandbox.spec())
            .into_iter()
            .collect();
        env.insert(b"SANDSTACK_SANDBOX_ID".to_vec(), sandbox.id.as_ref().into());
        env.insert(b"SANDSTACK_SESSION_ID".to_vec(), session.id.as_ref().into());
        env.insert(
            b"TERM".to_vec(),
            if tty {
                b"xterm-256color".to_vec()
            } else {
                b"dumb".to_vec()
            },
        );
        let (of_sandbox, of_session) = (
            sandbox.row.lock().env.clone(),
            session.row.lock().env.clone(),
        );
        for (key, value) in of_sandbox.iter().chain(&of_session).chain(&request.env) {
            env.insert(key.clone().into_bytes(), value.0.clone());
        }
        env.into_iter()
            .map(|(key, value)| (Bytes(key), Bytes(value)))
            .collect()
    }

    /// Waits until a command has ended (and, of an automatic session, has been published), or the
    /// time is over.
    async fn wait_for_end(
        self: &Arc<Self>,
        context: &Context,
        command: &Arc<Command>,
        session: &Arc<Session>,
        wait: Duration,
    ) {
        context.rest();
        let automatic = session.row.lock().automatic;
        let mut changed = command.changed.subscribe();
        let ended = async {
            loop {
                {
                    let row = command.row.lock();
                    let settled = row.publish.is_some() || !automatic;
                    if row.status != CommandStatus::Running && settled {
                        return;
                    }
                }
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(wait, ended).await.is_err() {
            self.events
                .record("command.yielded", self.command_subject(command), json!({}));
        }
    }

    pub(crate) async fn write_command_stdin(
        self: &Arc<Self>,
        context: &Context,
        request: WriteCommandStdin,
    ) -> Result<CommandReply> {
        let wait = check_yield(request.yield_time_ms)?;
        if request.stdin.0.len() > MAX_STDIN {
            return Err(Failure::new(
                ErrorCode::TooLarge,
                format!("stdin is larger than {MAX_STDIN} bytes"),
            ));
        }
        let command = self.command(context, &request.command_session_id)?;
        let session_id = command.row.lock().session.clone();
        if command.row.lock().status == CommandStatus::Running {
            let session = self.session(context, &session_id)?;
            session.touch();
            if !request.stdin.0.is_empty() || request.eof {
                let write = Request::WriteStdin {
                    command_id: command.id.to_string(),
                    data: Bytes(request.stdin.0.clone()),
                    eof: request.eof,
                };
                match self.ask_holder(&session.sandbox, write).await {
                    // It ended meanwhile: the answer shows how.
                    Err(error)
                        if error.code() == ErrorCode::Conflict && request.stdin.0.is_empty() => {}
                    result => result?,
                }
            }
            self.wait_for_end(context, &command, &session, wait).await;
        } else if !request.stdin.0.is_empty() {
            return Err(Failure::conflict(format!(
                "command {} has ended and takes no input; read_command_lines shows its output",
                command.id
            )));
        }
        self.command_reply(&command, Some(request.start_offset))
            .await
    }

    /// Takes in that a command has ended. Called by the thread that listens to its holder.
    pub(crate) fn command_ended(self: &Arc<Self>, record: &ExitRecord) {
        let Ok(id) = CommandId::new(&record.command_id) else {
            return;
        };
        let Some(command) = self.commands.read().get(&id).cloned() else {
            return;
        };
        if command.row.lock().status != CommandStatus::Running {
            return;
        }
        self.settle(&command, |row| {
            let (status, exit_code, signal) = match record.status {
                ExitStatus::Exited { code } => (CommandStatus::Exited, Some(code), None),
                ExitStatus::Signalled { signal } => (CommandStatus::Signalled, None, Some(signal)),
                ExitStatus::TimedOut => (CommandStatus::TimedOut, None, None),
                ExitStatus::Cancelled => (CommandStatus::Cancelled, None, None),
            };
            row.status = status;
            row.exit_code = exit_code;
            row.signal = signal;
            row.started_at_unix_ms = record.started_unix_ms;
            row.ended_at_unix_ms = Some(record.ended_unix_ms);
            row.cpu_us = Some(record.user_cpu_us + record.system_cpu_us);
            row.max_rss_bytes = Some(record.max_rss_bytes);
            row.survivors = record.survivors.iter().map(survivor).collect();
            row.lost = lost(&record.streams);
        });
    }

    /// Takes in that a command has written more, or that what it writes is lost from here on, and why.
    pub(crate) fn output_grew(&self, command: &str, stream: Stream, lost: Option<String>) {
        let known = CommandId::new(command)
            .ok()
            .and_then(|id| self.commands.read().get(&id).cloned());
        let Some(command) = known else { return };
        match lost.filter(|_| !command.row.lock().lost.contains_key(&stream)) {
            Some(why) => {
                command.update(|row| {
                    row.lost.insert(stream, why);
                });
            }
            None => command.has_grown(),
        }
    }

    /// Takes in that how a command ended will never be known.
    pub(crate) fn command_lost(self: &Arc<Self>, command: &Arc<Command>) {
        if command.row.lock().status != CommandStatus::Running {
            return;
        }
        // The holder writes the evidence before it tells of it.
        if let Ok(Some(record)) = evidence::read(&command.dir) {
            return self.command_ended(&record);
        }
        self.settle(command, |row| {
            row.status = CommandStatus::Lost;
            row.ended_at_unix_ms = Some(now_unix_ms());
        });
    }

    fn settle(self: &Arc<Self>, command: &Arc<Command>, ended: impl FnOnce(&mut CommandRow)) {
        let (sandbox_id, session_id) = {
            let row = command.row.lock();
            (row.sandbox.clone(), row.session.clone())
        };
        let sandbox = self.sandboxes.read().get(&sandbox_id).cloned();
        let session = sandbox
            .as_ref()
            .and_then(|sandbox| sandbox.sessions.read().get(&session_id).cloned());
        // Before anybody learns of the end, and may go on with the session.
        let idle = session.as_ref().is_some_and(|session| {
            session.touch();
            let mut running = session.running.lock();
            running.remove(&command.id);
            running.is_empty()
        });
        // All of it is on record before anybody learns of the end.
        let mut row = command.row.lock().clone();
        ended(&mut row);
        if let Err(error) = self.command_rows.put(row.id.as_ref(), &row) {
            tracing::error!(command = %row.id, %error, "the end of a command could not be recorded");
        }
        let details = json!({
            "status": row.status,
            "exit_code": row.exit_code,
            "signal": row.signal,
            "survivors": row.survivors.len(),
        });
        self.tell_start(command);
        self.events
            .record("command.exited", self.command_subject(command), details);
        command.update(|known| *known = row);
        let Some(sandbox) = sandbox else { return };
        let (gateway, ended, of_session) = (Arc::clone(self), Arc::clone(command), session.clone());
        self.runtime.spawn_blocking(move || {
            gateway.release_command(&sandbox, of_session.as_deref(), &ended);
            gateway.trim_commands(&sandbox.id);
        });
        if let Some(session) = session
            && idle
            && session.row.lock().automatic
        {
            let (gateway, command) = (Arc::clone(self), Arc::clone(command));
            self.runtime
                .spawn(async move { gateway.finish_automatic(&session, &command).await });
        }
    }

    /// Lets go of what is held for an ended command: the number of its mount namespace, once all its
    /// accesses are written, and the holder's memory of it. What survives it keeps both until its
    /// session ends.
    fn release_command(&self, sandbox: &Sandbox, session: Option<&Session>, command: &Command) {
        // Or it would be registered when its namespace's number is another's already.
        drop(command.registering.lock());
        let survived = !command.row.lock().survivors.is_empty();
        // Where the view is gone, or going, all is written when that is done.
        if let Some(session) = session
            && let Some(view) = session.view.lock().clone()
        {
            if let Err(error) = view.recorder().flush() {
                tracing::error!(command = %command.id, %error, "accesses of a command were lost");
            }
            if survived {
                return;
            }
            session.namespaces.ended(command.id.as_ref());
        }
        if let Some(holder) = sandbox.holder.lock().clone() {
            forget(&holder, &command.id);
        }
    }

    /// Lets go of what is held for ended commands of a session whose namespaces are gone.
    pub(crate) fn release_survived(&self, session: &SessionId, holder: &Client) {
        let survived: Vec<CommandId> = self
            .commands
            .read()
            .values()
            .filter(|command| {
                let row = command.row.lock();
                row.session == *session && !row.survivors.is_empty()
            })
            .map(|command| command.id.clone())
            .collect();
        survived.iter().for_each(|id| forget(holder, id));
    }

    /// Ends every command of a session: SIGTERM, the grace, SIGKILL.
    pub(crate) async fn end_commands(
        self: &Arc<Self>,
        session: &Arc<Session>,
        grace: Duration,
    ) -> Result<()> {
        let running: Vec<Arc<Command>> = session.running.lock().values().cloned().collect();
        if !grace.is_zero() {
            for command in &running {
                let signal = Request::Signal {
                    command_id: command.id.to_string(),
                    signal: libc::SIGTERM,
                };
                match self.ask_reply(&session.sandbox, signal).await {
                    Ok(()) => {}
                    Err(error)
                        if error.code() == ErrorCode::Conflict
                            || error.code() == ErrorCode::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            let deadline = Instant::now() + grace;
            for command in &running {
                let mut changed = command.changed.subscribe();
                let left = deadline.saturating_duration_since(Instant::now());
                let ended =
                    changed.wait_for(|_| command.row.lock().status != CommandStatus::Running);
                let _ = tokio::time::timeout(left, ended).await;
            }
        }
        for command in &running {
            if command.row.lock().status != CommandStatus::Running {
                continue;
            }
            let (holder, id) = (session.sandbox.holder()?, command.id.to_string());
            let cancelled = self.blocking(move || Ok(holder.cancel(&id)?)).await;
            match cancelled {
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => return Err(error),
            }
            let mut changed = command.changed.subscribe();
            let ended = changed.wait_for(|_| command.row.lock().status != CommandStatus::Running);
            if tokio::time::timeout(Duration::from_secs(10), ended)
                .await
                .is_err()
            {
                return Err(Failure::conflict(format!(
                    "command {} cannot be ended; it waits in the kernel",
                    command.id
                )));
            }
        }
        Ok(())
    }

    async fn ask_reply(self: &Arc<Self>, sandbox: &Sandbox, request: Request) -> Result<()> {
        let holder = sandbox.holder()?;
        self.blocking(move || Ok(holder.request(&request, &[]).map(|_| ())?))
            .await
    }

    /// Forgets the oldest ended commands of a sandbox beyond the bound.
    fn trim_commands(&self, sandbox: &sandstack_api::SandboxId) {
        let bound = self.config.settings.limits.ended_commands;
        let mut ended: Vec<(u64, CommandId)> = self
            .commands
            .read()
            .values()
            .filter_map(|command| {
                let row = command.row.lock();
                let of_sandbox = row.sandbox == *sandbox && row.status != CommandStatus::Running;
                of_sandbox.then(|| (row.ended_at_unix_ms.unwrap_or(0), row.id.clone()))
            })
            .collect();
        if ended.len() <= bound {
            return;
        }
        ended.sort();
        for (_, id) in ended.iter().take(ended.len() - bound) {
            self.forget_command(id);
        }
    }

    fn forget_command(&self, id: &CommandId) {
        let Some(command) = self.commands.write().remove(id) else {
            return;
        };
        if let Err(error) = self.command_rows.remove(id.as_ref()) {
            tracing::warn!(command = %id, %error, "an old command could not be forgotten");
        }
        if let Err(error) = std::fs::remove_dir_all(&command.dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(command = %id, %error, "the transcript of an old command could not be removed");
        }
    }

    /// Forgets every command of a sandbox that goes.
    pub(crate) fn forget_commands(&self, sandbox: &Sandbox) -> Result<()> {
        self.commands
            .write()
            .retain(|_, command| command.row.lock().sandbox != sandbox.id);
        for row in self.command_rows.all()? {
            if row.sandbox == sandbox.id {
                self.command_rows.remove(row.id.as_ref())?;
            }
        }
        Ok(())
    }

    pub(crate) fn command_subject(&self, command: &Command) -> Subject {
        let row = command.row.lock();
        Subject {
            sandbox: Some(row.sandbox.clone()),
            session: Some(row.session.clone()),
            command: Some(row.id.clone()),
            request: Some(row.request.clone()),
        }
    }
}

fn forget(holder: &Client, command: &CommandId) {
    let request = Request::Forget {
        command_id: command.to_string(),
    };
    if let Err(error) = holder.done(&request) {
        // It is forgotten with its holder, or by whoever takes the sandbox up again.
        tracing::debug!(%command, %error, "the holder did not forget a command");
    }
}

fn check_size(request: &ExecCommand) -> Result<()> {
    for (name, value) in [("rows", request.rows), ("cols", request.cols)] {
        if value == Some(0) {
            return Err(Failure::invalid(format!(
                "{name} is 0; a terminal has 1 to 65535"
            )));
        }
        if value.is_some() && request.tty == Some(false) {
            return Err(Failure::invalid(format!(
                "{name} is the size of a terminal, and with tty=false there is none; leave it out"
            )));
        }
    }
    Ok(())
}

fn check_yield(yield_time_ms: Option<u64>) -> Result<Duration> {
    let wait = yield_time_ms.unwrap_or(DEFAULT_YIELD_MS);
    if wait > MAX_YIELD_MS {
        return Err(Failure::invalid(format!(
            "yield_time_ms is {wait}; it must be 0 to {MAX_YIELD_MS}"
        )));
    }
    Ok(Duration::from_millis(wait))
}

fn survivor(survivor: &HolderSurvivor) -> Survivor {
    Survivor {
        pid: survivor.pid as u32,
        name: Blob(survivor.name.0.clone()),
    }
}

fn lost(streams: &[StreamTotals]) -> BTreeMap<Stream, String> {
    streams
        .iter()
        .filter_map(|totals| Some((totals.stream, totals.lost.clone()?)))
        .collect()
}

/// Text of at most `bytes` bytes, for a summary.
pub(crate) fn cut(blob: &Blob, bytes: usize) -> Blob {
    Blob(blob.0[..blob.0.len().min(bytes)].to_vec())
}
