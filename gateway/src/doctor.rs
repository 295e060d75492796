//! The doctor: what sandboxes need of the host, tried, and how to mend what is missing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use sandstack_api::management::{CheckStatus, DoctorReport, HostCheck};

use crate::cgroup;
use crate::clock::now_unix_ms;
use crate::gateway::Gateway;

/// Free bytes below which sessions will soon be told that the disk is full.
const LITTLE_SPACE: u64 = 1 << 30;
/// Free bytes below which hardly anything can be written.
const NO_SPACE: u64 = 64 << 20;
/// Descriptors that some dozen busy sessions need.
const FEW_DESCRIPTORS: u64 = 4096;
/// The first kernel with `mount_setattr`, which makes a session's root read-only.
const OLDEST_KERNEL: (u32, u32) = (5, 12);
/// Landlock's ABI that has scopes for abstract sockets (Linux 6.12).
const LANDLOCK_SCOPES: libc::c_long = 6;
/// Docker's API of 20.10, whose seccomp profile can be replaced by one that allows what is needed.
const OLDEST_DOCKER_API: (u32, u32) = (1, 41);

/// Held while things are tried: they have the same names each time.
static TRYING: Mutex<()> = Mutex::new(());

/// The numbers of `/dev/fuse` (`devices.txt` of Linux).
const FUSE: (u32, u32) = (10, 229);

use CheckStatus::{Broken, Limited, Ok as Good};

fn check(
    name: &str,
    status: CheckStatus,
    found: impl Into<String>,
    fix: Option<&str>,
) -> HostCheck {
    HostCheck {
        name: name.to_owned(),
        status,
        found: found.into(),
        fix: fix.map(str::to_owned),
    }
}

impl Gateway {
    pub(crate) async fn doctor(self: &Arc<Self>) -> DoctorReport {
        let gateway = Arc::clone(self);
        let looked = self
            .blocking(move || {
                let _alone = TRYING.lock();
                let state = &gateway.config.state_dir;
                Ok(vec![
                    kernel(),
                    fuse(),
                    fuse_over_io_uring(),
                    namespaces(),
                    seccomp(),
                    landlock(),
                    control_groups(),
                    state_directory(state),
                    descriptors(),
                    fusermount(),
                ])
            })
            .await;
        let (mut checks, errors) = match looked {
            Ok(checks) => (checks, Vec::new()),
            Err(error) => (Vec::new(), vec![error.into_answer("doctor")]),
        };
        checks.push(self.docker_check().await);
        let healthy = errors.is_empty() && !checks.iter().any(|check| check.status == Broken);
        DoctorReport {
            healthy,
            checks,
            sampled_at_unix_ms: now_unix_ms(),
            errors,
        }
    }

