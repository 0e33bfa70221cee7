//! Run-time systems with their own ideas of sockets: Python, Java and Node.js. Each runs a small
//! program of ours (beside this file) as server and as client.

use std::path::Path;
use std::process::Command;

use super::{Place, Seen, Started, alike, alike_by_halves, finish, need, python, source};
use crate::support::free_port;

#[test]
fn python_asyncio() {
    alike_by_halves(Place::SharedMemory, |way| {
        python(way, "asyncio-server", &["asyncio-client", "blocking-client"])
    });
}

#[test]
fn python_threads() {
    alike(Place::SharedMemory, |way| {
        python(way, "thread-server", &["thread-client", "asyncio-client", "file-client"])
    });
}

#[test]
fn python_server_that_forks() {
    alike(Place::SharedMemory, |way| {
        python(way, "fork-server", &["blocking-client", "process-client"])
    });
}

#[test]
fn python_selectors_of_each_kind() {
    alike(Place::SharedMemory, |way| {
        let mut seen = Seen::new();
        for server in ["select-server", "poll-server", "epoll-server"] {
            let one = python(way, server, &["blocking-client", "asyncio-client"]);
            seen.words.extend(one.words);
            seen.reports.extend(one.reports);
        }
        seen
    });
}

#[test]
fn python_processes_that_hand_sockets_on() {
    alike(Place::SharedMemory, |way| {
        python(way, "pool-server", &["process-client", "blocking-client"])
    });
}

#[test]
fn python_http() {
    // Most connections carry one request. The ends of the last one, of three, meet in time or not.
    let place = Place::Kernel("it was closed before the handshake");
    alike(place, |way| python(way, "http-server", &["http-client"]));
}

/// Both ends in one process, one thread.
#[test]
fn python_talks_to_itself() {
    let python = need("python3", "python3");
    alike(Place::SharedMemory, |way| {
        let mut seen = Seen::new();
        let mut command = way.client(&python);
        seen.add(finish(command.arg(source("echo.py")).args(["itself", "0"])));
        seen
    });
}

#[test]
fn java_nio_and_sockets() {
    let package = "openjdk-17-jdk-headless";
    let (javac, java) = (need("javac", package), need("java", package));
    let folder = tempfile::tempdir().unwrap();
    let compile = |folder: &Path| {
        let mut command = Command::new(&javac);
        finish(command.arg("-d").arg(folder).arg(source("Echo.java")));
    };
    compile(folder.path());
    let prepare = |command: &mut Command| {
        let options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp"];
        command.args(options).arg(folder.path()).arg("Echo");
    };
    alike_by_halves(Place::SharedMemory, |way| {
        let mut seen = Seen::new();
        let port = free_port();
        let at = port.to_string();
        let mut command = way.server(&java);
        prepare(&mut command);
        let _server = Started::server(command.args(["server", &at]), port);
        let mut command = way.client(&java);
        prepare(&mut command);
        seen.add(finish(command.args(["client", &at])));
        seen
    });
}

#[test]
fn node_net() {
    let node = need("node", "nodejs");
    alike_by_halves(Place::SharedMemory, |way| {
        let mut seen = Seen::new();
        let port = free_port();
        let at = port.to_string();
        let mut command = way.server(&node);
        let server = Started::server(command.arg(source("echo.js")).args(["server", &at]), port);
        let mut command = way.client(&node);
        seen.add(finish(command.arg(source("echo.js")).args(["client", &at])));
        server.end_by("TERM");
        seen
    });
}
