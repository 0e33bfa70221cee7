//! The two ends of the channel between the replication thread and a node's data loop.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use nm_sys::poll::Waker;
use openraft::LogId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clocks::Clocks;
use crate::log::{Log, LogEvent, Refused};
use crate::types::{NodeId, term_of};

/// What the data loop wants of the replication thread.
#[derive(Debug)]
pub enum LogCommand {
    /// Propose a batch.
    Propose(Vec<u8>),
    /// Keep the snapshot of this number.
    FinishSnapshot(u64, Vec<u8>),
    /// Have another replica lead.
    HandOver,
    /// Replace the replica of one member by one of another, by their positions.
    Replace { from: usize, to: usize },
}

#[derive(Debug, Default)]
struct Leadership {
    /// Term in which openraft says that this replica is the leader.
    elected: Option<u64>,
    /// Term of the last entry that was applied.
    applied: Option<u64>,
    /// Term of leadership that was reported last.
    reported: Option<u64>,
}

/// The end of the channel on the replication thread.
#[derive(Debug)]
pub struct EventSender {
    events: Sender<LogEvent>,
    waker: Waker,
    may_lead: bool,
    leadership: Mutex<Leadership>,
    /// The wall clocks of the other members.
    pub clocks: Arc<Clocks>,
}

/// The ends of the channel of one group, for the replica at position `own` of so many members:
/// events are sent, commands are received, and the log of the data loop does the opposite.
pub fn connect(
    group_id: u16,
    (own, members): (usize, usize),
    may_lead: bool,
    waker: Waker,
) -> (EventSender, UnboundedReceiver<LogCommand>, RaftLog) {
    let (events, receiver) = channel();
    let (commands, command_receiver) = unbounded_channel();
    let clocks = Arc::new(Clocks::new(members));
    let (leadership, shown) = (Mutex::default(), Arc::clone(&clocks));
    let sender = EventSender { events, waker, may_lead, leadership, clocks: shown };
    let log = RaftLog {
        group_id,
        own,
        clocks,
        events: receiver,
        commands,
        leading_term: None,
        is_in_flight: false,
        is_handing_over: false,
        is_caught_up: false,
    };
    (sender, command_receiver, log)
}

impl EventSender {
    /// Sends an event.
    pub fn send(&self, event: LogEvent) {
        // It fails only if the data loop has ended.
        let _ = self.events.send(event);
        self.waker.wake();
    }

    /// Sends the events of applied entries; `last` is the last entry.
    pub fn send_applied(&self, events: Vec<LogEvent>, last: Option<LogId<NodeId>>) {
        let is_any = !events.is_empty();
        for event in events {
            let _ = self.events.send(event);
        }
        self.update_leadership(|state| state.applied = last.map(|last| term_of(&last.leader_id)));
        if is_any {
            self.waker.wake();
        }
    }

    /// openraft says that this replica leads in a term, or that it does not lead.
    pub fn set_elected(&self, term: Option<u64>) {
        self.update_leadership(|state| state.elected = term);
    }

    /// A leader is reported when it has applied its own first entry: a majority follows it then,
    /// and all entries of earlier terms have been delivered.
    fn update_leadership(&self, change: impl FnOnce(&mut Leadership)) {
        let mut state = self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let now = state.elected.filter(|_| state.elected == state.applied);
        if !self.may_lead || now == state.reported {
            return;
        }
        state.reported = now;
        self.send(match now.and_then(|term| u32::try_from(term).ok()) {
            Some(term) => LogEvent::LeadershipGained { term },
            None => LogEvent::LeadershipLost,
        });
    }
}

/// A group's log by openraft: the end of the channel at the data loop.
#[derive(Debug)]
pub struct RaftLog {
    group_id: u16,
    /// Position of this replica in its group.
    own: usize,
    clocks: Arc<Clocks>,
    events: Receiver<LogEvent>,
    commands: UnboundedSender<LogCommand>,
    leading_term: Option<u32>,
    is_in_flight: bool,
    /// Another replica is to lead, which needs all entries: there are no new ones meanwhile.
    is_handing_over: bool,
    is_caught_up: bool,
}

impl RaftLog {
    /// The number of its group.
    pub fn group_id(&self) -> u16 {
        self.group_id
    }
}

impl Log for RaftLog {
    fn leading_term(&self) -> Option<u32> {
        self.leading_term
    }

    fn can_propose(&self) -> bool {
        self.leading_term.is_some() && !self.is_in_flight && !self.is_handing_over
    }

    fn is_caught_up(&self) -> bool {
        self.is_caught_up
    }

    fn other_clocks(&self, monotonic_ns: u64) -> Vec<(usize, u64)> {
        self.clocks.known(monotonic_ns)
    }

    fn propose(&mut self, batch: Vec<u8>) -> Result<(), Refused> {
        if !self.can_propose() {
            return Err(Refused(batch));
        }
        self.is_in_flight = true;
        // If the thread has ended, its last event says so.
        let _ = self.commands.send(LogCommand::Propose(batch));
        Ok(())
    }

    fn next_event(&mut self) -> Option<LogEvent> {
        let event = self.events.try_recv().ok()?;
        match &event {
            LogEvent::Committed { term, .. } if self.leading_term.map(u64::from) == Some(*term) => {
                self.is_in_flight = false;
            }
            LogEvent::LeadershipGained { term } => {
                debug_assert!(self.leading_term.is_none_or(|before| before < *term));
                (self.leading_term, self.is_in_flight) = (Some(*term), false);
                self.is_handing_over = false;
            }
            LogEvent::LeadershipLost | LogEvent::Stopped(_) | LogEvent::Removed => {
                (self.leading_term, self.is_in_flight) = (None, false);
                self.is_handing_over = false;
            }
            LogEvent::CaughtUp => self.is_caught_up = true,
            LogEvent::HandOverFailed(_) => self.is_handing_over = false,
            LogEvent::Committed { .. }
            | LogEvent::TakeSnapshot { .. }
            | LogEvent::LoadSnapshot { .. }
            | LogEvent::Degraded(_)
            | LogEvent::Voters(_)
            | LogEvent::ReplaceFailed(_)
            | LogEvent::Warning(_) => {}
        }
        Some(event)
    }

    fn finish_snapshot(&mut self, number: u64, state: Vec<u8>) {
        let _ = self.commands.send(LogCommand::FinishSnapshot(number, state));
    }

    fn hand_over(&mut self) {
        if self.leading_term.is_some() && !self.is_handing_over {
            self.is_handing_over = true;
            let _ = self.commands.send(LogCommand::HandOver);
        }
    }

    fn replace(&mut self, from: usize, to: usize) {
        // A leader leaves its place to another one first, who knows nothing of this order.
        match from == self.own {
            true => self.hand_over(),
            false => drop(self.commands.send(LogCommand::Replace { from, to })),
        }
    }
}
