//! Plans: what to measure, where, how often and against which targets. Plan files are read in
//! [`crate::plan_file`].

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attached::AttachedSpec;
use crate::class::StackClass;
pub use crate::environment::EnvironmentKind;
use crate::factor::Factor;
use crate::guest::GuestSpec;
use crate::hosts::HostsSpec;
use crate::machine::MachineLimits;
use crate::metric::Metric;
use crate::named_enum::named_enum;
use crate::probe::{ProbeKind, ProbeSpec};
use crate::row_filter::RowFilter;
use crate::selector::Selector;
use crate::stack::{Stack, StackPair};
use crate::target::Target;
use crate::value_type;
use crate::words::{UnknownWord, nearest};

/// A plan: environments × stacks × probes × rounds, with targets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan and of its results.
    pub name: String,
    /// What the plan is for, one sentence.
    #[serde(default)]
    pub summary: String,
    /// How often everything is measured; at least five for a verdict.
    #[serde(default = "Plan::default_rounds")]
    pub rounds: u32,
    /// Seed of everything random.
    #[serde(default = "Plan::default_seed")]
    pub seed: u64,
    /// Published runs that the charts also show, by name.
    #[serde(default)]
    pub references: Vec<String>,
    /// What is measured.
    pub trials: Vec<TrialBlock>,
    /// What the results must reach.
    #[serde(default)]
    pub targets: Vec<PlanTarget>,
    /// Parts of the result to compare with each other.
    #[serde(default)]
    pub comparisons: Vec<PlanComparison>,
    /// What the machine itself must be like; nothing is demanded if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineLimits>,
    /// The virtual machines of the environments that have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests: Option<GuestSpec>,
    /// The hosts of the environment `ssh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<HostsSpec>,
    /// The guests of the environment `vm-attached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<AttachedSpec>,
    /// Conditions that rows are also measured with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<Factor>,
    /// Parts of the plan that are plans of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subplans: Vec<SubPlan>,
}

/// A part of a plan that is a plan of its own, chosen as `PLAN:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubPlan {
    /// Name of the part.
    pub name: String,
    /// What the part is for, one sentence; that of the plan if empty.
    #[serde(default)]
    pub summary: String,
    /// Words that choose its rows, as those of `--only`.
    pub only: RowFilter,
}

/// One block of trials: a probe in every environment over every stack.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TrialBlock {
    /// Environments.
    pub environments: Vec<EnvironmentKind>,
    /// Stacks; a pair whose ends differ is written `CLIENT:SERVER`.
    pub stacks: Vec<StackPair>,
    /// Whether rows that cannot run on a machine are left out there. Rows that run and fail are
    /// not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub optional: bool,
    /// Whether figures of these rows decide when two results of the plan are compared. If no row
    /// says so, those of the main stacks do.
    #[serde(default, skip_serializing_if = "is_false")]
    pub primary: bool,
    /// The probe; its parameters are keys of the same block.
    #[serde(flatten)]
    pub probe: ProbeSpec,
}

// Serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

named_enum!(
    /// Which of the series that a target covers must meet it.
    Scope, "scope", {
        /// Each of them.
        Every = "every",
        /// For each case one is enough.
        Any = "any",
    }
);

/// A target and the series that it is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanTarget {
    /// The requirement.
    pub require: Target,
    /// The series: `ENVIRONMENT/STACK` or a part of it, `*` for any (`netns/*`, `*/tcp-spin`).
    #[serde(default = "Selector::any")]
    pub on: Selector,
    /// Only series of this probe.
    #[serde(default)]
    pub probe: Option<ProbeKind>,
    /// Only series over stacks of these classes; of any class if empty. One class may be written
    /// without a list.
    #[serde(default, rename = "class", deserialize_with = "one_or_several")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "OneOrSeveral")]
    pub classes: Vec<StackClass>,
    /// Whether every series or any one must meet it.
    #[serde(default = "PlanTarget::default_scope")]
    pub scope: Scope,
    /// Why this target: its source, in words.
    #[serde(default)]
    pub why: String,
}

