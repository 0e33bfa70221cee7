//! The state of a group of instruments, and what it does with requests in a given order: the only
//! thing that is replicated.
//!
//! **Exactly once, in the order sent.** Each request carries its sequence number within its session
//! and the number before it on the same instrument. A request whose predecessor is not the last one
//! executed is not executed: the predecessor was lost on a link, and both are resent. A duplicate
//! of an executed request is not executed again; its sender gets the same outcome once more.
//!
//! Where nothing is on a disk, a mediator that restarts, or replicas that all do, have lost the
//! books. Such a cell *accepts unknown sessions*. A session that it does not know continues at its
//! present sequence number if the request says that the one before it was answered
//! ([`Request::is_previous_answered`]). That can only happen where books were lost, so it needs no
//! record of the loss.
//!
//! **Nothing is known of a session** on an instrument before its first request there is executed,
//! and the first request of all makes the instrument. So a request that would exceed a limit of the
//! cell is refused without a trace, whatever it names as its predecessor. Because the cell forgets
//! neither, every copy of it is refused as well.
//!
//! **Live orders of a session** on an instrument are counted here rather than in the book. The
//! events of each order pass its session anyway, so that the count costs the book nothing.
//!
//! **The events of a session** on an instrument are one stream, numbered from 1 on. They are the
//! results of its own requests, and what others did to its orders. The number is part of the state,
//! so it is the same whichever replica sends the event. Events are kept until the session
//! acknowledges them with its next request, and [resent](Cell::events_after) on request. Broadcast
//! events are numbered as well, but not kept: old market data is of no use, so a gap is detected
//! and not filled.
//!
//! **Each instrument in one cell.** A cell owns the instruments that the rule of the network gives
//! it (`instrument % active cells`). It does not own those that it released to another cell, and
//! owns those that it adopted. Release and adoption are entries of its log ([`crate::moves`]), and
//! so is the state that comes with an instrument. It executes no request on an instrument that it
//! does not own.
//!
//! **Snapshots** do not stop the cell. [`Cell::begin_snapshot`] marks every instrument, and each of
//! them is copied before its first change after that. [`Cell::copy_next`] copies one of the others
//! whenever there is time. Other threads save large books, from a copy in memory.

mod away;
mod copy;
mod desk;
mod exposure;
mod firms;
mod handled;
mod holdings;
mod instrument;
mod ownership;
mod relocation;
mod request;
mod restored;
mod retire;
mod session;
mod snapshot;
mod stops;
#[cfg(test)]
pub(crate) mod testing;
mod watched;

use std::collections::BTreeMap;

use exposure::Exposures;
use holdings::{OwnerLedger, Places};
use instrument::{Applied, Buffers, Circumstances, InstrumentState};
use nm_book::order::{Command, Event, InstrumentId, Matching, Price, UserId};
use nm_codec::{DecodeError, Put, Reader, fnv1a};
pub use nm_wire::Request;
use nm_wire::{
    AwayTime, Breach, Firms, Frame, Holdings, Kind, LimitCheck, OrdersLimit, Owner, RefusalReason,
    Retire, Stop, StopOrder,
};
use session::Session;
use snapshot::{Section, Snapshot, instrument_sections};
use stops::Stops;

use crate::background::Background;
use crate::limits::CellLimits;
use crate::moves::{Claim, Forget, MoveParts, MoveRefusal};
pub use copy::CopyPiece;
use copy::InstrumentCopy;
pub use handled::{CellLoadError, Handled, Missing, Retirement};
pub use instrument::Best;
pub use relocation::{Arrival, Departed, MoveStep, Ownership, Staged};
pub use request::{DESK, OPERATOR, is_broadcast, rejection};
pub use session::{Outcome, event_recipients};
pub use watched::{Watch, WatchedSessions};

/// First bytes of a saved cell, with the version.
const MAGIC: &[u8; 8] = b"nmcell08";

/// What a frame of a batch is to a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// A request to be handled.
    Request(Request),
    /// A request that no cell can decode. Its gateway should have refused it: it has no effect.
    Undecodable,
    /// A request on an instrument that belongs to another cell: it is not handled, its gateway
    /// keeps it.
    NotOwned,
    /// A step of a move, which is carried out.
    Move(MoveStep),
    /// A part of what a session or an owner has was removed: so many sessions on instruments.
    Retired(u64),
    /// A session's orders are to be cancelled when it is away, or no longer.
    Watched,
    /// An owner was stopped, or may send orders again.
    Stopped(StopOrder),
    /// There are other firms, of this version.
    Firms(u64),
}

