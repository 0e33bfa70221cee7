//! The part of bpf(2) that redirects packets to an AF_XDP socket. It is a map of sockets, a program
//! that is assembled from single instructions, and its attachment to a network link.
//!
//! The attachment is a BPF link: the kernel detaches the program when the last descriptor is
//! closed, so also after a kill. No compiler, loader or object file is needed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long};

// Commands of bpf(2) and numbers of <linux/bpf.h>.
const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const PROG_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const HELPER_REDIRECT_MAP: i32 = 51;

/// Return code of a program: pass the packet to the kernel's network stack.
const XDP_PASS: i32 = 2;

/// Size of the buffer for the verifier's log after a rejection, bytes.
const LOG_BYTES: usize = 1 << 16;

/// Last lines of the verifier's log that an error quotes; the reason is at the end.
const LOG_LINES: usize = 3;

/// Where an XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel allocates a packet buffer (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// After the driver, on the kernel's packet buffer; works with any driver
    /// (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

/// A map from queue numbers to AF_XDP sockets (`BPF_MAP_TYPE_XSKMAP`).
#[derive(Debug)]
pub struct XskMap {
    fd: OwnedFd,
}

impl XskMap {
    /// A map for queues below `queues`.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN` in the initial user namespace.
    pub fn new(queues: u32) -> io::Result<XskMap> {
        #[repr(C)]
        struct Attributes {
            kind: u32,
            key_bytes: u32,
            value_bytes: u32,
            entries: u32,
        }
        let attributes =
            Attributes { kind: MAP_TYPE_XSKMAP, key_bytes: 4, value_bytes: 4, entries: queues };
        // SAFETY: the structure holds numbers only.
        let fd = unsafe { bpf_fd(MAP_CREATE, &attributes) }?;
        Ok(XskMap { fd })
    }

    /// Redirects packets of `queue` to `socket`, which must be bound to that queue.
    ///
    /// # Errors
    /// Those of the system call, such as `EINVAL` for a socket of another type.
    pub fn set(&self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            map: u32,
            padding: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let value = socket.as_fd().as_raw_fd() as u32;
        let attributes = Attributes {
            map: self.fd.as_raw_fd() as u32,
            padding: 0,
            key: (&raw const queue).expose_provenance() as u64,
            value: (&raw const value).expose_provenance() as u64,
            flags: 0,
        };
        // SAFETY: key and value are live and have the four bytes that the map was made with.
        unsafe { bpf(MAP_UPDATE_ELEM, &attributes) }.map(|_| ())
    }
}

/// An XDP program that the kernel has accepted.
#[derive(Debug)]
pub struct XdpProgram {
    fd: OwnedFd,
}

impl XdpProgram {
    /// Loads an XDP program.
    ///
    /// # Errors
    /// `EPERM` as for [`XskMap::new`]; the end of the verifier's log if it rejects the program.
    pub fn load(code: &[Instruction]) -> io::Result<XdpProgram> {
        load(code, &mut []).or_else(|error| {
            if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) {
                return Err(error);
            }
            let mut log = vec![0; LOG_BYTES];
            load(code, &mut log).map_err(|error| verifier_error(&log).unwrap_or(error))
        })
    }
}

fn load(code: &[Instruction], log: &mut [u8]) -> io::Result<XdpProgram> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        instructions: u32,
        code: u64,
        licence: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        link: u32,
        attach_type: u32,
    }
    const LICENCE: &std::ffi::CStr = c"MIT";
    let attributes = Attributes {
        kind: PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr().expose_provenance() as u64,
        licence: LICENCE.as_ptr().expose_provenance() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: log.len() as u32,
        log: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
        kernel_version: 0,
        flags: 0,
        name: *b"nearmetal_xdp\0\0\0",
        link: 0,
        attach_type: ATTACH_TYPE_XDP,
    };
    // SAFETY: code, licence and log are live for the call, each with its true length, and the log
    // may be written.
    let fd = unsafe { bpf_fd(PROG_LOAD, &attributes) }?;
    Ok(XdpProgram { fd })
}

/// The reason at the end of the verifier's log.
fn verifier_error(log: &[u8]) -> Option<io::Error> {
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next()?).into_owned();
    // The last line is only a count of instructions.
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("processed ")).collect();
    let quoted = lines[lines.len().saturating_sub(LOG_LINES)..].join("; ");
    let what = format!("the kernel's verifier rejects the redirect program: {quoted}");
    (!quoted.is_empty()).then(|| io::Error::other(what))
}

