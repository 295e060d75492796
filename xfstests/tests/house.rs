//! The rules of the house: packages and what they may use, sources and how they are written, pages
//! and whether they tell the truth.
//!
//! Everything here reads the tree and runs nothing of it, so it takes seconds and needs no rights.
//! A rule that is broken is told with every place that breaks it, not only the first.

#[path = "house/packages.rs"]
mod packages;
#[path = "house/pages.rs"]
mod pages;
#[path = "house/promises.rs"]
mod promises;
#[path = "house/sources.rs"]
mod sources;
#[path = "house/tree.rs"]
mod tree;

/// Fails with all `faults`, one a line, under what the rule says.
fn hold(rule: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{rule}\n  {}\n", faults.join("\n  "));
}
