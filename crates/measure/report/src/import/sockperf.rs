//! sockperf's client output: ping-pong and under-load. Values are µs, halved unless `--full-rtt`.
//!
//! The output names neither the message size nor the mode. Both are taken from a command line above
//! it, if there is one (`sockperf ping-pong -i … -m 64`, as scripts and terminals leave it).
//! Otherwise the case is the entire run.

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Case, ProbeKind, RrSize};
use nm_model::result::{LatencyRound, PercentileValue, RoundData, Statistic};
use nm_model::stack::Comparability;

use super::builder::{ImportedRun, ResultBuilder, in_order, integer, number, percentile};
use super::fault::{ImportFault, fault};

const US: f64 = 1e3;

/// What has been read of one run.
#[derive(Default)]
struct Run {
    protocol: Option<&'static str>,
    command: Option<String>,
    statistic: Option<Statistic>,
    count: Option<u64>,
    lost: u64,
    mean_us: Option<f64>,
    stddev_us: Option<f64>,
    min_us: Option<f64>,
    max_us: Option<f64>,
    percentiles: Vec<(f64, f64)>,
    settings: Vec<(&'static str, String)>,
}

pub(super) fn read(text: &str, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    import.tool("sockperf");
    let mut run = Run::default();
    for (at, line) in text.lines().enumerate() {
        let at = at + 1;
        if let Some(version) = line.split_once("== version #").map(|(_, rest)| rest) {
            // The first line of a run: the one before ends here. Without figures there was only
            // the command line of this one.
            let command = run.command.take_if(|_| run.mean_us.is_none());
            flush(std::mem::take(&mut run), import)?;
            run.command = command;
            import.tool(format!("sockperf {}", version.trim_end_matches([' ', '='])));
        } else if let Some((_, command)) = line.split_once("sockperf ") {
            flush(std::mem::take(&mut run), import)?;
            run.command = Some(command.to_string());
        } else if line.contains("PORT =") {
            let protocol = line.rsplit('#').next().unwrap_or_default().trim();
            run.protocol = if protocol == "TCP" { Some("tcp") } else { Some("udp") };
        } else if let Some(rest) = line.strip_prefix("sockperf: ") {
            figures(at, rest.trim(), &mut run)?;
        }
    }
    flush(run, import)
}

/// The word behind `key`. Older versions fill figures up with spaces.
fn after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line[line.find(key)? + key.len()..].trim_start();
    let end = rest.find([';', ',', ')', ' ']).unwrap_or(rest.len());
    Some(&rest[..end])
}

fn figures(at: usize, line: &str, run: &mut Run) -> Result<(), ImportFault> {
    let us = |text: &str| number(at, "a latency", text);
    if let Some(message) = line.strip_prefix("ERROR: ") {
        return fault(at, format!("sockperf says: {}", message.trim()));
    } else if line.starts_with("====> avg-") {
        let is_full = line.starts_with("====> avg-rtt");
        run.statistic = Some(if is_full { Statistic::RoundTrip } else { Statistic::HalfRoundTrip });
        // The second is the name of versions before 3.
        let mut names = ["avg-latency=", "avg-lat=", "avg-rtt="].into_iter();
        let mean = names.find_map(|name| after(line, name));
        run.mean_us = mean.map(us).transpose()?;
        run.stddev_us = after(line, "std-dev=").map(us).transpose()?;
    } else if let Some(dropped) = after(line, "# dropped messages = ") {
        run.lost = integer(at, "the count of dropped messages", dropped)?;
        for (name, key) in [
            ("duplicated_messages", "# duplicated messages = "),
            ("out_of_order_messages", "# out-of-order messages = "),
        ] {
            run.settings.push((name, after(line, key).unwrap_or_default().to_string()));
        }
    } else if let Some(count) = after(line, "Total ").filter(|_| line.contains("observations")) {
        run.count = Some(integer(at, "the count of observations", count)?);
    } else if let Some(rest) = line.strip_prefix("---> ") {
        let Some((name, value)) = rest.split_once('=') else {
            return fault(at, "a percentile without `=`");
        };
        let value = us(value)?;
        match name.trim() {
            "<MAX> observation" => run.max_us = Some(value),
            "<MIN> observation" => run.min_us = Some(value),
            other => {
                let percent = other.trim_start_matches("percentile");
                let percent = number(at, "a percentile", percent)?;
                if percent > 100.0 {
                    return fault(at, format!("percentile {percent} is above 100"));
                }
                run.percentiles.push((percent, value));
            }
        }
    } else if after(line, "Printing statistics for Server No:").is_some_and(|nth| nth != "0") {
        return fault(
            at,
            "figures of several servers, which would be mixed; run sockperf with one server, \
             without --srv-num",
        );
    } else if line.starts_with("Summary: Message Rate") {
        return fault(
            at,
            "sockperf throughput counts what was sent, not what arrived; supported are \
             ping-pong and under-load",
        );
    } else if let Some(rest) = line.strip_prefix("[Valid Duration] ") {
        run.settings.push(("measured", rest.to_string()));
    }
    Ok(())
}

