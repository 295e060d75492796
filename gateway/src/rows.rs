//! What the gateway keeps of sandboxes, sessions and commands, so that a restart finds them.
//!
//! Rows are JSON in the store's own database: they share types with the catalogue, which may grow
//! fields, and an older row then reads with the defaults.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use sandstack_api::management::{SandboxRecord, TraceMode};
use sandstack_api::runtime::{CommandStatus, NetworkProfile, Published, SessionState, Survivor};
use sandstack_api::{Blob, CommandId, RequestId, SandboxId, SessionId};
use sandstack_holder::protocol::Stream;
use sandstack_store::{Store, Table};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// A sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxRow {
    pub(crate) record: SandboxRecord,
    /// The stack in the store; `None` until the base is imported.
    pub(crate) stack: Option<u64>,
    pub(crate) env: BTreeMap<String, Blob>,
    /// The holder's process, of a local sandbox.
    pub(crate) holder_pid: Option<u32>,
    /// Of an image: its environment and user.
    #[serde(default)]
    pub(crate) image_env: Vec<(Blob, Blob)>,
}

/// A workspace session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionRow {
    pub(crate) id: SessionId,
    pub(crate) sandbox: SandboxId,
    pub(crate) name: Option<String>,
    pub(crate) automatic: bool,
    pub(crate) lease: u64,
    /// What keeps content that its changes refer to and its base has not.
    #[serde(default)]
    pub(crate) content_lease: Option<u64>,
    /// Earlier leases, under which what it read is on record.
    #[serde(default)]
    pub(crate) records: Vec<u64>,
    /// What is being published of it, if it is to go on afterwards: these paths, or all if there are
    /// none.
    #[serde(default)]
    pub(crate) going_on: Option<Vec<Blob>>,
    /// Whether another gateway can go on serving its view.
    #[serde(default)]
    pub(crate) resumable: bool,
    pub(crate) state: SessionState,
    pub(crate) state_reason: Option<String>,
    pub(crate) network_profile: NetworkProfile,
    pub(crate) trace_mode: TraceMode,
    #[serde(default)]
    pub(crate) background_walk: bool,
    pub(crate) quota_bytes: Option<u64>,
    pub(crate) ttl_s: Option<u64>,
    pub(crate) env: BTreeMap<String, Blob>,
    /// Where on the host its view is attached.
    #[serde(default)]
    pub(crate) attachments: Vec<Blob>,
    pub(crate) created_at_unix_ms: u64,
    pub(crate) used_at_unix_ms: u64,
}

/// A command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommandRow {
    pub(crate) id: CommandId,
    pub(crate) session: SessionId,
    pub(crate) sandbox: SandboxId,
    pub(crate) request: RequestId,
    pub(crate) cmd: Blob,
    pub(crate) tty: bool,
    pub(crate) status: CommandStatus,
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) started_at_unix_ms: u64,
    pub(crate) ended_at_unix_ms: Option<u64>,
    pub(crate) cpu_us: Option<u64>,
    pub(crate) max_rss_bytes: Option<u64>,
    pub(crate) survivors: Vec<Survivor>,
    /// Why the rest of a stream could not be kept, of those where some was lost.
    #[serde(default)]
    pub(crate) lost: BTreeMap<Stream, String>,
    pub(crate) publish: Option<Published>,
}

/// A table of rows of one type.
#[derive(Clone)]
pub(crate) struct Rows<T> {
    table: Table,
    rows: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Rows<T> {
    pub(crate) fn new(store: &Store, name: &str) -> Self {
        Rows {
            table: store.table(name),
            rows: PhantomData,
        }
    }

    pub(crate) fn put(&self, key: &str, row: &T) -> Result<()> {
        let text = serde_json::to_string(row)
            .map_err(|error| Failure::internal("a record cannot be written").caused_by(error))?;
        Ok(self.table.put(key.as_bytes(), &text)?)
    }

    pub(crate) fn get(&self, key: &str) -> Result<Option<T>> {
        self.table
            .get::<String>(key.as_bytes())?
            .map(|text| parse(&text))
            .transpose()
    }

    pub(crate) fn remove(&self, key: &str) -> Result<()> {
        Ok(self.table.remove(key.as_bytes())?)
    }

    pub(crate) fn all(&self) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        self.table.scan(b"", |_, text: String| {
            rows.push(parse(&text));
            true
        })?;
        rows.into_iter().collect()
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Failure::internal("a record cannot be read").caused_by(error))
}
