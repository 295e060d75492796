//! What happens at a time.
//!
//! Owns a heap of moments. A timer is never cancelled: who rings looks whether it still
//! matters (names may have been used again since), which is simpler than keeping two lists
//! true to each other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// What a timer is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Accept connections again.
    Accept,
    /// A session should have been made by now.
    MakeSession(String),
    /// A session should have been gone by now.
    DestroySession(String),
    /// A command's time is up.
    Timeout(String),
    /// Output of a command may be announced again.
    Announce(String),
    /// A command that has ended may be quiet now.
    Linger(String),
    /// A shutdown stops waiting.
    Shutdown,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Timer)>>,
}

impl Timers {
    pub(super) fn at(&mut self, when: Instant, timer: Timer) {
        self.heap.push(Reverse((when, timer)));
    }

    pub(super) fn after(&mut self, wait: Duration, timer: Timer) {
        self.at(Instant::now() + wait, timer);
    }

    /// When the next one rings.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((when, _))| *when)
    }

    /// Takes one that rings at `now` or before.
    pub(super) fn due(&mut self, now: Instant) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, timer))| timer)
    }
}
