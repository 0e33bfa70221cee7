//! Percentages on the command line.

/// A text that is no percentage from 0 to 1000.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a percentage; write for example 5%")]
pub struct NotAPercentage(String);

/// Reads `5%` or `5`.
///
/// # Errors
/// If it is no percentage from 0 to 1000.
pub fn percent(text: &str) -> Result<f64, NotAPercentage> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    match digits.trim().parse::<f64>() {
        Ok(value) if (0.0..=1000.0).contains(&value) => Ok(value),
        _ => Err(NotAPercentage(text.to_string())),
    }
}
