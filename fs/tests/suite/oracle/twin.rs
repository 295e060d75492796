//! A tree on which a program runs: its root, and the descriptors that the program has.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};

use super::program::{At, Call, SLOTS, Step, USERS};
use crate::fixture::mapping::{Mapping, PAGE};
use crate::fixture::syscalls::{self, Answer, as_user, errno};

/// Values of attributes, and room for them, are at most this long.
const LONGEST: usize = 40;

/// A tree and open files of it.
pub(crate) struct Twin {
    root: PathBuf,
    slots: [Option<File>; SLOTS],
}

impl Twin {
    pub(crate) fn new(root: PathBuf) -> Twin {
        Twin {
            root,
            slots: Default::default(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn close_all(&mut self) {
        self.slots = Default::default();
    }

    /// Makes a call; what it answers, in words that mean the same for every tree.
    pub(crate) fn perform(&mut self, step: &Step) -> Answer<Vec<u8>> {
        let (uid, gid) = USERS[step.user];
        if uid == 0 {
            self.call(&step.call)
        } else {
            as_user(uid, gid, || self.call(&step.call))
        }
    }

    fn call(&mut self, call: &Call) -> Answer<Vec<u8>> {
        match *call {
            Call::Remount => nothing(),
            Call::Open {
                slot,
                at,
                access,
                flags,
                mode,
            } => {
                let flags = open_flags(access, flags);
                let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
                let file = rustix::fs::open(self.path(at), flags, mode).map_err(errno)?;
                self.slots[usize::from(slot)] = Some(file.into());
                nothing()
            }
            Call::Close { slot } => {
                self.slots[usize::from(slot)] = None;
                nothing()
            }
            Call::SetSize { .. }
            | Call::Direct { .. }
            | Call::Make { .. }
            | Call::Link { .. }
            | Call::Unlink { .. }
            | Call::RemoveDirectory { .. }
            | Call::Rename { .. } => self.of_names(call),
            Call::Chmod { .. }
            | Call::Chown { .. }
            | Call::SetTimes { .. }
            | Call::Access { .. }
            | Call::ReadLink { .. }
            | Call::List { .. }
            | Call::SetXattr { .. }
            | Call::GetXattr { .. }
            | Call::RemoveXattr { .. } => self.of_metadata(call),
            _ => self.of_open_file(call),
        }
    }

    fn of_open_file(&mut self, call: &Call) -> Answer<Vec<u8>> {
        match *call {
            Call::Read { slot, length } => {
                let mut bytes = vec![0; usize::from(length)];
                let read = self.file(slot)?.read(&mut bytes).map_err(errno)?;
                bytes.truncate(read);
                Ok(bytes)
            }
            Call::ReadAt { slot, at, length } => {
                let mut bytes = vec![0; usize::from(length)];
                let file = self.file(slot)?;
                let read = file.read_at(&mut bytes, at.into()).map_err(errno)?;
                bytes.truncate(read);
                Ok(bytes)
            }
            Call::Write { slot, length, byte } => {
                let bytes = vec![byte; length.into()];
                number(self.file(slot)?.write(&bytes).map_err(errno)? as u64)
            }
            Call::WriteAt {
                slot,
                at,
                length,
                byte,
            } => {
                let bytes = vec![byte; length.into()];
                let file = self.file(slot)?;
                number(file.write_at(&bytes, at.into()).map_err(errno)? as u64)
            }
            Call::Seek { slot, to, whence } => {
                let mut file = self.file(slot)?;
                // Positions in a directory mean nothing to others.
                if file.metadata().map_err(errno)?.is_dir() {
                    return nothing();
                }
                let to = match whence % 3 {
                    0 => SeekFrom::Start(to.unsigned_abs().into()),
                    1 => SeekFrom::Current(to.into()),
                    _ => SeekFrom::End(to.into()),
                };
                number(file.seek(to).map_err(errno)?)
            }
            Call::SeekHole { slot, at, data } => self.seek_hole(slot, at.into(), data),
            Call::SetSizeOfOpen { slot, size } => {
                self.file(slot)?.set_len(size.into()).map_err(errno)?;
                nothing()
            }
            Call::Allocate {
                slot,
                mode,
                at,
                length,
            } => {
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                let modes = [
                    0,
                    keep,
                    libc::FALLOC_FL_PUNCH_HOLE | keep,
                    libc::FALLOC_FL_ZERO_RANGE,
                    libc::FALLOC_FL_ZERO_RANGE | keep,
                ];
                let mode = modes[usize::from(mode) % modes.len()];
                syscalls::fallocate(self.file(slot)?, mode, at.into(), length.into())?;
                nothing()
            }
            Call::Copy {
                from,
                at,
                to,
                to_at,
                length,
            } => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                let copied =
                    syscalls::copy_range(from, at.into(), to, to_at.into(), length.into())?;
                number(copied as u64)
            }
            Call::Store { slot, at, byte } => {
                let mapping = self.mapping(slot, at, true)?;
                mapping.store(usize::from(at) % PAGE, byte);
                mapping.sync();
                nothing()
            }
            Call::Load { slot, at } => {
                let mapping = self.mapping(slot, at, false)?;
                Ok(vec![mapping.load(usize::from(at) % PAGE)])
            }
            Call::Sync { slot } => {
                self.file(slot)?.sync_all().map_err(errno)?;
                nothing()
            }
            Call::StatOpen { slot } => {
                let found = self.file(slot)?.metadata().map_err(errno)?;
                let size = if found.is_dir() { 0 } else { found.size() };
                let (mode, links) = (found.mode(), found.nlink());
                let owner = (found.uid(), found.gid());
                Ok(format!("{mode:o} {links} {owner:?} {size}").into_bytes())
            }
            Call::ChmodOpen { slot, mode } => {
                let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
                rustix::fs::fchmod(self.file(slot)?, mode).map_err(errno)?;
                nothing()
            }
            ref other => unreachable!("{other:?} is of no open file"),
        }
    }

    fn of_names(&self, call: &Call) -> Answer<Vec<u8>> {
        match *call {
            Call::SetSize { at, size } => {
                let path = CString::new(syscalls::bytes_of(&self.path(at))).unwrap();
                // SAFETY: a system call with a path that lives over it.
                let result = unsafe { libc::truncate(path.as_ptr(), size.into()) };
                if result == 0 {
                    nothing()
                } else {
                    Err(errno(std::io::Error::last_os_error()))
                }
            }
            Call::Direct {
                at,
                block,
                count,
                write,
            } => direct(&self.path(at), block.into(), count.into(), write),
            Call::Make { at, kind, mode } => {
                let path = self.path(at);
                let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
                match kind % 6 {
                    0 | 1 => rustix::fs::mkdir(&path, mode),
                    2 => rustix::fs::symlink(targets(mode), &path),
                    kind => {
                        let kinds = [FileType::RegularFile, FileType::Fifo, FileType::Socket];
                        let kind = kinds[usize::from(kind) - 3];
                        rustix::fs::mknodat(CWD, &path, kind, mode, 0)
                    }
                }
                .map_err(errno)?;
                nothing()
            }
            Call::Link { at, to, follow } => {
                let mut flags = AtFlags::empty();
                flags.set(AtFlags::SYMLINK_FOLLOW, follow);
                rustix::fs::linkat(CWD, self.path(at), CWD, self.path(to), flags).map_err(errno)?;
                nothing()
            }
            Call::Unlink { at } => {
                rustix::fs::unlink(self.path(at)).map_err(errno)?;
                nothing()
            }
            Call::RemoveDirectory { at } => {
                rustix::fs::rmdir(self.path(at)).map_err(errno)?;
                nothing()
            }
            Call::Rename { at, to, flags } => {
                let flags = [0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]
                    [usize::from(flags) % 5];
                syscalls::rename(&self.path(at), &self.path(to), flags)?;
                nothing()
            }
            ref other => unreachable!("{other:?} is of no name"),
        }
    }

    fn of_metadata(&self, call: &Call) -> Answer<Vec<u8>> {
        match *call {
            Call::Chmod { at, mode } => {
                let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
                rustix::fs::chmod(self.path(at), mode).map_err(errno)?;
            }
            Call::Chown {
                at,
                uid,
                gid,
                follow,
            } => {
                let of = |number: u8, ids: [u32; 3]| ids.get(usize::from(number % 4)).copied();
                let uid = of(uid, USERS.map(|user| user.0)).map(Uid::from_raw);
                let gid = of(gid, USERS.map(|user| user.1)).map(Gid::from_raw);
                // docs/semantics.md says how that differs.
                let changes = uid.is_some() || gid.is_some();
                if !changes && !rustix::process::geteuid().is_root() {
                    return nothing();
                }
                let mut flags = AtFlags::empty();
                flags.set(AtFlags::SYMLINK_NOFOLLOW, !follow);
                rustix::fs::chownat(CWD, self.path(at), uid, gid, flags).map_err(errno)?;
            }
            Call::SetTimes { at, atime, mtime } => {
                let time = |number: u8| Timespec {
                    tv_sec: i64::from(number) * 1000,
                    tv_nsec: match number % 4 {
                        0 => rustix::fs::UTIME_NOW,
                        1 => rustix::fs::UTIME_OMIT,
                        _ => 5,
                    } as _,
                };
                let times = Timestamps {
                    last_access: time(atime),
                    last_modification: time(mtime),
                };
                rustix::fs::utimensat(CWD, self.path(at), &times, AtFlags::empty())
                    .map_err(errno)?;
            }
            Call::Access { at, mode } => {
                let mode = Access::from_bits_retain(mode.into());
                rustix::fs::access(self.path(at), mode).map_err(errno)?;
            }
            Call::ReadLink { at } => {
                let target = rustix::fs::readlink(self.path(at), Vec::new()).map_err(errno)?;
                return Ok(target.into_bytes());
            }
            Call::List { at } => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let dir = syscalls::open(&self.path(at), flags)?;
                let mut names = Vec::new();
                loop {
                    let some = syscalls::try_list_some(&dir, 4096)?;
                    if some.is_empty() {
                        break;
                    }
                    names.extend(some.into_iter().map(|entry| (entry.name, entry.kind)));
                }
                names.sort_by(|one, other| one.0.cmp(&other.0));
                return Ok(format!("{names:?}").into_bytes());
            }
            Call::SetXattr {
                at,
                name,
                length,
                flags,
            } => {
                let value = vec![length; usize::from(length) % LONGEST];
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE]
                    [usize::from(flags) % 3];
                rustix::fs::lsetxattr(self.path(at), attribute(name), &value, flags)
                    .map_err(errno)?;
            }
            Call::GetXattr { at, name, room } => {
                let mut value = vec![0; usize::from(room) % LONGEST];
                let length =
                    rustix::fs::lgetxattr(self.path(at), attribute(name), value.as_mut_slice())
                        .map_err(errno)?;
                value.truncate(length);
                value.push(length as u8);
                return Ok(value);
            }
            Call::RemoveXattr { at, name } => {
                rustix::fs::lremovexattr(self.path(at), attribute(name)).map_err(errno)?;
            }
            ref other => unreachable!("{other:?} is of no metadata"),
        }
        nothing()
    }

