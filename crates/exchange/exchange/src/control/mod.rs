//! Control: what all nodes of a network must agree on, kept by a group of replicas of its own.
//!
//! Its state ([`State`]) has the membership (nodes and whether they are up), and who leads each
//! cell. It also has the map of instruments to cells with its version ([`InstrumentMap`]). It is
//! small and not on the data path. A cell fails over by itself, and a network whose control group
//! has no majority continues with the last map.
//!
//! ```text
//! gateway ─membership report→ router ─membership report→ mediators: control's leader logs it
//! gateway ←routing table─ router ←routing table─ control's leader, when the map or a leader is new
//! ```
//!
//! A router passes new maps on five times a second at most.
//!
//! **Moves.** To move an instrument to another cell, control logs the move with a number, and
//! orders it from the leader of the present cell. It repeats the order until the new cell says that
//! it has the instrument ([`crate::moves`]). Only then the map changes. Which cell trades an
//! instrument is in the logs of the cells; the map only tells gateways where to send requests. A
//! gateway keeps a request that comes to the wrong cell, and sends it again by the new map. A new
//! leader of control finds the moves in the log, and continues with them.
//!
//! **Nodes that are added.** The map also has the mediators and routers that the network did not
//! begin with, and their addresses. Every node learns of them as it learns of moves, makes its
//! links to them, and opens its replicas of the mediators' cells ([`InstrumentMap::extended`]). One
//! that is removed stays listed as such, so that its number and the files of its cell are never
//! those of another one.
//!
//! Control has a log in memory also where cells have none (`durability = "none"`). Without
//! addresses for its replicas in the network file there is no control: the map is the file's.

#[expect(
    clippy::disallowed_methods,
    reason = "waits for an answer, in programs that are no nodes and in threads of their own"
)]
mod access;
mod added;
mod command;
mod membership;
mod monitor;
mod routing;
mod state;
mod work;

pub use access::{Access, ControlReplica, Observer, unreachable};
pub(crate) use access::{current, find_node};
pub use added::{AddError, RemoveError, addresses_of, node_of, share_an_address};
pub use command::{Command, decode_batch, encode_batch};
pub use membership::MembershipReport;
pub use monitor::{LEFT_NS, MembershipMonitor};
pub use nm_wire::{
    AdminRequest, AdminResponse, CellReplicas, Holdings, InstrumentWork, LinkLatency, Owner,
    Retired, Work,
};
pub use routing::{CellLeader, InstrumentMap, Placement, RoutingTable, is_superseded};
pub use state::{EndedMove, Member, MoveError, PendingMove, State};
pub use work::{WORK_LINKS_MAX, check_response, work_response, work_until};
