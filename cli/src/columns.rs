//! Rows of `file_activity` as a Parquet file, for DuckDB, pandas and the like.
//!
//! One flat row an access. A path or a program that is not UTF-8 has `U+FFFD` where it is not, and its
//! bytes in a column of its own, which is null otherwise. What the answer says besides its rows (how
//! exact the record is, gaps, the time) is in the file's key-value metadata, as JSON: it is written with
//! the file's end, and a file without an end is none.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use sandstack_api::Blob;
use sandstack_api::observability::{Activity, FileActivityReply};

/// Rows that are kept until they are written together: some 20 MB.
const GROUP_ROWS: usize = 50_000;

/// What a column takes of a row; a null is `None`.
enum Column {
    /// UTF-8.
    Text(fn(&Activity) -> Option<String>),
    /// A JSON document.
    Json(fn(&Activity) -> Option<String>),
    Bytes(fn(&Activity) -> Option<&Blob>),
    Number(fn(&Activity) -> Option<u64>),
    /// Unix milliseconds.
    Time(fn(&Activity) -> u64),
}

use Column::{Bytes, Json, Number, Text, Time};

const COLUMNS: [(&str, Column); 17] = [
    ("path", Text(|row| Some(lossy(&row.path)))),
    ("path_bytes", Bytes(|row| not_text(&row.path))),
    ("kind", Text(|row| name(&row.kind))),
    (
        "workspace_session_id",
        Text(|row| Some(row.workspace_session_id.to_string())),
    ),
    (
        "command_session_id",
        Text(|row| row.command_session_id.as_ref().map(ToString::to_string)),
    ),
    ("pid", Number(|row| row.pid.map(u64::from))),
    ("program", Text(|row| row.program.as_ref().map(lossy))),
    (
        "program_bytes",
        Bytes(|row| row.program.as_ref().and_then(not_text)),
    ),
    ("argv0", Text(|row| row.argv0.as_ref().map(lossy))),
    (
        "argv0_bytes",
        Bytes(|row| row.argv0.as_ref().and_then(not_text)),
    ),
    (
        "parents",
        Json(|row| serde_json::to_string(&row.parents).ok()),
    ),
    ("digest", Text(|row| row.digest.clone())),
    ("offset", Number(|row| row.offset)),
    ("count", Number(|row| Some(row.count))),
    ("bytes", Number(|row| Some(row.bytes))),
    ("first_time", Time(|row| row.first_unix_ms)),
    ("last_time", Time(|row| row.last_unix_ms)),
];

fn lossy(blob: &Blob) -> String {
    String::from_utf8_lossy(&blob.0).into_owned()
}

fn not_text(blob: &Blob) -> Option<&Blob> {
    std::str::from_utf8(&blob.0).is_err().then_some(blob)
}

fn name(value: &impl serde::Serialize) -> Option<String> {
    let value = serde_json::to_value(value).ok()?;
    value.as_str().map(str::to_owned)
}

/// Writes a Parquet file as its rows come.
pub(crate) struct Rows<W: Write + Send> {
    file: SerializedFileWriter<W>,
    waiting: Vec<Activity>,
}

impl<W: Write + Send> Rows<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn begin(out: W) -> Result<Rows<W>> {
        let properties = WriterProperties::builder()
            .set_created_by(concat!("sandstack ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        Ok(Rows {
            file: SerializedFileWriter::new(out, schema()?, Arc::new(properties))?,
            waiting: Vec::new(),
        })
    }

    /// # Errors
    /// It cannot be written.
    pub(crate) fn push(&mut self, rows: Vec<Activity>) -> Result<()> {
        self.waiting.extend(rows);
        match self.waiting.len() >= GROUP_ROWS {
            true => self.write(),
            false => Ok(()),
        }
    }

    /// Ends the file. `said`: the last answer, whose rows are in.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn finish(mut self, said: &FileActivityReply) -> Result<()> {
        if !self.waiting.is_empty() {
            self.write()?;
        }
        let mut note = |key: &str, value: serde_json::Value| {
            let pair = KeyValue::new(format!("sandstack.{key}"), value.to_string());
            self.file.append_key_value_metadata(pair);
        };
        note("exactness", serde_json::json!(said.exactness));
        note("dropped", said.dropped.into());
        note("gaps", serde_json::json!(said.gaps));
        note("errors", serde_json::json!(said.errors));
        note("sampled_at_unix_ms", said.sampled_at_unix_ms.into());
        self.file.close().map(|_| ())
    }

    fn write(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.waiting);
        let mut group = self.file.next_row_group()?;
        for (_, column) in &COLUMNS {
            match column {
                Text(of) | Json(of) => fill::<ByteArrayType, _>(&mut group, &rows, |row| {
                    of(row).map(|text| ByteArray::from(text.into_bytes()))
                })?,
                Bytes(of) => fill::<ByteArrayType, _>(&mut group, &rows, |row| {
                    of(row).map(|blob| ByteArray::from(blob.0.clone()))
                })?,
                Number(of) => {
                    fill::<Int64Type, _>(&mut group, &rows, |row| of(row).map(u64::cast_signed))?
                }
                Time(of) => {
                    fill::<Int64Type, _>(&mut group, &rows, |row| Some(of(row).cast_signed()))?
                }
            }
        }
        group.close().map(|_| ())
    }
}

