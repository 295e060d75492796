//! Commands: their output as it is, and a line on stderr about how they stand.

use sandstack_api::Text;
use sandstack_api::runtime::{CommandLines, CommandReply, CommandStatus, Elision, OutputWindow};

use super::{Answer, Style, Tone, escaped, publish, units};

pub(crate) fn reply(answer: &CommandReply, style: &Style) -> Answer {
    let mut out = Answer::data(bytes_of(&answer.output.text));
    if let Some(stderr) = &answer.stderr {
        out.notes.push(bytes_of(&stderr.text));
    }
    // The line about the command is a line of its own even where the output ends in none.
    let last = out.notes.last().filter(|note| !note.is_empty());
    if last
        .unwrap_or(&out.data)
        .last()
        .is_some_and(|byte| *byte != b'\n')
    {
        out.notes.push(b"\n".to_vec());
    }
    out = out.note(style.paint(Tone::Quiet, &status_line(answer)));
    out = window_notes(out, "output", &answer.output);
    if let Some(stderr) = &answer.stderr {
        out = window_notes(out, "standard error", stderr);
    }
    out.notes.extend(afterwards(answer, style));
    if answer.status == CommandStatus::Running {
        out = out.note(format!(
            "wait for more: write_command_stdin {} --start-offset {} --yield-time-ms 10000",
            answer.command_session_id, answer.output.next_offset
        ));
    }
    out
}

/// What is left of a command that has ended, a note each.
pub(crate) fn afterwards(answer: &CommandReply, style: &Style) -> Vec<Vec<u8>> {
    let mut out = Answer::default();
    for survivor in &answer.survivors {
        out = out.note(format!(
            "still there: process {} ({}); it ends with the session",
            survivor.pid,
            escaped(&survivor.name.0)
        ));
    }
    if let Some(published) = &answer.publish {
        out = out.note(publish::summary(published, style));
    }
    out.notes
}

pub(crate) fn lines(answer: &CommandLines, _: &Style) -> Answer {
    let mut data = Vec::new();
    if let Some(chunk) = &answer.chunk {
        data.extend(bytes_of(&chunk.text));
        let out = Answer::data(data);
        let out = lost_note(
            out,
            "output",
            answer.total_lines,
            answer.output_error.as_deref(),
        );
        return match chunk.next_byte < answer.total_bytes {
            true => out.note(format!("go on with --start-byte {}", chunk.next_byte)),
            false => out,
        };
    }
    for line in &answer.lines {
        data.extend(bytes_of(&line.text));
        if line.complete {
            data.push(b'\n');
        }
    }
    let mut out = Answer::data(data);
    if out.data.last().is_some_and(|byte| *byte != b'\n') {
        out.notes.push(b"\n".to_vec());
    }
    if let Some(elided) = &answer.elided {
        out = out.note(elision(elided));
    }
    out = lost_note(
        out,
        "output",
        answer.total_lines,
        answer.output_error.as_deref(),
    );
    match answer.next_offset < answer.total_lines {
        true => out.note(format!(
            "{} of {}; go on with --start-offset {}",
            units::plural(answer.lines.len() as u64, "line"),
            units::count(answer.total_lines),
            answer.next_offset
        )),
        false => out,
    }
}

/// The bytes of a window. Content that claims to be base64 and is not is shown as it came.
pub(crate) fn bytes_of(text: &Text) -> Vec<u8> {
    text.bytes()
        .unwrap_or_else(|_| text.content.clone().into_bytes())
}

fn status_line(answer: &CommandReply) -> String {
    let status = match (answer.status, answer.exit_code, answer.signal) {
        (CommandStatus::Running, ..) => "running".to_owned(),
        (CommandStatus::Exited, Some(code), _) => format!("exited {code}"),
        (CommandStatus::Exited, None, _) => "exited".to_owned(),
        (CommandStatus::Signalled, _, Some(signal)) => format!("ended by signal {signal}"),
        (CommandStatus::Signalled, _, None) => "ended by a signal".to_owned(),
        (CommandStatus::TimedOut, ..) => "timed out".to_owned(),
        (CommandStatus::Cancelled, ..) => "ended with its session".to_owned(),
        (CommandStatus::Lost, ..) => "lost; how it ended is not known".to_owned(),
    };
    format!(
        "[{status} · {} · {} · {}]",
        units::millis(answer.duration_ms),
        answer.command_session_id,
        answer.workspace_session_id
    )
}

fn window_notes(out: Answer, name: &str, window: &OutputWindow) -> Answer {
    let out = match &window.elided {
        Some(elided) => out.note(format!("{name}: {}", elision(elided))),
        None => out,
    };
    let out = lost_note(
        out,
        name,
        window.total_lines,
        window.output_error.as_deref(),
    );
    match window.truncated {
        true => out.note(format!(
            "{name}: this is line {} to {} of {} ({}); read_command_lines has the rest",
            window.start_offset,
            window.next_offset,
            units::count(window.total_lines),
            units::bytes(window.total_bytes)
        )),
        false => out,
    }
}

fn lost_note(out: Answer, name: &str, lines: u64, why: Option<&str>) -> Answer {
    match why {
        Some(why) => out.note(format!(
            "{name}: what came after {} is lost: {}",
            units::plural(lines, "line"),
            escaped(why.as_bytes())
        )),
        None => out,
    }
}

fn elision(elided: &Elision) -> String {
    format!(
        "{} from line {} ({}) are no longer kept",
        units::plural(elided.lines, "line"),
        elided.first_line,
        units::bytes(elided.bytes)
    )
}
