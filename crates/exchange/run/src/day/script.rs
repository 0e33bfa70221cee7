//! The script of a day: its phases, and what each of them may be.
//!
//! ```toml
//! [[phases]]
//! name = "open"
//! seconds = 20
//! rate_per_s = 5000
//! auction_seconds = 5                     # orders are collected, then traded at one price
//!
//! [[phases]]
//! name = "rush"
//! seconds = 30
//! rate_per_s = 5000
//! to_rate_per_s = 25000                   # linearly
//! arrivals = "bursts"
//! bursts = { triggered = 0.7, decay_ms = 1 }
//! hot = [{ instruments = [0, 1], share = 0.5 }]
//! gateway_shares = [0.8, 0.2]
//! faults = [{ node = "mediator:0", at_s = 10, down_s = 0.5 }]
//! outside_max_s = 2
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nm_exchange::network::{NodeCounts, NodeId, Role};
use nm_load::demand::{Demand, HotSet};
use nm_load::profile::Segment;
use nm_load::schedule::Bursts;
use nm_load::{Arrivals, Settings};
use nm_model::limits::{RATE_PER_S_MAX, SECONDS_MAX, SpecError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::round::Kill;

/// Longest day, s.
pub const DAY_SECONDS_MAX: u32 = SECONDS_MAX as u32;

/// Most phases of a day.
pub const PHASES_MAX: usize = 1_000;

/// Most instruments of a day.
pub const DAY_INSTRUMENTS_MAX: u32 = 4_096;

/// Most sessions of a day.
pub const DAY_SESSIONS_MAX: u32 = 4_096;

/// Most hot sets of a phase.
pub const HOT_SETS_MAX: usize = 64;

/// Most faults of a day.
pub const FAULTS_MAX: usize = 1_000;

/// Most faults of one node in a day: the supervisor gives up a node that was restarted more often
/// than this and a few times by itself.
pub const NODE_FAULTS_MAX: usize = 16;

/// Longest time that a killed node stays down, s.
pub const DOWN_S_MAX: f64 = 600.0;

/// Longest name of a day or a phase, characters.
pub const NAME_MAX: usize = 64;

/// Highest mean number of requests that one request of a burst triggers directly.
pub const TRIGGERED_MAX: f64 = 0.95;

/// Longest time constant of a burst, ms.
pub const DECAY_MS_MAX: f64 = 60_000.0;

/// How far shares may be from one in total.
const SHARES_TOLERANCE: f64 = 1e-6;

/// A day of load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Its name.
    #[serde(default = "default_name")]
    pub name: String,
    /// Sessions, numbered from 1 on and spread evenly over the gateways.
    #[serde(default = "default_sessions")]
    pub sessions: u32,
    /// Instruments, numbered from 0 on.
    #[serde(default = "default_instruments")]
    pub instruments: u32,
    /// The phases, one after the other.
    pub phases: Vec<Phase>,
    /// The file that it was read from, to name lines; empty if there is none.
    #[serde(skip)]
    pub(super) text: String,
}

/// A part of a day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Length, s.
    pub seconds: u32,
    /// Requests a second, at its start if the rate changes.
    pub rate_per_s: f64,
    /// Requests a second at its end, reached linearly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_rate_per_s: Option<f64>,
    /// The arrival process.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Parameters of the arrival process `bursts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bursts: Option<BurstSettings>,
    /// Zipf exponent of the demand for instruments that are in no hot set; zero for equal demand.
    #[serde(default = "default_zipf")]
    pub zipf: f64,
    /// Instruments with shares of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<HotSettings>,
    /// Share of the requests of each gateway, one in total; where none are given, sessions and so
    /// gateways are equally likely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_shares: Option<Vec<f64>>,
    /// An auction in all instruments, from the start of the phase on for this time, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auction_seconds: Option<u32>,
    /// Nodes that are killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultSettings>,
    /// Seconds of the phase that may be outside the limit; none are if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside_max_s: Option<u32>,
}

/// Parameters of bursts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BurstSettings {
    /// Mean number of requests that one request triggers directly.
    pub triggered: f64,
    /// Time constant with which that fades, ms.
    pub decay_ms: f64,
}

/// Instruments that together get a fixed share of all requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HotSettings {
    /// The instruments.
    pub instruments: Vec<u32>,
    /// Their share of all requests.
    pub share: f64,
}

/// A node that is killed, as by `kill -9`, and restarted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultSettings {
    /// Class and number, such as `mediator:0`.
    pub node: String,
    /// When, s after the start of the phase.
    pub at_s: f64,
    /// How long it stays down, s.
    #[serde(default)]
    pub down_s: f64,
}

