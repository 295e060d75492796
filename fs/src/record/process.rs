//! Processes: from the thread in a request to the process, its program, its parents and its mount
//! namespace.
//!
//! The thread waits for the reply while it is looked up, so it is there. What was found is believed
//! for a moment only, since a thread's number can be another's later; and no longer than it runs the
//! same program, which is asked for again as soon as it could run another one: a program from outside
//! the view is run without a message.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// How long a look-up is believed. Numbers cannot wrap in it, and a look-up costs some 30 µs.
const BELIEVED: Duration = Duration::from_millis(50);
/// For how long after it was asked for a thread's program is believed. The thread was waiting for an
/// answer then, and cannot have become another program sooner: `execve` of the smallest program there
/// is takes 73 µs here, and the question 3 µs, which is a third of a look-up.
const SAME_PROGRAM: Duration = Duration::from_micros(30);
/// Threads remembered; old ones go when there are more.
const MAX_KNOWN: usize = 1024;
/// Parents that are looked for.
const MAX_PARENTS: usize = 32;
/// Bytes of the first word of a command line that are kept.
const MAX_ARGV0: usize = 256;

/// Who an access is noted for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    /// 0 for the embedder itself.
    pub(super) pid: u32,
    /// 0 if it is not known.
    pub(super) namespace: u64,
    pub(super) program: Option<Arc<[u8]>>,
    /// The first word of its command line.
    pub(super) argv0: Option<Arc<[u8]>>,
    /// Its parent and so on, as far as they are in the same namespace, when it was first seen.
    pub(super) parents: Vec<Ancestor>,
}

/// A parent, or the parent of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ancestor {
    pub(super) pid: u32,
    pub(super) program: Option<Arc<[u8]>>,
}

// Every access is hashed by its process: what tells most of them apart is enough.
impl Hash for Process {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pid.hash(state);
        self.namespace.hash(state);
    }
}

struct Known {
    since: Instant,
    /// When its program was asked for last; `None` if it may run another one at any moment.
    asked: Option<Instant>,
    /// When the thread was started, in ticks since the machine was.
    started: Option<u64>,
    process: Arc<Process>,
}

#[derive(Default)]
pub(super) struct Processes(Mutex<FxHashMap<u32, Known>>);

impl Processes {
    pub(super) fn find(&self, thread: u32) -> Arc<Process> {
        let now = Instant::now();
        let believed = {
            let known = self.0.lock();
            let known = known
                .get(&thread)
                .filter(|known| now.duration_since(known.since) < BELIEVED);
            match known {
                Some(known)
                    if known
                        .asked
                        .is_some_and(|asked| now.duration_since(asked) < SAME_PROGRAM) =>
                {
                    return Arc::clone(&known.process);
                }
                known => known.map(|known| Arc::clone(&known.process)),
            }
        };
        if let Some(process) = believed
            && process
                .program
                .as_deref()
                .is_none_or(|program| runs(thread, program))
        {
            if let Some(asked) = self.0.lock().get_mut(&thread).map(|known| &mut known.asked)
                && asked.is_some()
            {
                *asked = Some(now);
            }
            return process;
        }
        self.look_up(thread, now, MAX_PARENTS)
    }

    /// A thread has begun to run a program of the view: it reads it as the one before, and then as the
    /// new one.
    pub(super) fn runs_another(&self, thread: u32) {
        if let Some(known) = self.0.lock().get_mut(&thread) {
            known.asked = None;
        }
    }

    /// Looks a thread up, with at most so many parents.
    fn look_up(&self, thread: u32, now: Instant, parents: usize) -> Arc<Process> {
        let dir = directory(thread);
        let namespace = fs::read_link(dir.join("ns/mnt"))
            .ok()
            .and_then(|link| namespace_number(link.as_os_str().as_bytes()));
        let status = fs::read(dir.join("status")).unwrap_or_default();
        let mut process = Process {
            pid: number_in(&status, b"Tgid:").unwrap_or(thread),
            namespace: namespace.unwrap_or(0),
            program: program_of(&dir),
            argv0: fs::read(dir.join("cmdline"))
                .ok()
                .and_then(|line| argv0(&line)),
            parents: Vec::new(),
        };
        let started = fs::read(dir.join("stat"))
            .ok()
            .and_then(|stat| started(&stat));
        let before = self.0.lock().get(&thread).and_then(|known| {
            let same = started.is_some()
                && known.started == started
                && known.process.namespace == process.namespace;
            same.then(|| Arc::clone(&known.process))
        });
        match &before {
            // As when it was first seen: a parent that ends leaves its children to another.
            Some(before) => process.parents.clone_from(&before.parents),
            None if parents > 0 && process.namespace != 0 => {
                process.parents = self.parents(&status, process.namespace, now, parents - 1);
            }
            None => {}
        }
        // The same one, if nothing has changed: rows are folded by it.
        let process = before
            .filter(|before| **before == process)
            .unwrap_or_else(|| Arc::new(process));
        let mut known = self.0.lock();
        if known.len() >= MAX_KNOWN {
            known.retain(|_, known| now.duration_since(known.since) < BELIEVED);
        }
        let found = Known {
            since: now,
            asked: Some(now),
            started,
            process: Arc::clone(&process),
        };
        known.insert(thread, found);
        process
    }

