//! Transaction processor: sends replies and broadcasts out. Where it has a replica of a cell it
//! makes them of what the cell's log commits. For other cells it forwards what the mediators send.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::agent::Failure;
use nm_replica::Log;
use nm_wire::{
    AdminRequest, CatchUp, DecodeError, Frame, FrameMut, Kind, Leader, Message, Nak, OrdersRequest,
    Private, Refused, Reply, ResendRequest, misdirected, nak, open_orders, private, refused,
    replies_lost, reply, resent,
};

use crate::control::{InstrumentMap, RoutingTable};
use crate::network::{Durability, Network, NodeId, Role};

use crate::node::replica::ReplicaSet;
use crate::node::replica::logs::Logs;
use crate::node::replica::responses::{Outgoing, Responses, report_event_loss, report_loss};
use crate::node::runtime::behaviour::Behaviour;
use crate::node::runtime::links::{LinkId, Links};
use crate::node::runtime::peer::{Peer, PeerError};

/// For how long a processor that has come back waits for links to all gateways before it sends
/// replies again, ns.
const GATEWAYS_NS: u64 = 1_000_000_000;

/// What a processor that was removed waits for until it ends: the mediators have other processors
/// when they send it the map, and nothing comes from them after that.
#[derive(Debug, Default)]
struct Leaving {
    /// Mediators that have sent a map without this processor.
    maps_from: BTreeSet<u16>,
}

impl Leaving {
    /// A mediator has sent a map.
    fn on_map(&mut self, mediator: u16, map: &InstrumentMap, processor: u16) {
        if map.lacks(Role::Processor.node(processor)) {
            self.maps_from.insert(mediator);
        }
    }

    /// Whether all that came from mediators is on its way to gateways, and nothing more comes.
    fn is_done(&self, links: &Links) -> bool {
        let linked = links.connected_nodes().map(|(node, _)| node);
        let mut mediators = linked.filter(|node| node.class == Role::Mediator);
        mediators.all(|mediator| self.maps_from.contains(&mediator.index))
            && links.is_flushed_to(Role::Gateway)
    }
}

/// Whether a processor has links to all gateways.
fn has_gateways(links: &Links) -> bool {
    let gateways = links.network().downstream(links.own().0);
    gateways.iter().all(|gateway| links.to(*gateway).is_some())
}

/// A processor: with replicas of its mediators' cells, whose replies it makes, or, where cells have
/// no replicas, one that forwards what mediators send.
#[derive(Debug)]
pub struct Processor<L> {
    pub(super) cells: ReplicaSet<L>,
    /// The map, as of the last change of the nodes: a processor leads nothing, and needs no newer
    /// one.
    map: InstrumentMap,
    responses: Responses,
    /// Which one it is, and whether cells have replicas.
    index: u16,
    is_replicated: bool,
    /// The cells whose replies may take this way, and with how many mediators the network began.
    cells_through: Vec<u16>,
    founders: u16,
    /// By cell: the mediator that leads it, and its term.
    leaders: BTreeMap<u16, (u32, u16)>,
    /// By cell and mediator: the entry that it waits for, and until when links to all gateways are
    /// waited for, ns.
    catch_ups: BTreeMap<(u16, u16), (u64, u64)>,
    /// By gateway: whether it is connected, and its frames of this iteration. They are gathered,
    /// because the replicas borrow the links meanwhile.
    gathered: Vec<(bool, Vec<u8>)>,
    leaving: Leaving,
    replies: u64,
}

impl<L: Log> Processor<L> {
    /// A processor whose replicas have these logs.
    ///
    /// # Errors
    /// If a record cannot be opened.
    pub fn new(network: &Network, index: u16, logs: Logs<L>) -> Result<Processor<L>, Failure> {
        Ok(Processor {
            cells: ReplicaSet::new(network, Role::Processor.node(index), logs)?,
            map: InstrumentMap::of(network),
            cells_through: network.cells_through(index),
            founders: network.founders() as u16,
            index,
            is_replicated: network.durability != Durability::None,
            leaders: BTreeMap::new(),
            catch_ups: BTreeMap::new(),
            responses: Responses::default(),
            gathered: vec![],
            leaving: Leaving::default(),
            replies: 0,
        })
    }

    /// Cells whose replies and events gateways have from here.
    fn cells_sent(&self) -> BTreeSet<u16> {
        let own = self.cells.replicas.iter().map(|replica| replica.number);
        self.cells_through.iter().copied().chain(own).collect()
    }

