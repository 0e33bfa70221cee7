//! Sets the hardware address of a virtual function, as `ip link set LINK vf N mac ADDRESS` does.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkVfInfo, VfInfo, VfInfoMac};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nm_sys::ethtool::Links;

/// Sets the hardware address of virtual function `index` of `link`. It goes with the function.
///
/// # Errors
/// If the driver or the kernel refuses.
pub fn set(link: &str, index: u32, address: [u8; 6]) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = Links::new()?
        .index(link)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no link {link}")))?;
    let info = LinkVfInfo(vec![VfInfo::Mac(VfInfoMac::new(index, &address))]);
    message.attributes.push(LinkAttribute::VfInfoList(vec![info]));
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    header.sequence_number = 1;
    let payload = NetlinkPayload::from(RouteNetlinkMessage::SetLink(message));
    let mut request = NetlinkMessage::new(header, payload);
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let invalid = |error: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, format!("answer of the kernel: {error}"))
    };
    NetlinkBuffer::new_checked(&answer).map_err(|error| invalid(&error))?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
        .map_err(|error| invalid(&error))?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        NetlinkPayload::Error(_) => Ok(()),
        _ => Err(invalid(&"no acknowledgement")),
    }
}
