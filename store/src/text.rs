//! Text as lines of bytes: splitting, differences, unified diffs.
//!
//! A line ends after `\n`, and the last may have no end; nothing else ends a line, so CRLF, a lone
//! CR, a BOM and bytes that are not UTF-8 are ordinary bytes of a line. A file is text if it has no
//! NUL byte: git looks only at the first 8000 bytes, but a NUL further down is no text either.

use std::ops::Range;

use rustc_hash::FxHashMap;
use similar::{Algorithm, DiffOp};

/// Largest file, in bytes, that is compared line by line; a larger one is treated as binary.
pub(crate) const MAX_TEXT: u64 = 32 << 20;

/// Whether content is compared and merged by lines.
pub fn is_text(bytes: &[u8]) -> bool {
    bytes.len() as u64 <= MAX_TEXT && !bytes.contains(&0)
}

/// Splits into lines, each with its end.
pub(crate) fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

/// How many lines there are.
pub(crate) fn line_count(bytes: &[u8]) -> u64 {
    let ends = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    ends + u64::from(!bytes.is_empty() && !bytes.ends_with(b"\n"))
}

/// Numbers for lines: equal lines have equal numbers, so that texts are compared as numbers.
#[derive(Default)]
pub(crate) struct Interner<'a> {
    numbers: FxHashMap<&'a [u8], u32>,
}

impl<'a> Interner<'a> {
    pub(crate) fn intern(&mut self, lines: &[&'a [u8]]) -> Vec<u32> {
        lines
            .iter()
            .map(|line| {
                let next = self.numbers.len() as u32;
                *self.numbers.entry(line).or_insert(next)
            })
            .collect()
    }
}

/// A run of lines of one text that another run of another text takes the place of. Either may be
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineChange {
    pub(crate) old: Range<usize>,
    pub(crate) new: Range<usize>,
}

/// The changes that make `new` of `old`, in order, with at least one equal line between two.
pub(crate) fn changes(old: &[u32], new: &[u32]) -> Vec<LineChange> {
    let mut changes: Vec<LineChange> = Vec::new();
    for op in similar::capture_diff_slices(Algorithm::Histogram, old, new) {
        if let DiffOp::Equal { .. } = op {
            continue;
        }
        let (old, new) = (op.old_range(), op.new_range());
        match changes.last_mut() {
            Some(last) if last.old.end == old.start && last.new.end == new.start => {
                last.old.end = old.end;
                last.new.end = new.end;
            }
            _ => changes.push(LineChange { old, new }),
        }
    }
    changes
}

/// A unified diff of two texts with three lines of context, as `diff -u` writes it; empty if they
/// are equal.
pub fn unified_diff(path: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let hunks = hunks(old, new);
    if hunks.is_empty() {
        return hunks;
    }
    [b"--- a/", path, b"\n+++ b/", path, b"\n", &hunks].concat()
}

/// The hunks of a unified diff of two texts, with three lines of context.
pub(crate) fn hunks(old: &[u8], new: &[u8]) -> Vec<u8> {
    let (old_lines, new_lines) = (lines(old), lines(new));
    let mut interner = Interner::default();
    let (old_numbers, new_numbers) = (interner.intern(&old_lines), interner.intern(&new_lines));
    let ops = similar::capture_diff_slices(Algorithm::Histogram, &old_numbers, &new_numbers);
    let mut diff = Vec::new();
    let mut put = |bytes: &[u8]| diff.extend_from_slice(bytes);
    for group in similar::group_diff_ops(ops, 3) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let old_range = first.old_range().start..last.old_range().end;
        let new_range = first.new_range().start..last.new_range().end;
        let (old_range, new_range) = (show_range(old_range), show_range(new_range));
        put(format!("@@ -{old_range} +{new_range} @@\n").as_bytes());
        let mut line = |mark: u8, line: &[u8]| {
            put(&[mark]);
            put(line);
            if !line.ends_with(b"\n") {
                put(b"\n\\ No newline at end of file\n");
            }
        };
        for op in group {
            if let DiffOp::Equal { .. } = op {
                old_lines[op.old_range()]
                    .iter()
                    .for_each(|text| line(b' ', text));
                continue;
            }
            old_lines[op.old_range()]
                .iter()
                .for_each(|text| line(b'-', text));
            new_lines[op.new_range()]
                .iter()
                .for_each(|text| line(b'+', text));
        }
    }
    diff
}

fn show_range(range: Range<usize>) -> String {
    match range.len() {
        1 => format!("{}", range.start + 1),
        // An empty range stands after the line before it.
        0 => format!("{},0", range.start),
        count => format!("{},{count}", range.start + 1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_end_at_newlines_only() {
        assert_eq!(
            lines(b"a\r\nb\rc\n\nd"),
            [&b"a\r\n"[..], b"b\rc\n", b"\n", b"d"]
        );
        assert_eq!(
            (
                line_count(b""),
                line_count(b"a"),
                line_count(b"a\n"),
                line_count(b"a\n\n")
            ),
            (0, 1, 1, 2)
        );
    }

    #[test]
    fn unified_diffs_look_as_diff_writes_them() {
        let diff = unified_diff(
            b"f",
            b"1\n2\n3\n4\n5\n6\n7\n8\n9",
            b"1\n2\nx\n4\n5\n6\n7\n8\n9\n",
        );
        let expected = "--- a/f\n+++ b/f\n@@ -1,9 +1,9 @@\n 1\n 2\n-3\n+x\n 4\n 5\n 6\n 7\n 8\n-9\n\\ No newline at end of file\n+9\n";
        assert_eq!(String::from_utf8(diff).unwrap(), expected);
        assert_eq!(unified_diff(b"f", b"same\n", b"same\n"), b"");
        assert_eq!(
            unified_diff(b"f", b"", b"n\n"),
            b"--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+n\n"
        );
    }

    proptest! {
        #[test]
        fn changes_make_the_new_text(
            old in proptest::collection::vec(0u32..6, 0..40),
            new in proptest::collection::vec(0u32..6, 0..40),
        ) {
            let mut made = Vec::new();
            let mut at = 0;
            for change in changes(&old, &new) {
                prop_assert!(change.old.start > at || at == 0, "two changes touch");
                made.extend_from_slice(&old[at..change.old.start]);
                made.extend_from_slice(&new[change.new.clone()]);
                at = change.old.end;
            }
            made.extend_from_slice(&old[at..]);
            prop_assert_eq!(made, new);
        }
    }
}
