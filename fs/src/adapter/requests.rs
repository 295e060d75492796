//! The requests of the kernel, one handler each.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use sandstack_store::{AccessKind, Attributes, Kind, Seek, Timestamp};

use super::convert::{caller, errno, file_type, libc_device, set_time};
use super::{Adapter, answer_sized, guarded, serve};
use crate::error::Error;
use crate::tree::{NewNode, RenameMode, SetAttributes, XattrMode};

/// How long the kernel may believe an answer: the tree is the only one that changes the view, so
/// until it is told otherwise. (68 years; the kernel cuts it to what its clock can hold.)
const FOREVER: Duration = Duration::from_secs(i32::MAX as u64);
/// Largest read, write and read-ahead, in bytes: what the kernel allows without a sysctl.
const MAX_TRANSFER: u32 = 1 << 20;
/// Most bytes of one `copy_file_range`; the caller goes on after a short count.
const MAX_COPY: u64 = 256 << 20;

/// The attributes of no inode.
const NOTHING: Attributes = Attributes {
    ino: 0,
    kind: Kind::File,
    mode: 0,
    uid: 0,
    gid: 0,
    nlink: 0,
    size: 0,
    stored: 0,
    rdev: 0,
    atime: Timestamp { secs: 0, nanos: 0 },
    mtime: Timestamp { secs: 0, nanos: 0 },
    ctime: Timestamp { secs: 0, nanos: 0 },
};

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_HAS_EXPIRE_ONLY
            | InitFlags::FUSE_HAS_RESEND;
        if self.profile.open_without_message {
            wanted |= InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        }
        let supported = wanted & config.capabilities();
        if supported != wanted {
            tracing::debug!(missing = ?(wanted & !supported), "the kernel lacks capabilities of FUSE");
        }
        if config.add_capabilities(supported).is_err() {
            return Err(std::io::Error::other(
                "the kernel refused capabilities that it offered",
            ));
        }
        // An error of these is the nearest value that works.
        let _ = config
            .set_max_write(MAX_TRANSFER)
            .or_else(|nearest| config.set_max_write(nearest));
        let _ = config
            .set_max_readahead(MAX_TRANSFER)
            .or_else(|nearest| config.set_max_readahead(nearest));
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        serve(request, "lookup", || {
            let name = name.as_bytes();
            match self.tree.lookup(parent.0, name) {
                Ok(found) => {
                    self.recorder
                        .named_if_changed(&self.tree, &found, parent.0, name);
                    self.recorder
                        .entry(request.pid(), parent.0, name, AccessKind::Lookup, 0);
                    reply.entry(&FOREVER, &self.attr(&found), Generation(0));
                }
                Err(Error::NotFound) => {
                    self.recorder
                        .entry(request.pid(), parent.0, name, AccessKind::Missing, 0);
                    // Inode 0 says that the name is not there, and may be believed like any answer.
                    let mut none = self.attr(&NOTHING);
                    none.ino = INodeNo(0);
                    reply.entry(&FOREVER, &none, Generation(0));
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, _nlookup: u64) {
        // The count is not needed: an inode with a name is kept whatever the kernel knows of it,
        // and one without a name is not found again, so its first forget is its last.
        guarded("forget", || {
            if let Err(error) = self.tree.forget(ino.0) {
                tracing::error!(ino = ino.0, %error, "an inode without a name could not be dropped");
            }
        });
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        serve(request, "getattr", || match self.tree.attributes(ino.0) {
            Ok(found) => reply.attr(&FOREVER, &self.attr(&found)),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        serve(request, "setattr", || {
            let set = SetAttributes {
                mode: mode.map(|mode| (mode & 0o7777) as u16),
                uid,
                gid,
                size,
                atime: atime.map(set_time),
                mtime: mtime.map(set_time),
            };
            let kind = if size.is_some() {
                AccessKind::Write
            } else {
                AccessKind::Metadata
            };
            match self.tree.set_attributes(caller(request), ino.0, set) {
                Ok(found) => {
                    self.recorder.inode(request.pid(), ino.0, kind, 0);
                    reply.attr(&FOREVER, &self.attr(&found));
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        serve(request, "readlink", || match self.tree.read_link(ino.0) {
            Ok(target) => {
                self.recorder
                    .inode(request.pid(), ino.0, AccessKind::Read, target.len() as u64);
                reply.data(&target);
            }
            Err(error) => reply.error(errno(error)),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        serve(request, "mknod", || {
            let node = match mode & libc::S_IFMT {
                libc::S_IFREG | 0 => NewNode::File,
                libc::S_IFIFO => NewNode::Fifo,
                libc::S_IFSOCK => NewNode::Socket,
                libc::S_IFCHR => NewNode::CharDevice(libc_device(rdev)),
                libc::S_IFBLK => NewNode::BlockDevice(libc_device(rdev)),
                _ => return reply.error(Errno::EINVAL),
            };
            match self.make(request, parent, name, mode, node) {
                Ok(made) => reply.entry(&FOREVER, &made, Generation(0)),
                Err(error) => reply.error(error),
            }
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        serve(request, "mkdir", || {
            match self.make(request, parent, name, mode, NewNode::Directory) {
                Ok(made) => reply.entry(&FOREVER, &made, Generation(0)),
                Err(error) => reply.error(error),
            }
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        serve(request, "symlink", || {
            let node = NewNode::Symlink(target.as_os_str().as_bytes().to_vec());
            match self.make(request, parent, name, 0o777, node) {
                Ok(made) => reply.entry(&FOREVER, &made, Generation(0)),
                Err(error) => reply.error(error),
            }
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        serve(request, "unlink", || {
            match self.tree.unlink(parent.0, name.as_bytes()) {
                Ok(_) => {
                    self.recorder.entry(
                        request.pid(),
                        parent.0,
                        name.as_bytes(),
                        AccessKind::Remove,
                        0,
                    );
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        serve(request, "rmdir", || {
            match self.tree.remove_directory(parent.0, name.as_bytes()) {
                Ok(_) => {
                    self.recorder.directories_moved();
                    self.recorder.entry(
                        request.pid(),
                        parent.0,
                        name.as_bytes(),
                        AccessKind::Remove,
                        0,
                    );
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        serve(request, "rename", || {
            let mode = match flags {
                flags if flags.is_empty() => RenameMode::Replace,
                RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
                RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
                RenameFlags::RENAME_WHITEOUT => RenameMode::Whiteout,
                _ => return reply.error(Errno::EINVAL),
            };
            let (from, to) = (
                (parent.0, name.as_bytes()),
                (newparent.0, newname.as_bytes()),
            );
            match self.tree.rename(caller(request), from, to, mode) {
                Ok(_) => {
                    self.recorder.renamed(
                        &self.tree,
                        request.pid(),
                        from,
                        to,
                        mode == RenameMode::Exchange,
                    );
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        serve(request, "link", || {
            match self.tree.link(ino.0, newparent.0, newname.as_bytes()) {
                Ok(found) => {
                    self.recorder.named(ino.0, newparent.0, newname.as_bytes());
                    self.recorder.entry(
                        request.pid(),
                        newparent.0,
                        newname.as_bytes(),
                        AccessKind::Link,
                        0,
                    );
                    reply.entry(&FOREVER, &self.attr(&found), Generation(0));
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        serve(request, "open", || {
            if self.profile.open_without_message {
                // The kernel remembers this and asks no more.
                return reply.error(Errno::ENOSYS);
            }
            self.note_open(request.pid(), ino.0, flags.0);
            reply.opened(FileHandle(0), self.open_flags());
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        serve(request, "create", || {
            match self.make(request, parent, name, mode, NewNode::File) {
                Ok(made) => {
                    self.note_open(request.pid(), made.ino.0, flags);
                    reply.created(
                        &FOREVER,
                        &made,
                        Generation(0),
                        FileHandle(0),
                        self.open_flags(),
                    );
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        serve(request, "read", || {
            match self.tree.read(ino.0, offset, size as usize) {
                Ok(bytes) => {
                    self.recorder
                        .inode(request.pid(), ino.0, AccessKind::Read, bytes.len() as u64);
                    reply.data(&bytes);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        serve(request, "write", || {
            let kill_setid = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
            match self.tree.write(ino.0, offset, data, kill_setid) {
                Ok(lost) => {
                    self.tell_mode(ino, lost);
                    // A page written back by the kernel was changed by whoever mapped it, at a time of
                    // its own: the request's process is the kernel's.
                    let pid = if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                        0
                    } else {
                        request.pid()
                    };
                    self.recorder
                        .inode(pid, ino.0, AccessKind::Write, data.len() as u64);
                    reply.written(data.len() as u32);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is kept back until close; the kernel remembers this and asks no more.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.sync_later(reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.sync_later(reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        serve(request, "opendir", || {
            if self.profile.open_without_message {
                return reply.error(Errno::ENOSYS);
            }
            self.recorder
                .inode(request.pid(), ino.0, AccessKind::List, 0);
            reply.opened(
                FileHandle(0),
                FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            );
        });
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        serve(request, "readdir", || {
            self.note_listing(request, ino, offset);
            let result = self.tree.list(ino.0, offset, false, |name, found, next| {
                !reply.add(
                    INodeNo(found.ino),
                    next,
                    file_type(found.kind),
                    OsStr::from_bytes(name),
                )
            });
            match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        serve(request, "readdirplus", || {
            self.note_listing(request, ino, offset);
            let result = self.tree.list(ino.0, offset, true, |name, found, next| {
                !reply.add(
                    INodeNo(found.ino),
                    next,
                    OsStr::from_bytes(name),
                    &FOREVER,
                    &self.attr(found),
                    Generation(0),
                )
            });
            match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        serve(request, "statfs", || match self.tree.space() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.free,
                space.available,
                space.inodes,
                space.free_inodes,
                space.block_bytes,
                255,
                space.block_bytes,
            ),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        serve(request, "setxattr", || {
            let mode = match flags {
                0 => XattrMode::Any,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => return reply.error(Errno::EINVAL),
            };
            match self.tree.set_xattr(ino.0, name.as_bytes(), value, mode) {
                Ok(()) => {
                    self.recorder
                        .inode(request.pid(), ino.0, AccessKind::Metadata, 0);
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        serve(request, "getxattr", || {
            match self.tree.xattr(ino.0, name.as_bytes()) {
                Ok(value) => answer_sized(&value, size, reply),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        serve(request, "listxattr", || match self.tree.xattrs(ino.0) {
            Ok(xattrs) => {
                let names: Vec<u8> = xattrs
                    .keys()
                    .flat_map(|name| name.iter().copied().chain([0]))
                    .collect();
                answer_sized(&names, size, reply);
            }
            Err(error) => reply.error(errno(error)),
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        serve(request, "removexattr", || {
            match self.tree.remove_xattr(ino.0, name.as_bytes()) {
                Ok(()) => {
                    self.recorder
                        .inode(request.pid(), ino.0, AccessKind::Metadata, 0);
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        serve(request, "fallocate", || {
            match self
                .tree
                .allocate(caller(request), ino.0, offset, length, mode)
            {
                Ok(lost) => {
                    self.tell_mode(ino, lost);
                    self.recorder
                        .inode(request.pid(), ino.0, AccessKind::Write, 0);
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        serve(request, "lseek", || {
            let seek = match whence {
                libc::SEEK_DATA => Seek::Data,
                libc::SEEK_HOLE => Seek::Hole,
                _ => return reply.error(Errno::EINVAL),
            };
            let Ok(offset) = u64::try_from(offset) else {
                return reply.error(Errno::ENXIO);
            };
            match self.tree.seek(ino.0, offset, seek) {
                Ok(offset) => reply.offset(offset as i64),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        serve(request, "copy_file_range", || {
            // The reply counts in 32 bits, and a handler should not be long.
            let length = len.min(MAX_COPY);
            match self.tree.copy_range(
                caller(request),
                (ino_in.0, offset_in),
                (ino_out.0, offset_out),
                length,
            ) {
                Ok((copied, lost)) => {
                    self.tell_mode(ino_out, lost);
                    self.recorder
                        .inode(request.pid(), ino_in.0, AccessKind::Read, copied);
                    self.recorder
                        .inode(request.pid(), ino_out.0, AccessKind::Write, copied);
                    reply.written(copied as u32);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }
}
