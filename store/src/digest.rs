//! The one digest type: 32 bytes by blake3.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::groups::{GroupHasher, PLAIN_MAX};

/// The hash that names an object or a file's content.
///
/// Of up to 4 GiB it is their blake3. Of more it is blake3's key derivation, with a context that says
/// so, of a list: the number of bytes, and for each group of 256 KiB that has a byte other than zero
/// its number and its blake3. Numbers have 64 bits, little-endian, and the first group has number 0.
/// So a digest tells bytes and not how they lie, and that of a sparse file of a tebibyte takes no
/// longer than its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no blake3 digest: 64 hexadecimal digits are needed")]
pub struct InvalidDigest(pub String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.len() as u64 <= PLAIN_MAX {
            return blake3::hash(bytes).into();
        }
        let mut hasher = GroupHasher::new(bytes.len() as u64);
        hasher.update(bytes);
        hasher.finish().0
    }

    /// Wraps the 32 bytes of a digest.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest of no bytes at all: every empty file has it.
    pub fn empty() -> Self {
        Digest::of(b"")
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Digest(*hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        blake3::Hash::from_hex(text)
            .map(Digest::from)
            .map_err(|_| InvalidDigest(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_parses_back() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert!("xyz".parse::<Digest>().is_err());
    }
}
