//! The requests of the kernel as fuser hands them over, one handler each.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use sandstack_store::{Attributes, Kind, NAME_MAX, Timestamp};

use super::Adapter;
use super::convert::{attr, caller, errno, file_type, set_time};
use crate::error::Result;
use crate::requests::{
    FOREVER, MAX_BACKGROUND, MAX_TRANSFER, Sized, WriteOrigin, guarded, new_mode,
};
use crate::tree::{NewNode, SetAttributes};

/// The attributes of no inode: inode 0 says that a name is not there, and may be believed like any
/// answer.
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
        let wanted = InitFlags::from_bits_retain(self.requests.profile.capabilities());
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
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.serve(request, "lookup", || {
            let found = self
                .requests
                .lookup(caller(request), parent.0, name.as_bytes());
            entry(found.map(|found| found.unwrap_or(NOTHING)), reply);
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        guarded("forget", || self.requests.forget(ino.0, nlookup));
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.serve(request, "getattr", || {
            match self.requests.attributes(ino.0) {
                Ok(found) => reply.attr(&FOREVER, &attr(&found)),
                Err(error) => reply.error(errno(error)),
            }
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
        self.serve(request, "setattr", || {
            let set = SetAttributes {
                mode: mode.map(|mode| (mode & 0o7777) as u16),
                uid,
                gid,
                size,
                atime: atime.map(set_time),
                mtime: mtime.map(set_time),
            };
            match self.requests.set_attributes(caller(request), ino.0, set) {
                Ok(found) => reply.attr(&FOREVER, &attr(&found)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.serve(request, "readlink", || {
            match self.requests.read_link(caller(request), ino.0) {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.serve_once(request, "mknod", || {
            let (caller, name) = (caller(request), name.as_bytes());
            let made = self
                .requests
                .make_node(caller, parent.0, name, (mode, umask), rdev);
            entry(made, reply);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.serve_once(request, "mkdir", || {
            let (caller, name) = (caller(request), name.as_bytes());
            let made = self.requests.make(
                caller,
                parent.0,
                name,
                new_mode(mode, umask),
                NewNode::Directory,
            );
            entry(made, reply);
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
        self.serve_once(request, "symlink", || {
            let (caller, name) = (caller(request), name.as_bytes());
            let node = NewNode::Symlink(target.as_os_str().as_bytes().to_vec());
            let made = self
                .requests
                .make(caller, parent.0, name, new_mode(0o777, 0), node);
            entry(made, reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.serve_once(request, "unlink", || {
            let (caller, name) = (caller(request), name.as_bytes());
            empty(self.requests.unlink(caller, parent.0, name), reply);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.serve_once(request, "rmdir", || {
            let (caller, name) = (caller(request), name.as_bytes());
            empty(
                self.requests.remove_directory(caller, parent.0, name),
                reply,
            );
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
        self.serve_once(request, "rename", || {
            let from = (parent.0, name.as_bytes());
            let to = (newparent.0, newname.as_bytes());
            let renamed = self
                .requests
                .rename(caller(request), from, to, flags.bits());
            empty(renamed, reply);
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
        self.serve_once(request, "link", || {
            let (caller, name) = (caller(request), newname.as_bytes());
            entry(self.requests.link(caller, ino.0, newparent.0, name), reply);
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.serve(request, "open", || {
            opened(self.requests.open(caller(request), ino.0, flags.0), reply);
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.serve_once(request, "create", || {
            let (caller, name) = (caller(request), name.as_bytes());
            let mode = new_mode(mode, umask);
            match self.requests.create(caller, parent.0, name, mode, flags) {
                Ok((made, open_flags)) => reply.created(
                    &FOREVER,
                    &attr(&made),
                    Generation(0),
                    FileHandle(0),
                    FopenFlags::from_bits_retain(open_flags),
                ),
                Err(error) => reply.error(errno(error)),
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
        self.serve(request, "read", || {
            match self.requests.read(caller(request), ino.0, offset, size) {
                Ok(bytes) => reply.data(&bytes),
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
        self.serve(request, "write", || {
            let origin = WriteOrigin::from_flags(write_flags.bits());
            let (caller, count) = (caller(request), data.len() as u32);
            match self.requests.write(caller, ino.0, offset, data, origin) {
                Err(error) if error.lacks_room() => {
                    let data = data.to_vec();
                    self.requests.again_with_room(
                        "write",
                        ino.0,
                        move |requests| requests.write(caller, ino.0, offset, &data, origin),
                        move |done| late(done.map(|done| done.map(|()| count)), reply),
                    );
                }
                done => written(done.map(|()| count), reply),
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
        synced(self, reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        synced(self, reply);
    }

    fn opendir(&self, request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.serve(request, "opendir", || {
            opened(self.requests.open_directory(), reply);
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
        self.serve(request, "readdir", || {
            let add = |name: &[u8], found: &Attributes, next| {
                let kind = file_type(found.kind);
                !reply.add(INodeNo(found.ino), next, kind, OsStr::from_bytes(name))
            };
            match self
                .requests
                .list(caller(request), ino.0, offset, false, add)
            {
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
        self.serve(request, "readdirplus", || {
            let add = |name: &[u8], found: &Attributes, next| {
                !reply.add(
                    INodeNo(found.ino),
                    next,
                    OsStr::from_bytes(name),
                    &FOREVER,
                    &attr(found),
                    Generation(0),
                )
            };
            match self
                .requests
                .list(caller(request), ino.0, offset, true, add)
            {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.serve(request, "statfs", || match self.requests.space() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.free,
                space.available,
                space.inodes,
                space.free_inodes,
                space.block_bytes,
                NAME_MAX as u32,
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
        self.serve_once(request, "setxattr", || {
            let (caller, name) = (caller(request), name.as_bytes());
            empty(
                self.requests.set_xattr(caller, ino.0, name, value, flags),
                reply,
            );
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
        self.serve(request, "getxattr", || {
            sized(self.requests.xattr(ino.0, name.as_bytes(), size), reply);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve(request, "listxattr", || {
            sized(self.requests.xattrs(ino.0, size), reply);
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.serve_once(request, "removexattr", || {
            let (caller, name) = (caller(request), name.as_bytes());
            empty(self.requests.remove_xattr(caller, ino.0, name), reply);
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
        self.serve(request, "fallocate", || {
            let caller = caller(request);
            match self.requests.allocate(caller, ino.0, offset, length, mode) {
                Err(error) if error.lacks_room() => self.requests.again_with_room(
                    "fallocate",
                    ino.0,
                    move |requests| requests.allocate(caller, ino.0, offset, length, mode),
                    move |done| {
                        // Dropped, the reply is EIO.
                        if let Some(done) = done {
                            empty(done, reply);
                        }
                    },
                ),
                done => empty(done, reply),
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
        self.serve(request, "lseek", || {
            match self.requests.seek(ino.0, offset, whence) {
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
        self.serve(request, "copy_file_range", || {
            let (from, to) = ((ino_in.0, offset_in), (ino_out.0, offset_out));
            let caller = caller(request);
            match self.requests.copy_range(caller, from, to, len) {
                Err(error) if error.lacks_room() => self.requests.again_with_room(
                    "copy_file_range",
                    to.0,
                    move |requests| requests.copy_range(caller, from, to, len),
                    move |done| late(done, reply),
                ),
                done => written(done, reply),
            }
        });
    }
}

fn entry(found: Result<Attributes>, reply: ReplyEntry) {
    match found {
        Ok(found) => reply.entry(&FOREVER, &attr(&found), Generation(0)),
        Err(error) => reply.error(errno(error)),
    }
}

fn synced(adapter: &Adapter, reply: ReplyEmpty) {
    adapter.requests.sync_later(|synced| {
        // Dropped, the reply is EIO.
        if let Some(synced) = synced {
            empty(synced, reply);
        }
    });
}

fn written(done: Result<u32>, reply: ReplyWrite) {
    match done {
        Ok(count) => reply.written(count),
        Err(error) => reply.error(errno(error)),
    }
}

/// The same of what another thread has done. Dropped, the reply is EIO.
fn late(done: Option<Result<u32>>, reply: ReplyWrite) {
    if let Some(done) = done {
        written(done, reply);
    }
}

fn empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn opened(flags: Option<u32>, reply: ReplyOpen) {
    match flags {
        Some(flags) => reply.opened(FileHandle(0), FopenFlags::from_bits_retain(flags)),
        // The kernel remembers this and asks no more.
        None => reply.error(Errno::ENOSYS),
    }
}

fn sized(answer: Result<Sized>, reply: ReplyXattr) {
    match answer {
        Ok(Sized::Size(size)) => reply.size(size),
        Ok(Sized::Value(value)) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}
