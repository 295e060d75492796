//! The gateway's own metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ApiError;

/// Shows the gateway's own metrics: memory, threads, descriptors, queues, and how many requests it has answered, of the
/// kernel and of callers, and how long they took.
///
/// The same numbers are at `GET /metrics`, in the text format of Prometheus, for a token of this authority.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Daemon {}

/// The gateway's own metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonReply {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started, in Unix milliseconds.
    pub started_at_unix_ms: u64,
    /// Its resident memory, in bytes.
    pub resident_bytes: u64,
    /// The most that its resident memory ever was, in bytes.
    pub peak_resident_bytes: u64,
    /// Processor time in its own code, in milliseconds.
    pub user_cpu_ms: u64,
    /// Processor time in the kernel for it, in milliseconds.
    pub system_cpu_ms: u64,
    /// Its open descriptors.
    pub open_descriptors: u64,
    /// Descriptors that it may have open.
    pub descriptor_limit: u64,
    /// Its threads, by name.
    pub threads: Vec<ThreadGroup>,
    /// What waits and what is under way.
    pub queues: Queues,
    /// What lives.
    pub counts: Counts,
    /// Requests of the kernel to views since the start, by operation.
    pub kernel_requests: Vec<RequestCounts>,
    /// Requests of callers since the start, by operation. A duration is that of the whole request.
    pub operations: Vec<RequestCounts>,
    /// What was sent to a collector of spans; absent where none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otlp: Option<SentSpans>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// What was sent to a collector of spans (OTLP) since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SentSpans {
    /// Where they go.
    pub endpoint: String,
    /// Spans that it took.
    pub sent: u64,
    /// Spans that it will never have: it did not answer, or they came too fast for it.
    pub lost: u64,
    /// Why the last ones were not taken; absent if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Threads of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadGroup {
    /// The name; of a pool's threads the pool's.
    pub name: String,
    /// How many.
    pub count: u64,
}

/// What waits and what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queues {
    /// Requests that are worked on.
    pub active_requests: u64,
    /// Requests that wait in line.
    pub waiting_requests: u64,
    /// Access records that wait to be written, of all sessions.
    pub waiting_access_records: u64,
}

/// What lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Sandboxes.
    pub sandboxes: u64,
    /// Sessions.
    pub workspace_sessions: u64,
    /// Views that are served.
    pub views: u64,
    /// Commands that run.
    pub running_commands: u64,
}

/// Requests of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestCounts {
    /// The operation.
    pub operation: String,
    /// How many.
    pub count: u64,
    /// How many of them failed; of the kernel's this is not counted, and 0.
    pub failed: u64,
    /// How long all of them took, in microseconds.
    pub total_us: u64,
    /// How many took no longer than so long. Each class has those of the classes before it, too.
    pub classes: Vec<DurationClass>,
}

/// Requests that took no longer than so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DurationClass {
    /// How long, in microseconds.
    pub up_to_us: u64,
    /// How many.
    pub count: u64,
}
