//! A stream that outlives the sessions on it: a socket, a virtual serial port or a serial line. Its
//! reading end can be taken away at any time, and neither end waits without limit.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, fcntl_getfl, fcntl_setfl, flock};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, isatty, tcgetattr, tcsetattr};

/// How long the other end may take nothing.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// The ends of a stream.
pub struct Stream {
    /// Until [`Stream::open`] is dropped.
    pub input: StreamInput,
    /// Fails when the other end takes nothing for a while.
    pub output: StreamOutput,
    /// Dropping it ends the input.
    pub open: PipeWriter,
}

impl Stream {
    /// The ends of `file`; a terminal becomes a line that changes no byte.
    ///
    /// # Errors
    /// Those of the system, and `ResourceBusy` for a device that another process uses in this way.
    pub fn of(file: impl Into<OwnedFd>) -> io::Result<Stream> {
        let file = File::from(file.into());
        if isatty(&file) {
            flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(
                |error| match error {
                    Errno::WOULDBLOCK => io::ErrorKind::ResourceBusy.into(),
                    other => io::Error::from(other),
                },
            )?;
            let mut settings = tcgetattr(&file)?;
            settings.make_raw();
            tcsetattr(&file, OptionalActions::Now, &settings)?;
        }
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        let (closed, open) = io::pipe()?;
        let output = StreamOutput { file: file.try_clone()? };
        Ok(Stream { input: StreamInput { file, closed }, output, open })
    }
}

/// The reading end.
#[derive(Debug)]
pub struct StreamInput {
    file: File,
    closed: PipeReader,
}

impl Read for StreamInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut polled = [
                PollFd::new(&self.closed, PollFlags::empty()),
                PollFd::new(&self.file, PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let [is_closed, events] = polled.map(|one| one.revents());
            if !is_closed.is_empty() {
                return Ok(0);
            }
            match self.file.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if events.intersects(PollFlags::HUP | PollFlags::ERR) {
                        return Ok(0);
                    }
                }
                other => return other,
            }
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub struct StreamOutput {
    file: File,
}

impl Write for StreamOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let limit = Timespec { tv_sec: WRITE_LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            let mut polled = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut polled, Some(&limit)) {
                Err(Errno::INTR) => continue,
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                other => other?,
            };
            if !polled[0].revents().contains(PollFlags::OUT) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether nobody has opened the other end of a port or line.
pub fn is_hung_up(file: &File) -> bool {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // What cannot be asked is not taken for open.
    poll(&mut polled, Some(&now)).is_err() || polled[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn a_stream_carries_bytes_until_it_is_taken_away() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let Stream { mut input, mut output, open } = Stream::of(near).unwrap();
        output.write_all(b"to").unwrap();
        far.write_all(b"from").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(far.read(&mut buffer).unwrap(), 2);
        assert_eq!(input.read(&mut buffer).unwrap(), 4);
        let reader = thread::spawn(move || input.read(&mut [0; 16]));
        drop(open);
        assert_eq!(reader.join().unwrap().unwrap(), 0);
        drop(far);
        assert!(output.write_all(b"gone").is_err());
    }
}
