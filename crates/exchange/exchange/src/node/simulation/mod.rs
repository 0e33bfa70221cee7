//! A whole network in simulated time: gateways, routers, mediators, processors, control, clients.
//! Instruments move while they are traded, nodes are drained, added and removed, and they crash,
//! stand still, lose their links and their leadership. Nodes, their state and their rules are those
//! of the product; simulated are time, sockets ([`wires`]) and the logs with their disks
//! ([`group`]). One seed decides everything.
//!
//! Two judges look at each trial. The [`audit`] executes what is committed with the product's own
//! state. An instrument has at most one owner, and the same state when it is released and when it
//! is adopted. Once the faults stop, all moves end, all replicas of a cell are equal, and nothing
//! of any move is left. The [`oracle`] knows only what clients saw.
//!
//! `NM_TRIALS` changes the number of trials of each test; `NM_TRIAL` repeats one of them and prints
//! what happens.

mod audit;
mod clients;
pub mod group;
mod oracle;
mod ring;
mod wires;

use std::sync::atomic::{AtomicBool, Ordering};

use nm_book::testing::Random;

use crate::limits::CellLimits;
use crate::moves::MoveId;
use crate::network::{CONTROL, Durability, Network, Node, NodeId, Role};

use audit::Step;
use clients::CANCEL_AFTER_S;
use ring::{Event, Load, Ring};

const SECOND: u64 = 1_000_000_000;

/// Time in which all must be done after the last fault, ns.
const RECOVERY_NS: u64 = 60 * SECOND;

/// Who crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// The leader of the cell that has the instrument.
    Source,
    /// The leader of its new cell.
    Destination,
    /// A router.
    Router,
    /// The leader of control.
    Control,
    /// A gateway.
    Gateway,
    /// All of these.
    All,
}

impl Victim {
    const ALL: [Victim; 6] = [
        Victim::Source,
        Victim::Destination,
        Victim::Router,
        Victim::Control,
        Victim::Gateway,
        Victim::All,
    ];
}

/// A trial.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// The test, and the number of the trial in it.
    test: &'static str,
    number: u64,
    seed: u64,
    durability: Durability,
    load: Load,
    /// A crash when a step is reached.
    crash: Option<(Step, Victim)>,
    /// Time with other faults, ns.
    faults_ns: u64,
    /// Whether cells have room for few instruments only.
    is_narrow: bool,
    /// Whether links break all the time.
    are_links_bad: bool,
}

/// What came of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    executed: usize,
    moved: usize,
    changed: usize,
    refused: usize,
    adopted: usize,
    crashes: usize,
    trace: u64,
}

struct Trial {
    plan: Plan,
    ring: Ring,
    /// Draws faults apart from the ring's numbers.
    random: Random,
    /// How often the step was reached, and at which time it causes the crash.
    reached: u64,
    wanted: u64,
    /// Crashes that are due: when, and who.
    due: Option<(Victim, MoveId)>,
    crashes: usize,
}

/// Whether a trial has failed, and the others need not be run.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Names a trial that fails.
struct Named(Plan);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            HAS_FAILED.store(true, Ordering::Relaxed);
            let Plan { test, number, .. } = self.0;
            println!("this trial failed: {:?}", self.0);
            println!("NM_TRIAL={number} cargo test -p nm-exchange --lib -- --nocapture {test}");
        }
    }
}

fn network() -> Network {
    let mut port = 10_000;
    Network::new("2-2-3-2".parse().unwrap(), |_| {
        port += 1;
        let address = format!("127.0.0.1:{port}").parse().unwrap();
        let replication = Some(nm_replica::Address::Unix(format!("/{port}").into()));
        Node { address, replication }
    })
}

impl Trial {
    fn new(plan: Plan) -> Trial {
        let mut random = Random::new(plan.seed ^ 0x5eed);
        let mut limits = CellLimits::STANDARD;
        if plan.is_narrow {
            limits.instruments = random.between(2, 5) as usize;
        }
        let ring = Ring::new(network(), plan.durability, (plan.load, limits), plan.seed);
        let wanted = random.between(1, 4);
        Trial { plan, ring, random, reached: 0, wanted, due: None, crashes: 0 }
    }

    /// Runs until all is done.
    fn run(mut self) -> Outcome {
        let _named = Named(self.plan);
        self.settle();
        self.end()
    }

