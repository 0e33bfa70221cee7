//! The terms of trading: orders, commands to the book of one instrument, and the events that
//! follow.
//!
//! Prices are in ticks and may be negative, as those of spreads and some commodities are.
//! Quantities are in lots. Times are ns on the clock of the node that puts commands in order. A
//! book never reads a clock, so that the same commands always lead to the same state.
//!
//! # Rules
//! Exchanges differ in details. These rules hold for the reference book and the fast one alike.
//!
//! - **Time priority.** An order gets its priority when it is accepted. It gets a new one, behind
//!   all other orders, in five cases. It is replaced (except by a smaller quantity at the same
//!   price), or its iceberg shows the next part. Its triggered stop comes to rest, or the closing
//!   auction begins for which it waits. Or the price of a pegged order changes. Commands that
//!   cancel several orders cancel them in order of priority; expiry takes the earliest time first.
//! - **Time** does not go back: a command with an earlier time is executed at the latest time so
//!   far.
//! - **Checks** of a new order, of which the first that fails is reported: halted, quantities,
//!   combination of attributes, iceberg parts, expired, duplicate id. Then come bands, auction,
//!   closing auction, number of live orders, number of pegged ones, post-only. Of a replacement:
//!   halted, unknown order, quantity, iceberg parts, bands, post-only. A rejected command changes
//!   nothing, and the order id stays free.
//! - **Replace** sets the quantity that is open from then on, whatever has traded before. A minimum
//!   quantity does not apply again; self-trade prevention does. A pending stop keeps its priority
//!   whatever changes; a market order or market stop has no limit to change.
//! - **Market orders** never rest in continuous trading, whatever their time in force. In an
//!   auction they do, ahead of all limit orders, and what is left of them after the uncross is
//!   cancelled.
//! - **Stops** are accepted in every phase; only trades trigger them, quotes do not. A trade elects
//!   each stop whose price it reaches, even if another trade of the same command moves away again.
//!   Elected stops are executed one after another once the command that made the trade is done.
//!   Those that it elected come in order of priority, then those that they elect. If the last trade
//!   has already reached a stop's price when it arrives, it is executed at once. In an auction it
//!   is not, and waits for a trade after it. Minimum quantity, display quantity, immediate times in
//!   force and self-trade prevention apply when it is executed.
//! - **Iceberg.** Only the shown part trades at its priority; all parts shown at a price trade
//!   before the next parts do. Self-trade prevention, fill-or-kill and auctions use the full open
//!   quantity. An incoming iceberg takes with its full quantity, then shows a part of the rest.
//! - **Hidden** orders are never shown: they are in no best price, and in no level of a side. At a
//!   price, all displayed quantity trades before them, also the further parts of icebergs. Among
//!   them, the earlier one trades first. They take part in everything else as displayed orders do:
//!   in fill-or-kill and minimum quantity, in self-trade prevention, and in auctions with their
//!   full quantity. They are also the other side for post-only: so somebody can learn that there is
//!   one. Hidden contradicts display quantity, immediate and market. A hidden stop-limit rests
//!   hidden; a replaced order stays hidden.
//! - **On-close** orders are limit and market orders for the closing auction alone. They are
//!   accepted from [`Command::ExpectClosing`] on, in every phase but a halt, and during that
//!   auction; not without one, and not after it. Until it begins they wait: nobody sees them or
//!   trades with them, also not in another auction. When it begins they join it in their order of
//!   priority. Then the limit orders are as hidden ones, and the market orders as others. Those
//!   that are sent during it join at once. They may be cancelled and replaced at any time, also
//!   during the auction. What is left of them when it ends is cancelled ([`CancelReason::Closed`]);
//!   the end of the day cancels those whose auction has not ended. On-close contradicts stop,
//!   post-only, display quantity and minimum quantity. An auction that begins while a halt
//!   interrupts the closing one goes on with it.
//! - **Pegged** orders follow the best displayed prices. [`Peg::Primary`] follows that of the own
//!   side, or stays so many ticks away from the market. [`Peg::Mid`] follows the middle of both,
//!   and half a tick is rounded away from the other side. A limit holds the price back. An order
//!   has no price without what it follows, outside the bands, in an auction and in a halt. Then
//!   it rests and does not trade. At its price it is as a hidden order. Displayed prices alone
//!   are followed, so pegged orders never follow each other. They move once a command and the
//!   stops that it elected are done. All orders whose price has changed leave together, and enter
//!   again in order of priority. Each gets a new one, and takes as an incoming order what its
//!   price accepts. That is never a displayed order, so one pass is enough. Its trades may elect
//!   stops, after which pegged orders follow again. Each move counts as a trade of the command;
//!   after the last one, an order that has to move is cancelled. A replacement changes the limit,
//!   or without one the quantity alone. Pegged contradicts stop, immediate, on-close, post-only,
//!   display quantity and minimum quantity.
//! - **Limits** ([`crate::limits`]). An order has at most a number of parts, and an instrument a
//!   number of live orders. In continuous trading an order and a command have at most a number of
//!   trades. What an order could still trade after its last one is cancelled, and does not rest:
//!   the book would be crossed. Once a command has made all of its trades, the stops that it
//!   elected are triggered all the same. Those that find nobody to trade with come to rest, the
//!   others are cancelled. An auction has no such limit, because each of its trades but one fills
//!   an order.
//! - **Fill-or-kill and minimum quantity** apply to what would actually trade, in the order in
//!   which it would, self-trade prevention included. If they fail, nothing has changed. What trades
//!   before an own order is reached counts towards the minimum; own orders do not. A fill-or-kill
//!   order that would be decremented is killed. So is one that would need more trades than it may
//!   make. The trades that such a check finds in vain count towards those of the command.
//! - **Self-trade prevention** follows the incoming order's setting and does not apply in an
//!   auction. Own orders count as the other side for post-only all the same. An iceberg is treated
//!   with its hidden part: it is cancelled in full, or decremented by the full quantity of the
//!   other order.
//! - **Post-only** contradicts stop, immediate, market and minimum quantity; iceberg contradicts
//!   immediate and market. A post-only order whose new price lies outside the bands, or beyond the
//!   last representable price, is cancelled. A replaced one must not take liquidity either: it is
//!   rejected or moved. In an auction nobody takes liquidity, so an earlier post-only order may be
//!   moved to any price there.
//! - **Bands** apply to limit prices, those of pending stops included, and so to every trade. A
//!   stop price may lie anywhere; market orders take what lies within the bands.
//! - **Halt.** Orders are neither accepted nor replaced; they may be cancelled, expire and end with
//!   the day. A halt within an auction returns to it.
//! - **Auction.** The price is that of a limit order in the book, or of the last trade moved into
//!   the bands. It is the one with the largest volume. Among several it is the one with the
//!   smallest surplus, then the one nearest to the last trade, then the lower one. Market orders
//!   alone trade at the last price. Priority: market orders, then better limits. At a
//!   limit, displayed orders come before hidden ones, then earlier ones before later ones.
//!   Immediate, post-only and minimum quantity orders are not accepted in an auction; stops are,
//!   and stay pending. The auction price triggers stops as any trade does; they are executed in
//!   continuous trading, after the last order of the auction.

