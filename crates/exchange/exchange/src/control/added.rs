//! Nodes that were added to a running network, as the map has them.

use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{NodeAddresses, Value};
use thiserror::Error;

use crate::limits::ADDRESS_BYTES_MAX;
use crate::link;
use crate::network::{NODES_MAX, Node, NodeId, Role};

/// Why a node cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddError {
    /// The network has had as many as it can have.
    #[error("the network has had {NODES_MAX} {0}s, removed ones included, the most possible")]
    TooMany(Role),
    /// An address cannot be part of the map.
    #[error("the address `{0}` has more than {ADDRESS_BYTES_MAX} bytes")]
    LongAddress(String),
    /// Another one listens there.
    #[error("{0}, which was added before, listens at one of its addresses")]
    AddressTaken(NodeId),
}

/// Why a node cannot be removed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RemoveError {
    /// It was there first.
    #[error(
        "{0} cannot be removed, because the network began with it: only those that were added \
         while it ran can"
    )]
    Founder(NodeId),
    /// There is none.
    #[error("there is no {0}: none was added with this number, or it was removed")]
    NoSuchNode(NodeId),
    /// Its cell has instruments.
    #[error("cell {cell} has {instruments} instruments, or they are on their way to it")]
    HasInstruments {
        /// Which.
        cell: u16,
        /// How many.
        instruments: usize,
    },
    /// It is a gateway to which clients may come.
    #[error("gateway {0} takes clients: it is removed when it is drained, or not up")]
    NotDrained(u16),
}

/// The addresses of a node as text.
fn addresses(node: &Node) -> impl Iterator<Item = String> {
    let replication = node.replication.as_ref().map(ToString::to_string);
    std::iter::once(node.address.to_string()).chain(replication)
}

/// Whether two nodes would listen at the same place.
pub fn share_an_address(one: &Node, other: &Node) -> bool {
    addresses(one).any(|address| addresses(other).any(|it| it == address))
}

/// An address of a node that is too long for the map.
pub fn long_address(node: &Node) -> Option<String> {
    addresses(node).find(|address| address.len() > ADDRESS_BYTES_MAX)
}

/// The addresses of a node, for messages and for the log.
pub fn addresses_of(node: &Node) -> NodeAddresses {
    let text = |address: String| {
        let end = address.floor_char_boundary(ADDRESS_BYTES_MAX);
        address[..end].to_string()
    };
    NodeAddresses {
        address: text(node.address.to_string()),
        replication: node.replication.as_ref().map(|replication| text(replication.to_string())),
    }
}

/// The node of these addresses.
///
/// # Errors
/// If they are no addresses.
pub fn node_of(addresses: &NodeAddresses) -> Result<Node, DecodeError> {
    let of_replica = |text: &String| {
        let address: Option<link::Address> = text.parse().ok();
        let address = address.and_then(|address| address.try_into().ok());
        address.ok_or_else(|| DecodeError::invalid("replication", "is not an address of a replica"))
    };
    let address = addresses.address.parse();
    Ok(Node {
        address: address.map_err(|_| DecodeError::invalid("address", "is not one of a node"))?,
        replication: addresses.replication.as_ref().map(of_replica).transpose()?,
    })
}

/// Appends the addresses of a node.
pub fn write_addresses(node: &Node, out: &mut Vec<u8>) {
    addresses_of(node).put(out);
}

/// Reads what [`write_addresses`] appended.
///
/// # Errors
/// If they are no addresses.
pub fn read_addresses(reader: &mut Reader<'_>) -> Result<Node, DecodeError> {
    node_of(&NodeAddresses::take("addresses", reader)?)
}

/// Appends a node's address; of one that is too long, the beginning.
pub fn write_address(address: &str, out: &mut Vec<u8>) {
    let end = address.floor_char_boundary(ADDRESS_BYTES_MAX);
    out.put_u16(end as u16);
    out.put(&address.as_bytes()[..end]);
}

/// Reads what [`write_address`] appended.
///
/// # Errors
/// If it is not UTF-8.
pub fn read_address(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let length = usize::from(reader.u16("address_bytes")?);
    let bytes = reader.bytes("address", length)?.to_vec();
    String::from_utf8(bytes).map_err(|_| DecodeError::invalid("address", "is not UTF-8"))
}
