//! `sandbox-gateway`: the gateway's program.
//!
//! `serve` is two processes: this one, the *keeper*, which only starts the other again when it
//! dies, and the *worker*, which does everything else.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use sandstack_api::Authority;
use sandstack_gateway::Config;
use sandstack_gateway::config::{Host, Settings, token_file};
use tokio::signal::unix::{SignalKind, signal};

/// The gateway of Sandstack: sandboxes, workspace sessions and commands behind one socket.
#[derive(Parser)]
#[command(name = "sandbox-gateway", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Serves until it is told to stop (SIGINT or SIGTERM). What runs in sandboxes goes on.
    Serve(Serve),
    /// Prints the path of an authority's token file.
    Token {
        /// management, runtime or observability.
        authority: Authority,
        /// Where everything durable lies; default as of `serve`.
        #[arg(long)]
        state_dir: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Serve {
    /// Where everything durable lies; default $SANDSTACK_STATE_DIR, else /var/lib/sandstack for root, else
    /// $XDG_STATE_HOME/sandstack.
    #[arg(long)]
    state_dir: Option<PathBuf>,
    /// The unix socket to listen on; default gateway.sock in the state directory.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// A configuration file (TOML).
    #[arg(long)]
    config: Option<PathBuf>,
    /// The holder's program; default sandbox-holder beside this one.
    #[arg(long)]
    holder: Option<PathBuf>,
    /// The holder's statically linked program, for containers; default sandbox-holder-static beside this one.
    #[arg(long)]
    static_holder: Option<PathBuf>,
    /// Do the work in this process; the keeper starts the worker so.
    #[arg(long, hide = true)]
    worker: bool,
}

/// Pauses before a worker that died is started again: the first, and the longest.
const RESTART_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// A worker that lived this long had started well; the next pause is the first again.
const GOOD_LIFE: Duration = Duration::from_secs(30);
/// A worker's exit code that another start would not change.
const HOPELESS: u8 = 2;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SANDSTACK_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match Cli::parse().command {
        Subcommands::Token {
            authority,
            state_dir,
        } => match state_dir.map_or_else(default_state_dir, Ok) {
            Ok(dir) => {
                // A closed standard output is nobody's loss.
                let _ = writeln!(
                    std::io::stdout(),
                    "{}",
                    token_file(&dir, authority).display()
                );
                ExitCode::SUCCESS
            }
            Err(error) => say(&error),
        },
        Subcommands::Serve(args) if args.worker => work(&args),
        Subcommands::Serve(_) => keep(),
    }
}

fn say(error: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "sandbox-gateway: {error}");
    ExitCode::from(HOPELESS)
}

fn default_state_dir() -> Result<PathBuf, String> {
    if let Some(dir) = std::env::var_os("SANDSTACK_STATE_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/sandstack".into());
    }
    if let Some(dir) = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()) {
        return Ok(Path::new(&dir).join("sandstack"));
    }
    let home = std::env::home_dir().ok_or("there is no home directory; give --state-dir")?;
    Ok(home.join(".local/state/sandstack"))
}

/// Runs the worker, and again when it dies, until it ends by itself.
fn keep() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return say(&format!("no runtime: {error}")),
    };
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = match (
            signal(SignalKind::interrupt()),
            signal(SignalKind::terminate()),
        ) {
            (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
            (Err(error), _) | (_, Err(error)) => {
                return say(&format!("signals cannot be handled: {error}"));
            }
        };
        let mut pause = RESTART_PAUSES.0;
        loop {
            let begun = Instant::now();
            let mut worker = match start_worker() {
                Ok(worker) => worker,
                Err(error) => return say(&format!("the worker cannot be started: {error}")),
            };
            let mut stopping = false;
            let status = loop {
                tokio::select! {
                    status = worker.wait() => break status,
                    _ = interrupt.recv() => stopping = true,
                    _ = terminate.recv() => stopping = true,
                }
                if let Some(pid) = worker
                    .id()
                    .and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
                {
                    // Gone already: then its end is awaited all the same.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
            };
            let status = match status {
                Ok(status) => status,
                Err(error) => return say(&format!("the worker cannot be waited for: {error}")),
            };
            if stopping || !died(status) {
                return ExitCode::from(status.code().unwrap_or(1) as u8);
            }
            if begun.elapsed() > GOOD_LIFE {
                pause = RESTART_PAUSES.0;
            }
            tracing::error!(%status, ?pause, "the worker died; starting another");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RESTART_PAUSES.1);
        }
    })
}

