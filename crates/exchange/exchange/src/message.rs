//! What the frames of each kind carry, and how it is encoded: in the body, or in fields of the
//! header. The messages of control are in [`crate::control`], requests in [`crate::cell`].

use nm_auth::{NONCE_BYTES, Nonce, Proof, Right};
use nm_book::codec;
use nm_book::order::{Event, InstrumentId, UserId};
use nm_codec::{DecodeError, Put, Reader};

use crate::network::{NodeId, Role};
use crate::wire::{self, FrameKind, Header};

/// A random number that whoever connects must answer with its [`Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge(pub Nonce);

impl Challenge {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        wire::write(&Header::new(FrameKind::Challenge), &self.0.0, 0, out);
    }

    /// The message of a body.
    ///
    /// # Errors
    /// If the body is not a nonce.
    pub fn decode(body: &[u8]) -> Result<Challenge, DecodeError> {
        let nonce =
            body.try_into().map_err(|_| DecodeError::invalid("nonce", "is not 32 bytes long"))?;
        Ok(Challenge(Nonce(nonce)))
    }
}

/// Answer to a [`Challenge`]: what comes with a [`Hello`] where the network has a secret.
#[derive(Debug, Clone, Copy)]
pub struct Evidence {
    /// Random number of the end that connects.
    pub nonce: Nonce,
    /// That it has the key of the right that it claims.
    pub proof: Proof,
}

/// First frame of a link: who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hello {
    /// A client, once for each of its sessions.
    Client(UserId),
    /// A peer that asks for the state of the network.
    Observer,
    /// A peer that also changes it.
    Operator,
    /// A node.
    Node {
        /// Which.
        node: NodeId,
        /// Number that identifies the start of its process.
        start: u64,
    },
}

/// Between a name and the evidence in the body of a hello.
const NAME_END: u8 = 0;

impl Hello {
    fn name(&self) -> String {
        match self {
            Hello::Client(_) => "client".to_string(),
            Hello::Observer => "observer".to_string(),
            Hello::Operator => "operator".to_string(),
            Hello::Node { node, .. } => node.to_string(),
        }
    }

    /// What it needs a key for.
    pub fn right(&self) -> Right {
        match self {
            Hello::Client(session) => Right::of_session(*session),
            Hello::Observer => Right::Observer,
            Hello::Operator => Right::Operator,
            Hello::Node { .. } => Right::Node,
        }
    }

    fn header(&self) -> Header {
        let header = Header::new(FrameKind::Hello);
        match *self {
            Hello::Client(session) => Header { session, ..header },
            Hello::Observer | Hello::Operator => header,
            Hello::Node { start, .. } => Header { client_seq: start, ..header },
        }
    }

    /// All of it, as the proofs of both ends cover it.
    pub fn claim(&self) -> Vec<u8> {
        let Header { session, client_seq, .. } = self.header();
        let mut claim = b"link ".to_vec();
        claim.put_u32(session);
        claim.put_u64(client_seq);
        claim.put(self.name().as_bytes());
        claim
    }

    /// Appends its frame.
    pub fn write(&self, evidence: Option<&Evidence>, out: &mut Vec<u8>) {
        let mut body = self.name().into_bytes();
        if let Some(Evidence { nonce, proof }) = evidence {
            body.put_u8(NAME_END);
            body.put(&nonce.0);
            body.put(&proof.0);
        }
        wire::write(&self.header(), &body, 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If the body names no peer, or something follows that is no evidence.
    pub fn decode(header: &Header, body: &[u8]) -> Result<(Hello, Option<Evidence>), DecodeError> {
        let invalid = || DecodeError::invalid("peer", "names neither a client nor a node");
        let name_end = body.iter().position(|byte| *byte == NAME_END);
        let (name, evidence) = match name_end {
            Some(end) => (&body[..end], Some(Evidence::decode(&body[end + 1..])?)),
            None => (body, None),
        };
        let hello = match std::str::from_utf8(name).map_err(|_| invalid())? {
            "client" => Hello::Client(header.session),
            "observer" => Hello::Observer,
            "operator" => Hello::Operator,
            node => {
                let (class, index) = node.split_once(' ').ok_or_else(invalid)?;
                let class: Role = class.parse().map_err(|_| invalid())?;
                let node = class.node(index.parse().map_err(|_| invalid())?);
                Hello::Node { node, start: header.client_seq }
            }
        };
        Ok((hello, evidence))
    }
}

impl Evidence {
    fn decode(bytes: &[u8]) -> Result<Evidence, DecodeError> {
        let invalid = || DecodeError::invalid("evidence", "is not a nonce and a proof");
        let (nonce, proof) = bytes.split_at_checked(NONCE_BYTES).ok_or_else(invalid)?;
        let nonce = Nonce(nonce.try_into().map_err(|_| invalid())?);
        let proof = Proof(proof.try_into().map_err(|_| invalid())?);
        Ok(Evidence { nonce, proof })
    }
}

/// Answer to a hello: the node is up. A client has none where the network has no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Number that identifies the start of its process; zero in an answer to a peer that is not a
    /// node.
    pub start: u64,
    /// The session of a client.
    pub session: UserId,
}

impl Welcome {
    /// What the proof of the end that accepted the link covers.
    pub fn claim(&self, hello: &Hello) -> Vec<u8> {
        let mut claim = hello.claim();
        claim.put_u64(self.start);
        claim
    }