/// The attachment of a program to a network link; detached on drop.
#[derive(Debug)]
pub struct XdpAttachment {
    _fd: OwnedFd,
}

impl XdpAttachment {
    /// Attaches `program` to the link with this index.
    ///
    /// # Errors
    /// `EBUSY` or `EEXIST` if the link has a program, `EOPNOTSUPP` if its driver lacks this mode.
    pub fn new(program: &XdpProgram, index: u32, mode: XdpMode) -> io::Result<XdpAttachment> {
        #[repr(C)]
        struct Attributes {
            program: u32,
            index: u32,
            attach_type: u32,
            flags: u32,
        }
        let flags = match mode {
            XdpMode::Generic => 1 << 1,
            XdpMode::Native => 1 << 2,
        };
        let attributes = Attributes {
            program: program.fd.as_raw_fd() as u32,
            index,
            attach_type: ATTACH_TYPE_XDP,
            flags,
        };
        // SAFETY: the structure holds numbers only.
        let fd = unsafe { bpf_fd(LINK_CREATE, &attributes) }?;
        Ok(XdpAttachment { _fd: fd })
    }
}

/// `int bpf(int cmd, union bpf_attr *attr, unsigned int size)`, bpf(2).
///
/// # Safety
/// The attributes must be those of the command, and what they point to must be live.
unsafe fn bpf<T>(command: c_int, attributes: &T) -> io::Result<c_int> {
    let (pointer, size) = (&raw const *attributes, size_of::<T>());
    // SAFETY: the structure is live; the rest is the caller's contract.
    let result: c_long = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as c_int) }
}

