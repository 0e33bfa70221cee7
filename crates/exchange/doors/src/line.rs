//! What a protocol is to a door: how bytes become messages, and what a session does with them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use nm_wire::Message as Frame;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::market::{Market, Views};
use crate::settings::Settings;
use crate::symbols::Symbols;
use nm_client::{Change, Session};

/// What the next bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<M> {
    /// A message.
    Message(M),
    /// Bytes that are ignored.
    Ignored,
    /// The connection cannot go on, with a sentence.
    Fault(String),
}

/// Cuts the bytes of a connection into messages.
pub trait Cut: Default + Debug {
    /// A message.
    type Message;

    /// Appends received bytes.
    fn push(&mut self, bytes: &[u8]);

    /// What comes next; none if more bytes are needed.
    fn next(&mut self) -> Option<Next<Self::Message>>;
}

/// What happens to a session.
#[derive(Debug)]
pub enum Input<'a, M> {
    /// A message came; the first one names this session.
    Message(&'a M),
    /// The gateway has sent a message.
    Frame(&'a Frame<'a>),
    /// Time has passed.
    Tick,
    /// The connection has ended.
    Disconnected,
    /// The client is away for too long: its live orders are to be cancelled.
    CancelAll,
    /// The session is to end, with a sentence for the client.
    End(&'a str),
    /// A report of another session, of which this one gets a copy.
    Copy(&'a str),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<R> {
    /// Write this before anything is sent.
    Keep(R),
    /// Send these bytes to the client, if there is one.
    Send(Vec<u8>),
    /// Give this report to the sessions that get copies of this one's.
    Copy(String),
    /// End the connection once all is sent; why.
    Close(String),
    /// Tell whoever runs the door.
    Note(String),
}

/// One session on both sides, without I/O.
pub trait Line: Sized + Debug {
    /// How bytes become messages.
    type Cut: Cut;
    /// Who may log on as it.
    type Profile: Clone + Debug;
    /// What must survive.
    type Record: Debug + Clone + PartialEq + Eq + Serialize + DeserializeOwned;

    /// Ends the name of its store.
    const PROTOCOL: &str;

    /// The session at this place of the settings, which nobody has used.
    fn new(settings: &Settings<Self::Profile>, at: usize) -> Self;

    /// The other side, and the door, as they call themselves.
    fn names(profile: &Self::Profile) -> (&str, &str);

    /// Whether the first message of a connection names it.
    fn is_named_by(&self, first: &<Self::Cut as Cut>::Message) -> bool;

    /// What a connection is sent whose first message names no session, or one that is in use.
    fn refusal(is_in_use: bool) -> Vec<u8>;

    /// Why a message is not taken while the store has more bytes than it may, if it is not.
    fn refusal_when_over(message: &<Self::Cut as Cut>::Message) -> Option<&'static str>;

    /// Forgets the orders that have ended.
    fn forget_ended(&mut self);

    /// Whether it has orders that may trade.
    fn has_live_orders(&self) -> bool;

    /// Whether a client has logged on.
    fn is_logged_on(&self) -> bool;

    /// Handles what happened at a time, ns since 1970. What the client of the gateways has to do
    /// is in [`Line::exchange`] then.
    fn step(
        &mut self,
        input: Input<'_, <Self::Cut as Cut>::Message>,
        now_ns: u64,
    ) -> Vec<Output<Self::Record>>;

    /// The client of the gateways.
    fn exchange(&mut self) -> &mut Session;

    /// The record of one of its changes.
    fn record(change: Change) -> Self::Record;

    /// Whether a record says that all before it is forgotten.
    fn is_reset(record: &Self::Record) -> bool;

    /// Takes over what was kept.
    fn restore(&mut self, record: Self::Record);

    /// All that must be kept of it.
    fn snapshot(&self) -> impl Iterator<Item = Self::Record>;

    /// A symbol of a live order that the sessions file lacks.
    fn lost_symbol(&self) -> Option<&str>;

    /// Other symbols are traded from now on.
    fn set_symbols(&mut self, symbols: Arc<Symbols>);

    /// Whether it gets a copy of each report of another session.
    fn gets_copies_of(&self, _other: &Self) -> bool {
        false
    }

    /// Whether it gets copies. What it is to keep is written before the originals are, so that a
    /// door that is killed between may repeat a copy, and loses none.
    fn gets_copies(&self) -> bool {
        false
    }

    /// Makes its store smaller, if it can without its client.
    fn make_room(&mut self) {}

    /// Adds the instruments of which it wants to know what their books show.
    fn wanted(&self, _to: &mut BTreeSet<u32>) {}

    /// Tells its client what books show and what was announced: of all, or of the books that have
    /// changed.
    fn tell_market(
        &mut self,
        _market: &Market,
        _changed: Option<&Views>,
        _now_ns: u64,
    ) -> Vec<Output<Self::Record>> {
        vec![]
    }

    /// Tells its client nothing more of the market, and why.
    fn end_market(&mut self, _why: &str, _now_ns: u64) -> Vec<Output<Self::Record>> {
        vec![]
    }

    /// Whether its store takes new orders.
    fn set_full(&mut self, is_full: bool);
}

/// The messages of a protocol.
pub type MessageOf<L> = <<L as Line>::Cut as Cut>::Message;
