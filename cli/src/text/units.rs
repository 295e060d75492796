//! Numbers as people read them: sizes, durations, times, modes.

/// A count with its thousands apart: `12,345`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `count` things, each called `one`: `1 file`, `2 files`.
pub(crate) fn plural(number: u64, one: &str) -> String {
    let many = match one {
        _ if number == 1 => one.to_owned(),
        _ if one.ends_with('x') => format!("{one}es"),
        _ => match one.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{one}s"),
        },
    };
    format!("{} {many}", count(number))
}

/// A size in binary units: `512 B`, `1.5 KiB`.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be written as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration given in microseconds: `850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`, `2 h 5 min`.
pub(crate) fn micros(number: u64) -> String {
    match number {
        0..1_000 => format!("{number} µs"),
        1_000..1_000_000 => format!("{:.1} ms", number as f64 / 1e3),
        1_000_000..60_000_000 => format!("{:.2} s", number as f64 / 1e6),
        _ => {
            let seconds = number / 1_000_000;
            match seconds {
                0..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
                3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
                _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
            }
        }
    }
}

/// A duration given in milliseconds.
pub(crate) fn millis(number: u64) -> String {
    match number {
        0..1_000 => format!("{number} ms"),
        _ => micros(number.saturating_mul(1000)),
    }
}

/// How long before `now` something was: `just now`, `3 min ago`; both in Unix milliseconds.
pub(crate) fn ago(then: u64, now: u64) -> String {
    let seconds = now.saturating_sub(then) / 1000;
    match seconds {
        0..5 => "just now".to_owned(),
        5..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// A point in time, in UTC: `2026-11-29 23:49:01Z`.
pub(crate) fn time(unix_ms: i64) -> String {
    let seconds = unix_ms.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date_of(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        second / 3600,
        second % 3600 / 60,
        second % 60
    )
}

/// [`time`] of an unsigned time; one beyond the calendar's reach is the last that it reaches.
pub(crate) fn utc(unix_ms: u64) -> String {
    time(i64::try_from(unix_ms).unwrap_or(i64::MAX))
}

/// Year, month and day of the day `days` after 1970-01-01, in the Gregorian calendar.
///
/// Counts years from March, so that the leap day is a year's last, in eras of 400 years.
fn date_of(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

/// Permission bits in octal: `0644`.
pub(crate) fn mode(bits: u32) -> String {
    format!("{bits:04o}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts() {
        let sizes = [
            0,
            1023,
            1024,
            1536,
            1 << 20,
            (1 << 20) - 1,
            5 << 30,
            u64::MAX,
        ];
        let texts = [
            "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "5.0 GiB", "16.0 EiB",
        ];
        assert_eq!(sizes.map(bytes), texts);
        assert_eq!(
            [0, 999, 1000, 1234567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0, 1, 2].map(|n| plural(n, "file")),
            ["0 files", "1 file", "2 files"]
        );
    }

    #[test]
    fn durations() {
        let texts = [
            "850 µs",
            "12.3 ms",
            "4.56 s",
            "3 min 20 s",
            "2 h 5 min",
            "1 d 1 h",
        ];
        let micro = [
            850,
            12_300,
            4_560_000,
            200_000_000,
            7_500_000_000,
            90_000_000_000,
        ];
        assert_eq!(micro.map(micros), texts);
        assert_eq!([5, 1500].map(millis), ["5 ms", "1.50 s"]);
        assert_eq!(ago(0, 200_000), "3 min ago");
        assert_eq!(ago(10, 0), "just now");
    }

    #[test]
    fn times() {
        let cases = [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (1_796_082_541_999, "2026-11-30 23:49:01Z"),
            (4_107_542_399_000, "2100-02-28 23:59:59Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00Z"),
            (-1, "1969-12-31 23:59:59Z"),
        ];
        for (unix_ms, text) in cases {
            assert_eq!(time(unix_ms), text);
        }
        // Neither end of the range overflows.
        assert!(!time(i64::MIN).is_empty() && !utc(u64::MAX).is_empty());
    }
}
