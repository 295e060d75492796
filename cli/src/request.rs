//! argv to a request: what the flags and positional arguments say, as the JSON that is posted.
//!
//! It checks what the command line can know (numbers, bounds, closed sets, ids, well-formed JSON)
//! and leaves the rest to the gateway, which is the authority.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::ArgMatches;
use sandstack_api::{Blob, Encoding, MAX_BODY_BYTES, Operation, OperationName, SandboxId, Text};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::field::{Field, Shape};
use crate::grammar::{self, Flags, global};
use crate::spell::quoted;
use crate::{Environment, help, program};

/// Fields whose value `-` stands for what standard input holds: those that carry text of any
/// length, for which an argument can be too short.
pub(crate) const STDIN_FIELDS: [&str; 3] = ["cmd", "stdin", "content"];

/// Reads the request of `row` from what clap found.
///
/// # Errors
/// [`Failure::Usage`] naming the argument; [`Failure::Stdin`] and [`Failure::StdinTooLarge`] from a
/// `-`.
pub(crate) fn read(
    row: &Operation,
    fields: &[Field],
    flags: Flags<'_>,
    environment: &mut Environment,
) -> Result<Map<String, Value>, Failure> {
    let mut reader = Reader {
        row,
        environment,
        stdin_taken: None,
        request: Map::new(),
    };
    let matches = flags.operation;
    for field in fields {
        reader.read_flag(field, matches)?;
    }
    reader.read_positions(fields, flags)?;
    if row.operation == OperationName::ExecCommand {
        reader.read_words(matches)?;
    }
    if row.operation == OperationName::FileEdit {
        reader.read_edits(matches);
    }
    reader.read_sandbox(fields, flags)?;
    reader.require(fields)?;
    Ok(reader.request)
}

struct Reader<'a> {
    row: &'a Operation,
    environment: &'a mut Environment,
    /// The argument that standard input went to.
    stdin_taken: Option<String>,
    request: Map<String, Value>,
}

