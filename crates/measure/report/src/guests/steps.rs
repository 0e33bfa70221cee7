//! The cost of virtualization as steps: bare, virtual switch, vhost, SR-IOV, bypass, shared memory.
//!
//! Each step has the half round trip at 64 B and its difference to the last step before it that has
//! one. The steps of the kernel's sockets are of one stack, the one that most steps have; bypass
//! and shared memory take their fastest stack. A step of emulated guests has no difference and is
//! none for a later step.

use nm_model::class::StackClass;
use nm_model::environment::EnvironmentKind;
use nm_model::metric::Metric;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{RunResult, Series, Statistic};
use nm_model::stack::{Protocol, StackPair};

use crate::reference;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{self, NOT_AVAILABLE};
use crate::view;

/// The message size of all steps, bytes.
pub const SIZE_BYTES: u32 = 64;

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What it is.
    pub name: &'static str,
    /// Environment and stack, if it was measured.
    pub path: Option<String>,
    /// The stack, if it was measured.
    pub stack: Option<String>,
    /// Its figure.
    pub found: Found,
    /// What published studies give for such a step.
    pub published: Vec<Published>,
}

/// The figure of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// A figure that counts.
    Measured {
        /// Median half round trip, ns.
        ns: f64,
        /// What it differs by from the step before that was measured, ns, and which that is.
        difference: Option<(f64, &'static str)>,
    },
    /// A figure of emulated guests.
    Emulated {
        /// Median half round trip, ns.
        ns: f64,
        /// `EMULATED by tcg`.
        mark: String,
    },
    /// No figure.
    Missing {
        /// Why.
        reason: String,
    },
}

/// A figure of a published study.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Study and figure.
    pub name: String,
    /// Half round trip, ns.
    pub ns: f64,
    /// What was made of the figure.
    pub remark: &'static str,
}

/// Places a step may be measured in, the best first, and the published figures beside it.
struct Kind {
    name: &'static str,
    environments: &'static [EnvironmentKind],
    class: StepClass,
    published: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepClass {
    Kernel,
    Bypass,
    SharedMemory,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "bare",
        environments: &[EnvironmentKind::Netns],
        class: StepClass::Kernel,
        published: &[],
    },
    Kind {
        name: "virtual switch",
        environments: &[EnvironmentKind::VmSwitch],
        class: StepClass::Kernel,
        published: &["vmware-rtt-vnic"],
    },
    Kind {
        name: "vhost",
        environments: &[EnvironmentKind::VmVhost],
        class: StepClass::Kernel,
        published: &[],
    },
    Kind {
        name: "SR-IOV",
        environments: &[EnvironmentKind::VmSriov],
        class: StepClass::Kernel,
        published: &["vmware-rtt-passthrough"],
    },
    Kind {
        name: "bypass",
        environments: &[
            EnvironmentKind::VmSriov,
            EnvironmentKind::VmVhost,
            EnvironmentKind::VmSwitch,
        ],
        class: StepClass::Bypass,
        published: &["vmware-rtt-bypass-low", "vmware-rtt-bypass-high", "deftech-hft-vm-claim"],
    },
    Kind {
        name: "shared memory",
        environments: &[
            EnvironmentKind::VmSriov,
            EnvironmentKind::VmVhost,
            EnvironmentKind::VmSwitch,
            EnvironmentKind::VmWire,
        ],
        class: StepClass::SharedMemory,
        published: &[],
    },
];

impl StepClass {
    fn takes(self, stacks: &StackPair) -> bool {
        let is_shared = |protocol| protocol == Protocol::Shm;
        match self {
            StepClass::Kernel => stacks.class() == StackClass::Kernel,
            StepClass::Bypass => stacks.class() == StackClass::Bypass,
            StepClass::SharedMemory => {
                is_shared(stacks.client.protocol) && is_shared(stacks.server.protocol)
            }
        }
    }
}

