//! UDP datagrams as complete Ethernet frames: encoding and decoding them, with their checksums.
//!
//! RFC 768 (UDP), 791 and 6864 (IPv4), 8200 (IPv6), 1071 (the checksum). A frame carries one
//! complete datagram: fragments, IPv4 options and IPv6 extension headers are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Hardware address of an Ethernet link.
pub type HardwareAddress = [u8; 6];

/// Fields of the Ethernet header, from the start of the frame.
mod ethernet {
    use std::ops::Range;

    pub const DESTINATION: Range<usize> = 0..6;
    pub const SOURCE: Range<usize> = 6..12;
    pub const TYPE: Range<usize> = 12..14;
    pub const BYTES: usize = 14;

    pub const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
    pub const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
}

/// Fields of the IPv4 header without options, from its start.
mod ipv4 {
    use std::ops::Range;

    pub const VERSION_AND_LENGTH: usize = 0;
    pub const TOTAL_LENGTH: Range<usize> = 2..4;
    pub const FLAGS_AND_OFFSET: Range<usize> = 6..8;
    pub const HOPS: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: Range<usize> = 10..12;
    pub const SOURCE: Range<usize> = 12..16;
    pub const DESTINATION: Range<usize> = 16..20;
    pub const ADDRESSES: Range<usize> = 12..20;
    pub const BYTES: usize = 20;

    /// Version 4, five words of header.
    pub const PLAIN_HEADER: u8 = 0x45;
    pub const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
    /// The flag of more fragments, and the offset.
    pub const FRAGMENT_MASK: u16 = 0x3fff;
}

/// Fields of the IPv6 header, from its start.
mod ipv6 {
    use std::ops::Range;

    pub const VERSION: usize = 0;
    pub const PAYLOAD_LENGTH: Range<usize> = 4..6;
    pub const NEXT_HEADER: usize = 6;
    pub const HOPS: usize = 7;
    pub const SOURCE: Range<usize> = 8..24;
    pub const DESTINATION: Range<usize> = 24..40;
    pub const ADDRESSES: Range<usize> = 8..40;
    pub const BYTES: usize = 40;
}

/// Fields of the UDP header, from its start.
mod udp {
    use std::ops::Range;

    pub const SOURCE_PORT: Range<usize> = 0..2;
    pub const DESTINATION_PORT: Range<usize> = 2..4;
    pub const PORTS: Range<usize> = 0..4;
    pub const LENGTH: Range<usize> = 4..6;
    pub const CHECKSUM: Range<usize> = 6..8;
    pub const BYTES: usize = 8;

    /// UDP's number in the headers of IP.
    pub const PROTOCOL: u8 = 17;
    /// A checksum field that says that there is none.
    pub const NO_CHECKSUM: [u8; 2] = [0; 2];
}

/// Bytes of the link's header, which the MTU does not count.
pub const LINK_BYTES: usize = ethernet::BYTES;

/// The shortest frame, without the check sequence that the hardware adds.
pub const FRAME_BYTES_MIN: usize = 60;

const HEADERS_BYTES_MAX: usize = ethernet::BYTES + ipv6::BYTES + udp::BYTES;

const HOPS: u8 = 64;

/// The addresses of a frame. `source` and `destination` are of the same family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameAddresses {
    /// Hardware address of the sending link.
    pub source_link: HardwareAddress,
    /// Hardware address of the link that the frame goes to next.
    pub destination_link: HardwareAddress,
    /// Sending endpoint.
    pub source: SocketAddr,
    /// Receiving endpoint.
    pub destination: SocketAddr,
}

/// Writes frames with the same addresses: what does not change between two of them is made once.
#[derive(Debug, Clone)]
pub struct FrameWriter {
    headers: [u8; HEADERS_BYTES_MAX],
    ip_bytes: usize,
    /// Sum of the IPv4 header without its length.
    ip_sum: u64,
    /// Sum of addresses, protocol and ports.
    udp_sum: u64,
}

