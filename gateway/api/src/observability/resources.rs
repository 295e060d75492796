//! What sandboxes, sessions and commands use, now and before.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApiError, CommandId, SandboxId, SessionId};

/// Shows what a sandbox's commands use: processor time, memory, input and output, processes, disk, over time.
///
/// While commands run, a sample of each is taken every few seconds and kept. Newest first; the newest is taken for the
/// answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Only this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_session_id: Option<SessionId>,
    /// Only this command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_session_id: Option<CommandId>,
    /// Only samples at or after this time, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Most samples: 1 to 1000, default 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub last_n: Option<u32>,
}

/// What commands use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourcesReply {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The samples, newest first.
    pub samples: Vec<ResourceSample>,
    /// What sessions take on disk now, newest first.
    #[serde(default)]
    pub disk: Vec<SessionDisk>,
    /// Milliseconds between samples.
    pub interval_ms: u64,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// What one command used at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceSample {
    /// When, in Unix milliseconds.
    pub time_unix_ms: u64,
    /// The session.
    pub workspace_session_id: SessionId,
    /// The command.
    pub command_session_id: CommandId,
    /// Its processes.
    pub processes: u64,
    /// Their threads.
    pub threads: u64,
    /// Processor time of these processes and of children that they have waited for, in milliseconds.
    pub cpu_ms: u64,
    /// Their resident memory, in bytes; what they share is counted for each.
    pub resident_bytes: u64,
    /// Bytes that they read from disks; absent if the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes that they wrote to disks; absent if the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// What the session's unpublished changes took on disk, in bytes, whoever made them.
    #[serde(default)]
    pub upper_bytes: u64,
}

/// What a session takes on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDisk {
    /// The session.
    pub workspace_session_id: SessionId,
    /// Bytes of its unpublished changes.
    pub upper_bytes: u64,
}

/// Shows a sandbox's control groups: limits and counters as the kernel has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cgroup {
    /// The sandbox.
    pub sandbox_id: SandboxId,
}

/// The control groups of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupReply {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The version of control groups on this host: 1 or 2.
    pub version: u32,
    /// Its groups: one, or in version 1 one for each controller. None if the sandbox has no limit that needs one.
    pub groups: Vec<CgroupRecord>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// One control group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupRecord {
    /// Where it is.
    pub path: String,
    /// What its files say, by file and key: `memory.current`, `cpu.stat usage_usec`. A limit of `max` is left out.
    pub values: BTreeMap<String, u64>,
}
