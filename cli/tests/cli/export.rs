//! Lists that are written out for analysis.

use std::collections::BTreeMap;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use sandstack_api::Authority;
use serde_json::{Value, json};

use crate::answers;
use crate::gateway::{Gateway, Reply};
use crate::process::{Run, cli};

fn export(answer: Value, args: &[&str]) -> (Run, Gateway) {
    let gateway = Gateway::start(Reply::Json(200, answer));
    let mut words = vec!["file_activity", "--sandbox-id=sb-1"];
    words.extend_from_slice(args);
    let run = cli(Authority::Observability, &gateway).run(words);
    (run, gateway)
}

/// The last page of the answer, with a path that is not UTF-8 among its rows.
fn last_page() -> Value {
    let mut answer = answers::of("file_activity");
    answer
        .as_object_mut()
        .expect("an object")
        .remove("next_page_token");
    answer["rows"][0]["path"] = json!({ "base64": "Y2Fm6Q==" });
    answer["rows"][0]["parents"] = json!([{ "pid": 7, "program": "/bin/sh" }]);
    answer
}

#[test]
fn a_parquet_file_has_every_field_of_every_row() {
    let answer = last_page();
    let (run, gateway) = export(answer.clone(), &["--format", "parquet"]);
    assert_eq!(run.code, 0, "{}", run.err());
    assert!(run.err().contains("dropped: 2\n"), "{}", run.err());
    let posted = gateway.take();
    assert_eq!(posted[0].json()["limit"], 1000);
    let bytes = bytes::Bytes::from(run.stdout);
    let file = SerializedFileReader::new(bytes).expect("a Parquet file");
    let rows: Vec<BTreeMap<String, Field>> = file
        .get_row_iter(None)
        .expect("rows")
        .map(|row| row.expect("a row").into_columns().into_iter().collect())
        .collect();
    assert_eq!(rows.len(), 2);
    let text = |value: &str| Field::Str(value.to_owned());
    let first = &rows[0];
    assert_eq!(first["path"], text("caf\u{fffd}"));
    assert_eq!(
        first["path_bytes"],
        Field::Bytes(b"caf\xe9".to_vec().into())
    );
    assert_eq!(first["kind"], text("read"));
    assert_eq!(first["pid"], Field::Long(4242));
    assert_eq!(first["program"], text("rustc\u{1b}"));
    assert_eq!(first["program_bytes"], Field::Null);
    assert_eq!(first["count"], Field::Long(12));
    assert_eq!(first["bytes"], Field::Long(34_567));
    let now = answer["rows"][0]["first_unix_ms"].as_i64().expect("a time");
    assert_eq!(first["first_time"], Field::TimestampMillis(now));
    assert!(format!("{:?}", first["parents"]).contains("/bin/sh"));
    let second = &rows[1];
    assert_eq!(second["path"], text(".env"));
    assert_eq!(second["path_bytes"], Field::Null);
    assert_eq!(second["pid"], Field::Null);
    assert_eq!(second["command_session_id"], Field::Null);
    let metadata = file.metadata().file_metadata();
    let noted: BTreeMap<&str, &str> = metadata
        .key_value_metadata()
        .expect("notes")
        .iter()
        .map(|pair| {
            (
                pair.key.as_str(),
                pair.value.as_deref().expect("it has a value"),
            )
        })
        .collect();
    assert_eq!(noted["sandstack.dropped"], "2");
    let gaps: Value = serde_json::from_str(noted["sandstack.gaps"]).expect("JSON");
    assert_eq!(gaps, answer["gaps"]);
    assert!(noted["sandstack.exactness"].contains("Exact for each command."));
}

#[test]
fn json_lines_for_analysis_have_every_page() {
    let (run, gateway) = export(last_page(), &["--format=jsonl"]);
    assert_eq!((run.code, run.out().lines().count()), (0, 2), "{run:?}");
    assert_eq!(gateway.take()[0].json()["limit"], 1000);
    // This gateway answers the same page for ever: the second one is asked for, and that is told.
    let (run, gateway) = export(answers::of("file_activity"), &["--format=jsonl"]);
    assert_eq!((run.code, gateway.take().len()), (1, 2), "{run:?}");
}

#[test]
fn what_fails_leaves_no_file_and_says_why() {
    let refusal = Reply::error(404, "not_found", "there is no sandbox sb-1", json!({}));
    let gateway = Gateway::start(refusal);
    let words = ["file_activity", "--sandbox-id=sb-1", "--format", "parquet"];
    let run = cli(Authority::Observability, &gateway).run(words);
    assert_eq!((run.code, run.stdout.len()), (3, 0), "{run:?}");
    assert!(run.err().contains("there is no sandbox sb-1"), "{run:?}");
    for wrong in [
        &["--format", "parquet", "--json"][..],
        &["--format", "csv"],
        &["--output", "parquet"],
    ] {
        let (run, gateway) = export(last_page(), wrong);
        assert_eq!((run.code, gateway.take().len()), (2, 0), "{run:?}");
    }
}
