//! A trial of the exchange: one round with its own network, as a round of a series.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use nm_exchange::network::NodeId;
use nm_model::capability::Obstacle;
use nm_model::link_transport::LinkTransport;
use nm_model::plan::EnvironmentKind;
use nm_model::probe::ProbeSpec;
use nm_model::result::{Round, RoundData, Statistic};
use nm_model::setting::{SettingKind, SettingValue, Settings};
use nm_model::stack::Comparability;
use nm_model::{
    Case, Doubt, DoubtKind, ExchangeSpec, Failure, FailureKind, Launcher, ProbeKind, SeriesKey,
    Stack, StackPair,
};
use nm_run::round::{self, Setup};

use crate::ledger::{Connection, DataPath, Ledger};
use crate::trial::accelerated::KERNEL_SHARE_MAX;
use crate::trial::types::{Measured, Options};
use crate::{accelerator, launcher};

/// The setup of a round on this machine with default options, for a row of a plan. Journals, if the
/// durability needs them, are kept in `folder`.
///
/// # Errors
/// If the nodes cannot use the stack, this program's own file is not found, or the accelerator is
/// not available.
pub fn setup(
    spec: &ExchangeSpec,
    stacks: &StackPair,
    seed: u64,
    folder: &Path,
) -> Result<Setup, Failure> {
    let program = nm_sys::process::own_program().map_err(|error| {
        Failure::new(FailureKind::System, format!("cannot find this program's own file: {error}"))
    })?;
    let transport = LinkTransport::of_stack(stacks.client).ok_or_else(|| {
        Failure::new(FailureKind::BadRequest, Obstacle::ExchangeStack.to_string())
    })?;
    let accelerator = match stacks.client.launcher {
        Some(launcher) => accelerator(launcher, &program)?,
        None => vec![],
    };
    let plain = Setup::new(spec.clone(), program, folder.to_path_buf());
    Ok(Setup { transport, accelerator, seed, ..plain })
}

/// Environment variables that accelerate nodes. Without spinning, because there are more nodes than
/// CPUs.
fn accelerator(launcher: Launcher, program: &Path) -> Result<Vec<(OsString, OsString)>, Failure> {
    if let Some(reason) = launcher::unavailable_reason(launcher) {
        return Err(Failure::new(FailureKind::NotAvailable, format!("not available: {reason}")));
    }
    let mut command = Command::new(program);
    let settings = accelerator::Settings { spin_us: Some(0), ..Default::default() };
    settings.apply(&mut command, &accelerator::library(program)?);
    let set = command.get_envs().filter_map(|(name, value)| Some((name.into(), value?.into())));
    Ok(set.collect())
}

/// The stack of a series: what carries the links, and the launcher of the nodes.
pub fn stack(setup: &Setup) -> Stack {
    setup.transport.stack()
}

/// Where the nodes run.
pub fn environment(setup: &Setup) -> EnvironmentKind {
    match setup.hosts.is_empty() {
        true => EnvironmentKind::Loopback,
        false => EnvironmentKind::Ssh,
    }
}

/// The name of a series of the exchange.
pub fn stack_name(setup: &Setup) -> String {
    setup.spec.name(stack(setup))
}

