//! The three-way merge of texts by lines.
//!
//! Two sides changed a common base. A change of one side alone is taken; the same change on both
//! sides is taken once; changes that overlap or touch conflict, as `git merge-file` has it: with no
//! unchanged line between two edits nobody can say that they do not belong together.

use std::ops::Range;

use crate::text::{Interner, LineChange, changes, lines};

/// What became of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    /// The merged text.
    Clean(Merged),
    /// The places where both sides changed the same lines; at least one.
    Conflicts(Vec<Hunk>),
}

/// A merged text and where its lines come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The text.
    pub bytes: Vec<u8>,
    /// Where its lines come from: runs that tile it.
    pub(crate) origins: Vec<Origin>,
}

/// Where a run of lines comes from: lines of the head, or of mine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// These lines of the head.
    Head(Range<usize>),
    /// These lines of mine, which the head does not have.
    Mine(Range<usize>),
}

/// A run of lines, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSpan {
    /// The first line, from 0; of an empty span, the line it stands before.
    pub start: u64,
    /// How many lines.
    pub count: u64,
}

impl From<Range<usize>> for LineSpan {
    fn from(range: Range<usize>) -> Self {
        LineSpan {
            start: range.start as u64,
            count: range.len() as u64,
        }
    }
}

/// A conflict: the same place in the three texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// In the base.
    pub base: LineSpan,
    /// In the head.
    pub head: LineSpan,
    /// In mine.
    pub mine: LineSpan,
}

/// A region of the base and what the sides made of it.
struct Region {
    base: Range<usize>,
    head: Range<usize>,
    mine: Range<usize>,
    taken: Taken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Head,
    Mine,
    Conflict,
}

/// Merges `head` and `mine`, which both came from `base`.
pub fn merge_text(base: &[u8], head: &[u8], mine: &[u8]) -> MergeOutcome {
    let texts = Texts::new(base, head, mine);
    let regions = texts.regions();
    let conflicts: Vec<Hunk> = regions
        .iter()
        .filter(|region| region.taken == Taken::Conflict)
        .map(|region| Hunk {
            base: region.base.clone().into(),
            head: region.head.clone().into(),
            mine: region.mine.clone().into(),
        })
        .collect();
    if !conflicts.is_empty() {
        return MergeOutcome::Conflicts(conflicts);
    }
    let mut merged = Merged {
        bytes: Vec::with_capacity(head.len().max(mine.len())),
        origins: Vec::new(),
    };
    let mut at = 0;
    for region in regions {
        merged.take(&texts.head, Origin::Head(at..region.head.start));
        match region.taken {
            Taken::Mine => merged.take(&texts.mine, Origin::Mine(region.mine)),
            Taken::Head | Taken::Conflict => {
                merged.take(&texts.head, Origin::Head(region.head.clone()))
            }
        }
        at = region.head.end;
    }
    merged.take(&texts.head, Origin::Head(at..texts.head.len()));
    MergeOutcome::Clean(merged)
}

/// Merges `head` and `mine` and keeps, where they conflict, the lines of both, the head's first.
pub(crate) fn merge_union(base: &[u8], head: &[u8], mine: &[u8]) -> Merged {
    let texts = Texts::new(base, head, mine);
    let mut merged = Merged {
        bytes: Vec::with_capacity(head.len() + mine.len()),
        origins: Vec::new(),
    };
    let mut at = 0;
    for region in texts.regions() {
        merged.take(&texts.head, Origin::Head(at..region.head.start));
        if region.taken != Taken::Mine {
            merged.take(&texts.head, Origin::Head(region.head.clone()));
        }
        if region.taken != Taken::Head {
            // A last line without an end must not run into the next one.
            if !merged.bytes.is_empty() && !merged.bytes.ends_with(b"\n") && !region.mine.is_empty()
            {
                merged.bytes.push(b'\n');
            }
            merged.take(&texts.mine, Origin::Mine(region.mine));
        }
        at = region.head.end;
    }
    merged.take(&texts.head, Origin::Head(at..texts.head.len()));
    merged
}