/// A group of instruments.
#[derive(Debug)]
pub struct Cell<M> {
    /// Its number, and over how many cells the rule of the network spreads instruments.
    number: u16,
    active: u16,
    instruments: BTreeMap<InstrumentId, InstrumentState<M>>,
    /// Sessions of all instruments, for the limit.
    session_count: usize,
    index: u64,
    now_ns: u64,
    snapshot: Option<Snapshot>,
    buffers: Buffers,
    /// Instruments that have moved: whether they are here now.
    ownership: BTreeMap<InstrumentId, Ownership>,
    /// How many of them were released with sessions, for the limit.
    released_count: usize,
    departed: BTreeMap<InstrumentId, Departed<M>>,
    staged: BTreeMap<InstrumentId, Staged<M>>,
    /// The latest moves of instruments to here that were refused, by epoch; those up to another
    /// epoch are not listed any more.
    refused: BTreeMap<u32, MoveRefusal>,
    refused_before: u32,
    /// Copies that the leader makes for other cells; no part of the state.
    copies: BTreeMap<InstrumentId, InstrumentCopy>,
    /// Whether a session that is not known on an instrument may begin at any sequence number: the
    /// books that knew it may be lost.
    pub accepts_unknown_sessions: bool,
    /// What owners have.
    ledger: OwnerLedger,
    /// Owners that are stopped.
    stops: Stops,
    /// Firms, and what those with limits have.
    exposures: Exposures,
    /// By instrument that was released: what still counts as each owner's.
    released: BTreeMap<InstrumentId, BTreeMap<Owner, Places>>,
    /// Number before that of the first request on an instrument which is new.
    first_output_seq: u64,
    /// What was said to the last request.
    last_check: LimitCheck,
    /// Sessions whose orders are cancelled when they are away, and after how long that is, s.
    watched: WatchedSessions,
    /// Sessions that the last entry of that kind has removed; no part of the state.
    retirements: Vec<Retirement>,
    /// What it has room for.
    pub limits: CellLimits,
}

/// The only cell of a network.
impl<M: Matching> Default for Cell<M> {
    fn default() -> Cell<M> {
        Cell::new(0, 1)
    }
}

