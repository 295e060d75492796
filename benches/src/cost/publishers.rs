//! Many who publish at once, through the gateway: how many publishes a second, and how long the last
//! of them waits.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::gateway::{Gateway, text};
use super::{Costs, Options, seconds};
use crate::measure::{allow, quantile};
use crate::{Result, progress};

/// Publishers at once.
const CROWDS: [usize; 5] = [1, 2, 10, 50, 100];
/// From this crowd on somebody publishes in another sandbox meanwhile.
const BESIDE: usize = 50;
/// Publishes that are measured of each crowd, at least: below it there is no 99th percentile.
const SAMPLES: usize = 100;
/// Lines between the edits of two publishers in the shared file.
const APART: usize = 20;
/// How long one crowd may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the publishers of a round change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edits {
    /// Each a file of its own.
    Disjoint,
    /// Each a line of one file: all but the first have to merge.
    Overlapping,
}

pub(super) fn measure(costs: &mut Costs, dir: &Path, options: Options) -> Result<()> {
    let gateway = Gateway::start(&dir.join("publishers"))?;
    let project = project(&dir.join("publishers-project"))?;
    let path = project.to_str().ok_or("the project's path is not text")?;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let made = gateway.command_line("manager", &["create_sandbox", path])?;
        ids.push(text(&made["sandboxes"][0]["sandbox_id"], "sandbox_id")?.to_owned());
    }
    let bench = Bench {
        gateway: &gateway,
        sandbox: &ids[0],
        other: &ids[1],
    };
    let measured = [Edits::Disjoint, Edits::Overlapping]
        .into_iter()
        .try_for_each(|edits| {
            CROWDS
                .into_iter()
                .try_for_each(|crowd| bench.crowd(costs, edits, crowd, options))
        });
    for id in &ids {
        gateway.command_line("manager", &["destroy_sandbox", id, "--force"])?;
    }
    fs::remove_dir_all(&project)?;
    measured
}

/// A project of a thousand small files and the one that is shared.
fn project(dir: &Path) -> Result<PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    for number in 0..1_000 {
        let at = dir.join(format!("directory-{}", number % 50));
        fs::create_dir_all(&at)?;
        fs::write(at.join(format!("file-{number}")), format!("{number}\n"))?;
    }
    let mut shared = String::new();
    for line in 0..CROWDS[CROWDS.len() - 1] * APART {
        writeln!(shared, "line {line}: 0")?;
    }
    fs::write(dir.join("shared"), shared)?;
    Ok(dir.to_path_buf())
}

struct Bench<'a> {
    gateway: &'a Gateway,
    sandbox: &'a str,
    other: &'a str,
}

impl Bench<'_> {
    fn crowd(&self, costs: &mut Costs, edits: Edits, crowd: usize, options: Options) -> Result<()> {
        let kind = match edits {
            Edits::Disjoint => "disjoint",
            Edits::Overlapping => "in one file",
        };
        let about = format!("publishers at once: {crowd}, {kind}");
        progress(&about);
        let rounds = (options.times as usize).max(SAMPLES.div_ceil(crowd));
        let (mut rates, mut waits, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            allow(Some(PATIENCE));
            let mut sessions = Vec::new();
            for publisher in 0..crowd {
                sessions.push(self.edited(self.sandbox, edits, publisher, round)?);
            }
            let (passed, found) = self.round(&sessions, crowd >= BESIDE, &mut beside)?;
            rates.push(crowd as f64 / passed);
            waits.extend(found);
        }
        costs.note(format!("{about}: all together"), "publishes/s", &rates);
        note_waits(costs, &about, &waits);
        if crowd >= BESIDE {
            note_waits(costs, &format!("{about}: one in another sandbox"), &beside);
        }
        Ok(())
    }

    /// A session with a change. The lines of the shared file say which round changed them last.
    fn edited(
        &self,
        sandbox: &str,
        edits: Edits,
        publisher: usize,
        round: usize,
    ) -> Result<String> {
        let request = json!({ "sandbox_id": sandbox });
        let session = self
            .gateway
            .request("runtime", "create_workspace_session", &request)?;
        let session = text(&session["workspace_session_id"], "workspace_session_id")?.to_owned();
        let path = match edits {
            Edits::Disjoint => format!("directory-{}/file-{publisher}", publisher % 50),
            Edits::Overlapping => "shared".to_owned(),
        };
        let mut request = json!({
            "sandbox_id": sandbox, "workspace_session_id": session, "path": path,
        });
        if edits == Edits::Disjoint {
            request["content"] = json!(format!("{session}\n"));
            self.gateway.request("runtime", "file_write", &request)?;
            return Ok(session);
        }
        let read = self.gateway.request("runtime", "file_read", &request)?;
        let start = format!("line {}: ", publisher * APART);
        let line = text(&read["content"], "content")?
            .lines()
            .find(|line| line.starts_with(&start))
            .ok_or("the shared file has lost a line")?;
        request["edits"] = json!([{
            "old_string": format!("{line}\n"), "new_string": format!("{start}{session} {round}\n"),
        }]);
        self.gateway.request("runtime", "file_edit", &request)?;
        Ok(session)
    }

    /// Publishes all sessions at once: the seconds until the last is done, and those of each.
    /// Meanwhile, if asked for, somebody publishes in the other sandbox, one after another.
    fn round(
        &self,
        sessions: &[String],
        other: bool,
        beside: &mut Vec<f64>,
    ) -> Result<(f64, Vec<f64>)> {
        let start = Barrier::new(sessions.len() + 1);
        let done = AtomicBool::new(false);
        let (start, done) = (&start, &done);
        std::thread::scope(|scope| {
            let threads: Vec<_> = sessions
                .iter()
                .map(|session| {
                    scope.spawn(move || {
                        start.wait();
                        // An error of this program's threads has to be one that they can send.
                        self.publish(session).map_err(|error| error.to_string())
                    })
                })
                .collect();
            let neighbour = other.then(|| {
                scope.spawn(move || -> std::result::Result<Vec<f64>, String> {
                    let mut found = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let passed = self
                            .edited(self.other, Edits::Disjoint, 0, 0)
                            .and_then(|session| self.publish(&session));
                        found.push(passed.map_err(|error| error.to_string())?);
                    }
                    Ok(found)
                })
            });
            start.wait();
            let begun = Instant::now();
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            let passed = begun.elapsed().as_secs_f64();
            done.store(true, Ordering::Relaxed);
            let mut waits = Vec::new();
            for ended in ended {
                waits.push(ended.map_err(|_| "a publisher panicked")??);
            }
            if let Some(neighbour) = neighbour {
                beside.extend(neighbour.join().map_err(|_| "the neighbour panicked")??);
            }
            Ok((passed, waits))
        })
    }

    /// Publishes a session, which ends it; the seconds until the answer.
    fn publish(&self, session: &str) -> Result<f64> {
        let request = json!({ "workspace_session_id": session });
        let (passed, answer) = seconds(|| {
            self.gateway
                .request("runtime", "publish_workspace_session", &request)
        })?;
        if answer["outcome"] != "published" {
            return Err(format!("a publisher was not served: {answer}").into());
        }
        Ok(passed)
    }
}

fn note_waits(costs: &mut Costs, about: &str, waits: &[f64]) {
    for (name, share) in [("median", 0.5), ("99th percentile", 0.99), ("longest", 1.0)] {
        let wait = quantile(waits, share);
        costs.note(format!("{about}: {name}"), "s", &[wait]);
    }
}