/// The merge of `head` and `mine` with conflicts marked as diff3 does, each side with its label.
pub(crate) fn merge_with_markers(
    base: (&[u8], &str),
    head: (&[u8], &str),
    mine: (&[u8], &str),
) -> Vec<u8> {
    let texts = Texts::new(base.0, head.0, mine.0);
    let mut out = Vec::new();
    let mut at = 0;
    // Marker lines end as the text's lines do.
    let end: &[u8] = if texts
        .head
        .first()
        .is_some_and(|line| line.ends_with(b"\r\n"))
    {
        b"\r\n"
    } else {
        b"\n"
    };
    let section = |out: &mut Vec<u8>, mark: &str, label: &str, lines: &[&[u8]]| {
        if !out.is_empty() && !out.ends_with(b"\n") {
            out.extend_from_slice(end);
        }
        out.extend_from_slice(mark.as_bytes());
        if !label.is_empty() {
            out.push(b' ');
            out.extend_from_slice(label.as_bytes());
        }
        out.extend_from_slice(end);
        lines.iter().for_each(|line| out.extend_from_slice(line));
    };
    for region in texts.regions() {
        texts.head[at..region.head.start]
            .iter()
            .for_each(|line| out.extend_from_slice(line));
        match region.taken {
            Taken::Head => texts.head[region.head.clone()]
                .iter()
                .for_each(|line| out.extend_from_slice(line)),
            Taken::Mine => texts.mine[region.mine.clone()]
                .iter()
                .for_each(|line| out.extend_from_slice(line)),
            Taken::Conflict => {
                section(
                    &mut out,
                    "<<<<<<<",
                    head.1,
                    &texts.head[region.head.clone()],
                );
                section(
                    &mut out,
                    "|||||||",
                    base.1,
                    &texts.base[region.base.clone()],
                );
                section(&mut out, "=======", "", &texts.mine[region.mine.clone()]);
                section(&mut out, ">>>>>>>", mine.1, &[]);
            }
        }
        at = region.head.end;
    }
    texts.head[at..]
        .iter()
        .for_each(|line| out.extend_from_slice(line));
    out
}

impl Merged {
    fn take(&mut self, lines: &[&[u8]], origin: Origin) {
        let range = match &origin {
            Origin::Head(range) | Origin::Mine(range) => range.clone(),
        };
        if range.is_empty() {
            return;
        }
        lines[range]
            .iter()
            .for_each(|line| self.bytes.extend_from_slice(line));
        self.origins.push(origin);
    }
}

struct Texts<'a> {
    base: Vec<&'a [u8]>,
    head: Vec<&'a [u8]>,
    mine: Vec<&'a [u8]>,
    to_head: Vec<LineChange>,
    to_mine: Vec<LineChange>,
}

impl<'a> Texts<'a> {
    fn new(base: &'a [u8], head: &'a [u8], mine: &'a [u8]) -> Self {
        let (base, head, mine) = (lines(base), lines(head), lines(mine));
        let mut interner = Interner::default();
        let (base_numbers, head_numbers, mine_numbers) = (
            interner.intern(&base),
            interner.intern(&head),
            interner.intern(&mine),
        );
        let to_head = changes(&base_numbers, &head_numbers);
        let to_mine = changes(&base_numbers, &mine_numbers);
        Texts {
            base,
            head,
            mine,
            to_head,
            to_mine,
        }
    }

    /// The regions in which a side changed something, in order, without overlaps.
    fn regions(&self) -> Vec<Region> {
        let (mut head, mut mine) = (
            self.to_head.iter().peekable(),
            self.to_mine.iter().peekable(),
        );
        // How far the lines of each side are shifted against the base before the next change.
        let (mut head_at, mut mine_at) = (Shift::default(), Shift::default());
        let mut regions = Vec::new();
        loop {
            let touches = match (head.peek(), mine.peek()) {
                (None, None) => return regions,
                (Some(one), Some(other)) => {
                    one.old.end >= other.old.start && other.old.end >= one.old.start
                }
                _ => false,
            };
            let is_head = match (head.peek(), mine.peek()) {
                (Some(one), Some(other)) => one.old.start <= other.old.start,
                (one, _) => one.is_some(),
            };
            let first = if is_head { &mut head } else { &mut mine };
            let start = first.peek().map_or(0, |change| change.old.start);
            if !touches {
                // Only one side changed here.
                let Some(change) = first.next() else { continue };
                let (ours, other) = if is_head {
                    (&mut head_at, mine_at)
                } else {
                    (&mut mine_at, head_at)
                };
                ours.pass(change);
                let (new, same) = (change.new.clone(), other.range(&change.old));
                let (head, mine, taken) = if is_head {
                    (new, same, Taken::Head)
                } else {
                    (same, new, Taken::Mine)
                };
                regions.push(Region {
                    base: change.old.clone(),
                    head,
                    mine,
                    taken,
                });
                continue;
            }
            // Changes of both sides that overlap or touch, with all that touch those.
            let mut end = start;
            let (head_before, mine_before) = (head_at, mine_at);
            loop {
                if let Some(change) = head.next_if(|change| change.old.start <= end) {
                    end = end.max(change.old.end);
                    head_at.pass(change);
                } else if let Some(change) = mine.next_if(|change| change.old.start <= end) {
                    end = end.max(change.old.end);
                    mine_at.pass(change);
                } else {
                    break;
                }
            }
            let head_range = head_before.apply(start)..head_at.apply(end);
            let mine_range = mine_before.apply(start)..mine_at.apply(end);
            let same = self.head[head_range.clone()] == self.mine[mine_range.clone()];
            let taken = if same { Taken::Head } else { Taken::Conflict };
            regions.push(Region {
                base: start..end,
                head: head_range,
                mine: mine_range,
                taken,
            });
        }
    }
}

