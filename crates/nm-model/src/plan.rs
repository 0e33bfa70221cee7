//! Plans: what to measure, where, how often and against which targets; read from TOML.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exchange::ExchangeSpec;
use crate::probe::{PingpongSpec, ProbeKind, ProbeSpec, RrSpec, StreamSpec};
use crate::spec_error::SpecError;
use crate::stack::{StackPair, named_enum};
use crate::target::Target;
use crate::value_type;
use crate::words::nearest;

named_enum!(
    /// Where the endpoints run.
    EnvironmentKind, "environment", {
        /// Two processes on this host, over the loopback interface.
        Loopback = "loopback",
        /// Two network namespaces back to back over a veth pair.
        Netns = "netns",
        /// Two network namespaces over a Linux bridge: the shape of vNIC and virtual switch.
        Bridge = "bridge",
        /// Two virtual machines.
        Vm = "vm",
        /// Two hosts reached by ssh.
        Ssh = "ssh",
    }
);

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
}

/// One block of trials: a probe in every environment over every stack.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TrialBlock {
    /// Environments.
    pub environments: Vec<EnvironmentKind>,
    /// Stacks; a pair whose ends differ is written `CLIENT:SERVER`.
    pub stacks: Vec<StackPair>,
    /// The probe; its parameters are keys of the same block.
    #[serde(flatten)]
    pub probe: ProbeSpec,
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
    #[serde(default = "PlanTarget::default_on")]
    pub on: String,
    /// Only series of this probe.
    #[serde(default)]
    pub probe: Option<ProbeKind>,
    /// Whether every series or any one must meet it.
    #[serde(default = "PlanTarget::default_scope")]
    pub scope: Scope,
    /// Why this target: its source, in words.
    #[serde(default)]
    pub why: String,
}

impl PlanTarget {
    fn default_on() -> String {
        "*".to_string()
    }

