//! Transcripts against a model: a vector of bytes, and the arithmetic of what is kept.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

mod rig;

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use rig::{Watchdog, until};
use sandstack_holder::Error;
use sandstack_holder::protocol::Stream;
use sandstack_holder::transcript::{Elision, LEAST_LIMIT, Line, LineEnd, Reader, Window, Writer};

const STREAM: Stream = Stream::Stdout;

/// What a transcript should be.
struct Model {
    bytes: Vec<u8>,
    /// The bytes that are dropped.
    gap: Range<usize>,
    /// The bytes of each line, without newlines, and whether it has one.
    lines: Vec<(Range<usize>, bool)>,
}

impl Model {
    fn new(bytes: Vec<u8>, limit: u64) -> Model {
        let segment = (limit / 16 / 4096 * 4096) as usize;
        let last = bytes.len().div_ceil(segment).saturating_sub(1);
        // Four segments of head, twelve of tail.
        let first_of_tail = (last + 1).saturating_sub(12).max(4);
        let gap = 4 * segment..first_of_tail * segment;
        let lines = Model::split(&bytes);
        Model { bytes, gap, lines }
    }

    fn split(bytes: &[u8]) -> Vec<(Range<usize>, bool)> {
        let mut lines = Vec::new();
        let mut start = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if *byte == b'\n' {
                lines.push((start..at, true));
                start = at + 1;
            }
        }
        if start < bytes.len() {
            lines.push((start..bytes.len(), false));
        }
        lines
    }

    fn elision(&self) -> Option<Elision> {
        if self.gap.is_empty() {
            return None;
        }
        let gone: Vec<usize> = (0..)
            .zip(self.lines.iter().cloned())
            .filter(|(_, (line, newline))| {
                let all = line.start..line.end + usize::from(*newline);
                all.start >= self.gap.start && all.end <= self.gap.end
            })
            .map(|(number, _)| number)
            .collect();
        let line_after = self.bytes[..self.gap.end]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        Some(Elision {
            first_line: *gone.first().unwrap_or(&line_after) as u64,
            lines: gone.len() as u64,
            first_byte: self.gap.start as u64,
            bytes: self.gap.len() as u64,
        })
    }

    fn window(&self, start: u64, max_lines: usize, max_bytes: usize) -> Window {
        let all = &self.lines;
        let mut window = Window {
            lines: Vec::new(),
            next_line: start,
            total_lines: all.len() as u64,
            total_bytes: self.bytes.len() as u64,
            elided: Vec::new(),
        };
        let mut room = max_bytes.max(1);
        let elide = |window: &mut Window| window.elided = self.elision().into_iter().collect();
        let from = all.iter().cloned().enumerate().skip(start as usize);
        for (number, (line, newline)) in from.map(|(n, line)| (n as u64, line)) {
            if window.lines.len() == max_lines || room == 0 {
                break;
            }
            let whole = line.start..line.end + usize::from(newline);
            if !self.gap.is_empty() && whole.start >= self.gap.start && whole.end <= self.gap.end {
                elide(&mut window);
                window.next_line = number + 1;
                continue;
            }
            let starts_elided = self.gap.contains(&line.start);
            let from = if starts_elided {
                self.gap.end
            } else {
                line.start
            };
            let runs_in =
                !self.gap.is_empty() && from < self.gap.start && whole.end > self.gap.start;
            let (to, mut end) = if runs_in {
                // Its newline alone may be what is dropped.
                (line.end.min(self.gap.start), LineEnd::Elided)
            } else if newline {
                (line.end, LineEnd::Newline)
            } else {
                (line.end, LineEnd::Growing)
            };
            let mut to = to;
            if to - from > room {
                if !window.lines.is_empty() {
                    break;
                }
                (to, end) = (from + room, LineEnd::Window);
            }
            if starts_elided || end == LineEnd::Elided {
                elide(&mut window);
            }
            room -= to - from;
            window.lines.push(Line {
                offset: number,
                byte_offset: from as u64,
                bytes: self.bytes[from..to].to_vec(),
                complete: end == LineEnd::Newline && !starts_elided,
                starts_elided,
                end,
            });
            window.next_line = number + 1;
        }
        window
    }
}

