//! What an operator directs on an instrument: which requests of the [`DESK`] are missing for it.
//!
//! The desk is a session of its own, whose requests the leader of the cell makes. They are executed
//! as those of all sessions are: in the order of the log, by every replica, and by every replay.

use nm_book::order::{Closing, Command, InstrumentId, Matching, TradingPhase, UserId};
use nm_wire::{Direction, Owner, Request, Retired};

use super::Cell;
use super::handled::Missing;
use super::request::DESK;
use super::session::Session;

/// The gateway of the desk: there is none, so that nobody gets its replies.
const NO_GATEWAY: u16 = u16::MAX;

/// Sessions whose orders one group of requests cancels; further groups do the rest.
const CANCELLED_AT_ONCE: usize = 64;

/// Whether a session belongs to whom a direction names.
fn is_whose(whose: Retired, user: UserId, session: &Session) -> bool {
    match whose {
        Retired::Session { session } => session == user,
        Retired::Owner { owner } => session.owner == owner && owner.is_somebody(),
    }
}

impl<M: Matching> Cell<M> {
    /// What is missing for a direction on an instrument that is here.
    pub fn missing(&self, instrument: InstrumentId, direction: Direction) -> Missing {
        use TradingPhase::{Auction, Continuous, Halted};
        let book = self.book(instrument);
        let phase = book.map_or(Continuous, |book| book.phase());
        let closing = book.map_or(Closing::No, |book| book.closing());
        let is_over = closing == Closing::No && book.is_none_or(|book| book.is_empty());
        let commands: &[Command] = match (direction, phase) {
            (Direction::Halt, Halted)
            | (Direction::Resume, Continuous | Auction)
            | (Direction::Auction | Direction::PreOpen, Auction)
            | (Direction::Uncross, Continuous) => &[],
            (Direction::Close, Halted) | (Direction::EndOfDay, _) if is_over => &[],
            (Direction::ExpectClosing, _) if closing != Closing::No => &[],
            (Direction::ClosingAuction, Auction) if closing == Closing::Begun => &[],
            (Direction::Auction | Direction::ClosingAuction | Direction::Uncross, Halted) => {
                return Missing::Unfit;
            }
            (Direction::ExpectClosing, _) => &[Command::ExpectClosing],
            (Direction::ClosingAuction, _) => &[Command::BeginClosing],
            (Direction::Halt, Continuous | Auction) => &[Command::Halt],
            (Direction::Resume, Halted) => &[Command::Resume],
            (Direction::Auction, Continuous) | (Direction::PreOpen, _) => &[Command::BeginAuction],
            (Direction::Uncross, Auction) => &[Command::Uncross],
            (Direction::EndOfDay, _) | (Direction::Close, Halted) => &[Command::EndOfDay],
            (Direction::Close, Continuous) => &[Command::EndOfDay, Command::Halt],
            (Direction::Close, Auction) => &[Command::Uncross, Command::EndOfDay, Command::Halt],
            (Direction::Cancel { whose }, _) => {
                let users = self.with_live_orders(instrument, whose);
                return match users.is_empty() {
                    true => Missing::Nothing,
                    false => Missing::Commands(
                        users.into_iter().map(|user| Command::MassCancel { user }).collect(),
                    ),
                };
            }
        };
        match commands {
            [] => Missing::Nothing,
            commands => Missing::Commands(commands.to_vec()),
        }
    }

    /// Some sessions with live orders on an instrument, of those that are meant.
    fn with_live_orders(&self, instrument: InstrumentId, whose: Retired) -> Vec<UserId> {
        let sessions = self.instruments.get(&instrument).into_iter().flat_map(|it| &it.sessions);
        let concerned = sessions
            .filter(|(user, session)| session.live_orders > 0 && is_whose(whose, **user, session));
        concerned.map(|(user, _)| *user).take(CANCELLED_AT_ONCE).collect()
    }

    /// Sessions on an instrument, of those that are meant.
    pub fn sessions_of(&self, instrument: InstrumentId, whose: Retired) -> u64 {
        let sessions = self.instruments.get(&instrument).into_iter().flat_map(|it| &it.sessions);
        sessions.filter(|(user, session)| is_whose(whose, **user, session)).count() as u64
    }

