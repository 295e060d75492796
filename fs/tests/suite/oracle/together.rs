//! Several processes at once: each runs a random program in a tree of its own, and between its steps
//! changes what they share in ways whose order does not matter. What each was answered, and what they
//! leave, is compared with the same on a disk.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::fs::FlockOperation;

use super::program;
use super::twin::Twin;
use crate::fixture::seen::{self, Seen};
use crate::fixture::{Disk, MODES, Scratch, Watchdog, cases, lacks, lacks_root, syscalls};

const ACTORS: u8 = 4;
const STEPS: usize = 80;
/// Bytes of an entry in the shared log.
const ENTRY: usize = 16;
/// How an actor is told who it is and where it acts: a number, the round, the tree, the file for its
/// answers.
const ROLE: &str = "SANDSTACK_TEST_ACTOR";

/// A tree for each actor, and what they share.
fn fill(dir: &Path) {
    syscalls::chmod(dir, 0o755);
    for actor in 0..ACTORS {
        let tree = dir.join(actor.to_string());
        fs::create_dir(&tree).unwrap();
        super::fill(&tree);
    }
    let shared = dir.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("log"), "").unwrap();
    fs::write(shared.join("counter"), "0").unwrap();
    fs::write(shared.join("page"), vec![0; 4096]).unwrap();
}

/// What `actor` does to what is shared after its step `step`. Its names are its own; its entries and
/// bytes are among those of others.
fn share(shared: &Path, actor: u8, step: usize) {
    let entry = format!("{actor:03} {step:011}\n");
    assert_eq!(entry.len(), ENTRY);
    let mut log = File::options()
        .append(true)
        .open(shared.join("log"))
        .unwrap();
    log.write_all(entry.as_bytes()).unwrap();

    let counter = File::options()
        .read(true)
        .write(true)
        .open(shared.join("counter"))
        .unwrap();
    rustix::fs::flock(&counter, FlockOperation::LockExclusive).unwrap();
    let text = fs::read_to_string(shared.join("counter")).unwrap();
    let next = text.trim().parse::<u64>().unwrap() + 1;
    fs::write(shared.join("counter"), next.to_string()).unwrap();
    drop(counter);

    let page = File::options()
        .read(true)
        .write(true)
        .open(shared.join("page"))
        .unwrap();
    let mapping = crate::fixture::mapping::Mapping::of(&page, true);
    mapping.store(usize::from(actor) * 1000 + step, actor + 1);
    mapping.sync();

    let name = |step: usize| shared.join(format!("{actor}-{step}"));
    fs::write(name(step), &entry).unwrap();
    if step > 0 {
        match step % 4 {
            0 => fs::remove_file(name(step - 1)).unwrap(),
            1 => fs::rename(name(step - 1), shared.join(format!("{actor}-moved-{step}"))).unwrap(),
            2 => {
                fs::hard_link(name(step - 1), shared.join(format!("{actor}-link-{step}"))).unwrap()
            }
            _ => {
                let exchange = rustix::fs::RenameFlags::EXCHANGE.bits();
                syscalls::rename(&name(step), &name(step - 1), exchange).unwrap();
            }
        }
    }
    let own = format!("{actor}-{step}").into_bytes();
    let listed = syscalls::list(shared);
    assert_eq!(listed.iter().filter(|entry| entry.name == own).count(), 1);
}

