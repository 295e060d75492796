//! What happens to containers behind the gateway's back.
//!
//! A container that ends tells so by its holder's connection; one that is paused tells nobody, and a
//! Docker that was away and is back neither. So Docker's events are listened to while there are Docker
//! sandboxes, and after every gap each of these is looked at.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use sandstack_api::SandboxId;
use sandstack_api::management::{Provider as ProviderKind, SandboxState};
use serde_json::json;

use crate::clock::now_unix_ms;
use crate::event::Subject;
use crate::failure::Failure;
use crate::gateway::{Gateway, Sandbox};
use crate::provider::{Happening, Standing};

/// Between two looks whether there is something to listen for, or whether Docker is back.
const INTERVAL: Duration = Duration::from_secs(1);

impl Gateway {
    /// Never ends by itself.
    pub(crate) async fn watch_containers(self: &Arc<Self>) {
        loop {
            if !self.docker_sandboxes().is_empty() && self.docker.answers().await {
                self.listen_to_docker().await;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Ends when Docker goes.
    async fn listen_to_docker(self: &Arc<Self>) {
        // Asked for from before the look below, so that nothing falls between the two.
        let mut happenings = match self.docker.happenings(now_unix_ms() / 1000) {
            Ok(happenings) => Box::pin(happenings),
            Err(error) => {
                tracing::debug!(%error, "Docker's events cannot be listened to");
                return;
            }
        };
        let looking = Arc::clone(self);
        // A task of its own: it may have to wait for what listening brings to an end.
        tokio::spawn(async move {
            for sandbox in looking.docker_sandboxes() {
                looking.look_at(&sandbox).await;
            }
        });
        while let Some(happened) = happenings.next().await {
            match happened {
                Ok((id, happening)) => self.happened(&id, happening).await,
                Err(error) => {
                    tracing::debug!(%error, "Docker's events ended");
                    return;
                }
            }
        }
    }

    fn docker_sandboxes(&self) -> Vec<Arc<Sandbox>> {
        let sandboxes = self.sandboxes.read();
        let of_docker =
            |sandbox: &&Arc<Sandbox>| sandbox.row.lock().record.provider == ProviderKind::Docker;
        sandboxes.values().filter(of_docker).cloned().collect()
    }

    async fn happened(self: &Arc<Self>, id: &str, happening: Happening) {
        let sandbox = SandboxId::new(id)
            .ok()
            .and_then(|id| self.sandboxes.read().get(&id).cloned());
        let Some(sandbox) = sandbox else { return };
        tracing::info!(sandbox = %sandbox.id, ?happening, "something happened to a container");
        match happening {
            Happening::Paused | Happening::WentOn | Happening::Ended => {
                self.look_at(&sandbox).await
            }
            Happening::OutOfMemory => {
                let subject = Subject {
                    sandbox: Some(sandbox.id.clone()),
                    ..Subject::default()
                };
                self.events
                    .record("sandbox.out_of_memory", subject, json!({}));
            }
        }
    }

    /// Brings what is known of a sandbox in line with its container.
    async fn look_at(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let _lifecycle = sandbox.lifecycle.lock().await;
        let state = sandbox.row.lock().record.state;
        let result = match (state, sandbox.provider.check(&sandbox.spec()).await) {
            (SandboxState::Ready, Standing::StandsStill(reason)) => {
                *sandbox.stands_still.lock() = Some(reason.clone());
                Err(Failure::conflict(reason))
            }
            // Its holder never went: there is nothing to bring back.
            (SandboxState::Failed, Standing::Runs) if self.only_stood_still(sandbox) => {
                self.set_sandbox_state(sandbox, SandboxState::Ready, None)
            }
            (SandboxState::Failed, Standing::Runs | Standing::Gone(_)) => {
                self.restore(sandbox).await
            }
            // One that is gone tells by its connection, and what is being made or ended has its own way.
            _ => return,
        };
        if let Err(error) = result
            && let Err(error) =
                self.set_sandbox_state(sandbox, SandboxState::Failed, Some(error.to_string()))
        {
            tracing::error!(sandbox = %sandbox.id, %error, "the state of a sandbox could not be recorded");
        }
    }

    fn only_stood_still(&self, sandbox: &Sandbox) -> bool {
        let stood = sandbox.stands_still.lock().take().is_some();
        let holder = sandbox.holder.lock();
        stood && holder.as_ref().is_some_and(|holder| !holder.has_ended())
    }
}
