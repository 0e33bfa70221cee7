//! The hard state of a replica: what it must not forget besides its entries. It is kept in a
//! [slot file](crate::slot_file).

use nm_codec::{DecodeError, Reader};
use openraft::{LogId, Vote};

use crate::encode::Encode;
use crate::slot_file::Marks;
use crate::types::NodeId;

/// What a replica must not forget, besides the entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HardState {
    /// The starts that the group was bootstrapped with, in the order of its members (see
    /// [`crate::bootstrap`]).
    pub bootstrap_ids: Vec<u64>,
    /// The last vote.
    pub vote: Option<Vote<NodeId>>,
    /// The entry that the log must reach before this replica may lead, or vote for a candidate
    /// that lacks it.
    pub required_log_id: Option<LogId<NodeId>>,
    /// The last entry that was purged because a snapshot contains it.
    pub purged: Option<LogId<NodeId>>,
}

impl Encode for HardState {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bootstrap_ids.encode(out);
        self.vote.encode(out);
        self.required_log_id.encode(out);
        self.purged.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<HardState, DecodeError> {
        Ok(HardState {
            bootstrap_ids: Vec::decode(from, "bootstrap ids")?,
            vote: Option::decode(from, "vote")?,
            required_log_id: Option::decode(from, "required entry")?,
            purged: Option::decode(from, "purged entry")?,
        })
    }
}

/// Name of its files in a group's folder.
pub const HARD_STATE: &str = "hard-state";

/// The marks of its files.
pub const MARKS: Marks = Marks { now: *b"nmhard04", before: &[*b"nmhard03", *b"nmhard02"] };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::strategies;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hard_states_round_trip(
            bootstrap_ids in prop::collection::vec(any::<u64>(), 0..16),
            vote in prop::option::of(strategies::vote()),
            required_log_id in prop::option::of(strategies::log_id()),
            purged in prop::option::of(strategies::log_id()),
        ) {
            let state = HardState { bootstrap_ids, vote, required_log_id, purged };
            let content = state.to_bytes();
            prop_assert_eq!(HardState::from_bytes(&content, "hard state"), Ok(state));
        }
    }
}
