//! An agent in a guest that others made serves one controller after another on a port. That is
//! a virtual serial port of QEMU, or a serial line.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nm_model::{Failure, FailureKind};

use crate::agent::serve::serve_lasting;
use crate::agent::stream::{Stream, is_hung_up};

/// Time between two looks whether somebody has opened the other end.
const STEP: Duration = Duration::from_millis(50);

/// Serves on the device `path` without end. A controller that has been silent for `silence_max` has
/// gone. `notice` is given why a session has ended that did not end well.
///
/// # Errors
/// If the device cannot be opened, or is taken away.
pub fn serve_on_port(
    path: &Path,
    silence_max: Duration,
    mut notice: impl FnMut(&Failure),
) -> Result<(), Failure> {
    loop {
        let port = File::options().read(true).write(true).open(path);
        let port = port.map_err(|error| failure(path, &error))?;
        if is_hung_up(&port) {
            thread::sleep(STEP);
            continue;
        }
        let stream = Stream::of(port).map_err(|error| failure(path, &error))?;
        let Stream { input, output, open } = stream;
        if let Err(failure) = serve_lasting(input, output, silence_max) {
            notice(&failure);
        }
        drop(open);
        // A port that is at its end at once must not keep a core busy.
        thread::sleep(STEP);
    }
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::ResourceBusy => {
            Failure::new(FailureKind::Conflict, format!("another agent serves on {shown}"))
        }
        io::ErrorKind::PermissionDenied => {
            let message = format!("no permission to open the port {shown}: {error}");
            Failure::new(FailureKind::Permission, message)
        }
        _ => {
            let message = format!("cannot open the port {shown}: {error}");
            Failure::new(FailureKind::NotAvailable, message)
                .hint("`ls /dev/virtio-ports /dev/ttyS*` shows what the guest has")
        }
    }
}
