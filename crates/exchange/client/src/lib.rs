//! A trading client of the exchange, as `docs/wire.md` describes it.
//!
//! [`Client`] is what a program uses: it connects to one of several gateways, sends requests, and
//! gives each event once, whatever dies. [`AsyncClient`] is the same for programs on tokio.
//! [`Session`] is the same without I/O and clocks. A
//! [`StateFile`] keeps what must outlive the process.
//!
//! A new order is never taken for an old one. Numbers of requests come from the wall clock, so a
//! client that has lost its state does not use one again. Before its first request on an
//! instrument it asks what the exchange knows of the session there. If that is more than the client
//! knows, it sends nothing and reports that ([`Happened::UsedBefore`]), until the program lets it
//! [take over](Trader::take_over).
#![forbid(unsafe_code)]

mod asynchronous;
mod blocking;
mod change;
mod inquiry;
mod liveness;
mod open_order;
mod session;
mod state;
mod trader;

pub use asynchronous::AsyncClient;
pub use blocking::Client;
pub use change::Change;
pub use nm_auth::Credentials;
pub use nm_book::order;
pub use nm_exchange::link::Address;
pub use nm_wire::{LiveOrder, SessionPosition};
pub use open_order::OpenOrder;
pub use session::{Happened, Session};
pub use state::{StateError, StateFile};
pub use trader::{ClientError, Settings, Trader};
