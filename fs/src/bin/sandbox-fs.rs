//! `sandbox-fs`: a session's view at a path, without a gateway. For benches, conformance suites and
//! people who want one workspace on their own.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use sandstack_fs::{
    MountOptions, Recorder, SlowPool, TraceMode, Transport, Tree, View, ViewOptions, detached,
    mount_at, unmount, with_fusermount,
};
use sandstack_store::{Lease, LeaseId, Outcome, Owner, PublishOptions, Store, Table};

/// A workspace session's view at a path, without a gateway.
#[derive(Parser)]
#[command(name = "sandbox-fs", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Mounts a session's view. A session persists across unmounts.
    Mount(Mount),
    /// Lists the sessions of a store.
    Sessions(StoreArgs),
    /// Publishes what a session changed onto its stack, and ends the session.
    Publish(SessionArgs),
    /// Ends a session and gives up what it changed.
    Remove(SessionArgs),
}

#[derive(Args)]
struct StoreArgs {
    /// The store's directory; made if it is not there.
    #[arg(long, value_parser = absolute())]
    store: PathBuf,
}

#[derive(Args)]
struct SessionArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The session's name.
    #[arg(long)]
    session: String,
}

#[derive(Args)]
struct Mount {
    #[command(flatten)]
    session: SessionArgs,
    /// The directory that a new session begins with; default an empty one.
    #[arg(long, value_parser = absolute())]
    base: Option<PathBuf>,
    /// Begin a new session on the newest layer of this one's stack.
    #[arg(long, conflicts_with = "base")]
    beside: Option<String>,
    /// What is recorded: off, session, files or exact.
    #[arg(long, default_value = "files")]
    trace: TraceMode,
    /// Options as mount(8) has them: ro, dev, suid, and others that change nothing here.
    #[arg(short = 'o', value_delimiter = ',')]
    options: Vec<String>,
    /// How requests come from the kernel: auto, fuse or uring. auto is uring where this host allows it.
    #[arg(long, env = "SANDSTACK_TRANSPORT", default_value_t)]
    transport: Transport,
    /// Shown as the source in the mount table.
    #[arg(long, default_value = "sandstack")]
    source: String,
    /// Most bytes that the session may change.
    #[arg(long)]
    quota: Option<u64>,
    /// Return when the view is there, and serve it in the background. What goes wrong then is told
    /// in `sandbox-fs.log` in the store.
    #[arg(long)]
    background: bool,
    /// Where the process in the background says that the view is there.
    #[arg(long, hide = true)]
    ready: Option<i32>,
    /// Where the view is to be.
    #[arg(value_parser = absolute())]
    mountpoint: PathBuf,
}

