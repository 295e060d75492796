//! The gateway's program as its callers see it: over its socket, with real views, holders and
//! commands.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking and may talk"
)]

mod at_once;
mod attach;
mod auth;
mod bad_input;
mod blame;
mod commands;
mod control;
mod disk;
mod evidence;
mod files;
mod git;
mod going_on;
mod layers;
mod live;
mod observe;
mod publish;
mod restart;
mod resume;
mod rig;
mod start;
mod traced;
mod tree;
