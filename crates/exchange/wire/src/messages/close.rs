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

/// How the sentence begins by which a gateway ends the link of a client whose heartbeats have
/// ended: that one connects again.
pub const SILENCE: &str = "no heartbeat";

/// Longest sentence that is sent or taken, bytes.
const REASON_BYTES_MAX: usize = 400;

impl Close {
    /// Whether the link ends because heartbeats have ended.
    pub fn is_of_silence(&self) -> bool {
        self.reason.starts_with(SILENCE)
    }

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
