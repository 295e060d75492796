//! The rings of this process: one thread with one ring for each processor it may run on, for all
//! views together. They come with the first view and go with the last.

use std::io;
use std::sync::{Arc, Weak, mpsc};

use parking_lot::Mutex;
use rustix::thread::CpuSet;

use super::buffers::Buffers;
use super::connection::Connection;
use super::worker::{Inbox, Order, Worker};

/// Entries of a queue, for each view: requests of one processor that can be under way at once. One is
/// held by each `fsync` that waits for the disk; the thread serves the others one after the other.
const ENTRIES: usize = 4;

/// The rings that this process has, if any view is served by them.
static SHARED: Mutex<Weak<Rings>> = Mutex::new(Weak::new());

pub(super) struct Rings {
    /// One for each processor that this process may run on.
    workers: Vec<Arc<Inbox>>,
    /// The processor of each worker.
    processors: Vec<usize>,
    /// Queues that the kernel wants: one for each processor that there may ever be.
    queues: u16,
}

impl Rings {
    /// The rings of this process, made if need be.
    ///
    /// # Errors
    /// io_uring is forbidden or out of memory, or a thread cannot be started.
    pub(super) fn shared() -> io::Result<Arc<Rings>> {
        let mut shared = SHARED.lock();
        if let Some(rings) = shared.upgrade() {
            return Ok(rings);
        }
        let rings = Arc::new(Rings::new()?);
        *shared = Arc::downgrade(&rings);
        Ok(rings)
    }

    fn new() -> io::Result<Rings> {
        let queues = possible_processors(&std::fs::read_to_string(
            "/sys/devices/system/cpu/possible",
        )?)
        .ok_or_else(|| io::Error::other("the kernel's list of processors is not understood"))?;
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|processor| allowed.is_set(*processor))
            .collect();
        let mut rings = Rings {
            workers: Vec::new(),
            processors: Vec::new(),
            queues,
        };
        for processor in processors {
            rings.workers.push(start(processor)?);
            rings.processors.push(processor);
        }
        Ok(rings)
    }

    /// The memory for all queues of one connection, a list each; `payload` bytes for what goes with
    /// a request or an answer.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn entries(&self, payload: usize) -> io::Result<Vec<Vec<Buffers>>> {
        let entry = || Buffers::new(payload);
        let queue = |_| (0..ENTRIES).map(|_| entry()).collect();
        (0..self.queues).map(queue).collect()
    }

    /// Has all queues of a connection served, with what [`Rings::entries`] made.
    pub(super) fn serve(&self, connection: &Arc<Connection>, entries: Vec<Vec<Buffers>>) {
        for (queue, entries) in (0..self.queues).zip(entries) {
            // A processor that this process may not use has its queue served by another.
            let index = self
                .processors
                .iter()
                .position(|processor| *processor == usize::from(queue))
                .unwrap_or(usize::from(queue) % self.workers.len());
            connection.enter();
            self.workers[index].send(Order::Serve {
                connection: Arc::clone(connection),
                queue,
                entries,
            });
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.send(Order::End);
        }
    }
}

/// Starts the thread of a processor, and returns when it has its ring.
fn start(processor: usize) -> io::Result<Arc<Inbox>> {
    let inbox = Inbox::new()?;
    let (made, ready) = mpsc::sync_channel(1);
    let theirs = Arc::clone(&inbox);
    std::thread::Builder::new()
        .name(format!("fs-ring-{processor}"))
        .spawn(move || {
            let mut only = CpuSet::new();
            only.set(processor);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &only) {
                tracing::warn!(%error, processor, "a thread that serves views runs anywhere");
            }
            match Worker::new(theirs) {
                Ok(worker) => {
                    let _ = made.send(Ok(()));
                    worker.run();
                }
                Err(error) => {
                    let _ = made.send(Err(error));
                }
            }
        })?;
    ready
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("a thread ended before it began")))?;
    Ok(inbox)
}

/// How many processors a list such as `0-3,8` names.
fn possible_processors(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(possible_processors("0\n"), Some(1));
        assert_eq!(possible_processors("0-1\n"), Some(2));
        assert_eq!(possible_processors("0-3,8-11,16\n"), Some(9));
        for wrong in ["", "a", "3-1", "0-", "0-70000"] {
            assert_eq!(possible_processors(wrong), None, "{wrong:?}");
        }
    }
}
