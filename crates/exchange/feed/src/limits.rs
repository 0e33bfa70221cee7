//! What others can ask of a feed. `docs/limits.md` lists these numbers, and a test compares them.

/// Instruments of a feed: ITCH numbers them with 16 bits.
pub const STOCKS_MAX: usize = u16::MAX as usize;

/// Bytes of the messages that a feed keeps for requests, unless its operator says otherwise.
pub const KEPT_BYTES: u64 = 64 << 20;

/// Requests that one address has answered in a second; further ones are dropped.
pub const REQUESTS_PER_SECOND: u32 = 2_000;

/// Requests that all addresses together have answered in a second.
pub const ALL_REQUESTS_PER_SECOND: u32 = 20_000;

/// Snapshots that are read at the same time; a further client is refused.
pub const SNAPSHOTS_MAX: usize = 32;

/// How long a client of a snapshot may take to log in, ns.
pub const LOGIN_LIMIT_NS: u64 = 10_000_000_000;

/// How long a client of a snapshot may read nothing, ns.
pub const SNAPSHOT_SILENCE_NS: u64 = 15_000_000_000;

/// For how long a snapshot is given to others as well, ns.
pub const SNAPSHOT_AGE_NS: u64 = 250_000_000;

/// Updates of one instrument that wait for those before them.
pub const EARLY_UPDATES_MAX: usize = 65_536;

/// How long an instrument waits for updates that are missing until its book is asked for, ns.
pub const MISSING_NS: u64 = 200_000_000;

/// Messages that a consumer keeps until those before them have come.
pub const EARLY_MESSAGES_MAX: usize = 1 << 20;

/// Messages that a consumer asks for at once.
pub const REQUESTED_MESSAGES: u16 = 1_000;
