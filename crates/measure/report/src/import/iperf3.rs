//! iperf3's JSON (`-J`): what the receivers counted, flow by flow.

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Case, Pattern, ProbeKind, SIZE_BYTES_MAX, Side};
use nm_model::result::{Flow, RoundData, Statistic, ThroughputRound};
use nm_model::stack::Comparability;
use serde_json::Value;

use super::builder::{ImportedRun, NUMBER_MAX, ResultBuilder};
use super::fault::ImportFault;

/// iperf3's text has rounded figures only.
pub(super) fn refuse_text(_: &str, _: &mut ResultBuilder) -> Result<(), ImportFault> {
    Err(ImportFault::RoundedText)
}

pub(super) fn read(text: &str, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    import.tool("iperf3");
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let value = value.map_err(|error| ImportFault::NotJson {
            line: error.line().max(1),
            message: error.to_string(),
        })?;
        run(&value, import)?;
    }
    Ok(())
}

fn wrong<T>(message: impl Into<String>) -> Result<T, ImportFault> {
    Err(ImportFault::Json { message: message.into() })
}

/// A number of the JSON that a measurement can have.
fn number(value: &Value, name: &str) -> Result<f64, ImportFault> {
    let found = value.get(name).and_then(Value::as_f64);
    match found.filter(|n| (0.0..=NUMBER_MAX).contains(n)) {
        Some(number) => Ok(number),
        None => match value.get(name) {
            None => wrong(format!("iperf3's JSON has no `{name}` where it should")),
            Some(other) => {
                let shown: String = other.to_string().chars().take(40).collect();
                wrong(format!("`{name}` is {shown}, which is not a valid figure"))
            }
        },
    }
}

fn text(value: &Value, name: &str) -> String {
    match value.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.chars().take(200).collect(),
        Some(other) => other.to_string().chars().take(200).collect(),
    }
}

/// The parts of one run's JSON.
struct Parts<'a> {
    start: &'a Value,
    test: &'a Value,
    end: &'a Value,
    streams: &'a [Value],
}

fn parts(json: &Value) -> Result<Parts<'_>, ImportFault> {
    if let Some(error) = json.get("error") {
        let message: String = error.as_str().unwrap_or("an error").chars().take(200).collect();
        return wrong(format!("iperf3 says: {message}"));
    }
    let (Some(start), Some(end)) = (json.get("start"), json.get("end")) else {
        return wrong("JSON without `start` and `end`; expected is the output of iperf3 -J");
    };
    if start.get("accepted_connection").is_some() {
        return wrong(
            "the output of iperf3's server, which lacks what the client counted; read the client's",
        );
    }
    let Some(test) = start.get("test_start") else {
        return wrong("iperf3's JSON has no `test_start`; the test did not begin");
    };
    let streams = end.get("streams").and_then(Value::as_array);
    match streams.filter(|streams| !streams.is_empty()) {
        Some(streams) => Ok(Parts { start, test, end, streams }),
        None => wrong("iperf3's JSON has no streams at its end; the test was cut short"),
    }
}

fn notes(start: &Value, import: &mut ResultBuilder) {
    let version = text(start, "version");
    import.tool(match version.is_empty() {
        true => "iperf3".to_string(),
        false => version.replace("iperf ", "iperf3 "),
    });
    import.note("uname", &text(start, "system_info"));
    if let Some(timestamp) = start.get("timestamp") {
        import.note("date", &text(timestamp, "time"));
    }
}

