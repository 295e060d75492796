//! Profiles: what a session's record is to hold decides how the kernel is spoken to, and nothing
//! else does, so that no shortcut can make the record lie.

use std::fmt;
use std::str::FromStr;

/// What is recorded of file accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TraceMode {
    /// Nothing; counters only.
    Off,
    /// First reads, look-ups, listings and every change, exact for the session as a whole.
    Session,
    /// Also every open, exact for each command.
    #[default]
    Files,
    /// Every read and write call.
    Exact,
}

impl TraceMode {
    /// Every mode.
    pub const ALL: [TraceMode; 4] = [
        TraceMode::Off,
        TraceMode::Session,
        TraceMode::Files,
        TraceMode::Exact,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            TraceMode::Off => "off",
            TraceMode::Session => "session",
            TraceMode::Files => "files",
            TraceMode::Exact => "exact",
        }
    }

    /// What a record of this mode holds, and what it cannot see.
    pub fn statement(self) -> &'static str {
        match self {
            TraceMode::Off => "off: accesses are not recorded.",
            TraceMode::Session => {
                "session: every change with its process, and the first look-up, listing and read of each path in the \
                 session; what the kernel answers from its caches afterwards is not seen, so a later reader of the \
                 same path is not named. In a session with a background walk, look-ups of what is there are not \
                 seen."
            }
            TraceMode::Files => {
                "files: every open for reading, writing and execution and every change, with its command and \
                 process; reads are counted when they reach the daemon, so repeated reads from the page cache and \
                 loads through a mapping after the first are part of their open; repeated look-ups and listings of \
                 the same path are not seen, nor, in a session with a background walk, look-ups of what is there."
            }
            TraceMode::Exact => {
                "exact: every open, listing, read and write call and every change, with its command and process, \
                 reads and writes with offset and length; loads through a mapping and what is sent within the \
                 kernel (sendfile, splice) are seen page by page at first touch; repeated look-ups are not seen, nor, \
                 in a session with a background walk, look-ups of what is there."
            }
        }
    }
}

impl fmt::Display for TraceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TraceMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        TraceMode::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| {
                format!("no trace mode is called {text:?}; use off, session, files or exact")
            })
    }
}

/// How the kernel is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The kernel opens and closes files without asking. Fastest; no open is seen.
    pub open_without_message: bool,
    /// The kernel opens directories without asking, and lists those that it knows from its cache. The
    /// first listing of each is seen.
    pub list_without_message: bool,
    /// Reads and writes go to the daemon as they are made, past the page cache.
    pub direct_io: bool,
}

impl From<TraceMode> for Profile {
    fn from(mode: TraceMode) -> Self {
        match mode {
            TraceMode::Off | TraceMode::Session => Profile {
                open_without_message: true,
                list_without_message: true,
                direct_io: false,
            },
            TraceMode::Files => Profile {
                open_without_message: false,
                // Tools that look everywhere list every directory, again and again: a message for
                // each would make them several times slower than their look-ups, which are not
                // repeated either.
                list_without_message: true,
                direct_io: false,
            },
            TraceMode::Exact => Profile {
                open_without_message: false,
                list_without_message: false,
                direct_io: true,
            },
        }
    }
}

/// Capabilities of a connection (`FUSE_*` of the INIT flags in `linux/fuse.h`).
mod capability {
    pub(super) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(super) const DONT_MASK: u64 = 1 << 6;
    pub(super) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(super) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(super) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(super) const POSIX_ACL: u64 = 1 << 20;
    pub(super) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(super) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(super) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(super) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(super) const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub(super) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(super) const HAS_RESEND: u64 = 1 << 39;
}

impl Profile {
    /// What the kernel is asked to be capable of, as bits of its INIT flags. What it lacks is done
    /// without.
    ///
    /// `FUSE_ASYNC_DIO` is not among it: the kernel would not drop cached pages when a direct write
    /// that nobody waits for is done, and readers would find what was there before.
    pub(crate) fn capabilities(self) -> u64 {
        let mut wanted = capability::PARALLEL_DIROPS
            | capability::EXPORT_SUPPORT
            | capability::DONT_MASK
            | capability::POSIX_ACL
            | capability::DO_READDIRPLUS
            | capability::READDIRPLUS_AUTO
            | capability::CACHE_SYMLINKS
            | capability::EXPLICIT_INVAL_DATA
            | capability::HANDLE_KILLPRIV_V2
            | capability::DIRECT_IO_ALLOW_MMAP
            | capability::HAS_EXPIRE_ONLY
            | capability::HAS_RESEND;
        if self.open_without_message {
            wanted |= capability::NO_OPEN_SUPPORT;
        }
        if self.list_without_message {
            wanted |= capability::NO_OPENDIR_SUPPORT;
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_profile_hides_what_its_mode_records() {
        for mode in TraceMode::ALL {
            let profile = Profile::from(mode);
            assert_eq!(mode.as_str().parse(), Ok(mode));
            assert!(mode.statement().starts_with(mode.as_str()));
            if matches!(mode, TraceMode::Files | TraceMode::Exact) {
                assert!(!profile.open_without_message, "{mode} records opens");
            }
            assert_eq!(profile.direct_io, mode == TraceMode::Exact, "{mode}");
            if profile.list_without_message && mode != TraceMode::Off {
                let said = mode.statement();
                assert!(said.contains("listing"), "{mode} hides listings: {said}");
            }
        }
    }
}
