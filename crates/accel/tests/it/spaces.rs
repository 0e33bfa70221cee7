//! Network namespaces of bodies: their own, and virtual links to another.

use libc::{c_int, ifinfomsg, nlmsghdr};

use crate::calls::*;

/// Attributes that the libc crate does not have: linux/veth.h.
const VETH_INFO_PEER: u16 = 1;

/// Moves this process to a network namespace of its own with a working loopback.
#[track_caller]
pub(crate) fn enter_own_network() {
    // SAFETY: no pointers; the process has one thread.
    let made = unsafe {
        libc::unshare(libc::CLONE_NEWNET) == 0
            || libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) == 0
    };
    assert!(
        made,
        "this test needs root, or user namespaces, for a network of its own: {:?}",
        errno()
    );
    ask("lo", libc::SIOCSIFFLAGS as _, up).unwrap();
}

/// Sets an interface's address in a network of 24 bits, and brings it up.
#[track_caller]
pub(crate) fn set_address(interface: &str, host: [u8; 4]) {
    let set = |request: &mut libc::ifreq, host: [u8; 4]| {
        // SAFETY: the address of a request is large enough for an internet address.
        unsafe {
            let place = (&raw mut request.ifr_ifru.ifru_addr).cast::<libc::sockaddr_in>();
            (*place).sin_family = libc::AF_INET as u16;
            (*place).sin_addr.s_addr = u32::from_ne_bytes(host);
        }
    };
    ask(interface, libc::SIOCSIFADDR as _, |request| set(request, host)).unwrap();
    ask(interface, libc::SIOCSIFNETMASK as _, |request| set(request, [255, 255, 255, 0])).unwrap();
    ask(interface, libc::SIOCSIFFLAGS as _, up).unwrap();
}

/// Whether this namespace has the interface.
pub(crate) fn interface_exists(interface: &str) -> bool {
    ask(interface, libc::SIOCGIFFLAGS as _, |_| ()).is_ok()
}

fn up(request: &mut libc::ifreq) {
    request.ifr_ifru.ifru_flags = libc::IFF_UP as _;
}

/// One request about an interface, netdevice(7).
fn ask(interface: &str, number: u64, fill: impl FnOnce(&mut libc::ifreq)) -> Outcome<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM).unwrap();
    // SAFETY: all zero is a request; it is live for the call, and its name ends in a zero.
    let result = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name[..15].iter_mut().zip(interface.bytes()) {
            *to = from as _;
        }
        fill(&mut request);
        libc::ioctl(fd, number as _, &raw mut request)
    };
    let outcome = if result < 0 { Err(errno()) } else { Ok(()) };
    close(fd).unwrap();
    outcome
}

/// Creates a pair of virtual links: `near` here, `far` in the namespace of the process `there`.
#[track_caller]
pub(crate) fn add_links(near: &str, far: &str, there: u32) {
    let link = [0; size_of::<ifinfomsg>()];
    let name = |name: &str| attribute(libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
    let place = attribute(libc::IFLA_NET_NS_PID, &there.to_ne_bytes());
    let peer = attribute(VETH_INFO_PEER, &[&link[..], &name(far), &place].concat());
    let kind = attribute(libc::IFLA_INFO_KIND, b"veth");
    let info = [kind, attribute(libc::IFLA_INFO_DATA, &peer)].concat();
    let body = [&link[..], &name(near), &attribute(libc::IFLA_LINKINFO, &info)].concat();
    assert_eq!(netlink(libc::RTM_NEWLINK, &body), 0, "error number of the kernel's answer");
}

/// One attribute of rtnetlink(7), padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (4 + value.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Sends one request that creates something; returns the error number of the answer.
fn netlink(kind: u16, body: &[u8]) -> c_int {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let length = (size_of::<nlmsghdr>() + body.len()) as u32;
    let head = [kind.to_ne_bytes(), (flags as u16).to_ne_bytes()].concat();
    let message = [&length.to_ne_bytes()[..], &head, &[0; 8], body].concat();
    let fd = socket(libc::AF_NETLINK, libc::SOCK_RAW).unwrap();
    assert_eq!(send(fd, &message, 0), Ok(message.len()));
    let mut answer = [0; 4096];
    let count = recv(fd, &mut answer, 0).unwrap();
    close(fd).unwrap();
    assert!(count >= 20, "an answer of {count} bytes");
    -c_int::from_ne_bytes(answer[16..20].try_into().unwrap())
}
