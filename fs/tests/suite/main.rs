//! The filesystem from outside: the tree against a simple filesystem in memory, views on real mounts
//! against the disk below them, real programs in them, and sentence by sentence of docs/semantics.md.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking and may talk"
)]

mod fixture;
mod oracle;
mod posix;
mod programs;
mod scale;
mod semantics;
