//! Sandstack's command lines: argv to a call of the catalogue, and its answer to text.
//!
//! Owns the grammar of `sandbox-manager-cli`, `sandbox-runtime-cli` and
//! `sandbox-observability-cli`. All three are one program, generated from the rows of one
//! [`Authority`] in the operation catalogue: a subcommand an operation, a flag a field. A row that
//! is added to the catalogue has its subcommand, help, completions and a readable answer at once;
//! rows that deserve more than the generic answer have a renderer in `text`.
//!
//! It never reads the environment, opens no stream of its own and prints nowhere but into the
//! streams that its caller hands it ([`Environment`]). It knows nothing of what an operation does.
//!
//! Invariants:
//! - stdout is data, stderr is for people. As JSON, stdout is exactly one object, errors too.
//! - Bytes of argv and stdin reach the request unchanged, UTF-8 or not.
//! - Nothing that came from a sandbox reaches a terminal as a control sequence, except the output
//!   of a command and the content of a file, which are asked for as they are.
//! - The token is never printed.

mod columns;
mod environment;
mod failure;
mod field;
mod follow;
mod format;
mod grammar;
mod help;
mod invoke;
mod place;
mod progress;
mod request;
mod spell;
mod text;
mod verdict;

pub use environment::{Environment, Output, Terminal, Variables};
pub use sandstack_api::Authority;
pub use spell::{Spelling, spell};

/// The name of the CLI that calls the operations of `authority`.
pub fn program(authority: Authority) -> &'static str {
    match authority {
        Authority::Management => "sandbox-manager-cli",
        Authority::Runtime => "sandbox-runtime-cli",
        Authority::Observability => "sandbox-observability-cli",
    }
}

/// Runs the CLI of `authority` once and returns the process's exit code.
///
/// 0 done · 1 failure · 2 wrong usage · 3 not found · 4 conflict (a publish that was answered with
/// conflicts too) · 5 no gateway · 6 token · 7 timeout or cancelled · 8 quota or busy · 141 the
/// reader of stdout is gone. With `--exit-code` the code of the command that was run: 128+n for
/// signal n, 124 for its timeout, 125 while or where it has none; so with `--follow`, 125 also where the
/// command could not be started or followed.
pub fn run(authority: Authority, mut environment: Environment) -> u8 {
    let mut manners = format::Manners::sniff(&environment);
    match invoke::invoke(authority, &mut environment, &mut manners) {
        Ok(code) => code,
        Err(failure) => failure::report(&failure, &mut environment, &manners),
    }
}
