//! A node by class and index, as messages and logs of control have it.

use nm_codec::{DecodeError, Put, Reader};

use crate::network::Role;

/// A node by class and index.
pub type NodeId = (Role, u16);

/// Appends a node's class and index.
pub fn write_node((role, index): NodeId, out: &mut Vec<u8>) {
    out.put_u8(role.code());
    out.put_u16(index);
}

/// Reads what [`write_node`] appended.
///
/// # Errors
/// If there is no such class.
pub fn read_node(reader: &mut Reader<'_>) -> Result<NodeId, DecodeError> {
    let role = Role::from_code("role", reader.u8("role")?)?;
    Ok((role, reader.u16("index")?))
}
