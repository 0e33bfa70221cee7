//! The hardware address that frames to a peer are sent to. The kernel chooses the route and
//! resolves the neighbour, and its tables are read here (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use nm_sys::clock::Deadline;

use super::endpoint::XdpEndpoint;
use super::error::XdpError;
use crate::error::SystemError;
use crate::frame::HardwareAddress;

/// Pause between two readings of the table.
const PAUSE: Duration = Duration::from_millis(2);

/// UDP's discard port: a datagram to it only makes the kernel resolve the neighbour.
const DISCARD: u16 = 9;

/// Packets of one reply at most.
const PACKETS_MAX: usize = 4096;

/// The hardware address of the next hop from `endpoint` to `peer`.
///
/// # Errors
/// [`XdpError::NoNeighbour`] if no neighbour answers within `limit`, and
/// [`XdpError::RouteByOtherLink`].
pub(super) fn next_hop(
    endpoint: &XdpEndpoint,
    peer: IpAddr,
    limit: Duration,
) -> Result<HardwareAddress, XdpError> {
    let failed = SystemError::during(format!("finding the route to {peer}"));
    let (hop, link) = route(peer).map_err(&failed)?;
    if link != Some(endpoint.index) {
        return Err(XdpError::RouteByOtherLink { peer, link: endpoint.link.clone() });
    }
    let local = SocketAddr::new(endpoint.local.ip(), 0);
    let resolver = UdpSocket::bind(local).map_err(&failed)?;
    let deadline = Deadline::after(limit);
    // An error of an earlier datagram may be reported here; the table is what counts.
    let _ = resolver.send_to(&[0], SocketAddr::new(peer, DISCARD));
    loop {
        if let Some(found) = neighbour(hop, endpoint.index).map_err(&failed)? {
            return Ok(found);
        }
        if deadline.passed() {
            return Err(XdpError::NoNeighbour { hop, peer });
        }
        thread::sleep(PAUSE);
    }
}

/// The next hop to `peer`, and the index of the link that it is on.
fn route(peer: IpAddr) -> io::Result<(IpAddr, Option<u32>)> {
    let mut message = RouteMessage::default();
    message.header.address_family = family(peer);
    message.header.destination_prefix_length = if peer.is_ipv4() { 32 } else { 128 };
    message.attributes.push(RouteAttribute::Destination(peer.into()));
    let (mut hop, mut link) = (peer, None);
    request(RouteNetlinkMessage::GetRoute(message), 0, |reply| {
        let RouteNetlinkMessage::NewRoute(found) = reply else { return };
        for attribute in found.attributes {
            match attribute {
                RouteAttribute::Gateway(RouteAddress::Inet(ip)) => hop = ip.into(),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => hop = ip.into(),
                RouteAttribute::Oif(index) => link = Some(index),
                _ => {}
            }
        }
    })?;
    Ok((hop, link))
}

/// The hardware address of a neighbour on a link, if the kernel knows it.
fn neighbour(ip: IpAddr, link: u32) -> io::Result<Option<HardwareAddress>> {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    let mut hardware = None;
    request(RouteNetlinkMessage::GetNeighbour(message), NLM_F_DUMP, |reply| {
        let RouteNetlinkMessage::NewNeighbour(found) = reply else { return };
        let unknown = matches!(
            found.header.state,
            NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
        );
        if found.header.ifindex != link || unknown {
            return;
        }
        let (mut matches_ip, mut address) = (false, None);
        for attribute in found.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(found)) => {
                    matches_ip = ip == found;
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(found)) => {
                    matches_ip = ip == found;
                }
                NeighbourAttribute::LinkLayerAddress(bytes) => address = bytes.try_into().ok(),
                _ => {}
            }
        }
        if matches_ip {
            hardware = address;
        }
    })?;
    Ok(hardware)
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Sends a request and calls `each` with every message of the reply.
fn request(
    message: RouteNetlinkMessage,
    flags: u16,
    mut each: impl FnMut(RouteNetlinkMessage),
) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    for _ in 0..PACKETS_MAX {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while let Ok(buffer) = NetlinkBuffer::new_checked(rest) {
            let length = (buffer.length() as usize).next_multiple_of(4).min(rest.len());
            let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(io::Error::other)?;
            match reply.payload {
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => each(message),
                _ => {}
            }
            rest = &rest[length..];
        }
        if flags & NLM_F_DUMP == 0 {
            return Ok(());
        }
    }
    Err(io::Error::other("the kernel's reply to a netlink request does not end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_routed_by_its_own_link_and_has_no_neighbour() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let (hop, link) = route(ip).unwrap();
        assert_eq!(hop, ip);
        assert!(link.is_some());
        assert_eq!(neighbour([192, 0, 2, 77].into(), link.unwrap()).unwrap(), None);
    }
}
