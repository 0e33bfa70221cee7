//! Server and client by hand, as between two machines.

use serde_json::Value;

use crate::support::{Running, free_port, run, server, setting};

fn client(probe: &str, port: u16, words: &[&str]) -> crate::support::Run {
    let port = port.to_string();
    let mut args = vec![probe];
    args.extend(words);
    args.extend(["--port", &port]);
    run(&args)
}

#[test]
fn pingpong_serves_one_client_after_the_other() {
    let port = free_port();
    let _server = server("pingpong", port);
    for stack in ["tcp", "udp", "tcp-epoll", "udp-poll", "shm", "shm-spin"] {
        let words = [
            stack,
            "127.0.0.1",
            "--sizes",
            "1,64",
            "--maxms",
            "20",
            "--miniter",
            "20",
            "--warmupms",
            "1",
            "--timeout",
            "10000",
            "--format",
            "json",
        ];
        let run = client("pingpong", port, &words);
        assert_eq!(run.code, 0, "{stack}: {}", run.stderr);
        let result: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(result["series"].as_array().unwrap().len(), 2, "{stack}");
        assert!(result["facts"].as_array().unwrap().len() == 2, "facts of both ends");
    }
}

#[test]
fn sfnt_columns_are_that_tools() {
    let port = free_port();
    let _server = server("pingpong", port);
    let words = [
        "tcp",
        "127.0.0.1",
        "--sizes",
        "1,64",
        "--maxms",
        "20",
        "--miniter",
        "200",
        "--warmupms",
        "1",
        "--timeout",
        "10000",
        "--spin",
        "--percentile",
        "90",
        "--sfnt",
        "--affinity",
        "1;0",
    ];
    let both = client("pingpong", port, &[&words[..], &["--format", "json"]].concat());
    assert_eq!(both.code, 2, "{}", both.stdout);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
    let run = client("pingpong", port, &words);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let mut rows = run.stdout.lines().filter(|line| line.starts_with(['#', '\t']));
    let header = rows.find(|line| line.contains("mean")).unwrap();
    assert_eq!(header, "#\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer");
    for (row, size) in rows.zip(["1", "64"]) {
        let fields: Vec<&str> = row.split('\t').collect();
        assert_eq!((fields.len(), fields[0], fields[1]), (9, "", size));
        let numbers: Vec<u64> = fields[1..].iter().map(|f| f.parse().unwrap()).collect();
        let (min, median, max) = (numbers[2], numbers[3], numbers[4]);
        assert!(0 < min && min <= median && median <= max, "{row}");
    }
}

