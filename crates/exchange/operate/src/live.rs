//! Looks at a running network again and again: what `status` shows, rates from one look to the
//! next, and what has happened between them.
//!
//! A look asks the nodes for what they count anyway, so it costs each of them two connections. The
//! rates are those of the node's own clock: a late look makes no rate wrong.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nm_book::order::InstrumentId;
use nm_exchange::control::Work;
use nm_exchange::network::{Network, NodeId, Role};
use nm_model::agent::Failure;
use schemars::JsonSchema;
use serde::Serialize;

use crate::admin::{self, NetworkStatus, NodeStatus};
use crate::health::{self, Trading};

/// How long the nodes may take to answer one look.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Events that are kept, the latest.
pub const EVENTS_MAX: usize = 200;

/// Instruments of one look: those with most requests.
pub const INSTRUMENTS_MAX: usize = 100;

/// Bytes of the sentence of an event.
const SENTENCE_BYTES_MAX: usize = 400;

/// What kind of thing has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// An instrument has another cell, or is on its way to one.
    Move,
    /// A cell has another leader.
    Leader,
    /// A node does not do its work any more, or does so again.
    Fault,
    /// The supervisor did something.
    Service,
    /// Another program wrote it to a file that is followed.
    Followed,
}

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Event {
    /// Number, which grows by one.
    pub number: u64,
    /// When it was noticed, ms since 1970.
    pub at_unix_ms: u64,
    /// Which kind.
    pub kind: EventKind,
    /// What the followed file is called, if it is from one.
    pub from: Option<String>,
    /// What, in a sentence.
    pub sentence: String,
}

/// The latest events.
#[derive(Debug, Clone, Default)]
pub struct Events {
    kept: VecDeque<Event>,
    next: u64,
}

impl Events {
    /// Adds one, and forgets the oldest if there are too many.
    pub fn add(&mut self, at_unix_ms: u64, kind: EventKind, sentence: &str) {
        self.keep(at_unix_ms, kind, None, sentence);
    }

    /// Adds a line of a followed file of this name.
    pub fn add_line(&mut self, at_unix_ms: u64, from: &str, line: &str) {
        self.keep(at_unix_ms, EventKind::Followed, Some(from.to_string()), line);
    }

    fn keep(&mut self, at_unix_ms: u64, kind: EventKind, from: Option<String>, sentence: &str) {
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        let sentence = sentence[..sentence.floor_char_boundary(SENTENCE_BYTES_MAX)].to_string();
        self.kept.push_back(Event { number: self.next, at_unix_ms, kind, from, sentence });
        self.next += 1;
    }

    /// Those that are kept, from the oldest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.kept.iter()
    }
}

/// A node, as one look has it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct NodeSight {
    /// What it answers, and what control knows of it.
    #[serde(flatten)]
    pub status: NodeStatus,
    /// CPU time of its process, s, if it was counted.
    pub cpu_s: Option<f64>,
    /// Share of one CPU that it takes, since the look before.
    pub cpu_share: Option<f64>,
    /// Requests a second since the look before: that a mediator has executed, or that came by a
    /// gateway. Others do not count them.
    pub requests_per_s: Option<f64>,
    /// Sessions of the clients of a gateway.
    pub sessions: Option<u32>,
    /// Instruments that have left the cells of a mediator.
    pub moved: Option<u64>,
    /// Latency of one way to other nodes, as far as it measures them.
    pub links: Vec<LinkSight>,
}

/// The latency of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LinkSight {
    /// The other node, such as `router 1`.
    pub peer: String,
    /// Latency of one way, ns; 0 on one host.
    pub latency_ns: u64,
}

/// An instrument, as one look has it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct InstrumentSight {
    /// Which.
    pub instrument: InstrumentId,
    /// Its cell.
    pub cell: u16,
    /// The mediator that leads the cell.
    pub owner: u16,
    /// Requests that were executed.
    pub executed: u64,
    /// Requests a second since the look before.
    pub requests_per_s: Option<f64>,
}

/// What one look has seen.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Sight {
    /// Whether the network does what it is for.
    pub trading: Trading,
    /// Which instruments cannot be traded, and why.
    pub not_traded: Vec<String>,
    /// What waits because nobody takes the place of nodes that do not answer.
    pub waits: Vec<String>,
    /// What `exchange status` shows.
    #[serde(skip)]
    pub status: NetworkStatus,
    /// All nodes.
    pub nodes: Vec<NodeSight>,
    /// The busiest instruments.
    pub instruments: Vec<InstrumentSight>,
    /// What has happened since the look before.
    #[serde(skip)]
    pub happened: Vec<(EventKind, String)>,
}

