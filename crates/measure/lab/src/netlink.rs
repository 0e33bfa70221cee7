//! The requests of rtnetlink(7) that environments need. Each is acknowledged before the next one is
//! sent. They apply to the network namespace of the thread that opened the socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// A connection to the kernel's routing tables.
pub struct Routes {
    socket: Socket,
    sequence: u32,
}

impl Routes {
    /// Opens the connection in the namespace of the calling thread.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn open() -> io::Result<Routes> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Routes { socket, sequence: 0 })
    }

    /// Creates a veth pair: `name` in this namespace and `peer` in the namespace `there`.
    pub fn add_veth(&mut self, name: &str, peer: &str, there: BorrowedFd<'_>) -> io::Result<()> {
        let mut peer_message = LinkMessage::default();
        peer_message.attributes.push(LinkAttribute::IfName(peer.to_string()));
        peer_message.attributes.push(LinkAttribute::NetNsFd(there.as_raw_fd()));
        self.add_link(name, InfoKind::Veth, InfoData::Veth(InfoVeth::Peer(peer_message)))
    }

    /// Creates a bridge that forwards frames as soon as a port is up.
    pub fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        self.add_link(name, InfoKind::Bridge, InfoData::Bridge(vec![InfoBridge::ForwardDelay(0)]))
    }

    fn add_link(&mut self, name: &str, kind: InfoKind, data: InfoData) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_string()));
        message
            .attributes
            .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]));
        self.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes `name` a port of `bridge`.
    pub fn attach(&mut self, name: &str, bridge: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.attributes.push(LinkAttribute::Controller(self.index(bridge)?));
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Brings a link up.
    pub fn set_up(&mut self, name: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Sets the largest packet of a link.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.attributes.push(LinkAttribute::Mtu(mtu));
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Assigns an address that can be used at once: without duplicate address detection for IPv6.
    pub fn add_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = self.index(name)?;
        message.header.prefix_len = prefix_len;
        message.header.family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.attributes.push(AddressAttribute::Address(address));
        if address.is_ipv4() {
            message.attributes.push(AddressAttribute::Local(address));
        } else {
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn index(&self, name: &str) -> io::Result<u32> {
        // SIOCGIFINDEX works on any socket and applies to that socket's namespace.
        use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};
        let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        Ok(name_to_index(socket, name)?)
    }

    /// Sends a request and waits for the kernel's acknowledgement.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        const ANSWERS_MAX: usize = 64;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        self.send(header, message)?;
        for _ in 0..ANSWERS_MAX {
            let (bytes, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes)
                .map_err(io::Error::other)?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            if let NetlinkPayload::Error(error) = answer.payload {
                return match error.code {
                    None => Ok(()),
                    Some(_) => Err(error.to_io()),
                };
            }
        }
        Err(io::Error::other("the kernel did not acknowledge a netlink request"))
    }
}

/// The name of the link with `address`; none if no link has it.
pub fn link_of(address: IpAddr) -> io::Result<Option<String>> {
    use rustix::net::{AddressFamily, SocketType, netdevice::index_to_name, socket};
    let mut routes = Routes::open()?;
    let Some(index) = routes.index_of_address(address)? else { return Ok(None) };
    Ok(Some(index_to_name(socket(AddressFamily::UNIX, SocketType::DGRAM, None)?, index)?))
}

impl Routes {
    fn index_of_address(&mut self, address: IpAddr) -> io::Result<Option<u32>> {
        const PACKETS_MAX: usize = 4096;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.send(header, message)?;
        let mut found = None;
        for _ in 0..PACKETS_MAX {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = &bytes[..];
            while let Ok(buffer) = NetlinkBuffer::new_checked(rest) {
                let length = (buffer.length() as usize).next_multiple_of(4).min(rest.len());
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(io::Error::other)?;
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(found),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(message)) => {
                        let is_wanted =
                            message.attributes.iter().any(|attribute| match attribute {
                                AddressAttribute::Local(it) => *it == address,
                                AddressAttribute::Address(it) => {
                                    address.is_ipv6() && *it == address
                                }
                                _ => false,
                            });
                        if is_wanted {
                            found = Some(message.header.index);
                        }
                    }
                    _ => {}
                }
                rest = &rest[length..];
            }
        }
        Err(io::Error::other("the kernel's list of addresses has no end"))
    }

    fn send(&mut self, mut header: NetlinkHeader, message: RouteNetlinkMessage) -> io::Result<()> {
        self.sequence += 1;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_of_address_is_found() {
        assert_eq!(link_of([127, 0, 0, 1].into()).unwrap().as_deref(), Some("lo"));
        assert_eq!(link_of([192, 0, 2, 77].into()).unwrap(), None);
    }
}
