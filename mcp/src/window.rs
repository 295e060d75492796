//! Keeps answers within what a model can take in.
//!
//! The gateway's own bounds are for programs: a page of a thousand rows, a window of 256 KiB. An
//! answer beyond [`MAX_ANSWER_BYTES`] is brought below it, by the means that loses least:
//!
//! 1. An operation that changes nothing and has a `limit` is asked again with a smaller one. The
//!    answer is whole and says how it continues. (Smaller defaults would need no second call, and
//!    would make the schema's words about defaults untrue; rows differ in size by a factor of
//!    hundreds, so they would still be too large at times.)
//! 2. Of a command's output the newest lines are kept, as the gateway does with its own bound;
//!    `start_offset` says where they begin, and `read_command_lines` has the rest.
//! 3. Anything else has its longest texts, then its longest lists cut.
//!
//! Whatever was done is said in the answer's field [`NOTE`].

use sandstack_api::runtime::OutputWindow;
use sandstack_api::{Encoding, Operation, Text};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Largest answer, in bytes of JSON: about ten thousand tokens at four bytes each.
pub const MAX_ANSWER_BYTES: usize = 40_000;
/// The field of an answer that says how it was cut.
pub(crate) const NOTE: &str = "window_note";
/// Room for the note.
const NOTE_BYTES: usize = 1_000;
/// What the rest of an answer may take, so that the note fits too.
const BUDGET: usize = MAX_ANSWER_BYTES - NOTE_BYTES;
/// Most calls that one answer may cost.
const MAX_CALLS: u32 = 5;
/// Fields that bound how much an operation answers.
const LIMITS: [&str; 2] = ["limit", "last_n"];
/// Fields that choose what an operation answers.
const CHOOSERS: [&str; 12] = [
    "limit",
    "last_n",
    "offset",
    "start_offset",
    "page_token",
    "path",
    "glob",
    "name",
    "kinds",
    "since_ms",
    "until_ms",
    "sandbox_id",
];

/// The bytes of `value` as JSON.
pub(crate) fn size_of(value: &Value) -> usize {
    value.to_string().len()
}

/// Whether `answer` needs no cut.
pub(crate) fn fits(answer: &Value) -> bool {
    size_of(answer) <= MAX_ANSWER_BYTES
}

/// Asks an operation again with smaller and smaller limits until its answer fits.
pub(crate) struct Shrinking {
    field: &'static str,
    limit: u64,
    calls: u32,
}

impl Shrinking {
    /// A way to ask `row` again; `None` if it has no limit, or changes something.
    pub(crate) fn of(row: &Operation) -> Option<Shrinking> {
        let schema = (row.request_schema)();
        let properties = schema.as_value()["properties"].as_object()?;
        let field = LIMITS
            .into_iter()
            .find(|field| properties.contains_key(*field))?;
        (row.effect == sandstack_api::Effect::ReadOnly).then_some(Shrinking {
            field,
            limit: u64::MAX,
            calls: 1,
        })
    }

    /// Puts the next limit into `arguments`, after `answer` was too large; false if there is
    /// nothing more to try.
    pub(crate) fn next(&mut self, arguments: &mut Map<String, Value>, answer: &Value) -> bool {
        // A window of bytes says how many it has; a page has a list.
        let amount = answer["length"].as_u64().or_else(|| {
            let lists = answer.as_object()?.values().filter_map(Value::as_array);
            lists.map(|list| list.len() as u64).max()
        });
        let Some(amount) = amount else { return false };
        let amount = amount.min(self.limit);
        if amount <= 1 || self.calls == MAX_CALLS {
            return false;
        }
        // A tenth less than the share that fits, since what remains is not the average.
        let share = BUDGET as f64 / size_of(answer) as f64 * 0.9;
        self.limit = ((amount as f64 * share) as u64).clamp(1, amount - 1);
        self.calls += 1;
        arguments.insert(self.field.to_owned(), self.limit.into());
        true
    }

    /// Says in `answer` what was done.
    pub(crate) fn explain(&self, row: &Operation, answer: &mut Value) {
        if self.calls > 1 {
            let what = format!("`{}` was lowered to {}", self.field, self.limit);
            note(answer, &format!("{what}. {}", advice(row)));
        }
    }
}

