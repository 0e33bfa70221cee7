//! netperf's output: the classic tables of STREAM, MAERTS and RR tests, and omni's CSV (`-o`) and
//! key-value (`-k`) lists. Latencies are full round trips; where only the rate is printed, the mean
//! round trip is its inverse, as one transaction is in flight.

use std::collections::BTreeMap;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Case, Pattern, ProbeKind, RrSize, SIZE_BYTES_MAX, Side};
use nm_model::result::{Flow, LatencyRound, RoundData, Statistic, ThroughputRound};
use nm_model::stack::Comparability;

use super::builder::{ImportedRun, ResultBuilder, in_order, integer, number, percentile, shown};
use super::fault::{ImportFault, fault};

/// Long column names of omni's CSV by the names of its key-value list.
const LONG_NAMES: &[(&str, &str)] = &[
    ("Throughput", "THROUGHPUT"),
    ("Throughput Units", "THROUGHPUT_UNITS"),
    ("Transaction Rate Tran/s", "TRANSACTION_RATE"),
    ("Elapsed Time (sec)", "ELAPSED_TIME"),
    ("Local Send Size", "LOCAL_SEND_SIZE"),
    ("Request Size Bytes", "REQUEST_SIZE"),
    ("Response Size Bytes", "RESPONSE_SIZE"),
    ("Protocol", "PROTOCOL"),
    ("Minimum Latency Microseconds", "MIN_LATENCY"),
    ("Maximum Latency Microseconds", "MAX_LATENCY"),
    ("50th Percentile Latency Microseconds", "P50_LATENCY"),
    ("90th Percentile Latency Microseconds", "P90_LATENCY"),
    ("99th Percentile Latency Microseconds", "P99_LATENCY"),
    ("Mean Latency Microseconds", "MEAN_LATENCY"),
    ("Stddev Latency Microseconds", "STDDEV_LATENCY"),
];

/// A line of figures with its number.
type Numbered<'a> = (usize, &'a str);

pub(super) fn read(text: &str, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    import.tool("netperf");
    let lines: Vec<Numbered> =
        text.lines().enumerate().map(|(at, line)| (at + 1, line.trim_end())).collect();
    for (at, line) in &lines {
        let is_error = line.starts_with("netperf: ") || line.starts_with("establish control");
        if is_error {
            return fault(*at, format!("netperf says: {}", shown_line(line)));
        }
    }
    // A text without titles is one section; else each title starts one.
    let titles: Vec<usize> = (0..lines.len()).filter(|&at| is_title(lines[at].1)).collect();
    if titles.is_empty() {
        return section("", &lines, import);
    }
    for (nth, &start) in titles.iter().enumerate() {
        let end = titles.get(nth + 1).copied().unwrap_or(lines.len());
        section(lines[start].1, &lines[start + 1..end], import)?;
    }
    Ok(())
}

fn shown_line(line: &str) -> String {
    line.chars().take(160).collect()
}

fn is_title(line: &str) -> bool {
    line.contains(" TEST from ") || line.contains(" TEST to ")
}

/// One test: its title and the lines below it.
fn section(title: &str, lines: &[Numbered], import: &mut ResultBuilder) -> Result<(), ImportFault> {
    if !title.is_empty() {
        import.note("test", title);
    }
    let first = lines.iter().find(|(_, line)| !line.trim().is_empty());
    let Some((at, first)) = first else { return Ok(()) };
    if first.split_once('=').is_some_and(|(key, _)| is_key(key)) {
        let fields: Fields = lines
            .iter()
            .filter_map(|(_, line)| line.split_once('='))
            .map(|(key, value)| (key.trim().to_string(), value.trim().to_string()))
            .collect();
        return omni(*at, title, &fields, import);
    }
    if first.contains("Throughput Units") || first.contains("Tran/s") {
        let names: Vec<&str> = first.split(',').map(str::trim).collect();
        let rows = lines.iter().skip_while(|line| line.0 <= *at);
        for (at, row) in rows.filter(|(_, line)| line.contains(',')) {
            let values: Vec<&str> = row.split(',').map(str::trim).collect();
            if values.len() != names.len() {
                let message = format!("{} fields instead of {}", values.len(), names.len());
                return fault(*at, message);
            }
            let short = |name: &str| {
                let known = LONG_NAMES.iter().find(|(long, _)| *long == name);
                known.map_or_else(|| name.to_string(), |(_, short)| short.to_string())
            };
            let fields =
                names.iter().zip(values).map(|(name, value)| (short(name), value.to_string()));
            omni(*at, title, &fields.collect(), import)?;
        }
        return Ok(());
    }
    classic(title, lines, import)
}

