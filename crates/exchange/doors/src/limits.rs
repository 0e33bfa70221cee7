//! What clients can ask of a door. `docs/limits.md` lists these numbers, and a test compares them.

/// Bytes of a FIX message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Fields of a FIX message.
pub const MESSAGE_FIELDS_MAX: usize = 1024;

/// Sessions of a door.
pub const SESSIONS_MAX: usize = 1024;

/// Symbols of a door.
pub const SYMBOLS_MAX: usize = 4096;

/// Connections without a logon. Those with one are as many as sessions at most.
pub const UNKNOWN_CONNECTIONS_MAX: usize = 64;

/// How long a connection may be without a logon, ns.
pub const LOGON_LIMIT_NS: u64 = 10_000_000_000;

/// Messages that one session sends in a second; the rest waits in its socket.
pub const MESSAGES_PER_SECOND: u32 = 10_000;

/// Messages that came too early and wait for those before them, of one session.
pub const EARLY_MESSAGES_MAX: usize = 4096;

/// Bytes that wait to be written to a client.
pub const OUTPUT_BYTES_MAX: usize = 256 << 20;

/// Bytes of a door's lines for its operator that nobody has read yet.
pub const LINES_BYTES_MAX: usize = 1 << 20;

/// Bytes of a session's store, unless the sessions file says otherwise.
pub const STORE_BYTES: u64 = 256 << 20;

/// Orders that have ended and are remembered, of one session.
pub const ENDED_ORDERS_MAX: usize = 100_000;

/// Bytes of a ClOrdID.
pub const CLIENT_ID_BYTES_MAX: usize = 64;

/// Longest interval of heartbeats, s.
pub const HEARTBEAT_S_MAX: u64 = 3600;

/// Bytes of a sessions file.
pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a packet of SoupBinTCP behind its length.
pub const PACKET_BYTES_MAX: usize = 4096;

/// How long a client of SoupBinTCP may be silent, ns.
pub const CLIENT_SILENCE_NS: u64 = 15_000_000_000;

/// Live orders of a session of OUCH.
pub const LIVE_ORDERS_MAX: usize = 100_000;

/// Requests that wait for an order of OUCH.
pub const WAITING_CHANGES_MAX: usize = 64;

/// Levels of a side that a subscription shows at most.
pub const DEPTH_MAX: usize = 100;

/// Requests for market data and trading status that a session has at a time.
pub const MARKET_REQUESTS_MAX: usize = 64;

/// Symbols of all those requests of a session.
pub const MARKET_SYMBOLS_MAX: usize = 1024;

/// Symbols of all those requests of a firm.
pub const FIRM_SYMBOLS_MAX: usize = 4096;

/// Bytes that may wait for a client before it is notified of the market.
pub const MARKET_ROOM_BYTES: usize = 1 << 20;

/// How long a client may leave so many bytes unread until its subscriptions end, ns.
pub const MARKET_SLOW_NS: u64 = 30_000_000_000;

/// How long a request for market data waits until the books are known, ns.
pub const MARKET_WAIT_NS: u64 = 10_000_000_000;

/// Longest time that a client may be away until its orders are cancelled, s.
pub const AWAY_S_MAX: u64 = 86_400;
