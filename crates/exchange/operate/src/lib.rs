//! Operation of a running exchange: what an operator asks of a network, by hand or by policies.
//!
//! [`admin`] asks a network for its status, and for one change at a time; the others are made of
//! these. [`health`] says which instruments can be traded, as the nodes themselves answer. [`add`]
//! adds nodes, at [`addresses`] of their own, and removes them. [`drain`] lets a node carry
//! nothing, [`replace`] gives a cell another replica, and [`retire`] removes what a session or an
//! owner has. [`instruments`] says what may be traded, [`firms`] whose sessions may trade it and
//! how much. [`directions`] says when, and [`scheduler`] does so by a [`schedule`]. [`resize`]
//! changes over how many cells the instruments are spread. [`policy_runner`] does so by policies,
//! which take the latencies between [`sites`]. [`live`] looks again and again, and knows rates.
#![forbid(unsafe_code)]

pub mod add;
pub mod addresses;
pub mod admin;
pub mod directions;
pub mod drain;
pub mod firms;
pub mod health;
pub mod instruments;
pub mod live;
pub mod policy_runner;
pub mod replace;
pub mod resize;
pub mod retire;
pub mod schedule;
pub mod scheduler;
pub mod sites;
