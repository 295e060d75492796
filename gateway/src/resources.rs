//! What commands use: sampled while they run, kept within a bound.
//!
//! There is one sampler, which looks at all processes of all commands at once. While no command runs it
//! looks at nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sandstack_api::observability::{
    Cgroup, CgroupReply, ResourceSample, Resources, ResourcesReply, SessionDisk,
};
use sandstack_api::{ApiError, CommandId, ErrorCode, SandboxId, SessionId};
use sandstack_store::{Store, Table};
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway, Session};
use crate::process::{self, Found};
use crate::sandbox::page_limit;

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(5);
/// Samples beyond the bound that are removed at a time.
const TRIM: u64 = 256;

/// A sample as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SampleRow {
    sandbox: String,
    session: String,
    command: String,
    time_unix_ms: u64,
    processes: u64,
    threads: u64,
    cpu_ms: u64,
    resident_bytes: u64,
    disk_bytes: Option<(u64, u64)>,
    /// Of the session.
    upper_bytes: u64,
}

/// The samples that are kept.
pub(crate) struct Samples {
    table: Table,
    bound: u64,
    /// The next number, and the oldest that is kept.
    numbers: Mutex<(u64, u64)>,
}

impl Samples {
    pub(crate) fn open(store: &Store, bound: u64) -> Result<Samples> {
        let table = store.table("samples");
        let number = |key: &[u8]| key.try_into().map_or(0, u64::from_be_bytes);
        let mut next = 1;
        table.scan_back(b"", |key, _: SampleRow| {
            next = number(key) + 1;
            false
        })?;
        let mut oldest = next;
        table.scan(b"", |key, _: SampleRow| {
            oldest = number(key);
            false
        })?;
        Ok(Samples {
            table,
            bound,
            numbers: Mutex::new((next, oldest)),
        })
    }

    fn keep(&self, rows: &[SampleRow]) -> Result<()> {
        let mut numbers = self.numbers.lock();
        for row in rows {
            self.table.put(&numbers.0.to_be_bytes(), row)?;
            numbers.0 += 1;
        }
        while numbers.0 - numbers.1 > self.bound + TRIM {
            let old: Vec<[u8; 8]> = (numbers.1..numbers.1 + TRIM)
                .map(u64::to_be_bytes)
                .collect();
            self.table
                .remove_many(old.iter().map(<[u8; 8]>::as_slice))?;
            numbers.1 += TRIM;
        }
        Ok(())
    }

    /// The newest that `wanted` takes, newest first.
    fn find(
        &self,
        since_unix_ms: Option<u64>,
        limit: usize,
        wanted: impl Fn(&SampleRow) -> bool,
    ) -> Result<Vec<SampleRow>> {
        let mut found = Vec::new();
        self.table.scan_back(b"", |_, row: SampleRow| {
            if since_unix_ms.is_some_and(|since| row.time_unix_ms < since) {
                return false;
            }
            if wanted(&row) {
                found.push(row);
            }
            found.len() < limit
        })?;
        Ok(found)
    }
}

