//! What happened during a day, by whomever it was made to happen.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest description of an event, characters.
pub const DETAIL_MAX: usize = 200;

/// A kind of event.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The rate changes at once.
    Rate,
    /// The rate changes over the length of a phase.
    Ramp,
    /// Other instruments are in demand than before.
    HotSet,
    /// Requests come from other gateways than before.
    GatewayShift,
    /// An auction in all instruments.
    Auction,
    /// A node was killed, and restarted.
    Fault,
    /// A node ended by itself, and was restarted.
    Restart,
    /// A node was drained, or restarted as planned.
    Maintenance,
    /// An instrument was moved to another cell.
    Move,
    /// A policy decided something.
    Decision,
}

impl EventKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Rate => "rate",
            EventKind::Ramp => "ramp",
            EventKind::HotSet => "hot set",
            EventKind::GatewayShift => "gateway shift",
            EventKind::Auction => "auction",
            EventKind::Fault => "fault",
            EventKind::Restart => "restart",
            EventKind::Maintenance => "maintenance",
            EventKind::Move => "move",
            EventKind::Decision => "decision",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An event of a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayEvent {
    /// When it began, ns on the monotonic clock.
    pub at_ns: u64,
    /// When it ended, ns on the monotonic clock; as `at_ns` if it has no length.
    pub until_ns: u64,
    /// Its kind.
    pub kind: EventKind,
    /// What happened, in a few words.
    pub detail: String,
}

impl DayEvent {
    /// An event without length. Of the description, `DETAIL_MAX` characters are kept.
    pub fn at(at_ns: u64, kind: EventKind, detail: impl Into<String>) -> DayEvent {
        let mut detail: String = detail.into();
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_MAX) {
            detail.truncate(end);
        }
        DayEvent { at_ns, until_ns: at_ns, kind, detail }
    }

    /// The event with its end.
    #[must_use]
    pub fn until(self, until_ns: u64) -> DayEvent {
        DayEvent { until_ns: until_ns.max(self.at_ns), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_a_limit_and_ends_are_not_before_starts() {
        let event = DayEvent::at(7, EventKind::Move, "ä".repeat(300));
        assert_eq!((event.detail.chars().count(), event.until_ns), (DETAIL_MAX, 7));
        assert_eq!(event.clone().until(3).until_ns, 7);
        assert_eq!(event.until(9).until_ns, 9);
        assert_eq!(format!("{:9}|", EventKind::HotSet), "hot set  |");
    }
}
