//! What a session or an owner has in a cell goes, when an operator removes it.
//!
//! One entry of the log does a part of it, so that no entry keeps the replicas busy for long. The
//! operator sends further ones until nothing is left. An instrument goes when no session is left on
//! it. What is on its way to another cell is not touched: it goes there, by an entry of that cell.

use nm_book::order::{InstrumentId, Matching, TradingPhase, UserId};
use nm_wire::{BookPosition, Holdings, Owner, Retired};

use crate::limits::RETIRE_WORK_MAX;

use super::Cell;
use super::handled::Retirement;
use super::holdings::{Owed, Places};
use super::instrument::InstrumentState;
use super::request::DESK;
use super::session::Session;

/// Whether a session is to be removed.
fn is_retired(retired: Retired, user: UserId, session: &Session) -> bool {
    match retired {
        Retired::Session { session } => session == user,
        Retired::Owner { owner } => session.owner == owner,
    }
}

/// Whether what an owner has made is to be removed.
fn is_maker(retired: Retired, maker: Owner) -> bool {
    matches!(retired, Retired::Owner { owner } if owner == maker && owner.is_somebody())
}

impl<M: Matching> Cell<M> {
    /// What a session or an owner has here, also on instruments that were released and are kept.
    pub fn holdings_of(&self, retired: Retired) -> Holdings {
        let departed = self.departed.values().map(|departed| &departed.state);
        let mut all = Holdings::default();
        for state in self.instruments.values().chain(departed) {
            all.instruments += u64::from(is_maker(retired, state.maker));
            for (user, session) in &state.sessions {
                if is_retired(retired, *user, session) {
                    all.sessions += 1;
                    all.orders += u64::from(session.live_orders);
                }
            }
        }
        all
    }

    /// Removes a part of what a session or an owner has; how many sessions on instruments.
    pub(super) fn retire(&mut self, retired: Retired) -> u64 {
        let concerns = |state: &InstrumentState<M>| {
            let mut sessions = state.sessions.iter();
            is_maker(retired, state.maker) || sessions.any(|(it, at)| is_retired(retired, *it, at))
        };
        let concerned = self.instruments.iter().filter(|(_, state)| concerns(state));
        let concerned: Vec<InstrumentId> = concerned.map(|(instrument, _)| *instrument).collect();
        self.retirements.clear();
        let (mut work, mut removed) = (0, 0);
        for instrument in concerned {
            if work >= RETIRE_WORK_MAX {
                return removed;
            }
            removed += self.retire_on(instrument, retired, &mut work);
        }
        if let Retired::Owner { owner } = retired {
            self.retire_released(owner);
        }
        removed
    }

    /// Removes what a session or an owner has on an instrument, as far as the work allows.
    fn retire_on(&mut self, instrument: InstrumentId, retired: Retired, work: &mut usize) -> u64 {
        self.copy_before_change(instrument);
        let Cell {
            instruments, copies, ledger, now_ns, session_count, retirements, exposures, ..
        } = self;
        let Some(state) = instruments.get_mut(&instrument) else { return 0 };
        let all = state.sessions.iter().filter(|(user, at)| is_retired(retired, **user, at));
        let users: Vec<UserId> = all.map(|(user, _)| *user).collect();
        let mut removed = 0;
        for user in &users {
            if *work >= RETIRE_WORK_MAX {
                return removed;
            }
            let (looked_at, previous_history) = (state.book.len(), state.history);
            let Some(session) = state.retire(*user, copies.get_mut(&instrument)) else { continue };
            exposures.remove(*user, &mut state.exposure);
            let (output_seq, history) = (state.output_seq, state.history);
            let position = BookPosition { instrument, output_seq, history };
            retirements.push(Retirement { user: *user, previous_history, position });
            let orders = u64::from(session.live_orders);
            *work += 1 + if orders > 0 { looked_at } else { 0 };
            ledger.remove(session.owner, Holdings { orders, ..Holdings::default() });
            let owed = Owed {
                owner: session.owner,
                session: Some(*user),
                of_owner: Places::SESSION,
                of_all: Places::SESSION,
            };
            ledger.owe(*now_ns, owed);
            *session_count -= 1;
            removed += 1;
        }
        // What an operator has directed is kept while it holds.
        let is_desk_alone = state.sessions.keys().all(|user| *user == DESK);
        let is_as_new = state.book.phase() == TradingPhase::Continuous;
        let is_empty = is_desk_alone && (is_as_new || state.sessions.is_empty());
        if is_maker(retired, state.maker) || is_empty {
            let owner = std::mem::take(&mut state.maker);
            let of_all = if is_empty { Places::INSTRUMENT } else { Places::default() };
            let of_owner = Places::INSTRUMENT;
            ledger.owe(*now_ns, Owed { owner, session: None, of_owner, of_all });
        }
        if is_empty && let Some(state) = self.instruments.remove(&instrument) {
            // A book that begins again does not repeat the numbers of the one before.
            self.first_output_seq = self.first_output_seq.max(state.output_seq);
            self.session_count -= state.sessions.len();
            state.drop_elsewhere();
        }
        removed
    }

