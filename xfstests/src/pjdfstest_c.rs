//! The judge `pjdfstest-c`: the suite that [`crate::pjdfstest`] was made after, in C and shell: 8,798
//! assertions in 238 files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::baseline::{Outcome, Results};
use crate::limited;
use crate::view::{Serving, View};

/// The whole suite takes minutes: it starts a program for each call.
const LIMIT: Duration = Duration::from_secs(3600);

/// The suite.
#[derive(Debug)]
pub struct PjdfstestC {
    /// Its directory, in which it was built.
    pub installed: PathBuf,
}

impl PjdfstestC {
    /// Runs the suite on a view in `place`, a directory of its own.
    ///
    /// # Errors
    /// The suite or the view could not be set up.
    pub fn run(&self, serving: &Serving, place: &Path) -> io::Result<Results> {
        if !self.installed.join("pjdfstest").is_file() {
            let missing = format!("{} has no built pjdfstest", self.installed.display());
            return Err(io::Error::other(missing));
        }
        let view = View::new(serving, place, |_| Ok(()))?;
        let directory = view.path().join("tests");
        fs::create_dir(&directory)?;
        let tests = self.installed.join("tests");
        let mut command = Command::new("prove");
        command.arg("-r").arg(&tests).current_dir(&directory);
        let ended = limited::run(&mut command, LIMIT, &place.join("prove.log"))?;
        let mut results = parse(&ended.output, &format!("{}/", tests.display()));
        if ended.status.is_none() {
            results.insert("the suite".to_owned(), Outcome::Hung);
        }
        Ok(results)
    }
}

/// The results in what `prove` prints: a line for each file of tests, with dots up to what became of
/// it. What is not `ok` there is told in the next line.
fn parse(output: &str, prefix: &str) -> Results {
    let mut results = Results::new();
    let mut lines = output.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, dots)) = line
            .strip_prefix(prefix)
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        if !dots.starts_with('.') {
            // From the summary at the end.
            continue;
        }
        let outcome = match dots.trim_matches(['.', ' ']) {
            "ok" => Outcome::Passed,
            "" => {
                let said = lines.peek().copied().unwrap_or_default();
                Outcome::Failed(said.trim().to_owned())
            }
            said => match said.strip_prefix("skipped:") {
                Some(reason) => Outcome::Skipped(reason.trim().to_owned()),
                None => Outcome::Failed(said.to_owned()),
            },
        };
        results.insert(name.to_owned(), outcome);
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let output = "/s/tests/chflags/00.t .......... skipped: no flags here\n\
            /s/tests/chown/00.t ............ \n\
            Failed 32/1280 subtests \n\
            \t(less 8 skipped subtests: 1240 okay)\n\
            /s/tests/unlink/09.t ........... ok\n\
            \n\
            Test Summary Report\n\
            -------------------\n\
            /s/tests/chown/00.t          (Wstat: 0 Tests: 1280 Failed: 32)\n\
            Files=238, Tests=8798, 228 wallclock secs\n\
            Result: FAIL\n";
        let results = parse(output, "/s/tests/");
        assert_eq!(results.len(), 3);
        assert_eq!(results["unlink/09.t"], Outcome::Passed);
        let failed = Outcome::Failed("Failed 32/1280 subtests".into());
        assert_eq!(results["chown/00.t"], failed);
        let skipped = Outcome::Skipped("no flags here".into());
        assert_eq!(results["chflags/00.t"], skipped);
    }
}
