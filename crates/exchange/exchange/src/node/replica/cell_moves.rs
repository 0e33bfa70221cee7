//! The moves of instruments in which a cell takes part, as its leader carries them on. It sends
//! those that leave, and tells others what has arrived. The protocol is described in
//! [`crate::moves`].

use std::collections::{BTreeMap, VecDeque};
use std::task::Poll;

use nm_book::book::Book;
use nm_book::order::InstrumentId;
use nm_codec::DecodeError;
use nm_wire::{
    Block, Frame, Kind, Listed, Request, Series, Value, claim, forget, move_parts, release,
};

use crate::background;
use crate::cell::{Arrival, Cell, CopyPiece, Handled, MoveStep};
use crate::control::InstrumentMap;
use crate::limits::{CELL_LEAVING_MAX, LEAVING_REQUESTS_BYTES_MAX};
use crate::moves::{
    Attempt, Claim, Forget, MoveEnded, MoveId, MoveOrder, MoveParts, MoveProgress, Part, Release,
};
use crate::network::Role;

use crate::node::runtime::links::{LinkId, Links};

/// About how many bytes of an instrument one frame has.
const FRAME_BYTES: usize = 64 << 10;

/// Time before each frame with sessions, ns: in both cells they take as long as several requests,
/// and requests would wait for all of them otherwise.
const SESSIONS_PAUSE_NS: u64 = 400_000;

/// Bytes of requests behind the copy from which on it is made without pauses.
const URGENT_BYTES: usize = 1 << 20;

/// Frames with parts that may be on their way to the new cell.
const FRAMES_AHEAD_MAX: u64 = 8;

/// Frames that the new cell may be behind when the instrument is released.
const FRAMES_BEHIND_AT_RELEASE: u64 = 2;

/// Time between the arrival of the copy and the release, ns: what had to wait for a CPU while the
/// copy was made and built has passed then, and the instrument pauses for a shorter time.
const SETTLE_NS: u64 = 1_000_000;

/// Pauses that are kept.
const PAUSES_MAX: usize = 4_096;

/// Time without progress after which an instrument is sent again, or forgotten again, ns.
const RETRY_NS: u64 = 200_000_000;

/// Longest such time, ns: it doubles each time, because the way to the new cell and back may take
/// longer.
const RETRY_NS_MAX: u64 = 3_200_000_000;

/// How often a new cell that loads a large book says so, ns.
const LOADING_REPORT_NS: u64 = 50_000_000;

/// How far the sending of an instrument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It is executed here, and copied.
    Copying,
    /// It is executed here, and the new cell has had the copy for [`SETTLE_NS`].
    Settled,
    /// The release is in the cell's log.
    Releasing,
    /// It is not executed here any more.
    Released,
    /// All of it was sent.
    Sent,
}

/// An instrument that leaves.
#[derive(Debug)]
struct Leaving {
    order: MoveOrder,
    attempt: Attempt,
    router: LinkId,
    phase: Phase,
    /// The first part, until it is sent.
    start: Option<Part<'static>>,
    is_copied: bool,
    /// Whether the next piece of the copy waits for the book, which another thread saves.
    is_being_saved: bool,
    /// When the next piece may be copied, ns.
    copy_ns: u64,
    /// Number of the frame behind the copy. The new cell builds the book when it has all of the
    /// copy, which takes long if it is large; so the instrument is not released before.
    copied_before: u64,
    /// When it has settled, ns; none while the new cell has not built the copy.
    settled_ns: Option<u64>,
    /// Requests that were executed since the start, as parts.
    requests: VecDeque<Vec<u8>>,
    requests_bytes: usize,
    /// Number of the next frame, and of the next one that the new cell expects.
    next: u64,
    expected: u64,
    /// When the new cell last answered, and how long its next answer may take, ns.
    progress_ns: u64,
    retry_ns: u64,
    /// When it was released, ns.
    released_ns: Option<u64>,
}

impl Leaving {
    fn may_send(&self, now_ns: u64) -> bool {
        self.has_room() && (self.is_copied || self.copy_ns <= now_ns)
    }

