//! The nouns of trading: orders, commands to the book of one instrument, and what it answers.
//!
//! Prices are in ticks and may be negative, as spreads and some commodities are. Quantities are in
//! lots. Times are ns on the clock of whoever puts commands in order; a book never reads a clock,
//! so that the same commands always give the same state.
//!
//! # Rules
//! Where peers differ, these hold, in the plain book and in the fast one alike.
//!
//! - **Place.** An order gets its place when it is accepted, and a new one behind all others when
//!   it is replaced (but for less quantity at the same price), when an iceberg shows its next
//!   part, and when a triggered stop comes to rest. Whatever takes out several orders takes them
//!   in order of place; expiry takes the earliest time first.
//! - **Time** does not go back: a command with an earlier time happens at the latest time so far.
//! - **Checks** of a new order, the first that fails is told: halted, quantities, combination,
//!   expired, duplicate name, bands, auction, post-only. Of a replacement: halted, unknown,
//!   quantity, bands, post-only. What is refused changes nothing, and its name stays free.
//! - **Replace** gives the quantity that is open from then on, whatever has traded. A minimum does
//!   not count again, the wish about self-trades does. A waiting stop keeps its place whatever
//!   changes; a market order or market stop has no limit to change.
//! - **Market orders** never rest in continuous trading whatever their life says. They do in an
//!   auction, ahead of all limits, and what is left of them after the uncross is cancelled.
//! - **Stops** wait whatever the market does; only trades reach them, quotes do not. A trade
//!   elects each stop that it reaches, also one that another trade of the same command leaves
//!   again; elected stops act one after another once the command that made the trade is done,
//!   those elected by it in order of place, then those that they elect. A stop that comes when the
//!   last trade is already at its price or beyond acts at once, except in an auction, after which
//!   it waits for a trade. Minimum, display, immediate lives and self-trade prevention count from
//!   when it acts.
//! - **Iceberg.** Only the shown part trades in its place; all parts shown at a price trade before
//!   the next parts do. Self-trade prevention, fill-or-kill and auctions see all of it. One that
//!   comes takes with all that it has, then shows a part.
//! - **Fill-or-kill and minimum quantity** hold for what would really trade, in the order in which
//!   it would, self-trade prevention included; when they fail nothing at all has changed. So what
//!   trades before an own order is met counts towards the minimum, own orders do not, and a
//!   fill-or-kill order that would be decremented is killed.
//! - **Self-trade prevention** is the incoming order's wish and does not apply within an auction.
//!   Own orders count as the other side for post-only all the same. An iceberg is met with its
//!   hidden part: it goes in full, or is decremented by all that the other has.
//! - **Post-only** and stop, immediate, market or minimum contradict each other, as do iceberg and
//!   immediate or market. A post-only order that slides outside the bands, or beyond the last
//!   price that there is, is cancelled. One that is replaced must not take either: it is refused
//!   or slides. Nobody takes in an auction, so there one that came before may be moved anywhere.
//! - **Bands** hold for limits, those of waiting stops included, and so for every trade. A stop
//!   price may lie anywhere, and market orders take what lies within.
//! - **Halt.** Orders neither come nor change; they may be cancelled, expire and end with the day.
//!   A halt within an auction goes back to it.
//! - **Auction.** The price is that of a limit in the book, or of the last trade moved into the
//!   bands. The one that trades most; of several, the one that leaves least; of several, the one
//!   nearest to the last trade; of two, the lower. Market orders alone trade at the last price.
//!   Who trades: market orders, then better limits, then earlier places. Immediate, post-only and
//!   minimum orders are not taken while it collects; stops are, and wait. The one price reaches
//!   stops as any trade does; they act in continuous trading, after the last order of the auction.

use std::fmt;

/// Price in ticks.
pub type Price = i64;

/// Quantity in lots; zero is no order.
pub type Quantity = u64;

/// Name of an order, chosen by its user, unique within its instrument as long as the order lives.
pub type OrderId = u64;

/// Who sent an order.
pub type UserId = u32;

/// An instrument with its state and its order of events: the unit of routing and of mobility.
pub type Segment = u32;

/// The two sides of a book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Wants to buy: the higher its price, the sooner it trades.
    Buy,
    /// Wants to sell: the lower its price, the sooner it trades.
    Sell,
}

impl Side {
    /// The side that it trades with.
    pub fn opposite(self) -> Side {
        match self {
            Side::Buy => Side::Sell,
            Side::Sell => Side::Buy,
        }
    }
}

/// When an order becomes able to trade, and at which price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// At its price or better.
    Limit,
    /// At any price; what finds nobody is cancelled.
    Market,
    /// A market order once the market has traded at its stop price or beyond.
    Stop,
    /// A limit order once the market has traded at its stop price or beyond.
    StopLimit,
}

impl Kind {
    /// Whether an order of this kind has a limit price.
    pub fn has_limit(self) -> bool {
        matches!(self, Kind::Limit | Kind::StopLimit)
    }
}

