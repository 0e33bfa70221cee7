//! Libraries that carry messages over TCP with threads of their own: gRPC and ZeroMQ, from Python.

use super::{
    Place, Seen, Started, Way, alike_by_halves, alike_mostly_in_memory, finish, need_python_with,
    source,
};
use crate::support::free_port;

/// A server of a program beside this file, then clients of several kinds of it.
fn run(way: Way, program: &str, module: (&str, &str), clients: &[&str]) -> Seen {
    let python = need_python_with(module.0, module.1);
    let port = free_port();
    let at = port.to_string();
    let mut command = way.server(&python);
    let server = Started::server(command.arg(source(program)).args(["server", &at]), port);
    let mut seen = Seen::new();
    for &client in clients {
        let mut command = way.client(&python);
        seen.add(finish(command.arg(source(program)).args([client, &at])));
    }
    server.end_by("TERM");
    seen
}

fn grpc(way: Way, clients: &[&str]) -> Seen {
    run(way, "grpc_echo.py", ("grpc", "python3-grpcio"), clients)
}

fn zmq(way: Way, clients: &[&str]) -> Seen {
    run(way, "zmq_echo.py", ("zmq", "python3-zmq"), clients)
}

#[test]
fn grpc_unary_and_streaming() {
    alike_by_halves(Place::SharedMemory, |way| grpc(way, &["unary", "streams", "many", "asyncio"]));
}

/// How much of it depends on how often an end sleeps: Python thinks longer than an end spins.
#[test]
fn grpc_is_served_from_shared_memory() {
    alike_mostly_in_memory(0.0, |way| grpc(way, &["long-unary", "long-stream"]));
}

#[test]
fn zmq_of_each_pattern() {
    alike_mostly_in_memory(0.0, |way| zmq(way, &["request", "pipeline", "publish", "dealers"]));
}

#[test]
fn zmq_with_one_end_accelerated() {
    alike_by_halves(Place::SharedMemory, |way| zmq(way, &["request", "pipeline"]));
}