fn default_name() -> String {
    "day".to_string()
}

fn default_sessions() -> u32 {
    Settings::default().sessions
}

fn default_instruments() -> u32 {
    Settings::default().instruments
}

fn default_zipf() -> f64 {
    Settings::default().zipf
}

/// Where in a script something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Index of the phase, unless it is the day itself.
    pub phase: Option<usize>,
    /// Index in the list that the field is, or belongs to.
    pub element: Option<usize>,
}

/// Something wrong, and where.
pub(super) type Wrong = (Place, SpecError);

impl Script {
    /// Three phases of `seconds` each: a low rate, a high one, and the low one again.
    pub fn step(low_per_s: f64, high_per_s: f64, seconds: u32) -> Script {
        let phases = [("before", low_per_s), ("step", high_per_s), ("after", low_per_s)];
        Script::of("step", phases, seconds)
    }

    /// Three phases of `seconds` each at one rate: before, during and after a rolling restart.
    pub fn restart(rate_per_s: f64, seconds: u32) -> Script {
        let phases = ["before", "restart", "after"].map(|name| (name, rate_per_s));
        Script::of("restart", phases, seconds)
    }

    fn of(name: &str, phases: [(&str, f64); 3], seconds: u32) -> Script {
        Script {
            name: name.to_string(),
            sessions: default_sessions(),
            instruments: default_instruments(),
            phases: phases.map(|(name, per_s)| Phase::steady(name, seconds, per_s)).into(),
            text: String::new(),
        }
    }

    /// Length, s.
    pub fn seconds(&self) -> u32 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }

    /// Start of each phase, s.
    pub fn starts(&self) -> impl Iterator<Item = (u32, &Phase)> {
        self.phases.iter().scan(0, |next, phase| {
            let start = *next;
            *next += phase.seconds;
            Some((start, phase))
        })
    }

    /// The profile of the load.
    pub fn segments(&self) -> Vec<Segment> {
        self.phases.iter().map(|phase| phase.segment(self.instruments)).collect()
    }

    /// The nodes to kill, with times since the start of the day.
    pub fn kills(&self) -> Vec<Kill> {
        let of_phase = |(start, phase): (u32, &Phase)| -> Vec<Kill> {
            let kill = |fault: &FaultSettings| {
                let node = fault.node()?;
                let at_s = f64::from(start) + fault.at_s;
                Some(Kill { node, at_s, stays_dead: Duration::from_secs_f64(fault.down_s) })
            };
            phase.faults.iter().filter_map(kill).collect()
        };
        self.starts().flat_map(of_phase).collect()
    }

    /// Checks what types cannot.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let day = |error| (Place::default(), error);
        check_name(&self.name).map_err(day)?;
        range("sessions", self.sessions, 1, DAY_SESSIONS_MAX).map_err(day)?;
        range("instruments", self.instruments, 1, DAY_INSTRUMENTS_MAX).map_err(day)?;
        count("phases", self.phases.len(), PHASES_MAX).map_err(day)?;
        if self.phases.is_empty() {
            return Err(day(SpecError::Empty { field: "phases" }));
        }
        let (mut seconds, mut names) = (0u64, BTreeSet::new());
        for (index, phase) in self.phases.iter().enumerate() {
            let phase_place = |error| (Place { phase: Some(index), element: None }, error);
            phase
                .check(self.instruments)
                .map_err(|(element, error)| (Place { phase: Some(index), element }, error))?;
            if !names.insert(&phase.name) {
                let (field, value) = ("name", phase.name.clone());
                return Err(phase_place(SpecError::Twice { field, value }));
            }
            seconds += u64::from(phase.seconds);
            if seconds > u64::from(DAY_SECONDS_MAX) {
                let limit = format!("at most {DAY_SECONDS_MAX} in all phases");
                let value =
                    format!("{} after {}", phase.seconds, seconds - u64::from(phase.seconds));
                return Err(phase_place(SpecError::out_of_range("seconds", value, limit)));
            }
        }
        self.check_fault_counts()
    }

    fn check_fault_counts(&self) -> Result<(), Wrong> {
        let (mut all, mut of_node) = (0, BTreeMap::new());
        for (index, phase) in self.phases.iter().enumerate() {
            for (element, fault) in phase.faults.iter().enumerate() {
                let place = Place { phase: Some(index), element: Some(element) };
                all += 1;
                count("faults", all, FAULTS_MAX).map_err(|error| (place, error))?;
                let of_this = of_node.entry(fault.node()).or_insert(0);
                *of_this += 1;
                if *of_this > NODE_FAULTS_MAX {
                    let limit = format!("at most {NODE_FAULTS_MAX} times");
                    let value = format!("{} for the {of_this}th time", fault.node);
                    return Err((place, SpecError::out_of_range("node", value, limit)));
                }
            }
        }
        Ok(())
    }

    /// Checks that a network of this size has the gateways and nodes of the script.
    pub(super) fn check_nodes(&self, counts: NodeCounts) -> Result<(), Wrong> {
        let gateways = Role::Gateway.count(counts);
        for (index, phase) in self.phases.iter().enumerate() {
            let place = |element| Place { phase: Some(index), element };
            if let Some(shares) = &phase.gateway_shares {
                let wrong = |value: String, limit: String| {
                    Err((place(None), SpecError::out_of_range("gateway_shares", value, limit)))
                };
                if shares.len() != gateways {
                    let limit = format!("{gateways}, one for each gateway of {counts}");
                    return wrong(format!("{} shares", shares.len()), limit);
                }
                if gateways > self.sessions as usize {
                    let limit =
                        format!("shares of at most {} gateways, as sessions", self.sessions);
                    return wrong(format!("{gateways} shares"), limit);
                }
            }
            for (element, fault) in phase.faults.iter().enumerate() {
                let is_there =
                    fault.node().is_some_and(|node| node.position() < node.class.count(counts));
                if !is_there {
                    let limit = format!("a node of a network of {counts}");
                    let error = SpecError::out_of_range("node", &fault.node, limit);
                    return Err((place(Some(element)), error));
                }
            }
        }
        Ok(())
    }
}

