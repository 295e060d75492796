//! Where an export is made before it has its place.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::error::{Error, Result};

/// Compression of `tar-zst`: what zstd takes for granted.
const ZSTD_LEVEL: i32 = 3;

/// Exports to one destination that may be under way at once. All but one will find it taken.
const ATTEMPTS: u32 = 16;

fn make(path: &Path, directory: bool) -> io::Result<()> {
    if directory {
        return fs::DirBuilder::new().mode(0o700).create(path);
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map(|_| ())
}

fn is_there(made: &io::Result<()>) -> bool {
    made.as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

/// Locks what is being made. `None`: another process makes it, or has removed it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let id = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    Ok(match fs::symlink_metadata(path) {
        Ok(metadata) if id(&metadata) == id(&file.metadata()?) => Some(file),
        _ => None,
    })
}

/// Removes what a killed process has left at `path`; `false` if it is not abandoned, or stays.
fn clear_abandoned(path: &Path, directory: bool) -> bool {
    let Ok(Some(_lock)) = lock(path) else {
        return false;
    };
    let removed = if directory {
        remove_tree(path)
    } else {
        fs::remove_file(path)
    };
    if let Err(error) = &removed {
        tracing::warn!(path = %path.display(), %error, "an abandoned export stays");
    }
    removed.is_ok()
}

/// What is being made beside its destination; removed when dropped before it has its place.
pub(super) struct Staged {
    dest: PathBuf,
    path: PathBuf,
    directory: bool,
    placed: bool,
    /// Held while it is being made, so that one that was abandoned by a killed process is known.
    _lock: File,
}

impl Staged {
    pub(super) fn new(dest: &Path, directory: bool) -> Result<Staged> {
        let taken = match fs::symlink_metadata(dest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(Error::io("examining", dest, error)),
            Ok(metadata) if directory && metadata.is_dir() => fs::read_dir(dest)
                .map_err(|error| Error::io("listing", dest, error))?
                .next()
                .is_some(),
            Ok(_) => true,
        };
        if taken {
            return Err(Error::io(
                "exporting to",
                dest,
                io::ErrorKind::AlreadyExists,
            ));
        }
        let (Some(parent), Some(name)) = (dest.parent(), dest.file_name()) else {
            return Err(Error::io("exporting to", dest, io::ErrorKind::InvalidInput));
        };
        let tag = blake3::hash(name.as_encoded_bytes()).to_hex();
        for attempt in 0..ATTEMPTS {
            let path = parent.join(format!(".export-{}-{attempt}", &tag[..16]));
            let mut made = make(&path, directory);
            if is_there(&made) && clear_abandoned(&path, directory) {
                made = make(&path, directory);
            }
            match made {
                Ok(()) => {}
                Err(_) if is_there(&made) => continue,
                Err(error) => return Err(Error::io("making", &path, error)),
            }
            // Otherwise somebody took it for abandoned before it was locked.
            if let Some(lock) = lock(&path).map_err(|error| Error::io("locking", &path, error))? {
                return Ok(Staged {
                    dest: dest.to_path_buf(),
                    path,
                    directory,
                    placed: false,
                    _lock: lock,
                });
            }
        }
        let busy = io::Error::other(format!("{ATTEMPTS} exports to it are under way"));
        Err(Error::io("exporting to", dest, busy))
    }

    pub(super) fn directory(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty())
            .map_err(|error| Error::io("opening", &self.path, error))
    }

    pub(super) fn writer(&self) -> Result<Output> {
        let file = File::options()
            .write(true)
            .open(&self.path)
            .map_err(|error| Error::io("opening", &self.path, error))?;
        Ok(Output {
            path: self.path.clone(),
            to: To::Plain(BufWriter::with_capacity(1 << 20, file)),
        })
    }

    pub(super) fn compressed(&self) -> Result<Output> {
        let file = File::options()
            .write(true)
            .open(&self.path)
            .map_err(|error| Error::io("opening", &self.path, error))?;
        let encoder = zstd::Encoder::new(file, ZSTD_LEVEL)
            .map_err(|error| Error::io("compressing", &self.path, error))?;
        Ok(Output {
            path: self.path.clone(),
            to: To::Zstd(Box::new(encoder)),
        })
    }

    /// Makes everything durable and gives it its name.
    pub(super) fn place(mut self) -> Result<()> {
        let sync = |error: io::Error| Error::io("syncing", &self.path, error);
        let file = File::open(&self.path).map_err(sync)?;
        if self.directory {
            rustix::fs::syncfs(&file).map_err(|error| sync(error.into()))?;
        } else {
            file.sync_all().map_err(sync)?;
        }
        // Not over something that came meanwhile; an empty directory may be replaced.
        let placed = if self.directory && self.dest.exists() {
            fs::rename(&self.path, &self.dest)
        } else {
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                &self.path,
                rustix::fs::CWD,
                &self.dest,
                rustix::fs::RenameFlags::NOREPLACE,
            )
            .map_err(io::Error::from)
        };
        placed.map_err(|error| Error::io("exporting to", &self.dest, error))?;
        self.placed = true;
        let parent = match self.dest.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(|error| Error::io("syncing", parent, error))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.placed {
            return;
        }
        let removed = if self.directory {
            remove_tree(&self.path)
        } else {
            fs::remove_file(&self.path)
        };
        if let Err(error) = removed {
            tracing::warn!(path = %self.path.display(), %error, "an unfinished export stays");
        }
    }
}

/// Removes a tree, directories without permissions among it.
fn remove_tree(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// A file that is being written, with its name for errors.
pub(super) struct Output {
    path: PathBuf,
    to: To,
}

enum To {
    Plain(BufWriter<File>),
    Zstd(Box<zstd::Encoder<'static, File>>),
}

impl Output {
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.to {
            To::Plain(file) => file.write_all(bytes),
            To::Zstd(encoder) => encoder.write_all(bytes),
        }
        .map_err(|error| Error::io("writing", &self.path, error))
    }

    pub(super) fn finish(self) -> Result<()> {
        let finished = match self.to {
            To::Plain(mut file) => file.flush(),
            To::Zstd(encoder) => encoder.finish().map(|_| ()),
        };
        finished.map_err(|error| Error::io("writing", &self.path, error))
    }
}
