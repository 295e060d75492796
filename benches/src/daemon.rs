//! The daemon of the benches: one process that serves views as the gateway does, and is told what
//! to do by lines of JSON.
//!
//! It is a process of its own so that its processor time and memory can be told from those of the
//! work that is measured.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sandstack_fs::{
    MountOptions, Recorder, SlowPool, TraceMode, Transport, Tree, View, ViewOptions, detached,
    mount_at, unmount,
};
use sandstack_store::{
    Lease, MergeOutcome, Outcome, Owner, PublishOptions, ROOT_INO, RelPath, Stack, Store, Upper,
    merge_text,
};
use serde::{Deserialize, Serialize};

use crate::Result;

/// What the daemon is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Import a directory into the store and make a stack of it.
    Import {
        /// The directory.
        base: PathBuf,
    },
    /// Begin a session on the head of `base`'s stack and mount its view.
    Open {
        /// A directory that was imported.
        base: PathBuf,
        /// The trace mode.
        mode: String,
        /// The transport.
        transport: String,
        /// Whether to walk through it first.
        walk: bool,
        /// Where to mount.
        at: PathBuf,
    },
    /// Take the view away and end the session.
    Close {
        /// Where it is mounted.
        at: PathBuf,
    },
    /// Publish what the session has changed; it goes on.
    Publish {
        /// Where it is mounted.
        at: PathBuf,
    },
    /// Publish a change of one file so many times, without a mount.
    Layers {
        /// A directory that was imported.
        base: PathBuf,
        /// How many layers to add.
        count: u32,
    },
    /// Look every path up, without a mount, in a session on the head of `base`'s stack.
    LookUp {
        /// A directory that was imported.
        base: PathBuf,
        /// Paths in it.
        paths: Vec<PathBuf>,
    },
    /// Publish so many changes of one file of so many lines, each of another line, and tell who wrote
    /// it.
    Blame {
        /// A directory that was imported.
        base: PathBuf,
        /// Lines of the file.
        lines: u32,
        /// Publishes.
        count: u32,
    },
    /// Merge three texts by lines.
    Merge {
        /// The file with the base's text.
        base: PathBuf,
        /// The file with the head's text.
        head: PathBuf,
        /// The file with the session's text.
        mine: PathBuf,
    },
    /// Bytes of the session's content of its own.
    Space {
        /// Where it is mounted.
        at: PathBuf,
    },
}

/// What the daemon answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// What went wrong.
    pub error: Option<String>,
    /// Seconds by step.
    pub seconds: Vec<(String, f64)>,
    /// Counts by name.
    pub counts: Vec<(String, u64)>,
}

impl Answer {
    /// Seconds of all steps.
    pub fn total(&self) -> f64 {
        self.seconds.iter().map(|(_, seconds)| seconds).sum()
    }

    /// A count; 0 if there is none of this name.
    pub fn count(&self, name: &str) -> u64 {
        self.counts
            .iter()
            .find(|(found, _)| found == name)
            .map_or(0, |(_, count)| *count)
    }
}

/// A daemon that was started; ended when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    /// Closed to end it.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Daemon {
    /// Starts one on `store`, by this program's `serve` command.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(store: &Path) -> Result<Daemon> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the daemon has no pipes".into());
        };
        Ok(Daemon {
            child,
            orders: Some(orders),
            answers: BufReader::new(answers),
        })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has an order carried out.
    ///
    /// # Errors
    /// What the daemon says; or it has gone.
    pub fn order(&mut self, order: &Order) -> Result<Answer> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        let orders = self.orders.as_mut().ok_or("the daemon was ended")?;
        orders.write_all(line.as_bytes())?;
        orders.flush()?;
        let mut reply = String::new();
        if self.answers.read_line(&mut reply)? == 0 {
            return Err("the daemon has gone".into());
        }
        let answer: Answer = serde_json::from_str(&reply)?;
        match answer.error {
            Some(error) => Err(format!("daemon: {error}").into()),
            None => Ok(answer),
        }
    }

    /// Bytes of memory that only the daemon has: `RssAnon`.
    ///
    /// # Errors
    /// It has gone.
    pub fn memory(&self) -> Result<u64> {
        status_bytes(&self.pid().to_string(), "RssAnon:")
    }
}

