//! The best bid and offer of each stock, its last trade and its state, conflated. A stock has at
//! most one message in an interval, and one now and then even if nothing has changed.
//!
//! A message has all that is known of its stock, so nobody needs those before it, and none is sent
//! again. Messages are in packets of MoldUDP64 with the session of the feed and numbers of their
//! own. By these a receiver sees what it has missed. ITCH has no such message: it is one of this
//! exchange.

use crate::itch::Stock;

/// Type of the message.
pub const TYPE: u8 = b'T';

/// Bytes of the message.
pub const MESSAGE_BYTES: usize = 64;

/// The best price of a side, in ten thousandths, and the shares at it.
pub type Best = Option<(u32, u64)>;

/// What is known of a stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Top {
    /// Number of the stock, as in the feed.
    pub locate: u16,
    /// Its symbol.
    pub stock: Stock,
    /// Time of its latest change, ns since midnight, UTC.
    pub time_ns: u64,
    /// State of trading: `T`, `Q`, `H`.
    pub state: u8,
    /// The best buyers.
    pub bid: Best,
    /// The best sellers.
    pub offer: Best,
    /// Price and shares of the latest trade.
    pub last: Best,
    /// Shares that traded since it is followed.
    pub volume: u64,
}

impl Top {
    /// Its bytes. A price without shares is none.
    pub fn write(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&[TYPE]);
        put(&self.locate.to_be_bytes());
        put(&[0, 0]);
        put(&self.time_ns.to_be_bytes()[2..]);
        put(&self.stock);
        put(&[self.state]);
        for best in [self.bid, self.offer, self.last] {
            let (price, shares) = best.unwrap_or_default();
            put(&price.to_be_bytes());
            put(&shares.to_be_bytes());
        }
        put(&self.volume.to_be_bytes());
        debug_assert_eq!(at, MESSAGE_BYTES);
        bytes
    }

    /// The message that bytes are, if they are one.
    pub fn read(bytes: &[u8]) -> Option<Top> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let best = |from: usize| {
            let (price, shares) = (number(from, from + 4) as u32, number(from + 4, from + 12));
            (shares > 0).then_some((price, shares))
        };
        let mut stock = [0; 8];
        stock.copy_from_slice(&bytes[11..19]);
        (bytes[0] == TYPE).then(|| Top {
            locate: number(1, 3) as u16,
            stock,
            time_ns: number(5, 11),
            state: bytes[19],
            bid: best(20),
            offer: best(32),
            last: best(44),
            volume: number(56, 64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        let top = Top {
            locate: 0x0102,
            stock: *b"ACME    ",
            time_ns: 0x0000_0304_0506_0708,
            state: b'T',
            bid: Some((102_500, 7)),
            offer: None,
            last: Some((1, u64::MAX)),
            volume: 9,
        };
        let bytes = top.write();
        assert_eq!(&bytes[..20], b"T\x01\x02\0\0\x03\x04\x05\x06\x07\x08ACME    T");
        assert_eq!(bytes[20..24], 102_500_u32.to_be_bytes());
        assert_eq!(bytes[32..44], [0; 12]);
        assert_eq!(Top::read(&bytes), Some(top));
        assert_eq!((Top::read(&bytes[1..]), Top::read(&[b'S'; MESSAGE_BYTES])), (None, None));
    }
}