/// Runs one round; returns sentences about nodes that died unexpectedly as well.
///
/// # Errors
/// Those of [`round::run`], and if no bytes between accelerated nodes went through shared memory.
pub fn run(
    setup: &Setup,
    round: u32,
    options: &Options,
    cancel: &AtomicBool,
) -> Result<(Measured, Vec<String>), Failure> {
    let started_s = options.started.elapsed().as_secs_f64();
    let is_accelerated = !setup.accelerator.is_empty();
    let (mut outcome, found) =
        round::run_with(setup, cancel, |nodes| is_accelerated.then(|| count_calls(nodes)))?;
    if let Some(calls) = found {
        outcome.doubts.extend(calls.judge()?);
    }
    let ended = outcome.unexpected_restarts.iter().cloned();
    outcome.doubts.extend(ended.map(|detail| Doubt::new(DoubtKind::NodeEnded, detail)));
    let stack = stack(setup);
    let samples = options.raw_samples.then(|| {
        outcome.samples.iter().map(|s| s.latency_ns.min(u64::from(u32::MAX)) as u32).collect()
    });
    let cases = ProbeSpec::Exchange(setup.spec.clone()).cases();
    let statistic = Statistic::RoundTripFromIntended;
    let measured = Measured {
        key: SeriesKey {
            environment: environment(setup).name().to_string(),
            stack: stack_name(setup),
            probe: ProbeKind::Exchange,
            case: cases.first().copied().unwrap_or(Case::Total),
            statistic,
        },
        comparability: Comparability {
            statistic: Some(statistic.name().to_string()),
            protocol: Some(stack.protocol.name().to_string()),
            mode: Some(stack.mode.name().to_string()),
            bypass: Some(stack.bypass_name().to_string()),
            ..Comparability::default()
        },
        settings: settings(setup),
        round: Round {
            round,
            started_s,
            data: RoundData::Latency(outcome.latency),
            placements: vec![],
            doubts: outcome.doubts,
        },
        samples,
    };
    Ok((measured, outcome.unexpected_restarts))
}

/// Calls that transferred bytes between nodes, by data path, and the first reason for the kernel.
#[derive(Debug, Default, PartialEq)]
struct Calls {
    memory: u64,
    kernel: u64,
    why: Option<String>,
}

/// Counts the calls of connections between two accelerated nodes, from their ledgers. Connections
/// with the load generator stay on the kernel, because it is not accelerated.
fn count_calls(nodes: &[(NodeId, u32)]) -> Calls {
    let all: Vec<Connection> = nodes
        .iter()
        .flat_map(|(_, pid)| Ledger::of_process(*pid))
        .flat_map(|ledger| ledger.connections())
        .filter(Connection::is_open)
        .collect();
    count_calls_between_ends(&all)
}

fn count_calls_between_ends(all: &[Connection]) -> Calls {
    let ends: HashSet<_> = all.iter().map(|c| (c.record.local, c.record.peer)).collect();
    let mut calls = Calls::default();
    for connection in all {
        if ends.contains(&(connection.record.peer, connection.record.local)) {
            let (memory, kernel) = connection.calls();
            calls.memory += memory;
            if connection.path() != DataPath::SharedMemory {
                // The first calls of a connection in shared memory always go through the kernel:
                // not counted.
                calls.kernel += kernel;
                calls.why = calls.why.take().or_else(|| connection.kernel_reason());
            }
        }
    }
    calls
}

impl Calls {
    /// # Errors
    /// If no call used shared memory, with the reason.
    fn judge(&self) -> Result<Option<Doubt>, Failure> {
        let why =
            |prefix: &str| self.why.as_ref().map_or(String::new(), |why| format!("{prefix}{why}"));
        if self.memory == 0 {
            let message = format!("the nodes were not accelerated{}", why(": "));
            return Err(Failure::new(FailureKind::NotAvailable, message));
        }
        let share = self.kernel as f64 / (self.memory + self.kernel) as f64;
        let detail = || {
            format!(
                "{:.0} % of the calls between nodes went through the kernel{}",
                share * 1e2,
                why(": ")
            )
        };
        Ok((share > KERNEL_SHARE_MAX).then(|| Doubt::new(DoubtKind::NotAccelerated, detail())))
    }
}

