//! Routes: which rule a changed path is published by.
//!
//! The policy's own rules come first, the last that matches; then the `.gitignore` files of the
//! session's view, nested, and `.git/info/exclude`, by git's semantics: the deepest file that says
//! something of a path decides, and below an ignored directory nothing is included again.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::RelPath;
use crate::node::Kind;
use crate::upper::Upper;

/// Largest ignore file that is read, in bytes; what is beyond it is not seen.
const MAX_IGNORE_FILE: usize = 1 << 20;

/// What happens to a changed path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Route {
    /// Merged or rejected.
    Source,
    /// The last writer wins.
    Ignored,
    /// The publish is refused.
    Reject,
    /// The change stays in the session.
    SessionPrivate,
    /// On conflict the session's version wins.
    Ours,
    /// Of conflicting text the lines of both sides are kept.
    Union,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// A pattern in gitignore's syntax.
    pub glob: String,
    /// What happens to what it matches.
    pub route: Route,
}

/// How paths are routed. The last rule that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The rules.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// Checks every pattern; the error names the first that is none.
    ///
    /// # Errors
    /// A sentence with the pattern and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        self.compile().map(|_| ())
    }

    fn compile(&self) -> Result<Vec<(Gitignore, Route)>, String> {
        self.rules
            .iter()
            .map(|rule| {
                let invalid =
                    |error: ignore::Error| format!("{:?} is no pattern: {error}", rule.glob);
                let mut builder = GitignoreBuilder::new("");
                builder.add_line(None, &rule.glob).map_err(invalid)?;
                Ok((builder.build().map_err(invalid)?, rule.route))
            })
            .collect()
    }
}

/// A changed path that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The path.
    pub path: RelPath,
    /// Why, as one word.
    pub reason: &'static str,
}

impl Skipped {
    pub(super) fn socket(path: RelPath) -> Self {
        Skipped {
            path,
            reason: "socket",
        }
    }
}

/// A git ref that both sides moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRef {
    /// The ref.
    pub name: Vec<u8>,
    /// Where the session's value is.
    pub saved_as: Vec<u8>,
}

/// Finds the route of paths, for one publish, or for whoever asks what is ignored.
pub struct Router<'a> {
    upper: &'a Upper,
    rules: Vec<(Gitignore, Route)>,
    /// The ignore file in a directory; `None` if it has none.
    ignores: HashMap<RelPath, Option<Arc<Gitignore>>>,
    /// Whether a directory is ignored.
    directories: HashMap<RelPath, bool>,
}

impl<'a> Router<'a> {
    /// Routes of what `upper` shows.
    pub fn new(upper: &'a Upper, policy: &Policy) -> Self {
        // A policy is checked when it is set; a pattern that has become invalid matches nothing.
        let rules = policy.compile().unwrap_or_else(|error| {
            tracing::error!(%error, "the publish policy does not compile");
            Vec::new()
        });
        Router {
            upper,
            rules,
            ignores: HashMap::new(),
            directories: HashMap::new(),
        }
    }

    /// The route of `path`, which is a directory or not.
    ///
    /// # Errors
    /// As reading an object.
    pub fn route(&mut self, path: &RelPath, is_directory: bool) -> Result<Route> {
        let relative = as_path(path);
        for (pattern, route) in self.rules.iter().rev() {
            if pattern
                .matched_path_or_any_parents(relative, is_directory)
                .is_ignore()
            {
                return Ok(*route);
            }
        }
        Ok(if self.is_ignored(path, is_directory)? {
            Route::Ignored
        } else {
            Route::Source
        })
    }

    fn is_ignored(&mut self, path: &RelPath, is_directory: bool) -> Result<bool> {
        let Some((parent, _)) = path.split() else {
            return Ok(false);
        };
        let above = match self.directories.get(&parent) {
            Some(known) => *known,
            None => {
                let ignored = self.is_ignored(&parent, true)?;
                self.directories.insert(parent.clone(), ignored);
                ignored
            }
        };
        if above {
            return Ok(true);
        }
        // From the path's own directory up: the first file that says something decides.
        let mut directory = Some(parent);
        while let Some(at) = directory {
            if let Some(ignore) = self.ignore_file(&at)? {
                let relative = path
                    .as_bytes()
                    .strip_prefix(at.as_bytes())
                    .unwrap_or(path.as_bytes());
                let relative = relative.strip_prefix(b"/").unwrap_or(relative);
                match ignore.matched(Path::new(OsStr::from_bytes(relative)), is_directory) {
                    Match::Ignore(_) => return Ok(true),
                    Match::Whitelist(_) => return Ok(false),
                    Match::None => {}
                }
            }
            directory = at.split().map(|(parent, _)| parent);
        }
        Ok(false)
    }

    fn ignore_file(&mut self, directory: &RelPath) -> Result<Option<Arc<Gitignore>>> {
        if let Some(known) = self.ignores.get(directory) {
            return Ok(known.clone());
        }
        let mut builder = GitignoreBuilder::new("");
        let mut found = false;
        let mut files = vec![&b".gitignore"[..]];
        if directory.is_root() {
            // Lower in rank than `.gitignore`: of the lines of one matcher the last wins.
            files.insert(0, b".git/info/exclude");
        }
        for file in files {
            let Some(text) = self.read(directory, file)? else {
                continue;
            };
            found = true;
            for line in text.split(|byte| *byte == b'\n') {
                // git ignores lines that are no pattern, and so is done here.
                let _ = builder.add_line(None, &String::from_utf8_lossy(line));
            }
        }
        let ignore = found.then(|| builder.build().ok().map(Arc::new)).flatten();
        self.ignores.insert(directory.clone(), ignore.clone());
        Ok(ignore)
    }

    fn read(&self, directory: &RelPath, file: &[u8]) -> Result<Option<Vec<u8>>> {
        let Ok(path) = RelPath::parse(&[directory.as_bytes(), b"/", file].concat()) else {
            return Ok(None);
        };
        let found = {
            let state = self.upper.state();
            self.upper.find(&state, &path)?
        };
        match found {
            Some((ino, Kind::File)) => self.upper.read(ino, 0, MAX_IGNORE_FILE).map(Some),
            _ => Ok(None),
        }
    }
}

fn as_path(path: &RelPath) -> &Path {
    Path::new(OsStr::from_bytes(path.as_bytes()))
}
