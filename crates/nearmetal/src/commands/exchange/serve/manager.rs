//! What the service manager hears of `exchange serve`: sd_notify(3).

use std::env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as SocketName, UnixDatagram};
use std::path::PathBuf;
use std::time::Duration;

use nm_run::serve::ServeEvent;
use nm_sys::clock::Deadline;

/// How often it hears that the supervisor goes on.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The service manager, if it has started this process.
pub struct Manager {
    socket: Option<(UnixDatagram, SocketName)>,
    next: Deadline,
}

impl Manager {
    /// The one that the environment names.
    pub fn of_environment() -> Manager {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let address = address(name)?;
            Some((UnixDatagram::unbound().ok()?, address))
        });
        Manager { socket, next: Deadline::after(Duration::ZERO) }
    }

    /// Tells it what it waits for.
    pub fn hear(&mut self, event: &ServeEvent) {
        match event {
            ServeEvent::AllReady => self.tell("READY=1"),
            ServeEvent::Stopping => self.tell("STOPPING=1"),
            ServeEvent::Alive if self.next.passed() => {
                self.next = Deadline::after(ALIVE_INTERVAL);
                self.tell("WATCHDOG=1");
            }
            _ => {}
        }
    }

    /// One that does not read is no reason to end.
    fn tell(&self, what: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

fn address(name: OsString) -> Option<SocketName> {
    match name.to_str().and_then(|name| name.strip_prefix('@')) {
        Some(name) => SocketName::from_abstract_name(name).ok(),
        None => SocketName::from_pathname(PathBuf::from(name)).ok(),
    }
}
