//! Spans of time on the command line.

use std::time::Duration;

/// A text that is no span of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no span from {min} to {max}; write for example 90s, 10m, 2h or 30d")]
pub struct NotASpan {
    text: String,
    min: &'static str,
    max: &'static str,
}

/// The span of a text; none if it is no number with one of the units s, m, h and d.
fn parsed(text: &str) -> Option<Duration> {
    let unit_s = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u32 = text[..text.len() - 1].parse().ok()?;
    Some(Duration::from_secs(u64::from(number) * unit_s))
}

/// Reads spans of a range, whose ends are written as the user would.
pub fn span(
    min: &'static str,
    max: &'static str,
) -> impl Fn(&str) -> Result<Duration, NotASpan> + Clone + Send + Sync + 'static {
    move |text| {
        let is_in_range = |span: &Duration| {
            parsed(min).is_some_and(|min| min <= *span)
                && parsed(max).is_some_and(|max| *span <= max)
        };
        let refused = || NotASpan { text: text.to_string(), min, max };
        parsed(text).filter(is_in_range).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_unit_and_a_range() {
        let read = span("10s", "7d");
        assert_eq!(read("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(read("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for text in ["", "10", "s", "9s", "8d", "-1m", "1.5h", "10 m", "99999999999d", "1ä"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("from 10s to 7d; write for example"), "{error}");
        }
    }
}
