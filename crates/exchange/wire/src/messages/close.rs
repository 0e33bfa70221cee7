//! The end of a link.

use crate::message;

message! {
    /// The sender closes the link.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Close;
    head {}
    tail {
        /// Why: a sentence for people, of at most 400 bytes.
        reason: String,
    }
}

/// Longest sentence that is sent or taken, bytes.
const REASON_BYTES_MAX: usize = 400;

impl Close {
    /// With a reason, which is cut off if it is too long.
    pub fn because(reason: &str) -> Close {
        Close { reason: reason[..reason.floor_char_boundary(REASON_BYTES_MAX)].to_string() }
    }

    /// The sentence, for logs: what cannot be printed is replaced.
    pub fn printable(&self) -> String {
        let text = &self.reason[..self.reason.floor_char_boundary(REASON_BYTES_MAX)];
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}