/// How far a side's lines are shifted against the base's.
#[derive(Clone, Copy, Default)]
struct Shift(isize);

impl Shift {
    fn pass(&mut self, change: &LineChange) {
        self.0 += change.new.len() as isize - change.old.len() as isize;
    }

    fn apply(self, line: usize) -> usize {
        line.checked_add_signed(self.0)
            .expect("a side's line is not before its first")
    }

    fn range(self, base: &Range<usize>) -> Range<usize> {
        self.apply(base.start)..self.apply(base.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clean(base: &str, head: &str, mine: &str) -> Option<String> {
        match merge_text(base.as_bytes(), head.as_bytes(), mine.as_bytes()) {
            MergeOutcome::Clean(merged) => Some(String::from_utf8(merged.bytes).unwrap()),
            MergeOutcome::Conflicts(_) => None,
        }
    }

    #[test]
    fn edits_apart_merge() {
        assert_eq!(
            clean("1\n2\n3\n4\n5\n", "x\n2\n3\n4\n5\n", "1\n2\n3\n4\ny\n").as_deref(),
            Some("x\n2\n3\n4\ny\n")
        );
        assert_eq!(
            clean("1\n2\n3\n", "1\n3\n", "1\n2\n3\n4\n").as_deref(),
            Some("1\n3\n4\n")
        );
    }

    #[test]
    fn edits_that_touch_conflict() {
        assert_eq!(clean("1\n2\n", "x\n2\n", "1\ny\n"), None);
        assert_eq!(clean("1\n2\n3\n", "1\n3\n", "1\n2\nnew\n3\n"), None);
        assert_eq!(clean("", "a\n", "b\n"), None);
    }

    #[test]
    fn the_same_edit_on_both_sides_is_taken_once() {
        assert_eq!(
            clean("1\n2\n3\n", "1\nx\n3\n", "1\nx\n3\n").as_deref(),
            Some("1\nx\n3\n")
        );
    }

    #[test]
    fn bytes_are_sacred() {
        assert_eq!(
            clean("a\r\nb\r\nc", "A\r\nb\r\nc", "a\r\nb\r\nC").as_deref(),
            Some("A\r\nb\r\nC")
        );
        assert_eq!(
            clean(
                "\u{feff}a\nb\nc\n",
                "\u{feff}a\nb\nc\nd",
                "\u{feff}A\nb\nc\n"
            )
            .as_deref(),
            Some("\u{feff}A\nb\nc\nd")
        );
    }

    #[test]
    fn conflicts_say_where() {
        let MergeOutcome::Conflicts(hunks) =
            merge_text(b"1\n2\n3\n", b"0\n1\nx\n3\n", b"1\ny\nz\n3\n")
        else {
            panic!("it merged")
        };
        let span = |start, count| LineSpan { start, count };
        assert_eq!(
            hunks,
            [Hunk {
                base: span(1, 1),
                head: span(2, 1),
                mine: span(1, 2)
            }]
        );
    }

    #[test]
    fn markers_are_those_of_diff3() {
        let text = merge_with_markers(
            (b"1\n2\n3\n", "base"),
            (b"1\nx\n3\n", "head"),
            (b"1\ny\n3\n", "mine"),
        );
        let expected = "1\n<<<<<<< head\nx\n||||||| base\n2\n=======\ny\n>>>>>>> mine\n3\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    fn text() -> impl Strategy<Value = String> {
        let line = prop_oneof![Just("a"), Just("b"), Just("c"), Just(""), Just("d\r")];
        (proptest::collection::vec(line, 0..12), any::<bool>())
            .prop_map(|(lines, ended)| lines.join("\n") + if ended { "\n" } else { "" })
    }

    proptest! {
        #[test]
        fn a_side_that_changed_nothing_yields(base in text(), other in text()) {
            prop_assert_eq!(clean(&base, &other, &base), Some(other.clone()));
            prop_assert_eq!(clean(&base, &base, &other), Some(other.clone()));
            prop_assert_eq!(clean(&base, &other, &other), Some(other));
        }

        #[test]
        fn both_orders_agree(base in text(), one in text(), other in text()) {
            prop_assert_eq!(clean(&base, &one, &other), clean(&base, &other, &one));
        }

        #[test]
        fn origins_tile_the_result(base in text(), head in text(), mine in text()) {
            if let MergeOutcome::Clean(merged) = merge_text(base.as_bytes(), head.as_bytes(), mine.as_bytes()) {
                let (head, mine) = (lines(head.as_bytes()), lines(mine.as_bytes()));
                let made: Vec<&[u8]> = merged.origins.iter().flat_map(|origin| match origin {
                    Origin::Head(range) => head[range.clone()].to_vec(),
                    Origin::Mine(range) => mine[range.clone()].to_vec(),
                }).collect();
                prop_assert_eq!(made.concat(), merged.bytes);
            }
        }
    }
}
