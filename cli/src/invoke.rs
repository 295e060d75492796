//! One run: parse, call, answer.

use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};
use clap_complete::Shell;
use parquet::errors::ParquetError;
use sandstack_api::client::{CallError, Client};
use sandstack_api::observability::FileActivityReply;
use sandstack_api::{Authority, MAX_PAGE_ROWS, Operation, OperationName, RequestId};
use serde_json::{Map, Value};

use crate::columns::Rows;
use crate::failure::{self, Failure};
use crate::field::fields_of;
use crate::follow::follow;
use crate::format::{Format, Manners};
use crate::grammar::{self, COMPLETIONS, Detail, Flags, global};
use crate::progress::Bar;
use crate::text::{self, Answer, Style};
use crate::{Environment, Output, place, program, request, verdict};

/// Runs the CLI of `authority` and returns its exit code. `manners` follow what was parsed, for
/// whoever reports a failure.
///
/// # Errors
/// [`Failure`].
pub(crate) fn invoke(
    authority: Authority,
    environment: &mut Environment,
    manners: &mut Manners,
) -> Result<u8, Failure> {
    let args = environment.args.clone();
    let mentioned = match args.iter().any(|word| word == COMPLETIONS) {
        true => Detail::Everything,
        false => Detail::Mentioned(&args),
    };
    let command = grammar::command(authority, mentioned, manners.columns);
    let matches = match command.try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => return without_call(error, authority, environment, manners),
    };
    let Some((name, operation_matches)) = matches.subcommand() else {
        return Err(Failure::usage(format!(
            "no operation is given; `{} help` lists them",
            program(authority)
        )));
    };
    if name == COMPLETIONS {
        return completions(authority, operation_matches, environment);
    }
    let Some(operation) = OperationName::find(name) else {
        return Err(Failure::usage(format!("{name:?} is no operation")));
    };
    let flags = Flags {
        before: &matches,
        operation: operation_matches,
    };
    *manners = manners_of(operation.row(), flags, environment);
    call(operation.row(), flags, environment, manners)
}

fn manners_of(row: &Operation, flags: Flags<'_>, environment: &Environment) -> Manners {
    let named = flags
        .choice(global::OUTPUT)
        .and_then(|name| Format::named(name.as_ref()));
    let format = match (flags.switch(global::JSON), flags.switch(global::JSONL)) {
        (true, _) => Some(Format::Json),
        (_, true) => Some(Format::JsonLines),
        _ if follows(row, flags) => Some(Format::Text),
        _ => export_format(row, flags).or(named),
    };
    Manners::new(environment, format, flags.choice(global::COLOR))
}

/// Help, the version, or what is wrong with the arguments.
fn without_call(
    error: clap::Error,
    authority: Authority,
    environment: &mut Environment,
    manners: &Manners,
) -> Result<u8, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let rendered = error.render();
            let text = match manners.color {
                true => rendered.ansi().to_string(),
                false => rendered.to_string(),
            };
            write(&mut environment.stdout, text.as_bytes())?;
            Ok(0)
        }
        ErrorKind::InvalidSubcommand => Err(no_such_operation(&error, authority)),
        _ => Err(Failure::Grammar(Box::new(error))),
    }
}

/// Names the operation that was meant, or the CLI that has it.
fn no_such_operation(error: &clap::Error, authority: Authority) -> Failure {
    let name = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => name.as_str(),
        _ => "",
    };
    let row = OperationName::find(&name.replace('-', "_")).map(OperationName::row);
    if let Some(row) = row {
        return Failure::usage(format!(
            "{} is an operation of the authority `{}`, not `{authority}`; use `{} {}`",
            row.name,
            row.authority,
            program(row.authority),
            row.name
        ));
    }
    let near = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(near)) => std::slice::from_ref(near),
        Some(ContextValue::Strings(near)) => near.as_slice(),
        _ => &[],
    };
    // The nearest comes last, and may be the other spelling of a name.
    let hint = match near.last() {
        Some(near) => match OperationName::find(&near.replace('-', "_")) {
            Some(operation) => format!("did you mean {operation}?"),
            None => format!("did you mean {near}?"),
        },
        None => format!("`{} help` lists them", program(authority)),
    };
    Failure::usage(format!("there is no operation {name:?}; {hint}"))
}