fn write(dir: &Path, pieces: &[Vec<u8>], limit: u64) -> Vec<u8> {
    let mut writer = Writer::create(dir, &[STREAM, Stream::Stderr], limit).unwrap();
    let mut all = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        writer.append(STREAM, piece).unwrap();
        all.extend_from_slice(piece);
        if number % 3 == 0 {
            writer.rest();
        }
    }
    let totals = writer.stream_totals(STREAM).unwrap();
    let model = Model::new(all, limit);
    assert_eq!(totals.total_bytes, model.bytes.len() as u64);
    assert_eq!(totals.total_lines, model.lines.len() as u64);
    assert_eq!(Reader::open(dir).unwrap().totals(STREAM).unwrap(), totals);
    model.bytes
}

/// A piece of output: lines of all lengths, or none.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let line = |length: Range<usize>| {
        (any::<u8>(), length).prop_map(|(byte, n)| {
            let mut line = vec![byte; n];
            line.push(b'\n');
            line
        })
    };
    prop_oneof![
        4 => prop::collection::vec(line(0..80), 0..200).prop_map(|lines| lines.concat()),
        2 => prop::collection::vec(line(0..9000), 0..6).prop_map(|lines| lines.concat()),
        1 => (0..70_000usize).prop_map(|n| vec![b'x'; n]),
        1 => prop::collection::vec(any::<u8>(), 0..5000),
        1 => (0..9000usize).prop_map(|n| vec![b'\n'; n]),
        // Ends exactly where blocks and segments do.
        1 => Just([vec![b'y'; 4095], vec![b'\n']].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn reads_are_those_of_the_model(
        pieces in prop::collection::vec(piece(), 0..16),
        limit in prop_oneof![Just(LEAST_LIMIT), Just(LEAST_LIMIT * 2 + 5000), Just(1 << 20)],
        windows in prop::collection::vec((0.0..1.2f64, 0..300usize, prop_oneof![0..200usize, 0..30_000usize]), 24),
        ranges in prop::collection::vec((0.0..1.1f64, 0..20_000usize), 12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let model = Model::new(write(dir.path(), &pieces, limit), limit);
        let reader = Reader::open(dir.path()).unwrap();
        let (lines, bytes) = (model.lines.len() as f64, model.bytes.len() as f64);
        let mut starts: Vec<(u64, usize, usize)> =
            windows.iter().map(|(at, n, b)| ((at * lines) as u64, *n, *b)).collect();
        // The lines around the cut are where mistakes would be.
        if let Some(cut) = model.elision() {
            for around in cut.first_line.saturating_sub(2)..cut.first_line + cut.lines + 3 {
                if around < cut.first_line + 3 || around + 3 > cut.first_line + cut.lines {
                    starts.push((around, 3, 100_000));
                }
            }
        }
        for (start, max_lines, max_bytes) in starts {
            let window = reader.window(STREAM, start, max_lines, max_bytes).unwrap();
            prop_assert_eq!(window, model.window(start, max_lines, max_bytes));
        }
        for (at, most) in ranges {
            let from = (at * bytes) as usize;
            let chunk = reader.bytes_from(STREAM, from as u64, most).unwrap();
            let begins = if model.gap.contains(&from) { model.gap.end } else { from };
            let ends = if begins < model.gap.start && !model.gap.is_empty() { model.gap.start } else { model.bytes.len() };
            let expected = model.bytes.get(begins..ends.min(begins + most)).unwrap_or_default();
            prop_assert_eq!(chunk.bytes.as_slice(), expected);
            prop_assert_eq!(chunk.byte_offset, begins as u64);
            prop_assert_eq!(chunk.elided.is_some(), begins != from);
            let tail = reader.tail(STREAM, most).unwrap();
            let least = if model.gap.is_empty() { 0 } else { model.gap.end };
            let from = model.bytes.len().saturating_sub(most).max(least);
            prop_assert_eq!(tail.bytes.as_slice(), &model.bytes[from..]);
        }
        // The other stream is its own.
        prop_assert_eq!(reader.totals(Stream::Stderr).unwrap().total_bytes, 0);
        prop_assert!(reader.window(Stream::Stderr, 0, 10, 10).unwrap().lines.is_empty());
    }

    #[test]
    fn a_whole_reading_by_windows_misses_nothing(pieces in prop::collection::vec(piece(), 0..10), step in 1..5000usize) {
        let dir = tempfile::tempdir().unwrap();
        let limit = LEAST_LIMIT;
        let model = Model::new(write(dir.path(), &pieces, limit), limit);
        let reader = Reader::open(dir.path()).unwrap();
        let (mut at, mut seen) = (0, 0);
        loop {
            let window = reader.window(STREAM, at, 1000, step).unwrap();
            for line in &window.lines {
                prop_assert!(line.offset >= seen);
                seen = line.offset + 1;
            }
            if window.next_line == window.total_lines {
                break;
            }
            prop_assert!(window.next_line > at, "no progress at {}", at);
            at = window.next_line;
        }
        prop_assert_eq!(at.max(seen), at.max(model.lines.len() as u64));
    }
}

#[test]
fn what_is_kept_on_disk_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(dir.path(), &[STREAM], LEAST_LIMIT).unwrap();
    let kept = || -> u64 {
        let files = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap());
        files
            .filter(|file| file.path().extension().is_some_and(|e| e == "data"))
            .map(|file| file.metadata().unwrap().len())
            .sum()
    };
    for n in 0..400 {
        writer
            .append(STREAM, format!("{n} {}\n", "x".repeat(n)).as_bytes())
            .unwrap();
        writer.append(STREAM, &vec![b'\n'; n * 7]).unwrap();
        assert!(kept() <= LEAST_LIMIT, "{} after {n}", kept());
    }
}

