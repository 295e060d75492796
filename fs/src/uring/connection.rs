//! One view's connection to the kernel, as the threads that serve it share it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::requests::Requests;

/// A connection of `/dev/fuse`.
pub(super) struct Connection {
    device: OwnedFd,
    requests: Arc<Requests>,
    /// Guards the count of what the rings still hold: entries, and orders to make some.
    held: Mutex<usize>,
    changed: Condvar,
}

impl Connection {
    pub(super) fn new(device: OwnedFd, requests: Arc<Requests>) -> Self {
        Connection {
            device,
            requests,
            held: Mutex::new(0),
            changed: Condvar::new(),
        }
    }

    pub(super) fn device(&self) -> &OwnedFd {
        &self.device
    }

    pub(super) fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// A ring has taken hold of it once more.
    pub(super) fn enter(&self) {
        *self.held.lock() += 1;
    }

    /// A ring has let go of it once.
    pub(super) fn leave(&self) {
        let mut held = self.held.lock();
        *held -= 1;
        if *held == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until no ring holds it.
    pub(super) fn wait_until_left(&self) {
        let mut held = self.held.lock();
        while *held > 0 {
            self.changed.wait(&mut held);
        }
    }
}
