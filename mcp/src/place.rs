//! Where the gateway is, and the token that calls it.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use sandstack_api::client::Client;
use sandstack_api::{ApiError, Authority, ErrorCode};

/// The gateway's socket and the file that holds the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The socket.
    pub socket: PathBuf,
    /// The file.
    pub token_file: PathBuf,
}

impl Place {
    /// A client for one call. The token is read anew each time, so that a server which was started
    /// before its gateway, or lives through a change of token, needs no restart.
    ///
    /// # Errors
    /// `unauthorized` naming the file and the fix; `unavailable` where there is neither a token nor
    /// a socket, since it is then the gateway that is missing.
    pub(crate) fn client(&self, authority: Authority) -> Result<Client, ApiError> {
        let source = match self.read_token() {
            Ok(token) => return Ok(Client::new(&self.socket, token)),
            Err(source) => source,
        };
        if source.kind() == ErrorKind::NotFound && !self.socket.exists() {
            return Err(ApiError::new(
                ErrorCode::Unavailable,
                format!(
                    "no gateway is at {}, and its token {} does not exist; start one with `sandbox-gateway serve`, or start sandbox-mcp with the gateway's --state-dir",
                    self.socket.display(),
                    self.token_file.display()
                ),
            ));
        }
        Err(ApiError::new(
            ErrorCode::Unauthorized,
            format!(
                "cannot read the {authority} token {}: {source}; start sandbox-mcp as the user that runs the gateway, or with --token-file",
                self.token_file.display()
            ),
        ))
    }

    fn read_token(&self) -> io::Result<String> {
        let text = std::fs::read_to_string(&self.token_file)?;
        let token = text.trim();
        // What a header can carry; anything else was never a token.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the file holds no token",
            ));
        }
        Ok(token.to_owned())
    }
}
