//! What a client or an operator can ask of the exchange at most. docs/limits.md lists all of these
//! numbers with what happens beyond each, and a test compares the two.
//!
//! Limits of books and cells follow from the log alone, so that every replica decides alike. Those
//! of a gateway concern nobody else: what it refuses is executed nowhere.

use nm_wire::Owner;

pub use nm_book::limits::{
    COMMAND_TRADES_MAX, ICEBERG_PARTS_MAX, ORDER_TRADES_MAX, ORDERS_MAX, PEGS_MAX,
};

/// Live orders of a session on an instrument, pending stops included.
pub const SESSION_ORDERS_MAX: u32 = 1 << 16;

/// Instruments of a cell on which requests were executed. The book of each takes up to 128 KiB for
/// its prices.
pub const CELL_INSTRUMENTS_MAX: usize = 1 << 14;

/// Pairs of instrument and session of a cell between which requests were executed. Each takes
/// 2 KiB, and up to 80 KiB if the session acknowledges no events.
pub const CELL_SESSIONS_MAX: usize = 1 << 18;

/// Live orders of a cell, pending stops included. Each takes about 200 bytes.
pub const CELL_ORDERS_MAX: usize = 1 << 22;

/// What the entry of a cell's log may remove of what an operator removes: sessions, and orders that
/// are looked at for it.
pub const RETIRE_WORK_MAX: usize = 1 << 18;

/// How long what an operator has removed of a cell still counts, and its sessions are refused, ns
/// of the cell's time: longer than any copy of a request is under way.
pub const RETIRED_NS: u64 = 60_000_000_000;

/// Sessions of a cell whose orders are cancelled when they are away.
pub const WATCHED_MAX: usize = 1 << 16;

/// How long such a session may be away before nobody watches it any more, s behind the time when
/// its orders are cancelled.
pub const WATCHED_AFTER_S: u32 = 60;

/// Least time without a link after which a session's orders may be cancelled, s.
pub const CANCEL_AFTER_S_MIN: u32 = 2;

/// Longest such time, s.
pub const CANCEL_AFTER_S_MAX: u32 = 3_600;

/// Shortest interval of the heartbeats of a client's link, ms.
pub const HEARTBEAT_MS_MIN: u32 = 500;

/// Longest one, ms.
pub const HEARTBEAT_MS_MAX: u32 = 60_000;

/// Intervals without a heartbeat after which an end takes the link for broken.
pub const HEARTBEATS_MISSED_MAX: u32 = 3;

/// Orders in one part of the answer to a session that asks for its open orders.
pub const OPEN_ORDERS_MAX: usize = 1_024;

/// Instruments in one part of it.
pub const OPEN_ORDERS_INSTRUMENTS_MAX: usize = 1_024;

/// Questions for open orders that are under way at a gateway; the others wait.
pub const ORDERS_REQUESTS_MAX: usize = 64;

/// Owners that operators may have stopped, or let trade again, in a cell.
pub const STOP_ORDERS_MAX: usize = 1 << 12;

/// Firms of a network.
pub const FIRMS_MAX: usize = 1 << 10;

/// Ranges of sessions of all firms of a network.
pub const FIRM_RANGES_MAX: usize = 1 << 12;

/// Bytes of the name of a firm.
pub const FIRM_NAME_BYTES_MAX: usize = 64;

/// Directions of operators that a cell carries out one after the other; further ones are refused.
pub const DIRECTIONS_WAITING_MAX: usize = 64;

/// Groups of instruments of a schedule whose latest phases control knows.
pub const SCHEDULE_GROUPS_MAX: usize = 64;

/// Bytes of the name of such a group.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 64;

/// Outcomes that are kept for each session and instrument, to answer duplicates.
pub const OUTCOMES_MAX: usize = 64;

/// Events that are kept for each session and instrument until they are acknowledged.
pub const EVENTS_KEPT_MAX: usize = 1024;

/// Events in one frame; more are sent in several.
pub const FRAME_EVENTS_MAX: usize = 4096;

/// Instruments in one message that the day has ended; more are sent in several.
pub const FRAME_INSTRUMENTS_MAX: usize = 4096;

