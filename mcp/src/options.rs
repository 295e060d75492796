//! The command line of `sandbox-mcp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sandstack_api::Authority;

use crate::Place;

/// What `--help` prints.
const HELP: &str = "\
Serves the operations of one Sandstack authority as MCP tools, over standard input and output

Usage: sandbox-mcp --set <SET> [OPTIONS]

Options:
      --set <SET>          Whose operations: management, runtime or observability
      --socket <PATH>      The gateway's socket; else $SANDBOX_GATEWAY_SOCKET, else gateway.sock in
                           the state directory
      --token-file <PATH>  File of the token; else $SANDBOX_GATEWAY_TOKEN_FILE, else the state
                           directory's own
      --state-dir <PATH>   The gateway's state directory; else $SANDSTACK_STATE_DIR, else
                           /var/lib/sandstack for root and $XDG_STATE_HOME/sandstack for others
  -h, --help               Print help
  -V, --version            Print version
";

/// What the command line may depend on besides its arguments; `None` for a variable that is unset
/// or empty.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `SANDBOX_GATEWAY_SOCKET`: the gateway's socket.
    pub socket: Option<OsString>,
    /// `SANDBOX_GATEWAY_TOKEN_FILE`: the file that holds the token.
    pub token_file: Option<OsString>,
    /// `SANDSTACK_STATE_DIR`: the gateway's state directory.
    pub state_dir: Option<OsString>,
    /// `XDG_STATE_HOME`: parent of the default state directory of an ordinary user.
    pub xdg_state_home: Option<OsString>,
    /// `HOME`: stands in for a missing `XDG_STATE_HOME`.
    pub home: Option<OsString>,
    /// Whether the effective user is root, whose state directory is the system's.
    pub superuser: bool,
}

/// What to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whose operations.
    pub authority: Authority,
    /// Where their gateway is.
    pub place: Place,
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Serve.
    Serve(Options),
    /// Print this text and end.
    Print(String),
}

/// What is wrong with the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// There is no such option.
    #[error("unknown option {0:?}; `sandbox-mcp --help` lists them")]
    Unknown(OsString),
    /// An option stands without its value.
    #[error("{0} needs a value")]
    NoValue(&'static str),
    /// `--set` is missing.
    #[error("--set is missing: use management, runtime or observability")]
    NoSet,
    /// `--set` names no authority.
    #[error("--set: {0}")]
    WrongSet(String),
    /// There is nowhere to look for the gateway.
    #[error(
        "cannot tell where the gateway is: HOME and XDG_STATE_HOME are not set; give --state-dir or SANDSTACK_STATE_DIR"
    )]
    NoStateDir,
}

impl Options {
    /// Reads the arguments, the program's name left out.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn parse(
        args: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Request, UsageError> {
        let mut set = None;
        let mut asked = Asked::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--help" | "-h") => return Ok(Request::Print(HELP.to_owned())),
                Some("--version" | "-V") => {
                    let version = env!("CARGO_PKG_VERSION");
                    return Ok(Request::Print(format!("sandbox-mcp {version}\n")));
                }
                _ => {}
            }
            let (name, inline) = split(&arg);
            let (name, slot) = match name.to_str() {
                Some("--set") => ("--set", &mut set),
                Some("--socket") => ("--socket", &mut asked.socket),
                Some("--token-file") => ("--token-file", &mut asked.token_file),
                Some("--state-dir") => ("--state-dir", &mut asked.state_dir),
                _ => return Err(UsageError::Unknown(arg)),
            };
            let value = inline.or_else(|| args.next());
            *slot = Some(value.ok_or(UsageError::NoValue(name))?);
        }
        let set = set.ok_or(UsageError::NoSet)?;
        let authority: Authority = set
            .to_string_lossy()
            .parse()
            .map_err(UsageError::WrongSet)?;
        let place = asked.place(authority, environment)?;
        Ok(Request::Serve(Options { authority, place }))
    }
}

/// `--name=value`, where the value may be any bytes.
fn split(arg: &OsStr) -> (&OsStr, Option<OsString>) {
    let bytes = arg.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(cut) => (
            OsStr::from_bytes(&bytes[..cut]),
            Some(OsString::from_vec(bytes[cut + 1..].to_vec())),
        ),
        None => (arg, None),
    }
}

#[derive(Default)]
struct Asked {
    socket: Option<OsString>,
    token_file: Option<OsString>,
    state_dir: Option<OsString>,
}