/// A path that stays right wherever the process goes.
fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SANDSTACK_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let result = match Cli::parse().command {
        Subcommands::Mount(args) if args.background => in_background(&args),
        Subcommands::Mount(args) => mount(&args),
        Subcommands::Sessions(args) => sessions(&args),
        Subcommands::Publish(args) => publish(&args),
        Subcommands::Remove(args) => remove(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "sandbox-fs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn now_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Sessions by name: their lease.
fn names(store: &Store) -> Table {
    store.table("sandbox-fs")
}

fn find(store: &Store, name: &str) -> Result<Option<Lease>, Failure> {
    match names(store).get::<LeaseId>(name.as_bytes())? {
        None => Ok(None),
        Some(id) => Ok(Some(store.lease(id)?)),
    }
}

fn find_known(store: &Store, name: &str) -> Result<Lease, Failure> {
    find(store, name)?.ok_or_else(|| {
        format!("no session is called {name:?}; `sandbox-fs sessions` lists them").into()
    })
}

fn find_or_make(store: &Store, args: &Mount) -> Result<Lease, Failure> {
    let name = &args.session.session;
    if let Some(lease) = find(store, name)? {
        if args.base.is_some() || args.beside.is_some() {
            return Err(format!(
                "session {name:?} is there already; leave --base and --beside out"
            )
            .into());
        }
        return Ok(lease);
    }
    let stack = match &args.beside {
        Some(other) => store.stack(find_known(store, other)?.record().stack)?,
        None => {
            let empty = store.root().join("empty");
            let base = match &args.base {
                Some(base) => base,
                None => {
                    std::fs::create_dir_all(&empty)?;
                    &empty
                }
            };
            let imported = store.import(base, &mut |_| ControlFlow::Continue(()))?;
            store.create_stack(&imported, now_unix_ms())?
        }
    };
    let lease = stack.take_lease(None, name, args.quota, now_unix_ms())?;
    names(store).put(name.as_bytes(), &lease.id())?;
    Ok(lease)
}

fn mount_options(args: &Mount) -> MountOptions {
    let has = |option: &str| args.options.iter().any(|given| given == option);
    MountOptions {
        source: args.source.clone(),
        allow_other: !has("noallow_other"),
        suid: has("suid"),
        dev: has("dev"),
        read_only: has("ro"),
    }
}

fn mount(args: &Mount) -> Result<(), Failure> {
    let store = Store::open(&args.session.store.store)?;
    let lease = find_or_make(&store, args)?;
    let upper = Arc::new(store.open_upper(&lease)?);
    let tree = Arc::new(Tree::new(Arc::clone(&upper))?);
    let recorder = Recorder::begin(upper, &args.session.session, args.trace, Arc::default())?;
    let options = mount_options(args);
    // Before there is a mount that a signal would leave behind.
    let signals = catch_signals()?;
    let connection = connect(&options, &args.mountpoint)?;
    let view = View::serve(
        tree,
        recorder,
        connection,
        &SlowPool::new(),
        &ViewOptions {
            transport: args.transport,
            ..ViewOptions::default()
        },
    );
    let view = view.inspect_err(|_| {
        // Nobody will serve it.
        if let Err(error) = unmount(&args.mountpoint) {
            tracing::error!(%error, mountpoint = %args.mountpoint.display(), "unmounting failed");
        }
    })?;
    if let Some(descriptor) = args.ready {
        // SAFETY: the parent process opened this descriptor for this process alone.
        let mut ready = unsafe { File::from_raw_fd(descriptor) };
        // Whoever waits for the end of what the starter says is not to wait for this process.
        let log = File::options()
            .create(true)
            .append(true)
            .open(store.root().join("sandbox-fs.log"))?;
        rustix::stdio::dup2_stderr(&log)?;
        ready.write_all(b"1")?;
    }
    unmount_on_signal(signals, args.mountpoint.clone());
    view.join()?;
    view.tree().sync()?;
    store.persist()?;
    Ok(())
}

fn connect(options: &MountOptions, mountpoint: &Path) -> Result<OwnedFd, Failure> {
    match detached(options) {
        Ok(mounted) => {
            mount_at(mounted.mount.as_fd(), mountpoint).map_err(|error| {
                format!("{} cannot be mounted on: {error}", mountpoint.display())
            })?;
            Ok(mounted.connection)
        }
        // Not root: the set-uid helper may.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let options = MountOptions {
                allow_other: false,
                ..options.clone()
            };
            with_fusermount(&options, mountpoint)
                .map_err(|helper| format!("{error}; and {helper}").into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Has SIGINT and SIGTERM written to a pipe, one byte each.
fn catch_signals() -> Result<PipeReader, Failure> {
    let set = [libc::SIGINT, libc::SIGTERM];
    // SAFETY: the set is made by sigemptyset before it is used, and nothing else is touched.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigemptyset(&mut mask);
        set.iter().for_each(|signal| {
            libc::sigaddset(&mut mask, *signal);
        });
        mask
    };
    // A signalfd sees signals only while they are blocked in every thread; a handler that writes to
    // a pipe needs no such thing.
    let (reader, writer) = std::io::pipe()?;
    SIGNALLED.store(writer.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
    std::mem::forget(writer);
    // SAFETY: the handler only writes to a descriptor that stays open for the process's life.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_mask = mask;
        action.sa_flags = libc::SA_RESTART;
        for signal in set {
            if libc::sigaction(signal, &action, std::ptr::null_mut()) != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
        }
    }
    Ok(reader)
}

/// Unmounts at each signal that is caught, from a thread that serves nothing.
fn unmount_on_signal(mut signals: PipeReader, mountpoint: PathBuf) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while signals.read(&mut byte).is_ok_and(|count| count > 0) {
            if let Err(error) = unmount(&mountpoint) {
                tracing::error!(%error, mountpoint = %mountpoint.display(), "unmounting failed");
            }
        }
    });
}