fn completions(
    authority: Authority,
    matches: &ArgMatches,
    environment: &mut Environment,
) -> Result<u8, Failure> {
    let shell = match matches.get_one::<String>("shell").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut command: Command = grammar::command(authority, Detail::Everything, None);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, program(authority), &mut script);
    write(&mut environment.stdout, &script)?;
    Ok(0)
}

fn call(
    row: &'static Operation,
    flags: Flags<'_>,
    environment: &mut Environment,
    manners: &Manners,
) -> Result<u8, Failure> {
    let fields = fields_of(row);
    let mut request = request::read(row, &fields, flags, environment)?;
    let request_id = flags.choice(global::REQUEST_ID).map(RequestId::new);
    let request_id = request_id
        .transpose()
        .map_err(|error| Failure::usage(format!("--request-id: {error}")))?;
    let client = place::client(place::asked(flags), row.authority, environment)?;
    if follows(row, flags) {
        let code = follow(&client, row, request, &request_id, environment, manners);
        return Ok(code.unwrap_or_else(|failure| {
            failure::report(&failure, environment, manners);
            verdict::NO_CODE
        }));
    }
    let exported = export_format(row, flags).is_some();
    if exported {
        request
            .entry("limit")
            .or_insert_with(|| MAX_PAGE_ROWS.into());
    }
    if manners.format == Format::Parquet {
        return export(&client, row, request, &request_id, environment, manners);
    }
    let all_pages = flags.switch(global::ALL_PAGES) || exported;
    if all_pages && manners.format != Format::JsonLines {
        let told = "--all-pages needs --jsonl: several pages are no one answer";
        return Err(Failure::usage(told.to_owned()));
    }
    let mut answer = post(&client, row, &request, &request_id, environment, manners)?;
    while all_pages && turn_page(row, &mut request, &mut answer)? {
        deliver(row, &answer, environment, manners)?;
        answer = post(&client, row, &request, &request_id, environment, manners)?;
    }
    deliver(row, &answer, environment, manners)?;
    let passes_code =
        grammar::answers_a_command(row.operation) && flags.operation.get_flag(grammar::EXIT_CODE);
    Ok(verdict::exit_code(row.operation, &answer, passes_code))
}

/// Whether a command is to be followed to its end.
fn follows(row: &Operation, flags: Flags<'_>) -> bool {
    row.operation == OperationName::ExecCommand && flags.operation.get_flag(grammar::FOLLOW)
}

/// The shape in which all of a list is to be written out, if it is.
fn export_format(row: &Operation, flags: Flags<'_>) -> Option<Format> {
    let name = match row.operation {
        OperationName::FileActivity => flags.operation.get_one::<String>(grammar::FORMAT)?,
        _ => return None,
    };
    Format::named(name.as_ref())
}

/// Writes every page of `file_activity` as one Parquet file.
fn export(
    client: &Client,
    row: &Operation,
    mut request: Map<String, Value>,
    request_id: &Option<RequestId>,
    environment: &mut Environment,
    manners: &Manners,
) -> Result<u8, Failure> {
    if environment.stdout.terminal.is_some() {
        let told = "a Parquet file is nothing for a terminal; send it to a file: `… --format parquet > FILE`";
        return Err(Failure::usage(told.to_owned()));
    }
    let mut answer = post(client, row, &request, request_id, environment, manners)?;
    // Nothing is written before the first answer: what is wrong with the request is told alone.
    let sink = std::mem::replace(&mut environment.stdout.sink, Box::new(std::io::sink()));
    let mut rows = Rows::begin(sink).map_err(not_written)?;
    loop {
        let more = turn_page(row, &mut request, &mut answer)?;
        let mut page: FileActivityReply = serde_json::from_value(answer).map_err(|error| {
            Failure::Call(CallError::Broken {
                operation: row.operation,
                reason: error.to_string(),
            })
        })?;
        rows.push(std::mem::take(&mut page.rows))
            .map_err(not_written)?;
        if !more {
            rows.finish(&page).map_err(not_written)?;
            let said = serde_json::to_value(&page).unwrap_or_default();
            tell(text::json_lines(row.operation, &said).notes, environment);
            return Ok(verdict::exit_code(row.operation, &said, false));
        }
        answer = post(client, row, &request, request_id, environment, manners)?;
    }
}

