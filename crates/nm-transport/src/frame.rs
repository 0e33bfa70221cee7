//! UDP datagrams as whole Ethernet frames: writing and reading them, with their checksums.
//!
//! RFC 768 (UDP), 791 and 6864 (IPv4), 8200 (IPv6), 1071 (the checksum). A frame carries one whole
//! datagram: fragments, IPv4 options and IPv6 extension headers are not for us.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Hardware address of an Ethernet link.
pub type HardwareAddress = [u8; 6];

/// Bytes of the link's header, which the MTU does not count.
pub const LINK_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;

/// The shortest frame, without the check sequence that the hardware adds.
pub const FRAME_BYTES_MIN: usize = 60;

const HEADERS_BYTES_MAX: usize = LINK_BYTES + 40 + UDP_BYTES;

const HOPS: u8 = 64;

/// One direction between two endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Hardware address of the sending link.
    pub from_link: HardwareAddress,
    /// Hardware address of the link that the frame goes to next.
    pub to_link: HardwareAddress,
    /// Sending endpoint, of the same family as the other.
    pub from: SocketAddr,
    /// Receiving endpoint.
    pub to: SocketAddr,
}

/// Writes the frames of one route: all that does not change between two of them is made once.
#[derive(Debug, Clone)]
pub struct Writer {
    headers: [u8; HEADERS_BYTES_MAX],
    ip_bytes: usize,
    /// Sum of the IPv4 header without its length.
    ip_sum: u64,
    /// Sum of addresses, protocol and ports.
    udp_sum: u64,
}

impl Writer {
    /// A writer for `route`; none if its ends are of different families.
    pub fn new(route: &Route) -> Option<Writer> {
        let mut headers = [0; HEADERS_BYTES_MAX];
        headers[..6].copy_from_slice(&route.to_link);
        headers[6..12].copy_from_slice(&route.from_link);
        let ip = &mut headers[LINK_BYTES..];
        let (ip_bytes, ethertype, addresses) = match (route.from.ip(), route.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // Version and length, no type of service; never fragmented, hence no identity.
                ip[..2].copy_from_slice(&[0x45, 0]);
                ip[6..10].copy_from_slice(&[0x40, 0, HOPS, UDP]);
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
                (20, [0x08, 0x00], 12..20)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ip[0] = 0x60;
                ip[6..8].copy_from_slice(&[UDP, HOPS]);
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..40].copy_from_slice(&to.octets());
                (40, [0x86, 0xdd], 8..40)
            }
            _ => return None,
        };
        let ip_sum = sum(&ip[..ip_bytes]);
        let ports = [route.from.port().to_be_bytes(), route.to.port().to_be_bytes()].concat();
        ip[ip_bytes..ip_bytes + 4].copy_from_slice(&ports);
        let udp_sum = sum(&ip[addresses]) + sum(&[0, UDP]) + sum(&ports);
        headers[12..14].copy_from_slice(&ethertype);
        Some(Writer { headers, ip_bytes, ip_sum, udp_sum })
    }

    /// Bytes in front of the payload.
    pub fn headers_bytes(&self) -> usize {
        LINK_BYTES + self.ip_bytes + UDP_BYTES
    }

    /// Bytes of the frame that carries so many.
    #[inline(always)]
    pub fn frame_bytes(&self, payload_bytes: usize) -> usize {
        (self.headers_bytes() + payload_bytes).max(FRAME_BYTES_MIN)
    }

    /// Writes the frame that carries `payload` into `frame`, which has [`Writer::frame_bytes`].
    #[inline(always)]
    pub fn write(&self, payload: &[u8], frame: &mut [u8]) {
        let headers_bytes = self.headers_bytes();
        let udp_length = ((UDP_BYTES + payload.len()) as u16).to_be_bytes();
        frame[..headers_bytes].copy_from_slice(&self.headers[..headers_bytes]);
        let end = headers_bytes + payload.len();
        frame[headers_bytes..end].copy_from_slice(payload);
        frame[end..].fill(0);
        let (ip, udp) = frame[LINK_BYTES..].split_at_mut(self.ip_bytes);
        if self.ip_bytes == 20 {
            let length = ((20 + UDP_BYTES + payload.len()) as u16).to_be_bytes();
            ip[2..4].copy_from_slice(&length);
            ip[10..12].copy_from_slice(&fold(self.ip_sum + sum(&length)));
        } else {
            ip[4..6].copy_from_slice(&udp_length);
        }
        udp[4..6].copy_from_slice(&udp_length);
        // The length counts twice: in the header and in the pseudo header.
        let checksum = fold(self.udp_sum + 2 * sum(&udp_length) + sum(payload));
        // Zero would say that there is none.
        udp[6..8].copy_from_slice(if checksum == [0; 2] { &[0xff; 2] } else { &checksum });
    }
}

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The way that it came.
    pub route: Route,
    /// What it says.
    pub payload: &'a [u8],
}