    /// A mediator knows that others were added or removed. Whatever was on its way from a cell that
    /// was removed is asked for in the cells that have its instruments now.
    fn update_map(&mut self, links: &mut Links, map: &InstrumentMap) {
        if !self.map.update(map) || !links.update_nodes(&self.map) {
            return;
        }
        let before = self.cells_sent();
        self.cells_through = links.network().cells_through(self.index);
        for cell in before.into_iter().filter(|cell| !self.map.has_cell(*cell)) {
            self.leaders.remove(&cell);
            for gateway in 0..links.network().nodes(Role::Gateway).len() as u16 {
                report_loss(links, gateway, cell);
            }
        }
    }

    /// Notifies the mediators that wait until this processor can send the replies of a cell.
    fn answer_catch_ups(&mut self, links: &mut Links) {
        let Processor { cells, catch_ups, is_replicated, .. } = self;
        if catch_ups.is_empty() {
            return;
        }
        let has_gateways = has_gateways(links);
        catch_ups.retain(|(cell, mediator), (index, until_ns)| {
            let applied = cells.voter(*cell).map(|replica| replica.cell.index());
            let is_due = has_gateways || links.now_ns >= *until_ns;
            let is_done = is_due && (!*is_replicated || applied >= Some(*index));
            if is_done && let Some(link) = links.to(Role::Mediator.node(*mediator)) {
                links.send(link, &CatchUp { cell: *cell, index: *index });
            }
            // It is tried again when the processor has executed more.
            *until_ns = if is_due { 0 } else { *until_ns };
            !is_done
        });
    }

    /// Answers a resend request; if the cell is none of its own, a mediator does that has it.
    fn resend(
        &mut self,
        links: &mut Links,
        gateway: LinkId,
        frame: &FrameMut<'_>,
    ) -> Result<(), DecodeError> {
        let request: ResendRequest = frame.read()?;
        let cell = request.cell;
        if let Some(replica) = self.cells.voter(cell) {
            let mut answer = vec![];
            self.responses.resend(&replica.cell, &request, &mut answer);
            links.forward(gateway, &answer);
            return Ok(());
        }
        if let Some(mediator) = self.mediator_of(links, cell) {
            links.forward(mediator, frame.bytes);
        }
        Ok(())
    }
}

impl<L: Log> Processor<L> {
    /// Answers a session that asks for its open orders; if the cell is none of its own, a mediator
    /// does that has it.
    fn answer_orders(
        &mut self,
        links: &mut Links,
        gateway: LinkId,
        frame: &FrameMut<'_>,
    ) -> Result<(), DecodeError> {
        let request: OrdersRequest = frame.read()?;
        if let Some(replica) = self.cells.voter(request.cell) {
            links.send(gateway, &replica.cell.open_orders(&request));
        } else if let Some(mediator) = self.mediator_of(links, request.cell) {
            links.forward(mediator, frame.bytes);
        }
        Ok(())
    }

    /// The link to a mediator that has a replica of a cell, if there is one.
    fn mediator_of(&self, links: &Links, cell: u16) -> Option<LinkId> {
        let leader = self.leaders.get(&cell).map(|(_, mediator)| *mediator);
        let first = [cell, cell.wrapping_add(1) % self.founders];
        let mut up = leader
            .into_iter()
            .chain(first)
            .filter_map(|mediator| links.to(Role::Mediator.node(mediator)));
        up.next()
    }
}

