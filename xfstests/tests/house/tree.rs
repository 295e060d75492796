//! The tree: its files, by path from its top, and their text.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A file of text.
pub(crate) struct TextFile {
    /// From the top of the tree.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl TextFile {
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        self.path
            .extension()
            .is_some_and(|found| found == extension)
    }

    /// Lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line))
    }
}

/// The top of the tree.
pub(crate) fn top() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every file of text, in path order. What is built and what git keeps is not of the tree.
pub(crate) fn files() -> &'static [TextFile] {
    static FILES: OnceLock<Vec<TextFile>> = OnceLock::new();
    FILES.get_or_init(|| {
        let mut files = Vec::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(top().join(&directory)).expect("a directory is listed") {
                let entry = entry.expect("a directory is listed");
                let path = directory.join(entry.file_name());
                let kind = entry.file_type().expect("the entry is still there");
                // In a worktree `.git` is a file.
                if path == Path::new(".git") || path == Path::new("target") {
                    continue;
                }
                if kind.is_dir() {
                    pending.push(path);
                } else if kind.is_file()
                    && let Ok(text) = fs::read_to_string(entry.path())
                {
                    files.push(TextFile { path, text });
                }
            }
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files
    })
}

/// Every file of Rust.
pub(crate) fn rust_files() -> impl Iterator<Item = &'static TextFile> {
    files().iter().filter(|file| file.has_extension("rs"))
}

/// The file at `path`.
pub(crate) fn file(path: &str) -> &'static TextFile {
    files()
        .iter()
        .find(|file| file.path == Path::new(path))
        .unwrap_or_else(|| panic!("there is no {path}"))
}
