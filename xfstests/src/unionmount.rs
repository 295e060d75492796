//! The judge `unionmount`: the test suite of that name for union mounts, which looks at files of a base
//! as they are changed the first time, with a remount between its parts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::baseline::{Outcome, Results};
use crate::isolated;
use crate::limited::{self, Ended};
use crate::view::Serving;

/// The whole suite takes a minute.
const LIMIT: Duration = Duration::from_secs(1200);

/// The suite.
#[derive(Debug)]
pub struct Unionmount {
    /// Its directory, with `run`.
    pub installed: PathBuf,
    /// The directory of the mount helper.
    pub harness: PathBuf,
}

impl Unionmount {
    /// Runs the suite in `place`, a directory of its own.
    ///
    /// # Errors
    /// It could not be started.
    pub fn run(&self, serving: &Serving, place: &Path) -> io::Result<Results> {
        let base = place.join("base");
        fs::create_dir_all(&base)?;
        let mut command = isolated::command(&self.harness, place, serving);
        command
            .args(["./run", "--ov", "--fuse=sandstack"])
            .current_dir(&self.installed)
            .env("UNIONMOUNT_BASEDIR", &base);
        let ended = limited::run(&mut command, LIMIT, &place.join("run.log"))?;
        Ok(parse(&ended))
    }
}

/// The results in what `run` prints: a line `*** …/run --ov --samefs NAME` before each part. It ends
/// with the first that fails.
fn parse(ended: &Ended) -> Results {
    let mut results = Results::new();
    let mut last = None;
    for line in ended.output.lines() {
        let name = line.strip_prefix("*** ").and_then(|words| {
            let (program, words) = words.split_once(' ')?;
            let name = words.split_whitespace().last()?;
            (program.ends_with("/run") && !name.starts_with('-')).then_some(name)
        });
        if let Some(name) = name {
            results.insert(name.to_owned(), Outcome::Passed);
            last = Some(name.to_owned());
        }
    }
    if ended.status.is_none() {
        results.insert(last.unwrap_or("the suite".to_owned()), Outcome::Hung);
    } else if !ended.is_success() {
        let said = Outcome::Failed(ended.last_line().to_owned());
        results.insert(last.unwrap_or("the suite".to_owned()), said);
    }
    results
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn results_are_read() {
        let output = "Environment variables:\n***\n*** /x/run --ov --samefs open-plain\n***\n\
            TEST open-plain.py:10: Open O_RDONLY\n*** ./run --ov --samefs rename-file\n***\n\
            TEST rename-file.py:1: Rename\n/x: not there\n";
        let ended = |status: Option<i32>| Ended {
            status: status.map(|code| ExitStatus::from_raw(code << 8)),
            output: output.to_owned(),
        };
        let results = parse(&ended(Some(0)));
        assert_eq!(results.len(), 2);
        assert!(results.values().all(|outcome| *outcome == Outcome::Passed));
        let results = parse(&ended(Some(1)));
        assert_eq!(results["open-plain"], Outcome::Passed);
        assert_eq!(
            results["rename-file"],
            Outcome::Failed("/x: not there".into())
        );
        assert_eq!(parse(&ended(None))["rename-file"], Outcome::Hung);
    }
}