/// One class, or a list of them.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)] // Only its schema is used.
enum OneOrSeveral {
    One(StackClass),
    Several(Vec<StackClass>),
}

fn one_or_several<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<StackClass>, D::Error> {
    struct Classes;

    impl<'de> serde::de::Visitor<'de> for Classes {
        type Value = Vec<StackClass>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a class of stacks, or a list of them")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(vec![text.parse().map_err(E::custom)?])
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(
            self,
            mut list: A,
        ) -> Result<Self::Value, A::Error> {
            let mut classes = vec![];
            while let Some(class) = list.next_element()? {
                classes.push(class);
            }
            Ok(classes)
        }
    }

    from.deserialize_any(Classes)
}

impl PlanTarget {
    fn default_scope() -> Scope {
        Scope::Every
    }

    /// Whether the target is for stacks of this class.
    pub fn covers_class(&self, class: StackClass) -> bool {
        self.classes.is_empty() || self.classes.contains(&class)
    }

    /// Whether the target is for figures of this probe: of those that use no network only if it
    /// names the probe, or a figure that no other has.
    pub fn covers_probe(&self, kind: ProbeKind) -> bool {
        let is_meant = kind.uses_network() || self.require.metric == Metric::TimeLost;
        self.probe.map_or(is_meant, |probe| probe == kind)
    }

    /// Whether the target is for a row of the plan: one of its cases gives the figure.
    pub fn covers_row(&self, row: &PlanRow<'_>) -> bool {
        self.on.matches(row.environment.name(), &row.stack_name())
            && self.covers_probe(row.probe().kind())
            && self.covers_class(row.stacks.class())
            && row.probe().records(self.require.metric)
            && row.probe().cases().iter().any(|case| self.require.covers(case))
    }
}

/// The requirement with what it applies to: `median < 2us on netns/*, pingpong, any kernel stack`.
impl fmt::Display for PlanTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.require.text)?;
        if !self.on.is_any() {
            write!(f, " on {}", self.on)?;
        }
        if let Some(probe) = self.probe {
            write!(f, ", {probe}")?;
        }
        let classes: Vec<&str> = self.classes.iter().map(|class| class.name()).collect();
        let classes = classes.join(" or ");
        match (self.scope, classes.is_empty()) {
            (Scope::Any, true) => f.write_str(", any stack"),
            (Scope::Any, false) => write!(f, ", any {classes} stack"),
            (Scope::Every, true) => Ok(()),
            (Scope::Every, false) => write!(f, ", every {classes} stack"),
        }
    }
}

impl Factor {
    /// Whether the factor is for a row of the plan. Factors are for rows between two agents.
    pub fn covers_row(&self, row: &PlanRow<'_>) -> bool {
        let probe = row.probe().kind();
        matches!(probe, ProbeKind::Pingpong | ProbeKind::Stream | ProbeKind::Rr)
            && self.probe.is_none_or(|wanted| wanted == probe)
            && self.on.matches(row.environment.name(), &row.stack_name())
            && self.kind.stacks(&row.stacks).is_some()
    }
}

/// Two parts of the result to compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanComparison {
    /// The one compared against: `ENVIRONMENT/STACK`, or `reference:NAME`.
    pub a: String,
    /// The other: `ENVIRONMENT/STACK`.
    pub b: String,
    /// Ratio that still counts as equal, %.
    #[serde(default = "PlanComparison::default_margin")]
    pub margin_percent: f64,
}

impl PlanComparison {
    fn default_margin() -> f64 {
        5.0
    }

    /// The two sides.
    pub fn sides(&self) -> [&str; 2] {
        [&self.a, &self.b]
    }

    /// Whether a side is the row. A side that is a published run is no row.
    pub fn side_covers_row(side: &str, row: &PlanRow<'_>) -> bool {
        published_run(side).is_none()
            && Selector::new(side).matches(row.environment.name(), &row.stack_name())
    }
}

