//! Programs of others, with a time limit: a suite that hangs is ended and told of, and the next one
//! runs.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// How often it is looked whether a program has ended.
const STEP: Duration = Duration::from_millis(50);

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Ended {
    /// Its status; `None` if it was killed because its time was up.
    pub status: Option<ExitStatus>,
    /// What it wrote to its standard output and error output, in the order of writing.
    pub output: String,
}

impl Ended {
    /// Whether it ended by itself, with success.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The last line of the output that says something.
    pub fn last_line(&self) -> &str {
        let mut lines = self.output.lines().rev().map(str::trim);
        lines
            .find(|line| !line.is_empty())
            .unwrap_or("it said nothing")
    }
}

/// Runs `command` for at most `limit`, with its output in the file `log`. A program that takes longer
/// is killed, with every process of its group.
///
/// # Errors
/// It could not be started, or its output not be kept.
pub fn run(command: &mut Command, limit: Duration, log: &Path) -> io::Result<Ended> {
    let file = File::create(log)?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0);
    let mut child = command.spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() >= limit {
            if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
                rustix::process::kill_process_group(group, Signal::KILL)?;
            }
            child.wait()?;
            break None;
        }
        thread::park_timeout(STEP);
    };
    Ok(Ended {
        status,
        output: String::from_utf8_lossy(&fs::read(log)?).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str, limit: Duration) -> Ended {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("sh");
        run(command.args(["-c", line]), limit, log.path()).unwrap()
    }

    #[test]
    fn what_ends_by_itself_has_a_status_and_output() {
        let ended = shell(
            "echo one; echo two >&2; echo; exit 3",
            Duration::from_secs(60),
        );
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert!(!ended.is_success());
        assert_eq!(ended.last_line(), "two");
    }

    #[test]
    fn what_does_not_end_is_ended_with_what_it_started() {
        let ended = shell("sleep 1000 & echo $!; wait", Duration::from_millis(500));
        assert!(ended.status.is_none());
        let pid: i32 = ended.output.trim().parse().unwrap();
        // Whoever adopts it may take a moment to hear of its end.
        let start = Instant::now();
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        while state().contains("(sleep) S") || state().contains("(sleep) R") {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{pid} still runs"
            );
            thread::park_timeout(STEP);
        }
    }
}
