//! Outcomes: what a run found, its ratios, whether they can be quoted, and how they are shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::bars;
use crate::measure::{Sample, median, quantile};
use crate::peer::Peer;

/// A ratio whose rounds scatter by more than this share of it is not to be quoted.
pub const NOISY: f64 = 0.15;

/// What a run found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The machine and what was compared.
    pub about: BTreeMap<String, String>,
    /// By result, in the order of rows.
    pub results: Vec<ResultOf>,
    /// What operations of a sandbox cost.
    pub costs: Vec<Cost>,
}

/// One result of a row, for all peers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResultOf {
    /// The row and, if it has both, whether cold or warm.
    pub name: String,
    /// What is done.
    pub about: String,
    /// What ratios are taken to.
    pub reference: Peer,
    /// Whether it counts in the mean.
    pub in_mean: bool,
    /// Samples by peer, one a round, in the order of rounds.
    pub samples: BTreeMap<Peer, Vec<Sample>>,
    /// Why peers have none.
    pub failed: BTreeMap<Peer, String>,
    /// What was found by peer, worked out from the samples.
    #[serde(default)]
    pub found: BTreeMap<Peer, Found>,
}

/// What a peer's samples say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Median of seconds that passed.
    pub wall: f64,
    /// Median of seconds of processors.
    pub cpu: f64,
    /// `wall` by that of the reference; `None` if that has none.
    pub ratio: Option<f64>,
    /// `cpu` by that of the reference.
    pub cpu_ratio: Option<f64>,
    /// How far the ratios of single rounds scatter around theirs: half the middle half, as a share.
    pub scatter: f64,
    /// Whether it is too noisy to be quoted.
    pub noisy: bool,
}

/// What something costs; seconds, bytes or a count, as its name says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// What.
    pub name: String,
    /// How much, the median of `times`.
    pub value: f64,
    /// Its unit: `s`, `bytes`, `files`.
    pub unit: String,
    /// How often it was measured.
    pub times: u32,
    /// Half the middle half of the measurements.
    pub scatter: f64,
}

impl ResultOf {
    /// Works out what was found.
    pub fn work_out(&mut self) {
        let reference = self.samples.get(&self.reference).cloned();
        self.found = self
            .samples
            .iter()
            .map(|(peer, samples)| (*peer, found(samples, reference.as_deref())))
            .collect();
    }
}

fn found(samples: &[Sample], reference: Option<&[Sample]>) -> Found {
    let walls: Vec<f64> = samples.iter().map(|sample| sample.wall).collect();
    let cpus: Vec<f64> = samples.iter().map(|sample| sample.cpu).collect();
    let (wall, cpu) = (median(&walls), median(&cpus));
    let against = |pick: fn(&Sample) -> f64, mine: f64| {
        let theirs: Vec<f64> = reference?.iter().map(pick).collect();
        let theirs = median(&theirs);
        (theirs > 0.0).then(|| mine / theirs)
    };
    // Round by round, since what disturbs a round mostly disturbs all that is in it.
    let rounds: Vec<f64> = match reference {
        Some(reference) => walls
            .iter()
            .zip(reference)
            .filter(|(_, other)| other.wall > 0.0)
            .map(|(mine, other)| mine / other.wall)
            .collect(),
        None => walls.clone(),
    };
    let middle = median(&rounds);
    let scatter = if middle > 0.0 {
        (quantile(&rounds, 0.75) - quantile(&rounds, 0.25)) / 2.0 / middle
    } else {
        0.0
    };
    Found {
        wall,
        cpu,
        ratio: against(|sample| sample.wall, wall),
        cpu_ratio: against(|sample| sample.cpu, cpu),
        scatter,
        noisy: scatter > NOISY,
    }
}

impl Outcome {
    /// The peers that have results, in the order of tables.
    pub fn peers(&self) -> Vec<Peer> {
        Peer::ALL
            .into_iter()
            .filter(|peer| {
                self.results.iter().any(|result| {
                    result.samples.contains_key(peer) || result.failed.contains_key(peer)
                })
            })
            .collect()
    }

    /// Geometric mean of the ratios of `peer` over the results that it and its reference have, and
    /// how many they are.
    pub fn mean(&self, peer: Peer) -> (f64, usize) {
        let ratios = self
            .results
            .iter()
            .filter(|result| result.in_mean)
            .filter_map(|result| result.found.get(&peer)?.ratio);
        geometric_mean(ratios)
    }

    /// Geometric mean of how many times longer `other` takes than `peer`.
    pub fn mean_against(&self, peer: Peer, other: Peer) -> (f64, usize) {
        let ratios = self
            .results
            .iter()
            .filter(|result| result.in_mean)
            .filter_map(|result| {
                let (mine, theirs) = (result.found.get(&peer)?, result.found.get(&other)?);
                (mine.wall > 0.0).then(|| theirs.wall / mine.wall)
            });
        geometric_mean(ratios)
    }

