//! File content: how the bytes of a file lie over blobs.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::groups::{GroupHasher, Groups};
use crate::objects::Objects;

/// The content of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Content {
    /// Bytes in the file, holes included.
    pub size: u64,
    /// Bytes that are stored, holes not included.
    pub stored: u64,
    /// The digest of all `size` bytes, holes as zeros. It names the content, however it lies.
    pub digest: Digest,
    /// How the bytes lie.
    pub layout: Layout,
}

/// How the bytes of a file lie over blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// One blob, named by the content's own digest, holds them all. (No blob if the file is empty.)
    Whole,
    /// The object of this digest lists [`Segment`]s; what lies between them is a hole.
    Segments(Digest),
}

/// A run of bytes of a file, from a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// Its bytes; not 0.
    pub length: u64,
    /// Where the bytes come from.
    pub source: Source,
}

/// A position in a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Source {
    /// The blob.
    pub blob: Digest,
    /// Where in the blob, in bytes.
    pub offset: u64,
}

/// First bytes of a segment list; the digit is its version.
const MAGIC: &[u8; 4] = b"SSG1";
/// Bytes of one encoded segment.
const SEGMENT_BYTES: usize = 8 + 8 + 32 + 8;
/// Bytes hashed at a time.
const HASH_BYTES: usize = 256 << 10;

impl Content {
    /// The content of an empty file.
    pub fn empty() -> Self {
        Content {
            size: 0,
            stored: 0,
            digest: Digest::empty(),
            layout: Layout::Whole,
        }
    }

    /// The segments, in order, without overlaps.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Corrupt`] if the segment list is not there or not one.
    pub fn segments(&self, objects: &Objects) -> Result<Vec<Segment>> {
        match self.layout {
            Layout::Whole if self.size == 0 => Ok(Vec::new()),
            Layout::Whole => Ok(vec![Segment {
                offset: 0,
                length: self.size,
                source: Source {
                    blob: self.digest,
                    offset: 0,
                },
            }]),
            Layout::Segments(list) => {
                decode(&objects.get(&list)?, self.size).ok_or_else(|| Error::Corrupt {
                    what: format!("segment list {list}"),
                    detail: "it does not decode".to_owned(),
                })
            }
        }
    }

    /// Reads the bytes at `offset` into `buffer` and returns how many there are before the end of
    /// the file.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Corrupt`] or [`Error::Io`].
    pub fn read_at(&self, objects: &Objects, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let end = offset.saturating_add(buffer.len() as u64).min(self.size);
        if offset >= end {
            return Ok(0);
        }
        let wanted = &mut buffer[..(end - offset) as usize];
        if self.layout == Layout::Whole {
            objects.read_at(&self.digest, offset, wanted)?;
            return Ok(wanted.len());
        }
        wanted.fill(0);
        for segment in self.segments(objects)? {
            let from = segment.offset.max(offset);
            let to = (segment.offset + segment.length).min(end);
            if from < to {
                let part = &mut wanted[(from - offset) as usize..(to - offset) as usize];
                objects.read_at(
                    &segment.source.blob,
                    segment.source.offset + (from - segment.offset),
                    part,
                )?;
            }
        }
        Ok((end - offset) as usize)
    }

    /// Reads all the bytes.
    ///
    /// # Errors
    /// As [`Content::read_at`].
    pub fn read_all(&self, objects: &Objects) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.size as usize];
        self.read_at(objects, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// The digest of a file of `size` bytes made of `segments`, with zeros between them, and its groups.
/// `read` fills a buffer from a source. `None` if `stopped` said so.
pub(crate) fn hash_segments<S: Copy>(
    size: u64,
    segments: impl IntoIterator<Item = (u64, u64, S)>,
    stopped: &dyn Fn() -> bool,
    mut read: impl FnMut(S, u64, &mut [u8]) -> Result<()>,
) -> Result<Option<(Digest, Groups)>> {
    let mut hasher = GroupHasher::new(size);
    let mut buffer = vec![0; HASH_BYTES.min(size as usize)];
    for (offset, length, source) in segments {
        hasher.zeros_to(offset);
        for done in (0..length).step_by(HASH_BYTES) {
            if stopped() {
                return Ok(None);
            }
            let part = &mut buffer[..(HASH_BYTES as u64).min(length - done) as usize];
            read(source, done, part)?;
            hasher.update(part);
        }
    }
    Ok(Some(hasher.finish()))
}

/// Writes a segment list: the magic, the count, then for each segment file offset, length, blob
/// and blob offset, all numbers 64-bit little-endian.
pub(crate) fn encode(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12 + segments.len() * SEGMENT_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(segments.len() as u64).to_le_bytes());
    for segment in segments {
        bytes.extend_from_slice(&segment.offset.to_le_bytes());
        bytes.extend_from_slice(&segment.length.to_le_bytes());
        bytes.extend_from_slice(segment.source.blob.as_bytes());
        bytes.extend_from_slice(&segment.source.offset.to_le_bytes());
    }
    bytes
}

/// Reads a segment list of a file of `size` bytes; `None` if it is not one.
fn decode(bytes: &[u8], size: u64) -> Option<Vec<Segment>> {
    let body = bytes.strip_prefix(MAGIC)?;
    let (count, body) = body.split_first_chunk::<8>()?;
    let (items, rest) = body.as_chunks::<SEGMENT_BYTES>();
    if !rest.is_empty() || items.len() as u64 != u64::from_le_bytes(*count) {
        return None;
    }
    let mut end = 0;
    let mut segments = Vec::with_capacity(items.len());
    for item in items {
        let number = |at: usize| -> u64 {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&item[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let mut blob = [0; 32];
        blob.copy_from_slice(&item[16..48]);
        let segment = Segment {
            offset: number(0),
            length: number(8),
            source: Source {
                blob: Digest::from_bytes(blob),
                offset: number(48),
            },
        };
        if segment.length == 0 || segment.offset < end {
            return None;
        }
        end = segment.offset.checked_add(segment.length)?;
        segments.push(segment);
    }
    (end <= size).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_decode_back_and_damage_is_noticed() {
        let source = Source {
            blob: Digest::of(b"b"),
            offset: 7,
        };
        let list = [
            Segment {
                offset: 0,
                length: 5,
                source,
            },
            Segment {
                offset: 4096,
                length: 10,
                source,
            },
        ];
        let bytes = encode(&list);
        assert_eq!(decode(&bytes, 4106), Some(list.to_vec()));
        assert_eq!(decode(&bytes, 4105), None, "beyond the end of the file");
        assert_eq!(decode(&bytes[..bytes.len() - 1], 4106), None, "cut");
        let overlapping = encode(&[list[1], list[0]]);
        assert_eq!(decode(&overlapping, 5000), None, "out of order");
    }
}
