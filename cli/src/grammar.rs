//! The command line as clap sees it, generated from the catalogue.
//!
//! A call needs the arguments of one operation only, and to make the schemas and arguments of all
//! would about double what a run costs (1.4 ms of processor time). So only operations that the
//! command line mentions get their arguments; the others are names, for the list and for
//! suggestions.

use std::ffi::OsString;

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use sandstack_api::runtime::CommandReply;
use sandstack_api::{Authority, OPERATIONS, Operation, OperationName};

use crate::field::{Field, Shape, fields_of};
use crate::format::{COLORS, EXPORTS, FORMATS};
use crate::{help, program};

/// The subcommand that writes a shell's completion script.
pub(crate) const COMPLETIONS: &str = "completions";
/// The shells that have one.
pub(crate) const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
/// Id of the words behind `--` of `exec_command`.
pub(crate) const WORDS: &str = "--";
/// Id of the pairs of `file_edit`.
pub(crate) const EDIT: &str = "--edit";
/// Id of the switch that makes every pair of `file_edit` replace all it finds.
pub(crate) const REPLACE_ALL: &str = "--replace-all";
/// Id of the shape in which `file_activity` writes out all it knows.
pub(crate) const FORMAT: &str = "--format";
/// Id of the switch that passes a command's own exit code through.
pub(crate) const EXIT_CODE: &str = "--exit-code";

/// Id of the switch that follows a command to its end.
pub(crate) const FOLLOW: &str = "--follow";

/// Ids of the flags that every operation takes. Fields have their own names as ids, which never
/// begin with a dash.
pub(crate) mod global {
    pub(crate) const SANDBOX_ID: &str = "--sandbox-id";
    pub(crate) const SOCKET: &str = "--socket";
    pub(crate) const TOKEN_FILE: &str = "--token-file";
    pub(crate) const STATE_DIR: &str = "--state-dir";
    pub(crate) const REQUEST_ID: &str = "--request-id";
    pub(crate) const OUTPUT: &str = "--output";
    pub(crate) const JSON: &str = "--json";
    pub(crate) const JSONL: &str = "--jsonl";
    pub(crate) const ALL_PAGES: &str = "--all-pages";
    pub(crate) const COLOR: &str = "--color";
}

/// What clap found: the flags of every operation may stand before its name and behind it.
#[derive(Clone, Copy)]
pub(crate) struct Flags<'a> {
    /// Before the operation's name.
    pub(crate) before: &'a ArgMatches,
    /// Behind it; its own flags are only here.
    pub(crate) operation: &'a ArgMatches,
}

impl<'a> Flags<'a> {
    /// A value of a flag of every operation; behind the name it wins.
    pub(crate) fn value(self, id: &str) -> Option<OsString> {
        let behind = self.operation.get_one::<OsString>(id);
        behind.or(self.before.get_one::<OsString>(id)).cloned()
    }

    /// A value out of a closed set.
    pub(crate) fn choice(self, id: &str) -> Option<&'a str> {
        let behind = self.operation.get_one::<String>(id);
        behind
            .or(self.before.get_one::<String>(id))
            .map(String::as_str)
    }

    /// Whether a switch of every operation is on.
    pub(crate) fn switch(self, id: &str) -> bool {
        self.operation.get_flag(id) || self.before.get_flag(id)
    }
}

/// Which operations get their arguments.
#[derive(Clone, Copy)]
pub(crate) enum Detail<'a> {
    /// Those whose name is among these words.
    Mentioned(&'a [OsString]),
    /// All of them.
    Everything,
}

/// Widest help, in characters: longer lines are hard to read.
const MAX_COLUMNS: u16 = 100;

/// The rows of `authority`.
pub(crate) fn rows(authority: Authority) -> impl Iterator<Item = &'static Operation> {
    OPERATIONS
        .iter()
        .filter(move |row| row.authority == authority)
}

/// The other spelling of an operation's name: `create-sandbox`.
pub(crate) fn kebab(name: &str) -> String {
    name.replace('_', "-")
}

/// Whether the answer of `operation` carries the exit code of a command.
pub(crate) fn answers_a_command(operation: OperationName) -> bool {
    use sandstack_api::Call;
    fn answer_of<C: Call<Response = CommandReply>>() -> OperationName {
        C::OPERATION
    }
    [
        answer_of::<sandstack_api::runtime::ExecCommand>(),
        answer_of::<sandstack_api::runtime::WriteCommandStdin>(),
    ]
    .contains(&operation)
}