/// Cuts `answer` of `row` so that it fits, and says what was cut.
pub(crate) fn cut(row: &Operation, answer: &mut Value) {
    let mut cuts = Vec::new();
    if let Some(cut) = cut_output(answer) {
        cuts.push(cut);
    }
    if size_of(answer) > BUDGET {
        cut_texts(answer, &mut cuts);
    }
    while size_of(answer) > BUDGET {
        let Some(cut) = halve_longest_list(answer) else {
            break;
        };
        // A list is halved again and again; the last time says it all.
        let (name, _) = cut.split_once(' ').unwrap_or((&cut, ""));
        cuts.retain(|earlier| !earlier.starts_with(&format!("{name} ")));
        cuts.push(cut);
    }
    let whole = cuts.join("; ");
    let mut end = whole.len().min(NOTE_BYTES / 2);
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    note(answer, &format!("{}. {}", &whole[..end], advice(row)));
}

fn note(answer: &mut Value, text: &str) {
    if let Some(object) = answer.as_object_mut() {
        let text = match object.get(NOTE).and_then(Value::as_str) {
            Some(earlier) => format!("{earlier} {text}"),
            None => text.to_owned(),
        };
        object.insert(NOTE.to_owned(), text.into());
    }
}

/// How to get what an answer leaves out.
fn advice(row: &Operation) -> String {
    let schema = (row.request_schema)();
    let properties = &schema.as_value()["properties"];
    let fields: Vec<String> = CHOOSERS
        .into_iter()
        .filter(|field| properties.get(field).is_some())
        .map(|field| format!("`{field}`"))
        .collect();
    match fields.as_slice() {
        [] => "The rest is in the operation's answer to its command-line client.".to_owned(),
        fields => format!("Ask for the rest, or for less, with {}.", fields.join(", ")),
    }
}

/// Keeps the newest lines of a command's output; `None` if `answer` has none or it fits.
fn cut_output(answer: &mut Value) -> Option<String> {
    let excess = size_of(answer).checked_sub(BUDGET)?;
    let window = |name: &str| OutputWindow::deserialize(answer.get(name)?).ok();
    let windows: Vec<(&str, OutputWindow)> = ["output", "stderr"]
        .into_iter()
        .filter_map(|name| Some((name, window(name)?)))
        .collect();
    let sizes: Vec<usize> = windows
        .iter()
        .map(|(_, window)| json_size(&window.text))
        .collect();
    let total: usize = sizes.iter().sum();
    let room = total.saturating_sub(excess);
    let mut cuts = Vec::new();
    for (index, (name, mut window)) in windows.into_iter().enumerate() {
        // A window that takes less than its half leaves the rest to the other.
        let others = total - sizes[index];
        let room = room.saturating_sub(others.min(room / 2));
        if sizes[index] <= room {
            continue;
        }
        let dropped = keep_newest(&mut window, room);
        cuts.push(format!(
            "{name} begins {dropped} lines later; `read_command_lines` has the rest"
        ));
        let shown = serde_json::to_value(&window).ok()?;
        if let (Some(Value::Object(old)), Value::Object(new)) = (answer.get_mut(name), shown) {
            old.remove("elided");
            old.extend(new);
        }
    }
    (!cuts.is_empty()).then(|| cuts.join("; "))
}

/// The bytes that `text` takes in JSON, its quotes left out.
fn json_size(text: &Text) -> usize {
    Value::from(text.content.as_str()).to_string().len() - 2
}

/// Drops lines from the beginning of `window` until its text takes at most `room` bytes of JSON,
/// and returns how many. The last line is never dropped, but cut at its beginning if need be.
fn keep_newest(window: &mut OutputWindow, room: usize) -> u64 {
    let Ok(bytes) = window.text.bytes() else {
        // It claims to be base64 and is not, so it has no lines; the cut of texts deals with it.
        return 0;
    };
    let encoded = window.text.encoding == Encoding::Base64;
    let cost = |piece: &[u8]| match encoded {
        // Base64 writes three bytes as four characters.
        true => piece.len().div_ceil(3) * 4,
        false => {
            Value::from(String::from_utf8_lossy(piece))
                .to_string()
                .len()
                - 2
        }
    };
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let mut left = room;
    let mut kept = 0;
    for line in lines.iter().rev() {
        let Some(rest) = left.checked_sub(cost(line)) else {
            break;
        };
        left = rest;
        kept += 1;
    }
    let dropped = lines.len() - kept.max(1).min(lines.len());
    let mut rest: Vec<u8> = lines[dropped..].concat();
    if kept == 0 {
        let mut start = 0;
        while start < rest.len() && cost(&rest[start..]) > room {
            // Halves are found in few steps, and the newest bytes are the ones that are read.
            start += ((rest.len() - start) / 2).max(1);
            while start < rest.len() && !encoded && !is_char_start(rest[start]) {
                start += 1;
            }
        }
        rest.drain(..start);
    }
    for _ in 0..dropped {
        match window.elided {
            Some(elided) if elided.first_line <= window.start_offset => {
                window.start_offset += elided.lines;
                window.elided = None;
            }
            _ => {}
        }
        window.start_offset += 1;
    }
    window.text = match encoded {
        true => Text::base64(&rest),
        false => Text::new(rest),
    };
    window.truncated = true;
    dropped as u64
}

