//! The judge `pjdfstest`: the suite of that name from the Cargo registry, on a new session and on one
//! over a populated base.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::baseline::{Outcome, Results};
use crate::limited;
use crate::view::{Serving, View};

/// Longest path of a directory that the suite can be run in: the longest that it makes of a socket has
/// 60 bytes more, and a socket's path 107 at most (`sun_path` of unix(7)).
const LONGEST_PATH: usize = 47;

/// The whole suite takes a minute or two.
const LIMIT: Duration = Duration::from_secs(1200);

/// What the suite is told of a view. It becomes two users, one of which it expects to be called so.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
"#;

/// The suite.
#[derive(Debug)]
pub struct Pjdfstest {
    /// The program `pjdfstest`.
    pub program: PathBuf,
    /// Names of tests, or parts of them; all if there are none.
    pub tests: Vec<String>,
}

impl Pjdfstest {
    /// Runs the suite on a view in `place`, a directory of its own, over a base that is populated or
    /// empty.
    ///
    /// # Errors
    /// The suite or the view could not be set up.
    pub fn run(&self, serving: &Serving, place: &Path, populated: bool) -> io::Result<Results> {
        make_user("tests")?;
        fs::create_dir_all(place)?;
        let view = View::new(serving, place, |base| {
            if populated { populate(base) } else { Ok(()) }
        })?;
        let directory = if populated { "dir-7" } else { "." };
        let directory = view.path().join(directory);
        if directory.as_os_str().len() > LONGEST_PATH {
            return Err(io::Error::other(format!(
                "{} is longer than {LONGEST_PATH} bytes, so that the suite's sockets have no room for their paths; \
                 give a shorter --dir",
                directory.display()
            )));
        }
        let configuration = place.join("pjdfstest.toml");
        fs::write(&configuration, CONFIGURATION)?;
        // A filesystem that the view is not: some tests go from one to the other.
        let other = place.join("other");
        fs::create_dir(&other)?;
        let mut command = Command::new(&self.program);
        command
            .arg("-c")
            .arg(&configuration)
            .arg("-p")
            .arg(&directory)
            .arg("-s")
            .arg(&other)
            .args(&self.tests);
        let ended = limited::run(&mut command, LIMIT, &place.join("pjdfstest.log"))?;
        let mut results = parse(&ended.output);
        if ended.status.is_none() {
            results.insert("the suite".to_owned(), Outcome::Hung);
        } else if results.is_empty() {
            return Err(io::Error::other(format!(
                "pjdfstest ran no test: {}",
                ended.last_line()
            )));
        }
        Ok(results)
    }
}

/// Makes a user and a group of that name, as whom nobody can log in.
fn make_user(name: &str) -> io::Result<()> {
    if Command::new("id").arg(name).output()?.status.success() {
        return Ok(());
    }
    let output = Command::new("useradd")
        .args([
            "--no-create-home",
            "--user-group",
            "--shell",
            "/usr/sbin/nologin",
            name,
        ])
        .output()?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("no user {name}: {}", said.trim())))
    }
}

/// Files and directories of every usual kind, some of them with several names.
fn populate(base: &Path) -> io::Result<()> {
    for dir in 0..20 {
        let dir = base.join(format!("dir-{dir}"));
        fs::create_dir_all(&dir)?;
        for file in 0..50u32 {
            let path = dir.join(format!("file-{file}"));
            fs::write(&path, vec![file as u8; file as usize * 700])?;
            if file % 10 == 0 {
                fs::hard_link(&path, dir.join(format!("same-{file}")))?;
                std::os::unix::fs::symlink(&path, dir.join(format!("link-{file}")))?;
            }
        }
    }
    Ok(())
}

/// The results in what the suite prints: a line for each test that ends with `ok`, `FAILED` or
/// `skipped`, and indented lines below it that say why.
fn parse(output: &str) -> Results {
    let mut results = Results::new();
    let mut last: Option<String> = None;
    for line in output.lines().map(without_colours) {
        if let Some(reason) = line.strip_prefix('\t') {
            let outcome = last.as_ref().and_then(|name| results.get_mut(name));
            if let Some(Outcome::Failed(said) | Outcome::Skipped(said)) = outcome {
                if !said.is_empty() {
                    said.push_str("; ");
                }
                said.push_str(reason.trim());
            }
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(name), Some(word), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let outcome = match word {
            "ok" => Outcome::Passed,
            "FAILED" => Outcome::Failed(String::new()),
            "skipped" => Outcome::Skipped(String::new()),
            _ => continue,
        };
        results.insert(name.to_owned(), outcome);
        last = Some(name.to_owned());
    }
    results
}

/// A line without the sequences that colour it on a terminal.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let output = "\x1b[34mchmod::eloop\x1b[0m                    \x1b[32mok\x1b[0m\n\
            open::etxtbsy                                              FAILED\n\
            \tassertion failed: it is\n\
            \tnot so\n\
            Backtrace:\n\
            rename::erofs                                              skipped\n\
            \trequires features: x\n\
            \n\
            Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total\n";
        let results = parse(output);
        assert_eq!(results.len(), 3);
        assert_eq!(results["chmod::eloop"], Outcome::Passed);
        assert_eq!(
            results["open::etxtbsy"],
            Outcome::Failed("assertion failed: it is; not so".into())
        );
        assert_eq!(
            results["rename::erofs"],
            Outcome::Skipped("requires features: x".into())
        );
    }
}
