//! Workspace sessions.

use sandstack_api::Id;
use sandstack_api::runtime::{
    DestroyedSession, InspectedSession, SessionPage, SessionRecord, SessionState,
};

use super::table::{Grid, GridCell, cell, maybe, toned};
use super::{Answer, Style, Tone, escaped, generic, layers, units};

pub(crate) fn list(answer: &SessionPage, style: &Style) -> Answer {
    let out = Answer::data(table(&answer.sessions, answer.sampled_at_unix_ms, style));
    let out = match answer.sessions.is_empty() {
        true => out.note("there are no sessions"),
        false => out,
    };
    out.page(answer.next_page_token.as_ref())
        .gaps(&answer.errors)
}

pub(crate) fn inspected(answer: &InspectedSession, style: &Style) -> Answer {
    let mut text = generic::of(&answer.session, style);
    for change in answer.changes.iter().flatten() {
        let path = escaped(&change.path.0);
        text.push_str(&format!("{} {path}\n", layers::letter(change.kind, style)));
    }
    let out = Answer::data(text);
    let out = match answer.changes_truncated {
        true => out.note("there are more changed paths than are listed"),
        false => out,
    };
    out.gaps(&answer.errors)
}

pub(crate) fn destroyed(answer: &DestroyedSession, _: &Style) -> Answer {
    let lost = match answer.discarded_paths {
        0 => String::new(),
        paths => format!("; {} went with it", units::plural(paths, "changed path")),
    };
    Answer::data(format!(
        "{} is gone{lost}; {} freed\n",
        answer.workspace_session_id,
        units::bytes(answer.freed_bytes)
    ))
}

/// Sessions as a table, with ages as of `now`, in Unix milliseconds.
pub(crate) fn table(sessions: &[SessionRecord], now: u64, style: &Style) -> String {
    let mut grid = Grid::new(
        style,
        &[
            "SESSION", "NAME", "STATE", "BASE", ">BEHIND", ">CHANGED", ">SIZE", "RUNNING", "MADE",
        ],
    );
    for session in sessions {
        let running: Vec<&str> = session.running_commands.iter().map(Id::as_str).collect();
        let running = (!running.is_empty()).then(|| running.join(" "));
        grid.row([
            cell(session.workspace_session_id.as_str()),
            match (&session.name, session.automatic) {
                (Some(name), _) => cell(escaped(name.as_bytes())),
                (None, true) => toned(Tone::Quiet, "automatic"),
                (None, false) => toned(Tone::Quiet, "-"),
            },
            state(session),
            cell(session.base.as_str()),
            cell(units::count(session.layers_behind_head)),
            cell(units::count(session.changed_paths)),
            cell(units::bytes(session.bytes)),
            maybe(running),
            cell(units::ago(session.created_at_unix_ms, now)),
        ]);
    }
    grid.finish()
}

fn state(session: &SessionRecord) -> GridCell {
    let (tone, name) = match session.state {
        SessionState::Active => (Tone::Good, "active"),
        SessionState::Finalizing => (Tone::Notice, "finalizing"),
        SessionState::FinalizeFailed => (Tone::Bad, "finalize_failed"),
    };
    match &session.state_reason {
        Some(reason) => toned(tone, format!("{name}: {}", escaped(reason.as_bytes()))),
        None => toned(tone, name),
    }
}
