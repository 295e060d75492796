//! The demo: the main job on a real project, told step by step.
//!
//! Starts a gateway of its own on a temporary state directory, and does everything else as a person
//! would: by the three command lines, whose calls and answers it shows. At the end it removes
//! everything and looks for what might be left.
//!
//! `demo [PROJECT]`; the default project is a copy of the directory it is run in, without what was
//! built there (directories with a `CACHEDIR.TAG`). Nothing in the project is changed.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long the gateway may take to answer.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// Lines that the file which all three edit must have.
const MIN_LINES: usize = 20;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let project = std::env::args_os()
        .nth(1)
        .filter(|arg| !arg.is_empty())
        .map(PathBuf::from);
    let begun = Instant::now();
    match Demo::start(project.as_deref()).and_then(|demo| demo.run()) {
        Ok(()) => {
            tell(&format!(
                "\nDone in {:.1} s.",
                begun.elapsed().as_secs_f64()
            ));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tell(text: &str) {
    // A reader who went away is told nothing more.
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn heading(number: u32, text: &str) {
    let (bold, plain) = if std::io::stdout().is_terminal() {
        ("\x1b[1m", "\x1b[0m")
    } else {
        ("", "")
    };
    tell(&format!("\n{bold}{number}. {text}{plain}"));
}

struct Demo {
    project: PathBuf,
    /// Beside this program.
    bin: PathBuf,
    state: PathBuf,
    gateway: Child,
    /// Calls made so far, to name them.
    calls: Cell<u32>,
    /// Namespaces seen before the first sandbox, and those of sandboxes.
    foreign: BTreeSet<PathBuf>,
    /// Views that others have mounted, as lines of the mount table.
    foreign_views: BTreeSet<String>,
    ours: BTreeSet<PathBuf>,
}

/// What the file that everybody edits is, and the lines they choose.
struct Shared {
    path: String,
    top: usize,
    bottom: usize,
}

impl Demo {
    fn start(project: Option<&Path>) -> Result<Demo, Failure> {
        let exe = std::env::current_exe()?;
        let bin = exe
            .parent()
            .ok_or("this program has no directory")?
            .to_path_buf();
        let state = std::env::temp_dir().join(format!("sandstack-demo-{}", std::process::id()));
        fs::create_dir_all(&state)?;
        let project = match project {
            Some(project) => fs::canonicalize(project)
                .map_err(|error| format!("{}: {error}", project.display()))?,
            None => {
                let copy = state.join("project");
                copy_sources(Path::new("."), &copy)?;
                copy
            }
        };
        let log = fs::File::create(state.join("gateway.log"))?;
        let gateway = Command::new(bin.join("sandbox-gateway"))
            .args(["serve", "--state-dir"])
            .arg(&state)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| {
                format!(
                    "{}: {error}; run `make build`",
                    bin.join("sandbox-gateway").display()
                )
            })?;
        let mut demo = Demo {
            project,
            bin,
            state,
            gateway,
            calls: Cell::new(0),
            foreign: all_namespaces()?,
            foreign_views: all_views()?,
            ours: BTreeSet::new(),
        };
        demo.await_gateway()?;
        Ok(demo)
    }

    fn await_gateway(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.state.join("gateway.sock")).is_err() {
            if self.gateway.try_wait()?.is_some() || begun.elapsed() > START_DEADLINE {
                let log = fs::read_to_string(self.state.join("gateway.log")).unwrap_or_default();
                return Err(format!("the gateway did not start:\n{log}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn run(mut self) -> Result<(), Failure> {
        let told = self.tell_story();
        if let Err(error) = &told {
            tell(&format!("\n   This went wrong: {error}"));
        }
        let left = self.clear_away();
        told.and(left)
    }

    fn tell_story(&mut self) -> Result<(), Failure> {
        tell("Sandstack: several workspaces on one project at once, and a safe way back.");
        tell(&format!(
            "The project is {}; nothing in it will be changed.",
            self.project.display()
        ));

        heading(1, "A sandbox: the project becomes an immutable base layer");
        let project = self.project.clone();
        let sandbox = self.shown("manager", &["create_sandbox".as_ref(), project.as_os_str()])?;
        let id = text(&sandbox["sandboxes"][0]["sandbox_id"])?;

        heading(2, "The same project again: nothing is read or copied twice");
        let again = self.quiet("manager", &["create_sandbox".as_ref(), project.as_os_str()])?;
        let import = &again["import"];
        tell(&format!(
            "   {} files found, {} re-used, {} hashed, {} bytes stored, {} ms",
            import["files"],
            import["files_reused"],
            import["files_hashed"],
            import["bytes_stored"],
            import["duration_ms"]
        ));
        let second = text(&again["sandboxes"][0]["sandbox_id"])?;
        self.quiet("manager", &["destroy_sandbox", &second].map(OsStr::new))?;

        heading(3, "Three sessions, each with a private view of the project");
        let names = ["alice", "bob", "carol"];
        let mut sessions = Vec::new();
        for name in names {
            let begun = Instant::now();
            let session = self.quiet(
                "runtime",
                &["--sandbox-id", &id, "create_workspace_session", name].map(OsStr::new),
            )?;
            let session_id = text(&session["workspace_session_id"])?;
            tell(&format!(
                "   {name:<6} {session_id}   in {:.0} ms",
                begun.elapsed().as_secs_f64() * 1000.0
            ));
            sessions.push(session_id);
        }

        heading(4, "Real commands in all three at the same time");
        let shared = self.choose_file(&id)?;
        let commands = [
            format!(
                "sed -i '{}s/$/ (edited by alice)/' '{path}' && wc -l '{path}' && (git status --short 2>/dev/null | head -3; find . -type f | wc -l)",
                shared.top,
                path = shared.path
            ),
            format!(
                "sed -i '{}s/$/ (edited by bob)/' '{path}' && echo 'made by bob' > made-by-bob.txt && grep -c '' '{path}'",
                shared.bottom,
                path = shared.path
            ),
            format!(
                "sed -i '{}s/$/ (edited by carol)/' '{path}' && mkdir -p carol && echo 'dear diary' > carol/diary.txt && ls carol",
                shared.top,
                path = shared.path
            ),
        ];
        self.run_together(&id, &names, &sessions, &commands)?;
        for pid in self.processes() {
            self.ours.extend(namespaces_of(pid));
        }

        heading(
            5,
            "Publish: alice first, then bob, whose edit of the same file is merged",
        );
        for index in [0, 1] {
            self.shown(
                "runtime",
                &[
                    "publish_workspace_session",
                    &sessions[index],
                    "--message",
                    names[index],
                ]
                .map(OsStr::new),
            )?;
        }
        let bobs_publish = self.last_request();

        heading(
            6,
            "Carol edited alice's line: her publish is rejected whole, and her work is kept",
        );
        let rejected = self.shown(
            "runtime",
            &["publish_workspace_session", &sessions[2]].map(OsStr::new),
        )?;
        if rejected["outcome"] != "conflict" {
            return Err(format!(
                "carol's publish should conflict, and the answer is {}",
                rejected["outcome"]
            )
            .into());
        }
        let kept = self.quiet(
            "runtime",
            &["inspect_workspace_session", &sessions[2], "--changes"].map(OsStr::new),
        )?;
        let changes = kept["changes"].as_array().map(Vec::len).unwrap_or_default();
        tell(&format!(
            "   carol's session is still {} with {changes} changed paths",
            kept["session"]["state"]
        ));

        heading(7, "Who owns which lines of the merged file");
        self.shown(
            "runtime",
            &["--sandbox-id", &id, "file_blame", &shared.path].map(OsStr::new),
        )?;

        heading(8, "Who read and wrote it");
        self.shown(
            "observability",
            &[
                "file_activity",
                "--sandbox-id",
                &id,
                "--path",
                &shared.path,
                "--kinds",
                "read",
                "--kinds",
                "write",
            ]
            .map(OsStr::new),
        )?;

        heading(9, "Where the time of bob's publish went");
        self.shown("observability", &["trace", &bobs_publish].map(OsStr::new))?;

        heading(10, "Where the time of a command went");
        self.quiet(
            "runtime",
            &[
                "--sandbox-id",
                &id,
                "exec_command",
                "--workspace-session-id",
                &sessions[2],
                "true",
            ]
            .map(OsStr::new),
        )?;
        self.shown(
            "observability",
            &["trace", "--operation", "exec_command"].map(OsStr::new),
        )?;
        self.in_docker()
    }

    /// A text file of the project that has enough lines: a README if there is one.
    fn choose_file(&self, sandbox: &str) -> Result<Shared, Failure> {
        let mut best: Option<(bool, usize, String)> = None;
        for entry in fs::read_dir(&self.project)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let plain = name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            if !plain || !entry.file_type()?.is_file() || entry.metadata()?.len() > 1 << 20 {
                continue;
            }
            let Ok(content) = fs::read_to_string(entry.path()) else {
                continue;
            };
            let lines = content.lines().count();
            let candidate = (name.starts_with("README"), lines, name);
            if lines >= MIN_LINES && best.as_ref().is_none_or(|best| *best < candidate) {
                best = Some(candidate);
            }
        }
        if let Some((_, lines, path)) = best {
            return Ok(Shared {
                path,
                top: 1,
                bottom: lines,
            });
        }
        // A project without one gets one, as any publish would bring it.
        let path = "notes.txt".to_owned();
        let content: String = (1..=MIN_LINES)
            .map(|line| format!("line {line}\n"))
            .collect();
        self.quiet(
            "runtime",
            &["--sandbox-id", sandbox, "file_write", &path, &content].map(OsStr::new),
        )?;
        tell(
            "   (the project has no text file of some length at its top: one was published first)",
        );
        Ok(Shared {
            path,
            top: 1,
            bottom: MIN_LINES,
        })
    }

    fn run_together(
        &self,
        sandbox: &str,
        names: &[&str],
        sessions: &[String],
        commands: &[String],
    ) -> Result<(), Failure> {
        let mut running = Vec::new();
        for (session, command) in sessions.iter().zip(commands) {
            let arguments = [
                "--sandbox-id",
                sandbox,
                "exec_command",
                "--workspace-session-id",
                session,
                "--yield-time-ms",
                "60000",
                command,
            ];
            let child = self
                .cli("runtime", &arguments.map(OsStr::new))
                .arg("--json")
                .stdout(Stdio::piped())
                .spawn()?;
            running.push(child);
        }
        for ((name, command), child) in names.iter().zip(commands).zip(running) {
            let output = child.wait_with_output()?;
            let answer: Value = serde_json::from_slice(&output.stdout)?;
            tell(&format!("   {name} $ {command}"));
            for line in answer["output"]["content"]
                .as_str()
                .unwrap_or_default()
                .lines()
            {
                tell(&format!("   {:width$} | {line}", "", width = name.len()));
            }
            if answer["exit_code"] != 0 {
                return Err(
                    format!("{name}'s command ended with {}: {answer}", answer["status"]).into(),
                );
            }
        }
        Ok(())
    }

    /// The same in a container, where there is Docker with an image that has a shell.
    fn in_docker(&self) -> Result<(), Failure> {
        heading(11, "The same in a container");
        let Some(image) = local_image() else {
            tell(
                "   No Docker with a local image is here; with one, `create_sandbox --image NAME` does it.",
            );
            return Ok(());
        };
        tell(&format!("   image {image}"));
        let project = self.project.clone();
        let created = self.quiet(
            "manager",
            &[
                "create_sandbox".as_ref(),
                project.as_os_str(),
                "--image".as_ref(),
                image.as_ref(),
            ],
        )?;
        let id = text(&created["sandboxes"][0]["sandbox_id"])?;
        let command = "echo in-a-container > made-in-docker.txt && cat made-in-docker.txt && cat /proc/1/comm";
        let answer = self.quiet(
            "runtime",
            &[
                "--sandbox-id",
                &id,
                "exec_command",
                "--yield-time-ms",
                "60000",
                command,
            ]
            .map(OsStr::new),
        )?;
        for line in answer["output"]["content"]
            .as_str()
            .unwrap_or_default()
            .lines()
        {
            tell(&format!("   | {line}"));
        }
        tell(&format!("   published as {}", answer["publish"]["layer"]));
        Ok(())
    }

    /// Ends everything, whatever the story came to, and looks for what is left.
    fn clear_away(&mut self) -> Result<(), Failure> {
        heading(12, "Everything goes");
        let sandboxes = self.quiet("manager", &[OsStr::new("list_sandboxes")])?;
        for sandbox in sandboxes["sandboxes"].as_array().into_iter().flatten() {
            let id = text(&sandbox["sandbox_id"])?;
            self.quiet(
                "manager",
                &["destroy_sandbox", &id, "--force"].map(OsStr::new),
            )?;
        }
        let dirs = fs::read_dir(self.state.join("sandboxes"))?.count();
        let held = all_namespaces()?
            .intersection(&self.ours)
            .filter(|link| !self.foreign.contains(*link))
            .count();
        // Views of others may have come and gone meanwhile; what is there now and was not before is
        // left by this.
        let mounted = all_views()?.difference(&self.foreign_views).count();
        let left = [
            ("views still mounted", mounted),
            (
                "processes of sandboxes still running",
                self.processes().len(),
            ),
            ("namespaces still there", held),
            ("directories of sandboxes left", dirs),
        ];
        if let Some(pid) = rustix::process::Pid::from_raw(self.gateway.id() as i32) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        self.gateway.wait()?;
        fs::remove_dir_all(&self.state)?;
        for (what, count) in left {
            let mark = if count == 0 { "ok" } else { "LEFT" };
            tell(&format!("   {mark:<4} {what}: {count}"));
        }
        match left.iter().find(|(_, count)| *count > 0) {
            Some((what, count)) => Err(format!("{what}: {count}").into()),
            None => Ok(()),
        }
    }

    /// The holders and what they started, by the directories their command lines name.
    fn processes(&self) -> Vec<u32> {
        let needle = self.state.join("sandboxes").to_string_lossy().into_owned();
        pids()
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains(&needle)
            })
            .collect()
    }

    /// Calls and shows the call and the answer as a person would see it. Returns the answer.
    fn shown(&self, cli: &str, arguments: &[&OsStr]) -> Result<Value, Failure> {
        let words: Vec<String> = arguments
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        tell(&format!("   $ sandbox-{cli}-cli {}", words.join(" ")));
        // As a person on a terminal sees it; a change is made once, by the call whose answer is kept.
        self.calls.set(self.calls.get() + 1);
        let id = self.last_request();
        let mut arguments = arguments.to_vec();
        arguments.extend(["--request-id", &id].map(OsStr::new));
        let answer = self.quiet(cli, &arguments)?;
        let color = if std::io::stdout().is_terminal() {
            "always"
        } else {
            "never"
        };
        let output = self
            .cli(cli, &arguments)
            .args(["--output", "text", "--color", color])
            .output()?;
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .for_each(|line| tell(&format!("   {line}")));
        Ok(answer)
    }

    /// The id of the last request that was shown.
    fn last_request(&self) -> String {
        format!("demo-{}-{}", std::process::id(), self.calls.get())
    }

    /// Calls and returns the answer. A rejected publish is an answer too.
    fn quiet(&self, cli: &str, arguments: &[&OsStr]) -> Result<Value, Failure> {
        let output = self.cli(cli, arguments).arg("--json").output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
        match answer.get("error") {
            Some(error) => Err(format!("{cli} {arguments:?}: {error}").into()),
            None => Ok(answer),
        }
    }

    fn cli(&self, cli: &str, arguments: &[&OsStr]) -> Command {
        let mut command = Command::new(self.bin.join(format!("sandbox-{cli}-cli")));
        command
            .arg("--state-dir")
            .arg(&self.state)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }
}

fn text(value: &Value) -> Result<String, Failure> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("{value} is no text").into())
}

