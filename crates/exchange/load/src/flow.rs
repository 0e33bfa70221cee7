//! Recorded flows: requests with their times in a file, to be replayed; and the hash of a stream.
//!
//! ```text
//! "nmflow01", then records:
//!  0 at_ns u64      since the beginning of the flow, rising
//!  8 session u32   12 instrument u32   16 size_bytes u32
//! 20 flags u8, 0                    21 command_bytes u8   22 command
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use nm_book::codec;
use nm_codec::{DecodeError, Put, Reader, fnv1a};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::text_file;
use thiserror::Error;

use crate::settings::OrderRequest;

/// First bytes of a file, with the version.
const FORMAT: &[u8; 8] = b"nmflow01";

/// No flag of a request has a meaning.
const NO_FLAGS: u8 = 0;

/// Hash of a stream of requests: sessions, instruments, commands and sizes in order, without times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHash(u64);

impl Default for StreamHash {
    fn default() -> StreamHash {
        StreamHash(fnv1a(&[]))
    }
}

impl StreamHash {
    /// Adds the next request. `scratch` is overwritten.
    pub fn add(&mut self, request: &OrderRequest, scratch: &mut Vec<u8>) {
        scratch.clear();
        write_request(request, scratch);
        self.0 = self.0.rotate_left(5) ^ fnv1a(scratch);
    }

    /// The hash so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

fn write_request(request: &OrderRequest, out: &mut Vec<u8>) {
    out.put_u32(request.session);
    out.put_u32(request.instrument);
    out.put_u32(request.size_bytes);
    out.put_u8(NO_FLAGS);
    // The length of the command is known only after it is written.
    out.put_u8(0);
    let start = out.len();
    codec::write_command(&request.command, out);
    let command_bytes = out.len() - start;
    debug_assert!(command_bytes <= usize::from(u8::MAX), "a command of {command_bytes} bytes");
    out[start - 1] = command_bytes as u8;
}

fn read_request(from: &mut Reader<'_>) -> Result<OrderRequest, DecodeError> {
    let (session, instrument) = (from.u32("session")?, from.u32("instrument")?);
    let size_bytes = from.u32("size_bytes")?;
    // Older files have a flag there, which has no meaning any more.
    from.bool("flags")?;
    let command_bytes = from.u8("command_bytes")?;
    let mut body = Reader::new(from.bytes("command", usize::from(command_bytes))?);
    let command = codec::read_command(&mut body)?;
    body.finish("command")?;
    Ok(OrderRequest { session, instrument, command, size_bytes })
}

/// Writes a flow to a file.
#[derive(Debug)]
pub struct Recorder {
    file: BufWriter<File>,
    bytes: Vec<u8>,
}

impl Recorder {
    /// Creates the file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> Result<Recorder, Failure> {
        let made = File::create(path).and_then(|file| {
            let mut file = BufWriter::with_capacity(1 << 20, file);
            file.write_all(FORMAT).map(|()| file)
        });
        let file = made.map_err(|error| failure(path, "cannot be written", &error.to_string()))?;
        Ok(Recorder { file, bytes: vec![] })
    }

    /// Appends a request with its time, ns since the beginning of the flow.
    ///
    /// # Errors
    /// I/O errors.
    pub fn add(&mut self, at_ns: u64, request: &OrderRequest) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.put_u64(at_ns);
        write_request(request, &mut self.bytes);
        self.file.write_all(&self.bytes)
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Why bytes are not a recorded flow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FlowError {
    /// The format or its version is another one.
    #[error("it does not begin as one of this version")]
    Format,
    /// A request cannot be decoded.
    #[error("what is at byte {at} is no request: {source}")]
    Request {
        /// Offset of the request.
        at: usize,
        /// The field.
        source: DecodeError,
    },
    /// Times fall.
    #[error("the request at byte {at} is earlier than the one before it")]
    Order {
        /// Offset of the request.
        at: usize,
    },
    /// There is no request.
    #[error("it has no request")]
    Empty,
}

/// Bytes of a recorded flow.
pub const FLOW_BYTES_MAX: u64 = 4 << 30;

/// A recorded flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flow {
    /// The requests with their times, ns since the beginning.
    pub requests: Vec<(u64, OrderRequest)>,
}

impl Flow {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no recorded flow.
    pub fn read(path: &Path) -> Result<Flow, Failure> {
        let bytes = text_file::read_bytes(path, FLOW_BYTES_MAX)
            .map_err(|error| failure(path, "cannot be read", &error.to_string()))?;
        Flow::parse(&bytes).map_err(|why| failure(path, "is no recorded flow", &why.to_string()))
    }

    /// The instruments of its requests.
    pub fn instruments(&self) -> BTreeSet<u32> {
        self.requests.iter().map(|(_, request)| request.instrument).collect()
    }

