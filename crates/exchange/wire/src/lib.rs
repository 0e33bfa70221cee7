//! The messages of the exchange, between clients and nodes and in the logs of cells.
//!
//! Each message has a file with a struct, whose fields, bytes and documentation are declared once
//! ([`message!`]). The table in [`messages`](mod@crate) says which there are. Its [`Kind`]s, its
//! [`ROWS`], and the [`document`] `docs/wire.md` follow from it. So does the [`digest`] of the
//! whole format, which both ends of a link compare. What a node can dispatch on follows from it as
//! well. A message that is not in the table has no code, and cannot be written to a frame:
//!
//! ```compile_fail
//! nm_wire::message! {
//!     /// A message that is in no table.
//!     #[derive(Debug)]
//!     pub struct Stray;
//!     head {
//!         /// Anything.
//!         number: u32,
//!     }
//!     tail {}
//! }
//! nm_wire::write(&Stray { number: 1 }, &mut vec![]);
//! ```
//!
//! A node that only forwards a frame reads and changes the fields at fixed places where they are
//! (`View` and `Edit` of each message):
//!
//! ```
//! use nm_wire::{FrameMut, GoAway, go_away};
//!
//! let mut bytes = vec![];
//! nm_wire::write(&GoAway { gateway: 1 }, &mut bytes);
//! let mut frame = FrameMut::of(&mut bytes)?;
//! go_away::Edit::of(&mut frame)?.gateway(7);
//! assert_eq!(go_away::View::of(frame.shared())?.gateway(), 7);
//! # Ok::<(), nm_wire::DecodeError>(())
//! ```
#![forbid(unsafe_code)]

mod book;
mod declare;
mod directing;
mod document;
mod firm;
mod frame;
mod listing;
mod messages;
mod moving;
mod node_id;
mod nodes;
mod owner;
#[doc(hidden)]
pub mod parts;
mod place;
mod row;
mod series;
mod types;
mod value;

pub use nm_codec::{DecodeError, Random, Reader};

pub use directing::{Directed, Direction};
pub use document::{digest_of, document};
pub use firm::{FirmLimits, FirmRecord, FirmTable, FirmUse, SessionRange};
pub use frame::{
    FRAME_BYTES_MAX, Frame, FrameMut, Listed, PREFIX, PREFIX_BYTES, STAMPS, Sealed, Shape, VERSION,
    overhead_bytes, read_mut_with, read_with, stamp, write_with,
};
pub use listing::Listing;
pub use messages::admin_response::{
    BookImage, BookPosition, CellReplicas, Holdings, InstrumentWork, LinkLatency, Work,
};
pub use messages::close::SILENCE;
pub use messages::format::{Common, Difference, KnownMessage};
pub use messages::hello::{Evidence, Who};
pub use messages::membership_report::Member;
pub use messages::open_orders::{LiveOrder, NextPart, SessionPosition};
pub use messages::presence::Present;
pub use messages::refused::RefusalReason;
pub use messages::request::Breach;
pub use messages::retire::Retired;
pub use messages::routing_table::LedCell;
pub use messages::stop::StopOrder;
pub use messages::*;
pub use moving::{Attempt, CopyStart, LimitCheck, MoveId, MoveRefusal, OrdersLimit, Part};
pub use node_id::{NodeId, NodeIdError, PerClass, Role, UnknownRole};
pub use nodes::{AddedNode, CellLeader, ClassNodes, MapContent, Moved, NodeAddresses};
pub use owner::{Owner, UnknownOwner};
pub use place::{Place, Plain};
pub use row::{Party, Row};
pub use series::{Block, Series};
pub use types::{Alternative, Definition, Field, NamedType, Types, prose};
pub use value::{Rest, Value, decode, encode, total};

/// Which nearmetal this is, as it says in handshakes.
pub const PROGRAM: &str = if cfg!(feature = "next-format") {
    concat!(env!("CARGO_PKG_VERSION"), "+next")
} else {
    env!("CARGO_PKG_VERSION")
};