/// The whole command line of `authority`'s CLI.
pub(crate) fn command(authority: Authority, detail: Detail<'_>, columns: Option<u16>) -> Command {
    let mut command = Command::new(program(authority))
        .version(env!("CARGO_PKG_VERSION"))
        .about(help::about(authority))
        .after_help(help::AFTER)
        .term_width(columns.unwrap_or(MAX_COLUMNS).min(MAX_COLUMNS).into())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand_value_name("OPERATION")
        .subcommand_help_heading("Operations")
        .args(global_args());
    let explained = matches!(detail, Detail::Everything);
    for row in rows(authority) {
        let mentioned = match detail {
            Detail::Everything => true,
            Detail::Mentioned(words) => words
                .iter()
                .filter_map(|word| word.to_str())
                .any(|word| word == row.name || word == kebab(row.name)),
        };
        let mut subcommand = Command::new(row.name).about(row.title);
        if row.name.contains('_') {
            subcommand = subcommand.alias(kebab(row.name));
        }
        if mentioned {
            subcommand = with_arguments(subcommand, row, explained);
        }
        command = command.subcommand(subcommand);
    }
    command.subcommand(
        Command::new(COMPLETIONS)
            .about("Write a completion script for a shell")
            .arg(
                Arg::new("shell")
                    .value_name("SHELL")
                    .required(true)
                    .value_parser(PossibleValuesParser::new(SHELLS)),
            ),
    )
}

fn global_args() -> [Arg; 10] {
    let arg = |id: &'static str, help: &'static str| {
        Arg::new(id)
            .long(&id[2..])
            .help(help)
            .help_heading("For every operation")
    };
    let path = |id: &'static str, help: &'static str| {
        arg(id, help)
            .value_name("PATH")
            .value_parser(ValueParser::os_string())
    };
    [
        arg(global::SANDBOX_ID, "The sandbox; else $SANDBOX_ID")
            .value_name("ID")
            .value_parser(ValueParser::os_string()),
        path(
            global::SOCKET,
            "The gateway's socket; else $SANDBOX_GATEWAY_SOCKET, else gateway.sock in the state directory",
        ),
        path(
            global::TOKEN_FILE,
            "File of the token; else $SANDBOX_GATEWAY_TOKEN_FILE, else the state directory's own",
        ),
        path(
            global::STATE_DIR,
            "The gateway's state directory; else $SANDSTACK_STATE_DIR, else /var/lib/sandstack for root and $XDG_STATE_HOME/sandstack for others",
        ),
        arg(
            global::REQUEST_ID,
            "Names the request in traces; a repeat of it replays the first answer",
        )
        .value_name("ID"),
        arg(
            global::OUTPUT,
            "Shape of the answer; text on a terminal, else json",
        )
        .value_name("FORMAT")
        .value_parser(PossibleValuesParser::new(FORMATS)),
        arg(global::JSON, "Answer one JSON object: --output json")
            .action(ArgAction::SetTrue)
            .conflicts_with(global::OUTPUT),
        arg(
            global::JSONL,
            "Answer a list as one row a line: --output jsonl",
        )
        .action(ArgAction::SetTrue)
        .conflicts_with_all([global::OUTPUT, global::JSON]),
        arg(
            global::ALL_PAGES,
            "With json lines: every page of a list, and not only the first",
        )
        .action(ArgAction::SetTrue),
        arg(global::COLOR, "Colours in text; auto, on a terminal")
            .value_name("WHEN")
            .value_parser(PossibleValuesParser::new(COLORS)),
    ]
}

/// Gives `command` the arguments of `row`.
///
/// The flags of every operation may stand behind its name too; in its help they would bury its own,
/// so they are shown there only if `explained`, as completions want them.
fn with_arguments(command: Command, row: &'static Operation, explained: bool) -> Command {
    let fields = fields_of(row);
    let description = row.description();
    let mut command = command
        .about(help::first_paragraph(&description))
        .long_about(help::without_example(&description))
        .after_help(help::after(row, &fields, &description))
        .override_usage(help::usage(row, &fields));
    for field in &fields {
        if let Some(position) = field.position {
            command = command.arg(positional_of(field, position));
        }
    }
    if row.operation == OperationName::ExecCommand {
        command = command.arg(
            Arg::new(WORDS)
                .value_name("WORD")
                .index(2)
                .last(true)
                .num_args(1..)
                .value_parser(ValueParser::os_string())
                .help("The command as words, instead of as a command line; they are quoted and joined"),
        );
    }
    command = command.next_help_heading("Fields");
    if row.operation == OperationName::ExecCommand {
        command = command.arg(
            Arg::new(FOLLOW)
                .long(&FOLLOW[2..])
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["yield_time_ms", global::OUTPUT, global::JSON, global::JSONL])
                .help("Run it as if it were here: output as it comes, input and signals from here, a terminal if this is one, and its exit code (125: it could not be followed)"),
        );
    }
    for field in &fields {
        command = command.args(flags_of(field));
    }
    if row.operation == OperationName::FileEdit {
        command = command.args(edit_args());
    }
    if row.operation == OperationName::FileActivity {
        command = command.arg(
            Arg::new(FORMAT)
                .long(&FORMAT[2..])
                .value_name("FORMAT")
                .value_parser(PossibleValuesParser::new(EXPORTS))
                .conflicts_with_all([global::OUTPUT, global::JSON, global::JSONL])
                .help("Every page, for analysis: as JSON lines, or as a Parquet file (for DuckDB, pandas)"),
        );
    }
    if answers_a_command(row.operation) {
        command = command.arg(
            Arg::new(EXIT_CODE)
                .long(&EXIT_CODE[2..])
                .action(ArgAction::SetTrue)
                .help("Exit as the command did: 128+n for signal n, 124 for its timeout, 125 while it has no code"),
        );
    }
    let has_sandbox = fields.iter().any(|field| field.name == "sandbox_id");
    command.args(
        global_args()
            .into_iter()
            .filter(|arg| arg.get_id() != global::SANDBOX_ID || !has_sandbox)
            .map(|arg| arg.hide(!explained)),
    )
}