    /// Whether one more frame may be on its way.
    fn has_room(&self) -> bool {
        self.phase != Phase::Sent && self.next - self.expected < FRAMES_AHEAD_MAX
    }

    /// Whether requests wait for the copy, or soon too many will be behind it.
    fn is_urgent(&self) -> bool {
        self.phase == Phase::Released || self.requests_bytes >= URGENT_BYTES
    }

    /// When the next piece of the copy is due, ns; none if it waits for something else.
    fn copy_due_ns(&self) -> Option<u64> {
        let waits = self.is_copied || self.is_being_saved || !self.has_room();
        (!waits).then_some(self.copy_ns)
    }

    /// Whether the new cell should have answered long ago: a frame was lost, or its leader is
    /// another one.
    fn is_slow(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.progress_ns) > self.retry_ns
    }

    /// The new cell expects this frame next.
    fn on_progress(&mut self, next: u64, now_ns: u64) {
        self.expected = self.expected.max(next);
        self.progress_ns = now_ns;
        if self.is_copied && self.expected >= self.copied_before {
            self.settled_ns.get_or_insert(now_ns + SETTLE_NS);
        }
    }

    /// It settles, if it is time.
    fn settle(&mut self, now_ns: u64) {
        if self.phase == Phase::Copying && self.settled_ns.is_some_and(|ns| ns <= now_ns) {
            self.phase = Phase::Settled;
        }
    }

    /// Whether the new cell has accepted the instrument, has the copy, and nearly all requests.
    fn may_be_released(&self, frame_bytes: usize) -> bool {
        self.phase == Phase::Settled
            && self.requests_bytes < frame_bytes
            && self.next - self.expected <= FRAMES_BEHIND_AT_RELEASE
    }

    /// The parts of the next frame; empty if there is nothing to send now.
    fn next_parts(&mut self, cell: &mut Cell<Book>, frame_bytes: usize, now_ns: u64) -> Vec<u8> {
        let mut parts = vec![];
        if let Some(start) = self.start.take() {
            start.put(&mut parts);
        }
        self.is_being_saved = false;
        while !self.is_copied && parts.len() < frame_bytes {
            match cell.next_piece(self.order.id.instrument, frame_bytes) {
                Poll::Pending => {
                    self.is_being_saved = true;
                    break;
                }
                Poll::Ready(Some(CopyPiece::Sessions(bytes))) => {
                    Part::Sessions { saved: Block(&bytes) }.put(&mut parts);
                    if !self.is_urgent() {
                        self.copy_ns = now_ns + SESSIONS_PAUSE_NS;
                        break;
                    }
                }
                Poll::Ready(Some(CopyPiece::Book(bytes))) => {
                    Part::Book { saved: Block(&bytes) }.put(&mut parts);
                }
                Poll::Ready(None) => {
                    Part::BookEnd.put(&mut parts);
                    self.is_copied = true;
                    self.copied_before = self.next + 1;
                }
            }
        }
        while self.is_copied
            && parts.len() < frame_bytes
            && let Some(request) = self.requests.pop_front()
        {
            self.requests_bytes -= request.len();
            parts.extend_from_slice(&request);
        }
        let is_last = self.is_copied && self.requests.is_empty() && self.phase == Phase::Released;
        if is_last {
            cell.put_end(self.order.id.instrument, &mut parts);
            self.phase = Phase::Sent;
        }
        parts
    }
}

/// An instrument that arrives, and of which not all that has come is built.
#[derive(Debug)]
struct Building {
    /// What its source will be sent.
    progress: MoveProgress,
    /// When it was last sent something, ns.
    reported_ns: u64,
    /// When its book began to be loaded, and was loaded, ns.
    loading_ns: Option<u64>,
    loaded_ns: Option<u64>,
}

impl Building {
    /// Whether replicas that load half as fast as this one have done so, too. One that has not must
    /// wait for its book when the last part comes, and nothing else is executed there meanwhile.
    fn have_others_loaded(&mut self, now_ns: u64) -> bool {
        let Some(loading_ns) = self.loading_ns else { return true };
        let loaded_ns = *self.loaded_ns.get_or_insert(now_ns);
        now_ns - loaded_ns >= loaded_ns - loading_ns
    }
}

