//! Merges the reports of both ends of one case into rounds.

use nm_model::facts::Facts;
use nm_model::result::{Flow, Placement, Round, RoundData, Statistic, ThroughputRound};
use nm_model::setting::{SettingKind, SettingValue, Settings};
use nm_model::stack::Comparability;
use nm_model::{Case, Doubt, DoubtKind, ProbeKind, SeriesKey, Side};
use nm_probe::placement::doubts_between;

use crate::affinity::one_kernel;
use crate::pair::layer_of;
use crate::trial::types::{Conditions, EndReport, Measured};

/// The rounds of one case: one for each statistic of a latency probe, or one of throughput.
pub fn rounds(conditions: &Conditions<'_>, client: EndReport, server: EndReport) -> Vec<Measured> {
    let placements: Vec<Placement> =
        [client.report.placements.clone(), server.report.placements.clone()].concat();
    let settings = Settings::merged(&client.report.settings, &server.report.settings);
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
            comparability: comparability(conditions, statistic, &data, bulk.clone()),
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

/// The reports of all pairs as those of one: flows have the number of their pair and are counted
/// through, CPU times are summed, and settings are those of the first pair.
pub fn joined(pairs: Vec<(EndReport, EndReport)>) -> (EndReport, EndReport) {
    if pairs.len() == 1 {
        return pairs.into_iter().next().unwrap_or_default();
    }
    let (mut client, mut server) = (EndReport::default(), EndReport::default());
    let mut first_flow = 0;
    for (pair, (of_client, of_server)) in (1..).zip(pairs) {
        let received = of_client.report.received.len() + of_server.report.received.len();
        add_pair(&mut client, of_client, pair, first_flow);
        add_pair(&mut server, of_server, pair, first_flow);
        first_flow += received as u32;
    }
    (client, server)
}

/// Adds the report of one end of pair number `pair`, whose flows are counted from `first_flow`.
fn add_pair(all: &mut EndReport, one: EndReport, pair: u32, first_flow: u32) {
    let EndReport { report: one, samples } = one;
    let (all, kept) = (&mut all.report, &mut all.samples);
    kept.extend(samples);
    all.received.extend(one.received.into_iter().map(|flow| Flow {
        index: first_flow + flow.index,
        pair: Some(pair),
        ..flow
    }));
    let retransmits = one.retransmits.into_iter();
    all.retransmits.extend(retransmits.map(|(index, count)| (first_flow + index, count)));
    all.placements.extend(one.placements.into_iter().map(|placement| Placement {
        thread: format!("{} of pair {pair}", placement.thread),
        ..placement
    }));
    all.cpu = match (all.cpu, one.cpu) {
        (Some(all), Some(one)) => Some(all + one),
        // The sum is known only if every part is.
        (None, one) if pair == 1 => one,
        _ => None,
    };
    if pair == 1 {
        all.settings = one.settings;
    }
    all.doubts.extend(one.doubts);
}

/// Flows of both directions, with the counts of their receivers.
fn throughput(client: &EndReport, server: &EndReport) -> ThroughputRound {
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

/// One text if both ends agree, otherwise `CLIENT:SERVER`.
fn end_texts(client: &str, server: &str) -> String {
    if client == server { client.to_string() } else { format!("{client}:{server}") }
}

/// Properties of a bulk transfer that must agree in a comparison: congestion control and the actual
/// write size, which datagrams may limit. Empty for other cases.
fn bulk(case: Case, client: &Settings, server: &Settings) -> Comparability {
    let Case::Flows { write_bytes, .. } = case else { return Comparability::default() };
    let of = |kind: SettingKind, text: fn(&SettingValue) -> Option<String>| {
        let of_end = |settings: &Settings| settings.get(&kind).and_then(text);
        match (of_end(client), of_end(server)) {
            (Some(client), Some(server)) => Some(end_texts(&client, &server)),
            (client, server) => client.or(server),
        }
    };
    let write = of(SettingKind::WriteSize, |value| Some(value.as_bytes()?.to_string()));
    Comparability {
        write_bytes: write.or_else(|| Some(write_bytes.to_string())),
        congestion: of(SettingKind::CongestionControl, |value| Some(value.to_string())),
        ..Comparability::default()
    }
}

fn comparability(
    conditions: &Conditions<'_>,
    statistic: Statistic,
    data: &RoundData,
    bulk: Comparability,
) -> Comparability {
    if !conditions.probe.uses_network() {
        return machine(conditions, statistic, data);
    }
    let ends = conditions.in_use.comparability();
    let between = conditions.pair.between();
    Comparability {
        statistic: Some(statistic.name().to_string()),
        protocol: ends.protocol,
        mode: ends.mode,
        bypass: ends.bypass,
        link: between.link,
        firmware: between.firmware,
        layer: match conditions.pairs {
            1 => between.layer,
            pairs => between.layer.map(|layer| format!("{pairs} pairs of {layer}")),
        },
        execution: between.execution,
        ..bulk
    }
}

/// Properties of a probe that measures the client's machine alone, to which stacks and links do
/// not matter.
fn machine(conditions: &Conditions<'_>, statistic: Statistic, data: &RoundData) -> Comparability {
    let compute = match data {
        RoundData::Latency(latency) => latency.compute.as_ref(),
        RoundData::Throughput(_) => None,
    };
    Comparability {
        statistic: Some(statistic.name().to_string()),
        layer: Some(layer_of(&conditions.pair.client_facts)),
        implementation: compute.map(|round| round.implementation.clone()),
        execution: conditions.pair.between().execution,
        ..Comparability::default()
    }
}

/// Doubts of both ends, of their machines and of their placement; without duplicates.
fn doubts(conditions: &Conditions<'_>, client: &EndReport, server: &EndReport) -> Vec<Doubt> {
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
    all.extend(pair.guest_doubts(conditions.stacks, conditions.probe.uses_network()));
    let mut unique: Vec<Doubt> = vec![];
    for doubt in all {
        if !unique.contains(&doubt) {
            unique.push(doubt);
        }
    }
    unique
}

/// Doubts from the facts of a machine; those about clock and memory come from the probe.
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

    #[test]
    fn flows_have_counts_of_receivers_and_retransmits_of_senders() {
        let flow = |index, sender, gbps| Flow {
            index,
            pair: None,
            sender,
            bytes: 0,
            seconds: 1.0,
            gbps,
            retransmits: None,
        };
        let mut client = EndReport::default();
        client.report.received = vec![flow(1, Side::Server, 2.0)];
        client.report.retransmits = vec![(0, 7)];
        client.report.cpu = Some(0.5);
        let mut server = EndReport::default();
        server.report.received = vec![flow(0, Side::Client, 3.0)];
        let round = throughput(&client, &server);
        assert_eq!(round.total_gbps, 5.0);
        assert_eq!(round.flows[0].retransmits, Some(7));
        assert_eq!(round.flows[1].retransmits, None);
        assert_eq!((round.client_cpu, round.server_cpu), (Some(0.5), None));
    }

    #[test]
    fn reports_of_several_pairs_are_added_up() {
        let of_pair = |gbps: f64, cpu: Option<f64>| {
            let flow = |index, sender| Flow {
                index,
                pair: None,
                sender,
                bytes: 1,
                seconds: 1.0,
                gbps: gbps * f64::from(index + 1),
                retransmits: None,
            };
            let (mut client, mut server) = (EndReport::default(), EndReport::default());
            client.report.received = vec![flow(1, Side::Server)];
            client.report.retransmits = vec![(0, 5)];
            client.report.cpu = cpu;
            server.report.received = vec![flow(0, Side::Client)];
            (client, server)
        };
        let pairs = vec![of_pair(1.0, Some(0.5)), of_pair(10.0, Some(0.25))];
        let (client, server) = joined(pairs);
        let round = throughput(&client, &server);
        assert_eq!(round.total_gbps, 33.0);
        let seen: Vec<_> = round.flows.iter().map(|f| (f.index, f.pair, f.gbps)).collect();
        let expected = [(0, 1, 1.0), (1, 1, 2.0), (2, 2, 10.0), (3, 2, 20.0)];
        assert_eq!(seen, expected.map(|(index, pair, gbps)| (index, Some(pair), gbps)));
        assert_eq!(round.flows[2].retransmits, Some(5));
        assert_eq!((round.client_cpu, round.server_cpu), (Some(0.75), None));
        let (client, _) = joined(vec![of_pair(1.0, Some(0.5)), of_pair(1.0, None)]);
        assert_eq!(client.report.cpu, None);
        let (client, _) = joined(vec![of_pair(1.0, None)]);
        assert_eq!(client.report.received[0].pair, None, "one pair has no number");
    }

    #[test]
    fn bulk_transfer_has_write_size_and_congestion_control() {
        let flows = Case::Flows { pattern: "1-uni-1".parse().unwrap(), write_bytes: 131_072 };
        let of_end = |congestion: &str| -> Settings {
            [
                (SettingKind::WriteSize, SettingValue::Bytes(32_768)),
                (SettingKind::CongestionControl, SettingValue::text(congestion)),
            ]
            .into_iter()
            .collect()
        };
        let (client, server) = (of_end("bbr"), of_end("cubic"));
        let found = bulk(flows, &client, &server);
        assert_eq!(found.write_bytes.as_deref(), Some("32768"));
        assert_eq!(found.congestion.as_deref(), Some("bbr:cubic"));
        let found = bulk(flows, &Settings::new(), &Settings::new());
        assert_eq!((found.write_bytes.as_deref(), found.congestion), (Some("131072"), None));
        let message = Case::Message { size_bytes: 1 };
        assert_eq!(bulk(message, &client, &server), Comparability::default());
    }

    #[test]
    fn cpu_quota_raises_a_doubt() {
        let mut facts = Facts::default();
        assert!(machine_doubts(&facts, "client").is_empty());
        facts.cpu.quota = Some("50000 100000".into());
        assert_eq!(machine_doubts(&facts, "client")[0].kind, DoubtKind::Throttled);
    }
}