/// Id of the positional argument at `position`. What it holds is decided after the flags are known.
pub(crate) fn position_id(position: usize) -> String {
    format!("-{position}")
}

fn positional_of(field: &Field, position: usize) -> Arg {
    Arg::new(position_id(position))
        .index(position + 1)
        .value_name(field.name.to_uppercase())
        .value_parser(ValueParser::os_string())
        .help(help::of_positional(field))
}

/// The flags that set `field`.
fn flags_of(field: &Field) -> Vec<Arg> {
    let id = match field.name.as_str() {
        "sandbox_id" => global::SANDBOX_ID.to_owned(),
        name => name.to_owned(),
    };
    let arg = Arg::new(id)
        .long(field.flag())
        .value_name(help::value_name(field))
        .help(help::of_flag(field))
        // The positional argument explains itself and names the flag.
        .hide(field.position.is_some());
    match &field.shape {
        Shape::Group(members) => {
            let mut flags = vec![valued(arg, &field.shape)];
            flags.extend(members.iter().map(|member| {
                let id = format!("{}.{}", field.name, member.name);
                let arg = Arg::new(id)
                    .long(member.flag())
                    .value_name(help::value_name(member))
                    .help(help::of_flag(member));
                valued(arg, &member.shape)
            }));
            flags
        }
        shape => vec![valued(arg, shape)],
    }
}

fn valued(arg: Arg, shape: &Shape) -> Arg {
    match shape {
        Shape::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .hide_possible_values(true)
            .value_parser(PossibleValuesParser::new(["true", "false"])),
        Shape::Choice(choices) => {
            arg.value_parser(PossibleValuesParser::new(choices.iter().map(|choice| {
                PossibleValue::new(choice.name.clone()).help(choice.description.clone())
            })))
        }
        Shape::List(item) => valued(arg, item).action(ArgAction::Append),
        Shape::Map(_) => arg
            .action(ArgAction::Append)
            .value_parser(ValueParser::os_string())
            .allow_hyphen_values(true),
        // Text may begin with a dash, as a list in a message does; a number or an id may not be
        // what was meant, and a following flag is what was meant.
        Shape::Text | Shape::Bytes | Shape::Content => arg
            .value_parser(ValueParser::os_string())
            .allow_hyphen_values(true),
        Shape::Integer { .. } | Shape::Number => arg
            .value_parser(ValueParser::os_string())
            .allow_negative_numbers(true),
        Shape::Id | Shape::Group(_) | Shape::Json => arg.value_parser(ValueParser::os_string()),
    }
}

fn edit_args() -> [Arg; 2] {
    [
        Arg::new(EDIT)
            .long(&EDIT[2..])
            .value_names(["OLD", "NEW"])
            .num_args(2)
            .action(ArgAction::Append)
            .allow_hyphen_values(true)
            .value_parser(ValueParser::os_string())
            .conflicts_with("edits")
            .help("Replace OLD, which occurs exactly once, by NEW; may be repeated"),
        Arg::new(REPLACE_ALL)
            .long(&REPLACE_ALL[2..])
            .action(ArgAction::SetTrue)
            .requires(EDIT)
            .help("Let every --edit replace each occurrence of its OLD"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_of_every_operation_is_sound() {
        for authority in Authority::ALL {
            // Finds clashing names of flags, positions out of order and the like.
            command(authority, Detail::Everything, None).debug_assert();
        }
    }
}
