//! What went wrong, as the caller is told, with the chain of causes for the log. The only place in
//! which errors of the store, the filesystem and the holder become codes of the catalogue.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use sandstack_api::{ApiError, ErrorCode};
use sandstack_fs::Error as FsError;
use sandstack_holder::Error as HolderError;
use sandstack_holder::protocol::Refusal;
use sandstack_store::Error as StoreError;

/// The result of a handler.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a request was not done.
#[derive(Debug)]
pub(crate) struct Failure {
    answer: Box<ApiError>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Failure {
    /// A failure that the caller is told of with `code` and `message`.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Failure {
            answer: Box::new(ApiError::new(code, message)),
            cause: None,
        }
    }

    /// A field that is malformed or out of range.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Failure::new(ErrorCode::InvalidRequest, message)
    }

    /// Something that does not exist.
    pub(crate) fn not_found(what: &str, id: impl fmt::Display) -> Self {
        Failure::new(ErrorCode::NotFound, format!("there is no {what} {id}"))
    }

    /// A state that does not allow it.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Failure::new(ErrorCode::Conflict, message)
    }

    /// A fault of ours.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Failure::new(ErrorCode::Internal, message)
    }

    /// The same failure with a detail for machines.
    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        *self.answer = self.answer.with(key, value);
        self
    }

    /// The same failure with its cause, for the log.
    #[must_use]
    pub(crate) fn caused_by(mut self, cause: impl StdError + Send + Sync + 'static) -> Self {
        self.cause = Some(Box::new(cause));
        self
    }

    /// The code that the caller is told.
    pub(crate) fn code(&self) -> ErrorCode {
        self.answer.code
    }

    /// What it is, for whoever has no log to look into.
    pub(crate) fn in_full(&self) -> String {
        match &self.cause {
            Some(cause) if self.answer.code == ErrorCode::Internal => chain(cause.as_ref()),
            Some(cause) => format!("{} ({})", self.answer.message, chain(cause.as_ref())),
            None => self.answer.message.clone(),
        }
    }

    /// What the caller is told; the causes go to the log.
    pub(crate) fn into_answer(self, request_id: &str) -> ApiError {
        let internal = self.answer.code == ErrorCode::Internal;
        if internal || self.cause.is_some() {
            let chain = self.cause.as_deref().map(chain).unwrap_or_default();
            if internal {
                tracing::error!(request_id, message = %self.answer.message, chain, "a request failed");
            } else {
                tracing::info!(request_id, message = %self.answer.message, chain, "a request was refused");
            }
        }
        *self.answer
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.answer.message)
    }
}

/// A cause and its causes, in one line.
pub(crate) fn chain(error: &(dyn StdError + Send + Sync)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Quota { .. } => ErrorCode::QuotaExceeded,
            error if error.is_disk_full() => ErrorCode::QuotaExceeded,
            StoreError::NoLayer(_) | StoreError::NoPath(_) | StoreError::NoChange(_) => {
                ErrorCode::NotFound
            }
            StoreError::NoReads { .. } => ErrorCode::Conflict,
            StoreError::NotImportable { .. }
            | StoreError::StoreInside { .. }
            | StoreError::Unreadable { .. } => ErrorCode::InvalidRequest,
            StoreError::ChangedWhileRead { .. } => ErrorCode::Conflict,
            StoreError::TooLarge { .. } => ErrorCode::TooLarge,
            StoreError::InUse { .. } => ErrorCode::Unavailable,
            StoreError::Failed { .. } => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        };
        let message = match code {
            ErrorCode::Internal => "the store failed; the log has the cause under this request's id".to_owned(),
            ErrorCode::QuotaExceeded if error.is_disk_full() => {
                "the disk that holds the state directory is full; nothing was changed; free some space and try again"
                    .to_owned()
            }
            _ => error.to_string(),
        };
        Failure::new(code, message).caused_by(error)
    }
}

impl From<HolderError> for Failure {
    fn from(error: HolderError) -> Self {
        let code = match &error {
            HolderError::Refused(refusal) => refusal_code(refusal),
            HolderError::Disconnected
            | HolderError::Path { .. }
            | HolderError::VersionMismatch { .. } => ErrorCode::Unavailable,
            HolderError::FrameTooLarge { .. } => ErrorCode::TooLarge,
            _ => ErrorCode::Internal,
        };
        let message = match &error {
            HolderError::Refused(Refusal::Transcript { errno, .. }) if is_full(*errno) => {
                "the disk that holds the state directory is full, and there is no room for the command's output; free \
                 some space and try again"
                    .to_owned()
            }
            HolderError::Refused(refusal) if code == ErrorCode::QuotaExceeded => format!(
                "{refusal}: the sandbox has as many processes as it may have (`resources.pids_max`, or \
                 `limits.sandbox_processes` in the configuration); end some of its commands"
            ),
            HolderError::Refused(refusal) => refusal.to_string(),
            HolderError::Disconnected | HolderError::Path { .. } => {
                "the sandbox's holder does not answer; inspect_sandbox shows its state".to_owned()
            }
            error => error.to_string(),
        };
        Failure::new(code, message).caused_by(error)
    }
}

