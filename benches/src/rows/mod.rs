//! Rows: one kind of work each, the same wherever it is done.

mod big;
mod change;
mod program;
mod read;

use std::path::{Path, PathBuf};

use crate::Result;
use crate::input::{Base, Inputs};
use crate::peer::{Peer, Touches};

/// Where and on what a row works.
#[derive(Debug)]
pub struct Work<'a> {
    /// The directory that is looked at as a place.
    pub root: &'a Path,
    /// What there is.
    pub inputs: &'a Inputs,
}

impl Work<'_> {
    /// Where a row makes new things.
    pub fn new_directory(&self) -> PathBuf {
        self.root.join("bench-new")
    }
}

/// Something to do in a place.
pub type Step = fn(&Work<'_>) -> Result<()>;

/// A row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What it is called.
    pub name: &'static str,
    /// What is done, for a reader of the table.
    pub about: &'static str,
    /// What it is done on.
    pub base: Base,
    /// What it does to it.
    pub touches: Touches,
    /// What a ratio of it is taken to.
    pub reference: Peer,
    /// Further options that kernel overlayfs needs to do it at all.
    pub overlay_options: &'static str,
    /// How often it is repeated in the same place for a second, warm result. 0: there is none.
    pub repeats: u32,
    /// Whether it counts in the mean over all rows.
    pub in_mean: bool,
    /// Done before, not measured.
    pub prepare: Step,
    /// What is measured.
    pub work: Step,
}

impl Row {
    /// A row that reads: with a cold and a warm result.
    const fn reading(name: &'static str, about: &'static str, base: Base, work: Step) -> Row {
        Row {
            name,
            about,
            base,
            touches: Touches::Nothing,
            reference: Peer::Overlay,
            overlay_options: "",
            repeats: 3,
            in_mean: true,
            prepare: nothing,
            work,
        }
    }

    /// A row that makes new things.
    const fn making(name: &'static str, about: &'static str, prepare: Step, work: Step) -> Row {
        Row {
            touches: Touches::New,
            repeats: 0,
            prepare,
            ..Row::reading(name, about, Base::Tree, work)
        }
    }

    /// A row that changes what was there before.
    const fn changing(name: &'static str, about: &'static str, prepare: Step, work: Step) -> Row {
        Row {
            touches: Touches::Base,
            ..Row::making(name, about, prepare, work)
        }
    }

    /// As a row whose copy-ups kernel overlayfs makes durable one by one by default, which nobody
    /// asked for; so the ratio is to `volatile`.
    const fn copying_up(self) -> Row {
        Row {
            reference: Peer::Volatile,
            ..self
        }
    }

    /// The names of its results.
    pub fn results(&self) -> Vec<String> {
        if self.repeats == 0 {
            vec![self.name.to_owned()]
        } else {
            vec![format!("{}/cold", self.name), format!("{}/warm", self.name)]
        }
    }
}

/// Every row, in the order of tables.
pub fn all() -> Vec<Row> {
    [read::ROWS, change::ROWS, big::ROWS, program::ROWS].concat()
}

/// The rows of these names; all if there are none.
///
/// # Errors
/// There is no such row.
pub fn chosen(names: &[String]) -> Result<Vec<Row>> {
    let all = all();
    if names.is_empty() {
        return Ok(all);
    }
    let mut rows = Vec::new();
    for name in names {
        let row = all.iter().find(|row| row.name == name).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|row| row.name).collect();
            format!("no row is called {name:?}; there are {}", known.join(", "))
        })?;
        rows.push(*row);
    }
    Ok(rows)
}

fn nothing(_: &Work<'_>) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<String> = all().iter().flat_map(Row::results).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn rows_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), all().len());
        let one = chosen(&["tar".to_owned()]).unwrap();
        assert_eq!(one[0].results(), ["tar/cold", "tar/warm"]);
        assert!(chosen(&["nosuch".to_owned()]).is_err());
    }
}