/// The first local image that has a shell, by its name.
fn local_image() -> Option<String> {
    let output = Command::new("docker")
        .args(["images", "--format", "{{.Repository}}:{{.Tag}}"])
        .output()
        .ok()?;
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<&str> = listing
        .lines()
        .filter(|name| !name.contains("<none>"))
        .collect();
    names
        .iter()
        .find(|name| name.starts_with("sandstack-test:"))
        .or(names.first())
        .map(|name| (*name).to_owned())
}

/// Copies a directory, without directories that say that they can be made again.
fn copy_sources(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            // https://bford.info/cachedir/
            if !source.join("CACHEDIR.TAG").exists() {
                copy_sources(&source, &target)?;
            }
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn namespaces_of(pid: u32) -> impl Iterator<Item = PathBuf> {
    ["mnt", "pid", "user"]
        .into_iter()
        .filter_map(move |kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
}

/// Views in the mount table, as its lines.
fn all_views() -> Result<BTreeSet<String>, Failure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounts
        .lines()
        .filter(|line| line.contains(" - fuse sandstack"))
        .map(str::to_owned)
        .collect())
}

/// Every namespace that a process is in.
fn all_namespaces() -> Result<BTreeSet<PathBuf>, Failure> {
    let namespaces: BTreeSet<PathBuf> = pids().flat_map(namespaces_of).collect();
    if namespaces.is_empty() {
        Err("/proc shows no namespaces".into())
    } else {
        Ok(namespaces)
    }
}
