//! A request to argv: the inverse of reading one, for the examples in the help and for tests that
//! hold the two to each other; and the shell's quoting.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use sandstack_api::runtime::Edit;
use sandstack_api::{Blob, OperationName};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::field::{Field, Shape, fields_of};
use crate::request::STDIN_FIELDS;

/// A command line that says a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelling {
    /// The arguments, from the name of the operation on.
    pub args: Vec<OsString>,
    /// What standard input must hold, for a value that no argument can carry.
    pub stdin: Option<Vec<u8>>,
}

/// Spells `request` as arguments of its CLI.
///
/// `None` if it holds a NUL where only an argument can carry it: the kernel has no such arguments.
pub fn spell(operation: OperationName, request: &Map<String, Value>) -> Option<Spelling> {
    let fields = fields_of(operation.row());
    let mut stdin = None;
    let mut args = vec![operation.as_str().into()];
    args.extend(spell_fields(&fields, request, &mut stdin));
    let fits = args.iter().all(|arg| !arg.as_bytes().contains(&0));
    fits.then_some(Spelling { args, stdin })
}

/// [`spell`] for fields that are known already and values that fit in arguments.
pub(crate) fn words(
    operation: OperationName,
    fields: &[Field],
    request: &Map<String, Value>,
) -> Vec<OsString> {
    let mut args = vec![operation.as_str().into()];
    args.extend(spell_fields(fields, request, &mut None));
    args
}

fn spell_fields(
    fields: &[Field],
    request: &Map<String, Value>,
    stdin: &mut Option<Vec<u8>>,
) -> Vec<OsString> {
    let mut positional = Vec::new();
    let mut flags = Vec::new();
    // A position can only be used while all before it are used or set by a flag.
    let mut gap = false;
    for field in fields {
        let Some(value) = request.get(&field.name).filter(|value| !value.is_null()) else {
            gap |= field.position.is_some();
            continue;
        };
        let flag = field.flag();
        match &field.shape {
            Shape::Switch => flags.push(switch(&flag, value)),
            Shape::List(_) => {
                for item in value.as_array().into_iter().flatten() {
                    push_flag(&mut flags, &flag, word_of(item));
                }
            }
            Shape::Map(_) => {
                for (key, item) in value.as_object().into_iter().flatten() {
                    push_flag(&mut flags, &flag, entry_of(key, item));
                }
            }
            Shape::Group(members) => {
                let group = value.as_object().filter(|group| !group.is_empty());
                let known = |name: &String| members.iter().any(|member| member.name == *name);
                match group.filter(|group| group.keys().all(known)) {
                    Some(group) => flags.extend(spell_fields(members, group, stdin)),
                    None => push_flag(&mut flags, &flag, json_word(value)),
                }
            }
            Shape::Json => match edit_pairs(&field.name, value) {
                Some(pairs) => flags.extend(pairs),
                None => push_flag(&mut flags, &flag, json_word(value)),
            },
            Shape::Integer { .. }
            | Shape::Number
            | Shape::Id
            | Shape::Text
            | Shape::Content
            | Shape::Bytes
            | Shape::Choice(_) => {
                let mut word = word_of(value);
                let reads_stdin = STDIN_FIELDS.contains(&field.name.as_str());
                if reads_stdin && (word == "-" || word.as_bytes().contains(&0)) && stdin.is_none() {
                    *stdin = Some(std::mem::replace(&mut word, "-".into()).into_vec());
                }
                let is_flag_like = word.len() > 1 && word.as_bytes().starts_with(b"-");
                if field.position.is_some() && !gap && !is_flag_like {
                    positional.push(word);
                } else {
                    push_flag(&mut flags, &flag, word);
                }
            }
        }
    }
    positional.append(&mut flags);
    positional
}