fn settings(setup: &Setup) -> Settings {
    let ExchangeSpec { nodes, durability, mix, warmup_ms, .. } = &setup.spec;
    let text = |text: &str| SettingValue::text(text);
    let authentication = if setup.is_authenticated() { "shared secret" } else { "none" };
    let mut settings: Settings = [
        (SettingKind::Nodes, SettingValue::Number(u64::from(nodes.total()))),
        (SettingKind::Layout, SettingValue::text(nodes.to_string())),
        (SettingKind::Transport, text(stack(setup).protocol.name())),
        (SettingKind::Durability, text(durability.name())),
        (SettingKind::OrderMix, text(mix.name())),
        (SettingKind::MessageSizes, text("200 B to 80 kB, mean 800 B")),
        (SettingKind::Authentication, text(authentication)),
        (SettingKind::WarmUp, SettingValue::Milliseconds(*warmup_ms as f64)),
    ]
    .into_iter()
    .collect();
    if !setup.accelerator.is_empty() {
        let description = "in front of the nodes, without spinning; the load is on the kernel";
        settings.set(SettingKind::Accelerator, text(description));
    }
    if !setup.hosts.is_empty() {
        let hosts: Vec<&str> = setup.hosts.iter().map(|host| host.destination.as_str()).collect();
        settings.set(SettingKind::Hosts, SettingValue::text(hosts.join(", ")));
    }
    if setup.arrivals != Default::default() {
        settings.set(SettingKind::Arrivals, SettingValue::text(setup.arrivals.to_string()));
    }
    if let Some(flow) = &setup.replay_flow {
        let requests = format!("{} recorded requests", flow.requests.len());
        settings.set(SettingKind::ReplayedFlow, SettingValue::text(requests));
    }
    if let Some(stall) = setup.stall {
        let stalled = format!("{} ms at {} s", stall.for_ms, stall.at_s);
        settings.set(SettingKind::Stall, SettingValue::text(stalled));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::fixture::connection;
    use crate::resolve::unavailable_reason;
    use nm_ring::ledger::KernelReason;

    #[test]
    fn unusable_stacks_and_environments_have_a_reason() {
        let reason = |environment, stacks: &str| {
            unavailable_reason(environment, &stacks.parse().unwrap(), ProbeKind::Exchange)
                .map(|reason| reason.to_string())
        };
        assert_eq!(reason(EnvironmentKind::Loopback, "tcp-epoll"), None);
        assert_eq!(reason(EnvironmentKind::Loopback, "unix-epoll"), None);
        assert_eq!(reason(EnvironmentKind::Loopback, "shm-epoll"), None);
        let accelerated = reason(EnvironmentKind::Loopback, "accel+tcp-epoll");
        let expected = launcher::unavailable_reason(Launcher::Accel);
        assert_eq!(accelerated, expected.map(|reason| reason.to_string()));
        for stacks in [
            "tcp-spin",
            "shm-spin",
            "udp-epoll",
            "accel+unix-epoll",
            "onload+tcp-epoll",
            "tcp-epoll:tcp-spin",
        ] {
            let reason = reason(EnvironmentKind::Loopback, stacks).expect(stacks);
            assert!(reason.contains("use tcp-epoll"), "{reason}");
        }
    }

    #[test]
    fn only_connections_between_nodes_are_counted() {
        let at = |port: u16| format!("127.0.0.1:{port}").parse().ok();
        let end = |local, peer, memory, kernel, reason| {
            let mut connection = connection(memory, kernel, reason);
            (connection.record.local, connection.record.peer) = (at(local), at(peer));
            connection
        };
        let load = end(1, 9, 0, 5_000, KernelReason::None);
        let pair = [end(1, 2, 500, 2, KernelReason::None), end(2, 1, 500, 3, KernelReason::None)];
        let calls = count_calls_between_ends(&[load, pair[0], pair[1]]);
        assert_eq!((calls.memory, calls.kernel), (2_000, 0));
        assert_eq!(calls.judge(), Ok(None));
        let slow =
            count_calls_between_ends(&[pair[0], end(2, 1, 10, 90, KernelReason::UrgentData)]);
        assert!(slow.judge().unwrap().unwrap().detail.contains("urgent data"));
        let failure = count_calls_between_ends(&[load]).judge().unwrap_err();
        assert_eq!(failure.message, "the nodes were not accelerated");
    }
}
