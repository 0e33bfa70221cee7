//! Programs that start other programs while a connection of theirs is open.

use super::{alike_in_memory_beside, alike_mostly_in_memory, python};

/// A latency tool that prints facts of the system between its connect and its measuring loop.
#[test]
fn system_between_connect_and_the_measuring_loop() {
    let run = |way, client| python(way, "thread-server", &[client]);
    alike_in_memory_beside(0.999, |way| run(way, "system-client"), |way| run(way, "loop-client"));
}

/// The other ways to start a program: popen, fork and exec, posix_spawn, a daemon that forks twice.
#[test]
fn children_of_each_kind_inherit_the_connection() {
    alike_mostly_in_memory(0.99, |way| python(way, "thread-server", &["children-client"]));
}

/// A server that runs a program for each request, as CGI does; its child inherits all connections.
#[test]
fn server_that_starts_a_program_for_each_request() {
    alike_mostly_in_memory(0.9, |way| python(way, "starting-server", &["some-clients"]));
}
