//! Who may change the network while a day of load runs: policies, or a schedule of moves.

use nm_exchange::network::Network;
use nm_model::Failure;

use super::event::DayEvent;
use super::second::SecondFigures;
use crate::supervise::Supervisor;

/// What an operator sees, and may change.
pub struct OperatorView<'a> {
    /// The running nodes.
    pub supervisor: &'a mut Supervisor,
    /// Addresses and options of the network, and what its operator proves himself with.
    pub network: &'a Network,
    /// Start of the day on the monotonic clock, ns.
    pub start_ns: u64,
    /// Present time on the same clock, ns.
    pub now_ns: u64,
    /// The last second whose requests were all answered, as clients saw it.
    pub last_second: Option<&'a SecondFigures>,
}

/// Changes the network while a day of load runs.
pub trait Operator {
    /// Called about every `OPERATOR_INTERVAL` from the start of the day to its end,
    /// by the thread that restarts nodes: it must return soon, and do what takes long in a thread
    /// of its own. Returns what happened since the last call.
    ///
    /// # Errors
    /// What ends the day.
    fn act(&mut self, view: OperatorView<'_>) -> Result<Vec<DayEvent>, Failure>;

    /// At the end of the day: what it should have done and has not, as a sentence.
    fn unfinished(&self) -> Option<String> {
        None
    }
}

/// Changes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoOperator;

impl Operator for NoOperator {
    fn act(&mut self, _: OperatorView<'_>) -> Result<Vec<DayEvent>, Failure> {
        Ok(vec![])
    }
}

impl<F> Operator for F
where
    F: FnMut(OperatorView<'_>) -> Result<Vec<DayEvent>, Failure>,
{
    fn act(&mut self, view: OperatorView<'_>) -> Result<Vec<DayEvent>, Failure> {
        self(view)
    }
}