    /// Appends its frame.
    pub fn write(&self, proof: Option<&Proof>, out: &mut Vec<u8>) {
        let (client_seq, session) = (self.start, self.session);
        let header = Header { client_seq, session, ..Header::new(FrameKind::Welcome) };
        wire::write(&header, proof.map_or(&[], |proof| &proof.0[..]), 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If the body is neither empty nor a proof.
    pub fn decode(header: &Header, body: &[u8]) -> Result<(Welcome, Option<Proof>), DecodeError> {
        let welcome = Welcome { start: header.client_seq, session: header.session };
        if body.is_empty() {
            return Ok((welcome, None));
        }
        let proof =
            body.try_into().map_err(|_| DecodeError::invalid("proof", "is not 32 bytes long"))?;
        Ok((welcome, Some(Proof(proof))))
    }
}

/// Why the sender closes the link: a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close(pub String);

/// Longest sentence of a [`Close`] that is sent or taken, bytes.
const CLOSE_REASON_BYTES_MAX: usize = 400;

impl Close {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let end = self.0.floor_char_boundary(CLOSE_REASON_BYTES_MAX);
        wire::write(&Header::new(FrameKind::Close), &self.0.as_bytes()[..end], 0, out);
    }

    /// The message of a body. What cannot be printed is replaced: the sentence goes into logs.
    pub fn decode(body: &[u8]) -> Close {
        let body = &body[..body.len().min(CLOSE_REASON_BYTES_MAX)];
        let text = String::from_utf8_lossy(body);
        Close(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}

/// A gateway is drained: it takes no more sessions, and clients shall take theirs to another one.
/// They connect to that one first. Then each session sends nothing new over this link until what
/// it has sent is answered, and goes on over the other one. As in HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoAway {
    /// The gateway.
    pub gateway: u16,
}

impl GoAway {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let header = Header { gateway: self.gateway, ..Header::new(FrameKind::GoAway) };
        wire::write(&header, &[], 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If there is a body.
    pub fn decode(header: &Header, body: &[u8]) -> Result<GoAway, DecodeError> {
        Reader::new(body).finish("body")?;
        Ok(GoAway { gateway: header.gateway })
    }
}

/// A mediator leads a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// The cell.
    pub cell: u16,
    /// In which term; zero where cells are not replicated.
    pub term: u32,
}

impl Leader {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let header = Header { cell: self.cell, ..Header::new(FrameKind::Leader) };
        wire::write(&header, &self.term.to_le_bytes(), 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If the body is not a term.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Leader, DecodeError> {
        let mut reader = Reader::new(body);
        let term = reader.u32("term")?;
        reader.finish("term")?;
        Ok(Leader { cell: header.cell, term })
    }
}

/// The leader of a cell asks its processor, which has come back, to say when it has executed the
/// cell's log up to an entry and has links to gateways. The processor answers with the same frame;
/// until then the leader sends the replies through another processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchUp {
    /// The cell.
    pub cell: u16,
    /// Index of the entry.
    pub index: u64,
}

impl CatchUp {
    /// Appends its frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let header = Header { cell: self.cell, ..Header::new(FrameKind::CatchUp) };
        wire::write(&header, &self.index.to_le_bytes(), 0, out);
    }

    /// The message of a header and a body.
    ///
    /// # Errors
    /// If the body is not an index.
    pub fn decode(header: &Header, body: &[u8]) -> Result<CatchUp, DecodeError> {
        let mut reader = Reader::new(body);
        let index = reader.u64("index")?;
        reader.finish("index")?;
        Ok(CatchUp { cell: header.cell, index })
    }
}

/// A session asks for its events on an instrument again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResendRequest {
    /// The session.
    pub session: UserId,
    /// Instrument.
    pub instrument: InstrumentId,
    /// Sequence number of the last event that it has.
    pub acknowledged: u64,
}

impl ResendRequest {
    /// Its header; it has no body. Gateway and cell are filled in on the way.
    pub fn header(&self) -> Header {
        Header {
            session: self.session,
            instrument: self.instrument,
            output_seq: self.acknowledged,
            ..Header::new(FrameKind::ResendRequest)
        }
    }

