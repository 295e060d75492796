//! What others do to containers: the sandbox shows it, and comes back with its work.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::rig::{Rig, Setup, docker_image, needs_root, until};

/// How long a daemon of the test's own may take to start.
const DAEMON_PATIENCE: Duration = Duration::from_secs(60);

/// Over `/dev/fuse`, so that commands go on over a killed gateway.
const FUSE: &str = "[views]\ntransport = \"fuse\"\n";

fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "docker {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn record(rig: &Rig, sandbox: &str) -> Value {
    let request = json!({ "sandbox_id": sandbox });
    rig.call("inspect_sandbox", request).ok()["sandbox"].clone()
}

fn until_state(rig: &Rig, sandbox: &str, state: &str) -> Value {
    until(state, || record(rig, sandbox)["state"] == state);
    record(rig, sandbox)
}

fn containers(filter: &str) -> String {
    docker(&["ps", "--all", "--quiet", "--filter", filter])
}

struct Sandbox<'r> {
    rig: &'r Rig,
    id: String,
    session: String,
    command: Value,
}

impl<'r> Sandbox<'r> {
    fn start(rig: &'r Rig, image: &str) -> Sandbox<'r> {
        let project = rig.project("project", &[("a", b"one\n")]);
        let id = rig.sandbox_in(&project, Some(image), json!({}));
        let session = rig.session(&id);
        rig.sh(&id, &session, "echo mine > work");
        let request = json!({ "sandbox_id": id, "workspace_session_id": session, "tty": false,
            "cmd": "read line; cat work", "keep_stdin_open": true, "yield_time_ms": 0 });
        let command = rig.call("exec_command", request).ok();
        Sandbox {
            rig,
            id,
            session,
            command,
        }
    }

    fn name(&self) -> String {
        format!("sandstack-{}", self.id)
    }

    /// The command that was there all the time reads its line and ends.
    fn command_goes_on(&self) {
        let request = json!({ "command_session_id": self.command["command_session_id"],
            "stdin": "\n", "yield_time_ms": 30_000 });
        let ended = self.rig.call("write_command_stdin", request).ok();
        assert_eq!(ended["exit_code"], 0, "{ended:#}");
        assert_eq!(ended["output"]["content"], "mine\n", "{ended:#}");
    }

    fn destroy(self) {
        let request = json!({ "sandbox_id": self.id, "force": true });
        self.rig.call("destroy_sandbox", request).ok();
        self.rig.assert_no_debris();
        assert_eq!(containers(&format!("name={}", self.name())), "");
    }
}

#[test]
fn a_paused_container_says_so_and_goes_on() {
    let Some(image) = docker_image() else { return };
    let mut rig = Rig::start_as(Setup {
        config: FUSE,
        ..Setup::default()
    });
    let (id, session, command) = {
        let sandbox = Sandbox::start(&rig, image);
        docker(&["pause", &sandbox.name()]);
        let shown = until_state(&rig, &sandbox.id, "failed");
        let reason = shown["state_reason"].as_str().unwrap();
        assert!(
            reason.contains("is paused") && reason.contains("docker unpause"),
            "{reason}"
        );
        // Nobody hangs: what needs the container is refused, the rest is done.
        let request = json!({ "sandbox_id": sandbox.id, "cmd": "true" });
        assert!(
            rig.call("exec_command", request)
                .refused("conflict")
                .contains("paused")
        );
        let request = json!({ "workspace_session_id": sandbox.session, "force": true });
        assert!(
            rig.call("destroy_workspace_session", request)
                .refused("conflict")
                .contains("paused")
        );
        let request = json!({ "sandbox_id": sandbox.id, "workspace_session_id": sandbox.session, "path": "work" });
        assert_eq!(rig.call("file_read", request).ok()["content"], "mine\n");
        docker(&["unpause", &sandbox.name()]);
        until_state(&rig, &sandbox.id, "ready");
        assert_eq!(rig.sh(&sandbox.id, &sandbox.session, "cat work"), "mine\n");
        docker(&["pause", &sandbox.name()]);
        until_state(&rig, &sandbox.id, "failed");
        (sandbox.id, sandbox.session, sandbox.command)
    };
    // A gateway that starts meanwhile leaves it as it is.
    rig.kill_worker();
    let shown = record(&rig, &id);
    assert_eq!(shown["state"], "failed", "{shown:#}");
    let sandbox = Sandbox {
        rig: &rig,
        id,
        session,
        command,
    };
    docker(&["unpause", &sandbox.name()]);
    until_state(&rig, &sandbox.id, "ready");
    sandbox.command_goes_on();
    // One that is paused can be destroyed.
    docker(&["pause", &sandbox.name()]);
    until_state(&rig, &sandbox.id, "failed");
    sandbox.destroy();
}

#[test]
fn a_container_that_went_comes_back_with_the_work() {
    let Some(image) = docker_image() else { return };
    let rig = Rig::start();
    let sandbox = Sandbox::start(&rig, image);
    let recovered = || {
        let request = json!({ "name": "sandbox.recovered" });
        let events = rig.call("events", request).ok();
        events["events"].as_array().unwrap().clone()
    };
    let name = sandbox.name();
    let ways: [&[&str]; 3] = [
        &["kill", &name],
        &["rm", "--force", &name],
        &["stop", "--time", "1", &name],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let before = recovered().len();
        docker(way);
        until("the sandbox to come back", || recovered().len() > before);
        let shown = until_state(&rig, &sandbox.id, "ready");
        assert_eq!(shown["session_count"], 1);
        let said = rig.sh(
            &sandbox.id,
            &sandbox.session,
            "cat work; echo again >> log; wc -l < log",
        );
        assert_eq!(said.trim(), format!("mine\n{}", number + 1));
    }
    let reasons: Vec<String> = recovered()
        .iter()
        .map(|event| event["details"]["reason"].to_string())
        .collect();
    assert!(
        reasons.iter().any(|reason| reason.contains("code 137")),
        "{reasons:?}"
    );
    // What ran in it is told to be lost, not to run for ever.
    let request = json!({ "sandbox_id": sandbox.id });
    let listed = rig.call("list_commands", request).ok();
    assert!(!listed.to_string().contains("\"running\""), "{listed:#}");
    sandbox.destroy();
}

#[test]
fn a_container_of_nobody_is_removed() {
    let Some(image) = docker_image() else { return };
    let mut rig = Rig::start();
    let sandbox = Sandbox::start(&rig, image);
    let labels = docker(&[
        "inspect",
        "--format",
        "{{ index .Config.Labels \"sandstack.instance\" }}",
        &sandbox.name(),
    ]);
    let label = format!("sandstack.instance={}", labels.trim());
    let id = sandbox.id.clone();
    let session = sandbox.session.clone();
    rig.stop();
    let stray = docker(&[
        "create",
        "--label",
        &label,
        "--label",
        "sandstack.sandbox=sb-none",
        image,
        "/bin/true",
    ]);
    rig.spawn();
    rig.await_socket();
    until("the stray container to go", || {
        !containers(&format!("label={label}")).contains(&stray[..12])
    });
    assert_eq!(rig.sh(&id, &session, "cat work"), "mine\n");
    // One that cannot be made leaves nothing of the whole batch.
    let request = json!({ "workspace_root": rig.dir.join("project"), "image": image, "count": 3,
        "resources": { "memory_bytes": 4096 } });
    let answer = rig.call("create_sandbox", request);
    assert_ne!(answer.status, 200, "{:#}", answer.body);
    let listed = rig.call("list_sandboxes", json!({})).ok();
    assert_eq!(
        listed["sandboxes"].as_array().unwrap().len(),
        1,
        "{listed:#}"
    );
    assert_eq!(containers(&format!("label={label}")).lines().count(), 1);
    let request = json!({ "sandbox_id": id, "force": true });
    rig.call("destroy_sandbox", request).ok();
    assert_eq!(containers(&format!("label={label}")), "");
    rig.assert_no_debris();
}

/// A Docker daemon of the test's own, which it may stop and start.
struct Daemon {
    dir: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    fn start() -> Daemon {
        let dir = std::env::temp_dir().join(format!("dockerd-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut daemon = Daemon { dir, child: None };
        daemon.run();
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    fn run(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))
            .unwrap();
        // In a network of its own: one without a bridge removes that of others.
        let mut command = Command::new("unshare");
        command
            .args(["--net", "dockerd"])
            .arg("--host")
            .arg(format!("unix://{}", self.socket().display()))
            .arg("--pidfile")
            .arg(self.dir.join("pid"))
            .arg("--data-root")
            .arg(self.dir.join("data"))
            .arg("--exec-root")
            .arg(self.dir.join("exec"))
            .args([
                "--bridge=none",
                "--iptables=false",
                "--ip6tables=false",
                "--ip-forward=false",
            ])
            .args(["--ip-masq=false", "--userland-proxy=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while !self.docker(&["version"]).status.success() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < DAEMON_PATIENCE,
                "dockerd did not start:\n{}",
                fs::read_to_string(self.dir.join("log")).unwrap()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn docker(&self, arguments: &[&str]) -> std::process::Output {
        Command::new("docker")
            .arg("--host")
            .arg(format!("unix://{}", self.socket().display()))
            .args(arguments)
            .output()
            .unwrap()
    }

    fn load(&self, image: &str) {
        let archive = self.dir.join("image.tar");
        docker(&["save", "--output", archive.to_str().unwrap(), image]);
        let loaded = self.docker(&["load", "--input", archive.to_str().unwrap()]);
        assert!(loaded.status.success(), "{loaded:?}");
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
        // What it left mounted, innermost first.
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in table.lines().rev() {
            let place = line.split(' ').nth(1).unwrap_or_default();
            if Path::new(place).starts_with(&self.dir) {
                let _ = Command::new("umount").args(["-l", place]).status();
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn sandboxes_come_back_with_docker() {
    const IMAGE: &str = "sandstack-test:busybox";
    if docker_image().is_none() || !needs_root("a Docker daemon of the test's own") {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.load(IMAGE);
    let config = format!("[docker]\nsocket = \"{}\"\n", daemon.socket().display());
    let rig = Rig::start_as(Setup {
        config: &config,
        longer: Duration::from_secs(120),
        ..Setup::default()
    });
    let project = rig.project("project", &[("a", b"one\n")]);
    let sandbox = rig.sandbox_in(&project, Some(IMAGE), json!({}));
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo mine > work");
    daemon.stop();
    let shown = until_state(&rig, &sandbox, "failed");
    assert!(shown["state_reason"].as_str().is_some(), "{shown:#}");
    let read = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "path": "work" });
    assert_eq!(rig.call("file_read", read).ok()["content"], "mine\n");
    let request = json!({ "workspace_root": project, "image": IMAGE });
    assert!(
        rig.call("create_sandbox", request)
            .refused("unavailable")
            .contains("Docker")
    );
    daemon.run();
    until_state(&rig, &sandbox, "ready");
    assert_eq!(rig.sh(&sandbox, &session, "cat work"), "mine\n");
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}
