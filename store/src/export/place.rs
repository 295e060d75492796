//! Where an export is made before it has its place.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};

/// Compression of `tar-zst`: what zstd takes for granted.
const ZSTD_LEVEL: i32 = 3;

/// What is being made beside its destination; removed when dropped before it has its place.
pub(super) struct Staged {
    dest: PathBuf,
    path: PathBuf,
    directory: bool,
    placed: bool,
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
        // Of a process that was killed there may be one left: its number is in the name.
        let mut staged = std::ffi::OsString::from(".");
        staged.push(name);
        staged.push(format!(".export-{}", std::process::id()));
        for attempt in 0.. {
            let mut name = staged.clone();
            name.push(format!("-{attempt}"));
            let path = parent.join(name);
            let made = if directory {
                fs::DirBuilder::new().mode(0o700).create(&path)
            } else {
                fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&path)
                    .map(|_| ())
            };
            match made {
                Ok(()) => {
                    return Ok(Staged {
                        dest: dest.to_path_buf(),
                        path,
                        directory,
                        placed: false,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => {}
                Err(error) => return Err(Error::io("making", &path, error)),
            }
        }
        unreachable!("the last attempt returns")
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
