//! What an observer asks a node.

use nm_book::order::InstrumentId;

use crate::directing::Direction;
use crate::firm::FirmRecord;
use crate::listing::Listing;
use crate::node_id::{NodeId, Role};
use crate::nodes::NodeAddresses;
use crate::choice;

use super::retire::Retired;
use super::stop::StopOrder;

choice! {
    /// What an observer asks a node, or an operator orders.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum AdminRequest {
        /// For the state of control.
        Status = 0,
        /// To move an instrument to a cell.
        Move = 1 {
            /// Which.
            instrument: InstrumentId,
            /// Its new cell.
            cell: u16,
        },
        /// How much work the node has done.
        Work = 2,
        /// For the replicas of a cell, as a mediator knows them that has one.
        Replicas = 4 {
            /// Which cell.
            cell: u16,
        },
        /// To replace a replica of a cell by one of another node. The cell's leader begins that;
        /// the answer is that to `Replicas`, which shows later when it is done.
        Replace = 5 {
            /// Which cell.
            cell: u16,
            /// The node that has the replica.
            from: NodeId,
            /// The node that is to have one.
            to: NodeId,
        },
        /// To let a mediator or gateway carry nothing, or work again. The answer is the state
        /// before; the status shows when it is done.
        Drain = 6 {
            /// Which.
            node: NodeId,
            /// Whether it is to carry nothing.
            is_drained: bool,
        },
        /// To add a node. The answer is the state before; the status shows when it is done.
        Add = 7 {
            /// Its class.
            class: Role,
            /// Where it listens.
            addresses: NodeAddresses,
        },
        /// To remove a node that was added. The answer is the state before.
        Remove = 8 {
            /// Which.
            node: NodeId,
        },
        /// To remove what a session or an owner has in a cell, of which the cell's leader removes a
        /// part. The answer is what is left; repeated until that is nothing.
        Retire = 9 {
            /// Which cell.
            cell: u16,
            /// Whose.
            retired: Retired,
        },
        /// To list an instrument, or to change how it is listed. The answer is the state before;
        /// the status shows when it is done.
        List = 10 {
            /// How.
            listing: Listing,
        },
        /// To list an instrument no more. The answer is the state before.
        Delist = 11 {
            /// Which.
            instrument: InstrumentId,
        },
        /// To direct trading on an instrument of a cell, or on all that are in it. The cell's
        /// leader answers when it is done.
        Direct = 30 {
            /// Which cell.
            cell: u16,
            /// The instrument; none for all.
            instrument: Option<InstrumentId>,
            /// What.
            direction: Direction,
        },
        /// To stop an owner in a cell, or to let it send orders again. The answer is what held
        /// before; repeated until that is the order.
        Stop = 31 {
            /// Which cell.
            cell: u16,
            /// The decision; one with version 0 changes nothing.
            order: StopOrder,
        },
        /// To note that a phase of the schedule has begun. The answer is the state before; the
        /// status shows when it is done.
        Begun = 32 {
            /// Name of its group of instruments.
            group: String,
            /// When it was due, s since 1970.
            at_s: u64,
        },
        /// To add a firm, or to change it. The answer is the state before; the status shows when it
        /// is done.
        SetFirm = 48 {
            /// The firm as it is to be.
            firm: FirmRecord,
        },
        /// To remove a firm. The answer is the state before.
        RemoveFirm = 49 {
            /// Its number.
            number: u32,
        },
        /// For what firms with limits have in a cell, as its leader knows it.
        FirmUses = 50 {
            /// Which cell.
            cell: u16,
        },
        /// To send what books execute from now on, as `BookUpdate` messages: a mediator or
        /// processor does that for its replicas. The answer is where they stand.
        Follow = 20,
        /// For the book of an instrument. The answer has it in pieces, none of them if the node
        /// does not have the instrument.
        Image = 21 {
            /// Which.
            instrument: InstrumentId,
        },
    }
}

impl AdminRequest {
    /// Whether it changes the network or shows whose orders there are, which is for operators only.
    pub fn is_change(&self) -> bool {
        match self {
            AdminRequest::Status | AdminRequest::Work | AdminRequest::Replicas { .. } => false,
            AdminRequest::Move { .. }
            | AdminRequest::Drain { .. }
            | AdminRequest::Replace { .. }
            | AdminRequest::Add { .. }
            | AdminRequest::Retire { .. }
            | AdminRequest::Direct { .. }
            | AdminRequest::Stop { .. }
            | AdminRequest::Begun { .. }
            | AdminRequest::SetFirm { .. }
            | AdminRequest::RemoveFirm { .. }
            | AdminRequest::FirmUses { .. }
            | AdminRequest::Follow
            | AdminRequest::Image { .. }
            | AdminRequest::List { .. }
            | AdminRequest::Delist { .. }
            | AdminRequest::Remove { .. } => true,
        }
    }
}