/// The steps of a result; none without a figure of guests.
pub fn steps(result: &RunResult) -> Vec<Step> {
    let all: Vec<Candidate<'_>> = result.series.iter().filter_map(Candidate::of).collect();
    if !all.iter().any(|one| one.environment.has_guests()) {
        return vec![];
    }
    let kernel = kernel_stack(&all);
    let published = reference::load("prose-figures").ok();
    let mut before: Option<(f64, &'static str)> = None;
    let mut steps = vec![];
    for kind in KINDS {
        let found = kind.choose(&all, kernel);
        let published =
            kind.published.iter().filter_map(|id| published_figure(published.as_ref()?, id));
        let mut step = Step {
            name: kind.name,
            path: found.map(|one| one.series.key.path()),
            stack: found.map(|one| one.series.key.stack.clone()),
            found: Found::Missing { reason: String::new() },
            published: published.collect(),
        };
        step.found = match found {
            Some(Candidate { ns, series, .. }) => match series.emulated_mark() {
                Some(mark) => Found::Emulated { ns: *ns, mark },
                None => {
                    let difference = before.map(|(before_ns, name)| (ns - before_ns, name));
                    before = Some((*ns, kind.name));
                    Found::Measured { ns: *ns, difference }
                }
            },
            None => Found::Missing { reason: kind.reason(result) },
        };
        steps.push(step);
    }
    steps
}

/// A series that may be a step.
struct Candidate<'a> {
    series: &'a Series,
    environment: EnvironmentKind,
    stacks: StackPair,
    ns: f64,
}

impl Candidate<'_> {
    fn of(series: &Series) -> Option<Candidate<'_>> {
        let key = &series.key;
        let is_wanted = key.probe == ProbeKind::Pingpong
            && key.statistic == Statistic::HalfRoundTrip
            && key.case == Case::Message { size_bytes: SIZE_BYTES };
        let ns = view::value(series, Metric::Median).filter(|ns| ns.is_finite() && *ns > 0.0)?;
        let environment = key.environment.parse().ok()?;
        let stacks = key.stack.parse().ok()?;
        is_wanted.then_some(Candidate { series, environment, stacks, ns })
    }
}

/// The stack of the kernel's sockets that most steps have, those with a figure that counts first;
/// of equal ones the fastest.
fn kernel_stack(all: &[Candidate<'_>]) -> Option<StackPair> {
    let is_step = |one: &&Candidate<'_>| {
        let mut kernel = KINDS.iter().filter(|kind| kind.class == StepClass::Kernel);
        kernel.any(|kind| kind.environments.contains(&one.environment))
            && StepClass::Kernel.takes(&one.stacks)
    };
    let of_stack =
        |stacks: StackPair| all.iter().filter(is_step).filter(move |one| one.stacks == stacks);
    let weight = |stacks: StackPair| {
        let n_real = of_stack(stacks).filter(|one| !one.series.is_emulated()).count();
        let fastest = of_stack(stacks).map(|one| one.ns).fold(f64::INFINITY, f64::min);
        (n_real, of_stack(stacks).count(), fastest)
    };
    let stacks = all.iter().filter(is_step).map(|one| one.stacks);
    stacks.min_by(|a, b| {
        let (a, b) = (weight(*a), weight(*b));
        (b.0, b.1).cmp(&(a.0, a.1)).then(a.2.total_cmp(&b.2))
    })
}

