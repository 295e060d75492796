//! The store from outside: real directories go in, sessions change them, publishes meet, processes
//! are killed, and what comes out is compared with something simpler.

#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the functions that tests share are tests too"
)]

mod blame;
mod carried;
mod cells;
mod collect;
mod content;
mod corners;
mod crash;
mod export;
mod fixture;
mod forgetting;
mod gate;
mod import;
mod import_again;
mod import_disturbed;
mod known;
mod meeting;
mod merge;
mod moves;
mod programs;
mod reads;
mod rebase;
mod refresh;
mod routes;
mod sparse;
mod squash;
mod table;
mod upper;
mod verify;
