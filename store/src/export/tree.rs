//! An export as files in a directory.
//!
//! Everything is made through descriptors of directories that this export made, so no symlink leads
//! it elsewhere. Directories get their mode and times last, from below, because what is made in
//! them changes both.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::Exported;
use crate::content::Content;
use crate::error::{Error, Result};
use crate::lower::Lower;
use crate::name::{Name, RelPath};
use crate::node::{Body, Ino, Kind, Node};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

pub(super) fn write(
    root: OwnedFd,
    lower: &Lower,
    entries: &[(RelPath, Node)],
    exported: &mut Exported,
) -> Result<()> {
    let mut writer = Writer {
        root,
        lower,
        linked: HashMap::new(),
        exported,
    };
    for (path, node) in entries {
        writer.make(path, node).map_err(|error| name(error, path))?;
    }
    for (path, node) in entries.iter().rev() {
        if node.kind() == Kind::Directory {
            let at = writer.open(path)?;
            writer
                .finish_descriptor(path, node, at.as_fd())
                .map_err(|error| name(error, path))?;
        }
    }
    Ok(())
}

/// Why a node could not be made.
enum Failure {
    System(Errno),
    Store(Error),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Failure::System(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Store(error)
    }
}

fn name(failure: Failure, path: &RelPath) -> Error {
    match failure {
        Failure::Store(error) => error,
        Failure::System(error) => Error::io(
            "exporting",
            Path::new(std::ffi::OsStr::from_bytes(path.as_bytes())),
            error,
        ),
    }
}

struct Writer<'a> {
    root: OwnedFd,
    lower: &'a Lower,
    /// The first name of each node that has several.
    linked: HashMap<Ino, RelPath>,
    exported: &'a mut Exported,
}