fn run(json: &Value, import: &mut ResultBuilder) -> Result<(), ImportFault> {
    let Parts { start, test, end, streams } = parts(json)?;
    notes(start, import);
    let protocol = text(test, "protocol").to_lowercase();
    let is_reverse = test.get("reverse").and_then(Value::as_i64) == Some(1);
    let (flows, lost) = flows_of(streams, is_reverse)?;
    let pattern = pattern_of(&flows)?;
    let write = number(test, "blksize")?;
    if !(1.0..=f64::from(SIZE_BYTES_MAX)).contains(&write) {
        return wrong(format!("`blksize` is {write}, must be 1 to {SIZE_BYTES_MAX}"));
    }
    let mut doubts = vec![];
    if lost > 0.0 {
        doubts.push(Doubt::new(DoubtKind::Loss, format!("{lost} packets lost")));
    }
    let cpu = |name: &str| {
        let cpu = end.get("cpu_utilization_percent")?;
        number(cpu, name).ok().map(|percent| percent / 100.0)
    };
    let congestion = text(end, "sender_tcp_congestion");
    import.push(ImportedRun {
        stack: format!("iperf3-{protocol}"),
        probe: ProbeKind::Stream,
        case: Case::Flows { pattern, write_bytes: write as u32 },
        statistic: Statistic::Throughput,
        comparability: Comparability {
            protocol: Some(protocol),
            write_bytes: Some(text(test, "blksize")),
            congestion: (!congestion.is_empty()).then(|| congestion.clone()),
            ..Default::default()
        },
        settings: vec![
            ("congestion", congestion),
            ("sndbuf_bytes", text(start, "sndbuf_actual")),
            ("rcvbuf_bytes", text(start, "rcvbuf_actual")),
            ("mss_bytes", text(start, "tcp_mss_default")),
            ("seconds", text(test, "duration")),
            ("omit_s", text(test, "omit")),
            ("reverse", if is_reverse { "yes".to_string() } else { String::new() }),
        ],
        data: RoundData::Throughput(ThroughputRound {
            total_gbps: flows.iter().map(|flow| flow.gbps).sum(),
            flows,
            client_cpu: cpu("host_total"),
            server_cpu: cpu("remote_total"),
        }),
        doubts,
    })
}

/// Every flow, and the packets lost of all.
fn flows_of(streams: &[Value], is_reverse: bool) -> Result<(Vec<Flow>, f64), ImportFault> {
    let mut flows = vec![];
    let mut lost = 0.0;
    for (index, stream) in streams.iter().enumerate() {
        flows.push(match stream.get("udp") {
            Some(udp) => udp_flow(index, udp, is_reverse, &mut lost)?,
            None => tcp_flow(index, stream)?,
        });
    }
    Ok((flows, lost))
}

fn pattern_of(flows: &[Flow]) -> Result<Pattern, ImportFault> {
    let bidirectional = flows.iter().any(|flow| flow.sender != flows[0].sender);
    let count = u32::try_from(flows.len()).unwrap_or(u32::MAX);
    let pattern = Pattern { flows: count, bidirectional };
    // Reading its text back checks the bounds: too many flows, or an odd number both ways.
    match pattern.to_string().parse() {
        Ok(pattern) => Ok(pattern),
        Err(_) => {
            wrong(format!("{pattern} is not a supported pattern; at most 256 flows are supported"))
        }
    }
}

/// What the receiver of a TCP stream counted. `sender` in the JSON means that the client sent.
fn tcp_flow(index: usize, stream: &Value) -> Result<Flow, ImportFault> {
    let (Some(sent), Some(received)) = (stream.get("sender"), stream.get("receiver")) else {
        return wrong("a stream of iperf3's JSON has no `sender` and `receiver`");
    };
    let is_client = received.get("sender").and_then(Value::as_bool).unwrap_or(true);
    flow(index, is_client, number(received, "bytes")?, received, sent)
}

/// What arrived of a UDP stream: the JSON has the bytes that were sent, and the packets lost.
fn udp_flow(
    index: usize,
    udp: &Value,
    is_reverse: bool,
    lost_sum: &mut f64,
) -> Result<Flow, ImportFault> {
    let (packets, lost) = (number(udp, "packets")?, number(udp, "lost_packets")?);
    if lost > packets {
        return wrong(format!("{lost} packets lost of {packets}"));
    }
    *lost_sum += lost;
    let arrived = if packets > 0.0 { (packets - lost) / packets } else { 0.0 };
    let is_client = udp.get("sender").and_then(Value::as_bool).unwrap_or(!is_reverse);
    flow(index, is_client, number(udp, "bytes")? * arrived, udp, udp)
}

fn flow(
    index: usize,
    is_client: bool,
    bytes: f64,
    window: &Value,
    sent: &Value,
) -> Result<Flow, ImportFault> {
    let (start, end) = (number(window, "start")?, number(window, "end")?);
    let seconds = end - start;
    if seconds.is_nan() || seconds <= 0.0 {
        return wrong(format!("a stream of iperf3's JSON lasts {seconds} s"));
    }
    Ok(Flow {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        pair: None,
        sender: if is_client { Side::Client } else { Side::Server },
        bytes: bytes as u64,
        seconds,
        gbps: bytes * 8.0 / seconds / 1e9,
        retransmits: sent.get("retransmits").and_then(Value::as_u64),
    })
}
