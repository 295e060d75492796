//! Sandboxes, and the host.

use sandstack_api::Id;
use sandstack_api::management::{
    CheckStatus, CreatedSandboxes, DestroyedSandbox, DoctorReport, Provider, SandboxPage,
    SandboxRecord, SandboxState,
};

use super::table::{Grid, GridCell, cell, maybe, toned};
use super::{Answer, Style, Tone, escaped, units};

pub(crate) fn created(answer: &CreatedSandboxes, style: &Style) -> Answer {
    let import = &answer.import;
    let mut text = table(&answer.sandboxes, None, style);
    text.push_str(&format!(
        "imported {} ({}) in {}: {} read, {} known from before, {} stored\n",
        units::plural(import.files, "file"),
        units::bytes(import.bytes),
        units::millis(import.duration_ms),
        units::count(import.files_hashed),
        units::count(import.files_reused),
        units::bytes(import.bytes_stored),
    ));
    Answer::data(text)
}

pub(crate) fn list(answer: &SandboxPage, style: &Style) -> Answer {
    let now = Some(answer.sampled_at_unix_ms);
    let out = Answer::data(table(&answer.sandboxes, now, style));
    let out = match answer.sandboxes.is_empty() {
        true => out.note("there are no sandboxes"),
        false => out,
    };
    out.page(answer.next_page_token.as_ref())
        .gaps(&answer.errors)
}

pub(crate) fn destroyed(answer: &DestroyedSandbox, _: &Style) -> Answer {
    let sandbox = &answer.sandbox;
    let name = match &sandbox.name {
        Some(name) => format!(" ({})", escaped(name.as_bytes())),
        None => String::new(),
    };
    let lost = match answer.discarded_bytes {
        0 => String::new(),
        bytes => format!(
            "; {} of unpublished content went with it",
            units::bytes(bytes)
        ),
    };
    Answer::data(format!("{}{name} is gone{lost}\n", sandbox.sandbox_id))
}

pub(crate) fn examined(answer: &DoctorReport, style: &Style) -> Answer {
    let mut text = String::new();
    for check in &answer.checks {
        let (tone, status) = match check.status {
            CheckStatus::Ok => (Tone::Good, "ok"),
            CheckStatus::Limited => (Tone::Notice, "limited"),
            CheckStatus::Broken => (Tone::Bad, "broken"),
        };
        text.push_str(&format!(
            "{} {}: {}\n",
            style.paint(tone, status),
            escaped(check.name.as_bytes()),
            escaped(check.found.as_bytes())
        ));
        if let Some(fix) = &check.fix {
            text.push_str(&format!("    {}\n", escaped(fix.as_bytes())));
        }
    }
    Answer::data(text).gaps(&answer.errors)
}

fn table(sandboxes: &[SandboxRecord], now: Option<u64>, style: &Style) -> String {
    let mut grid = Grid::new(
        style,
        &[
            "SANDBOX",
            "NAME",
            "STATE",
            "PROVIDER",
            "HEAD",
            ">SESSIONS",
            "WORKSPACE",
            "MADE",
        ],
    );
    for sandbox in sandboxes {
        grid.row([
            cell(sandbox.sandbox_id.as_str()),
            maybe(sandbox.name.as_ref().map(|name| escaped(name.as_bytes()))),
            state(sandbox),
            cell(provider(sandbox)),
            maybe(sandbox.head.as_ref()),
            cell(units::count(sandbox.session_count)),
            cell(escaped(&sandbox.workspace_root.0)),
            cell(match now {
                Some(now) => units::ago(sandbox.created_at_unix_ms, now),
                None => units::utc(sandbox.created_at_unix_ms),
            }),
        ]);
    }
    grid.finish()
}

fn provider(sandbox: &SandboxRecord) -> String {
    match (sandbox.provider, &sandbox.image) {
        (Provider::Local, _) => "local".to_owned(),
        (Provider::Docker, None) => "docker".to_owned(),
        (Provider::Docker, Some(image)) => format!("docker {}", escaped(image.as_bytes())),
    }
}

/// A sandbox's state, with the reason where there is one.
pub(crate) fn state(sandbox: &SandboxRecord) -> GridCell {
    let (tone, name) = match sandbox.state {
        SandboxState::Creating => (Tone::Notice, "creating"),
        SandboxState::Ready => (Tone::Good, "ready"),
        SandboxState::Stopping => (Tone::Notice, "stopping"),
        SandboxState::Stopped => (Tone::Quiet, "stopped"),
        SandboxState::Failed => (Tone::Bad, "failed"),
    };
    match &sandbox.state_reason {
        Some(reason) => toned(tone, format!("{name}: {}", escaped(reason.as_bytes()))),
        None => toned(tone, name),
    }
}
