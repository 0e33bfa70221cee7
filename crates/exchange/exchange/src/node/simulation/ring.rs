//! A ring of nodes in simulated time: they run as in a network, but for their event loop, their
//! links and their logs.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use nm_book::book::Book;
use nm_book::testing::Random;
use nm_codec::fnv1a_on;
use nm_replica::Shared;
use nm_wire::{AdminResponse, Direction, Frame, FrameMut, Kind, Message, Retired};

use crate::batch;
use crate::cell::Cell;
use crate::limits::CellLimits;
use crate::link::ReceiveBuffer;
use crate::moves::{MoveId, MoveParts, Part, Release};
use crate::network::{CONTROL, Durability, Network, NodeId, Role};
use crate::node::gateway::Gateway;
use crate::node::mediator::Mediator;
use crate::node::processor::Processor;
use crate::node::replica::logs::Logs;
use crate::node::router::Router;
use crate::node::runtime::behaviour::Behaviour;
use crate::node::runtime::links::{ConnectOrder, LinkId, Links, REMOVED_NS};
use crate::node::runtime::peer::{Peer, PeerError};

use super::audit::{Audit, Step};
use super::clients::{Client, Operator, Reaction};
use super::group::{Group, Registry, SimulatedLog, Source};
use super::oracle::{self, Histories};
use super::wires::{Chunk, End, Wire};

/// What a node does.
#[derive(Debug)]
pub enum Running {
    /// As a gateway.
    Gateway(Box<Gateway>),
    /// As a router.
    Router(Box<Router>),
    /// As a mediator.
    Mediator(Box<Mediator<SimulatedLog>>),
    /// As a processor.
    Processor(Box<Processor<SimulatedLog>>),
}

impl Running {
    fn behaviour(&mut self) -> &mut dyn Behaviour {
        match self {
            Running::Gateway(gateway) => &mut **gateway,
            Running::Router(router) => &mut **router,
            Running::Mediator(mediator) => &mut **mediator,
            Running::Processor(processor) => &mut **processor,
        }
    }
}

/// A node that runs.
#[derive(Debug)]
pub struct Node {
    /// What it does.
    pub running: Running,
    links: Links,
    /// Which of its starts this is.
    run: u64,
    /// When it is woken by the time.
    timer_ns: Option<u64>,
    /// Until when it stands still.
    pub stands_until_ns: u64,
    /// When it ends at the latest, if it was removed from the network, ns.
    ends_by_ns: Option<u64>,
    /// Whether it has executed requests in the present iteration, as the only replica of its cell.
    has_executed: bool,
    /// Its links: number of the wire, and of its end.
    wires: HashMap<LinkId, (usize, usize)>,
}

/// What happens at a time.
#[derive(Debug, Clone)]
pub enum Event {
    /// Something arrives at an end of a wire.
    Arrive { wire: usize, end: usize },
    /// A node's time has come.
    Timer { node: NodeId, run: u64 },
    /// A node has asked to be woken.
    Wake { node: NodeId, run: u64 },
    /// A member of a group is given what is committed.
    Feed { group: u16, member: usize },
    /// A member has what a leader proposed, or its disk has it.
    Store { group: u16, member: usize, number: u64, is_synced: bool },
    /// A group gets a leader, if it has had none since this term.
    Elect { group: u16, term: u32 },
    /// A member learns that it does not lead any more.
    Depose { group: u16, member: usize },
    /// A node connects to another one.
    Connect { from: NodeId, run: u64, to: NodeId },
    /// A node starts.
    Start(NodeId),
    /// A client or the operator connects.
    Enter(End),
    /// A client sends a request.
    Request(usize),
    /// The operator begins a move.
    Move,
    /// The operator changes the nodes of the network, or goes on with that.
    Change,
    /// The operator directs something in a cell.
    Direct,
    /// A client asks again for events that it misses.
    Ask(usize),
    /// What the trial does.
    Trial,
}

/// The ring.
pub struct Ring {
    /// What it began as: the file of all nodes that it began with.
    founded: Network,
    /// What it is, by the log of control.
    pub network: Network,
    /// What decides everything.
    pub random: Random,
    /// The time, ns.
    pub now_ns: u64,
    /// The nodes that run.
    pub nodes: BTreeMap<NodeId, Node>,
    /// The groups of replicas.
    pub groups: BTreeMap<u16, Rc<RefCell<Group>>>,
    /// The same groups, for nodes that open replicas of new cells, and those that they opened.
    registry: Rc<RefCell<Registry>>,
    wires: Vec<Wire>,
    /// The clients.
    pub clients: Vec<Client>,
    /// The operator.
    pub operator: Operator,
    /// Checks what is committed.
    pub audit: Audit,
    /// Between which cells moves go.
    pub moves: BTreeMap<MoveId, (u16, u16)>,
    /// Steps that were reached and that the trial has not looked at.
    pub steps: Vec<(Step, MoveId)>,
    /// Bytes of the parts of instruments that are sent at once.
    pub frame_bytes: usize,
    /// What cells have room for.
    limits: CellLimits,
    /// Instruments that are traded.
    pub instruments: u32,
    /// How often the operator directs something.
    directions: usize,
    /// Depends on everything that happened.
    pub trace: u64,
    /// Whether it prints what happens.
    pub is_shown: bool,
    audited: BTreeMap<u16, usize>,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    runs: u64,
}

/// A ring's size and load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Instruments that are traded.
    pub instruments: u32,
    /// Requests of each session on each instrument.
    pub requests: u64,
    /// How many moves there are.
    pub moves: usize,
    /// How often nodes are drained, added or removed.
    pub changes: usize,
    /// How often an operator directs something in a cell.
    pub directions: usize,
}

