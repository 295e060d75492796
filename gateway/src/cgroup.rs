//! Control groups: limits of a whole local sandbox, where the host lets us set them.
//!
//! Version 2 (`/sys/fs/cgroup`), or the controllers of version 1 beside each other. The holder is
//! put into the group when it starts, and everything that it starts stays in.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sandstack_api::management::Resources;
use sandstack_api::observability::CgroupRecord;
use sandstack_api::{ErrorCode, SandboxId};

use crate::failure::{Failure, Result};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// The period that processor quotas are counted in, in microseconds (the kernel's default).
const PERIOD_US: u64 = 100_000;

/// Where a sandbox's groups can be: in version 2 one, in version 1 one for each controller.
const BASES: [&str; 4] = ["", "cpu", "memory", "pids"];

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

/// Makes the groups of a sandbox with the limits that it was asked to have, and `processes` if it was not
/// asked for a limit of these. `None` if groups cannot be made, and nothing was asked for.
pub(crate) fn for_sandbox(
    id: &SandboxId,
    resources: &Resources,
    processes: u64,
) -> Result<Option<Group>> {
    let asked = resources.cpus.is_some()
        || resources.memory_bytes.is_some()
        || resources.pids_max.is_some();
    let resources = Resources {
        pids_max: resources.pids_max.or(Some(processes)),
        ..*resources
    };
    match make(id, &resources) {
        Ok(group) => Ok(Some(group)),
        Err(error) if asked => Err(error),
        Err(error) => {
            tracing::info!(sandbox = %id, %error, "a sandbox has no control group");
            remove(id)?;
            Ok(None)
        }
    }
}

fn make(id: &SandboxId, resources: &Resources) -> Result<Group> {
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
    Ok(group)
}

/// Makes a group and removes it again: the version of control groups here.
pub(crate) fn attempt() -> io::Result<u32> {
    let (version, base) = match is_version_2() {
        true => (2, ""),
        false => (1, "pids"),
    };
    let dir = Path::new(ROOT)
        .join(base)
        .join(format!("sandstack-doctor-{}", std::process::id()));
    fs::create_dir(&dir)?;
    fs::remove_dir(&dir)?;
    Ok(version)
}

/// Removes the groups of a sandbox: whether they are gone. What is still in one is killed; it ends a moment
/// later.
pub(crate) fn remove(id: &SandboxId) -> Result<bool> {
    let mut gone = true;
    for base in BASES {
        let dir = Path::new(ROOT).join(base).join(name(id));
        match fs::remove_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Where groups cannot be changed, as in a container, that is said of one that is not there, too.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem && !dir.exists() => {}
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                kill_all(&dir);
                gone = false;
            }
            Err(error) => return Err(refused(&dir, &error)),
        }
    }
    Ok(gone)
}

fn kill_all(dir: &Path) {
    // Gone meanwhile: then there is nobody.
    let members = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse().ok()) {
        let Some(pid) = rustix::process::Pid::from_raw(pid) else {
            continue;
        };
        if let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
            tracing::debug!(?pid, %error, "a process of a control group was not killed");
        }
    }
}

/// Files that are read of a group: each has one number, or a key and a number a line.
const FILES: &[&str] = &[
    "cpu.stat",
    "cpu.max",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "memory.current",
    "memory.peak",
    "memory.max",
    "memory.events",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.failcnt",
    "pids.current",
    "pids.peak",
    "pids.max",
];

/// The version of control groups here, and what those of a sandbox say. What cannot be read is told to
/// `failed`.
pub(crate) fn read(
    id: &SandboxId,
    failed: &mut dyn FnMut(&Path, &io::Error),
) -> (u32, Vec<CgroupRecord>) {
    let version = if is_version_2() { 2 } else { 1 };
    let mut groups = Vec::new();
    for base in BASES {
        let dir = Path::new(ROOT).join(base).join(name(id));
        if !dir.exists() {
            continue;
        }
        let mut values = BTreeMap::new();
        for file in FILES {
            match fs::read_to_string(dir.join(file)) {
                Ok(text) => values.extend(numbers(file, &text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failed(&dir.join(file), &error),
            }
        }
        groups.push(CgroupRecord {
            path: dir.to_string_lossy().into_owned(),
            values,
        });
    }
    (version, groups)
}

/// The numbers in the text of a file, by file and key.
fn numbers(file: &str, text: &str) -> Vec<(String, u64)> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        match (words.next()?, words.next()) {
            (number, None) => Some((file.to_owned(), number.parse().ok()?)),
            // A quota and its period, or a key and its number.
            (first, Some(second)) => Some(match first.parse() {
                Ok(number) => (file.to_owned(), number),
                Err(_) => (format!("{file} {first}"), second.parse().ok()?),
            }),
        }
    });
    // `max 100000` is no limit, and no key.
    lines
        .filter(|(key, _)| !key.ends_with(" max") || file == "memory.events")
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_both_versions_are_read() {
        let of = |file: &str, text: &str| numbers(file, text);
        assert_eq!(
            of("memory.current", "4096\n"),
            [("memory.current".to_owned(), 4096)]
        );
        assert_eq!(of("memory.max", "max\n"), []);
        assert_eq!(of("cpu.max", "max 100000\n"), []);
        assert_eq!(
            of("cpu.max", "50000 100000\n"),
            [("cpu.max".to_owned(), 50_000)]
        );
        assert_eq!(of("cpu.cfs_quota_us", "-1\n"), []);
        let stat = of("cpu.stat", "usage_usec 7\nnr_throttled 0\n");
        let expected = [
            ("cpu.stat usage_usec".to_owned(), 7),
            ("cpu.stat nr_throttled".to_owned(), 0),
        ];
        assert_eq!(stat, expected);
        assert_eq!(
            of("memory.events", "max 3\n"),
            [("memory.events max".to_owned(), 3)]
        );
    }
}
