//! Erlang's run-time system, which defines `sigaction` itself and waits in threads of its own.

use super::{Place, Seen, Started, alike, alike_by_halves, finish, need, source};
use crate::support::free_port;

/// An echo server and clients of it, by the driver of `gen_tcp` or by the sockets beneath it.
fn echo(way: super::Way, backend: &str) -> Seen {
    let escript = need("escript", "erlang-base");
    let port = free_port();
    let words = [&port.to_string(), backend].map(str::to_string);
    let mut command = way.server(&escript);
    command.arg(source("echo.escript")).arg("server").args(&words);
    let server = Started::server(&mut command, port);
    let mut seen = Seen::new();
    for client in ["passive", "active", "packets", "many"] {
        let mut command = way.client(&escript);
        command.arg(source("echo.escript")).arg(client).args(&words);
        seen.add(finish(&mut command));
    }
    server.end_by("TERM");
    seen
}

#[test]
fn erlang_gen_tcp() {
    alike_by_halves(Place::SharedMemory, |way| echo(way, "inet"));
}

/// Its registrations for readiness are one-shot, made anew for each wait and waited for by a thread
/// that sleeps: they rely on the kernel, and the report says so.
#[test]
fn erlang_gen_tcp_over_its_socket_module() {
    let reason = "its receivers waited in the kernel";
    alike(Place::Kernel(reason), |way| echo(way, "socket"));
}