/// Padding of all frames that follow from one request, bytes. They are as long as the request until
/// this is used up.
pub const PADDING_BYTES_MAX: usize = 1 << 20;

/// Sessions of one client link.
pub const LINK_SESSIONS_MAX: usize = 1 << 16;

/// Instruments of one session on its link.
pub const SESSION_INSTRUMENTS_MAX: usize = 1 << 12;

/// Requests of one session on one instrument without a reply.
pub const PENDING_REQUESTS_MAX: usize = 1024;

/// Requests without a reply of one owner at a gateway while others are served there as well: its
/// links are read on when there are fewer. It bounds what waits behind the gateway before the
/// others' requests.
pub const OWNER_REQUESTS_MAX: usize = 1 << 7;

/// Bytes of these requests: its links are read on when there are fewer.
pub const OWNER_REQUESTS_BYTES_MAX: usize = 1 << 18;

/// Bytes that a gateway holds for all of its clients: requests without a reply, replies that wait
/// for earlier ones, and what it knows of sessions.
pub const GATEWAY_BYTES_MAX: usize = 1 << 30;

/// A client link may hold the bytes that are free, divided by this: whatever one client holds,
/// there is room for others.
pub const FREE_BYTES_SHARE: usize = 4;

/// Resend requests of one client link that are under way; the others wait for answers.
pub const LINK_RESEND_REQUESTS_MAX: usize = 16;

/// Resend requests of all clients of a gateway that are under way.
pub const RESEND_REQUESTS_MAX: usize = 256;

/// Times in a row that a cell may not know the predecessor of a session's oldest request, although
/// its gateway has sent the request again each time, until it is refused.
pub const UNKNOWN_PREDECESSOR_NAKS_MAX: u32 = 8;

/// Bytes of an address of a node in the map and in control's state.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// Instruments that may have moved, as the instrument map has them.
pub const MOVED_INSTRUMENTS_MAX: usize = 10_000;

/// Instruments that an instrument master may list.
pub const LISTED_MAX: usize = 4_096;

/// Moves of instruments that may be under way in a network.
pub const MOVES_PENDING_MAX: usize = 1_024;

/// Moves that control orders at the same time; the others wait.
pub const MOVES_ORDERED_MAX: usize = 16;

/// Instruments that may leave a cell at the same time.
pub const CELL_LEAVING_MAX: usize = 16;

/// Refused moves that a cell lists. It refuses all other ones that are older, unless it has
/// accepted them.
pub const REFUSED_MOVES_MAX: usize = 1_024;

/// Bytes of requests that may wait to be sent after the copy of an instrument that leaves a cell.
pub const LEAVING_REQUESTS_BYTES_MAX: usize = 64 << 20;

/// Most events of a node that wait until its output is read.
pub const EVENTS_WAITING_MAX: usize = 1024;

/// What a cell has room for. All replicas of a cell must have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellLimits {
    /// Instruments.
    pub instruments: usize,
    /// Sessions, counted once on each instrument.
    pub sessions: usize,
    /// Live orders.
    pub orders: usize,
}

impl CellLimits {
    /// Those of every cell outside simulations.
    pub const STANDARD: CellLimits = CellLimits {
        instruments: CELL_INSTRUMENTS_MAX,
        sessions: CELL_SESSIONS_MAX,
        orders: CELL_ORDERS_MAX,
    };
}

/// Whether an owner that has `own` of a capacity may have `more`, while all owners have `total`: it
/// may have as much as is free. So one owner alone has at most half of `most`, a second one half of
/// the rest, and whatever they have, there is room for others. Nobody has no quota.
pub fn is_within_quota(
    owner: Owner,
    (own, total): (usize, usize),
    more: usize,
    most: usize,
) -> bool {
    !owner.is_somebody() || own.saturating_add(more) <= most.saturating_sub(total)
}

/// Whether a client link that holds `held` bytes may hold `more`, while all links hold `total`.
pub fn may_hold(held: usize, total: usize, more: usize) -> bool {
    held.saturating_add(more) <= GATEWAY_BYTES_MAX.saturating_sub(total) / FREE_BYTES_SHARE
}

const _: () = assert!(EVENTS_KEPT_MAX <= FRAME_EVENTS_MAX, "what is kept is resent in one frame");