#[test]
fn a_line_of_a_hundred_megabytes_stays_within_bounds() {
    let _watchdog = Watchdog::new("a_line_of_a_hundred_megabytes", Duration::from_secs(120));
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(dir.path(), &[STREAM], 1 << 20).unwrap();
    writer.append(STREAM, b"before\n").unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        writer.append(STREAM, &piece).unwrap();
    }
    writer.append(STREAM, b"\nafter").unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let began = std::time::Instant::now();
    let window = reader.window(STREAM, 0, 10, 100).unwrap();
    assert_eq!(
        (window.lines.len(), window.next_line, window.total_lines),
        (1, 1, 3)
    );
    let window = reader.window(STREAM, 1, 10, 100).unwrap();
    assert_eq!(
        (window.lines[0].bytes.len(), window.lines[0].end),
        (100, LineEnd::Window)
    );
    let window = reader.window(STREAM, 1, 10, 10 << 20).unwrap();
    assert_eq!(window.lines[0].end, LineEnd::Elided);
    assert_eq!(
        (window.lines[1].bytes.as_slice(), window.lines[1].end),
        (&b"after"[..], LineEnd::Growing)
    );
    assert_eq!((window.elided.len(), window.elided[0].lines), (1, 0));
    println!("three windows of a 100 MB line: {:?}", began.elapsed());
}

#[test]
fn a_transcript_is_begun_once_and_judged_when_opened() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Reader::open(dir.path()), Err(Error::Path { .. })));
    assert!(matches!(
        Writer::create(dir.path(), &[STREAM], 1),
        Err(Error::TranscriptLimit {
            least: LEAST_LIMIT,
            ..
        })
    ));
    let mut writer = Writer::create(dir.path(), &[STREAM], LEAST_LIMIT).unwrap();
    assert!(matches!(
        Writer::create(dir.path(), &[STREAM], LEAST_LIMIT),
        Err(Error::TranscriptExists { .. })
    ));
    assert!(matches!(
        writer.append(Stream::Pty, b"x"),
        Err(Error::StreamUnknown {
            stream: Stream::Pty
        })
    ));
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.streams(), [STREAM]);
    assert!(matches!(
        reader.tail(Stream::Pty, 1),
        Err(Error::StreamUnknown { .. })
    ));
    assert_eq!(reader.tail(STREAM, 10).unwrap().bytes, b"");
    let header = dir.path().join("transcript.json");
    let other = std::fs::read_to_string(&header)
        .unwrap()
        .replace("\"version\":1", "\"version\":2");
    std::fs::write(&header, other).unwrap();
    assert!(matches!(
        Reader::open(dir.path()),
        Err(Error::Format { .. })
    ));
}

/// The number that a line written by `numbered` must have.
fn check(line: &Line, width: usize) {
    let text = String::from_utf8(line.bytes.clone()).unwrap();
    if line.complete {
        let (number, filling) = text.split_once(' ').unwrap();
        assert_eq!(number.parse::<u64>().unwrap(), line.offset, "{text}");
        assert_eq!(filling.len(), width, "line {} is torn: {text}", line.offset);
    }
}