use nm_codec::DecodeError;
use thiserror::Error;

/// Price in ticks.
pub type Price = i64;

/// Quantity in lots; zero is no order.
pub type Quantity = u64;

/// Id of an order, chosen by its user: unique among that user's live orders of the instrument.
pub type OrderId = u64;

/// Who sent an order.
pub type UserId = u32;

/// An instrument: the unit of state, of ordering and of routing.
pub type InstrumentId = u32;

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
pub enum OrderType {
    /// Trades at its price or better.
    Limit,
    /// Trades at any price; the unfilled rest is cancelled.
    Market,
    /// A market order once the market has traded at its stop price or beyond.
    Stop,
    /// A limit order once the market has traded at its stop price or beyond.
    StopLimit,
}

impl OrderType {
    /// Whether an order of this kind has a limit price.
    pub fn has_limit(self) -> bool {
        matches!(self, OrderType::Limit | OrderType::StopLimit)
    }
}

/// How long an order stays live (FIX 59).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeInForce {
    /// Until [`Command::EndOfDay`].
    Day,
    /// Until it is filled or cancelled.
    GoodTillCancelled,
    /// Until the first command whose time is not before this one, ns; in the exchange, since 1970.
    GoodTill(u64),
    /// Trades immediately what it can; the rest is cancelled.
    ImmediateOrCancel,
    /// Trades immediately in full, or not at all.
    FillOrKill,
    /// In the closing auction alone: it waits until that begins, and ends with it.
    AtClose,
}

