//! What a token may do: the three authorities and sets of them.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One of the three independent rights a token can carry.
///
/// No authority implies another: a management token cannot run a command.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Authority {
    /// Makes and ends sandboxes, layers and tokens.
    Management,
    /// Works inside sandboxes: sessions, commands, files.
    Runtime,
    /// Reads what happened, and changes nothing.
    Observability,
}

impl Authority {
    /// All authorities, in the order of the documentation.
    pub const ALL: [Authority; 3] = [
        Authority::Management,
        Authority::Runtime,
        Authority::Observability,
    ];

    /// The lower-case name used in tokens, file names and `sandbox-mcp --set`.
    pub fn as_str(self) -> &'static str {
        match self {
            Authority::Management => "management",
            Authority::Runtime => "runtime",
            Authority::Observability => "observability",
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Authority {
    type Err = String;

    /// Parses the lower-case name.
    ///
    /// # Errors
    /// A sentence that names the input and the three names that exist.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Authority::ALL
            .into_iter()
            .find(|authority| authority.as_str() == text)
            .ok_or_else(|| {
                format!("no authority is called {text:?}; use management, runtime or observability")
            })
    }
}

/// A set of authorities, as a token carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Authority>", into = "Vec<Authority>")]
pub struct AuthoritySet(u8);

impl AuthoritySet {
    /// The set that holds nothing.
    pub const EMPTY: AuthoritySet = AuthoritySet(0);

    /// The set with `authority` added.
    #[must_use]
    pub fn with(self, authority: Authority) -> Self {
        AuthoritySet(self.0 | 1 << authority as u8)
    }

    /// Whether `authority` is in the set.
    pub fn contains(self, authority: Authority) -> bool {
        self.0 & 1 << authority as u8 != 0
    }
}

impl FromIterator<Authority> for AuthoritySet {
    fn from_iter<I: IntoIterator<Item = Authority>>(iter: I) -> Self {
        iter.into_iter()
            .fold(AuthoritySet::EMPTY, AuthoritySet::with)
    }
}

impl From<Vec<Authority>> for AuthoritySet {
    fn from(list: Vec<Authority>) -> Self {
        list.into_iter().collect()
    }
}

impl From<AuthoritySet> for Vec<Authority> {
    fn from(set: AuthoritySet) -> Self {
        Authority::ALL
            .into_iter()
            .filter(|authority| set.contains(*authority))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_authority_implies_another() {
        for one in Authority::ALL {
            let set = AuthoritySet::EMPTY.with(one);
            for other in Authority::ALL {
                assert_eq!(set.contains(other), one == other);
            }
        }
    }

    #[test]
    fn names_parse_back() {
        for authority in Authority::ALL {
            assert_eq!(authority.as_str().parse(), Ok(authority));
        }
        assert!(
            "admin"
                .parse::<Authority>()
                .unwrap_err()
                .contains("\"admin\"")
        );
    }
}
