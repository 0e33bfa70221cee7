//! What can run: stack × environment × probe → nothing stands in the way, or what does.
//!
//! The rows are those of [`crate::protocol`] and [`crate::launcher`]. Resolver, endpoint, `doctor`,
//! `lab plan` and the tables of the documentation ask here. What a machine lacks, such as a program
//! or a permission, is no capability: `nm_lab::resolve` looks for it.

use std::fmt;

use crate::environment::{Distance, EnvironmentKind};
use crate::launcher::{LauncherReach, NoLauncher};
use crate::limits::SIZE_BYTES_MAX;
use crate::link_transport::LinkTransport;
use crate::probe::{Case, ProbeKind};
use crate::protocol::{NoPath, Payload, Reach, Sockets, Streams, Waits};
use crate::stack::{Launcher, Mode, Protocol, Stack, StackPair};

/// What stands in the way, as a clause that follows `not available: `.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The protocol has no path between the ends of the environment.
    #[error("{}", no_path(*why, *environment))]
    NoPath {
        /// Why.
        why: NoPath,
        /// The environment.
        environment: EnvironmentKind,
    },
    /// The end cannot wait in this way.
    #[error("{}; use {}", waits.why_not, Instead(*protocol, waits.instead))]
    Mode {
        /// The protocol.
        protocol: Protocol,
        /// How it can wait.
        waits: Waits,
    },
    /// Launchers replace IP sockets only.
    #[error("launchers replace IP sockets, not {0}")]
    LauncherOfOtherSockets(&'static str),
    /// The launcher cannot start agents there.
    #[error("{}", no_launcher(*why, *launcher))]
    NoLauncher {
        /// Why.
        why: NoLauncher,
        /// The launcher.
        launcher: Launcher,
    },
    /// The accelerator handles TCP only.
    #[error("the accelerator handles TCP connections only; use accel+tcp")]
    AcceleratedProtocol,
    /// The accelerator needs both ends.
    #[error("a connection leaves the kernel only if both ends are accelerated")]
    AcceleratedEnd,
    /// The ends turn out to run on two hosts.
    #[error("{}", no_path(NoPath::LocalMemory, EnvironmentKind::Ssh))]
    TwoHosts,
    /// The protocol moves no bytes, and the probe needs some.
    #[error("{0} moves no bytes; measure it with jitter or compute")]
    NoBytes(Protocol),
    /// The protocol carries no streams.
    #[error("{0}")]
    NoStreams(&'static str),
    /// The protocol carries one flow.
    #[error("{protocol} carries one flow: {why}")]
    OneFlow {
        /// The protocol.
        protocol: Protocol,
        /// Why.
        why: &'static str,
    },
    /// The message does not fit.
    #[error("messages over {protocol} have at most {bytes_max} bytes")]
    MessageBytes {
        /// The protocol.
        protocol: Protocol,
        /// Its largest message.
        bytes_max: u32,
    },
    /// Plans start the nodes of an exchange on this machine only.
    #[error(
        "the nodes of an exchange run on loopback here; on several hosts start them with \
         `nearmetal exchange run --hosts FILE`"
    )]
    ExchangeEnvironment,
    /// Nodes wait by epoll, and over the transports of [`LinkTransport`] only.
    #[error(
        "the nodes of an exchange wait by epoll on sockets or shared memory; use tcp-epoll, \
         unix-epoll, shm-epoll or accel+tcp-epoll"
    )]
    ExchangeStack,
}

fn no_path(why: NoPath, environment: EnvironmentKind) -> String {
    match why {
        NoPath::NoDevice => {
            format!("{environment} has no device to take frames from; use netns or bridge")
        }
        NoPath::DeviceInUse => {
            "AF_XDP would take frames from an interface that the host uses itself; use tcp or udp, \
             or start `nearmetal pingpong` on the hosts"
                .to_string()
        }
        NoPath::LocalAddress => {
            format!("a Unix socket does not pass through the links of {environment}; use loopback")
        }
        NoPath::LocalMemory => "shared memory joins two processes of one host, and these ends run \
                                on two; use tcp or udp"
            .to_string(),
    }
}

