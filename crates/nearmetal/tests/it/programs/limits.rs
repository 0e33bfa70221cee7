//! Limits of the process: what the accelerator needs itself must not be taken from the program.

use std::path::Path;
use std::process::Command;

use super::{Place, Seen, Started, Way, alike, finish, need, source};
use crate::support::free_port;

/// `echo.py` with these words, started by a shell that lowers its limit of descriptors to 1024: the
/// soft one (`-S -n`) or both (`-n`).
fn limited(mut shell: Command, limit: &str, words: &[&str]) -> Command {
    let script = format!("ulimit {limit} 1024 && exec \"$0\" \"$@\"");
    shell.arg("-c").arg(script).arg(need("python3", "python3")).arg(source("echo.py")).args(words);
    shell
}

/// 400 clients that are connected at the same time, of one process with the same limit.
fn four_hundred(way: Way, server: &str, limit: &str) -> Seen {
    let shell = Path::new("/bin/sh");
    let port = free_port();
    let at = port.to_string();
    let server = Started::server(&mut limited(way.server(shell), limit, &[server, &at]), port);
    let mut seen = Seen::new();
    seen.add(finish(&mut limited(way.client(shell), limit, &["many-client", &at])));
    server.end_by("TERM");
    seen
}

#[test]
fn four_hundred_clients_at_a_limit_of_1024_descriptors() {
    for limit in ["-S -n", "-n"] {
        for server in ["epoll-server", "poll-server"] {
            alike(Place::SharedMemory, |way| four_hundred(way, server, limit));
        }
    }
}

/// select() can name no descriptor from 1024 on, whatever the limit.
#[test]
fn four_hundred_clients_of_a_server_that_selects() {
    alike(Place::SharedMemory, |way| four_hundred(way, "select-server", "-S -n"));
}
