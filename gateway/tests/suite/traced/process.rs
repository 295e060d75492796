//! Which process is whose child, runs what, is where, and has what open.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::names::Node;

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct Descriptor {
    pub(crate) node: Node,
    pub(crate) offset: u64,
    pub(crate) appends: bool,
}

#[derive(Clone, Debug)]
struct Process {
    cwd: String,
    program: String,
    parent: Option<u32>,
    /// When the one at the root of its tree was started, in nanoseconds since 1970.
    root_at: Option<u128>,
    /// By number: which of the open files.
    open: BTreeMap<i64, usize>,
}

#[derive(Default)]
pub(crate) struct Processes {
    /// Whose a thread is.
    threads: BTreeMap<u32, u32>,
    all: BTreeMap<u32, Process>,
    open: Vec<Descriptor>,
    /// The process that starts all others.
    starter: u32,
}

impl Processes {
    /// With the process that starts the commands.
    pub(crate) fn of(starter: u32) -> Processes {
        let mut processes = Processes {
            starter,
            ..Processes::default()
        };
        processes.threads.insert(starter, starter);
        let process = Process {
            cwd: "/".to_owned(),
            program: fs::read_link(format!("/proc/{starter}/exe"))
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned(),
            parent: None,
            root_at: None,
            open: BTreeMap::new(),
        };
        processes.all.insert(starter, process);
        processes
    }

    pub(crate) fn pid(&self, thread: u32) -> Option<u32> {
        self.threads.get(&thread).copied()
    }

    pub(crate) fn forked(&mut self, parent: u32, child: u32, line: &str, at: u128) {
        if line.contains("CLONE_THREAD") {
            self.threads.insert(child, parent);
            return;
        }
        let mut process = self.all[&parent].clone();
        process.parent = Some(parent).filter(|parent| *parent != self.starter);
        process.root_at = process.root_at.or(Some(at));
        self.threads.insert(child, child);
        self.all.insert(child, process);
    }

    pub(crate) fn executed(&mut self, pid: u32, path: &Path) {
        let program = program(path);
        self.all.get_mut(&pid).unwrap().program = program;
    }

    pub(crate) fn program(&self, pid: u32) -> String {
        self.all[&pid].program.clone()
    }

    /// The parent, its parent and so on, without the one that started the command.
    pub(crate) fn parents(&self, pid: u32) -> Vec<u32> {
        let mut parents = Vec::new();
        let mut at = self.all.get(&pid).and_then(|process| process.parent);
        while let Some(pid) = at {
            parents.push(pid);
            at = self.all[&pid].parent;
        }
        parents
    }

    /// When the command of a process was started.
    pub(crate) fn command_at(&self, pid: u32) -> Option<u128> {
        self.all.get(&pid)?.root_at
    }

    pub(crate) fn cwd(&self, pid: u32) -> String {
        self.all[&pid].cwd.clone()
    }

    pub(crate) fn set_cwd(&mut self, pid: u32, path: String) {
        self.all.get_mut(&pid).unwrap().cwd = path;
    }

    pub(crate) fn opened(&mut self, pid: u32, number: i64, open: Descriptor) {
        self.open.push(open);
        let index = self.open.len() - 1;
        self.all.get_mut(&pid).unwrap().open.insert(number, index);
    }

    pub(crate) fn descriptor(&self, pid: u32, number: i64) -> Option<Descriptor> {
        let index = self.all[&pid].open.get(&number)?;
        Some(self.open[*index].clone())
    }

    pub(crate) fn seek(&mut self, pid: u32, number: i64, offset: u64) {
        if let Some(index) = self.all[&pid].open.get(&number) {
            self.open[*index].offset = offset;
        }
    }

    /// Returns whether any of the descriptors was open.
    pub(crate) fn close(&mut self, pid: u32, first: i64, last: i64) -> bool {
        let open = &mut self.all.get_mut(&pid).unwrap().open;
        let before = open.len();
        open.retain(|number, _| *number < first || *number > last);
        open.len() != before
    }

    pub(crate) fn copy(&mut self, pid: u32, from: i64, to: i64) -> bool {
        let open = &mut self.all.get_mut(&pid).unwrap().open;
        match open.get(&from).copied() {
            Some(index) => {
                open.insert(to, index);
                true
            }
            None => {
                open.remove(&to);
                false
            }
        }
    }
}

/// What `/proc/PID/exe` names when `path` is run: of a script its interpreter.
fn program(path: &Path) -> String {
    let Ok(path) = fs::canonicalize(path) else {
        // Below the workspace: it is not there on the host.
        return path.to_str().unwrap().to_owned();
    };
    let content = fs::read(&path).unwrap_or_default();
    let first = content
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    match first.strip_prefix(b"#!") {
        Some(line) => {
            let line = String::from_utf8_lossy(line).trim().to_owned();
            program(&PathBuf::from(line.split(' ').next().unwrap()))
        }
        None => path.to_str().unwrap().to_owned(),
    }
}
