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
mod clock;
mod commands;
mod containers;
mod control;
mod disk;
mod doctor;
mod evidence;
mod files;
mod forward;
mod git;
mod going_on;
mod isolation;
mod layers;
mod limits;
mod live;
mod load;
mod observe;
mod otlp;
mod publish;
mod restart;
mod resume;
mod retention;
mod rig;
mod start;
mod streams;
mod traced;
mod tree;