fn is_full(errno: i32) -> bool {
    [libc::ENOSPC, libc::EDQUOT].contains(&errno)
}

fn refusal_code(refusal: &Refusal) -> ErrorCode {
    match refusal {
        // A fork that a limit of processes forbids.
        Refusal::SpawnStep { errno, .. } | Refusal::SetupStep { errno, .. }
            if *errno == libc::EAGAIN =>
        {
            ErrorCode::QuotaExceeded
        }
        Refusal::ConnectRefused { .. } => ErrorCode::Unavailable,
        Refusal::Transcript { errno, .. } if is_full(*errno) => ErrorCode::QuotaExceeded,
        Refusal::Busy { .. } | Refusal::TooMany { .. } => ErrorCode::Busy,
        Refusal::SessionUnknown { .. }
        | Refusal::CommandUnknown { .. }
        | Refusal::ProgramNotFound { .. } => ErrorCode::NotFound,
        Refusal::Invalid { .. }
        | Refusal::Cwd { .. }
        | Refusal::NotExecutable { .. }
        | Refusal::IdNotMapped { .. } => ErrorCode::InvalidRequest,
        Refusal::ArgumentsTooLong => ErrorCode::TooLarge,
        Refusal::SessionGone { .. }
        | Refusal::KilledEarly { .. }
        | Refusal::CommandNotRunning { .. }
        | Refusal::CommandRunning { .. }
        | Refusal::StdinClosed { .. }
        | Refusal::NotATerminal { .. } => ErrorCode::Conflict,
        Refusal::SessionExists { .. } | Refusal::CommandExists { .. } => ErrorCode::AlreadyExists,
        Refusal::NamespacesRefused { .. }
        | Refusal::ProcRefused { .. }
        | Refusal::FuseRefused { .. } => ErrorCode::Unsupported,
        Refusal::NotGreeted | Refusal::VersionMismatch { .. } | Refusal::ShuttingDown => {
            ErrorCode::Unavailable
        }
        Refusal::SpawnStep { .. }
        | Refusal::Transcript { .. }
        | Refusal::MountpointMissing { .. }
        | Refusal::SourceMissing { .. }
        | Refusal::ViewRefused { .. }
        | Refusal::SetupStep { .. }
        | Refusal::StillAlive { .. } => ErrorCode::Internal,
    }
}

impl Failure {
    /// A failure of a file operation on `path`.
    pub(crate) fn of_path(error: FsError, path: &[u8]) -> Self {
        let path = path.escape_ascii().to_string();
        let (code, message) = match &error {
            FsError::NotFound => (
                ErrorCode::NotFound,
                format!("there is no file {path:?} in the workspace"),
            ),
            FsError::NotPermitted => (
                ErrorCode::InvalidRequest,
                format!(
                    "{path:?} leads out of the workspace; give a path relative to the workspace root"
                ),
            ),
            FsError::IsDirectory => (
                ErrorCode::InvalidRequest,
                format!("{path:?} is a directory"),
            ),
            FsError::NotDirectory => (
                ErrorCode::InvalidRequest,
                format!("{path:?} goes through something that is no directory"),
            ),
            FsError::Invalid => (
                ErrorCode::InvalidRequest,
                format!("{path:?} is no regular file"),
            ),
            FsError::NameTooLong => (
                ErrorCode::InvalidRequest,
                format!("a name in {path:?} is longer than 255 bytes or not valid"),
            ),
            FsError::Loop => (
                ErrorCode::InvalidRequest,
                format!("{path:?} goes through too many symlinks"),
            ),
            FsError::FileTooLarge => (
                ErrorCode::TooLarge,
                format!("{path:?} would be larger than a file can be"),
            ),
            FsError::Exists => (
                ErrorCode::AlreadyExists,
                format!(
                    "{path:?} exists already; choose another path, or say that it is to be replaced"
                ),
            ),
            FsError::NotEmpty => (
                ErrorCode::Conflict,
                format!(
                    "{path:?} is a directory that is not empty; what is in it goes only if the request says so"
                ),
            ),
            FsError::NoAttribute
            | FsError::TooSmall
            | FsError::NoData
            | FsError::Unsupported
            | FsError::TooManyLinks => (ErrorCode::Conflict, format!("{path:?}: {error}")),
            FsError::Store(_) => {
                let FsError::Store(error) = error else {
                    unreachable!("matched above")
                };
                return Failure::from(error);
            }
        };
        Failure::new(code, message)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        match error {
            FsError::Store(error) => Failure::from(error),
            other => Failure::internal(format!("the filesystem failed: {other}")).caused_by(other),
        }
    }
}

/// An input or output that failed while `doing`.
pub(crate) fn io_failure(doing: &str) -> impl FnOnce(io::Error) -> Failure {
    let doing = doing.to_owned();
    move |error| {
        let code = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::QuotaExceeded,
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        };
        Failure::new(code, format!("{doing}: {error}")).caused_by(error)
    }
}
