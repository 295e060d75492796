//! What the tools say about themselves.

use std::path::PathBuf;

use rmcp::ServiceExt;
use rmcp::model::Tool;
use sandstack_api::{Authority, OPERATIONS};
use serde_json::{Map, Value, json};

use crate::calls;
use crate::gateway::{Gateway, Reply};

async fn tools(authority: Authority) -> Vec<Tool> {
    let gateway = Gateway::start(|_, _| Reply::Json(200, json!({})));
    let client = ().serve(calls::served(&gateway, authority)).await.expect("a client");
    client.list_all_tools().await.expect("the tools")
}

#[tokio::test]
async fn tool_lists_are_as_checked_in() {
    for authority in Authority::ALL {
        let tools = serde_json::to_value(tools(authority).await).expect("JSON");
        let text = format!("{:#}\n", sorted(tools));
        matches_file(&format!("{authority}.json"), &text);
    }
}

/// Objects with their keys in order, whichever way a dependency was built.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|(one, _), (other, _)| one.cmp(other));
            let entries = entries.into_iter().map(|(key, value)| (key, sorted(value)));
            Value::Object(Map::from_iter(entries))
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// Holds `actual` to the file `name` under `tests/expected`;
/// `UPDATE_EXPECTED=1 cargo test -p sandstack-mcp` writes it anew.
fn matches_file(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/expected")
        .join(name);
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&path, actual).expect("the file is written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if expected != actual {
        let same = expected
            .lines()
            .zip(actual.lines())
            .take_while(|(expected, actual)| expected == actual)
            .count();
        panic!(
            "{} differs from line {} on: {:?} is now {:?}; run with UPDATE_EXPECTED=1 if it should",
            path.display(),
            same + 1,
            expected.lines().nth(same),
            actual.lines().nth(same)
        );
    }
}

#[tokio::test]
async fn every_row_of_a_set_is_a_tool_with_its_hints() {
    for authority in Authority::ALL {
        let tools = tools(authority).await;
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        let rows = || OPERATIONS.iter().filter(|row| row.authority == authority);
        assert_eq!(names, rows().map(|row| row.name).collect::<Vec<_>>());
        for (tool, row) in tools.iter().zip(rows()) {
            let hints = tool.annotations.as_ref().expect("hints");
            let read_only = row.effect == sandstack_api::Effect::ReadOnly;
            let destructive = row.effect == sandstack_api::Effect::Destructive;
            assert_eq!(hints.read_only_hint, Some(read_only), "{}", row.name);
            assert_eq!(hints.destructive_hint, Some(destructive), "{}", row.name);
            assert_eq!(hints.idempotent_hint, Some(row.idempotent), "{}", row.name);
            assert_eq!(hints.open_world_hint, Some(row.open_world), "{}", row.name);
            assert_eq!(tool.title.as_deref(), Some(row.title));
            assert_eq!(
                tool.description.as_deref(),
                Some(row.description().as_str())
            );
        }
    }
}

#[tokio::test]
async fn schemas_are_objects_that_any_validator_reads() {
    for authority in Authority::ALL {
        for tool in tools(authority).await {
            let output = tool.output_schema.as_ref().expect("an output schema");
            for schema in [&tool.input_schema, output] {
                let schema = Value::Object((**schema).clone());
                assert_eq!(schema["type"], "object", "{}", tool.name);
                jsonschema::meta::validate(&schema)
                    .unwrap_or_else(|error| panic!("{}: {error}", tool.name));
                jsonschema::validator_for(&schema)
                    .unwrap_or_else(|error| panic!("{}: {error}", tool.name));
                assert!(!schema.to_string().contains("uint"), "{}", tool.name);
            }
            assert_eq!(
                tool.input_schema["additionalProperties"], false,
                "{}",
                tool.name
            );
        }
    }
}