/// The moves of a cell.
#[derive(Debug)]
pub struct CellMoves {
    /// About how many bytes of an instrument one frame has.
    pub frame_bytes: usize,
    leaving: BTreeMap<InstrumentId, Leaving>,
    /// What the steps of the present batch mean to others: the step, and the cell that sent it.
    steps: Vec<(MoveStep, u16)>,
    /// What sources will be sent as soon as it is built.
    building: BTreeMap<InstrumentId, Building>,
    /// When released instruments are next compared with the map, ns; zero for now.
    compare_ns: u64,
    /// How many instruments have left, as far as this replica led meanwhile.
    moved: u64,
    /// The latest pauses of them: from the release until the new cell's announcement came here, as
    /// it comes to gateways, ns.
    pauses_ns: VecDeque<u64>,
    /// How often a router was chosen.
    turns: usize,
}

impl Default for CellMoves {
    fn default() -> CellMoves {
        CellMoves {
            frame_bytes: FRAME_BYTES,
            leaving: BTreeMap::new(),
            steps: vec![],
            building: BTreeMap::new(),
            compare_ns: 0,
            moved: 0,
            pauses_ns: VecDeque::new(),
            turns: 0,
        }
    }
}

impl CellMoves {
    /// Control orders a move.
    pub fn on_order(&mut self, cell: &mut Cell<Book>, order: MoveOrder, links: &Links) {
        let MoveId { instrument, epoch } = order.id;
        let now_ns = links.now_ns;
        let mut retry_ns = RETRY_NS;
        if let Some(known) = self.leaving.get(&instrument) {
            if known.order.id.epoch >= epoch && !known.is_slow(now_ns) {
                return;
            }
            if known.order.id.epoch == epoch {
                retry_ns = (known.retry_ns * 2).min(RETRY_NS_MAX);
            }
            self.drop_leaving(cell, instrument);
        }
        let is_departed =
            cell.departed().any(|(known, departed)| known == instrument && departed.epoch == epoch);
        let last_epoch = cell.ownership(instrument).map_or(0, |known| known.epoch);
        let is_here = cell.owns(instrument) && last_epoch < epoch;
        if !(is_departed || is_here) || self.leaving.len() >= CELL_LEAVING_MAX {
            return;
        }
        let Some(router) = self.next_router(links) else { return };
        let start = Part::Start { start: cell.begin_copy(instrument) };
        let leaving = Leaving {
            order,
            // Turns are counted, so that no two attempts of one iteration are the same.
            attempt: Attempt((now_ns + self.turns as u64) ^ links.own().1.rotate_left(32)),
            router,
            phase: if is_departed { Phase::Released } else { Phase::Copying },
            start: Some(start),
            is_copied: false,
            is_being_saved: false,
            copy_ns: if is_departed { now_ns } else { now_ns + SESSIONS_PAUSE_NS },
            copied_before: 0,
            settled_ns: None,
            requests: VecDeque::new(),
            requests_bytes: 0,
            next: 0,
            expected: 0,
            progress_ns: now_ns,
            retry_ns,
            released_ns: None,
        };
        self.leaving.insert(instrument, leaving);
    }

    /// The routers in turn: what is sent again because it was lost takes another way.
    fn next_router(&mut self, links: &Links) -> Option<LinkId> {
        let routers = links.all_to(Role::Router);
        self.turns = self.turns.wrapping_add(1);
        routers.get(self.turns.checked_rem(routers.len())?).copied()
    }

    /// Sends a frame through the next router.
    fn send<'m, M: Listed + Value<'m>>(&mut self, links: &mut Links, message: &M) {
        if let Some(router) = self.next_router(links) {
            links.send(router, message);
        }
    }

    /// Tells the source of an instrument how far it is.
    fn send_progress(&mut self, links: &mut Links, progress: &MoveProgress) {
        self.send(links, progress);
    }

