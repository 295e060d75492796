//! A request's spans as bars over time.

use sandstack_api::Id;
use sandstack_api::observability::{Span, TraceReply};
use serde_json::Value;

use super::{Answer, Style, Tone, escaped, units};

/// Width of the bars where no terminal gives one, in characters.
const DEFAULT_BAR: usize = 40;
/// Narrowest bars that still show anything.
const MIN_BAR: usize = 10;
/// Room for a duration, in characters: `59 min 59 s`.
const DURATION: usize = 11;

pub(crate) fn trace(answer: &TraceReply, style: &Style) -> Answer {
    let mut text = format!(
        "{} {} at {}, {}\n",
        style.paint(Tone::Heading, &escaped(answer.operation.as_bytes())),
        answer.trace_id.as_str(),
        units::utc(answer.started_at_unix_ms),
        units::micros(answer.duration_us),
    );
    let labels: Vec<String> = (0..answer.spans.len())
        .map(|index| {
            let depth = depth_of(&answer.spans, index);
            let name = escaped(answer.spans[index].name.as_bytes());
            format!("{}{name}", "  ".repeat(depth))
        })
        .collect();
    let widest = labels.iter().map(|label| label.chars().count()).max();
    let label_width = widest.unwrap_or(0);
    let bar_width = match style.columns {
        None => DEFAULT_BAR,
        Some(columns) => usize::from(columns)
            .saturating_sub(label_width + DURATION + 6)
            .clamp(MIN_BAR, 100),
    };
    for (span, label) in answer.spans.iter().zip(&labels) {
        let padding = " ".repeat(label_width - label.chars().count());
        let duration = match span.duration_us {
            Some(duration) => units::micros(duration),
            None => "runs".to_owned(),
        };
        let bar = bar(span, answer.duration_us, bar_width);
        let tone = if span.duration_us.is_some() {
            Tone::Good
        } else {
            Tone::Notice
        };
        text.push_str(&format!(
            "{label}{padding}  |{}|  {duration:>DURATION$}",
            style.paint(tone, &bar)
        ));
        let fields = fields_of(span);
        if !fields.is_empty() {
            text.push_str("  ");
            text.push_str(&style.paint(Tone::Quiet, &fields));
        }
        text.push('\n');
    }
    Answer::data(text)
}

/// How many spans `index` is within. A parent comes before its parts, which also bounds the walk.
fn depth_of(spans: &[Span], index: usize) -> usize {
    let mut depth = 0;
    let mut at = index;
    while let Some(parent) = spans[at].parent {
        let parent = parent as usize;
        if parent >= at {
            break;
        }
        at = parent;
        depth += 1;
    }
    depth
}

/// The span within a line of `width` characters that stands for `total` microseconds. A span of no
/// width still shows.
fn bar(span: &Span, total: u64, width: usize) -> String {
    let total = total.max(1);
    let column = |at: u64| (u128::from(at.min(total)) * width as u128 / u128::from(total)) as usize;
    let start = column(span.start_us).min(width - 1);
    let (end, mark) = match span.duration_us {
        Some(duration) => (column(span.start_us.saturating_add(duration)), '#'),
        None => (width, '>'),
    };
    let end = end.clamp(start + 1, width);
    let mut bar = " ".repeat(start);
    bar.extend(std::iter::repeat_n(mark, end - start));
    bar.push_str(&" ".repeat(width - end));
    bar
}

fn fields_of(span: &Span) -> String {
    let Value::Object(map) = &span.fields else {
        return String::new();
    };
    let mut fields: Vec<String> = map
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Value::String(text) => escaped(text.as_bytes()),
                other => escaped(other.to_string().as_bytes()),
            };
            format!("{}={value}", escaped(name.as_bytes()))
        })
        .collect();
    fields.sort();
    fields.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(parent: Option<u32>, start_us: u64, duration_us: Option<u64>) -> Span {
        Span {
            name: "s".to_owned(),
            parent,
            start_us,
            duration_us,
            fields: Value::Null,
        }
    }

    #[test]
    fn bars_stay_in_their_line() {
        assert_eq!(bar(&span(None, 0, Some(100)), 100, 10), "##########");
        assert_eq!(bar(&span(None, 50, Some(10)), 100, 10), "     #    ");
        assert_eq!(bar(&span(None, 100, Some(0)), 100, 10), "         #");
        assert_eq!(bar(&span(None, 30, None), 100, 10), "   >>>>>>>");
        for (start, duration) in [(0, 0), (7, u64::MAX), (u64::MAX, 1)] {
            assert_eq!(bar(&span(None, start, Some(duration)), 0, 10).len(), 10);
        }
    }

    #[test]
    fn a_parent_that_comes_later_ends_the_walk() {
        let spans = [
            span(Some(1), 0, None),
            span(Some(0), 0, None),
            span(Some(1), 0, None),
            span(Some(9), 0, None),
        ];
        let depths: Vec<usize> = (0..4).map(|index| depth_of(&spans, index)).collect();
        assert_eq!(depths, [0, 1, 2, 0]);
    }
}
