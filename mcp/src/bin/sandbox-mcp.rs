//! `sandbox-mcp`: reads the environment, and serves on standard input and output.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use sandstack_mcp::{Environment, Options, Request};

fn main() -> ExitCode {
    let environment = Environment {
        socket: variable("SANDBOX_GATEWAY_SOCKET"),
        token_file: variable("SANDBOX_GATEWAY_TOKEN_FILE"),
        state_dir: variable("SANDSTACK_STATE_DIR"),
        xdg_state_home: variable("XDG_STATE_HOME"),
        home: variable("HOME"),
        superuser: rustix::process::geteuid().is_root(),
    };
    match Options::parse(std::env::args_os().skip(1), &environment) {
        Ok(Request::Serve(options)) => serve(options),
        Ok(Request::Print(text)) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => complain(&error, 2),
    }
}

fn serve(options: Options) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error, 1),
    };
    let served = runtime.block_on(sandstack_mcp::serve(
        options.authority,
        options.place,
        tokio::io::stdin(),
        tokio::io::stdout(),
    ));
    // A read of standard input cannot be taken back; the process ends without it.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, 1),
    }
}

/// Says on stderr what is wrong; stdout is the protocol's.
fn complain(error: &dyn std::error::Error, code: u8) -> ExitCode {
    // With stderr gone there is nobody to tell; the exit code remains.
    let _ = writeln!(io::stderr(), "sandbox-mcp: {error}");
    ExitCode::from(code)
}

/// A variable that is set to nothing counts as one that is not set.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