impl FrameWriter {
    /// A writer for these addresses; none if they are of different families.
    pub fn new(addresses: &FrameAddresses) -> Option<FrameWriter> {
        let FrameAddresses { source, destination, .. } = addresses;
        let mut headers = [0; HEADERS_BYTES_MAX];
        headers[ethernet::DESTINATION].copy_from_slice(&addresses.destination_link);
        headers[ethernet::SOURCE].copy_from_slice(&addresses.source_link);
        let ip = &mut headers[ethernet::BYTES..];
        let (ip_bytes, ethertype, ip_addresses) = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                // Never fragmented, hence without an identification.
                ip[ipv4::VERSION_AND_LENGTH] = ipv4::PLAIN_HEADER;
                ip[ipv4::FLAGS_AND_OFFSET].copy_from_slice(&ipv4::DONT_FRAGMENT);
                ip[ipv4::HOPS] = HOPS;
                ip[ipv4::PROTOCOL] = udp::PROTOCOL;
                ip[ipv4::SOURCE].copy_from_slice(&source.octets());
                ip[ipv4::DESTINATION].copy_from_slice(&destination.octets());
                (ipv4::BYTES, ethernet::TYPE_IPV4, ipv4::ADDRESSES)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ip[ipv6::VERSION] = 6 << 4;
                ip[ipv6::NEXT_HEADER] = udp::PROTOCOL;
                ip[ipv6::HOPS] = HOPS;
                ip[ipv6::SOURCE].copy_from_slice(&source.octets());
                ip[ipv6::DESTINATION].copy_from_slice(&destination.octets());
                (ipv6::BYTES, ethernet::TYPE_IPV6, ipv6::ADDRESSES)
            }
            _ => return None,
        };
        let ip_sum = sum(&ip[..ip_bytes]);
        let mut ports = [0; 4];
        ports[udp::SOURCE_PORT].copy_from_slice(&source.port().to_be_bytes());
        ports[udp::DESTINATION_PORT].copy_from_slice(&destination.port().to_be_bytes());
        let udp_sum = sum(&ip[ip_addresses]) + sum(&[0, udp::PROTOCOL]) + sum(&ports);
        ip[ip_bytes..][udp::PORTS].copy_from_slice(&ports);
        headers[ethernet::TYPE].copy_from_slice(&ethertype);
        Some(FrameWriter { headers, ip_bytes, ip_sum, udp_sum })
    }

    /// Bytes in front of the payload.
    pub fn headers_bytes(&self) -> usize {
        ethernet::BYTES + self.ip_bytes + udp::BYTES
    }

    /// Bytes of the frame that carries so many.
    #[inline(always)]
    pub fn frame_bytes(&self, payload_bytes: usize) -> usize {
        (self.headers_bytes() + payload_bytes).max(FRAME_BYTES_MIN)
    }

    /// Writes the frame that carries `payload` into `frame`, which has
    /// [`FrameWriter::frame_bytes`].
    #[inline(always)]
    pub fn write(&self, payload: &[u8], frame: &mut [u8]) {
        debug_assert_eq!(frame.len(), self.frame_bytes(payload.len()));
        let headers_bytes = self.headers_bytes();
        let udp_length = ((udp::BYTES + payload.len()) as u16).to_be_bytes();
        frame[..headers_bytes].copy_from_slice(&self.headers[..headers_bytes]);
        let end = headers_bytes + payload.len();
        frame[headers_bytes..end].copy_from_slice(payload);
        frame[end..].fill(0);
        let (ip, udp_header) = frame[ethernet::BYTES..].split_at_mut(self.ip_bytes);
        if self.ip_bytes == ipv4::BYTES {
            let length = ((ipv4::BYTES + udp::BYTES + payload.len()) as u16).to_be_bytes();
            ip[ipv4::TOTAL_LENGTH].copy_from_slice(&length);
            ip[ipv4::CHECKSUM].copy_from_slice(&fold(self.ip_sum + sum(&length)));
        } else {
            ip[ipv6::PAYLOAD_LENGTH].copy_from_slice(&udp_length);
        }
        udp_header[udp::LENGTH].copy_from_slice(&udp_length);
        // The length counts twice: in the header and in the pseudo header.
        let checksum = fold(self.udp_sum + 2 * sum(&udp_length) + sum(payload));
        // A sum of zero is sent as its complement, because zero means that there is none.
        let checksum = if checksum == udp::NO_CHECKSUM { [0xff; 2] } else { checksum };
        udp_header[udp::CHECKSUM].copy_from_slice(&checksum);
    }
}

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Its addresses.
    pub addresses: FrameAddresses,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Why a frame is not a complete UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The Ethernet header is cut off.
    #[error("the Ethernet header is too short")]
    EthernetHeader,
    /// Neither IPv4 nor IPv6.
    #[error("the Ethernet type is neither IPv4 nor IPv6")]
    EtherType,
    /// The IP header is cut off, has options, or is of another version.
    #[error("the IP header is not a plain one")]
    IpHeader,
    /// Not UDP.
    #[error("the protocol of the IP header is not UDP")]
    IpProtocol,
    /// A fragment of a datagram.
    #[error("the IPv4 packet is a fragment")]
    Fragment,
    /// The length of the IP header is longer than the frame.
    #[error("the length of the IP header is wrong")]
    IpLength,
    /// The IPv4 checksum is wrong.
    #[error("the IPv4 checksum is wrong")]
    IpChecksum,
    /// The UDP header is cut off.
    #[error("the UDP header is too short")]
    UdpHeader,
    /// The length of the UDP header does not fit the packet.
    #[error("the length of the UDP header is wrong")]
    UdpLength,
    /// The UDP checksum is wrong.
    #[error("the UDP checksum is wrong")]
    UdpChecksum,
}

