//! Names and paths that are valid by construction.
//!
//! A name is what the kernel allows in a directory: 1 to 255 bytes without `/` and NUL, and
//! neither `.` nor `..`. Nothing is reserved, trimmed or normalised.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes (`NAME_MAX` of Linux).
pub const NAME_MAX: usize = 255;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Box<[u8]>", into = "Box<[u8]>")]
pub struct Name(Box<[u8]>);

/// Bytes that cannot be a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Empty, `.` or `..`.
    #[error("{0:?} is no file name")]
    Special(String),
    /// Longer than 255 bytes.
    #[error("a file name of {0} bytes is longer than 255")]
    TooLong(usize),
    /// Contains `/` or NUL.
    #[error("file name {0:?} contains a slash or a NUL byte")]
    Separator(String),
}

impl Name {
    /// Checks and wraps `bytes`.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidName> {
        Name::check(bytes)?;
        Ok(Name(bytes.into()))
    }

    fn check(bytes: &[u8]) -> Result<(), InvalidName> {
        match bytes {
            b"" | b"." | b".." => Err(InvalidName::Special(show(bytes))),
            _ if bytes.len() > NAME_MAX => Err(InvalidName::TooLong(bytes.len())),
            _ if bytes.iter().any(|byte| matches!(byte, b'/' | 0)) => {
                Err(InvalidName::Separator(show(bytes)))
            }
            _ => Ok(()),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Box<[u8]>> for Name {
    type Error = InvalidName;

    fn try_from(bytes: Box<[u8]>) -> Result<Self, InvalidName> {
        Name::new(&bytes)
    }
}

impl From<Name> for Box<[u8]> {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// A path below a workspace root: names joined by `/`; empty is the root itself.
///
/// Paths are ordered by their names one by one, so a directory comes right before everything
/// below it.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// The workspace root.
    pub const ROOT: RelPath = RelPath(Vec::new());

    /// Reads a path as people write it: `/` between names; leading, trailing and doubled slashes
    /// and `.` are dropped.
    ///
    /// # Errors
    /// [`InvalidName`] for `..`, NUL, or a name that is too long.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidName> {
        let mut path = RelPath::ROOT;
        for part in bytes.split(|byte| *byte == b'/') {
            if !part.is_empty() && part != b"." {
                path = path.join(&Name::new(part)?);
            }
        }
        Ok(path)
    }

    /// The path of `name` in this directory.
    #[must_use]
    pub fn join(&self, name: &Name) -> RelPath {
        self.with(&name.0)
    }

    /// The path of `name` in this directory.
    ///
    /// # Errors
    /// `name` is none.
    pub fn child(&self, name: &[u8]) -> Result<RelPath, InvalidName> {
        Name::check(name)?;
        Ok(self.with(name))
    }

    fn with(&self, name: &[u8]) -> RelPath {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        RelPath(bytes)
    }

    /// The bytes, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the workspace root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The names, from the top.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        // Splitting the empty path would give one empty name.
        self.0
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
    }

    /// The directory and the name in it; `None` for the root.
    pub fn split(&self) -> Option<(RelPath, Name)> {
        if self.is_root() {
            return None;
        }
        let (parent, name) = match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (&self.0[..0], &self.0[..]),
        };
        Some((RelPath(parent.to_vec()), Name(name.into())))
    }

    /// Where this path, which is `from` or lies below it, is when `from` is moved to `to`.
    pub(crate) fn moved(&self, from: &RelPath, to: &RelPath) -> RelPath {
        let names = self.names().skip(from.names().count());
        names.fold(to.clone(), |path, name| path.join(&Name(name.into())))
    }

    /// Whether this is `ancestor` or lies below it.
    pub fn is_within(&self, ancestor: &RelPath) -> bool {
        ancestor.is_root()
            || self
                .0
                .strip_prefix(ancestor.0.as_slice())
                .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }
}

/// Name by name, so that what is in a directory follows it at once.
impl Ord for RelPath {
    fn cmp(&self, other: &Self) -> Ordering {
        // As bytes, but that the separator comes before all that a name can have.
        let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
        let differing = self
            .0
            .iter()
            .zip(&other.0)
            .find(|(mine, theirs)| mine != theirs);
        match differing {
            Some((mine, theirs)) => rank(*mine).cmp(&rank(*theirs)),
            None => self.0.len().cmp(&other.0.len()),
        }
    }
}

impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn any_name_the_kernel_allows_is_a_name() {
        for good in [
            &b"a"[..],
            b"trail ",
            b"a\\b",
            b".wh.x",
            b"\xff\n",
            b"...",
            &[b'x'; 255],
        ] {
            assert_eq!(Name::new(good).unwrap().as_bytes(), good);
        }
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths_are_read_as_people_write_them() {
        assert_eq!(path("//a/./b/").as_bytes(), b"a/b");
        assert!(path("/").is_root());
        assert!(RelPath::parse(b"a/../b").is_err());
    }

    #[test]
    fn a_directory_is_followed_by_what_is_below_it() {
        let mut paths = [
            path("a.b"),
            path("a/z"),
            path("a"),
            path("a/b/c"),
            path("a/b"),
        ];
        paths.sort();
        assert_eq!(
            paths.map(|path| path.to_string()),
            ["a", "a/b", "a/b/c", "a/z", "a.b"]
        );
    }

    #[test]
    fn paths_are_ordered_name_by_name() {
        let texts: [&[u8]; 12] = [
            b"", b"a", b"a/b", b"a/b/c", b"a.b", b"a-", b"a\x01/b", b"a\xff", b"ab", b"b",
            b"b/\x01", b"b/a",
        ];
        let paths: Vec<RelPath> = texts
            .iter()
            .map(|text| RelPath::parse(text).unwrap())
            .collect();
        for one in &paths {
            for other in &paths {
                assert_eq!(
                    one.cmp(other),
                    one.names().cmp(other.names()),
                    "{one} {other}"
                );
            }
        }
    }

    #[test]
    fn within_is_by_names_not_by_bytes() {
        assert!(path("a/b").is_within(&path("a")));
        assert!(path("a").is_within(&path("a")));
        assert!(!path("ab").is_within(&path("a")));
        assert!(path("ab").is_within(&RelPath::ROOT));
    }

    #[test]
    fn split_and_join_are_inverse() {
        let (parent, name) = path("a/b/c").split().unwrap();
        assert_eq!((parent.clone(), name.as_bytes()), (path("a/b"), &b"c"[..]));
        assert_eq!(parent.join(&name), path("a/b/c"));
        assert_eq!(RelPath::ROOT.split(), None);
        assert_eq!(path("x").split().unwrap().0, RelPath::ROOT);
    }
}