    /// The desk's next requests on an instrument. They follow on what was executed last: if another
    /// one of the desk is executed before, none of these is.
    pub fn desk_requests(
        &self,
        instrument: InstrumentId,
        commands: &[Command],
        now_ns: u64,
    ) -> Vec<Request> {
        let last = self.last_request_seq(instrument, DESK);
        // By the time, so that they do not have the numbers of what a leader before has made.
        let first = last.max(now_ns) + 1;
        let request = |(command, client_seq): (&Command, u64)| Request {
            instrument,
            session: DESK,
            client_seq,
            previous_seq: if client_seq == first { last } else { client_seq - 1 },
            acknowledged: self.last_event_seq(instrument, DESK),
            intended_ns: now_ns,
            owner: Owner::NOBODY,
            map_version: 0,
            gateway: NO_GATEWAY,
            cell: self.number(),
            attempt: 0,
            is_previous_answered: true,
            breach: 0,
            command: *command,
        };
        commands.iter().zip(first..).map(request).collect()
    }
}

#[cfg(test)]
mod tests {
    use nm_book::book::Book;
    use nm_book::limits::PEGS_MAX;
    use nm_book::order::{
        CancelReason, Event, NewOrder, OrderType, Peg, RejectReason, Side, TimeInForce,
    };
    use nm_book::reference::ReferenceBook;
    use nm_wire::{Block, Frame, Part, Stop, StopOrder, Value};
    use proptest::prelude::*;

    use super::super::testing::order;
    use super::super::{Admitted, CopyPiece, Handled};
    use super::*;
    use crate::moves::{Attempt, MoveId, Release};

    const INSTRUMENT: InstrumentId = 6;

    const ALL: [Direction; 9] = [
        Direction::Halt,
        Direction::Resume,
        Direction::Auction,
        Direction::Uncross,
        Direction::EndOfDay,
        Direction::PreOpen,
        Direction::Close,
        Direction::ExpectClosing,
        Direction::ClosingAuction,
    ];

    fn owner_of(session: UserId) -> Owner {
        Owner::of_firm(session / 2)
    }

    fn next<M: Matching>(cell: &Cell<M>, session: UserId) -> Request {
        let last = cell.last_request_seq(INSTRUMENT, session);
        Request { owner: owner_of(session), ..order(session, INSTRUMENT, last + 1, last) }
    }

    /// Carries out a direction, once; the events.
    fn direct<M: Matching>(cell: &mut Cell<M>, direction: Direction) -> Vec<Event> {
        let Missing::Commands(commands) = cell.missing(INSTRUMENT, direction) else {
            return vec![];
        };
        let mut events = vec![];
        for request in cell.desk_requests(INSTRUMENT, &commands, 5) {
            let handled = cell.handle(&request, |event| events.push(*event));
            assert!(matches!(handled, Handled::Executed(_)), "{handled:?}");
        }
        events
    }

    fn stop<M: Matching>(cell: &mut Cell<M>, order: StopOrder) {
        let mut bytes = vec![];
        nm_wire::write(&Stop { cell: 0, order }, &mut bytes);
        let frame: Frame<'_> = nm_wire::read(&bytes).unwrap().unwrap();
        assert_eq!(cell.admit(frame), Ok(Admitted::Stopped(order)));
    }

    #[test]
    fn a_direction_leads_to_its_phase_from_each_phase_and_nothing_is_missing_then() {
        use TradingPhase::{Auction, Continuous, Halted};
        let phase = |cell: &Cell<Book>| cell.book(INSTRUMENT).map_or(Continuous, Book::phase);
        let to = |before: &[Direction], direction| {
            let mut cell = Cell::<Book>::default();
            before.iter().for_each(|it| drop(direct(&mut cell, *it)));
            let is_unfit = cell.missing(INSTRUMENT, direction) == Missing::Unfit;
            assert!(direct(&mut cell, direction).iter().all(|it| !is_rejection(it)));
            if !is_unfit {
                assert_eq!(cell.missing(INSTRUMENT, direction), Missing::Nothing);
            }
            (phase(&cell), is_unfit)
        };
        let from_each = |direction| {
            let starts: [&[Direction]; 4] = [
                &[],
                &[Direction::Auction],
                &[Direction::Halt],
                &[Direction::Auction, Direction::Halt],
            ];
            starts.map(|before| to(before, direction))
        };
        let all = |phases: [TradingPhase; 4]| phases.map(|phase| (phase, false));
        let halted = (Halted, true);
        assert_eq!(from_each(Direction::Halt), all([Halted; 4]));
        let resumed = [Continuous, Auction, Continuous, Auction];
        assert_eq!(from_each(Direction::Resume), all(resumed));
        let auction = [(Auction, false), (Auction, false), halted, halted];
        assert_eq!(from_each(Direction::Auction), auction);
        let uncross = [(Continuous, false), (Continuous, false), halted, halted];
        assert_eq!(from_each(Direction::Uncross), uncross);
        assert_eq!(from_each(Direction::EndOfDay), all([Continuous, Auction, Halted, Halted]));
        assert_eq!(from_each(Direction::PreOpen), all([Auction; 4]));
        assert_eq!(from_each(Direction::Close), all([Halted; 4]));
        assert_eq!(from_each(Direction::ClosingAuction), auction);
        let as_before = [Continuous, Auction, Halted, Halted];
        assert_eq!(from_each(Direction::ExpectClosing), all(as_before));
    }

