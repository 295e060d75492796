//! Processes of commands, as `/proc` has them.
//!
//! Which command a process is of follows from its mount namespace, as for access records. A process
//! that ends while it is looked at is left out.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a page, and ticks of a second: what `/proc/PID/stat` counts in.
struct Units {
    page: u64,
    ticks: u64,
}

/// A process of a command.
pub(crate) struct Found {
    pub(crate) pid: u32,
    pub(crate) command: Arc<str>,
    dir: PathBuf,
    stat: Stat,
}

struct Stat {
    state: char,
    parent: u32,
    cpu_ms: u64,
    threads: u64,
    started_ms: u64,
    resident_bytes: u64,
}

/// All processes in the namespaces that are `known` to be a command's.
///
/// # Errors
/// `/proc` cannot be listed.
pub(crate) fn find(known: &HashMap<u64, Arc<str>>) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    if known.is_empty() {
        return Ok(found);
    }
    let units = Units::of_host();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let dir = entry.path();
        let Some(command) = namespace(&dir, "mnt").and_then(|number| known.get(&number)) else {
            continue;
        };
        let stat = fs::read(dir.join("stat")).unwrap_or_default();
        if let Some(stat) = Stat::parse(&stat, &units) {
            found.push(Found {
                pid,
                command: Arc::clone(command),
                dir,
                stat,
            });
        }
    }
    Ok(found)
}

impl Found {
    pub(crate) fn parent(&self) -> u32 {
        self.stat.parent
    }

    /// As `ps` has it.
    pub(crate) fn state(&self) -> char {
        self.stat.state
    }

    pub(crate) fn threads(&self) -> u64 {
        self.stat.threads
    }

    /// Its own and of children that it has waited for, in milliseconds.
    pub(crate) fn cpu_ms(&self) -> u64 {
        self.stat.cpu_ms
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.stat.resident_bytes
    }

    /// Milliseconds after the host started.
    pub(crate) fn started_ms(&self) -> u64 {
        self.stat.started_ms
    }

    /// Its number in the innermost pid namespace.
    pub(crate) fn inner_pid(&self) -> Option<u32> {
        let status = fs::read_to_string(self.dir.join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))?;
        line.split_whitespace().last()?.parse().ok()
    }

    pub(crate) fn program(&self) -> Option<Vec<u8>> {
        let link = fs::read_link(self.dir.join("exe")).ok()?;
        Some(link.as_os_str().as_bytes().to_vec())
    }

    /// Its command line, with spaces between the words.
    pub(crate) fn command_line(&self) -> Vec<u8> {
        let mut line = fs::read(self.dir.join("cmdline")).unwrap_or_default();
        while line.last() == Some(&0) {
            line.pop();
        }
        for byte in line.iter_mut().filter(|byte| **byte == 0) {
            *byte = b' ';
        }
        line
    }

    /// The numbers of its namespaces by kind.
    pub(crate) fn namespaces(&self) -> BTreeMap<String, u64> {
        let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
        let numbers = kinds
            .into_iter()
            .filter_map(|kind| Some((kind.to_owned(), namespace(&self.dir, kind)?)));
        numbers.collect()
    }

    /// Bytes read from and written to disks. `None` if the kernel does not tell.
    pub(crate) fn disk_bytes(&self) -> Option<(u64, u64)> {
        let text = fs::read_to_string(self.dir.join("io")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        Some((field("read_bytes:")?, field("write_bytes:")?))
    }
}

impl Units {
    fn of_host() -> Units {
        // SAFETY: it takes a number and gives one.
        let number = |name| unsafe { libc::sysconf(name) }.max(1).cast_unsigned();
        Units {
            page: number(libc::_SC_PAGESIZE),
            ticks: number(libc::_SC_CLK_TCK),
        }
    }

    fn milliseconds(&self, ticks: u64) -> u64 {
        ticks * 1000 / self.ticks
    }
}

impl Stat {
    fn parse(text: &[u8], units: &Units) -> Option<Stat> {
        // The name is in brackets and may have any bytes in it.
        let after = text.iter().rposition(|byte| *byte == b')')? + 2;
        let rest = std::str::from_utf8(text.get(after..)?).ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // From the third field on.
        let number = |field: usize| -> Option<u64> { fields.get(field - 3)?.parse().ok() };
        let cpu = number(14)? + number(15)? + number(16)? + number(17)?;
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: number(4)? as u32,
            cpu_ms: units.milliseconds(cpu),
            threads: number(20)?,
            started_ms: units.milliseconds(number(22)?),
            resident_bytes: number(24)? * units.page,
        })
    }
}

fn namespace(dir: &Path, kind: &str) -> Option<u64> {
    let link = fs::read_link(dir.join("ns").join(kind)).ok()?;
    let text = link.to_str()?;
    let (_, number) = text.strip_suffix(']')?.rsplit_once('[')?;
    number.parse().ok()
}

/// When the host started, in Unix milliseconds.
pub(crate) fn host_started_unix_ms() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(line.trim().parse::<u64>().ok()? * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_processes_are_found_by_their_namespace() {
        let own = namespace(Path::new("/proc/self"), "mnt").unwrap();
        let known = HashMap::from([(own, Arc::from("cmd-1"))]);
        let found = find(&known).unwrap();
        let this = found
            .iter()
            .find(|found| found.pid == std::process::id())
            .unwrap();
        assert_eq!(&*this.command, "cmd-1");
        assert!(this.resident_bytes() > 0 && this.threads() > 0);
        assert_eq!(this.namespaces()["mnt"], own);
        assert!(this.program().is_some() && this.inner_pid().is_some());
        assert!(
            find(&HashMap::from([(1, Arc::from("other"))]))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn names_with_brackets_are_no_trouble() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let text = format!("7 (a) S 3 (b) R {}", fields.join(" "));
        let units = Units {
            page: 10,
            ticks: 100,
        };
        let stat = Stat::parse(text.as_bytes(), &units).unwrap();
        assert_eq!((stat.state, stat.parent, stat.threads), ('R', 4, 20));
        assert_eq!(
            (stat.cpu_ms, stat.started_ms),
            ((14 + 15 + 16 + 17) * 10, 220)
        );
        assert_eq!(stat.resident_bytes, 240);
    }
}