fn numbered(number: u64, width: usize) -> String {
    format!("{number} {}\n", "z".repeat(width))
}

#[test]
fn a_reader_beside_the_writer_sees_nothing_torn() {
    let _watchdog = Watchdog::new("a_reader_beside_the_writer", Duration::from_secs(120));
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(dir.path(), &[STREAM], LEAST_LIMIT).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = String::new();
            for number in 0..60_000u64 {
                batch.push_str(&numbered(number, 50));
                if number % 7 == 0 {
                    writer.append(STREAM, batch.as_bytes()).unwrap();
                    batch.clear();
                }
            }
            over.store(true, Ordering::Release);
        });
        for reader_number in 0..2u64 {
            let (over, dir) = (&over, dir.path());
            scope.spawn(move || {
                let reader = Reader::open(dir).unwrap();
                let (mut lines, mut looks, mut least) = (0, 0, 0);
                while !over.load(Ordering::Acquire) {
                    let totals = reader.totals(STREAM).unwrap();
                    assert!(totals.total_lines >= least, "the stream has shrunk");
                    least = totals.total_lines;
                    let start = (least.saturating_sub(60)) * (reader_number + looks % 2) / 2;
                    let window = reader.window(STREAM, start, 100, 100_000).unwrap();
                    assert!(window.total_lines >= least);
                    for line in &window.lines {
                        check(line, 50);
                    }
                    lines += window.lines.len();
                    let tail = reader.tail(STREAM, 200).unwrap();
                    assert!(tail.bytes.is_ascii());
                    looks += 1;
                }
                println!("{looks} looks, {lines} lines");
            });
        }
    });
}

/// Writes without end; started by the next test, and killed.
#[test]
#[ignore = "writes until it is killed; started by the_writers_death_harms_nothing"]
fn endless_writer() {
    let Some(dir) = std::env::var_os("TRANSCRIPT_DIR") else {
        return;
    };
    let mut writer = Writer::create(Path::new(&dir), &[STREAM], LEAST_LIMIT).unwrap();
    for number in 0.. {
        writer
            .append(STREAM, numbered(number, 50).as_bytes())
            .unwrap();
    }
}

#[test]
fn the_writers_death_harms_nothing() {
    let _watchdog = Watchdog::new("the_writers_death_harms_nothing", Duration::from_secs(120));
    for round in 0..8u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "endless_writer", "--ignored", "--nocapture"])
            .env("TRANSCRIPT_DIR", dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let lines = || {
            Reader::open(dir.path())
                .and_then(|reader| reader.totals(STREAM))
                .map_or(0, |t| t.total_lines)
        };
        // Killed at another place each time, before and after segments have been dropped.
        until("some output", || lines() > round * 900);
        writer.kill().unwrap();
        writer.wait().unwrap();
        let reader = Reader::open(dir.path()).unwrap();
        let total = lines();
        let mut at = 0;
        while at < total {
            let window = reader.window(STREAM, at, 500, 1 << 20).unwrap();
            window.lines.iter().for_each(|line| check(line, 50));
            assert!(window.next_line > at);
            at = window.next_line;
        }
        assert!(reader.tail(STREAM, 100).unwrap().bytes.len() == 100);
    }
}

#[test]
fn an_index_that_lost_its_end_is_read_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..5000).map(|number| numbered(number, 3)).collect();
    let mut writer = Writer::create(dir.path(), &[STREAM], 1 << 20).unwrap();
    writer.append(STREAM, text.as_bytes()).unwrap();
    let index = dir.path().join("stdout.00000000.index");
    let whole = std::fs::read(&index).unwrap();
    // Half a number; nothing but the header; zeros where numbers were.
    let zeros = [&whole[..48], &vec![0; whole.len() - 48]].concat();
    for broken in [&whole[..whole.len() - 3], &whole[..32], &zeros] {
        std::fs::write(&index, broken).unwrap();
        let reader = Reader::open(dir.path()).unwrap();
        assert_eq!(reader.totals(STREAM).unwrap().total_lines, 5000);
        for start in [0, 1, 2500, 4999] {
            let window = reader.window(STREAM, start, 2, 1000).unwrap();
            window.lines.iter().for_each(|line| check(line, 3));
        }
    }
    std::fs::write(&index, b"nonsense").unwrap();
    let error = Reader::open(dir.path()).unwrap().totals(STREAM);
    assert!(error.is_err(), "{error:?}");
}
