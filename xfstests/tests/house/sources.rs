//! Sources: what every file of Rust keeps to.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::hold;
use crate::tree::{self, TextFile};

/// Lines that a file should not exceed, and must not.
const AIM_LINES: usize = 600;
const MOST_LINES: usize = 800;

/// Names that say nothing of what is inside.
const BANNED_NAMES: [&str; 9] = [
    "util", "common", "helpers", "core", "service", "impls", "model", "manager", "support",
];

/// What a library leaves to programs: talking to people, and finding out where it runs.
const FOR_PROGRAMS: [&str; 10] = [
    "println!",
    "print!",
    "eprintln!",
    "eprint!",
    "dbg!",
    "env::var",
    "env::vars",
    "env::args",
    "home_dir(",
    "temp_dir(",
];

/// What speaks of the machines that something was written on, not of the product. Each in two halves,
/// or this file would be the first to break the rule.
const FOREIGN: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/fa", "rm/"),
    concat!(".lib", "rary"),
];

/// Whether a file is of tests, benches or examples, by its place.
fn is_of_tests(path: &Path) -> bool {
    let parts = path.iter().filter_map(|part| part.to_str());
    parts
        .into_iter()
        .any(|part| matches!(part, "tests" | "benches" | "examples"))
}

/// Whether a file is of a program, and not of a library.
fn is_of_program(path: &Path) -> bool {
    path.ends_with("src/main.rs")
        || path.iter().any(|part| part == "bin")
        || path.ends_with("build.rs")
}

/// The code of a file without comments and without what is only compiled for tests, as numbered
/// lines. Relies on the format that `cargo fmt` gives: an item ends where its indentation does.
fn code(file: &TextFile) -> Vec<(usize, &str)> {
    let mut code = Vec::new();
    let mut lines = file.lines();
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("#[cfg(test)]") {
            let indentation = &line[..line.len() - trimmed.len()];
            let close = format!("{indentation}}}");
            // An item ends with its brace or, if it has none, with its semicolon.
            let _ = lines.find(|(_, line)| {
                *line == close
                    || (line.starts_with(indentation)
                        && line.ends_with(';')
                        && !line[indentation.len()..].starts_with(' '))
            });
        } else if !trimmed.starts_with("//") {
            code.push((number, line));
        }
    }
    code
}

/// Files that are a module of tests: `#[cfg(test)] mod tests;` stands in another.
fn modules_of_tests() -> BTreeSet<PathBuf> {
    let mut modules = BTreeSet::new();
    for file in tree::rust_files() {
        let mut of_tests = false;
        for (_, line) in file.lines() {
            if let Some(name) = line
                .strip_prefix("mod ")
                .and_then(|rest| rest.strip_suffix(';'))
                && of_tests
            {
                let stem = file.path.file_stem().unwrap_or_default();
                let beside = file.path.parent().unwrap_or(Path::new(""));
                let directory = if matches!(stem.to_str(), Some("lib" | "main" | "mod")) {
                    beside.to_path_buf()
                } else {
                    beside.join(stem)
                };
                modules.insert(directory.join(name).with_extension("rs"));
            }
            of_tests = line == "#[cfg(test)]";
        }
    }
    modules
}

/// Files whose code ends up in a program or library.
fn shipped() -> impl Iterator<Item = &'static TextFile> {
    let of_tests = modules_of_tests();
    tree::rust_files()
        .filter(move |file| !is_of_tests(&file.path) && !of_tests.contains(&file.path))
}

#[test]
fn every_file_opens_with_what_it_is() {
    let faults = tree::rust_files().filter(|file| !file.text.starts_with("//!"));
    let faults = faults.map(|file| file.path.display().to_string());
    hold(
        "a file of Rust opens with `//!`: what it owns, and never does:",
        faults.collect(),
    );
}

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    for file in tree::rust_files() {
        let (path, lines) = (file.path.display(), file.lines().count());
        if lines > MOST_LINES {
            faults.push(format!("{path} has {lines}"));
        } else if lines > AIM_LINES {
            // Past the capture of output: it is to be seen though nothing fails.
            let _ = writeln!(
                std::io::stderr(),
                "{path} has {lines} lines; {AIM_LINES} are aimed at"
            );
        }
    }
    hold(
        &format!("a file of Rust has at most {MOST_LINES} lines:"),
        faults,
    );
}

#[test]
fn files_are_named_after_what_they_hold() {
    let mut faults = Vec::new();
    for file in tree::rust_files() {
        let names = file.path.with_extension("");
        if names
            .iter()
            .any(|name| BANNED_NAMES.iter().any(|banned| name == *banned))
        {
            faults.push(file.path.display().to_string());
        }
    }
    hold(
        &format!(
            "no file or directory of Rust is called {}:",
            BANNED_NAMES.join(", ")
        ),
        faults,
    );
}

#[test]
fn libraries_leave_terminal_and_environment_to_programs() {
    let mut faults = Vec::new();
    for file in shipped().filter(|file| !is_of_program(&file.path)) {
        for (number, line) in code(file) {
            if let Some(found) = FOR_PROGRAMS.iter().find(|pattern| line.contains(**pattern)) {
                faults.push(format!("{}:{number}: {found}", file.path.display()));
            }
        }
    }
    hold("a library prints nothing and reads no environment:", faults);
}

#[test]
fn only_tests_unwrap() {
    let mut faults = Vec::new();
    for file in shipped() {
        for (number, line) in code(file) {
            if line.contains(".unwrap()") || line.contains(".unwrap_err()") {
                faults.push(format!("{}:{number}", file.path.display()));
            }
        }
    }
    hold(
        "what cannot fail says why with `expect`, everything else is handled:",
        faults,
    );
}

#[test]
fn nothing_is_left_for_later() {
    // In two halves, like those above.
    let marks = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("TO", "DO"),
    ];
    let mut faults = Vec::new();
    for file in tree::rust_files() {
        for (number, line) in file.lines() {
            if marks.iter().any(|mark| line.contains(mark)) {
                faults.push(format!("{}:{number}: {}", file.path.display(), line.trim()));
            }
        }
    }
    hold(
        "what is missing is an issue, not a mark in the source:",
        faults,
    );
}

#[test]
fn the_product_speaks_of_itself_alone() {
    let mut faults = Vec::new();
    for file in tree::files() {
        for (number, line) in file.lines() {
            if let Some(found) = FOREIGN.iter().find(|word| line.contains(**word)) {
                faults.push(format!("{}:{number}: {found}", file.path.display()));
            }
        }
    }
    hold(
        "no path of the machine that something was written on:",
        faults,
    );
}