impl Reader<'_> {
    fn read_flag(&mut self, field: &Field, matches: &ArgMatches) -> Result<(), Failure> {
        if field.name == "sandbox_id" {
            // It may stand before the operation too, and in the environment.
            return Ok(());
        }
        let label = format!("--{}", field.flag());
        match &field.shape {
            Shape::List(item) => {
                let mut list = Vec::new();
                for value in all(matches, &field.name, item) {
                    list.push(value_of(item, &value).map_err(|why| wrong(&label, &value, &why))?);
                }
                if !list.is_empty() {
                    self.request.insert(field.name.clone(), list.into());
                }
            }
            Shape::Map(item) => {
                let mut map = Map::new();
                for value in all(matches, &field.name, item) {
                    let entries = entries_of(item, &value);
                    map.append(&mut entries.map_err(|why| wrong(&label, &value, &why))?);
                }
                if !map.is_empty() {
                    self.request.insert(field.name.clone(), map.into());
                }
            }
            Shape::Group(members) => self.read_group(field, members, matches)?,
            shape => {
                if let Some(value) = one(matches, &field.name, shape) {
                    self.set(field, &label, value)?;
                }
            }
        }
        Ok(())
    }

    fn read_group(
        &mut self,
        field: &Field,
        members: &[Field],
        matches: &ArgMatches,
    ) -> Result<(), Failure> {
        let mut group = Map::new();
        let mut given = false;
        if let Some(text) = one(matches, &field.name, &field.shape) {
            let label = format!("--{}", field.flag());
            let value = value_of(&Shape::Json, &text).map_err(|why| wrong(&label, &text, &why))?;
            let Value::Object(object) = value else {
                return Err(wrong(&label, &text, "is no JSON object"));
            };
            group = object;
            given = true;
        }
        for member in members {
            let id = format!("{}.{}", field.name, member.name);
            if let Some(text) = one(matches, &id, &member.shape) {
                let label = format!("--{}", member.flag());
                let value = value_of(&member.shape, &text);
                let value = value.map_err(|why| wrong(&label, &text, &why))?;
                group.insert(member.name.clone(), value);
                given = true;
            }
        }
        if given {
            self.request.insert(field.name.clone(), group.into());
        }
        Ok(())
    }

    /// Gives each positional argument, in order, to the next positional field that no flag has set.
    fn read_positions(&mut self, fields: &[Field], flags: Flags<'_>) -> Result<(), Failure> {
        let positional: Vec<&Field> = fields
            .iter()
            .filter(|field| field.position.is_some())
            .collect();
        let values = (0..positional.len()).filter_map(|position| {
            flags
                .operation
                .get_one::<OsString>(&grammar::position_id(position))
                .cloned()
        });
        let mut open = positional.iter().filter(|field| {
            let by_flag = match field.name.as_str() {
                "sandbox_id" => flags.value(global::SANDBOX_ID).is_some(),
                name => flags.operation.contains_id(name),
            };
            !by_flag
        });
        for value in values {
            let Some(field) = open.next() else {
                return Err(Failure::usage(format!(
                    "unexpected argument {}: every positional field of {} is set by a flag",
                    quoted(&value).display(),
                    self.row.name
                )));
            };
            let label = format!("<{}>", field.name.to_uppercase());
            self.set(field, &label, value)?;
        }
        Ok(())
    }

    fn read_words(&mut self, matches: &ArgMatches) -> Result<(), Failure> {
        let Some(words) = matches.get_many::<OsString>(grammar::WORDS) else {
            return Ok(());
        };
        if self.request.contains_key("cmd") {
            return Err(Failure::usage(
                "the command is given twice: as <CMD> and as words behind `--`".to_owned(),
            ));
        }
        let line = crate::spell::shell_line(words);
        self.request
            .insert("cmd".to_owned(), bytes_value(line.into_vec()));
        Ok(())
    }

    fn read_edits(&mut self, matches: &ArgMatches) {
        let Some(pairs) = matches.get_occurrences::<OsString>(grammar::EDIT) else {
            return;
        };
        let replace_all = matches.get_flag(grammar::REPLACE_ALL);
        let edits: Vec<Value> = pairs
            .map(|mut pair| {
                let mut next = || bytes_value(pair.next().cloned().unwrap_or_default().into_vec());
                let mut edit = json!({ "old_string": next(), "new_string": next() });
                if replace_all {
                    edit["replace_all"] = true.into();
                }
                edit
            })
            .collect();
        self.request.insert("edits".to_owned(), edits.into());
    }

    fn read_sandbox(&mut self, fields: &[Field], flags: Flags<'_>) -> Result<(), Failure> {
        let Some(field) = fields.iter().find(|field| field.name == "sandbox_id") else {
            return Ok(());
        };
        if self.request.contains_key("sandbox_id") {
            return Ok(());
        }
        if let Some(value) = flags.value(global::SANDBOX_ID) {
            self.set(field, global::SANDBOX_ID, value)
        } else if let Some(value) = self.environment.variables.sandbox_id.clone() {
            self.set(field, "$SANDBOX_ID", value)
        } else {
            Ok(())
        }
    }

    fn require(&self, fields: &[Field]) -> Result<(), Failure> {
        let missing: Vec<String> = fields
            .iter()
            .filter(|field| field.required && !self.request.contains_key(&field.name))
            .map(|field| match (field.name.as_str(), field.position) {
                ("sandbox_id", None) => "--sandbox-id (or $SANDBOX_ID)".to_owned(),
                ("sandbox_id", Some(_)) => "<SANDBOX_ID>".to_owned(),
                ("edits", None) => "--edit OLD NEW (or --edits)".to_owned(),
                (name, Some(_)) => format!("<{}>", name.to_uppercase()),
                (_, None) => format!("--{}", field.flag()),
            })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} needs {}; see `{} help {}`",
            self.row.name,
            missing.join(" and "),
            program(self.row.authority),
            self.row.name
        )))
    }

    fn set(&mut self, field: &Field, label: &str, value: OsString) -> Result<(), Failure> {
        let value = match value == "-" && STDIN_FIELDS.contains(&field.name.as_str()) {
            true => OsString::from_vec(self.read_stdin(label)?),
            false => value,
        };
        if matches!(field.shape, Shape::Content) {
            return self.set_content(label, value);
        }
        let json = value_of(&field.shape, &value).map_err(|why| wrong(label, &value, &why))?;
        self.request.insert(field.name.clone(), json);
        Ok(())
    }

    /// Content that is not UTF-8 goes as base64, unless the caller says how it is written.
    fn set_content(&mut self, label: &str, value: OsString) -> Result<(), Failure> {
        let text = Text::new(value.into_vec());
        match (text.encoding, self.request.contains_key("encoding")) {
            (Encoding::Utf8, _) => {}
            (Encoding::Base64, false) => {
                self.request.insert("encoding".to_owned(), json!("base64"));
            }
            (Encoding::Base64, true) => {
                return Err(Failure::usage(format!(
                    "{label} is not UTF-8; leave --encoding out, and it is sent as base64"
                )));
            }
        }
        self.request
            .insert("content".to_owned(), text.content.into());
        Ok(())
    }

    fn read_stdin(&mut self, label: &str) -> Result<Vec<u8>, Failure> {
        if let Some(other) = &self.stdin_taken {
            return Err(Failure::usage(format!(
                "{other} and {label} both read standard input; only one of them can"
            )));
        }
        self.stdin_taken = Some(label.to_owned());
        let limit = MAX_BODY_BYTES as u64;
        let mut bytes = Vec::new();
        let mut bounded = (&mut self.environment.stdin).take(limit + 1);
        bounded.read_to_end(&mut bytes).map_err(Failure::Stdin)?;
        match bytes.len() > MAX_BODY_BYTES {
            true => Err(Failure::StdinTooLarge),
            false => Ok(bytes),
        }
    }
}

