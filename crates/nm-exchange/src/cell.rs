//! The state of a group of instruments, and what it does with requests in a given order: the only
//! thing that is replicated.
//!
//! **Exactly once, in the order sent.** Each request names its number within its session and the
//! number before it on the same instrument. A request whose predecessor is not the last one handled
//! is not handled: its predecessor was lost on a link, and both come again. One that was handled
//! before is not handled again; its sender is told the outcome once more.
//!
//! Where nothing is on a disk, a mediator that starts again, or replicas that all do, have lost the
//! books. Such a cell *accepts_unknown_sessions*: it takes a session that it does not know up where it is, if the
//! request says that the one before it was answered ([`wire::PREVIOUS_ANSWERED`]). Only books that were lost
//! can meet that, so it needs nobody's memory, whoever died with them.
//!
//! **What a session is told** on an instrument is one stream of events, numbered from 1 on: what
//! came of its own requests, and what others did to its orders. The number is part of the state, so
//! it is the same whoever tells. Events are kept until the session says that it has them, with its
//! next request, and [told again](Cell::recall) to a session that misses some. Broadcasts are
//! numbered as well, and not kept: old market data helps nobody, so a gap is acknowledged and not filled.
//!
//! **In one cell only.** An instrument that nothing was ever handled on can go to another cell
//! ([`FrameKind::Release`], in the map_version that the map then has). From there on the cell handles no
//! request on it that was routed by an older map; one that was routed by that map or a newer one
//! comes only if the instrument has come back.
//!
//! **Snapshots** do not stop anybody: [`Cell::begin_snapshot`] marks every instrument, each of them
//! is copied before its first change after that, and [`Cell::copy_next`] copies one of the others
//! whenever there is time.

mod session;

use std::collections::{BTreeMap, BTreeSet};

use nm_book::codec;
use nm_book::order::{Command, Event, InstrumentId, Matching, UserId};
use nm_codec::fnv1a;
use nm_codec::{Fields, Meaningless};
use session::Session;

use crate::wire::{self, Frame, FrameKind, Header};
pub use session::{KEPT_MAX, OUTCOMES, Outcome, event_recipients};

/// The session that may command the exchange itself: halts, auctions, bands, the end of the day.
pub const OPERATOR: UserId = 0;

/// First bytes of a saved cell, with the version.
const MARK: &[u8; 8] = b"nmcell02";

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Who asks: the user's session.
    pub session: UserId,
    /// Gateway that the session is connected to.
    pub gateway: u16,
    /// Instrument.
    pub instrument: InstrumentId,
    /// Number within the session, from 1 on, rising.
    pub client_seq: u64,
    /// Number of the session's request before it on this instrument; zero for the first.
    pub previous_seq: u64,
    /// When it was meant to be sent, ns on the client's clock; carried along.
    pub intended_ns: u64,
    /// Number of the last of the session's events on this instrument that it has.
    pub acknowledged: u64,
    /// Whether everybody is told what happens.
    pub is_public: bool,
    /// Whether the request before it was answered.
    pub is_previous_answered: bool,
    /// What is asked.
    pub command: Command,
}

impl Request {
    /// The request in a frame.
    ///
    /// # Errors
    /// If it carries no command.
    pub fn of(frame: &Frame<'_>) -> Result<Request, Meaningless> {
        Request::from_parts(&frame.header, frame.body)
    }

    /// The request of a header and a body.
    ///
    /// # Errors
    /// If the body is no command.
    pub fn from_parts(header: &Header, body: &[u8]) -> Result<Request, Meaningless> {
        let mut fields = nm_codec::Reader::new(body);
        let command = codec::read_command(&mut fields).map_err(|_| Meaningless)?;
        if header.kind != FrameKind::Request || !fields.is_empty() || header.client_seq == 0 {
            return Err(Meaningless);
        }
        Ok(Request {
            session: header.session,
            gateway: header.gateway,
            instrument: header.instrument,
            client_seq: header.client_seq,
            previous_seq: header.previous_seq,
            intended_ns: header.intended_ns,
            acknowledged: header.output_seq,
            is_public: header.flags & wire::PUBLIC != 0,
            is_previous_answered: header.flags & wire::PREVIOUS_ANSWERED != 0,
            command,
        })
    }
}

