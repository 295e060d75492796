//! The CLIs as processes, against a gateway that a test plays.
//!
//! Nothing here knows how the CLI works inside: a test says what is typed and what the gateway
//! answers, and looks at what was posted, printed and returned.

mod answers;
mod errors;
mod expected;
mod export;
mod gateway;
mod help;
mod process;
mod requests;
mod round_trip;
mod terminal;
mod text;
