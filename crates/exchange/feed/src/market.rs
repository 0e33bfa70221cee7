//! Shows a door what the books of some instruments have, as long as it wants to know. A thread
//! follows the network's nodes as a publisher does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use nm_doors::limits::DEPTH_MAX;
use nm_doors::market::{Board, View};
use nm_sys::clock;
use nm_wire::{BookPosition, BookUpdate};

use crate::follow::{Books, Source};
use crate::node_link::{FollowError, FromNode, Input, NetworkFile, NodeLinks};

/// Inputs of nodes that wait; a link whose inputs find no place waits as well.
const INPUTS_MAX: usize = 65_536;

/// Inputs that are taken before views are posted.
const INPUTS_AT_ONCE: usize = 512;

/// Longest sleep.
const NAP: Duration = Duration::from_millis(20);

/// How long an instrument of which no node has reported a book counts as unknown, ns: nobody has
/// used it then.
const SETTLE_NS: u64 = 1_000_000_000;

/// Pause after a network that cannot be followed.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts the follower of a board; it ends with `stop`.
///
/// # Errors
/// If no thread can be started.
#[expect(clippy::disallowed_methods, reason = "in a thread of its own")]
pub fn start(file: NetworkFile, board: Arc<Board>, stop: Arc<AtomicBool>) -> io::Result<()> {
    let follow = move || {
        while !stop.load(Ordering::Relaxed) {
            let wanted = board.wait_for_wanted(&BTreeSet::new(), PAUSE);
            if !wanted.is_empty() && follow(&file, &board, &stop).is_err() {
                // The file may be written at this moment.
                std::thread::sleep(PAUSE);
            }
        }
    };
    std::thread::Builder::new().name("market".to_string()).spawn(follow).map(drop)
}

/// Follows the nodes until nothing is wanted any more.
fn follow(file: &NetworkFile, board: &Board, stop: &AtomicBool) -> Result<(), FollowError> {
    // Links end with this.
    let over = Over(Arc::default());
    let (to, inputs) = sync_channel(INPUTS_MAX);
    let mut links = NodeLinks::start(file.clone(), to, Arc::clone(&over.0))?;
    let mut follower = Follower::default();
    while !stop.load(Ordering::Relaxed) {
        let wanted = board.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        let now_ns = clock::monotonic_ns();
        follower.want(wanted, now_ns);
        follower.take_inputs(&inputs);
        let now_ns = clock::monotonic_ns();
        for (source, instrument) in follower.books.on_time(now_ns) {
            links.ask(source, instrument);
        }
        board.post(follower.views(now_ns).into_iter());
        links.update()?;
    }
    Ok(())
}

/// Ends the threads of links when it goes.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The state of a follower, without links.
#[derive(Default)]
struct Follower {
    books: Books,
    wanted: BTreeSet<u32>,
    /// Where the books of all instruments stand, and who has said so.
    positions: BTreeMap<u32, (Source, BookPosition)>,
    /// Instruments of which no book is known.
    unknown: BTreeSet<u32>,
    /// Since when some node has said which books it has.
    reported_ns: Option<u64>,
}

impl Follower {
    /// Follows these instruments, and no others.
    fn want(&mut self, wanted: BTreeSet<u32>, now_ns: u64) {
        if wanted == self.wanted {
            return;
        }
        let new: Vec<u32> = wanted.difference(&self.wanted).copied().collect();
        self.unknown.retain(|instrument| wanted.contains(instrument));
        self.unknown.extend(&new);
        self.books.set_instruments(wanted.clone());
        self.wanted = wanted;
        for (source, position) in new.iter().filter_map(|it| self.positions.get(it)) {
            self.books.on_position(*source, *position, now_ns, &mut vec![]);
        }
    }

    /// Remembers where a book stands.
    fn place(&mut self, source: Source, position: BookPosition) {
        self.positions.insert(position.instrument, (source, position));
    }

    #[expect(clippy::disallowed_methods, reason = "in the follower's thread")]
    fn take_inputs(&mut self, inputs: &Receiver<Input>) {
        let Ok(mut next) = inputs.recv_timeout(NAP) else { return };
        let now_ns = clock::monotonic_ns();
        for _ in 0..INPUTS_AT_ONCE {
            self.take(next, now_ns);
            match inputs.try_recv() {
                Ok(input) => next = input,
                Err(_) => return,
            }
        }
        // What is left waits for the next turn, except the one that was taken.
        self.take(next, now_ns);
    }

    fn take(&mut self, (source, input): Input, now_ns: u64) {
        let out = &mut vec![];
        match input {
            FromNode::Update(update) => {
                let BookUpdate { instrument, output_seq, history, .. } = update;
                self.place(source, BookPosition { instrument, output_seq, history });
                self.books.on_update(source, update, now_ns, out);
            }
            FromNode::Positions(all) => {
                self.reported_ns.get_or_insert(now_ns);
                for position in all {
                    self.place(source, position);
                    self.books.on_position(source, position, now_ns, out);
                }
            }
            FromNode::Image(position, bytes) => self.books.on_image(position, &bytes, now_ns, out),
            // Whoever asks for market data learns that there is none.
            FromNode::Note(_) => {}
        }
        self.books.notes.clear();
    }

    /// What has changed.
    fn views(&mut self, now_ns: u64) -> Vec<(u32, View)> {
        let changed = self.books.take_changed().into_iter();
        let known = changed.filter_map(|it| Some((it, self.books.view(it, DEPTH_MAX)?)));
        let mut views: Vec<(u32, View)> = known.collect();
        for (instrument, _) in &views {
            self.unknown.remove(instrument);
        }
        let is_settled = self.reported_ns.is_some_and(|since| now_ns >= since + SETTLE_NS);
        if is_settled && !self.unknown.is_empty() {
            let unused = |it: &u32| !self.books.follows(*it);
            let unused: BTreeSet<u32> = self.unknown.iter().copied().filter(unused).collect();
            views.extend(unused.iter().map(|it| (*it, View::empty())));
            self.unknown.retain(|it| !unused.contains(it));
        }
        views
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(all: Vec<BookPosition>) -> Input {
        (0, FromNode::Positions(all))
    }

    #[test]
    fn a_book_that_no_node_has_is_shown_as_empty_after_a_time() {
        let mut follower = Follower::default();
        follower.want([1, 2].into(), 0);
        assert!(follower.views(10 * SETTLE_NS).is_empty(), "no node has said anything");
        let known = BookPosition { instrument: 2, output_seq: 7, history: 9 };
        follower.take(positions(vec![known]), 10 * SETTLE_NS);
        assert!(follower.views(11 * SETTLE_NS - 1).is_empty());
        let views = follower.views(11 * SETTLE_NS);
        assert_eq!(views, [(1, View::empty())], "the book of 2 is asked for");
        assert!(follower.views(12 * SETTLE_NS).is_empty(), "it is said once");
    }
}
