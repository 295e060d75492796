//! Inputs: what the rows work on, made once from sources that are on this machine and kept.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::measure::Numbers;
use crate::{Result, progress};

/// Files of the tree that most rows work on.
pub const TREE_FILES: usize = 20_000;
/// Those of them in its directory `vendor`.
pub const VENDOR_FILES: usize = 10_000;
/// Bytes of the big file.
pub const BIG_BYTES: u64 = 1 << 30;
/// Files of the package archive.
pub const PACKAGE_FILES: usize = 10_000;
/// Commits before the newest.
const COMMITS: usize = 20;
/// Files that each of them changes.
const FILES_OF_COMMIT: usize = 50;
/// Files in which branch `other` differs.
pub const FILES_OF_BRANCH: usize = 3_000;
/// A file larger than this is left out of the tree: one picture would be more than all sources.
const LARGEST_SOURCE: u64 = 1 << 20;
/// Written last, so that what was made half is made anew. The number changes with what is made.
const COMPLETE: &str = "complete-1";

/// Where the inputs are.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// 20,000 files with git history.
    pub tree: PathBuf,
    /// A directory with `big.bin`, 1 GiB.
    pub big: PathBuf,
    /// A program with its vendored dependencies.
    pub app: PathBuf,
    /// An archive of 10,000 small files.
    pub packages: PathBuf,
    /// The regular files of the tree, but for those of git, in path order.
    pub files: Vec<PathBuf>,
}

/// The inputs that rows can need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Base {
    /// The tree.
    Tree,
    /// The big file.
    Big,
    /// The program.
    App,
}

impl Inputs {
    /// The inputs in `dir`, made of files of `sources` if they are not there.
    ///
    /// # Errors
    /// There are too few sources, a program is missing, or the disk is full.
    pub fn prepare(dir: &Path, sources: &Path, needed: &[Base]) -> Result<Inputs> {
        fs::create_dir_all(dir)?;
        let inputs = Inputs {
            tree: dir.join("tree"),
            big: dir.join("big"),
            app: dir.join("app"),
            packages: dir.join("packages.tar"),
            files: Vec::new(),
        };
        once(&inputs.tree, || make_tree(&inputs.tree, sources))?;
        once(&inputs.packages, || make_packages(dir, &inputs.packages))?;
        if needed.contains(&Base::Big) {
            once(&inputs.big, || make_big(&inputs.big))?;
        }
        if needed.contains(&Base::App) {
            once(&inputs.app, || make_app(&inputs.app))?;
        }
        let mut files = Vec::new();
        collect(&inputs.tree, Path::new(""), &mut files)?;
        files.retain(|(path, _)| !path.starts_with(".git"));
        Ok(Inputs {
            files: files.into_iter().map(|(path, _)| path).collect(),
            ..inputs
        })
    }

    /// Where a base is.
    pub fn base(&self, base: Base) -> &Path {
        match base {
            Base::Tree => &self.tree,
            Base::Big => &self.big,
            Base::App => &self.app,
        }
    }

    /// The files of the tree outside of `vendor`.
    pub fn own_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().filter(|file| !file.starts_with("vendor"))
    }
}

/// Runs a program.
///
/// # Errors
/// It is missing, or it fails; the message has what it said.
pub fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if !output.status.success() {
        return Err(format!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )
        .into());
    }
    Ok(())
}

/// `git` in `dir`, not led astray by anybody's settings, and with nothing going on behind its back.
pub fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(dir)
        .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"])
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"])
        .args(["-c", "commit.gpgsign=false", "-c", "safe.directory=*"])
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    command
}

/// Makes `what` unless it was made completely before.
fn once(what: &Path, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let mark = what.with_extension(COMPLETE);
    if mark.exists() {
        return Ok(());
    }
    progress(&format!("making {}", what.display()));
    if what.is_dir() {
        fs::remove_dir_all(what)?;
    }
    make()?;
    File::create(mark)?;
    Ok(())
}

/// Every regular file below `top/at` with its size, in path order.
fn collect(top: &Path, at: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let mut entries = BTreeMap::new();
    for entry in fs::read_dir(top.join(at))? {
        let entry = entry?;
        entries.insert(entry.file_name(), entry.metadata()?);
    }
    for (name, metadata) in entries {
        let path = at.join(name);
        if metadata.is_dir() {
            collect(top, &path, files)?;
        } else if metadata.is_file() {
            files.push((path, metadata.len()));
        }
    }
    Ok(())
}

fn make_tree(tree: &Path, sources: &Path) -> Result<()> {
    let mut found = Vec::new();
    collect(sources, Path::new(""), &mut found)
        .map_err(|error| format!("{}: {error}", sources.display()))?;
    found.retain(|(path, bytes)| {
        // What steers git or belongs to a clone would make each tree another one.
        let name = path.file_name().unwrap_or_default().as_bytes();
        !path.iter().any(|part| part == ".git")
            && !name.starts_with(b".git")
            && !name.starts_with(b".cargo")
            && (1..=LARGEST_SOURCE).contains(bytes)
    });
    if found.len() < TREE_FILES / 20 {
        return Err(format!(
            "{} has only {} files that a tree could be made of; name another directory with --sources",
            sources.display(),
            found.len()
        )
        .into());
    }
    let mut made = 0;
    let mut pass = 0;
    while made < TREE_FILES {
        for (path, _) in &found {
            if made == TREE_FILES {
                break;
            }
            let top = if made < VENDOR_FILES {
                "vendor"
            } else {
                "packages"
            };
            let target = tree.join(top).join(format!("part-{pass}")).join(path);
            fs::create_dir_all(target.parent().unwrap_or(tree))?;
            let mut bytes = fs::read(sources.join(path))?;
            if pass > 0 {
                // No content is there twice, or a store that keeps it once would win by it.
                bytes.extend_from_slice(format!("\n// {pass}\n").as_bytes());
            }
            fs::write(&target, bytes)?;
            made += 1;
        }
        pass += 1;
    }
    make_history(tree)
}