fn no_launcher(why: NoLauncher, launcher: Launcher) -> String {
    match why {
        NoLauncher::GuestDriver => format!(
            "{launcher} needs its own driver in the guest's kernel and its adapter, which guests \
             that nearmetal starts do not have; use xdp-spin or xdp-tcp-spin, or start `nearmetal \
             pingpong` in guests of your own"
        ),
        NoLauncher::KernelOfEachGuest => {
            "the accelerator joins two programs under one kernel, and guests have a kernel each; \
             use shm-spin, xdp-spin or xdp-tcp-spin"
                .to_string()
        }
        NoLauncher::KernelOfEachHost => {
            "the accelerator joins two programs of one host, and these ends run on two; use tcp or \
             onload+tcp"
                .to_string()
        }
        NoLauncher::ThisMachineOnly => format!(
            "{launcher} is looked for on this machine only; start `nearmetal pingpong` on the \
             hosts under it"
        ),
    }
}

/// `xdp-spin, xdp-blocking or xdp-busy-poll`.
struct Instead(Protocol, &'static [Mode]);

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.1.iter().map(|mode| format!("{}-{mode}", self.0)).collect();
        match names.split_last() {
            Some((last, [])) => f.write_str(last),
            Some((last, others)) => write!(f, "{} or {last}", others.join(", ")),
            None => f.write_str("another stack"),
        }
    }
}

/// What keeps a probe over `stacks` from running in an environment; none if it can run, as far as
/// this version is concerned.
pub fn obstacle(
    environment: EnvironmentKind,
    stacks: &StackPair,
    probe: ProbeKind,
) -> Option<Obstacle> {
    if probe == ProbeKind::Exchange {
        return exchange_obstacle(environment, stacks);
    }
    let of_probe = |protocol| probe_obstacle(protocol, probe);
    [stacks.client, stacks.server]
        .iter()
        .find_map(|end| end_obstacle(environment, end))
        .or_else(|| pair_obstacle(stacks))
        .or_else(|| stacks.protocols().into_iter().find_map(of_probe))
}

/// What keeps a stack from running anywhere, whatever its environment and probe are.
pub fn stack_obstacle(stack: &Stack) -> Option<Obstacle> {
    let row = stack.protocol.row();
    mode_obstacle(stack, row.waits).or(match (stack.launcher, row.sockets) {
        (Some(_), Sockets::Other(name)) => Some(Obstacle::LauncherOfOtherSockets(name)),
        _ => None,
    })
}

fn mode_obstacle(stack: &Stack, waits: Waits) -> Option<Obstacle> {
    let is_known = waits.modes.contains(&stack.mode);
    (!is_known).then_some(Obstacle::Mode { protocol: stack.protocol, waits })
}

/// What keeps one end from using a stack in an environment.
fn end_obstacle(environment: EnvironmentKind, stack: &Stack) -> Option<Obstacle> {
    let distance = environment.distance();
    let of_reach = match stack.protocol.row().reach(distance) {
        Reach::Yes => None,
        Reach::Only(waits) => mode_obstacle(stack, waits),
        Reach::No(why) => Some(Obstacle::NoPath { why, environment }),
    };
    of_reach.or_else(|| stack_obstacle(stack)).or_else(|| {
        let launcher = stack.launcher?;
        match launcher.reach(distance)? {
            LauncherReach::IfInstalledThere => None,
            LauncherReach::No(why) => Some(Obstacle::NoLauncher { why, launcher }),
        }
    })
}

/// Why the launchers of two ends have no effect together.
fn pair_obstacle(stacks: &StackPair) -> Option<Obstacle> {
    let joins = |stack: &Stack| stack.launcher.is_some_and(|one| one.row().joins_both_ends);
    match (joins(&stacks.client), joins(&stacks.server)) {
        (false, false) => None,
        (true, true) if stacks.protocols() == [Protocol::Tcp; 2] => None,
        (true, true) => Some(Obstacle::AcceleratedProtocol),
        _ => Some(Obstacle::AcceleratedEnd),
    }
}

/// Why a protocol cannot carry the data of a probe.
fn probe_obstacle(protocol: Protocol, probe: ProbeKind) -> Option<Obstacle> {
    let row = protocol.row();
    match (row.payload, row.streams) {
        (Payload::Nothing, _) if probe.uses_network() => Some(Obstacle::NoBytes(protocol)),
        (_, Streams::No(why)) if probe == ProbeKind::Stream => Some(Obstacle::NoStreams(why)),
        _ => None,
    }
}

/// Why a plan's exchange cannot run in an environment over such stacks.
fn exchange_obstacle(environment: EnvironmentKind, stacks: &StackPair) -> Option<Obstacle> {
    if environment != EnvironmentKind::Loopback {
        return Some(Obstacle::ExchangeEnvironment);
    }
    let is_known =
        stacks.client == stacks.server && LinkTransport::of_stack(stacks.client).is_some();
    (!is_known).then_some(Obstacle::ExchangeStack)
}

