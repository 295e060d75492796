//! What holds for every row, and what a request that is none is told.

use std::collections::HashSet;

use super::*;

#[test]
fn rows_and_names_line_up() {
    let mut seen = HashSet::new();
    for row in OPERATIONS {
        assert_eq!(row.operation.row().name, row.name);
        assert_eq!(OperationName::find(row.name), Some(row.operation));
        assert!(seen.insert(row.name), "{} twice", row.name);
    }
}

#[test]
fn every_row_explains_itself() {
    for row in OPERATIONS {
        let description = row.description();
        assert!(!description.is_empty(), "{}", row.name);
        // MCP clients cut descriptions; the bound is the catalogue's own.
        assert!(
            description.len() < 1500,
            "{}: {} bytes",
            row.name,
            description.len()
        );
        let schema = (row.request_schema)();
        let properties = schema
            .get("properties")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        for (field, value) in &properties {
            assert!(
                value.get("description").is_some() || value.get("$ref").is_some(),
                "{}.{field} has no description",
                row.name
            );
        }
        for field in row.positional {
            assert!(
                properties.contains_key(*field),
                "{}.{field} does not exist",
                row.name
            );
        }
        assert_eq!(
            schema.get("additionalProperties"),
            Some(&Value::Bool(false)),
            "{}",
            row.name
        );
    }
}

#[test]
fn read_only_rows_are_idempotent() {
    for row in OPERATIONS
        .iter()
        .filter(|row| row.effect == Effect::ReadOnly)
    {
        assert!(row.idempotent, "{}", row.name);
    }
    for row in OPERATIONS
        .iter()
        .filter(|row| row.authority == Authority::Observability)
    {
        assert_eq!(row.effect, Effect::ReadOnly, "{}", row.name);
    }
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let error = Request::parse(OperationName::ListSandboxes, br#"{"limt": 3}"#).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    assert!(error.message.contains("limt"), "{}", error.message);
    assert!(
        error.message.contains("list_sandboxes"),
        "{}",
        error.message
    );
}

#[test]
fn wrong_types_are_told_with_their_field() {
    let body = br#"{"sandbox_id": "sb-1", "cmd": "x", "timeout_ms": "1s"}"#;
    let error = Request::parse(OperationName::ExecCommand, body).unwrap_err();
    assert!(error.message.contains("timeout_ms"), "{}", error.message);
    let error =
        Request::parse(OperationName::ExecCommand, br#"{"sandbox_id": "sb-1"}"#).unwrap_err();
    assert!(
        error.message.contains("missing field `cmd`"),
        "{}",
        error.message
    );
}

#[test]
fn an_empty_body_is_the_empty_request() {
    let request = Request::parse(OperationName::ListSandboxes, b"").unwrap();
    assert_eq!(request, Request::ListSandboxes(Default::default()));
}

#[test]
fn malformed_json_says_where() {
    let error = Request::parse(OperationName::InspectSandbox, b"{\"sandbox_id\": ").unwrap_err();
    assert!(error.message.contains("line 1"), "{}", error.message);
}
