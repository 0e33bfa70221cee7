//! Options behind the fields of a message: length, tag and value of each.

/// Tags.
pub mod tag {
    /// Firm, 4 letters.
    pub const FIRM: u8 = 2;
    /// Least quantity that must trade at once.
    pub const MIN_QTY: u8 = 3;
    /// Retail or not.
    pub const CUSTOMER_TYPE: u8 = 4;
    /// Quantity that is shown.
    pub const MAX_FLOOR: u8 = 5;
    /// Limit or pegged.
    pub const PRICE_TYPE: u8 = 6;
    /// Distance of a peg.
    pub const PEG_OFFSET: u8 = 7;
    /// Discretion.
    pub const DISCRETION_PRICE: u8 = 9;
    /// Discretion.
    pub const DISCRETION_TYPE: u8 = 10;
    /// Discretion.
    pub const DISCRETION_OFFSET: u8 = 11;
    /// Post only.
    pub const POST_ONLY: u8 = 12;
    /// Random parts.
    pub const RANDOM_RESERVES: u8 = 13;
    /// Route.
    pub const ROUTE: u8 = 14;
    /// When it expires, s since midnight.
    pub const EXPIRE_TIME: u8 = 15;
    /// Trade at once.
    pub const TRADE_NOW: u8 = 16;
    /// Handling.
    pub const HANDLE_INST: u8 = 17;
    /// Group of orders.
    pub const GROUP_ID: u8 = 24;
    /// Shares are located.
    pub const SHARES_LOCATED: u8 = 25;
    /// Who has located them.
    pub const LOCATE_BROKER: u8 = 26;
    /// Side.
    pub const SIDE: u8 = 27;
    /// Sub-channel.
    pub const USER_REF_INDEX: u8 = 28;
    /// Self-match prevention.
    pub const AIQ_STRATEGY: u8 = 29;
    /// Self-match prevention.
    pub const AIQ_GROUP: u8 = 30;
}

/// Options: tag and value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Appendage(Vec<(u8, Vec<u8>)>);

impl Appendage {
    /// The options of these bytes, unless their lengths do not fit.
    pub fn read(mut bytes: &[u8]) -> Option<Appendage> {
        let mut options = vec![];
        while let Some((length, rest)) = bytes.split_first() {
            let (option, rest) = rest.split_at_checked(usize::from(*length))?;
            let (tag, value) = option.split_first()?;
            options.push((*tag, value.to_vec()));
            bytes = rest;
        }
        Some(Appendage(options))
    }

    /// Their bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = vec![];
        for (tag, value) in &self.0 {
            bytes.extend_from_slice(&[value.len() as u8 + 1, *tag]);
            bytes.extend_from_slice(value);
        }
        bytes
    }

    /// Adds an option.
    ///
    /// # Panics
    /// If its value has more than 254 bytes.
    pub fn push(&mut self, tag: u8, value: &[u8]) {
        assert!(value.len() < usize::from(u8::MAX), "a value has at most 254 bytes");
        self.0.push((tag, value.to_vec()));
    }

    /// All options.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.0.iter().map(|(tag, value)| (*tag, value.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_option_is_passed_by_its_length() {
        // The example of the specification: UserRefIdx 5.
        let read = Appendage::read(&[2, 200, 7, 2, 0x1c, 5]).unwrap();
        let found: Vec<_> = read.iter().collect();
        assert_eq!(found, [(200, &[7][..]), (tag::USER_REF_INDEX, &[5][..])]);
        assert_eq!(read.write(), [2, 200, 7, 2, 0x1c, 5]);
        for wrong in [&[0][..], &[3, 1, 2], &[2]] {
            assert_eq!(Appendage::read(wrong), None, "{wrong:?}");
        }
    }
}