    /// Instruments that were released do not count any more as an owner's.
    fn retire_released(&mut self, owner: Owner) {
        for (instrument, counted) in &mut self.released {
            let Some(of_owner) = counted.remove(&owner) else { continue };
            let of_all = Places { instruments: 0, ..of_owner };
            self.ledger.owe(self.now_ns, Owed { owner, session: None, of_owner, of_all });
            self.session_count -= of_owner.sessions as usize;
            if let Some(known) = self.ownership.get_mut(instrument) {
                known.sessions -= of_owner.sessions;
                self.released_count -= usize::from(known.sessions == 0 && of_owner.sessions > 0);
            }
        }
        self.released.retain(|_, counted| !counted.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use nm_book::book::Book;
    use nm_book::order::{Command, Event, RejectReason, TimeInForce};
    use nm_book::reference::ReferenceBook;
    use nm_wire::{RefusalReason, Request};
    use proptest::prelude::*;

    use super::super::Handled;
    use super::super::holdings::OwnerLedger;
    use super::super::testing::order;
    use super::*;
    use crate::limits::{CellLimits, RETIRED_NS};
    use crate::moves::{MoveId, Release};

    const ONE: Owner = Owner::of_user(1);
    const OTHER: Owner = Owner::of_user(2);

    const LIMITS: CellLimits = CellLimits { instruments: 40, sessions: 100, orders: 60 };

    fn cell<M: Matching>() -> Cell<M> {
        Cell { limits: LIMITS, ..Cell::default() }
    }

    /// The first request of a session on an instrument.
    fn tick(owner: Owner, session: UserId, instrument: InstrumentId) -> Request {
        Request { command: Command::Tick, owner, ..order(session, instrument, 1, 0) }
    }

    /// Why a request is refused, if it is.
    fn refusal<M: Matching>(cell: &mut Cell<M>, request: &Request) -> Option<RefusalReason> {
        match cell.handle(request, |_| {}) {
            Handled::Refused(reason) => Some(reason),
            Handled::Executed(_) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_owner_has_a_quota_of_instruments_and_others_have_room() {
        let mut cell = cell::<ReferenceBook>();
        let made = (0..).find(|it| refusal(&mut cell, &tick(ONE, *it % 4, *it)).is_some()).unwrap();
        assert_eq!(made, 20, "half of all");
        let full = Some(RefusalReason::TooManyOwnerInstruments);
        assert_eq!(refusal(&mut cell, &tick(ONE, 99, 1_000)), full);
        assert_eq!(refusal(&mut cell, &tick(ONE, 99, 3)), None, "one that is there");
        for instrument in 100..110 {
            assert_eq!(refusal(&mut cell, &tick(OTHER, 200, instrument)), None);
        }
        let mut loaded = Cell::<ReferenceBook>::load(&cell.save()).unwrap();
        loaded.limits = LIMITS;
        assert_eq!(refusal(&mut loaded, &tick(ONE, 99, 1_000)), full);
        assert_eq!(refusal(&mut loaded, &tick(OTHER, 200, 1_000)), full);
        assert_eq!(refusal(&mut loaded, &tick(Owner::of_user(3), 300, 1_000)), None);
    }

    #[test]
    fn an_owner_has_a_quota_of_sessions_and_others_have_room() {
        let mut cell = cell::<ReferenceBook>();
        let made = (0..).find(|it| refusal(&mut cell, &tick(ONE, *it, 7)).is_some()).unwrap();
        assert_eq!(made, 50, "half of all");
        let full = Some(RefusalReason::TooManyOwnerSessions);
        assert_eq!(refusal(&mut cell, &tick(ONE, 0, 8)), full, "a known one elsewhere");
        assert_eq!(refusal(&mut cell, &tick(OTHER, 900, 7)), None);
    }

    /// Whether a session's next order on an instrument is accepted, or why not.
    fn place(
        cell: &mut Cell<Book>,
        (owner, session, instrument): (Owner, UserId, InstrumentId),
    ) -> Option<RejectReason> {
        let last = cell.last_request_seq(instrument, session);
        let mut rejected = None;
        let request = Request { owner, ..order(session, instrument, last + 1, last) };
        cell.handle(&request, |event| match event {
            Event::Rejected { reason, .. } => rejected = Some(*reason),
            Event::Accepted { .. } => {}
            other => panic!("{other:?}"),
        });
        rejected
    }

    #[test]
    fn an_owner_has_a_quota_of_live_orders_in_a_cell_and_others_have_room() {
        let mut cell = cell::<Book>();
        // Four sessions, all of which buy, on three instruments.
        let one = |at: u32| (ONE, 2 + at % 4 * 2, at % 3);
        let placed = (0..).find(|at| place(&mut cell, one(*at)).is_some()).unwrap();
        assert_eq!(placed, 30, "half of all");
        let full = Some(RejectReason::TooManyOwnerCellOrders);
        assert_eq!(place(&mut cell, one(0)), full);
        for _ in 0..15 {
            assert_eq!(place(&mut cell, (OTHER, 20, 0)), None);
        }
        assert_eq!(place(&mut cell, (OTHER, 20, 0)), full);
        // An order that does not rest is accepted all the same, and a limit of all is one of all.
        let last = cell.last_request_seq(0, 2);
        let mut immediate = Request { owner: ONE, ..order(2, 0, last + 1, last) };
        let Command::New(new) = &mut immediate.command else { panic!("it is an order") };
        new.time_in_force = TimeInForce::ImmediateOrCancel;
        let is_rejected = |event: &Event| assert!(!matches!(event, Event::Rejected { .. }));
        cell.handle(&immediate, is_rejected);
        let saved = cell.save();
        cell = Cell { limits: LIMITS, ..Cell::load(&saved).unwrap() };
        assert_eq!(place(&mut cell, one(0)), full);
        cell.limits.orders = 45;
        assert_eq!(
            place(&mut cell, (Owner::of_user(3), 30, 0)),
            Some(RejectReason::TooManyCellOrders)
        );
    }

    #[test]
    fn an_owner_has_a_quota_of_live_orders_on_an_instrument() {
        assert!(OwnerLedger::has_room(ONE, 131_071, 131_071, crate::limits::ORDERS_MAX));
        assert!(!OwnerLedger::has_room(ONE, 131_072, 131_072, crate::limits::ORDERS_MAX));
        let mut cell = Cell::<Book>::default();
        let most = crate::limits::ORDERS_MAX as u32 / 2;
        for at in 0..most {
            assert_eq!(place(&mut cell, (ONE, 2 + at % 4 * 2, 7)), None, "{at}");
        }
        let full = Some(RejectReason::TooManyOwnerOrders);
        assert_eq!(place(&mut cell, (ONE, 10, 7)), full);
        assert_eq!(place(&mut cell, (ONE, 10, 8)), None, "elsewhere");
        assert_eq!(place(&mut cell, (OTHER, 20, 7)), None);
    }

    /// Removes all, with as many entries as it takes.
    fn retire_all<M: Matching>(cell: &mut Cell<M>, retired: Retired) -> u32 {
        (1..)
            .find(|_| (cell.retire(retired), cell.holdings_of(retired)).1 == Holdings::default())
            .unwrap()
    }

    #[test]
    fn what_an_owner_made_goes_and_what_others_have_stays() {
        let mut cell = cell::<Book>();
        for at in 0..12 {
            assert_eq!(place(&mut cell, (ONE, 2 + at % 4 * 2, at % 3)), None);
        }
        // Both are on instrument 0, which the first one made.
        assert_eq!(place(&mut cell, (OTHER, 20, 0)), None);
        let retired = Retired::Owner { owner: ONE };
        let held = Holdings { instruments: 3, sessions: 12, orders: 12 };
        assert_eq!(cell.holdings_of(retired), held);
        cell.begin(5, 1_000);
        assert_eq!(retire_all(&mut cell, retired), 1);
        assert_eq!(cell.instruments.keys().copied().collect::<Vec<_>>(), [0]);
        assert_eq!((cell.book(0).unwrap().len(), cell.session_count), (1, 1));
        assert_eq!(cell.last_request_seq(0, 20), 1);
        // They count for another minute, and are refused as long: copies may be under way.
        let again = tick(ONE, 2, 0);
        assert_eq!(cell.ledger.of(ONE), Holdings { orders: 0, ..held });
        assert_eq!(refusal(&mut cell, &again), Some(RefusalReason::Retired));
        let saved = cell.save();
        let mut cell = Cell::<Book> { limits: LIMITS, ..Cell::load(&saved).unwrap() };
        assert_eq!(refusal(&mut cell, &again), Some(RefusalReason::Retired));
        cell.begin(6, 1_000 + RETIRED_NS - 1);
        assert_eq!(refusal(&mut cell, &again), Some(RefusalReason::Retired));
        cell.begin(7, 1_000 + RETIRED_NS);
        assert_eq!(cell.ledger.of(ONE), Holdings::default());
        assert_eq!(refusal(&mut cell, &again), None);
        // An instrument that begins again goes on with higher numbers.
        let Handled::Executed(outcome) = cell.handle(&tick(ONE, 2, 1), |_| {}) else { panic!() };
        assert!(outcome.output_seq > 4, "{outcome:?}");
    }

    #[test]
    fn a_session_goes_and_its_orders_with_it() {
        let mut cell = cell::<Book>();
        for (session, instrument) in [(2, 0), (4, 0), (2, 1)] {
            assert_eq!(place(&mut cell, (ONE, session, instrument)), None);
        }
        let retired = Retired::Session { session: 2 };
        assert_eq!(cell.holdings_of(retired), Holdings { instruments: 0, sessions: 2, orders: 2 });
        assert_eq!(cell.retire(retired), 2);
        assert_eq!((cell.instruments.len(), cell.book(0).unwrap().len()), (1, 1));
        assert_eq!(cell.ledger.of(ONE).orders, 1);
        assert_eq!(cell.ledger.orders(), 1);
        assert_eq!(refusal(&mut cell, &tick(ONE, 2, 9)), Some(RefusalReason::Retired));
    }

    #[test]
    fn what_an_operator_has_directed_keeps_an_instrument_only_while_it_holds() {
        let mut cell = cell::<Book>();
        let direct = |cell: &mut Cell<Book>, command| {
            let request = cell.desk_requests(0, &[command], 1)[0];
            assert!(matches!(cell.handle(&request, |_| {}), Handled::Executed(_)));
        };
        for (halted, left) in [(true, 1), (false, 0)] {
            assert_eq!(place(&mut cell, (ONE, 2, 0)), None);
            direct(&mut cell, Command::Halt);
            if !halted {
                direct(&mut cell, Command::Resume);
            }
            assert_eq!(cell.retire(Retired::Session { session: 2 }), 1);
            assert_eq!((cell.instruments.len(), cell.session_count), (left, left));
            cell.begin(cell.index() + 1, cell.now_ns() + RETIRED_NS);
            if halted {
                direct(&mut cell, Command::Resume);
            }
        }
    }

    /// One entry does a limited part of the work.
    #[test]
    fn an_entry_removes_a_part_and_further_ones_the_rest() {
        let mut cell = Cell::<Book>::default();
        for seq in 1..=1_000 {
            for session in 0..60 {
                let request = Request { owner: ONE, ..order(session * 2, 7, seq, seq - 1) };
                cell.handle(&request, |_| {});
            }
        }
        let retired = Retired::Owner { owner: ONE };
        let removed = cell.retire(retired);
        assert!((1..10).contains(&removed), "{removed}");
        assert!(retire_all(&mut cell, retired) > 4);
    }

    /// What owners have by the instruments themselves, beside what still counts.
    fn recounted<M: Matching>(cell: &Cell<M>) -> OwnerLedger {
        Cell::<M>::load(&cell.save()).unwrap().ledger
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Order(u32, UserId, InstrumentId),
        Retire(u32),
        RetireSession(UserId),
        Release(InstrumentId),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (1..4u32, 0..6u32, 0..5u32).prop_map(|(a, b, c)| Step::Order(a, b, c)),
            1 => (1..4u32).prop_map(Step::Retire),
            1 => (0..6u32).prop_map(Step::RetireSession),
            1 => (0..5u32).prop_map(Step::Release),
            1 => (0..RETIRED_NS).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// Whatever happens, the counts are those of the instruments, and both books agree.
        #[test]
        fn counts_of_owners_are_those_of_their_instruments(
            steps in prop::collection::vec(step(), 1..150),
        ) {
            let limits = CellLimits { instruments: 6, sessions: 20, orders: 16 };
            let mut fast = Cell::<Book> { limits, ..Cell::default() };
            let mut plain = Cell::<ReferenceBook> { limits, ..Cell::default() };
            let (mut index, mut now_ns) = (0, 0);
            for step in steps {
                index += 1;
                fast.begin(index, now_ns);
                plain.begin(index, now_ns);
                match step {
                    Step::Order(user, session, instrument) if fast.owns(instrument) => {
                        let last = fast.last_request_seq(instrument, session);
                        let owner = Owner::of_user(user);
                        let next = order(session, instrument, last + 1, last);
                        let request = Request { owner, ..next };
                        prop_assert_eq!(
                            fast.handle(&request, |_| {}),
                            plain.handle(&request, |_| {})
                        );
                    }
                    Step::Order(..) => {}
                    Step::Retire(user) => {
                        let retired = Retired::Owner { owner: Owner::of_user(user) };
                        prop_assert_eq!(fast.retire(retired), plain.retire(retired));
                    }
                    Step::RetireSession(session) => {
                        let retired = Retired::Session { session };
                        prop_assert_eq!(fast.retire(retired), plain.retire(retired));
                    }
                    Step::Release(instrument) => {
                        let id = MoveId { instrument, epoch: 1 };
                        let release = Release { id, cell: 0, to: 1 };
                        prop_assert_eq!(fast.release(release), plain.release(release));
                    }
                    Step::Wait(ns) => now_ns += ns,
                }
                prop_assert_eq!(fast.hash(), plain.hash());
                let counted = recounted(&fast);
                prop_assert_eq!(format!("{counted:?}"), format!("{:?}", fast.ledger));
                let loaded = Cell::<Book>::load(&fast.save()).unwrap();
                prop_assert_eq!(loaded.session_count, fast.session_count);
                prop_assert_eq!(loaded.released_count, fast.released_count);
                for (instrument, state) in &fast.instruments {
                    for owner in (1..4).map(Owner::of_user) {
                        let of = |state: &InstrumentState<Book>| state.orders_of(owner);
                        prop_assert_eq!(of(state), of(&loaded.instruments[instrument]));
                    }
                }
            }
        }
    }
}
