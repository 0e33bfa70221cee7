//! A fill is lost on each of the links on its path to a session. It is delivered all the same,
//! without a new request of the session.

use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nm_book::order::{Command, Side};
use nm_book::testing::limit;
use nm_exchange::client;
use nm_exchange::link::Link;
use nm_exchange::network::{Durability, Network, Role};
use nm_exchange::testing::TestRing;
use nm_load::OrderRequest;
use nm_load::clients::Clients;
use nm_load::log::Record;
use nm_sys::clock::Deadline;
use nm_wire::{Close, Message};

const LIMIT: Duration = Duration::from_secs(60);

/// A proxy in front of a node's socket; while closed it drops all connections and accepts none.
struct Proxy {
    address: PathBuf,
    is_open: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl Proxy {
    fn new(target: PathBuf) -> Proxy {
        let address = target.with_extension("proxy");
        let listener = UnixListener::bind(&address).unwrap();
        let (is_open, is_over) =
            (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let streams: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let (open, over, all) = (is_open.clone(), is_over.clone(), streams.clone());
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), false) = (near, over.load(Ordering::Acquire)) else { return };
                if !open.load(Ordering::Acquire) {
                    continue;
                }
                let Ok(far) = UnixStream::connect(&target) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
                all.lock().unwrap().extend([near, far]);
            }
        });
        Proxy { address, is_open, is_over, streams }
    }

    fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = UnixStream::connect(&self.address);
        self.close();
    }
}

/// Two sessions, each at its own gateway: session 1 has a resting order, session 2 trades against
/// it.
struct TwoSessions {
    network: Network,
    clients: Clients,
    links: [Option<Link>; 2],
    submitted: u64,
}

impl TwoSessions {
    fn new(ring: &TestRing) -> TwoSessions {
        let clients = Clients::new(2, 1, 2, false);
        let mut two = TwoSessions {
            network: ring.network.clone(),
            clients,
            links: [None, None],
            submitted: 0,
        };
        (0..2).for_each(|gateway| two.connect(gateway));
        two
    }

