//! The bar that a terminal shows while a sandbox is imported.
//!
//! Decoration: it lives on one line of stderr, redraws it at most ten times a second, and leaves
//! nothing behind.

use std::io::Write;
use std::time::{Duration, Instant};

use sandstack_api::management::ImportProgress;
use serde::Deserialize;
use serde_json::Value;

use crate::text::{Style, Tone, units};

/// Shortest time between two drawings: more often than eyes follow is only load.
const REDRAW: Duration = Duration::from_millis(100);
/// Widest bar, in characters.
const MAX_BAR: usize = 30;
/// To the line's beginning, and clear it.
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";

/// The bar.
pub(crate) struct Bar<'a> {
    /// `None` once the terminal is gone.
    sink: Option<&'a mut (dyn Write + Send)>,
    columns: usize,
    style: Style,
    drawn: Option<Instant>,
}

impl<'a> Bar<'a> {
    /// A bar on `sink`, a terminal of `columns` characters.
    pub(crate) fn new(sink: &'a mut (dyn Write + Send), columns: u16, color: bool) -> Bar<'a> {
        Bar {
            sink: Some(sink),
            columns: columns.into(),
            style: Style {
                color,
                columns: None,
            },
            drawn: None,
        }
    }

    /// Draws `progress`, an [`ImportProgress`]; anything else is from a newer gateway and not shown.
    pub(crate) fn update(&mut self, progress: &Value) {
        let Ok(progress) = ImportProgress::deserialize(progress) else {
            return;
        };
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        let mut line = CLEAR_LINE.to_vec();
        line.extend_from_slice(line_of(&progress, self.columns, &self.style).as_bytes());
        self.write(&line);
    }

    /// Takes the bar away.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            self.write(CLEAR_LINE);
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(sink) = &mut self.sink
            && sink.write_all(bytes).and_then(|()| sink.flush()).is_err()
        {
            self.sink = None;
        }
    }
}

fn line_of(progress: &ImportProgress, columns: usize, style: &Style) -> String {
    let counts = format!(
        " {}/{} files, {}/{}",
        units::count(progress.files_done),
        units::count(progress.files_found),
        units::bytes(progress.bytes_done),
        units::bytes(progress.bytes_found),
    );
    let label = "importing ";
    // One character stays free: some terminals wrap when the last is written.
    let room = columns.saturating_sub(label.len() + counts.len() + 3);
    let width = room.min(MAX_BAR);
    if width < 5 {
        let line = format!("{label}{}", counts.trim_start());
        return line.chars().take(columns.saturating_sub(1)).collect();
    }
    // Bytes tell how long it takes; a tree of empty files has none.
    let (done, found) = match progress.bytes_found {
        0 => (progress.files_done, progress.files_found),
        found => (progress.bytes_done, found),
    };
    let filled = match found {
        0 => 0,
        found => (u128::from(done) * width as u128 / u128::from(found)) as usize,
    }
    .min(width);
    let bar = "#".repeat(filled) + &".".repeat(width - filled);
    format!("{label}[{}]{counts}", style.paint(Tone::Good, &bar))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HALF: ImportProgress = ImportProgress {
        files_found: 2000,
        files_done: 1200,
        bytes_found: 4 << 20,
        bytes_done: 2 << 20,
    };

    #[test]
    fn the_bar_fits_its_line() {
        let plain = Style {
            color: false,
            columns: None,
        };
        assert_eq!(
            line_of(&HALF, 80, &plain),
            "importing [###############...............] 1,200/2,000 files, 2.0 MiB/4.0 MiB"
        );
        for columns in 0..120 {
            let line = line_of(&HALF, columns, &plain);
            assert!(line.chars().count() < columns.max(1), "{columns}: {line}");
        }
    }

    #[test]
    fn it_leaves_nothing_behind() {
        let mut written = Vec::new();
        let mut bar = Bar::new(&mut written, 80, false);
        bar.update(&json!({ "new": "shape" }));
        bar.clear();
        bar.update(&serde_json::to_value(HALF).unwrap());
        bar.update(&serde_json::to_value(HALF).unwrap());
        bar.clear();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written.matches("importing").count(), 1, "{written:?}");
        assert!(written.ends_with("\r\x1b[2K"), "{written:?}");
    }
}