impl Writer<'_> {
    /// Opens a directory of the export, name by name.
    fn open(&self, path: &RelPath) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || {
            let root = rustix::fs::openat(&self.root, c".", flags, Mode::empty())?;
            path.names().try_fold(root, |at, name| {
                rustix::fs::openat(&at, name, flags, Mode::empty())
            })
        };
        open().map_err(|error: Errno| {
            Error::io(
                "opening",
                Path::new(std::ffi::OsStr::from_bytes(path.as_bytes())),
                error,
            )
        })
    }

    fn make(&mut self, path: &RelPath, node: &Node) -> Result<(), Failure> {
        let Some((parent, name)) = path.split() else {
            self.exported.count(node, true);
            return Ok(());
        };
        let at = self.open(&parent)?;
        if node.meta.links > 1 && node.kind() != Kind::Directory {
            if let Some(first) = self.linked.get(&node.meta.ino)
                && let Some((first_parent, first_name)) = first.split()
            {
                let from = self.open(&first_parent)?;
                rustix::fs::linkat(
                    &from,
                    first_name.as_bytes(),
                    &at,
                    name.as_bytes(),
                    AtFlags::empty(),
                )?;
                self.exported.count(node, false);
                return Ok(());
            }
            self.linked.insert(node.meta.ino, path.clone());
        }
        self.exported.count(node, true);
        let private = Mode::from_raw_mode(0o600);
        match &node.body {
            Body::Directory { .. } => {
                rustix::fs::mkdirat(&at, name.as_bytes(), Mode::from_raw_mode(0o700))?;
                return Ok(());
            }
            Body::File(content) => {
                let flags = OFlags::RDWR
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let file = File::from(rustix::fs::openat(&at, name.as_bytes(), flags, private)?);
                self.fill(&file, content)?;
                return self.finish_descriptor(path, node, file.as_fd());
            }
            Body::Symlink(target) => rustix::fs::symlinkat(&target[..], &at, name.as_bytes())?,
            Body::Fifo => self.special(path, &at, &name, FileType::Fifo, 0)?,
            Body::Socket => self.special(path, &at, &name, FileType::Socket, 0)?,
            Body::CharDevice(number) => {
                self.special(path, &at, &name, FileType::CharacterDevice, *number)?;
            }
            Body::BlockDevice(number) => {
                self.special(path, &at, &name, FileType::BlockDevice, *number)?;
            }
        }
        self.finish_name(path, node, at.as_fd(), &name)
    }

    fn special(
        &mut self,
        path: &RelPath,
        at: &OwnedFd,
        name: &Name,
        kind: FileType,
        number: u64,
    ) -> Result<(), Failure> {
        let mode = Mode::from_raw_mode(0o600);
        match rustix::fs::mknodat(at, name.as_bytes(), kind, mode, number) {
            Err(Errno::PERM) => {
                self.exported.leave_out(path, "special_file");
                self.exported.special_files -= 1;
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn fill(&self, file: &File, content: &Content) -> Result<(), Failure> {
        let objects = self.lower.objects();
        let write = |error: std::io::Error| {
            Failure::System(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        file.set_len(content.size).map_err(write)?;
        let mut buffer = vec![0; COPY_BYTES];
        for segment in content.segments(objects)? {
            let mut done = 0;
            while done < segment.length {
                let part = &mut buffer[..COPY_BYTES.min((segment.length - done) as usize)];
                objects.read_at(&segment.source.blob, segment.source.offset + done, part)?;
                file.write_all_at(part, segment.offset + done)
                    .map_err(write)?;
                done += part.len() as u64;
            }
        }
        Ok(())
    }

    /// Owner, extended attributes, mode and times, in this order: each may change the next.
    fn finish_descriptor(
        &mut self,
        path: &RelPath,
        node: &Node,
        file: BorrowedFd<'_>,
    ) -> Result<(), Failure> {
        let meta = &node.meta;
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(meta.uid),
            rustix::fs::Gid::from_raw(meta.gid),
        );
        let stat = rustix::fs::fstat(file)?;
        if (stat.st_uid, stat.st_gid) != (meta.uid, meta.gid) {
            match rustix::fs::fchown(file, Some(uid), Some(gid)) {
                Err(Errno::PERM) => self.exported.leave_out(path, "owner"),
                result => result?,
            }
        }
        for (name, value) in self.lower.xattrs(node)? {
            match rustix::fs::fsetxattr(file, &name[..], &value, XattrFlags::empty()) {
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => {
                    self.exported.leave_out(path, "xattr");
                }
                result => result?,
            }
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(u32::from(meta.mode)))?;
        Ok(rustix::fs::futimens(file, &times(node))?)
    }

    /// The same for what cannot be opened.
    fn finish_name(
        &mut self,
        path: &RelPath,
        node: &Node,
        at: BorrowedFd<'_>,
        name: &Name,
    ) -> Result<(), Failure> {
        let meta = &node.meta;
        let stat = match rustix::fs::statat(at, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            // A special file that could not be made.
            Err(Errno::NOENT) => return Ok(()),
            result => result?,
        };
        if (stat.st_uid, stat.st_gid) != (meta.uid, meta.gid) {
            let (uid, gid) = (
                rustix::fs::Uid::from_raw(meta.uid),
                rustix::fs::Gid::from_raw(meta.gid),
            );
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            match rustix::fs::chownat(at, name.as_bytes(), Some(uid), Some(gid), flags) {
                Err(Errno::PERM) => self.exported.leave_out(path, "owner"),
                result => result?,
            }
        }
        for (attribute, value) in self.lower.xattrs(node)? {
            use std::os::fd::AsRawFd;
            let mut link = format!("/proc/self/fd/{}/", at.as_raw_fd()).into_bytes();
            link.extend_from_slice(name.as_bytes());
            let flags = XattrFlags::empty();
            match rustix::fs::lsetxattr(&link[..], &attribute[..], &value, flags) {
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => {
                    self.exported.leave_out(path, "xattr");
                }
                result => result?,
            }
        }
        if node.kind() != Kind::Symlink {
            let mode = Mode::from_raw_mode(u32::from(meta.mode));
            rustix::fs::chmodat(at, name.as_bytes(), mode, AtFlags::empty())?;
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::utimensat(
            at,
            name.as_bytes(),
            &times(node),
            flags,
        )?)
    }
}

fn times(node: &Node) -> Timestamps {
    let time = Timespec {
        tv_sec: node.meta.mtime.secs,
        tv_nsec: node.meta.mtime.nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
