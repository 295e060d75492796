//! How a run answers: as JSON, as JSON lines or as text, with or without colours.
//!
//! Decided before the arguments are parsed, since wrong arguments are answered in the same manner.

use std::ffi::OsStr;

use crate::Environment;

/// The shape of the answer on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object.
    Json,
    /// One row of a list a line; one object where there are no rows.
    JsonLines,
    /// Text for people.
    Text,
    /// A Parquet file with every row of a list.
    Parquet,
}

/// Names of the formats, as `--output` takes them.
pub(crate) const FORMATS: [&str; 3] = ["json", "jsonl", "text"];
/// Names of the formats that `--format` takes, where a list is written out for analysis.
pub(crate) const EXPORTS: [&str; 2] = ["jsonl", "parquet"];
/// Names of the colour choices, as `--color` takes them.
pub(crate) const COLORS: [&str; 3] = ["auto", "always", "never"];

/// How to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// The shape of the answer on stdout.
    pub(crate) format: Format,
    /// Whether text on stdout has colours.
    pub(crate) color: bool,
    /// Whether words on stderr have colours.
    pub(crate) stderr_color: bool,
    /// Width of stdout in characters; `None` where nothing needs to fit.
    pub(crate) columns: Option<u16>,
}

impl Manners {
    /// Reads the manners off raw arguments. It takes what it knows and leaves complaints to the
    /// grammar, so that a command line that does not parse is answered as it asked.
    pub(crate) fn sniff(environment: &Environment) -> Manners {
        let mut format = None;
        let mut color = None;
        let mut args = environment.args.iter().skip(1);
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--") => break,
                Some("--json") => format = Some(Format::Json),
                // What the command writes is all that stdout has.
                Some("--follow") => format = Some(Format::Text),
                Some("--jsonl") => format = Some(Format::JsonLines),
                Some("--output" | "--format") => {
                    format = args.next().and_then(|name| Format::named(name)).or(format)
                }
                Some("--color") => color = args.next().cloned().or(color),
                Some(text) => {
                    let named = ["--output=", "--format="]
                        .iter()
                        .find_map(|flag| text.strip_prefix(flag));
                    if let Some(name) = named {
                        format = Format::named(OsStr::new(name)).or(format);
                    } else if let Some(name) = text.strip_prefix("--color=") {
                        color = Some(name.into());
                    }
                }
                None => {}
            }
        }
        let color = color.as_ref().and_then(|color| color.to_str());
        Manners::new(environment, format, color)
    }

    /// The manners that were asked for, and for the rest those that fit the streams.
    pub(crate) fn new(
        environment: &Environment,
        format: Option<Format>,
        color: Option<&str>,
    ) -> Manners {
        let terminal = environment.stdout.terminal;
        let variables = &environment.variables;
        let willing = variables.no_color.is_none() && variables.capable_terminal();
        let colored = |terminal: bool| match color {
            Some("always") => true,
            Some("never") => false,
            _ => terminal && willing,
        };
        Manners {
            format: format.unwrap_or(match terminal {
                Some(_) => Format::Text,
                None => Format::Json,
            }),
            color: colored(terminal.is_some()),
            stderr_color: colored(environment.stderr.terminal.is_some()),
            columns: terminal.map(|terminal| terminal.columns),
        }
    }
}

impl Format {
    /// The format called `name`.
    pub(crate) fn named(name: &OsStr) -> Option<Format> {
        match name.to_str() {
            Some("json") => Some(Format::Json),
            Some("jsonl") => Some(Format::JsonLines),
            Some("text") => Some(Format::Text),
            Some("parquet") => Some(Format::Parquet),
            _ => None,
        }
    }
}
