//! Providers: where the sessions of a sandbox run.
//!
//! A provider starts and stops the holder of a sandbox and says what a session's root looks like
//! there. Everything above it (leases, views, commands) is the same for all.

mod docker;
mod local;

use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use sandstack_api::management::Resources;
use sandstack_api::{SandboxId, SessionId};
use sandstack_holder::protocol::RootSpec;

pub(crate) use docker::{Docker, Happening};
pub(crate) use local::Local;

use crate::failure::Result;

/// What a provider is told of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) id: SandboxId,
    /// The sandbox's directory on the gateway's host.
    pub(crate) dir: PathBuf,
    pub(crate) image: Option<String>,
    pub(crate) resources: Resources,
    /// What an earlier start returned.
    pub(crate) started: Started,
}

/// What there is of a sandbox that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Started {
    /// The holder's process, by its pid on the host.
    pub(crate) holder_pid: Option<u32>,
    /// The container.
    pub(crate) container_id: Option<String>,
    /// The image's environment.
    pub(crate) image_env: Vec<(Vec<u8>, Vec<u8>)>,
}

/// How it stands with what was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Runs,
    /// Somebody stopped it for a while; the sentence says how it goes on.
    StandsStill(String),
    /// It is gone, for this reason; another can be started.
    Gone(String),
    /// Who would know does not answer.
    Unknown(String),
}

/// Where the sessions of a sandbox run.
pub(crate) trait Provider: Send + Sync {
    /// Starts the holder. When it returns the socket is there.
    fn start<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<Started>>;

    /// How it stands with what was started.
    fn check<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Standing>;

    /// Sets going what stands still; nothing, if it does not.
    fn rouse<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<()>>;

    /// Ends the holder and everything that it runs. Again and again is no error.
    fn stop<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<()>>;

    /// What a session sees beside its view.
    fn root(&self, spec: &Spec, session: &SessionId) -> RootSpec;

    /// The environment that every command begins with.
    fn environment(&self, spec: &Spec) -> Vec<(Vec<u8>, Vec<u8>)>;

    /// Where a path below the sandbox's directory is for the holder.
    fn inside(&self, spec: &Spec, path: &Path) -> PathBuf;
}

/// The holder's socket, as the gateway finds it.
pub(crate) fn socket(spec: &Spec) -> PathBuf {
    spec.dir.join("holder.sock")
}

/// The holder's own directory.
pub(crate) fn run_dir(spec: &Spec) -> PathBuf {
    spec.dir.join("run")
}

/// The directory of a session's private files: home and temporary ones.
pub(crate) fn session_dir(dir: &Path, session: &SessionId) -> PathBuf {
    dir.join("sessions").join(session.as_ref())
}

/// The directory of a command's transcript.
pub(crate) fn command_dir(dir: &Path, command: &sandstack_api::CommandId) -> PathBuf {
    dir.join("commands").join(command.as_ref())
}
