//! Processes: from the thread in a request to the process, its program and its mount namespace.
//!
//! The thread waits for the reply while it is looked up, so it is there. What was found is believed
//! for a moment only: a thread's number can be another's later, and a program can become another.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Process;

/// How long a look-up is believed. Numbers cannot wrap in it, and a look-up costs about 15 µs.
const BELIEVED: Duration = Duration::from_millis(50);
/// Threads remembered; old ones go when there are more.
const MAX_KNOWN: usize = 1024;

#[derive(Default)]
pub(super) struct Processes(Mutex<FxHashMap<u32, (Instant, Arc<Process>)>>);

impl Processes {
    pub(super) fn find(&self, thread: u32) -> Arc<Process> {
        let now = Instant::now();
        if let Some((since, process)) = self.0.lock().get(&thread)
            && now.duration_since(*since) < BELIEVED
        {
            return Arc::clone(process);
        }
        let process = Arc::new(look_up(thread));
        let mut known = self.0.lock();
        if known.len() >= MAX_KNOWN {
            known.retain(|_, (since, _)| now.duration_since(*since) < BELIEVED);
        }
        known.insert(thread, (now, Arc::clone(&process)));
        process
    }

    pub(super) fn forget(&self, thread: u32) {
        self.0.lock().remove(&thread);
    }
}

fn look_up(thread: u32) -> Process {
    let dir = Path::new("/proc").join(thread.to_string());
    let namespace = fs::read_link(dir.join("ns/mnt"))
        .ok()
        .and_then(|link| namespace_number(link.as_os_str().as_bytes()));
    let program = fs::read_link(dir.join("exe"))
        .ok()
        .map(|link| link.as_os_str().as_bytes().into());
    let pid = fs::read(dir.join("status"))
        .ok()
        .and_then(|status| process_of(&status))
        .unwrap_or(thread);
    Process {
        pid,
        namespace: namespace.unwrap_or(0),
        program,
    }
}

/// The number in `mnt:[4026531841]`.
fn namespace_number(link: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(b"mnt:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The process (`Tgid`) in a thread's `status`.
fn process_of(status: &[u8]) -> Option<u32> {
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leads_to_its_process_program_and_namespace() {
        let here =
            std::thread::spawn(|| look_up(rustix::thread::gettid().as_raw_nonzero().get() as u32))
                .join()
                .unwrap();
        assert_eq!(here.pid, std::process::id());
        assert_eq!(
            here.program.as_deref(),
            Some(std::env::current_exe().unwrap().as_os_str().as_bytes())
        );
        assert!(here.namespace > 0);
    }

    #[test]
    fn what_is_gone_is_still_named() {
        let process = look_up(u32::MAX - 1);
        assert_eq!(
            (process.pid, process.namespace, process.program),
            (u32::MAX - 1, 0, None)
        );
    }
}
