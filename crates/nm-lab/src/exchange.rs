//! A trial of the exchange: one round over a network of its own, as a round of a series.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nm_exchange::load::Arrivals;
use nm_exchange::place::Transport;
use nm_exchange::run::{self, Setup};
use nm_exchange::sla::Sla;
use nm_model::plan::EnvironmentKind;
use nm_model::probe::ProbeSpec;
use nm_model::result::{Round, RoundData, Statistic};
use nm_model::stack::Comparability;
use nm_model::{
    Case, ExchangeSpec, Failure, FailureKind, Mode, ProbeKind, Protocol, SeriesKey, StackPair,
};

use crate::trial::{Measured, Options};

/// Why a network cannot be made in an environment over such stacks, as a clause.
pub fn obstacle(environment: EnvironmentKind, stacks: &StackPair) -> Option<String> {
    if environment != EnvironmentKind::Loopback {
        return Some(
            "the nodes of an exchange run on loopback here; on several hosts start them with \
             `nearmetal exchange run --hosts FILE`"
                .to_string(),
        );
    }
    let is_known = stacks.client == stacks.server
        && matches!(stacks.client.protocol, Protocol::Tcp | Protocol::Unix)
        && stacks.client.mode == Mode::Epoll
        && stacks.client.launcher.is_none();
    let reason = "the nodes of an exchange wait by epoll on TCP or Unix sockets; use tcp-epoll or \
                  unix-epoll";
    (!is_known).then(|| reason.to_string())
}

/// A round on this machine without anything special, as a plan's row asks for it. Journals, where
/// the durability needs them, lie in `folder` while it runs.
///
/// # Errors
/// If this program's own file cannot be found.
pub fn setup(
    spec: &ExchangeSpec,
    stacks: &StackPair,
    seed: u64,
    folder: &Path,
) -> Result<Setup, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(FailureKind::System, format!("cannot find this program's own file: {error}"))
    })?;
    let transport = match stacks.client.protocol {
        Protocol::Unix => Transport::Unix,
        _ => Transport::Tcp,
    };
    Ok(Setup {
        spec: spec.clone(),
        transport,
        seed,
        kills: vec![],
        record: false,
        arrivals: Arrivals::default(),
        record_flow: None,
        replay_flow: None,
        stall: None,
        sla: Sla::default(),
        hosts: vec![],
        host_data: PathBuf::from("/var/tmp/nearmetal-exchange"),
        program,
        folder: folder.to_path_buf(),
    })
}

/// How a series of the exchange is named.
pub fn stack_name(setup: &Setup) -> String {
    setup.spec.name(protocol(setup))
}

/// Runs one round. With it come sentences about nodes that died by themselves.
///
/// # Errors
/// Those of [`run::round`].
pub fn run(
    setup: &Setup,
    round: u32,
    options: &Options,
    cancel: &AtomicBool,
) -> Result<(Measured, Vec<String>), Failure> {
    let started_s = options.started.elapsed().as_secs_f64();
    let outcome = run::round(setup, cancel)?;
    let samples = options.raw_samples.then(|| {
        outcome.samples.iter().map(|s| s.latency_ns.min(u64::from(u32::MAX)) as u32).collect()
    });
    let cases = ProbeSpec::Exchange(setup.spec.clone()).cases();
    let statistic = Statistic::RoundTripFromIntended;
    let measured = Measured {
        key: SeriesKey {
            environment: environment(setup),
            stack: stack_name(setup),
            probe: ProbeKind::Exchange,
            case: cases.first().copied().unwrap_or(Case::Whole),
            statistic,
        },
        comparability: Comparability {
            statistic: Some(statistic.name().to_string()),
            protocol: Some(protocol(setup).name().to_string()),
            mode: Some(Mode::Epoll.name().to_string()),
            bypass: Some("none".to_string()),
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
    Ok((measured, outcome.trouble))
}

fn environment(setup: &Setup) -> String {
    match setup.hosts.is_empty() {
        true => EnvironmentKind::Loopback.name().to_string(),
        false => EnvironmentKind::Ssh.name().to_string(),
    }
}

fn protocol(setup: &Setup) -> Protocol {
    match setup.transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Unix => Protocol::Unix,
    }
}

fn settings(setup: &Setup) -> BTreeMap<String, String> {
    let ExchangeSpec { nodes, durability, mix, warmup_ms, .. } = &setup.spec;
    let mut settings = vec![
        ("nodes", nodes.total().to_string()),
        ("layout", nodes.to_string()),
        ("transport", protocol(setup).name().to_string()),
        ("durability", durability.to_string()),
        ("mix", mix.to_string()),
        ("message", "200 B to 80 kB, mean 800 B".to_string()),
        ("warm-up", format!("{warmup_ms} ms")),
    ];
    if !setup.hosts.is_empty() {
        let hosts: Vec<&str> = setup.hosts.iter().map(|host| host.destination.as_str()).collect();
        settings.push(("hosts", hosts.join(", ")));
    }
    if setup.arrivals != Arrivals::default() {
        settings.push(("arrivals", setup.arrivals.to_string()));
    }
    if let Some(flow) = &setup.replay_flow {
        settings.push(("flow", format!("{} recorded requests", flow.asks.len())));
    }
    if let Some(stall) = setup.stall {
        settings.push(("stall", format!("{} ms at {} s", stall.for_ms, stall.at_s)));
    }
    settings.into_iter().map(|(name, text)| (name.to_string(), text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_stacks_and_environments_are_refused() {
        let reason = |environment, stacks: &str| obstacle(environment, &stacks.parse().unwrap());
        assert_eq!(reason(EnvironmentKind::Loopback, "tcp-epoll"), None);
        assert_eq!(reason(EnvironmentKind::Loopback, "unix-epoll"), None);
        for stacks in ["tcp-spin", "shm-spin", "udp-epoll", "tcp-epoll:tcp-spin"] {
            let reason = reason(EnvironmentKind::Loopback, stacks).expect(stacks);
            assert!(reason.contains("use tcp-epoll"), "{reason}");
        }
        assert!(reason(EnvironmentKind::Netns, "tcp-epoll").unwrap().contains("--hosts"));
    }
}
