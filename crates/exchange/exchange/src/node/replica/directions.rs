//! What operators direct in a cell, as its leader carries it out: it proposes the requests that are
//! missing, and answers when they are executed. Whatever is lost with a leader, the operator
//! directs again: what was done before is not done again.

use std::collections::{BTreeMap, VecDeque};

use nm_book::book::Book;
use nm_book::order::{Event, InstrumentId};
use nm_wire::{AdminResponse, DayEnded, Directed, Direction, Listed, Value};

use crate::cell::{Cell, Handled, Missing, Request};
use crate::limits::{DIRECTIONS_WAITING_MAX, FRAME_INSTRUMENTS_MAX};
use crate::network::Role;

use crate::node::runtime::links::{LinkId, Links};

/// Instruments whose requests are in the log at the same time.
const AT_ONCE: usize = 64;

/// How often requests for one instrument are made until others may have been faster each time.
const ATTEMPTS_MAX: u32 = 16;

/// The requests for one instrument that are in the log, or will be.
#[derive(Debug)]
struct UnderWay {
    requests: Vec<Request>,
    /// Whether one of them was not executed, or was rejected.
    has_failed: bool,
    /// How often there were such.
    attempts: u32,
}

/// One direction of an operator.
#[derive(Debug)]
struct Job {
    operator: LinkId,
    direction: Direction,
    /// Instruments that are to be looked at, and how often they were.
    left: Vec<(InstrumentId, u32)>,
    under_way: BTreeMap<InstrumentId, UnderWay>,
    /// Instruments that are as it directs.
    done: Vec<InstrumentId>,
    directed: Directed,
}

impl Job {
    /// The requests for the next instruments.
    fn next(&mut self, cell: &Cell<Book>, now_ns: u64) -> Vec<Request> {
        let directed = &mut self.directed;
        let is_here = |instrument: &InstrumentId, _: &mut _| cell.owns(*instrument);
        let before = self.under_way.len();
        self.under_way.retain(is_here);
        directed.elsewhere += (before - self.under_way.len()) as u64;
        let mut requests = vec![];
        while self.under_way.len() < AT_ONCE
            && let Some((instrument, attempts)) = self.left.pop()
        {
            if !cell.owns(instrument) {
                directed.elsewhere += 1;
                continue;
            }
            match cell.missing(instrument, self.direction) {
                Missing::Nothing => self.done.push(instrument),
                Missing::Unfit => directed.unfit += 1,
                Missing::Commands(_) if attempts == ATTEMPTS_MAX => directed.failed += 1,
                Missing::Commands(commands) => {
                    let made = cell.desk_requests(instrument, &commands, now_ns);
                    requests.extend(&made);
                    let (has_failed, attempts) = (false, attempts + 1);
                    let under_way = UnderWay { requests: made, has_failed, attempts };
                    self.under_way.insert(instrument, under_way);
                }
            }
        }
        requests
    }

    /// Tells all clients that it is done, if no event of an instrument says that.
    fn tell_clients(&self, cell: u16, links: &mut Links) {
        if matches!(self.direction, Direction::EndOfDay | Direction::Close) {
            for instruments in self.done.chunks(FRAME_INSTRUMENTS_MAX) {
                tell_gateways(links, &DayEnded { cell, instruments: instruments.to_vec() });
            }
        }
    }

    /// A request of the desk was handled.
    fn on_request(&mut self, cell: &Cell<Book>, request: &Request, handled: Handled) {
        let instrument = request.instrument;
        let Some(under_way) = self.under_way.get_mut(&instrument) else { return };
        // One that a leader before has left in the log is none of these.
        if !under_way.requests.contains(request) {
            return;
        }
        match handled {
            Handled::Executed(_) => {
                for (_, event) in cell.notifications() {
                    self.directed.orders += u64::from(matches!(event, Event::Cancelled { .. }));
                    under_way.has_failed |= matches!(event, Event::Rejected { .. });
                }
            }
            Handled::Refused(_) => {
                self.directed.failed += 1;
                self.under_way.remove(&instrument);
                return;
            }
            Handled::Duplicate(_) | Handled::SequenceGap => under_way.has_failed = true,
        }
        if under_way.requests.last() != Some(request) {
            return;
        }
        let (is_done, attempts) = (!under_way.has_failed, under_way.attempts);
        self.under_way.remove(&instrument);
        match (is_done, self.direction) {
            // There may be further sessions.
            (true, Direction::Cancel { .. })
                if cell.missing(instrument, self.direction) != Missing::Nothing =>
            {
                self.left.push((instrument, 0));
            }
            (true, _) => {
                self.directed.changed += 1;
                self.done.push(instrument);
            }
            (false, _) => self.left.push((instrument, attempts)),
        }
    }
}

