//! The user data of registrations that the accelerator makes in a program's epoll set.

use std::sync::OnceLock;

use crate::kernel;

/// Most members that a set can have.
pub const INDEX_LIMIT: usize = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 11;
const DOORBELL: u64 = 1 << 31;

/// The user data of one registration: which slot of the set, which use of the slot, and whether it
/// is the doorbell or the socket.
///
/// The upper half is a random number of this process. If a program's own data happen to begin with
/// it, its registration becomes a member of the set as well (see [`EventTag::has_tag_prefix`]), so
/// that no value is ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTag {
    /// Slot of the set.
    pub index: usize,
    /// Which use of the slot, in the range of [`EventTag::generation`].
    pub generation: u32,
    /// The socket's doorbell rather than the socket.
    pub is_doorbell: bool,
}

impl EventTag {
    /// The generation of a count of uses.
    pub fn generation(generation: u32) -> u32 {
        generation & ((1 << GENERATION_BITS) - 1)
    }

    /// Encodes the tag as an epoll event's data.
    pub fn data(self) -> u64 {
        let index = self.index as u64 & (INDEX_LIMIT as u64 - 1);
        let generation = u64::from(EventTag::generation(self.generation)) << INDEX_BITS;
        secret() << 32 | if self.is_doorbell { DOORBELL } else { 0 } | generation | index
    }

    /// Whether `data` begin as a tag does.
    pub fn has_tag_prefix(data: u64) -> bool {
        data >> 32 == secret()
    }

    /// Decodes `data` if they begin as a tag does.
    pub fn parse(data: u64) -> Option<EventTag> {
        EventTag::has_tag_prefix(data).then(|| EventTag {
            index: (data & (INDEX_LIMIT as u64 - 1)) as usize,
            generation: EventTag::generation((data >> INDEX_BITS) as u32),
            is_doorbell: data & DOORBELL != 0,
        })
    }
}

/// 32 random bits; a fork inherits them, as it does the sets.
fn secret() -> u64 {
    static SECRET: OnceLock<u64> = OnceLock::new();
    *SECRET.get_or_init(|| {
        let mut bytes = [0_u8; 4];
        let nonblock = libc::GRND_NONBLOCK as usize;
        // SAFETY: four bytes are written to `bytes`.
        let filled = unsafe {
            kernel::raw(libc::SYS_getrandom, bytes.as_mut_ptr().addr(), 4, nonblock, 0, 0, 0)
        };
        if filled != 4 {
            // Correctness does not depend on the number: a collision only costs time.
            bytes = [0x6e, 0x6d, 0xa1, 0x5e];
        }
        u64::from(u32::from_ne_bytes(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_round_trips_and_other_data_are_rejected() {
        for index in [0, 1, 77, INDEX_LIMIT - 1] {
            for generation in [0, 1, 2047] {
                for is_doorbell in [false, true] {
                    let tag = EventTag { index, generation, is_doorbell };
                    assert_eq!(EventTag::parse(tag.data()), Some(tag));
                    assert!(EventTag::has_tag_prefix(tag.data()));
                    assert_eq!(EventTag::parse(tag.data() ^ 1 << 40), None);
                }
            }
        }
        assert_eq!(EventTag::generation(2048), 0);
    }
}
