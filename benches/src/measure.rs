//! Measuring: seconds on the wall and of the processors, of whoever asks and of whoever serves.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Result;

/// One measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds that passed.
    pub wall: f64,
    /// Seconds of processors: of this process, of the programs it ran, and of the servers.
    pub cpu: f64,
}

/// Does `work` and measures it. `servers` are the processes that serve the filesystem.
///
/// # Errors
/// Those of `work`; or a server has gone.
pub fn timed(servers: &[u32], work: impl FnOnce() -> Result<()>) -> Result<Sample> {
    let before = clients() + serving(servers)?;
    let begun = Instant::now();
    work()?;
    let wall = begun.elapsed().as_secs_f64();
    let cpu = clients() + serving(servers)? - before;
    Ok(Sample { wall, cpu })
}

/// Processor seconds of this process and of the programs that it ran and that have ended.
fn clients() -> f64 {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN]
        .into_iter()
        .map(used)
        .sum()
}

fn used(whose: i32) -> f64 {
    // SAFETY: all zeros is a value of this struct of integers, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        // It fails only for a `whose` that does not exist or a bad pointer.
        libc::getrusage(whose, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Processor seconds of all threads of these processes, to the nanosecond: the first field of
/// `schedstat`.
fn serving(servers: &[u32]) -> Result<f64> {
    let mut nanos = 0.0;
    for server in servers {
        let tasks = fs::read_dir(format!("/proc/{server}/task"))
            .map_err(|error| format!("server {server} has gone: {error}"))?;
        for task in tasks.flatten() {
            // A thread that ended meanwhile had little to do.
            if let Ok(text) = fs::read_to_string(task.path().join("schedstat")) {
                nanos += text
                    .split_ascii_whitespace()
                    .next()
                    .and_then(|field| field.parse::<f64>().ok())
                    .unwrap_or(0.0);
            }
        }
    }
    Ok(nanos / 1e9)
}

/// The middle of `values`; of an even number the mean of the two in the middle. 0 if there are none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which `share` of `values` lies, interpolated. 0 if there are none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = share * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// When the piece of work in hand is given up, in seconds since 1970; 0 while there is none.
static DEADLINE: AtomicU64 = AtomicU64::new(0);

/// Starts the thread that ends this process when a piece of work takes longer than it was given,
/// after `clear` has taken the mounts away.
pub fn watch(clear: impl Fn() + Send + 'static) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let deadline = DEADLINE.load(Ordering::Relaxed);
            if deadline != 0 && seconds_now() > deadline {
                crate::tell("bench: a piece of work hangs; giving up");
                clear();
                std::process::exit(3);
            }
        }
    });
}

/// Gives the next piece of work `time`; `None` ends the watch.
pub fn allow(time: Option<Duration>) {
    let deadline = time.map_or(0, |time| seconds_now() + time.as_secs());
    DEADLINE.store(deadline, Ordering::Relaxed);
}

fn seconds_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Numbers that look random and are the same in every run (splitmix64, by Sebastiano Vigna).
#[derive(Clone, Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }

    /// Puts `items` into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn processor_time_of_this_process_and_of_servers_grows_with_work() {
        let spin = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            Ok(())
        };
        let own = timed(&[], spin).unwrap();
        assert!(own.cpu > 0.0 && own.wall >= 0.02, "{own:?}");
        // As its own server, this process counts twice.
        let twice = timed(&[std::process::id()], spin).unwrap();
        assert!(twice.cpu > 0.0, "{twice:?}");
        assert!(timed(&[u32::MAX], || Ok(())).is_err());
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut items: Vec<u32> = (0..100).collect();
        Numbers(1).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