impl Phase {
    /// A phase at one rate, with default settings.
    pub fn steady(name: &str, seconds: u32, rate_per_s: f64) -> Phase {
        Phase {
            name: name.to_string(),
            seconds,
            rate_per_s,
            to_rate_per_s: None,
            arrivals: Arrivals::default(),
            bursts: None,
            zipf: default_zipf(),
            hot: vec![],
            gateway_shares: None,
            auction_seconds: None,
            faults: vec![],
            outside_max_s: None,
        }
    }

    /// Requests a second at its end.
    pub fn end_per_s(&self) -> f64 {
        self.to_rate_per_s.unwrap_or(self.rate_per_s)
    }

    /// Expected requests of one of its seconds, counted from 0.
    pub fn offered_in(&self, second: u32) -> f64 {
        let change_per_s2 = (self.end_per_s() - self.rate_per_s) / f64::from(self.seconds);
        self.rate_per_s + change_per_s2 * (f64::from(second) + 0.5)
    }

    /// The phase as a part of the load on `instruments` instruments.
    pub fn segment(&self, instruments: u32) -> Segment {
        let set =
            |hot: &HotSettings| HotSet { instruments: hot.instruments.clone(), share: hot.share };
        let hot: Vec<HotSet> = self.hot.iter().map(set).collect();
        let bursts = self.bursts.map_or_else(Bursts::default, |bursts| Bursts {
            triggered: bursts.triggered,
            decay_s: bursts.decay_ms / 1e3,
        });
        let shares = self.gateway_shares.as_deref();
        Segment {
            seconds: self.seconds,
            from_per_s: self.rate_per_s,
            to_per_s: self.end_per_s(),
            arrivals: self.arrivals,
            bursts,
            demand: Arc::new(Demand::new(instruments, self.zipf, &hot, shares)),
            auction_s: self.auction_seconds,
        }
    }

    /// Checks what types cannot. With an error comes the index in its list.
    fn check(&self, instruments: u32) -> Result<(), (Option<usize>, SpecError)> {
        let alone = |error| (None, error);
        check_name(&self.name).map_err(alone)?;
        range("seconds", self.seconds, 1, DAY_SECONDS_MAX).map_err(alone)?;
        range("rate_per_s", self.rate_per_s, 1.0, RATE_PER_S_MAX).map_err(alone)?;
        range("to_rate_per_s", self.end_per_s(), 1.0, RATE_PER_S_MAX).map_err(alone)?;
        range("zipf", self.zipf, 0.0, 10.0).map_err(alone)?;
        self.check_bursts().map_err(alone)?;
        self.check_hot(instruments)?;
        if let Some(shares) = &self.gateway_shares {
            let field = "gateway_shares";
            let total = check_shares(field, shares.iter().copied()).map_err(alone)?;
            if (total - 1.0).abs() > SHARES_TOLERANCE {
                let value = format!("{total} in total");
                return Err(alone(SpecError::out_of_range(field, value, "1 in total")));
            }
        }
        if let Some(auction_seconds) = self.auction_seconds {
            let (field, most) = ("auction_seconds", self.seconds - 1);
            if most == 0 {
                let limit = "absent: an auction ends within its phase, which has 1 s";
                return Err(alone(SpecError::out_of_range(field, auction_seconds, limit)));
            }
            range(field, auction_seconds, 1, most).map_err(alone)?;
        }
        for (element, fault) in self.faults.iter().enumerate() {
            fault.check(self.seconds).map_err(|error| (Some(element), error))?;
        }
        let most = self.seconds;
        range("outside_max_s", self.outside_max_s.unwrap_or(0), 0, most).map_err(alone)
    }