    /// The parents of a process with this `status`, as far as they are in `namespace`.
    fn parents(&self, status: &[u8], namespace: u64, now: Instant, more: usize) -> Vec<Ancestor> {
        let Some(pid) = number_in(status, b"PPid:").filter(|pid| *pid > 0) else {
            return Vec::new();
        };
        let parent = self.look_up(pid, now, more);
        if parent.namespace != namespace {
            return Vec::new();
        }
        let mut parents = vec![Ancestor {
            pid: parent.pid,
            program: parent.program.clone(),
        }];
        parents.extend(parent.parents.iter().cloned());
        parents
    }
}

fn directory(thread: u32) -> PathBuf {
    Path::new("/proc").join(thread.to_string())
}

/// Whether a thread runs `program`: asked for again and again, so without memory of its own.
fn runs(thread: u32, program: &[u8]) -> bool {
    let mut path = [0; 32];
    let mut rest = &mut path[..];
    if write!(rest, "/proc/{thread}/exe").is_err() {
        return false;
    }
    let unused = rest.len();
    let path = &path[..path.len() - unused];
    let mut found = [MaybeUninit::uninit(); libc::PATH_MAX as usize];
    match rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut found) {
        Ok((found, _)) => found == program,
        Err(_) => false,
    }
}

fn program_of(dir: &Path) -> Option<Arc<[u8]>> {
    let link = fs::read_link(dir.join("exe")).ok()?;
    Some(link.as_os_str().as_bytes().into())
}

/// The number in `mnt:[4026531841]`.
fn namespace_number(link: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(b"mnt:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The number in the line of a `status` that begins with `field`.
fn number_in(status: &[u8], field: &[u8]) -> Option<u32> {
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(field))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// When a thread was started, from its `stat`: the 22nd field, the 20th after the name in brackets.
fn started(stat: &[u8]) -> Option<u64> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let field = stat.get(after..)?.split(|byte| *byte == b' ').nth(19)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The first word of a command line as `/proc` has it.
fn argv0(line: &[u8]) -> Option<Arc<[u8]>> {
    let word = line.split(|byte| *byte == 0).next()?;
    let word = &word[..word.len().min(MAX_ARGV0)];
    (!word.is_empty()).then(|| word.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(thread: u32) -> Arc<Process> {
        Processes::default().find(thread)
    }

    fn own_thread() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn a_thread_leads_to_its_process_program_and_namespace() {
        let here = std::thread::spawn(|| look_up(own_thread())).join().unwrap();
        assert_eq!(here.pid, std::process::id());
        assert_eq!(
            here.program.as_deref(),
            Some(std::env::current_exe().unwrap().as_os_str().as_bytes())
        );
        let called = std::env::args_os().next().unwrap();
        let called = called.as_bytes();
        assert_eq!(
            here.argv0.as_deref(),
            Some(&called[..called.len().min(MAX_ARGV0)])
        );
        assert!(here.namespace > 0);
    }

    #[test]
    fn a_child_has_its_parent() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let found = look_up(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.parents[0].pid, std::process::id());
        assert!(found.parents.len() <= MAX_PARENTS);
    }

    #[test]
    fn a_process_that_becomes_another_program_is_seen_at_once() {
        use std::io::{BufRead, Write};
        let processes = Processes::default();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo ready; read line; exec cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let shell = processes.find(child.id());
        assert!(Arc::ptr_eq(&shell, &processes.find(child.id())));
        input.write_all(b"go\nback\n").unwrap();
        // What cat gives back says that it runs.
        output.read_line(&mut line).unwrap();
        let cat = processes.find(child.id());
        drop(input);
        child.wait().unwrap();
        assert_ne!(shell.program, cat.program);
        assert_eq!(cat.argv0.as_deref(), Some(&b"cat"[..]));
        assert_eq!((shell.pid, &shell.parents), (cat.pid, &cat.parents));
    }

    #[test]
    fn what_is_gone_is_still_named() {
        let process = look_up(u32::MAX - 1);
        let expected = Process {
            pid: u32::MAX - 1,
            ..Process::default()
        };
        assert_eq!(*process, expected);
    }

    #[test]
    fn a_start_is_found_whatever_the_program_is_called() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) b ) S {}", fields.join(" "));
        assert_eq!(started(stat.as_bytes()), Some(22));
    }
}