fn is_char_start(byte: u8) -> bool {
    // A continuation byte of UTF-8 is 0b10xxxxxx.
    byte & 0xc0 != 0x80
}

/// Cuts long texts to shorter and shorter lengths, until the answer fits or they are short.
fn cut_texts(answer: &mut Value, cuts: &mut Vec<String>) {
    let before = cuts.len();
    for longest in [16_384, 8_192, 4_096, 2_048] {
        let mut count = 0;
        shorten(answer, longest, &mut count);
        if count > 0 {
            cuts.truncate(before);
            cuts.push(format!("texts are cut to {longest} bytes"));
        }
        if size_of(answer) <= BUDGET {
            return;
        }
    }
}

fn shorten(value: &mut Value, longest: usize, count: &mut u32) {
    match value {
        Value::String(text) if text.len() > longest => {
            // A multiple of four, so that cut base64 is still base64.
            let mut end = longest;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            *count += 1;
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| shorten(item, longest, count)),
        Value::Object(map) => map
            .values_mut()
            .for_each(|item| shorten(item, longest, count)),
        _ => {}
    }
}

/// Drops the second half of the list that takes most; `None` if there is no list left.
fn halve_longest_list(answer: &mut Value) -> Option<String> {
    let mut lists = Vec::new();
    find_lists(answer, &mut String::new(), &mut lists);
    let (_, pointer) = lists.into_iter().max()?;
    let list = answer.pointer_mut(&pointer)?.as_array_mut()?;
    list.truncate(list.len() / 2);
    let name = pointer.trim_start_matches('/').replace('/', ".");
    Some(format!("{name} is cut to {} entries", list.len()))
}

