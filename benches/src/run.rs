//! A run: every row in every round on every peer, peers in another order each time.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::daemon::Order;
use crate::input::{Base, Inputs};
use crate::measure::{Numbers, Sample, allow, median, timed};
use crate::outcome::ResultOf;
use crate::peer::{Ground, Peer, Touches};
use crate::rows::{Row, Work};
use crate::{Result, progress};

/// How long one measurement may take with what is done before and after it.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is measured.
#[derive(Debug)]
pub struct Plan {
    /// Rows, in the order of tables.
    pub rows: Vec<Row>,
    /// Peers.
    pub peers: Vec<Peer>,
    /// Rounds that count.
    pub rounds: u32,
}

impl Plan {
    /// The bases that the rows need.
    pub fn bases(&self) -> Vec<Base> {
        let mut bases: Vec<Base> = self.rows.iter().map(|row| row.base).collect();
        bases.sort();
        bases.dedup();
        bases
    }

    /// Measures everything, and hands each result to `found` as it is there.
    ///
    /// # Errors
    /// A place cannot be made or taken away. Work that fails is part of the result.
    pub fn run(
        &self,
        ground: &mut Ground,
        inputs: &Inputs,
        found: &mut dyn FnMut(ResultOf),
    ) -> Result<()> {
        if self.peers.iter().any(|peer| peer.is_view()) {
            for base in self.bases() {
                progress(&format!("importing {}", inputs.base(base).display()));
                ground.daemon().order(&Order::Import {
                    base: inputs.base(base).to_path_buf(),
                })?;
            }
        }
        let mut numbers = Numbers(1);
        for row in &self.rows {
            for result in self.measure(row, ground, inputs, &mut numbers)? {
                found(result);
            }
        }
        allow(None);
        Ok(())
    }

    fn measure(
        &self,
        row: &Row,
        ground: &mut Ground,
        inputs: &Inputs,
        numbers: &mut Numbers,
    ) -> Result<Vec<ResultOf>> {
        let mut results: Vec<ResultOf> = row
            .results()
            .into_iter()
            .map(|name| ResultOf {
                name,
                about: row.about.to_owned(),
                reference: row.reference,
                in_mean: row.in_mean,
                samples: BTreeMap::new(),
                failed: BTreeMap::new(),
                found: BTreeMap::new(),
            })
            .collect();
        // What reads is done once before it counts, so that the host has every base in its page cache.
        let practice = u32::from(row.touches == Touches::Nothing);
        let mut peers = self.peers.clone();
        for round in 0..self.rounds + practice {
            numbers.shuffle(&mut peers);
            for peer in &peers {
                if results[0].failed.contains_key(peer) {
                    continue;
                }
                progress(&format!("{} {peer} {round}", row.name));
                allow(Some(PATIENCE));
                match once(row, *peer, ground, inputs) {
                    Ok(samples) if round >= practice => {
                        for (result, sample) in results.iter_mut().zip(samples) {
                            result.samples.entry(*peer).or_default().push(sample);
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        for result in &mut results {
                            result.samples.remove(peer);
                            result.failed.insert(*peer, error.to_string());
                        }
                    }
                }
            }
        }
        results.iter_mut().for_each(ResultOf::work_out);
        Ok(results)
    }
}

/// A row on a peer, once: one sample for each of its results.
fn once(row: &Row, peer: Peer, ground: &mut Ground, inputs: &Inputs) -> Result<Vec<Sample>> {
    let place = ground.open(
        peer,
        inputs.base(row.base),
        row.touches,
        row.overlay_options,
    )?;
    let samples = samples(row, &place.root, &place.servers, inputs);
    let closed = ground.close(place);
    let samples = samples?;
    closed?;
    Ok(samples)
}

fn samples(row: &Row, root: &Path, servers: &[u32], inputs: &Inputs) -> Result<Vec<Sample>> {
    let work = Work { root, inputs };
    (row.prepare)(&work)?;
    let mut samples = vec![timed(servers, || (row.work)(&work))?];
    if row.repeats > 0 {
        let mut again = Vec::new();
        for _ in 0..row.repeats {
            again.push(timed(servers, || (row.work)(&work))?);
        }
        let middle = |pick: fn(&Sample) -> f64| {
            let values: Vec<f64> = again.iter().map(pick).collect();
            median(&values)
        };
        samples.push(Sample {
            wall: middle(|sample| sample.wall),
            cpu: middle(|sample| sample.cpu),
        });
    }
    Ok(samples)
}