/// What happens to an order that must not take liquidity, and would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PostOnly {
    /// It may take liquidity.
    No,
    /// It is rejected.
    Reject,
    /// It rests one tick away from the best price of the other side.
    Slide,
}

/// What the price of an order follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peg {
    /// Nothing: it is no pegged order.
    No,
    /// The best displayed price of its side.
    Primary {
        /// How many ticks its price is away from that, and from the other side.
        offset: u16,
    },
    /// The middle between the best displayed prices.
    Mid,
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
    /// Its id.
    pub id: OrderId,
    /// Who sent it.
    pub user: UserId,
    /// Side.
    pub side: Side,
    /// OrderType.
    pub order_type: OrderType,
    /// Time in force.
    pub time_in_force: TimeInForce,
    /// Limit price; ignored for market and stop orders.
    pub price: Price,
    /// Stop price; ignored unless it is a stop or stop-limit order.
    pub stop_price: Price,
    /// Total quantity.
    pub quantity: Quantity,
    /// Quantity shown to others at a time: zero for all of it, less than the quantity for an
    /// iceberg.
    pub display: Quantity,
    /// Least quantity that must trade immediately, or the order is cancelled; zero for none.
    pub minimum: Quantity,
    /// Whether it is never shown while it rests.
    pub is_hidden: bool,
    /// What its price follows. A pegged limit order goes no further than its limit, and a pegged
    /// market order has none.
    pub peg: Peg,
    /// Whether it may take liquidity.
    pub post_only: PostOnly,
    /// What happens when it would trade with an order of its own user; the incoming order decides.
    pub self_trade: SelfTrade,
}

impl NewOrder {
    /// Whether it trades immediately or not at all.
    pub fn is_immediate(&self) -> bool {
        matches!(self.time_in_force, TimeInForce::ImmediateOrCancel | TimeInForce::FillOrKill)
    }

    /// Whether it is for the closing auction alone.
    #[inline]
    pub fn is_on_close(&self) -> bool {
        self.time_in_force == TimeInForce::AtClose
    }

    /// Whether its price follows others.
    #[inline]
    pub fn is_pegged(&self) -> bool {
        self.peg != Peg::No
    }

    /// Whether others see it when it rests at its limit.
    pub fn is_displayed(&self) -> bool {
        !self.is_hidden && !self.is_on_close() && !self.is_pegged()
    }

    /// Why it is invalid whatever the state of the book, if it is.
    #[inline]
    pub fn fault(&self) -> Option<RejectReason> {
        if self.is_pegged() {
            return self.fault_of_pegged();
        }
        let immediate = self.is_immediate();
        let never_rests = immediate || !self.order_type.has_limit();
        let is_stop = matches!(self.order_type, OrderType::Stop | OrderType::StopLimit);
        let hides = self.display > 0 && self.display < self.quantity;
        let is_passive = self.post_only != PostOnly::No;
        if self.quantity == 0 || self.display > self.quantity || self.minimum > self.quantity {
            Some(RejectReason::BadQuantity)
        } else if is_passive && (never_rests || is_stop || self.minimum > 0)
            || (hides || self.is_hidden) && never_rests
            || self.is_hidden && self.display > 0
            || self.is_on_close() && (is_stop || is_passive || hides || self.minimum > 0)
        {
            Some(RejectReason::BadCombination)
        } else {
            None
        }
    }

    /// [`NewOrder::fault`] of a pegged order; apart, so that the code of others stays small.
    #[cold]
    fn fault_of_pegged(&self) -> Option<RejectReason> {
        let is_stop = matches!(self.order_type, OrderType::Stop | OrderType::StopLimit);
        let is_passive = self.post_only != PostOnly::No;
        let is_of_part = self.display > 0 || self.minimum > 0;
        if self.quantity == 0 {
            Some(RejectReason::BadQuantity)
        } else if is_stop || is_passive || is_of_part || self.is_immediate() || self.is_on_close() {
            Some(RejectReason::BadPeg)
        } else {
            None
        }
    }