    /// Announces the end of a move to gateways and control. Should that be lost, control orders the
    /// move again, and this cell says once more that it has ended.
    fn announce(&mut self, links: &mut Links, ended: &MoveEnded) {
        self.send(links, ended);
    }

    /// Whether any instrument leaves, so that requests have to be passed to
    /// [`CellMoves::on_request`].
    pub fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// A request was handled by the cell.
    pub fn on_request(&mut self, cell: &mut Cell<Book>, request: &Request, handled: Handled) {
        let instrument = request.instrument;
        let Some(leaving) = self.leaving.get_mut(&instrument) else { return };
        if matches!(handled, Handled::Refused(_)) {
            return;
        }
        let mut bytes = vec![];
        let (now_ns, check) = (cell.now_ns(), cell.last_check());
        Part::Request { now_ns, request: *request, check }.put(&mut bytes);
        leaving.requests_bytes += bytes.len();
        leaving.requests.push_back(bytes);
        if leaving.requests_bytes > LEAVING_REQUESTS_BYTES_MAX {
            self.drop_leaving(cell, instrument);
        }
    }

    /// A step of a move was carried out by the cell.
    pub fn on_step(&mut self, frame: Frame<'_>, step: MoveStep, now_ns: u64) {
        if let MoveStep::Released(id) = step
            && let Some(leaving) = self.leaving.get_mut(&id.instrument)
            && leaving.order.id == id
        {
            leaving.phase = Phase::Released;
            leaving.released_ns = Some(now_ns);
        }
        if let Ok(from) = sender_of(frame) {
            self.steps.push((step, from));
        }
    }

    /// The new cell of an instrument answers.
    pub fn on_progress(
        &mut self,
        cell: &mut Cell<Book>,
        progress: &MoveProgress,
        links: &mut Links,
    ) {
        let MoveProgress { id, attempt, next, refusal, .. } = *progress;
        let Some(leaving) = self.leaving.get_mut(&id.instrument) else { return };
        if leaving.attempt != attempt || next > leaving.next {
            return;
        }
        leaving.on_progress(next, links.now_ns);
        let Some(refusal) = refusal else { return };
        let (is_here, to) = (cell.owns(id.instrument), leaving.order.to);
        links.warnings.push(format!(
            "instrument {} could not be moved to cell {to}: {refusal}",
            id.instrument
        ));
        self.drop_leaving(cell, id.instrument);
        if is_here && refusal.is_lasting() {
            self.announce(links, &MoveEnded { id, cell: to, refusal: Some(refusal) });
        }
    }

    /// A move has ended.
    pub fn on_ended(&mut self, cell: &mut Cell<Book>, ended: &MoveEnded, now_ns: u64) {
        let leaving = self.leaving.get(&ended.id.instrument);
        let Some(leaving) = leaving.filter(|it| it.order.id.epoch <= ended.id.epoch) else {
            return;
        };
        if let Some(released_ns) = leaving.released_ns.filter(|_| leaving.order.id == ended.id) {
            self.note_pause(now_ns.saturating_sub(released_ns));
        }
        self.drop_leaving(cell, ended.id.instrument);
    }

    /// An instrument has arrived that was released so long ago, ns.
    fn note_pause(&mut self, pause_ns: u64) {
        self.moved += 1;
        if self.pauses_ns.len() == PAUSES_MAX {
            self.pauses_ns.pop_front();
        }
        self.pauses_ns.push_back(pause_ns);
    }

    /// How many instruments have left, and the latest pauses, ns.
    pub fn pauses_ns(&self) -> (u64, impl Iterator<Item = u64>) {
        (self.moved, self.pauses_ns.iter().copied())
    }

    /// There is a new map.
    pub fn on_map(&mut self) {
        self.compare_ns = 0;
    }

    /// The cell is led by another replica, or its state was replaced.
    pub fn clear(&mut self, cell: &mut Cell<Book>) {
        while let Some(instrument) = self.leaving.first_key_value().map(|(at, _)| *at) {
            self.drop_leaving(cell, instrument);
        }
        self.steps.clear();
        self.building.clear();
        self.compare_ns = 0;
    }

