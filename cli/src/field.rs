//! The fields of a request, read off its JSON schema: what the command line has to offer for each.

use sandstack_api::Operation;
use serde_json::{Map, Value};

/// One field of a request.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// Its name in the request.
    pub(crate) name: String,
    /// What it is: the doc comment, as one line.
    pub(crate) description: String,
    /// Whether a request without it is no request.
    pub(crate) required: bool,
    /// Its place among the positional arguments, from 0; `None` if it is a flag only.
    pub(crate) position: Option<usize>,
    /// What values it takes.
    pub(crate) shape: Shape,
}

/// What values a field takes, in the terms of a command line.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// `--flag`, or `--flag=false`.
    Switch,
    /// A whole number within bounds.
    Integer { min: i128, max: i128 },
    /// A number.
    Number,
    /// An identifier: checked before the gateway sees it, since its alphabet is the catalogue's.
    Id,
    /// Text, in UTF-8.
    Text,
    /// The content of a file: any bytes, of which the request says in its field `encoding` how they
    /// are written.
    Content,
    /// Any bytes.
    Bytes,
    /// One of a closed set.
    Choice(Vec<Choice>),
    /// Several values, by repeating the flag.
    List(Box<Shape>),
    /// `KEY=VALUE`, by repeating the flag.
    Map(Box<Shape>),
    /// An object of plain fields: a JSON text, or a flag for each of them.
    Group(Vec<Field>),
    /// Anything else: a JSON text.
    Json,
}

/// One of a closed set of values.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The value.
    pub(crate) name: String,
    /// What it means, as one line.
    pub(crate) description: String,
}

impl Field {
    /// The name of its flag, without the dashes.
    pub(crate) fn flag(&self) -> String {
        self.name.replace('_', "-")
    }
}

impl Shape {
    /// Whether one word of the command line is one value of it, so that it needs no JSON.
    fn is_plain(&self) -> bool {
        match self {
            Shape::Switch
            | Shape::Integer { .. }
            | Shape::Number
            | Shape::Id
            | Shape::Text
            | Shape::Bytes
            | Shape::Choice(_) => true,
            Shape::Content | Shape::List(_) | Shape::Map(_) | Shape::Group(_) | Shape::Json => {
                false
            }
        }
    }
}

/// The fields of `row`'s request: positional ones in their order, then required ones, then the rest
/// by name. (The schema's own order depends on how a dependency was built.)
pub(crate) fn fields_of(row: &Operation) -> Vec<Field> {
    let schema = (row.request_schema)();
    let root = schema.as_value();
    let mut fields = properties_of(root, root);
    for field in &mut fields {
        field.position = row.positional.iter().position(|name| *name == field.name);
    }
    let has_encoding = fields.iter().any(|field| field.name == "encoding");
    for field in &mut fields {
        if has_encoding && field.name == "content" && matches!(field.shape, Shape::Text) {
            field.shape = Shape::Content;
        }
    }
    fields.sort_by_key(|field| {
        (
            field.position.unwrap_or(usize::MAX),
            !field.required,
            field.name.clone(),
        )
    });
    fields
}

/// The fields of an object, by name.
fn properties_of(root: &Value, schema: &Value) -> Vec<Field> {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let mut fields: Vec<Field> = properties
        .iter()
        .map(|(name, property)| Field {
            name: name.clone(),
            description: one_line(property["description"].as_str().unwrap_or_default()),
            required: schema["required"]
                .as_array()
                .is_some_and(|required| required.iter().any(|required| required == name)),
            position: None,
            shape: shape_of(root, property),
        })
        .collect();
    fields.sort_by(|one, other| one.name.cmp(&other.name));
    fields
}

fn shape_of(root: &Value, schema: &Value) -> Shape {
    let schema = resolve(root, schema);
    let variants = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(variants) = variants {
        return shape_of_variants(root, variants);
    }
    if let Some(names) = schema["enum"].as_array() {
        return Shape::Choice(names.iter().filter_map(choice_of).collect());
    }
    match type_of(schema) {
        Some("boolean") => Shape::Switch,
        Some("integer") => Shape::Integer {
            min: bound(schema, "minimum").unwrap_or(i64::MIN.into()),
            max: bound(schema, "maximum").unwrap_or(match schema["format"].as_str() {
                Some("uint64") => u64::MAX.into(),
                Some("uint32") => u32::MAX.into(),
                Some("int32") => i32::MAX.into(),
                _ => i64::MAX.into(),
            }),
        },
        Some("number") => Shape::Number,
        Some("string") if schema["pattern"].is_string() => Shape::Id,
        Some("string") => Shape::Text,
        Some("array") => list_of(shape_of(root, &schema["items"])),
        Some("object") if schema["properties"].is_object() => {
            let fields = properties_of(root, schema);
            let plain = |field: &Field| !field.required && field.shape.is_plain();
            if fields.iter().all(plain) {
                Shape::Group(fields)
            } else {
                Shape::Json
            }
        }
        Some("object") if schema["additionalProperties"].is_object() => {
            let value = shape_of(root, &schema["additionalProperties"]);
            if value.is_plain() {
                Shape::Map(Box::new(value))
            } else {
                Shape::Json
            }
        }
        _ => Shape::Json,
    }
}