    fn connect(&mut self, gateway: usize) {
        let deadline = Deadline::after(LIMIT);
        let (address, hellos) = (
            &self.network.classes[Role::Gateway].nodes[gateway].address,
            self.clients.hellos(gateway),
        );
        let mut link = loop {
            match client::connect(address, &hellos, None, LIMIT) {
                Ok(link) => break link,
                Err(error) => assert!(!deadline.passed(), "{error}"),
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.clients.connected(gateway, &mut link.output);
        self.links[gateway] = Some(link);
    }

    fn submit(&mut self, session: u32, side: Side, quantity: u64) {
        self.submitted += 1;
        let command = Command::New(limit(self.submitted, session, side, 100, quantity));
        let request = OrderRequest { session, instrument: 0, command, size_bytes: 200 };
        let link = self.links[session as usize % 2].as_mut().unwrap();
        self.clients.submit(&request, 1, &mut link.output).unwrap();
    }

    /// Flushes and receives once on each link.
    fn poll_links(&mut self) {
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            link.flush().unwrap();
            let fd = link.as_fd().as_raw_fd();
            if nm_sys::poll::readable(fd, Duration::from_millis(2)).unwrap() {
                link.receive().unwrap();
            }
            while let Some(frame) = link.input.next_frame().unwrap() {
                let message = Message::read(frame.shared()).unwrap();
                self.clients.receive(index, &message, 1, &mut link.output);
            }
        }
    }

    /// Number of events delivered to session 1.
    fn delivered(&self) -> u64 {
        let events = self.clients.all_delivered().find_map(|record| match record {
            Record::Delivered(delivered) if delivered.session == 1 => Some(delivered.events),
            _ => None,
        });
        events.unwrap_or(0)
    }

    fn wait(&mut self, what: &str, is_done: impl Fn(&TwoSessions) -> bool) {
        let deadline = Deadline::after(LIMIT);
        while !is_done(self) {
            let (events, pending) = (self.delivered(), self.clients.pending());
            assert!(
                !deadline.passed(),
                "{what}: no; {events} events delivered to session 1, {pending} requests of both \
                 sessions without a reply"
            );
            self.poll_links();
        }
    }

    /// Session 2 trades and gets its reply; the fill of session 1 is not delivered.
    fn trade_undelivered(&mut self) {
        let before = self.delivered();
        self.submit(2, Side::Buy, 1);
        self.wait("session 2 has its reply", |two| two.clients.pending() == 0);
        (0..20).for_each(|_| self.poll_links());
        assert_eq!(self.delivered(), before, "the path to session 1 is cut");
    }
}

fn check_delivery_after_cuts(counts: &str, durability: Durability) {
    let mut ring = TestRing::new(counts, durability);
    let proxy = Proxy::new(ring.folder.path().join("gateway-1"));
    let mut proxied = ring.network.clone();
    proxied.classes[Role::Gateway].nodes[1].address =
        format!("unix:{}", proxy.address.display()).parse().unwrap();
    let all: Vec<_> = ring.network.all().map(|(id, _)| id).collect();
    for node in all {
        let network =
            if node.class == Role::Processor { proxied.clone() } else { ring.network.clone() };
        ring.start_one(node, &network, &Arc::default());
    }
    let mut two = TwoSessions::new(&ring);
    two.submit(1, Side::Sell, 50);
    // An event may also be delivered by a resend, before the reply that it belongs to; that reply
    // must not be missing when the path to session 1 is cut.
    let is_settled =
        |two: &TwoSessions, events| two.delivered() == events && two.clients.pending() == 0;
    two.wait("session 1 has its reply", |two| is_settled(two, 1));
    two.submit(2, Side::Buy, 1);
    two.wait("the fill is delivered", |two| is_settled(two, 2));

    // Between the processor and the gateway of session 1, whose own connection stays.
    proxy.close();
    two.trade_undelivered();
    proxy.open();
    two.wait("the fill is delivered after the processor reconnected", |two| two.delivered() == 3);

    // Between the gateway and its client.
    two.links[1] = None;
    two.trade_undelivered();
    two.connect(1);
    two.wait("the fill is delivered after the client reconnected", |two| two.delivered() == 4);

    // The gateway itself is restarted and loses its state.
    ring.stop_one(Role::Gateway.node(1));
    two.links[1] = None;
    two.trade_undelivered();
    ring.start_one(Role::Gateway.node(1), &ring.network.clone(), &Arc::default());
    two.connect(1);
    two.wait("the fill is delivered after the gateway was restarted", |two| two.delivered() == 5);
    assert_eq!((two.clients.counts.unknown, two.clients.pending()), (0, 0));
    ring.stop_all();
}

impl TwoSessions {
    /// Session 1 goes to gateway 0, and sends no request there.
    fn move_session_1(&mut self) {
        let (address, hellos) =
            (&self.network.classes[Role::Gateway].nodes[0].address, self.clients.hellos(1));
        let mut link = client::connect(address, &hellos, None, LIMIT).unwrap();
        self.clients.begin_move(1, &mut link.output);
        assert!(!self.clients.is_moving(1), "nothing is without a reply");
        let mut before = self.links[1].replace(link).unwrap();
        // What the gateway sends until it closes the link arrives.
        nm_wire::write(&Close::because("session 1 is at another gateway"), &mut before.output);
        before.flush().unwrap();
        while before.receive().is_ok() {
            while let Some(frame) = before.input.next_frame().unwrap() {
                let out = &mut self.links[1].as_mut().unwrap().output;
                let message = Message::read(frame.shared()).unwrap();
                self.clients.receive_late(1, &message, 1, out);
            }
        }
    }
}

/// A cell sends the events of an idle session to the gateway of its last request.
fn check_delivery_after_a_move(counts: &str, durability: Durability) {
    let mut ring = TestRing::new(counts, durability);
    ring.start();
    let mut two = TwoSessions::new(&ring);
    two.submit(1, Side::Sell, 50);
    two.wait("session 1 has its reply", |two| two.delivered() == 1 && two.clients.pending() == 0);
    two.move_session_1();
    two.wait("session 1 has asked what it lacks", |two| two.clients.awaiting_resend() == 0);
    two.submit(2, Side::Buy, 1);
    two.wait("the fill is delivered at the other gateway", |two| two.delivered() == 2);
    // The gateway is stopped, perhaps with a fill that has just reached it.
    two.submit(2, Side::Buy, 1);
    two.poll_links();
    ring.stop_one(Role::Gateway.node(1));
    two.wait("the fill is delivered that may have been lost", |two| two.delivered() == 3);
    two.submit(2, Side::Buy, 1);
    two.wait("the next fill is delivered", |two| two.delivered() == 4);
    two.wait("session 2 has its replies", |two| two.clients.pending() == 0);
    assert_eq!(two.clients.counts.unknown, 0);
    ring.stop_all();
}

#[test]
fn a_fill_is_delivered_at_the_gateway_to_which_its_session_has_moved() {
    check_delivery_after_a_move("2-1-1-1", Durability::None);
    check_delivery_after_a_move("2-1-2-1", Durability::MemoryQuorum);
}

#[test]
fn a_fill_is_delivered_after_a_loss_on_any_link() {
    check_delivery_after_cuts("2-1-1-1", Durability::None);
}

#[test]
fn a_fill_of_a_replicated_cell_is_delivered_after_a_loss_on_any_link() {
    check_delivery_after_cuts("2-1-2-1", Durability::MemoryQuorum);
}