/// The value of a flag. Closed sets are strings, since clap checks them; all else is bytes.
fn one(matches: &ArgMatches, id: &str, shape: &Shape) -> Option<OsString> {
    match shape {
        Shape::Switch | Shape::Choice(_) => matches.get_one::<String>(id).map(OsString::from),
        _ => matches.get_one::<OsString>(id).cloned(),
    }
}

/// Every value of a flag that may be repeated.
fn all(matches: &ArgMatches, id: &str, shape: &Shape) -> Vec<OsString> {
    match shape {
        Shape::Choice(_) => matches
            .get_many::<String>(id)
            .map(|values| values.map(OsString::from).collect()),
        _ => matches
            .get_many::<OsString>(id)
            .map(|values| values.cloned().collect()),
    }
    .unwrap_or_default()
}

/// Reads one word as a value of `shape`.
fn value_of(shape: &Shape, word: &OsStr) -> Result<Value, String> {
    if matches!(shape, Shape::Bytes) {
        return Ok(bytes_value(word.as_bytes().to_vec()));
    }
    let text = word.to_str().ok_or("is not UTF-8")?;
    match shape {
        Shape::Switch => Ok((text == "true").into()),
        Shape::Integer { min, max } => {
            let number: i128 = text.parse().map_err(|_| "is no whole number")?;
            if number < *min || number > *max {
                let range = help::range_of(shape).unwrap_or_else(|| format!("{min} to {max}"));
                return Err(format!("is out of range: {range}"));
            }
            // The bounds are those of 64-bit types.
            match u64::try_from(number) {
                Ok(number) => Ok(number.into()),
                Err(_) => Ok((number as i64).into()),
            }
        }
        Shape::Number => {
            let number: f64 = text.parse().map_err(|_| "is no number")?;
            serde_json::Number::from_f64(number)
                .map(Value::Number)
                .ok_or_else(|| "is no finite number".to_owned())
        }
        Shape::Id => match SandboxId::new(text) {
            // All kinds of ids have one alphabet.
            Ok(_) => Ok(text.into()),
            Err(_) => Err("is no valid id: 1 to 128 of A-Z a-z 0-9 . _ : -".to_owned()),
        },
        Shape::Json | Shape::Group(_) => {
            serde_json::from_str(text).map_err(|error| format!("is no valid JSON: {error}"))
        }
        Shape::Bytes
        | Shape::Text
        | Shape::Content
        | Shape::Choice(_)
        | Shape::List(_)
        | Shape::Map(_) => Ok(text.into()),
    }
}

/// Reads `KEY=VALUE`, or a whole JSON object, for keys that hold a `=`.
fn entries_of(item: &Shape, word: &OsStr) -> Result<Map<String, Value>, String> {
    if let Ok(object) = serde_json::from_slice(word.as_bytes()) {
        return Ok(object);
    }
    let bytes = word.as_bytes();
    let cut = bytes
        .iter()
        .position(|byte| *byte == b'=')
        .ok_or("is not of the form KEY=VALUE")?;
    let key = str::from_utf8(&bytes[..cut]).map_err(|_| "has a key that is not UTF-8")?;
    let value = value_of(item, OsStr::from_bytes(&bytes[cut + 1..]))?;
    Ok(Map::from_iter([(key.to_owned(), value)]))
}

/// Bytes as a [`Blob`] in JSON.
fn bytes_value(bytes: Vec<u8>) -> Value {
    match String::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(error) => {
            let text = Text::base64(error.as_bytes());
            json!({ "base64": text.content })
        }
    }
}

fn wrong(label: &str, value: &OsStr, why: &str) -> Failure {
    // A value can be a whole file; the message only has to say which it was.
    let shown = Blob::from(value.as_bytes()[..value.len().min(80)].to_vec());
    Failure::usage(format!("{label}: {:?} {why}", shown.display()))
}
