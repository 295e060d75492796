//! What lives, what happened, who touched what.

use sandstack_api::Id;
use sandstack_api::observability::{
    AccessKind, CommandSummary, EventsReply, FileActivityReply, LayerstackReply, ResourcesReply,
    SnapshotReply, TopologyReply,
};
use sandstack_api::runtime::CommandStatus;
use serde_json::Value;

use super::table::{Grid, GridCell, cell, maybe, toned};
use super::{Answer, Style, Tone, escaped, generic, layers, session, units};

pub(crate) fn snapshot(answer: &SnapshotReply, style: &Style) -> Answer {
    let gateway = &answer.gateway;
    let mut text = format!(
        "{} version {}, pid {}, started {}, {} resident, {} descriptors, {} threads\n",
        style.paint(Tone::Heading, "gateway"),
        escaped(gateway.version.as_bytes()),
        gateway.pid,
        units::ago(gateway.started_at_unix_ms, answer.sampled_at_unix_ms),
        units::bytes(gateway.resident_bytes),
        units::count(gateway.open_descriptors),
        units::count(gateway.threads),
    );
    let mut out = Answer::default();
    for entry in &answer.sandboxes {
        let sandbox = &entry.sandbox;
        let name = match &sandbox.name {
            Some(name) => format!(" ({})", escaped(name.as_bytes())),
            None => String::new(),
        };
        let head = match &sandbox.head {
            Some(head) => format!(", head {head}"),
            None => String::new(),
        };
        text.push_str(&format!(
            "\n{}{name}{head}, {}, {}\n",
            style.paint(
                Tone::Heading,
                &format!("sandbox {}", sandbox.sandbox_id.as_str())
            ),
            units::plural(entry.layer_count, "layer"),
            units::plural(entry.lease_count, "lease"),
        ));
        text.push_str(&session::table(
            &entry.sessions,
            answer.sampled_at_unix_ms,
            style,
        ));
        text.push_str(&commands(&entry.commands, style));
        if entry.trace_dropped > 0 {
            out = out.note(format!(
                "{}: {} lost; `events --name trace.gap` tells when",
                sandbox.sandbox_id,
                units::plural(entry.trace_dropped, "access record")
            ));
        }
    }
    out.data = text.into_bytes();
    out.gaps(&answer.errors)
}

fn commands(commands: &[CommandSummary], style: &Style) -> String {
    let mut grid = Grid::new(
        style,
        &["COMMAND", "SESSION", "STATUS", ">TIME", "COMMAND LINE"],
    );
    for command in commands {
        grid.row([
            cell(command.command_session_id.as_str()),
            cell(command.workspace_session_id.as_str()),
            status(command),
            cell(units::millis(command.duration_ms)),
            cell(escaped(&command.cmd.0)),
        ]);
    }
    grid.finish()
}

fn status(command: &CommandSummary) -> GridCell {
    match (command.status, command.exit_code) {
        (CommandStatus::Running, _) => toned(Tone::Notice, "running"),
        (CommandStatus::Exited, Some(0)) => toned(Tone::Good, "exited 0"),
        (CommandStatus::Exited, Some(code)) => toned(Tone::Bad, format!("exited {code}")),
        (CommandStatus::Exited, None) => cell("exited"),
        (CommandStatus::Signalled, _) => toned(Tone::Bad, "signalled"),
        (CommandStatus::TimedOut, _) => toned(Tone::Bad, "timed out"),
        (CommandStatus::Cancelled, _) => toned(Tone::Bad, "cancelled"),
        (CommandStatus::Lost, _) => toned(Tone::Bad, "lost"),
    }
}

pub(crate) fn events(answer: &EventsReply, style: &Style) -> Answer {
    let mut grid = Grid::new(
        style,
        &[
            "WHEN", "EVENT", "SANDBOX", "SESSION", "COMMAND", "REQUEST", "DETAILS",
        ],
    );
    for event in &answer.events {
        let details = match &event.details {
            Value::Null => String::new(),
            Value::Object(map) if map.is_empty() => String::new(),
            details => escaped(details.to_string().as_bytes()),
        };
        grid.row([
            cell(units::utc(event.time_unix_ms)),
            cell(escaped(event.name.as_bytes())),
            maybe(event.sandbox_id.as_ref()),
            maybe(event.workspace_session_id.as_ref()),
            maybe(event.command_session_id.as_ref()),
            maybe(event.request_id.as_ref()),
            cell(details),
        ]);
    }
    let out = Answer::data(grid.finish());
    let out = match answer.events.is_empty() {
        true => out.note("nothing happened"),
        false => out,
    };
    out.gaps(&answer.errors)
}

pub(crate) fn resources(answer: &ResourcesReply, style: &Style) -> Answer {
    let mut grid = Grid::new(
        style,
        &[
            "WHEN",
            "SESSION",
            "COMMAND",
            ">PROCESSES",
            ">THREADS",
            ">CPU",
            ">RESIDENT",
            ">READ",
            ">WRITTEN",
            ">DISK",
        ],
    );
    for sample in &answer.samples {
        grid.row([
            cell(units::utc(sample.time_unix_ms)),
            cell(sample.workspace_session_id.as_str()),
            cell(sample.command_session_id.as_str()),
            cell(units::count(sample.processes)),
            cell(units::count(sample.threads)),
            cell(units::millis(sample.cpu_ms)),
            cell(units::bytes(sample.resident_bytes)),
            maybe(sample.read_bytes.map(units::bytes)),
            maybe(sample.written_bytes.map(units::bytes)),
            cell(units::bytes(sample.upper_bytes)),
        ]);
    }
    let mut text = grid.finish();
    if !answer.disk.is_empty() {
        let mut grid = Grid::new(style, &["SESSION", ">DISK"]);
        for session in &answer.disk {
            grid.row([
                cell(session.workspace_session_id.as_str()),
                cell(units::bytes(session.upper_bytes)),
            ]);
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&grid.finish());
    }
    let out = Answer::data(text);
    let out = match answer.samples.is_empty() {
        true => out.note("no command has been sampled"),
        false => out,
    };
    out.gaps(&answer.errors)
}