    async fn docker_check(&self) -> HostCheck {
        let socket = self.config.settings.docker.socket.display().to_string();
        let limited = |found: String, fix: &str| check("docker", Limited, found, Some(fix));
        let version = match self.docker.version().await {
            Ok(version) => version,
            Err(error) => {
                return limited(
                    format!(
                        "it does not answer on {socket} ({error}), so there are local sandboxes only"
                    ),
                    "start Docker, let this user use its socket (group `docker`), or name another as `docker.socket` in \
                     the configuration",
                );
            }
        };
        let api = version.api_version.unwrap_or_default();
        let found = format!(
            "version {} (API {api})",
            version.version.unwrap_or_default()
        );
        if numbers(&api) < OLDEST_DOCKER_API {
            return limited(found, "install Docker 20.10 or newer");
        }
        if self.config.static_holder_program.is_none() {
            return limited(
                format!("{found}, but the holder for containers is not installed"),
                "`make holder-static` builds it, `make install` installs it",
            );
        }
        check("docker", Good, found, None)
    }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn kernel() -> HostCheck {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    match numbers(release) >= OLDEST_KERNEL {
        true => check("kernel", Good, release, None),
        false => check(
            "kernel",
            Broken,
            format!("{release} cannot make a session's root"),
            Some("use Linux 5.12 or newer"),
        ),
    }
}

fn fuse() -> HostCheck {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let device = opened.and_then(|file| Ok(file.metadata()?.rdev()));
    match device {
        Ok(device) if device != rustix::fs::makedev(FUSE.0, FUSE.1) => check(
            "fuse",
            Broken,
            "/dev/fuse is another device",
            Some("`mknod /dev/fuse c 10 229` in its place, and mode 0666 for it"),
        ),
        Ok(_) => check("fuse", Good, "/dev/fuse can be opened", None),
        Err(error) => check(
            "fuse",
            Broken,
            format!("/dev/fuse cannot be opened: {error}"),
            Some(
                "`modprobe fuse`, and mode 0666 for /dev/fuse; give a container `--device /dev/fuse`",
            ),
        ),
    }
}

fn fuse_over_io_uring() -> HostCheck {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    let limited = |found: &str, fix: &str| check("fuse_over_io_uring", Limited, found, Some(fix));
    match fs::read_to_string(SWITCH) {
        Ok(text) if text.trim() == "Y" => check("fuse_over_io_uring", Good, "it is on", None),
        Ok(_) => limited(
            "it is off, so views are served over /dev/fuse, which is slower",
            "`echo Y > /sys/module/fuse/parameters/enable_uring` as root",
        ),
        Err(_) => limited(
            "the kernel has none, so views are served over /dev/fuse, which is slower",
            "use Linux 6.14 or newer",
        ),
    }
}

/// Makes, in a child, the namespaces that a session is made of.
fn namespaces() -> HostCheck {
    let mut child = Command::new("true");
    child
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: unshare(2) may be called between fork and exec; it takes no pointers.
    unsafe {
        child.pre_exec(|| {
            let flags = libc::CLONE_NEWUSER
                | libc::CLONE_NEWNS
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWNET;
            match libc::unshare(flags) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    match child.status() {
        Ok(_) => check("user_namespaces", Good, "they can be made", None),
        Err(error) => check(
            "user_namespaces",
            Broken,
            format!("they cannot be made: {error}"),
            Some(namespaces_fix()),
        ),
    }
}

/// What forbids them, as far as the kernel's settings tell.
fn namespaces_fix() -> &'static str {
    let setting = |name: &str| {
        let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok();
        text.map(|text| text.trim().to_owned())
    };
    if setting("user/max_user_namespaces").as_deref() == Some("0") {
        "`sysctl user.max_user_namespaces=15000` as root"
    } else if setting("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        "`sysctl kernel.unprivileged_userns_clone=1` as root"
    } else if setting("kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` as root, or an AppArmor profile for sandbox-holder \
         that allows `userns`"
    } else {
        "run the gateway outside of a container, or in one whose seccomp profile allows unshare, mount and pivot_root"
    }
}

fn seccomp() -> HostCheck {
    let known = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    match known {
        Ok(actions) if actions.split_whitespace().any(|action| action == "errno") => {
            check("seccomp", Good, "filters can be set", None)
        }
        _ => check(
            "seccomp",
            Broken,
            "the kernel has no filters of system calls",
            Some("use a kernel with CONFIG_SECCOMP_FILTER"),
        ),
    }
}

fn landlock() -> HostCheck {
    const VERSION: libc::c_long = 1;
    // SAFETY: asked for its version, the call takes no attributes.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) };
    if abi >= LANDLOCK_SCOPES {
        return check("landlock", Good, format!("ABI {abi}"), None);
    }
    check(
        "landlock",
        Limited,
        "abstract unix sockets of the host can be reached from sessions with network `shared`",
        Some(
            "use Linux 6.12 or newer with Landlock among its security modules (`lsm=`), or network `isolated`",
        ),
    )
}

fn control_groups() -> HostCheck {
    match cgroup::attempt() {
        Ok(version) => check("control_groups", Good, format!("version {version}"), None),
        Err(error) => check(
            "control_groups",
            Limited,
            format!(
                "none can be made: {error}; local sandboxes have no limits of processors and memory, and of processes one \
                 for each user of a session, which does not hold root"
            ),
            Some(
                "run the gateway as root, or in a control group that is delegated to it; make /sys/fs/cgroup writable in \
                 a container",
            ),
        ),
    }
}

fn state_directory(dir: &Path) -> HostCheck {
    let name = "state_directory";
    let probe = dir.join(".doctor");
    let written = File::create(&probe).and_then(|_| fs::remove_file(&probe));
    if let Err(error) = written {
        return check(
            name,
            Broken,
            format!("{} cannot be written: {error}", dir.display()),
            Some("free some space, make its filesystem writable, or choose another --state-dir"),
        );
    }
    let free = match rustix::fs::statvfs(dir) {
        Ok(found) => found.f_bavail * found.f_frsize,
        Err(error) => {
            return check(
                name,
                Limited,
                error.to_string(),
                Some("check its filesystem"),
            );
        }
    };
    let found = format!("{} MiB free in {}", free >> 20, dir.display());
    match free {
        _ if free < NO_SPACE => check(name, Broken, found, Some("free some space")),
        _ if free < LITTLE_SPACE => check(
            name,
            Limited,
            found,
            Some("free some space; collect_garbage and squash_layerstacks give some back"),
        ),
        _ => check(name, Good, found, None),
    }
}

fn descriptors() -> HostCheck {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let found = format!("{limit} may be open");
    match limit < FEW_DESCRIPTORS {
        true => check(
            "descriptors",
            Limited,
            found,
            Some("`ulimit -Hn 1048576` before the gateway starts (LimitNOFILE= of systemd)"),
        ),
        false => check("descriptors", Good, found, None),
    }
}

/// Not for sandboxes, but for `sandbox-fs` as an ordinary user.
fn fusermount() -> HostCheck {
    let there = ["/usr/bin", "/bin", "/usr/local/bin"]
        .iter()
        .any(|dir| Path::new(dir).join("fusermount3").exists());
    let others = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    match (there, others) {
        (true, true) => check(
            "fusermount3",
            Good,
            "installed, with user_allow_other",
            None,
        ),
        (true, false) => check(
            "fusermount3",
            Good,
            "installed, without user_allow_other: what an ordinary user mounts with sandbox-fs, that user alone sees",
            None,
        ),
        (false, _) => check(
            "fusermount3",
            Limited,
            "not installed: sandboxes do without, `sandbox-fs mount` as an ordinary user does not",
            Some("install fuse3"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(numbers("6.18.44-fc"), (6, 18));
        assert_eq!(numbers("1.9"), (1, 9));
        assert!(numbers("1.9") < numbers("1.41"));
        assert_eq!(numbers(""), (0, 0));
    }
}
