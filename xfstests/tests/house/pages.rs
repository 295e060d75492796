//! Pages: that they are found, that their links lead somewhere, that what they say of the tree is so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::hold;
use crate::tree::{self, TextFile};

/// A link of a page: the line it stands in, the page it leads to, and the heading there.
struct Link {
    line: usize,
    /// From the top of the tree; the page itself for a link within it.
    path: PathBuf,
    /// As in the address: lower case, words joined by `-`.
    heading: Option<String>,
}

fn pages() -> impl Iterator<Item = &'static TextFile> {
    tree::files().iter().filter(|file| file.has_extension("md"))
}

/// Lines that are prose: not between fences, and without what stands between backticks.
fn prose(page: &TextFile) -> impl Iterator<Item = (usize, String)> + '_ {
    let mut fenced = false;
    page.lines().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let outside = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        (!fenced && !fence).then_some((number, outside))
    })
}

/// The links of a page that lead to files of the tree.
fn links(page: &TextFile) -> Vec<Link> {
    let mut links = Vec::new();
    for (line, text) in prose(page) {
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = match target.split_once('#') {
                Some((path, heading)) => (path, Some(heading.to_owned())),
                None => (target, None),
            };
            let path = if path.is_empty() {
                page.path.clone()
            } else {
                joined(page.path.parent().unwrap_or(Path::new("")), path)
            };
            links.push(Link {
                line,
                path,
                heading,
            });
        }
    }
    links
}

/// `path` from directory `from`, without `.` and `..`.
fn joined(from: &Path, path: &str) -> PathBuf {
    let mut whole = from.to_path_buf();
    for part in Path::new(path).iter() {
        match part.to_str() {
            Some(".") => {}
            Some("..") => {
                whole.pop();
            }
            _ => whole.push(part),
        }
    }
    whole
}

/// The addresses of a page's headings: lower case, without punctuation, words joined by `-`.
fn headings(page: &TextFile) -> BTreeSet<String> {
    let mut fenced = false;
    let mut headings = BTreeSet::new();
    for (_, line) in page.lines() {
        fenced ^= line.starts_with("```");
        if let Some(title) = line.strip_prefix('#').filter(|_| !fenced) {
            let title = title.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            headings.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    headings
}

#[test]
fn links_lead_somewhere() {
    let by_path: BTreeMap<&Path, &TextFile> =
        pages().map(|page| (page.path.as_path(), page)).collect();
    let mut faults = Vec::new();
    for page in pages() {
        for Link {
            line,
            path,
            heading,
        } in links(page)
        {
            let place = format!("{}:{line}", page.path.display());
            if !tree::top().join(&path).exists() {
                faults.push(format!("{place}: there is no {}", path.display()));
            } else if let (Some(heading), Some(target)) = (heading, by_path.get(path.as_path()))
                && !headings(target).contains(&heading)
            {
                faults.push(format!(
                    "{place}: {} has no heading #{heading}",
                    path.display()
                ));
            }
        }
    }
    hold("a link leads to a file, and to a heading of it:", faults);
}

#[test]
fn every_page_is_found_from_the_index() {
    let all: BTreeMap<&Path, &TextFile> = pages().map(|page| (page.path.as_path(), page)).collect();
    let mut found = BTreeSet::new();
    let mut pending = vec![PathBuf::from("docs/README.md")];
    while let Some(path) = pending.pop() {
        // A link to a directory leads to its index.
        if let Some(page) = all.get(path.as_path())
            && found.insert(path)
        {
            pending.extend(links(page).into_iter().map(|link| link.path));
        }
    }
    let lost = all
        .keys()
        .filter(|path| path.starts_with("docs") && !found.contains(**path));
    let lost = lost.map(|path| path.display().to_string()).collect();
    hold(
        "a page of docs/ is reached by links from docs/README.md:",
        lost,
    );
}

#[test]
fn operations_page_is_what_the_catalogue_renders() {
    let path = tree::top().join("docs/operations.md");
    let rendered = sandstack_api::render::operations_page();
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(path, rendered).unwrap();
        return;
    }
    let page = fs::read_to_string(path).unwrap_or_default();
    let differs = page
        .lines()
        .zip(rendered.lines())
        .position(|(page, rendered)| page != rendered);
    assert!(
        page == rendered,
        "docs/operations.md differs from the catalogue from line {} on; `make docs` writes it anew",
        differs.unwrap_or(page.lines().count().min(rendered.lines().count())) + 1
    );
}

#[test]
fn readme_shows_the_two_commands_that_matter() {
    let text = &tree::file("README.md").text;
    let lacking = ["make demo", "make test"]
        .into_iter()
        .filter(|command| !text.contains(command));
    hold(
        "README.md shows how to see it work:",
        lacking.map(str::to_owned).collect(),
    );
}

#[test]
fn changelog_has_a_place_for_what_is_not_released() {
    assert!(
        tree::file("CHANGELOG.md")
            .text
            .lines()
            .any(|line| line == "## [Unreleased]")
    );
}

/// A test that a page names as `` `name` `` behind "Test:" or "Tests:" is one of the tree.
#[test]
fn tests_that_pages_name_exist() {
    let mut functions = BTreeSet::new();
    for file in tree::rust_files() {
        for (_, line) in file.lines() {
            if let Some((_, rest)) = line.split_once("fn ") {
                let end = rest
                    .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                functions.insert(&rest[..end]);
            }
        }
    }
    let mut faults = Vec::new();
    for page in pages() {
        for (number, line) in page.lines() {
            let Some((_, named)) = line
                .split_once("Test: ")
                .or_else(|| line.split_once("Tests: "))
            else {
                continue;
            };
            for name in named.split('`').skip(1).step_by(2) {
                if !functions.contains(name) {
                    faults.push(format!("{}:{number}: {name}", page.path.display()));
                }
            }
        }
    }
    hold("a test that a page names is in the tree:", faults);
}
