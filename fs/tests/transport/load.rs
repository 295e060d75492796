//! Many at once: everyone gets their own answers, and nobody waits for what another waits for.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::fixture::{View, in_threads, over_each_transport, wait_until};

#[test]
fn many_threads_get_their_own_answers() {
    over_each_transport("many_threads_get_their_own_answers", |transport| {
        const THREADS: usize = 24;
        const ROUNDS: usize = 30;
        let view = View::new(transport);
        in_threads(THREADS, |number| {
            let dir = view.path(&format!("dir-{number}"));
            fs::create_dir(&dir).unwrap();
            for round in 0..ROUNDS {
                let path = dir.join(format!("file-{round}"));
                let bytes = vec![(number * ROUNDS + round) as u8; 1 + 977 * (round + 1)];
                fs::write(&path, &bytes).unwrap();
                assert_eq!(fs::read(&path).unwrap(), bytes);
                assert_eq!(fs::metadata(&path).unwrap().len(), bytes.len() as u64);
                let moved = dir.join(format!("moved-{round}"));
                fs::rename(&path, &moved).unwrap();
                assert!(fs::metadata(&path).is_err());
                if round % 3 == 0 {
                    fs::remove_file(&moved).unwrap();
                }
            }
            let left = fs::read_dir(&dir).unwrap().count();
            assert_eq!(left, ROUNDS - ROUNDS.div_ceil(3));
        });
    });
}

/// Larger than any single request, from offsets that are multiples of nothing.
#[test]
fn large_reads_and_writes_arrive_whole() {
    over_each_transport("large_reads_and_writes_arrive_whole", |transport| {
        const BYTES: usize = 9 << 20;
        let view = View::new(transport);
        in_threads(4, |number| {
            let path = view.path(&format!("large-{number}"));
            let bytes: Vec<u8> = (0..BYTES)
                .map(|at| ((at * 31 + number * 7) >> 3) as u8)
                .collect();
            let mut file = File::create(&path).unwrap();
            for piece in bytes.chunks(1_234_567) {
                file.write_all(piece).unwrap();
            }
            file.sync_all().unwrap();
            assert!(
                fs::read(&path).unwrap() == bytes,
                "read from the page cache"
            );
            // And past it: the request goes to the daemon.
            let direct = rustix::fs::open(
                &path,
                rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT,
                rustix::fs::Mode::empty(),
            )
            .unwrap();
            let direct = File::from(direct);
            let mut buffer = vec![0; BYTES];
            direct.read_exact_at(&mut buffer, 0).unwrap();
            assert!(buffer == bytes, "read past the page cache");
        });
    });
}

/// A long copy is made by a thread that serves no queue, and answered from there.
#[test]
fn long_copies_are_whole_and_stop_nobody() {
    over_each_transport("long_copies_are_whole_and_stop_nobody", |transport| {
        const BYTES: usize = 24 << 20;
        let view = View::new(transport);
        let bytes: Vec<u8> = (0..BYTES).map(|at| ((at * 13) >> 5) as u8).collect();
        fs::write(view.path("source"), &bytes).unwrap();
        in_threads(8, |number| {
            let from = File::open(view.path("source")).unwrap();
            let path = view.path(&format!("copy-{number}"));
            let to = File::create(&path).unwrap();
            let mut at = 0;
            while at < BYTES as u64 {
                let mut to_at = at;
                let wanted = BYTES - at as usize;
                let copied = rustix::fs::copy_file_range(
                    &from,
                    Some(&mut at),
                    &to,
                    Some(&mut to_at),
                    wanted,
                )
                .unwrap();
                assert!(copied > 0);
                assert_eq!(fs::metadata(&path).unwrap().len(), at);
            }
            assert!(fs::read(&path).unwrap() == bytes);
        });
    });
}

