//! The processes of a session, and whose they are.
//!
//! Owns reading the session's `/proc` and the rule by which a process belongs to a
//! command. Signals nothing.
//!
//! The rule: a process belongs to the command whose mount namespace it is in. A few can't
//! be asked: our own between fork and `exec` (known by pid), and, under a single-identity
//! map, programs that their user may execute but not read, since the kernel then gives
//! their memory to the outer user namespace. Those go with their process session, or with
//! the nearest ancestor that is known. One of them that has left its process session and
//! lost its parents belongs to no command; it ends with the session.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use nix::unistd::Pid;

use crate::spawn::Born;

/// A process, as it was when looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) ppid: i32,
    /// Its process session.
    pub(super) sid: i32,
    pub(super) state: char,
    pub(super) name: Vec<u8>,
    /// Inode number of its mount namespace; `None` if it can't be told.
    pub(super) mnt_ns: Option<u64>,
}

impl Process {
    /// Whether it can still do something.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    /// Whether it was stopped, by job control or a debugger.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// Looks at every process that the session's `/proc` shows.
pub(super) fn scan() -> io::Result<Vec<Process>> {
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if name.as_bytes().iter().all(u8::is_ascii_digit)
            && let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Some(process) = look_at(pid)
        {
            seen.push(process);
        }
    }
    Ok(seen)
}

/// Looks at one process; `None` if it is gone.
fn look_at(pid: i32) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let mut process = parse(pid, &stat)?;
    process.mnt_ns = namespace_of(pid);
    Some(process)
}

/// Inode number of a process's mount namespace; `None` if it is gone or can't be asked.
pub(super) fn namespace_of(pid: i32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/mnt"))
        .ok()
        .map(|metadata| metadata.ino())
}

/// Parses `PID (NAME) STATE PPID PGRP SID …`, where the name may hold anything.
pub(super) fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let name = stat.get(open + 1..close)?.to_vec();
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let ppid = fields.next()?.parse().ok()?;
    let sid = fields.nth(1)?.parse().ok()?;
    Some(Process {
        pid,
        ppid,
        sid,
        state,
        name,
        mnt_ns: None,
    })
}

/// By what the processes of a command are known.
///
/// The kernel uses numbers again when nothing has them any more, so a command that has
/// ended must not keep marks that a later one has got ([`Marks::give_way`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// Its main process, until that is reaped.
    pub(super) main: Option<Pid>,
    /// Its leader, until that is reaped.
    pub(super) leader: Option<Pid>,
    /// Its process session.
    sid: Option<i32>,
    mnt_ns: Option<u64>,
}

impl Marks {
    pub(super) fn new(born: Born) -> Marks {
        Marks {
            main: Some(born.main),
            leader: born.leader,
            sid: Some(born.leader.unwrap_or(born.main).as_raw()),
            mnt_ns: Some(born.mnt_ns),
        }
    }

    /// Gives up what a newer command has: nothing of the older one has it any more.
    pub(super) fn give_way(&mut self, newer: &Marks) {
        self.sid = self.sid.filter(|sid| Some(*sid) != newer.sid);
        self.mnt_ns = self.mnt_ns.filter(|mnt_ns| Some(*mnt_ns) != newer.mnt_ns);
    }
}

/// Whose each process is.
pub(super) struct Belonging<'a> {
    by_pid: HashMap<i32, &'a str>,
    by_sid: HashMap<i32, &'a str>,
    by_namespace: HashMap<u64, &'a str>,
    seen: HashMap<i32, Process>,
}

impl<'a> Belonging<'a> {
    /// By the commands there are and the processes seen at one time.
    pub(super) fn new(
        commands: impl Iterator<Item = (&'a str, &'a Marks)>,
        seen: &[Process],
    ) -> Belonging<'a> {
        let (mut by_pid, mut by_sid) = (HashMap::new(), HashMap::new());
        let mut by_namespace = HashMap::new();
        for (id, marks) in commands {
            by_namespace.extend(marks.mnt_ns.map(|mnt_ns| (mnt_ns, id)));
            by_sid.extend(marks.sid.map(|sid| (sid, id)));
            let pids = marks.main.into_iter().chain(marks.leader);
            by_pid.extend(pids.map(|pid| (pid.as_raw(), id)));
        }
        let seen = seen
            .iter()
            .map(|process| (process.pid, process.clone()))
            .collect();
        Belonging {
            by_pid,
            by_sid,
            by_namespace,
            seen,
        }
    }

    /// The command that a process belongs to.
    pub(super) fn owner(&self, process: &Process) -> Option<&'a str> {
        if let Some(namespace) = process.mnt_ns {
            return self.by_namespace.get(&namespace).copied();
        }
        let mut at = process;
        // Each step goes to a parent; a chain is no longer than there are processes.
        for _ in 0..=self.seen.len() {
            let here = at
                .mnt_ns
                .and_then(|namespace| self.by_namespace.get(&namespace))
                .or_else(|| self.by_pid.get(&at.pid))
                .or_else(|| self.by_sid.get(&at.sid));
            if here.is_some() {
                return here.copied();
            }
            at = self.seen.get(&at.ppid)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, ppid: i32, sid: i32, mnt_ns: Option<u64>) -> Process {
        Process {
            pid,
            ppid,
            sid,
            state: 'S',
            name: b"x".to_vec(),
            mnt_ns,
        }
    }

    #[test]
    fn a_name_made_to_confuse_is_parsed() {
        let parsed = parse(7, b"7 (a) S 1 (b) R 3 5 6 0 -1 4194560").unwrap();
        assert_eq!(parsed.name, b"a) S 1 (b");
        assert_eq!((parsed.state, parsed.ppid, parsed.sid), ('R', 3, 6));
        assert!(parse(7, b"7 (a").is_none());
    }

    fn marks(main: i32, leader: Option<i32>, mnt_ns: u64) -> Marks {
        let (main, leader) = (Pid::from_raw(main), leader.map(Pid::from_raw));
        Marks::new(Born {
            main,
            leader,
            mnt_ns,
        })
    }

    #[test]
    fn a_number_used_again_is_the_newer_commands() {
        let (mut old, new) = (marks(10, None, 100), marks(20, None, 100));
        old.give_way(&new);
        let seen = [process(30, 1, 30, Some(100)), process(31, 1, 10, None)];
        let belonging = Belonging::new([("new", &new), ("old", &old)].into_iter(), &seen);
        assert_eq!(belonging.owner(&seen[0]), Some("new"));
        assert_eq!(belonging.owner(&seen[1]), Some("old"));
    }

    #[test]
    fn a_process_goes_by_its_namespace_and_else_by_session_or_ancestor() {
        let (a, b) = (marks(10, None, 100), marks(21, Some(20), 200));
        let seen = [
            process(1, 0, 0, Some(1)),
            process(10, 1, 10, None),
            process(11, 1, 11, Some(100)),
            process(12, 1, 10, None),
            process(13, 11, 99, None),
            process(30, 1, 20, None),
            process(31, 1, 98, None),
        ];
        let belonging = Belonging::new([("a", &a), ("b", &b)].into_iter(), &seen);
        let owners: Vec<_> = seen
            .iter()
            .map(|process| belonging.owner(process))
            .collect();
        let (a, b) = (Some("a"), Some("b"));
        assert_eq!(owners, [None, a, a, a, a, b, None]);
    }
}
