//! What both ends told of one case, put together.

use std::collections::BTreeMap;

use nm_model::facts::Facts;
use nm_model::result::{Flow, Placement, Round, RoundData, Statistic, ThroughputRound};
use nm_model::stack::Comparability;
use nm_model::{Case, Doubt, DoubtKind, ProbeKind, Protocol, SeriesKey, Side, Stack};
use nm_probe::placement::doubts_between;

use super::{Conditions, Measured, Told};
use crate::affinity::one_kernel;

/// The rounds of one case: one for each statistic of a latency probe, or one of throughput.
pub fn rounds(conditions: &Conditions<'_>, client: Told, server: Told) -> Vec<Measured> {
    let placements: Vec<Placement> =
        [client.report.placements.clone(), server.report.placements.clone()].concat();
    let settings = settings(&client.report.settings, &server.report.settings);
    let doubts = doubts(conditions, &client, &server);
    let bulk = bulk(conditions.case, &client.report.settings, &server.report.settings);

    let data = match conditions.probe {
        ProbeKind::Stream => {
            vec![(Statistic::Throughput, RoundData::Throughput(throughput(&client, &server)))]
        }
        _ => client
            .report
            .latencies
            .into_iter()
            .chain(server.report.latencies)
            .map(|(statistic, latency)| (statistic, RoundData::Latency(latency)))
            .collect(),
    };
    let mut samples = [client.samples, server.samples].concat();
    let started_s = conditions.started_s;
    data.into_iter()
        .map(|(statistic, data)| Measured {
            key: SeriesKey {
                environment: conditions.pair.environment.clone(),
                stack: conditions.stacks.to_string(),
                probe: conditions.probe,
                case: conditions.case,
                statistic,
            },
            comparability: comparability(conditions, statistic, bulk.clone()),
            settings: settings.clone(),
            round: Round {
                round: conditions.round,
                started_s,
                data,
                placements: placements.clone(),
                doubts: doubts.clone(),
            },
            samples: samples
                .iter()
                .position(|(known, _)| *known == statistic)
                .map(|at| samples.swap_remove(at).1),
        })
        .collect()
}

/// Flows of both directions, each as its receiver counted it.
fn throughput(client: &Told, server: &Told) -> ThroughputRound {
    let mut flows: Vec<Flow> =
        [client.report.received.clone(), server.report.received.clone()].concat();
    flows.sort_by_key(|flow| flow.index);
    for flow in &mut flows {
        let sender = match flow.sender {
            Side::Client => &client.report,
            Side::Server => &server.report,
        };
        let found = sender.retransmits.iter().find(|(index, _)| *index == flow.index);
        flow.retransmits = flow.retransmits.or(found.map(|(_, count)| *count));
    }
    ThroughputRound {
        total_gbps: flows.iter().map(|flow| flow.gbps).sum(),
        flows,
        client_cpu: client.report.cpu,
        server_cpu: server.report.cpu,
    }
}

/// Settings of both ends: under their own name where both agree, else under `client NAME` and
/// `server NAME`.
fn settings(
    client: &BTreeMap<String, String>,
    server: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (name, value) in client {
        if server.get(name).is_none_or(|other| other == value) {
            all.insert(name.clone(), value.clone());
        } else {
            all.insert(format!("client {name}"), value.clone());
        }
    }
    for (name, value) in server {
        match client.get(name) {
            Some(other) if other == value => {}
            Some(_) => {
                all.insert(format!("server {name}"), value.clone());
            }
            None => {
                all.insert(name.clone(), value.clone());
            }
        }
    }
    all
}

fn both(client: &str, server: &str) -> String {
    if client == server { client.to_string() } else { format!("{client}:{server}") }
}

/// What explains a bulk transfer and must agree to compare two: write size as it came to be, which
/// datagrams may limit, and congestion control. Empty for other cases.
fn bulk(
    case: Case,
    client: &BTreeMap<String, String>,
    server: &BTreeMap<String, String>,
) -> Comparability {
    let Case::Flows { write_bytes, .. } = case else { return Comparability::default() };
    let of = |name: &str| match (client.get(name), server.get(name)) {
        (Some(client), Some(server)) => Some(both(client, server)),
        (client, server) => client.or(server).cloned(),
    };
    let write = of("write size").and_then(|text| text.strip_suffix(" B").map(str::to_string));
    Comparability {
        write_bytes: write.or_else(|| Some(write_bytes.to_string())),
        congestion: of("congestion control"),
        ..Comparability::default()
    }
}

/// What takes the bytes past the kernel's network stack at one end.
pub(crate) fn bypass(stack: Stack) -> &'static str {
    match (stack.launcher, stack.protocol) {
        (Some(launcher), _) => launcher.name(),
        (None, Protocol::Shm) => Protocol::Shm.name(),
        (None, protocol) if protocol.is_af_xdp() => Protocol::Xdp.name(),
        (None, _) => "none",
    }
}

