//! Every process around the path of a client's requests stops (SIGSTOP), in turn. Nobody reads what
//! nodes write, strangers make them write, and a node's queue of connections is full. Requests are
//! answered all the same, by their number.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use nm_exchange::client::{self, say_hello};
use nm_exchange::control::AdminRequest;
use nm_exchange::link::{Address, Link};
use nm_exchange::network::{Durability, Network, NodeId, Role};
use nm_wire::Who;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::exchange_net::{Load, Net};
use crate::support::{BINARY, PATIENCE, run, signal};

/// Requests while a process stands still.
const COUNT: u32 = 400;

/// A pipe at this path that takes nothing more, and nobody reads.
pub fn full_pipe(path: &Path) -> File {
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut both_ends = File::options().read(true).write(true).open(path).unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(both_ends.as_fd()).unwrap();
    both_ends.write_all(&vec![b'x'; size]).unwrap();
    both_ends
}

/// The program of a node, with both outputs to this pipe.
pub fn writing_to(pipe: &Path, node: &Command) -> Command {
    let mut shell = Command::new("sh");
    let script = format!("exec \"$0\" \"$@\" > '{0}' 2> '{0}'", pipe.display());
    shell.args(["-c", &script, BINARY]).args(node.get_args());
    shell
}

/// A Unix socket with a full queue of connections, and those in it. To connect there would block
/// for ever.
fn full_listener(address: &Address) -> Vec<rustix::fd::OwnedFd> {
    let Address::Unix(path) = address else { panic!("{address}") };
    let address = SocketAddrUnix::new(path).unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let listener = socket();
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let mut all = vec![listener];
    loop {
        let waiting = socket();
        if connect(&waiting, &address).is_err() {
            return all;
        }
        all.push(waiting);
    }
}

fn address(network: &Network, node: NodeId) -> &Address {
    &network.node(node).unwrap().address
}

/// An observer that asks and asks, and reads no answer.
fn unreading_observer(address: &Address) -> Link {
    let mut link = client::connect(address, &[Who::Observer], None, PATIENCE).unwrap();
    for _ in 0..2_000 {
        nm_wire::write(&AdminRequest::Status, &mut link.output);
    }
    link.flush().unwrap();
    link
}

/// A stranger whose first frame is not one: the node writes a line.
fn stranger(address: &Address) -> Link {
    let mut link = client::connect(address, &[], None, PATIENCE).unwrap();
    say_hello(Who::Observer, None, &mut link.output);
    link.output[0] ^= 0xff;
    link.flush().unwrap();
    link
}

/// Milliseconds below which 99 of 100 round trips were.
pub fn p99_ms(round: &nm_load::Round) -> f64 {
    let mut round_trips: Vec<u64> = round.samples.iter().map(|it| it.latency_ns).collect();
    round_trips.sort_unstable();
    let at = (round_trips.len() * 99).div_ceil(100).saturating_sub(1);
    round_trips.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
}

/// The terms of the cells. The command would wait longer for a node that stands still.
fn terms(net: &Net) -> Vec<u64> {
    let status =
        nm_operate::admin::status(&net.network, std::time::Duration::from_secs(1)).unwrap();
    status.cells.iter().map(|cell| u64::from(cell.term)).collect()
}

