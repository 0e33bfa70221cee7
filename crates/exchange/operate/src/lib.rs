//! Operation of a running exchange: what an operator asks of a network, by hand or by policies.
//!
//! [`add`] adds nodes and removes them, [`drain`] lets one carry nothing, [`replace`] gives a cell
//! another replica. [`resize`] changes over how many cells the instruments are spread.
//! [`policy_runner`] does so by policies, which take the latencies between [`sites`].
#![forbid(unsafe_code)]

pub mod add;
pub mod drain;
pub mod policy_runner;
pub mod replace;
pub mod resize;
pub mod sites;