impl Sight {
    /// Requests a second that all mediators have executed.
    pub fn requests_per_s(&self) -> Option<f64> {
        let mediators = self.nodes.iter().filter(|node| node.status.id.class == Role::Mediator);
        mediators.filter_map(|node| node.requests_per_s).reduce(|a, b| a + b)
    }
}

/// Looks at a network.
#[derive(Debug)]
pub struct LiveView {
    network: Network,
    before: BTreeMap<NodeId, Work>,
    last: Option<NetworkStatus>,
}

impl LiveView {
    /// One that has not looked yet.
    pub fn new(network: &Network) -> LiveView {
        LiveView { network: network.clone(), before: BTreeMap::new(), last: None }
    }

    /// The network, as its file has it.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Asks all nodes.
    ///
    /// # Errors
    /// As [`health::ask`].
    pub fn look(&mut self) -> Result<Sight, Failure> {
        let status = health::ask(&self.network, ANSWER_LIMIT)?;
        // Who does not answer that would not answer this. Processors count no work.
        let counts =
            |node: &&NodeStatus| node.answers == Some(true) && node.id.class != Role::Processor;
        let there = status.nodes.iter().filter(counts);
        let there: Vec<NodeId> = there.map(|node| node.id).collect();
        let work = admin::work_of(&status.network, &there, ANSWER_LIMIT)?;
        let mut sight = self.seen(status, work.into_iter().collect());
        if let Some(last) = &self.last {
            sight.happened = differences(last, &sight.status);
        }
        self.last = Some(sight.status.clone());
        Ok(sight)
    }

    fn seen(&mut self, status: NetworkStatus, work: BTreeMap<NodeId, Work>) -> Sight {
        let by_gateway = requests_by_gateway(&work, &self.before);
        let mut instruments = vec![];
        for (node, now) in &work {
            let before = self.before.get(node);
            instruments.extend(instruments_of(node.index, now, before));
        }
        let of_node = |node: &NodeStatus| {
            let now = work.get(&node.id);
            let before = now.and_then(|_| self.before.get(&node.id));
            let mut seen = node_sight(node, now, before);
            if node.id.class == Role::Gateway {
                seen.requests_per_s = by_gateway.get(&node.id.index).copied();
            }
            seen
        };
        let nodes = status.nodes.iter().map(of_node).collect();
        self.before = work;
        instruments.sort_by_key(|one| (std::cmp::Reverse(one.executed), one.instrument));
        instruments.truncate(INSTRUMENTS_MAX);
        let (trading, not_traded, waits) = (status.trading(), status.not_traded(), status.waits());
        Sight { trading, not_traded, waits, status, nodes, instruments, happened: vec![] }
    }
}

/// Seconds between two answers of a node; none if it has started anew.
fn elapsed_s(now: &Work, before: &Work) -> Option<f64> {
    let ns = now.at_ns.checked_sub(before.at_ns).filter(|ns| *ns > 0)?;
    (now.cpu_ns >= before.cpu_ns).then_some(ns as f64 / 1e9)
}

fn node_sight(node: &NodeStatus, now: Option<&Work>, before: Option<&Work>) -> NodeSight {
    let both = now.zip(before);
    let between = both.and_then(|(now, before)| Some((now, before, elapsed_s(now, before)?)));
    let executed = |work: &Work| work.instruments.iter().map(own_requests).sum::<u64>();
    let is = |class: Role| node.id.class == class;
    NodeSight {
        status: node.clone(),
        cpu_s: now.map(|now| now.cpu_ns as f64 / 1e9),
        cpu_share: between.map(|(now, before, s)| (now.cpu_ns - before.cpu_ns) as f64 / 1e9 / s),
        requests_per_s: between
            .filter(|_| is(Role::Mediator))
            .map(|(now, before, s)| executed(now).saturating_sub(executed(before)) as f64 / s),
        sessions: now.filter(|_| is(Role::Gateway)).map(|now| now.sessions),
        moved: now.filter(|_| is(Role::Mediator)).map(|now| now.moved),
        links: now.map_or(vec![], |now| {
            let links = now.links.iter();
            links
                .map(|it| LinkSight { peer: it.peer.to_string(), latency_ns: it.latency_ns })
                .collect()
        }),
    }
}