/// Why a case cannot be measured over these stacks; none if it can.
pub fn case_obstacle(stacks: &StackPair, case: &Case) -> Option<Obstacle> {
    stacks.protocols().into_iter().find_map(|protocol| end_case_obstacle(protocol, case))
}

/// Why one end cannot measure a case over a protocol; none if it can.
pub fn end_case_obstacle(protocol: Protocol, case: &Case) -> Option<Obstacle> {
    let bytes = match case {
        Case::Message { size_bytes } | Case::Paced { size_bytes, .. } => *size_bytes,
        Case::Request { size, .. } => size.request_bytes.max(size.response_bytes),
        Case::Flows { pattern, .. } => return flows_obstacle(protocol, pattern.flows),
        Case::Layout { .. } | Case::Total => return None,
    };
    let bytes_max = protocol.datagram_bytes_max().unwrap_or(SIZE_BYTES_MAX);
    (bytes > bytes_max).then_some(Obstacle::MessageBytes { protocol, bytes_max })
}

fn flows_obstacle(protocol: Protocol, flows: u32) -> Option<Obstacle> {
    match protocol.row().streams {
        Streams::Any => None,
        Streams::OneFlow(why) => (flows > 1).then_some(Obstacle::OneFlow { protocol, why }),
        Streams::No(why) => Some(Obstacle::NoStreams(why)),
    }
}

/// What keeps stacks from connecting two ends that run, or do not run, on one host: what only the
/// started agents know.
pub fn hosts_obstacle(stacks: &StackPair, on_one_host: bool) -> Option<Obstacle> {
    let row = stacks.wire_protocol().row();
    let is_local = row.reach(Distance::Hosts) == Reach::No(NoPath::LocalMemory);
    (is_local && !on_one_host).then_some(Obstacle::TwoHosts)
}