/// The name of a published run, and the part of it if one is named, from `reference:NAME` or
/// `reference:NAME/STACK`.
pub fn published_run(side: &str) -> Option<(&str, Option<&str>)> {
    let rest = side.strip_prefix("reference:")?;
    Some(match rest.split_once('/') {
        Some((name, stack)) => (name, Some(stack)),
        None => (rest, None),
    })
}

/// `netns/tcp-spin against loopback/tcp-spin`.
impl fmt::Display for PlanComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} against {}", self.b, self.a)
    }
}

/// One row of a plan: an environment, a pair of stacks and a block of trials.
#[derive(Debug, Clone, Copy)]
pub struct PlanRow<'a> {
    /// Environment.
    pub environment: EnvironmentKind,
    /// Stacks of both ends.
    pub stacks: StackPair,
    /// The block that it is of.
    pub block: &'a TrialBlock,
}

impl<'a> PlanRow<'a> {
    /// The probe with its parameters.
    pub fn probe(&self) -> &'a ProbeSpec {
        &self.block.probe
    }

    /// The stack in the keys of its series.
    pub fn stack_name(&self) -> String {
        self.block.probe.stack_name(&self.stacks)
    }

    /// `ENVIRONMENT/STACK`, as in the keys of its series.
    pub fn path(&self) -> String {
        format!("{}/{}", self.environment, self.stack_name())
    }

    /// Whether a filter takes it.
    pub fn is_taken_by(&self, filter: &RowFilter) -> bool {
        filter.takes(self.environment, &self.stacks, self.probe().kind())
    }
}

/// Why a plan could not be read: the line, the wrong word and its correction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// Line, counted from 1, if known.
    pub line: Option<usize>,
    /// What is wrong: a sentence without a full stop.
    pub message: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for PlanError {}

/// All keys that a `[[trials]]` block of this probe may have.
fn trial_keys(kind: ProbeKind) -> Vec<String> {
    let mut keys: Vec<String> =
        ["environments", "stacks", "probe", "optional", "primary"].map(String::from).to_vec();
    if let Ok(serde_json::Value::Object(fields)) = kind.default_fields() {
        keys.extend(fields.keys().cloned());
    }
    keys
}

/// The stacks of a block. A probe that uses no network needs no list, and has one stack.
fn stacks_of(kind: ProbeKind, stacks: Option<serde_json::Value>) -> Result<Vec<StackPair>, String> {
    let cpu = StackPair::same(Stack::CPU);
    let stacks: Vec<StackPair> = match (stacks, kind.uses_network()) {
        (Some(stacks), _) => value_type::decode_one("stacks", stacks)?,
        (None, false) => vec![cpu],
        (None, true) => return Err("missing field `stacks`".to_string()),
    };
    match stacks.iter().find(|&&stacks| (stacks == cpu) == kind.uses_network()) {
        Some(stacks) if kind.uses_network() => {
            Err(format!("the stack {stacks} moves no bytes, which probe {kind} does"))
        }
        Some(stacks) => Err(format!(
            "probe {kind} uses no network, so it has no stack {stacks}; leave `stacks` out"
        )),
        None => Ok(stacks),
    }
}

