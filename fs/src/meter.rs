//! How many requests of the kernel this process has answered, of which kind, and how long each took.
//!
//! Counted for all views together, in a few relaxed additions a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the classes of durations, in microseconds; the last class has no bound.
pub const BOUNDS_US: [u64; 8] = [4, 16, 64, 256, 1024, 4096, 16_384, 65_536];

/// The kinds of requests: the names that the adapters use, and the numbers of `linux/fuse.h`.
const OPERATIONS: [(&str, u32); 30] = [
    ("lookup", 1),
    ("forget", 2),
    ("getattr", 3),
    ("setattr", 4),
    ("readlink", 5),
    ("symlink", 6),
    ("mknod", 8),
    ("mkdir", 9),
    ("unlink", 10),
    ("rmdir", 11),
    ("rename", 45),
    ("link", 13),
    ("open", 14),
    ("read", 15),
    ("write", 16),
    ("statfs", 17),
    ("release", 18),
    ("fsync", 20),
    ("setxattr", 21),
    ("getxattr", 22),
    ("listxattr", 23),
    ("removexattr", 24),
    ("opendir", 27),
    ("readdir", 28),
    ("create", 35),
    ("fallocate", 43),
    ("readdirplus", 44),
    ("lseek", 46),
    ("copy_file_range", 47),
    ("other", 0),
];

/// The name of a kind of request by its number.
pub(crate) fn name_of(number: u32) -> &'static str {
    let known = OPERATIONS.iter().find(|(_, known)| *known == number);
    known.map_or("other", |(name, _)| name)
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCount {
    /// Which.
    pub operation: &'static str,
    /// How many.
    pub count: u64,
    /// How long all of them took, until they were answered or handed to a thread that may wait for the
    /// disk.
    pub total: Duration,
    /// How many took no longer than each of [`BOUNDS_US`], and at the end those that took longer; each
    /// counted once.
    pub classes: [u64; BOUNDS_US.len() + 1],
}

struct Counter {
    total_ns: AtomicU64,
    classes: [AtomicU64; BOUNDS_US.len() + 1],
}

impl Counter {
    const fn new() -> Counter {
        Counter {
            total_ns: AtomicU64::new(0),
            classes: [const { AtomicU64::new(0) }; BOUNDS_US.len() + 1],
        }
    }
}

static COUNTERS: [Counter; OPERATIONS.len()] = [const { Counter::new() }; OPERATIONS.len()];

/// Runs the handler of a request and counts it. A kind without a name is an `other`.
pub(crate) fn count<T>(operation: &str, handler: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = handler();
    let taken = begun.elapsed();
    let known = OPERATIONS.iter().position(|(known, _)| *known == operation);
    let counter = &COUNTERS[known.unwrap_or(OPERATIONS.len() - 1)];
    let taken_us = taken.as_micros() as u64;
    let class = BOUNDS_US.iter().position(|bound| taken_us <= *bound);
    counter.classes[class.unwrap_or(BOUNDS_US.len())].fetch_add(1, Ordering::Relaxed);
    let taken_ns = taken.as_nanos() as u64;
    counter.total_ns.fetch_add(taken_ns, Ordering::Relaxed);
    done
}

/// What has been counted since the process began, of every kind that there was.
pub fn requests() -> Vec<RequestCount> {
    let all = OPERATIONS.iter().zip(&COUNTERS);
    let counts = all.map(|((operation, _), counter)| {
        let classes = std::array::from_fn(|class| counter.classes[class].load(Ordering::Relaxed));
        RequestCount {
            operation,
            count: classes.iter().sum(),
            total: Duration::from_nanos(counter.total_ns.load(Ordering::Relaxed)),
            classes,
        }
    });
    counts.filter(|counted| counted.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_counted_once() {
        // Nothing else of these tests asks for them.
        let counted = || {
            let all = requests();
            let of = |name| all.iter().find(|row| row.operation == name).copied();
            (of("mknod"), of("other"))
        };
        assert_eq!(counted().0, None);
        let others = counted().1.map_or(0, |row| row.count);
        assert_eq!(count("mknod", || 7), 7);
        count("mknod", || std::thread::sleep(Duration::from_millis(2)));
        count("nothing of the kind", || ());
        let (made, other) = counted();
        let made = made.unwrap();
        assert_eq!((made.count, made.classes.iter().sum::<u64>()), (2, 2));
        assert!(made.total >= Duration::from_millis(2));
        assert_eq!(made.classes[..4].iter().sum::<u64>(), 1);
        assert_eq!(other.unwrap().count, others + 1);
    }
}
