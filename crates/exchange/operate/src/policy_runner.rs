//! Carries out the exchange's policies on a running network. It asks mediators what they have done,
//! and all nodes on the way of a request how long it takes. It lets the policies decide, and orders
//! the moves.
//!
//! It is an operator of the network and no part of it. It may end at any time, and another one goes
//! on with the present network. Which cells are active is what it remembers; at first, those that
//! the rule of the network spreads instruments over, and those that own any.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_book::order::InstrumentId;
use nm_exchange::control::{InstrumentWork, Work};
use nm_exchange::network::{Network, NodeId, Role};
use nm_model::{Failure, FailureKind};
use nm_policy::{
    Action, CellReport, CellRole, Decision, InstrumentReport, OriginRate, Policies, Reports,
    Settings as PolicySettings,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admin::{self, MoveOutcome, NetworkStatus};
use crate::sites::{LatencyInUse, LinkReports, Sites};

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How often latencies between sites are asked for, ns. They are those of routes, which change
/// seldom.
const MEASURE_NS: u64 = 10_000_000_000;

/// How long ordered moves may take, until they are decided again.
const MOVE_LIMIT: Duration = Duration::from_secs(10);

/// Fewest requests of an instrument from which their mean time is taken: some thirty of them
/// are measured.
const COSTED_REQUESTS_MIN: u64 = 500;

/// What the policies are run with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Of the policies.
    pub policies: PolicySettings,
    /// Of the network.
    pub sites: Sites,
}

/// A decision, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Decided {
    /// When, ns on this machine's monotonic clock.
    pub at_ns: u64,
    /// The decision.
    #[serde(flatten)]
    pub decision: Decision,
    /// The reason as a sentence.
    pub sentence: String,
    /// Whether it is carried out.
    pub is_executed: bool,
}

/// What was executed so far, by the mediator that reported it and the instrument.
type Counts = BTreeMap<(u16, InstrumentId), InstrumentWork>;

/// Moves that were ordered together.
struct OrderedMoves {
    count: usize,
    outcomes: JoinHandle<Result<Vec<MoveOutcome>, Failure>>,
}

/// Runs policies on a network.
pub struct PolicyRunner {
    network: Network,
    policies: Policies,
    sites: Sites,
    /// The latencies between sites, and when they are measured the next time.
    latencies: Vec<LatencyInUse>,
    next_measure_ns: u64,
    /// Whether decisions are only reported.
    is_dry: bool,
    active: BTreeSet<u16>,
    /// What mediators answered last: when, ns on their clocks, CPU time, ns.
    last: BTreeMap<u16, (u64, u64)>,
    counts: Counts,
    /// Moves that are under way.
    moving: Vec<OrderedMoves>,
    /// Moves that were made.
    pub moved: u64,
    /// Moves that were refused, or not made in time.
    pub failed: u64,
}

impl PolicyRunner {
    /// Policies for a network that has begun.
    ///
    /// # Errors
    /// If a setting is outside its range, or nothing can be moved in this network.
    pub fn new(
        network: &Network,
        settings: &Settings,
        is_dry: bool,
    ) -> Result<PolicyRunner, Failure> {
        let bad = |message: String| Failure::new(FailureKind::BadRequest, message);
        let policies =
            Policies::new(settings.policies.clone()).map_err(|why| bad(why.to_string()))?;
        settings.sites.check().map_err(|why| bad(why.to_string()))?;
        if !network.has_control() {
            return Err(bad(
                "the network has no control group, so nothing can be moved".to_string()
            ));
        }
        Ok(PolicyRunner {
            network: network.clone(),
            policies,
            latencies: settings.sites.latencies_in_use(network, &LinkReports::default()),
            sites: settings.sites.clone(),
            next_measure_ns: 0,
            is_dry,
            active: (0..network.active_cells()).collect(),
            last: BTreeMap::new(),
            counts: Counts::new(),
            moving: vec![],
            moved: 0,
            failed: 0,
        })
    }

    /// The cells that may own instruments at present.
    pub fn active(&self) -> &BTreeSet<u16> {
        &self.active
    }

