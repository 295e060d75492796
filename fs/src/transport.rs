//! By which way the kernel's requests come.

use std::fmt;
use std::str::FromStr;

use crate::uring;

/// A way for requests between the kernel and a view. What a view does is the same over each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// io_uring where this host allows it, or else `/dev/fuse`.
    #[default]
    Auto,
    /// Read from and written to `/dev/fuse`, on any host.
    Fuse,
    /// FUSE over io_uring: answered on the processor that asks. Linux 6.14 and later, where it has
    /// been allowed.
    Uring,
}

impl Transport {
    /// Every choice.
    pub const ALL: [Transport; 3] = [Transport::Auto, Transport::Fuse, Transport::Uring];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Fuse => "fuse",
            Transport::Uring => "uring",
        }
    }

    /// Why [`Transport::Uring`] cannot be had on this host, and what to do about it. `None`: it can.
    pub fn uring_obstacle() -> Option<String> {
        uring::obstacle()
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Transport::ALL
            .into_iter()
            .find(|transport| transport.as_str() == text)
            .ok_or_else(|| format!("no transport is called {text:?}; use auto, fuse or uring"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        assert!("io_uring".parse::<Transport>().is_err());
    }
}