/// Sends a message to all processors, and so to all gateways. Where there are several processors it
/// comes several times.
pub fn tell_gateways<'m, M: Listed + Value<'m>>(links: &mut Links, message: &M) {
    for processor in links.all_to(Role::Processor) {
        links.send(processor, message);
    }
}

/// The directions that a cell's leader carries out, one after the other.
#[derive(Debug, Default)]
pub struct Directions(VecDeque<Job>);

impl Directions {
    /// An operator directs something on instruments; false if too many others wait.
    pub fn begin(
        &mut self,
        cell: &Cell<Book>,
        operator: LinkId,
        direction: Direction,
        instruments: Vec<InstrumentId>,
    ) -> bool {
        if self.0.len() >= DIRECTIONS_WAITING_MAX {
            return false;
        }
        let sessions = match direction {
            Direction::Cancel { whose } => {
                instruments.iter().map(|it| cell.sessions_of(*it, whose)).sum()
            }
            _ => 0,
        };
        let count = instruments.len() as u64;
        let directed = Directed { instruments: count, sessions, ..Directed::default() };
        let left = instruments.into_iter().map(|it| (it, 0)).collect();
        let (under_way, done) = (BTreeMap::new(), vec![]);
        self.0.push_back(Job { operator, direction, left, under_way, done, directed });
        true
    }

    /// Answers what is done; the requests that are to be proposed, those of each instrument
    /// together.
    pub fn advance(&mut self, cell: &Cell<Book>, links: &mut Links) -> Vec<Request> {
        let now_ns = links.now_ns;
        while let Some(job) = self.0.front_mut() {
            let requests = job.next(cell, now_ns);
            if !requests.is_empty() || !job.under_way.is_empty() {
                return requests;
            }
            links.send(job.operator, &AdminResponse::Directed { directed: job.directed });
            job.tell_clients(cell.number(), links);
            self.0.pop_front();
        }
        vec![]
    }

    /// Requests for these instruments found no room: they are made again later.
    pub fn put_back(&mut self, instrument: InstrumentId) {
        if let Some(job) = self.0.front_mut()
            && let Some(under_way) = job.under_way.remove(&instrument)
        {
            job.left.push((instrument, under_way.attempts - 1));
        }
    }

    /// A request of the desk was handled.
    pub fn on_request(&mut self, cell: &Cell<Book>, request: &Request, handled: Handled) {
        if let Some(job) = self.0.front_mut() {
            job.on_request(cell, request, handled);
        }
    }

    /// This replica leads no more: operators ask the next leader.
    pub fn clear(&mut self, links: &mut Links) {
        for job in self.0.drain(..) {
            links.send(job.operator, &AdminResponse::NotLeading);
        }
    }
}

#[cfg(test)]
mod tests {
    use nm_book::order::Command;
    use nm_wire::{FrameMut, Owner, Retired};

    use super::*;
    use crate::cell::testing::order;
    use crate::network::{Network, Node, Role};

    /// Links of a mediator, and that of an operator.
    fn links() -> (Links, LinkId) {
        let network = Network::new("1-1-1-1".parse().unwrap(), |_| Node {
            address: "127.0.0.1:1".parse().unwrap(),
            replication: None,
        });
        let mut links = Links::simulated(&network, Role::Mediator.node(0), 1);
        let operator = links.link_to(Role::Processor.node(0));
        (links, operator)
    }

    /// A cell with live orders of these sessions on some instruments.
    fn cell(sessions: u32, instruments: u32) -> Cell<Book> {
        let mut cell = Cell::<Book>::default();
        for instrument in 0..instruments {
            for session in 1..=sessions {
                // All of them buy.
                let owner = Owner::of_firm(7);
                let request = Request { owner, ..order(session * 2, instrument, 1, 0) };
                cell.handle(&request, |_| {});
            }
        }
        cell
    }

    /// The answers that operators were sent.
    fn answers(links: &mut Links) -> Vec<AdminResponse> {
        let mut all = vec![];
        for (_, bytes) in links.take_output() {
            let mut rest = &mut bytes.clone()[..];
            while let Some(frame) = nm_wire::read(rest).unwrap() {
                let length = frame.bytes.len();
                all.push(FrameMut::of(&mut rest[..length]).unwrap().read().unwrap());
                rest = &mut rest[length..];
            }
        }
        all
    }

    /// Executes what is proposed until there is nothing; how many requests there were.
    fn carry_out(
        directions: &mut Directions,
        cell: &mut Cell<Book>,
        links: &mut Links,
        mut before: impl FnMut(&mut Cell<Book>, &Request),
    ) -> usize {
        let mut count = 0;
        loop {
            let requests = directions.advance(cell, links);
            if requests.is_empty() {
                return count;
            }
            count += requests.len();
            for request in requests {
                before(cell, &request);
                let handled = cell.handle(&request, |_| {});
                directions.on_request(cell, &request, handled);
            }
        }
    }

