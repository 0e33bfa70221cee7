//! The port of a guest whose agent runs already: a socket or a serial line of this machine.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nm_model::agent::Token;
use nm_model::attached::GuestPlace;
use nm_model::{Failure, FailureKind};
use nm_ssh::VERSION;
use nm_sys::socket;

use crate::agent::{Handle, Stream};

/// How long an agent that runs already may take until it answers: its guest may still boot.
const ATTACH_LIMIT: Duration = Duration::from_secs(60);

/// How long a TCP port may take to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The agent that runs in a guest.
pub fn attach(guest: &GuestPlace, interrupted: Option<Arc<AtomicBool>>) -> Result<Handle, Failure> {
    let name = format!("the agent of the guest at {guest}");
    let stream = open(guest).and_then(Stream::of).map_err(|error| cannot_open(guest, &error))?;
    let token = || nm_sys::random::bytes().map(Token);
    let mut agent = Handle::attach(&name, stream, token, ATTACH_LIMIT, interrupted)?;
    if agent.version() != VERSION {
        let message = format!("{name} is nearmetal {}, this is {VERSION}", agent.version());
        return Err(Failure::new(FailureKind::NotAvailable, message)
            .hint("install the same version in the guest"));
    }
    agent.keep_alive()?;
    Ok(agent)
}

fn open(guest: &GuestPlace) -> io::Result<OwnedFd> {
    match guest {
        GuestPlace::Socket(path) => UnixStream::connect(path).map(OwnedFd::from),
        GuestPlace::Tcp(place) => {
            socket::connect_to_any(place.as_str(), CONNECT_LIMIT).map(OwnedFd::from)
        }
        GuestPlace::Serial(path) => {
            if !std::fs::metadata(path)?.file_type().is_char_device() {
                let what = "it is no character device";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            File::options().read(true).write(true).open(path).map(OwnedFd::from)
        }
        // ssh starts its own.
        GuestPlace::Ssh(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn cannot_open(guest: &GuestPlace, error: &io::Error) -> Failure {
    let (kind, why) = match error.kind() {
        io::ErrorKind::ResourceBusy => {
            (FailureKind::Conflict, "another program uses the line".to_string())
        }
        io::ErrorKind::PermissionDenied => (FailureKind::Permission, error.to_string()),
        _ => (FailureKind::NotAvailable, error.to_string()),
    };
    let message = format!("the guest at {guest} cannot be reached: {why}");
    Failure::new(kind, message).hint("start the guest with that port, and check the path")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(place: &str) -> Failure {
        attach(&place.parse().unwrap(), None).err().unwrap()
    }

    #[test]
    fn a_place_without_a_guest_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let file = file.display().to_string();
        for (place, words) in [
            ("socket:/no/such.sock".to_string(), "/no/such.sock cannot be reached: No such file"),
            (format!("socket:{file}"), "cannot be reached: Connection refused"),
            (format!("serial:{file}"), "cannot be reached: it is no character device; start the"),
            ("serial:/dev/no-tty".to_string(), "serial:/dev/no-tty cannot be reached: No such"),
            ("socket:127.0.0.1:1".to_string(), "cannot be reached: Connection refused"),
        ] {
            let failure = failure(&place);
            assert!(failure.to_string().contains(words), "{place}: {failure}");
        }
    }
}