    #[test]
    fn orders_for_the_closing_auction_are_accepted_until_it_has_ended() {
        let mut cell = Cell::<Book>::default();
        let send =
            |cell: &mut Cell<Book>| send(cell, 2, |it| it.time_in_force = TimeInForce::AtClose);
        assert!(!send(&mut cell));
        direct(&mut cell, Direction::ExpectClosing);
        assert!(send(&mut cell));
        direct(&mut cell, Direction::Auction);
        direct(&mut cell, Direction::ClosingAuction);
        assert!(send(&mut cell));
        let events = direct(&mut cell, Direction::Close);
        let closed =
            |it: &&Event| matches!(it, Event::Cancelled { reason: CancelReason::Closed, .. });
        assert_eq!(events.iter().filter(closed).count(), 2, "{events:?}");
        direct(&mut cell, Direction::PreOpen);
        assert!(!send(&mut cell));
        // One that was expected and did not come is not the next day's.
        direct(&mut cell, Direction::ExpectClosing);
        direct(&mut cell, Direction::Halt);
        direct(&mut cell, Direction::Close);
        direct(&mut cell, Direction::PreOpen);
        assert!(!send(&mut cell));
    }

    fn is_rejection(event: &Event) -> bool {
        matches!(event, Event::Rejected { .. })
    }

    #[test]
    fn the_close_trades_the_auction_cancels_day_orders_and_keeps_the_others() {
        let mut cell = Cell::<Book>::default();
        direct(&mut cell, Direction::PreOpen);
        for (session, is_day) in [(2, false), (3, false), (4, true), (6, false)] {
            let mut request = next(&cell, session);
            if let Command::New(new) = &mut request.command
                && is_day
            {
                new.time_in_force = TimeInForce::Day;
            }
            cell.handle(&request, |event| assert!(!is_rejection(event)));
        }
        let events = direct(&mut cell, Direction::Close);
        let users: Vec<_> = events.iter().map(|it| it.users()[0]).collect();
        assert_eq!(users, [None, Some(2), Some(4), None], "{events:?}");
        assert!(matches!(events[1], Event::Traded { taker_user: 3, .. }), "{events:?}");
        assert!(matches!(events[3], Event::Halted));
        assert_eq!(cell.book(INSTRUMENT).unwrap().len(), 1, "that of session 6");
        // The streams of others have what concerns them, also if they do not ask.
        assert_eq!(
            (cell.last_event_seq(INSTRUMENT, 2), cell.last_event_seq(INSTRUMENT, 6)),
            (2, 1)
        );
    }

    #[test]
    fn an_operator_can_halt_what_is_traded_in_a_full_cell() {
        let mut cell = Cell::<Book>::default();
        cell.limits.sessions = 1;
        cell.handle(&next(&cell, 2), |_| {});
        assert!(matches!(cell.handle(&next(&cell, 4), |_| {}), Handled::Refused(_)));
        assert_eq!(direct(&mut cell, Direction::Halt), [Event::Halted]);
    }

    #[test]
    fn requests_of_the_desk_follow_each_other_or_none_is_executed() {
        let mut cell = Cell::<Book>::default();
        let Missing::Commands(commands) = cell.missing(INSTRUMENT, Direction::Close) else {
            panic!("it is open")
        };
        let [before, after] = [4, 6].map(|at| cell.desk_requests(INSTRUMENT, &commands, at));
        direct(&mut cell, Direction::Halt);
        for request in before.into_iter().chain(after) {
            let handled = cell.handle(&request, |_| panic!("{request:?}"));
            assert!(!matches!(handled, Handled::Executed(_)));
        }
    }