/// The edits of `file_edit` as `--edit OLD NEW` each; `None` for any other field, and for edits
/// that only JSON can say: mixed ones, and such that hold a NUL.
fn edit_pairs(name: &str, value: &Value) -> Option<Vec<OsString>> {
    if name != "edits" {
        return None;
    }
    let edits = Vec::<Edit>::deserialize(value).ok()?;
    let replace_all = edits.first()?.replace_all;
    let mut args = Vec::new();
    for edit in edits {
        let pair = [edit.old_string.0, edit.new_string.0];
        if edit.replace_all != replace_all || pair.iter().flatten().any(|byte| *byte == 0) {
            return None;
        }
        args.push("--edit".into());
        args.extend(pair.map(OsString::from_vec));
    }
    if replace_all {
        args.push("--replace-all".into());
    }
    Some(args)
}

fn switch(flag: &str, value: &Value) -> OsString {
    match value.as_bool() {
        Some(false) => format!("--{flag}=false").into(),
        _ => format!("--{flag}").into(),
    }
}

/// `--flag value`, or `--flag=value` where the value could be taken for a flag.
fn push_flag(flags: &mut Vec<OsString>, flag: &str, word: OsString) {
    let mut flag = OsString::from(format!("--{flag}"));
    if word.as_bytes().starts_with(b"-") {
        flag.push("=");
        flag.push(word);
        flags.push(flag);
    } else {
        flags.extend([flag, word]);
    }
}

fn word_of(value: &Value) -> OsString {
    match value {
        Value::String(text) => text.into(),
        Value::Object(_) => match serde_json::from_value::<Blob>(value.clone()) {
            Ok(blob) => OsString::from_vec(blob.0),
            Err(_) => json_word(value),
        },
        other => json_word(other),
    }
}

fn entry_of(key: &str, value: &Value) -> OsString {
    let mut word = word_of(value);
    if key.contains('=') || key.starts_with('{') || word.as_bytes().contains(&0) {
        let object = Map::from_iter([(key.to_owned(), value.clone())]);
        return json_word(&object.into());
    }
    let mut entry = OsString::from(format!("{key}="));
    entry.push(std::mem::take(&mut word));
    entry
}

fn json_word(value: &Value) -> OsString {
    value.to_string().into()
}

/// `word` as a shell reads it back: quoted, where it holds anything that a shell could take for
/// more than a letter.
pub(crate) fn quoted(word: &OsStr) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(byte);
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return word.to_owned();
    }
    single_quoted(word)
}

fn single_quoted(word: &OsStr) -> OsString {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            other => quoted.push(*other),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

/// Words as one shell command line: the shell runs the first with the others as its arguments.
pub(crate) fn shell_line<W: Borrow<OsString>>(words: impl IntoIterator<Item = W>) -> OsString {
    let mut line = OsString::new();
    for (index, word) in words.into_iter().enumerate() {
        let word = word.borrow();
        if index > 0 {
            line.push(" ");
        }
        if index == 0 && word.as_bytes().contains(&b'=') {
            // A shell takes `NAME=value` in the first place for an assignment.
            line.push(single_quoted(word));
        } else {
            line.push(quoted(word));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> String {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        shell_line(words).into_string().unwrap()
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(line(&["ls", "-la"]), "ls -la");
        assert_eq!(
            line(&["echo", "a b", "", "it's"]),
            r"echo 'a b' '' 'it'\''s'"
        );
        assert_eq!(
            line(&["echo", "$HOME", "*", "~", "a;b"]),
            "echo '$HOME' '*' '~' 'a;b'"
        );
        assert_eq!(line(&["printf", "a\nb"]), "printf 'a\nb'");
        assert_eq!(line(&["make", "CC=gcc"]), "make CC=gcc");
    }

    #[test]
    fn the_first_word_is_a_program_and_no_assignment() {
        assert_eq!(line(&["A=b"]), "'A=b'");
        assert_eq!(line(&["A=b c"]), "'A=b c'");
        assert_eq!(line(&["A='b", "x"]), r"'A='\''b' x");
    }
}
