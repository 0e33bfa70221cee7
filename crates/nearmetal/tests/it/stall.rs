//! Stalls: server or client is stopped for 20 ms again and again while requests are due. An open
//! loop must show it, a closed loop hides it and must say that it can.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Running, free_port, server};

/// Stops and continues a process until `is_over`: a tenth of the time it stands still.
fn stall(pid: u32, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        for (signal, ms) in [("-STOP", 20), ("-CONT", 180)] {
            // The client may have ended by itself.
            let mut kill = Command::new("kill");
            let _ = kill.args([signal, &pid.to_string()]).stderr(Stdio::null()).status();
            sleep(Duration::from_millis(ms));
        }
    }
}

/// p99 in ms of the statistic, with stalls of 20 ms of what `victim` names.
fn run_with_stalls(words: &[&str], victim: Victim, statistic: &str) -> (f64, Value) {
    let port = free_port();
    let server = server("rr", port);
    let port_text = port.to_string();
    let mut args = vec!["rr", "127.0.0.1", "--seconds", "1.5", "--format", "json"];
    // On a busy machine either may stand still for longer than the stalls.
    args.extend(["--port", port_text.as_str(), "--deadline", "10000"]);
    args.extend(words);
    let client = Running::start(&args);
    let pid = match victim {
        Victim::Server => server.pid(),
        Victim::Client => client.pid(),
    };
    let is_over = AtomicBool::new(false);
    let run = scope(|scope| {
        scope.spawn(|| stall(pid, &is_over));
        let run = client.finish();
        is_over.store(true, Ordering::Relaxed);
        run
    });
    assert_eq!(run.code, 0, "{}", run.stderr);
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    let series = result["series"].as_array().unwrap();
    let one = series.iter().find(|s| s["key"]["statistic"] == statistic).unwrap();
    let percentiles = one["rounds"][0]["data"]["percentiles"].as_array().unwrap();
    let p99 = percentiles.iter().find(|p| p["percentile"] == 99.0).unwrap();
    (p99["value_ns"].as_f64().unwrap() / 1e6, one.clone())
}

#[derive(Clone, Copy)]
enum Victim {
    Server,
    Client,
}

const INTENDED: &str = "round-trip-from-intended-send";
const SERVICE: &str = "round-trip";

#[test]
fn an_open_loop_shows_stalls_of_the_server() {
    let (p99_ms, _) = run_with_stalls(&["--rate", "1000"], Victim::Server, INTENDED);
    assert!(p99_ms > 10.0, "{p99_ms} ms");
}

#[test]
fn an_open_loop_shows_stalls_of_the_client_and_doubts_its_delay() {
    let (p99_ms, series) = run_with_stalls(&["--rate", "1000"], Victim::Client, INTENDED);
    assert!(p99_ms > 10.0, "{p99_ms} ms");
    let doubts = series["doubts"].as_array().unwrap();
    assert!(doubts.iter().any(|doubt| doubt["kind"] == "behind"), "{doubts:?}");
}

#[test]
fn a_closed_loop_hides_stalls_with_a_doubt() {
    for victim in [Victim::Server, Victim::Client] {
        let is_hidden = (0..10).any(|_| {
            let (p99_ms, series) = run_with_stalls(&["--closed"], victim, SERVICE);
            let doubts = series["doubts"].as_array().unwrap();
            assert!(doubts.iter().any(|doubt| doubt["kind"] == "closed-loop"), "{doubts:?}");
            // A stall lasts 20 ms, and is fewer than 1 % of so many requests, unless others keep
            // the CPUs as long.
            p99_ms < 20.0
        });
        assert!(is_hidden, "p99 of the closed loop is never below the length of a stall");
    }
}