    /// An instrument that comes from another cell brings what that one knows.
    #[test]
    fn a_stopped_owner_is_stopped_where_its_instruments_go() {
        let (mut source, mut target) = (Cell::<Book>::new(0, 2), Cell::<Book>::new(1, 2));
        source.handle(&next(&source, 2), |_| {});
        let order = StopOrder { owner: owner_of(2), version: 4, is_stopped: true };
        stop(&mut source, order);
        move_to(&mut target, &mut source);
        let mut events = vec![];
        target.handle(&next(&target, 2), |event| events.push(*event));
        let reason = RejectReason::OwnerStopped;
        assert!(matches!(events[..], [Event::Rejected { reason: it, .. }] if it == reason));
    }

    /// Sends a new order with some changes; whether it is accepted.
    fn send(cell: &mut Cell<Book>, session: UserId, change: impl FnOnce(&mut NewOrder)) -> bool {
        let mut request = next(cell, session);
        let Command::New(new) = &mut request.command else { panic!("no order") };
        change(new);
        let mut events = vec![];
        cell.handle(&request, |event| events.push(*event));
        matches!(events[..], [Event::Accepted { .. }])
    }

    #[test]
    fn what_nobody_sees_moves_with_its_instrument() {
        let (mut source, mut target) = (Cell::<Book>::new(0, 2), Cell::<Book>::new(1, 2));
        direct(&mut source, Direction::ExpectClosing);
        assert!(send(&mut source, 2, |it| it.is_hidden = true));
        assert!(send(&mut source, 3, |it| it.time_in_force = TimeInForce::AtClose));
        move_to(&mut target, &mut source);
        let book = target.book(INSTRUMENT).unwrap();
        assert_eq!((book.len(), book.best_price(Side::Buy)), (2, None));
        assert_eq!((book.best_price(Side::Sell), book.closing()), (None, Closing::Expected));
        // They are of both sides, and trade in the closing auction alone.
        direct(&mut target, Direction::ClosingAuction);
        let events = direct(&mut target, Direction::Uncross);
        assert!(matches!(events[1], Event::Traded { maker_user: 2, taker_user: 3, .. }));
    }

    #[test]
    fn a_pegged_order_moves_with_its_instrument_and_goes_on_following() {
        let (mut source, mut target) = (Cell::<Book>::new(0, 2), Cell::<Book>::new(1, 2));
        let at = |price, side| move |it: &mut NewOrder| (it.price, it.side) = (price, side);
        assert!(send(&mut source, 2, at(90, Side::Buy)));
        assert!(send(&mut source, 3, at(96, Side::Sell)));
        assert!(send(&mut source, 4, |it| {
            (it.side, it.peg, it.order_type) = (Side::Buy, Peg::Mid, OrderType::Market);
        }));
        let sell = |cell: &mut Cell<Book>, price| {
            let mut request = next(cell, 6);
            let Command::New(new) = &mut request.command else { panic!("no order") };
            (new.side, new.price, new.quantity) = (Side::Sell, price, 1);
            new.time_in_force = TimeInForce::ImmediateOrCancel;
            let mut traded = None;
            cell.handle(&request, |event| {
                if let Event::Traded { maker_user, price, .. } = event {
                    traded = Some((*maker_user, *price));
                }
            });
            traded
        };
        assert_eq!(sell(&mut source, 93), Some((4, 93)));
        let hash = source.book(INSTRUMENT).unwrap().hash();
        move_to(&mut target, &mut source);
        assert_eq!(target.book(INSTRUMENT).unwrap().hash(), hash);
        assert_eq!(sell(&mut target, 93), Some((4, 93)));
        assert!(send(&mut target, 2, at(92, Side::Buy)));
        assert_eq!(sell(&mut target, 94), Some((4, 94)));
    }

    #[test]
    fn an_owner_has_a_quota_of_pegged_orders_and_others_have_room() {
        let mut cell = Cell::<Book>::default();
        let pegged = |it: &mut NewOrder| (it.peg, it.side) = (Peg::Mid, Side::Buy);
        for at in 0..PEGS_MAX as u32 / 2 {
            assert!(send(&mut cell, 2 + at % 2, pegged), "{at}");
        }
        let mut request = next(&cell, 2);
        let Command::New(new) = &mut request.command else { panic!("no order") };
        pegged(new);
        let mut events = vec![];
        cell.handle(&request, |event| events.push(*event));
        let full = RejectReason::TooManyOwnerPegs;
        assert!(matches!(events[..], [Event::Rejected { reason, .. }] if reason == full));
        assert!(send(&mut cell, 2, |_| {}), "one that is not pegged");
        assert!(send(&mut cell, 4, pegged), "another owner");
    }