impl<L: Log> Behaviour for Processor<L> {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        if let Peer::Node(NodeId { class: Role::Gateway, index }) = peer {
            self.cells_sent().into_iter().for_each(|cell| report_loss(links, index, cell));
        }
    }

    fn on_disconnected(&mut self, links: &mut Links, peer: Peer, _id: LinkId) {
        if let Peer::Node(NodeId { class: Role::Gateway, .. }) = peer {
            report_event_loss(links, self.cells_sent());
        }
    }

    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut FrameMut<'_>,
    ) -> Result<(), PeerError> {
        let (peer, kind) = (from.1, frame.kind());
        let undecodable = PeerError::decode(peer, kind);
        match (peer, kind) {
            (Peer::Node(NodeId { class: Role::Gateway, .. }), Kind::ResendRequest) => {
                self.resend(links, from.0, frame).map_err(undecodable)?;
            }
            (Peer::Node(NodeId { class: Role::Gateway, .. }), Kind::OrdersRequest) => {
                self.answer_orders(links, from.0, frame).map_err(undecodable)?;
            }
            (Peer::Node(NodeId { class: Role::Gateway, index }), Kind::Private) => {
                forward_elsewhere(links, frame.bytes, index);
            }
            (Peer::Node(NodeId { class: Role::Mediator, index: mediator }), Kind::RoutingTable) => {
                let routes = RoutingTable::decode(frame.shared().message).map_err(undecodable)?;
                self.leaving.on_map(mediator, &routes.map, self.index);
                self.update_map(links, &routes.map);
            }
            (Peer::Node(NodeId { class: Role::Mediator, index }), Kind::Leader) => {
                let Leader { cell, term } = frame.read().map_err(undecodable)?;
                let known = self.leaders.entry(cell).or_default();
                *known = (*known).max((term, index));
            }
            (Peer::Node(NodeId { class: Role::Mediator, index }), Kind::CatchUp) => {
                let CatchUp { cell, index: entry } = frame.read().map_err(undecodable)?;
                if !self.is_replicated || self.cells.replica(cell).is_some() {
                    let until_ns = links.now_ns + GATEWAYS_NS;
                    self.catch_ups.insert((cell, index), (entry, until_ns));
                }
            }
            (Peer::Operator, Kind::AdminRequest) => match frame.read().map_err(undecodable)? {
                AdminRequest::Follow => self.cells.follow(links, from.0),
                AdminRequest::Image { instrument } => {
                    self.cells.send_image(links, from.0, instrument);
                }
                _ => {
                    let role = Role::Processor;
                    return Err(PeerError::UnexpectedFrame { peer, kind, role });
                }
            },
            // The processor of its cell is away.
            (Peer::Node(NodeId { class: Role::Mediator, .. }), _) => {
                if !forward(links, frame).map_err(undecodable)? {
                    return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Processor });
                }
                self.replies += u64::from(is_answer(kind));
            }
            _ => return Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Processor }),
        }
        Ok(())
    }

    fn on_wake(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.gathered.resize(links.network().nodes(Role::Gateway).len(), (false, vec![]));
        let (responses, gathered) = (&mut self.responses, &mut self.gathered);
        let (mut frames, mut replies) = (0, 0);
        for ((is_up, _), index) in gathered.iter_mut().zip(0..) {
            *is_up = links.to(Role::Gateway.node(index)).is_some();
        }
        self.cells.on_wake(links)?;
        self.cells.apply(links, &mut |cell, request, frame, now_ns| {
            responses.handle(cell, request, frame, &[(3, now_ns)], |out| {
                replies += u64::from(is_answer(out.message.kind()));
                frames += gather(gathered, out);
            })
        })?;
        for ((_, bytes), index) in self.gathered.iter_mut().zip(0..) {
            if let Some(gateway) = links.to(Role::Gateway.node(index)).filter(|_| !bytes.is_empty())
            {
                links.forward(gateway, bytes);
            }
            bytes.clear();
        }
        self.replies += replies;
        links.frames_out += frames;
        Ok(())
    }

    fn on_iteration(&mut self, links: &mut Links) -> Result<(), Failure> {
        self.answer_catch_ups(links);
        self.cells.on_iteration(links)?;
        self.cells.advance(links, &self.map).map(drop)
    }

    fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let waited = self.catch_ups.values().map(|(_, until_ns)| *until_ns);
        let catch_up = waited.filter(|until_ns| *until_ns > 0).min();
        [catch_up, self.cells.deadline_ns(now_ns)].into_iter().flatten().min()
    }

    fn is_ready(&self) -> bool {
        self.cells.is_ready()
    }

    fn has_left(&self, links: &Links) -> bool {
        self.leaving.is_done(links)
    }

    fn on_stop(&mut self) -> Result<(), Failure> {
        self.cells.on_stop()
    }

    fn counts(&self) -> (u64, u64) {
        (self.replies, 0)
    }
}

/// Adds a frame to those of the gateways that it is for; how many these are. Events of a session
/// whose gateway is away are for all others, and are marked so.
fn gather(gathered: &mut [(bool, Vec<u8>)], out: &Outgoing<'_>) -> u64 {
    let gateway = match out.message {
        Message::Reply(Reply { gateway, .. })
        | Message::Refused(Refused { gateway, .. })
        | Message::Private(Private { gateway, .. })
        | Message::Nak(Nak { gateway, .. }) => Some(usize::from(gateway)),
        _ => None,
    };
    let is_private = matches!(out.message, Message::Private(_));
    let is_away = |at: usize| gathered.get(at).is_none_or(|(is_up, _)| !is_up);
    let is_astray = is_private && gateway.is_some_and(is_away);
    let to = match gateway {
        Some(at) if !is_astray => at..at + 1,
        _ => 0..gathered.len(),
    };
    let mut frames = 0;
    for (_, bytes) in gathered.get_mut(to).into_iter().flatten().filter(|(is_up, _)| *is_up) {
        frames += 1;
        let start = bytes.len();
        out.write(bytes);
        if is_astray
            && let Ok(mut frame) = FrameMut::of(&mut bytes[start..])
            && let Ok(mut edit) = private::Edit::of(&mut frame)
        {
            edit.is_astray(true);
        }
    }
    frames
}

