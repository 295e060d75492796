//! Layers of which kernels know something and forget it again: what was indexed is given up, and
//! found again when it is wanted.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandstack_store::{Ino, Lower};

use crate::fixture::session::rel;
use crate::fixture::{Scratch, stack_of};

const DIRECTORIES: usize = 60;
const FILES: usize = 500;

/// A layer of 30,000 files, none of which is indexed.
fn layer(scratch: &Scratch) -> Arc<Lower> {
    let base = scratch.dir("base");
    for directory in 0..DIRECTORIES {
        let directory = base.join(format!("d{directory}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..FILES {
            fs::write(directory.join(format!("f{file}")), "").unwrap();
        }
    }
    fs::hard_link(base.join("d0/f0"), base.join("d1/link")).unwrap();
    let store = scratch.store();
    let stack = stack_of(&store, &base);
    let lease = stack.take_lease(None, "one", None, 1).unwrap();
    Arc::clone(store.open_upper(&lease).unwrap().lower())
}

/// Enters every directory, as a walk does, and holds it: each with its files.
fn walk(lower: &Lower) -> Vec<(Ino, Vec<Ino>)> {
    let walked = (0..DIRECTORIES).map(|directory| {
        let ino = lower
            .node_at(&rel(&format!("d{directory}")))
            .unwrap()
            .unwrap()
            .meta
            .ino;
        lower.hold(ino);
        let entries = lower.directory(ino).unwrap().unwrap();
        let files = (0..entries.len()).map(|index| entries.identity(index).0);
        (ino, files.collect())
    });
    walked.collect()
}

#[track_caller]
fn assert_all_there(lower: &Lower, walked: &[(Ino, Vec<Ino>)]) {
    for (number, (directory, files)) in walked.iter().enumerate() {
        assert_eq!(
            lower.path(*directory).unwrap(),
            Some(rel(&format!("d{number}")))
        );
        for file in files {
            let names = lower.names(*file).unwrap();
            assert!(
                names.iter().any(|(parent, _)| parent == directory),
                "{file}: {names:?}"
            );
            assert_eq!(lower.node(*file).unwrap().unwrap().meta.ino, *file);
        }
    }
}

#[test]
fn what_kernels_forget_is_given_up_and_found_again() {
    let scratch = Scratch::in_memory();
    let lower = layer(&scratch);
    for directories_first in [true, false] {
        let walked = walk(&lower);
        // A second view knows one of them, and the session has moved a file out of another.
        let (held, moved) = (walked[7].0, walked[8].1[5]);
        lower.hold(held);
        let needed = |ino| ino == moved;
        let mut given_up = 0;
        for (directory, files) in &walked {
            if directories_first {
                given_up += lower.forgotten(*directory, needed);
            }
            given_up += files
                .iter()
                .map(|file| lower.forgotten(*file, needed))
                .sum::<usize>();
            if !directories_first {
                given_up += lower.forgotten(*directory, needed);
            }
        }
        // Something is kept, so that small layers are never given up.
        assert!(
            given_up > 5_000 && given_up < DIRECTORIES * FILES - FILES,
            "{given_up}"
        );
        assert_all_there(&lower, &walked);
        // The last to hold it lets go.
        assert_eq!(lower.forgotten(held, needed), FILES);
    }
}

/// What is given up while others walk and look is found by them, always.
#[test]
fn what_is_wanted_is_found_while_it_is_given_up() {
    let scratch = Scratch::in_memory();
    let lower = layer(&scratch);
    let walked = walk(&lower);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in 0..3 {
            let (lower, walked, done) = (&lower, &walked, &done);
            scope.spawn(move || {
                let mut round = part;
                while !done.load(Ordering::Relaxed) {
                    let (directory, files) = &walked[round % DIRECTORIES];
                    let file = files[round * 7 % FILES];
                    assert!(lower.node(file).unwrap().is_some(), "{file}");
                    assert!(
                        lower.directory(*directory).unwrap().is_some(),
                        "{directory}"
                    );
                    round += 1;
                }
            });
        }
        for round in 0..5 {
            for (directory, files) in &walked {
                for ino in std::iter::once(directory).chain(files) {
                    lower.forgotten(*ino, |ino| ino % 97 == round);
                }
                lower.hold(*directory);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_all_there(&lower, &walked);
}
