//! Configuration: what the flags and the file hold.
//!
//! The library never reads the environment; the binary hands over what it found.

use std::path::{Path, PathBuf};

use sandstack_fs::Transport;
use serde::Deserialize;

pub use crate::otlp::OtlpSettings;

/// Everything that `serve` needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where everything durable lies.
    pub state_dir: PathBuf,
    /// Where the gateway listens; default `gateway.sock` in the state directory.
    pub socket: PathBuf,
    /// The holder's program, for local sandboxes.
    pub holder_program: PathBuf,
    /// The holder's statically linked program, for containers of any or no libc; `None` means that
    /// it was not installed.
    pub static_holder_program: Option<PathBuf>,
    /// Limits and defaults.
    pub settings: Settings,
    /// What is known of the user who runs the gateway.
    pub host: Host,
}

/// The user who runs the gateway.
#[derive(Clone, Debug)]
pub struct Host {
    /// The home directory, which sessions see a private one in place of.
    pub home: Option<PathBuf>,
    /// The login name.
    pub user: String,
    /// The search path for programs.
    pub path: Vec<u8>,
}

/// The configuration file (TOML). Unknown keys are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Limits.
    pub limits: Limits,
    /// The views of sessions.
    pub views: ViewSettings,
    /// The local provider.
    pub local: LocalSettings,
    /// The Docker provider.
    pub docker: DockerSettings,
    /// Where spans are sent.
    pub otlp: OtlpSettings,
}

/// Limits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Requests that are worked on at once; more wait in line. Default 256.
    pub concurrent_requests: usize,
    /// Requests that wait in line; more are answered `busy`. Default 4096.
    pub waiting_requests: usize,
    /// Bytes of output kept of one command and stream: a quarter from its beginning, the rest from
    /// its end. Default 64 MiB.
    pub transcript_bytes: u64,
    /// Ended commands kept for each sandbox, newest first. Default 1000.
    pub ended_commands: usize,
    /// Events kept. Default 100,000.
    pub events: u64,
    /// Samples kept of what commands use, of all sandboxes. Default 100,000.
    pub resource_samples: u64,
    /// Traces kept. Default 2000.
    pub traces: u64,
    /// Access records kept for each sandbox, in rows; the oldest sessions' go first. Default 20,000,000.
    pub access_rows: u64,
    /// Files that a project may have. Default 4,000,000.
    pub base_files: u64,
    /// Processes and threads of a sandbox that does not say (`resources.pids_max`). Where the gateway can
    /// make control groups it is one limit of the whole sandbox, else one of each user of each session,
    /// and then none of root. Default 8192.
    pub sandbox_processes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            concurrent_requests: 256,
            waiting_requests: 4096,
            transcript_bytes: 64 << 20,
            ended_commands: 1000,
            events: 100_000,
            resource_samples: 100_000,
            traces: 2000,
            access_rows: 20_000_000,
            base_files: 4_000_000,
            // More than the widest builds have, and a quarter of what the kernel allows a small host.
            sandbox_processes: 8192,
        }
    }
}

/// The views of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewSettings {
    /// How the kernel's requests come: `uring` (fastest, where the host allows it), `fuse` (over
    /// `/dev/fuse`: what runs in a session goes on when the gateway is killed), or `auto`: `uring` where
    /// it can be had. Default `auto`.
    transport: Option<TransportName>,
    /// Whether the view of a new session is walked through in the background, if the session does not
    /// say: it costs a tenth of a second of a processor and 27 MB of the kernel's memory for 20,000
    /// files, and look-ups of what is there are not recorded. Default false.
    pub background_walk: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TransportName {
    Auto,
    Fuse,
    Uring,
}

impl ViewSettings {
    /// How the kernel's requests come.
    pub fn transport(&self) -> Transport {
        match self.transport {
            None | Some(TransportName::Auto) => Transport::Auto,
            Some(TransportName::Fuse) => Transport::Fuse,
            Some(TransportName::Uring) => Transport::Uring,
        }
    }
}

/// The local provider.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalSettings {
    /// Paths below the home directory that sessions see, read-only, in their private home. Default:
    /// where toolchains are usually installed.
    pub expose_home: Vec<PathBuf>,
    /// Further paths that sessions must not see.
    pub hide: Vec<PathBuf>,
}

impl Default for LocalSettings {
    fn default() -> Self {
        let expose = [
            ".bun/bin",
            ".cargo/bin",
            ".deno/bin",
            ".local/bin",
            ".local/share/uv",
            ".nvm",
            ".pyenv",
            ".rbenv",
            ".rustup",
            ".sdkman",
            ".volta",
            "go/bin",
        ];
        LocalSettings {
            expose_home: expose.map(PathBuf::from).to_vec(),
            hide: Vec::new(),
        }
    }
}

/// The Docker provider.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DockerSettings {
    /// The engine's socket.
    pub socket: PathBuf,
}

impl Default for DockerSettings {
    fn default() -> Self {
        DockerSettings {
            socket: PathBuf::from("/var/run/docker.sock"),
        }
    }
}

impl Settings {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// A sentence that names the line and the key.
    pub fn parse(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }
}

impl Config {
    /// The token file of an authority, one a line of `tokens/`.
    pub fn token_file(&self, authority: sandstack_api::Authority) -> PathBuf {
        token_file(&self.state_dir, authority)
    }

    pub(crate) fn store_dir(&self) -> PathBuf {
        self.state_dir.join("store")
    }

    pub(crate) fn sandboxes_dir(&self) -> PathBuf {
        self.state_dir.join("sandboxes")
    }
}

/// The token file of an authority in a state directory.
pub fn token_file(state_dir: &Path, authority: sandstack_api::Authority) -> PathBuf {
    state_dir.join("tokens").join(format!("{authority}.token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let error = Settings::parse("[limits]\nconcurent_requests = 3\n").unwrap_err();
        assert!(error.contains("concurent_requests"), "{error}");
        let settings = Settings::parse("[limits]\nconcurrent_requests = 3\n").unwrap();
        assert_eq!(settings.limits.concurrent_requests, 3);
        assert_eq!(
            settings.limits.waiting_requests,
            Limits::default().waiting_requests
        );
    }
}