/// What this mediator has executed as the leader: an instrument that came has been executed
/// elsewhere before.
fn own_requests(one: &nm_exchange::control::InstrumentWork) -> u64 {
    one.by_gateway.iter().sum()
}

fn requests_by_gateway(
    work: &BTreeMap<NodeId, Work>,
    before: &BTreeMap<NodeId, Work>,
) -> BTreeMap<u16, f64> {
    let mut all = BTreeMap::new();
    let sums = |work: &Work| {
        let mut sums: BTreeMap<u16, u64> = BTreeMap::new();
        for one in &work.instruments {
            for (gateway, requests) in one.by_gateway.iter().enumerate() {
                *sums.entry(gateway as u16).or_default() += requests;
            }
        }
        sums
    };
    for (node, now) in work {
        let Some(before) = before.get(node) else { continue };
        let Some(elapsed_s) = elapsed_s(now, before) else { continue };
        let earlier = sums(before);
        for (gateway, requests) in sums(now) {
            let new = requests.saturating_sub(earlier.get(&gateway).copied().unwrap_or(0));
            *all.entry(gateway).or_default() += new as f64 / elapsed_s;
        }
    }
    all
}

fn instruments_of(owner: u16, now: &Work, before: Option<&Work>) -> Vec<InstrumentSight> {
    let elapsed = before.and_then(|before| elapsed_s(now, before));
    let earlier: BTreeMap<InstrumentId, u64> = before
        .map(|it| it.instruments.iter().map(|one| (one.instrument, one.executed)).collect())
        .unwrap_or_default();
    let seen = |one: &nm_exchange::control::InstrumentWork| {
        let known = earlier.get(&one.instrument);
        let new = known.and_then(|known| one.executed.checked_sub(*known));
        InstrumentSight {
            instrument: one.instrument,
            cell: one.cell,
            owner,
            executed: one.executed,
            requests_per_s: new.zip(elapsed).map(|(new, s)| new as f64 / s),
        }
    };
    now.instruments.iter().map(seen).collect()
}

/// What has happened from one status to the next, in sentences.
fn differences(last: &NetworkStatus, now: &NetworkStatus) -> Vec<(EventKind, String)> {
    let mut all = vec![];
    for node in &now.nodes {
        let worked = last.node(node.id).map(NodeStatus::works);
        let sentence = match (worked, node.works()) {
            (Some(true), false) => format!("{} does not answer", node.id),
            (Some(false), true) => format!("{} answers again", node.id),
            (None, _) => format!("{} was added", node.id),
            _ => continue,
        };
        all.push((EventKind::Fault, sentence));
    }
    for cell in &now.cells {
        let before = last.cell(cell.cell).and_then(|before| before.leader);
        if before == cell.leader {
            continue;
        }
        let sentence = match cell.leader {
            Some(leader) => format!("mediator {leader} leads cell {}", cell.cell),
            None => format!("nobody leads cell {}", cell.cell),
        };
        all.push((EventKind::Leader, sentence));
    }
    all.extend(moves(last, now).into_iter().map(|sentence| (EventKind::Move, sentence)));
    all
}

/// Moves that began or ended, from one status to the next.
fn moves(last: &NetworkStatus, now: &NetworkStatus) -> Vec<String> {
    let cell_of = |status: &NetworkStatus, instrument: InstrumentId| {
        let exception = status.exceptions.iter().find(|it| it.instrument == instrument);
        let by_rule = (instrument % u32::from(status.active_cells.max(1))) as u16;
        exception.map_or(by_rule, |it| it.cell)
    };
    let mut all = vec![];
    for pending in now.pending_moves.iter().filter(|it| !last.pending_moves.contains(it)) {
        all.push(format!(
            "instrument {} is on its way to cell {}",
            pending.instrument, pending.cell
        ));
    }
    let mut named: Vec<InstrumentId> =
        last.exceptions.iter().chain(&now.exceptions).map(|it| it.instrument).collect();
    named.sort_unstable();
    named.dedup();
    for instrument in named {
        let (from, to) = (cell_of(last, instrument), cell_of(now, instrument));
        if from != to {
            all.push(format!("instrument {instrument} moved from cell {from} to cell {to}"));
        }
    }
    // Of thousands, the first ones tell what happens.
    if all.len() > EVENTS_MAX / 4 {
        let count = all.len();
        all.truncate(EVENTS_MAX / 4 - 1);
        all.push(format!("{} more instruments moved", count - all.len()));
    }
    all
}