    /// The latencies between sites that the policies take at present.
    pub fn latencies(&self) -> &[LatencyInUse] {
        &self.latencies
    }

    /// Asks the network, decides, and orders the moves; `dt` since the last time. Nothing is
    /// decided at the first time, because there is nothing to compare with. The ES10 of the
    /// network's round trips, µs, is what clients saw lately, if that is known: nodes do not.
    ///
    /// # Errors
    /// If no node that could know the state of the network answers.
    pub fn step(
        &mut self,
        now_ns: u64,
        dt: Duration,
        es10_us: Option<f64>,
    ) -> Result<Vec<Decided>, Failure> {
        self.collect_moves();
        let status = admin::status(&self.network, ANSWER_LIMIT)?;
        if !status.network.has_nodes_of(&self.network) {
            self.network = status.network.clone();
            self.active.retain(|cell| status.cell(*cell).is_some());
        }
        let work = admin::work(&self.network, ANSWER_LIMIT)?;
        self.measure(&status, &work, now_ns)?;
        let is_first = self.last.is_empty();
        let reports = self.reports(&status, &work, es10_us);
        if is_first {
            return Ok(vec![]);
        }
        let decisions = self
            .policies
            .step(&reports, dt)
            .map_err(|error| Failure::new(FailureKind::Peer, error.to_string()))?;
        Ok(self.carry_out(decisions, now_ns))
    }

    /// Measures the latencies between sites, if it is time to. A node that is not up, or does not
    /// answer, measures nothing.
    fn measure(
        &mut self,
        status: &NetworkStatus,
        work: &[(u16, Work)],
        now_ns: u64,
    ) -> Result<(), Failure> {
        if now_ns < self.next_measure_ns || !self.sites.are_measured(&self.network) {
            return Ok(());
        }
        self.next_measure_ns = now_ns + MEASURE_NS;
        let asked = status
            .nodes
            .iter()
            .filter(|node| node.is_up && matches!(node.id.class, Role::Gateway | Role::Router));
        let asked: Vec<NodeId> = asked.map(|node| node.id).collect();
        let mut links = LinkReports::default();
        for (mediator, work) in work {
            links.add(Role::Mediator.node(*mediator), &work.links);
        }
        for (node, work) in admin::work_of(&self.network, &asked, ANSWER_LIMIT)? {
            links.add(node, &work.links);
        }
        self.latencies = self.sites.latencies_in_use(&self.network, &links);
        Ok(())
    }

    /// What the policies decide by.
    fn reports(
        &mut self,
        status: &NetworkStatus,
        work: &[(u16, Work)],
        es10_us: Option<f64>,
    ) -> Reports {
        let mut instruments = BTreeMap::<InstrumentId, InstrumentReport>::new();
        let (mut counts, mut cpu) = (Counts::new(), BTreeMap::new());
        for (mediator, work) in work {
            let before = self.last.insert(*mediator, (work.at_ns, work.cpu_ns));
            let Some((at_ns, cpu_ns)) = before.filter(|(at_ns, _)| work.at_ns > *at_ns) else {
                continue;
            };
            let seconds = (work.at_ns - at_ns) as f64 / 1e9;
            let used = work.cpu_ns.saturating_sub(cpu_ns) as f64 / 1e9 / seconds;
            cpu.insert(*mediator, used.min(1.0));
            for one in &work.instruments {
                let report = self.instrument(*mediator, one, seconds, status);
                let known = instruments.entry(one.instrument).or_insert_with(|| report.clone());
                if known.requests_per_s < report.requests_per_s {
                    *known = report;
                }
            }
        }
        for (mediator, work) in work {
            let of_one = work.instruments.iter();
            counts.extend(of_one.map(|one| ((*mediator, one.instrument), one.clone())));
        }
        self.counts = counts;
        self.active.extend(instruments.values().map(|report| report.cell));
        let instruments: Vec<InstrumentReport> = instruments.into_values().collect();
        let cells = status.cells.iter().map(|cell| {
            let own = instruments.iter().filter(|report| report.cell == cell.cell);
            let is_active = self.active.contains(&cell.cell);
            CellReport {
                cell: cell.cell,
                site: self.sites.of_mediator(cell.cell),
                role: if is_active { CellRole::Active } else { CellRole::Spare },
                is_up: status.takes_instruments(cell),
                requests_per_s: own.map(|report| report.requests_per_s).sum(),
                cpu_fraction: cell.leader.and_then(|leader| cpu.get(&leader)).copied(),
                es10_us,
            }
        });
        let cells = cells.collect();
        let latencies = self.latencies.iter().map(|known| known.latency).collect();
        Reports { cells, instruments, latencies }
    }