    /// Moves the instrument to another cell.
    fn move_to(target: &mut Cell<Book>, source: &mut Cell<Book>) {
        let id = MoveId { instrument: INSTRUMENT, epoch: 1 };
        let mut body = vec![];
        Part::Start { start: source.begin_copy(INSTRUMENT) }.put(&mut body);
        while let std::task::Poll::Ready(Some(piece)) = source.next_piece(INSTRUMENT, 1 << 20) {
            match piece {
                CopyPiece::Sessions(bytes) => {
                    Part::Sessions { saved: Block(&bytes) }.put(&mut body)
                }
                CopyPiece::Book(bytes) => Part::Book { saved: Block(&bytes) }.put(&mut body),
            }
        }
        Part::BookEnd.put(&mut body);
        source.release(Release { id, cell: 0, to: 1 });
        source.put_end(INSTRUMENT, &mut body);
        target.stage(id, Attempt(1), 0, &body).unwrap();
        assert!(target.owns(INSTRUMENT));
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Order(UserId),
        AtClose(UserId),
        Immediate(UserId),
        Replace(UserId),
        Direct(Direction),
        Stop(UserId, u64, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let cancel = (2..8u32).prop_map(|session| Direction::Cancel {
            whose: match session % 2 {
                0 => Retired::Session { session },
                _ => Retired::Owner { owner: owner_of(session) },
            },
        });
        prop_oneof![
            10 => (2..8u32).prop_map(Step::Order),
            2 => (2..8u32).prop_map(Step::Immediate),
            3 => (2..8u32).prop_map(Step::AtClose),
            4 => (2..8u32).prop_map(Step::Replace),
            3 => prop::sample::select(&ALL[..]).prop_map(Step::Direct),
            2 => cancel.prop_map(Step::Direct),
            2 => (2..8u32, 1..6u64, any::<bool>())
                .prop_map(|(it, version, is_stopped)| Step::Stop(it, version, is_stopped)),
        ]
    }

    /// The request of a step.
    fn request_of<M: Matching>(cell: &Cell<M>, step: Step) -> Option<Request> {
        let (Step::Order(session)
        | Step::AtClose(session)
        | Step::Immediate(session)
        | Step::Replace(session)) = step
        else {
            return None;
        };
        let mut request = next(cell, session);
        let first = u64::from(session) << 32 | 1;
        match (step, &mut request.command) {
            (Step::Immediate(_), Command::New(new)) => {
                new.time_in_force = TimeInForce::ImmediateOrCancel;
            }
            (Step::AtClose(_), Command::New(new)) => new.time_in_force = TimeInForce::AtClose,
            (Step::Replace(_), command) => {
                *command = Command::Replace { id: first, user: 0, price: 100, quantity: 9 };
            }
            _ => {}
        }
        Some(request)
    }

    fn carry_out<M: Matching>(cell: &mut Cell<M>, step: Step) -> Vec<Event> {
        let mut events = vec![];
        match step {
            Step::Direct(direction) => events = direct(cell, direction),
            Step::Stop(session, version, is_stopped) => {
                stop(cell, StopOrder { owner: owner_of(session), version, is_stopped });
            }
            step => {
                let request = request_of(cell, step).unwrap();
                let handled = cell.handle(&request, |event| events.push(*event));
                assert!(matches!(handled, Handled::Executed(_)), "{handled:?}");
            }
        }
        events
    }

    proptest! {
        /// Both books come to the same state, also from a snapshot in between; a stopped owner has
        /// no order accepted or replaced; and a direction that was carried out is done.
        #[test]
        fn directions_and_stops_lead_both_books_to_the_same_state(
            steps in prop::collection::vec(step(), 1..120),
            saved_at in 0..120usize,
        ) {
            let (mut fast, mut plain) = (Cell::<Book>::default(), Cell::<ReferenceBook>::default());
            for (number, step) in steps.into_iter().enumerate() {
                if number == saved_at {
                    fast = Cell::load(&fast.save()).unwrap();
                }
                let events = carry_out(&mut fast, step);
                prop_assert_eq!(&events, &carry_out(&mut plain, step));
                prop_assert_eq!(fast.hash(), plain.hash());
                match step {
                    Step::Direct(Direction::Cancel { whose }) => {
                        prop_assert_eq!(fast.holdings_of(whose).orders, 0);
                    }
                    Step::Direct(_) | Step::Stop(..) => {}
                    step => {
                        let owner = request_of(&fast, step).unwrap().owner;
                        let took = events.iter().any(|event| {
                            matches!(event, Event::Accepted { .. } | Event::Replaced { .. })
                        });
                        prop_assert!(!(took && fast.stops().is_stopped(owner)), "{:?}", events);
                    }
                }
            }
        }
    }
}