    /// Whether it may come to rest in a phase of trading, or wait there as a stop.
    pub fn may_rest(&self, phase: TradingPhase) -> bool {
        match self.order_type {
            OrderType::Stop | OrderType::StopLimit => true,
            OrderType::Limit => !self.is_immediate(),
            OrderType::Market => {
                phase == TradingPhase::Auction || self.is_on_close() || self.is_pegged()
            }
        }
    }

    /// Whether it is accepted during an auction: stops are, whatever they become.
    pub fn fits_auction(&self) -> bool {
        matches!(self.order_type, OrderType::Stop | OrderType::StopLimit)
            || !(self.is_immediate() || self.post_only != PostOnly::No || self.minimum > 0)
    }
}

/// A command to a book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// A new order.
    New(NewOrder),
    /// Changes the price and the open quantity of an order. A smaller quantity at the same price
    /// keeps its priority; anything else gets a new one behind the others, and may trade
    /// immediately.
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
    /// Cancels an order.
    Cancel {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
    },
    /// Cancels all orders of a user, oldest first.
    MassCancel {
        /// The user.
        user: UserId,
    },
    /// From now on orders with limits outside these prices are rejected, and live ones are
    /// cancelled, so that no trade happens outside.
    Bands {
        /// Lowest price.
        low: Price,
        /// Highest price.
        high: Price,
    },
    /// No trades and no new orders until [`Command::Resume`]; cancels are accepted.
    Halt,
    /// Returns to the phase before the halt.
    Resume,
    /// Orders are collected and do not trade until [`Command::Uncross`].
    BeginAuction,
    /// There will be a closing auction today: orders for it are accepted from now on.
    ExpectClosing,
    /// As [`Command::BeginAuction`], of the closing auction: the orders that wait for it join. An
    /// auction that is on becomes it.
    BeginClosing,
    /// Trades everything possible at the price with the largest volume, then continuous trading.
    Uncross,
    /// Cancels the day orders and those for the closing auction, which is over.
    EndOfDay,
    /// Only time passes: expired orders are cancelled.
    Tick,
}

/// Why an order or a command was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// An order of this user with this id is live.
    DuplicateId,
    /// No live order of this user has this id.
    UnknownOrder,
    /// Quantity zero, or display or minimum larger than the quantity.
    BadQuantity,
    /// Attributes that contradict each other, such as post-only and immediate-or-cancel.
    BadCombination,
    /// Post-only, and it would take liquidity.
    WouldTake,
    /// The limit lies outside the price bands.
    OutsideBands,
    /// Trading is halted.
    Halted,
    /// Not accepted during an auction.
    InAuction,
    /// The command does not fit the state, such as an uncross without an auction.
    WrongState,
    /// It had expired when it arrived.
    Expired,
    /// A command of the exchange, sent by a session that is not its operator.
    NotAllowed,
    /// An iceberg of more parts than [`crate::limits::ICEBERG_PARTS_MAX`].
    TooManyParts,
    /// The instrument has [`crate::limits::ORDERS_MAX`] live orders.
    TooManyOrders,
    /// The session has as many live orders on the instrument as it may have.
    TooManyOwnOrders,
    /// The session's owner has as many live orders on the instrument as its quota allows.
    TooManyOwnerOrders,
    /// The session's owner has as many live orders in the instrument's cell as its quota allows.
    TooManyOwnerCellOrders,
    /// The instrument's cell has as many live orders as it may have.
    TooManyCellOrders,
    /// The instrument is not listed any more: its live orders can only be cancelled.
    NotListed,
    /// The limit lies outside the prices that the instrument is listed with.
    OutsideCollar,
    /// The quantity is above the largest one that the instrument is listed with.
    TooLarge,
    /// An operator has stopped the session's owner: its live orders can only be cancelled.
    OwnerStopped,
    /// Its quantity is above the largest one that the firm's orders may have.
    FirmQuantity,
    /// Its value is above the largest one that the firm's orders may have.
    FirmOrderValue,
    /// The firm has as many live orders as it may have.
    FirmOrders,
    /// The firm's live orders would have a larger value than they may have.
    FirmValue,
    /// The firm's position could become larger than it may be.
    FirmPosition,
    /// It has no limit price, and the firm has a limit of value.
    FirmNeedsPrice,
    /// It is for the closing auction, of which the instrument has none today, or none any more.
    NoClosing,
    /// A pegged order with an attribute that none can have.
    BadPeg,
    /// The instrument has [`crate::limits::PEGS_MAX`] pegged orders.
    TooManyPegs,
    /// The session's owner has as many pegged orders on the instrument as its quota allows.
    TooManyOwnerPegs,
}

