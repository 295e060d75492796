//! Any answer as text, by the names of its fields: times end in `_unix_ms`, sizes in `_bytes`,
//! durations in `_ms` and `_us`; objects with `base64` are bytes.

use sandstack_api::Blob;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::table::Grid;
use super::{Answer, Style, Tone, escaped, units};

/// The whole answer.
pub(crate) fn answer(value: &Value, style: &Style) -> Answer {
    Answer::data(indented(value, 0, style))
}

/// A part of an answer.
pub(crate) fn of(part: &impl Serialize, style: &Style) -> String {
    // What was read from JSON goes back to JSON.
    let value = serde_json::to_value(part).unwrap_or_default();
    indented(&value, 0, style)
}

/// `value` as lines, indented by `indent` spaces.
pub(crate) fn indented(value: &Value, indent: usize, style: &Style) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) => write_object(&mut text, map, indent, style),
        other => {
            text.push_str(&" ".repeat(indent));
            text.push_str(&plain("", other));
            text.push('\n');
        }
    }
    text
}

fn write_object(text: &mut String, map: &Map<String, Value>, indent: usize, style: &Style) {
    let pad = " ".repeat(indent);
    let mut fields: Vec<(&String, &Value)> = map
        .iter()
        .filter(|(name, value)| !is_nothing(name, value))
        .collect();
    fields.sort_by_key(|(name, _)| order_of(name));
    let (simple, nested): (Vec<_>, Vec<_>) =
        fields.into_iter().partition(|(_, value)| is_plain(value));
    let width = simple.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in simple {
        let label = style.paint(Tone::Quiet, &format!("{:width$}", escaped(name.as_bytes())));
        text.push_str(&format!("{pad}{label}  {}\n", plain(name, value)));
    }
    for (name, value) in nested {
        let heading = style.paint(Tone::Heading, &escaped(name.as_bytes()));
        text.push_str(&format!("{pad}{heading}\n"));
        match value {
            Value::Array(rows) => write_rows(text, rows, indent + 2, style),
            other => text.push_str(&indented(other, indent + 2, style)),
        }
    }
}

/// An array of objects with plain fields is a table; any other a list.
fn write_rows(text: &mut String, rows: &[Value], indent: usize, style: &Style) {
    let pad = " ".repeat(indent);
    let mut names: Vec<&String> = Vec::new();
    for name in rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| order_of(name));
    let is_table = !names.is_empty()
        && rows.iter().all(|row| {
            row.as_object()
                .is_some_and(|row| row.values().all(is_plain))
        });
    if !is_table {
        for row in rows {
            text.push_str(&indented(row, indent, style));
        }
        return;
    }
    let heads: Vec<String> = names
        .iter()
        .map(|name| escaped(name.as_bytes()).to_uppercase())
        .collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut grid = Grid::new(style, &heads);
    for row in rows {
        let cells = names.iter().map(|name| match row.get(name.as_str()) {
            Some(value) => plain(name, value),
            None => "-".to_owned(),
        });
        grid.texts(cells.collect());
    }
    for line in grid.finish().lines() {
        text.push_str(&format!("{pad}{line}\n"));
    }
}

/// Where a field stands: what a thing is called, then the rest by name. (The order within a JSON
/// object depends on how a dependency was built.)
fn order_of(name: &str) -> (u8, String) {
    let rank = match name {
        _ if name.ends_with("_id") => 0,
        "name" | "path" => 1,
        "state" | "state_reason" | "status" | "kind" => 2,
        _ => 3,
    };
    (rank, name.to_owned())
}

/// The name that a value of a closed set has on the wire.
pub(crate) fn name_of(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

/// Whether it fits in a cell.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Object(_) => Blob::deserialize(value).is_ok(),
        Value::Array(items) => items
            .iter()
            .all(|item| !item.is_array() && !item.is_object()),
        _ => true,
    }
}

/// Whether it says nothing: no value, or no error to tell of.
fn is_nothing(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => name == "errors" && items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn plain(name: &str, value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_u64() {
            Some(number) => number_of(name, number),
            None => number.to_string(),
        },
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| plain(name, item)).collect();
            items.join(", ")
        }
        other => match Blob::deserialize(other) {
            Ok(blob) => escaped(&blob.0),
            Err(_) => escaped(other.to_string().as_bytes()),
        },
    }
}

fn number_of(name: &str, number: u64) -> String {
    match name {
        _ if name.ends_with("_unix_ms") => units::utc(number),
        _ if name.ends_with("_ms") => units::millis(number),
        _ if name.ends_with("_us") => units::micros(number),
        _ if name == "bytes" || name == "size" || name.ends_with("_bytes") => units::bytes(number),
        "mode" => match u32::try_from(number) {
            Ok(mode) => units::mode(mode),
            Err(_) => number.to_string(),
        },
        "pid" | "uid" | "gid" => number.to_string(),
        _ => units::count(number),
    }
}