/// The steps of an actor in a round, always the same.
fn steps(actor: u8, round: u32) -> Vec<program::Step> {
    let mut seed = [actor; 32];
    seed[..4].copy_from_slice(&round.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let steps = proptest::collection::vec(program::step(), STEPS);
    steps.new_tree(&mut runner).unwrap().current()
}

/// One of the processes. The test starts it as the program that it is itself of.
#[test]
#[ignore = "a process of several_processes_leave_what_they_leave_on_a_disk"]
fn an_actor() {
    let role = std::env::var(ROLE).expect("only that test starts this");
    let parts: Vec<&str> = role.splitn(4, ' ').collect();
    let (actor, round): (u8, u32) = (parts[0].parse().unwrap(), parts[1].parse().unwrap());
    let (dir, answers) = (Path::new(parts[2]), Path::new(parts[3]));
    let mut twin = Twin::new(dir.join(actor.to_string()));
    let mut said = String::new();
    for (index, step) in steps(actor, round).into_iter().enumerate() {
        if matches!(step.call, program::Call::Remount) {
            twin.close_all();
        }
        said += &format!("{step:?}\n  {:?}\n", twin.perform(&step));
        share(&dir.join("shared"), actor, index);
    }
    fs::write(answers, said).unwrap();
}

/// Starts all actors in a tree; where their answers will be.
fn start(dir: &Path, round: u32, answers: &Path) -> Vec<(Child, PathBuf)> {
    let start = |actor| {
        let answers = answers.join(format!("{actor}"));
        let (dir, path) = (dir.to_str().unwrap(), answers.to_str().unwrap());
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "oracle::together::an_actor",
                "--ignored",
                "--nocapture",
            ])
            .env(ROLE, format!("{actor} {round} {dir} {path}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        (child, answers)
    };
    (0..ACTORS).map(start).collect()
}

/// What the actors were answered, and what is left: the shared log is sorted, since its order is
/// chance.
fn finish(actors: Vec<(Child, PathBuf)>, dir: &Path) -> (Vec<String>, Seen) {
    let answers = actors.into_iter().map(|(mut child, answers)| {
        assert!(child.wait().unwrap().success());
        fs::read_to_string(answers).unwrap()
    });
    let answers = answers.collect();
    let log = dir.join("shared/log");
    let mut entries: Vec<Vec<u8>> = fs::read(&log)
        .unwrap()
        .chunks(ENTRY)
        .map(<[u8]>::to_vec)
        .collect();
    entries.sort();
    fs::write(&log, entries.concat()).unwrap();
    (answers, Seen::of(dir))
}

#[test]
fn several_processes_leave_what_they_leave_on_a_disk() {
    let name = "several_processes_leave_what_they_leave_on_a_disk";
    let _watchdog = Watchdog::start(name, Duration::from_secs(3600));
    if lacks_root() {
        return;
    }
    let scratch = Scratch::new();
    if !seen::is_a_disk(&scratch.path("")) && lacks("a temporary directory on ext4, xfs or tmpfs") {
        return;
    }
    for round in 0..cases(3) {
        let mode = MODES[round as usize % MODES.len()];
        let scratch = Scratch::new();
        let plain = scratch.dir("plain");
        fill(&plain);
        let mut disk = Disk::over(mode, fill);
        let view = disk.path("");
        let of_view = start(&view, round, &scratch.dir("answers-view"));
        let of_plain = start(&plain, round, &scratch.dir("answers-plain"));
        let (said, left) = finish(of_view, &view);
        let (expected, on_disk) = finish(of_plain, &plain);
        for (actor, (said, expected)) in said.iter().zip(&expected).enumerate() {
            let different = said
                .lines()
                .zip(expected.lines())
                .position(|(one, two)| one != two);
            if let Some(line) = different {
                let of = |text: &str| {
                    text.lines()
                        .skip(line.saturating_sub(1))
                        .take(3)
                        .collect::<Vec<_>>()
                        .join("\n")
                };
                panic!(
                    "round {round}, {mode}, actor {actor}: {}\non the disk: {}",
                    of(said),
                    of(expected)
                );
            }
            assert_eq!(said.len(), expected.len());
        }
        let faults = left.faults(&on_disk);
        assert!(
            faults.is_empty(),
            "round {round}, {mode}:\n  {}",
            faults.join("\n  ")
        );
        disk.remount();
        let faults = Seen::of(&view).faults(&on_disk);
        assert!(
            faults.is_empty(),
            "round {round}, {mode}, after a mount:\n  {}",
            faults.join("\n  ")
        );
    }
}
