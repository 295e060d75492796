//! Tables: a header, aligned columns, no lines.

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets::NOTHING,
};

use super::{Style, Tone};

/// A table under construction.
pub(crate) struct Grid {
    table: Table,
    style: Style,
    rows: usize,
}

impl Grid {
    /// A table with these column heads. A head that begins with `>` is of a column of numbers,
    /// which is aligned to the right.
    pub(crate) fn new(style: &Style, heads: &[&str]) -> Grid {
        let mut table = Table::new();
        table.load_style(NOTHING);
        // The caller has looked at the terminal already, and a test has none.
        table.force_no_tty();
        match style.columns {
            Some(columns) => {
                table.set_width(columns);
                table.set_content_arrangement(ContentArrangement::Dynamic);
            }
            None => {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        if style.color {
            table.enforce_styling();
        }
        table.set_header(
            heads
                .iter()
                .map(|head| Cell::new(head.trim_start_matches('>')).add_attribute(Attribute::Bold)),
        );
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if heads[index].starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Grid {
            table,
            style: *style,
            rows: 0,
        }
    }

    /// Adds a row. Its texts are escaped already.
    pub(crate) fn row<const N: usize>(&mut self, cells: [GridCell; N]) {
        self.rows += 1;
        let color = self.style.color;
        self.table.add_row(cells.map(|cell| {
            let text = Cell::new(cell.text);
            match cell.tone {
                None => text,
                Some(_) if !color => text,
                Some(Tone::Good) => text.fg(Color::DarkGreen),
                Some(Tone::Bad) => text.fg(Color::DarkRed),
                Some(Tone::Notice) => text.fg(Color::DarkYellow),
                Some(Tone::Heading) => text.add_attribute(Attribute::Bold),
                Some(Tone::Quiet) => text.add_attribute(Attribute::Dim),
            }
        }));
    }

    /// Adds a row of plain texts.
    pub(crate) fn texts(&mut self, texts: Vec<String>) {
        self.rows += 1;
        self.table.add_row(texts);
    }

    /// The table as text; empty if it has no rows.
    pub(crate) fn finish(self) -> String {
        if self.rows == 0 {
            return String::new();
        }
        let mut text = String::new();
        for line in self.table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text of a cell, and what it means.
pub(crate) struct GridCell {
    text: String,
    tone: Option<Tone>,
}

/// A cell without a colour.
pub(crate) fn cell(text: impl Into<String>) -> GridCell {
    GridCell {
        text: text.into(),
        tone: None,
    }
}

/// A cell in the colour of `tone`.
pub(crate) fn toned(tone: Tone, text: impl Into<String>) -> GridCell {
    GridCell {
        text: text.into(),
        tone: Some(tone),
    }
}

/// A cell of something that may not be there.
pub(crate) fn maybe(text: Option<impl std::fmt::Display>) -> GridCell {
    match text {
        Some(text) => cell(text.to_string()),
        None => toned(Tone::Quiet, "-"),
    }
}