fn is_key(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Figures by the names of the key-value list.
type Fields = BTreeMap<String, String>;

fn protocol_of(title: &str) -> Option<&'static str> {
    ["TCP", "UDP", "SCTP"].into_iter().find(|name| title.contains(name)).map(|name| match name {
        "TCP" => "tcp",
        "UDP" => "udp",
        _ => "sctp",
    })
}

fn omni(
    at: usize,
    title: &str,
    fields: &Fields,
    import: &mut ResultBuilder,
) -> Result<(), ImportFault> {
    let field = |name: &str| -> Result<Option<f64>, ImportFault> {
        // netperf leaves `-1` where it took no figure.
        match fields.get(name).map(String::as_str) {
            None | Some("" | "-1" | "-1.00") => Ok(None),
            Some(text) => number(at, name, text).map(Some),
        }
    };
    let recorded = fields.get("PROTOCOL").map(String::as_str).unwrap_or_default();
    let protocol = protocol_of(recorded).or_else(|| protocol_of(title));
    let units = fields.get("THROUGHPUT_UNITS").map(String::as_str).unwrap_or_default();
    let throughput = field("THROUGHPUT")?;
    let rate = field("TRANSACTION_RATE")?.or(throughput.filter(|_| units == "Trans/s"));
    let size = |name: &str| fields.get(name).and_then(|text| text.parse().ok());
    if rate.is_some() || units == "Trans/s" || title.contains("REQUEST/RESPONSE") {
        let Some(rate) = rate else {
            return fault(at, "no transaction rate; ask for THROUGHPUT and THROUGHPUT_UNITS");
        };
        let us = |name: &str| Ok::<_, ImportFault>(field(name)?.map(|us| us * 1e3));
        let count = field("ELAPSED_TIME")?.map(|seconds| (rate * seconds) as u64);
        let mut percentiles = vec![];
        for (percent, name) in [(50.0, "P50_LATENCY"), (90.0, "P90_LATENCY"), (99.0, "P99_LATENCY")]
        {
            if let Some(ns) = us(name)? {
                percentiles.push(percentile(percent, ns, count));
            }
        }
        let data = LatencyRound {
            count,
            mean_ns: us("MEAN_LATENCY")?,
            min_ns: us("MIN_LATENCY")?,
            max_ns: us("MAX_LATENCY")?,
            stddev_ns: us("STDDEV_LATENCY")?,
            percentiles,
            rate_per_s: Some(rate),
            ..Default::default()
        };
        let sizes = (size("REQUEST_SIZE"), size("RESPONSE_SIZE"));
        return transactions(at, title, protocol, sizes, data, import);
    }
    let Some(throughput) = throughput else {
        return fault(at, "no THROUGHPUT among the figures");
    };
    let gbps = throughput * gbps_of(at, units)?;
    let seconds = field("ELAPSED_TIME")?.unwrap_or(0.0);
    stream(at, title, protocol, size("LOCAL_SEND_SIZE"), gbps, seconds, import)
}

/// One unit of throughput in Gb/s. Units of bytes are binary, those of bits decimal.
fn gbps_of(at: usize, units: &str) -> Result<f64, ImportFault> {
    let unit = units.trim().trim_end_matches("ec").trim_end_matches("/s");
    Ok(match unit {
        "10^3bits" => 1e-6,
        "10^6bits" => 1e-3,
        "10^9bits" => 1.0,
        "Bytes" => 8e-9,
        "KBytes" => 8e-9 * 1024.0,
        "MBytes" => 8e-9 * 1_048_576.0,
        "GBytes" => 8e-9 * 1_073_741_824.0,
        _ => return fault(at, format!("throughput unit `{}` is not known", shown(units))),
    })
}

