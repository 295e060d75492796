//! Later edits of the project directory.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;
use sandstack_store::{ConflictKind, Outcome, Owner, PublishReport, Stack};

use crate::fixture::session::rel;
use crate::fixture::snapshot::Level;
use crate::fixture::{Random, Scratch, Session, Snapshot, cases, host, numbered, stack_of, verify};

fn refresh(stack: &Stack, dir: &Path) -> PublishReport {
    let options = Session::open(stack, "for its options").options();
    let lease = stack.leases().unwrap().pop().unwrap();
    stack.store().release(lease.id()).unwrap();
    let report = stack
        .refresh(
            dir,
            &options,
            &mut |_| ControlFlow::Continue(()),
            &mut |_| {},
        )
        .unwrap();
    assert!(
        !stack
            .leases()
            .unwrap()
            .iter()
            .any(|lease| lease.record().holder == "refresh"),
        "its own lease is gone"
    );
    verify::stack(stack);
    verify::store(stack.store());
    report
}

#[test]
fn edits_of_the_host_and_of_sessions_come_together() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    host::write(&dir.join("f"), numbered(9).as_bytes());
    host::write(&dir.join("d/moved"), b"m1\nm2\nm3\nm4\nm5\n");
    host::write(&dir.join("gone"), b"x\n");
    let stack = stack_of(&scratch.store(), &dir);
    assert_eq!(refresh(&stack, &dir).outcome, Outcome::NoChange);
    let live = Session::open(&stack, "live");
    let session = Session::open(&stack, "s");
    session.edit("f", "2\n", "two\n");
    session.edit("d/moved", "m1\n", "M1\n");
    session.publish();
    let text = fs::read_to_string(dir.join("f")).unwrap();
    fs::write(dir.join("f"), text.replace("8\n", "eight\n")).unwrap();
    fs::rename(dir.join("d/moved"), dir.join("elsewhere")).unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    host::write(&dir.join("new/deep/file"), b"n\n");
    symlink("f", dir.join("link")).unwrap();
    let report = refresh(&stack, &dir);
    let Outcome::Published(layer) = &report.outcome else {
        panic!("{report:?}")
    };
    assert_eq!(layer.owner, Owner::Host);
    let head = Snapshot::of_head(&stack);
    assert_eq!(
        head.paths(),
        "d elsewhere f link new new/deep new/deep/file"
    );
    assert_eq!(head.text("f").unwrap(), "1\ntwo\n3\n4\n5\n6\n7\neight\n9\n");
    assert_eq!(
        head.text("elsewhere"),
        Some("M1\nm2\nm3\nm4\nm5\n"),
        "the edit follows the move"
    );
    let owners: Vec<String> = stack
        .blame(stack.head(), &rel("f"))
        .unwrap()
        .runs
        .iter()
        .map(|run| format!("{}:{}", run.start, run.owner))
        .collect();
    assert_eq!(
        owners,
        [
            "1:original",
            "2:workspace_session:s",
            "3:original",
            "8:host",
            "9:original"
        ]
    );
    // A live session is not disturbed, and publishes against it.
    live.edit("f", "5\n", "five\n");
    live.publish();
    // Nothing more to do, though the directory has not what the sessions made.
    assert_eq!(refresh(&stack, &dir).outcome, Outcome::NoChange);
    // A conflict changes nothing, and is there again the next time.
    fs::write(
        dir.join("f"),
        text.replace("8\n", "eight\n").replace("2\n", "zwei\n"),
    )
    .unwrap();
    for _ in 0..2 {
        let report = refresh(&stack, &dir);
        assert_eq!(report.outcome, Outcome::Conflict);
        assert_eq!(report.conflicts[0].kind, ConflictKind::Content);
        assert_eq!(
            report.conflicts[0].head_owner,
            Some(Owner::Session("live".to_owned()))
        );
    }
    fs::write(
        dir.join("f"),
        text.replace("8\n", "eight\n").replace("9\n", "nine\n"),
    )
    .unwrap();
    assert!(matches!(
        refresh(&stack, &dir).outcome,
        Outcome::Published(_)
    ));
    assert_eq!(
        Snapshot::of_head(&stack).text("f").unwrap(),
        "1\ntwo\n3\n4\nfive\n6\n7\neight\nnine\n"
    );
}

/// Changes a directory of the host at random.
fn disturb(dir: &Path, random: &mut Random) {
    let mut paths: Vec<String> = Snapshot::of_directory(dir)
        .0
        .keys()
        .map(|path| path.to_string())
        .filter(|path| !path.is_empty() && path != ".")
        .collect();
    paths.push("none".to_owned());
    for _ in 0..random.below(6) {
        let (one, other) = (random.pick(&paths).clone(), random.pick(&paths).clone());
        let path = dir.join(&one);
        // Whatever is impossible just does not happen.
        let _ = match random.below(9) {
            0 => fs::write(&path, random.bytes(20)),
            1 => fs::write(dir.join(format!("n{}", random.below(9))), random.bytes(9)),
            2 => fs::remove_file(&path),
            3 => fs::remove_dir_all(&path),
            4 | 5 => fs::rename(&path, dir.join(&other)),
            6 => fs::create_dir(dir.join(format!("{other}/d{}", random.below(4)))),
            7 => fs::hard_link(&path, dir.join(format!("h{}", random.below(9)))),
            // As editors save: another file takes the name.
            _ => fs::write(dir.join("save~"), fs::read(&path).unwrap_or_default())
                .and_then(|()| fs::rename(dir.join("save~"), &path)),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_refreshed_head_is_the_directory(seed in any::<u64>()) {
        let scratch = Scratch::in_memory();
        let dir = scratch.dir("project");
        let mut random = Random::new(seed);
        for name in ["a", "b", "d/c", "d/e/f", "g/h"] {
            host::write(&dir.join(name), &random.bytes(30));
        }
        let stack = stack_of(&scratch.store(), &dir);
        for _ in 0..4 {
            disturb(&dir, &mut random);
            let report = refresh(&stack, &dir);
            prop_assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
            let difference = Snapshot::of_head(&stack).difference(&Snapshot::of_directory(&dir), Level::Tree);
            prop_assert!(difference.is_empty(), "{}", difference);
        }
    }
}
