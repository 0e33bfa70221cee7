//! Which rows of a plan this machine can run, and why not the others. The table of
//! [`nm_model::capability`] says what no machine can run; this module adds what this one lacks.

use nm_model::capability::{self, Obstacle};
use nm_model::class::Bypass;
use nm_model::environment::Distance;
use nm_model::launcher::LauncherReach;
use nm_model::plan::EnvironmentKind;
use nm_model::{ProbeKind, Stack, StackPair};

use crate::environment::{self, EnvironmentUnavailable};
use crate::launcher::{self, LauncherUnavailable};

/// Why a row of a plan cannot run here, as a clause that follows `not available: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The environment cannot be started.
    #[error(transparent)]
    Environment(#[from] EnvironmentUnavailable),
    /// No machine can run it.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// The launcher is not on this machine.
    #[error(transparent)]
    Launcher(#[from] LauncherUnavailable),
    /// The kernel or missing privileges do not allow AF_XDP.
    #[error("{0}")]
    Xdp(String),
}

/// Why a row of a plan cannot run here; none if it can.
pub fn unavailable_reason(
    environment: EnvironmentKind,
    stacks: &StackPair,
    probe: ProbeKind,
) -> Option<Unavailable> {
    let distance = environment.distance();
    environment::unavailable_reason(environment)
        .map(Unavailable::from)
        .or_else(|| capability::obstacle(environment, stacks, probe).map(Unavailable::from))
        .or_else(|| missing_here(&stacks.client, distance))
        .or_else(|| missing_here(&stacks.server, distance))
}

/// Why the stack of one end cannot be used by a program that a user starts here; none if it can.
pub fn stack_unavailable_reason(stack: &Stack) -> Option<Unavailable> {
    capability::stack_obstacle(stack)
        .map(Unavailable::from)
        .or_else(|| missing_here(stack, Distance::Namespaces))
}

/// What this machine lacks for the stack of one end. Guests and other hosts have kernels of their
/// own, so the limits of this one do not count for them.
fn missing_here(stack: &Stack, distance: Distance) -> Option<Unavailable> {
    let launcher = stack
        .launcher
        .filter(|launcher| launcher.reach(distance) != Some(LauncherReach::IfInstalledThere));
    let of_launcher = launcher.and_then(launcher::unavailable_reason).map(Unavailable::from);
    let is_xdp_here = stack.protocol.row().bypass == Bypass::AfXdp
        && matches!(distance, Distance::Loopback | Distance::Namespaces);
    of_launcher.or_else(|| {
        is_xdp_here.then(nm_sys::xdp::unavailable_reason).flatten().map(Unavailable::Xdp)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::Launcher;

    fn reason(environment: EnvironmentKind, stacks: &str, probe: ProbeKind) -> Option<Unavailable> {
        unavailable_reason(environment, &stacks.parse().unwrap(), probe)
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
    fn what_no_machine_can_run_is_said_before_what_this_one_lacks() {
        let found = reason(EnvironmentKind::Loopback, "onload+shm-spin", ProbeKind::Pingpong);
        assert!(matches!(found, Some(Unavailable::Obstacle(_))), "{found:?}");
        let found = reason(EnvironmentKind::Loopback, "xdp-spin", ProbeKind::Pingpong);
        assert!(matches!(found, Some(Unavailable::Obstacle(_))), "{found:?}");
    }

    #[test]
    fn what_this_machine_lacks_counts_for_agents_on_it_only() {
        let xdp: Stack = "xdp-spin".parse().unwrap();
        let of_kernel = nm_sys::xdp::unavailable_reason().map(Unavailable::Xdp);
        assert_eq!(stack_unavailable_reason(&xdp), of_kernel);
        assert_eq!(missing_here(&xdp, Distance::Guests), None);
        for (launcher, at_hosts) in [(Launcher::Onload, false), (Launcher::Vma, true)] {
            let stack = Stack { launcher: Some(launcher), .."tcp-spin".parse().unwrap() };
            let here = launcher::unavailable_reason(launcher).map(Unavailable::from);
            assert_eq!(missing_here(&stack, Distance::Loopback), here);
            let there = if at_hosts { here } else { None };
            assert_eq!(missing_here(&stack, Distance::Hosts), there, "{launcher}");
        }
    }
}
