//! The gateway's own metrics: what it is at, what it has done, what it takes. As an answer, and as text
//! for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sandstack_api::observability::{
    Counts, DaemonReply, DurationClass, Queues, RequestCounts, ThreadGroup,
};
use sandstack_api::{ApiError, ErrorCode, OperationName};
use tokio::sync::Semaphore;

use crate::clock::now_unix_ms;
use crate::gateway::Gateway;
use crate::otlp::Exporter;

/// Upper bounds of the classes of durations of callers' requests, in microseconds.
const BOUNDS_US: [u64; 6] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// What the gateway is at, and what it has done.
pub(crate) struct Load {
    /// One for each request that may be worked on.
    pub(crate) permits: Arc<Semaphore>,
    allowed: usize,
    /// Requests that wait for a permit.
    pub(crate) waiting: AtomicUsize,
    done: Mutex<BTreeMap<OperationName, Tally>>,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    failed: u64,
    total_us: u64,
    /// The last is for those that took longer than all bounds.
    classes: [u64; BOUNDS_US.len() + 1],
}

impl Load {
    /// With so many requests at once.
    pub(crate) fn new(allowed: usize) -> Load {
        Load {
            permits: Arc::new(Semaphore::new(allowed)),
            allowed,
            waiting: AtomicUsize::new(0),
            done: Mutex::default(),
        }
    }

    /// Notes a request that was worked on to its end.
    pub(crate) fn note(&self, operation: OperationName, failed: bool, taken: Duration) {
        let taken_us = taken.as_micros() as u64;
        let class = BOUNDS_US.iter().position(|bound| taken_us <= *bound);
        let mut done = self.done.lock();
        let tally = done.entry(operation).or_default();
        tally.failed += u64::from(failed);
        tally.total_us += taken_us;
        tally.classes[class.unwrap_or(BOUNDS_US.len())] += 1;
    }

    fn operations(&self) -> Vec<RequestCounts> {
        let done = self.done.lock();
        let rows = done.iter().map(|(operation, tally)| RequestCounts {
            operation: operation.to_string(),
            count: tally.classes.iter().sum(),
            failed: tally.failed,
            total_us: tally.total_us,
            classes: added_up(&BOUNDS_US, &tally.classes),
        });
        rows.collect()
    }
}

/// Classes that have those before them, too.
fn added_up(bounds: &[u64], classes: &[u64]) -> Vec<DurationClass> {
    let mut count = 0;
    let classes = bounds.iter().zip(classes).map(|(up_to_us, more)| {
        count += more;
        DurationClass {
            up_to_us: *up_to_us,
            count,
        }
    });
    classes.collect()
}

impl Gateway {
    pub(crate) fn daemon(&self) -> DaemonReply {
        let mut errors = Vec::new();
        let mut number = |what: &str, found: Option<u64>| {
            found.unwrap_or_else(|| {
                let message = format!("{what} could not be read from /proc");
                errors.push(ApiError::new(ErrorCode::Unavailable, message));
                0
            })
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let field = |text: &str, name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let word = line.trim_start_matches(':').split_whitespace().next()?;
            word.parse().ok()
        };
        let descriptors = fs::read_dir("/proc/self/fd").ok();
        let used = processor_times();
        let resident_bytes = number("resident memory", field(&status, "VmRSS")) * 1024;
        let peak_resident_bytes = number("most resident memory", field(&status, "VmHWM")) * 1024;
        let open = descriptors.map(|entries| entries.count() as u64);
        let open_descriptors = number("open descriptors", open);
        let descriptor_limit = number("the limit of descriptors", field(&limits, "Max open files"));
        let threads = threads().unwrap_or_else(|| {
            number("threads", None);
            Vec::new()
        });
        let (queues, counts) = self.now();
        let kernel = sandstack_fs::requests()
            .into_iter()
            .map(|row| RequestCounts {
                operation: row.operation.to_owned(),
                count: row.count,
                failed: 0,
                total_us: row.total.as_micros() as u64,
                classes: added_up(&sandstack_fs::BOUNDS_US, &row.classes),
            });
        DaemonReply {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at_unix_ms: self.started_at_unix_ms,
            resident_bytes,
            peak_resident_bytes,
            user_cpu_ms: used.0,
            system_cpu_ms: used.1,
            open_descriptors,
            descriptor_limit,
            threads,
            queues,
            counts,
            kernel_requests: kernel.collect(),
            operations: self.load.operations(),
            otlp: self.spans.exporter.as_ref().map(Exporter::told),
            sampled_at_unix_ms: now_unix_ms(),
            errors,
        }
    }

    /// What waits and what lives.
    fn now(&self) -> (Queues, Counts) {
        let (mut sessions, mut views, mut commands, mut records) = (0, 0, 0, 0);
        let sandboxes = self.sandboxes.read();
        for sandbox in sandboxes.values() {
            for session in sandbox.sessions.read().values() {
                sessions += 1;
                commands += session.running.lock().len() as u64;
                if let Some(view) = session.view.lock().as_ref() {
                    views += 1;
                    records += view.recorder().waiting() as u64;
                }
            }
        }
        let active =
            self.load.allowed - self.load.permits.available_permits().min(self.load.allowed);
        let queues = Queues {
            active_requests: active as u64,
            waiting_requests: self.load.waiting.load(Ordering::Relaxed) as u64,
            waiting_access_records: records,
        };
        let counts = Counts {
            sandboxes: sandboxes.len() as u64,
            workspace_sessions: sessions,
            views,
            running_commands: commands,
        };
        (queues, counts)
    }
}

