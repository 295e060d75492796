//! What is known of an operation.

use std::fmt;

use schemars::Schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Authority, ErrorCode, OperationName};

/// What an operation does to the world: the hints of MCP and the retry rule of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing.
    ReadOnly,
    /// Changes something, and gives nothing up.
    Additive,
    /// May give up work or state; asks for `force` where that work is unpublished.
    Destructive,
}

/// One row of the catalogue.
pub struct Operation {
    /// Which operation.
    pub operation: OperationName,
    /// Its name on every surface.
    pub name: &'static str,
    /// A title for people.
    pub title: &'static str,
    /// Which authority a token needs.
    pub authority: Authority,
    /// What it does to the world.
    pub effect: Effect,
    /// Whether a second identical call changes nothing more.
    pub idempotent: bool,
    /// Whether it reaches beyond the sandbox's own state (runs any program, uses the network).
    pub open_world: bool,
    /// Whether progress is streamed to callers that accept `text/event-stream`.
    pub streams_progress: bool,
    /// The error codes it answers, besides those that every operation can answer
    /// ([`EVERY_OPERATION_ERRORS`]).
    pub errors: &'static [ErrorCode],
    /// Fields that are positional on the command line, in order.
    pub positional: &'static [&'static str],
    /// Makes the JSON schema of the request.
    pub request_schema: fn() -> Schema,
    /// Makes the JSON schema of the response.
    pub response_schema: fn() -> Schema,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.name)
            .field("authority", &self.authority)
            .finish()
    }
}

impl Operation {
    /// What it does: the doc comment of its request.
    pub fn description(&self) -> String {
        let schema = (self.request_schema)();
        schema
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }
}

/// Error codes that every operation can answer.
pub const EVERY_OPERATION_ERRORS: &[ErrorCode] = &[
    ErrorCode::InvalidRequest,
    ErrorCode::Unauthorized,
    ErrorCode::Forbidden,
    ErrorCode::Busy,
    ErrorCode::TooLarge,
    ErrorCode::RequestIdConflict,
    ErrorCode::Unavailable,
    ErrorCode::Internal,
];