    #[test]
    fn the_answer_has_what_was_done_and_what_was_so_before() {
        let (mut links, operator) = links();
        let (mut cell, mut directions) = (cell(200, 3), Directions::default());
        let whose = Retired::Owner { owner: Owner::of_firm(7) };
        let all = || (0..3).collect::<Vec<InstrumentId>>();
        for direction in [Direction::Halt, Direction::Halt, Direction::Cancel { whose }] {
            assert!(directions.begin(&cell, operator, direction, all()));
        }
        let requests = carry_out(&mut directions, &mut cell, &mut links, |_, _| {});
        assert_eq!(requests, 3 + 3 * 200, "each session's orders by a request of their own");
        let nothing = Directed { instruments: 3, ..Directed::default() };
        let expected = [
            Directed { changed: 3, ..nothing },
            nothing,
            Directed { changed: 3, sessions: 600, orders: 600, ..nothing },
        ];
        let answers = answers(&mut links);
        assert_eq!(answers, expected.map(|directed| AdminResponse::Directed { directed }));
    }

    /// Also of those that had nothing to cancel.
    #[test]
    fn the_end_of_a_day_is_told_of_all_instruments_when_it_is_carried_out() {
        let (mut links, operator) = links();
        let (mut cell, mut directions) = (cell(1, 2), Directions::default());
        for direction in [Direction::Halt, Direction::EndOfDay] {
            directions.begin(&cell, operator, direction, vec![0, 1, 9]);
        }
        carry_out(&mut directions, &mut cell, &mut links, |_, _| {});
        let bytes: Vec<u8> = links.take_output().into_iter().flat_map(|(_, it)| it).collect();
        let (mut told, mut rest) = (vec![], &bytes[..]);
        while let Some(frame) = nm_wire::read(rest).unwrap() {
            told.extend(frame.read::<DayEnded>());
            rest = &rest[frame.bytes.len()..];
        }
        told.iter_mut().for_each(|it| it.instruments.sort_unstable());
        assert_eq!(told, [DayEnded { cell: 0, instruments: vec![0, 1, 9] }]);
    }

    #[test]
    fn what_others_were_faster_with_is_looked_at_again() {
        let (mut links, operator) = links();
        let (mut cell, mut directions) = (cell(1, 1), Directions::default());
        directions.begin(&cell, operator, Direction::Halt, vec![0]);
        let mut is_first = true;
        let requests = carry_out(&mut directions, &mut cell, &mut links, |cell, _| {
            // A leader before has left a request of the desk in the log.
            if std::mem::take(&mut is_first) {
                let other = cell.desk_requests(0, &[Command::BeginAuction], 1);
                cell.handle(&other[0], |_| {});
            }
        });
        assert_eq!(requests, 2);
        let directed = Directed { instruments: 1, changed: 1, ..Directed::default() };
        assert_eq!(answers(&mut links), [AdminResponse::Directed { directed }]);
        // If they are faster each time, it ends all the same.
        directions.begin(&cell, operator, Direction::Resume, vec![0]);
        let requests = carry_out(&mut directions, &mut cell, &mut links, |cell, _| {
            let other = cell.desk_requests(0, &[Command::Tick], 1);
            cell.handle(&other[0], |_| {});
        });
        assert_eq!(requests, ATTEMPTS_MAX as usize);
        let directed = Directed { instruments: 1, failed: 1, ..Directed::default() };
        assert_eq!(answers(&mut links), [AdminResponse::Directed { directed }]);
    }

    #[test]
    fn requests_that_find_no_room_are_made_again_and_a_lost_leadership_is_answered() {
        let (mut links, operator) = links();
        let (mut cell, mut directions) = (cell(1, 1), Directions::default());
        directions.begin(&cell, operator, Direction::Halt, vec![0]);
        assert_eq!(directions.advance(&cell, &mut links).len(), 1);
        assert_eq!(directions.advance(&cell, &mut links).len(), 0, "they are under way");
        directions.put_back(0);
        assert_eq!(carry_out(&mut directions, &mut cell, &mut links, |_, _| {}), 1);
        directions.begin(&cell, operator, Direction::Resume, vec![0]);
        directions.clear(&mut links);
        let directed = Directed { instruments: 1, changed: 1, ..Directed::default() };
        assert_eq!(
            answers(&mut links),
            [AdminResponse::Directed { directed }, AdminResponse::NotLeading]
        );
    }

    #[test]
    fn a_cell_has_a_number_of_directions_to_carry_out() {
        let (_, operator) = links();
        let (cell, mut directions) = (cell(1, 1), Directions::default());
        let mut begin = || directions.begin(&cell, operator, Direction::Halt, vec![0]);
        assert!((0..DIRECTIONS_WAITING_MAX).all(|_| begin()));
        assert!(!begin());
    }
}