/// Finds lists that are not empty, with what each takes.
fn find_lists(value: &Value, pointer: &mut String, lists: &mut Vec<(usize, String)>) {
    let mut visit = |key: &str, item: &Value, pointer: &mut String| {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        find_lists(item, pointer, lists);
        pointer.truncate(length);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, item)| visit(key, item, pointer)),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                visit(&index.to_string(), item, pointer);
            }
            if !items.is_empty() {
                lists.push((size_of(value), pointer.clone()));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use sandstack_api::OperationName;
    use serde_json::json;

    use super::*;

    fn reply(output: &str, stderr: Option<&str>) -> Value {
        let window = |content: &str| {
            let lines = content.lines().count();
            json!({
                "content": content, "encoding": "utf-8", "start_offset": 0, "next_offset": lines,
                "total_lines": lines, "total_bytes": content.len(), "truncated": false
            })
        };
        let mut reply = json!({
            "command_session_id": "cmd-1", "workspace_session_id": "ws-1", "status": "exited",
            "exit_code": 0, "output": window(output), "started_at_unix_ms": 0, "duration_ms": 0,
            "of_a_newer_gateway": true
        });
        if let Some(stderr) = stderr {
            reply["stderr"] = window(stderr);
        }
        reply
    }

    fn numbered(lines: usize) -> String {
        (0..lines).map(|line| format!("line {line}\n")).collect()
    }

    #[test]
    fn of_a_commands_output_the_newest_lines_stay() {
        let mut answer = reply(&numbered(20_000), None);
        cut(OperationName::ExecCommand.row(), &mut answer);
        assert!(fits(&answer), "{}", size_of(&answer));
        let output = &answer["output"];
        let start = output["start_offset"].as_u64().unwrap();
        let content = output["content"].as_str().unwrap();
        assert!(content.starts_with(&format!("line {start}\n")), "{start}");
        assert!(content.ends_with("line 19999\n"));
        assert!(content.len() > 30_000, "{}", content.len());
        assert_eq!(output["truncated"], true);
        assert_eq!(answer["of_a_newer_gateway"], true);
        let note = answer[NOTE].as_str().unwrap();
        assert!(
            note.contains(&format!("output begins {start} lines later")),
            "{note}"
        );
        assert!(note.contains("read_command_lines"), "{note}");
    }

    #[test]
    fn both_outputs_get_their_share() {
        let mut answer = reply(&numbered(20_000), Some("short\n"));
        cut(OperationName::ExecCommand.row(), &mut answer);
        assert!(fits(&answer));
        assert_eq!(answer["stderr"]["content"], "short\n");
        assert!(answer["output"]["content"].as_str().unwrap().len() > 30_000);
        let mut answer = reply(&numbered(20_000), Some(&numbered(30_000)));
        cut(OperationName::ExecCommand.row(), &mut answer);
        assert!(fits(&answer));
        for name in ["output", "stderr"] {
            assert!(
                answer[name]["content"].as_str().unwrap().len() > 10_000,
                "{name}"
            );
        }
    }

    #[test]
    fn bytes_and_long_lines_and_control_characters_are_cut_too() {
        let mut bytes = reply("", None);
        let raw = vec![0xff; 60_000];
        bytes["output"]["content"] = Text::base64(&raw).content.into();
        bytes["output"]["encoding"] = json!("base64");
        let long = reply(&"ä".repeat(60_000), None);
        let control = reply(&"\u{1b}\n".repeat(20_000), None);
        for mut answer in [bytes, long, control] {
            cut(OperationName::ExecCommand.row(), &mut answer);
            assert!(fits(&answer), "{}", size_of(&answer));
            let window = OutputWindow::deserialize(&answer["output"]).unwrap();
            assert!(window.text.bytes().unwrap().len() > 4_000, "{window:?}");
        }
    }

    #[test]
    fn lines_that_are_gone_are_counted() {
        let mut window = OutputWindow {
            text: Text::new(b"a\nb\nc\nd\n".to_vec()),
            start_offset: 10,
            next_offset: 114,
            elided: Some(sandstack_api::runtime::Elision {
                first_line: 12,
                lines: 100,
                bytes: 1,
            }),
            ..OutputWindow::default()
        };
        // `c` is line 112, behind the gap.
        let mut whole = window.clone();
        assert_eq!(keep_newest(&mut whole, 9), 1);
        assert_eq!((whole.start_offset, whole.elided), (11, window.elided));
        assert_eq!(keep_newest(&mut window, 3), 3);
        assert_eq!((window.start_offset, window.elided), (113, None));
        assert_eq!(window.text.content, "d\n");
    }

    #[test]
    fn lists_and_texts_that_no_limit_bounds_are_cut_and_named() {
        let conflict =
            json!({ "path": "p".repeat(100), "kind": "content", "marked": "x".repeat(5000) });
        let mut answer = json!({ "conflicts": vec![conflict; 500], "conflict_count": 500 });
        cut(OperationName::PublishWorkspaceSession.row(), &mut answer);
        assert!(fits(&answer), "{}", size_of(&answer));
        let left = answer["conflicts"].as_array().unwrap().len();
        assert!(left > 5, "{left}");
        let note = answer[NOTE].as_str().unwrap();
        assert!(
            note.contains(&format!("conflicts is cut to {left} entries")),
            "{note}"
        );
        assert!(note.contains("texts are cut to 2048 bytes"), "{note}");
    }

    #[test]
    fn any_answer_can_be_made_to_fit() {
        let mut answer = json!({ "a": { "b": vec![vec!["x".repeat(3000); 50]; 50] }, "c": "\u{1}".repeat(99_999) });
        cut(OperationName::Snapshot.row(), &mut answer);
        assert!(fits(&answer), "{}", size_of(&answer));
    }

    #[test]
    fn limits_shrink_until_there_is_nothing_to_shrink() {
        let row = OperationName::ListSandboxes.row();
        let mut shrinking = Shrinking::of(row).unwrap();
        let mut arguments = Map::new();
        let page = |rows: usize| json!({ "sandboxes": vec!["x".repeat(1000); rows] });
        assert!(shrinking.next(&mut arguments, &page(200)));
        let limit = arguments["limit"].as_u64().unwrap();
        assert!((20..40).contains(&limit), "{limit}");
        assert!(fits(&page(limit as usize)));
        // A gateway that does not heed the limit is not asked for ever.
        let mut calls = 0;
        while shrinking.next(&mut arguments, &page(200)) {
            calls += 1;
        }
        assert!(calls < MAX_CALLS, "{calls}");
        assert!(Shrinking::of(OperationName::ExecCommand.row()).is_none());
        assert!(Shrinking::of(OperationName::Snapshot.row()).is_none());
        let mut of_bytes = Shrinking::of(OperationName::FileRead.row()).unwrap();
        let answer = json!({ "length": 262_144, "content": "x".repeat(262_144) });
        assert!(of_bytes.next(&mut arguments, &answer));
        assert!((30_000..40_000).contains(&arguments["limit"].as_u64().unwrap()));
    }
}
