//! What merging a text by lines costs: seconds, and memory at its peak.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{Costs, Options};
use crate::daemon::{Daemon, Order};
use crate::measure::allow;
use crate::{Result, progress};

/// How long one merge may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Lines of the file that is rewritten whole: 80 KB.
const REWRITTEN: usize = 8_000;
/// Lines of the lock file.
const LOCKED: usize = 50_000;
/// Edits of each side in it.
const EDITS: usize = 500;
/// Bytes of the file of one line.
const LONG: usize = 1 << 20;

struct Case {
    name: &'static str,
    clean: bool,
    /// Base, head, mine.
    texts: [String; 3],
}

fn cases() -> Vec<Case> {
    let lines = |word: &str| -> String {
        (0..REWRITTEN)
            .map(|line| format!("{word} {line:05}\n"))
            .collect()
    };
    let (old, new, other) = (lines("old"), lines("new"), lines("own"));
    let locked = |first: Option<usize>| -> String {
        let mut lines: Vec<String> = (0..LOCKED)
            .map(|line| match line % 4 {
                0 => format!("name = \"package-{line}\"\n"),
                1 => "version = \"1.0.0\"\n".to_owned(),
                2 => format!("checksum = \"{line:064x}\"\n"),
                _ => "\n".to_owned(),
            })
            .collect();
        if let Some(first) = first {
            for edit in 0..EDITS {
                lines[first + edit * (LOCKED / EDITS)] = format!("edited {first} {edit}\n");
            }
        }
        lines.concat()
    };
    let long = "x".repeat(LONG);
    vec![
        Case {
            name: "8,000 lines rewritten whole by one side",
            clean: true,
            texts: [old.clone(), new.clone(), old.clone()],
        },
        Case {
            name: "8,000 lines rewritten whole by both sides",
            clean: false,
            texts: [old, new, other],
        },
        Case {
            name: "50,000 lines, 500 edits on each side",
            clean: true,
            texts: [locked(None), locked(Some(2)), locked(Some(50))],
        },
        Case {
            name: "one line of 1 MiB, changed by both sides",
            clean: false,
            texts: [long.clone(), format!("{long}y"), format!("y{long}")],
        },
    ]
}

pub(super) fn measure(costs: &mut Costs, dir: &Path, options: Options) -> Result<()> {
    let dir = dir.join("merge");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    for case in cases() {
        progress(&format!("merge: {}", case.name));
        let paths = ["base", "head", "mine"].map(|name| dir.join(name));
        for (path, text) in paths.iter().zip(&case.texts) {
            fs::write(path, text)?;
        }
        let [base, head, mine] = paths;
        let order = Order::Merge { base, head, mine };
        let (mut passed, mut peaks) = (Vec::new(), Vec::new());
        for _ in 0..options.times {
            allow(Some(PATIENCE));
            // A new process each time: one that has merged before has memory that it need not ask for.
            let answer = Daemon::start(&dir.join("store"))?.order(&order)?;
            if (answer.count("conflicts") == 0) != case.clean {
                return Err(format!(
                    "merge of {}: {} conflicts",
                    case.name,
                    answer.count("conflicts")
                )
                .into());
            }
            passed.push(answer.total());
            peaks.push(answer.count("peak_bytes") as f64);
        }
        costs.note(format!("merge: {}", case.name), "s", &passed);
        costs.note(
            format!("merge: {}: memory at its peak, more than before", case.name),
            "bytes",
            &peaks,
        );
    }
    Ok(fs::remove_dir_all(&dir)?)
}