    fn default_scope() -> Scope {
        Scope::Every
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

/// A plan that is valid TOML but holds a value that is out of range.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("plan name `{0}` may hold letters, digits, - _ .")]
    Name(String),
    #[error("rounds is {0}, must be 1 to 1000")]
    Rounds(u32),
    #[error("the plan has no [[trials]]")]
    NoTrials,
    #[error("[[trials]] needs an environment and a stack")]
    EmptyTrials,
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl CheckError {
    /// The field that is wrong, by which its line is found.
    fn field(&self) -> &'static str {
        match self {
            CheckError::Name(_) => "name",
            CheckError::Rounds(_) => "rounds",
            CheckError::NoTrials | CheckError::EmptyTrials => "trials",
            CheckError::Spec(error) => error.field(),
        }
    }
}

/// All keys that a `[[trials]]` block of this probe may have.
fn trial_keys(kind: ProbeKind) -> Vec<String> {
    let value = match kind {
        ProbeKind::Pingpong => serde_json::to_value(PingpongSpec::default()),
        ProbeKind::Stream => serde_json::to_value(StreamSpec::default()),
        ProbeKind::Rr => serde_json::to_value(RrSpec::default()),
        ProbeKind::Exchange => serde_json::to_value(ExchangeSpec::default()),
        ProbeKind::Compute | ProbeKind::Jitter => {
            Ok(serde_json::Value::Object(serde_json::Map::new()))
        }
    };
    let mut keys = vec!["environments".to_string(), "stacks".to_string(), "probe".to_string()];
    if let Ok(serde_json::Value::Object(fields)) = value {
        keys.extend(fields.keys().cloned());
    }
    keys
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
        let stacks = take_field("stacks")?;
        let probe = take_field("probe")?;
        let kind: ProbeKind = serde_json::from_value(probe).map_err(D::Error::custom)?;
        let known = trial_keys(kind);
        if let Some(key) = fields.keys().find(|key| !known.contains(key)) {
            let near = nearest(key, &known)
                .map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
            return Err(D::Error::custom(format!(
                "unknown field `{key}` for probe {kind}{near}; known are {}",
                known.join(", ")
            )));
        }
        let has_write_bytes = fields.contains_key("write_bytes");
        let probe = match kind {
            ProbeKind::Pingpong => value_type::decode(fields).map(ProbeSpec::Pingpong),
            ProbeKind::Stream => value_type::decode(fields).map(|mut spec: StreamSpec| {
                // A preset is another tool's write size, unless the block names its own.
                if let (Some(preset), false) = (spec.preset, has_write_bytes) {
                    spec.write_bytes = preset.write_bytes();
                }
                ProbeSpec::Stream(spec)
            }),
            ProbeKind::Rr => value_type::decode(fields).map(ProbeSpec::Rr),
            ProbeKind::Compute => Ok(ProbeSpec::Compute),
            ProbeKind::Jitter => Ok(ProbeSpec::Jitter),
            ProbeKind::Exchange => value_type::decode(fields).map(ProbeSpec::Exchange),
        }
        .map_err(D::Error::custom)?;
        Ok(TrialBlock {
            environments: value_type::decode_one("environments", environments)
                .map_err(D::Error::custom)?,
            stacks: value_type::decode_one("stacks", stacks).map_err(D::Error::custom)?,
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

    /// Reads and checks a plan.
    ///
    /// # Errors
    /// The line, the word that is wrong and the nearest right one.
    pub fn parse(text: &str) -> Result<Plan, PlanError> {
        let plan: Plan = toml::from_str(text).map_err(|error| toml_error(text, &error))?;
        plan.check().map_err(|error| PlanError {
            line: text.find(error.field()).map(|at| line_of(text, at)),
            message: error.to_string(),
        })?;
        Ok(plan)
    }

    /// Checks what types cannot: ranges and combinations.
    fn check(&self) -> Result<(), CheckError> {
        if self.name.is_empty()
            || !self.name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
        {
            return Err(CheckError::Name(self.name.clone()));
        }
        if !(1..=1000).contains(&self.rounds) {
            return Err(CheckError::Rounds(self.rounds));
        }
        if self.trials.is_empty() {
            return Err(CheckError::NoTrials);
        }
        for block in &self.trials {
            if block.environments.is_empty() || block.stacks.is_empty() {
                return Err(CheckError::EmptyTrials);
            }
            for pair in &block.stacks {
                block.probe.check(pair.wire_protocol())?;
            }
        }
        Ok(())
    }

    /// The longest time that one run of the plan takes, s, without set-up.
    pub fn duration_s(&self) -> f64 {
        let round: f64 = self
            .trials
            .iter()
            .map(|block| {
                block.probe.duration_s() * (block.environments.len() * block.stacks.len()) as f64
            })
            .sum();
        round * f64::from(self.rounds)
    }
}

/// The line of a byte offset in the text, counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn toml_error(text: &str, error: &toml::de::Error) -> PlanError {
    let message = error.message();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let word = quoted.next().unwrap_or_default();
    // The span of an error inside a block is the block's heading; the word is further down.
    let start = error.span().map_or(0, |span| span.start);
    let is_present = !word.is_empty() && !message.starts_with("missing field");
    let line = match text[start..].find(word).filter(|_| is_present) {
        Some(at) => line_of(text, start + at),
        None => error.span().map_or(1, |span| line_of(text, span.start)),
    };
    let mut message = message.lines().next().unwrap_or("not a plan").to_string();
    if let Some(rest) = message.strip_prefix("unknown field `").map(str::to_string)
        && let Some((bad, expected)) = rest.split_once("`, expected ")
    {
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        message = match nearest(bad, &known) {
            Some(near) => format!("unknown field `{bad}`, did you mean `{near}`?"),
            None => format!("unknown field `{bad}`; known are {}", known.join(", ")),
        };
    }
    if let Some(key) = text.lines().nth(line - 1).and_then(value_type::key_of_line) {
        message = value_type::sentence(key, &message);
    }
    PlanError { line: Some(line), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"
name = "small"
rounds = 5

[[trials]]
environments = ["loopback", "netns"]
stacks = ["tcp-spin", "tcp-spin:tcp-blocking"]
probe = "pingpong"
sizes = [1, 64]
max_ms = 200

[[targets]]
require = "median_ns < 2000 at size<=1024"
on = "netns/*"
"#;

    #[test]
    fn a_plan_is_read_with_the_probes_defaults() {
        let plan = Plan::parse(GOOD).unwrap();
        let ProbeSpec::Pingpong(spec) = &plan.trials[0].probe else { panic!("not pingpong") };
        assert_eq!(spec.sizes, [1, 64]);
        assert_eq!(spec.max_iterations, 1_000_000);
        assert_eq!(plan.targets[0].scope, Scope::Every);
        assert_eq!(plan.duration_s(), 5.0 * 4.0 * 2.0 * 0.3);
    }

    #[test]
    fn a_preset_sets_the_write_size_unless_the_block_sets_it() {
        let write_bytes = |more: &str| {
            let text = format!(
                "name='x'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-blocking']\n\
                 probe='stream'\n{more}"
            );
            match &Plan::parse(&text).unwrap().trials[0].probe {
                ProbeSpec::Stream(spec) => spec.write_bytes,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(write_bytes("preset='netperf'"), 16 * 1024);
        assert_eq!(write_bytes("preset='netperf'\nwrite_bytes=1000"), 1000);
        assert_eq!(write_bytes(""), 128 * 1024);
    }

    #[test]
    fn a_plan_round_trips_through_json() {
        let plan = Plan::parse(GOOD).unwrap();
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }

    #[test]
    fn a_typo_is_reported_with_line_word_and_suggestion() {
        let error =
            |from: &str, to: &str| Plan::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            error("rounds =", "ronds ="),
            "line 3: unknown field `ronds`, did you mean `rounds`?"
        );
        assert_eq!(
            error("\"tcp-spin\",", "\"tcp-spn\","),
            "line 7: unknown mode `spn`, did you mean `spin`?"
        );
        assert!(error("sizes =", "sises =").starts_with(
            "line 9: unknown field `sises` for probe pingpong, did you mean `sizes`?"
        ));
        assert_eq!(
            error("\"pingpong\"", "\"pingpng\""),
            "line 8: unknown probe `pingpng`, did you mean `pingpong`?"
        );
        assert_eq!(
            error("median_ns", "medin_ns"),
            "line 13: target `medin_ns < 2000 at size<=1024`: \
             unknown metric `medin`, did you mean `median`?"
        );
        assert_eq!(error("rounds = 5", "rounds = 0"), "line 3: rounds is 0, must be 1 to 1000");
        assert!(error("rounds = 5", "rounds = ").starts_with("line 3: "));
        assert_eq!(
            error("max_ms = 200", "max_ms = \"200\""),
            "line 10: `max_ms` is \"200\", which is text because of its quotes; write 200 without \
             quotes"
        );
        assert_eq!(
            error("rounds = 5", "rounds = '5'"),
            "line 3: `rounds` is \"5\", which is text because of its quotes; write 5 without quotes"
        );
        assert_eq!(
            error("sizes = [1, 64]", "sizes = 64"),
            "line 9: `sizes` is 64, but must be a list in square brackets"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
            let _ = Plan::parse(&text);
        }

        #[test]
        fn damaged_plans_never_panic(
            at in 0..GOOD.len(), insert in "[\\[\\]=\"a-z0-9\n]{0,4}", cut in 0usize..6,
        ) {
            let mut text = GOOD.to_string();
            let end = (at + cut).min(text.len());
            text.replace_range(at..end, &insert);
            if let Err(error) = Plan::parse(&text) {
                prop_assert!(!error.message.is_empty());
            }
        }
    }
}
