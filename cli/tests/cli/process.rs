//! A run of one of the CLIs.

use std::ffi::{OsStr, OsString};
use std::io::{Cursor, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use sandstack_api::Authority;
use sandstack_cli::{Environment, Output, Variables};
use serde_json::Value;

use crate::gateway::{Gateway, TOKEN};

/// A CLI, ready to be run.
pub(crate) struct Cli {
    command: Command,
    stdin: Vec<u8>,
}

/// How it ended.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// The path of the CLI of `authority`.
pub(crate) fn binary(authority: Authority) -> &'static str {
    match authority {
        Authority::Management => env!("CARGO_BIN_EXE_sandbox-manager-cli"),
        Authority::Runtime => env!("CARGO_BIN_EXE_sandbox-runtime-cli"),
        Authority::Observability => env!("CARGO_BIN_EXE_sandbox-observability-cli"),
    }
}

/// The CLI of `authority`, without any environment.
pub(crate) fn bare(authority: Authority) -> Cli {
    let mut command = Command::new(binary(authority));
    command.env_clear();
    Cli {
        command,
        stdin: Vec::new(),
    }
}

/// The CLI of `authority`, which finds `gateway`.
pub(crate) fn cli(authority: Authority, gateway: &Gateway) -> Cli {
    bare(authority).env("SANDSTACK_STATE_DIR", gateway.state_dir())
}

impl Cli {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Cli {
        self.command.env(name, value);
        self
    }

    pub(crate) fn stdin(mut self, bytes: &[u8]) -> Cli {
        self.stdin = bytes.to_vec();
        self
    }

    /// Runs it to its end, and holds that no output contains the token.
    pub(crate) fn run<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Run {
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().into()).collect();
        let mut child = self
            .command
            .args(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the CLI starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let bytes = std::mem::take(&mut self.stdin);
        // A CLI that does not read its input may be gone before it is written.
        let feeder = std::thread::spawn(move || stdin.write_all(&bytes));
        let output = child.wait_with_output().expect("the CLI ends");
        let _ = feeder.join().expect("the feeder does not panic");
        let run = Run {
            code: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: output.stderr,
        };
        for text in [&run.stdout, &run.stderr] {
            let leaks = text
                .windows(TOKEN.len())
                .any(|window| window == TOKEN.as_bytes());
            assert!(!leaks, "{args:?} printed the token: {run:?}");
        }
        run
    }
}

impl Run {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// stdout as the one JSON object that it must be.
    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not one JSON object: {error}: {self:?}"));
        assert!(value.is_object(), "{self:?}");
        value
    }

    /// The message of the error envelope on stdout.
    pub(crate) fn message(&self) -> String {
        let message = self.json()["error"]["message"].clone();
        message.as_str().expect("a message").to_owned()
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "exit code {}\nstdout: {}\nstderr: {}",
            self.code,
            self.out(),
            self.err()
        )
    }
}

/// A run within the test, whose process is made up.
#[derive(Default)]
pub(crate) struct InProcess {
    pub(crate) args: Vec<OsString>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) variables: Variables,
    pub(crate) superuser: bool,
}

impl InProcess {
    pub(crate) fn run(self, authority: Authority) -> Run {
        let (stdout, stderr) = (Written::default(), Written::default());
        let output = |written: &Written| Output {
            sink: Box::new(written.clone()),
            terminal: None,
        };
        let mut args = vec![OsString::from("cli")];
        args.extend(self.args);
        let environment = Environment {
            args,
            variables: self.variables,
            superuser: self.superuser,
            stdin: Box::new(Cursor::new(self.stdin)),
            stdout: output(&stdout),
            stderr: output(&stderr),
        };
        let code = sandstack_cli::run(authority, environment);
        Run {
            code: code.into(),
            stdout: stdout.take(),
            stderr: stderr.take(),
        }
    }
}

/// What was written to a stream.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
