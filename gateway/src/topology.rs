//! Processes by session.

use std::collections::HashMap;
use std::sync::Arc;

use sandstack_api::observability::{ProcessRecord, SessionProcesses, Topology, TopologyReply};
use sandstack_api::{ApiError, Blob, CommandId, ErrorCode};

use crate::clock::now_unix_ms;
use crate::command::cut;
use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway, Sandbox, Session};
use crate::process::{self, Found};
use crate::show::MAX_ROWS;

/// Bytes of a command line.
const CMD_BYTES: usize = 200;

impl Sandbox {
    /// Which mount namespace is which command, of all its sessions.
    pub(crate) fn namespaces(&self) -> HashMap<u64, Arc<str>> {
        let sessions = self.sessions_newest_first();
        let known = sessions
            .iter()
            .flat_map(|session| session.namespaces.known());
        known.collect()
    }
}

impl Gateway {
    pub(crate) async fn topology(
        self: &Arc<Self>,
        context: &Context,
        request: &Topology,
    ) -> Result<TopologyReply> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let sessions = match &request.workspace_session_id {
            None => sandbox.sessions_newest_first(),
            Some(id) => vec![self.session_of(context, &sandbox.id, id)?],
        };
        self.blocking(move || {
            let mut errors = Vec::new();
            let boot = process::host_started_unix_ms().unwrap_or_else(|| {
                let message = "when the host started could not be read from /proc/stat";
                errors.push(ApiError::new(ErrorCode::Unavailable, message.to_owned()));
                0
            });
            let mut found = process::find(&sandbox.namespaces()).map_err(|error| {
                Failure::new(ErrorCode::Unavailable, "/proc cannot be listed").caused_by(error)
            })?;
            found.sort_by_key(|found| (found.started_ms(), found.pid));
            let sessions = sessions
                .iter()
                .map(|session| processes(session, &found, boot));
            Ok(TopologyReply {
                sandbox_id: sandbox.id.clone(),
                sessions: sessions.collect(),
                sampled_at_unix_ms: now_unix_ms(),
                errors,
            })
        })
        .await
    }
}

fn processes(session: &Session, found: &[Found], boot: u64) -> SessionProcesses {
    let known: HashMap<u64, Arc<str>> = session.namespaces.known().into_iter().collect();
    let own = |found: &&Found| known.values().any(|command| *command == found.command);
    let count = found.iter().filter(own).count();
    let shown = found.iter().filter(own).take(MAX_ROWS);
    SessionProcesses {
        workspace_session_id: session.id.clone(),
        processes: shown.filter_map(|found| record(found, boot)).collect(),
        process_count: count as u64,
    }
}

/// `None` if it has ended meanwhile.
fn record(found: &Found, boot: u64) -> Option<ProcessRecord> {
    Some(ProcessRecord {
        pid: found.pid,
        session_pid: found.inner_pid()?,
        parent_pid: found.parent(),
        command_session_id: CommandId::new(&found.command).ok()?,
        program: found.program().map(Blob),
        cmd: cut(&Blob(found.command_line()), CMD_BYTES),
        state: found.state().to_string(),
        threads: found.threads(),
        resident_bytes: found.resident_bytes(),
        cpu_ms: found.cpu_ms(),
        started_at_unix_ms: boot + found.started_ms(),
        namespaces: found.namespaces(),
    })
}
