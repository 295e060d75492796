//! Benches: the same work on a view, on the disk, on kernel overlayfs and on fuse-overlayfs, and what
//! a sandbox's operations cost.
//!
//! A number of this package is a ratio of two medians that were taken alternately in one run. It
//! never mounts outside its own directory, and takes away what it mounted.

pub mod bars;
pub mod baseline;
pub mod cost;
pub mod daemon;
pub mod input;
pub mod measure;
pub mod outcome;
pub mod peer;
pub mod plot;
pub mod rows;
pub mod run;

/// What went wrong, for a person.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// A result for a person.
pub type Result<T> = std::result::Result<T, Failure>;

/// Says something to the person who runs the bench.
pub fn tell(text: &str) {
    use std::io::Write as _;
    // A reader who went away is told nothing more.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Shows what is being done, where it does not get into the results.
pub fn progress(text: &str) {
    use std::io::{IsTerminal as _, Write as _};
    let mut stream = std::io::stderr();
    if stream.is_terminal() {
        let _ = write!(stream, "\r\x1b[K{text}");
        let _ = stream.flush();
    } else {
        let _ = writeln!(stream, "{text}");
    }
}
