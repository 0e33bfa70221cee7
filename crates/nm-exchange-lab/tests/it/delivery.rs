//! A fill that a session should be told of is lost on each of the links that it goes over: the
//! session is told it all the same, without asking for anything new.

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
use nm_exchange::link::{Link, Stream};
use nm_exchange::network::{Durability, Network, Role};
use nm_exchange::testing::TestRing;
use nm_exchange_lab::load::OrderRequest;
use nm_exchange_lab::load::clients::Clients;
use nm_exchange_lab::load::log::Record;
use nm_sys::clock::Deadline;

const LIMIT: Duration = Duration::from_secs(60);

/// Stands before a node's socket; closed, it ends all connections and takes none.
struct GatewayLink {
    address: PathBuf,
    is_open: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl GatewayLink {
    fn new(target: PathBuf) -> GatewayLink {
        let address = target.with_extension("gate");
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
        GatewayLink { address, is_open, is_over, streams }
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

impl Drop for GatewayLink {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = UnixStream::connect(&self.address);
        self.close();
    }
}

/// Two sessions, each at a gateway of its own: session 1 has an order that rests, session 2 takes
/// of it.
struct Two {
    network: Network,
    clients: Clients,
    links: [Option<Link>; 2],
    asked: u64,
}

impl Two {
    fn new(ring: &TestRing) -> Two {
        let clients = Clients::new(2, 1, 2, false);
        let mut two = Two { network: ring.network.clone(), clients, links: [None, None], asked: 0 };
        (0..2).for_each(|gateway| two.connect(gateway));
        two
    }

    fn connect(&mut self, gateway: usize) {
        let deadline = Deadline::after(LIMIT);
        let stream = loop {
            match Stream::connect(&self.network.gateway[gateway].address, LIMIT) {
                Ok(stream) => break stream,
                Err(error) => assert!(!deadline.passed(), "{error}"),
            }
            thread::sleep(Duration::from_millis(2));
        };
        let mut link = Link::new(stream).unwrap();
        self.clients.connected(gateway, &mut link.output);
        self.links[gateway] = Some(link);
    }

    fn ask(&mut self, session: u32, side: Side, quantity: u64) {
        self.asked += 1;
        let command = Command::New(limit(self.asked, session, side, 100, quantity));
        let ask =
            OrderRequest { session, instrument: 0, command, size_bytes: 200, is_public: false };
        let link = self.links[session as usize % 2].as_mut().unwrap();
        self.clients.submit(&ask, 1, &mut link.output).unwrap();
    }

    /// Sends and takes what there is for a moment.
    fn turn(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.flush().unwrap();
            let fd = link.as_fd().as_raw_fd();
            if nm_sys::poll::readable(fd, Duration::from_millis(2)).unwrap() {
                link.receive().unwrap();
            }
            while let Some(frame) = link.input.next_frame().unwrap() {
                self.clients.receive(&frame.header, frame.body(), 1, &mut link.output);
            }
        }
    }

    /// Events that session 1 was told.
    fn told(&self) -> u64 {
        let told = self.clients.all_delivered().find_map(|record| match record {
            Record::Delivered(told) if told.session == 1 => Some(told.events),
            _ => None,
        });
        told.unwrap_or(0)
    }

    fn wait(&mut self, what: &str, is_there: impl Fn(&Two) -> bool) {
        let deadline = Deadline::after(LIMIT);
        while !is_there(self) {
            assert!(!deadline.passed(), "{what}; session 1 was told {} events", self.told());
            self.turn();
        }
    }

    /// Session 2 takes a little; it is answered, and session 1 would be told, but is not.
    fn trade_unheard(&mut self) {
        let told = self.told();
        self.ask(2, Side::Buy, 1);
        self.wait("session 2 has no reply", |two| two.clients.pending() == 0);
        (0..20).for_each(|_| self.turn());
        assert_eq!(self.told(), told, "the way to session 1 is cut");
    }
}

fn told_whatever_is_cut(counts: &str, durability: Durability) {
    let mut ring = TestRing::new(counts, durability);
    let gate = GatewayLink::new(ring.folder.path().join("gateway-1"));
    let mut seen = ring.network.clone();
    seen.gateway[1].address = format!("unix:{}", gate.address.display()).parse().unwrap();
    let all: Vec<_> = ring.network.all().map(|(role, index, _)| (role, index)).collect();
    for (role, index) in all {
        let network = if role == Role::Processor { seen.clone() } else { ring.network.clone() };
        ring.start_one(role, index, &network, &Arc::default());
    }
    let mut two = Two::new(&ring);
    two.ask(1, Side::Sell, 50);
    two.wait("session 1 has no reply", |two| two.told() == 1);
    two.ask(2, Side::Buy, 1);
    two.wait("a fill is told", |two| two.told() == 2);

    // Between the processor and the gateway of session 1, whose own connection stays.
    gate.close();
    two.trade_unheard();
    gate.open();
    two.wait("the processor is linked again", |two| two.told() == 3);

    // Between the gateway and its client.
    two.links[1] = None;
    two.trade_unheard();
    two.connect(1);
    two.wait("the client is connected again", |two| two.told() == 4);

    // The gateway itself dies, and forgets.
    ring.stop_one(Role::Gateway, 1);
    two.links[1] = None;
    two.trade_unheard();
    ring.start_one(Role::Gateway, 1, &ring.network.clone(), &Arc::default());
    two.connect(1);
    two.wait("the gateway is there again", |two| two.told() == 5);
    assert_eq!((two.clients.counts.unknown, two.clients.pending()), (0, 0));
    ring.stop_all();
}

#[test]
fn a_fill_is_told_whatever_link_it_was_lost_on() {
    told_whatever_is_cut("2-1-1-1", Durability::None);
}

#[test]
fn a_fill_of_a_replicated_cell_is_told_whatever_link_it_was_lost_on() {
    told_whatever_is_cut("2-1-2-1", Durability::MemoryQuorum);
}