/// Decodes a frame. Checksums are verified only if `verify` is set.
///
/// # Errors
/// The field that is wrong.
#[inline(always)]
pub fn decode(frame: &[u8], verify: bool) -> Result<Datagram<'_>, DecodeError> {
    let (link, ip) =
        frame.split_first_chunk::<{ ethernet::BYTES }>().ok_or(DecodeError::EthernetHeader)?;
    let (source, destination, packet) = match array(link, ethernet::TYPE) {
        ethernet::TYPE_IPV4 => decode_ipv4(ip, verify)?,
        ethernet::TYPE_IPV6 => decode_ipv6(ip)?,
        _ => return Err(DecodeError::EtherType),
    };
    let header = packet.first_chunk::<{ udp::BYTES }>().ok_or(DecodeError::UdpHeader)?;
    let length = usize::from(number(header, udp::LENGTH));
    if length < udp::BYTES || packet.len() < length {
        return Err(DecodeError::UdpLength);
    }
    if verify && !udp_checksum_is_right(source, destination, &packet[..length]) {
        return Err(DecodeError::UdpChecksum);
    }
    let addresses = FrameAddresses {
        source_link: array(link, ethernet::SOURCE),
        destination_link: array(link, ethernet::DESTINATION),
        source: SocketAddr::new(source, number(header, udp::SOURCE_PORT)),
        destination: SocketAddr::new(destination, number(header, udp::DESTINATION_PORT)),
    };
    Ok(Datagram { addresses, payload: &packet[udp::BYTES..length] })
}

/// The bytes of a field, which has `N` of them.
#[inline(always)]
fn array<const N: usize>(header: &[u8], field: std::ops::Range<usize>) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[field]);
    bytes
}

#[inline(always)]
fn number(header: &[u8], field: std::ops::Range<usize>) -> u16 {
    u16::from_be_bytes(array(header, field))
}

/// Source, destination and payload of an IPv4 packet.
#[inline(always)]
fn decode_ipv4(ip: &[u8], verify: bool) -> Result<(IpAddr, IpAddr, &[u8]), DecodeError> {
    let header: &[u8; ipv4::BYTES] = ip.first_chunk().ok_or(DecodeError::IpHeader)?;
    if header[ipv4::VERSION_AND_LENGTH] != ipv4::PLAIN_HEADER {
        return Err(DecodeError::IpHeader);
    }
    if header[ipv4::PROTOCOL] != udp::PROTOCOL {
        return Err(DecodeError::IpProtocol);
    }
    if number(header, ipv4::FLAGS_AND_OFFSET) & ipv4::FRAGMENT_MASK != 0 {
        return Err(DecodeError::Fragment);
    }
    if verify && fold(sum(header)) != [0; 2] {
        return Err(DecodeError::IpChecksum);
    }
    let length = usize::from(number(header, ipv4::TOTAL_LENGTH));
    let payload = ip.get(ipv4::BYTES..length).ok_or(DecodeError::IpLength)?;
    let address = |field| IpAddr::from(Ipv4Addr::from_octets(array(header, field)));
    Ok((address(ipv4::SOURCE), address(ipv4::DESTINATION), payload))
}