/// Before, requests waited for the router until it went on.
#[test]
fn requests_go_around_a_router_that_is_stopped() {
    let mut net = Net::new("1-2-2-2", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    let mut load = Load::new(&net, 4, 200);
    load.all_answered("before", COUNT);
    for router in [0, 1].map(|index| Role::Router.node(index)) {
        signal("STOP", net.pid(router));
        load.all_answered(&format!("while {router} stands still"), COUNT);
        signal("CONT", net.pid(router));
        load.all_answered(&format!("when {router} goes on"), COUNT);
    }
    let lines = net.output(Role::Gateway.node(0));
    assert!(lines.contains("router 0 has requests, and none was answered for"), "{lines}");
    assert!(lines.contains("router 1 takes its place"), "{lines}");
    net.prove(load);
}

/// What `exchange status` shows, and its exit code.
fn status(net: &Net) -> (i32, String) {
    let file = net.path().join("network.toml");
    let found = run(&["exchange", "status", "--network", file.to_str().unwrap()]);
    (found.code, format!("{}{}", found.stdout, found.stderr))
}

/// Before, such a node was up, and nothing said why requests wait.
#[test]
fn who_stands_still_and_what_waits_for_that_is_shown() {
    let mut net = Net::new("2-1-2-1", Durability::None);
    net.start_all(|_, command| command);
    let mut load = Load::at(&net, 1, 4, 64);
    load.all_answered("before", COUNT);
    let (code, text) = status(&net);
    assert!(code == 0 && !text.contains("waiting"), "{code} {text}");
    for (node, code_then, waits, not_traded) in [
        (Role::Gateway.node(1), 3, "the clients of gateway 1, which may go to another gateway", ""),
        (
            Role::Router.node(0),
            1,
            "all requests at gateway 0: router 0 would carry them",
            "instruments with number % 2 = 0 (cell 0): no gateway answers that has a router",
        ),
        (
            Role::Mediator.node(1),
            3,
            "requests for cell 1: only mediator 1 has its books",
            "instruments with number % 2 = 1 (cell 1): only mediator 1 has its books",
        ),
        (
            Role::Processor.node(0),
            1,
            "replies of cell 1: processor 0 would send them",
            "instruments with number % 2 = 1 (cell 1): processor 0 would send its replies",
        ),
    ] {
        signal("STOP", net.pid(node));
        let (code, text) = status(&net);
        signal("CONT", net.pid(node));
        assert!(code == code_then && text.contains(waits), "{node}: {code} {text}");
        assert!(text.contains(not_traded), "{node}: {text}");
        assert_eq!(text.contains(" (cell "), !not_traded.is_empty(), "{node}: {text}");
        load.all_answered(&format!("when {node} goes on"), COUNT);
    }
    // Other cells are answered, so the router is not suspected; the gateway names the cell.
    let mediator = Role::Mediator.node(1);
    signal("STOP", net.pid(mediator));
    let round = load.send(COUNT, 5.0);
    signal("CONT", net.pid(mediator));
    assert!(round.lost > 0, "some are for the mediator that stands still");
    let lines = net.output(Role::Gateway.node(0));
    assert!(lines.contains("requests for cell 1 have had no answer for seconds"), "{lines}");
    assert!(!lines.contains("requests for cell 0"), "{lines}");
}

/// With replicas, the others take a node that stands still for up as long as its links are there.
#[test]
fn a_node_of_a_replicated_network_that_stands_still_is_named() {
    let mut net = Net::new("1-2-3-2", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    let mut load = Load::new(&net, 4, 64);
    load.all_answered("before", COUNT);
    signal("STOP", net.pid(Role::Router.node(1)));
    let (code, text) = status(&net);
    signal("CONT", net.pid(Role::Router.node(1)));
    assert!(code == 3 && text.contains("does not answer: it stands still"), "{code} {text}");
    assert!(text.starts_with("degraded: all instruments can be traded"), "{text}");
    assert!(text.contains("7 of 8 nodes are up") && !text.contains("waiting"), "{text}");
    load.all_answered("when it goes on", COUNT);
    load.finish(&mut net);
}

/// Before, dead nodes were up for 19 s, dead cells led, and trading went on where nothing traded:
/// what control had known last.
#[test]
fn dead_nodes_are_not_up_and_dead_cells_have_no_leader() {
    let mut net = Net::new("1-1-3-2", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    let mut load = Load::new(&net, 4, 64);
    load.all_answered("before", COUNT);
    let cells = status(&net).1;
    assert!(cells.contains("3 of 3 cells have a leader"), "{cells}");
    // Cell 1 has replicas at mediators 1 and 2 and processor 1: at once it has no majority, and
    // cell 0, which has lost one of three, has its leader still or gets one.
    for node in [Role::Mediator.node(1), Role::Processor.node(1)] {
        net.kill(node);
    }
    let (code, text) = status(&net);
    assert!(code == 3 && text.contains("5 of 7 nodes are up"), "{code} {text}");
    let sentence = "instruments with number % 3 = 1 (cell 1): 2 of its 3 replicas do not answer: \
                    mediator 1 and processor 1";
    assert!(text.contains(sentence), "{text}");
    for name in ["mediator 1 ", "processor 1 "] {
        let is_own = |line: &&str| line.trim_start().starts_with(name);
        let line = text.lines().find(is_own).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("not up: nothing listens at its address"), "{line}");
    }
    assert!(!text.contains("  cell 1        mediator"), "{text}");
    // A majority of control is dead: what it knew is marked, and nothing is said to go on.
    for node in [Role::Mediator.node(0), Role::Processor.node(0)] {
        net.kill(node);
    }
    let (code, text) = status(&net);
    assert!(code == 1 && text.starts_with("not trading: "), "{code} {text}");
    assert!(text.contains("control    nobody leads"), "{text}");
    assert!(text.contains(" old"), "{text}");
    assert!(text.contains("0 of 3 cells have a leader"), "{text}");
    assert!(!text.contains("trading goes on"), "{text}");
    net.kill(Role::Mediator.node(2));
    let (code, text) = status(&net);
    assert!(code == 1 && text.starts_with("not trading: "), "{code} {text}");
    drop(load);
}

/// Before, it began an election before it read what its leader had sent meanwhile. On a busy
/// machine a leader may be late once for another reason.
#[test]
fn a_replica_that_goes_on_begins_no_election() {
    let mut net = Net::new("1-1-3-2", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    let mut load = Load::at(&net, 1, 3, 64);
    load.all_answered("before", COUNT);
    let mut elections = vec![];
    for round in 0..5 {
        // It leads its own cell and perhaps control: these get another leader, once.
        for follower in [1, 2].map(|index| Role::Mediator.node(index)) {
            signal("STOP", net.pid(follower));
            load.all_answered("while it stands still", COUNT);
            let stopped = terms(&net);
            signal("CONT", net.pid(follower));
            load.all_answered("when it goes on", COUNT);
            let now = terms(&net);
            if now != stopped {
                elections.push(format!("round {round}, {follower}: {stopped:?} to {now:?}"));
            }
        }
    }
    assert!(elections.len() <= 2, "{elections:#?}");
    load.finish(&mut net);
}

/// The load goes gateway 0, router 0, mediator 0, processor 0; cell 0 has replicas at mediators 0
/// and 1, and processor 0, two of which are enough.
#[test]
fn requests_are_answered_while_any_process_beside_their_path_stands_still() {
    let mut net = Net::new("2-2-4-2", Durability::MemoryQuorum);
    let unreachable = Role::Mediator.node(3);
    let _queue = full_listener(address(&net.network, unreachable));
    let pipe = net.path().join("pipe");
    let _unread = full_pipe(&pipe);
    let all: Vec<NodeId> = net.network.all().map(|(id, _)| id).collect();
    let running: Vec<NodeId> = all.into_iter().filter(|node| *node != unreachable).collect();
    for node in &running {
        net.start(*node, |command| writing_to(&pipe, &command));
    }
    let on_path =
        [Role::Gateway, Role::Router, Role::Mediator, Role::Processor].map(|role| role.node(0));
    let mut load = Load::at(&net, 1, 1, 64);
    load.all_answered("until all is up", COUNT);
    let plain = load.all_answered("with nothing stopped", COUNT);
    let mut unreading = vec![];
    for node in on_path {
        let address = address(&net.network, node);
        unreading.push(unreading_observer(address));
        unreading.push(stranger(address));
    }
    let _unreading = unreading;
    let quiet = load.all_answered("with observers that do not read", COUNT);
    println!(
        "p99: {:.2} ms plain, {:.2} ms with observers that do not read",
        p99_ms(&plain),
        p99_ms(&quiet)
    );
    for node in running.iter().filter(|node| !on_path.contains(node)) {
        signal("STOP", net.pid(*node));
        let round = load.all_answered(&format!("with {node} stopped"), COUNT);
        println!("p99: {:.2} ms with {node} stopped", p99_ms(&round));
        let _strangers = on_path.map(|node| stranger(address(&net.network, node)));
        load.all_answered(&format!("with {node} stopped, and strangers"), COUNT / 4);
        signal("CONT", net.pid(*node));
        let round = load.all_answered(&format!("when {node} goes on"), COUNT);
        println!("p99: {:.2} ms when {node} goes on", p99_ms(&round));
    }
    load.finish(&mut net);
}
