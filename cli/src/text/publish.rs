//! How a publish ended, and what keeps it from ending well.

use sandstack_api::Blob;
use sandstack_api::management::Refreshed;
use sandstack_api::runtime::{
    Conflict, ConflictKind, Dependency, LineRange, PublishOutcome, Published, RebaseOutcome,
    RebasedSession, SavedRef, SkippedPath, StaleRead,
};

use super::{Answer, Style, Tone, escaped, escaped_lines, units};

pub(crate) fn published(answer: &Published, style: &Style) -> Answer {
    let told = Told {
        merged: &answer.merged_paths,
        conflicts: &answer.conflicts,
        conflict_count: answer.conflict_count,
        skipped: &answer.skipped,
        saved_refs: &answer.saved_refs,
        mine: "session",
    };
    let mut out = told.answer(format!("{}\n", summary(answer, style)), style);
    write_stale(&mut out, &answer.stale_reads);
    for path in &answer.rest_conflicts {
        out = out.note(format!(
            "{} is not published and conflicts with the new layer, so the session stays on its base",
            escaped(&path.0)
        ));
    }
    out
}

pub(crate) fn rebased(answer: &RebasedSession, style: &Style) -> Answer {
    let (session, head) = (&answer.workspace_session_id, &answer.head);
    let paths = units::plural(answer.changed_paths, "changed path");
    let text = match answer.outcome {
        RebaseOutcome::Rebased => {
            let word = style.paint(Tone::Good, "rebased");
            format!("{session} {word} onto {head} with {paths}\n")
        }
        RebaseOutcome::NoChange => format!("{session} is on {head} already\n"),
        RebaseOutcome::DryRun => format!("{session} would be rebased onto {head} with {paths}\n"),
        RebaseOutcome::Conflict => {
            let count = units::plural(answer.conflict_count, "conflict");
            let count = style.paint(Tone::Bad, &count);
            format!("{session} was not rebased: {count} with {head}; nothing was changed\n")
        }
    };
    let told = Told {
        merged: &answer.merged_paths,
        conflicts: &answer.conflicts,
        conflict_count: answer.conflict_count,
        skipped: &[],
        saved_refs: &answer.saved_refs,
        mine: "session",
    };
    let mut out = told.answer(text, style);
    write_stale(&mut out, &answer.stale_reads);
    out
}

fn write_stale(out: &mut Answer, stale_reads: &[StaleRead]) {
    for stale in stale_reads {
        let what = match stale.dependency {
            Dependency::Content => "read, and has changed since",
            Dependency::Existence => "found, and is gone since",
            Dependency::Absence => "missed, and is there since",
            Dependency::Listing => "listed, and has other names since",
        };
        let by = match (&stale.owner, &stale.layer) {
            (Some(owner), Some(layer)) => format!(" ({} in {layer})", escaped(owner.as_bytes())),
            _ => String::new(),
        };
        let line = format!("stale {}: {what}{by}\n", escaped(&stale.path.0));
        out.data.extend_from_slice(line.as_bytes());
    }
}

pub(crate) fn refreshed(answer: &Refreshed, style: &Style) -> Answer {
    let sandbox = &answer.sandbox_id;
    let paths = units::plural(answer.changed_paths, "path");
    let text = match (answer.outcome, &answer.layer) {
        (PublishOutcome::Published, layer) => {
            let word = style.paint(Tone::Good, "brought in");
            let layer = layer.as_ref().map(|layer| format!(" as {layer}"));
            format!("{sandbox} {word} {paths}{}\n", layer.unwrap_or_default())
        }
        (PublishOutcome::NoChange, _) => {
            format!("{sandbox} has what the directory has; nothing was done\n")
        }
        (PublishOutcome::DryRun, _) => {
            format!("{sandbox} would bring in {paths} onto {}\n", answer.head)
        }
        (PublishOutcome::Conflict | PublishOutcome::StaleReads, _) => {
            let count = units::plural(answer.conflict_count, "conflict");
            let count = style.paint(Tone::Bad, &count);
            format!(
                "{sandbox} was not refreshed: {count} with {}; nothing was changed\n",
                answer.head
            )
        }
    };
    let told = Told {
        merged: &answer.merged_paths,
        conflicts: &answer.conflicts,
        conflict_count: answer.conflict_count,
        skipped: &answer.skipped,
        saved_refs: &answer.saved_refs,
        mine: "directory",
    };
    told.answer(text, style)
}

/// What is told of paths, whoever publishes.
struct Told<'a> {
    merged: &'a [Blob],
    conflicts: &'a [Conflict],
    conflict_count: u64,
    skipped: &'a [SkippedPath],
    saved_refs: &'a [SavedRef],
    /// The side that publishes.
    mine: &'a str,
}

impl Told<'_> {
    fn answer(&self, mut text: String, style: &Style) -> Answer {
        let mine = self.mine;
        for path in self.merged {
            text.push_str(&format!("merged {}\n", escaped(&path.0)));
        }
        for conflict in self.conflicts {
            write_conflict(&mut text, conflict, mine, style);
        }
        for skipped in self.skipped {
            text.push_str(&format!(
                "skipped {}: {}\n",
                escaped(&skipped.path.0),
                escaped(skipped.reason.as_bytes())
            ));
        }
        for saved in self.saved_refs {
            text.push_str(&format!(
                "{} moved on both sides; the {mine}'s is kept as {}\n",
                escaped(&saved.name.0),
                escaped(&saved.saved_as.0)
            ));
        }
        let listed = self.conflicts.len() as u64;
        let out = Answer::data(text);
        match self.conflict_count > listed {
            true => out.note(format!(
                "{} more conflicts are not listed",
                units::count(self.conflict_count - listed)
            )),
            false => out,
        }
    }
}

/// One line on how a publish ended.
pub(crate) fn summary(answer: &Published, style: &Style) -> String {
    let session = &answer.workspace_session_id;
    let paths = units::plural(answer.changed_paths, "path");
    let open = match (answer.session_open, &answer.base) {
        (true, Some(base)) => format!("; the session goes on, based on {base}"),
        (true, None) => "; the session is still open".to_owned(),
        (false, _) => String::new(),
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
        (PublishOutcome::StaleReads, _) => {
            let count = units::plural(answer.stale_read_count, "stale read");
            let count = style.paint(Tone::Bad, &count);
            format!(
                "{session} was not published: {count} against {}; its work is kept",
                answer.head
            )
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

fn write_conflict(text: &mut String, conflict: &Conflict, mine: &str, style: &Style) {
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
            "  base {}, head {}, {mine} {}\n",
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