#[cfg(test)]
mod document;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::RrSize;

    fn reason(environment: EnvironmentKind, stacks: &str, probe: ProbeKind) -> Option<String> {
        let stacks = stacks.parse().unwrap();
        obstacle(environment, &stacks, probe).map(|reason| reason.to_string())
    }

    #[test]
    fn kernel_sockets_reach_every_environment() {
        for &environment in EnvironmentKind::ALL {
            for stacks in ["tcp-spin", "udp-blocking", "mcast-epoll", "tcp-spin:tcp-busy-poll"] {
                for probe in [ProbeKind::Pingpong, ProbeKind::Stream, ProbeKind::Rr] {
                    assert_eq!(reason(environment, stacks, probe), None, "{environment} {stacks}");
                }
            }
            for probe in [ProbeKind::Jitter, ProbeKind::Compute] {
                assert_eq!(reason(environment, "cpu-spin", probe), None, "{environment}");
            }
        }
    }

    #[test]
    fn what_cannot_run_has_its_reason() {
        use EnvironmentKind::{Loopback, Netns, Ssh, VmSwitch};
        for (environment, stacks, probe, words) in [
            (Ssh, "shm-spin", ProbeKind::Pingpong, "two processes of one host"),
            (Ssh, "unix-spin", ProbeKind::Pingpong, "through the links of ssh"),
            (Ssh, "xdp-spin", ProbeKind::Rr, "an interface that the host uses itself"),
            (Ssh, "accel+tcp-spin", ProbeKind::Pingpong, "two programs of one host"),
            (Ssh, "vma+tcp-spin", ProbeKind::Pingpong, "on this machine only"),
            (Ssh, "tcp-epoll", ProbeKind::Exchange, "exchange run --hosts"),
            (Loopback, "shm-epoll", ProbeKind::Pingpong, "use shm-spin or shm-blocking"),
            (Loopback, "onload+shm-spin", ProbeKind::Pingpong, "not shared memory"),
            (Loopback, "xdp-spin", ProbeKind::Pingpong, "loopback has no device"),
            (Netns, "xdp-epoll", ProbeKind::Pingpong, "xdp-spin, xdp-blocking or xdp-busy-poll"),
            (Netns, "xdp-tcp-poll", ProbeKind::Pingpong, "or xdp-tcp-busy-poll"),
            (Netns, "onload+xdp-spin", ProbeKind::Pingpong, "not AF_XDP"),
            (Netns, "xdp-spin", ProbeKind::Stream, "use xdp-tcp"),
            (Netns, "unix-spin", ProbeKind::Pingpong, "the links of netns"),
            (Loopback, "tcp-spin", ProbeKind::Exchange, "wait by epoll"),
            (Loopback, "onload+unix-spin", ProbeKind::Pingpong, "not Unix sockets"),
            (Loopback, "unix-busy-poll", ProbeKind::Pingpong, "no device to busy-poll"),
            (Loopback, "cpu-blocking", ProbeKind::Jitter, "use cpu-spin"),
            (Loopback, "cpu-spin", ProbeKind::Rr, "cpu moves no bytes"),
            (Loopback, "accel+tcp-spin:tcp-spin", ProbeKind::Rr, "both ends"),
            (Loopback, "accel+udp-spin", ProbeKind::Rr, "TCP connections only"),
            (VmSwitch, "shm-blocking", ProbeKind::Pingpong, "two guests share has no wake-ups"),
            (VmSwitch, "unix-spin", ProbeKind::Pingpong, "the links of vm-vswitch"),
            (VmSwitch, "accel+tcp-spin", ProbeKind::Pingpong, "a kernel each"),
            (VmSwitch, "onload+tcp-spin", ProbeKind::Pingpong, "onload needs its own driver"),
            (VmSwitch, "vma+udp-spin", ProbeKind::Pingpong, "vma needs its own driver"),
            (VmSwitch, "xdp-epoll", ProbeKind::Pingpong, "xdp-blocking"),
        ] {
            let text = reason(environment, stacks, probe).expect(stacks);
            assert!(text.contains(words), "{environment} {stacks} {probe}: {text}");
        }
    }

    #[test]
    fn what_the_reasons_recommend_can_run() {
        for (environment, stacks) in [
            (EnvironmentKind::Netns, "xdp-busy-poll"),
            (EnvironmentKind::Bridge, "shm-blocking"),
            (EnvironmentKind::VmVhost, "shm-spin"),
            (EnvironmentKind::VmVhost, "xdp-tcp-spin:tcp-spin"),
            (EnvironmentKind::Ssh, "onload+tcp-spin"),
            (EnvironmentKind::Ssh, "smc+tcp-spin"),
            (EnvironmentKind::Loopback, "accel+tcp-spin:accel+tcp-blocking"),
        ] {
            assert_eq!(reason(environment, stacks, ProbeKind::Rr), None, "{environment} {stacks}");
        }
        for stacks in ["tcp-epoll", "unix-epoll", "shm-epoll", "accel+tcp-epoll"] {
            let found = reason(EnvironmentKind::Loopback, stacks, ProbeKind::Exchange);
            assert_eq!(found, None, "{stacks}");
        }
        assert_eq!(reason(EnvironmentKind::Netns, "xdp-tcp-spin", ProbeKind::Stream), None);
    }

    #[test]
    fn cases_have_the_limits_of_their_protocol() {
        let text = |stacks: &str, case: Case| {
            case_obstacle(&stacks.parse().unwrap(), &case).map(|reason| reason.to_string())
        };
        let message = |size_bytes| Case::Message { size_bytes };
        let flows =
            |pattern: &str| Case::Flows { pattern: pattern.parse().unwrap(), write_bytes: 1 << 17 };
        assert_eq!(text("tcp-spin", message(65536)), None);
        let of_udp = text("udp-spin", message(32769));
        assert_eq!(of_udp.as_deref(), Some("messages over udp have at most 32768 bytes"));
        let of_xdp = text("udp-spin:xdp-spin", message(2048));
        assert_eq!(of_xdp.as_deref(), Some("messages over xdp have at most 1472 bytes"));
        assert_eq!(text("xdp-tcp-spin", message(65536)), None);
        assert_eq!(text("xdp-tcp-spin", flows("1-uni-1")), None);
        assert!(text("xdp-tcp-spin", flows("2-bi-2")).unwrap().contains("carries one flow"));
        assert!(text("xdp-spin", flows("1-uni-1")).unwrap().contains("no streams"));
        let size = RrSize { request_bytes: 1, response_bytes: 40_000 };
        assert!(text("mcast-spin", Case::Request { size, rate_per_s: None }).is_some());
    }

    #[test]
    fn memory_of_two_hosts_is_refused_when_the_hosts_are_known() {
        let stacks = |text: &str| text.parse::<StackPair>().unwrap();
        assert_eq!(hosts_obstacle(&stacks("shm-spin"), true), None);
        assert_eq!(hosts_obstacle(&stacks("tcp-spin"), false), None);
        let reason = hosts_obstacle(&stacks("shm-spin:shm-blocking"), false).unwrap();
        assert!(reason.to_string().contains("one host"), "{reason}");
    }
}