    fn check_bursts(&self) -> Result<(), SpecError> {
        let Some(BurstSettings { triggered, decay_ms }) = self.bursts else { return Ok(()) };
        if self.arrivals != Arrivals::Bursts {
            let value = format!("given for arrivals `{}`", self.arrivals);
            return Err(SpecError::out_of_range("bursts", value, "for arrivals = \"bursts\" only"));
        }
        range("triggered", triggered, 0.0, TRIGGERED_MAX)?;
        range("decay_ms", decay_ms, 0.001, DECAY_MS_MAX)
    }

    fn check_hot(&self, instruments: u32) -> Result<(), (Option<usize>, SpecError)> {
        let field = "hot";
        count(field, self.hot.len(), HOT_SETS_MAX).map_err(|error| (None, error))?;
        let mut seen = BTreeSet::new();
        for (element, set) in self.hot.iter().enumerate() {
            let wrong = |value: String, limit: String| {
                Err((Some(element), SpecError::out_of_range(field, value, limit)))
            };
            if set.instruments.is_empty() {
                return wrong("a set without instruments".into(), "one of one at least".into());
            }
            for instrument in &set.instruments {
                if *instrument >= instruments {
                    let last = instruments - 1;
                    return wrong(format!("instrument {instrument}"), format!("0 to {last}"));
                }
                if !seen.insert(*instrument) {
                    return wrong(format!("instrument {instrument} twice"), "each once".into());
                }
            }
        }
        let alone = |error| (None, error);
        let total = check_shares(field, self.hot.iter().map(|set| set.share)).map_err(alone)?;
        let is_all = seen.len() == instruments as usize;
        if total > 1.0 + SHARES_TOLERANCE || (is_all && (total - 1.0).abs() > SHARES_TOLERANCE) {
            let limit = if is_all { "1 in total" } else { "at most 1 in total" };
            let value = format!("{total} in total");
            return Err(alone(SpecError::out_of_range(field, value, limit)));
        }
        Ok(())
    }
}

impl FaultSettings {
    /// Class and number of the node; none if the text names none.
    pub fn node(&self) -> Option<NodeId> {
        self.node.parse().ok()
    }

    fn check(&self, seconds: u32) -> Result<(), SpecError> {
        if self.node().is_none() {
            let limit = "a class and a number, such as mediator:0";
            return Err(SpecError::out_of_range("node", format!("`{}`", self.node), limit));
        }
        let most = f64::from(seconds);
        if !(self.at_s >= 0.0 && self.at_s < most) {
            let limit = format!("0 to less than {most}, the length of the phase");
            return Err(SpecError::out_of_range("at_s", self.at_s, limit));
        }
        range("down_s", self.down_s, 0.0, DOWN_S_MAX)
    }
}

fn check_name(name: &str) -> Result<(), SpecError> {
    let is_plain = |c: char| c.is_alphanumeric() || " -_.".contains(c);
    if name.is_empty() || name.chars().count() > NAME_MAX || !name.chars().all(is_plain) {
        let limit = format!("1 to {NAME_MAX} letters, digits, blanks, `-`, `_` or `.`");
        return Err(SpecError::out_of_range("name", format!("`{}`", name.escape_debug()), limit));
    }
    Ok(())
}

/// Checks that each share is between zero and one; returns their sum.
fn check_shares(field: &'static str, shares: impl Iterator<Item = f64>) -> Result<f64, SpecError> {
    let mut total = 0.0;
    for share in shares {
        range(field, share, 0.0, 1.0)?;
        total += share;
    }
    Ok(total)
}

fn count(field: &'static str, count: usize, count_max: usize) -> Result<(), SpecError> {
    match count <= count_max {
        true => Ok(()),
        false => Err(SpecError::TooMany { field, count, count_max }),
    }
}

fn range<T>(field: &'static str, value: T, least: T, most: T) -> Result<(), SpecError>
where
    T: std::fmt::Display + PartialOrd + Copy,
{
    match value >= least && value <= most {
        true => Ok(()),
        false => Err(SpecError::out_of_range(field, value, format!("{least} to {most}"))),
    }
}
