//! Costs of operations of the libraries: imports and sessions.

use std::fs;
use std::path::{Path, PathBuf};

use super::publish::{Publishes, append};
use super::{Costs, Options, seconds};
use crate::daemon::{Daemon, Order};
use crate::input::{Inputs, git};
use crate::measure::{allow, timed};
use crate::peer::{Ground, clear};
use crate::{Result, progress};

/// Sessions at once.
const CROWDS: [u32; 3] = [1, 10, 100];
/// How long one step may take.
pub(super) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(900);

pub(super) fn open(base: &Path, at: &Path) -> Result<Order> {
    fs::create_dir_all(at)?;
    Ok(Order::Open {
        base: base.to_path_buf(),
        mode: "files".to_owned(),
        transport: "fuse".to_owned(),
        walk: false,
        at: at.to_path_buf(),
    })
}

pub(super) fn import_order(base: &Path) -> Order {
    Order::Import {
        base: base.to_path_buf(),
    }
}

/// Import into a new store, and again into the same one.
pub(super) fn import(
    costs: &mut Costs,
    dir: &Path,
    inputs: &Inputs,
    options: Options,
) -> Result<()> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let (mut first_cpu, mut last) = (Vec::new(), None);
    for round in 0..options.times {
        progress(&format!("import {round}"));
        allow(Some(PATIENCE));
        let store = dir.join("import-store");
        if store.exists() {
            fs::remove_dir_all(&store)?;
        }
        let mut daemon = Daemon::start(&store)?;
        let mut answer = None;
        let sample = timed(&[daemon.pid()], || {
            answer = Some(daemon.order(&import_order(&inputs.tree))?);
            Ok(())
        });
        // Its threads end with the import, and their time with them: what is left is a lower bound.
        first_cpu.push(sample?.cpu);
        let answer = answer.ok_or("the import gave no answer")?;
        first.push(answer.total());
        second.push(daemon.order(&import_order(&inputs.tree))?.total());
        last = Some(answer);
        drop(daemon);
        fs::remove_dir_all(&store)?;
    }
    costs.note("import of the tree, first", "s", &first);
    costs.note("import of the tree, again", "s", &second);
    if let Some(answer) = last {
        for name in ["files", "bytes", "bytes_stored", "database_bytes"] {
            let unit = if name == "files" { "files" } else { "bytes" };
            costs.note(
                format!("import of the tree: {}", name.replace('_', " ")),
                unit,
                &[answer.count(name) as f64],
            );
        }
    }
    Ok(())
}

/// What a session takes until it can be read, and what many take.
pub(super) fn session(
    costs: &mut Costs,
    dir: &Path,
    inputs: &Inputs,
    options: Options,
) -> Result<()> {
    let mut ground = Ground::new(&dir.join("cost"))?;
    ground.daemon().order(&import_order(&inputs.tree))?;
    first_reads(
        costs,
        &mut ground,
        &inputs.tree,
        &inputs.files[..1],
        "20k files",
        options,
    )?;
    git_status(costs, &mut ground, inputs, options)?;
    for crowd in CROWDS {
        allow(Some(PATIENCE));
        progress(&format!("{crowd} sessions at once"));
        sessions_at_once(costs, &mut ground, inputs, crowd)?;
    }
    drop(ground);
    if options.huge > 0 {
        allow(Some(PATIENCE * 2));
        let base = huge(dir, options.huge)?;
        let mut ground = Ground::new(&dir.join("cost"))?;
        progress("importing the huge base");
        let answer = ground.daemon().order(&import_order(&base))?;
        let about = format!("{} files", options.huge);
        costs.note(format!("import of {about}"), "s", &[answer.total()]);
        costs.note(
            format!("database and packs of {about}"),
            "bytes",
            &[(answer.count("object_bytes") + answer.count("database_bytes")) as f64],
        );
        let first = [PathBuf::from("directory-0/file-0")];
        first_reads(costs, &mut ground, &base, &first, &about, options)?;
        let measured = Publishes {
            base: &base,
            about: format!("publish of 1 file on {about}"),
            times: options.times,
        };
        measured.take(costs, &mut ground, &mut |round, at| {
            append(&at.join("directory-7/file-7000"), round)
        })?;
        costs.note(
            format!("memory of the daemon with {about}"),
            "bytes",
            &[ground.daemon().memory()? as f64],
        );
    }
    clear(&dir.join("cost"));
    Ok(())
}

