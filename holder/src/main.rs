//! The holder's program: reads its arguments, sets up its log, serves.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use sandstack_holder::protocol::PROTOCOL_VERSION;
use sandstack_holder::{ServeOptions, serve};
use tracing_subscriber::EnvFilter;

const USAGE: &str = "usage: sandbox-holder serve --socket PATH --run-dir DIR --sandbox-id ID [--processes N]\n       \
                     sandbox-holder --version";

/// What the arguments ask for.
enum Wish {
    Serve(ServeOptions),
    Version,
}

fn main() -> ExitCode {
    let wish = match parse(std::env::args_os().skip(1)) {
        Ok(wish) => wish,
        Err(sentence) => {
            say(&format!("sandbox-holder: {sentence}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    let options = match wish {
        Wish::Version => {
            let version = env!("CARGO_PKG_VERSION");
            let line = format!("sandbox-holder {version} (protocol {PROTOCOL_VERSION})\n");
            return match std::io::stdout().write_all(line.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Wish::Serve(options) => options,
    };
    let filter =
        EnvFilter::try_from_env("SANDSTACK_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut sentence = format!("sandbox-holder: {error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                sentence.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            say(&sentence);
            ExitCode::FAILURE
        }
    }
}

/// Tells the person at standard error; if that is closed there is nobody to tell.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Wish, String> {
    let command = args.next().ok_or("a command is needed")?;
    match command.as_bytes() {
        b"--version" => return Ok(Wish::Version),
        b"serve" => {}
        other => return Err(format!("there is no command {}", other.escape_ascii())),
    }
    let (mut socket, mut run_dir, mut sandbox_id, mut processes) = (None, None, None, None);
    while let Some(flag) = args.next() {
        let place = match flag.as_bytes() {
            b"--socket" => &mut socket,
            b"--run-dir" => &mut run_dir,
            b"--sandbox-id" => &mut sandbox_id,
            b"--processes" => &mut processes,
            other => return Err(format!("there is no option {}", other.escape_ascii())),
        };
        let value = args
            .next()
            .ok_or_else(|| format!("{} needs a value", flag.display()))?;
        if place.replace(value).is_some() {
            return Err(format!("{} is given twice", flag.display()));
        }
    }
    let sandbox_id = sandbox_id
        .ok_or("--sandbox-id is needed")?
        .into_string()
        .map_err(|_| "--sandbox-id must be of A-Za-z0-9._-")?;
    let processes = processes.map(|number: OsString| {
        let number = number.to_str().and_then(|number| number.parse().ok());
        number
            .filter(|number| *number > 0)
            .ok_or("--processes must be a number above 0")
    });
    Ok(Wish::Serve(ServeOptions {
        processes: processes.transpose()?,
        socket: PathBuf::from(socket.ok_or("--socket is needed")?),
        run_dir: PathBuf::from(run_dir.ok_or("--run-dir is needed")?),
        sandbox_id,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(args: &[&str]) -> String {
        match parse(args.iter().map(OsString::from)) {
            Ok(_) => panic!("{args:?} was taken"),
            Err(sentence) => sentence,
        }
    }

    #[test]
    fn bad_arguments_are_named() {
        assert!(refused(&[]).contains("a command"));
        assert!(refused(&["run"]).contains("run"));
        assert!(refused(&["serve", "--socket"]).contains("--socket needs a value"));
        assert!(refused(&["serve", "--sockets", "x"]).contains("--sockets"));
        assert!(refused(&["serve", "--socket", "a", "--socket", "b"]).contains("twice"));
        assert!(refused(&["serve", "--socket", "a", "--sandbox-id", "x"]).contains("--run-dir"));
        let no_number = ["serve", "--sandbox-id", "x", "--processes", "0"];
        assert!(refused(&no_number).contains("--processes"));
    }
}
