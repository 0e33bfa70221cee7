//! Which rows of a plan this version can run on this machine, and why not the others.

use nm_model::plan::EnvironmentKind;
use nm_model::{Launcher, Mode, ProbeKind, Protocol, Stack, StackPair};

use crate::environment::{self, EnvironmentUnavailable};
use crate::exchange::{self, ExchangeUnavailable};
use crate::launcher::{self, LauncherUnavailable};

/// Why a row of a plan cannot run here, as a clause that follows `not available: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The environment cannot be started.
    #[error(transparent)]
    Environment(#[from] EnvironmentUnavailable),
    /// The nodes of an exchange cannot use the stack or the environment.
    #[error(transparent)]
    Exchange(#[from] ExchangeUnavailable),
    /// The launcher cannot be used.
    #[error(transparent)]
    Launcher(#[from] LauncherUnavailable),
    /// Launchers replace IP sockets only.
    #[error("launchers replace IP sockets, not {0}")]
    LauncherOfOtherSockets(&'static str),
    /// The probes of the processor have one stack.
    #[error("the processor alone is measured over cpu-spin only")]
    CpuStack,
    /// Shared memory cannot be waited for in this mode.
    #[error("shared memory has no descriptor to wait for; use shm-spin or shm-blocking")]
    SharedMemoryMode,
    /// A Unix socket cannot be waited for in this mode.
    #[error("a Unix socket has no device to busy-poll; use unix-spin or unix-blocking")]
    UnixMode,
    /// An AF_XDP socket cannot be waited for in this mode.
    #[error("AF_XDP polls a ring or sleeps; use {0}-spin, {0}-blocking or {0}-busy-poll")]
    XdpMode(Protocol),
    /// The kernel or missing privileges do not allow AF_XDP.
    #[error("{0}")]
    Xdp(String),
    /// AF_XDP needs a network device.
    #[error("loopback has no device to take frames from; use netns or bridge")]
    XdpOnLoopback,
    /// AF_XDP without TCP cannot carry streams.
    #[error(
        "AF_XDP carries datagrams of one flow here, no streams; use xdp-tcp, or pingpong or rr"
    )]
    StreamOverXdp,
    /// Unix sockets are local to a host's network namespace.
    #[error("a Unix socket does not pass through the links of {0}; use loopback")]
    UnixAcrossLinks(EnvironmentKind),
    /// Shared memory is local to a host.
    #[error(
        "shared memory joins two processes of one host, and these ends run on two; use tcp or udp"
    )]
    SharedMemoryAcrossHosts,
    /// Memory of two guests cannot wake a waiting one.
    #[error("the memory that two guests share has no wake-ups; use shm-spin")]
    SharedMemoryOfGuests,
    /// A vendor's stack is not in the image of guests.
    #[error(
        "{0} needs its own driver in the guest's kernel and its adapter, which guests that \
         nearmetal starts do not have; use xdp-spin or xdp-tcp-spin, or start `nearmetal pingpong` \
         in guests of your own"
    )]
    LauncherInGuest(Launcher),
    /// Guests have a kernel each.
    #[error(
        "the accelerator joins two programs under one kernel, and guests have a kernel each; use \
         shm-spin, xdp-spin or xdp-tcp-spin"
    )]
    AcceleratorBetweenGuests,
    /// Hosts have a kernel each.
    #[error(
        "the accelerator joins two programs of one host, and these ends run on two; use tcp or \
         onload+tcp"
    )]
    AcceleratorBetweenHosts,
    /// libvma is looked for on this machine.
    #[error(
        "vma is looked for on this machine only; start `nearmetal pingpong` on the hosts under it"
    )]
    VmaOnHosts,
    /// An interface of a host carries the host's own traffic.
    #[error(
        "AF_XDP would take frames from an interface that the host uses itself; use tcp or udp, or \
         start `nearmetal pingpong` on the hosts"
    )]
    XdpOnHosts,
    /// The accelerator handles TCP only.
    #[error("the accelerator handles TCP connections only; use accel+tcp")]
    AcceleratedProtocol,
    /// The accelerator needs both ends.
    #[error("a connection leaves the kernel only if both ends are accelerated")]
    AcceleratedEnd,
}

