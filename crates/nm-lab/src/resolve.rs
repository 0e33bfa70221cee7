//! What of a plan can run on this machine with this version, and why the rest cannot.

use nm_model::plan::EnvironmentKind;
use nm_model::{Launcher, Mode, ProbeKind, Protocol, Stack, StackPair};

use crate::{environment, exchange, launcher};

/// Why a row of a plan cannot run here, as a clause that follows `not available: `; none if it can.
pub fn obstacle(
    environment: EnvironmentKind,
    stacks: &StackPair,
    probe: ProbeKind,
) -> Option<String> {
    environment_obstacle(environment)
        .or_else(|| probe_obstacle(probe))
        .or_else(|| match probe {
            // Its nodes have ways of their own to wait.
            ProbeKind::Exchange => exchange::obstacle(environment, stacks),
            _ => stack_obstacle(&stacks.client).or_else(|| stack_obstacle(&stacks.server)),
        })
        .or_else(|| company_obstacle(stacks))
        .or_else(|| {
            let obstacle = |&protocol: &Protocol| {
                passage_obstacle(environment, protocol)
                    .or_else(|| carriage_obstacle(protocol, probe))
            };
            stacks.protocols().iter().find_map(obstacle)
        })
}

/// Why an environment cannot be made here.
pub fn environment_obstacle(environment: EnvironmentKind) -> Option<String> {
    match environment {
        EnvironmentKind::Loopback => None,
        EnvironmentKind::Netns | EnvironmentKind::Bridge => environment::namespaces_obstacle(),
        EnvironmentKind::Vm => Some(
            "not in this version: start `nearmetal pingpong server` in one virtual machine and \
             the client in the other"
                .to_string(),
        ),
        EnvironmentKind::Ssh => Some(
            "not in this version: start `nearmetal pingpong server` on one host and the client on \
             the other"
                .to_string(),
        ),
    }
}

fn probe_obstacle(probe: ProbeKind) -> Option<String> {
    match probe {
        ProbeKind::Pingpong | ProbeKind::Stream | ProbeKind::Rr | ProbeKind::Exchange => None,
        ProbeKind::Compute | ProbeKind::Jitter => {
            Some(format!("not in this version: the probe {probe} is planned"))
        }
    }
}

/// Why one end's stack cannot be used here.
pub fn stack_obstacle(stack: &Stack) -> Option<String> {
    match stack.protocol {
        Protocol::Shm if !matches!(stack.mode, Mode::Blocking | Mode::Spin) => {
            return Some(
                "shared memory has no descriptor to wait for; use shm-spin or shm-blocking"
                    .to_string(),
            );
        }
        Protocol::Shm if stack.launcher.is_some() => {
            return Some("launchers replace IP sockets, not shared memory".to_string());
        }
        Protocol::Xdp | Protocol::XdpTcp => return xdp_obstacle(stack),
        Protocol::Unix if stack.mode == Mode::BusyPoll => {
            return Some(
                "a Unix socket has no device to busy-poll; use unix-spin or unix-blocking"
                    .to_string(),
            );
        }
        Protocol::Unix if stack.launcher.is_some() => {
            return Some("launchers replace IP sockets, not Unix sockets".to_string());
        }
        Protocol::Tcp | Protocol::Udp | Protocol::Multicast | Protocol::Unix | Protocol::Shm => {}
    }
    stack.launcher.and_then(launcher::obstacle)
}

/// Why the accelerator does nothing for a pair of stacks.
fn company_obstacle(stacks: &StackPair) -> Option<String> {
    let is_accelerated = |stack: &Stack| stack.launcher == Some(Launcher::Accel);
    match (is_accelerated(&stacks.client), is_accelerated(&stacks.server)) {
        (false, false) => None,
        (true, true) if stacks.protocols() == [Protocol::Tcp; 2] => None,
        (true, true) => Some("the accelerator takes TCP connections only; use accel+tcp".into()),
        _ => Some("a connection leaves the kernel only if both ends are accelerated".into()),
    }
}

/// Why AF_XDP cannot be used here in this way.
fn xdp_obstacle(stack: &Stack) -> Option<String> {
    if stack.launcher.is_some() {
        return Some("launchers replace IP sockets, not AF_XDP".to_string());
    }
    if !matches!(stack.mode, Mode::Spin | Mode::Blocking | Mode::BusyPoll) {
        let protocol = stack.protocol;
        return Some(format!(
            "AF_XDP looks at a ring or sleeps; use {protocol}-spin, {protocol}-blocking or \
             {protocol}-busy-poll"
        ));
    }
    nm_sys::xdp::unavailable_reason()
}

/// Why a protocol does not carry a probe.
fn carriage_obstacle(protocol: Protocol, probe: ProbeKind) -> Option<String> {
    (protocol == Protocol::Xdp && probe == ProbeKind::Stream).then(|| {
        "AF_XDP carries datagrams of one flow here, no streams; use xdp-tcp, or pingpong or rr"
            .to_string()
    })
}