static SIGNALLED: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);

extern "C" fn on_signal(_: i32) {
    let descriptor = SIGNALLED.load(std::sync::atomic::Ordering::Relaxed);
    // SAFETY: write(2) may be called in a signal handler, and the buffer is a constant.
    unsafe { libc::write(descriptor, b"1".as_ptr().cast(), 1) };
}

/// Starts this program again for the mount, and waits until the view is there.
fn in_background(args: &Mount) -> Result<(), Failure> {
    let (mut reader, writer) = std::io::pipe()?;
    let ready = rustix::io::dup(&writer)?;
    drop(writer);
    let mut command = Command::new(std::env::current_exe()?);
    let kept = std::env::args_os()
        .skip(1)
        .filter(|arg| arg != "--background");
    let (subcommand, rest): (Vec<_>, Vec<_>) = kept.enumerate().partition(|(index, _)| *index == 0);
    command.args(subcommand.into_iter().map(|(_, arg)| arg));
    command.arg("--ready").arg(ready.as_raw_fd().to_string());
    command.args(rest.into_iter().map(|(_, arg)| arg));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: setsid(2) may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    drop(ready);
    let mut byte = [0];
    if reader.read(&mut byte)? == 1 {
        return Ok(());
    }
    let status = child.wait()?;
    Err(format!(
        "the view at {} could not be served ({status})",
        args.mountpoint.display()
    )
    .into())
}

fn sessions(args: &StoreArgs) -> Result<(), Failure> {
    let store = Store::open(&args.store)?;
    let mut rows = Vec::new();
    names(&store).scan(b"", |name, id: LeaseId| {
        rows.push((String::from_utf8_lossy(name).into_owned(), id));
        true
    })?;
    let mut out = std::io::stdout().lock();
    for (name, id) in rows {
        let lease = store.lease(id)?;
        let upper = store.open_upper(&lease)?;
        let changed = upper.changes()?.len();
        let bytes = upper.content_bytes();
        writeln!(
            out,
            "{name}\tbase {}\t{changed} changed\t{bytes} bytes",
            lease.record().base
        )?;
    }
    Ok(())
}

fn publish(args: &SessionArgs) -> Result<(), Failure> {
    let store = Store::open(&args.store.store)?;
    let lease = find_known(&store, &args.session)?;
    let upper = store.open_upper(&lease)?;
    let options = PublishOptions {
        session_name: Some(args.session.clone()),
        ..PublishOptions::new(Owner::Session(args.session.clone()), now_unix_ms())
    };
    let report = store
        .stack(lease.record().stack)?
        .publish(&upper, &options, &mut |_| {})?;
    let mut out = std::io::stdout().lock();
    match report.outcome {
        Outcome::Published(layer) => writeln!(
            out,
            "published {} ({} paths)",
            layer.id, report.changed_paths
        )?,
        Outcome::NoChange => writeln!(out, "no change")?,
        Outcome::DryRun | Outcome::StaleReads => {}
        Outcome::Conflict => {
            for conflict in &report.conflicts {
                writeln!(out, "{:?}\t{}", conflict.kind, conflict.path)?;
            }
            return Err(format!(
                "{} path(s) conflict; nothing was published",
                report.conflicts.len()
            )
            .into());
        }
    }
    drop(upper);
    end(&store, &args.session, &lease)
}

fn remove(args: &SessionArgs) -> Result<(), Failure> {
    let store = Store::open(&args.store.store)?;
    let lease = find_known(&store, &args.session)?;
    end(&store, &args.session, &lease)
}

fn end(store: &Store, name: &str, lease: &Lease) -> Result<(), Failure> {
    names(store).remove(name.as_bytes())?;
    store.release(lease.id())?;
    Ok(store.persist()?)
}
