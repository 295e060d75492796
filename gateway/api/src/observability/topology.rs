//! Processes by session.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApiError, Blob, CommandId, SandboxId, SessionId};

/// Shows the processes of a sandbox's sessions, each with its command and its namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Only this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
}

/// The processes of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyReply {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Its sessions, newest first.
    pub sessions: Vec<SessionProcesses>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// The processes of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionProcesses {
    /// The session.
    pub workspace_session_id: SessionId,
    /// The processes of its commands, oldest first, at most 1000.
    pub processes: Vec<ProcessRecord>,
    /// How many there are.
    pub process_count: u64,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessRecord {
    /// Its number on the gateway's host.
    pub pid: u32,
    /// Its number in the session.
    pub session_pid: u32,
    /// Its parent's number on the gateway's host.
    pub parent_pid: u32,
    /// The command that it is of.
    pub command_session_id: CommandId,
    /// The program that it runs; absent if that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Blob>,
    /// Its command line with spaces between the words, cut to 200 bytes.
    pub cmd: Blob,
    /// Its state, as `ps` has it: `R`, `S`, `D`, `T`, `Z` …
    pub state: String,
    /// Its threads.
    pub threads: u64,
    /// Its resident memory, in bytes.
    pub resident_bytes: u64,
    /// Processor time, its own and of children that it has waited for, in milliseconds.
    pub cpu_ms: u64,
    /// When it started, in Unix milliseconds.
    pub started_at_unix_ms: u64,
    /// The inode numbers of its namespaces, by kind: `mnt`, `pid`, `net`, `user`, `ipc` …
    pub namespaces: BTreeMap<String, u64>,
}
