//! What a transport must keep whatever a filesystem does over it: nothing hangs, nobody waits for
//! another's sync, and everything ends when the mount or the daemon does. Every test runs over each
//! transport that this machine has.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking and may talk"
)]

mod ends;
mod fixture;
mod load;
mod process;
