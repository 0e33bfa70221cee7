//! sfnt-pingpong's output: `# ` lines about the client's machine, then one line a message size, ns.
//! Values are half round trips unless the header says `reporting: RTT`.
//!
//! `nearmetal pingpong --sfnt` writes the same form; its header begins with `made by` and names the
//! environment and the stack, and a figure may be `n/a`.

use nm_model::doubt::DoubtKind;
use nm_model::probe::ProbeKind;
use nm_model::result::{RoundData, Statistic};
use nm_model::stack::{Comparability, StackPair};

use super::builder::{ImportedRun, ResultBuilder, number};
use super::fault::{ImportFault, fault};
use super::sweep_row;
use crate::probes::pingpong::sfnt::MADE_BY;
use crate::units::NOT_AVAILABLE;

const COLUMNS: [&str; 8] = ["size", "mean", "min", "median", "max", "%ile", "stddev", "iter"];

/// What the header records.
struct Header {
    statistic: Statistic,
    percentile: f64,
    stack: String,
    comparability: Comparability,
    /// Whether nearmetal wrote it.
    is_own: bool,
}

impl Header {
    fn new() -> Header {
        Header {
            statistic: Statistic::HalfRoundTrip,
            percentile: 99.0,
            stack: "sfnt".to_string(),
            comparability: Comparability::default(),
            is_own: false,
        }
    }

    /// The stack as nearmetal names it.
    fn own_stack(&mut self, text: &str) {
        self.stack = text.to_string();
        let pair = text.parse::<StackPair>();
        self.comparability = pair.map(|pair| pair.comparability()).unwrap_or_default();
    }
}

/// The line of column names, counted from 1. Copied output has spaces where the tool put tabs.
pub(super) fn header_line(text: &str) -> Option<usize> {
    let is_header = |line: &str| {
        line.starts_with('#') && line[1..].split_whitespace().eq(COLUMNS.iter().copied())
    };
    text.lines().position(is_header).map(|at| at + 1)
}

pub(super) fn read(text: &str, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    import.tool("sfnt-pingpong");
    if header_line(text).is_none() {
        return fault(1, format!("no line of columns; expected `# {}`", COLUMNS.join(" ")));
    }
    let mut header = Header::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(fact) = line.strip_prefix('#') {
            // A second run begins with its command line, or with what made it.
            let fact = fact.trim();
            if fact.starts_with("cmdline:") || fact.starts_with(&format!("{MADE_BY}:")) {
                header = Header::new();
                import.environment(None);
            }
            about(at + 1, fact, &mut header, import)?;
        } else if line.starts_with(|c: char| c.is_whitespace() || c.is_ascii_digit())
            && !line.trim().is_empty()
        {
            row(at + 1, line, &header, import)?;
        }
    }
    Ok(())
}

/// `name: text` or `NAME=text`.
fn about(
    at: usize,
    fact: &str,
    header: &mut Header,
    import: &mut ResultBuilder,
) -> Result<(), ImportFault> {
    let Some(split) = fact.find([':', '=']) else { return Ok(()) };
    let (name, text) = (fact[..split].trim(), fact[split + 1..].trim());
    match name {
        MADE_BY => {
            header.is_own = true;
            import.tool(text);
        }
        "environment" if header.is_own => import.environment(Some(text)),
        "stack" if header.is_own => header.own_stack(text),
        "date" if header.is_own => import.started(text),
        "percentile" => {
            let percent = number(at, "the percentile", text)?;
            if percent > 100.0 {
                return fault(at, format!("percentile {percent} is above 100"));
            }
            header.percentile = percent;
        }
        "reporting" => {
            header.statistic = match text.trim_end_matches(", ns") {
                "RTT" => Statistic::RoundTrip,
                "1/2 RTT" | "RTT/2" => Statistic::HalfRoundTrip,
                other => {
                    return fault(at, format!("reporting is `{other}`, not `RTT` or `1/2 RTT`"));
                }
            };
        }
        "cmdline" => command(text, header),
        "version" => {
            import.tool(format!("sfnt-pingpong {}", text.trim_start_matches("sfnettest-")))
        }
        "LD_PRELOAD" if text.contains("onload") => {
            header.comparability.bypass = Some("onload".to_string());
            header.stack = format!("onload+{}", header.stack);
        }
        // Onload then spins inside the receive call, whatever the program asks for.
        "EF_POLL_USEC" if text.parse::<u64>().is_ok_and(|us| us > 0) => {
            header.comparability.mode = Some("spin".to_string());
            header.stack = header.stack.replace("-blocking", "-spin");
        }
        _ => {}
    }
    // Lines about one of several devices: `lspci: ADDRESS TEXT`, `INTERFACE: driver: NAME`.
    let name = match text.split_once(": ") {
        _ if name == "lspci" => format!("lspci.{}", text.split(' ').next().unwrap_or_default()),
        Some((fact @ ("driver" | "version" | "bus-info"), value)) => {
            import.note(&format!("{name}.{fact}"), value);
            return Ok(());
        }
        _ => name.to_string(),
    };
    import.note(&name, text);
    Ok(())
}