fn shape_of_variants(root: &Value, variants: &[Value]) -> Shape {
    let present: Vec<&Value> = variants
        .iter()
        .filter(|variant| variant["type"] != "null")
        .collect();
    let carries_bytes = |variant: &&Value| !variant["properties"]["base64"].is_null();
    match present.as_slice() {
        [one] if one["const"].is_null() => shape_of(root, one),
        several if several.iter().any(carries_bytes) => Shape::Bytes,
        several => {
            let choices: Vec<Choice> = several.iter().copied().filter_map(choice_of).collect();
            if choices.len() == several.len() {
                Shape::Choice(choices)
            } else {
                Shape::Json
            }
        }
    }
}

/// A value of a closed set: a bare string of an `enum`, or a `const` with its description.
fn choice_of(value: &Value) -> Option<Choice> {
    let name = value.as_str().or(value["const"].as_str())?;
    Some(Choice {
        name: name.to_owned(),
        description: one_line(value["description"].as_str().unwrap_or_default()),
    })
}

fn list_of(item: Shape) -> Shape {
    if item.is_plain() {
        Shape::List(Box::new(item))
    } else {
        Shape::Json
    }
}

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let pointer = schema["$ref"]
        .as_str()
        .and_then(|reference| reference.strip_prefix('#'));
    match pointer.and_then(|pointer| root.pointer(pointer)) {
        Some(definition) => definition,
        None => schema,
    }
}

fn type_of(schema: &Value) -> Option<&str> {
    match &schema["type"] {
        Value::String(name) => Some(name),
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null"),
        _ => None,
    }
}

fn bound(schema: &Value, key: &str) -> Option<i128> {
    let value = &schema[key];
    value
        .as_u64()
        .map(i128::from)
        .or(value.as_i64().map(i128::from))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use sandstack_api::OPERATIONS;

    use super::*;

    fn field(operation: &str, name: &str) -> Field {
        let row = OPERATIONS
            .iter()
            .find(|row| row.name == operation)
            .expect("the operation exists");
        fields_of(row)
            .into_iter()
            .find(|field| field.name == name)
            .expect("the field exists")
    }

    #[test]
    fn schemas_become_the_shapes_that_people_type() {
        let shapes = [
            ("create_sandbox", "workspace_root", "Bytes"),
            ("create_sandbox", "count", "Integer { min: 1, max: 64 }"),
            ("create_sandbox", "env", "Map(Bytes)"),
            ("create_sandbox", "labels", "Map(Text)"),
            ("create_sandbox", "publish_policy", "Json"),
            ("destroy_sandbox", "sandbox_id", "Id"),
            ("destroy_sandbox", "force", "Switch"),
            ("exec_command", "tty", "Switch"),
            ("exec_command", "workspace_session_id", "Id"),
            (
                "exec_command",
                "timeout_ms",
                "Integer { min: 1, max: 18446744073709551615 }",
            ),
            ("write_command_stdin", "stdin", "Bytes"),
            ("file_write", "content", "Content"),
            ("file_edit", "edits", "Json"),
            ("trace", "operation", "Text"),
        ];
        for (operation, name, expected) in shapes {
            let shape = format!("{:?}", field(operation, name).shape);
            assert_eq!(shape, expected, "{operation}.{name}");
        }
        assert!(matches!(
            field("create_sandbox", "provider").shape,
            Shape::Choice(choices) if choices.len() == 2
        ));
        assert!(matches!(
            field("file_activity", "kinds").shape,
            Shape::List(kind) if matches!(*kind, Shape::Choice(_))
        ));
        assert!(matches!(
            field("create_sandbox", "resources").shape,
            Shape::Group(fields) if fields.len() == 4
        ));
    }

    #[test]
    fn positional_fields_come_first_and_in_order() {
        let row = sandstack_api::OperationName::WriteCommandStdin.row();
        let names: Vec<String> = fields_of(row).into_iter().map(|field| field.name).collect();
        assert_eq!(names[..2], ["command_session_id", "stdin"]);
    }
}