/// Source, destination and payload of an IPv6 packet.
#[inline(always)]
fn decode_ipv6(ip: &[u8]) -> Result<(IpAddr, IpAddr, &[u8]), DecodeError> {
    let header: &[u8; ipv6::BYTES] = ip.first_chunk().ok_or(DecodeError::IpHeader)?;
    if header[ipv6::VERSION] >> 4 != 6 {
        return Err(DecodeError::IpHeader);
    }
    if header[ipv6::NEXT_HEADER] != udp::PROTOCOL {
        return Err(DecodeError::IpProtocol);
    }
    let length = usize::from(number(header, ipv6::PAYLOAD_LENGTH));
    let payload = ip[ipv6::BYTES..].get(..length).ok_or(DecodeError::IpLength)?;
    let address = |field| IpAddr::from(Ipv6Addr::from_octets(array(header, field)));
    Ok((address(ipv6::SOURCE), address(ipv6::DESTINATION), payload))
}

/// Whether the checksum of a UDP datagram fits; IPv4 allows to omit it.
#[inline(never)]
fn udp_checksum_is_right(source: IpAddr, destination: IpAddr, packet: &[u8]) -> bool {
    if packet[udp::CHECKSUM] == udp::NO_CHECKSUM {
        return source.is_ipv4();
    }
    let [source, destination] = [source, destination].map(|ip| match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    });
    let length = (packet.len() as u16).to_be_bytes();
    let pseudo_header = source + destination + sum(&[0, udp::PROTOCOL]) + sum(&length);
    fold(pseudo_header + sum(packet)) == [0; 2]
}

/// The sum of 16-bit words that the checksum is made of, in the machine's byte order, which does
/// not matter until the end (RFC 1071). An odd byte at the end counts as if a zero followed.
#[inline(always)]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words + u64::from(u32::from_ne_bytes(last))
}