impl Ring {
    /// A ring whose nodes and clients are about to start.
    pub fn new(
        mut network: Network,
        durability: Durability,
        (load, limits): (Load, CellLimits),
        seed: u64,
    ) -> Ring {
        network.durability = durability;
        let mut random = Random::new(seed);
        let cells = 0..network.classes[Role::Mediator].nodes.len() as u16;
        let is_on_disk = durability == Durability::DiskQuorum;
        let has_replicas = durability != Durability::None;
        let groups = cells.filter(|_| has_replicas).chain([CONTROL]);
        let mut group = |group| Group::new(network.replicas(group), is_on_disk, &mut random);
        let groups: BTreeMap<_, _> =
            groups.map(|number| (number, Rc::new(RefCell::new(group(number))))).collect();
        let clients = (0..network.classes[Role::Gateway].nodes.len()).map(|gateway| {
            let sessions = [gateway as u32 * 2 + 1, gateway as u32 * 2 + 2];
            Client::new(gateway as u16, &sessions, load.instruments, load.requests)
        });
        let frame_bytes = *random.of(&[300, 2_000, 64 << 10]).expect("one of three");
        let accepts_unknown = durability != Durability::DiskQuorum;
        let mut ring = Ring {
            clients: clients.collect(),
            operator: Operator::new(load.moves, load.changes),
            audit: Audit::new(&network, (accepts_unknown, limits), load.instruments),
            audited: groups.keys().map(|group| (*group, 0)).collect(),
            founded: network.clone(),
            network,
            random,
            now_ns: 1_000_000,
            registry: Rc::new(RefCell::new(Registry { groups: groups.clone(), opened: vec![] })),
            nodes: BTreeMap::new(),
            groups,
            wires: vec![],
            moves: BTreeMap::new(),
            steps: vec![],
            frame_bytes,
            limits,
            instruments: load.instruments,
            directions: load.directions,
            trace: 0,
            is_shown: false,
            events: BTreeMap::new(),
            scheduled: 0,
            runs: seed.wrapping_mul(0x9e37_79b9) << 20,
        };
        ring.begin();
        ring
    }

    fn begin(&mut self) {
        let all: Vec<NodeId> = self.network.all().map(|(id, _)| id).collect();
        all.into_iter().for_each(|node| self.start(node));
        for group in self.groups.keys().copied().collect::<Vec<u16>>() {
            self.after(5_000_000, Event::Elect { group, term: 0 });
        }
        for client in 0..self.clients.len() {
            self.after(1_000_000, Event::Enter(End::Client(client)));
            self.after(6_000_000, Event::Request(client));
            self.after(100_000_000, Event::Ask(client));
        }
        self.after(8_000_000, Event::Enter(End::Operator));
        self.after(10_000_000, Event::Move);
        self.after(30_000_000, Event::Change);
        for _ in 0..self.directions {
            self.after(600_000_000, Event::Direct);
        }
    }

    /// An operator directs something on all instruments of a cell, whoever leads it.
    fn direct(&mut self) {
        let cells: Vec<u16> = self.groups.keys().copied().filter(|it| *it != CONTROL).collect();
        let Some(cell) = self.random.of(&cells).copied() else { return };
        let whose = Retired::Session { session: self.random.below(4) as u32 + 1 };
        let all = [
            Direction::Halt,
            Direction::Resume,
            Direction::Resume,
            Direction::Auction,
            Direction::Uncross,
            Direction::Close,
            Direction::EndOfDay,
            Direction::Cancel { whose },
            Direction::Cancel { whose },
            Direction::ExpectClosing,
            Direction::ExpectClosing,
            Direction::ClosingAuction,
        ];
        let Some(direction) = self.random.of(&all).copied() else { return };
        let Some(leader) = self.groups[&cell].borrow().leader_node() else { return };
        let map = self.audit.control.routes().map.clone();
        if let Some(Node { running: Running::Mediator(mediator), .. }) = self.nodes.get_mut(&leader)
            && let Some(replica) = mediator.cells.replica(cell)
        {
            replica.direct(LinkId::none(), (None, direction), &map);
            self.turn(leader, |_, _| {});
        }
    }

    /// Something happens after up to so many ns.
    pub fn after(&mut self, within_ns: u64, event: Event) {
        let delay_ns = self.random.below(within_ns + 1);
        self.at(self.now_ns + delay_ns, event);
    }