    /// Requests per second, on average from its beginning to its last request.
    pub fn rate_per_s(&self) -> f64 {
        let seconds = self.requests.last().map_or(0, |(at_ns, _)| *at_ns) as f64 / 1e9;
        (self.requests.len() as f64 / seconds.max(1e-3)).clamp(1.0, 1e7)
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// If they are not a recorded flow.
    pub fn parse(bytes: &[u8]) -> Result<Flow, FlowError> {
        let rest = bytes.strip_prefix(FORMAT).ok_or(FlowError::Format)?;
        let (mut fields, mut requests, mut last_ns) = (Reader::new(rest), vec![], 0);
        while !fields.is_empty() {
            let at = bytes.len() - fields.rest().len();
            let read = fields.u64("at_ns").and_then(|ns| Ok((ns, read_request(&mut fields)?)));
            let (at_ns, request) = read.map_err(|source| FlowError::Request { at, source })?;
            if at_ns < last_ns {
                return Err(FlowError::Order { at });
            }
            last_ns = at_ns;
            requests.push((at_ns, request));
        }
        if requests.is_empty() {
            return Err(FlowError::Empty);
        }
        Ok(Flow { requests })
    }

    /// Highest session and highest instrument.
    pub fn extent(&self) -> (u32, u32) {
        let highest = |(session, instrument): (u32, u32), (_, request): &(u64, OrderRequest)| {
            (session.max(request.session), instrument.max(request.instrument))
        };
        self.requests.iter().fold((0, 0), highest)
    }
}

fn failure(path: &Path, what: &str, why: &str) -> Failure {
    let message = format!("the recorded flow {} {what}: {why}", path.display());
    Failure::new(FailureKind::System, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::OrderGenerator;
    use crate::settings::Settings;
    use proptest::prelude::*;

    #[test]
    fn a_flow_survives_a_round_trip_through_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.flow");
        let mut generator = OrderGenerator::new(&Settings::default());
        let requests: Vec<(u64, OrderRequest)> =
            (0..3000).map(|at| (at * 7, generator.next_request())).collect();
        let mut recorder = Recorder::create(&path).unwrap();
        requests.iter().for_each(|(at_ns, request)| recorder.add(*at_ns, request).unwrap());
        recorder.finish().unwrap();
        let flow = Flow::read(&path).unwrap();
        assert_eq!(flow.requests, requests);
        let (session, instrument) = flow.extent();
        assert!(session <= 256 && instrument < 64 && session > 200);
        let bytes = std::fs::read(&path).unwrap();
        let error = Flow::parse(&bytes[..bytes.len() - 1]).unwrap_err();
        assert!(error.to_string().contains("is no request"), "{error}");
        assert_eq!(Flow::parse(&bytes[1..]), Err(FlowError::Format));
        assert_eq!(Flow::parse(FORMAT), Err(FlowError::Empty));
        // 3000 requests in 3000 times 7 ns: more than the highest rate.
        assert_eq!((flow.rate_per_s(), Flow::default().rate_per_s()), (3e6, 1.0));
        assert!(Flow::read(&folder.path().join("b")).unwrap_err().message.contains("cannot be"));
    }

    #[test]
    fn a_file_that_is_too_long_or_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flow");
        // Without blocks: it takes no room on the disk.
        File::create(&path).unwrap().set_len(FLOW_BYTES_MAX + 1).unwrap();
        for (path, why) in [(path.as_path(), "more than"), (Path::new("/dev/zero"), "a device")] {
            let refused = Flow::read(path).unwrap_err().message;
            assert!(refused.contains(why), "{refused}");
        }
        let page = include_str!("../../../../docs/limits.md");
        assert!(page.contains(&format!("\n| recorded flow | {FLOW_BYTES_MAX} | ")));
    }

    #[test]
    fn the_hash_depends_on_every_request_and_their_order() {
        let mut generator = OrderGenerator::new(&Settings::default());
        let requests: Vec<OrderRequest> = (0..50).map(|_| generator.next_request()).collect();
        let hash = |requests: &[OrderRequest]| {
            let (mut hash, mut scratch) = (StreamHash::default(), vec![]);
            requests.iter().for_each(|request| hash.add(request, &mut scratch));
            hash.value()
        };
        let expected = hash(&requests);
        assert_eq!(expected, hash(&requests));
        for at in 1..50 {
            let mut other = requests.clone();
            other.swap(at - 1, at);
            assert_ne!(hash(&other), expected, "swapped at {at}");
            other.swap(at - 1, at);
            other[at].size_bytes += 1;
            assert_ne!(hash(&other), expected, "changed at {at}");
        }
    }

    proptest! {
        #[test]
        fn a_request_survives_a_round_trip(
            seed in any::<u64>(), size_bytes in any::<u32>(),
        ) {
            let mut generator = OrderGenerator::new(&Settings { seed, ..Settings::default() });
            for _ in 0..20 {
                let request =
                    OrderRequest { size_bytes, ..generator.next_request() };
                let mut bytes = vec![];
                write_request(&request, &mut bytes);
                let mut reader = Reader::new(&bytes);
                assert_eq!(read_request(&mut reader), Ok(request));
                assert!(reader.is_empty());
                let is_cut = |end| read_request(&mut Reader::new(&bytes[..end])).is_err();
                assert!((0..bytes.len()).all(is_cut));
            }
        }

        #[test]
        fn any_bytes_are_a_flow_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut file = FORMAT.to_vec();
            file.extend_from_slice(&bytes);
            let _ = Flow::parse(&file);
        }
    }
}