/// Reads a frame; none if it is no whole UDP datagram, or if `verify` is set and a checksum is
/// wrong.
#[inline(always)]
pub fn read(frame: &[u8], verify: bool) -> Option<Datagram<'_>> {
    let (ethernet, ip) = frame.split_at_checked(LINK_BYTES)?;
    let (from, to, udp) = match ethernet[12..] {
        [0x08, 0x00] => ipv4(ip, verify)?,
        [0x86, 0xdd] => ipv6(ip)?,
        _ => return None,
    };
    let (header, _) = udp.split_at_checked(UDP_BYTES)?;
    let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let length = usize::from(field(4));
    if length < UDP_BYTES || udp.len() < length {
        return None;
    }
    if verify && !udp_is_right(from, to, &udp[..length]) {
        return None;
    }
    let route = Route {
        from_link: ethernet[6..12].try_into().ok()?,
        to_link: ethernet[..6].try_into().ok()?,
        from: SocketAddr::new(from, field(0)),
        to: SocketAddr::new(to, field(2)),
    };
    Some(Datagram { route, payload: &udp[UDP_BYTES..length] })
}

#[inline(always)]
fn ipv4(ip: &[u8], verify: bool) -> Option<(IpAddr, IpAddr, &[u8])> {
    let header: &[u8; 20] = ip.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if header[0] != 0x45 || header[9] != UDP || fragment {
        return None;
    }
    if verify && fold(sum(header)) != [0; 2] {
        return None;
    }
    let address = |at: usize| Ipv4Addr::from_octets([0, 1, 2, 3].map(|byte| header[at + byte]));
    Some((address(12).into(), address(16).into(), ip.get(20..length)?))
}

#[inline(always)]
fn ipv6(ip: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let header: &[u8; 40] = ip.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || header[6] != UDP {
        return None;
    }
    let address = |at: usize| {
        header[at..].first_chunk::<16>().map(|octets| IpAddr::from(Ipv6Addr::from(*octets)))
    };
    Some((address(8)?, address(24)?, ip[40..].get(..length)?))
}

/// Whether the checksum of a UDP datagram fits; IPv4 allows to leave it out.
#[inline(never)]
fn udp_is_right(from: IpAddr, to: IpAddr, udp: &[u8]) -> bool {
    if udp[6..8] == [0; 2] {
        return from.is_ipv4();
    }
    let addresses = [from, to].map(|ip| match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    });
    let length = (udp.len() as u16).to_be_bytes();
    let pseudo = addresses[0] + addresses[1] + sum(&[0, UDP]) + sum(&length);
    fold(pseudo + sum(udp)) == [0; 2]
}

