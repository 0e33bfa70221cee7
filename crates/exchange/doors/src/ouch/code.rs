//! Codes of reasons.

/// Why shares of an order are cancelled.
pub mod cancel {
    /// Closed.
    pub const CLOSED: u8 = b'E';
    /// It would have taken liquidity.
    pub const POST_ONLY: u8 = b'F';
    /// Nobody was left to trade with at once.
    pub const IMMEDIATE: u8 = b'I';
    /// Outside the price bands.
    pub const COLLARS: u8 = b'K';
    /// It would have traded with an own order.
    pub const SELF_MATCH: u8 = b'Q';
    /// The exchange has ordered it: it was cancelled by an operator.
    pub const SUPERVISORY: u8 = b'S';
    /// Its time has passed.
    pub const TIMEOUT: u8 = b'T';
    /// Its user asked for it.
    pub const USER: u8 = b'U';
    /// A limit of the exchange.
    pub const SYSTEM: u8 = b'Z';
}

/// Why a request is rejected.
pub mod reject {
    /// The order cannot be hidden or shown with a name.
    pub const DISPLAY: u16 = 0x03;
    /// The shown quantity.
    pub const MAX_FLOOR: u16 = 0x04;
    /// Pegged orders.
    pub const PEG_TYPE: u16 = 0x05;
    /// Trading is halted.
    pub const HALTED: u16 = 0x07;
    /// Intermarket sweep.
    pub const SWEEP: u16 = 0x08;
    /// The side.
    pub const SIDE: u16 = 0x09;
    /// The exchange cannot process it.
    pub const PROCESSING: u16 = 0x0a;
    /// The firm.
    pub const FIRM: u16 = 0x0c;
    /// The least quantity.
    pub const MIN_QTY: u16 = 0x0d;
    /// Anything else.
    pub const OTHER: u16 = 0x0f;
    /// The quantity.
    pub const QUANTITY: u16 = 0x13;
    /// Orders of a cross.
    pub const CROSS: u16 = 0x14;
    /// The replacement.
    pub const REPLACE: u16 = 0x15;
    /// Routes.
    pub const ROUTING: u16 = 0x16;
    /// The symbol.
    pub const SYMBOL: u16 = 0x17;
    /// Retail orders.
    pub const RETAIL: u16 = 0x1a;
    /// The price.
    pub const PRICE: u16 = 0x1d;
}
