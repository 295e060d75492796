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

/// Texts with more lines than this are cut into pieces before they are compared: each further edit
/// has the histogram algorithm go through all lines again.
const LARGE: usize = 2_000;
/// Lines of a piece, at least.
const PIECE: usize = 100;

/// The changes that make `new` of `old`, in order, with at least one equal line between two.
pub(crate) fn changes(old: &[u32], new: &[u32]) -> Vec<LineChange> {
    if old.len().min(new.len()) < LARGE {
        return changes_of(old, new, [(old.len(), new.len())]);
    }
    changes_of(old, new, cuts(old, new, PIECE))
}

/// The changes of pieces that follow each other, given by where they end.
fn changes_of(
    old: &[u32],
    new: &[u32],
    ends: impl IntoIterator<Item = (usize, usize)>,
) -> Vec<LineChange> {
    let mut changes: Vec<LineChange> = Vec::new();
    let (mut old_start, mut new_start) = (0, 0);
    for (old_end, new_end) in ends {
        let (old_part, new_part) = (&old[old_start..old_end], &new[new_start..new_end]);
        let ops = if old_part == new_part {
            Vec::new()
        } else {
            similar::capture_diff_slices(Algorithm::Histogram, old_part, new_part)
        };
        for op in ops {
            if let DiffOp::Equal { .. } = op {
                continue;
            }
            let (old, new) = (op.old_range(), op.new_range());
            let old = old_start + old.start..old_start + old.end;
            let new = new_start + new.start..new_start + new.end;
            match changes.last_mut() {
                Some(last) if last.old.end == old.start && last.new.end == new.start => {
                    last.old.end = old.end;
                    last.new.end = new.end;
                }
                _ => changes.push(LineChange { old, new }),
            }
        }
        (old_start, new_start) = (old_end, new_end);
    }
    changes
}

/// Where two texts can be cut, since the lines there belong together whatever is around: at a line
/// that each has once, with equal lines beside it, if all such lines are in the same order. If they
/// are not, something changed places, and the whole is one piece. Pieces have `piece` lines or more
/// of each text.
fn cuts(old: &[u32], new: &[u32], piece: usize) -> Vec<(usize, usize)> {
    let whole = (old.len(), new.len());
    let (old_once, new_once) = (once(old), once(new));
    let mut cuts = Vec::new();
    let (mut last, mut ordered) = ((0, 0), 0);
    for (at, number) in old.iter().enumerate() {
        if old_once.get(number) != Some(&Some(at)) {
            continue;
        }
        let Some(Some(there)) = new_once.get(number) else {
            continue;
        };
        let there = *there;
        if there < ordered {
            return vec![whole];
        }
        ordered = there;
        let around = |text: &[u32], at: usize| {
            let lines = text.get(at.checked_sub(1)?..at + 2)?;
            Some([lines[0], lines[2]])
        };
        let lines = around(old, at);
        if lines.is_some()
            && lines == around(new, there)
            && at - last.0 >= piece
            && there - last.1 >= piece
        {
            cuts.push((at, there));
            last = (at, there);
        }
    }
    cuts.push(whole);
    cuts
}

/// Where each line is; `None` for one that is there several times.
fn once(lines: &[u32]) -> FxHashMap<u32, Option<usize>> {
    let mut found = FxHashMap::default();
    for (at, number) in lines.iter().enumerate() {
        found
            .entry(*number)
            .and_modify(|known| *known = None)
            .or_insert(Some(at));
    }
    found
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

    /// What changes make of the old text.
    fn apply(old: &[u32], new: &[u32], changes: &[LineChange]) -> Vec<u32> {
        let mut made = Vec::new();
        let mut at = 0;
        for change in changes {
            assert!(change.old.start > at || at == 0, "two changes touch");
            made.extend_from_slice(&old[at..change.old.start]);
            made.extend_from_slice(&new[change.new.clone()]);
            at = change.old.end;
        }
        made.extend_from_slice(&old[at..]);
        made
    }

    proptest! {
        #[test]
        fn changes_make_the_new_text(
            old in proptest::collection::vec(0u32..6, 0..40),
            new in proptest::collection::vec(0u32..6, 0..40),
        ) {
            prop_assert_eq!(apply(&old, &new, &changes(&old, &new)), new);
        }

        #[test]
        fn pieces_differ_in_no_more_than_the_whole(
            lines in proptest::collection::vec(0u32..12, 30..200),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..4, 0u32..12), 0..12),
        ) {
            // Mostly lines that are there once, some that are there often.
            let old: Vec<u32> = lines
                .iter()
                .enumerate()
                .map(|(at, number)| if *number < 4 { *number } else { 100 + at as u32 })
                .collect();
            let mut new = old.clone();
            for (at, removed, line) in edits {
                let at = at.index(new.len());
                let end = new.len().min(at + removed);
                new.splice(at..end, (line > 3).then_some(line % 4 + 1000 * u32::from(line > 8)));
                if new.is_empty() {
                    break;
                }
            }
            let cut = changes_of(&old, &new, cuts(&old, &new, 1));
            prop_assert_eq!(&apply(&old, &new, &cut), &new);
            let whole = changes_of(&old, &new, [(old.len(), new.len())]);
            let size = |changes: &[LineChange]| -> usize {
                let sizes = changes.iter().map(|change| change.old.len() + change.new.len());
                sizes.sum()
            };
            prop_assert_eq!(size(&cut), size(&whole));
        }
    }
}