#[test]
fn stream_counts_at_the_receivers() {
    let port = free_port();
    let _server = server("stream", port);
    let words = [
        "127.0.0.1",
        "--pattern",
        "2-bi-2",
        "--seconds",
        "0.2",
        "--omit",
        "50",
        "--format",
        "json",
    ];
    let run = client("stream", port, &words);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    let round = &result["series"][0]["rounds"][0]["data"];
    let flows = round["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 2);
    let senders: Vec<&str> = flows.iter().map(|f| f["sender"].as_str().unwrap()).collect();
    assert_eq!(senders, ["client", "server"]);
    let sum: f64 = flows.iter().map(|f| f["gbps"].as_f64().unwrap()).sum();
    assert!((sum - round["total_gbps"].as_f64().unwrap()).abs() < 1e-6);
    let series = &result["series"][0];
    for name in ["write size", "congestion control"] {
        assert!(setting(series, name).is_some(), "{name} in {series}");
    }
}

#[test]
fn rr_open_and_closed() {
    let port = free_port();
    let _server = server("rr", port);
    let open = ["127.0.0.1", "--rate", "500", "--seconds", "0.3", "--format", "json"];
    let run = client("rr", port, &open);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    let statistics: Vec<&str> = result["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["key"]["statistic"].as_str().unwrap())
        .collect();
    assert!(statistics.contains(&"round-trip-from-intended-send"), "{statistics:?}");
    assert!(statistics.contains(&"round-trip"), "{statistics:?}");
    let closed = ["127.0.0.1", "--closed", "--seconds", "0.2", "--deadline", "10000"];
    let run = client("rr", port, &closed);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("closed loop"), "{}", run.stdout);
}

#[test]
fn client_under_a_wrapper_keeps_its_cpus() {
    let port = free_port();
    let _server = server("pingpong", port);
    let text = port.to_string();
    let mut command = std::process::Command::new("taskset");
    command.args(["-c", "0", crate::support::BINARY, "pingpong", "udp", "127.0.0.1", "--port"]);
    command.args([&text, "--sizes", "8", "--maxms", "20", "--miniter", "20", "--format", "json"]);
    command.args(["--timeout", "10000"]);
    let run = crate::support::finish(command.stdin(std::process::Stdio::null()));
    assert_eq!(run.code, 0, "{}", run.stderr);
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    let placements = result["series"][0]["rounds"][0]["placements"].as_array().unwrap();
    let pinger = placements.iter().find(|p| p["side"] == "client").unwrap();
    assert_eq!(pinger["last_cpu"], 0, "the wrapper's CPUs are kept");
}

#[test]
fn cases_that_the_stack_cannot_carry_are_refused_before_anything_runs() {
    // Nobody listens: the refusal comes before any connection.
    for (words, why) in [
        (&["pingpong", "udp", "127.0.0.1", "--sizes", "70000"][..], "udp have at most 32768 bytes"),
        (&["pingpong", "udp", "127.0.0.1", "--sizes", "64,40000"], "--sizes: 40000 B: messages"),
        (&["pingpong", "mcast", "127.0.0.1", "--sizes", "32769"], "at most 32768 bytes"),
        (&["pingpong", "tcp", "127.0.0.1", "--sizes", "16777217"], "16777216"),
        (&["rr", "127.0.0.1", "--protocol", "udp", "--sizes", "1,40000"], "at most 32768 bytes"),
    ] {
        let refused = run(words);
        assert_eq!(refused.code, 2, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(why), "{words:?}: {}", refused.stderr);
        assert!(!refused.stderr.contains("Ctrl-C"), "it began: {}", refused.stderr);
    }
}

#[test]
fn missing_server_is_reported_in_one_sentence() {
    let port = free_port();
    let run = client("pingpong", port, &["tcp", "127.0.0.1"]);
    assert_eq!(run.code, 4, "{}", run.stderr);
    let lines = run.errors();
    assert_eq!(lines.len(), 1, "{}", run.stderr);
    assert!(lines[0].contains("127.0.0.1") && lines[0].contains("nearmetal"), "{}", lines[0]);
}

#[test]
fn a_taken_port_is_a_conflict() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let run = run(&["pingpong", "server", "--bind", "127.0.0.1", "--port", &port]);
    assert_eq!(run.code, 5, "{}", run.stderr);
    assert!(run.stderr.contains(&port), "{}", run.stderr);
}

#[test]
fn a_peer_of_another_version_or_kind_is_named() {
    for (greeting, word) in [
        ("{\"answer\":\"hello\",\"protocol\":999,\"version\":\"9.9.9\",\"pid\":1}\n", "9.9.9"),
        ("SSH-2.0-OpenSSH_9.2\n", "nearmetal"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let peer = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting.as_bytes()).unwrap();
            let _ = stream.read(&mut [0; 64]);
        });
        let run = client("pingpong", port, &["tcp", "127.0.0.1", "--sizes", "1"]);
        peer.join().unwrap();
        assert_ne!(run.code, 0);
        assert_eq!(run.errors().len(), 1, "{}", run.stderr);
        assert!(run.stderr.contains(word), "{}", run.stderr);
    }
}

#[test]
fn killed_server_is_reported_in_one_sentence() {
    let port = free_port();
    let mut server = server("pingpong", port);
    let port_text = port.to_string();
    let client = Running::start(&[
        "pingpong",
        "udp",
        "127.0.0.1",
        "--port",
        &port_text,
        "--sizes",
        "8",
        "--maxms",
        "30000",
        "--maxiter",
        "100000000",
    ]);
    std::thread::sleep(std::time::Duration::from_millis(700));
    server.0.kill().unwrap();
    let run = client.finish();
    assert_eq!(run.code, 4, "{}{}", run.stdout, run.stderr);
    assert_eq!(run.errors().len(), 1, "{}", run.stderr);
}