impl<M: Matching> Cell<M> {
    /// A cell without requests. The rule of its network spreads instruments over the first `active`
    /// cells.
    pub fn new(number: u16, active: u16) -> Cell<M> {
        assert!(active > 0, "instruments are spread over no cell");
        Cell {
            number,
            active,
            instruments: BTreeMap::new(),
            session_count: 0,
            index: 0,
            now_ns: 0,
            snapshot: None,
            buffers: Buffers::default(),
            ownership: BTreeMap::new(),
            released_count: 0,
            departed: BTreeMap::new(),
            staged: BTreeMap::new(),
            refused: BTreeMap::new(),
            refused_before: 0,
            copies: BTreeMap::new(),
            accepts_unknown_sessions: false,
            ledger: OwnerLedger::default(),
            stops: Stops::default(),
            exposures: Exposures::default(),
            released: BTreeMap::new(),
            first_output_seq: 0,
            last_check: LimitCheck::NONE,
            watched: WatchedSessions::default(),
            retirements: vec![],
            limits: CellLimits::STANDARD,
        }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Time of the present batch, ns since 1970.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Index of the last batch that was applied.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Begins the batch of this index, at a time; the cell's time does not go back.
    pub fn begin(&mut self, index: u64, now_ns: u64) {
        self.index = index;
        self.now_ns = self.now_ns.max(now_ns);
        self.ledger.settle(self.now_ns);
    }

    /// Takes a frame of the present batch. A request is to be handled after this; a step of a move
    /// is carried out by it.
    ///
    /// # Errors
    /// If it is neither, or a step that cannot be decoded.
    pub fn admit(&mut self, frame: Frame<'_>) -> Result<Admitted, DecodeError> {
        Ok(Admitted::Move(match frame.kind() {
            Kind::Release => self.release(frame.read()?),
            Kind::Forget => self.forget(frame.read::<Forget>()?.id),
            Kind::Claim => self.claim(frame.read::<Claim>()?.id),
            Kind::MoveParts => {
                let MoveParts { id, attempt, number, parts, .. } = frame.read()?;
                self.stage(id, attempt, number, parts.bytes)?
            }
            Kind::Retire => {
                return Ok(Admitted::Retired(self.retire(frame.read::<Retire>()?.retired)));
            }
            Kind::AwayTime => {
                let AwayTime { session, cancel_after_s, owner, .. } = frame.read()?;
                self.watched.set(session, Watch { cancel_after_s, owner });
                return Ok(Admitted::Watched);
            }
            Kind::Stop => {
                let Stop { order, .. } = frame.read()?;
                self.stops.take(order);
                return Ok(Admitted::Stopped(order));
            }
            Kind::Firms => {
                let Firms { table, .. } = frame.read()?;
                self.set_firms(table);
                return Ok(Admitted::Firms(self.firms_version()));
            }
            Kind::Request => {
                let Ok(request) = frame.read::<Request>() else { return Ok(Admitted::Undecodable) };
                let is_owned = self.owns(request.instrument);
                let admitted = if is_owned { Admitted::Request } else { |_| Admitted::NotOwned };
                return Ok(admitted(request));
            }
            _ => {
                let why = "is no entry of the log of a cell";
                return Err(DecodeError::invalid("kind", why));
            }
        }))
    }

    /// Handles one request of the present batch. `emit` gets the events in order.
    pub fn handle(&mut self, request: &Request, emit: impl FnMut(&Event)) -> Handled {
        let instrument = request.instrument;
        debug_assert!(self.owns(instrument), "instrument {instrument} is in another cell");
        self.copy_before_change(instrument);
        let known = self.session(instrument, request.session).map(|session| session.owner);
        if known.is_none() {
            if request.client_seq == watched::EXCHANGE_SEQ {
                return Handled::Duplicate(None);
            }
            if let Some(reason) = self.limit_reached(request) {
                return Handled::Refused(reason);
            }
        }
        let owner = known.unwrap_or(request.owner);
        self.last_check = self.check(request, owner);
        let (now_ns, check) = (self.now_ns, self.last_check);
        let accepts_unknown_sessions = self.accepts_unknown();
        let at = Circumstances { now_ns, accepts_unknown_sessions, check };
        let is_known = self.instruments.contains_key(&instrument);
        if !is_known && !InstrumentState::<M>::is_first(request, at) {
            return Handled::SequenceGap;
        }
        let state = self.instruments.entry(instrument);
        let state = state.or_insert_with(|| InstrumentState::new(now_ns, self.first_output_seq));
        if !is_known {
            state.maker = owner;
        }
        let (before, copy) = (state.sessions.len(), self.copies.get_mut(&instrument));
        let handled = state.handle(request, at, &mut self.buffers, copy, emit);
        let sessions = state.sessions.len() - before;
        self.session_count += sessions;
        if sessions > 0 || !is_known {
            let (instruments, sessions) = (u64::from(!is_known), sessions as u64);
            self.ledger.add(owner, Holdings { instruments, sessions, orders: 0 });
        }
        if let Handled::Executed(_) = handled {
            for (owner, change) in &self.buffers.order_changes {
                self.ledger.change_orders(*owner, *change);
            }
            if self.exposures.is_active() {
                self.exposures.follow(request, &self.buffers.notifications, &mut state.exposure);
            }
        }
        handled
    }

    /// What has been decided on whether an owner may send orders.
    pub fn stops(&self) -> &Stops {
        &self.stops
    }

    /// What the cell says to a request of an owner, if it has a new order or changes one.
    #[inline]
    fn check(&self, request: &Request, owner: Owner) -> LimitCheck {
        if self.stops.is_stopped(owner) {
            return LimitCheck::of(OrdersLimit::Stopped);
        }
        if self.exposures.is_active() {
            let state = self.instruments.get(&request.instrument);
            let on = state.map(|state| (&state.exposure, state.book.phase()));
            if let Some(check) = self.exposures.check(request, on) {
                return check;
            }
        }
        LimitCheck::of(self.orders_limit(request, owner))
    }

    /// Whether the cell takes one more live order of an owner, if the request has one.
    #[inline]
    fn orders_limit(&self, request: &Request, owner: Owner) -> OrdersLimit {
        let (orders, most) = (self.ledger.orders() as usize, self.limits.orders);
        if !matches!(request.command, Command::New(_)) {
            OrdersLimit::None
        } else if orders >= most {
            OrdersLimit::Cell
        } else if !OwnerLedger::has_room(owner, self.ledger.of(owner).orders, orders, most) {
            OrdersLimit::OwnerInCell
        } else {
            OrdersLimit::None
        }
    }

    /// What was said to the last request.
    pub fn last_check(&self) -> LimitCheck {
        self.last_check
    }

    /// The limit that a session would exceed by its first request on an instrument. What is refused
    /// once is always refused: neither instruments nor sessions are forgotten once a request was
    /// executed, and those that an operator removes count until no copy is under way.
    fn limit_reached(&self, request: &Request) -> Option<RefusalReason> {
        let is_known = self.instruments.contains_key(&request.instrument);
        let own = self.ledger.of(request.owner);
        let has_room = |own, total, most| OwnerLedger::has_room(request.owner, own, total, most);
        let instruments = self.instrument_count() + self.ledger.owed_instruments();
        let sessions = self.session_count + self.ledger.owed_sessions();
        if request.session == DESK {
            // Whatever others have, an operator can halt what is traded.
            let is_full = !is_known && instruments >= self.limits.instruments;
            is_full.then_some(RefusalReason::TooManyCellInstruments)
        } else if self.ledger.is_retired(request.session) {
            Some(RefusalReason::Retired)
        } else if request.breach() == Some(Breach::NotListed) {
            Some(RefusalReason::NotListed)
        } else if !is_known && instruments >= self.limits.instruments {
            Some(RefusalReason::TooManyCellInstruments)
        } else if sessions >= self.limits.sessions {
            Some(RefusalReason::TooManyCellSessions)
        } else if !is_known && !has_room(own.instruments, instruments, self.limits.instruments) {
            Some(RefusalReason::TooManyOwnerInstruments)
        } else if !has_room(own.sessions, sessions, self.limits.sessions) {
            Some(RefusalReason::TooManyOwnerSessions)
        } else {
            None
        }
    }

    fn session(&self, instrument: InstrumentId, session: UserId) -> Option<&Session> {
        self.instruments.get(&instrument)?.sessions.get(&session)
    }

    /// The gateway through which a session last sent a request on an instrument.
    pub fn gateway_of(&self, instrument: InstrumentId, session: UserId) -> Option<u16> {
        self.session(instrument, session).map(|session| session.gateway)
    }

    /// Sequence number of the last request of a session that was executed on an instrument; zero
    /// for none.
    pub fn last_request_seq(&self, instrument: InstrumentId, session: UserId) -> u64 {
        self.session(instrument, session).map_or(0, |session| session.last_request_seq)
    }

    /// Recipients and events of the request that was executed last: by recipient, each one's in
    /// order.
    pub fn notifications(&self) -> &[(UserId, Event)] {
        &self.buffers.notifications
    }

    /// The best bid and offer, if the request that was executed last has changed them.
    pub fn new_best(&self) -> Option<[Option<Price>; 2]> {
        self.buffers.new_best
    }

    /// What the book executed of the request that was executed last, which is this one; none if
    /// that was nothing.
    pub fn applied(&self, request: &Request) -> Option<Command> {
        match self.buffers.applied {
            Applied::Command => request::authorized_command(request).ok(),
            Applied::Tick => Some(Command::Tick),
            Applied::Nothing => None,
        }
    }

    /// Sessions that the present entry has removed from instruments.
    pub fn retirements(&self) -> &[Retirement] {
        &self.retirements
    }

    /// Sequence number of the last event of a session on an instrument; zero for none.
    pub fn last_event_seq(&self, instrument: InstrumentId, session: UserId) -> u64 {
        self.session(instrument, session).map_or(0, |session| session.last_event_seq)
    }

    /// Sequence number of the last broadcast event of an instrument; zero for none.
    pub fn last_public_seq(&self, instrument: InstrumentId) -> u64 {
        self.instruments.get(&instrument).map_or(0, |state| state.public_seq)
    }

    /// What a client without its state must know of a session on an instrument: the number of its
    /// last request that was executed, and how many live orders it has.
    pub fn standing(&self, instrument: InstrumentId, session: UserId) -> (u64, u32) {
        let known = self.session(instrument, session);
        known.map_or((0, 0), |known| (known.last_request_seq, known.live_orders))
    }

    /// A session's events on an instrument after number `acknowledged`, and the number before the
    /// first of them; that is higher than `acknowledged` if some are no longer kept. None if the
    /// instrument is in another cell, also while the state that was released is kept: there may be
    /// newer events there.
    pub fn events_after(
        &self,
        instrument: InstrumentId,
        session: UserId,
        acknowledged: u64,
    ) -> Option<(u64, impl Iterator<Item = &Event>)> {
        if !self.owns(instrument) {
            return None;
        }
        let known =
            self.instruments.get(&instrument).and_then(|state| state.sessions.get(&session));
        let start = known.map_or(0, |known| known.resend_start(acknowledged));
        Some((start, known.into_iter().flat_map(move |known| known.events_after(start))))
    }

    /// Instruments with requests, and the number of the last one that was executed.
    pub fn executed(&self) -> impl Iterator<Item = (InstrumentId, u64)> {
        self.instruments.iter().map(|(instrument, state)| (*instrument, state.output_seq))
    }

    /// The book of an instrument that has had requests.
    pub fn book(&self, instrument: InstrumentId) -> Option<&M> {
        self.instruments.get(&instrument).map(|state| &state.book)
    }

    /// The complete state.
    #[expect(clippy::disallowed_methods, reason = "at the end of a node, and in replays")]
    pub fn save(&self) -> Vec<u8> {
        let mut sections = self.header();
        for (instrument, state) in &self.instruments {
            sections.extend(instrument_sections(*instrument, Background::Ready(state.save())));
        }
        snapshot::join(sections).wait()
    }

    /// Hash of the complete state, equal on every replica and after every replay.
    pub fn hash(&self) -> u64 {
        fnv1a(&self.save())
    }

    /// All but the instruments.
    fn header(&self) -> Vec<Section> {
        let mut bytes = MAGIC.to_vec();
        bytes.put_u64s(&[self.index, self.now_ns]);
        bytes.put_u16(self.number);
        bytes.put_u16(self.active);
        bytes.put_u64(self.first_output_seq);
        self.ledger.save(&mut bytes);
        self.watched.save(&mut bytes);
        self.stops.save(&mut bytes);
        self.exposures.save(&mut bytes);
        let mut sections = vec![Section::Plain(bytes)];
        self.save_moves(&mut sections);
        let count = self.instruments.len() as u64;
        sections.push(Section::Plain(count.to_le_bytes().to_vec()));
        sections
    }

    /// Begins a snapshot of the present state. One in progress is dropped.
    pub fn begin_snapshot(&mut self) {
        self.snapshot = Some(Snapshot::new(self.header(), &self.instruments));
    }

    /// Copies one more instrument; the complete snapshot when all are copied. Other threads save
    /// large instruments, and put all together if it is large, so that it may come later.
    pub fn copy_next(&mut self) -> Option<Vec<u8>> {
        let bytes = self.snapshot.as_mut()?.copy_next(&self.instruments)?;
        self.snapshot = None;
        Some(bytes)
    }

    /// Whether [`Cell::copy_next`] has something to do; else it waits for other threads.
    pub fn is_copying(&self) -> bool {
        self.snapshot.as_ref().is_some_and(Snapshot::can_copy)
    }

    /// Copies an instrument to the snapshot in progress, if it is not there yet.
    fn copy_before_change(&mut self, instrument: InstrumentId) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.copy(instrument, &self.instruments);
        }
    }

    /// A cell from what [`Cell::save`] or a snapshot wrote.
    ///
    /// # Errors
    /// If the bytes are not a saved cell.
    pub fn load(bytes: &[u8]) -> Result<Cell<M>, CellLoadError> {
        let checksum = DecodeError::checksum("checksum");
        let (content, sum) = bytes.split_last_chunk().ok_or(checksum)?;
        if nm_codec::crc32c(content) != u32::from_le_bytes(*sum) {
            return Err(checksum.into());
        }
        let mut reader = Reader::new(content);
        if reader.bytes("magic", MAGIC.len())? != MAGIC {
            return Err(DecodeError::invalid("magic", "is not that of a cell").into());
        }
        let (index, now_ns) = (reader.u64("index")?, reader.u64("now_ns")?);
        let (number, active) = (reader.u16("number")?, reader.u16("active_cells")?);
        if active == 0 {
            return Err(DecodeError::invalid("active_cells", "is zero").into());
        }
        let first_output_seq = reader.u64("first_output_seq")?;
        let ledger = OwnerLedger::load(&mut reader)?;
        let watched = WatchedSessions::load(&mut reader)?;
        let stops = Stops::load(&mut reader)?;
        let exposures = Exposures::load(&mut reader)?;
        let new = Cell::new(number, active);
        let mut cell =
            Cell { index, now_ns, first_output_seq, ledger, watched, stops, exposures, ..new };
        cell.load_moves(&mut reader)?;
        for _ in 0..reader.u64("instruments")? {
            let instrument = reader.u32("instrument")?;
            let length = usize::try_from(reader.u64("length")?).unwrap_or(usize::MAX);
            let saved = reader.bytes("state", length)?;
            let mut state = InstrumentState::load(instrument, saved)?;
            cell.session_count += state.sessions.len();
            cell.count_holdings(&state);
            cell.enter(&mut state, std::iter::empty());
            cell.instruments.insert(instrument, state);
        }
        reader.finish("instruments")?;
        Ok(cell)
    }
}