/// Why an order was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// Its user asked for it.
    User,
    /// Its user cancelled all of its orders.
    Mass,
    /// What an immediate-or-cancel or market order could not trade.
    Unfilled,
    /// A fill-or-kill order that cannot be filled.
    Killed,
    /// Less than its minimum quantity could trade.
    BelowMinimum,
    /// It would have traded with an order of its own user.
    SelfTrade,
    /// Its limit lies outside the price bands.
    Bands,
    /// The day ended.
    Day,
    /// It expired.
    Expired,
    /// It has made all trades that it, or its command, may make, and could trade more.
    TooManyTrades,
    /// Its user was away for longer than it had asked for.
    Disconnected,
    /// An operator cancelled all orders of its user, or of its user's firm.
    Operator,
    /// The closing auction, for which alone it was, has ended.
    Closed,
}

/// A live order as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveOrder {
    /// Its id.
    pub id: OrderId,
    /// Whether it buys.
    pub is_buy: bool,
    /// Limit price.
    pub price: Price,
    /// Open quantity, hidden part included.
    pub left: Quantity,
    /// Whether it is a stop that was not triggered yet.
    pub is_pending_stop: bool,
}

/// What is open of a live order, as limits of firms count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOrder {
    /// Its id.
    pub id: OrderId,
    /// Its user.
    pub user: UserId,
    /// Side.
    pub side: Side,
    /// Limit price, if it has one.
    pub limit: Option<Price>,
    /// Open quantity, hidden part included.
    pub left: Quantity,
}

const OWNER_ORDERS: &str = "your quota of live orders on the instrument is full: cancel some";

const BAD_PEG: &str = "a pegged order is no stop, not immediate, on-close or post-only, and has no \
                       display or minimum quantity";

impl RejectReason {
    /// What it means to whoever is rejected, and what would be right: a sentence without its end.
    /// Of a limit of a firm, `{most}` and `{asked}` are where the event's numbers belong.
    pub fn words(self) -> &'static str {
        match self {
            RejectReason::DuplicateId => "a live order of the session has this id: choose another",
            RejectReason::UnknownOrder => "no live order of the session has this id",
            RejectReason::BadQuantity => {
                "the quantity must be above 0, and no less than what is displayed and the minimum"
            }
            RejectReason::BadCombination => "the order's attributes contradict each other",
            RejectReason::WouldTake => "the order is post-only, and would trade at once",
            RejectReason::OutsideBands => "the limit lies outside the price bands",
            RejectReason::Halted => "trading is halted: try again when it is resumed",
            RejectReason::InAuction => "that is not possible during an auction",
            RejectReason::WrongState => "the command does not fit the phase of trading",
            RejectReason::Expired => "the order had expired when it arrived",
            RejectReason::NotAllowed => "only the operator, session 0, may command the exchange",
            RejectReason::TooManyParts => "the iceberg has too many parts: display more at a time",
            RejectReason::TooManyOrders => "the instrument has as many live orders as it may have",
            RejectReason::TooManyOwnOrders => {
                "the session has as many live orders on the instrument as it may have: cancel some"
            }
            RejectReason::TooManyOwnerOrders => OWNER_ORDERS,
            RejectReason::TooManyOwnerCellOrders => {
                "your quota of live orders in the instrument's cell is full: cancel some"
            }
            RejectReason::TooManyCellOrders => {
                "the instrument's cell has as many live orders as it may have"
            }
            RejectReason::NotListed => {
                "the instrument is not listed any more: live orders can only be cancelled"
            }
            RejectReason::OutsideCollar => {
                "the limit lies outside the prices that the instrument is listed with"
            }
            RejectReason::TooLarge => {
                "the quantity is above the largest one that the instrument is listed with"
            }
            RejectReason::OwnerStopped => {
                "an operator has stopped the session or its firm: live orders can only be cancelled"
            }
            RejectReason::FirmQuantity => {
                "the quantity is {asked} lots, and its firm's orders may have {most} at most"
            }
            RejectReason::FirmOrderValue => {
                "the value is {asked} ticks times lots, and its firm's orders may have {most} at \
                 most"
            }
            RejectReason::FirmOrders => {
                "it would be live order {asked} of its firm in the instrument's cell, and {most} \
                 are possible: cancel some"
            }
            RejectReason::FirmValue => {
                "the value of its firm's live orders in the instrument's cell would be {asked} \
                 ticks times lots, and may be {most} at most: cancel some"
            }
            RejectReason::FirmPosition => {
                "its firm's position on the instrument could become {asked} lots, and may be \
                 {most} at most"
            }
            RejectReason::FirmNeedsPrice => {
                "its firm has a limit of value, so its orders need a limit price"
            }
            RejectReason::NoClosing => {
                "the instrument has no closing auction today, or it has ended: send no order for it"
            }
            RejectReason::BadPeg => BAD_PEG,
            RejectReason::TooManyPegs => "the instrument has as many pegged orders as it may have",
            RejectReason::TooManyOwnerPegs => "your quota of pegged orders is full: cancel some",
        }
    }

    /// The words with the numbers of the limit in them.
    pub fn sentence(self, most: u64, asked: u64) -> String {
        let words = self.words();
        words.replace("{most}", &most.to_string()).replace("{asked}", &asked.to_string())
    }
}

