//! The catalogue for people and for generators: the operations page and the OpenAPI document.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::catalogue::EVERY_OPERATION_ERRORS;
use crate::{Authority, ErrorBody, OPERATIONS, Operation};

/// The operations page, in Markdown; `docs/operations.md` is a checked-in copy.
pub fn operations_page() -> String {
    let mut page = String::from(
        "# Operations\n\n\
         <!-- Generated from the catalogue in gateway/api; `make docs` writes it and a test compares it. -->\n\n\
         Every operation is `POST /v1/{operation}` with a JSON object as body, a subcommand of its authority's CLI, \
         and a tool of `sandbox-mcp --set {authority}`. `?` marks an optional field. Text that is not UTF-8 travels \
         as `{\"base64\": \"…\"}`.\n\n\
         Beside the operations there are `GET /v1/catalog`, `GET /openapi.json`, `GET /health` (without a token), and for \
         tokens of the authority `observability` `GET /metrics` (the text format of Prometheus) and \
         `GET /v1/stream/events?sandbox_id=…&name=…` (server-sent events as they happen; `Last-Event-ID` goes on after \
         that event, and what is not kept any more is a `gap`). For tokens of the authority `runtime`, \
         `GET /v1/stream/commands/{command_session_id}` sends the output of a command as it comes, from its beginning or \
         after `Last-Event-ID`: events `output` with the fields of `chunk` and the `stream`, and one `ended` with those of an \
         answer of `exec_command` but for the output. `/v1/forward/{session}/{port}/…` reaches what listens in \
         a session, with any method ([forward.md](forward.md)).\n\n\
         Besides its own error codes every operation can answer ",
    );
    let every: Vec<String> = EVERY_OPERATION_ERRORS
        .iter()
        .map(|code| format!("`{code}`"))
        .collect();
    let _ = writeln!(page, "{}.", every.join(" "));
    for authority in Authority::ALL {
        let mut title = authority.as_str().to_owned();
        title[..1].make_ascii_uppercase();
        let _ = write!(page, "\n## {title}\n");
        for row in OPERATIONS.iter().filter(|row| row.authority == authority) {
            write_operation(&mut page, row);
        }
    }
    page
}

fn write_operation(page: &mut String, row: &Operation) {
    let _ = write!(page, "\n### `{}`\n\n{}\n", row.name, row.description());
    let request = (row.request_schema)();
    write_fields(page, "Request", request.as_value());
    let response = (row.response_schema)();
    write_fields(page, "Response", response.as_value());
    if !row.errors.is_empty() {
        let codes: Vec<String> = row.errors.iter().map(|code| format!("`{code}`")).collect();
        let _ = write!(page, "\nErrors: {}\n", codes.join(" "));
    }
}

fn write_fields(page: &mut String, title: &str, schema: &Value) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    if properties.is_empty() {
        return;
    }
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let _ = write!(page, "\n| {title} | type | |\n|---|---|---|\n");
    for (field, value) in properties {
        let mark = if required.contains(&field.as_str()) {
            ""
        } else {
            "?"
        };
        let text = value
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let text = text.replace('\n', " ").replace('|', "\\|");
        let _ = writeln!(page, "| `{field}`{mark} | {} | {text} |", type_name(value));
    }
}

/// A short name of a schema's type, such as `integer`, `[Edit]` or `utf-8 \| base64`.
pub fn type_name(schema: &Value) -> String {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return reference.rsplit('/').next().unwrap_or(reference).to_owned();
    }
    if let Some(choices) = schema
        .get("anyOf")
        .or_else(|| schema.get("oneOf"))
        .and_then(Value::as_array)
    {
        let names: Vec<String> = choices
            .iter()
            .map(type_name)
            .filter(|name| name != "null")
            .collect();
        return names.join(" or ");
    }
    if schema.get("type").and_then(Value::as_str) == Some("array") {
        return format!(
            "[{}]",
            schema.get("items").map(type_name).unwrap_or_default()
        );
    }
    match schema.get("type") {
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            let names: Vec<&str> = names
                .iter()
                .filter_map(Value::as_str)
                .filter(|name| *name != "null")
                .collect();
            names.join(" or ")
        }
        _ => "any".to_owned(),
    }
}

/// The OpenAPI 3.1 document, as `GET /openapi.json` answers it.
pub fn openapi(version: &str) -> Value {
    let mut schemas = Map::new();
    let error_schema = hoist(schemars::schema_for!(ErrorBody).to_value(), &mut schemas);
    schemas.insert("ErrorBody".to_owned(), error_schema);
    let mut paths = Map::new();
    for row in OPERATIONS {
        let request = hoist((row.request_schema)().to_value(), &mut schemas);
        let response = hoist((row.response_schema)().to_value(), &mut schemas);
        let mut responses = Map::new();
        responses.insert(
            "200".to_owned(),
            json!({ "description": "Done.", "content": { "application/json": { "schema": response } } }),
        );
        for code in EVERY_OPERATION_ERRORS.iter().chain(row.errors) {
            let entry = responses.entry(code.http_status().to_string()).or_insert_with(|| {
                json!({
                    "description": "",
                    "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } }
                })
            });
            let known = entry["description"].as_str().unwrap_or_default().to_owned();
            entry["description"] = json!(if known.is_empty() {
                code.to_string()
            } else {
                format!("{known}, {code}")
            });
        }
        paths.insert(
            format!("/v1/{}", row.name),
            json!({ "post": {
                "operationId": row.name,
                "summary": row.title,
                "description": row.description(),
                "tags": [row.authority],
                "security": [{ "token": [row.authority] }],
                "parameters": [{
                    "name": "X-Request-Id",
                    "in": "header",
                    "description": "Names the request in traces; a repeat with the same body replays the first answer.",
                    "schema": { "type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$" }
                }],
                "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
                "responses": responses,
            } }),
        );
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sandstack gateway",
            "version": version,
            "license": { "name": "MIT", "identifier": "MIT" }
        },
        "servers": [{ "url": "http://localhost" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } }
        }
    })
}

/// Moves a schema's `$defs` to the document's components and points its references there.
fn hoist(mut schema: Value, schemas: &mut Map<String, Value>) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        if let Some(Value::Object(definitions)) = object.remove("$defs") {
            for (name, definition) in definitions {
                let definition = repoint(definition);
                schemas.insert(name, definition);
            }
        }
    }
    repoint(schema)
}

fn repoint(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| match value {
                    Value::String(text) if key == "$ref" => (
                        key,
                        Value::String(text.replace("#/$defs/", "#/components/schemas/")),
                    ),
                    other => (key, repoint(other)),
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(repoint).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    found.push(reference.clone());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_of_the_openapi_document_resolves() {
        let document = openapi("0");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("a local reference");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn the_page_shows_every_operation() {
        let page = operations_page();
        for row in OPERATIONS {
            assert!(page.contains(&format!("### `{}`", row.name)));
        }
    }
}