pub(super) fn first_reads(
    costs: &mut Costs,
    ground: &mut Ground,
    base: &Path,
    files: &[PathBuf],
    about: &str,
    options: Options,
) -> Result<()> {
    let (mut creates, mut mounts, mut reads, mut closes) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut first = None;
    for _ in 0..options.times.max(5) * 4 {
        let at = ground.scratch()?;
        let answer = ground.daemon().order(&open(base, &at)?)?;
        let of = |names: &[&str]| -> f64 {
            let steps = answer.seconds.iter();
            steps
                .filter(|(step, _)| names.contains(&step.as_str()))
                .map(|(_, seconds)| seconds)
                .sum()
        };
        let (create, mount) = (of(&["lease", "upper"]), of(&["mount", "serve"]));
        let (read, _) = seconds(|| Ok(fs::read(at.join(&files[0]))?))?;
        // Later sessions find the layer in memory.
        if first.is_none() {
            first = Some(create + mount + read);
        } else {
            creates.push(create);
            mounts.push(mount);
            reads.push(read);
        }
        let (close, _) = seconds(|| ground.daemon().order(&Order::Close { at: at.clone() }))?;
        closes.push(close);
        fs::remove_dir(&at)?;
    }
    costs.note(
        format!("session on {about}: the first, to its first read"),
        "s",
        &[first.unwrap_or_default()],
    );
    costs.note(
        format!("session on {about}: lease and upper"),
        "s",
        &creates,
    );
    costs.note(format!("session on {about}: mount and serve"), "s", &mounts);
    costs.note(format!("session on {about}: first read"), "s", &reads);
    costs.note(format!("session on {about}: end"), "s", &closes);
    Ok(())
}

/// `git status` in a new session and again, and on the directory itself.
fn git_status(
    costs: &mut Costs,
    ground: &mut Ground,
    inputs: &Inputs,
    options: Options,
) -> Result<()> {
    let status = |root: &Path| -> Result<f64> {
        let (passed, status) = seconds(|| {
            Ok(git(root)
                .args(["--no-optional-locks", "status", "--porcelain"])
                .stdout(std::process::Stdio::null())
                .status()?)
        })?;
        if status.success() {
            Ok(passed)
        } else {
            Err(format!("git status: {status}").into())
        }
    };
    let (mut plain, mut cold, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.times {
        plain.push(status(&inputs.tree)?);
        let at = ground.scratch()?;
        ground.daemon().order(&open(&inputs.tree, &at)?)?;
        cold.push(status(&at)?);
        warm.push(status(&at)?);
        ground.daemon().order(&Order::Close { at: at.clone() })?;
        fs::remove_dir(&at)?;
    }
    costs.note("git status: the directory itself", "s", &plain);
    costs.note("git status: a new session", "s", &cold);
    costs.note("git status: again", "s", &warm);
    Ok(())
}

fn slab() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kilobytes = text
        .lines()
        .find_map(|line| line.strip_prefix("Slab:"))
        .and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok());
    Ok(kilobytes.ok_or("the kernel tells no Slab")? * 1024.0)
}

fn sessions_at_once(
    costs: &mut Costs,
    ground: &mut Ground,
    inputs: &Inputs,
    count: u32,
) -> Result<()> {
    let (memory, kernel) = (ground.daemon().memory()? as f64, slab()?);
    let mut places = Vec::new();
    let (passed, ()) = seconds(|| {
        for _ in 0..count {
            let at = ground.scratch()?;
            ground.daemon().order(&open(&inputs.tree, &at)?)?;
            fs::read_dir(&at)?.count();
            fs::read(at.join(&inputs.files[0]))?;
            places.push(at);
        }
        Ok(())
    })?;
    let about = format!("{count} sessions at once");
    costs.note(
        format!("{about}: each, to its first read"),
        "s",
        &[passed / f64::from(count)],
    );
    costs.note(
        format!("{about}: memory of the daemon"),
        "bytes",
        &[ground.daemon().memory()? as f64],
    );
    costs.note(
        format!("{about}: memory of the daemon, more than before"),
        "bytes",
        &[(ground.daemon().memory()? as f64 - memory).max(0.0)],
    );
    costs.note(
        format!("{about}: slab of the kernel, more than before"),
        "bytes",
        &[(slab()? - kernel).max(0.0)],
    );
    let (passed, ()) = seconds(|| {
        for at in &places {
            ground.daemon().order(&Order::Close { at: at.clone() })?;
        }
        Ok(())
    })?;
    costs.note(
        format!("{about}: end of each"),
        "s",
        &[passed / f64::from(count)],
    );
    Ok(())
}

/// A base of so many tiny files, 1,000 a directory.
pub(super) fn huge(dir: &Path, count: u32) -> Result<PathBuf> {
    let base = dir.join(format!("huge-{count}"));
    let mark = dir.join(format!("huge-{count}.complete"));
    if mark.exists() {
        return Ok(base);
    }
    progress("making the huge base");
    for number in 0..count {
        let directory = base.join(format!("directory-{}", number / 1_000));
        if number % 1_000 == 0 {
            fs::create_dir_all(&directory)?;
        }
        fs::write(directory.join(format!("file-{number}")), number.to_string())?;
    }
    fs::write(mark, "")?;
    Ok(base)
}