    /// Lets the faults and all that follows from them happen.
    fn settle(&mut self) {
        if self.plan.faults_ns > 0 {
            self.ring.after(20_000_000, Event::Trial);
        }
        let (mut quiet_ns, mut checked_ns) = (self.plan.faults_ns, 0);
        loop {
            let event = self.ring.step();
            let now_ns = self.ring.now_ns;
            if self.look_for_step() {
                quiet_ns = quiet_ns.max(now_ns);
            }
            if matches!(event, Event::Trial) {
                self.strike();
                if now_ns < self.plan.faults_ns {
                    let within_ns = if self.plan.are_links_bad { 4_000_000 } else { 40_000_000 };
                    self.ring.after(within_ns, Event::Trial);
                }
            }
            if now_ns > quiet_ns && now_ns > checked_ns {
                checked_ns = now_ns + SECOND / 10;
                let unsettled = self.ring.unsettled();
                if unsettled.is_none() {
                    break;
                }
                assert!(now_ns < quiet_ns + RECOVERY_NS, "after {now_ns} ns: {unsettled:?}");
            }
        }
    }

    /// All clients leave for good, and with them a gateway or the leader of a cell; whether that
    /// had orders. None of them is left in time, and not too early.
    fn leave(&mut self) -> bool {
        // A cell whose leader has just come learns who is watched at once.
        let settled_ns = self.ring.now_ns;
        while self.ring.now_ns < settled_ns + SECOND {
            self.ring.step();
        }
        let (before, _) = self.ring.live_orders();
        let left_ns = self.ring.now_ns;
        let until = |trial: &mut Trial, at_ns: u64| {
            while trial.ring.now_ns < left_ns + at_ns {
                trial.ring.step();
            }
        };
        (0..self.ring.clients.len()).for_each(|at| self.ring.leave(at));
        let leader = {
            let group = self.ring.groups[&0].borrow();
            group.leader_node().unwrap_or(group.nodes[0])
        };
        let victims = [Role::Gateway.node(0), leader, Role::Router.node(1)];
        let cancel_ns = u64::from(CANCEL_AFTER_S) * SECOND;
        until(self, self.plan.number % 3 * SECOND);
        self.crash(victims[self.plan.number as usize % 3]);
        until(self, cancel_ns - SECOND / 2);
        assert_eq!(self.ring.live_orders().0, before, "too early");
        // A leader that came two seconds later gives each session its whole time.
        until(self, cancel_ns + 5 * SECOND);
        assert_eq!(self.ring.live_orders().0, 0, "{}", self.ring.describe_cells());
        until(self, cancel_ns + 75 * SECOND);
        assert_eq!(self.ring.live_orders(), (0, 0), "nobody is watched any more");
        before > 0
    }

    fn end(self) -> Outcome {
        if let Some(crash) = self.plan.crash {
            assert!(self.reached >= self.wanted, "{crash:?} was not reached");
        }
        let sent: u64 = self.ring.clients.iter().map(|client| client.sent()).sum();
        let (executed, operator) = (self.ring.audit.executed(), &self.ring.operator);
        let is_seen = self.plan.durability != Durability::None;
        assert!(!is_seen || executed as u64 == sent, "{executed} of {sent} requests");
        let is_directed = !self.ring.audit.directed.is_empty();
        assert_eq!(is_directed, self.plan.load.directions > 0, "what operators directed");
        let may_refuse = self.plan.is_narrow || self.plan.load.changes > 0;
        assert!(operator.refused == 0 || may_refuse);
        Outcome {
            executed: sent as usize,
            moved: operator.moved,
            changed: operator.changed,
            refused: operator.refused,
            adopted: self.ring.audit.adopted(),
            crashes: self.crashes,
            trace: self.ring.trace,
        }
    }

    /// Whether the crash of the plan has come.
    fn look_for_step(&mut self) -> bool {
        let steps = std::mem::take(&mut self.ring.steps);
        let Some((step, victim)) = self.plan.crash else { return false };
        for (_, id) in steps.into_iter().filter(|(reached, _)| *reached == step) {
            self.reached += 1;
            if self.reached == self.wanted {
                self.due = Some((victim, id));
                let within_ns = *self.random.of(&[0, 100_000, 2_000_000]).unwrap();
                self.ring.after(within_ns, Event::Trial);
                return true;
            }
        }
        false
    }

