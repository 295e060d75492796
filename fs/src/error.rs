//! What a filesystem operation answers when it does not do what was asked, and the one place that
//! makes an errno of it.

use sandstack_store::Error as StoreError;

/// The result of a filesystem operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such entry or inode.
    #[error("no such file or directory")]
    NotFound,
    /// There is such an entry already.
    #[error("the file exists")]
    Exists,
    /// Something that is to be a directory is none.
    #[error("not a directory")]
    NotDirectory,
    /// Something that is not to be a directory is one.
    #[error("it is a directory")]
    IsDirectory,
    /// A directory that is to go has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// An argument makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// A name is longer than 255 bytes.
    #[error("the file name is too long")]
    NameTooLong,
    /// There is no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// A buffer is too small.
    #[error("the result does not fit")]
    TooSmall,
    /// No data or hole follows.
    #[error("no data follows")]
    NoData,
    /// The filesystem cannot do it.
    #[error("the operation is not supported")]
    Unsupported,
    /// It may not be done, whoever asks.
    #[error("the operation is not permitted")]
    NotPermitted,
    /// A file would become larger than a file can be.
    #[error("the file is too large")]
    FileTooLarge,
    /// A file has as many names as it can have.
    #[error("too many links")]
    TooManyLinks,
    /// Too many symlinks on the way.
    #[error("too many levels of symbolic links")]
    Loop,
    /// The store could not do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// Whether a quota or the disk is full.
    pub(crate) fn lacks_room(&self) -> bool {
        matches!(self.errno(), libc::EDQUOT | libc::ENOSPC)
    }

    /// The errno that stands for it.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::Invalid => libc::EINVAL,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::NoAttribute => libc::ENODATA,
            Error::TooSmall => libc::ERANGE,
            Error::NoData => libc::ENXIO,
            Error::Unsupported => libc::EOPNOTSUPP,
            Error::NotPermitted => libc::EPERM,
            Error::FileTooLarge => libc::EFBIG,
            Error::TooManyLinks => libc::EMLINK,
            Error::Loop => libc::ELOOP,
            Error::Store(StoreError::Quota { .. }) => libc::EDQUOT,
            Error::Store(error) if error.is_disk_full() => libc::ENOSPC,
            Error::Store(_) => libc::EIO,
        }
    }
}
