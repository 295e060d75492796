//! Room that is about to be free.
//!
//! A removed file keeps its content until the kernel says that it has let go of it. That it says in a
//! message of its own, which waits for no answer and in a queue that others may overtake: whoever
//! removes a file and then writes may be read first. So who lacks room waits for the removed files
//! that are still there, and is refused only when they stay. One that somebody has open stays: it is
//! waited for once, and from then on only for a moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashSet;
use sandstack_store::{Ino, InodeBody};

use super::Tree;
use crate::error::Result;

/// How long a removed file is waited for. The message is on its way, so it takes as long as the
/// processors and the disk are busy with others.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long one is waited for that stayed before, as it does while somebody has it open.
const MOMENT: Duration = Duration::from_millis(50);

/// Who waits for removed files, and which were waited for in vain.
#[derive(Default)]
pub(super) struct Room {
    waits: Mutex<Waits>,
    gone: Condvar,
    /// Whether `waits` has anything in it.
    any: AtomicBool,
}

#[derive(Default)]
struct Waits {
    waiting: usize,
    stay: FxHashSet<Ino>,
}

impl Waits {
    fn is_empty(&self) -> bool {
        self.waiting == 0 && self.stay.is_empty()
    }
}

impl Tree {
    /// Does what needs room for the content of `ino`; if there is none, waits for room that removed
    /// files are about to give back, and does it again. Only where nobody waits who could bring such
    /// a message.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn with_room<T>(&self, ino: Ino, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        self.room.begin();
        let begun = Instant::now();
        let done = loop {
            // Looked for before: what goes meanwhile has given its room back.
            let leaving = self.leaving(ino);
            match act() {
                Err(error) if error.lacks_room() && !leaving.is_empty() => {
                    if !self.wait_for_one(&leaving, begun) {
                        break act();
                    }
                }
                done => break done,
            }
        };
        self.room.end();
        done
    }

    /// Removed files other than `ino` whose content is still there.
    fn leaving(&self, ino: Ino) -> Vec<Ino> {
        let state = self.upper.state();
        let nameless = state.inodes().filter(|(_, inode)| inode.attrs.nlink == 0);
        let files = nameless.filter(|(_, inode)| matches!(inode.body, InodeBody::File(_)));
        files
            .map(|(other, _)| other)
            .filter(|other| *other != ino)
            .collect()
    }

    /// Waits until one of `leaving` is gone. `false`: they stay.
    fn wait_for_one(&self, leaving: &[Ino], begun: Instant) -> bool {
        let mut waits = self.room.waits.lock();
        let known = leaving.iter().all(|ino| waits.stay.contains(ino));
        let deadline = begun + if known { MOMENT } else { PATIENCE };
        loop {
            let left: Vec<Ino> = {
                let state = self.upper.state();
                let there = |ino: &Ino| state.inode(*ino).is_some();
                leaving.iter().copied().filter(there).collect()
            };
            if left.len() < leaving.len() {
                return true;
            }
            if self.room.gone.wait_until(&mut waits, deadline).timed_out() {
                waits.stay.extend(left);
                return false;
            }
        }
    }

    /// An inode without a name is gone.
    pub(super) fn room_is_back(&self, ino: Ino) {
        if self.room.any.load(Ordering::SeqCst) {
            let mut waits = self.room.waits.lock();
            waits.stay.remove(&ino);
            self.room.any.store(!waits.is_empty(), Ordering::SeqCst);
            self.room.gone.notify_all();
        }
    }
}

impl Room {
    fn begin(&self) {
        let mut waits = self.waits.lock();
        waits.waiting += 1;
        self.any.store(true, Ordering::SeqCst);
    }

    fn end(&self) {
        let mut waits = self.waits.lock();
        waits.waiting -= 1;
        self.any.store(!waits.is_empty(), Ordering::SeqCst);
    }
}
