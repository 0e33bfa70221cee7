//! Who leads, beyond what openraft does by itself: the first election of a group, a replica that
//! lost its memory, one that may not lead, and a leader that died.
//!
//! Standing for election is always safe; whether it is wise, the voters' leases decide. A lease
//! is the silence of a leader after which a replica votes for another one. It protects no
//! promise, only the peace: so a replica that never wants to lead may have a shorter one, and a
//! killed leader is replaced sooner. Its connections end with it, which its followers see at
//! once.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use openraft::{EmptyNode, ServerState};
use tokio::time::{Instant, sleep};

use super::host::{Engine, LOOK, Seat};
use super::network::{Kind, Peer};
use super::raft::NodeId;
use super::{LogEvent, Member};

/// How long a replica lacks what it had before it says so.
const PATIENCE: Duration = Duration::from_secs(3);

/// When the leader was last heard of.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    at: Instant,
    /// Its number; zero for nobody.
    from: u8,
    /// Whether its connection has ended since.
    is_lost: bool,
}

impl Default for Heard {
    fn default() -> Heard {
        Heard { at: Instant::now(), from: 0, is_lost: false }
    }
}

impl Engine {
    fn heard(&self) -> Heard {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A leader was heard of.
    pub fn hear(&self, from: u8) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) =
            Heard { at: Instant::now(), from, is_lost: false };
    }

    /// The connection of a leader has ended.
    pub fn lose(&self, from: u8) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.from == from {
            heard.is_lost = true;
            self.lost.notify_one();
        }
    }

    /// Time since a leader was heard of.
    fn silence(&self) -> Duration {
        self.heard().at.elapsed()
    }
}

impl Seat {
    pub fn may_lead(&self) -> bool {
        self.group.members.get(self.group.own).is_some_and(|member| member.may_lead)
    }

    /// The leases of those who may lead, and of the others.
    pub fn leases(&self) -> (Duration, Duration) {
        let (short_ms, long_ms) = self.settings.election_ms;
        (Duration::from_millis(long_ms), Duration::from_millis(short_ms))
    }

    fn lease(&self) -> Duration {
        let (leading, other) = self.leases();
        if self.may_lead() { leading } else { other }
    }

    /// Whether this replica would vote for another leader now.
    pub fn is_free(&self, engine: &Engine) -> bool {
        engine.silence() > self.lease()
    }

    /// If the leader's connection has ended, waits until the lease has, too: whoever asks for a
    /// vote then need not ask twice.
    pub async fn until_free(&self, engine: &Engine) {
        let left = (self.lease() + Duration::from_millis(1)).saturating_sub(engine.silence());
        if engine.heard().is_lost && !left.is_zero() {
            sleep(left).await;
        }
    }

    /// Whether the replica of this number may ask this one to stand now: nobody is heard, or the
    /// leader itself asks.
    pub fn may_stand(&self, engine: &Engine, asked_by: u8) -> bool {
        (self.is_free(engine) || engine.heard().from == asked_by) && self.store.is_whole()
    }

    /// Writes the members down as the group's first entry; which of them does it does not matter.
    pub async fn begin(self: Arc<Seat>, engine: Arc<Engine>) {
        if !self.may_lead() {
            return;
        }
        sleep(self.lease() * self.group.own as u32 * 2).await;
        if matches!(engine.raft.is_initialized().await, Ok(false)) {
            let ids = (1..=self.group.members.len() as NodeId).map(|id| (id, EmptyNode::new()));
            let members: BTreeMap<NodeId, EmptyNode> = ids.collect();
            // It fails only if another one's entry has come meanwhile.
            let _ = engine.raft.initialize(members).await;
        }
    }

    /// Lets it stand for election as soon as its log is whole. Until then, somebody must lead: one
    /// that may not, and has the log, is asked to stand. Then it stands whenever the leader's
    /// connection ends and it stays silent.
    pub async fn succeed(self: Arc<Seat>, engine: Arc<Engine>) {
        let mut since = Instant::now();
        while !self.store.is_whole() {
            sleep(LOOK).await;
            if since.elapsed() > PATIENCE {
                since = Instant::now();
                self.waits(
                    "it lost its memory, and no leader has brought it what it had; if this does \
                     not end, too many replicas were lost at once, and acknowledged requests with \
                     them",
                );
            }
            if engine.silence() > self.leases().0 * 2 {
                for (position, member) in self.group.members.iter().enumerate() {
                    if !member.may_lead && position != self.group.own {
                        self.stand(member).await;
                    }
                }
                engine.hear(0);
            }
        }
        self.tell(LogEvent::CaughtUp);
        if !self.may_lead() {
            return;
        }
        engine.raft.runtime_config().elect(true);
        loop {
            engine.lost.notified().await;
            let vote = self.store.vote();
            let enough = self.leases().1 + LOOK;
            sleep(enough.saturating_sub(engine.silence())).await;
            // Another one that stands already is not disturbed.
            if engine.heard().is_lost && vote == self.store.vote() {
                let _ = engine.raft.trigger().elect().await;
            }
        }
    }

    /// If one that may not lead was elected, it waits until one that may has everything, and lets
    /// it stand.
    pub async fn hand_over(self: Arc<Seat>, engine: Arc<Engine>) {
        if self.may_lead() {
            return;
        }
        let mut changes = engine.raft.server_metrics();
        while changes.changed().await.is_ok() {
            let since = Instant::now();
            while changes.borrow_and_update().state == ServerState::Leader {
                let matching = engine.raft.metrics().borrow().replication.clone();
                let matching = matching.unwrap_or_default();
                let is_ready = |position: usize, member: &Member| {
                    let last = matching.get(&(position as NodeId + 1)).copied().flatten();
                    member.may_lead && last.is_some() && last >= self.store.last()
                };
                let mut members = self.group.members.iter().enumerate();
                let heir = members.find(|(position, member)| is_ready(*position, member));
                if let Some((_, heir)) = heir {
                    // As long as its own election is younger than its lease, it would not vote.
                    sleep((self.lease() + LOOK).saturating_sub(since.elapsed())).await;
                    self.stand(heir).await;
                    sleep(self.lease()).await;
                }
                sleep(LOOK / 4).await;
            }
        }
    }

    async fn stand(&self, member: &Member) {
        let me = self.group.own as u8 + 1;
        let mut peer = Peer::new(member.address.clone(), me, self.group.id);
        let asked = peer.ask::<bool>(Kind::Stand, |_| (), &[]);
        let _ = tokio::time::timeout(self.leases().0, asked).await;
    }
}
