//! The process as the three CLIs see it: the one place that reads the environment and the standard
//! streams. It decides nothing.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use sandstack_api::Authority;
use sandstack_cli::{Environment, Output, Terminal, Variables};

/// Runs the CLI of `authority` on this process's arguments, variables and streams.
pub(crate) fn run(authority: Authority) -> ExitCode {
    let stdout = io::stdout();
    let stderr = io::stderr();
    let environment = Environment {
        args: std::env::args_os().collect(),
        variables: Variables {
            sandbox_id: variable("SANDBOX_ID"),
            socket: variable("SANDBOX_GATEWAY_SOCKET"),
            token_file: variable("SANDBOX_GATEWAY_TOKEN_FILE"),
            state_dir: variable("SANDSTACK_STATE_DIR"),
            xdg_state_home: variable("XDG_STATE_HOME"),
            home: variable("HOME"),
            no_color: variable("NO_COLOR"),
            term: variable("TERM"),
        },
        superuser: rustix::process::geteuid().is_root(),
        stdin: Box::new(io::stdin()),
        stdout: Output {
            terminal: terminal(&stdout),
            sink: Box::new(stdout),
        },
        stderr: Output {
            terminal: terminal(&stderr),
            sink: Box::new(stderr),
        },
    };
    ExitCode::from(sandstack_cli::run(authority, environment))
}

/// A variable that is set to nothing counts as one that is not set.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn terminal(stream: &impl AsFd) -> Option<Terminal> {
    if !rustix::termios::isatty(stream) {
        return None;
    }
    // A terminal that does not know its size says 0 columns.
    let columns = rustix::termios::tcgetwinsize(stream)
        .ok()
        .map(|size| size.ws_col)
        .filter(|columns| *columns > 0);
    Some(Terminal {
        columns: columns.unwrap_or(80),
    })
}