impl Gateway {
    /// Takes samples for as long as it is awaited.
    pub(crate) async fn sample(self: &Arc<Self>) {
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let gateway = Arc::clone(self);
            let done = self.blocking(move || {
                let rows = gateway.take_sample(None)?;
                gateway.samples.keep(&rows)
            });
            if let Err(error) = done.await {
                tracing::warn!(error = error.in_full(), "no sample of resources was taken");
            }
        }
    }

    /// What each command uses now; `only` of one sandbox.
    fn take_sample(&self, only: Option<&SandboxId>) -> Result<Vec<SampleRow>> {
        let mut owners: HashMap<Arc<str>, Arc<Session>> = HashMap::new();
        let mut known = HashMap::new();
        for sandbox in self.sandboxes.read().values() {
            if only.is_some_and(|only| *only != sandbox.id) {
                continue;
            }
            for session in sandbox.sessions.read().values() {
                for (namespace, command) in session.namespaces.known() {
                    owners.insert(Arc::clone(&command), Arc::clone(session));
                    known.insert(namespace, command);
                }
            }
        }
        let found = process::find(&known).map_err(|error| {
            Failure::new(ErrorCode::Unavailable, "/proc cannot be listed").caused_by(error)
        })?;
        let now = now_unix_ms();
        let mut by_command: BTreeMap<Arc<str>, Vec<Found>> = BTreeMap::new();
        for process in found {
            let command = Arc::clone(&process.command);
            by_command.entry(command).or_default().push(process);
        }
        let rows = by_command.into_iter().filter_map(|(command, processes)| {
            let session = owners.get(&command)?;
            let sum = |of: fn(&Found) -> u64| processes.iter().map(of).sum();
            let disk = processes
                .iter()
                .map(Found::disk_bytes)
                .try_fold((0, 0), |sum, one| {
                    one.map(|(read, written)| (sum.0 + read, sum.1 + written))
                });
            Some(SampleRow {
                sandbox: session.sandbox.id.to_string(),
                session: session.id.to_string(),
                command: command.to_string(),
                time_unix_ms: now,
                processes: processes.len() as u64,
                threads: sum(Found::threads),
                cpu_ms: sum(Found::cpu_ms),
                resident_bytes: sum(Found::resident_bytes),
                disk_bytes: disk,
                upper_bytes: session.upper().content_bytes(),
            })
        });
        Ok(rows.collect())
    }

    pub(crate) async fn resources(
        self: &Arc<Self>,
        context: &Context,
        request: Resources,
    ) -> Result<ResourcesReply> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let limit = page_limit(request.last_n)?;
        let gateway = Arc::clone(self);
        self.blocking(move || {
            let session = request
                .workspace_session_id
                .as_ref()
                .map(ToString::to_string);
            let command = request.command_session_id.as_ref().map(ToString::to_string);
            let wanted = |row: &SampleRow| {
                row.sandbox == sandbox.id.as_ref()
                    && session
                        .as_ref()
                        .is_none_or(|session| *session == row.session)
                    && command
                        .as_ref()
                        .is_none_or(|command| *command == row.command)
            };
            let disk = sandbox
                .sessions_newest_first()
                .iter()
                .map(|session| SessionDisk {
                    workspace_session_id: session.id.clone(),
                    upper_bytes: session.upper().content_bytes(),
                })
                .collect();
            let mut errors = Vec::new();
            let now = gateway
                .take_sample(Some(&sandbox.id))
                .unwrap_or_else(|error| {
                    errors.push(ApiError::new(ErrorCode::Unavailable, error.in_full()));
                    Vec::new()
                });
            let mut rows: Vec<SampleRow> = now.into_iter().filter(&wanted).collect();
            rows.extend(gateway.samples.find(request.since_ms, limit, wanted)?);
            rows.truncate(limit);
            Ok(ResourcesReply {
                sandbox_id: sandbox.id.clone(),
                samples: rows.into_iter().filter_map(show).collect(),
                disk,
                interval_ms: INTERVAL.as_millis() as u64,
                sampled_at_unix_ms: now_unix_ms(),
                errors,
            })
        })
        .await
    }

    pub(crate) fn cgroup(&self, context: &Context, request: &Cgroup) -> Result<CgroupReply> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let mut errors = Vec::new();
        let (version, groups) = cgroup::read(&sandbox.id, &mut |path, error| {
            let message = format!("{} cannot be read: {error}", path.display());
            errors.push(ApiError::new(ErrorCode::Unavailable, message));
        });
        Ok(CgroupReply {
            sandbox_id: sandbox.id.clone(),
            version,
            groups,
            sampled_at_unix_ms: now_unix_ms(),
            errors,
        })
    }
}

fn show(row: SampleRow) -> Option<ResourceSample> {
    Some(ResourceSample {
        time_unix_ms: row.time_unix_ms,
        workspace_session_id: SessionId::new(&row.session).ok()?,
        command_session_id: CommandId::new(&row.command).ok()?,
        processes: row.processes,
        threads: row.threads,
        cpu_ms: row.cpu_ms,
        resident_bytes: row.resident_bytes,
        read_bytes: row.disk_bytes.map(|(read, _)| read),
        written_bytes: row.disk_bytes.map(|(_, written)| written),
        upper_bytes: row.upper_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u64) -> SampleRow {
        SampleRow {
            sandbox: "sb-1".to_owned(),
            session: "ws-1".to_owned(),
            command: format!("cmd-{}", number % 3),
            time_unix_ms: number,
            processes: 1,
            threads: 1,
            cpu_ms: number,
            resident_bytes: 1,
            disk_bytes: None,
            upper_bytes: number,
        }
    }

    #[test]
    fn the_newest_samples_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let samples = Samples::open(&store, 100).unwrap();
        for number in 0..1000 {
            samples.keep(&[row(number)]).unwrap();
        }
        let all = samples.find(None, 10_000, |_| true).unwrap();
        assert!(all.len() as u64 <= 100 + TRIM, "{}", all.len());
        assert_eq!((all[0].time_unix_ms, all[1].time_unix_ms), (999, 998));
        let some = samples
            .find(Some(990), 2, |row| row.command == "cmd-1")
            .unwrap();
        let times: Vec<u64> = some.iter().map(|row| row.time_unix_ms).collect();
        assert_eq!(times, [997, 994]);
        drop(samples);
        let samples = Samples::open(&store, 100).unwrap();
        samples.keep(&[row(5000)]).unwrap();
        assert_eq!(samples.find(None, 1, |_| true).unwrap(), [row(5000)]);
    }
}