/// What a frame of a batch is to a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// A request to be handled.
    Request(Request),
    /// A request on an instrument that belongs to another cell: nothing is to be done, its gateway
    /// keeps it.
    NotOwned,
    /// An instrument was to be given away; whether it was.
    Released(bool),
}

/// What a cell did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It was carried out; the events are what happened.
    Executed(Outcome),
    /// It was carried out before. Without an outcome if that is not kept any more.
    Duplicate(Option<Outcome>),
    /// Its predecessor has not come.
    SequenceGap,
}

/// One instrument.
#[derive(Debug)]
struct InstrumentState<M> {
    book: M,
    output_seq: u64,
    /// Number of the last event that was told to everybody. They begin at the time of the first
    /// request, ns, so that a book that begins anew does not repeat the numbers of the one before.
    public_seq: u64,
    sessions: BTreeMap<UserId, Session>,
}

/// A snapshot on its way: a state of the cell at one index.
#[derive(Debug)]
struct Copying {
    head: Vec<u8>,
    left: BTreeSet<InstrumentId>,
    copied: BTreeMap<InstrumentId, Vec<u8>>,
}

/// A group of instruments.
#[derive(Debug)]
pub struct Cell<M> {
    instruments: BTreeMap<InstrumentId, InstrumentState<M>>,
    index: u64,
    now_ns: u64,
    copying: Option<Copying>,
    /// Events of the request at hand, as bytes.
    codes: Vec<u8>,
    /// Who is told which of them, by user and then in order.
    notes: Vec<(UserId, Event)>,
    /// Instruments that were given away, and the map's map_version from which on that holds.
    given: BTreeMap<InstrumentId, u32>,
    /// Whether a session that is not known on an instrument may begin anywhere: the books that knew
    /// it may be lost.
    pub accepts_unknown_sessions: bool,
}

impl<M: Matching> Default for Cell<M> {
    fn default() -> Cell<M> {
        let (instruments, copying, codes, notes, given) = Default::default();
        let (index, now_ns, accepts_unknown_sessions) = Default::default();
        Cell { instruments, index, now_ns, copying, codes, notes, given, accepts_unknown_sessions }
    }
}