/// Folds a sum to 16 bits and negates it: the bytes of a checksum.
#[inline(always)]
fn fold(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses(v4: bool, bits: [u128; 2], ports: [u16; 2]) -> FrameAddresses {
        let endpoint = |at: usize| {
            let ip = match v4 {
                true => Ipv4Addr::from(bits[at] as u32).into(),
                false => Ipv6Addr::from(bits[at]).into(),
            };
            SocketAddr::new(ip, ports[at])
        };
        FrameAddresses {
            source_link: [2, 0, 0, 0, 0, 1],
            destination_link: [2, 0, 0, 0, 0, 2],
            source: endpoint(0),
            destination: endpoint(1),
        }
    }

    fn encoded(addresses: &FrameAddresses, payload: &[u8]) -> Vec<u8> {
        let writer = FrameWriter::new(addresses).unwrap();
        let mut frame = vec![0xaa; writer.frame_bytes(payload.len())];
        writer.write(payload, &mut frame);
        frame
    }

    /// As RFC 1071 describes it, word by word in network order.
    fn reference_checksum(bytes: &[u8]) -> [u8; 2] {
        let words = bytes.chunks(2).map(|pair| [pair[0], pair.get(1).copied().unwrap_or(0)]);
        let sum = words.fold(0u32, |sum, word| {
            let sum = sum + u32::from(u16::from_be_bytes(word));
            (sum & 0xffff) + (sum >> 16)
        });
        (!(sum as u16)).to_be_bytes()
    }

    fn any_addresses() -> impl Strategy<Value = FrameAddresses> {
        (any::<bool>(), any::<[u128; 2]>(), any::<[u16; 2]>())
            .prop_map(|(v4, bits, ports)| addresses(v4, bits, ports))
    }

    proptest! {
        #[test]
        fn frame_round_trips(
            addresses in any_addresses(),
            payload in proptest::collection::vec(any::<u8>(), 0..1472),
        ) {
            let frame = encoded(&addresses, &payload);
            prop_assert!(frame.len() >= 60);
            let datagram = decode(&frame, true).unwrap();
            prop_assert_eq!(datagram, Datagram { addresses, payload: &payload });
        }

        #[test]
        fn changed_bit_is_detected(
            addresses in any_addresses(), payload in proptest::collection::vec(any::<u8>(), 0..64),
            position in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let mut frame = encoded(&addresses, &payload);
            let writer = FrameWriter::new(&addresses).unwrap();
            // Behind the hardware addresses and the type, which the link's own check covers, and
            // without the fields of IPv6 that no checksum covers.
            let first = if addresses.source.is_ipv4() { 14 } else { 22 };
            let end = writer.headers_bytes() + payload.len();
            let at = first + position.index(end - first);
            frame[at] ^= 1 << bit;
            // A UDP checksum over IPv4 may be changed to "none" only where it has one bit set.
            let udp = writer.headers_bytes() - 8;
            prop_assume!(frame[udp + 6..udp + 8] != [0; 2]);
            prop_assert!(decode(&frame, true).is_err());
        }

        #[test]
        fn any_bytes_decode_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            addresses in any_addresses(), cut in any::<prop::sample::Index>(),
            changes in proptest::collection::vec((0usize..62, any::<u8>()), 0..4),
        ) {
            let _ = (decode(&bytes, true), decode(&bytes, false));
            let mut frame = encoded(&addresses, &bytes);
            for (at, byte) in changes {
                frame[at.min(59)] = byte;
            }
            frame.truncate(cut.index(frame.len()));
            let _ = (decode(&frame, true), decode(&frame, false));
        }

        #[test]
        fn fast_checksum_equals_the_reference(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert_eq!(fold(sum(&bytes)), reference_checksum(&bytes));
        }
    }

    #[test]
    fn checksum_of_the_example_in_the_rfc() {
        // RFC 1071, section 3: the sum of these bytes is ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), (!0xddf2u16).to_be_bytes());
    }

    #[test]
    fn writer_refuses_different_address_families() {
        let mut mixed = addresses(true, [1, 2], [3, 4]);
        mixed.destination = "[::1]:4".parse().unwrap();
        assert!(FrameWriter::new(&mixed).is_none());
    }

    #[test]
    fn decode_error_names_the_field() {
        let frame = encoded(&addresses(true, [1, 2], [3, 4]), b"hello");
        assert!(decode(&frame, false).is_ok());
        for (at, byte, error) in [
            (14, 0x46, DecodeError::IpHeader),
            (20, 0x20, DecodeError::Fragment),
            (21, 0x01, DecodeError::Fragment),
            (23, 6, DecodeError::IpProtocol),
            (12, 0x81, DecodeError::EtherType),
            (17, 255, DecodeError::IpLength),
            (39, 255, DecodeError::UdpLength),
        ] {
            let mut other = frame.clone();
            other[at] = byte;
            assert_eq!(decode(&other, false), Err(error), "{at}");
        }
        assert_eq!(decode(&frame[..13], false), Err(DecodeError::EthernetHeader));
        assert_eq!(decode(&frame[..33], false), Err(DecodeError::IpHeader));
    }

    #[test]
    fn partial_checksums_pass_only_where_they_are_not_verified() {
        let mut frame = encoded(&addresses(true, [1, 2], [3, 4]), b"hello");
        frame[40..42].copy_from_slice(&[0x12, 0x34]);
        assert!(decode(&frame, false).is_ok());
        assert_eq!(decode(&frame, true), Err(DecodeError::UdpChecksum));
        frame[40..42].copy_from_slice(&[0, 0]);
        assert!(decode(&frame, true).is_ok(), "IPv4 may omit it");
    }
}