// A flattened, internally tagged enum cannot refuse unknown keys, so the block is decoded by hand.
impl<'de> Deserialize<'de> for TrialBlock {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<TrialBlock, D::Error> {
        use serde::de::Error;
        let mut fields = serde_json::Map::<String, serde_json::Value>::deserialize(from)?;
        let mut take_field = |name: &'static str| {
            fields.remove(name).ok_or_else(|| D::Error::custom(format!("missing field `{name}`")))
        };
        let environments = take_field("environments")?;
        let probe = take_field("probe")?;
        let stacks = fields.remove("stacks");
        let optional = fields.remove("optional").unwrap_or(serde_json::Value::Bool(false));
        let primary = fields.remove("primary").unwrap_or(serde_json::Value::Bool(false));
        let kind: ProbeKind = serde_json::from_value(probe).map_err(D::Error::custom)?;
        let stacks = stacks_of(kind, stacks).map_err(D::Error::custom)?;
        let known = trial_keys(kind);
        if let Some(key) = fields.keys().find(|key| !known.contains(key)) {
            let near = nearest(key, &known)
                .map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
            return Err(D::Error::custom(format!(
                "unknown field `{key}` for probe {kind}{near}; known are {}",
                known.join(", ")
            )));
        }
        let probe = ProbeSpec::decode(kind, fields).map_err(D::Error::custom)?;
        Ok(TrialBlock {
            environments: value_type::decode_one("environments", environments)
                .map_err(D::Error::custom)?,
            stacks,
            optional: value_type::decode_one("optional", optional).map_err(D::Error::custom)?,
            primary: value_type::decode_one("primary", primary).map_err(D::Error::custom)?,
            probe,
        })
    }
}

impl Plan {
    /// Fewest rounds that support a claim.
    pub const ROUNDS_MIN: u32 = 5;

    fn default_rounds() -> u32 {
        Plan::ROUNDS_MIN
    }

    fn default_seed() -> u64 {
        1
    }

    /// Every row, in order.
    pub fn rows(&self) -> Vec<PlanRow<'_>> {
        let mut rows = vec![];
        for block in &self.trials {
            for &environment in &block.environments {
                let of_stack = |&stacks| PlanRow { environment, stacks, block };
                rows.extend(block.stacks.iter().map(of_stack));
            }
        }
        rows
    }

    /// A named part as a plan of its own, with the rows that it chooses and with the targets and
    /// comparisons of these rows.
    ///
    /// # Errors
    /// The plan has no part of that name; the nearest is suggested.
    pub fn subplan(&self, name: &str) -> Result<Plan, UnknownWord> {
        let names: Vec<&str> = self.subplans.iter().map(|part| part.name.as_str()).collect();
        let part = self
            .subplans
            .iter()
            .find(|part| part.name == name)
            .ok_or_else(|| UnknownWord::new("sub-plan", name, &names))?;
        let mut plan = self.clone();
        plan.name = format!("{}:{name}", self.name);
        plan.subplans.clear();
        if !part.summary.is_empty() {
            plan.summary.clone_from(&part.summary);
        }
        for block in &mut plan.trials {
            let probe = block.probe.kind();
            let takes =
                |one: EnvironmentKind, stacks: &StackPair| part.only.takes(one, stacks, probe);
            let all = block.stacks.clone();
            block.stacks.retain(|stacks| block.environments.iter().any(|&one| takes(one, stacks)));
            block.environments.retain(|&one| all.iter().any(|stacks| takes(one, stacks)));
        }
        plan.trials.retain(|block| !block.environments.is_empty() && !block.stacks.is_empty());
        let rows: Vec<PlanRow<'_>> =
            self.rows().into_iter().filter(|row| row.is_taken_by(&part.only)).collect();
        plan.targets.retain(|target| rows.iter().any(|row| target.covers_row(row)));
        plan.factors.retain(|factor| rows.iter().any(|row| factor.covers_row(row)));
        plan.comparisons.retain(|comparison| {
            comparison.sides().iter().all(|side| {
                published_run(side).is_some()
                    || rows.iter().any(|row| PlanComparison::side_covers_row(side, row))
            })
        });
        Ok(plan)
    }

    /// How long one run of the plan measures, s, without set-up.
    pub fn duration_s(&self) -> f64 {
        let of_row = |row: &PlanRow<'_>| {
            let n_factors = self.factors.iter().filter(|factor| factor.covers_row(row)).count();
            row.probe().duration_s() * (1 + n_factors) as f64
        };
        let round: f64 = self.rows().iter().map(of_row).sum();
        round * f64::from(self.rounds)
    }
}