impl<M: Matching> Cell<M> {
    /// Index of the last batch that was applied.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Takes note that the batch of this index begins, at a time that does not go back.
    pub fn begin(&mut self, index: u64, now_ns: u64) {
        self.index = index;
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Takes a frame of the batch at hand. A request is to be handled after this; to give an
    /// instrument away is done by it.
    ///
    /// # Errors
    /// If it is neither.
    pub fn admit(&mut self, frame: &Frame<'_>) -> Result<Admitted, Meaningless> {
        let Header { kind, instrument, map_version, .. } = frame.header;
        if kind == FrameKind::Release {
            return Ok(Admitted::Released(self.give(instrument, map_version)));
        }
        let request = Request::of(frame)?;
        let is_elsewhere = self.given.get(&instrument).is_some_and(|since| map_version < *since);
        Ok(if is_elsewhere { Admitted::NotOwned } else { Admitted::Request(request) })
    }

    /// Gives an instrument away unless anything was ever handled on it.
    fn give(&mut self, instrument: InstrumentId, map_version: u32) -> bool {
        if self.instruments.get(&instrument).is_some_and(|known| known.output_seq > 0) {
            return false;
        }
        self.copy_before_change(instrument);
        self.instruments.remove(&instrument);
        let since = self.given.entry(instrument).or_default();
        *since = map_version.max(*since);
        true
    }

    /// Handles one request of the batch at hand. The events go to `tell` in order.
    pub fn handle(&mut self, request: &Request, mut tell: impl FnMut(&Event)) -> Handled {
        self.copy_before_change(request.instrument);
        let instrument =
            self.instruments.entry(request.instrument).or_insert_with(|| InstrumentState {
                book: M::new(),
                output_seq: 0,
                public_seq: self.now_ns,
                sessions: BTreeMap::new(),
            });
        let session = instrument.sessions.entry(request.session).or_default();
        session.gateway = request.gateway;
        session.has(request.acknowledged);
        if request.client_seq <= session.last {
            return Handled::Duplicate(session.outcome(request.client_seq));
        }
        if request.previous_seq != session.last {
            if !(self.accepts_unknown_sessions && session.last == 0 && request.is_previous_answered)
            {
                return Handled::SequenceGap;
            }
            session.begins_anew(request.acknowledged);
        }
        let (codes, notes, mut events) = (&mut self.codes, &mut self.notes, 0);
        codes.clear();
        notes.clear();
        let mut note = |event: Event| {
            codec::write_event(&event, codes);
            events += 1;
            notes.extend(event_recipients(&event, request.session).map(|user| (user, event)));
            tell(&event);
        };
        match owned(request) {
            Ok(command) => instrument.book.apply(&command, self.now_ns, &mut note),
            Err(refused) => note(refused),
        }
        instrument.output_seq += 1;
        let outcome = Outcome {
            client_seq: request.client_seq,
            output_seq: instrument.output_seq,
            events_hash: fnv1a(codes),
        };
        if request.is_public {
            instrument.public_seq += events;
        }
        notes.sort_by_key(|(user, _)| *user);
        for (user, event) in notes.iter() {
            // Whoever has an order has asked for it here.
            instrument.sessions.entry(*user).or_default().tell(*event);
        }
        instrument.sessions.entry(request.session).or_default().done(outcome);
        Handled::Executed(outcome)
    }

    fn session(&self, instrument: InstrumentId, session: UserId) -> Option<&Session> {
        self.instruments.get(&instrument)?.sessions.get(&session)
    }

    /// The gateway through which a session last spoke to an instrument.
    pub fn gateway_of(&self, instrument: InstrumentId, session: UserId) -> Option<u16> {
        self.session(instrument, session).map(|session| session.gateway)
    }

    /// Number of the last request of a session that was handled on an instrument; zero for none.
    pub fn last_request_seq(&self, instrument: InstrumentId, session: UserId) -> u64 {
        self.session(instrument, session).map_or(0, |session| session.last)
    }

    /// Who is told what of the request that was handled last: by user, each one's in order.
    pub fn notes(&self) -> &[(UserId, Event)] {
        &self.notes
    }

    /// Number of the last event that a session was told on an instrument; zero for none.
    pub fn told(&self, instrument: InstrumentId, session: UserId) -> u64 {
        self.session(instrument, session).map_or(0, |session| session.told)
    }

    /// Number of the last event on an instrument that everybody was told; zero for none.
    pub fn public_told(&self, instrument: InstrumentId) -> u64 {
        self.instruments.get(&instrument).map_or(0, |instrument| instrument.public_seq)
    }

    /// A session's events on an instrument after number `acknowledged`, and the number before the first of
    /// them; that is higher than `acknowledged` if some are not kept any more.
    pub fn recall(
        &self,
        instrument: InstrumentId,
        session: UserId,
        acknowledged: u64,
    ) -> (u64, impl Iterator<Item = &Event>) {
        let known = self.session(instrument, session);
        let before = known.map_or(0, |known| known.recalled(acknowledged));
        (before, known.into_iter().flat_map(move |known| known.after(before)))
    }

    /// The book of an instrument that has had requests.
    pub fn book(&self, instrument: InstrumentId) -> Option<&M> {
        self.instruments.get(&instrument).map(|instrument| &instrument.book)
    }

    /// The whole state.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = self.head();
        for (instrument, state) in &self.instruments {
            append(&mut bytes, *instrument, &state.save());
        }
        sealed(bytes)
    }

