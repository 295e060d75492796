//! The filesystem from outside: the tree against a simple filesystem in memory, and views on real
//! mounts, sentence by sentence of docs/semantics.md.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking and may talk"
)]

mod fixture;
mod posix;
mod semantics;
