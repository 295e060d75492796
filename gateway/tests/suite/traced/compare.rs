//! Compares a record with what it must hold, and says what differs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::expected::{Key, Oracle, Transfer};
use super::strace::End;

/// A command, and between when it was run, in nanoseconds since 1970.
pub(crate) struct Ran {
    pub(crate) command: String,
    pub(crate) from: u128,
    pub(crate) to: u128,
}

/// Kinds that the kernel asks for each time, in mode `files`.
const COUNTED: &[&str] = &[
    "open",
    "open_write",
    "write",
    "execute",
    "create",
    "remove",
    "rename_from",
    "rename_to",
    "link",
    "metadata",
];

/// Kinds of a name and not of what it is the name of.
const NAMED: &[&str] = &[
    "create",
    "remove",
    "rename_from",
    "rename_to",
    "link",
    "lookup",
    "missing",
];

pub(crate) fn compare(
    mode: &str,
    oracle: &Oracle,
    rows: &[Value],
    singles: &[Value],
    ran: &[Ran],
    ends: &[End],
) -> Vec<String> {
    let mut faults = Vec::new();
    let counted = |kind: &str| COUNTED.contains(&kind) || (kind == "list" && mode == "exact");
    // Only now it is known which names stand for the same file.
    let of_name = |kind: &str| NAMED.contains(&kind);
    let same = |path: &str, kind: &str| match of_name(kind) {
        true => path.to_owned(),
        false => oracle.names.canonical(path),
    };
    let done: BTreeSet<(String, &str, u32)> = oracle
        .expected
        .done
        .iter()
        .map(|(path, kind, pid)| (same(path, kind), *kind, *pid))
        .collect();
    let mut found: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    for row in rows {
        let (path, kind) = (text(row, "path"), text(row, "kind"));
        seen.insert((path.clone(), kind.clone()));
        let kind = name_of(&kind);
        let path = same(&path, kind);
        let Some(pid) = row["pid"].as_u64().map(|pid| pid as u32) else {
            // Written back by the kernel.
            if kind != "write" || !oracle.expected.written_back.contains(&path) {
                faults.push(format!("invented, of nobody: {row}"));
            }
            continue;
        };
        faults.extend(attribution(oracle, row, pid, ran, ends));
        if counted(kind) {
            let key = (path, kind, pid, text(row, "program"));
            let counts = found.entry(key).or_default();
            counts.0 += row["count"].as_u64().unwrap();
            counts.1 += row["bytes"].as_u64().unwrap();
        } else {
            let did = |kind| done.contains(&(path.clone(), kind, pid));
            let followed = kind == "read" && did("link target");
            if !did(kind) && !followed {
                faults.push(format!("invented: {row}"));
            }
        }
    }
    let mut expected: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
    for ((path, kind, pid, program), counts) in &oracle.expected.counted {
        if counted(kind) {
            let key = (same(path, kind), *kind, *pid, program.clone());
            let known = expected.entry(key).or_default();
            *known = (known.0 + counts.0, known.1 + counts.1);
        }
    }
    for (key, (count, bytes)) in &expected {
        // A write may take several messages, so bytes are what counts.
        match found.get(key) {
            None => faults.push(format!("missed: {key:?} {count} times, {bytes} bytes")),
            Some(got) if key.1 == "write" && got.1 == *bytes => {}
            Some(got) if key.1 != "write" && got.0 == *count => {}
            Some(got) => faults.push(format!(
                "{key:?}: {got:?} and not {count} times, {bytes} bytes"
            )),
        }
    }
    for key in found.keys().filter(|key| !expected.contains_key(key)) {
        faults.push(format!("invented: {key:?} {:?}", found[key]));
    }
    for (path, kind) in &oracle.expected.seen {
        let has = |kind: &str| seen.contains(&(path.clone(), kind.to_owned()));
        // A listing with attributes looks every name in it up.
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let listed = *kind == "lookup" && seen.contains(&(parent.to_owned(), "list".to_owned()));
        if !has(kind) && !listed {
            faults.push(format!("the session has no {kind} of {path:?}"));
        }
    }
    if mode == "exact" {
        transfers(oracle, singles, &mut faults);
    }
    faults
}

