//! What strace wrote down, one file a thread, as calls in the order of their beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// One system call that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// When it began, in nanoseconds since 1970.
    pub(crate) at: u128,
    pub(crate) thread: u32,
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    /// What it returned, or its error.
    pub(crate) result: Result<i64, String>,
    /// The path of the descriptor that it returned.
    pub(crate) returned: Option<String>,
    /// The process or thread that it made, by its number outside.
    pub(crate) child: Option<u32>,
    /// As strace wrote it.
    pub(crate) line: String,
}

/// When a thread ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) thread: u32,
    pub(crate) at: u128,
}

/// Reads all files `prefix.THREAD` of `dir`.
pub(crate) fn read(dir: &Path, prefix: &str) -> (Vec<Call>, Vec<End>) {
    let (mut calls, mut ends, mut threads) = (Vec::new(), Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let Some(thread) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            continue;
        };
        let thread = thread.parse().unwrap();
        threads.insert(thread);
        let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned();
        for line in text.lines() {
            let (at, rest) = line.split_once(' ').unwrap();
            let at = nanoseconds(at);
            if rest.starts_with("+++") {
                ends.push(End { thread, at });
            } else if !rest.starts_with("---") {
                calls.extend(parse(at, thread, rest));
            }
        }
    }
    calls.sort_by_key(|call| call.at);
    name_children(&mut calls, threads);
    (calls, ends)
}

/// strace cannot say who a child is outside that has ended by then. Numbers are given in order, inside
/// as outside, so the children that are left are the threads that are left.
fn name_children(calls: &mut [Call], mut threads: BTreeSet<u32>) {
    let mut unnamed: BTreeMap<i64, &mut Call> = BTreeMap::new();
    for call in calls {
        let forks = ["clone", "clone3", "fork", "vfork"].contains(&call.name.as_str());
        match (forks, &call.result, call.child) {
            (true, Ok(_), Some(child)) => assert!(threads.remove(&child), "{}", call.line),
            (true, Ok(number), None) => assert!(unnamed.insert(*number, call).is_none()),
            _ => {}
        }
    }
    // Whom strace was started on, and its threads, come first: they were there before.
    let skipped = threads.len() - unnamed.len();
    for (call, thread) in unnamed.into_values().zip(threads.into_iter().skip(skipped)) {
        call.child = Some(thread);
    }
}

fn child(line: &str) -> Option<u32> {
    let (before, _) = line.rsplit_once(" in strace's PID NS */")?;
    before.rsplit_once(' ')?.1.parse().ok()
}

fn nanoseconds(text: &str) -> u128 {
    let (seconds, rest) = text.split_once('.').unwrap();
    let (seconds, rest): (u128, u128) = (seconds.parse().unwrap(), rest.parse().unwrap());
    seconds * 1_000_000_000 + rest
}

/// `None`: it has not ended, as with a thread that was killed in it.
fn parse(at: u128, thread: u32, line: &str) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (args, result) = rest.rsplit_once(" = ")?;
    let args = args.trim_end().strip_suffix(')')?;
    let mut words = result.split(' ');
    let first = words.next()?;
    let (number, returned) = descriptor(first);
    let number = match number.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(u64::cast_signed),
        None => number.parse::<i64>().ok(),
    };
    let result = match (number, words.next()) {
        (Some(number), _) if number >= 0 => Ok(number),
        (_, Some(error)) => Err(error.to_owned()),
        // `mmap` can return what looks negative; `?` is a call that does not return.
        (Some(number), None) => Ok(number),
        (None, None) => return None,
    };
    Some(Call {
        at,
        thread,
        name: name.to_owned(),
        args: split(args),
        result,
        returned,
        child: child(line),
        line: line.to_owned(),
    })
}

/// Splits arguments at the commas between them.
fn split(text: &str) -> Vec<String> {
    let (mut args, mut begun, mut depth, mut quoted, mut escaped) =
        (Vec::new(), 0, 0, false, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                args.push(text[begun..index].trim().to_owned());
                begun = index + 1;
            }
            _ => {}
        }
    }
    args.push(text[begun..].trim().to_owned());
    args
}

/// `3</a/path>`: the number and the path.
pub(crate) fn descriptor(text: &str) -> (&str, Option<String>) {
    match text.split_once('<') {
        Some((number, rest)) => {
            let path = rest.split_once('>').map_or(rest, |(path, _)| path);
            (number, path.starts_with('/').then(|| path.to_owned()))
        }
        None => (text, None),
    }
}

/// The text of a string argument; `None` if it is none, as `NULL`.
pub(crate) fn string(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    assert!(
        !inner.contains('\\'),
        "names of these tests are plain: {text}"
    );
    Some(inner.to_owned())
}

/// All numbers of a structure's field: `iov_len=3`.
pub(crate) fn number(text: &str) -> i64 {
    let (number, _) = descriptor(text);
    number
        .parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

#[test]
fn lines_are_understood() {
    let call = parse(
        7,
        1,
        "openat(AT_FDCWD</w>, \"a,b\", O_RDWR|O_CREAT, 0666) = 3</w/a,b>",
    )
    .unwrap();
    assert_eq!(
        call.args,
        ["AT_FDCWD</w>", "\"a,b\"", "O_RDWR|O_CREAT", "0666"]
    );
    assert_eq!(
        (call.result, call.returned.as_deref()),
        (Ok(3), Some("/w/a,b"))
    );
    let call = parse(
        7,
        1,
        "stat(\"x\", 0x7ffe)     = -1 ENOENT (No such file or directory)",
    )
    .unwrap();
    assert_eq!(call.result, Err("ENOENT".to_owned()));
    let call = parse(
        7,
        1,
        "writev(3</w/a>, [{iov_base=\"\"..., iov_len=5}, {iov_base=\"\", iov_len=0}], 2) = 5",
    )
    .unwrap();
    assert_eq!((call.args.len(), call.result), (3, Ok(5)));
    assert!(parse(7, 1, "exit_group(0) = ?").is_none());
    assert!(parse(7, 1, "futex(0x1, FUTEX_WAIT <unfinished ...>").is_none());
}
