//! The load: an open loop on an absolute schedule over all gateways of a network.
//!
//! Requests ([`mix`], `random`) and their times ([`schedule`]) follow from a seed alone, or from a
//! recorded [`flow`]; neither waits for the network. A round trip is measured from the *intended*
//! send time, so that anything that delays the generator counts as well. [`clients`] holds the
//! sessions without sockets or clocks, `connections` their links, and [`generator`] drives them.
//! [`round`] computes the figures, and [`log`] records requests and replies for `verify`. A load
//! that changes is a [`profile`], recorded by [`seconds`].
#![forbid(unsafe_code)]

pub mod clients;
mod connections;
pub mod demand;
mod dial;
pub mod flow;
pub mod generator;
pub mod log;
pub mod mix;
pub mod profile;
mod random;
pub mod recorder;
pub mod round;
pub mod schedule;
pub mod seconds;
mod settings;

pub use connections::{Gateways, KnownGateways};
pub use generator::Generator;
pub use random::Sizes;
pub use round::Round;
pub use schedule::Arrivals;
pub use settings::{OrderRequest, Pace, Settings, SettingsError, Stall};