/// [`bpf`] for commands that return a descriptor, which the kernel closes on exec.
///
/// # Safety
/// As for [`bpf`].
unsafe fn bpf_fd<T>(command: c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's contract is the same.
    let fd: RawFd = unsafe { bpf(command, attributes) }?;
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One BPF instruction in the kernel's format.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// Destination in the low half and source in the high half; swapped on big-endian machines.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. A call returns its result in register 0, takes its arguments in 1 to 5, and
/// preserves those from 6 on.
type Register = u8;

/// Width of a load.
#[derive(Debug, Clone, Copy)]
enum Width {
    Byte = 0x71,
    Half = 0x69,
    Word = 0x61,
}

/// A jump target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Label(usize);

/// Assembles a program. Jumps go to labels and always forward.
#[derive(Debug, Default)]
struct Assembler {
    code: Vec<Instruction>,
    labels: usize,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn add(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        let registers =
            if cfg!(target_endian = "little") { to | (from << 4) } else { from | (to << 4) };
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Makes the next instruction the target of all jumps to `label`.
    fn bind(&mut self, label: Label) {
        let here = self.code.len();
        for (at, _) in self.jumps.extract_if(.., |(_, to)| *to == label) {
            // Relative to the instruction after the jump; programs here have a few dozen
            // instructions.
            self.code[at].offset = (here - at - 1) as i16;
        }
    }

    fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.add(width as u8, to, from, offset, 0);
    }

    fn copy(&mut self, to: Register, from: Register) {
        self.add(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: Register, value: i32) {
        self.add(0xb7, to, 0, 0, value);
    }

    fn plus(&mut self, to: Register, value: i32) {
        self.add(0x07, to, 0, 0, value);
    }

    fn and(&mut self, to: Register, value: i32) {
        self.add(0x57, to, 0, 0, value);
    }

    /// Jumps if `a > b`, unsigned.
    fn jump_above(&mut self, a: Register, b: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.add(0x2d, a, b, 0, 0);
    }

    /// Jumps if the low 32 bits differ from `value`.
    fn jump_unless(&mut self, register: Register, value: u32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.add(0x56, register, 0, 0, value.cast_signed());
    }

    /// Loads a reference to the map, which takes two instructions.
    fn load_map(&mut self, to: Register, map: &XskMap) {
        const PSEUDO_MAP_FD: Register = 1;
        self.add(0x18, to, PSEUDO_MAP_FD, 0, map.fd.as_raw_fd());
        self.add(0, 0, 0, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.add(0x85, 0, 0, 0, helper);
    }

    fn exit(&mut self) {
        self.add(0x95, 0, 0, 0, 0);
    }

    /// Jumps to `label` unless the field at `offset` of the packet equals `bytes`, whose length is
    /// 1, 2 or a multiple of 4.
    fn require_field(&mut self, packet: Register, offset: i16, bytes: &[u8], label: Label) {
        const FIELD: Register = 4;
        match *bytes {
            [byte] => {
                self.load(Width::Byte, FIELD, packet, offset);
                self.jump_unless(FIELD, byte.into(), label);
            }
            // Load and comparison both use the byte order of the machine.
            [a, b] => {
                self.load(Width::Half, FIELD, packet, offset);
                self.jump_unless(FIELD, u16::from_ne_bytes([a, b]).into(), label);
            }
            _ => {
                for (word, at) in bytes.as_chunks::<4>().0.iter().zip((offset..).step_by(4)) {
                    self.load(Width::Word, FIELD, packet, at);
                    self.jump_unless(FIELD, u32::from_ne_bytes(*word), label);
                }
            }
        }
    }
}

/// Protocol numbers of IP.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Which packets a program redirects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowFilter {
    /// Protocol number of IP.
    protocol: u8,
    local: SocketAddr,
    /// Only packets from this peer, if present.
    peer: Option<SocketAddr>,
}

impl FlowFilter {
    /// UDP datagrams to `local`.
    pub fn udp(local: SocketAddr) -> FlowFilter {
        FlowFilter { protocol: UDP, local, peer: None }
    }

    /// TCP segments to `local`, from any address or from `peer` only, which is of the same family.
    pub fn tcp(local: SocketAddr, peer: Option<SocketAddr>) -> FlowFilter {
        FlowFilter { protocol: TCP, local, peer }
    }

    /// Whether it selects TCP segments.
    pub fn is_tcp(&self) -> bool {
        self.protocol == TCP
    }
}

/// A program that redirects the packets of `flow` to the socket of the queue on which they arrived.
/// All other packets go to the kernel: other addresses, ports and protocols, ARP and neighbour
/// discovery, fragments, packets with IPv4 options, and everything on a queue that has no socket.
pub fn redirect_program(map: &XskMap, flow: &FlowFilter) -> Vec<Instruction> {
    const CONTEXT: Register = 1;
    const PACKET: Register = 6;
    const END: Register = 7;
    let FlowFilter { protocol, local, peer } = *flow;
    let mut program = Assembler::default();
    let pass = program.label();
    // struct xdp_md: data, data_end, …, rx_queue_index at 16. The queue is read now, because the
    // call below overwrites the register of the context.
    program.load(Width::Word, PACKET, CONTEXT, 0);
    program.load(Width::Word, END, CONTEXT, 4);
    program.load(Width::Word, 2, CONTEXT, 16);
    // UDP and TCP headers both begin with the ports and have at least eight bytes.
    let headers_bytes = if local.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 };
    program.copy(3, PACKET);
    program.plus(3, headers_bytes);
    program.jump_above(3, END, pass);
    match local.ip() {
        IpAddr::V4(ip) => {
            program.require_field(PACKET, 12, &[0x08, 0x00], pass);
            program.require_field(PACKET, 14, &[0x45], pass);
            // Not a fragment: neither "more fragments" nor an offset.
            program.load(Width::Half, 4, PACKET, 20);
            program.and(4, u16::from_ne_bytes([0x3f, 0xff]).into());
            program.jump_unless(4, 0, pass);
            program.require_field(PACKET, 23, &[protocol], pass);
            program.require_field(PACKET, 30, &ip.octets(), pass);
            program.require_field(PACKET, 36, &local.port().to_be_bytes(), pass);
        }
        IpAddr::V6(ip) => {
            program.require_field(PACKET, 12, &[0x86, 0xdd], pass);
            program.require_field(PACKET, 20, &[protocol], pass);
            program.require_field(PACKET, 38, &ip.octets(), pass);
            program.require_field(PACKET, 56, &local.port().to_be_bytes(), pass);
        }
    }
    if let Some(peer) = peer {
        let (address, port) = if local.is_ipv4() { (26, 34) } else { (22, 54) };
        match peer.ip() {
            IpAddr::V4(ip) => program.require_field(PACKET, address, &ip.octets(), pass),
            IpAddr::V6(ip) => program.require_field(PACKET, address, &ip.octets(), pass),
        }
        program.require_field(PACKET, port, &peer.port().to_be_bytes(), pass);
    }
    // bpf_redirect_map(map, queue, return code if the map has no socket for the queue)
    program.load_map(1, map);
    program.set(3, XDP_PASS);
    program.call(HELPER_REDIRECT_MAP);
    program.exit();
    program.bind(pass);
    program.set(0, XDP_PASS);
    program.exit();
    program.code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A substitute for a map where no program is loaded: only its descriptor is used.
    fn no_map() -> XskMap {
        XskMap { fd: std::fs::File::open("/dev/null").unwrap().into() }
    }

    #[test]
    fn instructions_have_the_kernel_format() {
        assert_eq!(size_of::<Instruction>(), 8);
        let mut program = Assembler::default();
        let end = program.label();
        program.load(Width::Word, 6, 1, 4);
        program.jump_unless(6, 0xffff_fffe, end);
        program.jump_above(6, 7, end);
        program.set(0, 2);
        program.bind(end);
        program.exit();
        let form = |at: usize| {
            let Instruction { code, registers, offset, immediate } = program.code[at];
            (code, registers, offset, immediate)
        };
        let registers = |to: u8, from: u8| {
            if cfg!(target_endian = "little") { to | (from << 4) } else { from | (to << 4) }
        };
        assert_eq!(form(0), (0x61, registers(6, 1), 4, 0));
        assert_eq!(form(1), (0x56, registers(6, 0), 2, -2), "over two instructions");
        assert_eq!(form(2), (0x2d, registers(6, 7), 1, 0));
        assert_eq!(form(3), (0xb7, 0, 0, 2));
        assert_eq!(form(4), (0x95, 0, 0, 0));
        assert!(program.jumps.is_empty(), "every jump has a target");
    }

    /// For each address UDP, TCP from any address, and TCP from one peer.
    fn flows<const COUNT: usize>(addresses: [&str; COUNT]) -> Vec<FlowFilter> {
        let of = |address: &str| {
            let local: SocketAddr = address.parse().unwrap();
            [
                FlowFilter::udp(local),
                FlowFilter::tcp(local, None),
                FlowFilter::tcp(local, Some(local)),
            ]
        };
        addresses.into_iter().flat_map(of).collect()
    }

    #[test]
    fn every_jump_of_the_redirect_program_ends_at_pass() {
        let map = no_map();
        for flow in flows(["10.77.0.1:4000", "[fd77::1]:4000"]) {
            let code = redirect_program(&map, &flow);
            let jumps = code.iter().enumerate().filter(|(_, one)| matches!(one.code, 0x2d | 0x56));
            let ends: Vec<usize> =
                jumps.map(|(at, one)| at + 1 + usize::try_from(one.offset).unwrap()).collect();
            assert!(ends.len() >= 7, "{flow:?}");
            assert!(ends.iter().all(|end| *end == code.len() - 2), "{flow:?}: {ends:?}");
            let [.., result, exit] = code[..] else { unreachable!() };
            assert_eq!((result.code, result.immediate, exit.code), (0xb7, XDP_PASS, 0x95));
        }
    }

    #[test]
    fn reason_of_the_verifier_is_quoted() {
        let log = b"0: R1=ctx()\n0: (95) exit\nR0 !read_ok\nprocessed 1 insns\n\0\0";
        let text = verifier_error(log).unwrap().to_string();
        assert!(text.ends_with("0: R1=ctx(); 0: (95) exit; R0 !read_ok"), "{text}");
        assert!(verifier_error(b"\0").is_none());
    }

    /// As root the verifier is tested; otherwise the kernel must report missing permission.
    #[test]
    fn verifier_accepts_the_programs_and_rejects_an_invalid_one() {
        let map = match XskMap::new(1) {
            Ok(map) => map,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
                return;
            }
        };
        for flow in flows(["10.77.0.1:4000", "255.255.255.254:65535", "[fd77::1]:1"]) {
            XdpProgram::load(&redirect_program(&map, &flow)).unwrap();
        }
        let mut invalid = Assembler::default();
        invalid.exit();
        let text = XdpProgram::load(&invalid.code).unwrap_err().to_string();
        assert!(text.contains("verifier") && text.contains("R0"), "{text}");
        assert!(map.set(0, &std::fs::File::open("/dev/null").unwrap()).is_err());
        let program =
            XdpProgram::load(&redirect_program(&map, &flows(["10.77.0.1:1"])[0])).unwrap();
        assert!(XdpAttachment::new(&program, u32::MAX >> 1, XdpMode::Generic).is_err());
    }
}