    /// Something happens at a time.
    pub fn at(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at_ns.max(self.now_ns), self.scheduled), event);
    }

    /// Prints what happens, if that is wanted.
    pub fn show(&self, what: impl FnOnce() -> String) {
        if self.is_shown {
            println!("{:>10} µs {}", self.now_ns / 1_000, what());
        }
    }

    /// Lets the next event happen, unless it is the trial's.
    pub fn step(&mut self) -> Event {
        let Some(((at_ns, _), event)) = self.events.pop_first() else {
            unreachable!("nodes have timers");
        };
        self.now_ns = at_ns;
        self.note(&event);
        if let Some(later_ns) = self.stands(&event) {
            self.at(later_ns, event.clone());
            return event;
        }
        match &event {
            Event::Arrive { wire, end } => self.arrive(*wire, *end),
            Event::Timer { node, run } => {
                if let Some(known) = self.nodes.get_mut(node)
                    && (known.run, known.timer_ns) == (*run, Some(at_ns))
                {
                    known.timer_ns = None;
                    self.turn(*node, |_, _| {});
                }
            }
            Event::Wake { node, run } => {
                if self.nodes.get(node).is_some_and(|known| known.run == *run) {
                    self.turn(*node, |behaviour, links| behaviour.on_wake(links).expect("events"));
                }
            }
            Event::Feed { group, member } => self.feed(*group, *member),
            Event::Store { group, member, number, is_synced } => {
                self.store(*group, (*member, *number), *is_synced);
            }
            Event::Elect { group, term } => self.elect(*group, *term),
            Event::Depose { group, member } => {
                self.groups[group].borrow_mut().depose(*member);
                self.wake(*group, *member);
            }
            Event::Connect { from, run, to } => self.connect(*from, *run, *to),
            Event::Start(node) => self.start(*node),
            Event::Enter(end) => self.enter(*end),
            Event::Request(client) => self.request(*client),
            Event::Move => self.begin_move(),
            Event::Change => self.change(),
            Event::Direct => self.direct(),
            Event::Ask(client) => self.ask(*client),
            Event::Trial => {}
        }
        event
    }

    /// Until when an event has to wait, because its node stands still.
    fn stands(&self, event: &Event) -> Option<u64> {
        let node = match event {
            Event::Arrive { wire, end } => match self.wires[*wire].ends[*end] {
                End::Node(node, _) => node,
                _ => return None,
            },
            Event::Feed { group, member } => self.groups[group].borrow().nodes[*member],
            _ => return None,
        };
        let until_ns = self.nodes.get(&node)?.stands_until_ns;
        (until_ns > self.now_ns).then_some(until_ns)
    }

    /// One iteration of a node's event loop.
    fn turn(&mut self, id: NodeId, handle: impl FnOnce(&mut dyn Behaviour, &mut Links)) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.links.set_simulated_time(self.now_ns);
        let executed = node.executed_alone();
        handle(node.running.behaviour(), &mut node.links);
        node.running.behaviour().on_iteration(&mut node.links).expect("an iteration");
        node.has_executed = node.executed_alone().iter().any(|(instrument, count)| {
            executed.get(instrument).is_some_and(|before| before < count)
        });
        let mut failed = vec![];
        node.links.check(&mut failed);
        for (link, reason) in failed {
            self.fail(id, link, &reason);
        }
        self.take_outputs(id);
        self.note_proposals(id);
        for (group, member) in self.take_opened() {
            self.bring_up(group, member);
        }
        self.end_if_removed(id);
    }

    /// What an iteration has left: what is sent, what is connected, and when the next one is due.
    fn take_outputs(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let warnings = node.links.warnings.take(self.now_ns);
        let (outputs, run) = (node.links.take_output(), node.run);
        let orders: Vec<ConnectOrder> = node.links.take_orders().collect();
        let is_wake_wanted = node.links.take_wake();
        let deadlines = [
            node.running.behaviour().deadline_ns(self.now_ns),
            node.links.deadline_ns(),
            node.ends_by_ns,
        ];
        let deadline_ns = deadlines.into_iter().flatten().min();
        if let Some(deadline_ns) = deadline_ns.map(|at_ns| at_ns.max(self.now_ns + 1_000))
            && node.timer_ns.is_none_or(|known| deadline_ns < known)
        {
            node.timer_ns = Some(deadline_ns);
            self.at(deadline_ns, Event::Timer { node: id, run });
        }
        if is_wake_wanted {
            self.after(10_000, Event::Wake { node: id, run });
        }
        for order in orders {
            if let ConnectOrder::Connect(request) = order {
                let delay_ns = self.random.below(15_000_000);
                let at_ns = self.now_ns.max(request.at_ns) + delay_ns;
                self.at(at_ns, Event::Connect { from: id, run, to: request.node });
            }
        }
        warnings.iter().for_each(|warning| self.show(|| format!("{id}: {warning}")));
        let is_to_processor = |(link, _): &(LinkId, Vec<u8>)| {
            let (wire, end) = self.nodes[&id].wires.get(link)?;
            let to = self.wires[*wire].ends[1 - end];
            matches!(to, End::Node(NodeId { class: Role::Processor, .. }, _)).then_some(())
        };
        assert!(
            !self.nodes[&id].has_executed || outputs.iter().any(|it| is_to_processor(it).is_some()),
            "{id} has executed a request and lost the reply, because no processor is linked"
        );
        for (link, bytes) in outputs {
            let Some((wire, end)) = self.nodes[&id].wires.get(&link).copied() else { continue };
            if id.class == Role::Mediator {
                self.note_sent(wire, end, &bytes);
            }
            self.send(wire, 1 - end, &bytes);
        }
    }

    /// A member of a group has begun: it is given what is committed and what is proposed.
    fn bring_up(&mut self, group: u16, member: usize) {
        self.after(3_000_000, Event::Feed { group, member });
        let in_flight = self.groups[&group].borrow().in_flight();
        if let Some(number) = in_flight {
            self.send_proposal(group, member, number);
        }
    }

    /// Replicas that nodes have opened because cells were added.
    fn take_opened(&mut self) -> Vec<(u16, usize)> {
        std::mem::take(&mut self.registry.borrow_mut().opened)
    }

    /// A node that was removed ends when it may, as in its event loop.
    fn end_if_removed(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !node.links.network().is_removed(id) {
            return;
        }
        let by_ns = *node.ends_by_ns.get_or_insert(self.now_ns + REMOVED_NS);
        if self.now_ns >= by_ns || node.running.behaviour().has_left(&node.links) {
            self.stop(id);
        }
    }

    /// A node closes a link, as its event loop does.
    fn fail(&mut self, id: NodeId, link: LinkId, reason: &PeerError) {
        self.show(|| format!("{id} closes a link: {reason}"));
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let reason_bytes = match reason.is_for_peer() {
            true => node.links.refuse(link, reason).map(std::mem::take),
            false => None,
        };
        let pause = if reason.is_lasting() { 500_000_000 } else { 0 };
        let pause = std::time::Duration::from_nanos(pause);
        if let Some((peer, true)) = node.links.close(link, pause) {
            node.running.behaviour().on_disconnected(&mut node.links, peer, link);
        }
        // One that was removed while it had no link learns that here, as if from control.
        if matches!(reason, PeerError::Refused(_)) && node.links.network().was_added(id) {
            node.links.update_nodes(&self.audit.control.routes().map.clone());
        }
        if let Some((wire, end)) = node.wires.get(&link).copied() {
            reason_bytes.into_iter().for_each(|bytes| self.send(wire, 1 - end, &bytes));
            self.end_to(wire, 1 - end);
            self.close_end(wire, end);
        }
    }

    /// Everything that happens is in the trace.
    fn note(&mut self, event: &Event) {
        self.trace = fnv1a_on(self.trace, format!("{} {event:?}", self.now_ns).as_bytes());
    }

    fn send(&mut self, wire: usize, end: usize, bytes: &[u8]) {
        self.trace = fnv1a_on(fnv1a_on(self.trace, &self.now_ns.to_le_bytes()), bytes);
        if self.is_shown {
            self.show_frames(wire, end, bytes);
        }
        let known = &mut self.wires[wire];
        let arrivals = known.send(end, bytes, self.now_ns, &mut self.random);
        arrivals.into_iter().for_each(|at_ns| self.at(at_ns, Event::Arrive { wire, end }));
    }

    fn show_frames(&self, wire: usize, end: usize, bytes: &[u8]) {
        let ends = self.wires[wire].ends;
        for frame in frames(bytes) {
            let text = match Message::read(frame).expect("a message") {
                Message::RoutingTable(_) | Message::MembershipReport(_) => continue,
                Message::MoveParts(parts) => format!("{:?}, part {}", parts.id, parts.number),
                message => format!("{message:?}"),
            };
            self.show(|| format!("{} to {}: {text}", ends[1 - end], ends[end]));
        }
    }

    /// Looks for steps of moves in what a mediator sends.
    fn note_sent(&mut self, wire: usize, end: usize, bytes: &[u8]) {
        let known = &self.wires[wire];
        if !matches!(known.ends[1 - end], End::Node(NodeId { class: Role::Router, .. }, _)) {
            return;
        }
        for frame in frames(bytes) {
            let message = Message::read(frame).expect("a message");
            match message {
                Message::MoveOrder(order) => {
                    self.moves.insert(order.id, (order.from, order.to));
                    self.steps.push((Step::Ordered, order.id));
                }
                Message::MoveParts(MoveParts { id, mut parts, .. }) => {
                    let is_end = |part: Result<Part<'_>, _>| matches!(part, Ok(Part::End { .. }));
                    if parts.any(is_end) {
                        self.steps.push((Step::EndSent, id));
                    }
                }
                Message::MoveEnded(ended) if ended.refusal.is_none() => {
                    self.steps.push((Step::Announced, ended.id));
                }
                _ => {}
            }
        }
    }

    /// Has what a node proposes committed after a while.
    fn note_proposals(&mut self, id: NodeId) {
        for group in self.groups.keys().copied().collect::<Vec<u16>>() {
            let known = Rc::clone(&self.groups[&group]);
            let Some(member) = known.borrow().member_at(id) else { continue };
            if known.borrow_mut().take_hand_over(member) {
                let term = known.borrow().term;
                self.after(10_000_000, Event::Elect { group, term });
            }
            let Some((number, batch)) = known.borrow_mut().new_proposal(member) else { continue };
            if group != CONTROL {
                self.note_release(&batch);
            }
            for member in 0..known.borrow().nodes.len() {
                self.send_proposal(group, member, number);
            }
        }
    }

    /// A member gets a proposal after a while, and syncs it.
    fn send_proposal(&mut self, group: u16, member: usize, number: u64) {
        let known = Rc::clone(&self.groups[&group]);
        let [to_ns, synced_ns] = known.borrow().delays_ns(member, &mut self.random);
        for (delay_ns, is_synced) in [(to_ns, false), (synced_ns, true)] {
            self.at(self.now_ns + delay_ns, Event::Store { group, member, number, is_synced });
        }
    }

    fn note_release(&mut self, proposal: &Shared) {
        let (_, frames) = batch::decode(proposal).expect("a batch");
        for frame in frames {
            let frame = frame.expect("a frame");
            if frame.kind() == Kind::Release {
                let release: Release = frame.read().expect("a release");
                self.steps.push((Step::ReleaseProposed, release.id));
            }
        }
    }

    fn arrive(&mut self, wire: usize, end: usize) {
        let known = &mut self.wires[wire];
        let Some(chunk) = known.take(end) else { return };
        let to = known.ends[end];
        match (to, chunk) {
            (End::Node(node, link), Chunk::Frames(bytes)) => self.receive(node, link, bytes),
            (End::Node(node, link), Chunk::Closed) => {
                self.close_end(wire, end);
                self.turn(node, |behaviour, links| close(behaviour, links, link));
            }
            (End::Client(at), Chunk::Frames(bytes)) => {
                self.client_receives(at, wire, &bytes);
            }
            (End::Operator, Chunk::Frames(bytes)) => self.operator_receives(wire, &bytes),
            (End::Client(at), Chunk::Closed) => {
                self.close_end(wire, end);
                // What it has sent may still arrive, unless it comes back to the same gateway.
                if self.clients[at].wire == Some(wire) {
                    self.wires[wire].lose(1 - end);
                    self.clients[at].wire = None;
                    self.after(20_000_000, Event::Enter(to));
                }
            }
            (End::Operator, Chunk::Closed) => {
                self.close_end(wire, end);
                self.operator.wire = None;
                self.operator.mediator += 1;
                self.after(20_000_000, Event::Enter(to));
            }
        }
    }

    fn client_receives(&mut self, at: usize, wire: usize, bytes: &[u8]) {
        for frame in frames(bytes) {
            // It has left this link.
            if self.clients[at].wire != Some(wire) {
                return;
            }
            let reaction = self.clients[at].receive(frame, self.now_ns);
            if reaction == Reaction::Leave {
                self.show(|| format!("client {at} leaves"));
                self.clients[at].wire = None;
                self.end_to(wire, 1);
                self.close_end(wire, 0);
                self.choose_gateway(at);
                return self.after(5_000_000, Event::Enter(End::Client(at)));
            }
            let asked = match reaction {
                Reaction::Ask(session, instrument) => {
                    self.clients[at].ask((session, instrument), self.now_ns)
                }
                Reaction::AskAll => self.clients[at].ask_all(self.now_ns),
                Reaction::None | Reaction::Leave => continue,
            };
            self.send(wire, 1, &asked);
        }
    }

    /// A client asks again for what it has not got.
    fn ask(&mut self, at: usize) {
        let mut asked = self.clients[at].ask_again(self.now_ns);
        asked.extend(self.clients[at].heartbeat());
        if let Some(wire) = self.clients[at].wire {
            match self.clients[at].misses_gateway(self.now_ns) {
                true => self.cut(wire),
                false => self.send(wire, 1, &asked),
            }
        }
        self.after(100_000_000, Event::Ask(at));
    }

    /// A client is to connect to any gateway that takes clients.
    fn choose_gateway(&mut self, at: usize) {
        let map = &self.audit.control.routes().map;
        let gateways = self.network.all().map(|(id, _)| id).filter(|id| id.class == Role::Gateway);
        let gateways = gateways.filter(|id| !map.drained().contains(id));
        let gateways: Vec<NodeId> = gateways.collect();
        if let Some(gateway) = self.random.of(&gateways) {
            self.clients[at].gateway = gateway.index;
        }
    }

    fn operator_receives(&mut self, wire: usize, bytes: &[u8]) {
        let mut asks_another = false;
        for frame in frames(bytes).filter(|frame| frame.kind() == Kind::AdminResponse) {
            let response: AdminResponse = frame.read().expect("an answer");
            self.show(|| format!("operator: {response:?}"));
            asks_another |= self.operator.receive(response);
        }
        if asks_another {
            self.cut(wire);
        }
    }

    fn receive(&mut self, id: NodeId, link: LinkId, bytes: Vec<u8>) {
        let (mut closed, mut failed) = (vec![], None);
        self.turn(id, |behaviour, links| {
            let mut buffer = ReceiveBuffer::of(bytes);
            while let Some(mut frame) = buffer.next_frame().expect("a frame") {
                if let Err(error) = handle(behaviour, links, link, &mut frame, &mut closed) {
                    failed = Some(error);
                    return;
                }
            }
        });
        for older in closed {
            self.forget_link(id, older);
        }
        use PeerError::{Drained, ForeignSession, Link, NotLinked, Refused, Removed};
        match failed {
            Some(Drained(_) | Link(_) | NotLinked(_) | Refused(_) | Removed(_)) | None => {}
            Some(ForeignSession(_)) if self.was_left(id, link) => {}
            Some(error) => panic!("{id}: {error}"),
        }
        if let Some(error) = failed {
            self.fail(id, link, &error);
            self.turn(id, |_, _| {});
        }
    }

    /// Whether a link is to a client that has left it: what it had sent before arrives after its
    /// hello on the next link.
    fn was_left(&self, id: NodeId, link: LinkId) -> bool {
        let Some((wire, end)) = self.nodes[&id].wires.get(&link) else { return false };
        match self.wires[*wire].ends[1 - end] {
            End::Client(at) => self.clients[at].wire != Some(*wire),
            _ => false,
        }
    }

    /// A node has closed a link, because there is a newer one to the same peer.
    fn forget_link(&mut self, id: NodeId, link: LinkId) {
        let node = self.nodes.get_mut(&id).expect("a node that runs");
        if let Some((wire, end)) = node.wires.remove(&link) {
            self.cut_to(wire, 1 - end);
            self.close_end(wire, end);
        }
    }

    /// An end of a wire is done; a node that had made the link makes it again.
    fn close_end(&mut self, wire: usize, end: usize) {
        let known = &mut self.wires[wire];
        known.close(end);
        let ends = known.ends;
        if let End::Node(node, link) = ends[end]
            && let Some(known) = self.nodes.get_mut(&node)
        {
            known.wires.remove(&link);
        }
    }

    /// Breaks a wire.
    pub fn cut(&mut self, wire: usize) {
        self.cut_to(wire, 0);
        self.cut_to(wire, 1);
    }

    fn cut_to(&mut self, wire: usize, end: usize) {
        let known = &mut self.wires[wire];
        if let Some(at_ns) = known.cut(end, self.now_ns, &mut self.random) {
            self.at(at_ns, Event::Arrive { wire, end });
        }
    }

    fn end_to(&mut self, wire: usize, end: usize) {
        let known = &mut self.wires[wire];
        if let Some(at_ns) = known.end(end, self.now_ns, &mut self.random) {
            self.at(at_ns, Event::Arrive { wire, end });
        }
    }

    /// The wires between nodes that are up.
    pub fn open_wires(&self) -> Vec<usize> {
        self.nodes.values().flat_map(|node| node.links_of()).collect()
    }

    fn new_wire(&mut self, ends: [End; 2]) -> usize {
        let wire = Wire::new(ends, &mut self.random);
        self.wires.push(wire);
        let number = self.wires.len() - 1;
        for (end, of) in ends.into_iter().enumerate() {
            if let End::Node(node, link) = of
                && let Some(node) = self.nodes.get_mut(&node)
            {
                node.wires.insert(link, (number, end));
            }
        }
        number
    }

    fn connect(&mut self, from: NodeId, run: u64, to: NodeId) {
        if self.nodes.get(&from).is_none_or(|node| node.run != run) {
            return;
        }
        let is_wanted = self.nodes[&from].links.network().downstream(from).contains(&to);
        if !is_wanted {
            return;
        }
        let Some(target) = self.nodes.get_mut(&to) else {
            return self.after(20_000_000, Event::Connect { from, run, to });
        };
        let accepted = target.links.accept_link();
        let node = self.nodes.get_mut(&from).expect("a node that runs");
        let made = node.links.add_connected(to).expect("a link");
        self.new_wire([End::Node(from, made), End::Node(to, accepted)]);
        self.turn(from, |_, _| {});
    }

    /// A client or the operator connects.
    fn enter(&mut self, end: End) {
        let (to, hello) = match end {
            End::Client(at) if self.clients[at].has_left => return,
            End::Client(at) => {
                let client = &mut self.clients[at];
                (Role::Gateway.node(client.gateway), client.hello(self.now_ns))
            }
            _ => {
                let mediators = self.founded.classes[Role::Mediator].nodes.len();
                let index = self.operator.mediator % mediators;
                (Role::Mediator.node(index as u16), self.operator.hello())
            }
        };
        let Some(target) = self.nodes.get_mut(&to) else {
            match end {
                End::Client(at) => self.choose_gateway(at),
                _ => self.operator.mediator += 1,
            }
            return self.after(10_000_000, Event::Enter(end));
        };
        let accepted = target.links.accept_link();
        let wire = self.new_wire([end, End::Node(to, accepted)]);
        match end {
            End::Client(at) => self.clients[at].wire = Some(wire),
            _ => self.operator.wire = Some(wire),
        }
        self.send(wire, 1, &hello);
    }

    /// A client leaves for good: its host is lost, or the program was killed.
    pub fn leave(&mut self, at: usize) {
        self.clients[at].has_left = true;
        if let Some(wire) = self.clients[at].wire {
            self.cut(wire);
        }
    }

    /// Live orders of all sessions, and how many sessions the cells watch.
    pub fn live_orders(&self) -> (u32, usize) {
        let sessions: Vec<u32> = self.clients.iter().flat_map(|it| it.sessions()).collect();
        let live = |cell: &Cell<Book>| -> u32 {
            let owned = (0..self.instruments).filter(|it| cell.owns(*it));
            owned.flat_map(|it| sessions.iter().map(move |at| cell.standing(it, *at).1)).sum()
        };
        let cells = self.audit.cells.iter();
        (cells.clone().map(live).sum(), cells.map(|cell| cell.watched().len()).sum())
    }

    /// Where the cells are led, whom they watch, and what their sessions have.
    pub fn describe_cells(&self) -> String {
        let cell = |cell: &Cell<Book>| {
            let group = self.groups.get(&cell.number()).map(|it| it.borrow().leader_node());
            let live = (0..self.instruments).map(|it| {
                let of = |at: &u32| (*at, cell.standing(it, *at).1);
                (it, cell.owns(it), [1, 2, 3, 4].iter().map(of).collect::<Vec<_>>())
            });
            let (live, watched) = (live.collect::<Vec<_>>(), cell.watched());
            format!("cell {}: leader {group:?}, {watched:?}, {live:?}\n", cell.number())
        };
        self.audit.cells.iter().map(cell).collect()
    }

    fn request(&mut self, at: usize) {
        if let Some(bytes) = self.clients[at].next_request(self.now_ns, &mut self.random)
            && let Some(wire) = self.clients[at].wire
        {
            self.send(wire, 1, &bytes);
        }
        if !self.clients[at].is_done() {
            self.after(4_000_000, Event::Request(at));
        }
    }

    /// The operator changes the nodes, one change at a time, and asks again until control has it.
    fn change(&mut self) {
        let control = &self.audit.control;
        let asks =
            self.operator.next_change(control, &self.network, self.instruments, &mut self.random);
        if let (Some(bytes), Some(wire)) = (asks, self.operator.wire) {
            self.show(|| format!("operator: {:?}", self.operator.change));
            self.send(wire, 1, &bytes);
        }
        if self.operator.is_changing() {
            self.after(60_000_000, Event::Change);
        }
    }

    /// Control has logged other nodes: those that were added start, and cells get their groups.
    fn follow_control(&mut self) {
        let map = &self.audit.control.routes().map;
        if map.has_nodes_of(&self.network) {
            return;
        }
        let network = map.extended(&self.network).into_owned();
        let before = std::mem::replace(&mut self.network, network);
        let all: Vec<NodeId> = self.network.all().map(|(id, _)| id).collect();
        for id in all.into_iter().filter(|id| before.node(*id).is_none()) {
            if id.class == Role::Mediator {
                self.audit.add_cell(&self.network);
            }
            if id.class == Role::Mediator && self.network.durability != Durability::None {
                let is_on_disk = self.network.durability == Durability::DiskQuorum;
                let replicas = self.network.replicas(id.index);
                let group = Group::new(replicas, is_on_disk, &mut self.random);
                let group = Rc::new(RefCell::new(group));
                self.registry.borrow_mut().groups.insert(id.index, Rc::clone(&group));
                self.groups.insert(id.index, group);
                self.audited.insert(id.index, 0);
                self.at(self.now_ns + 5_000_000, Event::Elect { group: id.index, term: 0 });
            }
            self.after(40_000_000, Event::Start(id));
        }
    }

    fn begin_move(&mut self) {
        let map = &self.audit.control.routes().map;
        if self.clients.iter().all(Client::has_begun)
            && let Some(bytes) = self.operator.next_move(map, self.instruments, &mut self.random)
            && let Some(wire) = self.operator.wire
        {
            self.send(wire, 1, &bytes);
        }
        if self.operator.left > 0 {
            self.after(15_000_000, Event::Move);
        }
    }

    fn start(&mut self, id: NodeId) {
        if self.nodes.contains_key(&id) || self.network.is_removed(id) {
            return;
        }
        self.runs += 1;
        let run = self.runs;
        self.show(|| format!("{id} starts"));
        let mut of_groups = vec![];
        // One that the network began with starts with its file, and learns the rest.
        let is_founder = self.founded.node(id).is_some();
        let network = if is_founder { self.founded.clone() } else { self.network.clone() };
        for group in network.groups_at(id) {
            let known = Rc::clone(&self.groups[&group]);
            let Some(member) = known.borrow().member_at(id) else { continue };
            known.borrow_mut().start(member, self.random.chance(500));
            self.bring_up(group, member);
            of_groups.push((group, SimulatedLog { group: known, member }));
        }
        let running = self.running(&network, id, of_groups);
        let links = Links::simulated(&network, id, run);
        let node = Node {
            running,
            links,
            run,
            timer_ns: None,
            stands_until_ns: 0,
            ends_by_ns: None,
            has_executed: false,
            wires: HashMap::new(),
        };
        self.nodes.insert(id, node);
        self.turn(id, |_, _| {});
    }

    fn running(
        &self,
        network: &Network,
        id: NodeId,
        of_groups: Vec<(u16, SimulatedLog)>,
    ) -> Running {
        let index = id.index;
        let source = Source { registry: Rc::clone(&self.registry), node: id, joined: vec![] };
        let logs = Logs { of_groups, source: Some(Box::new(source)) };
        match id.class {
            Role::Gateway => Running::Gateway(Box::new(Gateway::new(network, index))),
            Role::Router => Running::Router(Box::new(Router::new(network))),
            Role::Mediator => {
                let mut mediator =
                    Mediator::new(network, index, logs, self.now_ns).expect("a mediator");
                for replica in &mut mediator.cells.replicas {
                    replica.moves.frame_bytes = self.frame_bytes;
                    replica.cell.limits = self.limits;
                }
                Running::Mediator(Box::new(mediator))
            }
            Role::Processor => {
                let mut processor = Processor::new(network, index, logs).expect("a processor");
                for replica in &mut processor.cells.replicas {
                    replica.cell.limits = self.limits;
                }
                Running::Processor(Box::new(processor))
            }
        }
    }

    /// A node dies, and starts again after up to so many ns.
    pub fn crash(&mut self, id: NodeId, within_ns: u64) {
        self.stop(id);
        self.after(within_ns, Event::Start(id));
    }

    /// A node ends.
    fn stop(&mut self, id: NodeId) {
        let Some(node) = self.nodes.remove(&id) else { return };
        self.show(|| format!("{id} ends"));
        let mut wires: Vec<(usize, usize)> = node.wires.into_values().collect();
        wires.sort_unstable();
        for (wire, end) in wires {
            self.cut_to(wire, 1 - end);
            self.close_end(wire, end);
        }
        for group in self.groups.keys().copied().collect::<Vec<u16>>() {
            let known = Rc::clone(&self.groups[&group]);
            let Some(member) = known.borrow().member_at(id) else { continue };
            let led = known.borrow().leader == Some(member);
            known.borrow_mut().crash(member);
            if led {
                self.expect_election(group);
            }
        }
    }

    /// A group has another leader after a while.
    pub fn expect_election(&mut self, group: u16) {
        let term = self.groups[&group].borrow().term;
        let delay_ns = self.random.between(5_000_000, 150_000_000);
        self.at(self.now_ns + delay_ns, Event::Elect { group, term });
    }

    fn elect(&mut self, group: u16, term: u32) {
        let known = Rc::clone(&self.groups[&group]);
        if known.borrow().term != term {
            return;
        }
        let candidates = known.borrow().candidates();
        if group != CONTROL && !self.audit.control.routes().map.has_cell(group) {
            return;
        }
        let winner = self.random.of(&candidates).copied();
        let Some(winner) = winner.filter(|_| known.borrow().has_majority()) else {
            return self.after(20_000_000, Event::Elect { group, term });
        };
        let before = known.borrow().leader;
        known.borrow_mut().elect(winner, &mut self.random);
        self.show(|| format!("group {group}: {} leads", known.borrow().nodes[winner]));
        self.on_committed(group);
        self.wake(group, winner);
        if let Some(member) = before.filter(|before| *before != winner) {
            self.after(300_000_000, Event::Depose { group, member });
        }
    }

    fn store(&mut self, group: u16, stored: (usize, u64), is_synced: bool) {
        let known = Rc::clone(&self.groups[&group]);
        let is_committed = known.borrow_mut().store(stored, is_synced, &mut self.random);
        if is_committed {
            self.on_committed(group);
        }
    }

    /// Entries are committed: they are checked, and delivered after a while.
    fn on_committed(&mut self, group: u16) {
        let known = Rc::clone(&self.groups[&group]);
        let shared = known;
        let known = shared.borrow();
        let from = self.audited.insert(group, known.entries.len()).unwrap_or_default();
        let mut has_control = false;
        for entry in &known.entries[from..] {
            self.trace = fnv1a_on(self.trace, &entry.batch);
            if group == CONTROL {
                for instrument in self.audit.commit_control(entry) {
                    let epoch = self.audit.control.routes().map.epoch_of(instrument);
                    self.steps.push((Step::MapLogged, MoveId { instrument, epoch }));
                }
                has_control = true;
            } else {
                let steps = self.audit.commit_cell(group, entry);
                steps.iter().for_each(|step| self.show(|| format!("cell {group}: {step:?}")));
                self.steps.extend(steps);
            }
        }
        for member in 0..known.nodes.len() {
            let is_leader = known.leader == Some(member);
            let within_ns = match self.random.below(100) {
                _ if is_leader => 20_000,
                0..90 => 800_000,
                90..99 => 10_000_000,
                _ => 100_000_000,
            };
            self.after(within_ns, Event::Feed { group, member });
        }
        drop(known);
        if has_control {
            self.follow_control();
        }
    }

    fn feed(&mut self, group: u16, member: usize) {
        let known = Rc::clone(&self.groups[&group]);
        known.borrow_mut().feed(member, &mut self.random);
        self.wake(group, member);
        if !known.borrow().is_caught_up(member)
            && self.nodes.contains_key(&known.borrow().nodes[member])
        {
            self.after(500_000, Event::Feed { group, member });
        }
    }

    /// A node takes the events of its logs.
    pub fn wake(&mut self, group: u16, member: usize) {
        let known = Rc::clone(&self.groups[&group]);
        let (node, has_events) = {
            let known = known.borrow();
            (known.nodes[member], known.has_events(member))
        };
        if has_events {
            self.turn(node, |behaviour, links| behaviour.on_wake(links).expect("events"));
        }
    }

    /// What all clients have seen.
    pub fn histories(&self) -> Histories<'_> {
        self.clients.iter().flat_map(Client::histories).collect()
    }

    /// What is not as it should be when nothing is under way.
    pub fn unsettled(&mut self) -> Option<String> {
        let present = self.network.all().filter(|(id, _)| !self.network.is_removed(*id));
        let (up, present) = (self.nodes.len(), present.count());
        if up != present {
            return Some(format!("{up} nodes are up, and {present} should be"));
        }
        if let Some(client) = self.clients.iter().find(|client| !client.is_done()) {
            return Some(format!("requests without a reply: {:?}", client.waiting()));
        }
        if !self.operator.is_done() {
            return Some(format!("not done: {:?}", self.operator));
        }
        if let Some(fault) = oracle::fault_of(&self.histories(), &self.audit.directed) {
            return Some(fault);
        }
        self.audit
            .unsettled()
            .or_else(|| self.nodes.values().find_map(|node| node.unsettled(&self.audit)))
    }
}

