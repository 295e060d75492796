//! The Docker provider: one unprivileged container a sandbox, from a local image.
//!
//! The container runs nothing but the holder, which is one static program and so runs in images of
//! any libc or none. No capability is added. Docker's default seccomp profile refuses `unshare` and
//! `mount`, so a profile of ours is shipped (`seccomp.json`): it refuses what no sandbox needs and
//! leaves the holder what it makes sessions with; the holder's own, stricter filter holds every
//! command. Without masked paths each session can mount a `/proc` of its own (the kernel refuses one
//! that would show more than there is), in which the holder masks again what Docker masked.
//!
//! Containers are labelled with the gateway's instance and the sandbox, so that a restart finds its
//! own and removes what belongs to nobody.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bollard::Docker as Engine;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, EventsOptionsBuilder, InspectContainerOptions,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt};
use sandstack_api::{ErrorCode, SandboxId, SessionId};
use sandstack_holder::Bytes;
use sandstack_holder::protocol::{Bind, RootSpec};
use sandstack_store::Digest;

use super::{Provider, Spec, Standing, Started, session_dir, socket};
use crate::config::Config;
use crate::failure::{Failure, Result};

/// The sandbox's directory, inside the container.
const INSIDE: &str = "/.sandstack";
/// The holder's program, inside the container.
const HOLDER: &str = "/.sandstack-holder";
/// The home directory inside sessions: root's, by convention of most images.
const HOME: &str = "/root";
/// Label with the gateway's instance: a digest of its state directory.
const LABEL_INSTANCE: &str = "sandstack.instance";
/// Label with the sandbox.
const LABEL_SANDBOX: &str = "sandstack.sandbox";
/// How long the holder may take to make its socket in a container that has started.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// How long one call to the engine may take.
const CALL_TIMEOUT_S: u64 = 120;
/// The seccomp profile of the container.
const SECCOMP: &str = include_str!("seccomp.json");
/// The search path of images that do not say.
const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What can happen to a container that its holder does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    Paused,
    WentOn,
    Ended,
    OutOfMemory,
}

pub(crate) struct Docker {
    engine_socket: PathBuf,
    holder_program: Option<PathBuf>,
    instance: String,
    /// Processes of a sandbox that does not say.
    processes: u64,
}

impl Docker {
    pub(crate) fn new(config: &Config) -> Self {
        let state = config.state_dir.as_os_str().as_encoded_bytes();
        Docker {
            engine_socket: config.settings.docker.socket.clone(),
            holder_program: config.static_holder_program.clone(),
            instance: Digest::of(state).to_string()[..16].to_owned(),
            processes: config.settings.limits.sandbox_processes,
        }
    }

    fn engine(&self) -> Result<Engine> {
        let path = self.engine_socket.to_string_lossy();
        Engine::connect_with_unix(&path, CALL_TIMEOUT_S, bollard::API_DEFAULT_VERSION).map_err(|error| {
            Failure::new(
                ErrorCode::Unavailable,
                format!("Docker does not answer on {path}: {error}; start it, or leave `image` out for a local sandbox"),
            )
            .caused_by(error)
        })
    }