    /// Where data begins or ends. Filesystems differ in how small a hole can be, so the answer is only
    /// whether there is something behind `at`, and that what is said to be a hole is zeros. Leaves the
    /// descriptor at `at`.
    fn seek_hole(&self, slot: u8, at: i64, data: bool) -> Answer<Vec<u8>> {
        let mut file = self.file(slot)?;
        let found = file.metadata().map_err(errno)?;
        if found.is_dir() {
            return nothing();
        }
        let (size, whence) = (found.size() as i64, [libc::SEEK_HOLE, libc::SEEK_DATA]);
        let (start, end) = match syscalls::seek(file, at, whence[usize::from(data)]) {
            Ok(to) if data => (at, to),
            Ok(to) => (
                to,
                syscalls::seek(file, to, libc::SEEK_DATA).unwrap_or(size),
            ),
            // No data behind `at`.
            Err(libc::ENXIO) if data && at < size => (at, size),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(at as u64)).map_err(errno)?;
        if start < at || end < start || end > size {
            return Ok(format!("{start} to {end} of {size}").into_bytes());
        }
        let mut hole = vec![0; (end - start) as usize];
        match file.read_exact_at(&mut hole, start as u64).map_err(errno) {
            // Open for writing only.
            Err(libc::EBADF) => nothing(),
            Err(error) => Err(error),
            Ok(()) if hole.iter().all(|byte| *byte == 0) => nothing(),
            Ok(()) => Ok(format!("no zeros in {start} to {end}").into_bytes()),
        }
    }

