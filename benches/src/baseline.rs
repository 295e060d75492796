//! The baseline: ratios that were reached once, and whether a run falls behind them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::peer::Peer;

/// By how much a ratio may grow before it is told, noise not counted.
pub const TOLERATED: f64 = 0.15;

/// Ratios by result and peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// The machine that they were taken on.
    pub about: BTreeMap<String, String>,
    /// The ratios.
    pub results: BTreeMap<String, BTreeMap<Peer, Entry>>,
}

/// One ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// To the row's reference.
    pub ratio: f64,
    /// How far rounds scattered, as a share.
    pub scatter: f64,
}

/// A result that is worse than its baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Worse {
    /// Which.
    pub result: String,
    /// Whose.
    pub peer: Peer,
    /// What it was.
    pub before: f64,
    /// What it is.
    pub now: f64,
    /// The most that would have passed.
    pub limit: f64,
}

impl From<&Outcome> for Baseline {
    fn from(outcome: &Outcome) -> Self {
        let mut results: BTreeMap<String, BTreeMap<Peer, Entry>> = BTreeMap::new();
        for result in &outcome.results {
            for (peer, found) in &result.found {
                // Peers are measured for the ratios of views, and are not ours to keep fast.
                if let Some(ratio) = found.ratio
                    && peer.is_view()
                {
                    let entry = Entry {
                        ratio,
                        scatter: found.scatter,
                    };
                    results
                        .entry(result.name.clone())
                        .or_default()
                        .insert(*peer, entry);
                }
            }
        }
        Baseline {
            about: outcome.about.clone(),
            results,
        }
    }
}

impl Baseline {
    /// What `outcome` has worse: by more than [`TOLERATED`], and by more than the noise of both runs
    /// can explain.
    pub fn worse(&self, outcome: &Outcome) -> Vec<Worse> {
        let now = Baseline::from(outcome);
        let mut worse = Vec::new();
        for (result, peers) in &now.results {
            for (peer, entry) in peers {
                let Some(before) = self.results.get(result).and_then(|peers| peers.get(peer))
                else {
                    continue;
                };
                let limit = before.ratio * (1.0 + TOLERATED + before.scatter + entry.scatter);
                if entry.ratio > limit {
                    worse.push(Worse {
                        result: result.clone(),
                        peer: *peer,
                        before: before.ratio,
                        now: entry.ratio,
                        limit,
                    });
                }
            }
        }
        worse
    }

    /// Results of the baseline that `outcome` has not.
    pub fn missing(&self, outcome: &Outcome) -> Vec<String> {
        let now = Baseline::from(outcome);
        self.results
            .keys()
            .filter(|result| !now.results.contains_key(*result))
            .cloned()
            .collect()
    }

    /// Takes over what `newer` has, and keeps the rest.
    pub fn update(&mut self, newer: Baseline) {
        self.about = newer.about;
        for (result, peers) in newer.results {
            self.results.entry(result).or_default().extend(peers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Sample;
    use crate::outcome::ResultOf;

    fn outcome(mine: [f64; 3]) -> Outcome {
        let samples = |walls: [f64; 3]| {
            walls
                .iter()
                .map(|wall| Sample {
                    wall: *wall,
                    cpu: *wall,
                })
                .collect()
        };
        let mut result = ResultOf {
            name: "tar/cold".to_owned(),
            about: String::new(),
            reference: Peer::Overlay,
            in_mean: true,
            samples: BTreeMap::from([
                (Peer::Overlay, samples([1.0; 3])),
                (Peer::Files, samples(mine)),
            ]),
            failed: BTreeMap::new(),
            found: BTreeMap::new(),
        };
        result.work_out();
        Outcome {
            results: vec![result],
            ..Outcome::default()
        }
    }

    #[test]
    fn only_what_noise_does_not_explain_is_worse() {
        let baseline = Baseline::from(&outcome([2.0; 3]));
        assert_eq!(baseline.worse(&outcome([2.2; 3])), []);
        assert_eq!(baseline.worse(&outcome([2.5; 3]))[0].result, "tar/cold");
        // The same median, but one that could have been anything.
        assert_eq!(baseline.worse(&outcome([1.5, 2.5, 4.0])), []);
        assert!(baseline.missing(&outcome([2.0; 3])).is_empty());
        assert_eq!(baseline.missing(&Outcome::default()), ["tar/cold"]);
    }

    #[test]
    fn an_update_keeps_what_was_not_measured() {
        let mut baseline = Baseline::from(&outcome([2.0; 3]));
        baseline.update(Baseline::default());
        assert_eq!(baseline.results["tar/cold"][&Peer::Files].ratio, 2.0);
        baseline.update(Baseline::from(&outcome([1.0; 3])));
        assert_eq!(baseline.results["tar/cold"][&Peer::Files].ratio, 1.0);
    }
}