/// The tables of the older tests: headings, then a line of numbers.
fn classic(title: &str, lines: &[Numbered], import: &mut ResultBuilder) -> Result<(), ImportFault> {
    let mut rows = vec![];
    let mut heading = String::new();
    for (at, line) in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_figures = words.first().is_some_and(|word| word.parse::<f64>().is_ok());
        if is_figures {
            rows.push((*at, words));
        } else if rows.is_empty() {
            heading.push_str(line);
            heading.push(' ');
        }
    }
    let Some((at, first)) = rows.first() else { return Ok(()) };
    let at = *at;
    let protocol = protocol_of(title);
    if title.contains("REQUEST/RESPONSE") {
        let [_, _, request, response, seconds, rate, ..] = first[..] else {
            return fault(at, format!("{} numbers instead of 6 or more", first.len()));
        };
        let rate = number(at, "the rate", rate)?;
        let seconds = number(at, "the elapsed time", seconds)?;
        // With a burst several are in flight, and the inverse of the rate is no round trip.
        let single = title.split_once("first burst ").is_none_or(|(_, n)| n.trim() == "0");
        let data = LatencyRound {
            count: Some((rate * seconds) as u64),
            mean_ns: (single && rate > 0.0).then(|| 1e9 / rate),
            rate_per_s: Some(rate),
            ..Default::default()
        };
        let sizes = (
            Some(integer(at, "the request size", request)?),
            Some(integer(at, "the response size", response)?),
        );
        return transactions(at, title, protocol, sizes, data, import);
    }
    let units = heading
        .split_whitespace()
        .find(|word| word.contains("bits/s") || word.contains("Bytes/s"))
        .map_or_else(|| fault(at, "no unit of throughput in the headings"), Ok)?;
    let unit_gbps = gbps_of(at, units)?;
    let is_udp = protocol == Some("udp");
    let (write, seconds, throughput) = match (is_udp, &first[..]) {
        (false, [_, _, write, seconds, throughput, ..]) => (write, seconds, throughput),
        // The second line is what the receiver counted.
        (true, [_, write, seconds, ..]) => match rows.get(1).map(|(_, words)| &words[..]) {
            Some([_, _, _, throughput]) => (write, seconds, throughput),
            _ => return fault(at, "no line of what the receiver counted"),
        },
        _ => return fault(at, format!("{} numbers instead of 5 or more", first.len())),
    };
    let gbps = number(at, "the throughput", throughput)? * unit_gbps;
    let seconds = number(at, "the elapsed time", seconds)?;
    let write = integer(at, "the message size", write)?;
    stream(at, title, protocol, Some(write), gbps, seconds, import)
}

fn stream(
    at: usize,
    title: &str,
    protocol: Option<&str>,
    write_bytes: Option<u32>,
    gbps: f64,
    seconds: f64,
    import: &mut ResultBuilder,
) -> Result<(), ImportFault> {
    if write_bytes.is_some_and(|bytes| !(1..=SIZE_BYTES_MAX).contains(&bytes)) {
        return fault(at, format!("the message size is not in 1 to {SIZE_BYTES_MAX}"));
    }
    let pattern = Pattern { flows: 1, bidirectional: false };
    let is_from_server = title.contains("MAERTS") || title.contains("OMNI Receive");
    let flow = Flow {
        index: 0,
        sender: if is_from_server { Side::Server } else { Side::Client },
        bytes: (gbps * 1e9 / 8.0 * seconds) as u64,
        seconds,
        gbps,
        retransmits: None,
    };
    import.push(ImportedRun {
        stack: format!("netperf-{}", protocol.unwrap_or("unknown")),
        probe: ProbeKind::Stream,
        case: match write_bytes {
            Some(write_bytes) => Case::Flows { pattern, write_bytes },
            None => Case::Total,
        },
        statistic: Statistic::Throughput,
        comparability: Comparability {
            protocol: protocol.map(str::to_string),
            write_bytes: write_bytes.map(|bytes| bytes.to_string()),
            ..Default::default()
        },
        settings: vec![("seconds", seconds.to_string())],
        data: RoundData::Throughput(ThroughputRound {
            total_gbps: gbps,
            flows: vec![flow],
            ..Default::default()
        }),
        doubts: vec![],
    })
}

fn transactions(
    at: usize,
    title: &str,
    protocol: Option<&str>,
    sizes: (Option<u32>, Option<u32>),
    data: LatencyRound,
    import: &mut ResultBuilder,
) -> Result<(), ImportFault> {
    let case = match sizes {
        (Some(request_bytes), Some(response_bytes)) => {
            let fits = |bytes: &u32| (1..=SIZE_BYTES_MAX).contains(bytes);
            if ![request_bytes, response_bytes].iter().all(fits) {
                return fault(at, format!("a size is not in 1 to {SIZE_BYTES_MAX}"));
            }
            Case::Request { size: RrSize { request_bytes, response_bytes }, rate_per_s: None }
        }
        _ => Case::Total,
    };
    let burst = title.split_once("first burst ").map_or("0", |(_, burst)| burst.trim());
    import.push(ImportedRun {
        stack: format!("netperf-{}", protocol.unwrap_or("unknown")),
        probe: ProbeKind::Rr,
        case,
        statistic: Statistic::RoundTrip,
        comparability: Comparability {
            protocol: protocol.map(str::to_string),
            ..Default::default()
        },
        settings: vec![("burst", burst.to_string())],
        data: RoundData::Latency(LatencyRound { percentiles: in_order(data.percentiles), ..data }),
        doubts: vec![Doubt::new(DoubtKind::ClosedLoop, "netperf sends when the answer is in")],
    })
}
