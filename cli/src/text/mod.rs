//! Answers as text for people.
//!
//! Pure functions from an answer to bytes: what goes to stdout and what is noted on stderr. Rows of
//! the catalogue that deserve it have a renderer of their own; all others, and answers that this
//! version cannot read, go through [`generic`].
//!
//! Invariant: whatever came from a sandbox is escaped ([`escape`]), except in [`command`] and
//! [`mod@file`], where the output of a command and the content of a file are the answer.

mod command;
mod escape;
mod file;
mod generic;
mod layers;
mod management;
mod observe;
mod publish;
mod session;
mod store;
mod style;
mod table;
pub(crate) mod units;
mod waterfall;

use sandstack_api::{ApiError, OperationName};
use serde::Deserialize;
use serde_json::Value;

pub(crate) use command::afterwards;
pub(crate) use escape::{escaped, escaped_lines};
pub(crate) use style::{Style, Tone};

/// An answer, ready to be written.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// For stdout.
    pub(crate) data: Vec<u8>,
    /// For stderr, each a line or more.
    pub(crate) notes: Vec<Vec<u8>>,
}

impl Answer {
    /// An answer without notes.
    pub(crate) fn data(data: impl Into<Vec<u8>>) -> Answer {
        Answer {
            data: data.into(),
            notes: Vec::new(),
        }
    }

    /// The same answer with a line for stderr.
    fn note(mut self, line: impl AsRef<str>) -> Answer {
        self.notes.push(format!("{}\n", line.as_ref()).into_bytes());
        self
    }

    /// The same answer, with a note for each thing that could not be found out.
    fn gaps(mut self, errors: &[ApiError]) -> Answer {
        for error in errors {
            self = self.note(format!(
                "not found out: {}",
                escaped(error.message.as_bytes())
            ));
        }
        self
    }

    /// The same answer, with the way to the next page if there is one.
    fn page(self, token: Option<&String>) -> Answer {
        match token {
            Some(token) => self.note(format!(
                "there is more: --page-token {}",
                escaped(token.as_bytes())
            )),
            None => self,
        }
    }
}

/// The answer of `operation` as text.
pub(crate) fn render(operation: OperationName, answer: &Value, style: &Style) -> Answer {
    let special = match operation {
        OperationName::CreateSandbox => with(answer, style, management::created),
        OperationName::ListSandboxes => with(answer, style, management::list),
        OperationName::DestroySandbox => with(answer, style, management::destroyed),
        OperationName::RefreshBase => with(answer, style, publish::refreshed),
        OperationName::SquashLayerstacks => with(answer, style, layers::squashed),
        OperationName::ExportChanges => with(answer, style, layers::exported),
        OperationName::CollectGarbage => with(answer, style, store::collected),
        OperationName::StoreUsage => with(answer, style, store::usage),
        OperationName::VerifyStore => with(answer, style, store::verified),
        OperationName::Doctor => with(answer, style, management::examined),
        OperationName::DiffWorkspaceSession => with(answer, style, layers::session_diff),
        OperationName::ListLayers => with(answer, style, layers::list),
        OperationName::DiffLayers => with(answer, style, layers::layer_diff),
        OperationName::ListWorkspaceSessions => with(answer, style, session::list),
        OperationName::InspectWorkspaceSession => with(answer, style, session::inspected),
        OperationName::DestroyWorkspaceSession => with(answer, style, session::destroyed),
        OperationName::RebaseWorkspaceSession => with(answer, style, publish::rebased),
        OperationName::PublishWorkspaceSession => with(answer, style, publish::published),
        OperationName::ExecCommand | OperationName::WriteCommandStdin => {
            with(answer, style, command::reply)
        }
        OperationName::ReadCommandLines => with(answer, style, command::lines),
        OperationName::FileRead => with(answer, style, file::content),
        OperationName::FileWrite => with(answer, style, file::written),
        OperationName::FileEdit => with(answer, style, file::edited),
        OperationName::FileList => with(answer, style, file::list),
        OperationName::FileSearch => with(answer, style, file::found),
        OperationName::FileBlame => with(answer, style, file::blame),
        OperationName::Snapshot => with(answer, style, observe::snapshot),
        OperationName::Trace => with(answer, style, waterfall::trace),
        OperationName::Events => with(answer, style, observe::events),
        OperationName::Resources => with(answer, style, observe::resources),
        OperationName::Topology => with(answer, style, observe::topology),
        OperationName::Layerstack => with(answer, style, observe::layerstack),
        OperationName::FileActivity => with(answer, style, observe::file_activity),
        // A row is readable on the day it is added; a renderer of its own can follow.
        _ => None,
    };
    special.unwrap_or_else(|| generic::answer(answer, style))
}

/// Renders an answer of a known type; `None` for one that does not read as that type, as a newer
/// gateway could send it.
fn with<'a, R: Deserialize<'a>>(
    answer: &'a Value,
    style: &Style,
    render: fn(&R, &Style) -> Answer,
) -> Option<Answer> {
    let answer = R::deserialize(answer).ok()?;
    Some(render(&answer, style))
}

/// The rows of a list, one JSON object a line; of an answer without rows, the answer itself.
///
/// What the answer says besides its rows (a further page, lost records) is noted on stderr.
pub(crate) fn json_lines(operation: OperationName, answer: &Value) -> Answer {
    let rows =
        rows_field(operation).and_then(|field| Some((field, answer.get(field)?.as_array()?)));
    let Some((field, rows)) = rows else {
        return Answer::data(format!("{answer}\n"));
    };
    let data: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let mut out = Answer::data(data);
    let silent = |name: &str, value: &Value| {
        let empty = value.as_array().is_some_and(Vec::is_empty) || *value == 0;
        name == field || name == "sampled_at_unix_ms" || name == "exactness" || empty
    };
    for (name, value) in answer.as_object().into_iter().flatten() {
        if !silent(name, value) {
            out = out.note(format!("{name}: {}", escaped(value.to_string().as_bytes())));
        }
    }
    out
}

/// The field that holds the rows of a list's answer; `None` for answers that are no list.
fn rows_field(operation: OperationName) -> Option<&'static str> {
    match operation {
        OperationName::ListSandboxes | OperationName::Snapshot => Some("sandboxes"),
        OperationName::StoreUsage => Some("sandboxes"),
        OperationName::ListWorkspaceSessions => Some("sessions"),
        OperationName::DiffWorkspaceSession | OperationName::DiffLayers => Some("changes"),
        OperationName::ReadCommandLines => Some("lines"),
        OperationName::FileList => Some("entries"),
        OperationName::FileSearch => Some("matches"),
        OperationName::FileBlame => Some("ranges"),
        OperationName::Trace => Some("spans"),
        OperationName::Events => Some("events"),
        OperationName::Resources => Some("samples"),
        OperationName::Topology => Some("sessions"),
        OperationName::Layerstack | OperationName::ListLayers => Some("layers"),
        OperationName::FileActivity => Some("rows"),
        _ => None,
    }
}

/// The particulars of an error, indented; empty when it has none.
pub(crate) fn particulars(error: &ApiError, style: &Style) -> String {
    let empty = error.details.as_object().is_none_or(|map| map.is_empty());
    if empty {
        return String::new();
    }
    generic::indented(&error.details, 2, style)
}
