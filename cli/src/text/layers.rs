//! Layers: histories, differences, squashes, exports.

use sandstack_api::Blob;
use sandstack_api::management::{ExportFormat, ExportedChanges, SquashedLayers};
use sandstack_api::observability::{LayerKind, LayerRecord};
use sandstack_api::runtime::{
    ChangeKind, DiffEntry, HunksOmitted, LayerDiff, LayerPage, SessionDiff, Version,
};

use super::table::{Grid, cell, maybe, toned};
use super::{Answer, Style, Tone, escaped, file, units};

pub(crate) fn list(answer: &LayerPage, style: &Style) -> Answer {
    let layers = answer.layers.iter();
    let text = table(layers.map(|row| (&row.layer, row.present)), style);
    Answer::data(text)
        .page(answer.next_page_token.as_ref())
        .gaps(&answer.errors)
}

/// Layers as a table; with each whether it is still there.
pub(crate) fn table<'a>(
    layers: impl Iterator<Item = (&'a LayerRecord, bool)>,
    style: &Style,
) -> String {
    let mut grid = Grid::new(
        style,
        &[
            "LAYER", "KIND", "PARENT", ">PATHS", ">ADDED", "OWNER", "WHEN", "MESSAGE",
        ],
    );
    for (layer, present) in layers {
        let kind = match layer.kind {
            LayerKind::Base => "base",
            LayerKind::Published => "published",
            LayerKind::Squashed => "squashed",
        };
        let owner = escaped(layer.owner.as_bytes());
        let message = layer.message.as_ref();
        grid.row([
            cell(layer.layer.to_string()),
            match present {
                true => cell(kind),
                false => toned(Tone::Quiet, format!("{kind}, replaced")),
            },
            maybe(layer.parent.as_ref()),
            cell(units::count(layer.changed_paths)),
            cell(units::bytes(layer.added_bytes)),
            cell(match &layer.session_name {
                Some(name) => format!("{} ({owner})", escaped(name.as_bytes())),
                None => owner,
            }),
            cell(units::utc(layer.time_unix_ms)),
            maybe(message.map(|message| escaped(message.as_bytes()))),
        ]);
    }
    grid.finish()
}

pub(crate) fn session_diff(answer: &SessionDiff, style: &Style) -> Answer {
    let out = Answer::data(changes(&answer.changes, style));
    let out = match answer.changes.is_empty() {
        true => out.note(format!("nothing differs from {}", answer.from)),
        false => out,
    };
    out.page(answer.next_page_token.as_ref())
        .gaps(&answer.errors)
}

pub(crate) fn layer_diff(answer: &LayerDiff, style: &Style) -> Answer {
    let out = Answer::data(changes(&answer.changes, style));
    let (from, to) = (&answer.from, &answer.to);
    let out = match answer.changes.is_empty() {
        true => out.note(format!("nothing differs between {from} and {to}")),
        false => out,
    };
    out.page(answer.next_page_token.as_ref())
        .gaps(&answer.errors)
}

/// The letter of a kind of change, as `git status` has it.
pub(crate) fn letter(kind: ChangeKind, style: &Style) -> String {
    let (tone, letter) = match kind {
        ChangeKind::Added => (Tone::Good, "A"),
        ChangeKind::Modified => (Tone::Notice, "M"),
        ChangeKind::Metadata => (Tone::Notice, "m"),
        ChangeKind::TypeChanged => (Tone::Notice, "T"),
        ChangeKind::Deleted => (Tone::Bad, "D"),
    };
    style.paint(tone, letter)
}

fn changes(changes: &[DiffEntry], style: &Style) -> String {
    let mut text = String::new();
    for change in changes {
        let path = match change.path.0.as_slice() {
            b"" => "./".to_owned(),
            path => escaped(path),
        };
        let particulars = particulars(change);
        let particulars = match particulars.is_empty() {
            true => String::new(),
            false => style.paint(Tone::Quiet, &format!("  {}", particulars.join(", "))),
        };
        text.push_str(&format!(
            "{} {path}{particulars}\n",
            letter(change.kind, style)
        ));
        if let Some(Blob(hunks)) = &change.hunks {
            text.push_str(&file::diff(hunks, style));
        }
    }
    text
}

/// What differs besides lines.
fn particulars(change: &DiffEntry) -> Vec<String> {
    let mut found = Vec::new();
    if let (Some(old), Some(new)) = (&change.old, &change.new) {
        if old.kind != new.kind {
            let kind = |version: &Version| escaped(version.kind.as_bytes());
            found.push(format!("{} to {}", kind(old), kind(new)));
        }
        if old.mode != new.mode {
            found.push(format!(
                "mode {} to {}",
                units::mode(old.mode),
                units::mode(new.mode)
            ));
        }
        if (old.uid, old.gid) != (new.uid, new.gid) {
            found.push(format!(
                "owner {}:{} to {}:{}",
                old.uid, old.gid, new.uid, new.gid
            ));
        }
        if old.size != new.size && new.kind == "file" {
            found.push(format!(
                "{} to {}",
                units::bytes(old.size),
                units::bytes(new.size)
            ));
        }
    } else if let Some(new) = change.new.as_ref().filter(|new| new.kind == "file") {
        found.push(units::bytes(new.size));
    }
    found.extend(change.hunks_omitted.map(|omitted| match omitted {
        HunksOmitted::Binary => "not text".to_owned(),
        HunksOmitted::TooLarge => "too many lines to show".to_owned(),
    }));
    found
}

pub(crate) fn squashed(answer: &SquashedLayers, style: &Style) -> Answer {
    let stay = units::plural(answer.layer_count, "layer");
    let text = match &answer.layer {
        None => format!(
            "{} has nothing to squash; its history has {stay}\n",
            answer.sandbox_id
        ),
        Some(layer) => format!(
            "{} {} {} by {layer}; its history has {stay}, and {} were reclaimed\n",
            answer.sandbox_id,
            style.paint(Tone::Good, "replaced"),
            units::plural(answer.replaced_count, "layer"),
            units::bytes(answer.reclaimed_bytes),
        ),
    };
    Answer::data(text).gaps(&answer.errors)
}

pub(crate) fn exported(answer: &ExportedChanges, style: &Style) -> Answer {
    let what = match &answer.from {
        Some(from) => format!("what {} changed since {from}", answer.to),
        None => answer.to.to_string(),
    };
    let format = match answer.format {
        ExportFormat::Dir => "",
        ExportFormat::Tar => " as a tar archive",
        ExportFormat::TarZst => " as a compressed tar archive",
        ExportFormat::Patch => " as a patch",
    };
    let mut text = format!(
        "{} {what}{format} to {}: {} ({}), {}, {}\n",
        style.paint(Tone::Good, "exported"),
        escaped(&answer.dest.0),
        units::plural(answer.files, "file"),
        units::bytes(answer.bytes),
        units::plural(answer.directories, "directory"),
        units::plural(answer.symlinks, "symlink"),
    );
    for left in &answer.left_out {
        text.push_str(&format!(
            "left out {} of {}\n",
            escaped(left.what.as_bytes()),
            escaped(&left.path.0)
        ));
    }
    let out = Answer::data(text);
    match answer.format {
        ExportFormat::Patch => out,
        _ if answer.deleted_count == 0 => out,
        _ => out.note(format!(
            "{} are not there any more, which this format cannot say; `--json` lists them",
            units::plural(answer.deleted_count, "path")
        )),
    }
}
