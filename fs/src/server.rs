//! The end of what serves a view, which several may wait for.

use std::io;
use std::mem;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// The thread that serves a view, until it and what is to be done after it have ended.
pub(crate) struct Server {
    stage: Mutex<Stage>,
    ended: Condvar,
}

enum Stage {
    Running(JoinHandle<io::Result<()>>),
    /// Somebody waits for its end, or does what comes after it.
    Ending,
    Ended,
}

impl Server {
    pub(crate) fn new(thread: JoinHandle<io::Result<()>>) -> Server {
        Server {
            stage: Mutex::new(Stage::Running(thread)),
            ended: Condvar::new(),
        }
    }

    /// False once the thread has ended, if nobody waits for it; otherwise once [`Server::join`] is
    /// done.
    pub(crate) fn is_running(&self) -> bool {
        match &*self.stage.lock() {
            Stage::Running(thread) => !thread.is_finished(),
            Stage::Ending => true,
            Stage::Ended => false,
        }
    }

    /// Waits until the thread has ended and `afterwards` is done, which the first caller does.
    ///
    /// # Errors
    /// What the thread ended with, told to the first caller alone.
    pub(crate) fn join(&self, afterwards: impl FnOnce()) -> io::Result<()> {
        let mut stage = self.stage.lock();
        match mem::replace(&mut *stage, Stage::Ending) {
            Stage::Running(thread) => {
                drop(stage);
                let served = thread
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("the view's thread panicked")));
                afterwards();
                *self.stage.lock() = Stage::Ended;
                self.ended.notify_all();
                served
            }
            Stage::Ending => {
                self.ended
                    .wait_while(&mut stage, |stage| !matches!(stage, Stage::Ended));
                Ok(())
            }
            Stage::Ended => {
                *stage = Stage::Ended;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{channel, sync_channel};
    use std::time::Duration;

    use super::*;

    /// A view that could not be ended in time is ended again: that must not take it as ended.
    #[test]
    fn whoever_joins_waits_for_the_end() {
        let (go, gone) = channel::<()>();
        let thread = std::thread::spawn(move || {
            gone.recv().unwrap();
            Err(io::Error::other("broken"))
        });
        let server = Server::new(thread);
        let done = AtomicBool::new(false);
        let (returned, returns) = sync_channel(2);
        let failures = std::thread::scope(|scope| {
            let joining: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let failed = server.join(|| done.store(true, Ordering::SeqCst)).is_err();
                        returned.send(()).unwrap();
                        assert!(done.load(Ordering::SeqCst), "it returned before the end");
                        failed
                    })
                })
                .collect();
            // Nobody returns before the thread may end; a wait that is too short hides it, no more.
            let early = returns.recv_timeout(Duration::from_millis(200)).is_ok();
            go.send(()).unwrap();
            assert!(!early, "one did not wait");
            joining
                .into_iter()
                .map(|joined| joined.join().unwrap())
                .filter(|failed| *failed)
                .count()
        });
        assert_eq!(failures, 1);
        assert!(!server.is_running());
        server.join(|| panic!("done twice")).unwrap();
    }
}
