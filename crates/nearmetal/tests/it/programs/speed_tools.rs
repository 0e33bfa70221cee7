//! Tools that measure: sockperf, iperf3 and nuttcp count what they sent and what arrived.

use serde_json::Value;

use super::{
    Place, Seen, Started, Way, alike, alike_by_halves, alike_mostly_in_memory, finish, need,
    number_after,
};
use crate::support::free_port;

/// A second; sockperf's own greatest rate of ping-pongs ends its run with an error where they are
/// faster.
const RUN: [&str; 3] = ["-t", "1", "--mps=4000000"];

/// sockperf's own count of what was sent and answered, and of what went wrong.
fn sockperf(way: Way, options: &[&str]) -> Seen {
    let program = need("sockperf", "sockperf");
    let port = free_port();
    let address = ["--tcp", "-i", "127.0.0.1", "-p", &port.to_string()].map(str::to_string);
    let _server = Started::server(way.server(&program).arg("server").args(&address), port);
    let ran = finish(way.client(&program).arg("ping-pong").args(&address).args(RUN).args(options));
    let total = ran.stdout.lines().find(|line| line.contains("[Total Run]"));
    let total = total.unwrap_or_else(|| panic!("no total: {}", ran.stdout));
    let sent = number_after(total, "SentMessages=");
    let received = number_after(total, "ReceivedMessages=");
    assert!(received > 100, "hardly a message: {total}");
    // The message under way at the end of the time is not waited for.
    assert!(sent - received <= 1, "messages are missing: {total}");
    let faults = ran.stdout.lines().find(|line| line.contains("# dropped messages"));
    let faults = faults.unwrap_or_else(|| panic!("no faults: {}", ran.stdout)).to_string();
    assert!(!ran.stdout.contains("ERROR"), "{}", ran.stdout);
    let mut seen = Seen::new();
    seen.add_as(ran, faults);
    seen
}

#[test]
fn sockperf_blocking() {
    alike_by_halves(Place::SharedMemory, |way| sockperf(way, &["-m", "64"]));
}

#[test]
fn sockperf_non_blocking_with_large_messages() {
    alike(Place::SharedMemory, |way| sockperf(way, &["-m", "60000", "--nonblocked"]));
}

/// The next message comes on another socket than the last one, so that both ends must look at all
/// sockets to find out that memory is faster.
#[test]
fn sockperf_over_several_sockets_by_each_muxer() {
    let program = need("sockperf", "sockperf");
    for muxer in ["select", "poll", "epoll"] {
        alike_mostly_in_memory(0.1, |way| {
            let folder = tempfile::tempdir().unwrap();
            let feed = folder.path().join("feed");
            let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
            let lines: Vec<String> =
                ports.iter().map(|port| format!("T:127.0.0.1:{port}\n")).collect();
            std::fs::write(&feed, lines.concat()).unwrap();
            let feed = ["-f", feed.to_str().unwrap(), "-F", muxer].map(str::to_string);
            let _server = Started::server(way.server(&program).arg("server").args(&feed), ports[3]);
            let ran = finish(way.client(&program).arg("ping-pong").args(&feed).args(RUN));
            let faults = ran.stdout.lines().find(|line| line.contains("# dropped messages"));
            let faults = faults.unwrap_or_else(|| panic!("{}", ran.stdout)).to_string();
            assert!(number_after(&ran.stdout, "ReceivedMessages=") > 100, "{}", ran.stdout);
            let mut seen = Seen::new();
            seen.add_as(ran, faults);
            seen
        });
    }
}

#[test]
fn iperf3_in_both_directions_and_parallel() {
    let program = need("iperf3", "iperf3");
    alike(Place::SharedMemory, |way| {
        let mut seen = Seen::new();
        for options in [&["-P", "1"][..], &["-R"], &["-P", "4"], &["--bidir"]] {
            let port = free_port();
            let at = port.to_string();
            let mut server = way.server(&program);
            let _server =
                Started::server(server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &at]), port);
            let ran = finish(
                way.client(&program)
                    .args(["-c", "127.0.0.1", "-p", &at, "-n", "96M", "-J"])
                    .args(options),
            );
            let json: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert!(json.get("error").is_none(), "{options:?}: {}", json["error"]);
            let bytes = |name: &str| json["end"][name]["bytes"].as_f64().unwrap();
            let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
            // The receiver stops when the sender has sent all, with what the buffers of each
            // connection hold still under way.
            let streams = json["end"]["streams"].as_array().unwrap().len();
            let under_way = streams as f64 * f64::from(16 << 20);
            let is_complete = received <= sent && received + under_way >= sent;
            assert!(is_complete, "{sent} sent, {received} received by {streams} streams");
            assert!(received > 0.0, "nothing was received");
            // In both directions at once one of the two has all its bytes first and ends the other.
            let other_way = json["end"]["sum_sent_bidir_reverse"]["bytes"].as_f64();
            let all = sent + other_way.unwrap_or(0.0);
            assert!(all > f64::from(80 << 20), "{options:?}: only {all} bytes sent");
            seen.add_as(ran, format!("{options:?}: {streams} streams"));
        }
        seen
    });
}

#[test]
fn nuttcp_in_both_directions() {
    let program = need("nuttcp", "nuttcp");
    alike(Place::SharedMemory, |way| {
        let mut seen = Seen::new();
        for direction in ["-t", "-r"] {
            let (control, data) = (free_port(), free_port());
            let ports = [format!("-P{control}"), format!("-p{data}")];
            let mut server = way.server(&program);
            let _server = Started::server(server.args(["-S", "--nofork"]).args(&ports), control);
            let words = [direction, "-n1000", "-l64k", "-fparse", "127.0.0.1"];
            let ran = finish(way.client(&program).args(&ports).args(words));
            let megabytes =
                ran.stdout.split_whitespace().find(|word| word.starts_with("megabytes="));
            let megabytes = megabytes.unwrap_or_else(|| panic!("{ran:?}")).to_string();
            seen.add_as(ran, format!("{direction} {megabytes}"));
        }
        seen
    });
}