/// Index of the last batch in a saved cell.
pub fn saved_index(saved: &[u8]) -> Option<u64> {
    Reader::new(saved.strip_prefix(MAGIC)?).u64("index").ok()
}

#[cfg(test)]
mod tests {
    use super::snapshot::sealed;
    use super::testing::order;
    use super::*;
    use crate::limits::{
        CELL_INSTRUMENTS_MAX, CELL_SESSIONS_MAX, EVENTS_KEPT_MAX, OUTCOMES_MAX, SESSION_ORDERS_MAX,
    };
    use nm_book::book::Book;
    use nm_book::order::{Command, NewOrder, RejectReason, TimeInForce};
    use nm_book::reference::ReferenceBook;

    #[test]
    fn a_duplicate_gets_its_outcome_again_and_a_gap_is_not_executed() {
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
    fn orders_belong_to_their_session_and_the_exchange_to_its_operator() {
        let mut cell = Cell::<ReferenceBook>::default();
        let mut events = vec![];
        cell.handle(&order(3, 1, 1, 0), |event| events.push(*event));
        assert!(matches!(events[0], Event::Accepted { user: 3, .. }), "{events:?}");
        let halt = Request { command: Command::Halt, ..order(3, 1, 2, 1) };
        cell.handle(&halt, |event| events.push(*event));
        assert!(matches!(events[1], Event::Rejected { user: 3, .. }), "{events:?}");
        let halt = Request { command: Command::Halt, ..order(OPERATOR, 1, 1, 0) };
        cell.handle(&halt, |event| events.push(*event));
        assert_eq!(events[2], Event::Halted);
    }

    #[test]
    fn unknown_sessions_are_accepted_where_the_books_may_be_lost() {
        let mut cell = Cell::<ReferenceBook> { accepts_unknown_sessions: true, ..Cell::default() };
        // A request that may have a predecessor on its way waits for it all the same.
        assert_eq!(cell.handle(&order(2, 7, 9, 8), |_| {}), Handled::SequenceGap);
        let settled = Request { is_previous_answered: true, acknowledged: 30, ..order(2, 7, 9, 8) };
        assert_eq!(Cell::<ReferenceBook>::default().handle(&settled, |_| {}), Handled::SequenceGap);
        assert!(matches!(cell.handle(&settled, |_| {}), Handled::Executed(_)));
        assert_eq!(cell.handle(&order(2, 7, 12, 11), |_| {}), Handled::SequenceGap);
        assert!(matches!(cell.handle(&order(2, 7, 10, 9), |_| {}), Handled::Executed(_)));
        // The gap is detected, and the events from there on are known.
        let (before, events) = cell.events_after(7, 2, 30).unwrap();
        assert_eq!((before, events.count()), (30 + session::LOST_BOOKS_GAP, 2));
    }

    #[test]
    fn what_is_not_listed_leaves_no_trace_and_live_orders_of_it_are_cancelled_alone() {
        let mut cell = Cell::<ReferenceBook>::default();
        cell.begin(1, 10);
        let breach = |breach: Breach, request| Request { breach: breach.code(), ..request };
        let before = cell.hash();
        for request in [order(2, 7, 1, 0), tick(2, 7, 1)] {
            let handled = cell.handle(&breach(Breach::NotListed, request), |_| panic!());
            assert_eq!(handled, Handled::Refused(RefusalReason::NotListed));
        }
        assert_eq!(cell.hash(), before);
        let first = order(2, 7, 1, 0);
        assert!(matches!(cell.handle(&first, |_| {}), Handled::Executed(_)));
        // A copy of what was executed stays executed, whatever the master says meanwhile.
        let copy = cell.handle(&breach(Breach::NotListed, first), |_| panic!());
        assert!(matches!(copy, Handled::Duplicate(Some(_))), "{copy:?}");
        let mut events = vec![];
        for (seq, reason) in
            [(2, Breach::NotListed), (3, Breach::OutsideCollar), (4, Breach::TooLarge)]
        {
            let request = breach(reason, order(2, 7, seq, seq - 1));
            assert!(matches!(cell.handle(&request, |it| events.push(*it)), Handled::Executed(_)));
        }
        let replace = Command::Replace { id: 2 << 32 | 1, user: 2, price: 1, quantity: 1 };
        let replace = Request { command: replace, ..order(2, 7, 5, 4) };
        cell.handle(&breach(Breach::OutsideCollar, replace), |it| events.push(*it));
        let cancel = Command::Cancel { id: 2 << 32 | 1, user: 2 };
        let cancel = Request { command: cancel, ..order(2, 7, 6, 5) };
        cell.handle(&breach(Breach::NotListed, cancel), |it| events.push(*it));
        let rejected = |seq: u64, reason| Event::rejected(2 << 32 | seq, 2, reason);
        assert_eq!(
            events[..4],
            [
                rejected(2, RejectReason::NotListed),
                rejected(3, RejectReason::OutsideCollar),
                rejected(4, RejectReason::TooLarge),
                rejected(1, RejectReason::OutsideCollar),
            ]
        );
        assert!(matches!(events[4..], [Event::Cancelled { user: 2, .. }]), "{events:?}");
    }

    /// A session's stream can be read from any number on, as long as it was not acknowledged.
    #[test]
    fn events_are_kept_until_they_are_acknowledged() {
        let mut cell = Cell::<ReferenceBook>::default();
        let mut streams = BTreeMap::<UserId, Vec<Event>>::new();
        let events_after = |cell: &Cell<ReferenceBook>, session, acknowledged| {
            let (before, events) = cell.events_after(7, session, acknowledged).unwrap();
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
            assert_eq!(cell.last_event_seq(7, session), stream.len() as u64);
            assert!(stream.len() > 60, "both have the trades of their orders");
            for acknowledged in 0..=stream.len() {
                let expected = (acknowledged as u64, stream[acknowledged..].to_vec());
                assert_eq!(events_after(&cell, session, acknowledged as u64), expected);
            }
        }
        // What a session has is forgotten, and nothing else.
        let stream = &streams[&2];
        let request = Request { acknowledged: 50, ..order(2, 7, 40, 39) };
        assert!(matches!(cell.handle(&request, |_| panic!()), Handled::Duplicate(Some(_))));
        assert_eq!(events_after(&cell, 2, 10), (50, stream[50..].to_vec()));
        let loaded = Cell::<ReferenceBook>::load(&cell.save()).unwrap();
        assert_eq!(events_after(&loaded, 2, 60), (60, stream[60..].to_vec()));
        // A claim to have what never was does no harm, and a stranger has nothing.
        assert_eq!(events_after(&loaded, 2, 1 << 60), (stream.len() as u64, vec![]));
        assert_eq!(events_after(&loaded, 9, 5), (0, vec![]));
        // There is an end to what is kept.
        for seq in 41..=40 + EVENTS_KEPT_MAX as u64 {
            cell.handle(&order(2, 7, seq, seq - 1), |_| {});
        }
        let last = cell.last_event_seq(7, 2);
        let (before, events) = events_after(&cell, 2, 60);
        assert_eq!((before, events.len()), (last - EVENTS_KEPT_MAX as u64, EVENTS_KEPT_MAX));
    }

    fn tick(session: UserId, instrument: InstrumentId, client_seq: u64) -> Request {
        let previous_seq = client_seq - 1;
        Request { command: Command::Tick, ..order(session, instrument, client_seq, previous_seq) }
    }

    /// Whether each request is refused, and the cell stays as it was.
    fn are_refused(
        cell: &mut Cell<ReferenceBook>,
        requests: &[Request],
        expected: RefusalReason,
    ) -> bool {
        let before = cell.hash();
        let refused =
            |request: &Request| cell.handle(request, |_| panic!()) == Handled::Refused(expected);
        requests.iter().all(refused) && cell.hash() == before
    }

    #[test]
    fn a_cell_has_a_number_of_sessions_and_refuses_more_without_a_trace() {
        let mut cell = Cell::<ReferenceBook>::default();
        let instruments = 4;
        for at in 0..CELL_SESSIONS_MAX as u32 {
            let handled = cell.handle(&tick(at / instruments, at % instruments, 1), |_| {});
            assert!(matches!(handled, Handled::Executed(_)), "{handled:?}");
        }
        let reason = RefusalReason::TooManyCellSessions;
        let stranger = CELL_SESSIONS_MAX as u32;
        // Whatever it names as its predecessor, on a known instrument and on a new one, and again
        // after a restart from a snapshot.
        let requests = [tick(stranger, 0, 1), tick(stranger, 0, 7), tick(0, 99, 1)];
        assert!(are_refused(&mut cell, &requests, reason));
        let mut cell = Cell::<ReferenceBook>::load(&cell.save()).unwrap();
        assert!(are_refused(&mut cell, &requests, reason));
        assert!(matches!(cell.handle(&tick(0, 0, 2), |_| {}), Handled::Executed(_)));
    }

    #[test]
    fn a_cell_has_a_number_of_instruments_and_refuses_more_without_a_trace() {
        let mut cell = Cell::<ReferenceBook>::default();
        for instrument in 0..CELL_INSTRUMENTS_MAX as u32 {
            let handled = cell.handle(&tick(1, instrument, 1), |_| {});
            assert!(matches!(handled, Handled::Executed(_)), "{handled:?}");
        }
        let requests = [tick(1, CELL_INSTRUMENTS_MAX as u32, 1)];
        assert!(are_refused(&mut cell, &requests, RefusalReason::TooManyCellInstruments));
        let mut cell = Cell::<ReferenceBook>::load(&cell.save()).unwrap();
        assert!(are_refused(&mut cell, &requests, RefusalReason::TooManyCellInstruments));
        assert!(matches!(cell.handle(&tick(2, 0, 1), |_| {}), Handled::Executed(_)));
    }

    /// A request that is not executed makes neither a session nor an instrument.
    #[test]
    fn a_request_with_an_unknown_predecessor_leaves_no_trace() {
        let mut cell = Cell::<ReferenceBook>::default();
        let before = cell.hash();
        assert_eq!(cell.handle(&order(2, 7, 5, 3), |_| panic!()), Handled::SequenceGap);
        assert_eq!(cell.hash(), before);
    }

    #[test]
    fn a_session_has_a_number_of_live_orders_on_an_instrument() {
        let mut cell = Cell::<Book>::default();
        let most = u64::from(SESSION_ORDERS_MAX);
        let mut client_seq = 0;
        let mut send = |cell: &mut Cell<Book>, change: &dyn Fn(&mut NewOrder)| {
            client_seq += 1;
            let mut request = order(3, 7, client_seq, client_seq - 1);
            let Command::New(order) = &mut request.command else { panic!("it is an order") };
            change(order);
            let mut events = vec![];
            cell.handle(&request, |event| events.push(*event));
            events
        };
        let until_ns = 500;
        let timed = |order: &mut NewOrder| order.time_in_force = TimeInForce::GoodTill(until_ns);
        assert!(matches!(send(&mut cell, &timed)[..], [Event::Accepted { .. }]));
        for _ in 1..most {
            assert!(matches!(send(&mut cell, &|_| {})[..], [Event::Accepted { .. }]));
        }
        let rejected = |events: &[Event]| match events.last() {
            Some(Event::Rejected { reason, .. }) => Some(*reason),
            _ => None,
        };
        let reason = Some(RejectReason::TooManyOwnOrders);
        assert_eq!(rejected(&send(&mut cell, &|_| {})), reason);
        // Not beside others, and not for an order that does not rest.
        let other = order(5, 7, 1, 0);
        cell.handle(&other, |event| assert!(matches!(event, Event::Accepted { .. })));
        let immediate = |order: &mut NewOrder| order.time_in_force = TimeInForce::ImmediateOrCancel;
        assert_eq!(rejected(&send(&mut cell, &immediate)), None);
        // The number is that of the book after a restart from a snapshot.
        let mut cell = Cell::<Book>::load(&cell.save()).unwrap();
        assert_eq!(rejected(&send(&mut cell, &|_| {})), reason);
        // An order that has expired leaves with the rejected one.
        cell.begin(2, until_ns);
        let events = send(&mut cell, &|_| {});
        assert!(matches!(events[..], [Event::Cancelled { .. }, Event::Rejected { .. }]));
        assert_eq!(rejected(&send(&mut cell, &|_| {})), None);
        assert_eq!(rejected(&send(&mut cell, &|_| {})), reason);
    }

    /// The live orders of each session are those that its books have.
    fn count_orders(cell: &Cell<ReferenceBook>) {
        for state in cell.instruments.values() {
            let mut live = BTreeMap::<UserId, u32>::new();
            state.book.visit_users(&mut |user| *live.entry(user).or_default() += 1);
            for (user, session) in &state.sessions {
                assert_eq!(session.live_orders, live.remove(user).unwrap_or(0), "session {user}");
            }
            assert_eq!(live, BTreeMap::new());
        }
    }

    use proptest::prelude::*;

    /// A request that comes: whose, on which instrument, and how far before or after the one that
    /// is due it is.
    fn arrival() -> impl Strategy<Value = (UserId, InstrumentId, i64)> {
        (0..3u32, 0..3u32, prop_oneof![6 => Just(0i64), 1 => -5..0i64, 1 => 1..4i64])
    }

    proptest! {
        /// Whatever is lost, repeated or comes too early: each request is carried out once and in
        /// order, its outcome is repeated as it was, and saving and loading anywhere in between
        /// changes nothing.
        #[test]
        fn requests_are_executed_once_and_in_order(
            arrivals in prop::collection::vec(arrival(), 1..200),
            cuts in prop::collection::btree_set(0usize..200, 0..4),
        ) {
            let mut cell = Cell::<ReferenceBook>::default();
            let mut complete = Cell::<ReferenceBook>::default();
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
                for cell in [&mut cell, &mut complete] {
                    cell.begin(at as u64 + 1, at as u64);
                }
                let handled = cell.handle(&request, |_| {});
                prop_assert_eq!(complete.handle(&request, |_| {}), handled);
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
                        let kept = outcomes.len().saturating_sub(OUTCOMES_MAX) < seq as usize;
                        let known = kept.then(|| outcomes[seq as usize - 1]);
                        prop_assert_eq!(handled, Handled::Duplicate(known));
                    }
                }
            }
            prop_assert_eq!(cell.hash(), complete.hash());
            count_orders(&cell);
            count_orders(&complete);
        }

        #[test]
        fn any_bytes_are_a_cell_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            change in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let _ = Cell::<ReferenceBook>::load(&bytes);
            let marked = sealed([&MAGIC[..], &bytes].concat());
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
    fn a_snapshot_is_the_state_at_its_beginning_despite_later_requests() {
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
