//! What a day can be. `docs/limits.md` lists these numbers, and a test compares them.

/// Requests of a window, those before it that make its books included.
pub const REQUESTS_MAX: usize = 20_000_000;

/// Live orders of a day.
pub const ORDERS_MAX: usize = 20_000_000;

/// Bytes of a line of a table.
pub const LINE_BYTES_MAX: u64 = 4096;
