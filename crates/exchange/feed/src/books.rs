//! What a consumer knows: every book, built from messages alone.

use std::collections::{BTreeMap, HashMap};

use nm_book::order::Side;
use thiserror::Error;

use crate::displayed::{self, Shown, rank};
use crate::itch::{Body, Message, Stock};

/// Why a message cannot be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Wrong {
    /// No order has this number.
    #[error("no order has the number {0}")]
    Unknown(u64),
    /// Another order has this number already.
    #[error("two orders have the number {0}")]
    Double(u64),
    /// More shares leave an order than it has.
    #[error("order {reference} loses {lost} shares and has {has}")]
    Shares {
        /// Which order.
        reference: u64,
        /// Shares that leave.
        lost: u32,
        /// Shares that it has.
        has: u32,
    },
    /// It is about a stock that was not listed.
    #[error("no stock has the locate {0}")]
    Stock(u16),
    /// A side is neither `B` nor `S`.
    #[error("an order is on side 0x{0:02x}")]
    Side(u8),
}

/// A displayed order.
#[derive(Debug, Clone, Copy)]
struct Order {
    locate: u16,
    shown: Shown,
    /// Its place among the orders of its price.
    arrival: u64,
}

/// What is known of a stock.
#[derive(Debug, Clone)]
pub struct StockBook {
    /// Its symbol.
    pub stock: Stock,
    /// State of trading: `T`, `Q`, `H`.
    pub state: u8,
    /// Price of the last trade, in ten thousandths.
    pub last: Option<u32>,
    /// Shares that traded.
    pub volume: u64,
    /// Orders by their places, of buyers and of sellers.
    sides: [BTreeMap<(u32, u64), u64>; 2],
}

/// All books.
#[derive(Debug, Clone, Default)]
pub struct Books {
    orders: HashMap<u64, Order>,
    stocks: BTreeMap<u16, StockBook>,
    arrivals: u64,
}

impl Books {
    /// Takes the next message.
    ///
    /// # Errors
    /// If it contradicts those before; the books are as they were.
    pub fn apply(&mut self, message: &Message) -> Result<(), Wrong> {
        let locate = message.locate;
        match message.body {
            Body::StockDirectory { stock, .. } => self.list(locate, stock),
            Body::TradingAction { state, .. } => self.stock_mut(locate)?.state = state,
            Body::AddOrder { reference, side, shares, price, .. }
            | Body::AddAttributed { reference, side, shares, price, .. } => {
                let side = match side {
                    b'B' => Side::Buy,
                    b'S' => Side::Sell,
                    other => return Err(Wrong::Side(other)),
                };
                self.add(locate, reference, Shown { side, price, shares })?;
            }
            Body::Executed { reference, shares, .. } => {
                let price = self.lose(reference, shares)?;
                self.print(locate, price, shares.into())?;
            }
            Body::ExecutedAtPrice { reference, shares, printable, price, .. } => {
                self.lose(reference, shares)?;
                if printable == b'Y' {
                    self.print(locate, price, shares.into())?;
                }
            }
            Body::Cancel { reference, shares } => drop(self.lose(reference, shares)?),
            Body::Delete { reference } => drop(self.remove(reference)?),
            Body::Replace { original, reference, shares, price } => {
                if self.orders.contains_key(&reference) {
                    return Err(Wrong::Double(reference));
                }
                let Order { locate, shown: Shown { side, .. }, .. } = self.remove(original)?;
                self.add(locate, reference, Shown { side, price, shares })?;
            }
            Body::Trade { shares, price, .. } => self.print(locate, price, shares.into())?,
            Body::Cross { shares, price, .. } if shares > 0 => {
                self.print(locate, price, shares)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn list(&mut self, locate: u16, stock: Stock) {
        let sides = [BTreeMap::new(), BTreeMap::new()];
        let new = StockBook { stock, state: b'H', last: None, volume: 0, sides };
        self.stocks.entry(locate).or_insert(new);
    }

    fn stock_mut(&mut self, locate: u16) -> Result<&mut StockBook, Wrong> {
        self.stocks.get_mut(&locate).ok_or(Wrong::Stock(locate))
    }

    fn print(&mut self, locate: u16, price: u32, shares: u64) -> Result<(), Wrong> {
        let stock = self.stock_mut(locate)?;
        stock.last = Some(price);
        stock.volume = stock.volume.saturating_add(shares);
        Ok(())
    }

    fn add(&mut self, locate: u16, reference: u64, shown: Shown) -> Result<(), Wrong> {
        if self.orders.contains_key(&reference) {
            return Err(Wrong::Double(reference));
        }
        let arrival = self.arrivals + 1;
        let place = (rank(shown.side, shown.price), arrival);
        self.stock_mut(locate)?.sides[shown.side as usize].insert(place, reference);
        self.orders.insert(reference, Order { locate, shown, arrival });
        self.arrivals = arrival;
        Ok(())
    }

    fn remove(&mut self, reference: u64) -> Result<Order, Wrong> {
        let order = self.orders.remove(&reference).ok_or(Wrong::Unknown(reference))?;
        let Shown { side, price, .. } = order.shown;
        if let Some(stock) = self.stocks.get_mut(&order.locate) {
            stock.sides[side as usize].remove(&(rank(side, price), order.arrival));
        }
        Ok(order)
    }

    /// An order loses shares; its price.
    fn lose(&mut self, reference: u64, lost: u32) -> Result<u32, Wrong> {
        let order = self.orders.get_mut(&reference).ok_or(Wrong::Unknown(reference))?;
        let Shown { price, shares: has, .. } = order.shown;
        if lost > has {
            return Err(Wrong::Shares { reference, lost, has });
        }
        order.shown.shares -= lost;
        if lost == has {
            self.remove(reference)?;
        }
        Ok(price)
    }

    /// All stocks, by their locates.
    pub fn stocks(&self) -> impl Iterator<Item = (u16, &StockBook)> {
        self.stocks.iter().map(|(locate, stock)| (*locate, stock))
    }

    /// Hash of the displayed orders of the stock with a symbol.
    pub fn hash_of(&self, stock: &Stock) -> Option<u64> {
        let mut all = self.stocks.iter();
        all.find(|(_, known)| known.stock == *stock).map(|(locate, _)| self.hash(*locate))
    }

    /// Number of displayed orders of all stocks.
    pub fn orders(&self) -> usize {
        self.orders.len()
    }

    /// Displayed orders of a stock, best price first, buyers before sellers.
    pub fn displayed(&self, locate: u16) -> impl Iterator<Item = Shown> {
        let sides = self.stocks.get(&locate).into_iter().flat_map(|stock| &stock.sides);
        let all = sides.flat_map(BTreeMap::values);
        all.filter_map(|reference| self.orders.get(reference)).map(|order| order.shown)
    }

    /// The best price of a side and the shares at it.
    pub fn best(&self, locate: u16, side: Side) -> Option<(u32, u64)> {
        let orders = &self.stocks.get(&locate)?.sides[side as usize];
        let best = orders.values().filter_map(|reference| self.orders.get(reference));
        let mut best = best.map(|order| order.shown);
        let Shown { price, shares, .. } = best.next()?;
        let rest = best.take_while(|order| order.price == price);
        Some((price, rest.fold(u64::from(shares), |sum, order| sum + u64::from(order.shares))))
    }

    /// Hash of the displayed orders of a stock.
    pub fn hash(&self, locate: u16) -> u64 {
        displayed::hash(self.displayed(locate))
    }
}
