//! A row of the catalogue as an MCP tool.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use sandstack_api::{Effect, Operation};
use serde_json::{Map, Value, json};

use crate::MAX_ANSWER_BYTES;
use crate::window::NOTE;

/// The tool of `row`.
pub(crate) fn of(row: &Operation) -> Tool {
    let mut input = object((row.request_schema)().to_value());
    // It is the tool's description.
    input.remove("description");
    let mut output = object((row.response_schema)().to_value());
    let note = json!({
        "type": "string",
        "description": format!(
            "Present when the answer was cut to stay under {MAX_ANSWER_BYTES} bytes: what was cut, and how to get the rest."
        )
    });
    if let Some(Value::Object(properties)) = output.get_mut("properties") {
        properties.insert(NOTE.to_owned(), note);
    }
    let hints = ToolAnnotations::with_title(row.title)
        .read_only(row.effect == Effect::ReadOnly)
        .destructive(row.effect == Effect::Destructive)
        .idempotent(row.idempotent)
        .open_world(row.open_world);
    Tool::new(row.name, row.description(), Arc::new(input))
        .with_title(row.title)
        .with_raw_output_schema(Arc::new(output))
        .with_annotations(hints)
}

/// A schema as MCP takes it: an object, without what only costs a model's attention.
fn object(schema: Value) -> Map<String, Value> {
    let mut schema = match plain(schema) {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    // 2020-12 is the protocol's own dialect, and the tool has a title.
    for key in ["$schema", "title"] {
        schema.remove(key);
    }
    schema
}

/// `schema` without the formats of numbers: they are Rust's, and validators in other languages warn
/// of a format that they do not know. The bounds say the same.
fn plain(schema: Value) -> Value {
    let is_of_rust = |key: &String, value: &Value| {
        key == "format"
            && value.as_str().is_some_and(|format| {
                ["uint", "int", "float", "double"]
                    .iter()
                    .any(|prefix| format.starts_with(prefix))
            })
    };
    match schema {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(key, value)| !is_of_rust(key, value))
                .map(|(key, value)| (key, plain(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(plain).collect()),
        other => other,
    }
}
