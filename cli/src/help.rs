//! What the command line says about itself: usage, fields and examples, from the catalogue's doc
//! comments.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use sandstack_api::{Authority, Effect, Operation, OperationName};
use serde_json::{Map, Value, json};

use crate::field::{Field, Shape};
use crate::program;
use crate::request::STDIN_FIELDS;
use crate::spell::{shell_line, words};

/// What follows the list of operations.
pub(crate) const AFTER: &str = "\
Every field of a request is a flag, and its main fields are positional too. \
`help OPERATION` shows them.

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 not found, 4 conflict, 5 no gateway, 6 token, \
7 timeout or cancelled, 8 quota or busy";

/// What the CLI of `authority` is for.
pub(crate) fn about(authority: Authority) -> &'static str {
    match authority {
        Authority::Management => "Makes and ends Sandstack sandboxes",
        Authority::Runtime => "Works inside Sandstack sandboxes: sessions, commands, files",
        Authority::Observability => {
            "Shows what happens in Sandstack sandboxes, and changes nothing"
        }
    }
}

/// The first paragraph of a description, as one line.
pub(crate) fn first_paragraph(description: &str) -> String {
    let paragraph = description.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A description without its example in JSON: the help shows it as a command line.
pub(crate) fn without_example(description: &str) -> String {
    let paragraphs: Vec<String> = description
        .split("\n\n")
        .filter(|paragraph| !paragraph.starts_with("Example:"))
        .map(first_paragraph)
        .collect();
    paragraphs.join("\n\n")
}

/// The usage line.
pub(crate) fn usage(row: &Operation, fields: &[Field]) -> String {
    let mut usage = format!("{} {} [OPTIONS]", program(row.authority), row.name);
    for field in fields.iter().filter(|field| field.position.is_some()) {
        let name = field.name.to_uppercase();
        usage.push_str(&match field.required {
            true => format!(" <{name}>"),
            false => format!(" [{name}]"),
        });
    }
    if row.operation == OperationName::ExecCommand {
        let whole = usage.replace(" <CMD>", " -- <WORD>...");
        usage = format!("{usage}\n       {whole}");
    }
    usage
}

/// What follows the fields: what to know of the operation's effect, and an example.
pub(crate) fn after(row: &Operation, fields: &[Field], description: &str) -> String {
    let effect = match row.effect {
        Effect::ReadOnly => "Changes nothing.\n\n",
        Effect::Additive | Effect::Destructive => "",
    };
    let request = example_in(description).unwrap_or_else(|| example_of(fields));
    let mut example = vec![program(row.authority).into()];
    example.extend(words(row.operation, fields, &request));
    format!(
        "{effect}Example:\n{}\n\n`{} help` shows the flags of every operation",
        broken(&example),
        program(row.authority),
    )
}

/// A command line as lines that can be pasted, broken before flags where it is long.
fn broken(words: &[OsString]) -> String {
    /// Longest line that is left whole.
    const LONGEST: usize = 78;
    let whole = shell_line(words).display().to_string();
    if whole.chars().count() <= LONGEST {
        return format!("  {whole}");
    }
    let is_flag = |word: &OsString| word.as_bytes().starts_with(b"--");
    let mut lines: Vec<&[OsString]> = Vec::new();
    let mut rest = words;
    while !rest.is_empty() {
        let end = rest.iter().skip(1).position(is_flag);
        let (line, others) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
        lines.push(line);
        rest = others;
    }
    let lines: Vec<String> = lines
        .into_iter()
        .map(|line| shell_line(line).display().to_string())
        .collect();
    format!("  {}", lines.join(" \\\n      "))
}

/// The request in the doc comment's `Example:`; `None` if it has none.
fn example_in(description: &str) -> Option<Map<String, Value>> {
    let (_, example) = description.split_once("Example: `")?;
    let (example, _) = example.rsplit_once('`')?;
    serde_json::from_str(example).ok()
}

/// A request of the required and the positional fields, with the ids that the docs use.
fn example_of(fields: &[Field]) -> Map<String, Value> {
    let values = [
        ("sandbox_id", json!("sb-k3v9t2")),
        ("workspace_session_id", json!("ws-8fq2m1")),
        ("command_session_id", json!("cmd-x7d0aa")),
        ("path", json!("src/main.rs")),
        ("trace_id", json!("last")),
    ];
    fields
        .iter()
        .filter(|field| field.required || field.position.is_some())
        .filter_map(|field| {
            let (name, value) = values.iter().find(|(name, _)| *name == field.name)?;
            Some(((*name).to_owned(), value.clone()))
        })
        .collect()
}

/// Stands for a value of `field`.
pub(crate) fn value_name(field: &Field) -> &'static str {
    /// Fields that hold a path, of those that hold any bytes.
    const PATHS: [&str; 5] = ["path", "paths", "cwd", "dest", "workspace_root"];
    fn of(shape: &Shape, is_path: bool) -> &'static str {
        match shape {
            Shape::Switch => "BOOL",
            Shape::Integer { .. } => "INTEGER",
            Shape::Number => "NUMBER",
            Shape::Id => "ID",
            Shape::Bytes if is_path => "PATH",
            Shape::Text | Shape::Content | Shape::Bytes => "TEXT",
            Shape::Choice(_) => "CHOICE",
            Shape::List(item) => of(item, is_path),
            Shape::Map(_) => "KEY=VALUE",
            Shape::Group(_) | Shape::Json => "JSON",
        }
    }
    of(&field.shape, PATHS.contains(&field.name.as_str()))
}

/// The help of a field as a flag.
pub(crate) fn of_flag(field: &Field) -> String {
    let mut text = field.description.clone();
    match &field.shape {
        Shape::Integer { .. } => push_range(&mut text, &field.shape),
        Shape::List(_) | Shape::Map(_) => text.push_str(" (may be repeated)"),
        _ => {}
    }
    if STDIN_FIELDS.contains(&field.name.as_str()) {
        text.push_str(" `-` reads standard input.");
    }
    match field.name.as_str() {
        "sandbox_id" => text.push_str(" Else $SANDBOX_ID."),
        "edits" => text.push_str(" (this or --edit is required)"),
        _ if field.required && field.position.is_none() => text.push_str(" (required)"),
        _ => {}
    }
    text
}

/// The help of a field as a positional argument.
pub(crate) fn of_positional(field: &Field) -> String {
    format!("{} (also --{})", of_flag(field), field.flag())
}

/// Says the bounds of a whole number, unless the description does.
fn push_range(text: &mut String, shape: &Shape) {
    let Shape::Integer { max, .. } = shape else {
        return;
    };
    let said = text.replace(',', "").contains(&max.to_string());
    if let (false, Some(range)) = (said, range_of(shape)) {
        text.push_str(&format!(" [{range}]"));
    }
}

/// The bounds of a whole number in words; `None` where the type is the only bound.
pub(crate) fn range_of(shape: &Shape) -> Option<String> {
    let Shape::Integer { min, max } = *shape else {
        return None;
    };
    let bounded = max < u32::MAX.into();
    match (min, bounded) {
        (_, true) => Some(format!("{min} to {max}")),
        (1.., false) => Some(format!("{min} or more")),
        (_, false) => None,
    }
}
