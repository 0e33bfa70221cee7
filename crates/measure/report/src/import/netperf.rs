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
use super::records::records;

/// Long column names of omni's CSV by the names of its key-value list.
const LONG_NAMES: &[(&str, &str)] = &[
    ("Throughput", "THROUGHPUT"),
    ("Throughput Units", "THROUGHPUT_UNITS"),
    ("Transaction Rate Tran/s", "TRANSACTION_RATE"),
    ("Elapsed Time (sec)", "ELAPSED_TIME"),
    ("Direction", "DIRECTION"),
    ("Local Send Size", "LOCAL_SEND_SIZE"),
    ("Remote Send Size", "REMOTE_SEND_SIZE"),
    ("Request Size Bytes", "REQUEST_SIZE"),
    ("Response Size Bytes", "RESPONSE_SIZE"),
    ("Protocol", "PROTOCOL"),
    ("Round Trip Latency usec/tran", "RT_LATENCY"),
    ("Minimum Latency Microseconds", "MIN_LATENCY"),
    ("Maximum Latency Microseconds", "MAX_LATENCY"),
    ("50th Percentile Latency Microseconds", "P50_LATENCY"),
    ("90th Percentile Latency Microseconds", "P90_LATENCY"),
    ("99th Percentile Latency Microseconds", "P99_LATENCY"),
    ("Mean Latency Microseconds", "MEAN_LATENCY"),
    ("Stddev Latency Microseconds", "STDDEV_LATENCY"),
];

/// Unit of throughput that netperf uses unless another is asked for.
const DEFAULT_UNITS: &str = "10^6bits/s";

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
    // Interim results and warnings may come first.
    let pairs = lines.iter().filter_map(|(at, line)| Some((*at, line.split_once('=')?)));
    let mut pairs = pairs.filter(|(_, (key, _))| is_key(key.trim())).peekable();
    if let Some(&(at, _)) = pairs.peek() {
        let fields: Fields = pairs
            .map(|(_, (key, value))| (key.trim().to_string(), value.trim().to_string()))
            .collect();
        return omni(at, title, &fields, import);
    }
    match lines.iter().position(|(_, line)| is_heading(line)) {
        Some(heading) => csv(title, &lines[heading..], import),
        None => classic(title, lines, import),
    }
}

/// The name of a column in the key-value list, if it is one that is read.
fn short_name(long: &str) -> Option<&'static str> {
    LONG_NAMES.iter().find(|(known, _)| *known == long.trim()).map(|(_, short)| *short)
}

/// Whether a line is a heading of omni's CSV. Which columns it has is up to the user, but without
/// one of figures there is nothing to read.
pub(super) fn is_heading(line: &str) -> bool {
    line.split(',').filter_map(short_name).any(|name| !["PROTOCOL", "DIRECTION"].contains(&name))
}