/// The sum of 16-bit words that the checksum is made of, in the machine's byte order, which does
/// not matter until the end (RFC 1071). An odd byte at the end counts as if a zero followed.
#[inline(always)]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let whole: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    whole + u64::from(u32::from_ne_bytes(last))
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

    fn route(v4: bool, bits: [u128; 2], ports: [u16; 2]) -> Route {
        let end = |at: usize| {
            let ip = match v4 {
                true => Ipv4Addr::from(bits[at] as u32).into(),
                false => Ipv6Addr::from(bits[at]).into(),
            };
            SocketAddr::new(ip, ports[at])
        };
        Route {
            from_link: [2, 0, 0, 0, 0, 1],
            to_link: [2, 0, 0, 0, 0, 2],
            from: end(0),
            to: end(1),
        }
    }

    fn written(route: &Route, payload: &[u8]) -> Vec<u8> {
        let writer = Writer::new(route).unwrap();
        let mut frame = vec![0xaa; writer.frame_bytes(payload.len())];
        writer.write(payload, &mut frame);
        frame
    }

    /// As RFC 1071 puts it, word by word in network order.
    fn slow_checksum(bytes: &[u8]) -> [u8; 2] {
        let words = bytes.chunks(2).map(|pair| [pair[0], pair.get(1).copied().unwrap_or(0)]);
        let sum = words.fold(0u32, |sum, word| {
            let sum = sum + u32::from(u16::from_be_bytes(word));
            (sum & 0xffff) + (sum >> 16)
        });
        (!(sum as u16)).to_be_bytes()
    }

    fn any_route() -> impl Strategy<Value = Route> {
        (any::<bool>(), any::<[u128; 2]>(), any::<[u16; 2]>())
            .prop_map(|(v4, bits, ports)| route(v4, bits, ports))
    }

    proptest! {
        #[test]
        fn a_frame_reads_back(
            route in any_route(), payload in proptest::collection::vec(any::<u8>(), 0..1472),
        ) {
            let frame = written(&route, &payload);
            prop_assert!(frame.len() >= 60);
            let datagram = read(&frame, true).unwrap();
            prop_assert_eq!(datagram, Datagram { route, payload: &payload });
        }

        #[test]
        fn a_changed_bit_is_noticed(
            route in any_route(), payload in proptest::collection::vec(any::<u8>(), 0..64),
            place in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let mut frame = written(&route, &payload);
            let writer = Writer::new(&route).unwrap();
            // Behind the hardware addresses and the type, which the link's own check covers, and
            // without the fields of IPv6 that no checksum covers.
            let first = if route.from.is_ipv4() { 14 } else { 22 };
            let end = writer.headers_bytes() + payload.len();
            let at = first + place.index(end - first);
            frame[at] ^= 1 << bit;
            // A UDP checksum over IPv4 may be changed to "none" only where it has one bit set.
            let udp = writer.headers_bytes() - 8;
            prop_assume!(frame[udp + 6..udp + 8] != [0; 2]);
            prop_assert_eq!(read(&frame, true), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            route in any_route(), cut in any::<prop::sample::Index>(),
            changes in proptest::collection::vec((0usize..62, any::<u8>()), 0..4),
        ) {
            let _ = (read(&bytes, true), read(&bytes, false));
            let mut frame = written(&route, &bytes);
            for (at, byte) in changes {
                frame[at.min(59)] = byte;
            }
            frame.truncate(cut.index(frame.len()));
            let _ = (read(&frame, true), read(&frame, false));
        }

        #[test]
        fn the_fast_checksum_is_the_slow_one(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert_eq!(fold(sum(&bytes)), slow_checksum(&bytes));
        }
    }

    #[test]
    fn the_checksum_of_the_rfc_s_example() {
        // RFC 1071, section 3: the sum of these bytes is ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), (!0xddf2u16).to_be_bytes());
    }

    #[test]
    fn both_ends_are_of_one_family() {
        let mut mixed = route(true, [1, 2], [3, 4]);
        mixed.to = "[::1]:4".parse().unwrap();
        assert!(Writer::new(&mixed).is_none());
    }

    #[test]
    fn fragments_and_options_are_not_read() {
        let frame = written(&route(true, [1, 2], [3, 4]), b"hello");
        assert!(read(&frame, false).is_some());
        for (at, byte) in [(14, 0x46), (20, 0x20), (21, 0x01), (23, 6), (12, 0x81)] {
            let mut other = frame.clone();
            other[at] = byte;
            assert_eq!(read(&other, false), None, "{at}");
        }
    }

    #[test]
    fn partial_checksums_pass_only_where_they_are_not_verified() {
        let mut frame = written(&route(true, [1, 2], [3, 4]), b"hello");
        frame[40..42].copy_from_slice(&[0x12, 0x34]);
        assert!(read(&frame, false).is_some() && read(&frame, true).is_none());
        frame[40..42].copy_from_slice(&[0, 0]);
        assert!(read(&frame, true).is_some(), "IPv4 may leave it out");
    }
}