/// Whether a worker did not end by itself: a signal or a panic ended it.
fn died(status: ExitStatus) -> bool {
    status.signal().is_some() || status.code() == Some(101)
}

fn start_worker() -> std::io::Result<tokio::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--worker");
    // A keeper that is killed takes its worker with it: two of them would fight for the state.
    let keeper = rustix::process::getpid();
    // SAFETY: prctl(2) and getppid(2) may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
            // It may have gone before the line above.
            if rustix::process::getppid() != Some(keeper) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
    tokio::process::Command::from(command).spawn()
}

fn work(args: &Serve) -> ExitCode {
    let config = match configure(args) {
        Ok(config) => config,
        Err(error) => return say(&error),
    };
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("gateway")
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return say(&format!("no runtime: {error}")),
    };
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        // ^C reaches the whole group; the keeper passes it on as SIGTERM.
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        sandstack_gateway::serve(config, stop).await
    });
    // Requests that still wait (a command's end) need not be waited for: their answers are lost
    // with the connection, and what they wait for goes on.
    runtime.shutdown_timeout(Duration::from_secs(2));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => say(&error),
    }
}

fn configure(args: &Serve) -> Result<Config, String> {
    let state_dir = args.state_dir.clone().map_or_else(default_state_dir, Ok)?;
    let state_dir = std::path::absolute(&state_dir).map_err(|error| {
        format!(
            "the state directory {} cannot be used: {error}",
            state_dir.display()
        )
    })?;
    let settings = match &args.config {
        None => Settings::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                format!(
                    "the configuration {} cannot be read: {error}",
                    path.display()
                )
            })?;
            Settings::parse(&text)
                .map_err(|error| format!("the configuration {}: {error}", path.display()))?
        }
    };
    let beside = |name: &str| -> Option<PathBuf> {
        let path = std::env::current_exe().ok()?.parent()?.join(name);
        path.exists().then_some(path)
    };
    let holder_program = match args.holder.clone().or_else(|| beside("sandbox-holder")) {
        Some(program) => program,
        None => {
            return Err("sandbox-holder is not beside sandbox-gateway; give --holder".to_owned());
        }
    };
    Ok(Config {
        socket: match &args.socket {
            Some(socket) => std::path::absolute(socket).map_err(|error| error.to_string())?,
            None => state_dir.join("gateway.sock"),
        },
        holder_program: std::path::absolute(&holder_program).map_err(|error| error.to_string())?,
        static_holder_program: args
            .static_holder
            .clone()
            .or_else(|| beside("sandbox-holder-static")),
        settings,
        host: Host {
            home: std::env::home_dir().filter(|home| home.is_absolute() && home.parent().is_some()),
            user: std::env::var_os("USER")
                .and_then(|user| user.into_string().ok())
                .unwrap_or_else(default_user),
            path: std::env::var_os("PATH")
                .map(OsString::into_vec)
                .unwrap_or_else(|| DEFAULT_PATH.to_vec()),
        },
        state_dir,
    })
}

/// The search path of a gateway that was given none.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn default_user() -> String {
    if rustix::process::geteuid().is_root() {
        "root".to_owned()
    } else {
        "user".to_owned()
    }
}

/// Packs, uppers and connections each hold descriptors: as many as the host allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}
