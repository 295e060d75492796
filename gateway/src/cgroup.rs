//! Control groups: limits of a whole local sandbox, where the host lets us set them.
//!
//! Version 2 (`/sys/fs/cgroup`), or the controllers of version 1 beside each other. The holder is
//! put into the group when it starts, and everything that it starts stays in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sandstack_api::management::Resources;
use sandstack_api::{ErrorCode, SandboxId};

use crate::failure::{Failure, Result};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// The period that processor quotas are counted in, in microseconds (the kernel's default).
const PERIOD_US: u64 = 100_000;

/// The groups of one sandbox: one directory, or one for each controller.
pub(crate) struct Group {
    dirs: Vec<PathBuf>,
}

impl Group {
    /// Puts a process in.
    pub(crate) fn enter(&self, pid: u32) -> Result<()> {
        for dir in &self.dirs {
            write(&dir.join("cgroup.procs"), &pid.to_string())
                .map_err(|error| refused(dir, &error))?;
        }
        Ok(())
    }
}

/// Makes the groups of a sandbox with its limits; `None` if it has none to be held to.
pub(crate) fn for_sandbox(id: &SandboxId, resources: &Resources) -> Result<Option<Group>> {
    let limited = resources.cpus.is_some()
        || resources.memory_bytes.is_some()
        || resources.pids_max.is_some();
    if !limited {
        return Ok(None);
    }
    let mut group = Group { dirs: Vec::new() };
    let mut limit = |base: PathBuf, files: &[(&str, String)]| -> Result<()> {
        let dir = base.join(name(id));
        fs::create_dir_all(&dir).map_err(|error| refused(&dir, &error))?;
        for (file, value) in files {
            write(&dir.join(file), value).map_err(|error| refused(&dir.join(file), &error))?;
        }
        group.dirs.push(dir);
        Ok(())
    };
    let quota = resources.cpus.map(|cpus| (cpus * PERIOD_US as f64) as u64);
    if is_version_2() {
        let mut files = Vec::new();
        files.extend(quota.map(|quota| ("cpu.max", format!("{quota} {PERIOD_US}"))));
        files.extend(
            resources
                .memory_bytes
                .map(|bytes| ("memory.max", bytes.to_string())),
        );
        files.extend(
            resources
                .pids_max
                .map(|pids| ("pids.max", pids.to_string())),
        );
        enable_controllers(Path::new(ROOT));
        limit(PathBuf::from(ROOT), &files)?;
    } else {
        if let Some(quota) = quota {
            let files = [
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ];
            limit(Path::new(ROOT).join("cpu"), &files)?;
        }
        if let Some(bytes) = resources.memory_bytes {
            limit(
                Path::new(ROOT).join("memory"),
                &[("memory.limit_in_bytes", bytes.to_string())],
            )?;
        }
        if let Some(pids) = resources.pids_max {
            limit(
                Path::new(ROOT).join("pids"),
                &[("pids.max", pids.to_string())],
            )?;
        }
    }
    Ok(Some(group))
}

/// Removes the groups of a sandbox, which must be empty.
pub(crate) fn remove(id: &SandboxId) -> Result<()> {
    let bases = ["", "cpu", "memory", "pids"];
    for base in bases {
        let dir = Path::new(ROOT).join(base).join(name(id));
        match fs::remove_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&dir, &error)),
        }
    }
    Ok(())
}

fn name(id: &SandboxId) -> String {
    format!("sandstack-{id}")
}

fn is_version_2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// Lets the groups below have controllers. Where it fails the limit's file is missing, and that is
/// the error that is shown.
fn enable_controllers(root: &Path) {
    for controller in ["+cpu", "+memory", "+pids"] {
        if let Err(error) = write(&root.join("cgroup.subtree_control"), controller) {
            tracing::debug!(controller, %error, "a controller could not be enabled");
        }
    }
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value)
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        ErrorCode::Unsupported,
        format!(
            "limits of cpus, memory and processes need a control group, and {} cannot be used: {error}; run the \
             gateway as root or in a delegated control group, or leave `resources` out",
            path.display()
        ),
    )
}