    fn drop_leaving(&mut self, cell: &mut Cell<Book>, instrument: InstrumentId) {
        cell.end_copy(instrument);
        self.leaving.remove(&instrument);
    }

    /// Tells others what the steps of the present batch mean to them; nothing if another replica
    /// leads.
    pub fn tell(&mut self, cell: &mut Cell<Book>, is_leader: bool, links: &mut Links) {
        for (step, from) in std::mem::take(&mut self.steps) {
            if !is_leader {
                continue;
            }
            match step {
                MoveStep::Staged(id, attempt, next) => {
                    let progress = MoveProgress { id, from, attempt, next, refusal: None };
                    let building = self.building.entry(id.instrument).or_insert(Building {
                        progress,
                        reported_ns: links.now_ns,
                        loading_ns: None,
                        loaded_ns: None,
                    });
                    building.progress = progress;
                }
                MoveStep::Refused(id, attempt, refusal) => {
                    self.building.remove(&id.instrument);
                    let refusal = Some(refusal);
                    let progress = MoveProgress { id, from, attempt, next: 0, refusal };
                    self.send_progress(links, &progress);
                }
                MoveStep::Adopted(id) => {
                    self.building.remove(&id.instrument);
                    self.announce(links, &MoveEnded { id, cell: cell.number(), refusal: None });
                }
                _ => {}
            }
        }
        self.report_built(cell, links);
    }

    /// Tells sources what is built of their instruments. What is behind a book that is being loaded
    /// is not reported before, because the source releases an instrument when nearly all is.
    fn report_built(&mut self, cell: &mut Cell<Book>, links: &mut Links) {
        let now_ns = links.now_ns;
        let mut reports = vec![];
        self.building.retain(|instrument, building| match cell.build(*instrument) {
            Arrival::Built if building.have_others_loaded(now_ns) => {
                reports.push(building.progress);
                false
            }
            Arrival::Built | Arrival::Loading => {
                building.loading_ns.get_or_insert(now_ns);
                if now_ns.saturating_sub(building.reported_ns) > LOADING_REPORT_NS {
                    building.reported_ns = now_ns;
                    reports.push(MoveProgress { next: 0, ..building.progress });
                }
                true
            }
            // The source sends it again.
            Arrival::Unusable => false,
        });
        reports.iter().for_each(|progress| self.send_progress(links, progress));
    }

    /// Sends what can be sent, and gives the entries that the cell's log is to have.
    pub fn advance(
        &mut self,
        cell: &mut Cell<Book>,
        map: &InstrumentMap,
        links: &mut Links,
        mut log: impl FnMut(&[u8]),
    ) {
        self.report_built(cell, links);
        self.end_arrived(cell, map, links.now_ns);
        let mut lost: Vec<InstrumentId> = vec![];
        for (instrument, leaving) in &mut self.leaving {
            while leaving.may_send(links.now_ns) {
                let parts = leaving.next_parts(cell, self.frame_bytes, links.now_ns);
                if parts.is_empty() {
                    break;
                }
                let MoveOrder { id, from, to } = leaving.order;
                let (attempt, number) = (leaving.attempt, leaving.next);
                leaving.next += 1;
                let Some(output) = links.output_for(leaving.router, Kind::MoveParts) else {
                    lost.push(*instrument);
                    break;
                };
                let parts = Series::of(&parts);
                nm_wire::write(&MoveParts { from, to, attempt, number, id, parts }, output);
            }
            leaving.settle(links.now_ns);
            if leaving.may_be_released(self.frame_bytes) {
                leaving.phase = Phase::Releasing;
                let MoveOrder { id, to, .. } = leaving.order;
                log(&entry(&Release { cell: cell.number(), to, id }));
            }
        }
        lost.into_iter().for_each(|instrument| self.drop_leaving(cell, instrument));
        self.forget_arrived(cell, map, links.now_ns, log);
    }

