//! The closed set of error codes and the error envelope.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why an operation was refused or failed: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is malformed or out of range; the message names the field and the fix.
    InvalidRequest,
    /// No token, or one that is unknown or expired.
    Unauthorized,
    /// The token lacks this operation's authority or this sandbox.
    Forbidden,
    /// No such sandbox, session, command, layer or path.
    NotFound,
    /// The name or id is taken.
    AlreadyExists,
    /// The state of the thing does not allow it (running commands, unpublished changes).
    Conflict,
    /// Something that the session read has changed since.
    StaleReads,
    /// An expected digest did not match.
    PreconditionFailed,
    /// Too much at once; retry after `retry_after_ms`.
    Busy,
    /// A quota or the disk is full.
    QuotaExceeded,
    /// The request or the result is larger than the bound that the message states.
    TooLarge,
    /// A bounded wait ran out.
    Timeout,
    /// The caller cancelled.
    Cancelled,
    /// Something that is needed (Docker, /dev/fuse, the holder) is not there.
    Unavailable,
    /// This host or provider cannot do it.
    Unsupported,
    /// A request id came back with another body.
    RequestIdConflict,
    /// A fault of ours; the log has the chain under the request id.
    Internal,
}

impl ErrorCode {
    /// Every code, in the order of the documentation.
    pub const ALL: [ErrorCode; 17] = [
        ErrorCode::InvalidRequest,
        ErrorCode::Unauthorized,
        ErrorCode::Forbidden,
        ErrorCode::NotFound,
        ErrorCode::AlreadyExists,
        ErrorCode::Conflict,
        ErrorCode::StaleReads,
        ErrorCode::PreconditionFailed,
        ErrorCode::Busy,
        ErrorCode::QuotaExceeded,
        ErrorCode::TooLarge,
        ErrorCode::Timeout,
        ErrorCode::Cancelled,
        ErrorCode::Unavailable,
        ErrorCode::Unsupported,
        ErrorCode::RequestIdConflict,
        ErrorCode::Internal,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCode::InvalidRequest => "invalid_request",
            ErrorCode::Unauthorized => "unauthorized",
            ErrorCode::Forbidden => "forbidden",
            ErrorCode::NotFound => "not_found",
            ErrorCode::AlreadyExists => "already_exists",
            ErrorCode::Conflict => "conflict",
            ErrorCode::StaleReads => "stale_reads",
            ErrorCode::PreconditionFailed => "precondition_failed",
            ErrorCode::Busy => "busy",
            ErrorCode::QuotaExceeded => "quota_exceeded",
            ErrorCode::TooLarge => "too_large",
            ErrorCode::Timeout => "timeout",
            ErrorCode::Cancelled => "cancelled",
            ErrorCode::Unavailable => "unavailable",
            ErrorCode::Unsupported => "unsupported",
            ErrorCode::RequestIdConflict => "request_id_conflict",
            ErrorCode::Internal => "internal",
        }
    }

    /// The HTTP status that carries this code.
    pub fn http_status(self) -> u16 {
        match self {
            ErrorCode::InvalidRequest => 400,
            ErrorCode::Unauthorized => 401,
            ErrorCode::Forbidden => 403,
            ErrorCode::NotFound => 404,
            ErrorCode::AlreadyExists
            | ErrorCode::Conflict
            | ErrorCode::StaleReads
            | ErrorCode::RequestIdConflict => 409,
            ErrorCode::PreconditionFailed => 412,
            ErrorCode::TooLarge => 413,
            ErrorCode::Busy => 429,
            ErrorCode::Cancelled => 499,
            ErrorCode::Internal => 500,
            ErrorCode::Unsupported => 501,
            ErrorCode::Unavailable => 503,
            ErrorCode::Timeout => 504,
            ErrorCode::QuotaExceeded => 507,
        }
    }

    /// Whether the same request may succeed later without a change.
    pub fn retryable(self) -> bool {
        match self {
            ErrorCode::Busy | ErrorCode::Timeout | ErrorCode::Unavailable => true,
            ErrorCode::InvalidRequest
            | ErrorCode::Unauthorized
            | ErrorCode::Forbidden
            | ErrorCode::NotFound
            | ErrorCode::AlreadyExists
            | ErrorCode::Conflict
            | ErrorCode::StaleReads
            | ErrorCode::PreconditionFailed
            | ErrorCode::QuotaExceeded
            | ErrorCode::TooLarge
            | ErrorCode::Cancelled
            | ErrorCode::Unsupported
            | ErrorCode::RequestIdConflict
            | ErrorCode::Internal => false,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as a caller sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    /// The kind of error.
    pub code: ErrorCode,
    /// One sentence that names the input and the fix.
    pub message: String,
    /// Machine-readable particulars; an object, empty when there are none.
    #[serde(default = "empty_object")]
    pub details: Value,
    /// Whether the same request may succeed later without a change.
    pub retryable: bool,
}

/// The body of every HTTP response that is an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
}

fn empty_object() -> Value {
    Value::Object(Default::default())
}

impl ApiError {
    /// An error with `code` and `message`, and no details.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ApiError {
            code,
            message: message.into(),
            details: empty_object(),
            retryable: code.retryable(),
        }
    }

    /// The same error with a detail added.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        if let Value::Object(map) = &mut self.details {
            map.insert(key.to_owned(), value.into());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_wire_match() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