/// Whose a row is: its command, and the parents of its process.
fn attribution(oracle: &Oracle, row: &Value, pid: u32, ran: &[Ran], ends: &[End]) -> Vec<String> {
    let mut faults = Vec::new();
    let Some(at) = oracle.processes.command_at(pid) else {
        return vec![format!("of a process that there was not: {row}")];
    };
    let command = ran
        .iter()
        .find(|ran| (ran.from..=ran.to).contains(&at))
        .unwrap();
    if row["command_session_id"] != command.command.as_str() {
        faults.push(format!("of command {} and not: {row}", command.command));
    }
    let parents = oracle.processes.parents(pid);
    let told: Vec<u32> = row["parents"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|parent| parent["pid"].as_u64().unwrap() as u32)
        .collect();
    let first = u128::from(row["first_unix_ms"].as_u64().unwrap()) * 1_000_000;
    // Those that had ended when the process was first seen cannot be known; nor can theirs.
    let gone = |pid: u32| {
        ends.iter()
            .any(|end| end.thread == pid && end.at <= first + 1_000_000)
    };
    let known = parents.iter().take_while(|pid| !gone(**pid)).count();
    if !parents.starts_with(&told) || told.len() < known {
        faults.push(format!(
            "parents are {parents:?}, {known} of them alive: {row}"
        ));
    }
    faults
}

/// Every read and write, with its offset.
fn transfers(oracle: &Oracle, singles: &[Value], faults: &mut Vec<String>) {
    type Pieces = BTreeMap<(String, &'static str, u32), Vec<(u64, u64)>>;
    let same = |path: &str| oracle.names.canonical(path);
    let mapped: BTreeSet<String> = oracle
        .expected
        .mapped
        .iter()
        .map(|path| same(path))
        .collect();
    let exempt = |path: &str| mapped.contains(path);
    let (mut expected, mut found) = (Pieces::new(), Pieces::new());
    let all: &[Transfer] = &oracle.expected.transfers;
    for (path, kind, pid, offset, bytes) in all {
        let key = (same(path), *kind, *pid);
        if !exempt(&key.0) {
            expected.entry(key).or_default().push((*offset, *bytes));
        }
    }
    for single in singles {
        let path = oracle.names.canonical(&text(single, "path"));
        let Some(pid) = single["pid"].as_u64() else {
            continue;
        };
        let kind = name_of(&text(single, "kind"));
        let piece = (
            single["offset"].as_u64().unwrap(),
            single["bytes"].as_u64().unwrap(),
        );
        let key = (path, kind, pid as u32);
        let followed = oracle
            .expected
            .done
            .contains(&(key.0.clone(), "link target", key.2));
        let of_link = followed && !expected.contains_key(&key);
        if !exempt(&key.0) && !of_link {
            found.entry(key).or_default().push(piece);
        }
    }
    let keys: BTreeSet<_> = expected.keys().chain(found.keys()).cloned().collect();
    for key in keys {
        let wanted = expected.remove(&key).unwrap_or_default();
        let got = found.remove(&key).unwrap_or_default();
        if !is_same(&wanted, &got) {
            faults.push(format!(
                "calls of {key:?}: strace has {wanted:?}, the record {got:?}"
            ));
        }
    }
}

/// Whether calls are the pieces, each of one or several that follow each other.
fn is_same(calls: &[(u64, u64)], pieces: &[(u64, u64)]) -> bool {
    let (mut one, mut other) = (calls.to_vec(), pieces.to_vec());
    one.sort_unstable();
    other.sort_unstable();
    if one == other {
        return true;
    }
    let mut pieces = pieces.iter();
    calls.iter().all(|(offset, bytes)| {
        let mut done = 0;
        loop {
            match pieces.next() {
                Some((at, length)) if *at == offset + done => done += length,
                _ => return false,
            }
            if done >= *bytes {
                return done == *bytes;
            }
        }
    }) && pieces.next().is_none()
}

fn text(row: &Value, field: &str) -> String {
    row[field]
        .as_str()
        .unwrap_or_else(|| panic!("{field} is no text: {row}"))
        .to_owned()
}

fn name_of(kind: &str) -> &'static str {
    let kinds = COUNTED.iter().chain(&["read", "list", "lookup", "missing"]);
    kinds
        .copied()
        .find(|name| *name == kind)
        .unwrap_or_else(|| panic!("{kind} is no kind"))
}