fn comparability(
    conditions: &Conditions<'_>,
    statistic: Statistic,
    bulk: Comparability,
) -> Comparability {
    let (client, server) = (conditions.stacks.client, conditions.stacks.server);
    let between = conditions.pair.between();
    Comparability {
        statistic: Some(statistic.name().to_string()),
        protocol: Some(both(client.protocol.name(), server.protocol.name())),
        mode: Some(both(client.mode.name(), server.mode.name())),
        bypass: Some(both(bypass(client), bypass(server))),
        link: between.link,
        firmware: between.firmware,
        layer: between.layer,
        ..bulk
    }
}

/// Doubts of both ends, of their machines, and of where they ran together; each once.
fn doubts(conditions: &Conditions<'_>, client: &Told, server: &Told) -> Vec<Doubt> {
    let pair = conditions.pair;
    let mut all = [client.report.doubts.clone(), server.report.doubts.clone()].concat();
    let one_kernel = one_kernel(&pair.client_facts, &pair.server_facts);
    if one_kernel {
        for a in &client.report.placements {
            for b in &server.report.placements {
                all.extend(doubts_between(a, b, &pair.client_facts.cpu.siblings));
            }
        }
    }
    all.extend(machine_doubts(&pair.client_facts, "client"));
    if !one_kernel {
        all.extend(machine_doubts(&pair.server_facts, "server"));
    }
    let mut once: Vec<Doubt> = vec![];
    for doubt in all {
        if !once.contains(&doubt) {
            once.push(doubt);
        }
    }
    once
}

/// What a machine's facts give reason to doubt; the probe itself speaks of its clock and memory.
fn machine_doubts(facts: &Facts, end: &str) -> Vec<Doubt> {
    let mut doubts = vec![];
    if let Some(quota) = &facts.cpu.quota {
        let detail = format!("the {end}'s control group has the limit `{quota}` (µs of µs)");
        doubts.push(Doubt::new(DoubtKind::Throttled, detail));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn settings_are_told_once_where_both_ends_agree() {
        let client = map(&[("mtu", "1500"), ("congestion", "bbr"), ("sndbuf", "1")]);
        let server = map(&[("mtu", "1500"), ("congestion", "cubic"), ("rcvbuf", "2")]);
        let expected = map(&[
            ("mtu", "1500"),
            ("client congestion", "bbr"),
            ("server congestion", "cubic"),
            ("sndbuf", "1"),
            ("rcvbuf", "2"),
        ]);
        assert_eq!(settings(&client, &server), expected);
    }

    #[test]
    fn flows_are_those_of_the_receivers_with_the_senders_retransmits() {
        let flow = |index, sender, gbps| Flow {
            index,
            sender,
            bytes: 0,
            seconds: 1.0,
            gbps,
            retransmits: None,
        };
        let mut client = Told::default();
        client.report.received = vec![flow(1, Side::Server, 2.0)];
        client.report.retransmits = vec![(0, 7)];
        client.report.cpu = Some(0.5);
        let mut server = Told::default();
        server.report.received = vec![flow(0, Side::Client, 3.0)];
        let round = throughput(&client, &server);
        assert_eq!(round.total_gbps, 5.0);
        assert_eq!(round.flows[0].retransmits, Some(7));
        assert_eq!(round.flows[1].retransmits, None);
        assert_eq!((round.client_cpu, round.server_cpu), (Some(0.5), None));
    }

    #[test]
    fn a_bulk_transfer_is_known_by_write_size_and_congestion_control() {
        let flows = Case::Flows { pattern: "1-uni-1".parse().unwrap(), write_bytes: 131_072 };
        let client = map(&[("write size", "32768 B"), ("congestion control", "bbr")]);
        let server = map(&[("write size", "32768 B"), ("congestion control", "cubic")]);
        let found = bulk(flows, &client, &server);
        assert_eq!(found.write_bytes.as_deref(), Some("32768"));
        assert_eq!(found.congestion.as_deref(), Some("bbr:cubic"));
        let found = bulk(flows, &map(&[]), &map(&[]));
        assert_eq!((found.write_bytes.as_deref(), found.congestion), (Some("131072"), None));
        let message = Case::Message { size_bytes: 1 };
        assert_eq!(bulk(message, &client, &server), Comparability::default());
    }

    #[test]
    fn machines_give_their_doubts() {
        let mut facts = Facts::default();
        assert!(machine_doubts(&facts, "client").is_empty());
        facts.cpu.quota = Some("50000 100000".into());
        assert_eq!(machine_doubts(&facts, "client")[0].kind, DoubtKind::Throttled);
    }
}
