//! What stands around every test: a deadline, and honesty about what a machine lacks.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Aborts the whole test program if it is not dropped in time.
pub struct Watchdog {
    done: Arc<(Mutex<bool>, Condvar)>,
}

impl Watchdog {
    pub fn new(name: &str, limit: Duration) -> Watchdog {
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let (watched, name) = (Arc::clone(&done), name.to_owned());
        std::thread::spawn(move || {
            let (lock, bell) = &*watched;
            let guard = lock.lock().unwrap();
            let (guard, _) = bell
                .wait_timeout_while(guard, limit, |done| !*done)
                .unwrap();
            if !*guard {
                eprintln!("WATCHDOG: {name} has not ended in {limit:?}; aborting");
                std::process::abort();
            }
        });
        Watchdog { done }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.done.0.lock().unwrap() = true;
        self.done.1.notify_all();
    }
}

/// Says loudly that this machine can't run a test; fails where skipping is not allowed.
pub fn lacking(what: &str) {
    eprintln!("SKIPPED, THIS MACHINE LACKS: {what}");
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "CI must not lack: {what}"
    );
}

pub fn is_root() -> bool {
    // SAFETY: a call without pointers.
    unsafe { libc::geteuid() == 0 }
}
