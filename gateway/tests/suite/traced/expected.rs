//! What the record must hold, from the calls that strace saw.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::names::{End, Info, Kind, Names, Walk};
use super::process::{Descriptor, Processes};
use super::strace::{Call, descriptor, number, string};

/// What is counted: path, kind, process, program.
pub(crate) type Key = (String, &'static str, u32, String);

/// One read or write: path, kind, process, offset, bytes.
pub(crate) type Transfer = (String, &'static str, u32, u64, u64);

/// What must be and what may be in a record.
#[derive(Default)]
pub(crate) struct Expected {
    /// How often, and how many bytes: no more and no less.
    pub(crate) counted: BTreeMap<Key, (u64, u64)>,
    /// What was done, though the kernel need not have asked for it: path, kind, process.
    pub(crate) done: BTreeSet<(String, &'static str, u32)>,
    /// What the session as a whole must have: path and kind.
    pub(crate) seen: BTreeSet<(String, &'static str)>,
    pub(crate) transfers: Vec<Transfer>,
    /// Files that were mapped, sent or run: what is read of them then is no call.
    pub(crate) mapped: BTreeSet<String>,
    /// Files that were mapped to be written: the kernel writes them back on its own.
    pub(crate) written_back: BTreeSet<String>,
    /// Calls that had to do with the workspace.
    pub(crate) calls: u64,
}

/// Goes through the calls.
pub(crate) struct Oracle {
    pub(crate) names: Names,
    pub(crate) processes: Processes,
    pub(crate) expected: Expected,
}

impl Oracle {
    pub(crate) fn take(&mut self, call: &Call) {
        let Some(pid) = self.processes.pid(call.thread) else {
            panic!(
                "thread {} was not seen to begin: {}",
                call.thread, call.line
            );
        };
        let before = self.expected.done.len() + self.expected.transfers.len();
        let touched = self.interpret(pid, call);
        if touched || self.expected.done.len() + self.expected.transfers.len() != before {
            self.expected.calls += 1;
        }
    }

    /// Returns whether the call had to do with the workspace.
    fn interpret(&mut self, pid: u32, call: &Call) -> bool {
        let args: Vec<&str> = call.args.iter().map(String::as_str).collect();
        let ok = call.result.is_ok();
        match call.name.as_str() {
            "open" => self.open(pid, call, self.plain(pid, args[0]), args[1]),
            "creat" => self.open(
                pid,
                call,
                self.plain(pid, args[0]),
                "O_WRONLY|O_CREAT|O_TRUNC",
            ),
            "openat" | "openat2" => {
                let flags = args[2].trim_start_matches("{flags=");
                let flags = flags.split(',').next().unwrap();
                self.open(pid, call, at(args[0], args[1]), flags)
            }
            "execve" => self.execute(pid, call, self.plain(pid, args[0])),
            "execveat" => self.execute(pid, call, at(args[0], args[1])),
            "stat" | "access" | "statfs" | "getxattr" | "listxattr" => {
                self.look(pid, self.plain(pid, args[0]), true).is_some()
            }
            "lstat" | "lgetxattr" | "llistxattr" => {
                self.look(pid, self.plain(pid, args[0]), false).is_some()
            }
            "inotify_add_watch" => self.look(pid, self.plain(pid, args[1]), true).is_some(),
            "newfstatat" | "faccessat" | "faccessat2" => {
                let follow = !call.line.contains("AT_SYMLINK_NOFOLLOW");
                self.look(pid, at(args[0], args[1]), follow).is_some()
            }
            "statx" => {
                let follow = !args[2].contains("AT_SYMLINK_NOFOLLOW");
                self.look(pid, at(args[0], args[1]), follow).is_some()
            }
            "readlink" => self.read_link(pid, self.plain(pid, args[0])),
            "readlinkat" => self.read_link(pid, at(args[0], args[1])),
            "chdir" => {
                let place = self.plain(pid, args[0]);
                if ok && let Some(place) = &place {
                    let path = place.path.as_deref().unwrap_or(".");
                    let walk = self.names.walk(&place.base, path, true);
                    self.processes.set_cwd(pid, self.absolute(&walk.end));
                }
                self.look(pid, place, true).is_some()
            }
            "fchdir" => {
                if ok && let (_, Some(path)) = descriptor(args[0]) {
                    self.processes.set_cwd(pid, path);
                }
                false
            }
            "unlink" | "rmdir" => self.remove(pid, ok, self.plain(pid, args[0])),
            "unlinkat" => self.remove(pid, ok, at(args[0], args[1])),
            "mkdir" => self.make(pid, ok, self.plain(pid, args[0]), Kind::Directory),
            "mkdirat" => self.make(pid, ok, at(args[0], args[1]), Kind::Directory),
            "mknod" => self.make(pid, ok, self.plain(pid, args[0]), kind_of(args[1])),
            "mknodat" => self.make(pid, ok, at(args[0], args[1]), kind_of(args[2])),
            "symlink" => {
                let kind = Kind::Symlink(string(args[0]).unwrap());
                self.make(pid, ok, self.plain(pid, args[1]), kind)
            }
            "symlinkat" => {
                let kind = Kind::Symlink(string(args[0]).unwrap());
                self.make(pid, ok, at(args[1], args[2]), kind)
            }
            "link" => self.link(
                pid,
                ok,
                self.plain(pid, args[0]),
                self.plain(pid, args[1]),
                false,
            ),
            "linkat" => {
                let follow = args[4].contains("AT_SYMLINK_FOLLOW");
                self.link(pid, ok, at(args[0], args[1]), at(args[2], args[3]), follow)
            }
            "rename" => self.rename(pid, ok, self.plain(pid, args[0]), self.plain(pid, args[1])),
            "renameat" | "renameat2" => {
                assert!(!call.line.contains("RENAME_EXCHANGE"), "{}", call.line);
                self.rename(pid, ok, at(args[0], args[1]), at(args[2], args[3]))
            }
            "chmod" | "chown" | "utime" | "utimes" | "setxattr" | "removexattr" => {
                self.change(pid, ok, self.plain(pid, args[0]), true)
            }
            "lchown" | "lsetxattr" | "lremovexattr" => {
                self.change(pid, ok, self.plain(pid, args[0]), false)
            }
            "fchmodat" | "fchmodat2" | "fchownat" | "futimesat" | "utimensat" => {
                let nothing = call.line.matches("UTIME_OMIT").count() == 2;
                let follow = !call.line.contains("AT_SYMLINK_NOFOLLOW");
                self.change(pid, ok && !nothing, at(args[0], args[1]), follow)
            }
            "fchmod" | "fchown" | "fsetxattr" | "fremovexattr" => {
                self.change(pid, ok, at(args[0], "NULL"), true)
            }
            "truncate" => {
                let place = self.plain(pid, args[0]);
                let Some(walk) = self.look(pid, place, true) else {
                    return false;
                };
                if let (true, End::Found(path, node)) = (ok, walk.end) {
                    self.names.nodes[node].size = number(args[1]) as u64;
                    self.count(pid, &path, "write", 0);
                }
                true
            }
            "ftruncate" | "fallocate" => {
                let Some(open) = self.descriptor(pid, args[0]) else {
                    return false;
                };
                if ok {
                    let info = &mut self.names.nodes[open.node];
                    info.size = match call.name.as_str() {
                        "ftruncate" => number(args[1]) as u64,
                        _ if args[1] == "0" => {
                            info.size.max((number(args[2]) + number(args[3])) as u64)
                        }
                        _ => info.size,
                    };
                    let path = info.path.clone();
                    self.count(pid, &path, "write", 0);
                }
                true
            }
            _ => self.interpret_descriptor(pid, call, &args),
        }
    }

    /// Calls that only have descriptors, and those that make processes.
    fn interpret_descriptor(&mut self, pid: u32, call: &Call, args: &[&str]) -> bool {
        let Ok(result) = call.result else {
            return false;
        };
        let done = result.max(0) as u64;
        match call.name.as_str() {
            // The kernel does nothing for these.
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" if done == 0 => false,
            "read" | "pread64" if args[2] == "0" => false,
            "read" | "readv" => self.transfer(pid, args[0], "read", None, done),
            "pread64" | "preadv" | "preadv2" if args[3] != "-1" => {
                self.transfer(pid, args[0], "read", Some(number(args[3]) as u64), done)
            }
            "write" | "writev" => self.transfer(pid, args[0], "write", None, done),
            "pwrite64" | "pwritev" | "pwritev2" if args[3] != "-1" => {
                self.transfer(pid, args[0], "write", Some(number(args[3]) as u64), done)
            }
            // Through the page cache, as with a map.
            "sendfile" | "sendfile64" => {
                let from = self.mapped(pid, args[1]);
                self.transfer(pid, args[1], "read", pointed(args[2]), done);
                self.transfer(pid, args[0], "write", None, done) || from
            }
            "splice" => {
                let from = self.mapped(pid, args[0]);
                self.transfer(pid, args[0], "read", pointed(args[1]), done);
                self.transfer(pid, args[2], "write", pointed(args[3]), done) || from
            }
            "copy_file_range" if done == 0 => self.descriptor(pid, args[0]).is_some(),
            "copy_file_range" => {
                let from = self.transfer(pid, args[0], "read", pointed(args[1]), done);
                self.transfer(pid, args[2], "write", pointed(args[3]), done) || from
            }
            "lseek" => {
                let number = number(args[0]);
                self.processes.seek(pid, number, done);
                self.descriptor(pid, args[0]).is_some()
            }
            "getdents64" | "getdents" => {
                let Some(open) = self.descriptor(pid, args[0]) else {
                    return false;
                };
                if open.offset == 0 {
                    let path = self.names.nodes[open.node].path.clone();
                    self.did(pid, &path, "list");
                    self.count(pid, &path, "list", 0);
                    self.expected.seen.insert((path, "list"));
                }
                // Where a listing goes on is the filesystem's own business.
                self.processes.seek(pid, number(args[0]), u64::MAX);
                true
            }
            "mmap" if args[4] != "-1" => {
                let Some(open) = self.descriptor(pid, args[4]) else {
                    return false;
                };
                if args[3].contains("MAP_SHARED") && args[2].contains("PROT_WRITE") {
                    let path = self.names.nodes[open.node].path.clone();
                    self.expected.written_back.insert(path);
                }
                self.mapped(pid, args[4])
            }
            "close" => self.processes.close(pid, number(args[0]), number(args[0])),
            "close_range" => {
                let last = args[1].parse().unwrap_or(i64::MAX);
                !args[2].contains("CLOEXEC") && self.processes.close(pid, number(args[0]), last)
            }
            "dup" | "dup2" | "dup3" => self.processes.copy(pid, number(args[0]), result),
            "fcntl" if args[1].starts_with("F_DUPFD") => {
                self.processes.copy(pid, number(args[0]), result)
            }
            "clone" | "clone3" | "fork" | "vfork" => {
                let child = call.child.unwrap();
                self.processes.forked(pid, child, &call.line, call.at);
                false
            }
            "fstat" | "fsync" | "fdatasync" | "flock" | "fcntl" | "ioctl" | "fadvise64"
            | "fstatfs" | "fgetxattr" | "flistxattr" | "getcwd" | "syncfs" | "sync_file_range"
            | "readahead" => args
                .first()
                .is_some_and(|arg| self.descriptor(pid, arg).is_some()),
            _ => {
                let root = &self.names.root;
                assert!(
                    !call.line.contains(root.as_str()),
                    "not understood: {}",
                    call.line
                );
                false
            }
        }
    }

    fn open(&mut self, pid: u32, call: &Call, place: Option<Place>, flags: &str) -> bool {
        let has = |flag: &str| flags.split('|').any(|word| word == flag);
        assert!(!has("O_TMPFILE"), "not understood: {}", call.line);
        let exclusive = has("O_CREAT") && has("O_EXCL");
        let follow = !has("O_NOFOLLOW") && !exclusive;
        let Some(walk) = self.look(pid, place, follow) else {
            return false;
        };
        let Ok(number) = call.result else { return true };
        let (path, node, existed) = match walk.end {
            End::Found(path, node) => (path, node, true),
            End::Absent(path) => {
                self.count(pid, &path, "create", 0);
                let node = self.names.add(&path, Kind::File, 0);
                (path, node, false)
            }
            End::Outside(_) => {
                self.processes.close(pid, number, number);
                return false;
            }
            End::Broken => panic!("opened, and not there: {}", call.line),
        };
        let opened = call.returned.as_deref();
        let known = self.absolute(&End::Found(path.clone(), node));
        assert_eq!(
            opened,
            Some(known.as_str()),
            "the model of names is wrong: {}",
            call.line
        );
        if !has("O_PATH") && self.names.nodes[node].kind == Kind::File {
            if !has("O_WRONLY") {
                self.count(pid, &path, "open", 0);
            }
            if has("O_WRONLY") || has("O_RDWR") {
                self.count(pid, &path, "open_write", 0);
            }
            if has("O_TRUNC") && existed {
                self.count(pid, &path, "write", 0);
                self.names.nodes[node].size = 0;
            }
        }
        let open = Descriptor {
            node,
            offset: 0,
            appends: has("O_APPEND"),
        };
        self.processes.opened(pid, number, open);
        true
    }

    fn execute(&mut self, pid: u32, call: &Call, place: Option<Place>) -> bool {
        let Some(place) = place else { return false };
        let walk = self.look(pid, Some(place), true);
        let end = walk.as_ref().map(|walk| walk.end.clone());
        if let Some(End::Found(path, _)) = &end
            && !matches!(
                call.result.as_ref().map_err(String::as_str),
                Err("ENOENT" | "EACCES")
            )
        {
            self.did(pid, path, "read");
            self.count(pid, path, "execute", 0);
            self.expected.mapped.insert(path.clone());
        }
        if call.result.is_ok() {
            let path = match end {
                Some(end) => self.absolute(&end),
                None => string(&call.args[0]).unwrap(),
            };
            self.processes.executed(pid, Path::new(&path));
        }
        walk.is_some()
    }

    fn read_link(&mut self, pid: u32, place: Option<Place>) -> bool {
        let Some(walk) = self.look(pid, place, false) else {
            return false;
        };
        if let End::Found(path, _) = walk.end {
            self.did(pid, &path, "read");
        }
        true
    }

    fn remove(&mut self, pid: u32, ok: bool, place: Option<Place>) -> bool {
        let Some(walk) = self.look(pid, place, false) else {
            return false;
        };
        if let (true, End::Found(path, _)) = (ok, walk.end) {
            self.count(pid, &path, "remove", 0);
            self.names.remove(&path);
        }
        true
    }

    fn make(&mut self, pid: u32, ok: bool, place: Option<Place>, kind: Kind) -> bool {
        let Some(walk) = self.look(pid, place, false) else {
            return false;
        };
        if let (true, End::Absent(path)) = (ok, walk.end) {
            self.count(pid, &path, "create", 0);
            self.names.add(&path, kind, 0);
        }
        true
    }

    fn link(
        &mut self,
        pid: u32,
        ok: bool,
        from: Option<Place>,
        to: Option<Place>,
        follow: bool,
    ) -> bool {
        let from = self.look(pid, from, follow);
        let Some(to) = self.look(pid, to, false) else {
            return from.is_some();
        };
        if let (true, Some(from), End::Absent(path)) = (ok, from, to.end) {
            let End::Found(_, node) = from.end else {
                panic!("a link from nowhere")
            };
            self.count(pid, &path, "link", 0);
            self.names.link(node, &path);
        }
        true
    }

    fn rename(&mut self, pid: u32, ok: bool, from: Option<Place>, to: Option<Place>) -> bool {
        let from = self.look(pid, from, false);
        let to = self.look(pid, to, false);
        let (Some(from), Some(to)) = (from, to) else {
            return false;
        };
        if let (true, End::Found(old, node)) = (ok, from.end) {
            let new = match to.end {
                // Two names of one file: nothing is done.
                End::Found(_, other) if other == node => return true,
                End::Found(path, _) => {
                    self.names.remove(&path);
                    path
                }
                End::Absent(path) => path,
                _ => panic!("renamed out of the workspace"),
            };
            self.count(pid, &old, "rename_from", 0);
            self.names.rename(&old, &new);
            self.count(pid, &new, "rename_to", 0);
        }
        true
    }

    fn change(&mut self, pid: u32, ok: bool, place: Option<Place>, follow: bool) -> bool {
        let Some(walk) = self.look(pid, place, follow) else {
            return false;
        };
        if let (true, End::Found(path, _)) = (ok, walk.end) {
            self.count(pid, &path, "metadata", 0);
        }
        true
    }

    /// A call that read or wrote through a descriptor, at `offset` or where it was.
    fn transfer(
        &mut self,
        pid: u32,
        arg: &str,
        kind: &'static str,
        offset: Option<u64>,
        bytes: u64,
    ) -> bool {
        let Some(open) = self.descriptor(pid, arg) else {
            return false;
        };
        let info: &mut Info = &mut self.names.nodes[open.node];
        if info.kind != Kind::File {
            return false;
        }
        let begin = match offset {
            Some(offset) => offset,
            None if kind == "write" && open.appends => info.size,
            None => open.offset,
        };
        if kind == "write" {
            info.size = info.size.max(begin + bytes);
        }
        let path = info.path.clone();
        if offset.is_none() {
            self.processes.seek(pid, number(arg), begin + bytes);
        }
        self.did(pid, &path, kind);
        if kind == "write" {
            self.count(pid, &path, kind, bytes);
        } else if bytes > 0 && !self.names.touched.contains(&path) {
            self.expected.seen.insert((path.clone(), "read"));
        }
        self.expected
            .transfers
            .push((path, kind, pid, begin, bytes));
        true
    }

    /// What is read of a file from now on need not be a call.
    fn mapped(&mut self, pid: u32, arg: &str) -> bool {
        let Some(open) = self.descriptor(pid, arg) else {
            return false;
        };
        let path = self.names.nodes[open.node].path.clone();
        self.did(pid, &path, "read");
        self.expected.mapped.insert(path);
        true
    }

    /// What the kernel looks up for a path. `None` if it does not lead into the workspace.
    fn look(&mut self, pid: u32, place: Option<Place>, follow: bool) -> Option<Walk> {
        let place = place?;
        let Some(path) = place.path else {
            // A descriptor itself.
            let walk = self.names.walk("/", &place.base, false);
            return matches!(walk.end, End::Found(..)).then_some(walk);
        };
        let walk = self.names.walk(&place.base, &path, follow);
        for found in &walk.found {
            self.did(pid, found, "lookup");
            if !self.names.touched.contains(found) {
                self.expected.seen.insert((found.clone(), "lookup"));
            }
            // The target of a link that was gone over, if it is one.
            self.did(pid, found, "link target");
        }
        if let Some(missing) = &walk.missing {
            self.did(pid, missing, "missing");
            self.expected.seen.insert((missing.clone(), "missing"));
        }
        let inside = !walk.found.is_empty() || walk.missing.is_some();
        (inside || matches!(walk.end, End::Found(..))).then_some(walk)
    }

    fn descriptor(&self, pid: u32, arg: &str) -> Option<Descriptor> {
        // What was closed by an `execve`, and its number used again, is told by its path.
        let (number, path) = descriptor(arg);
        path.filter(|path| path.starts_with(&self.names.root))?;
        self.processes.descriptor(pid, number.parse().ok()?)
    }

    fn plain(&self, pid: u32, arg: &str) -> Option<Place> {
        let path = string(arg)?;
        // What libc does where the kernel cannot change what a descriptor is of.
        if let Some(number) = path.strip_prefix("/proc/self/fd/") {
            let open = self.processes.descriptor(pid, number.parse().ok()?)?;
            let path = self.names.nodes[open.node].path.clone();
            return Some(Place {
                base: self.absolute(&End::Found(path, open.node)),
                path: None,
            });
        }
        Some(Place {
            base: self.processes.cwd(pid),
            path: Some(path),
        })
    }

    fn absolute(&self, end: &End) -> String {
        match end {
            End::Found(path, _) if path.is_empty() => self.names.root.clone(),
            End::Found(path, _) | End::Absent(path) => format!("{}/{path}", self.names.root),
            End::Outside(path) => path.clone(),
            End::Broken => panic!("it leads nowhere"),
        }
    }

    fn did(&mut self, pid: u32, path: &str, kind: &'static str) {
        self.expected.done.insert((path.to_owned(), kind, pid));
    }

    fn count(&mut self, pid: u32, path: &str, kind: &'static str, bytes: u64) {
        let program = self.processes.program(pid);
        let key = (path.to_owned(), kind, pid, program);
        let counts = self.expected.counted.entry(key).or_default();
        counts.0 += 1;
        counts.1 += bytes;
    }
}

/// A path as a call names it: from where, and which; `None` for the descriptor itself.
pub(crate) struct Place {
    base: String,
    path: Option<String>,
}

/// `None`: the descriptor is of no path.
fn at(base: &str, path: &str) -> Option<Place> {
    let (_, base) = descriptor(base);
    let path = string(path).filter(|path| !path.is_empty());
    match (base, &path) {
        (Some(base), _) => Some(Place { base, path }),
        (None, Some(text)) if text.starts_with('/') => Some(Place {
            base: "/".to_owned(),
            path,
        }),
        _ => None,
    }
}

/// The number that an argument points to: `[5]`, `[5] => [8]`; `None` for `NULL`.
fn pointed(arg: &str) -> Option<u64> {
    let inner = arg.strip_prefix('[')?;
    inner[..inner.find(']')?].parse().ok()
}

fn kind_of(mode: &str) -> Kind {
    if mode.contains("S_IFIFO") || mode.contains("S_IFSOCK") {
        Kind::Other
    } else {
        Kind::File
    }
}
