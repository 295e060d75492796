//! Packages: which of ours each may use, and which of others' only one may.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

use crate::{hold, tree};

/// Our packages, by their short name, and what of ours each may use. Arrows point down only: what
/// comes first here knows nothing of what comes later.
const ARROWS: [(&str, &[&str]); 9] = [
    ("store", &[]),
    ("holder", &[]),
    ("api", &[]),
    ("fs", &["store"]),
    ("gateway", &["store", "holder", "api", "fs"]),
    ("cli", &["api"]),
    ("mcp", &["api"]),
    ("xfstests", &["store", "fs"]),
    (
        "benches",
        &["store", "holder", "api", "fs", "gateway", "cli", "mcp"],
    ),
];

/// What tests may use beside that.
const ARROWS_OF_TESTS: [(&str, &str); 1] = [
    // To compare docs/operations.md with what the catalogue renders.
    ("xfstests", "api"),
];

/// Packages of others that only these of ours may use directly.
const OWNERS: [(&str, &[&str]); 17] = [
    ("axum", &["gateway"]),
    ("blake3", &["store"]),
    ("bollard", &["gateway"]),
    // Those beside the CLIs have a program whose few options it parses.
    ("clap", &["cli", "fs", "gateway", "xfstests", "benches"]),
    ("clap_complete", &["cli"]),
    ("comfy-table", &["cli"]),
    ("fjall", &["store"]),
    ("fuser", &["fs"]),
    ("io-uring", &["fs"]),
    ("nix", &["holder"]),
    ("rmcp", &["mcp"]),
    ("schemars", &["api"]),
    ("seccompiler", &["holder"]),
    ("similar", &["store"]),
    ("tower", &["gateway"]),
    ("tower-http", &["gateway"]),
    ("zstd", &["store"]),
];

/// Packages that are synchronous, down to the last crate that they link.
const SYNCHRONOUS: [&str; 3] = ["store", "fs", "holder"];

fn metadata() -> &'static Metadata {
    static METADATA: OnceLock<Metadata> = OnceLock::new();
    METADATA.get_or_init(|| {
        MetadataCommand::new()
            .manifest_path(tree::top().join("Cargo.toml"))
            .other_options(["--locked".to_owned(), "--offline".to_owned()])
            .exec()
            .expect("`cargo metadata` works where this test was built")
    })
}

fn short_name(package: &str) -> Option<&str> {
    package.strip_prefix("sandstack-")
}

/// Our packages by short name.
fn ours() -> BTreeMap<&'static str, &'static Package> {
    let packages = metadata().workspace_packages();
    let named = packages.into_iter().map(|package| {
        let name = short_name(package.name.as_str());
        (name.expect("our packages are called sandstack-…"), package)
    });
    named.collect()
}

#[test]
fn packages_use_of_ours_only_what_is_below_them() {
    let known: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        ours().into_keys().collect::<BTreeSet<_>>(),
        known,
        "the packages of the workspace are those of the table"
    );
    let mut faults = Vec::new();
    for (name, allowed) in ARROWS {
        for dependency in &ours()[name].dependencies {
            let Some(used) = short_name(&dependency.name) else {
                continue;
            };
            let by_tests = dependency.kind == DependencyKind::Development
                && ARROWS_OF_TESTS.contains(&(name, used));
            if !allowed.contains(&used) && !by_tests {
                faults.push(format!("{name} uses {used}"));
            }
        }
    }
    hold("a package uses of ours only what is below it:", faults);
}

#[test]
fn packages_of_others_are_used_by_their_owners_alone() {
    let mut faults = Vec::new();
    for (name, package) in ours() {
        for dependency in &package.dependencies {
            let owners = OWNERS.iter().find(|(owned, _)| *owned == dependency.name);
            if let Some((owned, owners)) = owners
                && !owners.contains(&name)
            {
                faults.push(format!(
                    "{name} uses {owned}, which is for {}",
                    owners.join(", ")
                ));
            }
        }
    }
    hold(
        "what one package is the owner of the others do not use:",
        faults,
    );
}

#[test]
fn store_fs_and_holder_link_no_tokio() {
    let resolve = metadata()
        .resolve
        .as_ref()
        .expect("the metadata has a graph");
    let nodes: HashMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut faults = Vec::new();
    for name in SYNCHRONOUS {
        let mut seen = BTreeSet::new();
        let mut pending = vec![&ours()[name].id];
        while let Some(id) = pending.pop() {
            if !seen.insert(id) {
                continue;
            }
            if metadata()[id].name == "tokio" {
                faults.push(format!("{name} links tokio"));
            }
            let linked = nodes[id].deps.iter().filter(|dependency| {
                let mut kinds = dependency.dep_kinds.iter();
                kinds.any(|kind| kind.kind == DependencyKind::Normal)
            });
            pending.extend(linked.map(|dependency| &dependency.pkg));
        }
    }
    hold("store, fs and holder are synchronous:", faults);
}

#[test]
fn versions_are_written_once_in_the_workspace() {
    let mut faults = Vec::new();
    for file in tree::files() {
        if !file.path.ends_with("Cargo.toml") || file.path.parent() == Some("".as_ref()) {
            continue;
        }
        let mut of_dependencies = false;
        for (number, line) in file.lines() {
            if line.starts_with('[') {
                of_dependencies = line.ends_with("dependencies]");
            } else if of_dependencies && line.contains('=') && !line.contains("workspace = true") {
                faults.push(format!("{}:{number}: {line}", file.path.display()));
            }
        }
    }
    hold(
        "a dependency's version is in the workspace's manifest:",
        faults,
    );
}
