//! Real programs in a view over a populated base, against the same run on a plain directory of the
//! disk: what they print and answer, and what they leave behind.
//!
//! Both runs see their directory at one path, which a namespace of mounts of their own gives it, so
//! that programs which write down where they are write the same.

mod archives;
mod builds;
mod databases;
mod everyday;
mod git;
mod packages;
mod watching;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::fixture::seen::{self, Seen};
use crate::fixture::{Disk, MODES, Scratch, Watchdog, lacks, lacks_root};

/// Most that one test may take, and one script in it: to end what hangs, however slow the machine.
const TEST_LIMIT: Duration = Duration::from_secs(1800);
const SCRIPT_SECONDS: &str = "600";

/// What a shell does before the script: `$1` is the directory, `$2` where it is to be. Views of other
/// tests, of which its namespace has copies, would live as long as it.
const BEFORE: &str = r#"
set -euo pipefail
umask 022
mount --bind "$1" "$2"
awk '/ - fuse/ { print $5 }' /proc/self/mountinfo | while IFS= read -r at; do
    printf -v at %b "$at"
    [ "$at" = "$1" ] || [ "$at" = "$2" ] || umount --lazy "$at"
done
cd "$2"
eval "$3"
"#;

/// What a script printed, and how it ended.
#[derive(Debug, PartialEq)]
struct Said {
    status: Option<i32>,
    printed: String,
    complained: String,
}

/// A view, and a plain directory that holds the same.
struct Twins {
    disk: Disk,
    plain: PathBuf,
    /// Where scripts see either of the two.
    here: PathBuf,
    /// Two directories beside, on the disk, for what scripts put outside of the view: the path that
    /// both see, and those that are there.
    outside: [PathBuf; 2],
    _scratch: Scratch,
}

impl Twins {
    fn new(mode: &'static str, fill: &str) -> Twins {
        let scratch = Scratch::new();
        let (plain, here) = (scratch.dir("plain"), scratch.dir("here"));
        let outside = [scratch.dir("outside-view"), scratch.dir("outside-plain")];
        let filled = |dir: &Path, outside: &Path| {
            let said = run(dir, &here, outside, fill);
            assert_eq!(said.status, Some(0), "{said:#?}");
        };
        filled(&plain, &outside[1]);
        Twins {
            disk: Disk::over(mode, |base| filled(base, &outside[0])),
            plain,
            here,
            outside,
            _scratch: scratch,
        }
    }

    /// Runs a script of bash on both, and fails unless they say the same; what they printed. It ends
    /// with the first command that fails. `$OUT` names a directory outside.
    #[track_caller]
    fn run(&self, script: &str) -> String {
        let view = run(&self.disk.path(""), &self.here, &self.outside[0], script);
        let plain = run(&self.plain, &self.here, &self.outside[1], script);
        assert_eq!(view, plain, "the view on the left, the disk on the right");
        assert_eq!(view.status, Some(0), "{view:#?}");
        view.printed
    }

    /// Fails unless both trees are the same but for inode numbers and times. What is in the files
    /// that `volatile` names may differ, and how long they are: they hold times, or numbers.
    #[track_caller]
    fn compare(&self, volatile: impl Fn(&Path) -> bool) {
        let of = |dir: &Path| {
            let mut seen = Seen::of(dir);
            seen.blank(&volatile);
            seen
        };
        let faults = of(&self.disk.path("")).faults(&of(&self.plain));
        assert!(
            faults.is_empty(),
            "not the same:\n  {}",
            faults.join("\n  ")
        );
    }

    /// Unmounts the view and mounts it again.
    fn remount(&mut self) {
        self.disk.remount();
    }
}

/// Runs a script in a directory that it sees at `here`.
fn run(dir: &Path, here: &Path, outside: &Path, script: &str) -> Said {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", SCRIPT_SECONDS])
        .args(["unshare", "--mount", "--propagation", "private", "--"])
        .args(["bash", "-c", BEFORE, "bash"])
        .args([dir, here])
        .arg(script)
        .env("OUT", outside)
        .stdin(Stdio::null());
    for (name, value) in SETTINGS {
        command.env(name, value);
    }
    // What cargo tells those whom it runs is not for those whom they run.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_", "GIT_", "PYTHON", "RUSTFLAGS"]
            .iter()
            .any(|start| text.starts_with(start))
            && !SETTINGS.iter().any(|(name, _)| text == *name)
            && text != "CARGO_HOME"
        {
            command.env_remove(&name);
        }
    }
    let output = command.output().unwrap();
    Said {
        status: output.status.code(),
        printed: String::from_utf8_lossy(&output.stdout).into_owned(),
        complained: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// What scripts run with, so that they do the same each time, whoever runs the tests.
const SETTINGS: [(&str, &str); 14] = [
    ("LC_ALL", "C"),
    ("TZ", "UTC"),
    ("CARGO_INCREMENTAL", "0"),
    ("CARGO_NET_OFFLINE", "true"),
    ("CARGO_TERM_COLOR", "never"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_AUTHOR_NAME", "a"),
    ("GIT_AUTHOR_EMAIL", "a@b"),
    ("GIT_AUTHOR_DATE", "2020-02-02T02:02:02Z"),
    ("GIT_COMMITTER_NAME", "a"),
    ("GIT_COMMITTER_EMAIL", "a@b"),
    ("GIT_COMMITTER_DATE", "2020-02-02T02:02:02Z"),
    ("GIT_EDITOR", "true"),
];

/// Whether something is missing that a test needs: root, a disk to compare with, or one of these
/// programs. Says so loudly.
fn lacks_any(programs: &[&str]) -> bool {
    if lacks_root() {
        return true;
    }
    let scratch = Scratch::new();
    if !seen::is_a_disk(&scratch.path("")) {
        return lacks("a temporary directory on ext4, xfs or tmpfs");
    }
    let mut missing = programs.iter().filter(|program| {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$1\"", "sh", program])
            .stdout(Stdio::null())
            .status();
        !found.is_ok_and(|status| status.success())
    });
    missing.next().is_some_and(|program| lacks(program))
}

/// Runs a test on twins that `fill` has filled, in these modes, unless the machine lacks one of
/// `programs`.
fn compared(
    name: &'static str,
    modes: &[&'static str],
    programs: &[&str],
    fill: &str,
    test: impl Fn(&mut Twins),
) {
    let _watchdog = Watchdog::start(name, TEST_LIMIT);
    if lacks_any(programs) {
        return;
    }
    for mode in modes {
        let mut twins = Twins::new(mode, fill);
        test(&mut twins);
        twins.disk.stop();
    }
}

/// The mode that most sessions have, for what takes long.
const FILES: [&str; 1] = [MODES[1]];

/// For what leaves nothing that may differ.
fn nothing(_: &Path) -> bool {
    false
}
