//! Access control lists, as Linux keeps them in `system.posix_acl_access` and
//! `system.posix_acl_default` (`linux/posix_acl_xattr.h`): a version of 4 bytes, then entries of a
//! tag, permissions (2 bytes each) and an id (4 bytes), little-endian.
//!
//! The kernel enforces them. What is left to a filesystem is done here: a list and the permission
//! bits follow each other, and a directory's default list is handed down.

use crate::error::{Error, Result};

/// The list that decides on accesses.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that what is made in a directory begins with.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: [u8; 4] = 2u32.to_le_bytes();
const ENTRY: usize = 8;

const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads a list. The kernel has checked that its entries make sense; here it is only made sure
    /// that there are permissions for everybody.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Acl> {
        let entries = bytes.strip_prefix(&VERSION).ok_or(Error::Invalid)?;
        if !entries.len().is_multiple_of(ENTRY) {
            return Err(Error::Invalid);
        }
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u32::from(*byte))
        };
        let entries: Vec<Entry> = entries
            .chunks_exact(ENTRY)
            .map(|entry| Entry {
                tag: number(&entry[..2]) as u16,
                permissions: number(&entry[2..4]) as u16 & 0o7,
                id: number(&entry[4..]),
            })
            .collect();
        let acl = Acl(entries);
        let base = [USER_OBJ, GROUP_OBJ, OTHER];
        if acl.0.is_empty() || base.iter().all(|tag| acl.find(*tag).is_some()) {
            Ok(acl)
        } else {
            Err(Error::Invalid)
        }
    }

    /// The list as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_vec();
        for entry in &self.0 {
            bytes.extend_from_slice(&entry.tag.to_le_bytes());
            bytes.extend_from_slice(&entry.permissions.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// Whether it has no entry at all, which is how a list is taken away.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the permission bits say all that it says.
    pub(super) fn is_minimal(&self) -> bool {
        self.0
            .iter()
            .all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// The nine permission bits that go with it: the group's are the mask's, if it has one.
    pub(super) fn bits(&self) -> u16 {
        let of = |tag| self.find(tag).map_or(0, |entry| entry.permissions);
        of(USER_OBJ) << 6 | of(self.group_tag()) << 3 | of(OTHER)
    }

    /// Makes it say what permission bits say.
    pub(super) fn set_bits(&mut self, mode: u16) {
        let group = self.group_tag();
        for entry in &mut self.0 {
            match entry.tag {
                USER_OBJ => entry.permissions = mode >> 6 & 0o7,
                OTHER => entry.permissions = mode & 0o7,
                tag if tag == group => entry.permissions = mode >> 3 & 0o7,
                _ => {}
            }
        }
    }

    /// What something made with `mode` below a directory with this default list begins with: no
    /// more than both allow.
    pub(super) fn inherited(mut self, mode: u16) -> Acl {
        self.set_bits(self.bits() & mode);
        self
    }

    fn group_tag(&self) -> u16 {
        if self.find(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        }
    }

    fn find(&self, tag: u16) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.tag == tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u16 = 0x02;
    const NOBODY: u32 = u32::MAX;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entry = |&(tag, permissions, id)| Entry {
            tag,
            permissions,
            id,
        };
        Acl(entries.iter().map(entry).collect())
    }

    fn extended() -> Acl {
        acl(&[
            (USER_OBJ, 7, NOBODY),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NOBODY),
            (MASK, 6, NOBODY),
            (OTHER, 1, NOBODY),
        ])
    }

    #[test]
    fn lists_go_both_ways() {
        let acl = extended();
        assert_eq!(Acl::decode(&acl.encode()).unwrap(), acl);
        assert!(Acl::decode(&VERSION).unwrap().is_empty());
        for wrong in [&b""[..], b"\x01\0\0\0", &acl.encode()[..11]] {
            assert!(matches!(Acl::decode(wrong), Err(Error::Invalid)));
        }
        let without = self::acl(&[(USER_OBJ, 7, NOBODY), (OTHER, 1, NOBODY)]);
        assert!(Acl::decode(&without.encode()).is_err());
    }

    #[test]
    fn the_groups_bits_are_the_masks() {
        assert_eq!(extended().bits(), 0o761);
        assert!(!extended().is_minimal());
        let mut minimal = acl(&[
            (USER_OBJ, 7, NOBODY),
            (GROUP_OBJ, 5, NOBODY),
            (OTHER, 1, NOBODY),
        ]);
        assert_eq!((minimal.bits(), minimal.is_minimal()), (0o751, true));
        minimal.set_bits(0o640);
        assert_eq!(minimal.bits(), 0o640);
        let mut extended = extended();
        extended.set_bits(0o640);
        assert_eq!(extended.bits(), 0o640);
        assert_eq!(extended.find(GROUP_OBJ).unwrap().permissions, 5);
        assert_eq!(extended.find(USER).unwrap().permissions, 6);
    }

    #[test]
    fn what_is_handed_down_is_what_both_allow() {
        assert_eq!(extended().inherited(0o644).bits(), 0o640);
        assert_eq!(extended().inherited(0o777).bits(), 0o761);
        assert_eq!(extended().inherited(0).bits(), 0);
    }
}
