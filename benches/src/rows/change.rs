//! Rows that make, change and remove many small things.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use super::{Row, Work, nothing};
use crate::Result;
use crate::input::{FILES_OF_BRANCH, git, run};
use crate::measure::Numbers;

/// Files that are made, and deleted.
const MADE: usize = 10_000;
/// Files of the base that are appended to, and truncated, and commited.
const CHANGED: usize = 1_000;

pub(super) const ROWS: &[Row] = &[
    Row::making("create-10k", "10,000 new files of 1 KiB", nothing, create),
    Row::making("delete-10k", "unlink of 10,000 new files", create, delete),
    Row::making(
        "untar-10k",
        "tar x of 10,000 small files",
        new_directory,
        untar,
    ),
    Row::making(
        "npm-install",
        "10,000 files as npm puts them in place",
        new_directory,
        npm_install,
    ),
    Row::changing(
        "append-1k",
        "append to 1,000 files of the base",
        nothing,
        append,
    )
    .copying_up(),
    Row::changing(
        "truncate-1k",
        "truncate 1,000 files of the base",
        nothing,
        truncate,
    )
    .copying_up(),
    Row::changing(
        "rm-base",
        "rm -r of a base directory of 10,000",
        nothing,
        remove_base,
    ),
    Row {
        // Without the option overlayfs refuses to rename such a directory, and tools copy it.
        overlay_options: ",redirect_dir=on",
        ..Row::changing(
            "rename-base",
            "rename of a base directory of 10,000",
            nothing,
            rename_base,
        )
    },
    Row::changing(
        "git-checkout",
        "git checkout -f of a branch with 3,000 other files",
        nothing,
        git_checkout,
    )
    .copying_up(),
    Row::changing(
        "git-commit",
        "git add and commit of 1,000 changed files",
        append,
        git_commit,
    ),
    Row::changing("cp-r", "cp -r of a base directory of 10,000", nothing, copy),
];

fn new_directory(work: &Work<'_>) -> Result<()> {
    Ok(fs::create_dir_all(work.new_directory())?)
}

fn created(work: &Work<'_>) -> impl Iterator<Item = PathBuf> {
    let top = work.new_directory();
    (0..MADE).map(move |number| {
        top.join(format!("directory-{}", number / 100))
            .join(format!("file-{number}"))
    })
}

fn create(work: &Work<'_>) -> Result<()> {
    new_directory(work)?;
    let content = [b'x'; 1024];
    for (number, path) in created(work).enumerate() {
        if number % 100 == 0
            && let Some(directory) = path.parent()
        {
            fs::create_dir(directory)?;
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.write_all(&content)?;
    }
    Ok(())
}

fn delete(work: &Work<'_>) -> Result<()> {
    for path in created(work) {
        fs::remove_file(path)?;
    }
    Ok(())
}

fn untar(work: &Work<'_>) -> Result<()> {
    run(Command::new("tar")
        .arg("-xf")
        .arg(&work.inputs.packages)
        .arg("-C")
        .arg(work.new_directory()))
}

/// Each package is made under a name of its own, its files with mode and time, and renamed into
/// place, as npm does.
fn npm_install(work: &Work<'_>) -> Result<()> {
    const FILES_OF_PACKAGE: usize = 25;
    let modules = work.new_directory().join("node_modules");
    fs::create_dir(&modules)?;
    let mut numbers = Numbers(3);
    let content = vec![b'y'; 4096];
    let past = std::time::UNIX_EPOCH + std::time::Duration::from_secs(499_162_500);
    for package in 0..MADE / FILES_OF_PACKAGE {
        let temporary = modules.join(format!(".package-{package}-{:x}", numbers.draw()));
        fs::create_dir(&temporary)?;
        for directory in 0..5 {
            let lib = temporary.join(format!("lib-{directory}"));
            fs::create_dir(&lib)?;
            for number in 0..FILES_OF_PACKAGE / 5 {
                let path = lib.join(format!("module-{number}.js"));
                let mut file = File::create(&path)?;
                file.write_all(&content[..100 + numbers.below(3_000) as usize])?;
                file.set_times(fs::FileTimes::new().set_modified(past))?;
                drop(file);
                let found = fs::metadata(&path)?;
                fs::set_permissions(&path, found.permissions())?;
            }
        }
        fs::rename(&temporary, modules.join(format!("package-{package}")))?;
    }
    let lock = work.new_directory().join("package-lock.json.tmp");
    fs::write(&lock, &content)?;
    Ok(fs::rename(
        &lock,
        work.new_directory().join("package-lock.json"),
    )?)
}

/// Every fifth file: those in which the branches differ are others.
fn changed<'a>(work: &'a Work<'_>) -> impl Iterator<Item = PathBuf> + 'a {
    let step = work.inputs.files.len() / CHANGED;
    work.inputs
        .files
        .iter()
        .step_by(step)
        .take(CHANGED)
        .map(|file| work.root.join(file))
}

fn append(work: &Work<'_>) -> Result<()> {
    for path in changed(work) {
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(b"\n// end\n")?;
    }
    Ok(())
}

fn truncate(work: &Work<'_>) -> Result<()> {
    for path in changed(work) {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(file.metadata()?.len() / 2)?;
    }
    Ok(())
}

fn remove_base(work: &Work<'_>) -> Result<()> {
    run(Command::new("rm").arg("-r").arg(work.root.join("vendor")))
}

fn rename_base(work: &Work<'_>) -> Result<()> {
    Ok(fs::rename(
        work.root.join("vendor"),
        work.root.join("renamed"),
    )?)
}

fn git_checkout(work: &Work<'_>) -> Result<()> {
    run(git(work.root).args(["checkout", "-q", "-f", "other"]))?;
    // What is measured is what was meant.
    let head = fs::read(work.root.join(".git/HEAD"))?;
    if head != b"ref: refs/heads/other\n" {
        return Err(format!("{FILES_OF_BRANCH} files should be others now").into());
    }
    Ok(())
}

fn git_commit(work: &Work<'_>) -> Result<()> {
    run(git(work.root).args(["add", "-A"]))?;
    run(git(work.root).args(["commit", "-q", "-m", "Changed"]))
}

fn copy(work: &Work<'_>) -> Result<()> {
    run(Command::new("cp")
        .arg("-r")
        .arg(work.root.join("vendor"))
        .arg(work.root.join("copied")))
}
