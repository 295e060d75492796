//! What is where below the workspace, as the calls have made it: a simple model of names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Symbolic links that one path may lead over.
const MAX_LINKS: usize = 40;

pub(crate) type Node = usize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink(String),
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    /// The name by which it was last found, relative to the workspace.
    pub(crate) path: String,
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Found(String, Node),
    /// The last component is not there.
    Absent(String),
    /// One before the last is not there, or no directory.
    Broken,
    /// It leads out of the workspace.
    Outside(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) end: End,
    /// Every name on the way that is there, the last one included.
    pub(crate) found: Vec<String>,
    /// The name on the way, or at the end, that is not.
    pub(crate) missing: Option<String>,
}

#[derive(Default)]
pub(crate) struct Names {
    /// The workspace's path.
    pub(crate) root: String,
    names: BTreeMap<String, Node>,
    pub(crate) nodes: Vec<Info>,
    /// Names of files that have had several, each with the one that stands for all.
    pub(crate) aliases: BTreeMap<String, String>,
    /// Everything that was ever made or moved here.
    pub(crate) touched: BTreeSet<String>,
}

impl Names {
    pub(crate) fn of(project: &Path, root: &str) -> Names {
        let mut names = Names {
            root: root.to_owned(),
            ..Names::default()
        };
        names.add("", Kind::Directory, 0);
        names.fill(project, "");
        names.touched.clear();
        names
    }

    fn fill(&mut self, dir: &Path, relative: &str) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = join(relative, entry.file_name().to_str().unwrap());
            let metadata = entry.metadata().unwrap();
            let kind = if metadata.is_dir() {
                Kind::Directory
            } else if metadata.is_symlink() {
                let target = fs::read_link(entry.path()).unwrap();
                Kind::Symlink(target.to_str().unwrap().to_owned())
            } else {
                Kind::File
            };
            assert!(
                metadata.is_dir() || metadata.nlink() == 1,
                "{path} has several names"
            );
            self.add(&path, kind.clone(), metadata.len());
            if kind == Kind::Directory {
                self.fill(&entry.path(), &path);
            }
        }
    }

    pub(crate) fn add(&mut self, path: &str, kind: Kind, size: u64) -> Node {
        self.nodes.push(Info {
            kind,
            size,
            path: path.to_owned(),
        });
        self.names.insert(path.to_owned(), self.nodes.len() - 1);
        self.touched.insert(path.to_owned());
        self.nodes.len() - 1
    }

    pub(crate) fn link(&mut self, node: Node, path: &str) {
        let old = self.nodes[node].path.clone();
        let stands = self.aliases.get(&old).unwrap_or(&old).clone();
        self.aliases.insert(old, stands.clone());
        self.aliases.insert(path.to_owned(), stands);
        self.names.insert(path.to_owned(), node);
        self.touched.insert(path.to_owned());
        path.clone_into(&mut self.nodes[node].path);
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.names
            .remove(path)
            .unwrap_or_else(|| panic!("{path} was removed and is not known"));
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let below = format!("{from}/");
        let moved: Vec<(String, Node)> = self
            .names
            .range(from.to_owned()..)
            .take_while(|(path, _)| path.starts_with(from))
            .filter(|(path, _)| *path == from || path.starts_with(&below))
            .map(|(path, node)| (path.clone(), *node))
            .collect();
        for (path, _) in &moved {
            self.names.remove(path);
        }
        for (path, node) in moved {
            let path = format!("{to}{}", &path[from.len()..]);
            path.clone_into(&mut self.nodes[node].path);
            self.touched.insert(path.clone());
            self.names.insert(path, node);
        }
    }

    /// The path that stands for all that name the same file.
    pub(crate) fn canonical(&self, path: &str) -> String {
        self.aliases
            .get(path)
            .map_or(path, String::as_str)
            .to_owned()
    }

    /// Where `path` leads from the directory `cwd`, which is absolute.
    pub(crate) fn walk(&self, cwd: &str, path: &str, follow: bool) -> Walk {
        let mut walk = Walk {
            end: End::Broken,
            found: Vec::new(),
            missing: None,
        };
        let mut at: Vec<String> = if path.starts_with('/') {
            Vec::new()
        } else {
            components(cwd)
        };
        let mut rest: Vec<String> = components(path);
        rest.reverse();
        let root = components(&self.root);
        let slash = path.ends_with('/');
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            at.push(name);
            if !at.starts_with(&root) || at.len() == root.len() {
                continue;
            }
            let relative = at[root.len()..].join("/");
            let Some(node) = self.names.get(&relative).copied() else {
                walk.missing = Some(relative.clone());
                if rest.is_empty() {
                    walk.end = End::Absent(relative);
                }
                return walk;
            };
            walk.found.push(relative);
            match &self.nodes[node].kind {
                Kind::Symlink(target) if !rest.is_empty() || follow || slash => {
                    links += 1;
                    assert!(links < MAX_LINKS, "{path} leads in a circle");
                    at.pop();
                    if target.starts_with('/') {
                        at.clear();
                    }
                    let mut more = components(target);
                    more.reverse();
                    rest.append(&mut more);
                }
                Kind::Directory => {}
                _ if !rest.is_empty() => return walk,
                _ => {}
            }
        }
        walk.end = if at.starts_with(&root) {
            let relative = at[root.len()..].join("/");
            let node = self.names[&relative];
            End::Found(relative, node)
        } else {
            End::Outside(format!("/{}", at.join("/")))
        };
        walk
    }
}

pub(crate) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() {
        name.to_owned()
    } else {
        format!("{dir}/{name}")
    }
}

fn components(path: &str) -> Vec<String> {
    let parts = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    parts.map(str::to_owned).collect()
}
