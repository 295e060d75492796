//! What of the host sandboxes need, looked at.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ApiError;

/// Looks at what sandboxes need of the host, and says how to mend what is missing.
///
/// Each check is tried, not guessed from versions: namespaces and a control group are made, Docker is
/// asked. Nothing of it stays.
///
/// Example: `{}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Doctor {}

/// What the host has and lacks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Whether nothing is `broken`: local sandboxes can be used.
    pub healthy: bool,
    /// Every check, in a fixed order.
    pub checks: Vec<HostCheck>,
    /// When this was true, in Unix milliseconds.
    pub sampled_at_unix_ms: u64,
    /// What could not be found out.
    pub errors: Vec<ApiError>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostCheck {
    /// What was looked at, such as `user_namespaces`.
    pub name: String,
    /// How it stands.
    pub status: CheckStatus,
    /// What was found.
    pub found: String,
    /// How to mend it; absent if it is `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// How it stands with something that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// All there.
    Ok,
    /// Sandboxes work, but for what `found` says.
    Limited,
    /// Sandboxes do not work.
    Broken,
}