/// Why a stack cannot join two ends that run, or do not run, under one kernel.
pub fn distance_obstacle(stacks: &StackPair, one_kernel: bool) -> Option<String> {
    (stacks.on_the_wire() == Protocol::Shm && !one_kernel).then(|| {
        "shared memory joins two processes of one host, and these ends run on two; use tcp or udp"
            .to_string()
    })
}

/// Why a protocol does not pass through an environment. Shared memory needs no passage: what the
/// agents of namespaces share is the host.
fn passage_obstacle(environment: EnvironmentKind, protocol: Protocol) -> Option<String> {
    let local = environment == EnvironmentKind::Loopback;
    if protocol.is_af_xdp() && local {
        let reason = "loopback has no device to take frames from; use netns or bridge";
        return Some(reason.to_string());
    }
    (protocol == Protocol::Unix && !local).then(|| {
        format!("a Unix socket does not pass through the links of {environment}; use loopback")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(environment: EnvironmentKind, stacks: &str, probe: ProbeKind) -> Option<String> {
        obstacle(environment, &stacks.parse().unwrap(), probe)
    }

    #[test]
    fn kernel_sockets_over_loopback_run_everywhere() {
        for stacks in
            ["tcp-spin", "udp-blocking", "unix-epoll", "tcp-spin:tcp-blocking", "shm-spin"]
        {
            assert_eq!(reason(EnvironmentKind::Loopback, stacks, ProbeKind::Pingpong), None);
        }
        assert_eq!(reason(EnvironmentKind::Loopback, "tcp-blocking", ProbeKind::Stream), None);
    }

    #[test]
    fn af_xdp_needs_a_device_privileges_and_datagrams() {
        use EnvironmentKind::{Loopback, Netns};
        assert_eq!(
            passage_obstacle(Loopback, Protocol::Xdp).as_deref(),
            Some("loopback has no device to take frames from; use netns or bridge")
        );
        assert_eq!(passage_obstacle(Netns, Protocol::Xdp), None);
        assert!(carriage_obstacle(Protocol::Xdp, ProbeKind::Stream).is_some());
        assert_eq!(carriage_obstacle(Protocol::Xdp, ProbeKind::Rr), None);
        // What this process may not do, the machine itself says.
        assert_eq!(stack_obstacle(&"xdp-spin".parse().unwrap()), nm_sys::xdp::unavailable_reason());
    }

    #[test]
    fn shared_memory_joins_ends_of_one_host_in_every_environment_there() {
        use EnvironmentKind::{Bridge, Loopback, Netns};
        for environment in [Loopback, Netns, Bridge] {
            assert_eq!(passage_obstacle(environment, Protocol::Shm), None);
        }
        let stacks = |text: &str| text.parse::<StackPair>().unwrap();
        assert_eq!(distance_obstacle(&stacks("shm-spin"), true), None);
        assert_eq!(distance_obstacle(&stacks("tcp-spin"), false), None);
        let reason = distance_obstacle(&stacks("shm-spin:shm-blocking"), false).unwrap();
        assert!(reason.contains("one host"), "{reason}");
    }

    #[test]
    fn the_accelerator_takes_tcp_and_both_ends() {
        let reason = |text: &str| company_obstacle(&text.parse().unwrap());
        assert_eq!(reason("accel+tcp-spin"), None);
        assert_eq!(reason("accel+tcp-spin:accel+tcp-blocking"), None);
        assert_eq!(reason("tcp-spin"), None);
        assert!(reason("accel+tcp-spin:tcp-spin").unwrap().contains("both ends"));
        assert!(reason("accel+udp-spin").unwrap().contains("TCP"));
    }

    #[test]
    fn what_cannot_run_says_why() {
        use EnvironmentKind::{Loopback, Ssh, Vm};
        for (environment, stacks, probe, word) in [
            (Vm, "tcp-spin", ProbeKind::Pingpong, "not in this version"),
            (Ssh, "tcp-spin", ProbeKind::Pingpong, "not in this version"),
            (Loopback, "shm-epoll", ProbeKind::Pingpong, "shm-blocking"),
            (Loopback, "onload+shm-spin", ProbeKind::Pingpong, "launchers"),
            (Loopback, "xdp-epoll", ProbeKind::Pingpong, "xdp-blocking"),
            (Loopback, "xdp-tcp-poll", ProbeKind::Pingpong, "xdp-tcp-busy-poll"),
            (Loopback, "onload+xdp-spin", ProbeKind::Pingpong, "AF_XDP"),
            (Loopback, "tcp-spin", ProbeKind::Compute, "compute"),
            (Loopback, "tcp-spin", ProbeKind::Jitter, "jitter"),
            (Loopback, "tcp-spin", ProbeKind::Exchange, "epoll"),
            (Loopback, "onload+unix-spin", ProbeKind::Pingpong, "Unix"),
            (Loopback, "unix-busy-poll", ProbeKind::Pingpong, "busy-poll"),
        ] {
            let text = reason(environment, stacks, probe).expect(stacks);
            assert!(text.contains(word), "{stacks}: {text}");
        }
    }
}
