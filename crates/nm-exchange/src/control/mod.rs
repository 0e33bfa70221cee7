//! Control: what all nodes of a network must agree on, kept by a group of replicas of its own.
//!
//! Its state ([`State`]) has the membership (nodes and whether they are up), the map of instruments
//! to cells with its version ([`InstrumentMap`]), and who leads each cell. It is small and not on
//! the data path: a cell fails over by itself, and a network whose control group has no majority
//! continues with the last map.
//!
//! ```text
//! gateway ─membership report→ router ─membership report→ mediators: control's leader logs it
//! gateway ←routing table─ router ←routing table─ control's leader, when the map or a leader is new
//! ```
//!
//! **No instrument is traded in two cells.** A gateway chooses a request's cell by its map, and
//! writes the map's version into the request. To move an instrument to another cell, control logs
//! the intent, then asks the present cell to release it in the next map version. The release goes
//! through the cell's own log: behind it, the cell executes no request on the instrument that has
//! an older map version, whichever replica leads, and it refuses if it ever executed one. Only then
//! the map changes. A request that comes to a cell by an older map is kept by its gateway, which
//! resends it when it has the new one. A new leader of control finds the intent in the log, and
//! asks again.
//!
//! Without a log (`durability = "none"`) there is no control: the map is the network file's.

pub mod admin;
mod admin_message;
mod command;
mod membership;
mod monitor;
mod routing;
mod state;

pub use admin_message::{AdminRequest, AdminResponse};
pub use command::{Command, decode_batch, encode_batch};
pub use membership::{MembershipReport, NodeId};
pub use monitor::{LEFT_NS, MembershipMonitor};
pub use routing::{CellLeader, InstrumentMap, MAP_EXCEPTIONS_MAX, RoutingTable};
pub use state::{InstrumentMove, Member, MoveError, State};