/// How long an order lives (its time in force).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    /// Until [`Command::EndOfDay`].
    Day,
    /// Until it is filled or cancelled.
    GoodTillCancelled,
    /// Until the first command whose time is not before this one, ns; in the exchange, since 1970.
    GoodTill(u64),
    /// Trades at once what it can; the rest is cancelled.
    ImmediateOrCancel,
    /// Trades at once in full, or not at all.
    FillOrKill,
}

/// What happens to an order that must not take, and would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PostOnly {
    /// It may take.
    No,
    /// It is rejected.
    Reject,
    /// It rests one tick away from the best price of the other side.
    Slide,
}

/// What happens when two orders of one user would trade with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SelfTrade {
    /// They trade.
    Allow,
    /// The incoming order is cancelled.
    CancelNewest,
    /// The resting order is cancelled, and the incoming one goes on.
    CancelOldest,
    /// Both are cancelled.
    CancelBoth,
    /// The larger one loses the smaller one's quantity, and the smaller one is cancelled.
    Decrement,
}

/// A new order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewOrder {
    /// Its name.
    pub id: OrderId,
    /// Who sent it.
    pub user: UserId,
    /// Side.
    pub side: Side,
    /// Kind.
    pub kind: Kind,
    /// Time in force.
    pub life: Life,
    /// Limit price; without meaning for market and stop orders.
    pub price: Price,
    /// Stop price; without meaning but for stop and stop-limit orders.
    pub stop_price: Price,
    /// Quantity in all.
    pub quantity: Quantity,
    /// What others see of it at a time: zero for all of it, less than the quantity for an iceberg.
    pub display: Quantity,
    /// Least quantity that must trade at once when it comes in, or it is cancelled: zero for none.
    pub minimum: Quantity,
    /// Whether it may take.
    pub post_only: PostOnly,
    /// What happens when it meets an order of its own user; the incoming order's wish counts.
    pub self_trade: SelfTrade,
}

impl NewOrder {
    /// What is wrong with it whatever the book, if anything.
    pub fn fault(&self) -> Option<Reason> {
        let immediate = matches!(self.life, Life::ImmediateOrCancel | Life::FillOrKill);
        let never_rests = immediate || !self.kind.has_limit();
        let is_stop = matches!(self.kind, Kind::Stop | Kind::StopLimit);
        let hides = self.display > 0 && self.display < self.quantity;
        let is_passive = self.post_only != PostOnly::No;
        if self.quantity == 0 || self.display > self.quantity || self.minimum > self.quantity {
            Some(Reason::BadQuantity)
        } else if is_passive && (never_rests || is_stop || self.minimum > 0) || hides && never_rests
        {
            Some(Reason::BadCombination)
        } else {
            None
        }
    }

    /// Whether it may come while an auction collects orders: stops may, whatever they become.
    pub fn fits_auction(&self) -> bool {
        let immediate = matches!(self.life, Life::ImmediateOrCancel | Life::FillOrKill);
        matches!(self.kind, Kind::Stop | Kind::StopLimit)
            || !(immediate || self.post_only != PostOnly::No || self.minimum > 0)
    }
}

/// What a book is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// A new order.
    New(NewOrder),
    /// Changes price and quantity (what is left to trade) of an order. Less at the same price keeps
    /// its place; anything else is a new place behind the others, and may trade at once.
    Replace {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// New limit price.
        price: Price,
        /// New open quantity.
        quantity: Quantity,
    },
    /// Takes an order out.
    Cancel {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
    },
    /// Takes all orders of a user out, oldest first.
    MassCancel {
        /// The user.
        user: UserId,
    },
    /// From now on orders with limits outside these prices are rejected; those that live are taken
    /// out. So no trade happens outside.
    Bands {
        /// Lowest price.
        low: Price,
        /// Highest price.
        high: Price,
    },
    /// No trades and no new orders until [`Command::Resume`]; cancels are taken.
    Halt,
    /// Back to what was before the halt.
    Resume,
    /// Orders are collected and do not trade until [`Command::Uncross`].
    BeginAuction,
    /// Trades all that can be traded at the one price that trades most, then continuous trading.
    Uncross,
    /// Takes the orders of the day out.
    EndOfDay,
    /// Nothing but the passing of time: expired orders go.
    Tick,
}

/// Why an order or a command was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// An order of this name lives.
    DuplicateId,
    /// No order of this name, or of another user.
    UnknownOrder,
    /// Quantity zero, or display or minimum larger than the quantity.
    BadQuantity,
    /// Attributes that contradict each other, such as post-only and immediate-or-cancel.
    BadCombination,
    /// Post-only, and it would take.
    WouldTake,
    /// The limit lies outside the price bands.
    OutsideBands,
    /// Trading is halted.
    Halted,
    /// Not taken during an auction.
    InAuction,
    /// The command does not fit the state, such as an uncross without an auction.
    WrongState,
    /// It had expired when it came.
    Expired,
    /// A command of the exchange from somebody who is not its operator.
    NotAllowed,
}

