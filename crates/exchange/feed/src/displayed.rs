//! What others see of a book: its displayed orders in order of priority, and their hash.

use nm_book::order::OrderType;
pub use nm_book::order::Side;
use nm_book::snapshot::{BookSnapshot, SnapshotOrder};
use nm_codec::fnv1a_on;

use crate::stock::Listing;

/// A displayed order, without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Its side.
    pub side: Side,
    /// Its price in ten thousandths.
    pub price: u32,
    /// Shares that it shows.
    pub shares: u32,
}

/// Whether an order rests at a price where others can see it.
pub fn rests(order: &SnapshotOrder) -> bool {
    let is_limit = order.order.order_type == OrderType::Limit;
    !order.is_pending_stop && is_limit && order.order.is_displayed()
}

/// The displayed orders of a book, best price first, buyers before sellers.
///
/// An order whose price or shown quantity ITCH cannot express is none of them.
pub fn displayed(book: &BookSnapshot, listing: &Listing) -> Vec<Shown> {
    let orders = book.orders.iter().filter(|order| rests(order)).filter_map(|order| {
        let (price, shares) = (listing.price(order.order.price)?, listing.shares(order.shown)?);
        Some(Shown { side: order.order.side, price, shares })
    });
    let mut all: Vec<Shown> = orders.collect();
    // Stable: orders of one price stay in order of priority.
    all.sort_by_key(|order| (order.side, rank(order.side, order.price)));
    all
}

/// The better a price is, the smaller.
pub fn rank(side: Side, price: u32) -> u32 {
    match side {
        Side::Buy => u32::MAX - price,
        Side::Sell => price,
    }
}

/// Hash of displayed orders (64-bit FNV-1a).
pub fn hash(orders: impl IntoIterator<Item = Shown>) -> u64 {
    orders.into_iter().fold(fnv1a_on(0, b"displayed"), |hash, order| {
        let mut bytes = [0; 9];
        bytes[0] = order.side as u8;
        bytes[1..5].copy_from_slice(&order.price.to_be_bytes());
        bytes[5..].copy_from_slice(&order.shares.to_be_bytes());
        fnv1a_on(hash, &bytes)
    })
}
