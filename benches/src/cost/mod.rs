//! Costs: what the operations of a sandbox take, in seconds and bytes, through the libraries and
//! through the gateway.
//!
//! These are no ratios: they hold for the machine they were taken on, and are written down to see
//! where time goes.

mod access;
mod beside;
mod gateway;
mod library;
mod merge;
mod publish;
mod publishers;

use std::path::Path;
use std::time::Instant;

use crate::Result;
use crate::input::Inputs;
use crate::measure::{median, quantile};
use crate::outcome::Cost;

/// Groups of costs, by which they are chosen.
pub const GROUPS: [&str; 8] = [
    "import",
    "session",
    "publish",
    "merge",
    "layers",
    "access",
    "gateway",
    "publishers",
];

/// Where costs are gathered.
#[derive(Debug, Default)]
pub struct Costs {
    /// What was found.
    pub found: Vec<Cost>,
}

impl Costs {
    /// Notes measurements of one thing.
    pub fn note(&mut self, name: impl Into<String>, unit: &str, values: &[f64]) {
        self.found.push(Cost {
            name: name.into(),
            value: median(values),
            unit: unit.to_owned(),
            times: values.len() as u32,
            scatter: (quantile(values, 0.75) - quantile(values, 0.25)) / 2.0,
        });
    }
}

/// How the costs are measured.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How often each is measured.
    pub times: u32,
    /// Layers that are stacked up.
    pub layers: u32,
    /// Files of the huge base; 0: without it.
    pub huge: u32,
    /// Rows of the access log; less than 100,000: without it.
    pub records: u32,
}

/// Measures the costs of `groups` in `dir`.
///
/// # Errors
/// An operation fails, or a program is missing.
pub fn measure(
    groups: &[String],
    dir: &Path,
    inputs: &Inputs,
    options: Options,
) -> Result<Vec<Cost>> {
    let mut costs = Costs::default();
    let wants = |group: &str| groups.is_empty() || groups.iter().any(|wanted| wanted == group);
    if let Some(unknown) = groups
        .iter()
        .find(|group| !GROUPS.contains(&group.as_str()))
    {
        return Err(format!(
            "no group of costs is called {unknown:?}; there are {}",
            GROUPS.join(", ")
        )
        .into());
    }
    if wants("import") {
        library::import(&mut costs, dir, inputs, options)?;
    }
    if wants("session") {
        library::session(&mut costs, dir, inputs, options)?;
    }
    if wants("publish") {
        publish::publish(&mut costs, dir, inputs, options)?;
    }
    if wants("merge") {
        merge::measure(&mut costs, dir, options)?;
    }
    if wants("layers") {
        publish::layers(&mut costs, dir, inputs, options)?;
    }
    if wants("access") && options.records >= 100_000 {
        access::measure(&mut costs, dir, options)?;
    }
    if wants("gateway") {
        gateway::measure(&mut costs, dir, inputs, options)?;
        beside::measure(&mut costs, dir, inputs, options)?;
    }
    if wants("publishers") {
        publishers::measure(&mut costs, dir, options)?;
    }
    Ok(costs.found)
}

/// Seconds that `work` takes.
fn seconds<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let begun = Instant::now();
    let value = work()?;
    Ok((begun.elapsed().as_secs_f64(), value))
}