impl Node {
    /// By instrument, how many requests it has executed as the only replica of its cell.
    fn executed_alone(&self) -> BTreeMap<u32, u64> {
        let Running::Mediator(mediator) = &self.running else { return BTreeMap::new() };
        let alone = mediator.cells.replicas.iter().filter(|replica| replica.is_single());
        alone.flat_map(|replica| replica.cell.executed()).collect()
    }

    fn links_of(&self) -> Vec<usize> {
        let mut wires: Vec<usize> = self.wires.values().map(|(wire, _)| *wire).collect();
        wires.sort_unstable();
        wires
    }

    /// What is not as it should be when nothing is under way.
    fn unsettled(&self, audit: &Audit) -> Option<String> {
        let (name, map) = (format!("{:?}", self.links.own().0), &audit.control.routes().map);
        let cells = match &self.running {
            Running::Gateway(gateway) => {
                return gateway.unsettled(map).map(|what| format!("{name}: {what}"));
            }
            Running::Router(_) => return None,
            Running::Mediator(mediator) => &mediator.cells,
            Running::Processor(processor) => &processor.cells,
        };
        if let Some(what) =
            cells.control.as_ref().and_then(|control| control.unsettled(audit.control.hash()))
        {
            return Some(format!("{name}: {what}"));
        }
        for replica in &cells.replicas {
            let number = replica.number;
            if replica.moves.has_leaving() {
                return Some(format!("{name} is still moving instruments out of cell {number}"));
            }
            if replica.cell.has_copies() {
                return Some(format!("{name} still copies instruments of cell {number}"));
            }
            let is_audited = !replica.is_single();
            if is_audited && replica.cell.hash() != audit.cells[usize::from(number)].hash() {
                return Some(format!("{name}: cell {number} is another one than its log says"));
            }
        }
        None
    }
}