/// Options of the tool that take no value, or one behind `=`.
const FLAGS: [&str; 13] = [
    "connect",
    "forkboth",
    "help",
    "ipv4",
    "ipv6",
    "mcastloop",
    "more",
    "nodelay",
    "quiet",
    "rtt",
    "spin",
    "v6only",
    "verbose",
];

/// The options of a command line with their values, and the words that belong to none. The value
/// of an option is behind `=` or the next word.
fn options(text: &str) -> (Vec<(&str, Option<&str>)>, Vec<&str>) {
    let (mut options, mut others) = (vec![], vec![]);
    // The first word is the program.
    let mut words = text.split_whitespace().skip(1);
    while let Some(word) = words.next() {
        match word.strip_prefix("--").map(|option| (option, option.split_once('='))) {
            Some((_, Some((name, value)))) => options.push((name, Some(value))),
            Some((name, None)) if FLAGS.contains(&name) => options.push((name, None)),
            Some((name, None)) => options.push((name, words.next())),
            None => others.push(word),
        }
    }
    (options, others)
}

/// The last value of an option for the client and the server, which `;` separates.
fn ends<'a>(options: &[(&str, Option<&'a str>)], name: &str) -> Option<[&'a str; 2]> {
    let (_, value) = options.iter().rev().find(|(known, _)| *known == name)?;
    // A flag without a value is set.
    let value = value.unwrap_or("1");
    let (client, server) = value.split_once(';').unwrap_or((value, value));
    Some([client, server])
}

/// Protocol, way of waiting and statistic from the tool's own command line.
fn command(text: &str, header: &mut Header) {
    let (options, others) = options(text);
    let protocol = others.first().and_then(|word| match word.to_ascii_lowercase().as_str() {
        "tcp" => Some("tcp"),
        "udp" => Some("udp"),
        "unix_stream" => Some("unix"),
        "unix_datagram" => Some("unix-datagram"),
        "pipe" => Some("pipe"),
        _ => None,
    });
    let muxers = ends(&options, "muxer").unwrap_or(["none"; 2]);
    let spins = ends(&options, "spin").unwrap_or(["0"; 2]);
    let [client, server] = [0, 1].map(|end| match (muxers[end], spins[end] != "0") {
        ("none" | "", true) => "spin".to_string(),
        ("none" | "", false) => "blocking".to_string(),
        (muxer, true) => format!("{muxer}-spin"),
        (muxer, false) => muxer.to_string(),
    });
    if ends(&options, "rtt").is_some_and(|[value, _]| value != "0") {
        header.statistic = Statistic::RoundTrip;
    }
    if let Some(protocol) = protocol {
        let (stack, mode) = match client == server {
            true => (format!("{protocol}-{client}"), client),
            false => {
                (format!("{protocol}-{client}:{protocol}-{server}"), format!("{client}:{server}"))
            }
        };
        header.stack = stack;
        header.comparability.protocol = Some(protocol.to_string());
        header.comparability.mode = Some(mode);
        header.comparability.bypass = Some("none".to_string());
    }
}

fn row(
    at: usize,
    line: &str,
    header: &Header,
    import: &mut ResultBuilder,
) -> Result<(), ImportFault> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let Ok(cells) = <[&str; 8]>::try_from(&fields[..]) else {
        return fault(
            at,
            format!("{} fields instead of {}: {}", fields.len(), COLUMNS.len(), COLUMNS.join(" ")),
        );
    };
    let is_absent = |text: &str| header.is_own && text == NOT_AVAILABLE;
    let (case, round) = sweep_row::read(at, cells, header.percentile, is_absent)?;
    if header.percentile == 100.0 && !header.is_own {
        import.doubt(
            DoubtKind::Inferred,
            "sfnt-pingpong reads beyond its samples for percentile 100; max is right",
        );
    }
    import.push(ImportedRun {
        stack: header.stack.clone(),
        probe: ProbeKind::Pingpong,
        case,
        statistic: header.statistic,
        comparability: header.comparability.clone(),
        settings: vec![],
        data: RoundData::Latency(round),
        doubts: vec![],
    })
}
