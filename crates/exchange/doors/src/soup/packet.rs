//! Packets: two bytes of length, one of type, and the payload.

use crate::limits::PACKET_BYTES_MAX;
use crate::line::{Cut, Next};

/// Type of a packet that both sides may send and nobody reads.
pub const DEBUG: u8 = b'+';
/// The server lets the client in.
pub const LOGIN_ACCEPTED: u8 = b'A';
/// The server does not let the client in.
pub const LOGIN_REJECTED: u8 = b'J';
/// The server sends a message that has a number.
pub const SEQUENCED: u8 = b'S';
/// A message without a number.
pub const UNSEQUENCED: u8 = b'U';
/// The server lives.
pub const SERVER_HEARTBEAT: u8 = b'H';
/// The client wants to be let in.
pub const LOGIN_REQUEST: u8 = b'L';
/// The client lives.
pub const CLIENT_HEARTBEAT: u8 = b'R';
/// The client leaves.
pub const LOGOUT: u8 = b'O';

/// Bytes of the length.
const LENGTH_BYTES: usize = 2;

/// A packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its type.
    pub kind: u8,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// The bytes of a packet.
///
/// # Panics
/// If the payload is longer than a length of two bytes says.
pub fn packet(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 1).expect("a payload has at most 65534 bytes");
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    bytes
}

/// Received bytes that are no packet yet.
#[derive(Debug, Default)]
pub struct Framer {
    bytes: Vec<u8>,
    start: usize,
}

impl Cut for Framer {
    type Message = Packet;

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<Next<Packet>> {
        let bytes = &self.bytes[self.start..];
        let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        if length == 0 || length > PACKET_BYTES_MAX {
            // Nothing behind it is looked at.
            (self.bytes, self.start) = (vec![], 0);
            let why = format!("a packet of {length} bytes: 1 to {PACKET_BYTES_MAX} are possible");
            return Some(Next::Fault(why));
        }
        let (kind, payload) = rest.get(..length)?.split_first()?;
        let packet = Packet { kind: *kind, payload: payload.to_vec() };
        self.start += LENGTH_BYTES + length;
        Some(Next::Message(packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(framer: &mut Framer) -> Vec<Next<Packet>> {
        std::iter::from_fn(|| framer.next()).collect()
    }

    #[test]
    fn a_packet_has_its_length_before_its_type() {
        assert_eq!(packet(SERVER_HEARTBEAT, b""), [0, 1, b'H']);
        assert_eq!(packet(SEQUENCED, b"ab"), [0, 3, b'S', b'a', b'b']);
    }

    #[test]
    fn a_packet_has_a_number_of_bytes() {
        let fits = packet(UNSEQUENCED, &vec![0; PACKET_BYTES_MAX - 1]);
        let mut framer = Framer::default();
        framer.push(&fits);
        assert!(matches!(all(&mut framer)[..], [Next::Message(_)]));
        for wrong in [packet(UNSEQUENCED, &vec![0; PACKET_BYTES_MAX]), vec![0, 0]] {
            let mut framer = Framer::default();
            framer.push(&wrong);
            assert!(matches!(all(&mut framer)[..], [Next::Fault(_)]));
        }
    }

    proptest! {
        #[test]
        fn packets_that_are_split_anywhere_come_out_as_they_were(
            packets in prop::collection::vec(
                (any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            pieces in prop::collection::vec(1_usize..40, 1..50),
        ) {
            let bytes: Vec<u8> = packets.iter().flat_map(|(kind, it)| packet(*kind, it)).collect();
            let (mut framer, mut found, mut at) = (Framer::default(), vec![], 0);
            for piece in pieces.iter().cycle() {
                let end = bytes.len().min(at + piece);
                framer.push(&bytes[at..end]);
                found.extend(all(&mut framer));
                at = end;
                if at == bytes.len() {
                    break;
                }
            }
            let sent: Vec<_> = packets
                .into_iter()
                .map(|(kind, payload)| Next::Message(Packet { kind, payload }))
                .collect();
            prop_assert_eq!(found, sent);
        }
    }
}
