//! The smallest value of a JSON schema, for rows that a test does not know by name.

use sandstack_api::Operation;
use serde_json::{Map, Value};

/// The smallest request of `row`.
pub(crate) fn request(row: &Operation) -> Map<String, Value> {
    object((row.request_schema)().as_value())
}

/// The smallest answer of `row`.
pub(crate) fn answer(row: &Operation) -> Value {
    object((row.response_schema)().as_value()).into()
}

fn object(schema: &Value) -> Map<String, Value> {
    match of(schema, schema) {
        Value::Object(map) => map,
        other => panic!("no object: {other}"),
    }
}

fn of(root: &Value, schema: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let definition = root.pointer(&reference[1..]).expect("it resolves");
        return of(root, definition);
    }
    if !schema["const"].is_null() {
        return schema["const"].clone();
    }
    let variants = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(variants) = variants {
        return of(root, &variants[0]);
    }
    if let Some(values) = schema["enum"].as_array() {
        return values[0].clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[0].as_str(),
        kind => kind.as_str(),
    };
    match kind {
        Some("object") => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let fields = required.iter().filter_map(Value::as_str);
            Value::Object(
                fields
                    .map(|name| (name.to_owned(), of(root, &schema["properties"][name])))
                    .collect(),
            )
        }
        Some("array") => Value::Array(Vec::new()),
        Some("string") => "x-1".into(),
        Some("integer") => schema["minimum"].as_u64().unwrap_or(0).into(),
        Some("number") => 0.5.into(),
        Some("boolean") => false.into(),
        // A schema that takes anything.
        _ => Value::Null,
    }
}
