//! What a git index stages, without what it knows of the files of the working tree.
//!
//! An index begins with `DIRC`, a version (2, 3 or 4) and the number of entries, all 32-bit
//! big-endian. An entry is 40 bytes of what `lstat` said (of which the mode at byte 24 is staged),
//! the object's name (20 bytes, or 32 with SHA-256), 16 bits of flags, 16 more if one of those says
//! so, and the path: ended by NUL and padded to 8 bytes, or, in version 4, as how much of the path
//! before is cut off and what is put on.

/// What one entry stages: mode, object, stage and path.
#[derive(PartialEq, Eq)]
struct Entry {
    mode: [u8; 4],
    object: Vec<u8>,
    /// The stage bits of the flags: not 0 in an unmerged path.
    stage: u8,
    /// Set by `git add -N`: the object is not the content.
    intended: bool,
    path: Vec<u8>,
}

/// Whether two indexes stage the same; `false` if one cannot be read.
pub(super) fn stage_the_same(one: Option<&[u8]>, other: Option<&[u8]>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return one.is_none() && other.is_none();
    };
    [20, 32].into_iter().any(|object_bytes| {
        match (entries(one, object_bytes), entries(other, object_bytes)) {
            (Some(one), Some(other)) => one == other,
            _ => false,
        }
    })
}

fn entries(index: &[u8], object_bytes: usize) -> Option<Vec<Entry>> {
    let number = |at: usize| -> Option<u32> {
        let bytes = index.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    let version = number(4)?;
    if index.get(..4)? != b"DIRC" || !(2..=4).contains(&version) {
        return None;
    }
    let mut at = 12;
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..number(8)? {
        let start = at;
        let mode = index.get(at + 24..at + 28)?.try_into().ok()?;
        at += 40;
        let object = index.get(at..at + object_bytes)?.to_vec();
        at += object_bytes;
        let flags = index.get(at..at + 2)?;
        at += 2;
        let mut intended = false;
        if flags[0] & 0x40 != 0 {
            intended = index.get(at)? & 0x20 != 0;
            at += 2;
        }
        let mut path = Vec::new();
        if version == 4 {
            let cut = varint(index, &mut at)?;
            let before = entries.last().map_or(&[][..], |entry| &entry.path);
            path.extend_from_slice(before.get(..before.len().checked_sub(cut)?)?);
        }
        let rest = index.get(at..)?;
        let length = rest.iter().position(|byte| *byte == 0)?;
        path.extend_from_slice(&rest[..length]);
        at += length + 1;
        if version < 4 {
            // One to eight NULs, so that the next entry begins at a multiple of eight.
            at = start + (at - start).next_multiple_of(8);
        }
        entries.push(Entry {
            mode,
            object,
            stage: flags[0] >> 4 & 3,
            intended,
            path,
        });
    }
    // The checksum of it all comes last; extensions between say nothing of what is staged.
    (at + object_bytes <= index.len()).then_some(entries)
}

/// The number that git writes as bytes of seven bits, each but the last with the eighth set.
fn varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut byte = *bytes.get(*at)?;
    *at += 1;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = *bytes.get(*at)?;
        *at += 1;
        value = value.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
    }
    Some(value)
}
