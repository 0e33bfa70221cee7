//! What the feed says of an instrument: its symbol, and how its ticks and lots become ITCH's prices
//! and shares.

use nm_book::order::{InstrumentId, Price, Quantity};
use nm_doors::decimal::Decimal;
use nm_doors::symbols::Symbol;

use crate::itch::Stock;

/// An instrument as the feed shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listing {
    /// Its symbol, with blanks at its end.
    pub stock: Stock,
    /// A tick in ten thousandths.
    pub tick: u32,
    /// Shares of a lot.
    pub lot: u32,
}

impl Listing {
    /// That of an instrument without a symbol: `#` and its number if that has at most 7 digits, and
    /// otherwise `~` and the number to base 36. A tick is 0.01, a lot one share.
    pub fn unnamed(instrument: InstrumentId) -> Listing {
        let name = match instrument {
            0..=9_999_999 => format!("#{instrument}"),
            _ => format!("~{}", to_base_36(instrument)),
        };
        Listing { stock: padded(&name), tick: 100, lot: 1 }
    }

    /// That of a symbol; none if ITCH cannot express its name, tick or lot.
    pub fn of(symbol: &Symbol) -> Option<Listing> {
        let units = |number: Decimal, unit| {
            u32::try_from(number.in_units(unit)?).ok().filter(|units| *units > 0)
        };
        Some(Listing {
            stock: (symbol.name.len() <= 8).then(|| padded(&symbol.name))?,
            tick: units(symbol.tick, Decimal::PRICE_UNIT)?,
            lot: units(symbol.lot, Decimal::ONE)?,
        })
    }

    /// A price in ten thousandths, if ITCH can express it.
    #[inline]
    pub fn price(&self, price: Price) -> Option<u32> {
        u32::try_from(price.checked_mul(i64::from(self.tick))?).ok()
    }

    /// A quantity in shares, if ITCH can express it.
    #[inline]
    pub fn shares(&self, quantity: Quantity) -> Option<u32> {
        u32::try_from(quantity.checked_mul(u64::from(self.lot))?).ok()
    }

    /// A quantity in shares; the most that there are if it is more.
    pub fn all_shares(&self, quantity: Quantity) -> u64 {
        quantity.saturating_mul(u64::from(self.lot))
    }
}

fn padded(name: &str) -> Stock {
    let mut stock = [b' '; 8];
    stock.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
    stock
}

fn to_base_36(mut number: u32) -> String {
    let mut digits = vec![];
    while number > 0 {
        digits.extend(char::from_digit(number % 36, 36).map(|digit| digit.to_ascii_uppercase()));
        number /= 36;
    }
    digits.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruments_without_a_symbol_have_one_each() {
        let name = |instrument| Listing::unnamed(instrument).stock;
        assert_eq!(&name(7), b"#7      ");
        assert_eq!(&name(9_999_999), b"#9999999");
        assert_eq!(&name(10_000_000), b"~5YC1S  ");
        assert_eq!(&name(u32::MAX), b"~1Z141Z3");
    }

    #[test]
    fn what_itch_cannot_express_is_none() {
        let listing = Listing { stock: *b"ACME    ", tick: 100, lot: 10 };
        assert_eq!((listing.price(-1), listing.price(0)), (None, Some(0)));
        assert_eq!(listing.price(42_949_672), Some(4_294_967_200));
        assert_eq!((listing.price(42_949_673), listing.price(i64::MAX)), (None, None));
        assert_eq!(
            (listing.shares(429_496_729), listing.shares(429_496_730)),
            (Some(4_294_967_290), None)
        );
    }
}
