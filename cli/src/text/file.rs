//! Files: content as it is, listings, diffs, blame.

use sandstack_api::Id;
use sandstack_api::runtime::{
    Blame, BlameRange, FileContent, FileEdited, FileEntries, FileEntry, FileWritten, SearchMatches,
};

use super::command::bytes_of;
use super::table::{Grid, GridCell, cell, maybe, toned};
use super::{Answer, Style, Tone, escaped, escaped_lines, units};

pub(crate) fn content(answer: &FileContent, _: &Style) -> Answer {
    let out = Answer::data(bytes_of(&answer.text));
    match answer.truncated {
        true => out.note(format!(
            "{} to {} of {} bytes; go on with --offset {}",
            answer.offset,
            answer.offset + answer.length,
            answer.size,
            answer.offset + answer.length
        )),
        false => out,
    }
}

pub(crate) fn written(answer: &FileWritten, _: &Style) -> Answer {
    let what = if answer.created { "made" } else { "written" };
    let layer = match &answer.layer {
        Some(layer) => format!(" in {layer}"),
        None => String::new(),
    };
    Answer::data(format!(
        "{} {what}{layer}: {}, mode {}\ndigest {}\n",
        escaped(&answer.path.0),
        units::bytes(answer.size),
        units::mode(answer.mode),
        escaped(answer.digest.as_bytes())
    ))
}

pub(crate) fn edited(answer: &FileEdited, style: &Style) -> Answer {
    let layer = match &answer.layer {
        Some(layer) => format!(" in {layer}"),
        None => String::new(),
    };
    Answer::data(diff(&answer.diff.0, style)).note(format!(
        "{}: {}{layer}",
        escaped(&answer.path.0),
        units::plural(answer.replacements, "replacement")
    ))
}

/// Lines as grep(1) shows them.
pub(crate) fn found(answer: &SearchMatches, style: &Style) -> Answer {
    let mut text = String::new();
    for found in &answer.matches {
        let end = if found.cut { "…" } else { "" };
        text.push_str(&format!(
            "{}:{}:{}{end}\n",
            style.paint(Tone::Heading, &escaped(&found.path.0)),
            found.line,
            escaped(&found.text.0)
        ));
    }
    Answer::data(text).page(answer.next_page_token.as_ref())
}

/// A unified diff, in colour.
pub(crate) fn diff(bytes: &[u8], style: &Style) -> String {
    let mut text = String::new();
    // Within a hunk a removed line can begin with `--`, as a header does; hunks say how long they
    // are, and a header comes before the first.
    let mut in_hunk = false;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let content = line.strip_suffix(b"\n").unwrap_or(line);
        in_hunk |= content.starts_with(b"@@");
        let tone = match content.first() {
            Some(b'@') if content.starts_with(b"@@") => Some(Tone::Notice),
            _ if !in_hunk => Some(Tone::Heading),
            Some(b'+') => Some(Tone::Good),
            Some(b'-') => Some(Tone::Bad),
            _ => None,
        };
        let content = escaped_lines(content);
        match tone {
            Some(tone) => text.push_str(&style.paint(tone, &content)),
            None => text.push_str(&content),
        }
        text.push('\n');
    }
    text
}

pub(crate) fn list(answer: &FileEntries, style: &Style) -> Answer {
    let mut grid = Grid::new(style, &["MODE", ">SIZE", "CHANGED", "PATH"]);
    for entry in &answer.entries {
        grid.row([
            cell(format!("{}{}", letter(entry), units::mode(entry.mode))),
            match entry.kind.as_str() {
                "directory" => toned(Tone::Quiet, "-"),
                _ => cell(units::bytes(entry.size)),
            },
            cell(units::time(entry.mtime_unix_ms)),
            path_of(entry),
        ]);
    }
    let out = Answer::data(grid.finish());
    let out = match answer.entries.is_empty() {
        true => out.note("nothing is there"),
        false => out,
    };
    out.page(answer.next_page_token.as_ref())
}

/// The letter of the entry's type, as `ls` has it.
fn letter(entry: &FileEntry) -> char {
    match entry.kind.as_str() {
        "file" => '-',
        "directory" => 'd',
        "symlink" => 'l',
        "fifo" => 'p',
        "socket" => 's',
        "char_device" => 'c',
        "block_device" => 'b',
        _ => '?',
    }
}

fn path_of(entry: &FileEntry) -> GridCell {
    let path = escaped(&entry.path.0);
    match (&entry.target, entry.kind.as_str()) {
        (Some(target), _) => cell(format!("{path} -> {}", escaped(&target.0))),
        (None, "directory") => toned(Tone::Heading, format!("{path}/")),
        (None, _) => cell(path),
    }
}

pub(crate) fn blame(answer: &Blame, style: &Style) -> Answer {
    let mut grid = Grid::new(style, &[">LINES", "OWNER", "LAYER", "COMMAND", "WHEN"]);
    for range in &answer.ranges {
        grid.row([
            cell(match answer.text {
                true => lines_of(range),
                false => "all".to_owned(),
            }),
            owner_of(range),
            maybe(range.layer.as_ref()),
            maybe(range.command_session_id.as_ref().map(Id::as_str)),
            maybe(range.time_unix_ms.map(units::utc)),
        ]);
    }
    let out = Answer::data(grid.finish());
    match (answer.text, answer.ranges.is_empty()) {
        (false, _) => out.note(format!(
            "{} is not text, so it has one owner",
            escaped(&answer.path.0)
        )),
        (true, true) => out.note(format!("{} has no lines", escaped(&answer.path.0))),
        (true, false) => out,
    }
}

fn lines_of(range: &BlameRange) -> String {
    match range.count {
        0 | 1 => range.start.to_string(),
        count => format!("{}-{}", range.start, range.start + count - 1),
    }
}

fn owner_of(range: &BlameRange) -> GridCell {
    let owner = escaped(range.owner.as_bytes());
    match (&range.session_name, range.owner.as_str()) {
        (Some(name), _) => cell(format!("{} ({owner})", escaped(name.as_bytes()))),
        (None, "unknown") => toned(Tone::Notice, owner),
        (None, "original") => toned(Tone::Quiet, owner),
        (None, _) => cell(owner),
    }
}