    /// Hash of the whole state, equal on every replica and after every replay.
    pub fn hash(&self) -> u64 {
        fnv1a(&self.save())
    }

    fn head(&self) -> Vec<u8> {
        let mut bytes = MARK.to_vec();
        codec::put(&mut bytes, &[self.index, self.now_ns, self.given.len() as u64]);
        for (instrument, since) in &self.given {
            bytes.extend_from_slice(&instrument.to_le_bytes());
            bytes.extend_from_slice(&since.to_le_bytes());
        }
        codec::put(&mut bytes, &[self.instruments.len() as u64]);
        bytes
    }

    /// Begins a snapshot of the state as it is now. One that was on its way is dropped.
    pub fn begin_snapshot(&mut self) {
        self.copying = Some(Copying {
            head: self.head(),
            left: self.instruments.keys().copied().collect(),
            copied: BTreeMap::new(),
        });
    }

    /// Copies one more instrument; the whole snapshot when it was the last.
    pub fn copy_next(&mut self) -> Option<Vec<u8>> {
        let copying = self.copying.as_mut()?;
        if let Some(instrument) = copying.left.pop_first()
            && let Some(state) = self.instruments.get(&instrument)
        {
            copying.copied.insert(instrument, state.save());
        }
        if !copying.left.is_empty() {
            return None;
        }
        let done = self.copying.take()?;
        let mut bytes = done.head;
        for (instrument, saved) in &done.copied {
            append(&mut bytes, *instrument, saved);
        }
        Some(sealed(bytes))
    }

    fn copy_before_change(&mut self, instrument: InstrumentId) {
        if let Some(copying) = &mut self.copying
            && copying.left.remove(&instrument)
            && let Some(state) = self.instruments.get(&instrument)
        {
            copying.copied.insert(instrument, state.save());
        }
    }

    /// A cell from what [`Cell::save`] or a snapshot wrote.
    ///
    /// # Errors
    /// A sentence, if the bytes are no saved cell.
    pub fn load(bytes: &[u8]) -> Result<Cell<M>, String> {
        let cut = |_| "a saved cell is damaged, or none of this version".to_string();
        let (content, checksum) = bytes.split_last_chunk().ok_or_else(|| cut(Meaningless))?;
        if nm_codec::crc32c(content) != u32::from_le_bytes(*checksum) {
            return Err(cut(Meaningless));
        }
        let mut fields = Fields(content);
        if fields.bytes(MARK.len()).map_err(cut)? != MARK {
            return Err(cut(Meaningless));
        }
        let (index, now_ns) = (fields.u64().map_err(cut)?, fields.u64().map_err(cut)?);
        let mut cell = Cell { index, now_ns, ..Cell::default() };
        for _ in 0..fields.u64().map_err(cut)? {
            let instrument = fields.u32().map_err(cut)?;
            cell.given.insert(instrument, fields.u32().map_err(cut)?);
        }
        for _ in 0..fields.u64().map_err(cut)? {
            let instrument = fields.u32().map_err(cut)?;
            let length = usize::try_from(fields.u64().map_err(cut)?).unwrap_or(usize::MAX);
            let saved = fields.bytes(length).map_err(cut)?;
            let state = InstrumentState::load(saved).ok_or_else(|| cut(Meaningless))?;
            cell.instruments.insert(instrument, state);
        }
        if fields.0.is_empty() { Ok(cell) } else { Err(cut(Meaningless)) }
    }
}

/// Index of the last batch in a saved cell.
pub fn index_of(saved: &[u8]) -> Option<u64> {
    Fields(saved.strip_prefix(MARK)?).u64().ok()
}