    /// Something fails.
    fn strike(&mut self) {
        if let Some((victim, id)) = self.due.take() {
            for node in self.victims(victim, id) {
                self.crash(node);
            }
            return;
        }
        // Where links are bad, nothing else fails often.
        let kinds = if self.plan.are_links_bad { 2_000 } else { 100 };
        match self.random.below(kinds) {
            100.. => {
                let wires = self.ring.open_wires();
                if let Some(wire) = self.random.of(&wires) {
                    self.ring.cut(*wire);
                }
            }
            0..40 => {
                let nodes: Vec<NodeId> = self.ring.nodes.keys().copied().collect();
                if let Some(node) = self.random.of(&nodes) {
                    self.crash(*node);
                }
            }
            40..60 => {
                let wires = self.ring.open_wires();
                if let Some(wire) = self.random.of(&wires) {
                    self.ring.cut(*wire);
                }
            }
            60..75 => {
                let groups: Vec<u16> = self.ring.groups.keys().copied().collect();
                let group = *self.random.of(&groups).unwrap();
                self.ring.expect_election(group);
            }
            75..85 => {
                let until_ns = self.ring.now_ns + self.random.between(1_000_000, 400_000_000);
                let nodes: Vec<NodeId> = self.ring.nodes.keys().copied().collect();
                if let Some(node) =
                    self.random.of(&nodes).and_then(|id| self.ring.nodes.get_mut(id))
                {
                    node.stands_until_ns = until_ns;
                }
            }
            _ => {
                let groups: Vec<u16> = self.ring.groups.keys().copied().collect();
                let group = *self.random.of(&groups).unwrap();
                let member = self.random.below(3) as usize;
                self.ring.groups[&group].borrow_mut().want_snapshot(member);
                self.ring.wake(group, member);
            }
        }
    }

    fn victims(&mut self, victim: Victim, id: MoveId) -> Vec<NodeId> {
        let (from, to) = self.ring.moves.get(&id).copied().unwrap_or((0, 1));
        let leader = |group: u16| {
            let group = self.ring.groups[&group].borrow();
            group.leader_node().unwrap_or(group.nodes[0])
        };
        let router = Role::Router.node(self.random.below(2) as u16);
        let gateway = Role::Gateway.node(self.random.below(2) as u16);
        match victim {
            Victim::Source => vec![leader(from)],
            Victim::Destination => vec![leader(to)],
            Victim::Router => vec![router],
            Victim::Control => vec![leader(CONTROL)],
            Victim::Gateway => vec![gateway],
            Victim::All => vec![leader(from), leader(to), router, leader(CONTROL), gateway],
        }
    }

