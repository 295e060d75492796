//! The judge `xfstests`: generic tests of an installed xfstests, on two views that live as long as
//! the run, one test at a time.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::baseline::{Outcome, Results};
use crate::isolated;
use crate::limited::{self, Ended};
use crate::view::Serving;

/// The suite.
#[derive(Debug)]
pub struct Xfstests {
    /// The directory with `check`.
    pub installed: PathBuf,
    /// The directory of `one-test` and the mount helper.
    pub harness: PathBuf,
    /// Most that one test may take.
    pub limit: Duration,
}

impl Xfstests {
    /// The tests that belong to a group, such as `generic/quick`.
    ///
    /// # Errors
    /// The installation has no such tests.
    pub fn group(&self, group: &str) -> io::Result<Vec<String>> {
        let (directory, group) = group
            .split_once('/')
            .ok_or_else(|| io::Error::other(format!("{group} is not DIRECTORY/GROUP")))?;
        let list = self
            .installed
            .join("tests")
            .join(directory)
            .join("group.list");
        let tests = in_group(&fs::read_to_string(list)?, directory, group);
        if tests.is_empty() {
            return Err(io::Error::other(format!(
                "no test is in {directory}/{group}"
            )));
        }
        Ok(tests)
    }

    /// Runs tests in `place`, a directory of its own, and calls `told` after each.
    ///
    /// # Errors
    /// A test could not be started, or the installation is in use: `check` names temporary files
    /// after its process, and that number is the same in each namespace.
    pub fn run(
        &self,
        serving: &Serving,
        place: &Path,
        tests: &[String],
        mut told: impl FnMut(&str, &Outcome),
    ) -> io::Result<Results> {
        let check = fs::File::open(self.installed.join("check"))?;
        check.try_lock().map_err(|error| {
            let installed = self.installed.display();
            io::Error::other(format!("another run uses {installed}: {error}"))
        })?;
        fs::create_dir_all(place.join("logs"))?;
        let mut results = Results::new();
        for test in tests {
            let log = place.join("logs").join(test.replace('/', "-"));
            let mut command = isolated::command(&self.harness, place, serving);
            command
                .arg(self.harness.join("one-test"))
                .arg(&self.installed)
                .arg(place)
                .arg(test);
            let ended = limited::run(&mut command, self.limit, &log)?;
            let outcome = outcome(test, &ended);
            told(test, &outcome);
            results.insert(test.clone(), outcome);
        }
        Ok(results)
    }
}

/// The tests of a list of groups (a number, then the groups it is in) that are in `group`.
fn in_group(list: &str, directory: &str, group: &str) -> Vec<String> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let in_it = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let number = words.next()?;
        words
            .any(|word| word == group)
            .then(|| format!("{directory}/{number}"))
    });
    in_it.collect::<BTreeSet<_>>().into_iter().collect()
}

/// How a test ended, by the summary of `check`.
fn outcome(test: &str, ended: &Ended) -> Outcome {
    if ended.status.is_none() {
        return Outcome::Hung;
    }
    let named = |title: &str| {
        let mut lines = ended.output.lines();
        lines.any(|line| {
            line.strip_prefix(title)
                .is_some_and(|names| names.split_whitespace().any(|name| name == test))
        })
    };
    // The line of the test itself: its name, then what there is to say.
    let said = || {
        let mut lines = ended.output.lines();
        let of_test = lines.find_map(|line| line.strip_prefix(test));
        of_test.unwrap_or(ended.last_line()).trim().to_owned()
    };
    if named("Failures:") {
        Outcome::Failed(said())
    } else if named("Not run:") {
        Outcome::Skipped(said())
    } else if named("Ran:") && ended.is_success() {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("check did not run it: {}", ended.last_line()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn ended(code: i32, output: &str) -> Ended {
        Ended {
            status: Some(ExitStatus::from_raw(code << 8)),
            output: output.to_owned(),
        }
    }

    #[test]
    fn summaries_are_read() {
        let passed = "generic/001 3s ...  4s\nRan: generic/001\nPassed all 1 tests\n";
        assert_eq!(outcome("generic/001", &ended(0, passed)), Outcome::Passed);
        let failed = "generic/003 3s ... - output mismatch (see x)\n    --- a\n    +++ b\n\
            Ran: generic/003\nFailures: generic/003\nFailed 1 of 1 tests\n";
        assert_eq!(
            outcome("generic/003", &ended(1, failed)),
            Outcome::Failed("3s ... - output mismatch (see x)".into())
        );
        let skipped = "generic/004       [not run] no O_TMPFILE\nRan: generic/004\n\
            Not run: generic/004\nPassed all 1 tests\n";
        assert_eq!(
            outcome("generic/004", &ended(0, skipped)),
            Outcome::Skipped("[not run] no O_TMPFILE".into())
        );
    }

    #[test]
    fn what_says_nothing_of_the_test_is_a_failure() {
        let broken = |code, output| outcome("generic/001", &ended(code, output));
        assert!(matches!(broken(1, "mount failed\n"), Outcome::Failed(_)));
        assert!(matches!(
            broken(0, "Ran: generic/0011\n"),
            Outcome::Failed(_)
        ));
        assert!(matches!(
            broken(1, "Ran: generic/001\n"),
            Outcome::Failed(_)
        ));
        let hung = Ended {
            status: None,
            output: String::new(),
        };
        assert_eq!(outcome("generic/001", &hung), Outcome::Hung);
    }

    #[test]
    fn groups_are_read() {
        let list = "# QA groups\n\n001 rw auto quick\n002 auto\n013 quickly\n100 quick\n";
        assert_eq!(
            in_group(list, "generic", "quick"),
            ["generic/001", "generic/100"]
        );
        assert_eq!(in_group(list, "generic", "auto").len(), 2);
    }
}
