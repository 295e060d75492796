//! The judge `fsx`: the exerciser of that name from the Cargo registry, which compares one file with
//! what it ought to hold after each of many random operations.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::baseline::{Outcome, Results};
use crate::limited;
use crate::view::{Serving, View};

/// Bytes of the largest file.
const LARGEST: usize = 1 << 20;
/// Operations between two remounts.
const PART: u64 = 20_000;
/// One part takes seconds.
const LIMIT: Duration = Duration::from_secs(900);

/// Every kind of operation that it has, but for those that it does not take for a file that keeps its
/// size. An operation is on at most `most` bytes, and on one at least: to allocate none is an error.
fn configuration(keeps_size: bool, most: usize) -> String {
    format!(
        "flen = {LARGEST}\nblockmode = {keeps_size}\n\
        [opsize]\nmin = 1\nmax = {most}\nalign = 1\n\
        [weights]\nclose_open = {opens}\ninvalidate = 1\nmapread = 10\nmapwrite = 10\nread = 10\nwrite = 10\n\
        truncate = {changes_size}\nfsync = 0.1\nfdatasync = 0.1\nposix_fallocate = {changes_size}\n\
        punch_hole = 2\nsendfile = 2\nposix_fadvise = 2\ncopy_file_range = 5\n",
        opens = u8::from(!keeps_size),
        changes_size = if keeps_size { 0 } else { 5 },
    )
}

/// The exerciser.
#[derive(Debug)]
pub struct Fsx {
    /// The program `fsx`.
    pub program: PathBuf,
    /// Operations for all seeds together.
    pub operations: u64,
    /// Random programs, each on a file that is new, one of the base, and one of the base that keeps
    /// its size.
    pub seeds: u64,
}

impl Fsx {
    /// Runs it on views in `place`, a directory of its own.
    ///
    /// # Errors
    /// The exerciser or a view could not be set up.
    pub fn run(&self, serving: &Serving, place: &Path) -> io::Result<Results> {
        fs::create_dir_all(place)?;
        let mut view = View::new(serving, place, |base| {
            for seed in 0..self.seeds {
                for kind in ["base", "block"] {
                    fs::write(base.join(format!("{kind}-{seed}")), some_bytes(LARGEST))?;
                }
            }
            Ok(())
        })?;
        let of_each = (self.operations / (self.seeds * 3)).max(1);
        let mut results = Results::new();
        for seed in 0..self.seeds {
            for kind in ["new", "base", "block"] {
                let name = format!("{kind}-{seed}");
                let mut outcome = Outcome::Passed;
                let mut done = 0;
                while done < of_each && outcome == Outcome::Passed {
                    let operations = PART.min(of_each - done);
                    let most = [65_536, 6000][(done / PART % 2) as usize];
                    let text = configuration(kind == "block", most);
                    fs::write(place.join("fsx.toml"), text)?;
                    outcome = self.part(&mut view, place, &name, seed + done, operations)?;
                    done += operations;
                }
                results.insert(format!("{name} ({done} operations)"), outcome);
            }
        }
        Ok(results)
    }

    /// Some operations on the file `name`, which must be the same after a remount.
    fn part(
        &self,
        view: &mut View,
        place: &Path,
        name: &str,
        seed: u64,
        operations: u64,
    ) -> io::Result<Outcome> {
        let file = view.path().join(name);
        let mut command = Command::new(&self.program);
        command
            .arg("-f")
            .arg(place.join("fsx.toml"))
            .args(["-S", &seed.to_string(), "-N", &operations.to_string()])
            .arg("-P")
            .arg(place)
            .arg(&file);
        let ended = limited::run(&mut command, LIMIT, &place.join("fsx.log"))?;
        if ended.status.is_none() {
            return Ok(Outcome::Hung);
        }
        if !ended.is_success() {
            fs::copy(place.join("fsx.log"), place.join(format!("fsx-{name}.log")))?;
            return Ok(Outcome::Failed(format!(
                "with seed {seed}: {}",
                ended.last_line()
            )));
        }
        let before = fs::read(&file)?;
        view.remount()?;
        if fs::read(&file)? != before {
            return Ok(Outcome::Failed(format!(
                "with seed {seed}: not the same after a remount"
            )));
        }
        Ok(Outcome::Passed)
    }
}

/// Bytes of which no block is like another.
fn some_bytes(count: usize) -> Vec<u8> {
    (0..count)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_toml() {
        for keeps_size in [false, true] {
            let table: toml::Table = configuration(keeps_size, 6000).parse().unwrap();
            assert_eq!(table["blockmode"].as_bool(), Some(keeps_size));
            assert_eq!(table["weights"].as_table().unwrap().len(), 14);
        }
    }
}