    /// A node dies, unless what is in memory only would be lost with it.
    fn crash(&mut self, node: NodeId) {
        let has_replicas = |node: &NodeId| matches!(node.class, Role::Mediator | Role::Processor);
        let network = &self.ring.network;
        let all = network.all().map(|(id, _)| id).filter(|id| !network.is_removed(*id));
        let are_all_up = all.filter(has_replicas).all(|id| self.ring.nodes.contains_key(&id));
        let is_in_memory = self.plan.durability == Durability::MemoryQuorum;
        // Its books would be lost with it.
        if self.plan.durability == Durability::None && node.class == Role::Mediator {
            return;
        }
        if self.ring.nodes.contains_key(&node)
            && (are_all_up || !is_in_memory || !has_replicas(&node))
        {
            self.crashes += 1;
            let within_ns = *self.random.of(&[1_000_000, 50_000_000, 600_000_000]).unwrap();
            self.ring.crash(node, within_ns);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs trials on all processors, or a wanted one alone; prints what came of them.
fn run_all(trials: u64, plan: impl Fn(u64) -> Plan) {
    if let Some(at) = number("NM_TRIAL") {
        let mut trial = Trial::new(plan(at));
        trial.ring.is_shown = true;
        return println!("{:?}", trial.run());
    }
    let plans: Vec<Plan> = (0..trials).map(plan).collect();
    println!("{}", summary(&run_plans(&plans)));
}

fn run_plans(plans: &[Plan]) -> Vec<Outcome> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = |thread: usize| -> Vec<Outcome> {
        let own = plans.iter().skip(thread).step_by(threads);
        let own = own.take_while(|_| !HAS_FAILED.load(Ordering::Relaxed));
        own.map(|plan| Trial::new(*plan).run()).collect()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || share(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn summary(outcomes: &[Outcome]) -> String {
    let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
    format!(
        "{} trials: {} requests, {} moves adopted, {} answered, {} refused, {} changes of nodes, \
         {} crashes",
        outcomes.len(),
        sum(|outcome| outcome.executed),
        sum(|outcome| outcome.adopted),
        sum(|outcome| outcome.moved),
        sum(|outcome| outcome.refused),
        sum(|outcome| outcome.changed),
        sum(|outcome| outcome.crashes),
    )
}

fn durability(seed: u64) -> Durability {
    if seed.is_multiple_of(2) { Durability::DiskQuorum } else { Durability::MemoryQuorum }
}

#[test]
fn a_crash_at_any_step_of_a_move_loses_nothing() {
    let victims = Victim::ALL.len() as u64;
    let all = Step::ALL.len() as u64 * victims;
    let plan = |number: u64| {
        let (round, at, victim_at) = (number / all, number % all / victims, number % victims);
        Plan {
            test: "a_crash_at_any_step_of_a_move_loses_nothing",
            number,
            seed: round * 1_000 + at * 10 + victim_at,
            durability: durability(round + at + victim_at),
            load: Load { instruments: 3, requests: 6, moves: 6, changes: 0, directions: 0 },
            crash: Some((Step::ALL[at as usize], Victim::ALL[victim_at as usize])),
            faults_ns: 0,
            is_narrow: false,
            are_links_bad: false,
        }
    };
    run_all(number("NM_TRIALS").unwrap_or(1) * all, plan);
}

fn moving(number: u64) -> Plan {
    Plan {
        test: "no_fault_loses_doubles_or_reorders_a_request_of_a_moving_instrument",
        number,
        seed: number,
        durability: durability(number),
        load: Load { instruments: 4, requests: 20, moves: 30, changes: 0, directions: 0 },
        crash: None,
        faults_ns: SECOND,
        is_narrow: number % 3 == 2,
        are_links_bad: number % 5 == 4,
    }
}

#[test]
fn no_fault_loses_doubles_or_reorders_a_request_of_a_moving_instrument() {
    run_all(number("NM_TRIALS").unwrap_or(20), moving);
}

/// Everything at once, in short trials, so that many of them are possible.
fn network_of_faults(number: u64) -> Plan {
    Plan {
        test: "no_fault_of_a_network_shows_in_what_clients_see",
        number,
        seed: number,
        durability: match number % 5 {
            3 => Durability::None,
            _ => durability(number),
        },
        load: Load { instruments: 3, requests: 16, moves: 12, changes: 6, directions: 0 },
        crash: None,
        faults_ns: SECOND / 2,
        is_narrow: false,
        are_links_bad: number % 7 == 4,
    }
}

#[test]
fn no_fault_of_a_network_shows_in_what_clients_see() {
    run_all(number("NM_TRIALS").unwrap_or(40), network_of_faults);
}

/// The same, while operators direct what they like.
fn network_of_directions(number: u64) -> Plan {
    Plan {
        test: "no_fault_loses_or_doubles_what_operators_direct",
        durability: durability(number),
        load: Load { instruments: 3, requests: 30, moves: 12, changes: 0, directions: 24 },
        ..network_of_faults(number)
    }
}

#[test]
fn no_fault_loses_or_doubles_what_operators_direct() {
    run_all(number("NM_TRIALS").unwrap_or(24), network_of_directions);
}

/// Before, its gateways sent the requests to it again and again until it went on.
#[test]
fn requests_go_around_a_router_that_stands_still() {
    for number in 0..16 {
        let plan = Plan {
            test: "requests_go_around_a_router_that_stands_still",
            load: Load { instruments: 3, requests: 60, moves: 0, changes: 0, directions: 0 },
            faults_ns: 0,
            are_links_bad: false,
            ..network_of_faults(number)
        };
        let _named = Named(plan);
        let mut ring = Trial::new(plan).ring;
        while !ring.clients.iter().all(|client| client.has_begun()) {
            ring.step();
        }
        assert!(!ring.clients.iter().all(|client| client.is_done()), "some requests are to come");
        let begin_ns = ring.now_ns;
        let router = ring.nodes.get_mut(&Role::Router.node(number as u16 % 2)).unwrap();
        router.stands_until_ns = begin_ns + 30 * SECOND;
        while !ring.clients.iter().all(|client| client.is_done()) {
            ring.step();
            let waiting = || ring.clients.iter().map(|client| client.waiting()).collect::<Vec<_>>();
            assert!(ring.now_ns < begin_ns + 10 * SECOND, "{:?}", waiting());
        }
    }
}

/// A kill at the same time as that of the gateway, the leader or a router does not save them.
#[test]
fn orders_of_clients_that_leave_are_cancelled_whatever_fails() {
    let mut with_orders = 0;
    for number in 0..9 {
        let plan = Plan {
            test: "orders_of_clients_that_leave_are_cancelled_whatever_fails",
            load: Load { instruments: 3, requests: 16, moves: 6, changes: 0, directions: 0 },
            durability: durability(number),
            are_links_bad: false,
            ..network_of_faults(number)
        };
        let _named = Named(plan);
        let mut trial = Trial::new(plan);
        trial.settle();
        with_orders += usize::from(trial.leave());
    }
    assert!(with_orders >= 6, "{with_orders}");
}

#[test]
fn a_seed_repeats_its_trial() {
    for plan in (0..3).map(moving).chain((0..5).map(network_of_faults)) {
        let [first, again] = [0, 1].map(|_| Trial::new(plan).run());
        assert_eq!(first, again, "{plan:?}");
    }
}
