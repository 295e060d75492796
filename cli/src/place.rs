//! Where the gateway is and which token calls it.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use sandstack_api::Authority;
use sandstack_api::client::{CallError, Client};

use crate::Environment;
use crate::failure::Failure;
use crate::grammar::{Flags, global};

/// What the command line says about the place; `None` leaves it to variables and defaults.
#[derive(Default)]
pub(crate) struct Asked {
    /// `--socket`.
    pub(crate) socket: Option<OsString>,
    /// `--token-file`.
    pub(crate) token_file: Option<OsString>,
    /// `--state-dir`.
    pub(crate) state_dir: Option<OsString>,
}

/// A client for the gateway, with the token of `authority`.
///
/// # Errors
/// [`Failure::NoStateDir`] if neither flags nor variables lead anywhere; [`Failure::Token`] if the
/// token cannot be read; [`CallError::Unreachable`] if there is neither a token nor a socket where
/// both are expected, since it is then the gateway that is missing.
pub(crate) fn client(
    asked: Asked,
    authority: Authority,
    environment: &Environment,
) -> Result<Client, Failure> {
    let variables = &environment.variables;
    let state_dir = || -> Result<PathBuf, Failure> {
        if let Some(dir) = asked.state_dir.as_ref().or(variables.state_dir.as_ref()) {
            return Ok(PathBuf::from(dir));
        }
        if environment.superuser {
            return Ok(PathBuf::from("/var/lib/sandstack"));
        }
        // The XDG rules tell programs to ignore a relative path.
        let xdg = variables.xdg_state_home.as_deref().map(Path::new);
        if let Some(dir) = xdg.filter(|dir| dir.is_absolute()) {
            return Ok(dir.join("sandstack"));
        }
        match &variables.home {
            Some(home) => Ok(Path::new(home).join(".local/state/sandstack")),
            None => Err(Failure::NoStateDir),
        }
    };
    let socket = match asked.socket.as_ref().or(variables.socket.as_ref()) {
        Some(path) => PathBuf::from(path),
        None => state_dir()?.join("gateway.sock"),
    };
    let named = asked.token_file.as_ref().or(variables.token_file.as_ref());
    let token_file = match named {
        Some(path) => PathBuf::from(path),
        None => state_dir()?.join(format!("tokens/{authority}.token")),
    };
    match read_token(&token_file) {
        Ok(token) => Ok(Client::new(socket, token)),
        // The first start of a gateway writes the default token files: without one, and without
        // the socket, none has ever started here.
        Err(source)
            if named.is_none() && source.kind() == ErrorKind::NotFound && !socket.exists() =>
        {
            Err(Failure::Call(CallError::Unreachable { socket, source }))
        }
        Err(source) => Err(Failure::Token {
            authority,
            path: token_file,
            source,
        }),
    }
}

fn read_token(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    // What a header can carry; anything else was never a token.
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "the file holds no token",
        ));
    }
    Ok(token.to_owned())
}

/// Reads the three flags; one that is set to nothing counts as not given.
pub(crate) fn asked(flags: Flags<'_>) -> Asked {
    let path = |id: &str| flags.value(id).filter(|path| !path.is_empty());
    Asked {
        socket: path(global::SOCKET),
        token_file: path(global::TOKEN_FILE),
        state_dir: path(global::STATE_DIR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Output, Variables};

    fn environment(variables: Variables, superuser: bool) -> Environment {
        let output = || Output {
            sink: Box::new(io::sink()),
            terminal: None,
        };
        Environment {
            args: Vec::new(),
            variables,
            superuser,
            stdin: Box::new(io::empty()),
            stdout: output(),
            stderr: output(),
        }
    }

    /// The socket that is called when nothing but `variables` is known.
    fn socket(variables: Variables, superuser: bool) -> String {
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "token").unwrap();
        let asked = Asked {
            token_file: Some(token.path().into()),
            ..Asked::default()
        };
        let environment = environment(variables, superuser);
        let client = client(asked, Authority::Runtime, &environment).unwrap();
        client.socket().display().to_string()
    }

    #[test]
    fn defaults_are_the_systems_for_root_and_the_users_for_others() {
        let home = Variables {
            home: Some("/home/me".into()),
            ..Variables::default()
        };
        let xdg = |dir: &str| Variables {
            xdg_state_home: Some(dir.into()),
            ..home.clone()
        };
        let in_home = "/home/me/.local/state/sandstack/gateway.sock";
        assert_eq!(socket(home.clone(), false), in_home);
        assert_eq!(socket(xdg("relative"), false), in_home);
        assert_eq!(socket(xdg("/xdg"), false), "/xdg/sandstack/gateway.sock");
        assert_eq!(socket(xdg("/xdg"), true), "/var/lib/sandstack/gateway.sock");
        let state = Variables {
            state_dir: Some("/state".into()),
            ..xdg("/xdg")
        };
        assert_eq!(socket(state, true), "/state/gateway.sock");
    }

    #[test]
    fn each_authority_has_its_own_token() {
        let variables = Variables {
            socket: Some("/dev/null".into()),
            home: Some("/nowhere".into()),
            ..Variables::default()
        };
        for authority in Authority::ALL {
            let environment = environment(variables.clone(), false);
            let Err(failure) = client(Asked::default(), authority, &environment) else {
                panic!("there is no such token");
            };
            let path = format!("/nowhere/.local/state/sandstack/tokens/{authority}.token");
            assert!(failure.to_string().contains(&path), "{failure}");
        }
    }
}