/// The value of `-m 64`, `-m64`, `--msg-size=64` and the like in a command line.
fn option<'a>(command: &'a str, short: Option<&str>, long: &str) -> Option<&'a str> {
    let mut words = command.split_whitespace();
    while let Some(word) = words.next() {
        if word == long || Some(word) == short {
            return words.next();
        }
        if let Some(value) = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value);
        }
        let joined = short.and_then(|short| word.strip_prefix(short));
        if joined.is_some() {
            return joined;
        }
    }
    None
}

/// Whether messages are sent on a schedule, whatever has come back.
fn is_under_load(command: &str) -> bool {
    let mode = command.split_whitespace().next().unwrap_or_default();
    ["under-load", "ul", "playback", "pb"].contains(&mode)
}

/// Ends a run; one without figures is dropped.
fn flush(run: Run, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    let (Some(statistic), Some(mean_us)) = (run.statistic, run.mean_us) else { return Ok(()) };
    let command = run.command.unwrap_or_default();
    let size: Option<u32> =
        option(&command, Some("-m"), "--msg-size").and_then(|size| size.parse().ok());
    let is_loaded = is_under_load(&command);
    let (probe, case) = match size {
        Some(size_bytes) if is_loaded => {
            let size = RrSize { request_bytes: size_bytes, response_bytes: size_bytes };
            let rate: Option<f64> = option(&command, None, "--mps")
                .and_then(|rate| rate.parse().ok())
                .filter(|rate| (0.0..1e9).contains(rate));
            (ProbeKind::Rr, Case::Request { size, rate_per_s: rate })
        }
        Some(size_bytes) => (ProbeKind::Pingpong, Case::Message { size_bytes }),
        None if is_loaded => (ProbeKind::Rr, Case::Total),
        None => (ProbeKind::Pingpong, Case::Total),
    };
    if command.is_empty() {
        import.doubt(
            DoubtKind::Inferred,
            "mode taken for ping-pong: sockperf's output names neither mode nor message size; put \
             its command line above it",
        );
    } else {
        import.note("command", &format!("sockperf {command}"));
    }
    let mut doubts = vec![];
    if run.lost > 0 {
        doubts.push(Doubt::new(DoubtKind::Loss, format!("{} messages dropped", run.lost)));
    }
    let percentiles: Vec<PercentileValue> = run
        .percentiles
        .iter()
        .map(|(percent, us)| percentile(*percent, us * US, run.count))
        .collect();
    if let Some(thin) = percentiles.iter().rev().find(|known| known.value_ns.is_none()) {
        let detail =
            format!("{} samples do not reach p{}", run.count.unwrap_or(0), thin.percentile);
        doubts.push(Doubt::new(DoubtKind::TooFewSamples, detail));
    }
    let ns = |us: Option<f64>| us.map(|us| us * US);
    let protocol = run.protocol.unwrap_or("unknown");
    import.push(ImportedRun {
        stack: format!("sockperf-{protocol}"),
        probe,
        case,
        statistic,
        comparability: Comparability {
            protocol: run.protocol.map(str::to_string),
            ..Default::default()
        },
        settings: run.settings,
        data: RoundData::Latency(LatencyRound {
            count: run.count,
            lost: run.lost,
            mean_ns: Some(mean_us * US),
            min_ns: ns(run.min_us),
            max_ns: ns(run.max_us),
            stddev_ns: ns(run.stddev_us),
            percentiles: in_order(percentiles),
            ..Default::default()
        }),
        doubts,
    })
}
