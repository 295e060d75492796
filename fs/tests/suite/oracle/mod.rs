//! A view against a disk: the same random program of system calls, by several users, on a tree in a
//! view and on its twin on the filesystem of the temporary directory. What every call answers is
//! compared, and after each everything that can be asked of the two trees. `together` has several
//! processes that run programs at once.

mod program;
mod together;
mod twin;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rustix::fs::FileType;

use crate::fixture::seen::{self, Seen, fine_times};
use crate::fixture::{Disk, MODES, Scratch, Watchdog, cases, lacks, lacks_root, syscalls};
use program::{Call, Step};
use twin::Twin;

/// Random programs that one view serves, each in a tree of its own; then there is a new view.
const TREES: usize = 60;

/// A tree with something of everything, small enough that random calls meet.
pub(crate) fn fill(tree: &Path) {
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir(tree.join("c")).unwrap();
    let bytes: Vec<u8> = (0..30_000u32).map(|at| (at % 251) as u8 + 1).collect();
    fs::write(tree.join("a/d"), &bytes).unwrap();
    fs::write(tree.join("b"), &bytes[..5000]).unwrap();
    fs::write(tree.join("c/a"), "").unwrap();
    fs::hard_link(tree.join("a/d"), tree.join("c/d")).unwrap();
    symlink("a/d", tree.join("c/b")).unwrap();
    syscalls::make_node(&tree.join("a/b/c"), FileType::Fifo, (0, 0)).unwrap();
    let sparse = fs::File::create(tree.join("c/c")).unwrap();
    sparse.set_len(60_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 40_000).unwrap();
    syscalls::set_xattr(&tree.join("a/d"), "user.a", b"one").unwrap();
    for (name, mode) in [("", 0o777), ("a", 0o777), ("c", 0o2775), ("b", 0o666)] {
        syscalls::chmod(&tree.join(name), mode);
    }
    syscalls::chown(&tree.join("c"), 0, program::USERS[1].1);
    syscalls::chown(&tree.join("a/d"), program::USERS[1].0, 7);
    syscalls::chmod(&tree.join("a/d"), 0o6755);
}

fn trees(dir: &Path) {
    // As the user's umask would have it.
    syscalls::chmod(dir, 0o755);
    for index in 0..TREES {
        let tree = dir.join(index.to_string());
        fs::create_dir(&tree).unwrap();
        fill(&tree);
    }
}

/// A view, and the disk that it is compared with.
struct Pair {
    disk: Disk,
    twins: Scratch,
    used: usize,
}

impl Pair {
    fn new(mode: &'static str) -> Pair {
        let twins = Scratch::new();
        trees(&twins.dir("trees"));
        Pair {
            disk: Disk::over(mode, trees),
            twins,
            used: 0,
        }
    }

    /// Runs a program in the next tree; what is not the same.
    fn run(&mut self, steps: &[Step], fine: bool) -> Vec<String> {
        let name = self.used.to_string();
        self.used += 1;
        let (view, disk) = (self.disk.path(&name), self.twins.path("trees").join(&name));
        let (mut view, mut disk) = (Twin::new(view), Twin::new(disk));
        let (mut seen_view, mut seen_disk) = (Seen::of(view.root()), Seen::of(disk.root()));
        let mut faults = seen_view.faults(&seen_disk);
        for (index, step) in steps.iter().enumerate() {
            if !faults.is_empty() {
                break;
            }
            if matches!(step.call, Call::Remount) {
                view.close_all();
                disk.close_all();
                self.disk.remount();
            }
            let (answer, expected) = (view.perform(step), disk.perform(step));
            if answer != expected {
                faults.push(format!("answered {answer:?}, and the disk {expected:?}"));
            }
            let (next_view, next_disk) = (Seen::of(view.root()), Seen::of(disk.root()));
            faults.extend(next_view.faults(&next_disk));
            faults.extend(next_view.times_faults(&seen_view, &next_disk, &seen_disk, fine));
            (seen_view, seen_disk) = (next_view, next_disk);
            if !faults.is_empty() {
                faults.insert(0, format!("after step {index}, {step:?}:"));
            }
        }
        faults
    }
}

#[test]
fn a_view_is_what_a_disk_is() {
    let _watchdog = Watchdog::start("a_view_is_what_a_disk_is", Duration::from_secs(3600));
    if lacks_root() {
        return;
    }
    let scratch = Scratch::new();
    if !seen::is_a_disk(&scratch.path("")) && lacks("a temporary directory on ext4, xfs or tmpfs") {
        return;
    }
    let fine = fine_times(&scratch.path(""));
    if !fine && lacks("a disk with times as fine as its changes") {
        eprintln!("that a time stays as it is was not compared");
    }
    let cases = cases(30);
    for mode in MODES {
        let config = Config {
            cases: cases.div_ceil(MODES.len() as u32),
            failure_persistence: None,
            max_shrink_iters: 600,
            ..Config::default()
        };
        let mut pair = Pair::new(mode);
        let programs = proptest::collection::vec(program::step(), 1..60);
        let shared = std::cell::RefCell::new(&mut pair);
        let result = TestRunner::new(config).run(&programs, |steps| {
            let mut pair = shared.borrow_mut();
            if pair.used == TREES {
                **pair = Pair::new(mode);
            }
            let faults = pair.run(&steps, fine);
            if faults.is_empty() {
                Ok(())
            } else {
                Err(TestCaseError::fail(faults.join("\n  ")))
            }
        });
        if let Err(failure) = result {
            panic!("in mode {mode}: {failure}");
        }
    }
}