/// Whether a message of this kind answers a request.
fn is_answer(kind: Kind) -> bool {
    matches!(kind, Kind::Reply | Kind::Refused)
}

/// Forwards a frame of a mediator to the gateways that it is for; whether it is one for gateways.
///
/// # Errors
/// If it is damaged.
fn forward(links: &mut Links, frame: &mut FrameMut<'_>) -> Result<bool, DecodeError> {
    nm_wire::stamp(frame.bytes, 3, links.now_ns);
    let for_all = [Kind::Public, Kind::BestPrices, Kind::DayEnded, Kind::Standing];
    let is_for_all = for_all.contains(&frame.kind());
    let Some(gateway) = gateway_of(frame.shared())? else {
        let gateways = links.network().nodes(Role::Gateway).len() as u16;
        for gateway in (0..gateways).filter(|_| is_for_all) {
            if let Some(link) = links.to(Role::Gateway.node(gateway)) {
                links.forward(link, frame.bytes);
            }
        }
        return Ok(is_for_all);
    };
    match links.to(Role::Gateway.node(gateway)) {
        Some(link) => links.forward(link, frame.bytes),
        // The session may be at another gateway. What else its gateway has asked for it asks for
        // again.
        None if frame.kind() == Kind::Private => {
            private::Edit::of(frame)?.is_astray(true);
            forward_elsewhere(links, frame.bytes, gateway);
        }
        None => {}
    }
    Ok(true)
}

/// The gateway that a frame of a mediator is for; none if it is not for one gateway.
fn gateway_of(frame: Frame<'_>) -> Result<Option<u16>, DecodeError> {
    Ok(Some(match frame.kind() {
        Kind::Reply => reply::View::of(frame)?.gateway(),
        Kind::Refused => refused::View::of(frame)?.gateway(),
        Kind::Private => private::View::of(frame)?.gateway(),
        Kind::Resent => resent::View::of(frame)?.gateway(),
        Kind::Nak => nak::View::of(frame)?.gateway(),
        Kind::OpenOrders => open_orders::View::of(frame)?.gateway(),
        Kind::Misdirected => misdirected::View::of(frame)?.gateway(),
        Kind::RepliesLost => replies_lost::View::of(frame)?.gateway(),
        _ => return Ok(None),
    }))
}

/// Sends events of a session that is not at a gateway, and that are marked so, to all other ones.
fn forward_elsewhere(links: &mut Links, bytes: &[u8], gateway: u16) {
    let not_there = links.to(Role::Gateway.node(gateway));
    for other in links.all_to(Role::Gateway) {
        if Some(other) != not_there {
            links.forward(other, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use nm_wire::Series;

    use super::*;
    use crate::network::Node;
    use crate::node::simulation::group::SimulatedLog;

    fn events(is_astray: bool) -> Vec<u8> {
        let mut bytes = vec![];
        let events = Private {
            instrument: 1,
            session: 1,
            output_seq: 1,
            previous_event: 0,
            gateway: 0,
            cell: 0,
            is_astray,
            events: Series::of(&[]),
        };
        nm_wire::write(&events, &mut bytes);
        bytes
    }

    /// What a processor, which has links to these gateways, sends to each of them after a mediator
    /// has sent it the events of a session at gateway 0.
    fn sent_to(gateways: [u16; 2]) -> Vec<Vec<u8>> {
        let own = Role::Processor.node(0);
        let network = Network::new("3-1-1-1".parse().unwrap(), |_| Node {
            address: "127.0.0.1:1".parse().unwrap(),
            replication: None,
        });
        let logs = Logs { of_groups: vec![], source: None };
        let mut processor = Processor::<SimulatedLog>::new(&network, 0, logs).unwrap();
        let mut links = Links::simulated(&network, own, 1);
        let links_to = gateways.map(|at| links.link_to(Role::Gateway.node(at)));
        let mediator = (LinkId::none(), Peer::Node(Role::Mediator.node(0)));
        let mut bytes = events(false);
        let mut frame = FrameMut::of(&mut bytes).unwrap();
        processor.on_frame(&mut links, mediator, &mut frame).unwrap();
        let sent = links.take_output();
        let to = |link| sent.iter().filter(move |(id, _)| *id == link);
        links_to.map(|link| to(link).flat_map(|(_, bytes)| bytes.clone()).collect()).to_vec()
    }

    /// The mark says so: without it each of them would ask the processor to send them on.
    #[test]
    fn events_of_a_session_whose_gateway_is_away_are_for_all_others_and_are_marked() {
        assert_eq!(sent_to([0, 1]), [events(false), vec![]]);
        assert_eq!(sent_to([1, 2]), [events(true), events(true)]);
    }
}