/// More syncs at once than a queue has entries must not keep others from being answered.
#[test]
fn syncs_do_not_stop_the_rest() {
    over_each_transport("syncs_do_not_stop_the_rest", |transport| {
        const SYNCERS: usize = 32;
        let view = View::new(transport);
        let (running, answered) = (AtomicUsize::new(SYNCERS), AtomicUsize::new(0));
        in_threads(SYNCERS + 2, |number| {
            if number < SYNCERS {
                let mut file = File::create(view.path(&format!("synced-{number}"))).unwrap();
                for round in 0..8u8 {
                    file.write_all(&[round; 5000]).unwrap();
                    file.sync_all().unwrap();
                }
                running.fetch_sub(1, Ordering::Relaxed);
            } else {
                while running.load(Ordering::Relaxed) > 0 {
                    let path = view.path(&format!("other-{number}"));
                    fs::write(&path, "x").unwrap();
                    fs::remove_file(&path).unwrap();
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert!(answered.load(Ordering::Relaxed) > 0);
        for number in 0..SYNCERS {
            let path = view.path(&format!("synced-{number}"));
            assert_eq!(fs::metadata(path).unwrap().len(), 8 * 5000);
        }
    });
}

#[test]
fn long_directories_are_listed_once_and_whole() {
    over_each_transport("long_directories_are_listed_once_and_whole", |transport| {
        const NAMES: usize = 6000;
        let name = |number: usize| format!("{number:05}-{}", "n".repeat(number % 200));
        let view = View::over(transport, |base| {
            for number in 0..NAMES {
                fs::write(base.join(name(number)), "").unwrap();
            }
        });
        in_threads(4, |_| {
            let mut names: Vec<String> = fs::read_dir(view.root())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            let expected: Vec<String> = (0..NAMES).map(name).collect();
            assert!(names == expected, "{} names", names.len());
        });
    });
}

/// A signal does not undo a request that is under way, nor does the death of who made it disturb
/// others.
#[test]
fn callers_may_be_interrupted_and_killed() {
    over_each_transport("callers_may_be_interrupted_and_killed", |transport| {
        let view = View::new(transport);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut child = Command::new("sh")
                        .args(["-c", "while :; do echo x > f; sync f; cat f; rm f; done"])
                        .current_dir(view.root())
                        .stdout(Stdio::piped())
                        // The last one's file may have gone with it.
                        .stderr(Stdio::null())
                        .spawn()
                        .unwrap();
                    let mut byte = [0];
                    child
                        .stdout
                        .as_mut()
                        .unwrap()
                        .read_exact(&mut byte)
                        .unwrap();
                    child.kill().unwrap();
                    child.wait().unwrap();
                }
            });
            for round in 0..300 {
                let path = view.path(&format!("kept-{round}"));
                fs::write(&path, round.to_string()).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), round.to_string());
            }
            stop.store(true, Ordering::Relaxed);
        });
        let kept = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("kept-");
        let entries = fs::read_dir(view.root()).unwrap();
        assert_eq!(entries.map(Result::unwrap).filter(kept).count(), 300);
    });
}

/// What is open without a name lives until it is closed: the kernel says so by a message that comes
/// by another way than requests do.
#[test]
fn forgotten_inodes_give_their_room_back() {
    over_each_transport("forgotten_inodes_give_their_room_back", |transport| {
        let view = View::new(transport);
        let path = view.path("nameless");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all(&vec![7; 20 << 20]).unwrap();
        fs::remove_file(&path).unwrap();
        let mut bytes = vec![0; 20 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        let arena = |dir: &std::path::Path| -> u64 {
            let mut blocks = 0;
            let mut pending = vec![dir.to_path_buf()];
            while let Some(dir) = pending.pop() {
                for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                    let found = entry.metadata().unwrap();
                    if found.is_dir() {
                        pending.push(entry.path());
                    } else {
                        blocks += found.blocks();
                    }
                }
            }
            blocks * 512
        };
        let store = view.root().parent().unwrap().join("store");
        let held = arena(&store);
        assert!(held > 20 << 20, "{held}");
        drop(file);
        // Room is given back at the next sync.
        wait_until("the room of a forgotten inode", || {
            File::open(view.root()).unwrap().sync_all().unwrap();
            arena(&store) + (10 << 20) < held
        });
    });
}
