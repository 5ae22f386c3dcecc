//! `strftime_now`: dates in prompts, in UTC.

use std::{
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A point in time, taken apart.
struct Civil {
    year: i64,
    /// 0..12
    month: usize,
    /// 1..=31
    day: u32,
    /// 0 is Sunday.
    weekday: usize,
    /// Seconds since midnight.
    second: u64,
}

impl Civil {
    /// Times before 1970 are 1970.
    fn new(time: SystemTime) -> Civil {
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let days = (seconds / 86_400) as i64;
        // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": civil_from_days, with
        // years that start in March and eras of 400 years.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let month = (march_month + 2) % 12;
        Civil {
            year: year_of_era + era * 400 + i64::from(month < 2),
            month: month as usize,
            day: (day_of_year - (153 * march_month + 2) / 5 + 1) as u32,
            weekday: ((days + 4) % 7) as usize,
            second: seconds % 86_400,
        }
    }

    /// 1..=366
    fn day_of_year(&self) -> u32 {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][self.month];
        before + self.day + u32::from(leap && self.month > 1)
    }
}

/// Formats like C's `strftime` in the C locale; an unknown directive is written as it is.
pub(super) fn format(format: &str, time: SystemTime) -> String {
    let civil = Civil::new(time);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        // `%-d` is `%d` without its leading zero.
        let (bare, directive) =
            if directive == Some('-') { (true, chars.next()) } else { (false, directive) };
        let mut field = String::new();
        match directive.map(|directive| (directive, write_field(&mut field, directive, &civil))) {
            Some((_, Some(()))) if bare => out.push_str(without_padding(&field)),
            Some((_, Some(()))) => out.push_str(&field),
            Some((unknown, None)) => {
                out.push_str(if bare { "%-" } else { "%" });
                out.push(unknown);
            }
            None => out.push_str(if bare { "%-" } else { "%" }),
        }
    }
    out
}

fn without_padding(field: &str) -> &str {
    let digits = field.trim_start_matches(['0', ' ']);
    if digits.is_empty() { &field[field.len() - 1..] } else { digits }
}

/// Returns nothing for a directive that it does not know.
fn write_field(out: &mut String, directive: char, civil: &Civil) -> Option<()> {
    let (hour, minute, second) = (civil.second / 3600, civil.second / 60 % 60, civil.second % 60);
    let (year, month, day) = (civil.year, civil.month + 1, civil.day);
    let written = match directive {
        'Y' => write!(out, "{year}"),
        'y' => write!(out, "{:02}", year % 100),
        'm' => write!(out, "{month:02}"),
        'd' => write!(out, "{day:02}"),
        'e' => write!(out, "{day:2}"),
        'j' => write!(out, "{:03}", civil.day_of_year()),
        'B' => out.write_str(MONTHS[civil.month]),
        'b' | 'h' => out.write_str(&MONTHS[civil.month][..3]),
        'A' => out.write_str(WEEKDAYS[civil.weekday]),
        'a' => out.write_str(&WEEKDAYS[civil.weekday][..3]),
        'w' => write!(out, "{}", civil.weekday),
        'u' => write!(out, "{}", (civil.weekday + 6) % 7 + 1),
        'H' => write!(out, "{hour:02}"),
        'I' => write!(out, "{:02}", (hour + 11) % 12 + 1),
        'M' => write!(out, "{minute:02}"),
        'S' => write!(out, "{second:02}"),
        'f' => out.write_str("000000"),
        'p' => out.write_str(if hour < 12 { "AM" } else { "PM" }),
        'F' => write!(out, "{year}-{month:02}-{day:02}"),
        'D' | 'x' => write!(out, "{month:02}/{day:02}/{:02}", year % 100),
        'T' | 'X' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
        'R' => write!(out, "{hour:02}:{minute:02}"),
        'z' => out.write_str("+0000"),
        'Z' => out.write_str("UTC"),
        '%' => out.write_str("%"),
        _ => return None,
    };
    written.ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, pattern: &str) -> String {
        format(pattern, UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn agrees_with_the_calendar() {
        // Expected values: GNU date -u -d @seconds.
        let pattern = "%Y-%m-%d %a %j %H:%M:%S";
        assert_eq!(at(0, pattern), "1970-01-01 Thu 001 00:00:00");
        assert_eq!(at(951_782_400, pattern), "2000-02-29 Tue 060 00:00:00");
        assert_eq!(at(1_735_689_599, pattern), "2024-12-31 Tue 366 23:59:59");
        assert_eq!(at(1_795_132_800, pattern), "2026-11-20 Fri 324 00:00:00");
        assert_eq!(at(4_107_542_400, pattern), "2100-03-01 Mon 060 00:00:00");
    }

    #[test]
    fn writes_the_fields_that_templates_use() {
        let evening = 1_772_658_305;
        assert_eq!(
            at(evening, "%d %b %Y, %B %-d, %A %I:%M %p %y"),
            "04 Mar 2026, March 4, Wednesday 09:05 PM 26"
        );
        assert_eq!(at(0, "%-H|%e|%%|%Q|%-Q|%"), "0| 1|%|%Q|%-Q|%");
    }
}