/// Why a row of a plan cannot run here; none if it can.
pub fn unavailable_reason(
    environment: EnvironmentKind,
    stacks: &StackPair,
    probe: ProbeKind,
) -> Option<Unavailable> {
    let of_environment = || environment::unavailable_reason(environment).map(Unavailable::from);
    let of_stacks = || match probe {
        // Nodes of an exchange have their own way of waiting.
        ProbeKind::Exchange => {
            exchange::unavailable_reason(environment, stacks).map(Unavailable::from)
        }
        _ if environment.has_guests() => guest_stack_unavailable_reason(&stacks.client)
            .or_else(|| guest_stack_unavailable_reason(&stacks.server)),
        _ if environment == EnvironmentKind::Ssh => host_stack_unavailable_reason(&stacks.client)
            .or_else(|| host_stack_unavailable_reason(&stacks.server)),
        _ => stack_unavailable_reason(&stacks.client)
            .or_else(|| stack_unavailable_reason(&stacks.server)),
    };
    let of_protocol = |protocol| {
        path_unavailable_reason(environment, protocol)
            .or_else(|| transport_unavailable_reason(protocol, probe))
    };
    of_environment()
        .or_else(of_stacks)
        .or_else(|| pair_unavailable_reason(stacks))
        .or_else(|| stacks.protocols().into_iter().find_map(of_protocol))
}

/// Why the stack of one end cannot be used here; none if it can.
pub fn stack_unavailable_reason(stack: &Stack) -> Option<Unavailable> {
    let has_launcher = stack.launcher.is_some();
    match stack.protocol {
        Protocol::Shm if !matches!(stack.mode, Mode::Blocking | Mode::Spin) => {
            Some(Unavailable::SharedMemoryMode)
        }
        Protocol::Shm if has_launcher => Some(Unavailable::LauncherOfOtherSockets("shared memory")),
        Protocol::Xdp | Protocol::XdpTcp => xdp_unavailable_reason(stack),
        Protocol::Cpu => (*stack != Stack::CPU).then_some(Unavailable::CpuStack),
        Protocol::Unix if stack.mode == Mode::BusyPoll => Some(Unavailable::UnixMode),
        Protocol::Unix if has_launcher => Some(Unavailable::LauncherOfOtherSockets("Unix sockets")),
        Protocol::Tcp | Protocol::Udp | Protocol::Multicast | Protocol::Unix | Protocol::Shm => {
            stack.launcher.and_then(launcher::unavailable_reason).map(Unavailable::from)
        }
    }
}

/// Why a stack cannot be used in a guest; none if it can. The agent is root there, with a kernel of
/// its own, so that this host's limits do not count.
fn guest_stack_unavailable_reason(stack: &Stack) -> Option<Unavailable> {
    match stack.launcher {
        Some(Launcher::Accel) => return Some(Unavailable::AcceleratorBetweenGuests),
        Some(launcher) => return Some(Unavailable::LauncherInGuest(launcher)),
        None => {}
    }
    match stack.protocol {
        Protocol::Shm if stack.mode != Mode::Spin => Some(Unavailable::SharedMemoryOfGuests),
        Protocol::Xdp | Protocol::XdpTcp => xdp_mode_unavailable_reason(stack),
        _ => stack_unavailable_reason(stack),
    }
}

/// Why a stack cannot be used between hosts; none if it can, or if only the hosts know.
fn host_stack_unavailable_reason(stack: &Stack) -> Option<Unavailable> {
    match (stack.launcher, stack.protocol) {
        (_, Protocol::Shm) => Some(Unavailable::SharedMemoryAcrossHosts),
        (_, Protocol::Unix) => Some(Unavailable::UnixAcrossLinks(EnvironmentKind::Ssh)),
        (_, Protocol::Xdp | Protocol::XdpTcp) => Some(Unavailable::XdpOnHosts),
        (Some(Launcher::Accel), _) => Some(Unavailable::AcceleratorBetweenHosts),
        (Some(Launcher::Vma), _) => Some(Unavailable::VmaOnHosts),
        (Some(Launcher::Onload | Launcher::Smc), _) => None,
        (None, Protocol::Tcp | Protocol::Udp | Protocol::Multicast | Protocol::Cpu) => {
            stack_unavailable_reason(stack)
        }
    }
}

fn xdp_mode_unavailable_reason(stack: &Stack) -> Option<Unavailable> {
    let is_known = matches!(stack.mode, Mode::Spin | Mode::Blocking | Mode::BusyPoll);
    (!is_known).then_some(Unavailable::XdpMode(stack.protocol))
}

