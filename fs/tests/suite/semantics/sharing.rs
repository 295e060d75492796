//! Semantics: several users of one view at once, where the kernel's caches and the daemon's state
//! could part.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;

use super::nothing;
use crate::fixture::syscalls::open;
use crate::fixture::{in_every_mode, lacks};

/// Appends from several descriptors never overwrite each other.
#[test]
fn appends_are_whole() {
    in_every_mode("appends_are_whole", nothing, |disk| {
        let path = disk.path("log");
        std::thread::scope(|scope| {
            for writer in 0..8u8 {
                let path = &path;
                scope.spawn(move || {
                    use std::io::Write;
                    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
                    let mut file = open(path, flags).unwrap();
                    for _ in 0..50 {
                        file.write_all(&[b'a' + writer; 32]).unwrap();
                    }
                });
            }
        });
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len(), 8 * 50 * 32);
        for line in content.chunks(32) {
            assert!(line.iter().all(|byte| *byte == line[0]));
        }
    });
}

/// While a file is replaced again and again, whoever opens its name finds one version or another,
/// whole, and never nothing.
#[test]
fn replacing_is_atomic() {
    let fill = |base: &Path| fs::write(base.join("file"), vec![b'0'; 10_000]).unwrap();
    in_every_mode("replacing_is_atomic", fill, |disk| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let content = fs::read(disk.path("file")).unwrap();
                        assert_eq!(content.len(), 10_000);
                        assert!(content.iter().all(|byte| *byte == content[0]));
                    }
                });
            }
            for round in 0..300 {
                let temporary = disk.path("file.tmp");
                fs::write(&temporary, vec![b'0' + (round % 10) as u8; 10_000]).unwrap();
                fs::rename(&temporary, disk.path("file")).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

/// What was written past the page cache, and not waited for, is what whoever reads through the cache
/// finds when the write is done, however busy others were reading what was there before.
#[test]
fn direct_writes_are_seen_through_the_cache() {
    const LENGTH: usize = 640 << 10;
    let Ok(mut ring) = IoUring::new(4) else {
        assert!(lacks("io_uring"));
        return;
    };
    let fill = |base: &Path| fs::write(base.join("file"), vec![0; LENGTH]).unwrap();
    in_every_mode("direct_writes_are_seen_through_the_cache", fill, |disk| {
        let path = disk.path("file");
        let direct = open(&path, OFlags::RDWR | OFlags::DIRECT).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let file = open(&path, OFlags::RDONLY).unwrap();
                    let mut bytes = vec![0; LENGTH];
                    while !done.load(Ordering::Relaxed) {
                        file.read_exact_at(&mut bytes, 0).unwrap();
                    }
                });
            }
            let file = open(&path, OFlags::RDONLY).unwrap();
            let mut stale = None;
            for round in 0..200u8 {
                let bytes = vec![round; LENGTH];
                let write = opcode::Write::new(
                    types::Fd(direct.as_raw_fd()),
                    bytes.as_ptr(),
                    LENGTH as u32,
                );
                // SAFETY: the bytes live until the write is done, which is waited for.
                unsafe { ring.submission().push(&write.build()).unwrap() };
                ring.submit_and_wait(1).unwrap();
                let written = ring.completion().next().unwrap().result();
                assert_eq!(written, LENGTH as i32);
                let mut read = vec![0; LENGTH];
                file.read_exact_at(&mut read, 0).unwrap();
                stale = stale.or(read.iter().position(|byte| *byte != round).zip(Some(round)));
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(stale, None, "stale from there on, in that round");
        });
    });
}

/// Many threads, each with files of its own, over one directory.
#[test]
fn threads_do_not_disturb_each_other() {
    in_every_mode("threads_do_not_disturb_each_other", nothing, |disk| {
        std::thread::scope(|scope| {
            for thread in 0..16u8 {
                let path = disk.path(&format!("file{thread}"));
                let other = disk.path(&format!("other{thread}"));
                scope.spawn(move || {
                    for round in 0..30u64 {
                        let flags = OFlags::RDWR | OFlags::CREATE;
                        let file = open(&path, flags).unwrap();
                        file.write_all_at(&[thread; 5000], round * 5000).unwrap();
                        fs::rename(&path, &other).unwrap();
                        let mut bytes = vec![0; 5000];
                        file.read_exact_at(&mut bytes, round * 5000).unwrap();
                        assert_eq!(bytes, [thread; 5000]);
                        fs::rename(&other, &path).unwrap();
                    }
                    assert_eq!(fs::read(&path).unwrap(), [thread; 150_000]);
                });
            }
        });
        let names = fs::read_dir(disk.path("")).unwrap().count();
        assert_eq!(names, 16);
    });
}
