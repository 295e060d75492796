//! Everything that can go wrong, from the caller's side.
//!
//! Owns [`Error`], the one error type of this crate. What a holder answers with is
//! a [`Refusal`]: a value of the protocol, carried here as one variant.

use std::io;
use std::path::PathBuf;

use crate::protocol::Refusal;

/// Why a call into this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be used.
    #[error("cannot {action} {}", path.display())]
    Path {
        /// What was tried, as a verb: "create", "open", …
        action: &'static str,
        /// The path it was tried on.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A system call that names no path failed.
    #[error("cannot {action}")]
    System {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Another holder already answers on the socket.
    #[error("a holder (pid {pid}) already answers on {}", socket.display())]
    AlreadyServing {
        /// The socket's path.
        socket: PathBuf,
        /// The pid that listens there, in the caller's pid namespace.
        pid: i32,
    },
    /// The holder must fork without other threads, and there are some.
    #[error("the holder must be single-threaded, and this process has {threads} threads")]
    Threaded {
        /// How many threads the process has.
        threads: usize,
    },
    /// The two sides speak different versions of the protocol.
    #[error("the holder speaks protocol {theirs}, this program speaks {ours}")]
    VersionMismatch {
        /// The version of this program.
        ours: u32,
        /// The version of the other side.
        theirs: u32,
    },
    /// The connection to the holder has ended; nothing more can be asked on it.
    #[error("the connection to the holder has ended")]
    Disconnected,
    /// The other side sent something that is not of the protocol.
    #[error("malformed frame: {detail}")]
    Protocol {
        /// What was wrong with it.
        detail: String,
    },
    /// A frame would exceed the protocol's limit.
    #[error("a frame of {bytes} bytes exceeds the limit of {limit}")]
    FrameTooLarge {
        /// The frame's size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The holder understood the request and refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A directory already holds a transcript.
    #[error("{} already holds a transcript", dir.display())]
    TranscriptExists {
        /// The directory.
        dir: PathBuf,
    },
    /// A transcript's limit is too small for its format.
    #[error("a transcript's limit of {limit} bytes is below the least, {least}")]
    TranscriptLimit {
        /// The limit asked for, in bytes.
        limit: u64,
        /// The least limit, in bytes.
        least: u64,
    },
    /// A file of a transcript or an exit record can't be understood.
    #[error("{} can't be read by this version: {detail}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The transcript has no such stream.
    #[error("the transcript has no stream {stream}")]
    StreamUnknown {
        /// The stream asked for.
        stream: crate::protocol::Stream,
    },
}

impl Error {
    /// Makes a [`Error::Path`] from its parts; for `map_err`.
    pub(crate) fn path(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Path {
            action,
            path,
            source,
        }
    }

    /// Makes a [`Error::System`] from its parts; for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::System {
            action,
            source: source.into(),
        }
    }
}
