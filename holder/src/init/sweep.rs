//! Killing a command, all of it.
//!
//! Owns the rounds: look, kill what is there, look again, until two looks in a row find
//! nothing (one look can miss a process that was forked behind it). A command that forks
//! faster than it is killed is frozen first: one signal stops the whole session at once,
//! which the kernel does under a lock that forks need, so nothing new can appear; then the
//! command's processes are killed and the others go on.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::processes::{self, Process};
use crate::error::Error;
use crate::syscalls::{pidfd_open, pidfd_send_signal};

/// How long plain rounds are tried before the session is frozen: long enough for any
/// command that does not fork against it, short enough that one that does gains nothing.
const PLAIN: Duration = Duration::from_millis(150);

/// When to give up and report, if there are no fewer of them for so long: what is still
/// there then waits in the kernel, for a disk or a filesystem, and no signal can end it
/// before that does. While there are fewer it goes on: thousands of killed processes need
/// the CPU to end, of which a loaded machine has little.
const PATIENCE: Duration = Duration::from_secs(5);

/// When to give up however it goes.
const LONGEST: Duration = Duration::from_secs(60);

/// Waits between rounds: short at first, since mostly the second finds nothing.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// A kill under way.
pub(super) struct Sweep {
    command_id: String,
    began: Instant,
    due: Instant,
    wait: Duration,
    empty_looks: u32,
    /// The fewest that a look has found, and when.
    fewest: (usize, Instant),
}

impl Sweep {
    pub(super) fn new(command_id: String) -> Sweep {
        let began = Instant::now();
        Sweep {
            command_id,
            began,
            due: began,
            wait: FIRST_WAIT,
            empty_looks: 0,
            fewest: (usize::MAX, began),
        }
    }

    pub(super) fn command_id(&self) -> &str {
        &self.command_id
    }

    /// When the next round is.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Whether it ends with what this round found.
    pub(super) fn is_over(&mut self, alive: &[Process]) -> bool {
        let now = Instant::now();
        if alive.is_empty() {
            self.empty_looks += 1;
            self.due = now;
        } else {
            self.empty_looks = 0;
            self.due = now + self.wait;
            self.wait = (self.wait * 2).min(LONGEST_WAIT);
        }
        if alive.len() < self.fewest.0 {
            self.fewest = (alive.len(), now);
        }
        self.empty_looks >= 2 || now >= self.fewest.1 + PATIENCE || now >= self.began + LONGEST
    }
}

/// Whether a command forks against the sweep.
pub(super) fn storms(sweep: &Sweep, alive: &[Process]) -> bool {
    !alive.is_empty() && sweep.began.elapsed() > PLAIN
}

/// Kills each of them, if it still is what it was.
pub(super) fn kill_all(doomed: &[Process]) {
    for process in doomed {
        // Through a descriptor, so that a pid used again is not hit: the descriptor is
        // opened first and the process looked at after. It may have ended; the next look
        // will tell.
        let Ok(pidfd) = pidfd_open(Pid::from_raw(process.pid)) else {
            continue;
        };
        if processes::namespace_of(process.pid) == process.mnt_ns {
            let _ = pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
        }
    }
}

/// Stops the session, kills what `doomed` finds then, and lets the others go on.
pub(super) fn freeze_and_kill(
    doomed: impl FnOnce() -> Result<Vec<Process>, Error>,
    others: impl Fn(&[Process]) -> Result<Vec<Process>, Error>,
) -> Result<(), Error> {
    // Those that were stopped before stay so.
    let stopped: HashSet<i32> = others(&[])?
        .iter()
        .filter(|process| process.is_stopped())
        .map(|p| p.pid)
        .collect();
    // To everything but this process, which is pid 1 here. It fails only if there is
    // nothing else.
    let _ = kill(Pid::from_raw(-1), Signal::SIGSTOP);
    let doomed = doomed()?;
    kill_all(&doomed);
    for process in others(&doomed)? {
        if process.pid != 1 && !stopped.contains(&process.pid) {
            // One that just ended needs nothing.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGCONT);
        }
    }
    Ok(())
}
