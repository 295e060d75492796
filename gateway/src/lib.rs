//! The gateway: authenticates, dispatches, and composes the store, the views and the holders.
//!
//! It is the one place where asynchronous code (HTTP, Docker, waiting) and the synchronous packages
//! meet: handlers are asynchronous, and what blocks runs on a thread that may
//! ([`gateway::Gateway::blocking`]).
//!
//! Invariants:
//! - Each request is authenticated before anything else, and worked on to its end even if the
//!   caller goes away.
//! - What is made has a row before it exists; what is ended is ended in steps that can be done
//!   again. So a restart finds everything.
//! - A library never reads the environment: the binary hands over a [`Config`].

mod activity;
mod attach;
mod auth;
mod cgroup;
mod clock;
mod command;
pub mod config;
mod containers;
mod control;
mod daemon;
mod dispatch;
mod doctor;
mod event;
mod export;
mod failure;
mod file;
mod follow;
mod forward;
mod gateway;
mod history;
mod layers;
mod observe;
mod otlp;
mod output;
mod page;
mod process;
mod provider;
mod publish;
mod rebase;
mod recover;
mod replay;
mod resources;
mod rows;
mod sandbox;
mod server;
mod session;
mod show;
mod span;
mod stream;
mod topology;
mod tree;
mod upkeep;
mod view;
mod writers;

use std::future::Future;
use std::sync::Arc;

pub use config::Config;

use crate::failure::chain;
use crate::gateway::Gateway;
use crate::server::Server;

/// Serves until `stop` is done. What runs in sandboxes goes on without the gateway.
///
/// # Errors
/// A sentence: the state directory is in use or cannot be used, or the socket cannot be bound.
pub async fn serve(
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    if std::time::SystemTime::now() < std::time::UNIX_EPOCH {
        // The HTTP library cannot write the date of an answer then, and answers nothing.
        return Err("the clock says a time before 1970; set it, then start again".to_owned());
    }
    let socket = config.socket.clone();
    let runtime = tokio::runtime::Handle::current();
    let say = |error: failure::Failure| error.in_full();
    let gateway = tokio::task::spawn_blocking(move || Gateway::open(config, runtime))
        .await
        .map_err(|error| chain(&error))?
        .map_err(say)?;
    gateway.recover().await.map_err(say)?;
    let listener = server::bind(&socket).map_err(say)?;
    tracing::info!(socket = %socket.display(), "the gateway serves");
    let router = Server::new(Arc::clone(&gateway)).router();
    let sampling = Arc::clone(&gateway);
    let sampler = tokio::spawn(async move { sampling.sample().await });
    let watching = Arc::clone(&gateway);
    let watcher = tokio::spawn(async move { watching.watch_containers().await });
    let streaming = Arc::clone(&gateway);
    let stop = async move {
        stop.await;
        streaming.streams.end();
    };
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await;
    sampler.abort();
    watcher.abort();
    if let Err(error) = std::fs::remove_file(&socket) {
        tracing::debug!(%error, "the socket was not removed");
    }
    if let Some(exporter) = &gateway.spans.exporter {
        exporter.flush().await;
    }
    let persist = move || {
        gateway.end_all_attachments();
        gateway.store.persist()
    };
    tokio::task::spawn_blocking(persist)
        .await
        .map_err(|error| chain(&error))?
        .map_err(|error| chain(&error))?;
    served.map_err(|error| format!("the server failed: {error}"))
}