/// Why a Parquet file could not be written: most often what the stream that takes it says.
fn not_written(error: ParquetError) -> Failure {
    let error = match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(source) => std::io::Error::other(source),
        },
        other => std::io::Error::other(other),
    };
    Failure::Write(error)
}

/// Makes `request` ask for the page after `answer`; whether there is one.
fn turn_page(
    row: &Operation,
    request: &mut Map<String, Value>,
    answer: &mut Value,
) -> Result<bool, Failure> {
    let next = answer
        .as_object_mut()
        .and_then(|answer| answer.remove("next_page_token"));
    let Some(next) = next else { return Ok(false) };
    if request.insert("page_token".to_owned(), next.clone()) == Some(next) {
        let told = "the gateway answers the same page again and again";
        return Err(Failure::Call(CallError::Broken {
            operation: row.operation,
            reason: told.to_owned(),
        }));
    }
    Ok(true)
}

fn post(
    client: &Client,
    row: &Operation,
    request: &Map<String, Value>,
    request_id: &Option<RequestId>,
    environment: &mut Environment,
    manners: &Manners,
) -> Result<Value, Failure> {
    // One connection, one request: a thread pool would cost more than the call.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(Failure::Start)?;
    let body = Value::Object(request.clone());
    let id = request_id.as_ref();
    let bar_terminal = environment
        .stderr
        .terminal
        .filter(|_| row.streams_progress && environment.variables.capable_terminal());
    let answer = match bar_terminal {
        None => runtime.block_on(client.call_json(row.operation, &body, id, None)),
        Some(terminal) => {
            let sink = environment.stderr.sink.as_mut();
            let mut bar = Bar::new(sink, terminal.columns, manners.stderr_color);
            let mut on_progress = |progress: Value| bar.update(&progress);
            let answer = runtime.block_on(client.call_json(
                row.operation,
                &body,
                id,
                Some(&mut on_progress),
            ));
            bar.clear();
            answer
        }
    };
    answer.map_err(Failure::Call)
}

/// Writes the answer to stdout, and what people should know of it to stderr.
fn deliver(
    row: &Operation,
    answer: &Value,
    environment: &mut Environment,
    manners: &Manners,
) -> Result<(), Failure> {
    let Answer { data, notes } = match manners.format {
        Format::Json if environment.stdout.terminal.is_some() => {
            Answer::data(format!("{answer:#}\n"))
        }
        Format::Json | Format::Parquet => Answer::data(format!("{answer}\n")),
        Format::JsonLines => text::json_lines(row.operation, answer),
        Format::Text => {
            let style = Style {
                color: manners.color,
                columns: manners.columns,
            };
            text::render(row.operation, answer, &style)
        }
    };
    write(&mut environment.stdout, &data)?;
    tell(notes, environment);
    Ok(())
}

fn tell(notes: Vec<Vec<u8>>, environment: &mut Environment) {
    for note in notes {
        // A note that nobody can read is no failure of the call.
        let _ = environment.stderr.sink.write_all(&note);
    }
}

fn write(output: &mut Output, bytes: &[u8]) -> Result<(), Failure> {
    output
        .sink
        .write_all(bytes)
        .and_then(|()| output.sink.flush())
        .map_err(Failure::Write)
}
