//! The store that all sandboxes share.

use sandstack_api::Id;
use sandstack_api::management::{CollectedGarbage, StoreUsageReply, VerifiedStore};

use super::table::{Grid, cell, maybe};
use super::{Answer, Style, Tone, escaped, units};

pub(crate) fn collected(answer: &CollectedGarbage, style: &Style) -> Answer {
    let word = match answer.dry_run {
        true => "would remove".to_owned(),
        false => style.paint(Tone::Good, "removed"),
    };
    let mut text = format!(
        "{word} {} ({}); {} ({}) stay\n",
        units::plural(answer.objects, "object"),
        units::bytes(answer.bytes),
        units::plural(answer.kept_objects, "object"),
        units::bytes(answer.kept_bytes),
    );
    if answer.stray_files > 0 {
        text.push_str(&format!(
            "{word} {} ({}) that a crash left\n",
            units::plural(answer.stray_files, "file"),
            units::bytes(answer.stray_bytes),
        ));
    }
    let out = Answer::data(text);
    match answer.complete {
        true => out,
        false => out.note("not all was looked at; run it again when no import runs"),
    }
}

pub(crate) fn usage(answer: &StoreUsageReply, style: &Style) -> Answer {
    let on_disk = answer.object_bytes + answer.database_bytes + answer.upper_bytes;
    let mut text = format!(
        "{} on disk: {} content, {} database, {} unpublished changes\n",
        style.paint(Tone::Heading, &units::bytes(on_disk)),
        units::bytes(answer.object_bytes),
        units::bytes(answer.database_bytes),
        units::bytes(answer.upper_bytes),
    );
    text.push_str(&format!(
        "{} ({}) stored for {} of files: {} shared by sandboxes, {} garbage\n\n",
        units::plural(answer.objects, "object"),
        units::bytes(answer.stored_bytes),
        units::bytes(answer.logical_bytes),
        units::bytes(answer.shared_bytes),
        units::bytes(answer.garbage_bytes),
    ));
    let mut sandboxes = Grid::new(
        style,
        &[
            "SANDBOX",
            "NAME",
            ">LAYERS",
            ">FILES",
            ">STORED",
            ">ITS OWN",
            ">UNPUBLISHED",
        ],
    );
    for sandbox in &answer.sandboxes {
        sandboxes.row([
            cell(sandbox.sandbox_id.as_str()),
            maybe(sandbox.name.as_ref().map(|name| escaped(name.as_bytes()))),
            cell(units::count(sandbox.layers)),
            cell(units::bytes(sandbox.logical_bytes)),
            cell(units::bytes(sandbox.stored_bytes)),
            cell(units::bytes(sandbox.unique_bytes)),
            cell(units::bytes(sandbox.upper_bytes)),
        ]);
    }
    text.push_str(&sandboxes.finish());
    let mut sessions = Grid::new(style, &["SESSION", "SANDBOX", ">UNPUBLISHED"]);
    for session in &answer.sessions {
        sessions.row([
            cell(session.workspace_session_id.as_str()),
            cell(session.sandbox_id.as_str()),
            cell(units::bytes(session.upper_bytes)),
        ]);
    }
    let sessions = sessions.finish();
    if !sessions.is_empty() {
        text.push('\n');
        text.push_str(&sessions);
    }
    let mut out = Answer::data(text);
    for (listed, all, what) in [
        (answer.sandboxes.len(), answer.sandbox_count, "sandbox"),
        (answer.sessions.len(), answer.session_count, "session"),
    ] {
        if all > listed as u64 {
            let more = units::plural(all - listed as u64, what);
            out = out.note(format!("{more} with less are not listed"));
        }
    }
    out.gaps(&answer.errors)
}

pub(crate) fn verified(answer: &VerifiedStore, style: &Style) -> Answer {
    let looked = format!(
        "{} ({}), {}, {} of unpublished changes, {} of line owners",
        units::plural(answer.objects, "object"),
        units::bytes(answer.bytes),
        units::plural(answer.layers, "layer"),
        units::plural(answer.leases, "set"),
        units::plural(answer.blamed, "record"),
    );
    let mut text = match answer.problem_count {
        0 => format!("{}: {looked}\n", style.paint(Tone::Good, "all is well")),
        count => {
            let count = style.paint(Tone::Bad, &units::plural(count, "problem"));
            format!("{count} in {looked}\n")
        }
    };
    for problem in &answer.problems {
        text.push_str(&format!("{}\n", escaped(problem.as_bytes())));
    }
    let listed = answer.problems.len() as u64;
    let out = Answer::data(text);
    let out = match answer.problem_count > listed {
        true => out.note(format!(
            "{} are not listed",
            units::plural(answer.problem_count - listed, "more problem")
        )),
        false => out,
    };
    out.gaps(&answer.errors)
}
