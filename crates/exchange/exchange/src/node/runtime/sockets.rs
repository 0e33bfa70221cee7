//! The sockets of a node's links: reads them, writes the backlogs, and connects. What is written
//! and to whom, [`Links`] says; an iteration of the event loop writes at most once to each link.

use std::io;
use std::time::Duration;

use crate::link::{Link, LinkError, LinkPoller, ReceiveBuffer, Stream};

use super::connector::Connector;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::writes::{WRITES_PER_TURN, Writes};

/// The socket of a link.
#[derive(Debug)]
struct Socket {
    id: LinkId,
    link: Link,
    /// Whether it is watched for room.
    wants_write: bool,
    /// Whether it is not read, because its owner waits for its turn.
    is_held: bool,
}

/// The sockets of a node.
#[derive(Debug)]
pub struct Sockets {
    /// What wakes the node.
    pub poller: LinkPoller,
    /// What makes links.
    pub connector: Connector,
    /// By the place of a link.
    links: Vec<Option<Socket>>,
    /// Links whose backlogs are being written; a buffer for the next time.
    unwritten: Vec<LinkId>,
    /// Links whose backlogs are written in later iterations.
    later: Writes,
    /// Space to read into, for one link after the other.
    spare_input: Vec<u8>,
}

impl Sockets {
    /// No sockets.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Sockets> {
        let (poller, connector) = (LinkPoller::new()?, Connector::start()?);
        let (links, unwritten, spare_input) = (vec![], vec![], vec![]);
        Ok(Sockets { poller, connector, links, unwritten, later: Writes::default(), spare_input })
    }

    /// A link, if it is still there.
    pub fn link(&mut self, id: LinkId) -> Option<&mut Link> {
        self.socket(id).map(|socket| &mut socket.link)
    }

    fn socket(&mut self, id: LinkId) -> Option<&mut Socket> {
        self.links.get_mut(id.slot())?.as_mut().filter(|socket| socket.id == id)
    }

    /// The socket of a link.
    fn add(&mut self, id: LinkId, stream: Stream) -> io::Result<()> {
        let link = Link::new(stream)?;
        self.poller.add_link(&link, id.token())?;
        if self.links.len() <= id.slot() {
            self.links.resize_with(id.slot() + 1, || None);
        }
        self.links[id.slot()] = Some(Socket { id, link, wants_write: false, is_held: false });
        Ok(())
    }

    /// Takes an accepted connection, unless there are too many.
    ///
    /// # Errors
    /// The system's error.
    pub fn take_accepted(&mut self, links: &mut Links, stream: Stream) -> io::Result<()> {
        // The peer may have gone meanwhile.
        let Ok(owner) = stream.owner() else { return Ok(()) };
        let Some(id) = links.add_accepted(owner)? else { return Ok(()) };
        self.add(id, stream).inspect_err(|_| {
            links.close(id, Duration::ZERO);
        })
    }

    /// Takes the links that were connected since.
    pub fn take_connected(&mut self, links: &mut Links) {
        self.connector.waker().drain();
        while let Some((node, stream)) = self.connector.next_connected() {
            let Ok(id) = links.add_connected(node) else {
                links.request_link(node, 0);
                continue;
            };
            if self.add(id, stream).is_err() {
                // It is connected again.
                links.close(id, Duration::ZERO);
            }
        }
    }

    /// Has the links made that are wanted.
    pub fn connect(&mut self, links: &mut Links) {
        links.take_orders().for_each(|order| self.connector.order(order));
    }

    /// Writes the backlogs of this iteration, of nodes first. Of many other links some wait for
    /// the next iteration, see [`Sockets::has_unwritten`]. Appends the links that failed.
    pub fn flush(&mut self, links: &mut Links, failed: &mut Vec<(LinkId, PeerError)>) {
        let mut ids = links.take_unwritten(std::mem::take(&mut self.unwritten));
        if self.later.is_empty() && ids.len() <= WRITES_PER_TURN {
            ids.drain(..).for_each(|id| self.flush_into(links, id, failed));
        } else {
            for id in ids.drain(..) {
                if links.is_to_node(id) {
                    self.flush_into(links, id, failed);
                } else {
                    self.later.push(links.owner(id), id);
                }
            }
            self.flush_later(links, WRITES_PER_TURN, failed);
        }
        self.unwritten = ids;
        self.end_flush(links, failed);
    }

    /// Writes all backlogs; appends the links that failed.
    pub fn flush_all(&mut self, links: &mut Links, failed: &mut Vec<(LinkId, PeerError)>) {
        self.flush(links, failed);
        self.flush_later(links, usize::MAX, failed);
        self.end_flush(links, failed);
    }

    fn end_flush(&mut self, links: &mut Links, failed: &mut Vec<(LinkId, PeerError)>) {
        if self.later.is_empty() {
            links.end_writes();
        }
        while let Some(largest) = links.fail_largest() {
            failed.push(largest);
        }
    }

    /// Whether backlogs are left for the next iteration, which is then to begin at once.
    pub fn has_unwritten(&self) -> bool {
        !self.later.is_empty()
    }

    fn flush_later(
        &mut self,
        links: &mut Links,
        most: usize,
        failed: &mut Vec<(LinkId, PeerError)>,
    ) {
        for _ in 0..most {
            let Some(id) = self.later.pop() else { return };
            self.flush_into(links, id, failed);
        }
    }

    fn flush_into(&mut self, links: &mut Links, id: LinkId, failed: &mut Vec<(LinkId, PeerError)>) {
        if let Err(error) = self.flush_one(links, id) {
            failed.push((id, error));
        }
    }

    /// Writes the backlog of a link.
    ///
    /// # Errors
    /// If the link failed.
    pub fn flush_one(&mut self, links: &mut Links, id: LinkId) -> Result<(), PeerError> {
        let Some((backlog, bytes_max)) = links.begin_write(id) else { return Ok(()) };
        let known = self.links.get_mut(id.slot()).and_then(Option::as_mut);
        let Some(socket) = known.filter(|socket| socket.id == id) else { return Ok(()) };
        let link = &mut socket.link;
        let written = link.write(backlog, bytes_max);
        let wants_write = links.end_write(id, (&written, link.written_total()));
        written?;
        if let Some(wants_write) = wants_write {
            socket.wants_write = wants_write;
            self.poller.watch(link, id.token(), (!socket.is_held, wants_write))?;
        }
        links.count_held(id, |backlog| link.shrink(backlog));
        Ok(())
    }

    /// Whether the owner of a link waits for its turn.
    pub fn is_held(&mut self, id: LinkId) -> bool {
        self.socket(id).is_some_and(|socket| socket.is_held)
    }

    /// The owner of a link waits for its turn, or no longer.
    ///
    /// # Errors
    /// The system's error.
    pub fn hold(&mut self, id: LinkId, is_held: bool) -> io::Result<()> {
        let known = self.links.get_mut(id.slot()).and_then(Option::as_mut);
        let Some(socket) = known.filter(|it| it.id == id && it.is_held != is_held) else {
            return Ok(());
        };
        socket.is_held = is_held;
        self.poller.watch(&socket.link, id.token(), (!is_held, socket.wants_write))
    }

    /// Reads a link once, at most so many bytes; whether there may be more. The space for that is
    /// given back by [`Sockets::end_read`].
    pub fn begin_read(
        &mut self,
        links: &Links,
        id: LinkId,
        most: usize,
    ) -> Option<(ReceiveBuffer, Result<bool, LinkError>)> {
        let known = self.links.get_mut(id.slot()).and_then(Option::as_mut);
        let Socket { link, .. } = known.filter(|socket| socket.id == id)?;
        if !links.is_to_node(id) {
            link.borrow_input(&mut self.spare_input);
        }
        let received = link.receive_most(most);
        Some((std::mem::take(&mut link.input), received))
    }

    /// What was read of a link is handled.
    pub fn end_read(&mut self, links: &mut Links, id: LinkId, input: ReceiveBuffer) {
        let known = self.links.get_mut(id.slot()).and_then(Option::as_mut);
        if let Some(Socket { link, .. }) = known.filter(|socket| socket.id == id) {
            link.input = input;
            if !links.is_to_node(id) {
                link.give_back_input(&mut self.spare_input);
            }
        }
        self.count_held(links, id);
    }

    /// Counts what a link holds.
    pub fn count_held(&mut self, links: &mut Links, id: LinkId) {
        if let Some(link) = self.link(id) {
            links.count_held(id, |backlog| link.shrink(backlog));
        }
    }

    /// Sends a peer the reason for which its link is about to be closed, as far as the link takes
    /// it at once.
    pub fn refuse(&mut self, links: &mut Links, id: LinkId, reason: &PeerError) {
        if let Some(backlog) = links.refuse(id, reason)
            && let Some(link) = self.link(id)
        {
            // The link is closed, whether this succeeds or not.
            let _ = link.write(backlog, usize::MAX);
        }
    }

    /// Closes a link, as [`Links::close`] does.
    pub fn close(
        &mut self,
        links: &mut Links,
        id: LinkId,
        pause: Duration,
    ) -> Option<(Peer, bool)> {
        let slot = self.links.get_mut(id.slot());
        if let Some(socket) = slot.and_then(|slot| slot.take_if(|socket| socket.id == id)) {
            self.poller.remove(&socket.link);
        }
        links.close(id, pause)
    }

    /// Has the latencies of all links measured.
    pub fn measure_latencies(&mut self, links: &mut Links) {
        links.measure_latencies(|id| self.link(id)?.latency_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::say_hello;
    use crate::link::READ_BYTES;
    use crate::network::{Durability, Role};
    use crate::node::runtime::limits::Limits;
    use crate::testing::TestRing;
    use nm_wire::{FrameMut, Owner, Who};
    use std::os::unix::net::UnixStream;

    /// A gateway's links to clients, and the streams of these, which read nothing.
    struct Clients {
        links: Links,
        sockets: Sockets,
        clients: Vec<(LinkId, UnixStream)>,
        failed: Vec<(LinkId, PeerError)>,
    }

    impl Clients {
        fn new(limits: Limits, count: u32) -> Clients {
            // Nobody has no quota.
            Clients::of(limits, count, |_| Owner::NOBODY)
        }

        fn of(limits: Limits, count: u32, owner: impl Fn(u32) -> Owner) -> Clients {
            let ring = TestRing::new("1-1-1-1", Durability::None);
            let mut links = Links::simulated(&ring.network, Role::Gateway.node(0), 1);
            links.limits = limits;
            let mut sockets = Sockets::new().unwrap();
            let clients = (0..count).map(|session| {
                let (near, far) = UnixStream::pair().unwrap();
                let id = links.add_accepted(owner(session)).unwrap().unwrap();
                sockets.add(id, Stream::Unix(near)).unwrap();
                let mut hello = vec![];
                say_hello(Who::Client { session }, None, &mut hello);
                links.handshake(id, &FrameMut::of(&mut hello).unwrap()).unwrap();
                (id, far)
            });
            let clients = clients.collect();
            Clients { links, sockets, clients, failed: vec![] }
        }

        fn flush(&mut self) {
            self.sockets.flush(&mut self.links, &mut self.failed);
        }

        /// Writes once; whether there is more to write.
        fn flush_once(&mut self) -> bool {
            self.flush();
            self.sockets.has_unwritten()
        }

        /// What each client has received since.
        fn received(&mut self) -> Vec<Vec<u8>> {
            let receive = |(_, stream): &mut (LinkId, UnixStream)| {
                stream.set_nonblocking(true).unwrap();
                let mut bytes = vec![];
                let _ = std::io::Read::read_to_end(stream, &mut bytes);
                bytes
            };
            self.clients.iter_mut().map(receive).collect()
        }

        fn close(&mut self, id: LinkId) {
            self.sockets.close(&mut self.links, id, Duration::ZERO);
        }
    }

    #[test]
    fn what_is_gathered_in_one_iteration_is_written_before_it_is_much() {
        let limits = Limits { client_backlog_bytes_max: 1 << 20, ..Limits::STANDARD };
        let mut it = Clients::new(limits, 2);
        let [silent, other] = [0, 1].map(|at: usize| it.clients[at].0);
        let mut most = 0;
        for _ in 0..200 {
            // The event loop looks after each frame that was handled.
            it.links.forward(silent, &[7; 1 << 20]);
            most = most.max(it.links.backlog_bytes(silent));
            if it.links.has_gathered_much() {
                it.flush();
            }
        }
        assert!((32 << 20..=33 << 20).contains(&most), "{most}");
        assert!(it.links.output(silent).is_none(), "it is about to be closed");
        it.links.forward(other, &[7; 100]);
        it.flush();
        assert_eq!(it.failed.len(), 1, "{:?}", it.failed);
        assert!(matches!(it.failed[0].1, PeerError::Link(LinkError::BacklogFull { .. })));
        it.close(silent);
        let idle_bytes = it.links.output(other).unwrap().capacity();
        assert_eq!(it.links.held(), (idle_bytes, 1));
    }

    #[test]
    fn beyond_the_bytes_of_all_the_link_that_holds_the_most_is_given_up() {
        let limits = Limits { foreign_bytes_max: 32 << 20, ..Limits::STANDARD };
        let mut it = Clients::new(limits, 9);
        let ids: Vec<LinkId> = it.clients.iter().map(|(id, _)| *id).collect();
        for round in 1..=3 {
            for (number, id) in ids.iter().enumerate() {
                it.links.forward(*id, &vec![7; number << 21]);
            }
            it.flush();
            let (foreign_bytes, _) = it.links.held();
            assert!(foreign_bytes <= 32 << 20, "{round}: {foreign_bytes}");
        }
        let given_up: Vec<LinkId> = it.failed.iter().map(|(id, _)| *id).collect();
        assert!(!given_up.is_empty() && given_up.len() < 7, "{:?}", it.failed);
        assert!(it.failed.iter().all(|(_, why)| matches!(why, PeerError::TooManyForeignBytes(_))));
        for id in &ids {
            assert_eq!(it.links.output(*id).is_none(), given_up.contains(id));
            it.close(*id);
        }
        assert!(ids[..2].iter().all(|id| !given_up.contains(id)), "those with little stay");
        assert_eq!(it.links.held(), (0, 0));
    }

    #[test]
    fn the_space_of_a_burst_is_freed() {
        let mut it = Clients::new(Limits::STANDARD, 1);
        let id = it.clients[0].0;
        it.links.forward(id, &vec![7; 24 << 20]);
        it.flush();
        assert!(it.links.held().0 > 1 << 20);
        it.clients[0].1.set_nonblocking(true).unwrap();
        while it.links.held().0 > 0 {
            let _ = std::io::Read::read(&mut it.clients[0].1, &mut [0; 1 << 16]);
            it.sockets.flush_one(&mut it.links, id).unwrap();
        }
        assert!(it.failed.is_empty());
        assert_eq!(it.links.output(id).unwrap().capacity(), 0);
    }

    /// Before, one message for the 2 000 links of an owner kept all others waiting for 5 ms.
    #[test]
    fn a_message_for_many_links_of_an_owner_keeps_nobody_else_waiting() {
        let own = |session| Owner::of_user(if session < 100 { 1 } else { 2 });
        let mut it = Clients::of(Limits::STANDARD, 101, own);
        while it.flush_once() {}
        let ids: Vec<LinkId> = it.clients.iter().map(|(id, _)| *id).collect();
        it.received();
        for id in &ids {
            it.links.forward(*id, b"message");
        }
        assert!(it.flush_once(), "some are written later");
        let received = it.received();
        let of_owner = received[..100].iter().filter(|bytes| *bytes == b"message").count();
        assert_eq!((of_owner, received[100].as_slice()), (WRITES_PER_TURN - 1, &b"message"[..]));
        // Another message joins what a link waits to be sent, in its order.
        it.links.forward(ids[99], b", more");
        let mut iterations = 1;
        while it.flush_once() {
            iterations += 1;
        }
        let received = it.received();
        assert_eq!(received[99], b"message, more");
        let left = received[..100].iter().filter(|bytes| !bytes.is_empty()).count();
        assert_eq!((iterations, left), (3, 100 - of_owner));
        assert!(it.failed.is_empty());
    }

    #[test]
    fn bytes_that_wait_for_their_turn_count_until_all_are_written() {
        let mut it = Clients::of(Limits::STANDARD, 100, |_| Owner::of_user(1));
        while it.flush_once() {}
        let ids: Vec<LinkId> = it.clients.iter().map(|(id, _)| *id).collect();
        let frame = vec![7; 200 << 10];
        ids.iter().for_each(|id| it.links.forward(*id, &frame));
        assert!(it.flush_once() && !it.links.has_gathered_much());
        ids.iter().for_each(|id| it.links.forward(*id, &frame));
        assert!(it.links.has_gathered_much());
        it.sockets.flush_all(&mut it.links, &mut it.failed);
        assert!(!it.sockets.has_unwritten() && !it.links.has_gathered_much());
    }

    /// What a link has received is read, and all frames of it are taken.
    fn read(it: &mut Clients, id: LinkId) {
        let (mut input, received) = it.sockets.begin_read(&it.links, id, READ_BYTES).unwrap();
        received.unwrap();
        while let Some(_frame) = input.next_frame().unwrap() {}
        it.sockets.end_read(&mut it.links, id, input);
    }

    /// Before, each link kept 256 KiB, and they counted for nothing.
    #[test]
    fn idle_links_hold_no_space_and_parts_of_frames_count_as_allocated() {
        let mut it = Clients::new(Limits::STANDARD, 40);
        it.flush();
        let of_answers = it.links.held().0;
        let (mut frame, shape) = (vec![], nm_wire::Shape { is_stamped: false, size_bytes: 9_000 });
        nm_wire::write_shaped(&nm_wire::Close::because("x"), shape, &mut frame);
        let send = |it: &mut Clients, at: usize, bytes: &[u8]| {
            std::io::Write::write_all(&mut it.clients[at].1, bytes).unwrap();
            let id = it.clients[at].0;
            read(it, id);
            let held_bytes = it.links.held().0 - of_answers;
            (held_bytes, it.sockets.link(id).unwrap().input.allocated_bytes())
        };
        for at in 0..40 {
            assert_eq!(send(&mut it, at, &frame), (0, 0));
        }
        assert_eq!(send(&mut it, 0, &frame[..8_000]), (8_000, 8_000));
        assert_eq!(send(&mut it, 0, &frame[8_000..]), (0, 0));
        assert!(it.sockets.spare_input.len() <= 512 << 10, "{}", it.sockets.spare_input.len());
    }
}