/// Writes the next column of a group.
fn fill<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[Activity],
    value: impl Fn(&Activity) -> Option<T::T>,
) -> Result<()> {
    let values: Vec<Option<T::T>> = rows.iter().map(value).collect();
    let there: Vec<i16> = values
        .iter()
        .map(|value| i16::from(value.is_some()))
        .collect();
    let values: Vec<T::T> = values.into_iter().flatten().collect();
    let Some(mut column) = group.next_column()? else {
        return Err(parquet::errors::ParquetError::General(
            "the schema has too few columns".to_owned(),
        ));
    };
    column
        .typed::<T>()
        .write_batch(&values, Some(&there), None)?;
    column.close()
}

fn schema() -> Result<TypePtr> {
    let fields: Result<Vec<TypePtr>> = COLUMNS
        .iter()
        .map(|(name, column)| {
            let (physical, logical) = match column {
                Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Json(_) => (Physical::BYTE_ARRAY, Some(LogicalType::Json)),
                Bytes(_) => (Physical::BYTE_ARRAY, None),
                Number(_) => (Physical::INT64, None),
                Time(_) => (
                    Physical::INT64,
                    Some(LogicalType::timestamp(true, TimeUnit::MILLIS)),
                ),
            };
            let field = Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(logical)
                .build()?;
            Ok(Arc::new(field))
        })
        .collect();
    Ok(Arc::new(
        Type::group_type_builder("file_activity")
            .with_fields(fields?)
            .build()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use sandstack_api::SessionId;
    use sandstack_api::observability::AccessKind;
    use serde_json::json;

    use super::*;

    fn row(number: u64) -> Activity {
        Activity {
            path: Blob(format!("dir/file-{number}").into_bytes()),
            kind: AccessKind::Open,
            workspace_session_id: SessionId::new("ws-1").unwrap(),
            command_session_id: None,
            pid: (!number.is_multiple_of(3)).then_some(number as u32),
            program: None,
            argv0: None,
            parents: Vec::new(),
            digest: None,
            offset: None,
            count: number,
            bytes: 0,
            first_unix_ms: 1,
            last_unix_ms: 2,
        }
    }

    #[test]
    fn many_rows_are_several_groups() {
        let mut written = Vec::new();
        let mut rows = Rows::begin(&mut written).unwrap();
        let count = 2 * GROUP_ROWS as u64 + 7;
        for first in (0..count).step_by(1000) {
            rows.push((first..count.min(first + 1000)).map(row).collect())
                .unwrap();
        }
        let said = json!({ "rows": [], "exactness": [], "dropped": 0, "gaps": [],
            "sampled_at_unix_ms": 1, "errors": [] });
        rows.finish(&serde_json::from_value(said).unwrap()).unwrap();
        let file = SerializedFileReader::new(bytes::Bytes::from(written)).unwrap();
        assert_eq!(file.metadata().num_row_groups(), 3);
        let mut seen = 0;
        for (number, row) in (0u64..).zip(file.get_row_iter(None).unwrap()) {
            let row: BTreeMap<String, Field> = row.unwrap().into_columns().into_iter().collect();
            let pid = match number.is_multiple_of(3) {
                true => Field::Null,
                false => Field::Long(number.cast_signed()),
            };
            let count = Field::Long(number.cast_signed());
            assert_eq!((&row["count"], &row["pid"]), (&count, &pid));
            assert_eq!(row["path"], Field::Str(format!("dir/file-{number}")));
            seen += 1;
        }
        assert_eq!(seen, count);
    }
}
