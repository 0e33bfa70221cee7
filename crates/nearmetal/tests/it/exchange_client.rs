//! A client in another language, written from `docs/wire.md` alone, trades on a network of the
//! built program while its gateway is killed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nm_exchange::network::{Durability, Role};
use serde_json::Value;

use crate::exchange_net::Net;
use crate::support::{BINARY, finish};

/// Requests of the client: as many for each of its four streams.
const REQUESTS: u64 = 2_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The digest of the format as `docs/wire.md` has it.
fn digest() -> String {
    let document = fs::read_to_string(root().join("docs/wire.md")).unwrap();
    let line = document.lines().find_map(|line| line.strip_prefix("- Digest of the format: `0x"));
    line.expect("the document has the digest").trim_end_matches('`').to_string()
}

fn client(net: &Net, keys: &str) -> Command {
    // One that gets no answer would wait for ever.
    let mut command = Command::new("timeout");
    command.args(["60", "python3"]);
    command.arg(root().join("crates/exchange/wire/tests/client/client.py"));
    command.args([&digest(), &REQUESTS.to_string(), keys]);
    command.args(net.network.nodes(Role::Gateway).iter().map(|node| node.address.to_string()));
    command
}

/// Each request was executed once, and each stream has each of its events once.
fn assert_once(result: &Value) {
    let answers = result["answers"].as_array().unwrap();
    for instrument in 0..2 {
        let of_it = answers.iter().filter(|it| it[0] == instrument);
        let mut numbers: Vec<u64> = of_it.map(|it| it[1].as_u64().unwrap()).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "executed once each");
    }
    assert_eq!((answers.len() as u64, &result["refused"]), (REQUESTS, &Value::from(0)));
    let streams = result["streams"].as_array().unwrap();
    let sum = |name: &str| streams.iter().map(|it| it[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("accepted"), REQUESTS, "{streams:?}");
    // Both sides of a trade are notified, and all of the smaller side has traded.
    assert!(sum("traded") > REQUESTS / 2 && sum("traded").is_multiple_of(2), "{streams:?}");
    for stream in streams {
        assert_eq!(stream["events"], stream["last"], "numbered without a gap");
        let of_orders = stream["accepted"].as_u64().unwrap() + stream["traded"].as_u64().unwrap();
        assert_eq!(stream["events"], of_orders, "and nothing else happened");
    }
}

#[test]
fn a_python_client_survives_the_kill_of_its_gateway_and_gets_its_events_once() {
    let mut net = Net::new("2-1-2-2", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    let mut child = client(&net, "-").stdout(Stdio::piped()).spawn().expect("python3");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "half");
    net.kill(Role::Gateway.node(0));
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
    let result: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(result["links"], 2, "it went on at the other gateway: {result}");
    assert_once(&result);
    net.stop();
}

#[test]
fn a_python_client_proves_who_it_is() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    let (secret, keys) = (net.path().join("secret"), net.path().join("keys"));
    let new = finish(Command::new(BINARY).args(["exchange", "secret", "new"]).arg(&secret));
    assert_eq!(new.code, 0, "{}", new.stderr);
    let mut derive = Command::new(BINARY);
    derive.args(["exchange", "secret", "derive", "--secret"]).arg(&secret);
    derive.args(["--sessions", "1-2", "--out"]).arg(&keys);
    let derived = finish(&mut derive);
    assert_eq!(derived.code, 0, "{}", derived.stderr);
    net.network.secret = Some(secret);
    fs::write(net.path().join("network.toml"), net.network.to_toml().unwrap()).unwrap();
    net.start_all(|_, command| command);
    let run = finish(&mut client(&net, keys.to_str().unwrap()));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_once(&serde_json::from_str(run.stdout.lines().last().unwrap()).unwrap());
    net.stop();
}
