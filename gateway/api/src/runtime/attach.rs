//! Attachments: the view of a session at a directory of the gateway's host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Blob, SessionId};

/// Shows a session's view at a directory of the host too, for editors, debuggers and tests there.
///
/// What is changed there is the session's change, as if a command had made it. The attachment survives a restart
/// of the gateway, and is gone with the session. Needs a gateway that may mount.
///
/// Example: `{"workspace_session_id": "ws-8fq2m1", "path": "/home/me/view"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachWorkspaceSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// An empty directory on the gateway's host, absolute.
    pub path: Blob,
}

/// Takes a session's view away from a directory of the host. Programs that are still in there get errors.
///
/// A path that is not attached is no error: it is as asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetachWorkspaceSession {
    /// The session.
    pub workspace_session_id: SessionId,
    /// The directory, as it was attached.
    pub path: Blob,
}

/// Where on the host a session's view is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attachments {
    /// The session.
    pub workspace_session_id: SessionId,
    /// The directories, without symlinks.
    pub attachments: Vec<Blob>,
}