    /// The tables, as text.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        if !self.results.is_empty() {
            self.ratios(&mut text);
        }
        if !self.costs.is_empty() {
            let _ = writeln!(text, "\nCosts (median; ± half of the middle half)\n");
            for cost in &self.costs {
                let _ = writeln!(
                    text,
                    "{:<58} {:>16} ± {:<12} n={}",
                    cost.name,
                    amount(cost.value, &cost.unit),
                    amount(cost.scatter, &cost.unit),
                    cost.times
                );
            }
        }
        text
    }

    fn ratios(&self, text: &mut String) {
        let peers = self.peers();
        let _ = writeln!(
            text,
            "Ratios of wall time to kernel overlayfs, and of processor time after the slash.\n\
             v: to overlayfs with `volatile`. ~: too noisy to quote. !: above its bar.\n"
        );
        let _ = write!(text, "{:<19}{:>11}", "", "reference");
        for peer in &peers {
            let _ = write!(text, "{:>16}", peer.as_str());
        }
        let _ = writeln!(text);
        for result in &self.results {
            let seconds = result
                .found
                .get(&result.reference)
                .map_or("–".to_owned(), |found| amount(found.wall, "s"));
            let mark = if result.reference == Peer::Volatile {
                " v"
            } else {
                ""
            };
            let _ = write!(
                text,
                "{:<19}{seconds:>11}",
                format!("{}{mark}", result.name)
            );
            for peer in &peers {
                let _ = write!(text, "{:>16}", cell(result, *peer));
            }
            let _ = writeln!(text);
        }
        let _ = write!(text, "{:<30}", "geometric mean");
        for peer in &peers {
            let (mean, count) = self.mean(*peer);
            let _ = write!(text, "{:>16}", format!("{mean:.2} of {count}"));
        }
        let _ = writeln!(text);
        for result in &self.results {
            for (peer, error) in &result.failed {
                let _ = writeln!(text, "{} with {peer} failed: {error}", result.name);
            }
        }
        for peer in [
            Peer::Session,
            Peer::Files,
            Peer::SessionUring,
            Peer::FilesUring,
        ] {
            let (mean, count) = self.mean_against(peer, Peer::FuseOverlayfs);
            if count > 0 {
                let _ = writeln!(
                    text,
                    "{peer}: {mean:.2} times as fast as fuse-overlayfs, over {count} rows"
                );
            }
        }
    }
}

fn cell(result: &ResultOf, peer: Peer) -> String {
    let Some(found) = result.found.get(&peer) else {
        return if result.failed.contains_key(&peer) {
            "failed".to_owned()
        } else {
            "–".to_owned()
        };
    };
    let Some(ratio) = found.ratio else {
        return amount(found.wall, "s");
    };
    let above = bars::bar(&result.name, peer).is_some_and(|bar| ratio > bar);
    format!(
        "{}{}{ratio:.2}/{:.2}",
        if found.noisy { "~" } else { "" },
        if above { "!" } else { "" },
        found.cpu_ratio.unwrap_or_default(),
    )
}

fn geometric_mean(ratios: impl Iterator<Item = f64>) -> (f64, usize) {
    let logarithms: Vec<f64> = ratios.filter(|ratio| *ratio > 0.0).map(f64::ln).collect();
    let count = logarithms.len();
    if count == 0 {
        return (0.0, 0);
    }
    ((logarithms.iter().sum::<f64>() / count as f64).exp(), count)
}

/// An amount of a unit, with three digits that mean something.
pub fn amount(value: f64, unit: &str) -> String {
    match unit {
        "s" if value < 0.001 => format!("{:.0} µs", value * 1e6),
        "s" if value < 1.0 => format!("{:.1} ms", value * 1e3),
        "s" => format!("{value:.2} s"),
        "bytes" if value >= 1e7 => format!("{:.0} MB", value / 1e6),
        "bytes" if value >= 1e4 => format!("{:.0} kB", value / 1e3),
        _ => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(walls: &[f64]) -> Vec<Sample> {
        walls
            .iter()
            .map(|wall| Sample {
                wall: *wall,
                cpu: wall / 2.0,
            })
            .collect()
    }

    fn result(mine: &[f64], reference: &[f64]) -> ResultOf {
        let mut result = ResultOf {
            name: "rg/warm".to_owned(),
            about: String::new(),
            reference: Peer::Overlay,
            in_mean: true,
            samples: BTreeMap::from([
                (Peer::Overlay, samples(reference)),
                (Peer::Files, samples(mine)),
            ]),
            failed: BTreeMap::new(),
            found: BTreeMap::new(),
        };
        result.work_out();
        result
    }

    #[test]
    fn a_ratio_is_of_medians_and_steady_rounds_can_be_quoted() {
        // Rounds differ threefold, the ratio within a round does not.
        let found = result(&[2.0, 4.0, 6.0], &[1.0, 2.0, 3.0]).found[&Peer::Files];
        assert_eq!(found.ratio, Some(2.0));
        assert_eq!(found.cpu_ratio, Some(2.0));
        assert_eq!(found.scatter, 0.0);
        assert!(!found.noisy);
    }

    #[test]
    fn rounds_that_disagree_are_noisy() {
        let found = result(&[1.0, 2.0, 4.0], &[1.0, 1.0, 1.0]).found[&Peer::Files];
        assert!(found.noisy, "{found:?}");
        let outcome = Outcome {
            results: vec![result(&[1.0, 2.0, 4.0], &[1.0, 1.0, 1.0])],
            ..Outcome::default()
        };
        assert!(
            outcome.tables().contains("~2.00/2.00"),
            "{}",
            outcome.tables()
        );
    }

    #[test]
    fn what_is_above_its_bar_is_marked() {
        let outcome = Outcome {
            results: vec![result(&[3.0, 3.0, 3.0], &[1.0, 1.0, 1.0])],
            ..Outcome::default()
        };
        assert!(
            outcome.tables().contains("!3.00/3.00"),
            "{}",
            outcome.tables()
        );
        assert_eq!(outcome.mean(Peer::Files).1, 1);
        assert!((outcome.mean(Peer::Files).0 - 3.0).abs() < 1e-9);
    }
}
