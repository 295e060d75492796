//! Sandstack's MCP server: the operations of one authority as tools.
//!
//! Every row of that authority in the operation catalogue is a tool of the same name, with the
//! row's schemas, hints and doc comment. A call of a tool is a call of the operation through the
//! gateway's socket; its answer is the tool's structured content.
//!
//! It knows nothing of what an operation does, keeps no state between calls, and writes nothing but
//! protocol to its output. It reads no environment: [`Options::parse`] is given what it may know.
//!
//! Invariants:
//! - No input ends the server except the end of input: bad lines are answered and forgotten
//!   (`lines`).
//! - What a model can mend is a tool error that says how; a protocol error is only for a message
//!   that names no tool.
//! - No answer is larger than [`MAX_ANSWER_BYTES`]; one that was cut says so and how to get the
//!   rest (`window`).

mod lines;
mod options;
mod place;
mod server;
mod tool;
mod window;

use rmcp::service::{QuitReason, serve_directly};
use sandstack_api::Authority;
use tokio::io::{AsyncRead, AsyncWrite};

pub use options::{Environment, Options, Request, UsageError};
pub use place::Place;
pub use window::MAX_ANSWER_BYTES;

/// Why the server ended otherwise than by the end of its input.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A task of the server panicked.
    #[error("the server failed: {0}")]
    Failed(#[source] tokio::task::JoinError),
}

/// Serves the tools of `authority`, whose gateway is at `place`, until `input` ends or nobody reads
/// `output` any more. Calls that run when `input` ends get five seconds to be answered.
///
/// # Errors
/// [`ServeError`].
pub async fn serve<R, W>(
    authority: Authority,
    place: Place,
    input: R,
    output: W,
) -> Result<(), ServeError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let transport = lines::Lines::new(input, output);
    // Not `serve`, which ends with the first message that is no handshake. `initialize` is an
    // ordinary request here, and so is `server/discover`: both eras of the protocol are served
    // without a state that a message out of order could break.
    let running = serve_directly(server::Server::new(authority, place), transport, None);
    let failed = |error| Err(ServeError::Failed(error));
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => failed(error),
        Ok(_) => Ok(()),
    }
}