/// omni's CSV, from its heading on. netperf quotes the texts that may hold a comma.
fn csv(title: &str, lines: &[Numbered], import: &mut ResultBuilder) -> Result<(), ImportFault> {
    let mut names: Vec<&str> = vec![];
    for (at, line) in lines {
        if is_heading(line) {
            names = line.split(',').map(str::trim).collect();
            continue;
        }
        let Some(record) = records(line).or_else(|_| fault(*at, "a quote is not closed"))?.pop()
        else {
            continue;
        };
        if record.cells.len() != names.len() {
            // Between the rows netperf prints warnings.
            if record.cells.len() == 1 {
                continue;
            }
            let message = format!("{} fields instead of {}", record.cells.len(), names.len());
            return fault(*at, message);
        }
        let known = names.iter().zip(&record.cells).filter_map(|(name, value)| {
            Some((short_name(name)?.to_string(), value.trim().to_string()))
        });
        omni(*at, title, &known.collect(), import)?;
    }
    Ok(())
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

/// A figure of the list; absent where netperf took none and left -1, with as many decimals as the
/// figure has.
fn figure(at: usize, fields: &Fields, name: &str) -> Result<Option<f64>, ImportFault> {
    match fields.get(name).map(String::as_str) {
        None | Some("") => Ok(None),
        Some(text) if text.parse() == Ok(-1.0) => Ok(None),
        Some(text) => number(at, name, text).map(Some),
    }
}

fn size(fields: &Fields, name: &str) -> Option<u32> {
    fields.get(name).and_then(|text| text.parse().ok())
}

fn omni(
    at: usize,
    title: &str,
    fields: &Fields,
    import: &mut ResultBuilder,
) -> Result<(), ImportFault> {
    let text = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let protocol = protocol_of(text("PROTOCOL")).or_else(|| protocol_of(title));
    let units = text("THROUGHPUT_UNITS");
    // `-k all` names them in a test of throughput as well, without a figure.
    let mut has_latency = false;
    for name in ["RT_LATENCY", "MEAN_LATENCY", "P50_LATENCY", "P99_LATENCY", "TRANSACTION_RATE"] {
        has_latency |= figure(at, fields, name)?.is_some();
    }
    let are_transactions = units == "Trans/s"
        || is_request_response(title)
        || text("DIRECTION") == "Send|Recv"
        || has_latency;
    if are_transactions {
        let data = latencies(at, fields, units)?;
        let sizes = (size(fields, "REQUEST_SIZE"), size(fields, "RESPONSE_SIZE"));
        return transactions(at, title, protocol, sizes, data, import);
    }
    let Some(throughput) = figure(at, fields, "THROUGHPUT")? else {
        return fault(
            at,
            "no throughput among the figures; ask for -o THROUGHPUT,THROUGHPUT_UNITS",
        );
    };
    if units.is_empty() {
        import.doubt(DoubtKind::Inferred, format!("throughput in {DEFAULT_UNITS}, the default"));
    }
    let units = if units.is_empty() { DEFAULT_UNITS } else { units };
    let gbps = throughput * gbps_of(at, units)?;
    let seconds = figure(at, fields, "ELAPSED_TIME")?.unwrap_or(0.0);
    // What the other end did not send is there as -1.
    let write = size(fields, "LOCAL_SEND_SIZE").or(size(fields, "REMOTE_SEND_SIZE"));
    let title = if text("DIRECTION") == "Receive" { "OMNI Receive" } else { title };
    stream(at, title, protocol, write, gbps, seconds, import)
}

/// The figures of a test of requests and responses.
fn latencies(at: usize, fields: &Fields, units: &str) -> Result<LatencyRound, ImportFault> {
    let field = |name: &str| figure(at, fields, name);
    let us = |name: &str| Ok::<_, ImportFault>(field(name)?.map(|us| us * 1e3));
    let is_rate = units.is_empty() || units == "Trans/s";
    let rate = field("TRANSACTION_RATE")?.or(field("THROUGHPUT")?.filter(|_| is_rate));
    let count = field("ELAPSED_TIME")?.zip(rate).map(|(seconds, rate)| (rate * seconds) as u64);
    let mut percentiles = vec![];
    for (percent, name) in [(50.0, "P50_LATENCY"), (90.0, "P90_LATENCY"), (99.0, "P99_LATENCY")] {
        if let Some(ns) = us(name)? {
            percentiles.push(percentile(percent, ns, count));
        }
    }
    let data = LatencyRound {
        count,
        mean_ns: us("MEAN_LATENCY")?.or(us("RT_LATENCY")?),
        min_ns: us("MIN_LATENCY")?,
        max_ns: us("MAX_LATENCY")?,
        stddev_ns: us("STDDEV_LATENCY")?,
        percentiles,
        rate_per_s: rate,
        ..Default::default()
    };
    if rate.or(data.mean_ns).is_none() && data.percentiles.is_empty() {
        return fault(at, "neither a rate nor a latency; ask for -o THROUGHPUT,MEAN_LATENCY");
    }
    Ok(data)
}

/// Whether the title is that of a test of requests and responses.
fn is_request_response(title: &str) -> bool {
    title.contains("REQUEST/RESPONSE") || title.contains("OMNI Send|Recv")
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
        .map_or_else(|| fault(at, "no unit of throughput in the headings; use -o or -k"), Ok)?;
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
        pair: None,
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
