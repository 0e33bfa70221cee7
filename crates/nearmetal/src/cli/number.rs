//! Numbers without a fraction on the command line, with the range that they may have.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A text that is no number of the range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be a number without a fraction from {min} to {max}")]
pub struct NotInRange<T: Display> {
    min: T,
    max: T,
}

/// Reads numbers of a range. Unlike clap's own, it names the range also for a text that is no
/// number of the type, such as one with too many digits.
pub fn number<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, NotInRange<T>> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let found = text.parse().ok().filter(|number| range.contains(number));
        found.ok_or_else(|| NotInRange { min: range.start().clone(), max: range.end().clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_answered_with_the_range() {
        let read = number(1_u32..=1000);
        assert_eq!((read("1"), read("1000")), (Ok(1), Ok(1000)));
        for text in ["0", "1001", "-1", "4294967296", "99999999999999999999", "1.5", "x", ""] {
            let error = read(text).unwrap_err().to_string();
            assert_eq!(error, "must be a number without a fraction from 1 to 1000", "{text}");
        }
    }
}