    /// The page of an open file that has the byte at `at`; `ENXIO` if the file ends before it.
    fn mapping(&self, slot: u8, at: u16, writable: bool) -> Answer<Mapping> {
        let file = self.file(slot)?;
        let mapping = Mapping::try_of(file, writable)?;
        let at = u64::from(at) % PAGE as u64;
        // Behind the end there is no page, and a load ends the process.
        if file.metadata().map_err(errno)?.size() <= at {
            return Err(libc::ENXIO);
        }
        Ok(mapping)
    }

    fn file(&self, slot: u8) -> Answer<&File> {
        let slot = &self.slots[usize::from(slot)];
        let file = slot.as_ref().ok_or(libc::EBADF)?;
        // What waits for another end of a pipe would wait for ever.
        debug_assert!(file.as_raw_fd() >= 0);
        Ok(file)
    }

    fn path(&self, at: At) -> PathBuf {
        let names = at.names.iter().take(at.depth.into());
        names.fold(self.root.clone(), |path, name| {
            path.join(["a", "b", "c", "d"][usize::from(*name)])
        })
    }
}

/// Reads or writes whole blocks past the page cache.
fn direct(path: &Path, block: usize, count: usize, write: Option<u8>) -> Answer<Vec<u8>> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(errno)?);
    // Memory is as aligned as the blocks, or filesystems refuse it.
    let mut room = vec![write.unwrap_or(0); (count + 1) * PAGE];
    let start = room.as_ptr().align_offset(PAGE);
    let blocks = &mut room[start..start + count * PAGE];
    let at = (block * PAGE) as u64;
    if write.is_some() {
        return number(file.write_at(blocks, at).map_err(errno)? as u64);
    }
    let length = file.read_at(blocks, at).map_err(errno)?;
    Ok(blocks[..length].to_vec())
}

