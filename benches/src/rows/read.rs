//! Rows that read the tree.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};

use super::{Row, Work};
use crate::Result;
use crate::input::{Base, git, run};

pub(super) const ROWS: &[Row] = &[
    Row::reading("git-status", "git status", Base::Tree, git_status),
    Row::reading(
        "rg",
        "ripgrep for a word that is nowhere",
        Base::Tree,
        ripgrep,
    ),
    Row::reading("find", "find by name over everything", Base::Tree, find),
    Row::reading("tar", "tar of everything into a pipe", Base::Tree, tar),
    Row::reading("stat-all", "lstat of 20,000 files", Base::Tree, stat_all),
    Row::reading(
        "read-all",
        "open, read, close of 20,000 files",
        Base::Tree,
        read_all,
    ),
    Row::reading(
        "open-close",
        "open and close of 20,000 files",
        Base::Tree,
        open_close,
    ),
];

fn git_status(work: &Work<'_>) -> Result<()> {
    let output = git(work.root)
        .args(["--no-optional-locks", "status", "--porcelain"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() || !output.stdout.is_empty() {
        return Err(format!(
            "git status should find nothing: {} {}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        )
        .into());
    }
    Ok(())
}

fn ripgrep(work: &Work<'_>) -> Result<()> {
    let status = Command::new("rg")
        .args(["--no-config", "-l", "zzyzx_is_nowhere"])
        .arg(work.root)
        .stdout(Stdio::null())
        .status()?;
    // 1: nothing was found.
    if status.code() != Some(1) {
        return Err(format!("rg: {status}").into());
    }
    Ok(())
}

fn find(work: &Work<'_>) -> Result<()> {
    run(Command::new("find")
        .arg(work.root)
        .args(["-name", "zzyzx-is-nowhere"]))
}

fn tar(work: &Work<'_>) -> Result<()> {
    // Into /dev/null tar would read nothing.
    run(Command::new("sh")
        .args(["-c", "tar -cf - -C \"$0\" . | cat >/dev/null"])
        .arg(work.root))
}

fn stat_all(work: &Work<'_>) -> Result<()> {
    let root = openat(CWD, work.root, OFlags::DIRECTORY, Mode::empty())?;
    for file in &work.inputs.files {
        statat(&root, file, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn read_all(work: &Work<'_>) -> Result<()> {
    let root = openat(CWD, work.root, OFlags::DIRECTORY, Mode::empty())?;
    let mut buffer = vec![0; 1 << 20];
    for file in &work.inputs.files {
        let mut file = File::from(openat(&root, file, OFlags::RDONLY, Mode::empty())?);
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

fn open_close(work: &Work<'_>) -> Result<()> {
    let root = openat(CWD, work.root, OFlags::DIRECTORY, Mode::empty())?;
    for file in &work.inputs.files {
        drop(openat(&root, file, OFlags::RDONLY, Mode::empty())?);
    }
    Ok(())
}
