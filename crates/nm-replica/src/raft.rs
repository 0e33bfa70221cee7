//! The types that openraft is used with, and the two ends of the channel between its thread and the
//! data loop.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use nm_sys::poll::Waker;
use openraft::{EmptyNode, LogId, TokioRuntime};
use tokio::sync::mpsc::UnboundedSender;

use super::store::epoch_of;
use super::{Log, LogEvent, Refused, Shared};

/// A replica's number: its position in the group, from 1 on.
pub type NodeId = u64;

openraft::declare_raft_types!(
    /// The types.
    pub Types:
        D = Shared,
        R = (),
        NodeId = NodeId,
        Node = EmptyNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Shared,
        AsyncRuntime = TokioRuntime,
);

/// The engine.
pub type Raft = openraft::Raft<Types>;

/// What the data loop asks of the replication thread.
#[derive(Debug)]
pub enum Asked {
    /// To propose a batch.
    Propose(Vec<u8>),
    /// To take a snapshot that was wanted.
    Snapshot(u64, Vec<u8>),
}

#[derive(Debug, Default)]
struct Leading {
    /// Epoch in which the engine says that it leads.
    elected: Option<u64>,
    /// Epoch of the last entry that was applied.
    applied: Option<u64>,
    /// What the data loop was told.
    told: Option<u64>,
}

/// The end of the channel on the replication thread.
#[derive(Debug)]
pub struct Teller {
    messages: Sender<LogEvent>,
    waker: Waker,
    may_lead: bool,
    leading: Mutex<Leading>,
}

impl Teller {
    /// The end for one group.
    pub fn new(messages: Sender<LogEvent>, waker: Waker, may_lead: bool) -> Teller {
        Teller { messages, waker, may_lead, leading: Mutex::default() }
    }

    /// Tells.
    pub fn tell(&self, told: LogEvent) {
        // Without a data loop nobody wants to know.
        let _ = self.messages.send(told);
        self.waker.wake();
    }

    /// Tells what was committed, the last of it being `last`.
    pub fn applied(&self, told: Vec<LogEvent>, last: Option<LogId<NodeId>>) {
        let is_any = !told.is_empty();
        for told in told {
            let _ = self.messages.send(told);
        }
        self.lead(|leading| leading.applied = last.map(|last| epoch_of(&last.leader_id)));
        if is_any {
            self.waker.wake();
        }
    }

    /// The engine leads in this epoch, or does not lead.
    pub fn elected(&self, epoch: Option<u64>) {
        self.lead(|leading| leading.elected = epoch);
    }

    /// A leader leads when it has applied its own first entry: most replicas are then with it, and
    /// all of the earlier epochs has been told.
    fn lead(&self, change: impl FnOnce(&mut Leading)) {
        let mut leading = self.leading.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut leading);
        let now = leading.elected.filter(|_| leading.elected == leading.applied);
        if !self.may_lead || now == leading.told {
            return;
        }
        leading.told = now;
        self.tell(match now.and_then(|epoch| u32::try_from(epoch).ok()) {
            Some(epoch) => LogEvent::LeadershipGained { term: epoch },
            None => LogEvent::LeadershipLost,
        });
    }
}

/// A group's log by openraft, as the data loop holds it.
#[derive(Debug)]
pub struct RaftLog {
    cell: u16,
    messages: Receiver<LogEvent>,
    asked: UnboundedSender<Asked>,
    lead: Option<u32>,
    is_under_way: bool,
    is_whole: bool,
}

impl RaftLog {
    /// The data loop's end for one group.
    pub(super) fn new(
        cell: u16,
        messages: Receiver<LogEvent>,
        asked: UnboundedSender<Asked>,
    ) -> RaftLog {
        RaftLog { cell, messages, asked, lead: None, is_under_way: false, is_whole: false }
    }

    /// The cell.
    pub fn group_id(&self) -> u16 {
        self.cell
    }
}

impl Log for RaftLog {
    fn leading_term(&self) -> Option<u32> {
        self.lead
    }

    fn can_propose(&self) -> bool {
        self.lead.is_some() && !self.is_under_way
    }

    fn is_caught_up(&self) -> bool {
        self.is_whole
    }

    fn propose(&mut self, batch: Vec<u8>) -> Result<(), Refused> {
        if !self.can_propose() {
            return Err(Refused(batch));
        }
        self.is_under_way = true;
        // If the thread has ended, its last word tells so.
        let _ = self.asked.send(Asked::Propose(batch));
        Ok(())
    }

    fn next_event(&mut self) -> Option<LogEvent> {
        let told = self.messages.try_recv().ok()?;
        match &told {
            LogEvent::Committed { term, .. } if self.lead.map(u64::from) == Some(*term) => {
                self.is_under_way = false;
            }
            LogEvent::LeadershipGained { term } => {
                (self.lead, self.is_under_way) = (Some(*term), false)
            }
            LogEvent::LeadershipLost | LogEvent::Stopped(_) => {
                (self.lead, self.is_under_way) = (None, false)
            }
            LogEvent::CaughtUp => self.is_whole = true,
            _ => {}
        }
        Some(told)
    }

    fn finish_snapshot(&mut self, number: u64, state: Vec<u8>) {
        let _ = self.asked.send(Asked::Snapshot(number, state));
    }
}