fn nothing() -> Answer<Vec<u8>> {
    Ok(Vec::new())
}

fn number(number: u64) -> Answer<Vec<u8>> {
    Ok(number.to_string().into_bytes())
}

fn open_flags(access: u8, flags: u8) -> OFlags {
    let access = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR][usize::from(access) % 3];
    // A FIFO would wait for its other end.
    let mut all = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let choices = [
        OFlags::CREATE,
        OFlags::EXCL,
        OFlags::TRUNC,
        OFlags::APPEND,
        OFlags::NOFOLLOW,
    ];
    for (bit, choice) in choices.into_iter().enumerate() {
        // Most often without; O_EXCL says something only together with O_CREAT.
        all.set(choice, flags >> bit & 1 != 0 && (bit < 3 || flags > 0xc0));
    }
    if !all.contains(OFlags::CREATE) {
        all.remove(OFlags::EXCL);
    }
    all
}

/// Where symlinks lead: somewhere in the tree, or nowhere.
fn targets(number: Mode) -> &'static str {
    ["a", "b/c", "./c", "a/d", "d/d/d", "c/b"][number.bits() as usize % 6]
}

fn attribute(number: u8) -> &'static str {
    [
        "user.a",
        "user.b",
        "trusted.a",
        "security.a",
        "system.a",
        "user.",
    ][usize::from(number) % 6]
}
