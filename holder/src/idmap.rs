//! Id maps of sessions.
//!
//! Owns the choice between a full map and a single identity, and writing it. Both are
//! identities: an id inside is the same id outside, so files of views and binds keep
//! their owners.
//!
//! - Full: where the holder has `SETUID`, `SETGID` and `SETFCAP` (root on a host, root in
//!   a container with Docker's default capabilities). Every id that the holder's own user
//!   namespace has exists in the session. Must be written by the parent: the child has no
//!   capability outside its own namespace.
//! - Single: an ordinary user. Only its own user and group exist; it stays itself, and
//!   `setgroups` is denied, as the kernel demands.

use std::fs;
use std::io;
use std::path::PathBuf;

use nix::unistd::{Pid, getegid, geteuid};

use crate::caps::Caps;

/// The maps of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdMap {
    uids: String,
    gids: String,
    all: bool,
}

impl IdMap {
    /// Chooses by what this process may do.
    pub(crate) fn choose(caps: Caps) -> io::Result<IdMap> {
        if caps.may_map_all() {
            let whole = |path| fs::read_to_string(path).map(|map| identity_of(&map));
            Ok(IdMap {
                uids: whole("/proc/self/uid_map")?,
                gids: whole("/proc/self/gid_map")?,
                all: true,
            })
        } else {
            let (uid, gid) = (geteuid(), getegid());
            Ok(IdMap {
                uids: format!("{uid} {uid} 1\n"),
                gids: format!("{gid} {gid} 1\n"),
                all: false,
            })
        }
    }

    /// Whether all ids exist.
    pub(crate) fn all(&self) -> bool {
        self.all
    }

    /// Gives the maps to the user namespace of `pid`, a child of this process.
    pub(crate) fn write(&self, pid: Pid) -> io::Result<()> {
        let file = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        if !self.all {
            fs::write(file("setgroups"), "deny")?;
        }
        fs::write(file("gid_map"), &self.gids)?;
        fs::write(file("uid_map"), &self.uids)
    }
}

/// The identity over every id that a map (`inside outside count` a line) has inside.
fn identity_of(map: &str) -> String {
    let mut identity = String::new();
    for line in map.lines() {
        let mut fields = line.split_whitespace();
        if let (Some(inside), Some(_), Some(count)) = (fields.next(), fields.next(), fields.next())
        {
            identity.push_str(&format!("{inside} {inside} {count}\n"));
        }
    }
    identity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_map_and_a_remapped_one_become_identities() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(identity_of(whole), "0 0 4294967295\n");
        let remapped = "0 100000 65536\n70000 300000 10\n";
        assert_eq!(identity_of(remapped), "0 0 65536\n70000 70000 10\n");
    }
}
