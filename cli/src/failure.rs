//! Why a run failed, and how it says so: as the error envelope, as a sentence, as an exit code.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use clap::error::ErrorKind as GrammarError;
use sandstack_api::client::{CallError, exit_code};
use sandstack_api::{ApiError, Authority, CommandId, ErrorBody, ErrorCode, MAX_BODY_BYTES};

use crate::Environment;
use crate::format::{Format, Manners};
use crate::text::{Style, Tone, escaped_lines, particulars};

/// Exit code of a process that SIGPIPE would have ended: the reader of stdout is gone.
const EXIT_BROKEN_PIPE: u8 = 141;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The arguments do not parse.
    #[error("{}", grammar_sentence(.0))]
    Grammar(#[source] Box<clap::Error>),
    /// The arguments parse, and make no request.
    #[error("{message}")]
    Usage {
        /// What is wrong, and the fix.
        message: String,
    },
    /// There is nowhere to look for the gateway.
    #[error(
        "cannot tell where the gateway is: HOME and XDG_STATE_HOME are not set; give --state-dir or SANDSTACK_STATE_DIR"
    )]
    NoStateDir,
    /// The token cannot be read.
    #[error(
        "cannot read the {authority} token {}: {source}; run as the user that runs the gateway, or name a token file with --token-file or SANDBOX_GATEWAY_TOKEN_FILE",
        path.display()
    )]
    Token {
        /// Whose token.
        authority: Authority,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Standard input, which a `-` asks for, cannot be read.
    #[error("cannot read standard input: {0}")]
    Stdin(#[source] io::Error),
    /// Standard input holds more than a request can.
    #[error(
        "standard input holds more than {MAX_BODY_BYTES} bytes, the most that a request carries"
    )]
    StdinTooLarge,
    /// The call failed.
    #[error("{0}")]
    Call(#[from] CallError),
    /// This process could not start its event loop.
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
    /// A command that was followed goes on without anybody who follows it.
    #[error(
        "the gateway went and did not come back: {source}; the command goes on, `read_command_lines {command}` and `write_command_stdin {command}` find it again"
    )]
    Left {
        /// The command.
        command: CommandId,
        /// What became of the connection.
        source: CallError,
    },
    /// The answer could not be written.
    #[error("cannot write the answer: {0}")]
    Write(#[source] io::Error),
}

impl Failure {
    pub(crate) fn usage(message: String) -> Failure {
        Failure::Usage { message }
    }

    fn exit_code(&self) -> u8 {
        match self {
            // The call may or may not have been carried out, which no other code says.
            Failure::Call(CallError::Broken { .. }) => 1,
            Failure::Write(error) if error.kind() == ErrorKind::BrokenPipe => EXIT_BROKEN_PIPE,
            other => exit_code(other.envelope().code),
        }
    }

    /// The failure as the gateway would have put it.
    fn envelope(&self) -> ApiError {
        let code = match self {
            Failure::Grammar(_) | Failure::Usage { .. } | Failure::NoStateDir => {
                ErrorCode::InvalidRequest
            }
            Failure::Token { .. } => ErrorCode::Unauthorized,
            Failure::StdinTooLarge => ErrorCode::TooLarge,
            Failure::Call(CallError::Refused(error)) => return (**error).clone(),
            Failure::Call(CallError::Unreachable { .. }) | Failure::Left { .. } => {
                ErrorCode::Unavailable
            }
            Failure::Call(CallError::Broken { .. })
            | Failure::Stdin(_)
            | Failure::Start(_)
            | Failure::Write(_) => ErrorCode::Internal,
        };
        ApiError::new(code, self.to_string())
    }
}

/// Tells the caller of `failure`, as far as anyone still listens, and returns the exit code.
pub(crate) fn report(failure: &Failure, environment: &mut Environment, manners: &Manners) -> u8 {
    if matches!(failure, Failure::Write(_)) {
        // stdout is where the envelope would go.
        if failure.exit_code() != EXIT_BROKEN_PIPE {
            tell(failure, environment, manners);
        }
        return failure.exit_code();
    }
    match manners.format {
        Format::Text | Format::Parquet => tell(failure, environment, manners),
        Format::Json | Format::JsonLines => {
            let body = ErrorBody {
                error: failure.envelope(),
            };
            let written =
                serde_json::to_vec(&body)
                    .map_err(io::Error::from)
                    .and_then(|mut line| {
                        line.push(b'\n');
                        environment.stdout.sink.write_all(&line)?;
                        environment.stdout.sink.flush()
                    });
            // Someone who looks at a terminal while a script takes the data sees why it failed.
            let watched =
                environment.stderr.terminal.is_some() && environment.stdout.terminal.is_none();
            if watched || written.is_err() {
                tell(failure, environment, manners);
            }
        }
    }
    failure.exit_code()
}

/// Says it on stderr, to a person.
fn tell(failure: &Failure, environment: &mut Environment, manners: &Manners) {
    let style = Style {
        color: manners.stderr_color,
        columns: None,
    };
    let text = match failure {
        Failure::Grammar(error) if style.color => error.render().ansi().to_string(),
        Failure::Grammar(error) => error.render().to_string(),
        other => {
            let error = other.envelope();
            let mut text = format!(
                "{} {}\n",
                style.paint(Tone::Bad, "error:"),
                escaped_lines(error.message.as_bytes())
            );
            text.push_str(&particulars(&error, &style));
            text
        }
    };
    // With stderr gone too there is nobody left to tell; the exit code remains.
    let _ = environment.stderr.sink.write_all(text.as_bytes());
}

/// What clap has to say, as one sentence without its usage lines.
fn grammar_sentence(error: &clap::Error) -> String {
    if error.kind() == GrammarError::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no operation is given; `help` lists them".to_owned();
    }
    let rendered = error.render().to_string();
    let lines: Vec<&str> = rendered
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        // How to pass a flag's name as a value is good advice for other mistakes.
        .filter(|line| !line.is_empty() && !line.starts_with("tip: to pass"))
        .map(|line| {
            line.trim_start_matches("error: ")
                .trim_start_matches("tip: ")
        })
        .collect();
    lines.join("; ")
}
