//! What single steps cost within one result: blocking, the kernel, a bridge, a virtual machine.
//!
//! A step is a pair of series that differ in one thing only. Of several pairs the one in network
//! namespaces counts, of TCP before UDP, and of stacks that spin. Figures of emulated guests are in
//! no pair.

use nm_model::class::StackClass;
use nm_model::environment::EnvironmentKind;
use nm_model::metric::Metric;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{RunResult, Series, SeriesKey, Statistic};
use nm_model::stack::{Mode, Protocol, Stack, StackPair};
use nm_model::verdict::Interval;

use crate::options::{CompareOptions, Setup};
use crate::pairing::SeriesPair;
use crate::rows::single;

/// Message size whose steps are stated where there are several, bytes.
const SIZE_BYTES: f64 = 64.0;

/// One thing in which two series differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Receive calls that sleep, against receive calls that spin.
    Blocking,
    /// The kernel's sockets of this protocol, against a bypass that also works between hosts.
    Kernel(Protocol),
    /// The kernel's sockets, against shared memory of one host.
    KernelOverSharedMemory,
    /// This environment, against two network namespaces.
    Environment(EnvironmentKind),
}

/// What a step costs.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCost {
    /// The step.
    pub step: Step,
    /// The series without the step.
    pub without: SeriesKey,
    /// The series with it.
    pub with: SeriesKey,
    /// How much longer its median is, ns; below zero where it is shorter.
    pub cost_ns: f64,
    /// Median with the step divided by the median without.
    pub factor: f64,
    /// 95 % interval of the factor; absent below five rounds.
    pub interval: Option<Interval>,
}

/// The steps of a result.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Steps {
    /// Their costs, each step once.
    pub costs: Vec<StepCost>,
    /// Environments that were emulated, whose figures are in no step.
    pub emulated: Vec<EnvironmentKind>,
}

/// A series that may be one side of a step.
struct Side<'a> {
    series: &'a Series,
    environment: EnvironmentKind,
    stack: Stack,
}

impl<'a> Side<'a> {
    /// A ping-pong whose ends have one stack.
    fn of(series: &'a Series) -> Option<Side<'a>> {
        let key = &series.key;
        let environment = key.environment.parse().ok()?;
        let stacks: StackPair = key.stack.parse().ok()?;
        let is_wanted = key.probe == ProbeKind::Pingpong
            && key.statistic == Statistic::HalfRoundTrip
            && matches!(key.case, Case::Message { .. })
            && stacks.client == stacks.server;
        is_wanted.then_some(Side { series, environment, stack: stacks.client })
    }

    fn distance(&self) -> f64 {
        let size = self.series.key.case.size_bytes().map_or(0.5, |size| f64::from(size).max(0.5));
        (size / SIZE_BYTES).ln().abs()
    }

    /// Lower comes first.
    fn rank(&self) -> (u8, bool, u8, u8) {
        let environment = match self.environment {
            EnvironmentKind::Netns => 0,
            EnvironmentKind::Loopback => 2,
            _ => 1,
        };
        let protocol = match self.stack.protocol {
            Protocol::Tcp => 0,
            Protocol::Udp => 1,
            _ => 2,
        };
        let mode = match self.stack.mode {
            Mode::Spin => 0,
            Mode::Blocking => 1,
            _ => 2,
        };
        (environment, self.stack.launcher.is_some(), protocol, mode)
    }
}

/// The step from `without` to `with`, if they differ in one thing.
fn step(without: &Side<'_>, with: &Side<'_>) -> Option<Step> {
    let (a, b) = (without.stack, with.stack);
    if without.environment != with.environment {
        let is_step = a == b && without.environment == EnvironmentKind::Netns;
        let is_named = with.environment == EnvironmentKind::Bridge || with.environment.has_guests();
        return (is_step && is_named).then_some(Step::Environment(with.environment));
    }
    let is_waiting = Stack { mode: b.mode, ..a } == b;
    if is_waiting && a.mode == Mode::Spin && b.mode == Mode::Blocking {
        return (a.class() == StackClass::Kernel).then_some(Step::Blocking);
    }
    if b.class() != StackClass::Kernel || a.mode != b.mode {
        return None;
    }
    match a.class() {
        StackClass::Bypass if a.protocol.wire_protocol() == b.protocol => {
            Some(Step::Kernel(b.protocol))
        }
        StackClass::SameHost if a.protocol == Protocol::Shm && a.launcher.is_none() => {
            Some(Step::KernelOverSharedMemory)
        }
        _ => None,
    }
}

/// What the steps cost that `result` contains.
pub fn steps(result: &RunResult) -> Steps {
    let all: Vec<Side<'_>> = result.series.iter().filter_map(Side::of).collect();
    let mut steps = Steps::default();
    for side in all.iter().filter(|side| side.series.is_emulated()) {
        if !steps.emulated.contains(&side.environment) {
            steps.emulated.push(side.environment);
        }
    }
    let mut real: Vec<&Side<'_>> = all.iter().filter(|side| !side.series.is_emulated()).collect();
    real.sort_by(|a, b| a.distance().total_cmp(&b.distance()).then(a.rank().cmp(&b.rank())));
    let options = CompareOptions {
        seed: result.plan.as_ref().map_or(1, |plan| plan.seed),
        is_cost: true,
        ..CompareOptions::default()
    };
    let setup = Setup::new(result, result, &options);
    for &with in &real {
        for &without in real.iter().filter(|one| one.series.key.case == with.series.key.case) {
            let Some(step) = step(without, with) else { continue };
            if steps.costs.iter().all(|known| known.step != step) {
                steps.costs.extend(cost(step, without.series, with.series, &setup));
            }
        }
    }
    steps.costs.sort_by_key(|cost| match cost.step {
        Step::Blocking => (0, 0),
        Step::Kernel(protocol) => (1, protocol as usize),
        Step::KernelOverSharedMemory => (2, 0),
        Step::Environment(kind) => (3, kind as usize),
    });
    steps
}

fn cost(step: Step, without: &Series, with: &Series, setup: &Setup) -> Option<StepCost> {
    let pair = SeriesPair { a: without, b: with, path: String::new() };
    let row = single(&pair, Metric::Median, setup)?.row;
    let (a, b, factor) = (row.a?, row.b?, row.ratio?);
    factor.is_finite().then(|| StepCost {
        step,
        without: without.key.clone(),
        with: with.key.clone(),
        cost_ns: b - a,
        factor,
        interval: row.interval,
    })
}