/// A number of kilobytes in the `status` of a process, in bytes.
fn status_bytes(process: &str, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| format!("the kernel tells no {name}"))? * 1024)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // At the end of its orders it unmounts everything and ends.
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// Carries out what is read from standard input, until it ends.
///
/// # Errors
/// The store cannot be opened, or the pipes broke.
pub fn serve(store: &Path) -> Result<()> {
    let mut house = House {
        store: Store::open(store)?,
        slow: SlowPool::new(),
        stacks: HashMap::new(),
        sessions: HashMap::new(),
    };
    for line in std::io::stdin().lock().lines() {
        let order = serde_json::from_str::<Order>(&line?)?;
        let answer = house.carry_out(order).unwrap_or_else(|error| Answer {
            error: Some(error.to_string()),
            ..Answer::default()
        });
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    let open: Vec<PathBuf> = house.sessions.keys().cloned().collect();
    for at in open {
        house.close(&at)?;
    }
    Ok(())
}

struct House {
    store: Store,
    slow: Arc<SlowPool>,
    stacks: HashMap<PathBuf, Stack>,
    sessions: HashMap<PathBuf, Session>,
}

struct Session {
    lease: Lease,
    stack: Stack,
    upper: Arc<Upper>,
    view: View,
}

/// Takes the time of steps.
struct Steps {
    since: Instant,
    answer: Answer,
}

impl Steps {
    fn begin() -> Steps {
        Steps {
            since: Instant::now(),
            answer: Answer::default(),
        }
    }

    fn done(&mut self, step: &str) {
        let now = Instant::now();
        let passed = (now - self.since).as_secs_f64();
        self.answer.seconds.push((step.to_owned(), passed));
        self.since = now;
    }

    fn count(&mut self, name: &str, count: u64) {
        self.answer.counts.push((name.to_owned(), count));
    }
}

impl House {
    fn carry_out(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Import { base } => self.import(base),
            Order::Open {
                base,
                mode,
                transport,
                walk,
                at,
            } => {
                let opened = self.open(&base, mode.parse()?, transport.parse()?, at.clone())?;
                if walk {
                    self.walk(&at)?;
                }
                Ok(opened)
            }
            Order::Close { at } => self.close(&at),
            Order::Publish { at } => self.publish(&at),
            Order::Layers { base, count } => self.layers(&base, count),
            Order::LookUp { base, paths } => self.look_up(&base, &paths),
            Order::Blame { base, lines, count } => self.blame(&base, lines, count),
            Order::Merge { base, head, mine } => merge(&base, &head, &mine),
            Order::Space { at } => {
                let mut steps = Steps::begin();
                steps.count("bytes", self.session(&at)?.upper.content_bytes());
                Ok(steps.answer)
            }
        }
    }

    fn session(&self, at: &Path) -> Result<&Session> {
        Ok(self.sessions.get(at).ok_or("no view is mounted there")?)
    }

    fn stack(&self, base: &Path) -> Result<&Stack> {
        Ok(self.stacks.get(base).ok_or("that was not imported")?)
    }

    fn import(&mut self, base: PathBuf) -> Result<Answer> {
        let mut steps = Steps::begin();
        let imported = self
            .store
            .import(&base, &mut |_| ControlFlow::Continue(()))?;
        steps.done("import");
        let stack = self.store.create_stack(&imported, now_unix_ms())?;
        steps.done("stack");
        let report = imported.report;
        steps.count("files", report.files);
        steps.count("bytes", report.bytes);
        steps.count("files_hashed", report.files_hashed);
        steps.count("bytes_stored", report.bytes_stored);
        let usage = self.store.usage()?;
        steps.count("object_bytes", usage.object_bytes);
        steps.count("database_bytes", usage.database_bytes);
        self.stacks.insert(base, stack);
        Ok(steps.answer)
    }

    fn open(
        &mut self,
        base: &Path,
        mode: TraceMode,
        transport: Transport,
        at: PathBuf,
    ) -> Result<Answer> {
        let stack = self.stack(base)?.clone();
        let mut steps = Steps::begin();
        let lease = stack.take_lease(None, "bench", None, now_unix_ms())?;
        steps.done("lease");
        let upper = Arc::new(self.store.open_upper(&lease)?);
        let tree = Arc::new(Tree::new(Arc::clone(&upper))?);
        let recorder = Recorder::begin(Arc::clone(&upper), "bench", mode, Arc::default())?;
        steps.done("upper");
        let mounted = detached(&MountOptions::default())?;
        mount_at(mounted.mount.as_fd(), &at)?;
        steps.done("mount");
        let view = View::serve(
            tree,
            recorder,
            mounted.connection,
            &self.slow,
            &ViewOptions {
                transport,
                ..ViewOptions::default()
            },
        )?;
        steps.done("serve");
        let session = Session {
            lease,
            stack,
            upper,
            view,
        };
        self.sessions.insert(at, session);
        Ok(steps.answer)
    }

    fn walk(&self, at: &Path) -> Result<()> {
        let mount = fs::File::open(at)?;
        self.session(at)?.view.walk(mount.into())?.join();
        Ok(())
    }

    fn close(&mut self, at: &Path) -> Result<Answer> {
        let session = self.sessions.remove(at).ok_or("no view is mounted there")?;
        let mut steps = Steps::begin();
        unmount(at)?;
        steps.done("unmount");
        session.view.join()?;
        steps.done("join");
        let Session {
            lease, upper, view, ..
        } = session;
        drop((upper, view));
        self.store.release(lease.id())?;
        steps.done("release");
        Ok(steps.answer)
    }

    fn publish(&mut self, at: &Path) -> Result<Answer> {
        let session = self.session(at)?;
        let before = self.store.disk_bytes()?;
        let mut answer = publish(&session.stack, &session.upper)?;
        let grown = self.store.disk_bytes()?.saturating_sub(before);
        answer.counts.push(("grown_bytes".to_owned(), grown));
        Ok(answer)
    }

    fn layers(&mut self, base: &Path, count: u32) -> Result<Answer> {
        let stack = self.stack(base)?.clone();
        let mut steps = Steps::begin();
        for number in 0..count {
            let text = number.to_string();
            self.publish_file(&stack, b"layer-number.txt", text.as_bytes())?;
        }
        steps.done("publish");
        steps.count("layers", stack.layer_count());
        Ok(steps.answer)
    }

    /// Publishes this content of a file, without a mount.
    fn publish_file(&self, stack: &Stack, path: &[u8], bytes: &[u8]) -> Result<()> {
        let lease = stack.take_lease(None, "bench", None, now_unix_ms())?;
        let upper = Arc::new(self.store.open_upper(&lease)?);
        let files = sandstack_fs::Files::new(Arc::new(Tree::new(Arc::clone(&upper))?), b"/");
        files.write(path, bytes, None)?;
        drop(files);
        publish(stack, &upper)?;
        drop(upper);
        Ok(self.store.release(lease.id())?)
    }

    fn blame(&mut self, base: &Path, lines: u32, count: u32) -> Result<Answer> {
        const PATH: &[u8] = b"blamed.txt";
        let stack = self.stack(base)?.clone();
        let mut text: Vec<String> = (0..lines).map(|line| format!("line {line}\n")).collect();
        self.publish_file(&stack, PATH, text.concat().as_bytes())?;
        for number in 0..count {
            text[(number * 7 % lines) as usize] = format!("change {number}\n");
            self.publish_file(&stack, PATH, text.concat().as_bytes())?;
        }
        let path = RelPath::parse(PATH)?;
        let mut steps = Steps::begin();
        let blame = stack.blame(stack.head(), &path)?;
        steps.done("blame");
        steps.count("runs", blame.runs.len() as u64);
        Ok(steps.answer)
    }

    fn look_up(&mut self, base: &Path, paths: &[PathBuf]) -> Result<Answer> {
        use std::os::unix::ffi::OsStrExt as _;
        let stack = self.stack(base)?.clone();
        let lease = stack.take_lease(None, "bench", None, now_unix_ms())?;
        let upper = Arc::new(self.store.open_upper(&lease)?);
        let tree = Tree::new(Arc::clone(&upper))?;
        let mut steps = Steps::begin();
        for path in paths {
            let mut at = ROOT_INO;
            for name in path.iter() {
                at = tree.lookup(at, name.as_bytes())?.ino;
            }
        }
        steps.done("look-ups");
        drop((tree, upper));
        self.store.release(lease.id())?;
        Ok(steps.answer)
    }
}

