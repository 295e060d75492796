//! Freezing a session: its processes stand still for a moment, and go on as if nothing had been.
//!
//! Owns the order. Parents are stopped before their children and set going after them, so that
//! nobody waits for a child and finds it stopped: a shell would take it for job control. A process
//! that was stopped before stays stopped. Without a control group of its own there is no other way
//! to stop a process that needs no privilege.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::processes::{self, Process};
use crate::error::Error;

/// How long one process may take to stand still before the next is stopped. One that waits in the
/// kernel (for a disk, or for the child of its `vfork`) stands still when that is done.
const EACH: Duration = Duration::from_millis(20);
/// How long all may take.
const ALL: Duration = Duration::from_secs(2);
/// How long those may take that wait in the kernel, once no other runs.
const WAITING: Duration = Duration::from_millis(200);
/// How often it is looked.
const PAUSE: Duration = Duration::from_micros(200);

/// Processes that were stopped.
#[derive(Debug, Default)]
pub(super) struct Frozen {
    /// The stopped ones, parents first.
    stopped: Vec<i32>,
    /// Those that stood still before.
    before: HashSet<i32>,
}

/// What a process's threads do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Motion {
    /// Nothing until they are set going.
    Still,
    /// At most they wait in the kernel.
    Waiting,
    /// At least one runs or may.
    Running,
}

impl Frozen {
    /// Stops everything but this process. `None`: something does not stand still; all go on.
    pub(super) fn freeze() -> Result<Option<Frozen>, Error> {
        let mut frozen = Frozen::default();
        let begun = Instant::now();
        for process in parents_first(scan()?) {
            if motion(process.pid) == Motion::Still {
                frozen.before.insert(process.pid);
            }
        }
        let (mut clean, mut only_waiting_since) = (0, None);
        // One look can miss a process that is being forked.
        while clean < 2 {
            let mut worst = Motion::Still;
            for process in parents_first(scan()?) {
                worst = worst.max(frozen.stop(&process));
            }
            match worst {
                Motion::Still => clean += 1,
                Motion::Waiting => {
                    let since = *only_waiting_since.get_or_insert_with(Instant::now);
                    clean = u32::from(since.elapsed() > WAITING) * 2;
                }
                Motion::Running => (clean, only_waiting_since) = (0, None),
            }
            if clean < 2 && begun.elapsed() > ALL {
                frozen.thaw();
                return Ok(None);
            }
        }
        Ok(Some(frozen))
    }

    fn stop(&mut self, process: &Process) -> Motion {
        let pid = process.pid;
        if self.before.contains(&pid) {
            return Motion::Still;
        }
        if !self.stopped.contains(&pid) {
            self.stopped.push(pid);
            // One that has just ended needs nothing.
            let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
        }
        let begun = Instant::now();
        loop {
            let motion = motion(pid);
            if motion == Motion::Still || begun.elapsed() > EACH {
                return motion;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sets all going that were stopped, children first.
    pub(super) fn thaw(self) {
        for pid in self.stopped.into_iter().rev() {
            // It was stopped all the time, so the number is its own; killed, it needs nothing.
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        }
    }
}

/// The session's other processes.
fn scan() -> Result<Vec<Process>, Error> {
    let seen = processes::scan().map_err(Error::path("list", "/proc"))?;
    Ok(seen
        .into_iter()
        .filter(|process| process.pid != 1 && process.is_alive())
        .collect())
}

fn parents_first(mut all: Vec<Process>) -> Vec<Process> {
    let parents: HashMap<i32, i32> = all
        .iter()
        .map(|process| (process.pid, process.ppid))
        .collect();
    let depth = |pid: i32| {
        let mut at = pid;
        // A chain is no longer than there are processes.
        (0..parents.len())
            .take_while(|_| match parents.get(&at) {
                Some(parent) => {
                    at = *parent;
                    true
                }
                None => false,
            })
            .count()
    };
    all.sort_by_key(|process| (depth(process.pid), process.pid));
    all
}

fn motion(pid: i32) -> Motion {
    // A process without threads that can be seen is gone.
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Motion::Still;
    };
    let states = tasks.flatten().filter_map(|task| {
        let stat = fs::read(task.path().join("stat")).ok()?;
        processes::parse(pid, &stat)
    });
    states
        .map(|thread| match thread.state {
            'T' | 't' | 'Z' | 'X' => Motion::Still,
            'D' => Motion::Waiting,
            _ => Motion::Running,
        })
        .max()
        .unwrap_or(Motion::Still)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_their_children() {
        let process = |pid, ppid| Process {
            pid,
            ppid,
            sid: 1,
            state: 'S',
            name: b"x".to_vec(),
            mnt_ns: None,
        };
        let all = vec![process(3, 9), process(9, 12), process(12, 1), process(5, 3)];
        let order: Vec<i32> = parents_first(all).iter().map(|found| found.pid).collect();
        assert_eq!(order, [12, 9, 3, 5]);
    }
}