    /// Ends the moves whose ends the map has: the announcement of the new cell was lost or is late.
    fn end_arrived(&mut self, cell: &mut Cell<Book>, map: &InstrumentMap, now_ns: u64) {
        let arrived: Vec<(MoveId, Option<u64>)> = self
            .leaving
            .values()
            .map(|leaving| (leaving.order.id, leaving.released_ns))
            .filter(|(id, _)| map.epoch_of(id.instrument) >= id.epoch)
            .collect();
        for (id, released_ns) in arrived {
            if map.epoch_of(id.instrument) == id.epoch {
                let pause_ns = released_ns.map(|ns| now_ns.saturating_sub(ns));
                pause_ns.into_iter().for_each(|ns| self.note_pause(ns));
            }
            self.drop_leaving(cell, id.instrument);
        }
    }

    /// Forgets the released instruments that the map has in their new cells.
    fn forget_arrived(
        &mut self,
        cell: &mut Cell<Book>,
        map: &InstrumentMap,
        now_ns: u64,
        mut log: impl FnMut(&[u8]),
    ) {
        if self.compare_ns > now_ns || cell.departed().next().is_none() {
            return;
        }
        self.compare_ns = now_ns + RETRY_NS;
        for (instrument, departed) in cell.departed() {
            if map.epoch_of(instrument) >= departed.epoch {
                let id = MoveId { instrument, epoch: departed.epoch };
                log(&entry(&Forget { cell: cell.number(), id }));
            }
        }
    }

    /// When [`CellMoves::advance`] is due at the latest, ns; none if only events are awaited.
    pub fn deadline_ns(&self, cell: &Cell<Book>, now_ns: u64) -> Option<u64> {
        let is_saving = self.leaving.values().any(|leaving| leaving.is_being_saved);
        let copy_ns = self.leaving.values().filter_map(Leaving::copy_due_ns).min();
        let waits = is_saving || !self.building.is_empty();
        let compare_ns = cell.departed().next().map(|_| self.compare_ns);
        let copied = self.leaving.values().filter(|leaving| leaving.phase == Phase::Copying);
        let settled_ns = copied.filter_map(|leaving| leaving.settled_ns).min();
        let check_ns = waits.then(|| background::next_check_ns(now_ns));
        [compare_ns, copy_ns, settled_ns, check_ns].into_iter().flatten().min()
    }
}

/// The entry by which a cell owns an instrument again that its map has here, and of which it knows
/// nothing; none if it knows of it.
pub fn claim(cell: &Cell<Book>, map: &InstrumentMap, instrument: InstrumentId) -> Option<Vec<u8>> {
    let is_lost = cell.accepts_unknown_sessions
        && cell.ownership(instrument).is_none()
        && !cell.owns(instrument)
        && map.cell_of(instrument) == cell.number();
    is_lost.then(|| {
        let id = MoveId { instrument, epoch: map.epoch_of(instrument) };
        entry(&Claim { cell: cell.number(), id })
    })
}

fn entry<'m, M: Listed + Value<'m>>(message: &M) -> Vec<u8> {
    let mut bytes = vec![];
    nm_wire::write(message, &mut bytes);
    bytes
}

