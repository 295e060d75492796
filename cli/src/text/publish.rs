//! How a publish ended, and what keeps it from ending well.

use sandstack_api::runtime::{Conflict, ConflictKind, LineRange, PublishOutcome, Published};

use super::{Answer, Style, Tone, escaped, escaped_lines, units};

pub(crate) fn published(answer: &Published, style: &Style) -> Answer {
    let mut text = format!("{}\n", summary(answer, style));
    for path in &answer.merged_paths {
        text.push_str(&format!("merged {}\n", escaped(&path.0)));
    }
    for conflict in &answer.conflicts {
        write_conflict(&mut text, conflict, style);
    }
    for skipped in &answer.skipped {
        text.push_str(&format!(
            "skipped {}: {}\n",
            escaped(&skipped.path.0),
            escaped(skipped.reason.as_bytes())
        ));
    }
    for saved in &answer.saved_refs {
        text.push_str(&format!(
            "{} moved on both sides; the session's is kept as {}\n",
            escaped(&saved.name.0),
            escaped(&saved.saved_as.0)
        ));
    }
    let listed = answer.conflicts.len() as u64;
    let out = Answer::data(text);
    match answer.conflict_count > listed {
        true => out.note(format!(
            "{} more conflicts are not listed",
            units::count(answer.conflict_count - listed)
        )),
        false => out,
    }
}

/// One line on how a publish ended.
pub(crate) fn summary(answer: &Published, style: &Style) -> String {
    let session = &answer.workspace_session_id;
    let paths = units::plural(answer.changed_paths, "path");
    let open = match answer.session_open {
        true => "; the session is still open",
        false => "",
    };
    match (answer.outcome, &answer.layer) {
        (PublishOutcome::Published, Some(layer)) => {
            let word = style.paint(Tone::Good, "published");
            format!("{session} {word} {paths} as {layer}{open}")
        }
        (PublishOutcome::Published, None) => {
            let word = style.paint(Tone::Good, "published");
            format!("{session} {word} {paths}{open}")
        }
        (PublishOutcome::NoChange, _) => format!("{session} changed nothing{open}"),
        (PublishOutcome::DryRun, _) => {
            format!("{session} would publish {paths} onto {}", answer.head)
        }
        (PublishOutcome::Conflict, _) => {
            let count = units::plural(answer.conflict_count, "conflict");
            let count = style.paint(Tone::Bad, &count);
            format!(
                "{session} was not published: {count} with {}; its work is kept",
                answer.head
            )
        }
    }
}

fn write_conflict(text: &mut String, conflict: &Conflict, style: &Style) {
    let kind = match conflict.kind {
        ConflictKind::Content => "both changed the same lines",
        ConflictKind::Binary => "both changed it, and it cannot be merged by lines",
        ConflictKind::Metadata => "both changed its mode, owner or attributes",
        ConflictKind::AddAdd => "both added it, with different content",
        ConflictKind::DeleteModify => "one side deleted what the other changed",
        ConflictKind::Type => "the sides made different types of file of it",
        ConflictKind::Rename => "both renamed it, or its new name is taken",
        ConflictKind::Rejected => "the publish policy refuses changes of it",
    };
    let path = style.paint(Tone::Bad, &escaped(&conflict.path.0));
    text.push_str(&format!("conflict {path}: {kind}"));
    match (&conflict.head_owner, &conflict.head_layer) {
        (Some(owner), Some(layer)) => {
            let owner = escaped(owner.as_bytes());
            text.push_str(&format!("; last changed by {owner} in {layer}"));
        }
        (Some(owner), None) => {
            text.push_str(&format!("; last changed by {}", escaped(owner.as_bytes())));
        }
        (None, Some(layer)) => text.push_str(&format!("; last changed in {layer}")),
        (None, None) => {}
    }
    text.push('\n');
    for hunk in &conflict.hunks {
        text.push_str(&format!(
            "  base {}, head {}, session {}\n",
            lines(hunk.base),
            lines(hunk.head),
            lines(hunk.mine)
        ));
    }
    if let Some(marked) = &conflict.marked {
        for line in escaped_lines(&marked.0).lines() {
            text.push_str(&format!("  | {line}\n"));
        }
    }
}

fn lines(range: LineRange) -> String {
    match range.count {
        0 => format!("before line {}", range.start),
        1 => format!("line {}", range.start),
        count => format!("lines {}-{}", range.start, range.start + count - 1),
    }
}