pub(crate) fn topology(answer: &TopologyReply, style: &Style) -> Answer {
    let mut grid = Grid::new(
        style,
        &[
            "SESSION",
            "COMMAND",
            ">PID",
            ">INSIDE",
            ">PARENT",
            "STATE",
            ">CPU",
            ">RESIDENT",
            "COMMAND LINE",
        ],
    );
    let mut out = Answer::default();
    for session in &answer.sessions {
        for process in &session.processes {
            grid.row([
                cell(session.workspace_session_id.as_str()),
                cell(process.command_session_id.as_str()),
                cell(process.pid.to_string()),
                cell(process.session_pid.to_string()),
                cell(process.parent_pid.to_string()),
                cell(escaped(process.state.as_bytes())),
                cell(units::millis(process.cpu_ms)),
                cell(units::bytes(process.resident_bytes)),
                cell(escaped(&process.cmd.0)),
            ]);
        }
        let listed = session.processes.len() as u64;
        let left_out = session.process_count.saturating_sub(listed);
        if left_out > 0 {
            out = out.note(format!(
                "{}: processes that are not listed: {}",
                session.workspace_session_id,
                units::count(left_out)
            ));
        }
    }
    out.data = grid.finish().into_bytes();
    if out.data.is_empty() {
        out = out.note("no command runs");
    }
    out.gaps(&answer.errors)
}

pub(crate) fn layerstack(answer: &LayerstackReply, style: &Style) -> Answer {
    let mut text = format!(
        "{} head {}, {}, {} of files at the head, {} stored for all sandboxes\n\n",
        style.paint(
            Tone::Heading,
            &format!("sandbox {}", answer.sandbox_id.as_str())
        ),
        answer.head,
        units::plural(answer.layer_count, "layer"),
        units::bytes(answer.logical_bytes),
        units::bytes(answer.stored_bytes),
    );
    let layers = answer.layers.iter().map(|layer| (layer, true));
    text.push_str(&layers::table(layers, style));
    let mut leases = Grid::new(style, &["LEASE ON", "SESSION", ">UPPER"]);
    for lease in &answer.leases {
        leases.row([
            cell(lease.layer.as_str()),
            cell(lease.workspace_session_id.as_str()),
            cell(units::bytes(lease.upper_bytes)),
        ]);
    }
    let leases = leases.finish();
    if !leases.is_empty() {
        text.push('\n');
        text.push_str(&leases);
    }
    let listed = answer.layers.len() as u64;
    let out = Answer::data(text);
    let out = match answer.layer_count > listed {
        true => out.note(format!(
            "{} older layers are not listed",
            units::count(answer.layer_count - listed)
        )),
        false => out,
    };
    out.gaps(&answer.errors)
}

pub(crate) fn file_activity(answer: &FileActivityReply, style: &Style) -> Answer {
    let mut grid = Grid::new(
        style,
        &[
            "PATH", "KIND", ">COUNT", ">OFFSET", ">BYTES", "SESSION", "COMMAND", "PROCESS", "LAST",
        ],
    );
    for row in &answer.rows {
        let process = match (row.pid, &row.program) {
            (Some(pid), Some(program)) => Some(format!("{pid} {}", escaped(&program.0))),
            (Some(pid), None) => Some(pid.to_string()),
            (None, program) => program.as_ref().map(|program| escaped(&program.0)),
        };
        let bytes = (row.bytes > 0).then(|| units::bytes(row.bytes));
        grid.row([
            cell(escaped(&row.path.0)),
            kind(row.kind),
            cell(units::count(row.count)),
            maybe(row.offset),
            maybe(bytes),
            cell(row.workspace_session_id.as_str()),
            maybe(row.command_session_id.as_ref()),
            maybe(process),
            cell(units::utc(row.last_unix_ms)),
        ]);
    }
    let mut out = Answer::data(grid.finish());
    if answer.rows.is_empty() {
        out = out.note("no access is recorded");
    }
    out = out.page(answer.next_page_token.as_ref());
    for exactness in &answer.exactness {
        let mode = generic::name_of(&exactness.trace_mode);
        let statement = escaped(exactness.statement.as_bytes());
        out = out.note(format!("trace mode {mode}: {statement}"));
    }
    if answer.dropped > 0 {
        out = out.note(format!(
            "{} lost",
            units::plural(answer.dropped, "access record")
        ));
    }
    for gap in &answer.gaps {
        out = out.note(format!(
            "gap in {} from {} to {}: {}",
            gap.workspace_session_id,
            units::utc(gap.from_unix_ms),
            units::utc(gap.to_unix_ms),
            escaped(gap.reason.as_bytes())
        ));
    }
    out.gaps(&answer.errors)
}

fn kind(kind: AccessKind) -> GridCell {
    let name = generic::name_of(&kind);
    match kind {
        AccessKind::Open
        | AccessKind::Read
        | AccessKind::Execute
        | AccessKind::List
        | AccessKind::Lookup => cell(name),
        AccessKind::Missing => toned(Tone::Quiet, name),
        AccessKind::Create | AccessKind::Link | AccessKind::RenameTo => toned(Tone::Good, name),
        AccessKind::Remove | AccessKind::RenameFrom => toned(Tone::Bad, name),
        AccessKind::OpenWrite | AccessKind::Write | AccessKind::Metadata => {
            toned(Tone::Notice, name)
        }
    }
}
