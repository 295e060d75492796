//! Semantics: hard links, and locks.

use std::fs;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags};
use sandstack_fs::{Caller, Error, NewNode, Tree};
use sandstack_store::{Attrs, ROOT_INO, Record, Store};

use super::everything;
use crate::fixture::{Scratch, in_every_mode, lacks, syscalls};

/// > A file has at most 1,048,576 names; one more is `EMLINK`.
#[test]
fn names_of_a_file_are_bounded() {
    let scratch = Scratch::in_memory();
    let store = Store::open(&scratch.path("store")).unwrap();
    let base = store
        .import(&scratch.dir("base"), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    let lease = store
        .create_stack(&base, 0)
        .unwrap()
        .take_lease(None, "one", None, 0)
        .unwrap();
    let tree = Tree::new(Arc::new(store.open_upper(&lease).unwrap())).unwrap();
    let caller = Caller {
        uid: 0,
        gid: 0,
        pid: 0,
    };
    let file = tree
        .create(caller, ROOT_INO, b"file", 0o644, NewNode::File)
        .unwrap();
    // As if it had all names but one.
    let mut change = tree.upper().begin();
    let attrs = Attrs {
        nlink: 1_048_575,
        ..Attrs::from(&file)
    };
    change.push(Record::Attrs {
        ino: file.ino,
        attrs,
    });
    change.commit().unwrap();
    let linked = tree.link(file.ino, ROOT_INO, b"last").unwrap();
    assert_eq!(linked.nlink, 1_048_576);
    let refused = tree.link(file.ino, ROOT_INO, b"one more").unwrap_err();
    assert!(matches!(refused, Error::TooManyLinks));
    assert_eq!(refused.errno(), libc::EMLINK);
}

/// > A link to a file without a name is `ENOENT`.
#[test]
fn a_file_without_a_name_gets_none() {
    in_every_mode("a_file_without_a_name_gets_none", everything, |disk| {
        fs::write(disk.path("new"), "new").unwrap();
        for name in ["file", "new"] {
            let file = syscalls::open(&disk.path(name), OFlags::RDONLY).unwrap();
            fs::remove_file(disk.path(name)).unwrap();
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let linked = rustix::fs::linkat(
                CWD,
                path.as_str(),
                CWD,
                disk.path("again"),
                AtFlags::SYMLINK_FOLLOW,
            );
            assert_eq!(linked, Err(rustix::io::Errno::NOENT), "{name}");
            assert_eq!(file.metadata().unwrap().nlink(), 0);
        }
    });
}

/// > `flock` and `fcntl` locks hold among the users of one view.
#[test]
fn locks_hold() {
    let python = Command::new("python3")
        .arg("-c")
        .arg("import fcntl")
        .status();
    if !python.is_ok_and(|status| status.success()) && lacks("python3") {
        return;
    }
    in_every_mode("locks_hold", everything, |disk| {
        let path = disk.path("file");
        // Another process tries both kinds: prints for each whether it got the lock.
        let attempt = || {
            let script = "import fcntl, sys\n\
                for name in ('flock', 'lockf'):\n\
                \x20   with open(sys.argv[1], 'r+') as file:\n\
                \x20       try:\n\
                \x20           getattr(fcntl, name)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
                \x20           print(name, 'free')\n\
                \x20       except BlockingIOError:\n\
                \x20           print(name, 'held')\n";
            let output = Command::new("python3")
                .args(["-c", script])
                .arg(&path)
                .stderr(Stdio::inherit())
                .output()
                .unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(attempt(), "flock free\nlockf free\n");
        let file = syscalls::open(&path, OFlags::RDWR).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        assert_eq!(attempt(), "flock held\nlockf free\n");
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(attempt(), "flock held\nlockf held\n");
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
        assert_eq!(attempt(), "flock free\nlockf held\n");
        drop(file);
        assert_eq!(attempt(), "flock free\nlockf free\n");
    });
}