fn make_history(tree: &Path) -> Result<()> {
    let mut files = Vec::new();
    collect(tree, Path::new(""), &mut files)?;
    run(git(tree).args(["init", "-q", "-b", "main"]))?;
    // Whoever works in the tree finds the settings that the rows use.
    run(git(tree).args(["config", "gc.auto", "0"]))?;
    run(git(tree).args(["config", "maintenance.auto", "false"]))?;
    let commit = |message: &str| -> Result<()> {
        run(git(tree).args(["add", "-A", "-f"]))?;
        run(git(tree).args(["commit", "-q", "-m", message]))
    };
    commit("Everything")?;
    let append = |index: usize, text: &str| -> Result<()> {
        let (path, _) = &files[index % files.len()];
        let mut file = fs::OpenOptions::new().append(true).open(tree.join(path))?;
        Ok(file.write_all(text.as_bytes())?)
    };
    for number in 0..COMMITS {
        for index in 0..FILES_OF_COMMIT {
            append(
                (number * FILES_OF_COMMIT + index) * 7,
                &format!("\n// change {number}\n"),
            )?;
        }
        commit(&format!("Change {number}"))?;
    }
    run(git(tree).args(["checkout", "-q", "-b", "other"]))?;
    for index in 0..FILES_OF_BRANCH {
        append(index * 5, "\n// on the other branch\n")?;
    }
    commit("Other")?;
    run(git(tree).args(["checkout", "-q", "main"]))?;
    run(git(tree).args(["gc", "-q"]))?;
    run(git(tree).args(["update-index", "-q", "--refresh"]))
}

fn make_packages(dir: &Path, archive: &Path) -> Result<()> {
    let tree = dir.join("packages");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    let mut numbers = Numbers(7);
    for number in 0..PACKAGE_FILES {
        // 25 files a package in five directories, as packages of npm are on average.
        let package = tree.join(format!("package-{}", number / 25));
        let directory = package.join(format!("lib-{}", number % 5));
        fs::create_dir_all(&directory)?;
        let length = 100 + numbers.below(3_000) as usize;
        fs::write(
            directory.join(format!("module-{number}.js")),
            words(&mut numbers, length),
        )?;
    }
    run(Command::new("tar")
        .arg("-cf")
        .arg(archive)
        .arg("-C")
        .arg(&tree)
        .arg("."))?;
    Ok(fs::remove_dir_all(&tree)?)
}

/// Text that compresses about as sources do.
fn words(numbers: &mut Numbers, length: usize) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "const ",
        "value",
        " = ",
        "require",
        "(",
        ")",
        ";\n",
        "module",
        ".exports",
        " index",
        "return ",
        "function ",
    ];
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        let drawn = numbers.draw();
        text.extend_from_slice(WORDS[(drawn % 12) as usize].as_bytes());
        text.extend_from_slice(format!("{:x}", drawn >> 52).as_bytes());
    }
    text.truncate(length);
    text
}

fn make_big(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let mut file = File::create(dir.join("big.bin"))?;
    let mut numbers = Numbers(11);
    let mut block = vec![0_u8; 1 << 20];
    for _ in 0..BIG_BYTES >> 20 {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&numbers.draw().to_le_bytes());
        }
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

/// A small program whose dependencies are among this workspace's own, so that cargo has them.
fn make_app(app: &Path) -> Result<()> {
    const MANIFEST: &str = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
        [dependencies]\nclap = { version = \"4.6\", features = [\"derive\"] }\n\
        serde = { version = \"1\", features = [\"derive\"] }\nserde_json = \"1\"\n\
        similar = { version = \"3.2.1\", features = [\"bytes\"] }\nthiserror = \"2\"\n\n[workspace]\n";
    const PROGRAM: &str = "use clap::Parser;\nuse serde::Serialize;\n\n\
        #[derive(Parser, Serialize)]\nstruct Options {\n    /// How many.\n    #[arg(long, default_value_t = 3)]\n    \
        count: u32,\n}\n\nfn main() {\n    let options = Options::parse();\n    \
        println!(\"{}\", serde_json::to_string(&options).expect(\"options are plain\"));\n}\n";
    fs::create_dir_all(app.join("src"))?;
    fs::write(app.join("Cargo.toml"), MANIFEST)?;
    fs::write(app.join("src/main.rs"), PROGRAM)?;
    fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock"),
        app.join("Cargo.lock"),
    )?;
    let vendored = cargo(app)
        .args(["vendor", "--offline", "-q"])
        .stdin(Stdio::null())
        .output()?;
    if !vendored.status.success() {
        return Err(format!(
            "cargo vendor failed: {}; run `cargo fetch` once",
            String::from_utf8_lossy(&vendored.stderr).trim()
        )
        .into());
    }
    fs::create_dir_all(app.join(".cargo"))?;
    Ok(fs::write(
        app.join(".cargo/config.toml"),
        "[source.crates-io]\nreplace-with = \"vendored-sources\"\n\n\
         [source.vendored-sources]\ndirectory = \"vendor\"\n\n[net]\noffline = true\n",
    )?)
}

/// `cargo` in `dir`, with its target directory there and none of the settings of whoever runs this.
pub fn cargo(dir: &Path) -> Command {
    let mut command = Command::new("cargo");
    command
        .current_dir(dir)
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS");
    command
}