/// What is saved, with its checksum (CRC-32C) behind it.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = nm_codec::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn append(bytes: &mut Vec<u8>, instrument: InstrumentId, saved: &[u8]) {
    bytes.extend_from_slice(&instrument.to_le_bytes());
    codec::put(bytes, &[saved.len() as u64]);
    bytes.extend_from_slice(saved);
}

/// The command as its session may give it: orders are its own whatever they say, and the exchange
/// itself is commanded by its operator.
fn owned(request: &Request) -> Result<Command, Event> {
    let user = request.session;
    Ok(match request.command {
        Command::New(order) => Command::New(nm_book::order::NewOrder { user, ..order }),
        Command::Replace { id, price, quantity, .. } => {
            Command::Replace { id, user, price, quantity }
        }
        Command::Cancel { id, .. } => Command::Cancel { id, user },
        Command::MassCancel { .. } => Command::MassCancel { user },
        Command::Tick => Command::Tick,
        command if user == OPERATOR => command,
        _ => {
            let reason = nm_book::order::RejectReason::NotAllowed;
            return Err(Event::Rejected { id: 0, user, reason });
        }
    })
}

impl<M: Matching> InstrumentState<M> {
    fn save(&self) -> Vec<u8> {
        let mut bytes = vec![];
        let sessions = self.sessions.len() as u64;
        codec::put(&mut bytes, &[self.output_seq, self.public_seq, sessions]);
        for (session, known) in &self.sessions {
            codec::put(&mut bytes, &[u64::from(*session)]);
            known.save(&mut bytes);
        }
        self.book.save(&mut bytes);
        bytes
    }