    /// The message of a header.
    pub fn decode(header: &Header) -> ResendRequest {
        let Header { session, instrument, output_seq: acknowledged, .. } = *header;
        ResendRequest { session, instrument, acknowledged }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone)]
pub struct Reply<'a> {
    /// Hash of all events of the request, also those of other sessions (FNV-1a of their codes).
    pub events_hash: u64,
    /// The session's own events.
    pub events: Events<'a>,
}

impl<'a> Reply<'a> {
    /// Replaces a body by that of a reply.
    pub fn encode<'e>(
        events_hash: u64,
        events: impl IntoIterator<Item = &'e Event>,
        body: &mut Vec<u8>,
    ) {
        body.clear();
        body.put_u64(events_hash);
        events.into_iter().for_each(|event| codec::write_event(event, body));
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it has no hash.
    pub fn decode(body: &'a [u8]) -> Result<Reply<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let events_hash = reader.u64("events_hash")?;
        Ok(Reply { events_hash, events: Events { reader } })
    }
}

/// Events in a body, in order; an error is the last item.
#[derive(Debug, Clone)]
pub struct Events<'a> {
    reader: Reader<'a>,
}

impl<'a> Events<'a> {
    /// Replaces a body by events.
    pub fn encode<'e>(events: impl IntoIterator<Item = &'e Event>, body: &mut Vec<u8>) {
        body.clear();
        events.into_iter().for_each(|event| codec::write_event(event, body));
    }

    /// Reads a body.
    pub fn decode(body: &'a [u8]) -> Events<'a> {
        Events { reader: Reader::new(body) }
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Event, DecodeError>;

    fn next(&mut self) -> Option<Result<Event, DecodeError>> {
        if self.reader.is_empty() {
            return None;
        }
        let event = codec::read_event(&mut self.reader);
        if event.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> (Header, Vec<u8>) {
        let mut bytes = vec![];
        write(&mut bytes);
        let frame = wire::read(&bytes).unwrap().unwrap();
        (frame.header, frame.body.to_vec())
    }

    fn hello() -> impl Strategy<Value = Hello> {
        let role = prop::sample::select(Role::ALL);
        prop_oneof![
            any::<u32>().prop_map(Hello::Client),
            Just(Hello::Observer),
            Just(Hello::Operator),
            (role, any::<u16>(), any::<u64>())
                .prop_map(|(class, index, start)| Hello::Node { node: class.node(index), start }),
        ]
    }

    fn event() -> impl Strategy<Value = Event> {
        let id_and_user = (any::<u64>(), any::<u32>());
        prop_oneof![
            id_and_user.prop_map(|(id, user)| Event::Triggered { id, user }),
            (any::<u64>(), any::<u32>(), any::<u64>())
                .prop_map(|(id, user, shown)| Event::Refreshed { id, user, shown }),
            Just(Event::Halted),
        ]
    }

    proptest! {
        #[test]
        fn links_are_made_with_messages_that_are_read_back(
            hello in hello(), start: u64, session: u32, nonce: [u8; 32], proof: [u8; 32],
            has_proof: bool,
        ) {
            let evidence = Evidence { nonce: Nonce(nonce), proof: Proof(proof) };
            let evidence = Some(evidence).filter(|_| has_proof);
            let (header, body) = written(|out| hello.write(evidence.as_ref(), out));
            prop_assert_eq!(header.kind, FrameKind::Hello);
            let (read, read_evidence) = Hello::decode(&header, &body).unwrap();
            prop_assert_eq!(read, hello);
            let bytes = |evidence: Evidence| (evidence.nonce.0, evidence.proof.0);
            prop_assert_eq!(read_evidence.map(bytes), evidence.map(bytes));
            if has_proof {
                prop_assert!(Hello::decode(&header, &body[..body.len() - 1]).is_err());
            }

            let welcome = Welcome { start, session };
            let proof = Some(Proof(proof)).filter(|_| has_proof);
            let (header, body) = written(|out| welcome.write(proof.as_ref(), out));
            prop_assert_eq!(header.kind, FrameKind::Welcome);
            let (read, read_proof) = Welcome::decode(&header, &body).unwrap();
            prop_assert_eq!((read, read_proof.map(|it| it.0)), (welcome, proof.map(|it| it.0)));

            let challenge = Challenge(Nonce(nonce));
            let (header, body) = written(|out| challenge.write(out));
            prop_assert_eq!(header.kind, FrameKind::Challenge);
            prop_assert_eq!(Challenge::decode(&body), Ok(challenge));
            let close = Close("not now".to_string());
            let (header, body) = written(|out| close.write(out));
            prop_assert_eq!(header.kind, FrameKind::Close);
            prop_assert_eq!(Close::decode(&body), close);
        }

        #[test]
        fn a_gateway_that_leaves_is_read_back(gateway: u16, body in "[a-z]{1,9}") {
            let leaves = GoAway { gateway };
            let (header, none) = written(|out| leaves.write(out));
            prop_assert_eq!((header.kind, header.gateway), (FrameKind::GoAway, gateway));
            prop_assert_eq!(GoAway::decode(&header, &none), Ok(leaves));
            prop_assert!(GoAway::decode(&header, body.as_bytes()).is_err());
        }

        #[test]
        fn hellos_that_differ_claim_something_else(one in hello(), other in hello(), start: u64) {
            prop_assert_eq!(one == other, one.claim() == other.claim());
            let (first, second) =
                (Welcome { start, session: 0 }, Welcome { start: start ^ 1, session: 0 });
            prop_assert_ne!(first.claim(&one), second.claim(&one));
        }

        #[test]
        fn messages_of_cells_are_read_back(
            cell: u16, term: u32, instrument: u32, map_version: u32, is_granted: bool,
        ) {
            let leader = Leader { cell, term };
            let (header, body) = written(|out| leader.write(out));
            prop_assert_eq!(header.kind, FrameKind::Leader);
            prop_assert_eq!(Leader::decode(&header, &body), Ok(leader));
            prop_assert!(Leader::decode(&header, &body[1..]).is_err());
            let catch_up = CatchUp { cell, index: u64::from(instrument) << 20 };
            let (header, body) = written(|out| catch_up.write(out));
            prop_assert_eq!(header.kind, FrameKind::CatchUp);
            prop_assert_eq!(CatchUp::decode(&header, &body), Ok(catch_up));
            prop_assert!(CatchUp::decode(&header, &body[1..]).is_err());
        }

        #[test]
        fn messages_of_sessions_are_read_back(
            session: u32, instrument: u32, acknowledged: u64, events_hash: u64,
            events in prop::collection::vec(event(), 0..20),
        ) {
            let request = ResendRequest { session, instrument, acknowledged };
            prop_assert_eq!(request.header().kind, FrameKind::ResendRequest);
            prop_assert_eq!(ResendRequest::decode(&request.header()), request);
            let mut body = vec![7];
            Reply::encode(events_hash, &events, &mut body);
            let reply = Reply::decode(&body).unwrap();
            prop_assert_eq!(reply.events_hash, events_hash);
            let read: Result<Vec<Event>, _> = reply.events.collect();
            prop_assert_eq!(read.as_ref(), Ok(&events));
            Events::encode(&events, &mut body);
            let read: Result<Vec<Event>, _> = Events::decode(&body).collect();
            prop_assert_eq!(read, Ok(events));
        }

        #[test]
        fn any_bytes_are_a_message_or_refused(body in prop::collection::vec(any::<u8>(), 0..120)) {
            let header = Header::new(FrameKind::Hello);
            let _ = (Hello::decode(&header, &body), Leader::decode(&header, &body));
            let _ = (Challenge::decode(&body), Welcome::decode(&header, &body));
            let Close(text) = Close::decode(&body);
            prop_assert!(!text.contains(char::is_control));
            let (_, again) = written(|out| Close(text.clone()).write(out));
            prop_assert_eq!(Close::decode(&again), Close(text));
            if let Ok(reply) = Reply::decode(&body) {
                prop_assert!(reply.events.count() <= body.len());
            }
        }
    }
}
