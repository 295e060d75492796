//! Costs of publishes: of little and of much, on few layers and on many.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::library::{PATIENCE, first_reads, import_order, open};
use super::{Costs, Options};
use crate::daemon::Order;
use crate::input::{BIG_BYTES, Inputs};
use crate::measure::allow;
use crate::peer::Ground;
use crate::{Result, progress};

/// Files of a large publish.
const MANY: usize = 1_000;
/// Bytes of a small new file.
const SMALL: usize = 1_000;
/// Lines of the file that is blamed.
const BLAMED: u32 = 10_000;
/// Bytes of the block that changes.
const BLOCK: usize = 4_096;

/// The same publish several times, each of a session of its own.
pub(super) struct Publishes<'a> {
    pub(super) base: &'a Path,
    /// What it is called among the costs.
    pub(super) about: String,
    pub(super) times: u32,
}

impl Publishes<'_> {
    /// Publishes what `change` does in a session, given the number of the round and where the session
    /// is mounted. Notes the seconds, as a whole and by step, and what the store grows by.
    pub(super) fn take(
        &self,
        costs: &mut Costs,
        ground: &mut Ground,
        change: &mut dyn FnMut(u32, &Path) -> Result<()>,
    ) -> Result<()> {
        let (mut totals, mut grown) = (Vec::new(), Vec::new());
        let mut steps: Vec<(String, Vec<f64>)> = Vec::new();
        for round in 0..self.times {
            allow(Some(PATIENCE));
            progress(&format!("{}, {round}", self.about));
            let at = ground.scratch()?;
            ground.daemon().order(&open(self.base, &at)?)?;
            change(round, &at)?;
            let answer = ground.daemon().order(&Order::Publish { at: at.clone() })?;
            totals.push(answer.total());
            grown.push(answer.count("grown_bytes") as f64);
            for (step, passed) in answer.seconds {
                match steps.iter_mut().find(|(name, _)| *name == step) {
                    Some((_, values)) => values.push(passed),
                    None => steps.push((step, vec![passed])),
                }
            }
            ground.daemon().order(&Order::Close { at: at.clone() })?;
            fs::remove_dir(&at)?;
        }
        costs.note(self.about.clone(), "s", &totals);
        for (step, values) in steps {
            costs.note(format!("{}: {step}", self.about), "s", &values);
        }
        costs.note(
            format!("{}: what the store grows by", self.about),
            "bytes",
            &grown,
        );
        Ok(())
    }
}

/// Adds a line to a file that says in which round.
pub(super) fn append(file: &Path, round: u32) -> Result<()> {
    let mut file = fs::OpenOptions::new().append(true).open(file)?;
    Ok(writeln!(file, "// round {round}")?)
}

/// Publishes of one changed file, of many, of many new ones, and of one block of a large file.
pub(super) fn publish(
    costs: &mut Costs,
    dir: &Path,
    inputs: &Inputs,
    options: Options,
) -> Result<()> {
    let mut ground = Ground::new(&dir.join("cost"))?;
    let of = |base, about: String| Publishes {
        base,
        about,
        times: options.times,
    };
    ground.daemon().order(&import_order(&inputs.tree))?;
    for count in [1, MANY] {
        let measured = of(&inputs.tree, format!("publish of {count} changed file(s)"));
        measured.take(costs, &mut ground, &mut |round, at| {
            inputs
                .own_files()
                .step_by(7)
                .take(count)
                .try_for_each(|file| append(&at.join(file), round))
        })?;
    }
    let measured = of(&inputs.tree, format!("publish of {MANY} new files"));
    measured.take(costs, &mut ground, &mut |round, at| {
        for number in 0..MANY {
            let directory = at.join(format!("new-{round}/directory-{}", number / 100));
            fs::create_dir_all(&directory)?;
            let mut text = format!("{round} {number}\n").repeat(SMALL / 4);
            text.truncate(SMALL);
            fs::write(directory.join(format!("file-{number}")), text)?;
        }
        Ok(())
    })?;
    ground.daemon().order(&import_order(&inputs.big))?;
    let measured = of(&inputs.big, "publish of one block of 1 GiB".to_owned());
    measured.take(costs, &mut ground, &mut |round, at| {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(at.join("big.bin"))?;
        let blocks = BIG_BYTES / BLOCK as u64;
        let block = (u64::from(round) * 7_919 + 13) % blocks;
        Ok(file.write_all_at(&[round as u8; BLOCK], block * BLOCK as u64)?)
    })?;
    blame(costs, &mut ground, inputs)
}

/// Who wrote a file that many have changed.
fn blame(costs: &mut Costs, ground: &mut Ground, inputs: &Inputs) -> Result<()> {
    allow(Some(PATIENCE));
    let about = format!("blame of {BLAMED} lines after {MANY} publishes");
    progress(&about);
    let answer = ground.daemon().order(&Order::Blame {
        base: inputs.tree.clone(),
        lines: BLAMED,
        count: MANY as u32,
    })?;
    if answer.count("runs") < MANY as u64 {
        return Err(format!("only {} runs of lines were told", answer.count("runs")).into());
    }
    costs.note(about, "s", &[answer.total()]);
    Ok(())
}

/// Look-ups, sessions and publishes in a stack of few and of many layers.
pub(super) fn layers(
    costs: &mut Costs,
    dir: &Path,
    inputs: &Inputs,
    options: Options,
) -> Result<()> {
    let mut ground = Ground::new(&dir.join("cost"))?;
    ground.daemon().order(&import_order(&inputs.tree))?;
    let mut targets = vec![1, 100, options.layers];
    targets.sort_unstable();
    targets.dedup();
    for target in targets.into_iter().filter(|target| *target > 0) {
        allow(Some(PATIENCE * 4));
        progress(&format!("{target} layers"));
        let answer = ground.daemon().order(&Order::Layers {
            base: inputs.tree.clone(),
            count: 0,
        })?;
        // The publishes that were measured are layers too.
        let missing = target.saturating_sub(answer.count("layers") as u32);
        if missing > 0 {
            ground.daemon().order(&Order::Layers {
                base: inputs.tree.clone(),
                count: missing,
            })?;
        }
        let about = format!("{target} layer(s)");
        let mut passed = Vec::new();
        for _ in 0..options.times {
            let answer = ground.daemon().order(&Order::LookUp {
                base: inputs.tree.clone(),
                paths: inputs.files.clone(),
            })?;
            passed.push(answer.total() / inputs.files.len() as f64);
        }
        costs.note(format!("look-up of a path on {about}"), "s", &passed);
        first_reads(
            costs,
            &mut ground,
            &inputs.tree,
            &inputs.files[..1],
            &about,
            options,
        )?;
        let measured = Publishes {
            base: &inputs.tree,
            about: format!("publish of 1 file on {about}"),
            times: options.times,
        };
        let file = inputs.own_files().next().ok_or("the tree has no files")?;
        measured.take(costs, &mut ground, &mut |round, at| {
            append(&at.join(file), round)
        })?;
    }
    Ok(())
}
