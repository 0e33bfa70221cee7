//! nuttcp's result lines, as a sentence or by `-fparse`. Lines of `-i` intervals are left out: only
//! the last line of a run names the CPU time of both ends.

use std::collections::BTreeMap;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Case, Pattern, Preset, ProbeKind, Side};
use nm_model::result::{Flow, RoundData, Statistic, ThroughputRound};
use nm_model::stack::Comparability;

use super::builder::{ImportedRun, ResultBuilder, integer, number};
use super::fault::{ImportFault, fault};

const ONE_FLOW: Pattern = Pattern { flows: 1, bidirectional: false };

pub(super) fn read(text: &str, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    import.tool("nuttcp");
    for (at, line) in text.lines().enumerate() {
        let at = at + 1;
        if let Some(message) = line.trim().strip_prefix("nuttcp") {
            let message = message.trim_start_matches(|c: char| c != ':').trim_matches([':', ' ']);
            if message.to_lowercase().contains("error") {
                return fault(at, format!("nuttcp says: {message}"));
            }
        }
        let fields = if line.contains("megabytes=") {
            parse_fields(line)
        } else if line.contains(" MB / ") {
            sentence_fields(line)
        } else {
            continue;
        };
        if fields.contains_key("tx_cpu") {
            run(at, &fields, import)?;
        }
    }
    Ok(())
}

fn parse_fields(line: &str) -> BTreeMap<&str, &str> {
    line.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

/// ` 2497.3 MB / 1.00 sec = 20953.7 Mbps 52 %TX 40 %RX 0 retrans 0.19 msRTT` by the names of
/// `-fparse`. For UDP the end is `7 / 1523 drop/pkt 0.46 %loss`.
fn sentence_fields(line: &str) -> BTreeMap<&str, &str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let names = [
        ("MB", "megabytes"),
        ("sec", "real_seconds"),
        ("Mbps", "rate_Mbps"),
        ("%TX", "tx_cpu"),
        ("%RX", "rx_cpu"),
        ("retrans", "retrans"),
        ("msRTT", "rtt_ms"),
        ("drop/pkt", "pkt"),
        ("%loss", "data_loss"),
    ];
    let mut fields = BTreeMap::new();
    for (at, word) in words.iter().enumerate().skip(1) {
        let Some((_, name)) = names.iter().find(|(unit, _)| unit == word) else { continue };
        fields.insert(*name, words[at - 1]);
        if *name == "pkt" && at >= 3 {
            fields.insert("drop", words[at - 3]);
        }
    }
    fields
}

fn run(
    at: usize,
    fields: &BTreeMap<&str, &str>,
    import: &mut ResultBuilder,
) -> Result<(), ImportFault> {
    let field = |name: &str| match fields.get(name) {
        Some(text) => number(at, name, text),
        None => fault(at, format!("no {name} in nuttcp's line")),
    };
    let (megabytes, seconds) = (field("megabytes")?, field("real_seconds")?);
    let gbps = field("rate_Mbps")? / 1e3;
    let share = |name: &str| fields.contains_key(name).then(|| field(name)).transpose();
    let retransmits = fields.get("retrans").map(|n| integer(at, "retrans", n)).transpose()?;
    let is_udp = fields.contains_key("drop") || fields.contains_key("data_loss");
    let mut doubts = vec![];
    if let Some(dropped) = fields.get("drop") {
        let dropped: u64 = integer(at, "drop", dropped)?;
        if dropped > 0 {
            doubts.push(Doubt::new(DoubtKind::Loss, format!("{dropped} packets dropped")));
        }
    }
    let flow = Flow {
        index: 0,
        pair: None,
        // The line does not say which end sent; with -r it was the server.
        sender: Side::Client,
        bytes: (megabytes * f64::from(1u32 << 20)) as u64,
        seconds,
        gbps,
        retransmits,
    };
    let protocol = if is_udp { "udp" } else { "tcp" };
    let text = |name: &str| fields.get(name).map_or_else(String::new, |text| text.to_string());
    if !is_udp {
        import.doubt(
            DoubtKind::Inferred,
            "one flow and writes of 65536 B, nuttcp's defaults for TCP: its line names neither",
        );
    }
    import.push(ImportedRun {
        stack: format!("nuttcp-{protocol}"),
        probe: ProbeKind::Stream,
        case: if is_udp {
            Case::Total
        } else {
            Case::Flows { pattern: ONE_FLOW, write_bytes: Preset::Nuttcp.write_bytes() }
        },
        statistic: Statistic::Throughput,
        comparability: Comparability {
            protocol: Some(protocol.to_string()),
            write_bytes: (!is_udp).then(|| Preset::Nuttcp.write_bytes().to_string()),
            ..Default::default()
        },
        settings: vec![
            ("sender_cpu_percent", text("tx_cpu")),
            ("receiver_cpu_percent", text("rx_cpu")),
            ("connect_rtt_ms", text("rtt_ms")),
            ("loss_percent", text("data_loss")),
        ],
        data: RoundData::Throughput(ThroughputRound {
            total_gbps: gbps,
            flows: vec![flow],
            client_cpu: share("tx_cpu")?.map(|percent| percent / 100.0),
            server_cpu: share("rx_cpu")?.map(|percent| percent / 100.0),
        }),
        doubts,
    })
}