    fn instrument(
        &self,
        mediator: u16,
        one: &InstrumentWork,
        seconds: f64,
        status: &NetworkStatus,
    ) -> InstrumentReport {
        let InstrumentWork { instrument, cell, executed, busy_ns, ref by_gateway } = *one;
        let before = self.counts.get(&(mediator, instrument));
        let executed_before = before.map_or(executed, |before| before.executed);
        let requests_per_s = executed.saturating_sub(executed_before) as f64 / seconds;
        // Nodes measure a sample of the requests, so the cost of a request is known after many.
        let measured: u64 = by_gateway.iter().sum();
        let us_per_request =
            (measured >= COSTED_REQUESTS_MIN).then(|| busy_ns as f64 / 1e3 / measured as f64);
        let mut origins = BTreeMap::<u16, f64>::new();
        for (gateway, count) in by_gateway.iter().enumerate() {
            let known = before.and_then(|before| before.by_gateway.get(gateway)).copied();
            let rate_per_s = count.saturating_sub(known.unwrap_or(0)) as f64 / seconds;
            *origins.entry(self.sites.of_gateway(gateway as u16)).or_default() += rate_per_s;
        }
        let moving = status.pending_moves.iter().find(|change| change.instrument == instrument);
        let origin = |(site, requests_per_s)| OriginRate { site, requests_per_s };
        InstrumentReport {
            instrument,
            cell,
            moving_to: moving.map(|change| change.cell),
            requests_per_s,
            cpu_us_per_s: us_per_request.map(|us| us * requests_per_s),
            origins: origins.into_iter().map(origin).collect(),
        }
    }

    /// Carries out decisions, unless they are only to be reported.
    fn carry_out(&mut self, decisions: Vec<Decision>, at_ns: u64) -> Vec<Decided> {
        let mut moves = vec![];
        for decision in &decisions {
            match decision.action {
                Action::Activate { cell } if !self.is_dry => drop(self.active.insert(cell)),
                Action::Retire { cell } if !self.is_dry => drop(self.active.remove(&cell)),
                Action::Move { instrument, to } => moves.push((instrument, to)),
                _ => {}
            }
        }
        if !moves.is_empty() && !self.is_dry {
            let (network, count) = (self.network.clone(), moves.len());
            let order = move || admin::move_all(&network, &moves, MOVE_LIMIT);
            let outcomes = std::thread::spawn(order);
            self.moving.push(OrderedMoves { count, outcomes });
        }
        let decided = |decision: Decision| Decided {
            at_ns,
            sentence: decision.reason.to_string(),
            decision,
            is_executed: !self.is_dry,
        };
        decisions.into_iter().map(decided).collect()
    }

    /// Counts the moves that have ended. Those that failed are decided again.
    fn collect_moves(&mut self) {
        for ended in self.moving.extract_if(.., |moving| moving.outcomes.is_finished()) {
            match ended.outcomes.join() {
                Ok(Ok(outcomes)) => {
                    let refused = outcomes.iter().filter(|it| it.refused.is_some()).count() as u64;
                    self.failed += refused;
                    self.moved += outcomes.len() as u64 - refused;
                }
                _ => self.failed += ended.count as u64,
            }
        }
    }

    /// Waits until all ordered moves have ended, unless it is cancelled. Returns how many have not:
    /// the network carries them on by itself.
    pub fn finish(&mut self, is_cancelled: impl Fn() -> bool) -> usize {
        loop {
            self.collect_moves();
            if self.moving.is_empty() || is_cancelled() {
                return self.moving.iter().map(|moving| moving.count).sum();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