/// The frames in some bytes.
fn frames(bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let frame = nm_wire::read(rest).expect("a frame")?;
        rest = &rest[frame.bytes.len()..];
        Some(frame)
    })
}

/// As the event loop does; `closed` gets the links that are replaced.
fn handle(
    behaviour: &mut dyn Behaviour,
    links: &mut Links,
    id: LinkId,
    frame: &mut FrameMut<'_>,
    closed: &mut Vec<LinkId>,
) -> Result<(), PeerError> {
    use Kind::{Challenge, Close, Format, Hello, Welcome};
    if matches!(frame.kind(), Challenge | Format | Hello | Welcome | Close) {
        let Some(handshake) = links.handshake(id, frame)? else { return Ok(()) };
        if let Some(older) = handshake.older {
            close(behaviour, links, older);
            closed.push(older);
        }
        behaviour.on_connected(links, handshake.peer);
        if handshake.peer != Peer::Client {
            return Ok(());
        }
    }
    let peer = links.peer(id);
    behaviour.on_frame(links, (id, peer), frame)
}

/// As the event loop does.
fn close(behaviour: &mut dyn Behaviour, links: &mut Links, id: LinkId) {
    if let Some((peer, true)) = links.close(id, std::time::Duration::ZERO) {
        behaviour.on_disconnected(links, peer, id);
    }
}
