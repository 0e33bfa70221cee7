//! The hardware address that frames to a peer go to: the kernel chooses the route and asks the
//! neighbour, and here its tables are read (rtnetlink(7)).

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
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;

use super::endpoint::Endpoint;
use crate::failure;
use crate::frame::HardwareAddress;

/// Pause between two looks at the table.
const PAUSE: Duration = Duration::from_millis(2);

/// UDP's discard port: what goes there only makes the kernel find the neighbour.
const DISCARD: u16 = 9;

/// Packets of one answer at most.
const PACKETS_MAX: usize = 4096;

/// Where frames from `endpoint` to `peer` go next.
///
/// # Errors
/// [`FailureKind::Peer`] if no neighbour answers within `limit`, and where the route leaves by
/// another link.
pub(super) fn next_hop(
    endpoint: &Endpoint,
    peer: IpAddr,
    limit: Duration,
) -> Result<HardwareAddress, Failure> {
    let failed = |error: io::Error| failure::of(&error, format!("finding the way to {peer}"));
    let (hop, link) = route(peer).map_err(failed)?;
    if link != Some(endpoint.index) {
        let what = format!("the way to {peer} does not leave by {}", endpoint.link);
        return Err(Failure::new(FailureKind::Peer, what)
            .hint(format!("`ip route get {peer}` shows it; use that link's address")));
    }
    let local = SocketAddr::new(endpoint.local.ip(), 0);
    let asking = UdpSocket::bind(local).map_err(failed)?;
    let deadline = Deadline::after(limit);
    // A datagram that finds no neighbour is an error of the next one at most.
    let _ = asking.send_to(&[0], SocketAddr::new(peer, DISCARD));
    loop {
        if let Some(found) = neighbour(hop, endpoint.index).map_err(failed)? {
            return Ok(found);
        }
        if deadline.passed() {
            let what = format!("{hop}, the next hop to {peer}, does not tell its hardware address");
            return Err(Failure::new(FailureKind::Peer, what)
                .hint("check that the peer's machine is up and on this link"));
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
    ask(RouteNetlinkMessage::GetRoute(message), 0, |answer| {
        let RouteNetlinkMessage::NewRoute(found) = answer else { return };
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
    ask(RouteNetlinkMessage::GetNeighbour(message), NLM_F_DUMP, |answer| {
        let RouteNetlinkMessage::NewNeighbour(found) = answer else { return };
        let unknown = matches!(
            found.header.state,
            NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
        );
        if found.header.ifindex != link || unknown {
            return;
        }
        let (mut is_it, mut address) = (false, None);
        for attribute in found.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(it)) => is_it = ip == it,
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(it)) => is_it = ip == it,
                NeighbourAttribute::LinkLayerAddress(bytes) => address = bytes.try_into().ok(),
                _ => {}
            }
        }
        if is_it {
            hardware = address;
        }
    })?;
    Ok(hardware)
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Sends a request and hands every message of the answer to `each`.
fn ask(
    request: RouteNetlinkMessage,
    flags: u16,
    mut each: impl FnMut(RouteNetlinkMessage),
) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(request));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    for _ in 0..PACKETS_MAX {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while let Ok(buffer) = NetlinkBuffer::new_checked(rest) {
            let length = (buffer.length() as usize).next_multiple_of(4).min(rest.len());
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(io::Error::other)?;
            match answer.payload {
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
    Err(io::Error::other("the kernel's answer to a netlink request does not end"))
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
