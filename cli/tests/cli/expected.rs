//! Checked-in texts: `UPDATE_EXPECTED=1 cargo test -p sandstack-cli` writes them anew.

use std::path::PathBuf;

/// Holds `actual` to the file `name` under `tests/expected`.
pub(crate) fn matches_file(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/expected")
        .join(name);
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("the directory");
        std::fs::write(&path, actual).expect("the file is written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; run with UPDATE_EXPECTED=1 to write it",
            path.display()
        )
    });
    if expected != actual {
        let line = expected
            .lines()
            .zip(actual.lines())
            .position(|(expected, actual)| expected != actual)
            .unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
        panic!(
            "{} differs from line {} on; run with UPDATE_EXPECTED=1 if it should.\n--- expected\n{expected}\n--- actual\n{actual}",
            path.display(),
            line + 1
        );
    }
}