impl Asked {
    fn place(self, authority: Authority, environment: &Environment) -> Result<Place, UsageError> {
        let nonempty = |path: Option<OsString>| path.filter(|path| !path.is_empty());
        let state_dir = nonempty(self.state_dir).or(environment.state_dir.clone());
        let state_dir = || match &state_dir {
            Some(dir) => Ok(PathBuf::from(dir)),
            None => default_state_dir(environment),
        };
        let socket = nonempty(self.socket).or(environment.socket.clone());
        let token_file = nonempty(self.token_file).or(environment.token_file.clone());
        Ok(Place {
            socket: match socket {
                Some(path) => path.into(),
                None => state_dir()?.join("gateway.sock"),
            },
            token_file: match token_file {
                Some(path) => path.into(),
                None => state_dir()?.join(format!("tokens/{authority}.token")),
            },
        })
    }
}

fn default_state_dir(environment: &Environment) -> Result<PathBuf, UsageError> {
    if environment.superuser {
        return Ok(PathBuf::from("/var/lib/sandstack"));
    }
    // The XDG rules tell programs to ignore a relative path.
    let xdg = environment.xdg_state_home.as_deref().map(Path::new);
    match (xdg.filter(|dir| dir.is_absolute()), &environment.home) {
        (Some(dir), _) => Ok(dir.join("sandstack")),
        (None, Some(home)) => Ok(Path::new(home).join(".local/state/sandstack")),
        (None, None) => Err(UsageError::NoStateDir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str], environment: &Environment) -> Result<Request, UsageError> {
        Options::parse(args.iter().map(OsString::from), environment)
    }

    fn place(args: &[&str], environment: &Environment) -> (String, String) {
        match parse(args, environment) {
            Ok(Request::Serve(options)) => (
                options.place.socket.display().to_string(),
                options.place.token_file.display().to_string(),
            ),
            other => panic!("{other:?}"),
        }
    }

    fn at(socket: &str, token: &str) -> (String, String) {
        (socket.to_owned(), token.to_owned())
    }

    #[test]
    fn flags_come_before_variables_and_variables_before_defaults() {
        let set = "--set=runtime";
        let home = Environment {
            home: Some("/home/me".into()),
            ..Environment::default()
        };
        let in_home = "/home/me/.local/state/sandstack";
        assert_eq!(
            place(&["--set", "runtime"], &home),
            at(
                &format!("{in_home}/gateway.sock"),
                &format!("{in_home}/tokens/runtime.token")
            )
        );
        let relative = Environment {
            xdg_state_home: Some("state".into()),
            ..home.clone()
        };
        assert_eq!(place(&[set], &relative), place(&[set], &home));
        let xdg = Environment {
            xdg_state_home: Some("/xdg".into()),
            ..home.clone()
        };
        let expected = at(
            "/xdg/sandstack/gateway.sock",
            "/xdg/sandstack/tokens/runtime.token",
        );
        assert_eq!(place(&[set], &xdg), expected);
        let root = Environment {
            superuser: true,
            ..xdg.clone()
        };
        assert!(place(&[set], &root).0.starts_with("/var/lib/sandstack/"));
        let variables = Environment {
            state_dir: Some("/v".into()),
            socket: Some("/v.sock".into()),
            ..root
        };
        assert_eq!(
            place(&[set], &variables),
            at("/v.sock", "/v/tokens/runtime.token")
        );
        assert_eq!(
            place(
                &[
                    set,
                    "--state-dir=/f",
                    "--socket",
                    "/f.sock",
                    "--token-file",
                    "/t"
                ],
                &variables
            ),
            at("/f.sock", "/t")
        );
        assert_eq!(
            place(
                &[set, "--state-dir", "/f", "--socket="],
                &Environment::default()
            ),
            at("/f/gateway.sock", "/f/tokens/runtime.token")
        );
    }

    #[test]
    fn wrong_usage_is_named() {
        let none = Environment::default();
        assert_eq!(parse(&[], &none), Err(UsageError::NoSet));
        assert_eq!(parse(&["--set"], &none), Err(UsageError::NoValue("--set")));
        assert_eq!(
            parse(&["--set", "runtime"], &none),
            Err(UsageError::NoStateDir)
        );
        assert_eq!(
            parse(&["--st", "x"], &none),
            Err(UsageError::Unknown("--st".into()))
        );
        let error = parse(&["--set", "admin"], &none).unwrap_err().to_string();
        assert!(
            error.contains("\"admin\"") && error.contains("observability"),
            "{error}"
        );
    }
}