fn xdp_unavailable_reason(stack: &Stack) -> Option<Unavailable> {
    if stack.launcher.is_some() {
        return Some(Unavailable::LauncherOfOtherSockets("AF_XDP"));
    }
    xdp_mode_unavailable_reason(stack)
        .or_else(|| nm_sys::xdp::unavailable_reason().map(Unavailable::Xdp))
}

/// Why the accelerator has no effect with this combination of ends.
fn pair_unavailable_reason(stacks: &StackPair) -> Option<Unavailable> {
    let is_accelerated = |stack: &Stack| stack.launcher == Some(Launcher::Accel);
    match (is_accelerated(&stacks.client), is_accelerated(&stacks.server)) {
        (false, false) => None,
        (true, true) if stacks.protocols() == [Protocol::Tcp; 2] => None,
        (true, true) => Some(Unavailable::AcceleratedProtocol),
        _ => Some(Unavailable::AcceleratedEnd),
    }
}

/// Why a protocol cannot transport the data of a probe.
fn transport_unavailable_reason(protocol: Protocol, probe: ProbeKind) -> Option<Unavailable> {
    let is_stream_over_xdp = protocol == Protocol::Xdp && probe == ProbeKind::Stream;
    is_stream_over_xdp.then_some(Unavailable::StreamOverXdp)
}

/// Why a stack cannot connect two ends that run, or do not run, under one kernel.
pub fn distance_unavailable_reason(stacks: &StackPair, one_kernel: bool) -> Option<Unavailable> {
    let is_across_hosts = stacks.wire_protocol() == Protocol::Shm && !one_kernel;
    is_across_hosts.then_some(Unavailable::SharedMemoryAcrossHosts)
}