impl Kind {
    /// Its series: in the first environment that has one that counts, else in the first that has
    /// one, the fastest.
    fn choose<'c, 'a>(
        &self,
        all: &'c [Candidate<'a>],
        kernel: Option<StackPair>,
    ) -> Option<&'c Candidate<'a>> {
        let place = |one: &Candidate<'_>| {
            self.environments.iter().position(|environment| *environment == one.environment)
        };
        let is_of_step = |one: &&Candidate<'_>| match self.class {
            StepClass::Kernel => Some(one.stacks) == kernel && place(one).is_some(),
            class => class.takes(&one.stacks) && place(one).is_some(),
        };
        all.iter().filter(is_of_step).min_by(|a, b| {
            let rank = |one: &Candidate<'_>| (one.series.is_emulated(), place(one));
            rank(a).cmp(&rank(b)).then(a.ns.total_cmp(&b.ns))
        })
    }

    /// Why there is no figure.
    fn reason(&self, result: &RunResult) -> String {
        let of_step = |environment: EnvironmentKind, stacks: &StackPair| {
            self.environments.contains(&environment) && self.class.takes(stacks)
        };
        let mut unavailable = result.not_available.iter();
        if let Some(row) = unavailable.find(|row| of_step(row.environment, &row.stack)) {
            return row.reason.clone();
        }
        let failure = result.failures.iter().find(|failure| {
            failure.row.as_ref().is_some_and(|row| {
                let parsed = row.environment.parse().ok().zip(row.stack.parse().ok());
                parsed.is_some_and(|(environment, stacks)| of_step(environment, &stacks))
            })
        });
        failure.map_or_else(|| "not part of this run".to_string(), |one| one.reason.clone())
    }
}

/// A published figure, as a half round trip.
fn published_figure(run: &RunResult, id: &str) -> Option<Published> {
    let series = run.series.iter().find(|series| series.key.stack == id)?;
    let ns = view::value(series, Metric::Mean)?;
    let (ns, remark) = match series.key.statistic {
        Statistic::HalfRoundTrip => (ns, "published"),
        Statistic::RoundTrip => (ns / 2.0, "half of the published round trip"),
        _ => return None,
    };
    Some(Published { name: format!("published {id}"), ns, remark })
}

impl Step {
    /// The figure and its difference, or why there is none: `11.3 µs, +2.1 µs to bare`.
    pub fn text(&self) -> String {
        match &self.found {
            Found::Measured { ns, difference: None } => units::latency(*ns),
            Found::Measured { ns, difference: Some((difference, to)) } => {
                let difference = signed(*difference);
                format!("{}, {difference} to {to}", units::latency(*ns))
            }
            Found::Emulated { ns, mark } => {
                format!("{mark} {}, no difference", units::latency(*ns))
            }
            Found::Missing { reason } => format!("not measured: {reason}"),
        }
    }
}

fn signed(ns: f64) -> String {
    let sign = if ns < 0.0 { "-" } else { "+" };
    format!("{sign}{}", units::latency(ns.abs()))
}

/// The steps as a table, the published figures below each.
pub fn steps_table(steps: &[Step]) -> Table {
    let titles = [
        Column::text("step"),
        Column::text("environment and stack"),
        Column::figure("half round trip"),
        Column::text("difference"),
        Column::text("execution or reason"),
    ];
    let caption = format!("Cost of virtualization: half round trip at {SIZE_BYTES} B, median");
    let mut table = Table::new(caption, titles);
    for step in steps {
        let path = step.path.clone().unwrap_or_default();
        let none = || NOT_AVAILABLE.to_string();
        let (tone, ns, difference, remark) = match &step.found {
            Found::Measured { ns, difference } => {
                let text = |(ns, to): &(f64, &str)| format!("{} to {to}", signed(*ns));
                let difference = difference.as_ref().map(text).unwrap_or_default();
                (Tone::Plain, units::latency(*ns), difference, String::new())
            }
            Found::Emulated { ns, mark } => {
                let ns = format!("{} {}", units::latency(*ns), view::EMULATED);
                (Tone::Unsure, ns, String::new(), mark.clone())
            }
            Found::Missing { reason } => (Tone::Faint, none(), String::new(), reason.clone()),
        };
        table.push(tone, vec![step.name.to_string(), path, ns, difference, remark]);
        for one in &step.published {
            let cells = [one.name.as_str(), "", &units::latency(one.ns), "", one.remark];
            table.push(Tone::Faint, cells.map(str::to_string).to_vec());
        }
    }
    table
}
