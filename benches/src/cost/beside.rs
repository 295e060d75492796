//! What stands beside the gateway's costs: the same made by hand, or by programs that people use for it.
//!
//! A session is a private copy of a project, with processes of its own. Of what is measured here each has
//! some of that and none has all of it: no record, no limits, no fence but namespaces.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Costs, Options, seconds};
use crate::input::{Inputs, git, run};
use crate::measure::allow;
use crate::{Result, progress};

/// The image of the tests, for containers beside.
const IMAGE: &str = "sandstack-test:debian";

/// Makes an overlay of the project in a mount namespace and runs `true` there, as process 1 of its own.
const BY_HAND: &str = "set -e; mkdir -p upper work merged; exec unshare --mount --pid --ipc --fork sh -ec \
    'mount -t overlay overlay -o \"lowerdir=$0,upperdir=upper,workdir=work\" merged; \
     cd merged; exec chroot / /bin/true' \"$1\"";

pub(super) fn measure(
    costs: &mut Costs,
    dir: &Path,
    inputs: &Inputs,
    options: Options,
) -> Result<()> {
    progress("what others take");
    allow(Some(super::library::PATIENCE));
    let times = options.times.max(5) * 4;
    let dir = dir.join("beside");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let mut note = |name: &str, work: &mut dyn FnMut(u32) -> Result<()>| -> Result<()> {
        let mut passed = Vec::new();
        for number in 0..times {
            passed.push(seconds(|| work(number))?.0);
        }
        costs.note(format!("beside: {name}"), "s", &passed);
        Ok(())
    };
    note("`true`", &mut |_| run(&mut Command::new("true")))?;
    note(
        "`unshare` of mounts, processes and IPC, `true`",
        &mut |_| {
            let of = ["--mount", "--pid", "--ipc", "--fork", "true"];
            run(Command::new("unshare").args(of))
        },
    )?;
    note(
        "overlay of the tree, `unshare`, `chroot`, `true`",
        &mut |number| {
            let place = dir.join(format!("overlay-{number}"));
            fs::create_dir(&place)?;
            let mut session = Command::new("sh");
            session.args(["-c", BY_HAND, "sh"]).arg(&inputs.tree);
            run(session.current_dir(place))
        },
    )?;
    // Of a repository of its own, so that the tree stays what it is.
    let repository = dir.join("repository");
    let mut clone = git(&dir);
    clone.args(["clone", "--quiet", "--bare", "--shared"]);
    run(clone.arg(&inputs.tree).arg(&repository))?;
    let worktrees = options.times.max(3);
    let mut passed = Vec::new();
    for number in 0..worktrees {
        let place = dir.join(format!("worktree-{number}"));
        let mut add = git(&repository);
        add.args(["worktree", "add", "--quiet", "--detach"])
            .arg(&place);
        passed.push(seconds(|| run(&mut add))?.0);
        fs::remove_dir_all(&place)?;
    }
    costs.note("beside: `git worktree add` of the tree", "s", &passed);
    containers(costs, times)?;
    fs::remove_dir_all(&dir)?;
    Ok(())
}

/// With Docker, if it is there.
fn containers(costs: &mut Costs, times: u32) -> Result<()> {
    let there = Command::new("docker")
        .args(["image", "inspect", IMAGE])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !there.is_ok_and(|status| status.success()) {
        progress(&format!(
            "SKIPPED: containers, without Docker and the image {IMAGE}"
        ));
        return Ok(());
    }
    let docker = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("docker").args(arguments).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?.trim().to_owned()),
            false => Err(format!(
                "docker {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            )
            .into()),
        }
    };
    let container = docker(&["run", "--detach", "--rm", IMAGE, "sleep", "3600"])?;
    let mut measured = || -> Result<()> {
        let mut passed = Vec::new();
        for _ in 0..times {
            passed.push(seconds(|| docker(&["exec", &container, "true"]))?.0);
        }
        costs.note("beside: `docker exec` of `true`", "s", &passed);
        let mut passed = Vec::new();
        for _ in 0..times.min(10) {
            passed.push(seconds(|| docker(&["run", "--rm", IMAGE, "true"]))?.0);
        }
        costs.note("beside: `docker run` of `true`", "s", &passed);
        Ok(())
    };
    let measured = measured();
    docker(&["rm", "--force", &container])?;
    measured
}