impl CancelReason {
    /// What it means to the owner of the order: a sentence without its end.
    pub fn words(self) -> &'static str {
        match self {
            CancelReason::User => "its session asked for it",
            CancelReason::Mass => "its session cancelled all orders",
            CancelReason::Unfilled => "nobody is left to trade with at once",
            CancelReason::Killed => "it cannot be filled at once",
            CancelReason::BelowMinimum => "less than its minimum could trade at once",
            CancelReason::SelfTrade => "it would have traded with an order of its own session",
            CancelReason::Bands => "its limit lies outside the price bands",
            CancelReason::Day => "the day has ended",
            CancelReason::Expired => "it has expired",
            CancelReason::TooManyTrades => "it has made as many trades as it may make",
            CancelReason::Disconnected => "its session was away for longer than it had asked for",
            CancelReason::Operator => "an operator cancelled all orders of its session or firm",
            CancelReason::Closed => "the closing auction has ended",
        }
    }
}

/// What it means, and its name.
impl std::fmt::Display for RejectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({self:?})", self.words())
    }
}

/// What it means, and its name.
impl std::fmt::Display for CancelReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({self:?})", self.words())
    }
}

/// What happened in a book, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The order is accepted; it may trade or rest from now on.
    Accepted {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
    },
    /// The order or command is rejected and changes nothing.
    Rejected {
        /// The order that it was about; zero if it was about none.
        id: OrderId,
        /// Its user; zero for a command of the exchange.
        user: UserId,
        /// Why.
        reason: RejectReason,
        /// The limit of its firm that it would exceed; zero for other reasons.
        most: u64,
        /// What there would be then.
        asked: u64,
    },
    /// Two orders traded.
    Traded {
        /// The resting order; in an auction, the buyer's.
        maker: OrderId,
        /// The incoming order; in an auction, the seller's.
        taker: OrderId,
        /// The maker's user.
        maker_user: UserId,
        /// The taker's user.
        taker_user: UserId,
        /// Trade price.
        price: Price,
        /// Traded quantity.
        quantity: Quantity,
        /// Open quantity of the maker after the trade (FIX 151).
        maker_left: Quantity,
        /// Open quantity of the taker after the trade.
        taker_left: Quantity,
    },
    /// An order was removed, or not added, without trading its rest.
    Cancelled {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// Open quantity at that moment.
        left: Quantity,
        /// Why.
        reason: CancelReason,
    },
    /// An order was replaced; reported before its trades at the new price.
    Replaced {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// New limit.
        price: Price,
        /// New open quantity.
        quantity: Quantity,
        /// Whether it kept its time priority.
        kept_priority: bool,
    },
    /// Self-trade prevention reduced an order.
    Reduced {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// Open quantity after it.
        left: Quantity,
    },
    /// A post-only order was moved to another price than its own.
    Slid {
        /// The order.
        id: OrderId,
        /// Its user.
        user: UserId,
        /// Where it rests.
        price: Price,
    },
    /// A trade reached the stop price of an order.
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
        /// Quantity shown.
        shown: Quantity,
    },
    /// The price bands are set.
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
    /// An auction has begun.
    AuctionBegun,
    /// The auction's result, before its trades; no price if nothing trades.
    Uncrossed {
        /// Auction price.
        price: Option<Price>,
        /// Auction volume.
        volume: Quantity,
    },
}

