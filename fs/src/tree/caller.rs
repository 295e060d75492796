//! Who asks. A request names a user and a group, and not the further groups.

use std::fs;
use std::path::Path;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, by its id where the daemon runs; 0 for the kernel itself and for the embedder.
    pub pid: u32,
}

impl Caller {
    /// Whether the caller may act for group `gid`: it is root, or in the group. The thread waits for
    /// the reply while it is looked up, so it is there.
    pub(crate) fn is_member(self, gid: u32) -> bool {
        if self.uid == 0 || self.gid == gid {
            return true;
        }
        let path = Path::new("/proc").join(self.pid.to_string()).join("status");
        fs::read(path).is_ok_and(|status| groups(&status).any(|group| group == gid))
    }
}

/// The numbers in the line `Groups:` of a thread's `status`.
fn groups(status: &[u8]) -> impl Iterator<Item = u32> {
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"))
        .unwrap_or_default();
    line.split(u8::is_ascii_whitespace)
        .filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_groups_count() {
        let status = b"Name:\tx\nGroups:\t4 27 1000 \nNStgid:\t9\n";
        assert_eq!(groups(status).collect::<Vec<_>>(), [4, 27, 1000]);
        assert_eq!(groups(b"Name:\tx\n").count(), 0);
        let caller = |uid, gid| Caller { uid, gid, pid: 0 };
        assert!(caller(0, 0).is_member(5));
        assert!(caller(9, 5).is_member(5));
        assert!(!caller(9, 4).is_member(5));
    }
}
