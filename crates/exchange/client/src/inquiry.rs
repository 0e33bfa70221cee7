//! A question for all open orders of a session: part by part, cell by cell.

use nm_wire::{NextPart, OpenOrders, OrdersRequest, SessionPosition};

/// After how long a question without an answer is repeated, ns: gateways answer one a second.
const ASK_AGAIN_NS: u64 = 1_100_000_000;

/// A question that is under way.
#[derive(Debug)]
pub struct Inquiry {
    session: u32,
    /// Cells that are to be asked, the next one last.
    cells: Vec<u16>,
    next: NextPart,
    asked_ns: Option<u64>,
    found: Vec<SessionPosition>,
}

impl Inquiry {
    /// One of a session to cells.
    pub fn new(session: u32, cells: &[u16]) -> Inquiry {
        let cells = cells.iter().rev().copied().collect();
        let next = NextPart { instrument: 0, id: 0 };
        Inquiry { session, cells, next, asked_ns: None, found: vec![] }
    }

    /// Appends the question that is due, if one is.
    pub fn ask(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        let is_due = self.asked_ns.is_none_or(|asked_ns| now_ns - asked_ns >= ASK_AGAIN_NS);
        let Some(cell) = self.cells.last().copied().filter(|_| is_due) else { return };
        self.asked_ns = Some(now_ns);
        let NextPart { instrument, id } = self.next;
        let request = OrdersRequest { session: self.session, cell, gateway: 0, instrument, id };
        nm_wire::write(&request, out);
    }

    /// A part has come.
    pub fn receive(&mut self, part: &OpenOrders) {
        // An answer to a question that was repeated comes twice.
        let first = part.positions.first().map_or(self.next.instrument, |it| it.instrument);
        if self.cells.last() != Some(&part.cell) || first < self.next.instrument {
            return;
        }
        for standing in &part.positions {
            match self.found.last_mut() {
                Some(last) if last.instrument == standing.instrument => {
                    let last_id = last.orders.last().map_or(0, |order| order.id);
                    let new = standing.orders.iter().filter(|order| order.id > last_id);
                    last.orders.extend(new);
                }
                _ => self.found.push(standing.clone()),
            }
        }
        self.asked_ns = None;
        self.next = part.next.unwrap_or(NextPart { instrument: 0, id: 0 });
        if part.next.is_none() {
            self.cells.pop();
        }
    }

    /// What was found, if all cells have answered.
    pub fn take(&mut self) -> Option<Vec<SessionPosition>> {
        self.cells.is_empty().then(|| std::mem::take(&mut self.found))
    }
}

#[cfg(test)]
mod tests {
    use nm_wire::LiveOrder;

    use super::*;

    fn part(cell: u16, ids: std::ops::Range<u64>, next: Option<u64>) -> OpenOrders {
        let order = |id| LiveOrder { id, is_buy: true, price: 1, left: 1, is_pending_stop: false };
        let orders = ids.map(order).collect();
        let standing = SessionPosition {
            instrument: 7,
            executed_seq: 9,
            last_event: 4,
            live_orders: 6,
            orders,
        };
        let next = next.map(|id| NextPart { instrument: 7, id });
        OpenOrders { session: 1, cell, gateway: 0, positions: vec![standing], next }
    }

    #[test]
    fn all_parts_of_all_cells_make_the_answer_whatever_comes_twice() {
        let mut inquiry = Inquiry::new(1, &[0, 3]);
        let asked = |inquiry: &mut Inquiry, now_ns| {
            let mut out = vec![];
            inquiry.ask(now_ns, &mut out);
            let frame = nm_wire::read(&out).unwrap()?;
            let asked: OrdersRequest = frame.read().unwrap();
            Some((asked.cell, asked.instrument, asked.id))
        };
        assert_eq!(asked(&mut inquiry, 0), Some((0, 0, 0)));
        assert_eq!(asked(&mut inquiry, ASK_AGAIN_NS - 1), None);
        assert_eq!(asked(&mut inquiry, ASK_AGAIN_NS), Some((0, 0, 0)), "again");
        inquiry.receive(&part(0, 1..4, Some(4)));
        inquiry.receive(&part(0, 1..4, Some(4)));
        assert_eq!(asked(&mut inquiry, ASK_AGAIN_NS + 1), Some((0, 7, 4)));
        inquiry.receive(&part(0, 4..7, None));
        assert!(inquiry.take().is_none());
        assert_eq!(asked(&mut inquiry, ASK_AGAIN_NS + 2), Some((3, 0, 0)));
        let nothing = OpenOrders { positions: vec![], ..part(3, 0..0, None) };
        inquiry.receive(&nothing);
        let found = inquiry.take().unwrap();
        let ids: Vec<u64> = found[0].orders.iter().map(|order| order.id).collect();
        assert_eq!((found.len(), ids), (1, vec![1, 2, 3, 4, 5, 6]));
    }
}
