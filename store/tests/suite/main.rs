//! The store from outside: real directories go in, sessions change them, publishes meet, processes
//! are killed, and what comes out is compared with something simpler.

mod content;
mod crash;
mod fixture;
mod import;
mod meeting;
mod model;
