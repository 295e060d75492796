//! Placement: the threads that serve a view follow whoever they serve from processor to processor.
//!
//! A request over `/dev/fuse` is two wake-ups, of the server and of the caller. On one processor that
//! is a switch from one to the other; between two it is an interrupt to a processor that may sleep,
//! and costs both of them several times as much. The kernel wakes whichever server waits longest,
//! and prefers an idle processor to the caller's. So each server looks now and then where its caller
//! last ran, and stays there. The caller waits meanwhile, so that processor is free.
//!
//! Only a hint: whatever cannot be found out or set leaves the thread where the kernel puts it.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

/// Requests of one caller after which its processor is looked up again: a look-up costs about as much
/// as a request.
const REQUESTS: u32 = 64;
/// Least time between look-ups, so that many callers who take turns cost little.
const PAUSE: Duration = Duration::from_micros(500);
/// Field of `/proc/PID/stat` that has the processor, counted from 1 (`proc_pid_stat(5)`), and the
/// first field after the name, which alone may hold blanks.
const PROCESSOR_FIELD: usize = 39;
const AFTER_NAME_FIELD: usize = 3;

thread_local! {
    static SEAT: RefCell<Seat> = const { RefCell::new(Seat::NONE) };
}

/// Where this thread serves.
struct Seat {
    /// The processor that it keeps to.
    processor: Option<usize>,
    /// Where the last caller was, if elsewhere: two in a row make the thread move.
    candidate: Option<usize>,
    caller: u32,
    /// The caller's `stat`, kept open while it is the same caller.
    stat: Option<File>,
    /// Requests since the last look-up.
    requests: u32,
    looked: Option<Instant>,
    /// Set when the kernel has refused to move the thread.
    stays: bool,
}

impl Seat {
    const NONE: Seat = Seat {
        processor: None,
        candidate: None,
        caller: 0,
        stat: None,
        requests: 0,
        looked: None,
        stays: false,
    };
}

/// To be called by a serving thread with the thread that it serves; 0 for none.
pub(crate) fn follow(caller: u32) {
    if caller != 0 {
        SEAT.with_borrow_mut(|seat| seat.follow(caller));
    }
}

impl Seat {
    fn follow(&mut self, caller: u32) {
        self.requests += 1;
        let is_new = caller != self.caller;
        if self.stays || !(is_new || self.candidate.is_some() || self.requests >= REQUESTS) {
            return;
        }
        let now = Instant::now();
        if self.candidate.is_none()
            && self
                .looked
                .is_some_and(|looked| now.duration_since(looked) < PAUSE)
        {
            return;
        }
        self.looked = Some(now);
        self.requests = 0;
        if is_new {
            self.caller = caller;
            self.stat = File::open(format!("/proc/{caller}/stat")).ok();
        }
        let found = self.stat.as_ref().and_then(processor);
        let Some(found) = found.filter(|found| Some(*found) != self.processor) else {
            self.candidate = None;
            return;
        };
        if self.candidate.replace(found) == Some(found) {
            self.candidate = None;
            self.move_to(found);
        }
    }

    fn move_to(&mut self, processor: usize) {
        let mut set = CpuSet::new();
        if processor >= CpuSet::MAX_CPU {
            return;
        }
        set.set(processor);
        match rustix::thread::sched_setaffinity(None, &set) {
            Ok(()) => self.processor = Some(processor),
            // The thread may not run there (a cpuset, say), or not choose at all.
            Err(error) => {
                tracing::debug!(processor, %error, "a serving thread stays where it is");
                self.stays = true;
            }
        }
    }
}

/// The processor that a thread last ran on, by its `stat`.
fn processor(stat: &File) -> Option<usize> {
    let mut buffer = [0; 512];
    let count = stat.read_at(&mut buffer, 0).ok()?;
    let text = buffer.get(..count)?;
    let name_ends = text.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(text.get(name_ends + 2..)?).ok()?;
    fields
        .split(' ')
        .nth(PROCESSOR_FIELD - AFTER_NAME_FIELD)?
        .trim_end()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_thread() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    /// A thread that keeps to processor `at` until the channel that is returned is dropped.
    fn caller_on(at: usize) -> (u32, std::sync::mpsc::Sender<()>) {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut set = CpuSet::new();
            set.set(at);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            tell.send(own_thread()).unwrap();
            let _ = held.recv();
        });
        (told.recv().unwrap(), hold)
    }

    fn allowed() -> Vec<usize> {
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|at| set.is_set(*at)).collect()
    }

    #[test]
    fn a_server_goes_where_its_caller_is() {
        // In a thread of its own, whose affinity is nobody else's.
        let server = std::thread::spawn(|| {
            for at in allowed() {
                let (caller, _hold) = caller_on(at);
                let mut seat = Seat::NONE;
                seat.follow(caller);
                seat.follow(caller);
                assert_eq!(seat.processor, Some(at));
                assert_eq!(rustix::thread::sched_getcpu(), at);
            }
        });
        server.join().unwrap();
    }

    #[test]
    fn callers_who_take_turns_do_not_drag_a_server_along() {
        let server = std::thread::spawn(|| {
            let processors = allowed();
            let [one, other, ..] = processors[..] else {
                // With one processor there is nowhere to go.
                return;
            };
            let (first, _hold) = caller_on(one);
            let (second, _hold_other) = caller_on(other);
            let mut seat = Seat::NONE;
            seat.follow(first);
            seat.follow(first);
            assert_eq!(seat.processor, Some(one));
            for _ in 0..1000 {
                seat.follow(second);
                seat.follow(first);
            }
            assert_eq!(seat.processor, Some(one));
        });
        server.join().unwrap();
    }

    #[test]
    fn a_caller_that_is_gone_is_not_followed() {
        let mut seat = Seat::NONE;
        seat.follow(u32::MAX - 1);
        seat.follow(u32::MAX - 1);
        assert_eq!(seat.processor, None);
        assert!(!seat.stays);
    }
}