#[cfg(test)]
mod tests {
    use nm_exchange::control::InstrumentWork;
    use nm_exchange::link::Address;
    use nm_exchange::network::Node;

    use super::*;
    use crate::admin::{CellStatus, MapException};

    fn work(at_ns: u64, cpu_ns: u64, executed: u64) -> Work {
        let one = InstrumentWork {
            instrument: 5,
            cell: 1,
            executed,
            by_gateway: vec![executed / 4, executed - executed / 4],
            ..InstrumentWork::default()
        };
        Work { at_ns, cpu_ns, instruments: vec![one], ..Work::default() }
    }

    fn status(leader: Option<u16>, answers: bool) -> NetworkStatus {
        let network = Network::new("1-1-1-1".parse().unwrap(), |node| {
            let address = Address::Unix(format!("/{}", node.file_name()).into());
            Node { address, replication: None }
        });
        let nodes = network.all().map(|(id, node)| NodeStatus {
            id,
            address: node.address.to_string(),
            is_up: true,
            answers: Some(answers || id.class != Role::Router),
            is_gone: false,
            starts: None,
            since_unix_ms: None,
            is_drained: false,
        });
        let cell = CellStatus { cell: 0, leader, term: 0, voters: vec![], hindrance: None };
        NetworkStatus {
            durability: network.durability,
            control: None,
            nodes: nodes.collect(),
            cells: vec![cell],
            map_version: 0,
            active_cells: 2,
            exceptions: vec![],
            pending_moves: vec![],
            network: network.clone(),
        }
    }

    #[test]
    fn rates_are_those_of_the_clock_of_the_node() {
        let mut view = LiveView::new(&status(Some(0), true).network);
        let mediator = Role::Mediator.node(0);
        let look = |view: &mut LiveView, work| {
            view.seen(status(Some(0), true), BTreeMap::from([(mediator, work)]))
        };
        let first = look(&mut view, work(1_000_000_000, 0, 100));
        assert_eq!(first.requests_per_s(), None, "one look has no rate");
        let second = look(&mut view, work(3_000_000_000, 500_000_000, 300));
        assert_eq!(second.requests_per_s(), Some(100.0));
        let node = |sight: &Sight, id| {
            sight.nodes.iter().find(|node| node.status.id == id).cloned().unwrap()
        };
        assert_eq!(node(&second, mediator).cpu_share, Some(0.25));
        assert_eq!(node(&second, Role::Gateway.node(0)).requests_per_s, Some(25.0));
        assert_eq!(second.instruments[0].requests_per_s, Some(100.0));
        let restarted = look(&mut view, work(4_000_000_000, 1, 0));
        assert_eq!(node(&restarted, mediator).cpu_share, None, "it has started anew");
        assert_eq!(restarted.requests_per_s(), None);
    }

    #[test]
    fn what_has_changed_between_two_looks_is_said() {
        let (before, mut after) = (status(Some(0), true), status(None, false));
        after.exceptions.push(MapException { instrument: 4, cell: 1 });
        after.pending_moves.push(MapException { instrument: 6, cell: 1 });
        let said: Vec<String> = differences(&before, &after).into_iter().map(|it| it.1).collect();
        assert_eq!(
            said,
            [
                "router 0 does not answer",
                "nobody leads cell 0",
                "instrument 6 is on its way to cell 1",
                "instrument 4 moved from cell 0 to cell 1",
            ]
        );
        assert_eq!(differences(&after, &after), []);
    }

    #[test]
    fn events_and_their_sentences_have_a_limit() {
        let mut events = Events::default();
        for at in 0..EVENTS_MAX as u64 + 7 {
            events.add(at, EventKind::Fault, &"é".repeat(SENTENCE_BYTES_MAX));
        }
        assert_eq!(events.iter().count(), EVENTS_MAX);
        assert_eq!(events.iter().next().unwrap().number, 7);
        assert!(events.iter().all(|event| event.sentence.len() <= SENTENCE_BYTES_MAX));
    }
}
