//! The operation catalogue: the one contract between the gateway and everyone who calls it.
//!
//! Owns the name, authority, request, response, error codes and hints of every operation
//! ([`catalogue`]), their rendering as a JSON catalogue, an OpenAPI document and the operations
//! page ([`render`]), and the client that the CLIs and the MCP server share ([`client`]).
//!
//! It never decides what an operation does: handlers live in the gateway, which matches
//! [`Request`] exhaustively, so a row without a handler does not compile and a handler without a
//! row cannot be reached. It depends on no other package of ours, never prints, and never reads
//! the environment.
//!
//! Invariants:
//! - Bytes are never lost: a path or content that is not UTF-8 travels as `{"base64": …}`
//!   ([`Blob`]) and comes back byte for byte.
//! - Requests refuse unknown fields; responses may grow fields.
//! - Every time in a response is Unix milliseconds, every size bytes, and the field's name says so.

mod authority;
mod blob;
pub mod catalogue;
pub mod client;
mod error;
mod id;
pub mod management;
pub mod observability;
mod operation;
pub mod render;
pub mod runtime;

pub use authority::{Authority, AuthoritySet};
pub use blob::{Blob, Encoding, Text};
pub use catalogue::{Call, Effect, OPERATIONS, Operation, OperationName, Request};
pub use error::{ApiError, ErrorBody, ErrorCode};
pub use id::{CommandId, Id, InvalidId, LayerId, RequestId, SandboxId, SessionId};

/// Largest accepted request body, in bytes (16 MiB).
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Largest window of text or content in one response, in bytes (256 KiB) before encoding.
pub const MAX_WINDOW_BYTES: usize = 256 << 10;
/// Most rows in one page of a list.
pub const MAX_PAGE_ROWS: u32 = 1000;
/// Rows in a page when the request does not say.
pub const DEFAULT_PAGE_ROWS: u32 = 200;