/// Why an environment has no path for a protocol. Shared memory has one in every environment of one
/// host: the agents of different network namespaces still share its memory.
fn path_unavailable_reason(
    environment: EnvironmentKind,
    protocol: Protocol,
) -> Option<Unavailable> {
    let is_loopback = environment == EnvironmentKind::Loopback;
    match protocol {
        protocol if protocol.is_af_xdp() && is_loopback => Some(Unavailable::XdpOnLoopback),
        Protocol::Unix if !is_loopback => Some(Unavailable::UnixAcrossLinks(environment)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(environment: EnvironmentKind, stacks: &str, probe: ProbeKind) -> Option<String> {
        let stacks = stacks.parse().unwrap();
        unavailable_reason(environment, &stacks, probe).map(|reason| reason.to_string())
    }

    #[test]
    fn kernel_sockets_over_loopback_are_available_everywhere() {
        for stacks in
            ["tcp-spin", "udp-blocking", "unix-epoll", "tcp-spin:tcp-blocking", "shm-spin"]
        {
            assert_eq!(reason(EnvironmentKind::Loopback, stacks, ProbeKind::Pingpong), None);
        }
        assert_eq!(reason(EnvironmentKind::Loopback, "tcp-blocking", ProbeKind::Stream), None);
    }

    #[test]
    fn af_xdp_needs_device_privileges_and_datagrams() {
        use EnvironmentKind::{Loopback, Netns};
        assert_eq!(
            path_unavailable_reason(Loopback, Protocol::Xdp).map(|reason| reason.to_string()),
            Some("loopback has no device to take frames from; use netns or bridge".to_string())
        );
        assert_eq!(path_unavailable_reason(Netns, Protocol::Xdp), None);
        assert!(transport_unavailable_reason(Protocol::Xdp, ProbeKind::Stream).is_some());
        assert_eq!(transport_unavailable_reason(Protocol::Xdp, ProbeKind::Rr), None);
        let reason = stack_unavailable_reason(&"xdp-spin".parse().unwrap());
        assert_eq!(reason.map(|reason| reason.to_string()), nm_sys::xdp::unavailable_reason());
    }

    #[test]
    fn shared_memory_is_available_in_every_environment_of_one_host() {
        use EnvironmentKind::{Bridge, Loopback, Netns};
        for environment in [Loopback, Netns, Bridge] {
            assert_eq!(path_unavailable_reason(environment, Protocol::Shm), None);
        }
        let stacks = |text: &str| text.parse::<StackPair>().unwrap();
        assert_eq!(distance_unavailable_reason(&stacks("shm-spin"), true), None);
        assert_eq!(distance_unavailable_reason(&stacks("tcp-spin"), false), None);
        let reason = distance_unavailable_reason(&stacks("shm-spin:shm-blocking"), false).unwrap();
        assert!(reason.to_string().contains("one host"), "{reason}");
    }

    #[test]
    fn accelerator_needs_tcp_and_both_ends() {
        let reason = |text: &str| {
            pair_unavailable_reason(&text.parse().unwrap()).map(|reason| reason.to_string())
        };
        assert_eq!(reason("accel+tcp-spin"), None);
        assert_eq!(reason("accel+tcp-spin:accel+tcp-blocking"), None);
        assert_eq!(reason("tcp-spin"), None);
        assert!(reason("accel+tcp-spin:tcp-spin").unwrap().contains("both ends"));
        assert!(reason("accel+udp-spin").unwrap().contains("TCP"));
    }

    #[test]
    fn guests_have_stacks_of_their_own() {
        let reason = |stack: &str| {
            let reason = guest_stack_unavailable_reason(&stack.parse().unwrap());
            reason.map(|reason| reason.to_string())
        };
        for stack in ["tcp-spin", "udp-epoll", "shm-spin", "xdp-spin", "cpu-spin"] {
            assert_eq!(reason(stack), None, "{stack}");
        }
        for (stack, word) in [
            ("shm-blocking", "use shm-spin"),
            ("accel+tcp-spin", "a kernel each"),
            ("onload+tcp-spin", "onload needs its own driver"),
            ("vma+udp-spin", "vma needs its own driver"),
            ("xdp-epoll", "xdp-blocking"),
            ("cpu-blocking", "cpu-spin"),
        ] {
            assert!(reason(stack).unwrap().contains(word), "{stack}");
        }
    }

    #[test]
    fn hosts_have_the_kernel_s_sockets_and_know_their_launchers_themselves() {
        let probes = [ProbeKind::Pingpong, ProbeKind::Stream, ProbeKind::Rr];
        let stacks = ["tcp-spin", "udp-blocking", "mcast-spin", "onload+tcp-spin", "smc+tcp-spin"];
        for (stack, probe) in stacks.iter().flat_map(|stack| probes.map(|probe| (stack, probe))) {
            assert_eq!(reason(EnvironmentKind::Ssh, stack, probe), None, "{stack} {probe}");
        }
        for probe in [ProbeKind::Jitter, ProbeKind::Compute] {
            assert_eq!(reason(EnvironmentKind::Ssh, "cpu-spin", probe), None, "{probe}");
        }
    }

    #[test]
    fn unavailable_rows_have_a_reason() {
        use EnvironmentKind::{Loopback, Ssh};
        for (environment, stacks, probe, word) in [
            (Ssh, "shm-spin", ProbeKind::Pingpong, "two processes of one host"),
            (Ssh, "unix-spin", ProbeKind::Pingpong, "through the links of ssh"),
            (Ssh, "xdp-spin", ProbeKind::Rr, "an interface that the host uses itself"),
            (Ssh, "accel+tcp-spin", ProbeKind::Pingpong, "two programs of one host"),
            (Ssh, "vma+tcp-spin", ProbeKind::Pingpong, "on this machine only"),
            (Ssh, "tcp-epoll", ProbeKind::Exchange, "exchange run --hosts"),
            (Loopback, "shm-epoll", ProbeKind::Pingpong, "shm-blocking"),
            (Loopback, "onload+shm-spin", ProbeKind::Pingpong, "launchers"),
            (Loopback, "xdp-epoll", ProbeKind::Pingpong, "xdp-blocking"),
            (Loopback, "xdp-tcp-poll", ProbeKind::Pingpong, "xdp-tcp-busy-poll"),
            (Loopback, "onload+xdp-spin", ProbeKind::Pingpong, "AF_XDP"),
            (Loopback, "tcp-spin", ProbeKind::Exchange, "epoll"),
            (Loopback, "onload+unix-spin", ProbeKind::Pingpong, "Unix"),
            (Loopback, "unix-busy-poll", ProbeKind::Pingpong, "busy-poll"),
        ] {
            let text = reason(environment, stacks, probe).expect(stacks);
            assert!(text.contains(word), "{stacks}: {text}");
        }
    }
}
