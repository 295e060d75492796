//! The digest of a file as a session has it.

use super::Upper;
use crate::digest::Digest;
use crate::error::Result;
use crate::node::Ino;

/// Bytes read at a time.
const PART: usize = 1 << 20;

impl Upper {
    /// The digest of the content of file `ino`: without reading it, if the session has not changed
    /// it.
    ///
    /// # Errors
    /// As [`Upper::read`].
    pub fn digest(&self, ino: Ino) -> Result<Digest> {
        let lower = self.lower_content(&self.state(), ino)?;
        if let Some(content) = lower {
            return Ok(content.digest);
        }
        let mut hasher = blake3::Hasher::new();
        let mut offset = 0;
        loop {
            let part = self.read(ino, offset, PART)?;
            hasher.update(&part);
            offset += part.len() as u64;
            if part.len() < PART {
                return Ok(hasher.finalize().into());
            }
        }
    }
}
