//! Events of a node on their way to the process that started it, which may not read them: the node
//! goes on all the same.

use std::io;
use std::time::Duration;

use super::event::NodeEvent;
use crate::limits::EVENTS_WAITING_MAX;
use crate::network::NodeId;
use crate::output_queue::OutputQueue;

/// Events that a thread writes. Those for which there is no room are counted, and the reader gets
/// their number when it reads again.
#[derive(Debug)]
pub struct EventQueue(OutputQueue<NodeEvent>);

impl EventQueue {
    /// Starts the thread; `write` may block.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(
        node: NodeId,
        write: impl FnMut(&NodeEvent) + Send + 'static,
    ) -> io::Result<EventQueue> {
        let dropped = move |n_dropped| {
            let message = format!("{n_dropped} events were dropped: nobody read them");
            NodeEvent::Warning { node, message }
        };
        OutputQueue::start(EVENTS_WAITING_MAX, write, dropped).map(EventQueue)
    }

    /// Adds an event, or counts it if there is no room. Does not block.
    pub fn push(&self, event: NodeEvent) {
        self.0.push(event, 1);
    }

    /// Waits until all events are written, but no longer than `limit`; whether they are.
    pub fn end(self, limit: Duration) -> bool {
        self.0.end(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Role;
    use std::sync::mpsc::channel;

    fn event(number: usize) -> NodeEvent {
        NodeEvent::Ready { node: Role::Gateway.node(number as u16) }
    }

    #[test]
    fn a_reader_that_stops_holds_nobody_up_and_learns_what_it_missed() {
        let (resume, stopped) = channel::<()>();
        let (written, read) = channel();
        let write = move |event: &NodeEvent| {
            let _ = stopped.recv();
            written.send(event.clone()).unwrap();
        };
        let queue = EventQueue::start(Role::Gateway.node(7), write).unwrap();
        for number in 0..EVENTS_WAITING_MAX + 100 {
            queue.push(event(number));
        }
        drop(resume);
        assert!(queue.end(Duration::from_secs(60)), "the reader reads again");
        let all: Vec<NodeEvent> = read.iter().collect();
        let is_ready = |event: &&NodeEvent| matches!(event, NodeEvent::Ready { .. });
        let n_kept = all.iter().filter(is_ready).count();
        // The thread has taken one from the queue, or not yet.
        assert!([EVENTS_WAITING_MAX, EVENTS_WAITING_MAX + 1].contains(&n_kept), "{n_kept}");
        assert_eq!(all[0], event(0));
        let n_dropped = EVENTS_WAITING_MAX + 100 - n_kept;
        let message = format!("{n_dropped} events were dropped: nobody read them");
        assert_eq!(all[1], NodeEvent::Warning { node: Role::Gateway.node(7), message });
        assert_eq!(all.len(), n_kept + 1);
    }

    #[test]
    fn a_node_ends_although_nobody_reads() {
        let (_resume, stopped) = channel::<()>();
        let write = move |_: &NodeEvent| {
            let _ = stopped.recv();
        };
        let queue = EventQueue::start(Role::Router.node(0), write).unwrap();
        queue.push(event(0));
        assert!(!queue.end(Duration::from_millis(10)));
    }
}