    async fn create(&self, spec: &Spec) -> Result<Started> {
        let engine = self.engine()?;
        let engine = engine.negotiate_version().await.map_err(|error| {
            Failure::new(
                ErrorCode::Unavailable,
                format!(
                    "Docker does not answer on {}: {error}; start it, or leave `image` out for a local sandbox",
                    self.engine_socket.display()
                ),
            )
            .caused_by(error)
        })?;
        let holder = self.holder_program.as_ref().ok_or_else(|| {
            Failure::new(
                ErrorCode::Unavailable,
                "the static holder for containers is not installed; `make holder-static` builds it",
            )
        })?;
        let image = spec.image.as_deref().unwrap_or_default();
        let found = engine.inspect_image(image).await.map_err(|error| match status(&error) {
            Some(404) => Failure::new(
                ErrorCode::NotFound,
                format!("there is no local image {image:?}; pull or build it first (`docker images` lists them)"),
            ),
            _ => docker_failure("examining the image", error),
        })?;
        let id = match self.find(&engine, &spec.id).await? {
            Some(id) => id,
            None => {
                let name = format!("sandstack-{}", spec.id);
                let options = CreateContainerOptionsBuilder::default().name(&name).build();
                let created = engine
                    .create_container(Some(options), self.container(spec, holder, image))
                    .await
                    .map_err(|error| docker_failure("making the container", error))?;
                created.id
            }
        };
        engine
            .start_container(&id, None::<StartContainerOptions>)
            .await
            .map_err(|error| docker_failure("starting the container", error))?;
        self.await_socket(&engine, spec, &id).await?;
        let image_env = found
            .config
            .and_then(|config| config.env)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|pair| {
                pair.split_once('=')
                    .map(|(key, value)| (key.into(), value.into()))
            })
            .collect();
        Ok(Started {
            holder_pid: None,
            container_id: Some(id),
            image_env,
        })
    }

    fn container(&self, spec: &Spec, holder: &Path, image: &str) -> ContainerCreateBody {
        let bind = |source: &Path, target: &str, read_only: bool| Mount {
            typ: Some(MountType::BIND),
            source: Some(source.to_string_lossy().into_owned()),
            target: Some(target.to_owned()),
            read_only: Some(read_only),
            ..Mount::default()
        };
        let mut security = vec![format!("seccomp={SECCOMP}")];
        if apparmor_is_on() {
            // Docker's AppArmor profile refuses every mount.
            security.push("apparmor=unconfined".to_owned());
        }
        let labels = HashMap::from([
            (LABEL_INSTANCE.to_owned(), self.instance.clone()),
            (LABEL_SANDBOX.to_owned(), spec.id.to_string()),
            (
                "sandstack.version".to_owned(),
                env!("CARGO_PKG_VERSION").to_owned(),
            ),
        ]);
        let words = [HOLDER, "serve", "--socket"].map(str::to_owned);
        let mut entrypoint = words.to_vec();
        entrypoint.push(format!("{INSIDE}/holder.sock"));
        entrypoint.extend([
            "--run-dir".to_owned(),
            format!("{INSIDE}/run"),
            "--sandbox-id".to_owned(),
        ]);
        entrypoint.push(spec.id.to_string());
        ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(entrypoint),
            cmd: Some(Vec::new()),
            user: Some("0:0".to_owned()),
            working_dir: Some("/".to_owned()),
            labels: Some(labels),
            host_config: Some(HostConfig {
                mounts: Some(vec![
                    bind(&spec.dir, INSIDE, false),
                    bind(holder, HOLDER, true),
                ]),
                security_opt: Some(security),
                masked_paths: Some(Vec::new()),
                readonly_paths: Some(Vec::new()),
                memory: spec.resources.memory_bytes.map(|bytes| bytes as i64),
                // Without it Docker allows as much swap beside it.
                memory_swap: spec.resources.memory_bytes.map(|bytes| bytes as i64),
                nano_cpus: spec.resources.cpus.map(|cpus| (cpus * 1e9) as i64),
                pids_limit: Some(spec.resources.pids_max.unwrap_or(self.processes) as i64),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    /// The container of a sandbox, if it is there.
    async fn find(&self, engine: &Engine, sandbox: &SandboxId) -> Result<Option<String>> {
        let filters = HashMap::from([(
            "label".to_owned(),
            vec![
                format!("{LABEL_INSTANCE}={}", self.instance),
                format!("{LABEL_SANDBOX}={sandbox}"),
            ],
        )]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        let found = engine
            .list_containers(Some(options))
            .await
            .map_err(|error| docker_failure("listing containers", error))?;
        Ok(found.into_iter().find_map(|container| container.id))
    }

    async fn await_socket(&self, engine: &Engine, spec: &Spec, id: &str) -> Result<()> {
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket(spec)).is_err() {
            let standing = self.standing(engine, id).await;
            if begun.elapsed() > START_DEADLINE || standing != Standing::Runs {
                let reason = match standing {
                    Standing::Runs => "it does not answer".to_owned(),
                    Standing::StandsStill(reason)
                    | Standing::Gone(reason)
                    | Standing::Unknown(reason) => reason,
                };
                return Err(Failure::new(
                    ErrorCode::Unavailable,
                    format!(
                        "the holder did not start in container {id}: {reason}; `docker logs {id}` may say more"
                    ),
                ));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// How it stands with a container.
    async fn standing(&self, engine: &Engine, id: &str) -> Standing {
        let found = engine
            .inspect_container(id, None::<InspectContainerOptions>)
            .await;
        let state = match found {
            Ok(found) => found.state.unwrap_or_default(),
            Err(error) if status(&error) == Some(404) => {
                return Standing::Gone(format!("container {id} is gone"));
            }
            Err(error) => {
                return Standing::Unknown(format!("container {id} cannot be examined: {error}"));
            }
        };
        if state.paused == Some(true) {
            return Standing::StandsStill(format!(
                "container {id} is paused; `docker unpause {id}` lets it go on"
            ));
        }
        if state.running == Some(true) {
            return Standing::Runs;
        }
        let killed = if state.oom_killed == Some(true) {
            ", killed for lack of memory"
        } else {
            ""
        };
        Standing::Gone(format!(
            "container {id} ended with code {}{killed}",
            state.exit_code.unwrap_or_default()
        ))
    }

    /// What happens to this gateway's containers from a time on, in Unix seconds: the sandbox, and what
    /// happened.
    pub(crate) fn happenings(
        &self,
        since: u64,
    ) -> Result<impl Stream<Item = Result<(String, Happening), bollard::errors::Error>> + use<>>
    {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            (
                "label".to_owned(),
                vec![format!("{LABEL_INSTANCE}={}", self.instance)],
            ),
        ]);
        let options = EventsOptionsBuilder::default()
            .since(&since.to_string())
            .filters(&filters)
            .build();
        let events = self.engine()?.events(Some(options));
        Ok(events.filter_map(|event| async move {
            let event = match event {
                Ok(event) => event,
                Err(error) => return Some(Err(error)),
            };
            let happening = match event.action.as_deref()? {
                "pause" => Happening::Paused,
                "unpause" => Happening::WentOn,
                "die" | "destroy" => Happening::Ended,
                "oom" => Happening::OutOfMemory,
                _ => return None,
            };
            let sandbox = event.actor?.attributes?.remove(LABEL_SANDBOX)?;
            Some(Ok((sandbox, happening)))
        }))
    }

    /// What the engine is.
    pub(crate) async fn version(&self) -> Result<bollard::models::SystemVersion, String> {
        let engine = self.engine().map_err(|error| error.to_string())?;
        engine.version().await.map_err(|error| error.to_string())
    }

    /// Whether the engine answers.
    pub(crate) async fn answers(&self) -> bool {
        match self.engine() {
            Ok(engine) => engine.ping().await.is_ok(),
            Err(_) => false,
        }
    }

    async fn remove(&self, engine: &Engine, id: &str) -> Result<()> {
        let options = RemoveContainerOptionsBuilder::default()
            .force(true)
            .v(true)
            .build();
        match engine.remove_container(id, Some(options)).await {
            Ok(()) => Ok(()),
            Err(error) if status(&error) == Some(404) => Ok(()),
            // Somebody else removes it at this moment.
            Err(error) if status(&error) == Some(409) => self.await_removal(engine, id).await,
            Err(error) => Err(docker_failure("removing the container", error)),
        }
    }

    /// Until a container is not there any more: while it is being removed its name is taken, and it can
    /// be found and not started.
    async fn await_removal(&self, engine: &Engine, id: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            let found = engine
                .inspect_container(id, None::<InspectContainerOptions>)
                .await;
            match found {
                Err(error) if status(&error) == Some(404) => return Ok(()),
                Err(error) => return Err(docker_failure("removing the container", error)),
                Ok(_) if begun.elapsed() > START_DEADLINE => {
                    return Err(Failure::new(
                        ErrorCode::Unavailable,
                        format!(
                            "container {id} is being removed by somebody else, and that does not end"
                        ),
                    ));
                }
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Removes containers of this gateway whose sandbox is not known any more.
    pub(crate) async fn remove_unowned(&self, known: &[SandboxId]) {
        if !self.engine_socket.exists() {
            return;
        }
        let Ok(engine) = self.engine() else { return };
        let filters = HashMap::from([(
            "label".to_owned(),
            vec![format!("{LABEL_INSTANCE}={}", self.instance)],
        )]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        let found = match engine.list_containers(Some(options)).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "Docker was not asked for containers of nobody");
                return;
            }
        };
        for container in found {
            let sandbox = container
                .labels
                .as_ref()
                .and_then(|labels| labels.get(LABEL_SANDBOX).cloned());
            let owned =
                sandbox.is_some_and(|sandbox| known.iter().any(|id| id.as_ref() == sandbox));
            if let (false, Some(id)) = (owned, container.id) {
                tracing::info!(container = id, "removing a container of nobody");
                if let Err(error) = self.remove(&engine, &id).await {
                    tracing::warn!(container = id, %error, "a container of nobody could not be removed");
                }
            }
        }
    }
}

impl Provider for Docker {
    fn start<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<Started>> {
        Box::pin(self.create(spec))
    }

    fn check<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Standing> {
        Box::pin(async move {
            let Some(id) = &spec.started.container_id else {
                return Standing::Gone("the container was not made".to_owned());
            };
            match self.engine() {
                Ok(engine) => self.standing(&engine, id).await,
                Err(error) => Standing::Unknown(error.to_string()),
            }
        })
    }

    fn rouse<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(id) = &spec.started.container_id else {
                return Ok(());
            };
            let engine = self.engine()?;
            if let Standing::StandsStill(_) = self.standing(&engine, id).await {
                engine
                    .unpause_container(id)
                    .await
                    .map_err(|error| docker_failure("letting the container go on", error))?;
            }
            Ok(())
        })
    }

    fn stop<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if !self.engine_socket.exists() && spec.started.container_id.is_none() {
                return Ok(());
            }
            let engine = self.engine()?;
            // Also one whose id was not recorded before a crash.
            let id = match &spec.started.container_id {
                Some(id) => Some(id.clone()),
                None => self.find(&engine, &spec.id).await?,
            };
            match id {
                Some(id) => self.remove(&engine, &id).await,
                None => Ok(()),
            }
        })
    }

    fn root(&self, spec: &Spec, session: &SessionId) -> RootSpec {
        let inside = |path: PathBuf| {
            Bytes(
                self.inside(spec, &path)
                    .into_os_string()
                    .into_encoded_bytes(),
            )
        };
        let dir = session_dir(&spec.dir, session);
        RootSpec {
            home: Some(Bind {
                source: inside(dir.join("home")),
                target: Bytes(HOME.into()),
            }),
            tmp: inside(dir.join("tmp")),
            var_tmp: Some(inside(dir.join("var-tmp"))),
            hide: vec![Bytes(INSIDE.into()), Bytes(HOLDER.into())],
            expose: Vec::new(),
            writable: Vec::new(),
        }
    }

    fn environment(&self, spec: &Spec) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut env = vec![
            (b"PATH".to_vec(), PATH.to_vec()),
            (b"HOME".to_vec(), HOME.into()),
            (b"USER".to_vec(), b"root".to_vec()),
            (b"LOGNAME".to_vec(), b"root".to_vec()),
            (b"LANG".to_vec(), b"C.UTF-8".to_vec()),
        ];
        for (key, value) in &spec.started.image_env {
            env.retain(|(known, _)| known != key);
            env.push((key.clone(), value.clone()));
        }
        env
    }

    fn inside(&self, spec: &Spec, path: &Path) -> PathBuf {
        match path.strip_prefix(&spec.dir) {
            Ok(rest) => Path::new(INSIDE).join(rest),
            Err(_) => path.to_path_buf(),
        }
    }
}

fn apparmor_is_on() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|text| text.trim() == "Y")
}

/// The HTTP status of an engine's error.
fn status(error: &bollard::errors::Error) -> Option<u16> {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

fn docker_failure(doing: &str, error: bollard::errors::Error) -> Failure {
    Failure::new(
        ErrorCode::Unavailable,
        format!("Docker failed at {doing}: {error}"),
    )
    .caused_by(error)
}
