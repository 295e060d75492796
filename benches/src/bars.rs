//! Bars: the ratio to kernel overlayfs that a result of a view should not exceed.

use crate::peer::Peer;

/// The most that any result should have.
pub const HIGHEST: f64 = 2.5;
/// The most that the geometric mean over all rows should be, with the default trace mode.
pub const MEAN: f64 = 1.2;

/// The bar for `result` of `peer`; `None` if it is no view, or there is no bar: `exact` has none.
pub fn bar(result: &str, peer: Peer) -> Option<f64> {
    let session = match peer {
        Peer::Off | Peer::Session | Peer::SessionUring => true,
        Peer::Files | Peer::FilesUring | Peer::FilesWalked => false,
        _ => return None,
    };
    Some(match result {
        "git-status/warm" | "find/warm" => 1.0,
        "git-status/cold" if peer == Peer::FilesWalked => 1.0,
        "git-status/cold" => 2.2,
        "rg/warm" | "tar/warm" | "read-all/warm" | "open-close/warm" => {
            if session {
                1.0
            } else {
                2.0
            }
        }
        "seq-read/cold" | "seq-read/warm" | "mmap-read/cold" | "mmap-read/warm"
        | "rand-read/cold" | "rand-read/warm" | "rand-write" => 1.1,
        "seq-write" | "delete-10k" => 1.4,
        "create-10k" | "untar-10k" => 2.2,
        "rm-base" | "rename-base" => 0.5,
        "cargo-build" => 1.03,
        _ => HIGHEST,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_name_results_that_exist() {
        let results: Vec<String> = crate::rows::all()
            .iter()
            .flat_map(crate::rows::Row::results)
            .collect();
        for name in ["git-status/cold", "rename-base", "cargo-build", "seq-write"] {
            assert!(results.iter().any(|result| result == name), "{name}");
        }
        assert_eq!(bar("rg/warm", Peer::Session), Some(1.0));
        assert_eq!(bar("rg/warm", Peer::Files), Some(2.0));
        assert_eq!(bar("rg/warm", Peer::Exact), None);
        let cold = |peer| bar("git-status/cold", peer);
        assert!(cold(Peer::FilesWalked) < cold(Peer::FilesUring));
    }
}
