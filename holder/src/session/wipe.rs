//! Forgetting where a process came from.
//!
//! Owns wiping the holder's arguments and environment from a forked process. Its
//! `/proc/PID/cmdline` is readable by everyone who sees the process, and would tell the
//! socket's path; its environment may hold the gateway's secrets.

use std::fs;
use std::io;

/// Fields of `/proc/PID/stat` after the name: where arguments and environment lie.
const ARG_START: usize = 45;

/// Zeroes the arguments and environment that this process was executed with.
///
/// # Safety
/// Single-threaded, and nothing may use the arguments or the environment again.
pub(super) unsafe fn wipe_origin() -> io::Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold anything, so fields count from the last one.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let addresses: Vec<usize> = fields
        .split_whitespace()
        .skip(ARG_START)
        .take(4)
        .filter_map(|f| f.parse().ok())
        .collect();
    let &[arg_start, arg_end, env_start, env_end] = addresses.as_slice() else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    for (start, end) in [(arg_start, arg_end), (env_start, env_end)] {
        if start != 0 && end > start {
            // SAFETY: the kernel says that these bytes are this process's arguments and
            // environment, which lie on its writable stack; the caller guarantees that
            // nothing uses them again.
            unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) };
        }
    }
    Ok(())
}
