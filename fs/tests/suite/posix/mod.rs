//! The tree against a filesystem in memory: the same random program on both, over a layer with
//! something of everything, closed and opened anew on the way. What every operation answers is
//! compared, and after each everything that can be seen.

mod memory;
mod program;
mod running;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rustix::fs::FileType;
use sandstack_store::{Stack, Store};

use crate::fixture::{Scratch, Watchdog, cases, syscalls};
use running::Running;

/// A layer with something of everything, small enough that random steps meet.
fn layer(base: &Path) {
    fs::create_dir_all(base.join("a/b/c")).unwrap();
    fs::create_dir(base.join("d")).unwrap();
    let bytes: Vec<u8> = (0..30_000u32).map(|at| (at % 251) as u8 + 1).collect();
    fs::write(base.join("a/e"), &bytes).unwrap();
    fs::write(base.join("a/b/e"), &bytes[..5000]).unwrap();
    fs::write(base.join("f"), "").unwrap();
    fs::hard_link(base.join("a/e"), base.join("d/g")).unwrap();
    fs::hard_link(base.join("f"), base.join("a/b/f")).unwrap();
    symlink("a/e", base.join("h")).unwrap();
    syscalls::make_node(&base.join("a/b/c/i"), FileType::Fifo, (0, 0)).unwrap();
    let sparse = fs::File::create(base.join("d/j")).unwrap();
    sparse.set_len(60_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 40_000).unwrap();
    syscalls::set_xattr(&base.join("a/e"), "user.0", b"zero").unwrap();
    syscalls::set_xattr(&base.join("a"), "user.1", b"one").unwrap();
    syscalls::chmod(&base.join("d"), 0o2775);
    syscalls::chmod(&base.join("a/b/e"), 0o6755);
    syscalls::set_times(&base.join("f"), (5, 5), (-7, 250));
}

/// A store with a stack over that layer.
pub(crate) fn stack(scratch: &Scratch) -> Stack {
    let base = scratch.dir("base");
    layer(&base);
    let store = Store::open(&scratch.path("store")).unwrap();
    let imported = store
        .import(&base, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    store.create_stack(&imported, 0).unwrap()
}

#[test]
fn a_tree_is_what_a_simple_filesystem_is() {
    let _watchdog = Watchdog::start(
        "a_tree_is_what_a_simple_filesystem_is",
        Duration::from_secs(900),
    );
    let scratch = Scratch::in_memory();
    let stack = stack(&scratch);
    let config = Config {
        cases: cases(200),
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let programs = proptest::collection::vec(program::step(), 1..80);
    let result = TestRunner::new(config).run(&programs, |steps| {
        let mut running = Running::begin(&stack);
        for (index, step) in steps.iter().enumerate() {
            let faults = running.step(*step);
            if !faults.is_empty() {
                return Err(TestCaseError::fail(format!(
                    "after step {index}, {step:?}:\n  {}",
                    faults.join("\n  ")
                )));
            }
        }
        running.end();
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
