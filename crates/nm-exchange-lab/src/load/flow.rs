//! Recorded flows: requests with their times in a file, to be replayed; and the hash of a stream.
//!
//! ```text
//! "nmflow01", then records:
//!  0 at_ns u64      since the beginning of the flow, rising
//!  8 session u32   12 instrument u32   16 size_bytes u32
//! 20 flags u8 (1: public)           21 command_bytes u8   22 command
//! ```

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use nm_book::codec;
use nm_codec::fnv1a;
use nm_codec::{Fields, Meaningless};
use nm_model::agent::{Failure, FailureKind};

use super::OrderRequest;

/// First bytes of a file, with the version.
const FORMAT: &[u8; 8] = b"nmflow01";

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
    out.extend_from_slice(&request.session.to_le_bytes());
    out.extend_from_slice(&request.instrument.to_le_bytes());
    out.extend_from_slice(&request.size_bytes.to_le_bytes());
    out.extend_from_slice(&[u8::from(request.is_public), 0]);
    let start = out.len();
    codec::write_command(&request.command, out);
    out[start - 1] = (out.len() - start) as u8;
}

fn read_request(fields: &mut Fields<'_>) -> Result<OrderRequest, Meaningless> {
    let (session, instrument, size_bytes) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (flags, length) = (fields.u8()?, fields.u8()?);
    let mut body = nm_codec::Reader::new(fields.bytes(usize::from(length))?);
    let command = codec::read_command(&mut body).map_err(|_| Meaningless)?;
    if !body.is_empty() || flags > 1 {
        return Err(Meaningless);
    }
    Ok(OrderRequest { session, instrument, command, size_bytes, is_public: flags == 1 })
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
    /// What the system says.
    pub fn add(&mut self, at_ns: u64, request: &OrderRequest) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend_from_slice(&at_ns.to_le_bytes());
        write_request(request, &mut self.bytes);
        self.file.write_all(&self.bytes)
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }
}

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
        let bytes = std::fs::read(path)
            .map_err(|error| failure(path, "cannot be read", &error.to_string()))?;
        Flow::parse(&bytes).map_err(|why| failure(path, "is no recorded flow", &why))
    }

    /// Requests per second, on average from its beginning to its last request.
    pub fn rate_per_s(&self) -> f64 {
        let seconds = self.requests.last().map_or(0, |(at_ns, _)| *at_ns) as f64 / 1e9;
        (self.requests.len() as f64 / seconds.max(1e-3)).clamp(1.0, 1e7)
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(bytes: &[u8]) -> Result<Flow, String> {
        let rest = bytes.strip_prefix(FORMAT).ok_or("it does not begin as one of this version")?;
        let (mut fields, mut requests, mut last_ns) = (Fields(rest), vec![], 0);
        while !fields.0.is_empty() {
            let at = bytes.len() - fields.0.len();
            let read = fields.u64().and_then(|at_ns| Ok((at_ns, read_request(&mut fields)?)));
            let (at_ns, request) =
                read.map_err(|_| format!("what is at byte {at} is no request"))?;
            if at_ns < last_ns {
                return Err(format!("the request at byte {at} is earlier than the one before it"));
            }
            last_ns = at_ns;
            requests.push((at_ns, request));
        }
        if requests.is_empty() {
            return Err("it has no request".to_string());
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
    use crate::load::Settings;
    use crate::load::mix::OrderGenerator;
    use proptest::prelude::*;

    #[test]
    fn a_flow_survives_a_round_trip_through_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.flow");
        let mut maker = OrderGenerator::new(&Settings::default());
        let requests: Vec<(u64, OrderRequest)> =
            (0..3000).map(|at| (at * 7, maker.next_request())).collect();
        let mut recorder = Recorder::create(&path).unwrap();
        requests.iter().for_each(|(at_ns, request)| recorder.add(*at_ns, request).unwrap());
        recorder.finish().unwrap();
        let flow = Flow::read(&path).unwrap();
        assert_eq!(flow.requests, requests);
        let (session, instrument) = flow.extent();
        assert!(session <= 256 && instrument < 64 && session > 200);
        let bytes = std::fs::read(&path).unwrap();
        let error = Flow::parse(&bytes[..bytes.len() - 1]).unwrap_err();
        assert!(error.contains("is no request"), "{error}");
        assert!(Flow::parse(&bytes[1..]).is_err());
        assert!(Flow::parse(FORMAT).unwrap_err().contains("no request"));
        // 3000 requests in 3000 times 7 ns: more than the highest rate.
        assert_eq!((flow.rate_per_s(), Flow::default().rate_per_s()), (3e6, 1.0));
        assert!(Flow::read(&folder.path().join("b")).unwrap_err().message.contains("cannot be"));
    }

    #[test]
    fn the_hash_depends_on_every_request_and_their_order() {
        let mut maker = OrderGenerator::new(&Settings::default());
        let requests: Vec<OrderRequest> = (0..50).map(|_| maker.next_request()).collect();
        let hash = |requests: &[OrderRequest]| {
            let (mut hash, mut scratch) = (StreamHash::default(), vec![]);
            requests.iter().for_each(|request| hash.add(request, &mut scratch));
            hash.value()
        };
        let whole = hash(&requests);
        assert_eq!(whole, hash(&requests));
        for at in 1..50 {
            let mut other = requests.clone();
            other.swap(at - 1, at);
            assert_ne!(hash(&other), whole, "swapped at {at}");
            other.swap(at - 1, at);
            other[at].size_bytes += 1;
            assert_ne!(hash(&other), whole, "changed at {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_flow_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut file = FORMAT.to_vec();
            file.extend_from_slice(&bytes);
            let _ = Flow::parse(&file);
        }
    }
}
