//! The table of messages: the only place that says which there are.

use std::sync::OnceLock;

use nm_codec::DecodeError;

use crate::document::digest_of;
use crate::frame::{self, Frame, FrameMut, Listed, Shape};
use crate::value::Value;

/// The table, to which a version may add rows.
macro_rules! table {
    ($($more:tt)*) => { crate::messages! {
    for<'a>
    hello::Hello = 1, Connector > Acceptor;
    request::Request = 2, Client > Gateway > Router > Mediator > Log;
    reply::Reply<'a> = 3, Mediator > Processor > Gateway > Client | Processor > Gateway > Client;
    private::Private<'a> = 4,
        Mediator > Processor > Gateway > Client
        | Processor > Gateway > Client
        | Gateway > Processor > Gateway > Client;
    public::Public<'a> = 5, Mediator > Processor > Gateway > Client | Processor > Gateway > Client;
    leader::Leader = 6, Mediator > Router > Gateway | Mediator > Processor;
    nak::Nak = 7, Mediator > Processor > Gateway | Processor > Gateway;
    welcome::Welcome = 8, Acceptor > Connector;
    membership_report::MembershipReport = 9, Gateway > Router > Mediator;
    routing_table::RoutingTable = 10,
        Mediator > Router > Gateway
        | Router > Mediator
        | Mediator > Processor;
    release::Release = 11, Mediator > Log;
    move_ended::MoveEnded = 12, Mediator > Router > Gateway | Mediator > Router > Mediator;
    admin_request::AdminRequest = 13, Observer > Node;
    admin_response::AdminResponse = 14, Node > Observer;
    resend_request::ResendRequest = 15, Client > Gateway > Processor > Mediator;
    close::Close = 16, Connector > Acceptor | Acceptor > Connector;
    challenge::Challenge = 17, Acceptor > Connector;
    move_order::MoveOrder = 18, Mediator > Router > Mediator;
    move_parts::MoveParts<'a> = 19, Mediator > Router > Mediator > Log;
    move_progress::MoveProgress = 20, Mediator > Router > Mediator;
    forget::Forget = 21, Mediator > Log;
    claim::Claim = 22, Mediator > Log;
    go_away::GoAway = 23, Gateway > Client;
    catch_up::CatchUp = 24, Mediator > Processor > Mediator;
    refused::Refused = 25,
        Mediator > Processor > Gateway > Client
        | Processor > Gateway > Client
        | Gateway > Client;
    resent::Resent<'a> = 26,
        Processor > Gateway > Client
        | Mediator > Processor > Gateway > Client;
    misdirected::Misdirected = 27, Processor > Gateway | Mediator > Processor > Gateway;
    replies_lost::RepliesLost = 28, Processor > Gateway | Mediator > Processor > Gateway;
    events_lost::EventsLost = 29, Processor > Gateway | Gateway > Client;
    retire::Retire = 30, Mediator > Log;
    format::Format = 31, Connector > Acceptor | Acceptor > Connector;
    book_update::BookUpdate = 32, Node > Observer;
    logon::Logon = 40, Client > Gateway;
    logged_on::LoggedOn = 41, Gateway > Client;
    heartbeat::Heartbeat = 42, Client > Gateway | Gateway > Client;
    presence::Presence = 43, Gateway > Router > Mediator;
    away_time::AwayTime = 44, Mediator > Log;
    orders_request::OrdersRequest = 45, Client > Gateway > Processor > Mediator;
    open_orders::OpenOrders = 46,
        Processor > Gateway > Client
        | Mediator > Processor > Gateway > Client;
    stop::Stop = 47, Mediator > Log;
    firms::Firms = 48, Mediator > Log;
    best_prices::BestPrices = 56,
        Mediator > Processor > Gateway > Client
        | Processor > Gateway > Client;
    day_ended::DayEnded = 57, Mediator > Processor > Gateway > Client;
    standing::Standing = 58, Mediator > Processor > Gateway > Client;
    $($more)*
    } };
}

#[cfg(not(feature = "next-format"))]
table! {}

// The version that comes next, for tests of a network that has both.
#[cfg(feature = "next-format")]
table! {
    greeting::Greeting = 250, Connector > Acceptor;
}

/// Digest of the format: of the frames, of all messages and of the types in them. It stands in the
/// handshake, so that two ends with different formats refuse each other.
pub fn digest() -> u64 {
    static DIGEST: OnceLock<u64> = OnceLock::new();
    *DIGEST.get_or_init(|| digest_of(ROWS))
}

/// Appends the frame of a message.
///
/// # Panics
/// If the message does not fit a frame; messages are ours.
pub fn write<'m, M: Listed + Value<'m>>(message: &M, out: &mut Vec<u8>) {
    write_shaped(message, Shape::default(), out);
}

/// Appends the frame of a message, padded or stamped.
///
/// # Panics
/// If the message does not fit a frame; messages are ours.
#[inline]
pub fn write_shaped<'m, M: Listed + Value<'m>>(message: &M, shape: Shape, out: &mut Vec<u8>) {
    frame::write_with(M::CODE, shape, out, |out| message.put(out));
}

impl Message<'_> {
    /// Appends its frame, padded or stamped.
    ///
    /// # Panics
    /// If it does not fit a frame; messages are ours.
    #[inline]
    pub fn write(&self, shape: Shape, out: &mut Vec<u8>) {
        frame::write_with(self.kind().code(), shape, out, |out| self.put(out));
    }
}

/// The frame at the front of `bytes`: none yet if it has not arrived completely.
///
/// # Errors
/// If these bytes do not begin a frame; the link cannot be used any more then.
#[inline]
pub fn read(bytes: &[u8]) -> Result<Option<Frame<'_>>, DecodeError> {
    frame::read_with(bytes, Kind::is_known)
}

/// As [`read`], to change the frame.
///
/// # Errors
/// As [`read`].
#[inline]
pub fn read_mut(bytes: &mut [u8]) -> Result<Option<FrameMut<'_>>, DecodeError> {
    frame::read_mut_with(bytes, Kind::is_known)
}

/// The kind that has a code.
fn kind_of(code: u8) -> Kind {
    match Kind::from_code("kind", code) {
        Ok(kind) => kind,
        Err(_) => unreachable!("{code} is in no frame that was read"),
    }
}

impl Frame<'_> {
    /// Which message it has.
    #[inline]
    pub fn kind(&self) -> Kind {
        kind_of(self.code)
    }
}

impl FrameMut<'_> {
    /// Which message it has.
    #[inline]
    pub fn kind(&self) -> Kind {
        kind_of(self.code)
    }
}
