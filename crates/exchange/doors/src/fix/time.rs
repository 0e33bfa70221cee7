//! UTC timestamps as FIX writes them.

/// ns of a day.
const DAY_NS: u64 = 86_400_000_000_000;

/// A time, ns since 1970, as `YYYYMMDD-HH:MM:SS.sss`.
pub fn format(unix_ns: u64) -> String {
    let (year, month, day) = date_of(unix_ns / DAY_NS);
    let ms = unix_ns % DAY_NS / 1_000_000;
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    let ms = ms % 1_000;
    format!("{year:04}{month:02}{day:02}-{hour:02}:{minute:02}:{second:02}.{ms:03}")
}

/// The time of a text: seconds, or with 3, 6, 9 or 12 digits behind them; ns since 1970.
pub fn parse(text: &str) -> Option<u64> {
    let (seconds, fraction) = match text.split_once('.') {
        Some((seconds, fraction)) => (seconds, Some(fraction)),
        None => (text, None),
    };
    let ns = match fraction {
        None => 0,
        Some(digits) if matches!(digits.len(), 3 | 6 | 9 | 12) => {
            let number = number(digits)?;
            match digits.len() {
                12 => number / 1_000,
                length => number * 10_u64.pow(9 - length as u32),
            }
        }
        Some(_) => return None,
    };
    let bytes = seconds.as_bytes();
    let is_formed = bytes.len() == 17 && bytes[8] == b'-' && bytes[11] == b':' && bytes[14] == b':';
    if !is_formed || !seconds.is_ascii() {
        return None;
    }
    let (year, month, day) =
        (number(&seconds[..4])?, number(&seconds[4..6])?, number(&seconds[6..8])?);
    let (hour, minute) = (number(&seconds[9..11])?, number(&seconds[12..14])?);
    let second = number(&seconds[15..])?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_to(year, month, day)?;
    // A leap second has no number of its own since 1970.
    let of_day = (hour * 60 + minute) * 60 + second.min(59);
    days.checked_mul(DAY_NS)?.checked_add(of_day * 1_000_000_000 + ns)
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The date so many days after 1970-01-01, by the calendar whose years begin in March.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Days from 1970-01-01 to a date that exists.
fn days_to(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let shifted = year - u64::from(month <= 2);
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    let days = days.checked_sub(719_468)?;
    (date_of(days) == (year, month, day)).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_has_zero_to_twelve_digits_behind_the_second() {
        let second = parse("20261129-16:27:03").unwrap();
        assert_eq!(format(second), "20261129-16:27:03.000");
        for (text, ns) in [
            ("20261129-16:27:03.250", 250_000_000),
            ("20261129-16:27:03.000250", 250_000),
            ("20261129-16:27:03.000000250", 250),
            ("20261129-16:27:03.000000250999", 250),
        ] {
            assert_eq!(parse(text), Some(second + ns), "{text}");
        }
        for text in [
            "20261129-16:27:03.1",
            "20261129-16:27:03.123456789012345",
            "20261129 16:27:03",
            "20261329-16:27:03",
            "20260229-16:27:03",
            "20261129-24:27:03",
            "20261129-16:60:03",
            "19691129-16:27:03",
            "2026é29-16:27:03",
            "",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse("20161231-23:59:60").is_some(), "a leap second");
        assert!(parse("20240229-00:00:00").is_some(), "a leap day");
    }

    proptest! {
        #[test]
        fn a_time_is_parsed_as_it_is_printed(ms in 0_u64..7_258_118_400_000) {
            prop_assert_eq!(parse(&format(ms * 1_000_000)), Some(ms * 1_000_000));
        }
    }
}