impl Event {
    /// A rejection by something else than a limit of a firm.
    #[inline]
    pub fn rejected(id: OrderId, user: UserId, reason: RejectReason) -> Event {
        Event::Rejected { id, user, reason, most: 0, asked: 0 }
    }

    /// The users whose orders it concerns: none if it concerns the market.
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

/// Phase of trading in one instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TradingPhase {
    /// Incoming orders trade immediately.
    Continuous,
    /// Orders are collected for an auction.
    Auction,
    /// Nothing trades.
    Halted,
}

/// Whether an instrument has a closing auction today.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Closing {
    /// It has none, or none any more.
    No,
    /// It will have one.
    Expected,
    /// It is on, or interrupted by a halt.
    Begun,
}

/// Why a snapshot was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// The bytes do not begin with the mark of this version of the format.
    #[error("it is no snapshot of a book, or one of another version")]
    Format,
    /// A field cannot be decoded.
    #[error(transparent)]
    Field(#[from] DecodeError),
    /// The number of orders does not match the length.
    #[error("{count} orders do not fit into {length} bytes")]
    Length {
        /// Orders that it claims.
        count: u64,
        /// Bytes that there are for them.
        length: usize,
    },
    /// An order whose shown and open quantities contradict each other.
    #[error("order {0} has impossible quantities")]
    Quantities(OrderId),
    /// A state that no sequence of commands leads to.
    #[error("{0}")]
    Impossible(&'static str),
}

/// The book of one instrument.
pub trait Matching: Clone + Send + Sized + 'static {
    /// An empty book in continuous trading.
    fn new() -> Self;

    /// Executes a command at a time in ns, and emits the events in order. Expired orders are
    /// cancelled first, whatever the command is.
    fn apply(&mut self, command: &Command, now_ns: u64, emit: &mut impl FnMut(Event));

    /// Cancels all orders of a user, and does nothing else: nothing expires, and pegged orders stay
    /// where they are until the next command. So nothing trades, and it may be that nobody is told.
    fn cancel_all_of(&mut self, user: UserId, emit: &mut impl FnMut(Event));

    /// Best price of a side with the quantity shown there (saturating).
    fn best(&self, side: Side) -> Option<(Price, Quantity)>;

    /// Best price of a side.
    fn best_price(&self, side: Side) -> Option<Price> {
        self.best(side).map(|(price, _)| price)
    }

    /// Phase of trading.
    fn phase(&self) -> TradingPhase;

    /// Whether there is a closing auction today.
    fn closing(&self) -> Closing;

    /// Gives `visit` the user of each live order, in any order.
    fn visit_users(&self, visit: &mut impl FnMut(UserId));

    /// Gives `visit` the user of each pegged order, in any order.
    fn visit_pegged(&self, visit: &mut impl FnMut(UserId));

    /// Gives `visit` each live order with its user and side as it is now, in any order.
    fn visit_open(&self, visit: &mut impl FnMut(OpenOrder));

    /// Gives `visit` each live order of a user as it is now, in any order.
    fn visit_orders_of(&self, user: UserId, visit: &mut impl FnMut(LiveOrder));

    /// Number of live orders, pending stops included.
    fn len(&self) -> usize;

    /// Whether no order is live.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hash of everything that determines future behaviour: orders with their priorities, stops,
    /// bands and phase. Two books with equal behaviour have equal hashes, whatever their
    /// implementation.
    fn hash(&self) -> u64;

    /// Appends a snapshot that every implementation reads.
    fn save(&self, bytes: &mut Vec<u8>);

    /// Restores a book from what [`Matching::save`] wrote.
    ///
    /// # Errors
    /// If the bytes are no valid snapshot.
    fn load(bytes: &[u8]) -> Result<Self, SnapshotError>;
}
