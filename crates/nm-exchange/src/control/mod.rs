//! Control: what all nodes of a network must agree on, kept by a group of replicas of its own.
//!
//! Its state ([`State`]) has the nodes that are up, the map of instruments to cells with its epoch
//! ([`Map`]), and who leads each cell. It is small, and nobody who trades waits for it: a cell
//! fails over by itself, and a network whose control has no majority goes on with the last map.
//!
//! ```text
//! gateway ─view→ router ─view→ mediators: the leader of control writes down what they see
//! gateway ←routes─ router ←routes─ the leader of control, when the map or a leader is new
//! ```
//!
//! **No instrument is traded in two cells.** A gateway chooses a request's cell by its map, and
//! writes the map's epoch into the request. To give an instrument to another cell, control writes
//! the intent down, then asks the present cell to release it in the next epoch. That goes through
//! the cell's own log: behind it, the cell handles no request on the instrument that has an older
//! epoch, whoever leads it, and it refuses if it ever handled one. Only then the map changes. A
//! request that comes to a cell by an older map is kept by its gateway, which sends it again when
//! it has the new one. A new leader of control finds the intent in the log, and asks again.
//!
//! Without a log (`durability = "none"`) there is no control: the map is the network file's.

pub mod admin;
mod map;
mod state;
mod view;

pub use admin::{AdminRequest, AdminResponse};
pub use map::{CellLeader, MAP_EXCEPTIONS_MAX, Map, RoutingTable};
pub use state::{Change, Command, Member, State, batch, open};
pub use view::{LEFT_NS, MembershipMonitor, MembershipReport, NodeName};