/// Why an order was taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Its user asked for it.
    User,
    /// Its user asked for all of them.
    Mass,
    /// What an immediate-or-cancel or market order could not trade.
    Unfilled,
    /// A fill-or-kill order that cannot be filled.
    Killed,
    /// Less than its minimum quantity could trade.
    BelowMinimum,
    /// It met an order of its own user.
    SelfTrade,
    /// Its limit lies outside the price bands.
    Bands,
    /// The day ended.
    Day,
    /// Its time came.
    Expired,
}

/// What a book answers: the facts in the order in which they happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The order is taken; it may trade or wait from now on.
    Accepted {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
    },
    /// The order or command is refused and changes nothing.
    Rejected {
        /// The order that it was about; zero for a command about none.
        id: OrderId,
        /// Its user; zero for a command of the exchange.
        user: UserId,
        /// Why.
        reason: Reason,
    },
    /// Two orders traded.
    Traded {
        /// The order that was in the book; in an auction, the buyer's.
        maker: OrderId,
        /// The order that came; in an auction, the seller's.
        taker: OrderId,
        /// The maker's user.
        maker_user: UserId,
        /// The taker's user.
        taker_user: UserId,
        /// At this price.
        price: Price,
        /// So much.
        quantity: Quantity,
        /// What the maker still has open.
        maker_left: Quantity,
        /// What the taker still has open.
        taker_left: Quantity,
    },
    /// An order left the book, or never came into it, without trading the rest.
    Cancelled {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// What was open.
        left: Quantity,
        /// Why.
        ending: Ending,
    },
    /// An order was changed; before what it trades at its new price.
    Replaced {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// New limit.
        price: Price,
        /// New open quantity.
        quantity: Quantity,
        /// Whether it kept its place.
        kept_place: bool,
    },
    /// A self-trade prevention took this much of an order.
    Reduced {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// What is left open.
        left: Quantity,
    },
    /// A post-only order rests at another price than its own.
    Slid {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// Where it rests.
        price: Price,
    },
    /// The market reached a stop price.
    Triggered {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
    },
    /// An iceberg shows its next part, behind the others at its price.
    Refreshed {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// What it shows.
        shown: Quantity,
    },
    /// The bands hold.
    BandsSet {
        /// Lowest price.
        low: Price,
        /// Highest price.
        high: Price,
    },
    /// Trading is halted.
    Halted,
    /// No longer halted.
    Resumed,
    /// Orders are collected.
    AuctionBegun,
    /// The auction's result, before its trades; no price if nothing trades.
    Uncrossed {
        /// The one price.
        price: Option<Price>,
        /// What trades.
        volume: Quantity,
    },
}

impl Event {
    /// The users whose orders it is about: none if it is about the market.
    pub fn users(&self) -> [Option<UserId>; 2] {
        match *self {
            Event::Traded { maker_user, taker_user, .. } => {
                [Some(maker_user), (taker_user != maker_user).then_some(taker_user)]
            }
            Event::Accepted { user, .. }
            | Event::Rejected { user, .. }
            | Event::Cancelled { user, .. }
            | Event::Replaced { user, .. }
            | Event::Reduced { user, .. }
            | Event::Slid { user, .. }
            | Event::Triggered { user, .. }
            | Event::Refreshed { user, .. } => [Some(user), None],
            Event::BandsSet { .. }
            | Event::Halted
            | Event::Resumed
            | Event::AuctionBegun
            | Event::Uncrossed { .. } => [None, None],
        }
    }
}

/// State of an instrument's market.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Market {
    /// Orders trade as they come.
    Continuous,
    /// Orders are collected.
    Auction,
    /// Nothing trades.
    Halted,
}

/// Why a saved state was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a saved book cannot be read: {}", self.0)
    }
}

impl std::error::Error for Unreadable {}

/// The book of one instrument.
pub trait Matching: Sized {
    /// An empty book in continuous trading.
    fn new() -> Self;

    /// Carries a command out at a time that must not go back, ns; tells what happens, in order.
    /// Orders whose time has come go first, whatever the command is.
    fn apply(&mut self, command: &Command, now_ns: u64, tell: &mut impl FnMut(Event));

    /// Best price of a side with the quantity shown there, or the largest number if it is more.
    fn best(&self, side: Side) -> Option<(Price, Quantity)>;

    /// State of the market.
    fn market(&self) -> Market;

    /// Orders that live, waiting stops included.
    fn len(&self) -> usize;

    /// Whether no order lives.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Of everything that decides what happens next: orders with their places, stops, bands, state.
    /// Two books that behave alike for ever have the same hash, whatever their implementation.
    fn hash(&self) -> u64;

    /// Appends the state in a form that every implementation reads.
    fn save(&self, bytes: &mut Vec<u8>);

    /// A book from what [`Matching::save`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a saved book.
    fn load(bytes: &[u8]) -> Result<Self, Unreadable>;
}
