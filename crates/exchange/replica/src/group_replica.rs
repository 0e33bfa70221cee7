//! One replica of a group at this node, and what it knows of its leader.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::{EmptyNode, Membership, ServerState};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::channel::EventSender;
use crate::env::Env;
use crate::group::{Group, Settings};
use crate::log::LogEvent;
use crate::log_store::LogStore;
use crate::message::ReplicaStatus;
use crate::types::{NodeId, Raft};

/// How often a condition is checked that nobody is notified of.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A replica of a group at this node.
pub struct GroupReplica {
    pub env: Env,
    pub group: Group,
    pub events: Arc<EventSender>,
    pub store: LogStore,
    /// Whether it was opened because a leader asked for it.
    pub joins: bool,
    stage: Mutex<Stage>,
    /// Whether its node has given it up, and what says so.
    is_closed: AtomicBool,
    closed: Notify,
}

/// Whether a replica takes part in its group yet.
#[derive(Clone)]
pub enum Stage {
    /// It has no state yet; the random number of its start.
    Empty(u64),
    /// It takes part.
    Active(Arc<Engine>),
}

/// openraft, and the contact with the leader.
pub struct Engine {
    pub raft: Raft,
    contact: Mutex<LeaderContact>,
    /// Notified when the leader's connection ends.
    pub leader_lost: Notify,
    /// Notified when this replica is perhaps no part of the group any more.
    pub membership_doubted: Notify,
    /// Whether this replica replaces another one at the moment.
    pub is_replacing: AtomicBool,
}

/// The last contact with a leader.
#[derive(Debug, Clone, Copy)]
struct LeaderContact {
    at: Instant,
    /// Number of the leader; zero for none.
    from: u8,
    /// Whether its connection has ended since.
    is_lost: bool,
}

impl Engine {
    /// An engine without contact with a leader.
    pub fn new(raft: Raft) -> Engine {
        let contact = LeaderContact { at: Instant::now(), from: 0, is_lost: false };
        Engine {
            raft,
            contact: Mutex::new(contact),
            leader_lost: Notify::new(),
            membership_doubted: Notify::new(),
            is_replacing: AtomicBool::new(false),
        }
    }

    /// The membership of the group, as far as this replica knows.
    pub fn membership(&self) -> Membership<NodeId, EmptyNode> {
        self.raft.metrics().borrow().membership_config.membership().clone()
    }

    /// The voters of the group, as far as this replica knows; while they change, of both sets.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.membership().voter_ids().collect()
    }

    /// Whether this replica leads.
    pub fn is_leader(&self) -> bool {
        self.raft.server_metrics().borrow().state == ServerState::Leader
    }

    fn contact(&self) -> MutexGuard<'_, LeaderContact> {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A leader has sent something.
    pub fn record_contact(&self, from: u8) {
        *self.contact() = LeaderContact { at: Instant::now(), from, is_lost: false };
    }

    /// Begins to count the silence from now on.
    pub fn reset_contact(&self) {
        self.record_contact(0);
    }

    /// A leader is refused, because another one was voted for since: the end of its connection is
    /// no reason to campaign. It would be refused again, and again end its connection.
    pub fn record_refusal(&self, from: u8) {
        let mut contact = self.contact();
        if contact.from == from {
            contact.from = 0;
        }
    }

    /// The connection of a leader has ended.
    pub fn record_loss(&self, from: u8) {
        let mut contact = self.contact();
        if contact.from == from {
            contact.is_lost = true;
            self.leader_lost.notify_one();
        }
    }

    /// Number of the leader of the last contact; zero for none.
    pub fn leader(&self) -> u8 {
        self.contact().from
    }

    /// Whether the connection of the leader has ended.
    pub fn has_lost_leader(&self) -> bool {
        self.contact().is_lost
    }

    /// Time since the last contact with a leader.
    pub fn silence(&self) -> Duration {
        self.contact().at.elapsed()
    }
}

impl GroupReplica {
    /// A replica that does not take part yet.
    pub fn new(
        env: Env,
        group: Group,
        events: Arc<EventSender>,
        (store, joins): (LogStore, bool),
    ) -> GroupReplica {
        let stage = Mutex::new(Stage::Empty(env.random()));
        let (is_closed, closed) = (AtomicBool::new(false), Notify::new());
        GroupReplica { env, group, events, store, joins, stage, is_closed, closed }
    }

    /// Its number in the group.
    pub fn id(&self) -> NodeId {
        self.group.own as NodeId + 1
    }

    /// It ends, because there is no such group any more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.closed.notify_one();
    }

    /// Whether [`GroupReplica::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Waits until it is closed.
    pub async fn wait_closed(&self) {
        while !self.is_closed() {
            self.closed.notified().await;
        }
    }

    /// Reports that it cannot work as it should.
    pub fn report_degraded(&self, why: &str) {
        self.events.send(LogEvent::Degraded(why.to_string()));
    }

    /// Whether it takes part.
    pub fn stage(&self) -> Stage {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It takes part from now on.
    pub fn activate(&self, engine: Arc<Engine>) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(matches!(*stage, Stage::Empty(_)), "a replica is activated once");
        *stage = Stage::Active(engine);
    }

    /// What it knows of its group, as far as it would survive a crash.
    pub fn status(&self) -> ReplicaStatus {
        match self.stage() {
            Stage::Empty(start) => ReplicaStatus::Empty(start),
            Stage::Active(_) => {
                let state = self.store.hard_state();
                let last = self.store.last_durable().max(state.required_log_id);
                let (bootstrap_ids, vote) = (state.bootstrap_ids, state.vote);
                let membership = self.store.membership();
                ReplicaStatus::Active { bootstrap_ids, vote, last, membership }
            }
        }
    }

    /// Whether it may become the leader.
    pub fn may_lead(&self) -> bool {
        self.group.members.get(self.group.own).is_some_and(|member| member.may_lead)
    }

    /// The leases of replicas that may lead, and of the others. A lease is the silence of the
    /// leader after which a replica votes for another one.
    pub fn leases(&self) -> (Duration, Duration) {
        let Settings { election_ms: (short_ms, long_ms), .. } = self.group.settings;
        (Duration::from_millis(long_ms), Duration::from_millis(short_ms))
    }

    /// The lease of this replica.
    pub fn lease(&self) -> Duration {
        let (leading, other) = self.leases();
        if self.may_lead() { leading } else { other }
    }

    /// Whether the leader's lease has expired, so that this replica would vote for another one.
    pub fn is_lease_expired(&self, engine: &Engine) -> bool {
        engine.silence() > self.lease()
    }

    /// If the leader's connection has ended, waits until its lease expires: a candidate then need
    /// not ask twice.
    pub async fn wait_for_lost_lease(&self, engine: &Engine) {
        let left = (self.lease() + Duration::from_millis(1)).saturating_sub(engine.silence());
        if engine.has_lost_leader() && !left.is_zero() {
            sleep(left).await;
        }
    }
}
