//! Costs through the gateway: with the command lines, and with bare requests to its socket.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Costs, Options, seconds};
use crate::input::Inputs;
use crate::measure::allow;
use crate::peer::clear;
use crate::{Result, progress};

/// How long the gateway may take to answer, or to end.
const DEADLINE: Duration = Duration::from_secs(20);

/// A gateway of the bench's own; ended when dropped.
pub(super) struct Gateway {
    child: Child,
    bin: PathBuf,
    state: PathBuf,
}

impl Gateway {
    pub(super) fn start(state: &Path) -> Result<Gateway> {
        clear(state);
        if state.exists() {
            fs::remove_dir_all(state)?;
        }
        fs::create_dir_all(state)?;
        let exe = std::env::current_exe()?;
        let bin = exe.parent().ok_or("this program has no directory")?;
        let log = fs::File::create(state.with_extension("log"))?;
        let child = Command::new(bin.join("sandbox-gateway"))
            .args(["serve", "--state-dir"])
            .arg(state)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("sandbox-gateway, beside this program: {error}"))?;
        let mut gateway = Gateway {
            child,
            bin: bin.to_path_buf(),
            state: state.to_path_buf(),
        };
        let begun = Instant::now();
        while UnixStream::connect(gateway.socket()).is_err() {
            if gateway.child.try_wait()?.is_some() || begun.elapsed() > DEADLINE {
                return Err("the gateway did not start".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(gateway)
    }

    fn socket(&self) -> PathBuf {
        self.state.join("gateway.sock")
    }

    /// A call by one of the command lines, with the time of its process.
    pub(super) fn command_line(&self, cli: &str, arguments: &[&str]) -> Result<Value> {
        let output = Command::new(self.bin.join(format!("sandbox-{cli}-cli")))
            .arg("--state-dir")
            .arg(&self.state)
            .args(arguments)
            .arg("--json")
            .stdin(Stdio::null())
            .output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
        match answer.get("error") {
            Some(error) => Err(format!("{cli} {arguments:?}: {error}").into()),
            None => Ok(answer),
        }
    }

    /// A call by a bare request, as any program can make it.
    pub(super) fn request(&self, authority: &str, operation: &str, body: &Value) -> Result<Value> {
        let token =
            fs::read_to_string(self.state.join("tokens").join(format!("{authority}.token")))?;
        let body = body.to_string();
        let mut stream = UnixStream::connect(self.socket())?;
        write!(
            stream,
            "POST /v1/{operation} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            token.trim(),
            body.len()
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8(answer)?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .ok_or("the gateway's answer is not HTTP")?;
        if !head.starts_with("HTTP/1.1 200") {
            return Err(format!("{operation}: {answer}").into());
        }
        Ok(serde_json::from_str(body)?)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let begun = Instant::now();
        while !matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
            if begun.elapsed() > DEADLINE {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        clear(&self.state);
    }
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    value
        .as_str()
        .ok_or_else(|| format!("{name}: {value} is no text").into())
}

pub(super) fn measure(
    costs: &mut Costs,
    dir: &Path,
    inputs: &Inputs,
    options: Options,
) -> Result<()> {
    progress("the gateway");
    allow(Some(Duration::from_secs(900)));
    let gateway = Gateway::start(&dir.join("gateway"))?;
    let project = inputs.tree.to_str().ok_or("the tree's path is not text")?;
    let (import, sandbox) =
        seconds(|| gateway.command_line("manager", &["create_sandbox", project]))?;
    costs.note("gateway: create_sandbox on the tree, first", "s", &[import]);
    let id = text(&sandbox["sandboxes"][0]["sandbox_id"], "sandbox_id")?.to_owned();
    let (again, second) =
        seconds(|| gateway.command_line("manager", &["create_sandbox", project]))?;
    costs.note("gateway: create_sandbox on the tree, again", "s", &[again]);
    let second = text(&second["sandboxes"][0]["sandbox_id"], "sandbox_id")?;
    let measured = operations(costs, &gateway, &id, options);
    for sandbox in [id.as_str(), second] {
        gateway.command_line("manager", &["destroy_sandbox", sandbox, "--force"])?;
    }
    measured?;
    if options.huge > 0 {
        allow(Some(super::library::PATIENCE * 2));
        let base = super::library::huge(dir, options.huge)?;
        progress("the gateway on the huge base");
        on_huge(costs, &gateway, &base, options)?;
    }
    Ok(())
}

/// Sessions and commands on a base of very many files.
fn on_huge(costs: &mut Costs, gateway: &Gateway, base: &Path, options: Options) -> Result<()> {
    let body = json!({ "workspace_root": base });
    let (import, sandbox) = seconds(|| gateway.request("management", "create_sandbox", &body))?;
    let about = format!("a base of {} files", options.huge);
    costs.note(
        format!("gateway: create_sandbox on {about}"),
        "s",
        &[import],
    );
    let id = text(&sandbox["sandboxes"][0]["sandbox_id"], "sandbox_id")?;
    let (mut made, mut first) = (Vec::new(), Vec::new());
    for _ in 0..options.times.max(5) * 4 {
        let body = json!({ "sandbox_id": id });
        let (time, session) =
            seconds(|| gateway.request("runtime", "create_workspace_session", &body))?;
        made.push(time);
        let body = json!({ "sandbox_id": id, "cmd": "true",
            "workspace_session_id": session["workspace_session_id"] });
        first.push(seconds(|| gateway.request("runtime", "exec_command", &body))?.0);
    }
    costs.note(
        format!("gateway: create session on {about}, request"),
        "s",
        &made,
    );
    costs.note(
        format!("gateway: first exec `true` on {about}, request"),
        "s",
        &first,
    );
    let body = json!({ "sandbox_id": id, "force": true });
    gateway.request("management", "destroy_sandbox", &body)?;
    Ok(())
}

fn operations(costs: &mut Costs, gateway: &Gateway, id: &str, options: Options) -> Result<()> {
    let times = options.times.max(5) * 4;
    let mut start = Vec::new();
    for _ in 0..times {
        let program = gateway.bin.join("sandbox-runtime-cli");
        start.push(
            seconds(|| {
                Ok(Command::new(&program)
                    .arg("--version")
                    .stdout(Stdio::null())
                    .status()?)
            })?
            .0,
        );
    }
    costs.note("gateway: a command line that does nothing", "s", &start);

    let mut sessions = Vec::new();
    let mut create = |cli: bool, costs: &mut Costs| -> Result<()> {
        let mut passed = Vec::new();
        for number in 0..times {
            let name = format!("bench-{cli}-{number}");
            let (time, session) = seconds(|| {
                if cli {
                    gateway.command_line(
                        "runtime",
                        &["--sandbox-id", id, "create_workspace_session", &name],
                    )
                } else {
                    gateway.request(
                        "runtime",
                        "create_workspace_session",
                        &json!({"sandbox_id": id, "name": name}),
                    )
                }
            })?;
            passed.push(time);
            sessions
                .push(text(&session["workspace_session_id"], "workspace_session_id")?.to_owned());
        }
        let how = if cli { "command line" } else { "request" };
        costs.note(format!("gateway: create session, {how}"), "s", &passed);
        Ok(())
    };
    create(true, costs)?;
    create(false, costs)?;

    let session = sessions.first().ok_or("there is no session")?;
    for cli in [true, false] {
        let mut passed = Vec::new();
        for _ in 0..times {
            let (time, answer) = seconds(|| {
                if cli {
                    gateway.command_line(
                        "runtime",
                        &[
                            "--sandbox-id",
                            id,
                            "exec_command",
                            "--workspace-session-id",
                            session,
                            "true",
                        ],
                    )
                } else {
                    gateway.request(
                        "runtime",
                        "exec_command",
                        &json!({"sandbox_id": id, "workspace_session_id": session, "cmd": "true"}),
                    )
                }
            })?;
            if answer["exit_code"] != 0 {
                return Err(format!("`true` did not end well: {answer}").into());
            }
            passed.push(time);
        }
        let how = if cli { "command line" } else { "request" };
        costs.note(format!("gateway: exec `true`, {how}"), "s", &passed);
    }
    Ok(())
}
