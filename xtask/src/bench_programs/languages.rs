//! Run-time systems and libraries with their own ideas of sockets. The programs are those of the
//! tests; their roles `rate` print a figure.

use anyhow::{Context, Result, bail};

use crate::bench_programs::case::Case;
use crate::bench_programs::launch::{Launcher, Outcome, Service, free_port, require, source};

/// A server and a client of one program: the words in front of all, the role of the server and of
/// the client, and what follows their port.
struct Pair {
    name: &'static str,
    unit: &'static str,
    program: &'static [&'static str],
    server: &'static str,
    client: &'static str,
    last: [&'static str; 2],
    package: &'static str,
}

const TRIPS: &str = "round trips/s";

const PYTHON: &[&str] = &["/usr/bin/python3", "echo.py"];
const NODE: &[&str] = &["node", "echo.js"];
const ERLANG: &[&str] = &["escript", "echo.escript"];
const GRPC: &[&str] = &["/usr/bin/python3", "grpc_echo.py"];
const RUBY: &[&str] = &["ruby", "echo.rb"];
const ZMQ: &[&str] = &["/usr/bin/python3", "zmq_echo.py"];

const PAIRS: &[Pair] = &[
    pair("Python, threads", TRIPS, PYTHON, ("thread-server", "rate-client"), "python3"),
    pair("Python, epoll server", TRIPS, PYTHON, ("epoll-server", "rate-client"), "python3"),
    pair(
        "Python, asyncio, 20 connections",
        TRIPS,
        PYTHON,
        ("asyncio-server", "asyncio-rate-client"),
        "python3",
    ),
    pair("Node.js", TRIPS, NODE, ("server", "rate"), "nodejs").with_last(["", "1"]),
    pair("Node.js, 200 connections", TRIPS, NODE, ("server", "rate"), "nodejs")
        .with_last(["", "200"]),
    pair("Erlang, gen_tcp", TRIPS, ERLANG, ("server", "rate"), "erlang-base")
        .with_last(["inet", "inet"]),
    pair("Ruby, threads", TRIPS, RUBY, ("server", "rate"), "ruby").with_last(["", "1"]),
    pair("Ruby, 8 threads", TRIPS, RUBY, ("server", "rate"), "ruby").with_last(["", "8"]),
    pair("gRPC in Python, unary", "calls/s", GRPC, ("server", "rate"), "python3-grpcio"),
    pair(
        "gRPC in Python, a stream",
        "messages/s",
        GRPC,
        ("server", "stream-rate"),
        "python3-grpcio",
    ),
    pair("ZeroMQ in Python, requests", "requests/s", ZMQ, ("server", "rate"), "python3-zmq"),
    pair("ZeroMQ in Python, one way", "messages/s", ZMQ, ("server", "push-rate"), "python3-zmq"),
];

const fn pair(
    name: &'static str,
    unit: &'static str,
    program: &'static [&'static str],
    roles: (&'static str, &'static str),
    package: &'static str,
) -> Pair {
    Pair { name, unit, program, server: roles.0, client: roles.1, last: ["", ""], package }
}

impl Pair {
    const fn with_last(self, last: [&'static str; 2]) -> Pair {
        Pair { last, ..self }
    }

    fn words(&self, role: &str, port: &str, last: &str) -> Vec<String> {
        let mut words = vec![self.program[0].to_string(), source(self.program[1])];
        words.extend([role, port, last].map(str::to_string));
        words.retain(|word| !word.is_empty());
        words
    }
}

pub fn cases() -> Vec<Case> {
    let mut list: Vec<Case> = PAIRS
        .iter()
        .map(|pair| Case::new(pair.name, pair.unit, move |launcher| measure(launcher, pair)))
        .collect();
    list.push(Case::new("Java, server with a selector", TRIPS, java));
    list
}

/// The figure in the last line of a client's output.
fn last_number(text: &str) -> Option<f64> {
    text.lines().last()?.trim().parse().ok()
}

fn measure(launcher: &Launcher<'_>, pair: &Pair) -> Result<Outcome> {
    require(&[(pair.program[0], pair.package)])?;
    let port = free_port()?;
    let at = port.to_string();
    let run = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let server = run(&pair.words(pair.server, &at, pair.last[0]));
    let client = run(&pair.words(pair.client, &at, pair.last[1]));
    let words: Vec<&str> = server.lines().collect();
    let _service = Service::start(&mut launcher.server(&words), port, "TERM")?;
    let words: Vec<&str> = client.lines().collect();
    launcher.measure(&mut launcher.client(&words), last_number)
}

fn java(launcher: &Launcher<'_>) -> Result<Outcome> {
    let package = "openjdk-17-jdk-headless";
    require(&[("javac", package), ("java", package)])?;
    let classes = launcher.folder.join("Echo.class");
    let folder = classes.parent().context("a folder")?.display().to_string();
    if !classes.exists() {
        let mut command = std::process::Command::new("javac");
        let status = command.args(["-d", &folder, &source("Echo.java")]).status()?;
        if !status.success() {
            bail!("javac ended with {status}");
        }
    }
    let port = free_port()?;
    let at = port.to_string();
    let words = |role| ["java", "-XX:+UseSerialGC", "-Xmx128m", "-cp", &folder, "Echo", role, &at];
    let _service = Service::start(&mut launcher.server(&words("server")), port, "TERM")?;
    launcher.measure(&mut launcher.client(&words("rate")), last_number)
}
