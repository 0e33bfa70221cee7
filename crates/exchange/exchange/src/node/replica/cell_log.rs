//! The log of a cell: replicated, or with durability `none` that of a single replica, which commits
//! at once.

use std::collections::VecDeque;
use std::sync::Arc;

use nm_replica::{Log, LogEvent, Refused, Shared};

/// The log of a cell that has one replica.
#[derive(Debug)]
pub struct SingleLog {
    /// Index of the next batch.
    next: u64,
    /// Rises with each start, if there is a record.
    term: u64,
    committed: VecDeque<LogEvent>,
    /// A batch that was applied: its memory is that of the next one, so that none is allocated.
    applied: Option<Arc<Vec<u8>>>,
}

impl SingleLog {
    /// The log of a replica that starts; `next` is the index of its first batch, and its term.
    pub fn new(next: u64) -> SingleLog {
        SingleLog { next, term: next, committed: VecDeque::new(), applied: None }
    }
}

/// The log of a cell.
#[derive(Debug)]
pub enum CellLog<L> {
    /// Of several replicas, on other nodes as well.
    Replicated(L),
    /// Of this node alone.
    Single(SingleLog),
}

impl<L> CellLog<L> {
    /// Whether no other node has a replica.
    pub fn is_single(&self) -> bool {
        matches!(self, CellLog::Single(_))
    }

    /// An empty buffer for the next batch.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        let applied = match self {
            CellLog::Replicated(_) => None,
            CellLog::Single(log) => log.applied.as_mut().and_then(Arc::get_mut),
        };
        applied.map(std::mem::take).unwrap_or_default()
    }

    /// A batch was applied.
    pub fn recycle(&mut self, batch: Shared) {
        if let CellLog::Single(log) = self {
            log.applied = Some(batch.0);
        }
    }

    /// Whether there are events that no waker tells of, because the node itself caused them.
    pub fn has_committed(&self) -> bool {
        matches!(self, CellLog::Single(log) if !log.committed.is_empty())
    }
}

impl<L: Log> Log for CellLog<L> {
    fn leading_term(&self) -> Option<u32> {
        match self {
            CellLog::Replicated(log) => log.leading_term(),
            CellLog::Single(_) => Some(0),
        }
    }

    fn can_propose(&self) -> bool {
        match self {
            CellLog::Replicated(log) => log.can_propose(),
            CellLog::Single(_) => true,
        }
    }

    fn is_caught_up(&self) -> bool {
        match self {
            CellLog::Replicated(log) => log.is_caught_up(),
            CellLog::Single(_) => true,
        }
    }

    fn other_clocks(&self, monotonic_ns: u64) -> Vec<(usize, u64)> {
        match self {
            CellLog::Replicated(log) => log.other_clocks(monotonic_ns),
            CellLog::Single(_) => vec![],
        }
    }

    fn propose(&mut self, batch: Vec<u8>) -> Result<(), Refused> {
        match self {
            CellLog::Replicated(log) => log.propose(batch),
            CellLog::Single(log) => {
                let mut shared = log.applied.take().unwrap_or_default();
                match Arc::get_mut(&mut shared) {
                    Some(bytes) => *bytes = batch,
                    None => shared = Arc::new(batch),
                }
                let (index, term, batch) = (log.next, log.term, Shared(shared));
                log.committed.push_back(LogEvent::Committed { index, term, batch });
                log.next += 1;
                Ok(())
            }
        }
    }

    fn next_event(&mut self) -> Option<LogEvent> {
        match self {
            CellLog::Replicated(log) => log.next_event(),
            CellLog::Single(log) => log.committed.pop_front(),
        }
    }

    fn finish_snapshot(&mut self, number: u64, state: Vec<u8>) {
        if let CellLog::Replicated(log) = self {
            log.finish_snapshot(number, state);
        }
    }

    fn hand_over(&mut self) {
        if let CellLog::Replicated(log) = self {
            log.hand_over();
        }
    }

    fn replace(&mut self, from: usize, to: usize) {
        if let CellLog::Replicated(log) = self {
            log.replace(from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::simulation::group::SimulatedLog;

    #[test]
    fn a_single_log_commits_what_is_proposed_at_once_and_in_order() {
        let mut log = CellLog::<SimulatedLog>::Single(SingleLog::new(7));
        assert!(log.can_propose() && log.leading_term() == Some(0) && !log.has_committed());
        [1, 2].into_iter().for_each(|batch| log.propose(vec![batch]).unwrap());
        assert!(log.can_propose() && log.has_committed());
        let committed = std::iter::from_fn(|| log.next_event()).map(|event| match event {
            LogEvent::Committed { index, term, batch } => (index, term, batch.0.to_vec()),
            other => panic!("{other:?}"),
        });
        assert_eq!(committed.collect::<Vec<_>>(), [(7, 7, vec![1]), (8, 7, vec![2])]);
        assert!(!log.has_committed());
    }
}