    fn load(bytes: &[u8]) -> Option<InstrumentState<M>> {
        let mut fields = Fields(bytes);
        let (output_seq, public_seq) = (fields.u64().ok()?, fields.u64().ok()?);
        let mut sessions = BTreeMap::new();
        for _ in 0..fields.u64().ok()? {
            let session = UserId::try_from(fields.u64().ok()?).ok()?;
            sessions.insert(session, Session::load(&mut fields)?);
        }
        Some(InstrumentState { book: M::load(fields.0).ok()?, output_seq, public_seq, sessions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_book::order::{NewOrder, OrderType, PostOnly, SelfTrade, Side, TimeInForce};
    use nm_book::reference::ReferenceBook;

    fn order(
        session: UserId,
        instrument: InstrumentId,
        client_seq: u64,
        previous_seq: u64,
    ) -> Request {
        let side = if session.is_multiple_of(2) { Side::Buy } else { Side::Sell };
        Request {
            session,
            gateway: session as u16 % 3,
            instrument,
            client_seq,
            previous_seq,
            intended_ns: 0,
            acknowledged: 0,
            is_public: false,
            is_previous_answered: false,
            command: Command::New(NewOrder {
                id: u64::from(session) << 32 | client_seq,
                user: 77,
                side,
                order_type: OrderType::Limit,
                time_in_force: TimeInForce::GoodTillCancelled,
                price: 100,
                stop_price: 0,
                quantity: 3 + client_seq,
                display: 0,
                minimum: 0,
                post_only: PostOnly::No,
                self_trade: SelfTrade::CancelNewest,
            }),
        }
    }

    #[test]
    fn a_repeat_is_told_again_and_a_gap_is_not_handled() {
        let mut cell = Cell::<ReferenceBook>::default();
        cell.begin(1, 10);
        let mut events = 0;
        let Handled::Executed(first) = cell.handle(&order(2, 7, 1, 0), |_| events += 1) else {
            panic!("the first request")
        };
        assert_eq!((first.output_seq, events), (1, 1));
        let before = cell.hash();
        assert_eq!(cell.handle(&order(2, 7, 1, 0), |_| panic!()), Handled::Duplicate(Some(first)));
        assert_eq!(cell.handle(&order(2, 7, 5, 3), |_| panic!()), Handled::SequenceGap);
        assert_eq!(cell.hash(), before);
        assert!(matches!(cell.handle(&order(2, 7, 5, 1), |_| {}), Handled::Executed(_)));
        assert_eq!((cell.last_request_seq(7, 2), cell.gateway_of(7, 2)), (5, Some(2)));
        // Outcomes are kept for a while only.
        for seq in 6..=100 {
            cell.handle(&order(2, 7, seq, seq - 1), |_| {});
        }
        assert_eq!(cell.handle(&order(2, 7, 1, 0), |_| panic!()), Handled::Duplicate(None));
    }

    #[test]
    fn an_instrument_is_given_away_only_before_its_first_request_and_for_good() {
        let frame = |kind: FrameKind, instrument, map_version| {
            let mut bytes = vec![];
            let header = Header { instrument, map_version, client_seq: 1, ..Header::new(kind) };
            codec::write_command(&Command::Tick, &mut bytes);
            (header, bytes)
        };
        let admit = |cell: &mut Cell<ReferenceBook>, kind, instrument, map_version| {
            let (header, body) = frame(kind, instrument, map_version);
            let admitted = cell.admit(&Frame { header, body: &body, bytes: &[] }).unwrap();
            if let Admitted::Request(request) = &admitted {
                cell.handle(request, |_| {});
            }
            admitted
        };
        use FrameKind::{Release, Request};
        let mut cell = Cell::<ReferenceBook>::default();
        let free = admit(&mut cell, Release, 5, 3);
        assert_eq!((free, cell.hash()), (Admitted::Released(true), cell.hash()));
        // The same once more, as a new leader of control asks; and an older one, late.
        assert_eq!(admit(&mut cell, Release, 5, 3), Admitted::Released(true));
        assert_eq!(admit(&mut cell, Release, 5, 1), Admitted::Released(true));
        for cut in 0..cell.save().len() {
            assert!(Cell::<ReferenceBook>::load(&cell.save()[..cut]).is_err(), "cut at {cut}");
        }
        let hash = cell.hash();
        cell = Cell::load(&cell.save()).unwrap();
        assert_eq!(admit(&mut cell, Request, 5, 2), Admitted::NotOwned);
        assert_eq!((cell.hash(), cell.book(5).is_none()), (hash, true));
        assert!(matches!(admit(&mut cell, Request, 6, 2), Admitted::Request(_)));
        assert_eq!(admit(&mut cell, Release, 6, 4), Admitted::Released(false));
        // By the map of map_version 5 it has come back.
        assert!(matches!(admit(&mut cell, Request, 5, 5), Admitted::Request(_)));
        assert_eq!(admit(&mut cell, Release, 5, 6), Admitted::Released(false));
    }

    #[test]
    fn orders_belong_to_their_session_and_the_exchange_to_its_operator() {
        let mut cell = Cell::<ReferenceBook>::default();
        let mut told = vec![];
        cell.handle(&order(3, 1, 1, 0), |event| told.push(*event));
        assert!(matches!(told[0], Event::Accepted { user: 3, .. }), "{told:?}");
        let halt = Request { command: Command::Halt, ..order(3, 1, 2, 1) };
        cell.handle(&halt, |event| told.push(*event));
        assert!(matches!(told[1], Event::Rejected { user: 3, .. }), "{told:?}");
        let halt = Request { command: Command::Halt, ..order(OPERATOR, 1, 1, 0) };
        cell.handle(&halt, |event| told.push(*event));
        assert_eq!(told[2], Event::Halted);
    }

    #[test]
    fn a_forgiving_cell_takes_sessions_up_where_they_are() {
        let mut cell = Cell::<ReferenceBook> { accepts_unknown_sessions: true, ..Cell::default() };
        // A request that may have a predecessor on its way waits for it all the same.
        assert_eq!(cell.handle(&order(2, 7, 9, 8), |_| {}), Handled::SequenceGap);
        let settled = Request { is_previous_answered: true, acknowledged: 30, ..order(2, 7, 9, 8) };
        assert_eq!(Cell::<ReferenceBook>::default().handle(&settled, |_| {}), Handled::SequenceGap);
        assert!(matches!(cell.handle(&settled, |_| {}), Handled::Executed(_)));
        assert_eq!(cell.handle(&order(2, 7, 12, 11), |_| {}), Handled::SequenceGap);
        assert!(matches!(cell.handle(&order(2, 7, 10, 9), |_| {}), Handled::Executed(_)));
        // It knows that it misses something, and what is told from there on.
        let (before, events) = cell.recall(7, 2, 30);
        assert_eq!((before, events.count()), (30 + session::LOST_BOOKS, 2));
    }

    /// Whoever looks at some of the events sees each session's stream in order, from any number on,
    /// as long as it was not said to be there.
    #[test]
    fn a_session_s_events_are_kept_until_it_has_them() {
        let mut cell = Cell::<ReferenceBook>::default();
        let mut streams = BTreeMap::<UserId, Vec<Event>>::new();
        let recalled = |cell: &Cell<ReferenceBook>, session, acknowledged| {
            let (before, events) = cell.recall(7, session, acknowledged);
            (before, events.copied().collect::<Vec<Event>>())
        };
        for seq in 1..=40 {
            for session in [2, 3] {
                let mut events = vec![];
                cell.handle(&order(session, 7, seq, seq - 1), |event| events.push(*event));
                for event in events {
                    let users = event_recipients(&event, session);
                    users.for_each(|user| streams.entry(user).or_default().push(event));
                }
            }
        }
        for session in [2, 3] {
            let stream = &streams[&session];
            assert_eq!(cell.told(7, session), stream.len() as u64);
            assert!(stream.len() > 60, "what its orders traded is told to both");
            for acknowledged in 0..=stream.len() {
                let expected = (acknowledged as u64, stream[acknowledged..].to_vec());
                assert_eq!(recalled(&cell, session, acknowledged as u64), expected);
            }
        }
        // What a session has is forgotten, and nothing else.
        let stream = &streams[&2];
        let request = Request { acknowledged: 50, ..order(2, 7, 40, 39) };
        assert!(matches!(cell.handle(&request, |_| panic!()), Handled::Duplicate(Some(_))));
        assert_eq!(recalled(&cell, 2, 10), (50, stream[50..].to_vec()));
        let loaded = Cell::<ReferenceBook>::load(&cell.save()).unwrap();
        assert_eq!(recalled(&loaded, 2, 60), (60, stream[60..].to_vec()));
        // A claim to have what never was does no harm, and a stranger has nothing.
        assert_eq!(recalled(&loaded, 2, 1 << 60), (stream.len() as u64, vec![]));
        assert_eq!(recalled(&loaded, 9, 5), (0, vec![]));
        // There is an end to what is kept.
        for seq in 41..=40 + KEPT_MAX as u64 {
            cell.handle(&order(2, 7, seq, seq - 1), |_| {});
        }
        let told = cell.told(7, 2);
        let (before, events) = recalled(&cell, 2, 60);
        assert_eq!((before, events.len()), (told - KEPT_MAX as u64, KEPT_MAX));
    }

    use proptest::prelude::*;

    /// A request that comes: whose, on which instrument, and how far before or after the one that
    /// is due it is.
    fn arrival() -> impl Strategy<Value = (UserId, InstrumentId, i64)> {
        (0..3u32, 0..3u32, prop_oneof![6 => Just(0i64), 1 => -5..0i64, 1 => 1..4i64])
    }

    proptest! {
        /// Whatever is lost, repeated or comes too early: each request is carried out once and in
        /// order, its outcome is told again as it was, and saving and loading anywhere in between
        /// changes nothing.
        #[test]
        fn requests_are_carried_out_once_and_in_order(
            arrivals in prop::collection::vec(arrival(), 1..200),
            cuts in prop::collection::btree_set(0usize..200, 0..4),
        ) {
            let mut cell = Cell::<ReferenceBook>::default();
            let mut whole = Cell::<ReferenceBook>::default();
            let mut done = BTreeMap::<(UserId, InstrumentId), Vec<Outcome>>::new();
            let mut numbers = BTreeMap::<InstrumentId, u64>::new();
            for (at, (session, instrument, ahead)) in arrivals.into_iter().enumerate() {
                if cuts.contains(&at) {
                    cell = Cell::load(&cell.save()).unwrap();
                }
                let outcomes = done.entry((session, instrument)).or_default();
                let due = outcomes.len() as i64 + 1;
                let seq = (due + ahead).max(1) as u64;
                let request = order(session, instrument, seq, seq - 1);
                for cell in [&mut cell, &mut whole] {
                    cell.begin(at as u64 + 1, at as u64);
                }
                let handled = cell.handle(&request, |_| {});
                prop_assert_eq!(whole.handle(&request, |_| {}), handled);
                match seq as i64 - due {
                    0 => {
                        let number = numbers.entry(instrument).or_default();
                        *number += 1;
                        let Handled::Executed(outcome) = handled else {
                            return Err(TestCaseError::fail(format!("{handled:?}")));
                        };
                        prop_assert_eq!((outcome.client_seq, outcome.output_seq), (seq, *number));
                        outcomes.push(outcome);
                    }
                    1.. => prop_assert_eq!(handled, Handled::SequenceGap),
                    _ => {
                        let kept = outcomes.len().saturating_sub(OUTCOMES) < seq as usize;
                        let known = kept.then(|| outcomes[seq as usize - 1]);
                        prop_assert_eq!(handled, Handled::Duplicate(known));
                    }
                }
            }
            prop_assert_eq!(cell.hash(), whole.hash());
        }

        #[test]
        fn any_bytes_are_a_cell_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            change in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let _ = Cell::<ReferenceBook>::load(&bytes);
            let marked = sealed([&MARK[..], &bytes].concat());
            let _ = Cell::<ReferenceBook>::load(&marked);
            let mut cell = Cell::<ReferenceBook>::default();
            for seq in 1..4 {
                cell.handle(&order(1, 2, seq, seq - 1), |_| {});
            }
            let mut saved = cell.save();
            let at = change.index(saved.len());
            let is_same = std::mem::replace(&mut saved[at], to) == to;
            prop_assert_eq!(Cell::<ReferenceBook>::load(&saved).is_ok(), is_same);
            // What is sealed again after the change is read or refused.
            saved.truncate(saved.len() - 4);
            let _ = Cell::<ReferenceBook>::load(&sealed(saved));
        }
    }

    #[test]
    fn a_snapshot_is_the_state_at_its_beginning_whatever_happens_meanwhile() {
        let mut cell = Cell::<ReferenceBook>::default();
        for instrument in 0..20 {
            for session in 0..4 {
                cell.begin(u64::from(instrument), 5);
                cell.handle(&order(session, instrument, 1, 0), |_| {});
            }
        }
        let (saved, hash) = (cell.save(), cell.hash());
        cell.begin_snapshot();
        let mut snapshot = None;
        for instrument in (0..30).rev() {
            cell.begin(100, 9);
            cell.handle(&order(1, instrument, 2, u64::from(instrument < 20)), |_| {});
            if snapshot.is_none() {
                snapshot = cell.copy_next();
            }
        }
        while snapshot.is_none() {
            snapshot = cell.copy_next();
        }
        assert_eq!(snapshot.as_ref(), Some(&saved));
        let loaded = Cell::<ReferenceBook>::load(&saved).unwrap();
        assert_eq!(loaded.hash(), hash);
        assert_ne!(cell.hash(), hash);
        for cut in 0..saved.len() {
            assert!(Cell::<ReferenceBook>::load(&saved[..cut]).is_err(), "cut at {cut}");
        }
    }
}
