//! Rows that run databases and compilers.

use std::fs;
use std::process::{Command, Stdio};

use super::{Row, Work, nothing};
use crate::Result;
use crate::input::{Base, cargo, run};
use crate::peer::Touches;

/// Transactions of the database row.
const COMMITS: usize = 1_000;

pub(super) const ROWS: &[Row] = &[
    Row::making("sqlite", "1,000 transactions of sqlite", script, sqlite),
    Row {
        base: Base::App,
        touches: Touches::Base,
        ..Row::making(
            "cargo-check",
            "cargo check of a small program",
            nothing,
            cargo_check,
        )
    },
    Row {
        base: Base::App,
        touches: Touches::Base,
        ..Row::making(
            "cargo-build",
            "cargo build of a small program",
            nothing,
            cargo_build,
        )
    },
    Row {
        base: Base::App,
        touches: Touches::Base,
        ..Row::making(
            "cargo-again",
            "cargo check with nothing to do",
            cargo_check,
            cargo_check,
        )
    },
];

fn script(work: &Work<'_>) -> Result<()> {
    fs::create_dir_all(work.new_directory())?;
    let mut text = "CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);\n".to_owned();
    for number in 0..COMMITS {
        text.push_str(&format!("INSERT INTO t (text) VALUES ('row {number}');\n"));
    }
    Ok(fs::write(work.new_directory().join("script.sql"), text)?)
}

fn sqlite(work: &Work<'_>) -> Result<()> {
    let script = fs::File::open(work.new_directory().join("script.sql"))?;
    let status = Command::new("sqlite3")
        .arg(work.new_directory().join("data.db"))
        .stdin(Stdio::from(script))
        .status()?;
    if !status.success() {
        return Err(format!("sqlite3: {status}").into());
    }
    Ok(())
}

fn cargo_check(work: &Work<'_>) -> Result<()> {
    run(cargo(work.root).args(["check", "-q", "--offline"]))
}

fn cargo_build(work: &Work<'_>) -> Result<()> {
    run(cargo(work.root).args(["build", "-q", "--offline"]))
}