fn merge(base: &Path, head: &Path, mine: &Path) -> Result<Answer> {
    let (base, head, mine) = (fs::read(base)?, fs::read(head)?, fs::read(mine)?);
    // The peak begins at what there is now.
    fs::write("/proc/self/clear_refs", "5")?;
    let before = status_bytes("self", "VmRSS:")?;
    let mut steps = Steps::begin();
    let outcome = merge_text(&base, &head, &mine);
    steps.done("merge");
    let peak = status_bytes("self", "VmHWM:")?;
    steps.count("peak_bytes", peak.saturating_sub(before));
    let conflicts = match outcome {
        MergeOutcome::Clean(_) => 0,
        MergeOutcome::Conflicts(hunks) => hunks.len() as u64,
    };
    steps.count("conflicts", conflicts);
    Ok(steps.answer)
}

fn publish(stack: &Stack, upper: &Upper) -> Result<Answer> {
    let options = PublishOptions::new(Owner::Session("bench".to_owned()), now_unix_ms());
    let mut steps = Steps::begin();
    let mut step = "capture";
    let report = stack.publish(upper, &options, &mut |next| {
        let next = next.as_str();
        if next != step {
            steps.done(step);
            step = next;
        }
    })?;
    steps.done(step);
    steps.count("changed_paths", report.changed_paths);
    match report.outcome {
        Outcome::Published(_) => Ok(steps.answer),
        other => Err(format!("nothing was published: {other:?}").into()),
    }
}

fn now_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