/// Processor time of this process in user code and in the kernel, in milliseconds.
fn processor_times() -> (u64, u64) {
    // SAFETY: all zeros are valid, and the call fills what it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ms = |time: libc::timeval| (time.tv_sec * 1000 + time.tv_usec / 1000).cast_unsigned();
    (ms(usage.ru_utime), ms(usage.ru_stime))
}

/// Threads by name; those of a pool are numbered, and counted together.
fn threads() -> Option<Vec<ThreadGroup>> {
    let mut groups: BTreeMap<String, u64> = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // One that has ended meanwhile is none.
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else {
            continue;
        };
        let name = name
            .trim_end()
            .trim_end_matches(|end: char| end.is_ascii_digit());
        let name = name.trim_end_matches(['-', '_', ' ']);
        *groups.entry(name.to_owned()).or_default() += 1;
    }
    let groups = groups
        .into_iter()
        .map(|(name, count)| ThreadGroup { name, count });
    Some(groups.collect())
}

/// The same for Prometheus, in its text format.
pub(crate) fn metrics(daemon: &DaemonReply) -> String {
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        let _ = writeln!(
            text,
            "# HELP sandstack_{name} {help}\n# TYPE sandstack_{name} {kind}\nsandstack_{name} {value}"
        );
    };
    let (queues, counts) = (&daemon.queues, &daemon.counts);
    let seconds = |ms: u64| ms as f64 / 1e3;
    one(
        "start_time_seconds",
        "gauge",
        "When the gateway started.",
        seconds(daemon.started_at_unix_ms),
    );
    one(
        "resident_memory_bytes",
        "gauge",
        "Resident memory.",
        daemon.resident_bytes as f64,
    );
    one(
        "open_fds",
        "gauge",
        "Open descriptors.",
        daemon.open_descriptors as f64,
    );
    one(
        "max_fds",
        "gauge",
        "Descriptors that may be open.",
        daemon.descriptor_limit as f64,
    );
    let threads: u64 = daemon.threads.iter().map(|group| group.count).sum();
    one("threads", "gauge", "Threads.", threads as f64);
    let cpu = daemon.user_cpu_ms + daemon.system_cpu_ms;
    one(
        "cpu_seconds_total",
        "counter",
        "Processor time.",
        seconds(cpu),
    );
    one(
        "active_requests",
        "gauge",
        "Requests that are worked on.",
        queues.active_requests as f64,
    );
    one(
        "waiting_requests",
        "gauge",
        "Requests that wait in line.",
        queues.waiting_requests as f64,
    );
    let waiting = queues.waiting_access_records as f64;
    one(
        "waiting_access_records",
        "gauge",
        "Access records that wait to be written.",
        waiting,
    );
    one("sandboxes", "gauge", "Sandboxes.", counts.sandboxes as f64);
    one(
        "workspace_sessions",
        "gauge",
        "Sessions.",
        counts.workspace_sessions as f64,
    );
    one(
        "views",
        "gauge",
        "Views that are served.",
        counts.views as f64,
    );
    one(
        "running_commands",
        "gauge",
        "Commands that run.",
        counts.running_commands as f64,
    );
    if let Some(spans) = &daemon.otlp {
        let told = [
            (
                "otlp_spans_sent_total",
                "Spans that the collector took.",
                spans.sent,
            ),
            (
                "otlp_spans_lost_total",
                "Spans that the collector will never have.",
                spans.lost,
            ),
        ];
        for (name, help, value) in told {
            one(name, "counter", help, value as f64);
        }
    }
    let failed = "sandstack_operations_failed_total";
    let _ = writeln!(
        text,
        "# HELP {failed} Requests of callers that failed.\n# TYPE {failed} counter"
    );
    for row in &daemon.operations {
        let _ = writeln!(
            text,
            "{failed}{{operation=\"{}\"}} {}",
            row.operation, row.failed
        );
    }
    let callers = "Requests of callers, worked on to their end.";
    histogram(&mut text, "operation_seconds", callers, &daemon.operations);
    let kernel = "Requests of the kernel to views.";
    histogram(
        &mut text,
        "fuse_request_seconds",
        kernel,
        &daemon.kernel_requests,
    );
    text
}

fn histogram(text: &mut String, name: &str, help: &str, rows: &[RequestCounts]) {
    let name = format!("sandstack_{name}");
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
    for row in rows {
        let label = format!("operation=\"{}\"", row.operation);
        for class in &row.classes {
            let bound = class.up_to_us as f64 / 1e6;
            let _ = writeln!(
                text,
                "{name}_bucket{{{label},le=\"{bound}\"}} {}",
                class.count
            );
        }
        let _ = writeln!(text, "{name}_bucket{{{label},le=\"+Inf\"}} {}", row.count);
        let _ = writeln!(text, "{name}_sum{{{label}}} {}", row.total_us as f64 / 1e6);
        let _ = writeln!(text, "{name}_count{{{label}}} {}", row.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_add_up() {
        let load = Load::new(4);
        for ms in [0, 1, 2, 50, 5000, 200_000] {
            load.note(OperationName::Snapshot, ms == 50, Duration::from_millis(ms));
        }
        let rows = load.operations();
        assert_eq!((rows.len(), rows[0].count, rows[0].failed), (1, 6, 1));
        let counts: Vec<u64> = rows[0].classes.iter().map(|class| class.count).collect();
        assert_eq!(counts, [2, 3, 4, 4, 5, 5]);
        let mut text = String::new();
        histogram(&mut text, "x", "X.", &rows);
        assert!(
            text.contains("sandstack_x_bucket{operation=\"snapshot\",le=\"0.001\"} 2\n"),
            "{text}"
        );
        assert!(
            text.contains("sandstack_x_bucket{operation=\"snapshot\",le=\"+Inf\"} 6\n"),
            "{text}"
        );
    }
}