/// The cell that a step of a move comes from.
fn sender_of(frame: Frame<'_>) -> Result<u16, DecodeError> {
    Ok(match frame.kind() {
        Kind::MoveParts => move_parts::View::of(frame)?.from(),
        Kind::Release => release::View::of(frame)?.cell(),
        Kind::Forget => forget::View::of(frame)?.cell(),
        _ => claim::View::of(frame)?.cell(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::testing::order;

    /// An instrument of which nothing was sent.
    fn leaving(cell: &mut Cell<Book>) -> Leaving {
        let id = MoveId { instrument: 7, epoch: 1 };
        Leaving {
            order: MoveOrder { id, from: 0, to: 1 },
            attempt: Attempt(1),
            router: LinkId::none(),
            phase: Phase::Copying,
            start: Some(Part::Start { start: cell.begin_copy(7) }),
            is_copied: false,
            is_being_saved: false,
            copy_ns: 0,
            copied_before: 0,
            settled_ns: None,
            requests: VecDeque::new(),
            requests_bytes: 0,
            next: 0,
            expected: 0,
            progress_ns: 0,
            retry_ns: RETRY_NS,
            released_ns: None,
        }
    }

    /// Requests would wait while the new cell builds the book.
    #[test]
    fn an_instrument_is_released_when_the_new_cell_has_the_copy() {
        let mut cell = Cell::<Book>::new(0, 1);
        let mut leaving = leaving(&mut cell);
        while !leaving.is_copied {
            assert!(!leaving.next_parts(&mut cell, FRAME_BYTES, 0).is_empty());
            leaving.next += 1;
        }
        let copied = leaving.next;
        let mut may_be_released_at = |now_ns, frames: u64, next| {
            leaving.on_progress(next, 5);
            leaving.next += frames;
            leaving.settle(now_ns);
            leaving.may_be_released(FRAME_BYTES)
        };
        assert!(!may_be_released_at(5 + SETTLE_NS, 0, copied - 1));
        assert!(!may_be_released_at(4 + SETTLE_NS, 0, copied));
        assert!(may_be_released_at(5 + SETTLE_NS, 0, copied));
        // Requests behind the copy may not be there yet.
        assert!(may_be_released_at(5 + SETTLE_NS, FRAMES_BEHIND_AT_RELEASE, copied));
        assert!(!may_be_released_at(5 + SETTLE_NS, 1, copied));
        // They put it off no further.
        assert!(may_be_released_at(5 + SETTLE_NS, 0, copied + 1));
    }

    /// Requests are executed between the frames, unless they wait for the copy.
    #[test]
    fn sessions_are_copied_with_pauses() {
        let mut cell = Cell::<Book>::new(0, 1);
        for session in 0..200 {
            cell.handle(&order(session, 7, 1, 0), |_| {});
        }
        let mut paced = leaving(&mut cell);
        let mut frames = 0;
        while !paced.is_copied {
            let now_ns = paced.copy_ns;
            assert!(paced.may_send(now_ns) && (frames == 0 || !paced.may_send(now_ns - 1)));
            assert_eq!(paced.copy_due_ns(), Some(now_ns));
            let bytes = paced.next_parts(&mut cell, FRAME_BYTES, now_ns).len();
            assert!(paced.is_copied || bytes < FRAME_BYTES / 4, "{bytes} bytes");
            frames += 1;
        }
        assert!(frames > 2, "{frames} frames");
        assert_eq!(paced.copy_due_ns(), None);
        let mut urgent = Leaving { phase: Phase::Released, ..leaving(&mut cell) };
        urgent.next_parts(&mut cell, FRAME_BYTES, 0);
        assert!(urgent.is_copied);
        let mut late = Leaving { requests_bytes: URGENT_BYTES, ..leaving(&mut cell) };
        late.next_parts(&mut cell, FRAME_BYTES, 0);
        assert!(late.is_copied);
    }

    /// Control orders the move again, and the copy begins anew.
    #[test]
    fn an_instrument_stays_if_too_many_bytes_of_requests_wait() {
        let mut cell = Cell::<Book>::new(0, 1);
        let mut moves = CellMoves::default();
        moves.leaving.insert(7, leaving(&mut cell));
        let (request, check) = (order(1, 7, 1, 0), nm_wire::LimitCheck::NONE);
        let (one, part) = (request, Part::Request { now_ns: 0, request, check });
        let part_bytes = nm_wire::encode(&part).len();
        let mut request = |moves: &mut CellMoves, handled| {
            moves.on_request(&mut cell, &one, handled);
            moves.leaving.get(&7).map(|leaving| leaving.requests.len())
        };
        for count in 1..=LEAVING_REQUESTS_BYTES_MAX / part_bytes {
            assert_eq!(request(&mut moves, Handled::SequenceGap), Some(count));
        }
        assert_eq!(request(&mut moves, Handled::SequenceGap), None);
        assert!(cell.owns(7) && !cell.has_copies());
    }
}
